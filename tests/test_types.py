"""The frozen values that flow: invariants 1, 5, 6 and 7 where they are born."""

import pickle
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from workbench.values import (
    CreditTable,
    Group,
    Message,
    Observation,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Text,
    Trajectory,
    Turn,
)
from workbench.values.errors import DataError

FIRST = Observation((Message("user", "go"),))


def sampled(ids=(1, 2), turn=0, **changes):
    return Span(
        Source.POLICY,
        turn,
        ids,
        **({"logprobs": [-0.5] * len(ids), "policy_version": 0, "sampled": True} | changes),
    )


def a_trajectory(
    number=0,
    *,
    task=Task("t", "fake", 7),
    first=FIRST,
    rewards=(0.0, 1.0),
    stop=StopReason.TERMINATED,
    **changes,
):
    turns = tuple(Turn(i, "text", reward=reward) for i, reward in enumerate(rewards))
    return Trajectory(task, number, number, first, turns, (Segment((sampled(),)),), stop, **changes)


def test_eligible_is_sampled_here_and_nothing_else():
    segment = Segment(
        (
            Span(Source.PROMPT, 0, [9, 9, 9]),
            sampled([1, 2]),
            Span(Source.ENV, 0, [5]),
            Span(Source.POLICY, 0, [1, 2]),
            sampled([3], turn=1),
        )
    )
    assert segment.eligible.tolist() == [False] * 3 + [True] * 2 + [False] * 3 + [True]
    assert segment.prompt_length == 3 and len(segment) == 9
    assert (
        np.isnan(segment.logprobs[~segment.eligible]).all()
        and np.isfinite(segment.logprobs[segment.eligible]).all()
    )
    assert segment.turns.tolist() == [0] * 8 + [1] and segment.sources.tolist() == [
        0,
        0,
        0,
        2,
        2,
        3,
        2,
        2,
        2,
    ]


@pytest.mark.parametrize(
    "make, words",
    [
        (
            lambda: Span(Source.ENV, 0, [1], logprobs=[-1.0], sampled=True),
            "only the policy samples",
        ),
        (
            lambda: Span(Source.ENV, 0, [1], logprobs=[-1.0]),
            "with logprobs that was not sampled here",
        ),
        (
            lambda: Span(Source.POLICY, 0, [1], logprobs=[-1.0]),
            "with logprobs that was not sampled here",
        ),
        (lambda: Span(Source.POLICY, 0, [1], sampled=True), "a sampled span without logprobs"),
        (lambda: sampled([1, 2, 3], logprobs=[-1.0, -1.0]), "3 sampled tokens but 2 logprobs"),
        (
            lambda: Span(Source.POLICY, 0, [1], plain_logprobs=[-1.0]),
            "with logprobs that was not sampled here",
        ),
        (lambda: Span(Source.POLICY, 0, [[1, 2]]), "one-dimensional"),
        (
            lambda: CreditTable(1, 0, {"weight": np.zeros(3), "advantage": np.zeros(2)}),
            "differ in length",
        ),
        (lambda: CreditTable(1, 0, {"weight": np.zeros(3)})["value"], "not computed"),
    ],
)
def test_what_cannot_be_is_refused_in_words(make, words):
    with pytest.raises(DataError, match=words):
        make()


@pytest.mark.parametrize(
    "travel",
    [lambda span: span, lambda span: pickle.loads(pickle.dumps(span))],
    ids=["here", "pickled"],
)
def test_arrays_are_frozen_also_after_a_journey_between_processes(travel):
    source = np.array([1, 2], np.int32)
    span = travel(sampled(source))
    source[0] = 99  # a copy was taken: the caller's array is the caller's
    assert span.token_ids.tolist() == [1, 2]
    for array in (span.token_ids, span.logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(FrozenInstanceError):
        span.turn = 3


def test_none_is_not_zero():
    assert a_trajectory(rewards=(0.0, 0.0)).reward == 0.0
    assert a_trajectory(rewards=(0.0, None)).reward is None
    assert a_trajectory(scored=False).reward is None
    assert (
        a_trajectory(stop=StopReason.ENV_TIMEOUT).reward is None
    )  # a fault is unscored, whatever was earned before it
    assert a_trajectory(outcome=0.5).reward == 1.5


def test_truncated_is_a_limit_not_an_end_and_not_a_fault():
    kinds = {
        stop: (a_trajectory(stop=stop).terminated, a_trajectory(stop=stop).truncated, stop.is_fault)
        for stop in StopReason
    }
    assert all(sum(kind) == 1 for kind in kinds.values()), kinds
    assert (
        kinds[StopReason.MAX_TURNS][1]
        and kinds[StopReason.TERMINATED][0]
        and kinds[StopReason.ENGINE_ERROR][2]
    )


@pytest.mark.parametrize(
    "other, words",
    [
        (a_trajectory(1, task=Task("u", "fake", 7)), "a group is one task"),
        (a_trajectory(1, task=Task("t", "fake", 8)), "a group is one task"),
        (
            a_trajectory(1, first=Observation((Message("user", "another start"),))),
            "different observations",
        ),
        (a_trajectory(0), "attempt numbers repeat"),
    ],
)
def test_a_group_is_one_task_from_one_start(other, words):
    with pytest.raises(DataError, match=words):
        Group((a_trajectory(0), other))
    assert len(Group((a_trajectory(0), a_trajectory(1)))) == 2


def test_a_bare_string_is_one_untrusted_part():
    assert Message("user", "hello").content == (Text("hello", trusted=False),)
    assert replace(Message("user", "a"), content=(Text("b", trusted=True), Text("c"))).text == "bc"


@pytest.mark.parametrize(
    "content, words",
    [
        (
            ({"type": "image_url", "image_url": {"url": "data:"}},),
            "text only, got a part of type 'image_url'.*Put what it shows into words",
        ),
        ((Text("a"), b"png bytes"), "'bytes'"),
        ((np.zeros((2, 2)),), "'ndarray'"),
        ((Text("a"), 3), "parts that are Texts"),
        (["plain words"], r"Message\('user', \(Text\('words'\),\)\)"),
        (None, "a string, or parts"),
    ],
)
def test_what_is_no_text_is_refused_when_the_message_is_built(content, words):
    with pytest.raises(DataError, match=words):
        Message("user", content)


@pytest.mark.parametrize(
    "messages", ["Guess a number", Message("user", "x"), ({"role": "user", "content": "x"},)]
)
def test_an_observation_of_anything_but_messages_is_refused_when_it_is_built(messages):
    with pytest.raises(DataError, match="an Observation holds Messages"):
        Observation(messages)
