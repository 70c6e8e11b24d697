"""A tool's JSON schema out of a function's signature and docstring, and what its arguments are in Python."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.envs.tools.rich_types import is_field, schemas_of
from workbench.envs.tools.schema import (
    adapter_of,
    argument_texts,
    hints_of,
    is_annotated,
    is_json,
    schema_of_type,
)
from workbench.types import Task
from workbench.types.errors import ToolError

if TYPE_CHECKING:
    from pydantic import TypeAdapter


def parameters_of(function: Callable, *, is_method: bool = False) -> dict[str, Any]:
    """The JSON schema of a function's arguments: types from its annotations, words from its docstring. An argument
    annotated `Task` is left out: no agent gives it. `is_method`: the first argument is the instance.

    Raises ToolError for what JSON cannot name: an argument without an annotation, one that can only be positional,
    `*args`, `**kwargs`, or a type with no counterpart."""
    where = f"tool {getattr(function, '__name__', function)!r}"
    parameters = list(inspect.signature(function).parameters.values())[is_method:]
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
    found = arguments_of(function, is_method=is_method)
    said = argument_texts(
        inspect.getdoc(function) or "", [parameter.name for parameter in parameters]
    )
    rich, definitions = {}, {}
    if adapters := {
        name: argument.adapter for name, argument in found.items() if argument.adapter is not None
    }:
        rich, definitions = schemas_of(adapters)
    properties, required = {}, []
    for name, argument in found.items():
        entry = (
            rich[name]
            if name in rich
            else schema_of_type(argument.hint, f"{where}, argument {name!r}")
        )
        if name in said:
            entry = entry | {"description": said[name]}
        if argument.default is inspect.Parameter.empty:
            required.append(name)
        elif is_json(argument.default):
            entry = entry | {"default": argument.default}
        properties[name] = entry
    shared = {"$defs": definitions} if definitions else {}
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    } | shared


class Argument(NamedTuple):
    """An argument of a function: its annotation, what reads its values where JSON has no name for it, and its default,
    `inspect.Parameter.empty` where it must be given."""

    hint: Any
    adapter: TypeAdapter | None
    default: Any


def arguments_of(
    function: Callable, *, is_method: bool = False, strict: bool = True
) -> dict[str, Argument]:
    """What an agent gives of a function's annotated arguments. Raises ToolError for a type that no JSON can be; `strict`
    False: such a one is handed its values as they come (a schema by hand says what they are)."""
    where, hints = f"tool {getattr(function, '__name__', function)!r}", hints_of(function)
    found = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[is_method:]:
        if (
            name not in hints
            or hints[name] is Task
            or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ):
            continue
        hint, default = hints[name], parameter.default
        if is_field(default):  # n: int = Field(3, ge=1)
            hint = typing.Annotated[hint, default]
            default = (
                parameter.empty
                if default.is_required()
                else default.get_default(call_default_factory=True)
            )
        elif default is parameter.empty:
            default = _default_within(hint)
        try:
            adapter = adapter_of(hint, f"{where}, argument {name!r}")
        except ToolError:
            if strict:
                raise
            adapter = None
        found[name] = Argument(hint, adapter, default)
    return found


def _default_within(hint: Any) -> Any:
    """Of `Annotated[int, Field(default=3)]`: it is no default to Python, but is said to be one."""
    inside = (
        [each for each in typing.get_args(hint)[1:] if is_field(each)] if is_annotated(hint) else []
    )
    known = [each for each in inside if not each.is_required()]
    return known[0].get_default(call_default_factory=True) if known else inspect.Parameter.empty
