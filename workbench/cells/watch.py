"""Progress while a run trains: a bar in the terminal, one line in a notebook, and every evaluation as it comes."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workbench.cells.train import StepOutcome
from workbench.evaluation import Score
from workbench.views import progress
from workbench.views.progress_line import Progress


@dataclass(frozen=True)
class Eyes:
    """The callbacks that `train_here` takes, drawing on one progress bar."""

    bar: Progress

    def on_step(self, outcome: StepOutcome) -> None:
        metrics = outcome.metrics
        self.bar.update(outcome.step, f"reward {metrics['reward_mean']:.2f}, success {metrics['success']:.2f}, "
                                      f"spread within groups {metrics['reward_std_within']:.2f}")

    def on_score(self, step: int, scores: list[Score]) -> None:
        for score in scores:
            if step == 0 or score.policy == "trained":
                self.bar.say(f"step {step}: {score}")


@contextmanager
def watch(steps: int, label: str) -> Iterator[Eyes]:
    """A progress bar over training steps, as the callbacks of `train_here`."""
    with progress(steps, label) as bar:
        yield Eyes(bar)
