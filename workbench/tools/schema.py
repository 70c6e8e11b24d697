"""A JSON schema out of a Python signature and its docstring, and what is wrong with arguments that do not fit one.

Everything is decided when a tool is made: an annotation without a JSON type, or a schema by hand that is none, is an
error of whoever wrote the tool and is raised there. Arguments come from a policy, so nothing that they hold raises:
`mismatches` says in plain words what was expected and what came.

Two strictnesses that Python and JSON schema leave open: an argument that is not named is refused
(`additionalProperties: false`), and nothing is converted: "3", true and 3.0 are no integer... except that JSON has one
kind of number, so 3.0 is taken for 3 where an integer is expected, as the standard says, and handed over as `int`.
"""
from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError
from referencing.exceptions import Unresolvable

from workbench.errors import ToolError
from workbench.types import Task

MOST_COMPLAINTS = 5     # of one call
LONGEST_SHOWN = 80      # characters of a value in a complaint

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WORDS = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
          "null": "null", "object": "an object", "array": "a list"}


# ------------------------------------------------------------------------------------------------ from a signature


def parameters_of(function: Callable) -> dict[str, Any]:
    """The JSON schema of a function's arguments: types from its annotations, words from its docstring.

    Raises ToolError for what JSON cannot name: an argument without an annotation, one that can only be positional,
    `*args`, `**kwargs`, or a type with no counterpart."""
    where = f"tool {getattr(function, '__name__', function)!r}"
    hints = hints_of(function)
    said = argument_texts(inspect.getdoc(function) or "")
    properties, required = {}, []
    for name, parameter in inspect.signature(function).parameters.items():
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
        raise ToolError(f"tool {getattr(function, '__name__', function)!r}: its annotations cannot be read ({error}); use "
                        "types that its module imports") from None


def schema_of_type(hint: Any, where: str) -> dict[str, Any]:
    """The schema of one annotation; `where` begins the message of the ToolError for a type that JSON does not have."""
    if hint is Any:
        return {}
    if hint in _SCALARS:
        return {"type": _SCALARS[hint]}
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        words = [word for word in inner[1:] if isinstance(word, str)]
        return schema_of_type(inner[0], where) | ({"description": words[0]} if words else {})
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {"enum": [member.value for member in hint]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of_type(option, where) for option in inner]}
    if hint in (list, tuple) or origin in (list, Sequence) or (origin is tuple and inner[1:] == (...,)):
        return {"type": "array"} | ({"items": schema_of_type(inner[0], where)} if inner else {})
    if hint is dict or origin in (dict, Mapping):
        if inner and inner[0] is not str:
            raise ToolError(f"{where}: the keys of a JSON object are text, so write dict[str, ...] in place of {hint}")
        return {"type": "object"} | ({"additionalProperties": schema_of_type(inner[1], where)} if inner else {})
    raise ToolError(f"{where}: {hint!r} has no JSON type; use str, int, float, bool, list[...], dict[str, ...], "
                    "Literal[...], an Enum, or any of them | None; or hand the schema over as parameters=...")


def _is_json(value: Any) -> bool:
    try:
        return json.loads(json.dumps(value, allow_nan=False)) == value
    except (TypeError, ValueError, RecursionError):
        return False


# ------------------------------------------------------------------------------------------------ from a docstring


def summary_of(docstring: str) -> str:
    """The first paragraph, on one line."""
    return " ".join(docstring.strip().split("\n\n", 1)[0].split())


_GOOGLE = re.compile(r"\s*\*{0,2}(\w+)\s*(?:\([^()]*\))?\s*:\s*(\S.*)")
_HEADINGS = ("args:", "arguments:", "parameters:")


def argument_texts(docstring: str) -> dict[str, str]:
    """What a docstring says of each argument, on lines `name: words` or `name (type): words`."""
    found, current, depth = {}, "", 0
    for line in inspect.cleandoc(docstring).split("\n"):
        match = _GOOGLE.fullmatch(line)
        indent = len(line) - len(line.lstrip())
        if match and not (current and indent > depth):
            current, depth = match[1], indent
            found[current] = match[2].strip()
        elif current and line.strip() and indent > depth:
            found[current] += " " + line.strip()
        else:
            current = ""
    return found


# ------------------------------------------------------------------------------------------------ by hand


def checked_parameters(parameters: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A schema by hand, as a plain dict; ToolError where it is no JSON schema of an object."""
    try:
        schema = json.loads(json.dumps(parameters, allow_nan=False, default=dict))
    except (TypeError, ValueError, RecursionError) as error:
        raise ToolError(f"{where}: its parameters are no JSON ({error}); hand over a JSON schema as a dict") from None
    if not isinstance(schema, dict) or schema.get("type") != "object":
        raise ToolError(f'{where}: the parameters of a tool are a JSON schema of an object, so they say "type": '
                        f'"object"; got {shown(schema)}')
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.path)) or "the top"
        raise ToolError(f"{where}: its parameters are no JSON schema (draft 2020-12): at {place}: {error.message}") from None
    return {"type": "object", "properties": {}, "additionalProperties": False} | schema


# ------------------------------------------------------------------------------------------------ arguments


def validator_of(parameters: Mapping[str, Any]) -> Draft202012Validator:
    return Draft202012Validator(dict(parameters))


def mismatches(validator: Draft202012Validator, arguments: Any) -> str:
    """"" where the arguments fit, else what was expected and what came, a sentence each; never raises."""
    try:
        errors = sorted(validator.iter_errors(arguments), key=lambda error: [str(part) for part in error.path])
    except (RecursionError, Unresolvable, re.error) as error:
        return f"The arguments could not be checked ({type(error).__name__})."
    sentences = [_sentence(error) for error in errors[:MOST_COMPLAINTS]]
    more = len(errors) - len(sentences)
    return " ".join([*sentences, *([f"And {more} more."] if more else [])])


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.path)
    of = f'"{shown(place)}"' if place else "the arguments"
    if error.validator == "required":
        missing = [name for name in error.validator_value if name not in error.instance]
        return f"Missing: {', '.join(missing)}."
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = list(error.schema.get("properties", {}))
        extra = [shown(name) for name in error.instance if name not in known]
        return f"Not an argument: {', '.join(extra[:MOST_COMPLAINTS])}. There are: {', '.join(known) or 'none'}."
    if error.validator == "type":
        wanted = error.validator_value
        wanted = [wanted] if isinstance(wanted, str) else wanted
        return f"Expected {' or '.join(_WORDS.get(kind, kind) for kind in wanted)} for {of}, got {shown(error.instance)}."
    if error.validator == "enum":
        return f"Expected one of {shown(error.validator_value, 400)} for {of}, got {shown(error.instance)}."
    if error.validator in ("anyOf", "oneOf"):
        kinds = [_WORDS.get(option.get("type"), shown(option)) for option in error.validator_value
                 if isinstance(option, Mapping)]
        return f"Expected {' or '.join(kinds)} for {of}, got {shown(error.instance)}."
    rule = f"{error.validator}: {shown(error.validator_value)}"
    return f"{of[0].upper()}{of[1:]} breaks the rule {rule}; got {shown(error.instance)}."


def shown(value: Any, longest: int = LONGEST_SHOWN) -> str:
    """A value as JSON (a name as it is), short and printable."""
    if isinstance(value, str):
        text = value
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = f"a {type(value).__name__}"
    text = "".join(c if c.isprintable() else " " for c in text[:longest + 1])
    return text if len(text) <= longest else text[:longest] + "..."
