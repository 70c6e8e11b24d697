"""Cells that measure: policies and their baselines on the same held-out tasks."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.rollouts.evaluate import MODES, Score, evaluate_baselines, evaluate_policy, report
from workbench.training.rollout import rollout
from workbench.training.session import Session
from workbench.types import Trajectory


def evaluate(session: Session, *, name: str = "policy", num_tasks: int | None = None, modes: Sequence[str] = MODES,
             attempts: int | None = None, on_done: Callable[[Trajectory], None] | None = None) -> list[Score]:
    """Scores of the session's policy on its held-out tasks, one per mode (sampled at temperature 1, greedy).

    `num_tasks`, `attempts` (at each task, where it samples): as the config says, unless given here.
    """

    def play(tasks, count, config, address):
        return rollout(session, tasks, group_size=count, config=config, address=address, on_done=on_done)

    return evaluate_policy(name, session.held_out_tasks(num_tasks), play, config=session.config.collect,
                           seed=session.config.evaluation.seed, modes=modes, attempts=_attempts(session, attempts))


def baselines(session: Session, *, num_tasks: int | None = None, attempts: int | None = None) -> list[Score]:
    """Random play and the best-known solver on the same tasks, random play as often as a policy that samples."""
    return evaluate_baselines(session.held_out_tasks(num_tasks), family=session.family, runner=session.runner,
                              seed=session.config.evaluation.seed, attempts=_attempts(session, attempts))


def evaluation_report(session: Session, scores: Sequence[Score], *, num_tasks: int | None = None,
                      attempts: int | None = None) -> dict[str, Any]:
    """The JSON-able table of `scores` with their baselines and paired intervals (law 12)."""
    return report([*baselines(session, num_tasks=num_tasks, attempts=attempts), *scores])


def _attempts(session: Session, attempts: int | None) -> int:
    return session.config.evaluation.attempts if attempts is None else attempts
