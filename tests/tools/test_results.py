"""Whatever a tool gives back becomes a bounded text, cut where a character ends, or an error that says what to do."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.tools.base import ToolResult
from workbench.tools.results import (
    MOST_VALUE_BYTES,
    as_result,
    cut_text,
    from_json,
    most_content,
    raised,
    result_json,
)

ANY_TEXT = st.text(st.characters(), max_size=60)  # lone surrogates too
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(ANY_TEXT, st.integers(1, 80))
def test_a_text_is_cut_at_a_character_and_says_so(text, most):
    whole = text.encode("utf-8", "replace")
    cut, left_out = cut_text(text, most)
    if len(whole) <= most:
        assert (cut.encode(), left_out) == (whole, 0)
        return
    kept = len(whole) - left_out
    assert cut.encode() == whole[:kept] + f"\n[cut: {kept:,} of {len(whole):,} bytes]".encode()
    assert most - 4 < kept <= most


def test_a_cut_by_hand():
    assert cut_text("aéé", 2) == ("a\n[cut: 1 of 5 bytes]", 4)
    assert cut_text("a\ud800b", 9) == ("a?b", 0)


@pytest.mark.parametrize("piece", ["é", "output ", ""])
def test_no_more_is_taken_of_pieces_than_fits(piece):
    taken = 0

    def pieces():
        nonlocal taken
        for _ in range(100_000):
            taken += 1
            yield piece

    result = as_result(pieces(), 100)
    if piece:
        assert taken == 100 // len(piece.encode()) + 1
        assert result.text.endswith("of many more bytes]") and result.cut_bytes > 0
    else:
        assert (taken, result) == (100_000, ToolResult(""))


def test_an_endless_tool_is_cut():
    result = as_result(itertools.repeat("né"), 4)
    assert result == ToolResult("nén\n[cut: 4 of many more bytes]", cut_bytes=2)


@given(JSON)
def test_json_values_are_text_for_the_agent(value):
    result = as_result(value, 10_000)
    assert isinstance(result.text, str) and not result.error
    result.text.encode()


@given(
    ANY_TEXT,
    JSON,
    st.sampled_from(["", "raised", "died"]),
    st.none() | st.floats(-9, 9),
    st.integers(0, 99),
)
def test_a_result_arrives_as_it_was_given(text, value, error, reward, cut):
    result = as_result(ToolResult(text, value, error, reward, cut), 200)
    content = result_json(result)
    assert len(content) <= most_content(200)
    assert repr(from_json(content, 200)) == repr(result)  # by repr: NaN equals itself there


@given(st.binary(max_size=60) | JSON.map(lambda value: repr(value).encode()))
def test_what_is_no_answer_is_refused_and_nothing_else_happens(content):
    with pytest.raises(ValueError):
        from_json(content, 100)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({1, 2}, "a tool gives back text, a ToolResult or a JSON value"),
        (object(), "of type object"),
        ({1: 2}, "has the key 1"),
        (iter([1]), "pieces of text, not int"),
        (ToolResult(3), "text and error .* are strings"),
        (ToolResult("", error="oops"), "error of a ToolResult is one of"),
        (ToolResult("", reward=float("nan")), "finite number"),
        (ToolResult("", reward=True), "finite number"),
        (ToolResult("", "x" * MOST_VALUE_BYTES), "100,002 bytes; at most"),
    ],
)
def test_what_a_tool_may_not_give_back_is_named(value, words):
    with pytest.raises(TypeError, match=words):
        as_result(value, 100)


def test_an_exception_is_text_whatever_it_is():
    class Unreadable(Exception):
        def __str__(self):
            raise SystemExit

    assert (
        raised("look", Unreadable(), 100).text
        == "Error: look raised Unreadable, whose text cannot be read"
    )
    try:
        raise KeyError("x" * 1000)
    except KeyError as error:
        result = raised("look", error, 50)
    assert (
        result.text.startswith("Error: look raised KeyError: 'xxx") and "[cut: 50 of" in result.text
    )
    assert result.error == "raised" and result.value["raised_at"].startswith("test_results.py:")
