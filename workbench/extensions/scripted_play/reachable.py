"""Every object that can change and that can be reached from another one; and what it is now, to compare with later."""

from __future__ import annotations

import logging
import pickle
import random
import threading
import types
import weakref
from collections import deque
from dataclasses import is_dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

MOST_PARTS = 20_000  # objects that are looked at
PLAIN = (type(None), bool, int, float, complex, str, bytes)
FIXED = (
    *PLAIN,
    type,
    types.ModuleType,
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    Enum,
    np.generic,
    np.dtype,
    range,
    property,
    staticmethod,
    classmethod,
    # Made to be shared: what is logged and who waits for whom is nobody's state.
    logging.Filterer,
    logging.Formatter,
    logging.LoggerAdapter,
    type(threading.Lock()),
    type(threading.RLock()),
    threading.Condition,
    threading.Semaphore,
    weakref.finalize,
    weakref.ref,
)
FIXED_CONTAINERS = (tuple, frozenset, types.MappingProxyType)
CONTAINERS = (list, dict, set, bytearray, deque)
SHARED_BY_CLASSES = (*CONTAINERS, np.ndarray, np.random.Generator, random.Random)


def parts(root: Any, *, classes: bool = True) -> dict[int, tuple[str, Any]]:
    """Every object that can change and that can be reached from `root`: id -> (path, object). Of its classes, too
    (`classes`): what stands in a class is shared by all. Numbers, texts, functions and frozen values are passed by."""
    reached: dict[int, tuple[str, Any]] = {}
    seen: set[int] = set()
    queue: deque[tuple[str, Any]] = deque([("", root)])
    while queue and len(seen) < MOST_PARTS:
        path, value = queue.popleft()
        if isinstance(value, FIXED) or id(value) in seen:
            continue
        seen.add(id(value))
        if _can_change(value):
            reached[id(value)] = (path, value)
        queue.extend(_held_by(value, path))
        if classes:
            queue.extend(_of_classes(value))
    return reached


def _can_change(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.flags.writeable
    if is_dataclass(value) and type(value).__dataclass_params__.frozen:
        return isinstance(value, CONTAINERS)
    return not isinstance(value, FIXED_CONTAINERS)


def _held_by(value: Any, path: str) -> list[tuple[str, Any]]:
    """The parts of an object, each with its path."""
    if isinstance(value, np.ndarray):
        return []
    if isinstance(value, (dict, types.MappingProxyType)):
        return [(f"{path}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return [(f"{path}[{k}]", item) for k, item in enumerate(value)]
    return [(f"{path}.{name}" if path else name, item) for name, item in _attributes(value)]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    attributes = list(vars(value).items()) if hasattr(value, "__dict__") else []
    for kind in type(value).__mro__:
        names = [name for name in _slots(kind) if hasattr(value, name)]
        attributes += [(name, getattr(value, name)) for name in names if not name.startswith("__")]
    return attributes


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _of_classes(value: Any) -> list[tuple[str, Any]]:
    """Values in the classes of an object that are no methods: `class Lake.counter`; those of containers are Python's."""
    if isinstance(value, (*CONTAINERS, *FIXED_CONTAINERS, np.ndarray)):
        return []
    shared: list[tuple[str, Any]] = []
    for kind in type(value).__mro__:
        for name, item in vars(kind).items() if kind.__module__ != "builtins" else ():
            if isinstance(item, SHARED_BY_CLASSES) and not name.startswith("__"):
                shared.append((f"class {kind.__name__}.{name}", item))
    return shared


class StateRecord(NamedTuple):
    """What an object was, to be compared with what it is later. `alive`: of something alive, the numbers and texts in
    it are all that could be taken down."""

    alive: bool
    state: bytes


def state_of(value: Any) -> StateRecord:
    try:
        return StateRecord(False, pickle.dumps(value))
    except Exception:  # what cannot be pickled says so in many ways
        inner = list(value.items()) if isinstance(value, dict) else _attributes(value)
        return StateRecord(
            True, repr([(name, item) for name, item in inner if isinstance(item, PLAIN)]).encode()
        )
