"""What is wrong with arguments that do not fit a tool's schema, and what they are in Python where they do.

Arguments come from a policy, so nothing that they hold raises: `mismatches` says in plain words what was expected and
what came. Nothing is converted on the way: "3" and true are no integer. JSON has one kind of number, so 3.0 is an
integer where one is expected, as the standard says, and is handed over as one.

Schemas may come from elsewhere, so what could run away is shown to the agent and left to the tool to check: patterns
(backtracking). Those of a typed function are pydantic's, whose patterns cannot.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any

from workbench.tools.action_format import shown
from workbench.tools.schema import fields_of, has_fields, schema_of_type

# Imported where something is checked: with Jupyter's packages around it takes a second.
if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from jsonschema.exceptions import ValidationError

MOST_COMPLAINTS = 5  # of one call
MOST_WORDS = 200  # characters of what a schema raises
MOST_NAMES = 50  # arguments of a tool that a complaint names

_WORDS = {
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "null",
    "object": "an object",
    "array": "a list",
}
_RUNAWAY = ("pattern", "patternProperties")
_RULES = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "more than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "uniqueItems": "no item twice",
}


def from_json(hint: Any, value: Any) -> Any:
    """A checked argument as its annotation says: members of an Enum, instances of a dataclass, 3.0 as 3 for an int."""
    origin = typing.get_origin(hint)
    inner = typing.get_args(hint)
    if origin is typing.Annotated:
        return from_json(inner[0], value)
    if origin in (typing.Union, types.UnionType):
        for option in inner:
            if not mismatches(validator_of(schema_of_type(option, "")), value):
                return from_json(option, value)
        return value
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(value)
    if hint is int and isinstance(value, float):
        return int(value)
    if origin in (list, Sequence) and inner and isinstance(value, list):
        return [from_json(inner[0], item) for item in value]
    if origin in (dict, Mapping) and inner and isinstance(value, dict):
        return {name: from_json(inner[1], item) for name, item in value.items()}
    if isinstance(value, dict) and has_fields(hint):
        annotations = {name: annotation for name, (annotation, _) in fields_of(hint).items()}
        return hint(**{name: from_json(annotations[name], item) for name, item in value.items()})
    return value


def validator_of(parameters: Mapping[str, Any]) -> Draft202012Validator:
    """A validator of arguments: the schema without rules that could run away on them."""
    return _validator_class()(_bounded(dict(parameters)))


@cache
def _validator_class() -> type[Draft202012Validator]:
    """The standard's, but for `uniqueItems`, which takes the square of a list's length there."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(Draft202012Validator, {"uniqueItems": _unique_items})


def _unique_items(
    validator: Any, wanted: bool, items: Any, schema: Any
) -> Iterator[ValidationError]:
    from jsonschema.exceptions import ValidationError

    if wanted and isinstance(items, list):
        distinct = {_as_one_text(item) for item in items}
        if len(distinct) < len(items):
            yield ValidationError("an item stands twice")


def _as_one_text(value: Any) -> str:
    """Equal for equal JSON values: 1 and 1.0 are."""

    def plain(item: Any) -> Any:
        if isinstance(item, dict):
            return {name: plain(inner) for name, inner in item.items()}
        if isinstance(item, list):
            return [plain(inner) for inner in item]
        return int(item) if isinstance(item, float) and item.is_integer() else item

    return json.dumps(plain(value), sort_keys=True)


def _bounded(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bounded(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = _RUNAWAY
    if "patternProperties" in schema:
        left_out = (*_RUNAWAY, "additionalProperties")
    bounded = {}
    for name, value in schema.items():
        if name in left_out:
            continue
        if name in ("properties", "$defs") and isinstance(value, dict):
            # What is called like that in them is an argument's name, not a rule.
            bounded[name] = {key: _bounded(item) for key, item in value.items()}
        elif name in ("enum", "const", "default"):
            bounded[name] = value
        else:
            bounded[name] = _bounded(value)
    return bounded


def mismatches(validator: Draft202012Validator, arguments: Any) -> str:
    """ "" where the arguments fit, else what was expected and what came, a sentence each; never raises."""
    try:
        errors = sorted(
            validator.iter_errors(arguments), key=lambda error: list(map(str, error.path))
        )
    except RecursionError:
        return "The arguments could not be checked: the tool's schema refers to itself without end."
    # Of a schema that anybody wrote: numbers no float holds, references in parts with a name.
    except Exception as error:
        return (
            "The arguments could not be checked by the tool's schema: "
            f"{shown(f'{type(error).__name__}: {error}', MOST_WORDS)}."
        )
    return together(_sentence(error) for error in errors)


def together(sentences: Iterable[str]) -> str:
    """Complaints as one text: each once, and not too many of them."""
    distinct = list(dict.fromkeys(sentences))
    words = distinct[:MOST_COMPLAINTS]
    if len(distinct) > MOST_COMPLAINTS:
        words.append(f"And {len(distinct) - MOST_COMPLAINTS} more.")
    return " ".join(words)


def _sentence(error: ValidationError) -> str:
    place = ".".join(str(part) for part in error.absolute_path)
    of = f'"{shown(place)}"' if place else "the arguments"
    came = shown(error.instance)
    rule = error.validator_value
    if error.validator == "required":
        missing = [name for name in rule if name not in error.instance]
        return f"Missing{f' in {of}' if place else ''}: {_names(missing)}."
    if error.validator == "additionalProperties" and rule is False:
        known = list(error.schema.get("properties", {}))
        extra = [shown(name) for name in error.instance if name not in known]
        what = "there" if place else "an argument"
        verb = "is" if len(known) == 1 else "are"
        return f"Not {what}: {', '.join(extra[:MOST_COMPLAINTS])}. There {verb}: {_names(known)}."
    if error.validator == "type":
        wanted = [rule] if isinstance(rule, str) else rule
        kinds = " or ".join(_WORDS.get(kind, kind) for kind in wanted)
        return f"Expected {kinds} for {of}, got {came}."
    if error.validator == "enum":
        values = ", ".join(shown(json.dumps(value)) for value in rule[:20])
        return f"Expected one of {values} for {of}, got {came}."
    if error.validator in ("anyOf", "oneOf"):
        nearest = _of_one_option(error)
        if nearest is not None:
            return _sentence(nearest)
        return f"Expected {' or '.join(map(_kind, rule))} for {of}, got {came}."
    if error.validator in _RULES:
        return f"Expected {_RULES[error.validator].format(shown(rule))} for {of}, got {came}."
    return f"{of[0].upper()}{of[1:]} breaks the rule {error.validator}: {shown(rule)}; got {came}."


def _names(names: Sequence[str]) -> str:
    """Names of arguments that a schema lists, which may be a stranger's: so many at most, and none
    acts in a terminal."""
    words = [
        name if name.isidentifier() and name.isascii() else shown(name)
        for name in names[:MOST_NAMES]
    ]
    if len(names) > MOST_NAMES:
        words.append(f"and {len(names) - MOST_NAMES:,} more")
    return ", ".join(words) or "none"


def _of_one_option(error: ValidationError) -> ValidationError | None:
    """The error of the only option whose kind the value has: 0 is a whole number, but less than 1."""
    options: dict[Any, list[ValidationError]] = {}
    for inner in error.context:
        options.setdefault(inner.relative_schema_path[0], []).append(inner)
    of_kind = [errors for errors in options.values() if not any(map(_is_of_another_kind, errors))]
    return of_kind[0][0] if len(of_kind) == 1 else None


def _is_of_another_kind(error: ValidationError) -> bool:
    """Whether the value's own type is wrong, or a constant in it that tells the options apart."""
    deepest = {"type": 0, "const": 1, "enum": 1}.get(error.validator, -1)
    return len(error.path) <= deepest


def _kind(option: Any) -> str:
    if isinstance(option, Mapping) and isinstance(option.get("$ref"), str):
        return f"a {option['$ref'].rsplit('/', 1)[-1]}"
    named = option.get("type") if isinstance(option, Mapping) else None
    return _WORDS.get(named, shown(option)) if isinstance(named, str) else shown(option)
