"""Cells that sample: from a session and tasks to groups of trajectories, in one process or many."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.engines.base import Engine
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.training.session import Session
from workbench.types import Group, Task, Trajectory
from workbench.types.errors import ConfigError


def rollout(
    session: Session, tasks: Sequence[Task] | int = 4, *, group_size: int | None = None, step: int = 0,
    purpose: str = "look", config: CollectConfig | None = None, address: tuple[int | str, ...] | None = None,
    on_done: Callable[[Trajectory], None] | None = None, engine: Engine | None = None,
) -> list[Group]:
    """Sample `group_size` attempts at each task with the session's engine; one group per task, in task order.

    `tasks` may be a number: so many training tasks of the step. With several processes each one samples its share of
    the tasks and all of them return all groups. The same (seed, purpose, step) gives the same groups, bit for bit, for
    environments that are stepped in the tick (law 8). `on_done` sees the trajectories of this process as they end.
    `engine`: one to ask instead of the session's own, such as a `Journal` around it, which writes down what it is asked.
    """
    if isinstance(tasks, int):
        tasks = session.train_tasks(step, tasks)
    if not tasks:
        raise ConfigError("a rollout needs at least one task")
    rank, world = session.place
    like_training = config is None or config.runs_like(session.config.collect)
    config = config or session.config.collect
    groups = collect(
        tasks[rank::world], family=session.family, engine=session.engine if engine is None else engine,
        chat=session.chat, config=config,
        group_size=session.config.train.group_size if group_size is None else group_size,
        address=address or (session.config.seed, purpose, step), on_done=on_done,
        runner=session.runner if like_training else None,
    )
    if world == 1:
        return groups
    from accelerate.utils import gather_object

    gathered = {group.task.id: group for group in gather_object(groups)}
    return [gathered[task.id] for task in tasks]
