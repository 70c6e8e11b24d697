"""A tool's JSON schema out of a function's signature and docstring, and what its arguments are in Python."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.tools.rich_types import is_field, schemas_of
from workbench.tools.schema import (
    adapter_of,
    argument_texts,
    hints_of,
    is_annotated,
    is_json,
    schema_of_type,
)
from workbench.values import Task
from workbench.values.errors import ToolError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def parameters_of(function: Callable, *, is_method: bool = False) -> dict[str, Any]:
    """The JSON schema of a function's arguments: types from its annotations, words from its docstring. An argument
    annotated `Task` is left out: no agent gives it. `is_method`: the first argument is the instance.

    Raises ToolError for what JSON cannot name: an argument without an annotation, one that can only be positional,
    `*args`, `**kwargs`, or a type with no counterpart."""
    where = f"tool {getattr(function, '__name__', function)!r}"
    names = _names_of(function, is_method, where)
    arguments = arguments_of(function, is_method=is_method)
    texts = argument_texts(inspect.getdoc(function) or "", names)
    adapters = {
        name: argument.adapter
        for name, argument in arguments.items()
        if argument.adapter is not None
    }
    rich, definitions = schemas_of(adapters) if adapters else ({}, {})
    properties = {}
    required = []
    for name, argument in arguments.items():
        if name in rich:
            entry = rich[name]
        else:
            entry = schema_of_type(argument.hint, f"{where}, argument {name!r}")
        if name in texts:
            entry = entry | {"description": texts[name]}
        if argument.default is inspect.Parameter.empty:
            required.append(name)
        elif is_json(argument.default):
            entry = entry | {"default": argument.default}
        properties[name] = entry
    schema = {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }
    if definitions:
        schema["$defs"] = definitions
    return schema


def _names_of(function: Callable, is_method: bool, where: str) -> list[str]:
    """The names of a function's arguments. Raises ToolError for one that cannot be given by name, or has no type."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[is_method:]
    except (TypeError, ValueError) as error:  # a class or a part of one that is written in C
        raise ToolError(
            f"{where}: Python does not know its arguments ({error}); wrap it in a function with types"
        ) from error
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolError(
                f"{where}: argument {parameter.name!r} cannot be given by name; tools are called by names, so "
                "write plain arguments without *, ** or /"
            )
        if parameter.name not in hints_of(function):
            raise ToolError(
                f"{where}: argument {parameter.name!r} has no type; annotate it, e.g. {parameter.name}: str"
            )
    return [parameter.name for parameter in parameters]


class Argument(NamedTuple):
    """An argument of a function: its annotation, what reads its values where JSON has no name for it, and its default,
    `inspect.Parameter.empty` where it must be given."""

    hint: Any
    adapter: TypeAdapter | None
    default: Any


def arguments_of(
    function: Callable, *, is_method: bool = False, strict: bool = True
) -> dict[str, Argument]:
    """The annotated arguments of a function that an agent gives. Raises ToolError for a type that no JSON can be; `strict`
    False: such a one is handed its values as they come (a schema by hand says what they are)."""
    where = f"tool {getattr(function, '__name__', function)!r}"
    hints = hints_of(function)
    arguments = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[is_method:]:
        is_gathered = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if name not in hints or hints[name] is Task or is_gathered:
            continue
        hint = hints[name]
        default = parameter.default
        if is_field(default):  # n: int = Field(3, ge=1)
            hint = typing.Annotated[hint, default]
            default = _default_in(default)
        elif default is parameter.empty:
            default = _default_within(hint)
        try:
            adapter = adapter_of(hint, f"{where}, argument {name!r}")
        except ToolError:
            if strict:
                raise
            adapter = None
        arguments[name] = Argument(hint, adapter, default)
    return arguments


def _default_within(hint: Any) -> Any:
    """The default in `Annotated[int, Field(default=3)]`, which Python does not take for one."""
    if is_annotated(hint):
        for entry in typing.get_args(hint)[1:]:
            if is_field(entry) and not entry.is_required():
                return _default_in(entry)
    return inspect.Parameter.empty


def _default_in(field: Any) -> Any:
    """The default that a `Field(...)` holds, `inspect.Parameter.empty` where it holds none."""
    if field.is_required():
        return inspect.Parameter.empty
    return field.get_default(call_default_factory=True)
