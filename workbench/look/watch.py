"""Progress while a run trains: a bar in the terminal, one line in a notebook, and every evaluation as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from workbench.look import progress
from workbench.look.progress_line import Progress
from workbench.run.follow import MEASURING, RunFollower

if TYPE_CHECKING:
    from workbench.rollouts.evaluate import Score
    from workbench.training.train import StepOutcome


LABEL = 12  # characters: a longer one would push the numbers out of a terminal's line


@dataclass(frozen=True)
class ProgressCallbacks:
    """The callbacks that `train_here` takes, drawing on one progress bar."""

    bar: Progress

    def on_step(self, outcome: StepOutcome) -> None:
        self.bar.update(outcome.step, headline(outcome.metrics))

    def on_score(self, step: int, scores: list[Score]) -> None:
        for score in scores:
            if step == 0 or score.policy == "trained":
                self.bar.say(f"step {step:3d}  {score}")
        if step == 0:
            self.bar.restart_clock()


@contextmanager
def watch(steps: int, label: str, done: int = 0) -> Iterator[ProgressCallbacks]:
    """A progress bar over training steps, as the callbacks of `train_here`. `done`: committed before, by an earlier
    process."""
    with progress(steps, label if len(label) <= LABEL else "training") as bar:
        bar.found(done, "opening" if done else MEASURING)
        yield ProgressCallbacks(bar)


def headline(metrics: Mapping[str, Any]) -> str:
    """What to look at in a step, in a few words. What was not computed is left out (invariant 5)."""
    wanted = {
        "reward_mean": "reward",
        "success": "success",
        "reward_std_in_group": "std in group (n - 1)",
    }
    known = {words: metrics.get(name) for name, words in wanted.items()}
    return ", ".join(
        f"{words} {value:.2f}"
        for words, value in known.items()
        if value is not None and value == value
    )


def follow(bar: Progress, follower: RunFollower, steps: int | None = None) -> None:
    """Draw on `bar` what a run's folder says now. `steps`: how many there are to be, while the folder does not say."""
    follower.read()
    bar.total = steps if follower.steps is None else follower.steps
    phase = follower.phase()
    if phase == MEASURING:
        bar.restart_clock()
    has_row = follower.rows and (phase.startswith("step ") or phase == "done")
    bar.update(follower.step, headline(follower.rows[-1]) if has_row else phase)
