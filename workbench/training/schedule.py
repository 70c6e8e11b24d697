"""Where a run stands: what is committed, what an uninterrupted run would have had by now and this one has not, and from
which checkpoint it is made. All of it is read off the folder: nothing else survives a kill.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.run.store import Run, step_name
from workbench.training import checkpoint
from workbench.training.config import KINDS, Config, from_dict
from workbench.training.sections import TrainConfig
from workbench.values.errors import StoreError


@dataclass(frozen=True)
class Schedule:
    """`start`: the checkpoint to go on from (0: the untrained policy); the steps after it up to `committed` are
    repeated, those after that are new. `saved`: committed steps that had a checkpoint once. `checkpoints`, `evaluations`:
    committed steps that lack theirs (evaluation 0 is that of the baselines). `empty`: steps in a row up to `start` that taught nothing. `damaged`: checkpoints that were
    passed over, with the reasons."""

    train: TrainConfig
    committed: int
    start: int
    empty: int
    saved: frozenset[int]
    checkpoints: frozenset[int]
    evaluations: frozenset[int]
    damaged: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Nothing is left to do."""
        return self.committed == self.train.steps and not self.checkpoints and not self.evaluations

    def saves(self, step: int) -> bool:
        return step in self.checkpoints if step <= self.committed else saves(self.train, step)

    def saved_at(self, step: int) -> bool:
        """Whether an uninterrupted run had a checkpoint after this step, kept or not."""
        return step in self.saved if step <= self.committed else saves(self.train, step)

    def evaluates(self, step: int) -> bool:
        return step in self.evaluations if step <= self.committed else evaluates(self.train, step)


def saves(train: TrainConfig, step: int) -> bool:
    """Whether a checkpoint follows a step."""
    return step == train.steps or step % train.checkpoint_every == 0


def evaluates(train: TrainConfig, step: int) -> bool:
    """Whether an evaluation follows a step."""
    return step == train.steps or bool(train.evaluate_every) and step % train.evaluate_every == 0


def schedule(run: Run, config: Config) -> Schedule:
    """Read it off the folder of `run`; `config` is in force from now on, what was before is in the folder. Raises
    StoreError where committed steps are gone."""
    done = run.steps()
    committed = len(done)
    if done != list(range(1, committed + 1)):
        missing = min(set(range(1, max(done) + 1)) - set(done), default=None)
        if missing is None:
            raise StoreError(
                f"metrics.jsonl of {run.path} lists steps {done[:8]}; expected each once, from 1 on. Restore it from a copy "
                "of the run"
            )
        raise StoreError(
            f"step {missing} of {run.path} is gone although later ones are committed; restore "
            "metrics.jsonl from a copy of the run"
        )
    eras = _eras(run, config, committed)

    def train_at(step: int) -> TrainConfig:
        return next(train for after, train in reversed(eras) if after <= step)

    evaluations = _missing_evaluations(run, committed, train_at)
    # What comes before the first thing to be made again; the baselines are measured without any training.
    newest = min((step for step in evaluations if step), default=committed)
    start, damaged = _newest_sound(run, newest)
    due = [step for step in range(1, committed + 1) if saves(train_at(step), step)]
    kept = due[-config.train.keep_checkpoints :]
    checkpoints = {
        step for step in kept if step > start and checkpoint.damage(run.path, step) is not None
    }
    return Schedule(
        config.train,
        committed,
        start,
        _empty_steps(run, start),
        frozenset({*due, *checkpoint.steps(run.path)}),
        frozenset(checkpoints),
        frozenset(evaluations),
        damaged,
    )


def _empty_steps(run: Run, start: int) -> int:
    """How many steps in a row up to `start` taught nothing."""
    made = run.metrics()["updates"].tolist() if start else []
    taught = [step for step in range(1, start + 1) if made[step - 1]]
    return start - max(taught, default=0)


def _missing_evaluations(
    run: Run, committed: int, train_at: Callable[[int], TrainConfig]
) -> set[int]:
    """Committed steps that lack their evaluation; 0: that of the baselines."""
    there = _evaluations(run)
    due = {step for step in range(1, committed + 1) if evaluates(train_at(step), step)}
    return {step for step in {0, *due} if step_name(step) not in there}


def _evaluations(run: Run) -> Collection[str]:
    try:
        return run.evaluations().keys()
    except StoreError as error:
        raise StoreError(
            f"{error}. Or move that file out of the folder: whoever resumes the run measures it again, "
            "with the same numbers"
        ) from error


def _eras(run: Run, config: Config, committed: int) -> list[tuple[int, TrainConfig]]:
    """(step, settings): what was in force from the end of that step on. The last decides what follows the last
    committed step."""
    afters = sorted({event["after"] for event in run.events() if event["kind"] == "settings"})
    past = [(after, _train_of(run.config_of(after))) for after in afters]
    return [(0, _train_of(run.first_config)), *past, (committed, config.train)]


def _newest_sound(run: Run, most: int) -> tuple[int, tuple[str, ...]]:
    reasons = []
    for step in reversed(checkpoint.steps(run.path)):
        if step > most:
            continue
        reason = checkpoint.damage(run.path, step)
        if reason is None:
            return step, tuple(reasons)
        reasons.append(reason)
    return 0, tuple(reasons)


def _train_of(tree: Mapping[str, Any]) -> TrainConfig:
    return from_dict(tree, without=KINDS).train
