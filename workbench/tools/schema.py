"""A JSON schema out of a Python signature and its docstring, and what is wrong with arguments that do not fit one.

Everything is decided when a tool is made: an annotation without a JSON type, or a schema by hand that is none, is an
error of whoever wrote the tool and is raised there. Arguments come from a policy, so nothing that they hold raises:
`mismatches` says in plain words what was expected and what came.

Two strictnesses that Python and JSON schema leave open: an argument that is not named is refused
(`additionalProperties: false`), and nothing is converted: "3" and true are no integer. JSON has one kind of number,
so 3.0 is an integer where one is expected, as the standard says, and is handed over as one.

Schemas may come from elsewhere, so what could run away is shown to the agent and left to the tool to check: patterns
(backtracking) and `uniqueItems` (quadratic). References stay inside their schema and must lead somewhere.
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

from workbench.errors import ToolError
from workbench.types import Task

if TYPE_CHECKING:  # imported where something is checked: with Jupyter's packages around it takes a second
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

MOST_COMPLAINTS = 5     # of one call
LONGEST_SHOWN = 80      # characters of a value in a complaint
DEEPEST = 16            # objects in one another, in a type or a schema

_SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_WORDS = {"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false",
          "null": "null", "object": "an object", "array": "a list"}
_RUNAWAY = ("pattern", "patternProperties", "uniqueItems")


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


def from_json(hint: Any, value: Any) -> Any:
    """A checked argument as its annotation says: members of an Enum, instances of a dataclass, 3.0 as 3 for an int."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return from_json(inner[0], value)
    if origin in (typing.Union, types.UnionType):
        fitting = (option for option in inner if not mismatches(validator_of(schema_of_type(option, "")), value))
        return from_json(next(fitting, None), value)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hint is int and isinstance(value, float):
        return int(value)
    if origin in (list, Sequence) and inner and isinstance(value, list):
        return [from_json(inner[0], item) for item in value]
    if origin in (dict, Mapping) and inner and isinstance(value, dict):
        return {name: from_json(inner[1], item) for name, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = hints_of(hint)
        return hint(**{name: from_json(hints[name], item) for name, item in value.items()})
    return value


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


# ------------------------------------------------------------------------------------------------ arguments


def validator_of(parameters: Mapping[str, Any]) -> Draft202012Validator:
    """What checks arguments: the schema without what could run away on them."""
    from jsonschema import Draft202012Validator

    return Draft202012Validator(_bounded(dict(parameters)))


def _bounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    # What is called like that in "properties" is an argument's name, not a rule.
    names = {name: {key: _bounded(item) for key, item in schema[name].items()}
             for name in ("properties", "$defs") if isinstance(schema.get(name), dict)}
    left_out = (*_RUNAWAY, "additionalProperties") if "patternProperties" in schema else _RUNAWAY
    return {name: names.get(name, value if name in ("enum", "const", "default") else _bounded(value))
            for name, value in schema.items() if name not in left_out}


def mismatches(validator: Draft202012Validator, arguments: Any) -> str:
    """"" where the arguments fit, else what was expected and what came, a sentence each; never raises."""
    try:
        errors = sorted(validator.iter_errors(arguments), key=lambda error: [str(part) for part in error.path])
    except RecursionError:
        return "The arguments could not be checked: the tool's schema refers to itself without end."
    sentences = list(dict.fromkeys(_sentence(error) for error in errors))
    more = len(sentences) - MOST_COMPLAINTS
    return " ".join([*sentences[:MOST_COMPLAINTS], *([f"And {more} more."] if more > 0 else [])])


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.path)
    of, came, rule = f'"{shown(place)}"' if place else "the arguments", shown(error.instance), error.validator_value
    if error.validator == "required":
        missing = [name for name in rule if name not in error.instance]
        return f"Missing{f' in {of}' if place else ''}: {', '.join(missing)}."
    if error.validator == "additionalProperties" and rule is False:
        known = list(error.schema.get("properties", {}))
        extra = [shown(name) for name in error.instance if name not in known]
        return (f"Not {'there' if place else 'an argument'}: {', '.join(extra[:MOST_COMPLAINTS])}. "
                f"There {'is' if len(known) == 1 else 'are'}: {', '.join(known) or 'none'}.")
    if error.validator == "type":
        wanted = [rule] if isinstance(rule, str) else rule
        return f"Expected {' or '.join(_WORDS.get(kind, kind) for kind in wanted)} for {of}, got {came}."
    if error.validator == "enum":
        return f"Expected one of {', '.join(shown(json.dumps(value)) for value in rule[:20])} for {of}, got {came}."
    if error.validator in ("anyOf", "oneOf"):
        return f"Expected {' or '.join(map(_kind, rule))} for {of}, got {came}."
    return f"{of[0].upper()}{of[1:]} breaks the rule {error.validator}: {shown(rule)}; got {came}."


def _kind(option: Any) -> str:
    named = option.get("type") if isinstance(option, Mapping) else None
    return _WORDS.get(named, shown(option)) if isinstance(named, str) else shown(option)


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
