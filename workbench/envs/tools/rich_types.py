"""Annotations that JSON has no name for, by pydantic: its models, bounds (`Field(ge=1)`, `annotated_types.Ge(1)`), tuples,
sets, named tuples, dates, paths, UUIDs, decimals.

What `schema` can name itself never comes here, so pydantic is imported only by a tool that needs it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.types.errors import ToolError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KNOWN = (
    "use str, int, float, bool, list[...], dict[str, ...], Literal[...], an Enum, a dataclass, a TypedDict, or any of "
    "them | None; or hand over parameters={...}"
)


def adapter_for(hint: Any, where: str) -> TypeAdapter:
    """What reads values of an annotation. Raises ToolError, which `where` begins, for one that no JSON can be."""
    try:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError
    except ImportError:
        raise ToolError(
            f"{where}: {hint!r} has no JSON type that is known without pydantic, which also knows its own "
            f"models, Field(ge=...) and other bounds, tuples, sets, dates, paths: pip install "
            f"'agent-rl-workbench[tools]'; or {KNOWN}"
        ) from None
    try:
        adapter = TypeAdapter(hint)
        adapter.json_schema()
        return adapter
    except (PydanticUserError, TypeError, ValueError, NameError) as error:
        reason = str(error).split("\n", 1)[0]
        raise ToolError(
            f"{where}: {hint!r} has no JSON type; {KNOWN} (pydantic says: {reason})"
        ) from None


def schemas_of(
    adapters: Mapping[str, TypeAdapter],
) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """The schema of each, and the definitions that they refer to ("#/$defs/NAME"), a name for each."""
    from pydantic import TypeAdapter

    found, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()]
    )
    return (
        {name: without_titles(schema) for (name, _), schema in found.items()},
        {name: without_titles(schema) for name, schema in shared.get("$defs", {}).items()},
    )


def without_titles(schema: Any) -> Any:
    """Titles repeat the names, at the cost of the policy's context."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: {name: without_titles(each) for name, each in value.items()}
        if key in ("properties", "$defs")
        else value
        if key in ("default", "enum", "const", "examples")
        else without_titles(value)
        for key, value in schema.items()
        if key != "title" or not isinstance(value, str)
    }


def is_field(value: Any) -> bool:
    """Whether an argument's default is a `Field(...)`, which holds the default and the bounds."""
    fields = sys.modules.get("pydantic.fields")  # not there: nobody has made one
    return fields is not None and isinstance(value, fields.FieldInfo)


def read(adapter: TypeAdapter, value: Any) -> Any:
    """A JSON value as the annotation says. Raises pydantic's ValidationError, or what a validator raises."""
    return adapter.validate_json(json.dumps(value))


def complaints(adapter: TypeAdapter, name: str, value: Any) -> list[tuple[str, str, Any]]:
    """(place, what was wrong, what came there) of a value that cannot be read; [] where it can. Never raises."""
    from pydantic import ValidationError

    try:
        read(adapter, value)
    except ValidationError as error:
        return [
            (".".join(map(str, (name, *each["loc"]))), each["msg"], each["input"])
            for each in error.errors(include_url=False, include_context=False)
        ]
    except Exception as error:  # a validator of the author's own, or a value that no JSON can hold
        return [(name, f"{type(error).__name__}: {error}", value)]
    return []
