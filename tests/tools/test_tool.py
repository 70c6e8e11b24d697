"""Tools from functions and classes: the schema of a signature, what is refused when a tool is made, and what an agent is
told of arguments that do not fit."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from workbench.tools.arguments import mismatches, validator_of
from workbench.tools.base import (
    TOOLS,
    as_tool,
    refusal_of,
    schema_of,
    task_arguments,
    tool,
    tools_named,
)
from workbench.tools.schema import argument_texts, checked_parameters, schema_of_type
from workbench.values import Task, ToolCall
from workbench.values.errors import ToolError

TASK = Task("q/0", "test", 0, {"question": "?"})


class Unit(Enum):
    CELSIUS = "C"
    KELVIN = "K"


@dataclass(frozen=True)
class Place:
    name: str
    height: float = 0.0


def weather(
    place: Place,
    days: int,
    unit: Unit = Unit.CELSIUS,
    words: list[str] | None = None,
    style: Literal["short", "long"] = "short",
    loud: bool = False,
    table: dict[str, int] | None = None,
    note: Annotated[str, "for the reader"] = "",
) -> str:
    """Tell the weather
    of a place.

    Everything else stands here.

    Args:
        place: where it is,
            in words
        days (int): how many
        unit: of the temperature
    """
    return f"{place!r} {days!r} {unit!r} {words!r} {style} {loud} {table!r} {note}"


def test_the_schema_of_a_typed_function():
    schema = schema_of(tool(weather))
    assert schema["type"] == "function" and schema["function"]["name"] == "weather"
    assert schema["function"]["description"] == "Tell the weather of a place."
    parameters = schema["function"]["parameters"]
    assert parameters == {
        "type": "object",
        "required": ["place", "days"],
        "additionalProperties": False,
        "properties": {
            "place": {
                "type": "object",
                "properties": {"name": {"type": "string"}, "height": {"type": "number"}},
                "required": ["name"],
                "additionalProperties": False,
                "description": "where it is, in words",
            },
            "days": {"type": "integer", "description": "how many"},
            "unit": {"enum": ["C", "K"], "description": "of the temperature"},
            "words": {
                "anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}],
                "default": None,
            },
            "style": {"enum": ["short", "long"], "default": "short"},
            "loud": {"type": "boolean", "default": False},
            "table": {
                "anyOf": [
                    {"type": "object", "additionalProperties": {"type": "integer"}},
                    {"type": "null"},
                ],
                "default": None,
            },
            "note": {"type": "string", "description": "for the reader", "default": ""},
        },
    }
    Draft202012Validator.check_schema(parameters)
    json.dumps(schema)


def test_arguments_come_as_the_annotations_say():
    said = tool(weather).call({"place": {"name": "Oslo"}, "days": 3.0, "unit": "K", "words": ["a"]})
    assert said.startswith("Place(name='Oslo', height=0.0) 3 <Unit.KELVIN: 'K'> ['a'] short False")


@pytest.mark.parametrize(
    "docstring",
    [
        "Do.\n\nArgs:\n    a: first\n        thing\n    b (int): second",
        "Do.\n\nParameters\n----------\na : str\n    first thing\nb : int, optional\n    second\n\nReturns\n-------\nstr\n    x",
        "Do.\n\n:param a: first\n    thing\n:param int b: second\n:returns: x",
        "Do.\n\na    first\n     thing\nb    second",
        "Do.\n\n- `a`: first thing\n- `b`: second",
    ],
)
def test_docstrings_of_five_styles(docstring):
    assert argument_texts(docstring, ["a", "b", "c"]) == {"a": "first thing", "b": "second"}


def test_words_that_are_no_arguments_are_left_alone():
    assert argument_texts("Note: this is a: test\n\nReturns:\n    x: y\nExample: a", ["a"]) == {}


def untyped(query): ...
def starred(*queries: str): ...
def named(**queries: str): ...
def positional(query: str, /): ...
def of_bytes(query: bytes): ...
def of_numbers(query: dict[int, str]): ...
def unknown(query: "Nowhere"): ...  # noqa: F821
async def later(query: str):
    yield query


class Stateless:
    """No method call."""


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (untyped, "annotate it, e.g. query: str"),
        (starred, r"without \*"),
        (named, r"without \*"),
        (positional, "by name"),
        (of_bytes, "has no JSON type"),
        (of_numbers, r"dict\[str"),
        (unknown, "Nowhere"),
        (later, "no async generator"),
        (lambda query: 0, "pass name="),
        (Stateless, "method call"),
        (3, "name"),
    ],
)
def test_what_cannot_be_a_tool_is_refused_when_it_is_made(function, said):
    with pytest.raises(ToolError, match=said):
        tool(function)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"type": "strin"}, "object"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "properties/a/type"),
        ([], "object"),
        ({"type": "object", "properties": 3}, "no JSON schema"),
        ({"type": "object", "minProperties": float("nan")}, "no JSON"),
        ({"type": "object", "x": {1, 2}}, "no JSON"),
        ({"type": "object", "properties": {"a": {"$ref": "http://example.org/x"}}}, "stays inside"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "does not exist in them"),
    ],
)
def test_a_schema_by_hand_is_checked(parameters, said):
    with pytest.raises(ToolError, match=said):
        tool(untyped, parameters=parameters)


def test_a_schema_by_hand_refuses_other_names_unless_it_says_otherwise():
    assert checked_parameters({"type": "object"}, "")["additionalProperties"] is False
    assert (
        checked_parameters({"type": "object", "additionalProperties": True}, "")[
            "additionalProperties"
        ]
        is True
    )
    with_references = {
        "type": "object",
        "$defs": {"n": {"type": "integer"}},
        "properties": {"a": {"$ref": "#/$defs/n"}},
    }
    made = tool(untyped, parameters=with_references)
    assert refusal_of(ToolCall("untyped", {"a": 1}), {"untyped": made}) is None
    assert "whole number" in refusal_of(ToolCall("untyped", {"a": "1"}), {"untyped": made}).text


def test_a_schema_that_refers_to_itself_for_ever_is_answered():
    made = tool(untyped, parameters={"type": "object", "$ref": "#"})
    refusal = refusal_of(ToolCall("untyped", {"a": 1}), {"untyped": made})
    assert refusal.error == "bad_arguments" and "without end" in refusal.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "Missing: place, days."),
        ({"place": {"name": "x"}, "days": True}, 'Expected a whole number for "days", got true.'),
        ({"place": {"name": "x"}, "days": "3"}, 'Expected a whole number for "days", got 3.'),
        ({"place": {"name": "x"}, "days": 3.5}, 'Expected a whole number for "days", got 3.5.'),
        (
            {"place": {"name": "x", "heigth": 1}, "days": 3},
            "Not there: heigth. There are: name, height.",
        ),
        (
            {"place": {"name": "x"}, "days": 3, "unit": "F"},
            'Expected one of "C", "K" for "unit", got F.',
        ),
        ({"place": {"name": 1}, "days": 3}, 'Expected text for "place.name", got 1.'),
        (
            {"place": {"name": "x"}, "days": 3, "words": 1},
            'Expected a list or null for "words", got 1.',
        ),
        (
            {"place": {"name": "x"}, "days": 3, "loud": 1},
            'Expected true or false for "loud", got 1.',
        ),
        (
            {"place": {"name": "x"}, "days": 3, "__class__": 1},
            "Not an argument: __class__. There are: place, days, unit",
        ),
    ],
)
def test_an_agent_is_told_what_was_expected_and_what_came(arguments, said):
    refusal = refusal_of(ToolCall("weather", arguments), {"weather": tool(weather)})
    assert refusal.error == "bad_arguments" and refusal.text.startswith(
        "Error: weather was not called."
    )
    assert said in refusal.text


def test_an_unknown_tool_names_those_that_there_are():
    refusal = refusal_of(ToolCall("wether", {}), {"weather": tool(weather)})
    assert (
        refusal.error == "unknown_tool"
        and refusal.text == "Error: there is no tool wether. There are: weather."
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
NAMES = st.sampled_from(
    ["place", "days", "unit", "words", "style", "loud", "table", "note", "other", "__class__"]
)


WEATHER = tool(weather)


@settings(max_examples=60)
@given(arguments=st.dictionaries(NAMES, JSON, max_size=6))
def test_any_arguments_are_either_told_apart_or_taken(arguments):
    refusal = refusal_of(ToolCall("weather", arguments), {"weather": WEATHER})
    if refusal is None:
        assert isinstance(WEATHER.call(arguments), str)
    else:
        assert len(refusal.text) < 2_000 and refusal.text.isprintable()


def test_nothing_of_a_schema_can_run_away_on_arguments():
    slow = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "(a+)+$"},
            "b": {"type": "array", "uniqueItems": True},
        },
        "patternProperties": {"(x+)+$": {}},
    }
    validator = validator_of(checked_parameters(slow, ""))
    assert (
        mismatches(
            validator,
            {"a": "a" * 5_000 + "b", "b": [[n] for n in range(5_000)], "x" * 5_000 + "y": 1},
        )
        == ""
    )
    assert "text" in mismatches(validator, {"a": 1})
    named = tool(
        untyped, parameters={"type": "object", "properties": {"pattern": {"type": "string"}}}
    )
    assert "Expected text" in mismatches(validator_of(named.parameters), {"pattern": 1})


# ------------------------------------------------------------------------------------------------ state, tasks, names


@tool
class Counter:
    """Count up."""

    def __init__(self, task: Task) -> None:
        self.count, self.task = 0, task

    def call(self, by: int = 1) -> str:
        """by: how much"""
        self.count += by
        return f"{self.task.id} {self.count}"


@tool(name="whoami", description="Say which task this is.", trusted=True)
def of_task(prefix: str, task: Task) -> str:
    return prefix + task.id


class Plain:
    """State without a task."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def call(self, word: str) -> list[str]:
        self.seen.append(word)
        return self.seen


def test_state_belongs_to_one_trajectory():
    assert Counter.stateful and not Counter.trusted and Counter.description == "Count up."
    assert Counter.parameters["properties"]["by"] == {
        "type": "integer",
        "description": "how much",
        "default": 1,
    }
    first, second = Counter.for_trajectory(TASK), Counter.for_trajectory(TASK)
    assert [first.call({"by": 2}), second.call({}), first.call({})] == ["q/0 2", "q/0 1", "q/0 3"]
    with pytest.raises(ToolError, match="for_trajectory"):
        Counter.call({"by": 1})
    plain = tool(Plain)
    one, other = plain.for_trajectory(TASK), plain.for_trajectory(TASK)
    assert (one.call({"word": "a"}), other.call({"word": "b"})) == (["a"], ["b"])


def test_a_task_is_handed_in_and_no_agent_gives_it():
    assert task_arguments(of_task.function) == ("task",) and list(
        of_task.parameters["properties"]
    ) == ["prefix"]
    assert of_task.for_trajectory(TASK).call({"prefix": "it is "}) == "it is q/0"
    assert (
        "Not an argument: task"
        in refusal_of(ToolCall("whoami", {"prefix": "", "task": {}}), {"whoami": of_task}).text
    )
    assert of_task("so ", TASK) == "so q/0"  # for people it stays a function


def test_tools_by_name():
    found = tools_named(["calculator", "workbench.tools.calculator:evaluate"])
    assert [each.name for each in found] == ["calculator", "evaluate"]
    for name, said in [
        ("calculater", "calculator"),
        ("no.module:x", "cannot be imported"),
        ("workbench.tools.calculator:no", "cannot be imported"),
    ]:
        with pytest.raises(ToolError, match=said):
            tools_named([name])
    with pytest.raises(ToolError, match="two tools of one name"):
        tools_named([*TOOLS, *TOOLS])


@pytest.mark.parametrize("name", ["", "a b", "1a", "a" * 65, "<x>", "é", "a\n"])
def test_names_that_a_call_could_not_carry(name):
    with pytest.raises(ToolError, match="begins with a letter"):
        tool(weather, name=name)


def test_a_type_that_holds_itself_is_refused():
    with pytest.raises(ToolError, match="holds itself"):
        schema_of_type(Nested, "here")
    assert schema_of_type(Any, "here") == {}


@dataclass
class Nested:
    inner: "Nested"


def test_a_tool_with_the_method_of_an_earlier_version_is_told_its_new_name():
    class Old:
        def for_attempt(self, task):
            return self

    with pytest.raises(ToolError, match=r"Old has for_attempt.*for_trajectory\(task\) now"):
        as_tool(Old())
    (calculator,) = tools_named(["calculator"])
    assert as_tool(calculator) is calculator
