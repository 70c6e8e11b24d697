"""Is training kept apart from what it will be judged by? (R24)

Success on tasks that were trained on says how well they are remembered. Nothing in a curve shows it: it only looks
better.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.worlds.splits import split_of


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    """No task of a training step is one that evaluation holds out, by what the task is and not by how it was drawn."""
    if evidence.step is None:
        yield NotChecked("a step of training: other rollouts may be of any task")
        return
    for index, group in evidence.numbered_groups:
        if group:
            yield Checked(1)
            if split_of(evidence.family, group[0].task) == "held-out":
                yield Finding(
                    f"task {group[0].task.id!r} is held out for evaluation, and is trained on",
                    evidence.place(index),
                    count=len(group),
                )


RULES: tuple[Rule, ...] = (
    Rule(
        "R24",
        "no held-out task is trained on",
        means="Evaluations tell how well their tasks are remembered, not what was learned: they rise for the wrong "
        "reason.",
        mend="Draw the tasks of a step with workbench.worlds.tasks(family, 'train', ...), as session.train_tasks does, "
        "and start the run anew: its policy knows the answers.",
        needs=("groups", "family"),
        check=_check,
    ),
)
