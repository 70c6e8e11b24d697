"""Success by kind of task: what training learned of each, and when.

wb.by_kind(run, "hops")             questions by the documents that an answer takes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from workbench.notebook.spread import MOST_STEPS
from workbench.run.store import Run, open_run
from workbench.types import Group, Task
from workbench.types.address import Address
from workbench.types.errors import DataError
from workbench.types.evenly import evenly
from workbench.types.kinds import ByKind, KindRecord

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun


def by_kind(run: Run | RunningRun | str | Path, key: str, *, most: int = MOST_STEPS) -> ByKind:
    """Success in training and on the held-out tasks, by the kind of task: what the entry `key` of its payload says
    (`run.groups(1)[0].task.payload`). Of a run with more than `most` committed steps, so many are read, evenly chosen.

    Held-out tasks: the last evaluation's policies, and the untrained one of the first where the last has none. Raises
    DataError where tasks have no such entry, StoreError for what is no run and for a damaged step."""
    run = open_run(run)
    training, first = [], {}
    for step in evenly(run.steps(), most):
        attempts, won = Counter(), Counter()
        for task, group in enumerate(run.groups(step)):
            kind = _kind(group.task, key)
            winners = [number for number, attempt in enumerate(group) if attempt.success]
            attempts[kind] += len(group)
            won[kind] += len(winners)
            if winners:
                first.setdefault(kind, Address(step, task, winners[0]))
        training += [KindRecord(step, kind, attempts[kind], won[kind]) for kind in sorted(attempts)]
    sides = _evaluated(run)
    held_out = {side: _shares(groups, key) for side, groups in sides.items()}
    return ByKind(
        run.name,
        key,
        tuple(training),
        held_out,
        {side: len(groups[0]) for side, groups in sides.items()},
        first,
    )


def _kind(task: Task, key: str) -> str:
    if key not in task.payload:
        raise DataError(
            f"task {task.id} says no {key!r}; its payload says {', '.join(map(repr, task.payload)) or 'nothing'}"
        )
    return str(task.payload[key])


def _evaluated(run: Run) -> dict[tuple[str, str], Sequence[Group]]:
    """(policy, mode) -> attempts, of the evaluations that kept some: the last one's, the untrained ones of the first."""
    reports = sorted(run.evaluations().items(), key=lambda item: item[1].get("step", 0))
    found: dict[tuple[str, str], Sequence[Group]] = {}
    for name, _ in reports:
        for side, groups in run.evaluated(name).items():
            policy, _, mode = side.rpartition("-")
            if len(groups) and all(
                attempt.success is not None for group in groups for attempt in group
            ):
                if policy != "untrained" or (policy, mode) not in found:
                    found[policy, mode] = groups
    return found


def _shares(groups: Sequence[Group], key: str) -> Mapping[str, tuple[float, ...]]:
    shares: dict[str, list[float]] = {}
    for group in groups:
        shares.setdefault(_kind(group.task, key), []).append(
            float(np.mean([bool(attempt.success) for attempt in group]))
        )
    return {kind: tuple(each) for kind, each in sorted(shares.items())}
