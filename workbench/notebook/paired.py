"""Two runs, or one before and after training, at the same held-out tasks.

wb.paired("runs/first")                              untrained beside trained, on the tasks of its evaluations
wb.paired("runs/first", "runs/second")               both as they were evaluated last
wb.paired(wb.rollout(a, 8), wb.rollout(b, 8))        attempts that were made here
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.run.store import Run, open_run
from workbench.types import Group, Groups
from workbench.types.errors import DataError
from workbench.types.pairs import PairedGroups, pair_groups

if TYPE_CHECKING:
    from workbench.notebook.live_run import RunningRun

OWN = ("trained", "untrained")  # sides of an evaluation that are the run's own policy
MODES = ("sampled", "greedy")


def paired(
    first: Run | RunningRun | str | Path | Sequence[Group],
    second: Run | RunningRun | str | Path | Sequence[Group] | None = None,
    *,
    mode: str = "sampled",
) -> PairedGroups:
    """Pair attempts by task: of one run its first evaluation with its last, of two runs the last of each, or two lists of
    groups. `mode`: "sampled" or "greedy".

    Raises DataError where an evaluation kept no attempts (runs of before they were kept), where a run was evaluated only
    once, and where no task is common to both."""
    if mode not in MODES:
        raise DataError(f"mode={mode!r}: evaluations play {' and '.join(MODES)}")
    if isinstance(first, (list, tuple)):
        if not isinstance(second, (list, tuple)) or not all(
            isinstance(each, Group) for each in (*first, *second)
        ):
            raise DataError(
                "two lists of groups are paired, or runs: wb.paired(groups, other_groups)"
            )
        return pair_groups(first, second)
    if second is None:
        run = open_run(first)
        found = _evaluated(run, mode)
        if len(found) < 2:
            raise DataError(
                f"run {run.name} kept the attempts of {len(found)} {mode} evaluation{'s' * (len(found) != 1)} of its "
                "policy; two are needed. Train with train.evaluate_every, or give a second run"
            )
        (before, a), (after, b) = found[0], found[-1]
        return pair_groups(a, b, (before, after))
    sides = [(run.name, _last(run, mode)) for run in (open_run(first), open_run(second))]
    return pair_groups(sides[0][1], sides[1][1], (sides[0][0], sides[1][0]))


def _evaluated(run: Run, mode: str) -> list[tuple[str, Groups]]:
    """("step 20", its attempts) of each evaluation that kept some, in the order of steps."""
    reports = {
        name: report["step"] for name, report in run.evaluations().items() if "step" in report
    }
    found = []
    for name, step in sorted(reports.items(), key=lambda item: item[1]):
        sides = run.evaluated(name)
        own = next(
            (sides[f"{policy}-{mode}"] for policy in OWN if f"{policy}-{mode}" in sides), None
        )
        if own is not None:
            found.append((f"step {step}", own))
    return found


def _last(run: Run, mode: str) -> Groups:
    found = _evaluated(run, mode)
    if not found:
        raise DataError(
            f"run {run.name} kept no attempts of a {mode} evaluation; evaluations of today's runs do"
        )
    return found[-1][1]
