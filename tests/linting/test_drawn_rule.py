"""R37: what is trained is what was drawn. R38: a turn is ended by its stop token or by its limit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.linting.clean_rollouts import Recipe, collected, family_of
from tests.linting.damaged import found, says
from workbench.engines.recorder import Exchange
from workbench.linting import RULES, Evidence, check
from workbench.linting.drawn import drawn_trajectories

RECIPE = Recipe(tasks=3, group_size=2, max_turn_tokens=12)
DRAWN = drawn_trajectories(
    family_of(RECIPE), RECIPE.step, seed=RECIPE.seed, tasks_per_step=3, group_size=2
)
CLEAN = replace(collected(RECIPE), drawn=DRAWN)


def test_every_trajectory_that_was_drawn_is_there():
    answer = check(CLEAN, [RULES["R37"]])["R37"]
    assert answer.status == "passed" and answer.looked >= len(DRAWN) == 6 and not answer.missing


def test_a_group_that_was_thrown_away_is_named_with_what_it_was_like():
    found = says(
        "R37", replace(CLEAN, groups=CLEAN.groups[1:]), "2 of the 6 trajectories that were drawn"
    )
    assert "turns and" in found.what and "those in the step" in found.what and found.count == 2


def test_so_is_one_trajectory_of_a_group():
    groups = (CLEAN.groups[0][:1], *CLEAN.groups[1:])
    assert says("R37", replace(CLEAN, groups=groups), "1 of the 6 trajectories").count == 1


def test_another_task_in_place_of_a_slow_one_is_named_twice():
    first, other = CLEAN.groups[0], replace(CLEAN.groups[0][0].task, id="quick")
    groups = (tuple(replace(t, task=other) for t in first), *CLEAN.groups[1:])
    assert len(found("R37", replace(CLEAN, groups=groups))) == 2
    assert (
        says(
            "R37", replace(CLEAN, groups=groups), "2 trajectories were not drawn for this step"
        ).count
        == 2
    )


def test_what_was_sampled_and_is_gone_is_seen_without_the_draw():
    assert (
        "were sampled and are not in the step"
        in says("R37", replace(CLEAN, drawn=(), groups=CLEAN.groups[1:])).what
    )
    assert not found("R37", replace(CLEAN, drawn=()))


def test_without_a_journal_the_draw_alone_is_held_against_the_step():
    answer = check(replace(CLEAN, journal=None), [RULES["R37"]])["R37"]
    assert answer.status == "partly checked" and answer.checked == ("what was drawn",)


REMAX = collected(replace(RECIPE, algorithm="remax"))


def test_a_greedy_trajectory_aside_is_expected_and_its_reward_is_in_the_credit():
    answers = check(REMAX, [RULES[name] for name in ("R1", "R6", "R37")])
    assert len(REMAX.aside) == 3 and all(
        answers[name].status == "passed" for name in ("R1", "R6", "R37")
    )
    paid = replace(REMAX.greedy[0], outcome=9.0)  # another baseline than the credit was made with
    assert found("R6", replace(REMAX, greedy=(paid, *REMAX.greedy[1:])))


def test_one_that_was_sampled_like_the_others_is_named():
    """A silent bug: the baseline of ReMax drawn at the temperature of training."""
    hot = replace(REMAX, greedy=tuple(group[0] for group in REMAX.groups))
    assert "was sampled at temperature 1" in says("R37", hot, "most likely tokens").what


def test_one_that_nobody_keeps_is_a_lost_trajectory():
    assert says("R37", replace(REMAX, greedy=()), "were sampled and are not in the step").count == 3


# ------------------------------------------------------------------------------------------------ R38


def with_answer(number: int, **changed) -> Evidence:
    """The clean rollouts with another answer of the engine to one of its requests."""
    journal = list(CLEAN.journal)
    journal[number] = Exchange(
        journal[number].request, replace(journal[number].completion, **changed)
    )
    return replace(CLEAN, journal=tuple(journal))


def test_turns_that_end_by_themselves_or_at_their_limit_pass():
    answer = check(CLEAN, [RULES["R38"]])["R38"]
    assert answer.status == "passed" and answer.looked == len(CLEAN.journal)
    assert {exchange.completion.finish for exchange in CLEAN.journal} >= {"length"}


@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_turn_that_something_else_cut_is_named(finish):
    number = next(k for k, each in enumerate(CLEAN.journal) if len(each.completion.token_ids) > 2)
    completion = CLEAN.journal[number].completion
    cut = with_answer(
        number, token_ids=completion.token_ids[:2], logprobs=completion.logprobs[:2], finish=finish
    )
    if (
        finish == "stop"
    ):  # a turn of two tokens that says it ended: R3 holds that against its last token
        assert not found("R38", cut) and found("R3", cut)
    else:
        assert "after 2 of 12 tokens" in says("R38", cut).what


def test_a_turn_that_was_never_answered_is_named_unless_its_trajectory_broke():
    journal = (*CLEAN.journal[:-1], Exchange(CLEAN.journal[-1].request, None))
    assert "never answered" in says("R38", replace(CLEAN, journal=journal)).what


def test_without_a_journal_it_is_not_checked():
    assert check(replace(CLEAN, journal=None), [RULES["R38"]])["R38"].status == "not checked"
