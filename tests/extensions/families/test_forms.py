"""Every form of calls: what is written is what is read, and whatever the text, nothing is raised, in linear time."""

import random
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench.extensions.families.table as table
from workbench.basics.extensions import provided
from workbench.tools.base import FunctionTool
from workbench.tools.formats import FORMATS, TEMPLATE, CallFormat, Hermes, format_for, format_names
from workbench.values.errors import ConfigError, ToolError
from workbench.worlds.tool_env import CallSettings

NAMES = [row.form.name for row in table.ROWS]
TOOL = FunctionTool(
    "look_up",
    "Looks up.",
    {
        "type": "object",
        "properties": {
            "word": {"type": "string"},
            "count": {"type": "integer"},
            "share": {"type": "number"},
            "deep": {"type": "object"},
            "either": {"type": ["string", "null"]},
        },
    },
    len,
)
MARKS = sorted(
    {
        mark
        for row in table.ROWS
        for mark in [
            *row.form().readers(),
            *row.form().call_text("look_up", {"word": "x", "count": 3}).split("x"),
        ]
    }
    | {
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
        "<|channel|>",
        "<|message|>",
        "{",
        "}",
        "[",
        "]",
        "=",
        "'",
        '"',
    }
)


def form_of(name: str) -> CallFormat:
    return format_for(name, (TOOL,))


def test_the_face_names_every_form_of_the_table():
    assert sorted(NAMES) == sorted(provided("call_formats"))
    assert set(format_names()) == {*NAMES, *FORMATS, TEMPLATE}
    face = Path(table.__file__).with_name("face.toml")
    for name, place in tomllib.loads(face.read_text())["call_formats"].items():
        assert place.endswith(f":{name}") and form_of(name).name == name
    assert CallSettings(format="glm").format == "glm"
    with pytest.raises(ConfigError, match="calls.format"):
        CallSettings(format="gml")
    with pytest.raises(ToolError, match="hermes"):
        format_for("gml")
    assert isinstance(format_for(TEMPLATE), Hermes)


ARGUMENTS = (
    {},
    {"word": "a"},
    {"word": "12"},
    {"word": "true", "count": -3, "share": 1.5},
    {"word": 'say "x\'s" & <b>', "deep": {"a": [1, None, True], "b": {"c": "d, e: f"}}},
    {"word": "two\nlines", "either": "null"},
    {"word": "  spaces  ", "count": 0},
    {"word": "Zürich 🦊 北京"},
    {"word": "{[(=:,)]}"},
)


@pytest.mark.parametrize("name", NAMES)
def test_what_is_written_is_what_is_read(name):
    form = form_of(name)
    for arguments in ARGUMENTS:
        for thought in ("", "hm {x} [y]"):
            turn = form.parse(form.write_call("look_up", arguments, thought))
            assert turn.valid and [dict(call.arguments) for call in turn.calls] == [arguments]
            assert turn.thought == thought
    answer = form.parse(form.write_answer("42"))
    assert answer.valid and answer.answer == "42"


@pytest.mark.parametrize("name", NAMES)
def test_a_call_that_cannot_be_written_is_refused(name):
    """Marks of the form in a value: refused, or whole, never another value."""
    form = form_of(name)
    for mark in MARKS:
        arguments = {"word": f"keep this {mark} and this"}
        try:
            text = form.write_call("look_up", arguments)
        except ToolError:
            continue
        assert [dict(call.arguments) for call in form.parse(text).calls] == [arguments]


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_call_is_told_how_one_is_written(name):
    form = form_of(name)
    opening = next(iter(form.readers()))
    turn = form.parse(f"{opening} nonsense")
    assert not turn.valid and turn.bad_calls and form.form in turn.bad_calls[0].complaint
    nothing = form.parse("")
    assert form.form in nothing.complaint and "neither a call nor an answer" in nothing.complaint


messy = st.lists(
    st.one_of(
        st.sampled_from(MARKS),
        st.text(max_size=4),
        st.sampled_from(["look_up", "word", "1", "\ud800"]),
    ),
    max_size=16,
).map("".join)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(messy)
def test_never_raises(name, text):
    turn = form_of(name).parse(text)
    assert turn.valid == (not turn.complaint)
    for bad in turn.bad_calls:
        assert bad.complaint and len(bad.quote) < 40


def test_damaged_calls_of_every_kind_never_raise():
    """Each form, thousands of its calls with pieces taken out, doubled and swapped."""
    rng = random.Random(0)
    for name in NAMES:
        form = form_of(name)
        whole = form.write_call("look_up", ARGUMENTS[4])
        for _ in range(300):
            at, end = sorted(rng.sample(range(len(whole)), 2))
            text = rng.choice(
                [whole[:at] + whole[end:], whole[:end] + whole[at:], whole[at:] + whole[:at]]
            )
            turn = form.parse(text)
            assert turn.valid == (not turn.complaint)


@pytest.mark.parametrize("name", NAMES)
def test_a_long_text_costs_milliseconds(name):
    form = form_of(name)
    begun = form.call_text("look_up", {"word": "x"})
    for piece in (
        *form.readers(),
        begun[: len(begun) // 2],
        begun[:-3],
        "{",
        "[",
        '{"a":',
        '<|"|>',
        "\\",
    ):
        text = (piece * (99_000 // len(piece)))[:99_000]
        started = time.process_time()
        form.parse(text)
        assert time.process_time() - started < 1.0, piece


def test_an_argument_without_its_closing_tag_is_no_longer_one():
    """It would swallow the next one, and the tool would be called with both in one."""
    arguments = {"word": "a", "count": 3}
    for name, closing in (
        ("qwen_xml", "</parameter>"),
        ("glm", "</arg_value>"),
        ("minimax", "</parameter>"),
    ):
        form = form_of(name)
        whole = form.write_call("look_up", arguments)
        assert form.parse(whole).valid
        turn = form.parse(whole.replace(closing, "", 1))
        assert not turn.calls and "not closed" in turn.complaint
