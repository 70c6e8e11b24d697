"""Settings as JSON that another process makes equal ones of: classes and functions go by name, everything else by value.

No pickle: a value is named by its class and its fields, which are its only configuration, and built again on the other
side. So a worker needs neither the trainer's memory nor its trust.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from workbench.basics import plugins
from workbench.basics.canonical_json import plain
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError, WorkbenchError


def describe(value: Any, where: str, otherwise: str) -> Any:
    """`value` as JSON that `rebuild` makes an equal one of. `where` names it in errors, `otherwise` is what one can do
    about it other than fixing it.

    Dataclasses go by class and fields; functions and classes by name. Raises EnvError for what a worker could not
    import, and for fields that are no settings, saying what to do.
    """
    if is_dataclass(value) and not isinstance(value, type):
        settings = {
            f.name: describe(getattr(value, f.name), f"{where}.{f.name}", otherwise)
            for f in fields(value)
            if f.init
        }
        return {"class": name_of(type(value), where, otherwise), "fields": settings}
    if isinstance(value, (type, types.FunctionType)):
        return {"name": name_of(value, where, otherwise)}
    if isinstance(value, tuple):
        return {"tuple": [describe(item, where, otherwise) for item in value]}
    if isinstance(value, list):
        return [describe(item, where, otherwise) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {
            "dict": {
                key: describe(item, f"{where}.{key}", otherwise) for key, item in value.items()
            }
        }
    try:
        return plain(value, where)
    except WorkbenchError as error:
        raise EnvError(
            f"worker processes are handed {where} as settings, but {error}. Keep settings in fields and make "
            f"everything else where it is used, or {otherwise}"
        ) from error


def describe_task(task: Task) -> dict[str, Any]:
    """The arguments by which `Task` makes an equal one. Its payload and metadata are JSON already."""
    return {
        "id": task.id,
        "env": task.env,
        "task_seed": task.task_seed,
        "payload": task.payload,
        "metadata": task.metadata,
    }


def name_of(thing: Any, where: str, otherwise: str) -> str:
    """ "module:name" of a class or function, by which another process can import it; EnvError where none can."""
    name = plugins.name_of(thing)
    if reason := plugins.not_importable(name):
        raise EnvError(f"{where} is handed to worker processes, but {reason}, or {otherwise}")
    return name


def rebuild(described: Any) -> Any:
    if isinstance(described, list):
        return [rebuild(item) for item in described]
    if not isinstance(described, dict):
        return described
    if "class" in described:
        settings = {name: rebuild(item) for name, item in described["fields"].items()}
        return import_named(described["class"])(**settings)
    if "name" in described:
        return import_named(described["name"])
    if "tuple" in described:
        return tuple(rebuild(item) for item in described["tuple"])
    return {key: rebuild(item) for key, item in described["dict"].items()}


def import_path() -> list[str]:
    """Where this process looks for modules now, in words that mean the same in another one's folder."""
    return [str(entry) or os.getcwd() for entry in sys.path]


def import_named(name: str) -> Any:
    """Import what "module:name" names; EnvError where this process cannot find it."""
    try:
        return plugins.load_named(name, "code")
    except ConfigError as error:
        raise EnvError(
            f"in a worker process, which sees the same sys.path and folder as the run, {error}"
        ) from error
