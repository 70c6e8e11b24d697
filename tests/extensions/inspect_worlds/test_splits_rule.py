"""R24: a training step of held-out tasks is named; other rollouts of them are nobody's business."""

from __future__ import annotations

from dataclasses import replace

from tests.linting.clean_rollouts import Recipe, collected, family_of
from workbench.basics.findings import Answer
from workbench.linting import Evidence, all_rules, check
from workbench.worlds import tasks as env_tasks

RULES = all_rules()

CLEAN = collected(Recipe(tasks=2, group_size=2, max_turn_tokens=12))


def ask(evidence: Evidence) -> Answer:
    return check(evidence, [RULES["R24"]])["R24"]


def with_held_out(evidence: Evidence) -> Evidence:
    """The same trajectories, said to be at a held-out task in the second group."""
    (task,) = env_tasks(family_of(Recipe()), "held-out", 1)
    return replace(
        evidence,
        groups=(evidence.groups[0], tuple(replace(t, task=task) for t in evidence.groups[1])),
    )


def test_training_tasks_pass():
    assert ask(CLEAN).status == "passed" and ask(CLEAN).looked == 2


def test_a_held_out_task_is_named_with_its_group():
    (found,) = ask(with_held_out(CLEAN)).errors
    assert "held out for evaluation" in found.what and found.place.index == 2 and found.count == 2


def test_rollouts_that_are_no_step_of_training_are_not_judged():
    answer = ask(replace(with_held_out(CLEAN), step=None))
    assert answer.status == "not checked" and "step of training" in answer.missing[0]
