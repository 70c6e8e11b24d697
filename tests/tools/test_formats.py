"""What is read out of a turn: exactly what stands there, and what is wrong with the rest. Nothing raises."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.reply_fuzz import reply
from workbench.tools import formats, strict_json, turns
from workbench.tools.base import tool
from workbench.tools.formats import Hermes, Tags, format_for
from workbench.tools.turns import MOST_CALLS, MOST_TEXT, ParsedTurn
from workbench.values import ToolCall
from workbench.values.errors import ToolError

HERMES = Hermes()
TAGS = Tags(arguments=(("search", "query"), ("add", "")))
THINKING = Hermes(think=True)


def call(name: str = "search", **arguments) -> str:
    return HERMES.write_call(name, arguments or {"query": "x"})


def inside(text: str) -> str:
    return f"<tool_call>{text}</tool_call>"


# ------------------------------------------------------------------------------------------------ what is right


def test_calls_and_answers_come_back():
    parsed = HERMES.parse(
        call(query="a </tool_call> b <answer>") + "\n" + call("add", a=1, b=[True, None, 2.5])
    )
    assert parsed == ParsedTurn(
        calls=(
            ToolCall("search", {"query": "a </tool_call> b <answer>"}),
            ToolCall("add", {"a": 1, "b": [True, None, 2.5]}),
        )
    )
    assert HERMES.parse("<answer> New York </answer>\n") == ParsedTurn(answer="New York")
    assert TAGS.parse('<search> big city </search><add>{"a": 1}</add>') == ParsedTurn(
        calls=(ToolCall("search", {"query": "big city"}), ToolCall("add", {"a": 1}))
    )


def test_a_thought_may_stand_in_front_and_must_where_asked_for():
    for format in (HERMES, THINKING):
        said = "<think>I could <tool_call> or <answer>x</answer></think>" + call()
        assert format.parse(said) == ParsedTurn(
            "I could <tool_call> or <answer>x</answer>", (ToolCall("search", {"query": "x"}),)
        )
    assert HERMES.parse(call()).valid
    bare = THINKING.parse(call())
    assert not bare.valid and len(bare.calls) == 1 and "begin with <think>" in bare.complaint
    # Templates that open the thought themselves leave only its end to the policy.
    assert THINKING.parse("hm</think><answer>x</answer>") == ParsedTurn("hm", answer="x")
    assert THINKING.parse(THINKING.write_answer("x", "why")).thought == "why"


@given(
    name=st.sampled_from(["search", "add"]),
    thought=st.text(st.characters(exclude_characters="<", codec="utf-8")),
    arguments=st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(st.characters(codec="utf-8"), max_size=20),
            lambda inner: st.lists(inner, max_size=3),
        ),
        max_size=3,
    ),
)
@settings(max_examples=60)
def test_whatever_is_written_is_read_again(name, thought, arguments):
    parsed = THINKING.parse(THINKING.write_call(name, arguments, thought))
    assert parsed == ParsedTurn(thought, (ToolCall(name, arguments),))


# ------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("text", "complaint", "quote"),
    [
        ("", "neither a call nor an answer", ""),
        ("Paris", "text outside the tags", "Paris"),
        ("I search: " + call(), "text outside the tags", "I search:"),
        ("<answer>a</answer> b", "text outside the tags", "b"),
        ("<answer> </answer>", "answer is empty", ""),
        ("<answer>a</answer><answer>b</answer>", "more than one answer", ""),
        ("<answer>Paris", "<answer> is not closed by </answer>", ""),
        ("<answer>a<answer>b</answer>", "more than one answer", ""),
        ("</answer>", "text outside the tags", "</answer>"),
        ("<think>hm " + call(), "<think> is not closed", ""),
        (call() + "<answer>x</answer>", "calls and an answer", ""),
        ("<answer>x</answer>" + call(), "calls and an answer", ""),
        (inside("{}"), 'has no "name"', ""),
        (inside('{"name": "search"}'), 'has no "arguments"', ""),
        (inside('{"name": "search", "arguments": {}, "id": 3}'), "nothing else", "id"),
        (inside('{"name": 3, "arguments": {}}'), "name of a tool", "3"),
        (inside('{"name": "<|im_end|>", "arguments": {}}'), "name of a tool", "<|im_end|>"),
        (inside('{"name": "a", "arguments": [1]}'), "are a JSON object", "[1]"),
        (
            inside(json.dumps({"name": "a", "arguments": '{"query": 1}'})),
            "leave out the quotes",
            '{"query": 1}',
        ),
        (
            inside(json.dumps(json.dumps({"name": "a", "arguments": {}}))),
            "leave out the quotes",
            '{"name": "a", "argum...',
        ),
        (inside("null"), "A call is a JSON object", "null"),
        (inside("[]"), "A call is a JSON object", "[]"),
        (inside("search(x)"), "no JSON: Expecting value, at character 1", "search(x)"),
        (inside("{'name': 1}"), "no JSON", "'name': 1}"),
        (inside('{"name": "a", "name": "b", "arguments": {}}'), "twice", "name"),
        (inside('{"name": "a", "arguments": {"x": NaN}}'), "NaN and Infinity", "NaN"),
        (inside('{"name": "a", "arguments": {"x": -Infinity}}'), "NaN and Infinity", "-Infinity"),
        (inside('{"name": "a", "arguments": {"x": 1e999}}'), "too large", "1e999"),
        (
            inside('{"name": "a", "arguments": {"x": ' + "9" * 401 + "}}"),
            "more than 400 digits",
            "9" * 20 + "...",
        ),
        (inside('{"name": "a", "arguments": {"x": ["\\ud800"]}}'), "surrogate", ""),
        (inside("[" * 3_000 + "]" * 3_000), "deeper than 16", ""),
        (inside('{"a":' * 3_000), "deeper than 16", ""),
        (
            inside('{"name": "a", "arguments": {"x": "' + "y" * 90_000 + '"}}'),
            "longer than 32000",
            "",
        ),
        (inside('{"name": "a", "arguments": {}} x'), "behind the JSON object", "x</tool_call>"),
        (
            '<tool_call>{"name": "a", "arguments": {}}',
            "<tool_call> is not closed by </tool_call>",
            '{"name": "a", "argum...',
        ),
        ("<tool_call>", "not closed", ""),
        ("x" * (MOST_TEXT + 1), "longer than 100000", ""),
    ],
)
def test_each_fault_is_named(text, complaint, quote):
    parsed = HERMES.parse(text)
    assert not parsed.valid and complaint in parsed.complaint and parsed.quote == quote
    assert parsed.answer is None or "outside" in complaint


def test_a_call_that_was_begun_and_not_ended_is_a_bad_call_and_not_the_absence_of_one():
    for format, text in (
        (HERMES, '<tool_call>{"name": "a", "arguments": {}}'),
        (TAGS, "<search>x"),
    ):
        parsed = format.parse(text)
        assert (
            not parsed.valid and not parsed.calls and [bad.index for bad in parsed.bad_calls] == [0]
        )


def test_one_bad_call_does_not_take_the_others_with_it():
    parsed = HERMES.parse(
        call(query="a")
        + inside("null")
        + "<tool_call>"
        + call(query="b")
        + inside("{")
        + call(query="c")
    )
    assert [each.arguments["query"] for each in parsed.calls] == ["a", "b", "c"]
    assert [(bad.index, bad.complaint[:25]) for bad in parsed.bad_calls] == [
        (1, "A call is a JSON object w"),
        (2, "The tag <tool_call> is no"),
        (4, "The call is no JSON: Expe"),
    ]


def test_a_contradiction_does_nothing():
    for text in (
        call() + "<answer>x</answer>",
        "<answer>a</answer><answer>b</answer>",
        inside("null") + "<answer>x</answer>",
    ):
        parsed = HERMES.parse(text)
        assert (parsed.calls, parsed.bad_calls, parsed.answer, parsed.valid) == (
            (),
            (),
            None,
            False,
        )


def test_no_more_calls_are_read_than_there_may_be():
    parsed = HERMES.parse(call() * 20)
    assert len(parsed.calls) == MOST_CALLS and "more than 16 calls" in parsed.complaint
    many = HERMES.parse("<tool_call>" * 9_000)
    assert len(many.bad_calls) == MOST_CALLS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("<search></search>", "nothing between"),
        ("<search>a", "not closed"),
        ("<add>x</add>", "no JSON"),
        ("<add>[]</add>", "JSON object"),
        ("<add>{} 1</add>", "behind"),
        ("<look>x</look>", "outside"),
        ("<search>" + "x" * 33_000 + "</search>", "longer"),
        ("<search>\ud800</search>", "surrogate"),
        ("<search>a<search>b</search>", "not closed"),
    ],
)
def test_faults_of_tags(text, complaint):
    parsed = TAGS.parse(text)
    assert not parsed.valid and complaint in parsed.complaint


# ------------------------------------------------------------------------------------------------ formats by name


@tool
def search(query: str) -> str:
    return query


@tool
def add(a: int, b: int) -> int:
    return a + b


def test_formats_by_name():
    assert format_for("hermes", [search], think=True) == Hermes(True)
    assert format_for("tags", [search, add]) == TAGS
    assert TAGS.write_call("search", {"query": "a b"}) == "<search>a b</search>"
    assert TAGS.parse(TAGS.write_call("add", {"a": 1, "b": 2})).calls == (
        ToolCall("add", {"a": 1, "b": 2}),
    )
    with pytest.raises(ToolError, match="hermes or tags"):
        format_for("xml", [])
    with pytest.raises(ToolError, match="<answer>"):
        format_for("tags", [tool(lambda query: 0, name="answer", parameters={"type": "object"})])


@pytest.mark.parametrize("text", ["a</search>", "<search>", " a", ""])
def test_what_tags_cannot_carry_is_refused_to_whoever_writes_it(text):
    with pytest.raises(ToolError, match="cannot be written"):
        TAGS.write_call("search", {"query": text})


# ------------------------------------------------------------------------------------------------ fuzz


def fuzz(count: int) -> dict[str, int]:
    seen = {"calls": 0, "bad": 0, "answer": 0, "valid": 0}
    for number in range(count):
        text = reply(number)
        for format in (HERMES, TAGS, THINKING):
            parsed = format.parse(text)
            assert parsed.valid == (not parsed.complaint) and (
                parsed.calls or parsed.bad_calls or parsed.answer or not parsed.valid
            )
            assert parsed.answer is None or not (parsed.calls or parsed.bad_calls)
            assert all(
                len(each) <= 23 for each in (parsed.quote, *(bad.quote for bad in parsed.bad_calls))
            )
            places = [bad.index for bad in parsed.bad_calls]
            assert places == sorted(set(places)) and all(
                place < len(places) + len(parsed.calls) for place in places
            )
            for each in parsed.calls:
                json.dumps(each.arguments, allow_nan=False, ensure_ascii=False).encode()
            seen["calls"] += bool(parsed.calls)
            seen["bad"] += bool(parsed.bad_calls)
            seen["answer"] += parsed.answer is not None
            seen["valid"] += parsed.valid
    return seen


def test_fuzzed_replies():
    seen = fuzz(500)
    assert min(seen.values()) > 15, seen


@pytest.mark.full
def test_10_000_fuzzed_replies():
    fuzz(10_000)


def test_complaints_hold_no_word_of_the_policy():
    """They are shown as trusted text, so whatever the policy wrote must stay in the quote."""
    own = "".join(Path(module.__file__).read_text() for module in (formats, strict_json, turns))
    for number in range(400):
        parsed = HERMES.parse(reply(number, "own words"))
        for complaint in (parsed.complaint, *(bad.complaint for bad in parsed.bad_calls)):
            words = [
                word for word in complaint.replace(":", " ").split() if word.strip(".,").isalpha()
            ]
            known = (
                own
                + "Expecting value property name enclosed in double quotes delimiter Unterminated string starting at "
                "Invalid control character Extra data Illegal trailing comma before end of object escape"
            )
            assert all(word.strip(".,") in known for word in words), complaint


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("<search>keep this </search> and this</search>", []),
        ("<search>a</search></search>", []),
        ("<search>a</search> b </search><search>c</search>", [{"query": "c"}]),
        ("<search>a</search><search>b</search>", [{"query": "a"}, {"query": "b"}]),
    ],
)
def test_an_argument_that_holds_its_closing_tag_is_never_cut(text, arguments):
    turn = TAGS.parse(text)
    assert [call.arguments for call in turn.calls] == arguments
    assert turn.valid == (len(arguments) == 2)
    if not turn.valid:
        assert "more than once" in turn.bad_calls[0].complaint
