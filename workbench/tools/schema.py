"""A JSON schema out of an annotation, what a docstring says of arguments, or a schema written by hand, checked.

Everything is decided when a tool is made: an annotation without a JSON type, or a schema by hand that is none, is an
error of the tool's author and is raised there. An argument that is not named is refused
(`additionalProperties: false`). References stay inside their schema and must lead somewhere. An argument whose
annotation JSON cannot name is pydantic's as a whole (`rich_types`).

Whether arguments fit a schema is `workbench.tools.arguments`' business.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from workbench.tools.action_format import shown
from workbench.tools.rich_types import KNOWN, adapter_for
from workbench.values.errors import ToolError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

MOST_SCHEMA = (
    200_000  # characters of a schema by hand, each part of which is checked when the tool is made
)
DEEPEST = 16  # objects in one another, in a type or a schema

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


# ------------------------------------------------------------------------------------------------ from an annotation


def hints_of(function: Callable) -> dict[str, Any]:
    """The annotations as types. Raises ToolError where they name what cannot be found."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ToolError(
            f"tool {getattr(function, '__name__', function)!r}: its annotations cannot be read ({error}); "
            "use types that its module imports"
        ) from None


def adapter_of(hint: Any, where: str) -> TypeAdapter | None:
    """None for an annotation that JSON can name, else what reads its values."""
    try:
        schema_of_type(hint, where)
        return None
    except _Unnamed:
        return adapter_for(hint, where)


class _Unnamed(ToolError):
    """An annotation that JSON has no name for."""


def schema_of_type(hint: Any, where: str, depth: int = 0) -> dict[str, Any]:
    """The schema of one annotation; `where` begins the message of the ToolError for a type that JSON does not have."""
    if depth > DEEPEST:
        raise ToolError(
            f"{where}: {hint!r} holds itself; a tool's arguments are not nested deeper than {DEEPEST}"
        )
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    depth += 1
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if is_annotated(hint):
        description = _words_in(inner[1:])
        if description is None:
            raise _Unnamed(f"{where}: {hint!r} has no JSON type; {KNOWN}")
        return schema_of_type(inner[0], where, depth) | {"description": description}
    values = _values_of(hint, origin, inner)
    if values is not None and all(map(is_json, values)):
        return {"enum": values}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(option, where, depth) for option in inner]}
    if hint is list or origin in (list, Sequence):
        return _schema_with("array", "items", inner[:1], where, depth)
    if hint is dict or origin in (dict, Mapping):
        if inner and inner[0] is not str:
            raise ToolError(
                f"{where}: the keys of a JSON object are text, so write dict[str, ...] in place of {hint}"
            )
        return _schema_with("object", "additionalProperties", inner[1:], where, depth)
    if has_fields(hint):
        return _schema_of_fields(hint, where, depth)
    if hint in (bytes, bytearray):
        raise ToolError(f"{where}: {hint!r} has no JSON type; text is str; {KNOWN}")
    raise _Unnamed(f"{where}: {hint!r} has no JSON type; {KNOWN}")


def _words_in(metadata: Sequence[Any]) -> str | None:
    """The first words of `Annotated`'s metadata; None where something else stands in it."""
    words = [
        entry if isinstance(entry, str) else getattr(entry, "documentation", None)
        for entry in metadata
    ]
    return words[0] if all(isinstance(entry, str) for entry in words) else None


def _values_of(hint: Any, origin: Any, inner: Sequence[Any]) -> list[Any] | None:
    """The values that an annotation lists, as `Literal` and an `Enum` do; None for any other."""
    if origin is typing.Literal:
        return list(inner)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return [member.value for member in hint]
    return None


def _schema_with(
    kind: str, key: str, inner: Sequence[Any], where: str, depth: int
) -> dict[str, Any]:
    """A list or an object; `inner`: the annotation of what is in it, if it has one."""
    schema: dict[str, Any] = {"type": kind}
    if inner:
        schema[key] = schema_of_type(inner[0], where, depth)
    return schema


def is_annotated(hint: Any) -> bool:
    """Whether it is `Annotated[...]`."""
    return typing.get_origin(hint) is typing.Annotated


def has_fields(hint: Any) -> bool:
    """Whether it is a TypedDict or a dataclass: none of pydantic's, which check their values."""
    is_dataclass = isinstance(hint, type) and dataclasses.is_dataclass(hint)
    is_plain = is_dataclass and not hasattr(hint, "__pydantic_validator__")
    return is_plain or typing.is_typeddict(hint)


def fields_of(hint: Any) -> dict[str, tuple[Any, bool]]:
    """Fields of a dataclass or a TypedDict: name -> (its annotation, whether it must be given)."""
    hints = hints_of(hint)
    if typing.is_typeddict(hint):
        return {
            name: _without_qualifiers(inner, name in hint.__required_keys__)
            for name, inner in hints.items()
        }
    fields = {}
    for field in dataclasses.fields(hint):
        if field.init:
            is_required = field.default is field.default_factory is dataclasses.MISSING
            fields[field.name] = (hints[field.name], is_required)
    return fields


def _without_qualifiers(hint: Any, required: bool) -> tuple[Any, bool]:
    """`NotRequired[int]` as (int, False)."""
    while (origin := typing.get_origin(hint)) in (typing.Required, typing.NotRequired):
        hint = typing.get_args(hint)[0]
        required = origin is typing.Required
    return hint, required


def _schema_of_fields(hint: type, where: str, depth: int) -> dict[str, Any]:
    properties = {}
    required = []
    for name, (inner, is_required) in fields_of(hint).items():
        properties[name] = schema_of_type(inner, f"{where}.{name}", depth)
        if is_required:
            required.append(name)
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def is_json(value: Any) -> bool:
    """Whether JSON gives the value back as it was."""
    try:
        return json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


# ------------------------------------------------------------------------------------------------ from a docstring


_LINE = re.compile(
    r"""
    [-*]?\s*
    (?: :param\s+ (?:[^:\s]+\s+)? (?P<sphinx>\w+) \s*:\s*      # :param query: words    :param str query: words
      | [`*]{0,2}(?P<name>\w+)[`*]{0,2}
        (?: \s*\([^()]*\)\s*:\s* | \s*:\s* | \s{2,} )           # query: words    query (str): words    query    words
    )
    (?P<words>.*)
""",
    re.VERBOSE,
)
_UNDERLINE = re.compile(r"\s*-{3,}\s*")


def summary_of(docstring: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(docstring.strip().split("\n\n", 1)[0].split())


def argument_texts(docstring: str, names: Sequence[str]) -> dict[str, str]:
    """Read a docstring's words about each of these arguments, on a line of its own (and the deeper ones after it). Google's
    style, Sphinx's, this project's columns, and NumPy's, where the type stands on the line and the words below it."""
    lines = inspect.cleandoc(docstring).split("\n")
    numpy = any(_UNDERLINE.fullmatch(line) for line in lines)
    texts: dict[str, str] = {}
    current = ""
    depth = 0
    for line in lines:
        match = _LINE.fullmatch(line.strip())
        indent = len(line) - len(line.lstrip())
        name = (match["sphinx"] or match["name"]) if match else ""
        if name in names and not (current and indent > depth):
            current = name
            depth = indent
            texts[current] = "" if numpy else match["words"].strip()
        elif current and line.strip() and indent > depth:
            texts[current] = f"{texts[current]} {line.strip()}".strip()
        else:
            current = ""
    return {name: words for name, words in texts.items() if words}


# ------------------------------------------------------------------------------------------------ by hand


def checked_parameters(parameters: Any, where: str) -> dict[str, Any]:
    """A schema by hand, as a plain dict; ToolError where it is no JSON schema of an object."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        text = json.dumps(parameters, allow_nan=False, default=_as_plain)
        schema = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(
            f"{where}: its parameters are no JSON ({error}); hand over a JSON schema as a dict"
        ) from None
    if len(text) > MOST_SCHEMA:
        raise ToolError(
            f"{where}: its parameters are a schema of {len(text):,} characters, and {MOST_SCHEMA:,} are "
            "the most that is read; what is so long does not fit into a prompt either"
        )
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ToolError(
            f'{where}: the parameters of a tool are a JSON schema of an object, so they say "type": '
            f'"object"; got {shown(schema)}'
        )
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.path)) or "the top"
        raise ToolError(
            f"{where}: its parameters are no JSON schema (draft 2020-12): at {place}: "
            f"{shown(error.message, 200)}"
        ) from None
    for reference in _references(schema):
        _check_reference(reference, schema, where)
    defaults: dict[str, Any] = {"type": "object", "properties": {}}
    if "additionalProperties" not in schema and "$ref" not in schema:
        defaults["additionalProperties"] = False
    return defaults | schema


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _references(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name in ("$ref", "$dynamicRef"))
        for value in schema.values():
            yield from _references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from _references(value)


def _check_reference(reference: Any, schema: dict[str, Any], where: str) -> None:
    """A reference leads to a place in the same schema: nothing is fetched from anywhere."""
    place: Any = schema
    steps: list[str | None] = [None]
    if isinstance(reference, str) and re.match(r"#(/|$)", reference):
        steps = reference.split("/")[1:]
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~") if step is not None else None
        if isinstance(place, list) and (step or "").isdecimal() and int(step) < len(place):
            place = place[int(step)]
        elif isinstance(place, dict) and step in place:
            place = place[step]
        else:
            raise ToolError(
                f"{where}: its parameters refer to {shown(reference)}, which does not exist in them; a $ref "
                "is written #/$defs/NAME and stays inside the schema"
            )
