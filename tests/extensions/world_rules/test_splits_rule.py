"""R24: a training step of held-out tasks is named; other rollouts of them are nobody's business."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.extensions.inspect_worlds.slips import Ask
from tests.linting.clean_rollouts import Recipe, collected, family_of
from workbench.basics.findings import Answer
from workbench.linting import Evidence, all_rules, check
from workbench.values import Message, Observation
from workbench.worlds import tasks as env_tasks
from workbench.worlds.splits import content_split

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


class Numbered(Ask):
    """A question with a running number beside it, by which a payload is another one each time."""

    def problem(self, rng, seed):
        word = int(rng.integers(400))
        return {"n": int(rng.integers(1 << 40)), "text": f"Word {word}?", "gold": f"word{word}"}

    def split_of(self, task):
        own = dict(task.payload)
        return content_split(str(own) if self.bug == "by number" else own["text"])


def step_of(family, evidence=CLEAN):
    """A step of that family: a training task that shows what a held-out one shows, where there is one."""
    shown = {task.payload["text"] for task in env_tasks(family, "held-out", 40)}
    train = env_tasks(family, "train", 200)
    task = next((one for one in train if one.payload["text"] in shown), train[0])
    opening = Observation((Message("user", task.payload["text"]),))
    group = tuple(replace(t, task=task, first_observation=opening) for t in evidence.groups[0])
    return replace(evidence, family=family, groups=(group,))


@pytest.mark.parametrize("bug", ["by number", ""])
def test_a_held_out_question_under_another_payload_is_named(bug):
    found = ask(step_of(Numbered(bug))).errors
    assert [("trained on under another payload" in one.what) for one in found] == [True] * bool(bug)
