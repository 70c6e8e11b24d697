"""A JSON schema out of a Python signature and its docstring, or one written by hand, checked.

Everything is decided when a tool is made: an annotation without a JSON type, or a schema by hand that is none, is an
error of the tool's author and is raised there. An argument that is not named is refused
(`additionalProperties: false`). References stay inside their schema and must lead somewhere.

Whether arguments fit a schema is `workbench.envs.tools.arguments`' business.
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
from typing import Any

from workbench.types import Task
from workbench.types.errors import ToolError

LONGEST_SHOWN = 80      # characters of a value in a complaint
DEEPEST = 16            # objects in one another, in a type or a schema

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


# ------------------------------------------------------------------------------------------------ from a signature


def parameters_of(function: Callable, *, is_method: bool = False) -> dict[str, Any]:
    """The JSON schema of a function's arguments: types from its annotations, words from its docstring. An argument
    annotated `Task` is left out: no agent gives it. `is_method`: the first argument is the instance.

    Raises ToolError for what JSON cannot name: an argument without an annotation, one that can only be positional,
    `*args`, `**kwargs`, or a type with no counterpart."""
    where = f"tool {getattr(function, '__name__', function)!r}"
    arguments, hints = list(inspect.signature(function).parameters.items())[is_method:], hints_of(function)
    said = argument_texts(inspect.getdoc(function) or "", [name for name, _ in arguments])
    properties, required = {}, []
    for name, parameter in arguments:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(f"{where}: argument {name!r} cannot be given by name; tools are called by names, so write "
                            "plain arguments without *, ** or /")
        if name not in hints:
            raise ToolError(f"{where}: argument {name!r} has no type; annotate it, e.g. {name}: str")
        if hints[name] is Task:
            continue
        entry = schema_of_type(hints[name], f"{where}, argument {name!r}")
        if name in said:
            entry = entry | {"description": said[name]}
        if parameter.default is parameter.empty:
            required.append(name)
        elif _is_json(parameter.default):
            entry = entry | {"default": parameter.default}
        properties[name] = entry
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def hints_of(function: Callable) -> dict[str, Any]:
    """The annotations as types. Raises ToolError where they name what cannot be found."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except (NameError, TypeError, AttributeError) as error:
        raise ToolError(f"tool {getattr(function, '__name__', function)!r}: its annotations cannot be read ({error}); "
                        "use types that its module imports") from None


def schema_of_type(hint: Any, where: str, depth: int = 0) -> dict[str, Any]:
    """The schema of one annotation; `where` begins the message of the ToolError for a type that JSON does not have."""
    if depth > DEEPEST:
        raise ToolError(f"{where}: {hint!r} holds itself; a tool's arguments are not nested deeper than {DEEPEST}")
    origin, inner, depth = typing.get_origin(hint), typing.get_args(hint), depth + 1
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    if origin is typing.Annotated:
        words = [word for word in inner[1:] if isinstance(word, str)]
        return schema_of_type(inner[0], where, depth) | ({"description": words[0]} if words else {})
    if origin is typing.Literal and all(_is_json(value) for value in inner):
        return {"enum": list(inner)}
    if isinstance(hint, type) and issubclass(hint, Enum) and all(_is_json(member.value) for member in hint):
        return {"enum": [member.value for member in hint]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(option, where, depth) for option in inner]}
    if hint is list or origin in (list, Sequence):
        return {"type": "array"} | ({"items": schema_of_type(inner[0], where, depth)} if inner else {})
    if hint is dict or origin in (dict, Mapping):
        if inner and inner[0] is not str:
            raise ToolError(f"{where}: the keys of a JSON object are text, so write dict[str, ...] in place of {hint}")
        return {"type": "object"} | ({"additionalProperties": schema_of_type(inner[1], where, depth)} if inner else {})
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return _schema_of_fields(hint, where, depth)
    raise ToolError(f"{where}: {hint!r} has no JSON type; use str, int, float, bool, list[...], dict[str, ...], "
                    "Literal[...], an Enum, a dataclass, or any of them | None; or hand over parameters={...}")


def _schema_of_fields(hint: type, where: str, depth: int) -> dict[str, Any]:
    hints, fields = hints_of(hint), [field for field in dataclasses.fields(hint) if field.init]
    return {
        "type": "object",
        "properties": {field.name: schema_of_type(hints[field.name], f"{where}.{field.name}", depth)
                       for field in fields},
        "required": [field.name for field in fields
                     if field.default is field.default_factory is dataclasses.MISSING],
        "additionalProperties": False,
    }


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


# ------------------------------------------------------------------------------------------------ from a docstring


_LINE = re.compile(r"""
    [-*]?\s*
    (?: :param\s+ (?:[^:\s]+\s+)? (?P<sphinx>\w+) \s*:\s*      # :param query: words    :param str query: words
      | [`*]{0,2}(?P<name>\w+)[`*]{0,2}
        (?: \s*\([^()]*\)\s*:\s* | \s*:\s* | \s{2,} )           # query: words    query (str): words    query    words
    )
    (?P<words>.*)
""", re.VERBOSE)
_UNDERLINE = re.compile(r"\s*-{3,}\s*")


def summary_of(docstring: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(docstring.strip().split("\n\n", 1)[0].split())


def argument_texts(docstring: str, names: Sequence[str]) -> dict[str, str]:
    """What a docstring says of each of these arguments, on a line of its own (and the deeper ones after it). Google's
    style, Sphinx's, this project's columns, and NumPy's, where the type stands on the line and the words below it."""
    lines = inspect.cleandoc(docstring).split("\n")
    numpy = any(_UNDERLINE.fullmatch(line) for line in lines)
    found, current, depth = {}, "", 0
    for line in lines:
        match, indent = _LINE.fullmatch(line.strip()), len(line) - len(line.lstrip())
        name = (match["sphinx"] or match["name"]) if match else ""
        if name in names and not (current and indent > depth):
            current, depth = name, indent
            found[current] = "" if numpy else match["words"].strip()
        elif current and line.strip() and indent > depth:
            found[current] = f"{found[current]} {line.strip()}".strip()
        else:
            current = ""
    return {name: words for name, words in found.items() if words}


# ------------------------------------------------------------------------------------------------ by hand


def checked_parameters(parameters: Any, where: str) -> dict[str, Any]:
    """A schema by hand, as a plain dict; ToolError where it is no JSON schema of an object."""
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import SchemaError

    try:
        schema = json.loads(json.dumps(parameters, allow_nan=False, default=_as_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"{where}: its parameters are no JSON ({error}); hand over a JSON schema as a dict") from None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ToolError(f'{where}: the parameters of a tool are a JSON schema of an object, so they say "type": '
                        f'"object"; got {shown(schema)}')
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.path)) or "the top"
        raise ToolError(f"{where}: its parameters are no JSON schema (draft 2020-12): at {place}: "
                        f"{shown(error.message, 200)}") from None
    for reference in _references(schema):
        _check_reference(reference, schema, where)
    return {"type": "object", "properties": {}} | ({} if "additionalProperties" in schema or "$ref" in schema else
                                                   {"additionalProperties": False}) | schema


def _as_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} is a {type(value).__name__}")


def _references(schema: Any) -> Iterator[Any]:
    if isinstance(schema, dict):
        yield from (value for name, value in schema.items() if name in ("$ref", "$dynamicRef"))
        yield from (each for value in schema.values() for each in _references(value))
    elif isinstance(schema, list):
        yield from (each for value in schema for each in _references(value))


def _check_reference(reference: Any, schema: dict[str, Any], where: str) -> None:
    """A reference leads to a place in the same schema: nothing is fetched from anywhere."""
    place: Any = schema
    steps = reference.split("/")[1:] if isinstance(reference, str) and re.match(r"#(/|$)", reference) else [None]
    for step in steps:
        step = step.replace("~1", "/").replace("~0", "~") if step is not None else None
        if isinstance(place, list) and (step or "").isdecimal() and int(step) < len(place):
            place = place[int(step)]
        elif isinstance(place, dict) and step in place:
            place = place[step]
        else:
            raise ToolError(f"{where}: its parameters refer to {shown(reference)}, which is no place in them; a $ref "
                            "is written #/$defs/NAME and stays inside the schema")


# ------------------------------------------------------------------------------------------------ words


def shown(value: Any, longest: int = LONGEST_SHOWN) -> str:
    """A value as JSON (text as it is), short and printable."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else " " for c in text[:longest + 1])
    return text if len(text) <= longest else text[:longest] + "..."
