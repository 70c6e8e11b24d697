"""What is made up whole: texts by written grammars, documents and tables by the grammar that sound ones show.

    text("template", rng)             a chat template; "reply": a turn of a policy
    shape = shape_of(documents)       what keys, lists and kinds of values there are
    made(shape, rng)                  a new document of that shape, some of whose values are of another kind
    made_table(schema, rng)           columns of these types

A rule is a tuple of alternatives; `<<name>>` in one stands for what the rule of that name makes. The first alternative of a
rule ends: it is taken where the others have gone too deep.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from tests.hostile.mutations import VALUES

DEEPEST = 14
LONGEST = 400_000  # characters of a text
WRONG = 0.04  # of the values of a made document: of any kind
_MARK = re.compile(r"<<(\w+)>>")

TEXTS: Mapping[str, Sequence[str]] = {
    # A turn of a policy, in every form of calls at once: what one form writes, another must refuse.
    "reply": ("<<part>>", "<<part>><<reply>>", "<<part>><<reply>>", "<think><<words>></think><<reply>>"),
    "part": (
        "<<words>>",
        "<<call>>",
        "<<call>>",
        "<answer><<words>></answer>",
        "<answer><<reply>></answer>",
        "<think><<reply>>",
        "<<mark>>",
    ),
    "call": (
        "<tool_call><<object>></tool_call>",
        "<tool_call>\n<<object>>",
        "<search><<words>></search>",
        "<<name>>(<<words>>)",
        "<function=<<name>>><<parameters>></function>",
        "<tool_call><function=<<name>>><<parameters>></function></tool_call>",
        "[TOOL_CALLS][<<objects>>]",
        "[TOOL_CALLS]<<name>>[ARGS]<<value>>",
        "<|python_tag|><<object>>",
        "<|channel|>commentary to=functions.<<name>> <|constrain|>json<|message|><<value>><|call|>",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜><<name>>\n```json\n<<value>>\n```<｜tool▁call▁end｜>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.<<name>>:<<number>><|tool_call_argument_begin|><<value>>",
        "<|tool_call_start|>[<<name>>(x=<<value>>)]<|tool_call_end|>",
        "<tool_call><<name>>\n<arg_key><<words>></arg_key>\n<arg_value><<value>></arg_value></tool_call>",
        '<invoke name="<<name>>"><parameter name="<<words>>"><<value>></parameter></invoke>',
        "<|START_ACTION|>[<<objects>>]<|END_ACTION|>",
    ),
    "parameters": ("", "<parameter=<<name>>><<words>></parameter><<parameters>>"),
    "objects": ("<<object>>", "<<object>>, <<objects>>"),
    "object": (
        '{"name": "<<name>>", "arguments": {"expression": "<<sum>>"}}',
        '{"name": "<<name>>", "arguments": <<value>>}',
        '{"name": <<value>>, "arguments": <<value>>}',
        '{"arguments": <<value>>, "name": "<<name>>"}',
        '{"name": "<<name>>", "name": "<<name>>", "parameters": <<value>>}',
        "<<value>>",
    ),
    "name": ("calculator", "search", "answer", "python", "<<words>>", "__class__", ""),
    "sum": ("1+1", "9**9**9", "(<<sum>>)", "<<sum>>*<<number>>", "1/0", "'x'*10**9", "<<words>>"),
    "value": (
        "<<number>>",
        '"<<words>>"',
        "null",
        "[]",
        "{}",
        "[<<value>>]",
        '{"expression": <<value>>}',
        '{"<<words>>": <<value>>, "<<words>>": <<value>>}',
        "[<<value>>, <<value>>,]",
        "<<object>>",
    ),
    "number": ("1", "0", "-1", "1e999", "NaN", "-Infinity", "9" * 5_000, "1_0", "٣", "0x1", ".5", "1" + "0" * 300),
    "words": ("x", "", " ", "\n", "left", "<<words>> <<words>>", "\\u0000", "\x00", "\ud800", "\x1b[2J", "\u202e", '\\"', "\\", "é" * 9, "x" * 20_000, "[" * 3_000, "{" * 3_000, "<" * 3_000, "<<mark>>"),
    "mark": (
        "</tool_call>",
        "<tool_call>",
        "</answer>",
        "<answer>",
        "<think>",
        "</think>",
        "<|im_end|>",
        "<|im_start|>",
        "<|end|>",
        "<|eom_id|>",
        "[/INST]",
        "```",
        "<eos>",
    ),
    # A chat template.
    "template": ("<<block>>", "{%- for message in messages %}<<block>>{% endfor %}<<block>>", "<<block>><<template>>"),
    "block": (
        "{{ message.content }}",
        "<<plain>>",
        "{{ <<expression>> }}",
        "{{- <<expression>> -}}",
        "{% set x = <<expression>> %}",
        "{% set ns = namespace(s='x' * <<small>>) %}<<block>>{% set ns.s = <<expression>> %}{{ ns.s }}",
        "{% if <<test>> %}<<block>>{% elif <<test>> %}<<block>>{% else %}<<block>>{% endif %}",
        "{% for a in <<series>> %}<<block>>{% endfor %}",
        "{% for a in <<series>> %}{% for b in <<series>> %}<<block>>{% endfor %}{% endfor %}",
        "{% macro m(a, b) %}<<block>>{% endmacro %}{{ m(<<expression>>, 1) }}",
        "{% generation %}<<block>>{% endgeneration %}",
        "{% raw %}<<block>>{% endraw %}",
        "{% include 'x' %}",
        "{% break %}",
        "{% <<plain>>",
        "<<block>><<block>>",
    ),
    "plain": ("<|im_start|>", "<|im_end|>\n", "x", "", "\x1b]0;t\x07", "{", "\ud7ff", "\u202e"),
    "expression": (
        "message.content",
        "messages[0].content",
        "message['role'] + '\\n'",
        "raise_exception('<<plain>>')",
        "strftime_now('%Y' * <<small>>)",
        "tools | tojson",
        "messages | tojson(indent=<<small>>)",
        "<<expression>> ~ <<expression>>",
        "<<expression>> * <<small>>",
        "<<expression>> ** <<small>>",
        "(<<expression>>) | <<filter>>",
        "ns.s ~ ns.s",
        "ns.s.replace('', ns.s)",
        "a",
        "x",
        "9 ** 9 ** 9",
        "'%999999999d' % 1",
        "'{:>999999999}'.format(1)",
        "[].__class__.__base__.__subclasses__()",
        "cycler.__init__.__globals__.os.system('touch mark')",
        "lipsum(<<small>>)",
        "<<series>> | list",
    ),
    "filter": ("trim", "upper", "length", "list", "tojson", "indent(<<small>>)", "center(999999999)", "wordwrap(1)", "batch(<<small>>) | list", "groupby('role') | list", "map('upper') | join", "sum", "sort", "unique | list", "pprint", "urlize", "striptags", "random", "attr('__class__')"),
    "small": ("1", "2", "40", "1000", "99999", "10**9", "-1", "1e308"),
    "series": ("messages", "range(3)", "range(<<small>>)", "tools", "message", "[1, <<series>>]", "'xyz'", "dict(a=<<series>>).items()"),
    "test": ("true", "add_generation_prompt", "loop.first", "message.role == 'assistant'", "messages | length > <<small>>", "tools", "'player' in messages[0].content", "<<expression>> is string", "not <<test>>", "<<expression>> in <<expression>>"),
}  # fmt: skip


def text(symbol: str, rng: random.Random, rules: Mapping[str, Sequence[str]] = TEXTS) -> str:
    """What a rule makes."""
    left = [LONGEST]

    def made_of(name: str, depth: int) -> str:
        alternatives = rules[name]
        ends = depth > DEEPEST or left[0] <= 0
        chosen = alternatives[0] if ends else rng.choice(alternatives)
        pieces = _MARK.split(chosen)
        for at in range(0, len(pieces), 2):
            left[0] -= len(pieces[at])
        for at in range(1, len(pieces), 2):
            pieces[at] = made_of(pieces[at], depth + 1)
        return "".join(pieces)

    return made_of(symbol, 0)


# ------------------------------------------------------------------------------------------------ documents


@dataclass
class Shape:
    """What was seen at a place: values that are no container, keys with the shapes below, and what lists hold."""

    values: list[Any] = field(default_factory=list)
    keys: dict[str, Shape] = field(default_factory=dict)
    items: Shape | None = None
    lengths: list[int] = field(default_factory=list)


def shape_of(documents: Sequence[Any]) -> Shape:
    shape = Shape()
    for document in documents:
        _see(shape, document)
    return shape


def _see(shape: Shape, value: Any) -> None:
    if isinstance(value, dict):
        for key, below in value.items():
            _see(shape.keys.setdefault(str(key), Shape()), below)
    elif isinstance(value, list):
        shape.lengths.append(len(value))
        shape.items = shape.items or Shape()
        for below in value[:20]:
            _see(shape.items, below)
    elif len(shape.values) < 40:
        shape.values.append(value)


def made(shape: Shape, rng: random.Random) -> Any:
    """A document of this shape: a key may be missing, a list longer, a number at its limit, a value of another kind."""
    if rng.random() < WRONG:
        return rng.choice(VALUES)
    ways = [way for way in ("keys", "items", "values") if getattr(shape, way)]
    if not ways:
        return rng.choice((None, "", [], {}))
    way = rng.choice(ways)
    if way == "keys":
        kept = [key for key in shape.keys if rng.random() > WRONG]
        return {key: made(shape.keys[key], rng) for key in kept}
    if way == "items":
        length = min(200, rng.choice((0, 1, 3, *shape.lengths[:3])))
        return [made(shape.items, rng) for _ in range(length)]
    return _like(rng.choice(shape.values), rng)


def _like(value: Any, rng: random.Random) -> Any:
    """Mostly the value itself, since what is checked first must hold for anything later to be reached."""
    if rng.random() < 0.8 or value is None:
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice((0, 1, -1, value + 1, value - 1, 1 << 31, 1 << 40, 10**12))
    if isinstance(value, float):
        return rng.choice((0.0, -value, 1e308, -1e308, float("nan"), float("inf"), 1e-300))
    return rng.choice((value[::-1], value * 3, value[:3], "", text("words", rng)))


def made_table(schema: pa.Schema, rng: random.Random) -> dict[str, pa.Array]:
    """Columns of these types, of one length. Raises what pyarrow raises for a value that it cannot hold."""
    rows = rng.choice((0, 1, 2, 4, 50))
    return {
        field.name: pa.array([_value(field.type, rng, 0) for _ in range(rows)], field.type)
        for field in schema
    }


def _value(kind: pa.DataType, rng: random.Random, depth: int) -> Any:
    """A value of one of arrow's types."""
    if rng.random() < 0.05:
        return None
    if pa.types.is_list(kind):
        most = 4 if depth else 6
        return [_value(kind.value_type, rng, depth + 1) for _ in range(rng.randrange(most))]
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, rng, depth + 1) for field in kind}
    if pa.types.is_boolean(kind):
        return rng.random() < 0.5
    if pa.types.is_integer(kind):
        most = (1 << (kind.bit_width - 1)) - 1
        return rng.choice((0, 1, 2, 3, 7, min(100, most), most))
    if pa.types.is_floating(kind):
        return rng.choice((0.0, -0.5, -1.0, 1.0, float("nan"), float("inf"), 1e30))
    words = rng.choice(("", "x", "{}", "[]", '{"a": 1}', "0", "terminated", "stop", "\x1b[2J"))
    return words.encode() if pa.types.is_binary(kind) else words
