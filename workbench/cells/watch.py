"""Progress while a run trains: a bar in the terminal, one line in a notebook, and every evaluation as it comes."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from workbench.cells.train import StepOutcome
from workbench.evaluation import Score
from workbench.views import progress


@dataclass(frozen=True)
class Eyes:
    """The callbacks that `train_here` takes, drawing on one progress bar."""

    bar: object
    say: Callable[[str], None]

    def on_step(self, outcome: StepOutcome) -> None:
        m = outcome.metrics
        self.bar.update(outcome.step, f"reward {m['reward_mean']:.2f}  success {m['success']:.2f}  "
                                      f"spread within groups {m['reward_std_within']:.2f}  gradient {m.get('grad_norm', 0):.2f}")

    def on_score(self, step: int, scores: list[Score]) -> None:
        self.say(f"step {step}: " + "; ".join(str(score) for score in scores if step == 0 or score.policy == "trained"))


@contextmanager
def watch(steps: int, label: str, say: Callable[[str], None] = print) -> Iterator[Eyes]:
    with progress(steps, label) as bar:
        yield Eyes(bar, say)
