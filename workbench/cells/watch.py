"""Progress while a run trains: a bar in the terminal, one line in a notebook, and every evaluation as it comes."""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.errors import StoreError
from workbench.store import open_run, step_name
from workbench.views import progress
from workbench.views.progress_line import Progress

if TYPE_CHECKING:
    from workbench.cells.train import StepOutcome
    from workbench.evaluation import Score


LABEL = 12  # characters: a longer one would push the numbers out of a terminal's line
MEASURING = "measuring random play, the solver and the untrained policy"


@dataclass(frozen=True)
class Eyes:
    """The callbacks that `train_here` takes, drawing on one progress bar."""

    bar: Progress

    def on_step(self, outcome: StepOutcome) -> None:
        self.bar.update(outcome.step, headline(outcome.metrics))

    def on_score(self, step: int, scores: list[Score]) -> None:
        for score in scores:
            if step == 0 or score.policy == "trained":
                self.bar.say(f"step {step:3d}  {score}")


@contextmanager
def watch(steps: int, label: str) -> Iterator[Eyes]:
    """A progress bar over training steps, as the callbacks of `train_here`."""
    with progress(steps, label if len(label) <= LABEL else "training") as bar:
        bar.update(0, MEASURING)
        yield Eyes(bar)


def headline(metrics: Mapping[str, Any]) -> str:
    """What to look at in a step, in a few words. What was not computed is left out (law 5)."""
    wanted = {"reward_mean": "reward", "success": "success", "reward_std_within": "spread within groups"}
    known = {words: metrics.get(name) for name, words in wanted.items()}
    return ", ".join(f"{words} {value:.2f}" for words, value in known.items() if value is not None and value == value)


def follow(bar: Progress, path: Path) -> None:
    """Draw on `bar` what a run's folder says now. Nothing but the folder is asked: any process can do this, at any
    time.
    """
    try:
        run = open_run(path)
        metrics = run.metrics()
        evaluations = run.evaluations()
    except StoreError:  # its process has not made the folder yet
        return bar.update(0, "starting")
    if not evaluations:
        return bar.update(0, MEASURING)
    steps = run.steps()
    if len(steps) == bar.total and step_name(steps[-1]) not in evaluations:
        return bar.update(len(steps), "measuring the trained policy")
    bar.update(len(steps), headline(metrics.iloc[-1].to_dict()) if steps else "first step")
