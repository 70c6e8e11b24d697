"""Rules over arrays, small cases by hand: what is an error in anybody's conventions, what is a note, what is nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.raw import RAW_CHECKS
from workbench.linting import Evidence


def sequence(
    prompt=(1, 2, 3), completion=(4, 5, 6), attempt="a", number=0, **fields
) -> RawSequence:
    """A clean one: all trained, logprobs of -0.5."""
    n = len(completion)
    given_ = {
        "group": "g",
        "mask": np.ones(n),
        "logprobs": np.full(n, -0.5),
        "reward": 1.0,
        "truncated": False,
    }
    return RawSequence(
        attempt,
        prompt_ids=np.array(prompt, np.int32),
        completion_ids=np.array(completion, np.int32),
        number=number,
        **given_ | fields,
    )


def said(rule: str, *sequences: RawSequence) -> list[Finding]:
    return [each for each in RAW_CHECKS[rule](Evidence(raw=sequences)) if isinstance(each, Finding)]


def looked(rule: str, *sequences: RawSequence) -> int:
    return sum(
        each.count
        for each in RAW_CHECKS[rule](Evidence(raw=sequences))
        if isinstance(each, Checked)
    )


# ------------------------------------------------------------------------------------------------ R1


FIRST = sequence((1, 2, 3), (40, 41, 42, 43, 9))
WHOLE = (1, 2, 3, 40, 41, 42, 43, 9)


def second(prompt, **fields) -> RawSequence:
    return sequence(prompt, (70, 9), number=1, **fields)


def test_a_turn_that_goes_on_is_nothing():
    assert (
        said("R1", FIRST, second((*WHOLE, 50, 51))) == []
        and looked("R1", FIRST, second((*WHOLE, 50, 51))) == 1
    )


@pytest.mark.parametrize(
    ("again", "was", "now"),
    [
        ((40, 44, 42, 43, 9), [41], [44]),
        ((40, 44, 45, 42, 43, 9), [41], [44, 45]),
        ((44, 42, 43, 9), [40, 41], [44]),
    ],
)
def test_a_sampled_turn_of_other_tokens_was_tokenized_again(again, was, now):
    (found,) = said("R1", FIRST, second((1, 2, 3, *again, 50, 51)))
    assert found.severity == ERROR and f"ids {was} became {now}" in found.what
    assert found.place.segment == 1 and found.place.position == 3 + (again[0] == 40)


@pytest.mark.parametrize("again", [(43, 9), (60, 61, 40, 41, 42, 43, 9), ()])
def test_a_history_that_a_template_rewrites_is_a_note(again):
    (found,) = said("R1", FIRST, second((1, 2, 3, *again, 50, 51)))
    assert found.severity == NOTE


def test_the_end_of_the_prompt_before_it_counts_too():
    (found,) = said("R1", FIRST, second((1, 7, 3, 40, 41, 42, 43, 9, 50)))
    assert found.severity == ERROR and "token 1 of the prompt of turn 0" in found.what


def test_a_fork_that_the_file_names_is_a_note():
    (found,) = said("R1", FIRST, second((1, 2, 8), fork=True))
    assert found.severity == NOTE and "as the file says itself" in found.what


def test_one_sequence_a_trajectory_leaves_nothing_to_compare():
    assert looked("R1", FIRST, sequence(attempt="b")) == 0
    assert [
        each.missing
        for each in RAW_CHECKS["R1"](Evidence(raw=(FIRST,)))
        if isinstance(each, NotChecked)
    ] == ["trajectories of several sequences"]


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=12),
    st.lists(st.integers(0, 5), max_size=12),
    st.data(),
)
def test_every_prompt_that_does_not_begin_with_the_turn_before_it_is_found(completion, more, data):
    before = sequence((1, 2), completion)
    whole = [1, 2, *completion]
    changed = data.draw(st.integers(0, len(whole) - 1))
    other = [*whole[:changed], whole[changed] + 1, *whole[changed + 1 :], *more]
    assert said("R1", before, second([*whole, *more])) == []
    assert len(said("R1", before, second(other))) == 1


# ------------------------------------------------------------------------------------------------ masks, lengths


def test_what_is_trained_and_what_was_sampled_are_held_against_each_other():
    clean = sequence(mask=np.array([1, 0, 1]), sampled=np.array([True, False, True]))
    assert said("R3", clean) == [] and looked("R3", clean) == 3
    (extra,) = said("R3", replace(clean, mask=np.array([1, 1, 1])))
    assert extra.severity == ERROR and extra.place.position == 4 and "id 5" in extra.what
    (lost,) = said("R3", replace(clean, mask=np.array([1, 0, 0])))
    assert lost.severity == ERROR and "not trained" in lost.what
    assert (
        said("R3", replace(clean, mask=np.zeros(3))) == []
    )  # left out as a whole: R5 and R11 speak of that


def test_without_a_word_on_who_wrote_a_token_r3_has_not_passed():
    assert looked("R3", sequence()) == 0


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({}, ERROR),
        ({"truncated": True}, NOTE),
        ({"reward": None}, NOTE),
        ({"failed": "ToolError"}, NOTE),
    ],
)
def test_a_row_that_trains_nothing_is_an_error_unless_something_is_wrong_with_it(fields, severity):
    (found,) = said("R5", sequence(mask=np.zeros(3), **fields))
    assert found.severity == severity


@pytest.mark.parametrize("name", ["mask", "logprobs", "advantages", "sampled"])
@pytest.mark.parametrize("length", [2, 4])
def test_arrays_of_another_length_are_found(name, length):
    (found,) = said("R4", sequence(**{name: np.ones(length)}))
    assert found.severity == ERROR and f"{name} has {length} entries for 3" in found.what


def test_a_mask_made_from_ids_needs_the_tokens_to_have_been_sampled():
    masked = np.array([1, 1, 0])
    ends = [sequence(completion=(4, 5, 9), attempt=str(n), mask=masked) for n in range(3)]
    (found,) = said("R4", *ends)
    assert found.severity == ERROR and "id 9" in found.what
    appended = [
        replace(s, logprobs=np.array([-0.5, -0.5, 0.0])) for s in ends
    ]  # a stop token that a framework appended
    assert said("R4", *appended) == []
    assert (
        said("R4", *ends, sequence(completion=(9, 5, 6), attempt="x")) == []
    )  # the id is trained elsewhere
    assert (
        said("R4", *ends, sequence(completion=(4, 7, 9), attempt="x", mask=np.array([1, 0, 0])))
        == []
    )


# ------------------------------------------------------------------------------------------------ credit, groups


def a_trajectory(
    name: str, reward: float, advantage: float, group: str = "g", **fields
) -> RawSequence:
    return sequence(attempt=name, reward=reward, advantage=advantage, group=group, **fields)


def test_who_earned_more_is_credited_with_more():
    good = [a_trajectory("a", 0.0, -1.0), a_trajectory("b", 0.5, 0.2), a_trajectory("c", 1.0, 0.8)]
    assert said("R6", *good) == [] and looked("R6", *good) == 2
    (found,) = said("R6", good[0], a_trajectory("b", 0.5, 0.8), a_trajectory("c", 1.0, 0.2))
    assert found.severity == ERROR and found.place.trajectory == "c"
    assert (
        said("R6", a_trajectory("a", 0.0, 1.0), a_trajectory("b", 1.0, -1.0, group="h")) == []
    )  # nobody compares across groups


@given(st.lists(st.floats(-2, 2), min_size=2, max_size=6), st.floats(0.1, 3), st.floats(-2, 2))
def test_no_estimator_that_compares_within_a_group_is_called_wrong(rewards, scale, shift):
    rows = [
        a_trajectory(str(n), r, (r - np.mean(rewards)) * scale + shift)
        for n, r in enumerate(rewards)
    ]
    assert said("R6", *rows) == []


def test_credit_on_the_last_turn_alone_is_an_error_credit_by_turn_is_not():
    def turns(*values):
        return [sequence(number=n, advantages=np.full(3, value)) for n, value in enumerate(values)]

    (found,) = said("R6", *turns(0.0, 0.0, 0.7))
    assert found.severity == ERROR and found.count == 6 and found.place.segment == 0
    for fine in (
        (0.7, 0.7, 0.7),
        (0.1, 0.3, 0.7),
        (0.0, 0.2, 0.7),
        (0.0, 0.0, 0.0),
        (0.7, 0.0, 0.0),
    ):
        assert said("R6", *turns(*fine)) == []


def test_a_trained_token_without_an_advantage_is_found():
    (found,) = said("R6", sequence(advantages=np.array([0.5, np.nan, 0.5])))
    assert found.place.position == 4
    assert (
        said("R6", sequence(mask=np.array([1, 0, 1]), advantages=np.array([0.5, np.nan, 0.5])))
        == []
    )


def test_ids_that_do_not_group():
    def alone(*prompts):
        return [sequence(prompt, attempt=str(n), group=str(n)) for n, prompt in enumerate(prompts)]

    (found,) = said("R7", *alone((1,), (1,), (2,), (2,)))
    assert found.severity == ERROR and "4 of 4" in found.what
    (found,) = said("R7", *alone((1,), (1,), (2,)))
    assert found.severity == NOTE  # a data set that repeats itself does this, too
    assert said("R7", *alone((1,), (2,))) == []
    assert said("R7", *[replace(s, grouped=False) for s in alone((1,), (1,))]) == []


def test_flat_and_single_groups_are_notes():
    assert [
        f.severity for f in said("R8", a_trajectory("a", 1.0, 0.0), a_trajectory("b", 1.0, 0.0))
    ] == [NOTE]
    assert [f.severity for f in said("R8", a_trajectory("a", 1.0, 0.0))] == [NOTE]
    assert [
        f.severity for f in said("R8", a_trajectory("a", 1.0, 0.0), a_trajectory("b", 0.0, 0.0))
    ] == [ERROR]


def test_cut_rows_are_treated_alike():
    kept, masked = sequence(truncated=True), sequence(attempt="b", truncated=True, mask=np.zeros(3))
    assert (
        said("R11", kept, replace(kept, attempt="c"))
        == []
        == said("R11", masked, replace(masked, attempt="c"))
    )
    (found,) = said("R11", kept, masked)
    assert found.severity == ERROR
    assert looked("R11", sequence()) == 0


def test_trajectories_alike_by_chance_are_nothing():
    alike = [sequence(attempt=name) for name in "ab"]  # probability exp(-1.5)
    assert said("R22", *alike) == [] and looked("R22", *alike) == 2
    (found,) = said("R22", *[replace(s, logprobs=np.full(3, -20.0)) for s in alike])
    assert found.severity == ERROR and "once in 10^26" in found.what


def test_a_failed_trajectory_with_a_reward_is_a_note_until_it_is_trained_on():
    assert [f.severity for f in said("R16", sequence(failed="ToolError", reward=0.0))] == [NOTE]
    assert [
        f.severity for f in said("R16", sequence(failed="ToolError", reward=0.0, advantage=-0.5))
    ] == [ERROR]
    assert said("R16", sequence(reward=0.0)) == []
