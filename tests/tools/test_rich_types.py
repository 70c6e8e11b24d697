"""Tools as people write them: pydantic's types, bounds that hold, async functions, tools of other frameworks. What the schema
allows is taken and converted; what it forbids is refused in words."""

import subprocess
import sys
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated
from uuid import UUID

import pytest
import rich_tools
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import Field
from rich_tools import SPEC, Leg, LikeLangChain, Span, Trip, say

from workbench.tools import schema_of, tool, tools_named
from workbench.tools.base import refusal_of
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.values import Task, ToolCall
from workbench.values.errors import ToolError

BOUNDED, CONTAINERS, MOMENTS, PLAN = map(
    tool, (rich_tools.bounded, rich_tools.containers, rich_tools.moments, rich_tools.plan)
)
FIT = {"share": 0.5, "step": 3, "code": "abc", "few": [1], "count": 2}


def refused(made, **arguments):
    refusal = refusal_of(ToolCall(made.name, arguments), {made.name: made})
    return "" if refusal is None else refusal.text


def test_bounds_and_words_are_in_the_schema():
    assert rich_tools.rate.parameters == {
        "type": "object",
        "required": ["n"],
        "additionalProperties": False,
        "properties": {
            "n": {"type": "integer", "minimum": 1, "maximum": 5, "description": "stars"},
            "by": {"type": "string", "description": "who rates", "default": "you"},
        },
    }
    found = BOUNDED.parameters["properties"]
    assert found["level"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 5,
        "default": 3,
        "description": "how high",
    }
    assert found["code"] == {"type": "string", "pattern": "^[a-c]+$", "maxLength": 4}
    assert found["few"] == {
        "type": "array",
        "items": {"type": "integer"},
        "minItems": 1,
        "maxItems": 2,
    }
    assert BOUNDED.parameters["required"] == ["share", "step", "code", "few", "count"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"share": 0}, 'Expected more than 0 for "share", got 0.'),
        ({"share": 1}, 'less than 1 for "share"'),
        ({"step": 4}, 'Expected a multiple of 3 for "step", got 4.'),
        ({"code": "abcab"}, 'at most 4 characters for "code"'),
        ({"code": "d"}, """String should match pattern '^[a-c]+$' for "code", got d."""),
        ({"few": []}, 'at least 1 items for "few"'),
        ({"count": 5}, 'at most 4 for "count"'),
        ({"level": 0}, 'Expected at least 1 for "level", got 0.'),
        ({"pair": 3}, 'an even number is needed for "pair", got 3.'),
        ({"count": True}, "whole number"),
        ({"count": "3"}, "whole number"),
    ],
)
def test_bounds_hold_when_a_call_is_checked(change, said):
    assert refused(BOUNDED, **FIT) == ""
    assert said in refused(BOUNDED, **FIT | change)
    assert (
        refused(rich_tools.rate, n=9)
        == 'Error: rate was not called. Expected at most 5 for "n", got 9.'
    )


def test_values_come_as_the_annotations_say():
    assert BOUNDED.call(FIT | {"step": 6.0}) == [0.5, 6, "abc", [1], 2, 3, 2, 7]
    assert CONTAINERS.call(
        {
            "point": [1, "a"],
            "row": [1, 2.5],
            "tags": ["x", "y"],
            "span": [3],
            "place": {"name": "z"},
        }
    ) == [(1, "a"), (1.0, 2.5), {"x", "y"}, Span(3, 9), {"name": "z"}]
    assert CONTAINERS.call({"point": [1, "a"]})[1:4] == [(), frozenset(), Span(0)]
    who = "12345678-1234-5678-1234-567812345678"
    assert MOMENTS.call(
        {
            "when": "2026-02-03T04:05:06",
            "day": "2026-02-03",
            "where": "a/b",
            "who": who,
            "cost": "1.10",
        }
    ) == [datetime(2026, 2, 3, 4, 5, 6), date(2026, 2, 3), Path("a/b"), UUID(who), Decimal("1.10")]
    assert PLAN.call({"trip": {"title": "t", "legs": [{"to": "Ulm"}]}}) == Trip(
        title="t", legs=[Leg(to="Ulm", nights=1)]
    )


def test_models_keep_their_definitions_and_say_where_it_was_wrong():
    assert PLAN.parameters["properties"]["trip"] == {"$ref": "#/$defs/Trip"}
    assert PLAN.parameters["$defs"]["Leg"]["properties"]["to"] == {
        "type": "string",
        "minLength": 1,
        "description": "a city",
    }
    assert (
        "title" in PLAN.parameters["$defs"]["Trip"]["properties"]
    )  # a field of that name is no title
    Draft202012Validator.check_schema(PLAN.parameters)
    assert 'at most 14 for "trip.legs.0.nights"' in refused(
        PLAN, trip={"title": "", "legs": [{"to": "x", "nights": 15}]}
    )
    assert "Missing in" in refused(PLAN, trip={"title": ""})
    assert 'for "when", got tomorrow' in refused(MOMENTS, when="tomorrow")
    assert 'no item twice for "tags"' in refused(CONTAINERS, point=[1, "a"], tags=["x", "x"])


def test_of_several_types_the_one_that_was_meant_is_spoken_of():
    def choose(
        n: Annotated[int, Field(ge=1)] | None, leg: Leg | int = 0, words: list[str] | None = None
    ): ...

    made = tool(choose)
    assert refused(made, n=0).endswith('Expected at least 1 for "n", got 0.')
    assert refused(made, n="x").endswith('Expected a whole number or null for "n", got x.')
    assert refused(made, n=1, leg={}).endswith('Missing in "leg": to.')
    assert refused(made, n=1, leg="x").endswith(
        'Expected a Leg or a whole number for "leg", got x.'
    )
    assert refused(made, n=1, words=["a", 1]).endswith('Expected text for "words.1", got 1.')


def test_what_nobody_can_read_is_refused_when_the_tool_is_made():
    def handle(file: type(sys.stdout)): ...
    def called(function: Annotated[type(lambda: 0), "what"]): ...

    for function in (handle, called):
        with pytest.raises(ToolError, match="has no JSON type; use str"):
            tool(function)
    with pytest.raises(ToolError, match=r"tool\(function, spec="):
        tool(SPEC)
    with pytest.raises(ToolError, match="OpenAI's description"):
        tool(say, spec={"function": {"description": "x"}})


def test_pydantic_is_not_imported_by_a_plain_tool():
    code = (
        "import sys; import workbench.worlds\nfrom workbench.tools import tool\n"
        "tool(lambda a: a, name='f', parameters={'type': 'object'})\ndef f(a: int): return a\ntool(f).call({'a': 1})\n"
        "print('pydantic' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip()
        == "False"
    )


# ------------------------------------------------------------------------------------------------ any value


JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-20, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("abcd", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["to", "nights", "title", "legs", "name", "x"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)
LEGS = st.fixed_dictionaries(
    {"to": st.text("ab", max_size=2)}, optional={"nights": st.integers(-3, 18) | JUNK}
)
LIKELY = {
    "share": st.floats(-0.5, 1.5),
    "step": st.integers(-9, 9),
    "code": st.text("abcd", max_size=6),
    "few": st.lists(st.integers(), max_size=4),
    "count": st.integers(0, 6),
    "level": st.integers(-1, 7),
    "pair": st.sampled_from([0, 2, 8]),
    "size": st.integers(),
    "point": st.tuples(st.integers(), st.text("ab")).map(list),
    "row": st.lists(st.floats(-1e6, 1e6), max_size=3),
    "tags": st.lists(st.text("ab", max_size=1), max_size=3),
    "span": st.lists(st.integers(), max_size=3),
    "place": st.fixed_dictionaries({"name": st.text("ab")}),
    "trip": st.fixed_dictionaries({"title": st.text("ab"), "legs": st.lists(LEGS, max_size=4)}),
    "nights": st.integers(),
}


@pytest.mark.parametrize("made", [BOUNDED, CONTAINERS, PLAN], ids=lambda made: made.name)
@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_what_the_schema_allows_is_taken_and_what_it_forbids_is_refused_in_words(made, data):
    names = list(made.parameters["properties"])
    arguments = {
        name: data.draw(
            LIKELY[name] | JUNK if data.draw(st.integers(0, 4)) == 0 else LIKELY[name], label=name
        )
        for name in names
        if data.draw(st.integers(0, 9)) or name == "point"
    }
    if isinstance(arguments.get("pair"), (int, float)) and arguments["pair"] % 2:
        del arguments["pair"]  # what a validator forbids is in no schema
    allowed = Draft202012Validator(made.parameters).is_valid(
        arguments
    )  # the standard's, with patterns and all
    refusal = refusal_of(ToolCall(made.name, arguments), {made.name: made})
    assert (refusal is None) == allowed, refusal and refusal.text
    if refusal is None:
        made.call(arguments)
    else:
        assert (
            refusal.error == "bad_arguments"
            and refusal.text.isprintable()
            and len(refusal.text) < 2_000
        )


@settings(max_examples=60, deadline=None)
@given(
    when=st.datetimes(),
    day=st.dates(),
    who=st.uuids(),
    cost=st.decimals(-1000, 1000, places=2),
    where=st.text("ab/"),
    junk=st.text("xyz", max_size=5),
)
def test_moments_of_any_value(when, day, who, cost, where, junk):
    assert MOMENTS.call(
        {
            "when": when.isoformat(),
            "day": day.isoformat(),
            "who": str(who),
            "cost": str(cost),
            "where": where,
        }
    ) == [when, day, Path(where), who, cost]
    for name in ("when", "day", "who", "cost"):
        assert f'for "{name}"' in refused(MOMENTS, **{"when": when.isoformat()} | {name: junk})


# ------------------------------------------------------------------------------------------------ async, and others' tools


def run(name_or_tool, limits=ToolLimits(deadline_s=20.0, workers=1), **arguments):
    (made,) = tools_named([name_or_tool]) if isinstance(name_or_tool, str) else (name_or_tool,)
    executor = ToolExecutor([made], limits, Task("t", "", 0))
    try:
        (result,) = executor.run([ToolCall(made.name, arguments)])
        return result
    finally:
        executor.close()


def test_async_functions_are_awaited_within_the_deadline():
    soon = ToolLimits(deadline_s=0.3, workers=1)
    assert run("rich_tools:later", n=3).text == "waited for 3"
    assert "at least 1" in run("rich_tools:later", n=0).text
    assert run("rich_tools:later", soon, n=3, wait=60.0).error == "timeout"
    assert run("rich_tools:here", n=3).text == "waited for 3"
    assert "LookupError: unlucky" in run("rich_tools:here", n=13).text
    for name, arguments in (("here", {"n": 1}), ("blocks", {})):
        late = run(f"rich_tools:{name}", soon, wait=3.0, **arguments)
        assert late.error == "timeout" and "within 0.3 s and was stopped" in late.text
        assert run("rich_tools:here", n=4).text == "waited for 4"


def test_state_of_an_event_loop_lives_from_call_to_call():
    executor = ToolExecutor([rich_tools.Session], ToolLimits(), Task("t", "", 0))
    assert [executor.run([ToolCall("Session")])[0].text for _ in range(3)] == ["True"] * 3


def test_tools_of_another_framework():
    made = tool(LikeLangChain(), trusted=True)
    assert (
        schema_of(made)["function"]["description"] == "Look a word up."
        and list(made.parameters["properties"]) == ["to", "nights"]
        and "title" not in made.parameters
    )
    assert (
        run(made, to="Ulm").text == "invoked with {'nights': 1, 'to': 'Ulm'}"
        and "at most 14" in run(made, to="Ulm", nights=20).text
    )
    assert (
        run("rich_tools:lookup", to="Ulm").text == "invoked with {'nights': 1, 'to': 'Ulm'}"
    )  # in a worker, found by its place
    assert run("rich_tools:lookup_later", to="Ulm").text == "awaited with {'to': 'Ulm'}"
    with pytest.raises(ToolError, match="trusted=True"):
        run(tool(LikeLangChain()), to="x")


def test_openais_description_beside_a_function():
    assert schema_of(rich_tools.spoken)["function"]["parameters"]["properties"] == {
        "what": {"type": "string", "maxLength": 5}
    }
    assert run("rich_tools:spoken", what="yes").text == "said yes"
    assert "at most 5 characters" in run("rich_tools:spoken", what="too long").text
    assert tool(say, spec=SPEC["function"], name="other").name == "other"


def test_a_tool_that_langchain_made():
    tools = pytest.importorskip(
        "langchain_core.tools", reason="needs langchain-core, which no shipped environment has"
    )

    @tools.tool
    def multiply(a: int, b: Annotated[int, "the factor"]) -> int:
        """Multiply."""
        return a * b

    assert run(tool(multiply, trusted=True), a=6, b=7).text == "42"


def test_the_pages_own_example_of_a_function_with_its_description():
    from tests.test_readme_examples import block_of

    names = {"wb": __import__("workbench")}
    exec(block_of("python", "tools of other frameworks", "docs/extend/tool.md"), names)
    assert refused(names["dictionary"]).endswith("Missing: word.")
    assert names["dictionary"].call({"word": "Ulm"}) == "nothing about Ulm"
