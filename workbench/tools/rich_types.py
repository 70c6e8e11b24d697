"""Annotations that JSON has no name for, by pydantic: its models, bounds (`Field(ge=1)`, `annotated_types.Ge(1)`), tuples,
sets, named tuples, dates, paths, UUIDs, decimals.

What `schema` can name itself never comes here, so pydantic is imported only by a tool that needs it. That `schema` names
plain annotations by itself has three reasons: on Python 3.11 pydantic refuses `typing.TypedDict`; it drops bare words in
`Annotated[str, "words"]`; and the texts that shipped policies were trained on have another order and no `$defs`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from workbench.values.errors import ToolError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

KNOWN = (
    "use str, int, float, bool, list[...], dict[str, ...], Literal[...], an Enum, a dataclass, a TypedDict, or any of "
    "them | None; or hand over parameters={...}"
)


def adapter_for(hint: Any, where: str) -> TypeAdapter:
    """The reader of an annotation's values. Raises ToolError, which `where` begins, for one that no JSON can be."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

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

    schemas, shared = TypeAdapter.json_schemas(
        [(name, "validation", adapter) for name, adapter in adapters.items()]
    )
    own = {name: without_titles(schema) for (name, _), schema in schemas.items()}
    return own, _named_without_titles(shared.get("$defs", {}))


def without_titles(schema: Any) -> Any:
    """Titles repeat the names, at the cost of the policy's context."""
    if isinstance(schema, list):
        return [without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs"):
            kept[key] = _named_without_titles(value)
        elif key in ("default", "enum", "const", "examples"):
            kept[key] = value
        else:
            kept[key] = without_titles(value)
    return kept


def _named_without_titles(schemas: Mapping[str, Any]) -> dict[str, Any]:
    return {name: without_titles(schema) for name, schema in schemas.items()}


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
        wrong = error.errors(include_url=False, include_context=False)
        return [
            (".".join(map(str, (name, *fault["loc"]))), fault["msg"], fault["input"])
            for fault in wrong
        ]
    except Exception as error:  # a validator of the author's own, or a value that no JSON can hold
        return [(name, f"{type(error).__name__}: {error}", value)]
    return []
