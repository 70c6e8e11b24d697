"""How much replies say about their prompts: a policy that answers what it was asked, one that says the same to all."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import workbench as wb
from tests.learning_data import make_groups
from workbench.run.equality import groups_equal
from workbench.training.information import MOST, prompt_information
from workbench.values import Group, Segment

SMALL = {
    "train.steps": 2,
    "train.tasks_per_step": 3,
    "train.group_size": 4,
    "lint.mode": "off",
    "evaluation.num_tasks": 2,
    "train.evaluate_every": 0,
}
GROUPS = make_groups(3, tasks=4, attempts=2, turns=2)


def says(score):
    """A stand-in for a learner: `score(prompt ids, reply ids)`, shared among the tokens of the reply."""

    def logprobs(batch, tokens_T):
        assert torch.equal(tokens_T, batch.eligible_T)
        found_T = torch.full((batch.num_tokens,), torch.nan)
        for n in range(batch.num_trajectories):
            own_T = batch.trajectory_of_token_T == n
            prompt, reply = (
                batch.token_ids_T[own_T & (batch.eligible_T == sampled)]
                for sampled in (False, True)
            )
            found_T[own_T & batch.eligible_T] = score(
                tuple(prompt.tolist()), tuple(reply.tolist())
            ) / len(reply)
        return found_T

    return logprobs


def before_and_after(group):
    """Ids of the first prompt and of the first reply of a group's first trajectory."""
    spans = group[0].segments[0].spans
    at = next(number for number, span in enumerate(spans) if span.sampled)
    return tuple(int(i) for span in spans[:at] for i in span.token_ids), tuple(
        spans[at].token_ids.tolist()
    )


def first_prompts(groups):
    return [before_and_after(group)[0] for group in groups]


def replies(groups):
    return [before_and_after(group)[1] for group in groups]


def with_prompts(groups):
    """The same groups with a first prompt of their own each."""
    made = []
    for number, group in enumerate(groups):
        trajectories = []
        for trajectory in group:
            first, *rest = trajectory.segments[0].spans
            opening = replace(first, token_ids=np.append(first.token_ids, 40 + number))
            trajectories.append(
                replace(trajectory, segments=(Segment((opening, *rest)), *trajectory.segments[1:]))
            )
        made.append(Group(tuple(trajectories)))
    return made


ASKED = with_prompts(GROUPS)


def test_who_answers_what_was_asked_is_at_the_upper_bound():
    own = {reply: prompt for prompt, reply in zip(first_prompts(ASKED), replies(ASKED))}
    found = prompt_information(
        ASKED, says(lambda prompt, reply: -1.0 if own[reply] == prompt else -60.0)
    )
    assert (
        found["prompt_information"] == pytest.approx(math.log(4))
        and found["prompt_retrieval"] == 1.0
    )
    assert found["prompt_chance"] == 0.25


def test_a_template_says_nothing_about_its_prompt():
    """Every prompt makes each reply as likely: chance. Where another prompt does so more, retrieval is zero."""
    alike = prompt_information(ASKED, says(lambda prompt, reply: -float(len(reply))))
    assert alike["prompt_information"] == pytest.approx(0.0, abs=1e-6)
    assert alike["prompt_retrieval"] == alike["prompt_chance"] == 0.25
    order = first_prompts(ASKED)
    other = {reply: order[(number + 1) % 4] for number, reply in enumerate(replies(ASKED))}
    turned = prompt_information(
        ASKED, says(lambda prompt, reply: -1.0 if other[reply] == prompt else -9.0)
    )
    assert turned["prompt_retrieval"] == 0.0 and turned["prompt_information"] < 0


def test_equal_prompts_count_once_and_of_many_tasks_some():
    same = [*ASKED, ASKED[0]]
    assert prompt_information(same, says(lambda *_: -1.0))["prompt_chance"] == 0.25
    many = with_prompts(make_groups(1, tasks=MOST + 3, attempts=1, turns=1))
    assert prompt_information(many, says(lambda *_: -1.0))["prompt_chance"] == 1 / MOST
    assert prompt_information(ASKED[:1], says(lambda *_: -1.0)) == {}


def test_a_run_measures_it_when_asked_to_and_shows_it(tmp_path):
    """By a real policy, every second step; nothing of what is trained changes by it."""
    config = wb.load_config("search", SMALL | {"train.information_every": 2})
    run = wb.train_here(config, tmp_path / "run", on_note=None)
    without = wb.train_here(wb.load_config("search", SMALL), tmp_path / "without", on_note=None)
    assert (
        groups_equal(run.groups(2), without.groups(2))
        and without.metrics_line(2)["loss"] == run.metrics_line(2)["loss"]
    )
    first, second = wb.signals(run.path).steps
    assert (first.information, first.retrieval, first.chance) == (None, None, None)
    assert (
        second.chance == 1 / 3
        and 0 <= second.retrieval <= 1
        and second.information <= math.log(3) + 1e-6
    )
    assert all(
        word in str(wb.show(wb.signals(run.path)))
        for word in ("information", "retrieval", "chance", "snr")
    )
    assert first.snr is None and second.snr == run.metrics_line(2)["gradient_snr"]
