"""Values of `wb.types` made of wrong parts: each is refused in words of ours, or is what it says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

import workbench as wb
from tests.hostile.odd_values import EndlessList, an_empty_trajectory
from tests.hostile.wrong_calls import wrong_values
from workbench.values.errors import DataError, WorkbenchError
from workbench.values.parts import as_parts, whole

types = wb.types
MESSAGE = types.Message("user", "x")
SEEN = types.Observation((MESSAGE,))
RIGHT: Mapping[str, Mapping[str, Any]] = {
    "CreditTable": {"step": 1, "update": 0, "columns": {"a": np.zeros(1)}},
    "Group": {"trajectories": (an_empty_trajectory(),)},
    "Message": {"role": "user", "content": "x"},
    "Observation": {"messages": (MESSAGE,)},
    "Sampling": {},
    "Segment": {"spans": ()},
    "Span": {
        "source": types.Source.POLICY,
        "turn": 0,
        "token_ids": [1],
        "logprobs": [0.0],
        "sampled": True,
    },
    "StepResult": {"observation": SEEN, "reward": 0.5},
    "Task": {"id": "x", "env": "x", "task_seed": 0},
    "Text": {"text": "x"},
    "ToolCall": {"name": "x"},
    "Trajectory": {
        "task": types.Task("x", "x", 0),
        "attempt": 0,
        "dynamics_seed": 0,
        "first_observation": SEEN,
        "turns": (),
        "segments": (),
        "stop_reason": "terminated",
    },
    "Turn": {"index": 0, "text": "x"},
    "View": {"html": "x", "text": "x"},
}


def raw_ends(name: str) -> Iterator[str]:
    """Fields that a wrong value of ends in an error that is none of ours."""
    kind = getattr(types, name)
    for field in dataclasses.fields(kind):
        for words, value in wrong_values().items():
            try:
                kind(**{**RIGHT[name], field.name: value})
            except WorkbenchError:
                continue
            except Exception as error:
                yield f"{name}({field.name} = {words}): {type(error).__name__}: {error}"


@pytest.mark.parametrize("name", RIGHT)
def test_no_wrong_part_ends_in_an_error_of_python_s_own(name):
    assert list(raw_ends(name)) == []


def test_every_value_that_can_be_made_is_tried_and_a_raw_end_is_noticed(monkeypatch):
    made = {name for name in vars(types) if dataclasses.is_dataclass(getattr(types, name))}
    assert made == set(RIGHT)

    @dataclasses.dataclass
    class Careless:
        name: str = "x"

        def __post_init__(self) -> None:
            self.name.upper()

    monkeypatch.setattr(types, "Text", Careless)  # negative control
    monkeypatch.setitem(RIGHT, "Text", {})
    assert any("Text(name = 5): AttributeError" in end for end in raw_ends("Text"))


WHOLE = [
    [1, 2],
    (1, 2),
    np.array([1, 2]),
    torch.tensor([1, 2]),
    np.array([1, 2], np.uint8),
    range(1, 3),
]


@pytest.mark.parametrize("ids", WHOLE, ids=lambda ids: type(ids).__name__)
def test_token_ids_are_whole_numbers_of_any_sequence(ids):
    span = types.Span(types.Source.PROMPT, 0, ids)
    assert span.token_ids.tolist() == [1, 2] and span.token_ids.dtype == np.int32


NO_IDS = [
    [0.5, 1.0],
    [float("nan")],
    [True],
    np.array([1.0, 2.0]),
    np.array([2**31]),
    [2**31],
    [2**70],
    np.array([1j]),
    ["1"],
    torch.tensor([0.5]),
    [[1]],
    range(10**12),
]


@pytest.mark.parametrize("ids", NO_IDS, ids=lambda ids: f"{type(ids).__name__} {ids!r:.20}")
def test_what_would_have_to_be_rounded_is_no_token_id(ids):
    """0.5 was token 0, and not a number was some token or other, with a warning of numpy's at most."""
    with pytest.raises(DataError, match="token_ids (are whole numbers|must be one-dim)"):
        types.Span(types.Source.PROMPT, 0, ids)


def test_logprobs_of_whole_numbers_are_taken_and_of_texts_are_not():
    def sampled(logprobs: Any) -> Any:
        return types.Span(types.Source.POLICY, 0, [1], logprobs=logprobs, sampled=True)

    assert sampled([0]).logprobs.tolist() == [0.0]
    for wrong in (["-1"], [None], np.array([1j]), "0"):
        with pytest.raises(DataError, match="logprobs are numbers, got"):
            sampled(wrong)


def test_parts_are_looked_at_one_by_one_and_the_first_wrong_one_is_named():
    def endless() -> Iterator[Any]:
        while True:
            yield 5

    with pytest.raises(DataError, match=r"each is a Turn, got 5 \(int\)"):
        as_parts(endless(), types.Turn, "the turns")
    with pytest.raises(DataError, match=r"the turns: a tuple of Turn, got 5 \(int\)"):
        as_parts(5, types.Turn, "the turns")
    turn = types.Turn(0, "x")
    assert as_parts(iter([turn]), types.Turn, "the turns") == (turn,)  # negative control


class EndlessGroups(EndlessList):
    def __getitem__(self, place: Any) -> Any:
        return types.Group((an_empty_trajectory(),))


def test_a_sequence_without_end_is_compared_as_far_as_it_says_it_goes():
    assert wb.groups_equal(EndlessGroups(), EndlessGroups())
    assert not wb.groups_equal([], EndlessGroups()) and not wb.groups_equal(EndlessGroups(), ())
    with pytest.raises(DataError, match=r"takes a as Sequence\[Group\], got 'x' \(str\) in it"):
        wb.groups_equal(EndlessList(), [])


def test_a_column_of_credit_is_asked_for_by_its_name():
    table = types.CreditTable(1, 0, {"weight": np.zeros(1)})
    assert table["weight"].tolist() == [0.0]
    for wrong in ("advantage", 5, ["weight"], None):
        with pytest.raises(DataError, match=r"no column .* it has \['weight'\]"):
            table[wrong]


@pytest.mark.parametrize(("number", "right"), [(3, 3), (np.int64(3), 3), (np.uint8(0), 0)])
def test_a_whole_number_is_handed_on_as_python_s_own(number, right):
    made = whole("a step", number)
    assert type(made) is int and made == right


@pytest.mark.parametrize("wrong", [True, 0.5, "3", None, [3]])
def test_what_is_no_whole_number_is_refused_by_what_it_is_for(wrong):
    with pytest.raises(DataError, match="a step is a whole number, got "):
        whole("a step", wrong)
