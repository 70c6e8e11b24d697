"""The texts that policies read of tools, letter by letter: a schema is part of the prompt that a policy was trained on, and
what is said of wrong arguments is part of its observations. `python tests/tools/test_schema_texts.py` writes the goldens
anew (with both the repository and tests/tools on the path); a difference there is a difference for every policy that was
trained before."""

from __future__ import annotations

import inspect
import itertools
import json
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest
import rich_tools
import schema_examples
import tool_zoo

from workbench.tools import schema_of, tool, tools_named
from workbench.tools.base import TOOLS, refusal_of
from workbench.tools.retrieval import Bm25, Corpus, Document
from workbench.tools.search import SearchTool
from workbench.values import ToolCall
from workbench.worlds.world_qa import WorldSearch

GOLDEN = Path(__file__).parent / "golden"
# What an agent may write in the place of any argument.
VALUES = (
    None,
    True,
    0,
    3.0,
    2.5,
    "x",
    "C",
    "2026-02-03",
    "1" * 90,
    "a\x1b[2J\n",
    [1, "x"],
    ["x", "x"],
    {},
    {"name": "Ulm"},
    {"name": 3, "extra": [1]},
    {"title": "t", "seats": [1, 2, 3, 4, 5]},
    {"value": 1, "children": [{"value": "x"}]},
    {"legs": [{"name": "Ulm", "height": "high"}], "by": "air"},
)


def shipped():
    """Every tool that comes with the package and makes its schema without a server."""
    corpus = Corpus((Document("1", "Ulm", "A town."),))
    return (
        *(made for name in TOOLS for made in tools_named([name])),
        SearchTool(Bm25(corpus)),
        WorldSearch(SimpleNamespace(), 3),
    )


def invented():
    functions = [tool(function) for function in schema_examples.FUNCTIONS]
    rich = [
        rich_tools.rate,
        rich_tools.later,
        rich_tools.here,
        rich_tools.blocks,
        rich_tools.Session,
    ]
    rich += [rich_tools.spoken, tool(rich_tools.lookup), tool(rich_tools.lookup_later)]
    rich += map(
        tool, (rich_tools.bounded, rich_tools.containers, rich_tools.moments, rich_tools.plan)
    )
    zoo = [tool_zoo.misbehave, tool_zoo.add, tool_zoo.slowly, tool_zoo.odd, tool_zoo.asks]
    return (*functions, *rich, *zoo, tool_zoo.Counter)


def schema_texts(tools):
    return {f"{number:02d} {made.name}": schema_of(made) for number, made in enumerate(tools)}


def refusals_of(made):
    """What is said where one argument is each of the values and the others are left out; the whole answer each time."""
    names = list(made.parameters.get("properties", {}))
    told = {}
    for name, value in itertools.product(names, VALUES):
        refusal = refusal_of(ToolCall(made.name, {name: value}), {made.name: made})
        told[f"{name}={json.dumps(value)[:60]}"] = refusal.text if refusal else "taken"
    for arguments in ({}, {"other": 1}, dict.fromkeys(names, "x"), dict.fromkeys(names)):
        refusal = refusal_of(ToolCall(made.name, arguments), {made.name: made})
        told[json.dumps(arguments)] = refusal.text if refusal else "taken"
    return told


def values_of(function):
    """What a function is handed in Python, argument by argument, for every value that is taken."""
    handed = {}
    made = tool(function)
    for name, value in itertools.product(made.parameters["properties"], VALUES):
        alone = tool(_recorder(function, name), name=made.name)
        if refusal_of(ToolCall(made.name, {name: value}), {made.name: alone}) is None:
            handed[f"{name}={json.dumps(value)[:60]}"] = repr(alone.call({name: value}))
    return handed


def _recorder(function, name):
    """A function of one argument of another, that gives it back."""

    def record(**values):
        return values[name]

    parameter = inspect.signature(function).parameters[name]
    hints = typing.get_type_hints(function, include_extras=True)
    kept = parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name])
    record.__signature__ = inspect.Signature([kept])
    record.__annotations__ = {name: hints[name]}
    return record


def texts():
    """Golden file -> what it holds."""
    tools = [tool(function) for function in (*schema_examples.FUNCTIONS, rich_tools.plan)]
    return {
        "schemas_shipped": schema_texts(shipped()),
        "schemas_invented": schema_texts(invented()),
        "refusals": {made.name: refusals_of(made) for made in tools},
        "values": {f.__name__: values_of(f) for f in schema_examples.FUNCTIONS},
    }


def as_text(value):
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("name", ["schemas_shipped", "schemas_invented", "refusals", "values"])
def test_texts_are_the_golden_ones_letter_by_letter(name):
    assert as_text(texts()[name]) == (GOLDEN / f"{name}.json").read_text()


def test_the_order_of_keys_counts():
    """Negative control: the same schema in another order is another prompt."""
    schema = schema_of(tool(schema_examples.scalars))
    turned = dict(reversed(schema.items()))
    assert schema == turned and as_text(schema) != as_text(turned)


if __name__ == "__main__":
    for name, value in texts().items():
        (GOLDEN / f"{name}.json").write_text(as_text(value))
