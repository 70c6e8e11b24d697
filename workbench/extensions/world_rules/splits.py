"""Is training kept apart from what it will be judged by? (R24)

Success on tasks that were trained on says how well they are remembered. Nothing in a curve shows it: it only looks
better. A payload may tell two tasks apart that nobody else can (a running number): so held-out tasks are begun, too, and
what they show and what their gold answer is compared with what was trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.extensions.scripted_play.leaks import golds
from workbench.extensions.scripted_play.playing import Spent, opening_of, text_of, unplayable
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Task
from workbench.values.errors import WorkbenchError
from workbench.worlds.splits import split_of, tasks

HELD_OUT = 64  # tasks that are begun
SECONDS = 0.5
FEW = 8  # different problems: fewer cannot be kept apart


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
    yield from _shown_alike(evidence)


def _shown_alike(evidence: Evidence) -> Iterator[RuleResult]:
    """No task of the step shows what a held-out one shows and has its gold answer, whatever their payloads are called."""
    groups = [(index, group) for index, group in evidence.numbered_groups if group]
    asked = [(index, group) for index, group in groups if golds(group[0].task)]
    if not asked or unplayable(evidence.family) is not None:
        return
    try:
        held_out = _begun(evidence.family)
    except TypeError:  # no family that can be asked once for all steps
        return
    yield Checked(len(asked), "tasks that show and ask the same")
    for index, group in asked:
        task = group[0].task
        other = held_out.get((text_of(group[0].first_observation), golds(task)))
        if other is not None and split_of(evidence.family, task) != "held-out":
            yield Finding(
                f"task {task.id!r} shows what {other.id!r} shows, which is held out, and has the same gold answer "
                f"({golds(task)[0]!r}): it is trained on under another payload. Split by what makes the problem: "
                "split_of(task) with content_split",
                evidence.place(index),
                severity=NOTE if len(held_out) <= FEW else ERROR,
                count=len(group),
            )


@lru_cache(maxsize=4)
def _begun(family: Any) -> dict[tuple[str, tuple[str, ...]], Task]:
    """What held-out tasks show at their beginning, and their gold answers."""
    try:
        drawn = tasks(family, "held-out", HELD_OUT)
    except WorkbenchError:  # there are none
        return {}
    known: dict[tuple[str, tuple[str, ...]], Task] = {}
    spent = Spent()
    for task in drawn:
        if spent.seconds > SECONDS:
            break
        opening = opening_of(family, task, 0) if golds(task) else None
        if opening is not None:
            known[text_of(opening), golds(task)] = task
    return known


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
