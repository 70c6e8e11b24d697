"""From trees of plain values (TOML, JSON, a command line) to frozen dataclasses; whatever is wrong is named by its key.

A tree is read onto a *part*: a value keeps what the tree does not name, a class begins with its defaults. Parts that
come in kinds say which under `kind`: `tables` maps their key to the kinds there are.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING
from typing import Any, Protocol

from workbench.basics.plugins import reference_to
from workbench.basics.settings import MOST_WHOLE, Declared, declarations, settings_of, with_values
from workbench.training.words import meant
from workbench.values.errors import ConfigError, nearest

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class KindsTable(Protocol):
    """Kind -> the part that one of this kind begins from: a class, or a value."""

    def __getitem__(self, kind: str) -> Any: ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, kind: object) -> bool: ...

    def kind_of(self, part: Any) -> str:
        """The kind of a part that is made."""


Tables = Mapping[
    str, KindsTable | None
]  # by key; None: this part is left out, whatever the tree says


# ------------------------------------------------------------------------------------------------ trees of keys


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def nest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The tree that dotted keys, and trees below them, describe. ConfigError where a key lies below a value."""
    tree: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, leaf = key.split(".")
        node = tree
        for depth, parent in enumerate(parents):
            node = node.setdefault(parent, {})
            if not isinstance(node, dict):
                raise ConfigError(_no_further(".".join(parents[: depth + 1]), key))
        if isinstance(value, Mapping):
            value = merged(node.get(leaf, {}), nest(value))
        node[leaf] = value
    return tree


def merged(tree: Any, other: Any) -> Any:
    """A tree with another one on top."""
    if not (isinstance(tree, Mapping) and isinstance(other, Mapping)):
        return other
    return {**tree, **{key: merged(tree.get(key), value) for key, value in other.items()}}


def plain_tree(part: Any, tables: Tables, key: str = "") -> Any:
    """The tree of a part with every setting; what comes in kinds says which under `kind`."""
    if not hasattr(part, "__dataclass_fields__"):
        return dict(part) if isinstance(part, Mapping) else part
    tree = {"kind": tables[key].kind_of(part)} if key in tables else {}
    for setting in declarations(part):
        tree[setting.name] = plain_tree(setting.default, tables, _below(key, setting.name))
    return tree


# ------------------------------------------------------------------------------------------------ onto a part


def read_onto(part: Any, tree: Any, tables: Tables) -> Any:
    """The part with the settings of a tree. Raises ConfigError for a key that is none, naming the nearest or the kinds
    that have it, for a value of a wrong type, and for one that its part refuses."""
    try:
        return _onto(part, tree, tables, "")
    except _UnknownKey as error:
        raise ConfigError(_unknown(error.key, part, tree, tables)) from None


class _UnknownKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


class _Needed(ConfigError):
    """A setting that must be given is not; raised after whatever is wrong with those that are."""


def _onto(part: Any, tree: Any, tables: Tables, key: str) -> Any:
    if key and isinstance(tree, part if isinstance(part, type) else type(part)):
        return tree  # made in Python
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{key or 'config'} holds settings by name, got {tree!r}")
    declared = {setting.name: setting for setting in declarations(part)}
    values = {}
    lacking: _Needed | None = None
    for name, written in tree.items():
        where = _below(key, name)
        if name not in declared:
            raise _UnknownKey(_first_key(where, written))
        try:
            values[name] = _value(declared[name], written, tables, where)
        except _Needed as error:
            lacking = lacking or error
    if lacking is not None:
        raise lacking
    if not isinstance(part, type):
        return with_values(part, values) if values else part
    needed = [name for name, setting in declared.items() if setting.default is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise _Needed(f"{key or 'config'} needs {', '.join(missing)}")
    return part(**values)


def _value(setting: Declared, written: Any, tables: Tables, key: str) -> Any:
    if key in tables and tables[key] is None:
        return None
    inner = _inner(setting, written, tables, key)
    if inner is None:
        return read_value(setting, written, key)
    if key in tables:
        written = {name: value for name, value in written.items() if name != "kind"}
    return _onto(inner, written, tables, key)


def _inner(setting: Declared, written: Any, tables: Tables, key: str) -> Any:
    """The part that settings below this one are read onto; None: it is one value."""
    if tables.get(key) is None:
        return setting.inner()
    table = tables[key]
    current = setting.default
    if not isinstance(written, Mapping) or current is MISSING and "kind" not in written:
        raise ConfigError(
            f"{key} holds a 'kind' (one of {', '.join(sorted(table))}, or package.module:Name of your own) and "
            f"its settings, got {written!r}"
        )
    if "kind" not in written:
        return current
    kind = written["kind"]
    if current is not MISSING and kind == table.kind_of(current):
        return current
    if not isinstance(kind, str) or kind not in table:
        raise ConfigError(
            f"{key}.kind: no {key.rpartition('.')[2]} {kind!r}; {nearest(str(kind), table)} (one of your own: "
            "package.module:Name)"
        )
    return table[kind]


def _below(key: str, name: str) -> str:
    return f"{key}.{name}" if key else name


def _first_key(key: str, written: Any) -> str:
    """The first whole key of a tree that lies below a key."""
    while isinstance(written, Mapping) and written:
        name, written = next(iter(written.items()))
        key = f"{key}.{name}"
    return key


# ------------------------------------------------------------------------------------------------ keys that are none


def keys_of(part: Any, tables: Tables, tree: Any = None, key: str = "") -> Iterator[str]:
    """Every key of a part, with the kinds that a tree chooses."""
    for setting in declarations(part):
        where = _below(key, setting.name)
        below = tree.get(setting.name) if isinstance(tree, Mapping) else None
        inner = setting.inner()
        if tables.get(where) is not None:
            yield f"{where}.kind"
            inner = _inner(setting, below or {}, tables, where) if below or inner else None
        if inner is None:
            yield where
        else:
            yield from keys_of(inner, tables, below, where)


def _unknown(key: str, part: Any, tree: Any, tables: Tables) -> str:
    known = set(keys_of(part, tables, tree))
    if moved := _moved(key, known):
        return f"no setting {key!r}; it is called {moved!r} since format 2 of configurations"
    for owner in sorted(tables, key=len, reverse=True):
        if not key.startswith(f"{owner}.") or tables[owner] is None:
            continue
        table = tables[owner]
        keys = {kind: _keys_below(table[kind], owner) for kind in table}
        others = [kind for kind in table if key in keys[kind]]
        if others:
            chosen = next(_kind_chosen(owner, part, tree, tables), "")
            return f"no setting {key!r}; {owner}.kind {chosen!r} has none; {', '.join(others)} do"
        if moved := _moved(key, set().union(*keys.values())):
            return f"no setting {key!r}; it is called {moved!r} since format 2 of configurations"
    return f"no setting {key!r}; {meant(key, known)}"


def _keys_below(part: Any, owner: str) -> set[str]:
    return {setting.key for setting in settings_of(part, owner)}


def _moved(key: str, known: set[str]) -> str:
    """What a key of format 1 is called now: there the settings of an algorithm's parts had names of their own."""
    owner, _, name = key.rpartition(".")
    if owner != "algorithm":
        return ""
    for part in ("estimator", "objective", "critic", "reference"):
        moved = f"algorithm.{part}.{name}"
        if moved in known:
            return moved
    return ""


def _kind_chosen(owner: str, part: Any, tree: Any, tables: Tables) -> Iterator[str]:
    """The kind of the part that a key names."""
    for name in owner.split("."):
        declared = {setting.name: setting for setting in declarations(part)}
        tree = tree.get(name, {}) if isinstance(tree, Mapping) else {}
        part = declared[name].default
    if isinstance(tree, Mapping) and "kind" in tree:
        yield tree["kind"]
    elif part is not MISSING:
        yield tables[owner].kind_of(part)


def _no_further(key: str, written: str) -> str:
    return f"{key} holds no further settings, so there is none called {written!r}"


# ------------------------------------------------------------------------------------------------ values


def read_value(setting: Declared, written: Any, key: str) -> Any:
    """A value in the type of its setting. Names that only the package behind a setting knows are added one by one."""
    if not any(_holds_names(kind) for kind in setting.kinds):
        if isinstance(written, Mapping) and setting.hint is not Any:
            raise ConfigError(_no_further(key, _first_key(key, written)))
        return _read(setting.hint, written, key)
    value = _read(setting.hint, written, key)
    held = setting.default if isinstance(setting.default, Mapping) else {}
    return {**held, **value} if isinstance(value, Mapping) else value


def _holds_names(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Mapping)


def _read(hint: Any, value: Any, key: str) -> Any:
    """Strings (from a command line) are read as the type; nothing else is bent."""
    kind = typing.get_origin(hint) or hint
    args = typing.get_args(hint)
    if type(None) in args:  # a type or none
        if value is None or isinstance(value, str) and value.lower() in ("none", "null"):
            return None
        return _read(next(arg for arg in args if arg is not type(None)), value, key)
    if kind is tuple:
        return _read_list(args, value, key)
    if kind is bool:
        return _read_truth(value, key)
    if kind in (int, float):
        return _read_number(kind, value, key)
    if kind is str and not isinstance(value, str):
        return _read_code(value, key)
    if _holds_names(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{key} holds settings by name, got {value!r}")
        return dict(value)
    return value


def _read_list(args: tuple[Any, ...], value: Any, key: str) -> tuple[Any, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if callable(items):  # one tool, say
        items = [items]
    if not isinstance(items, (list, tuple)):
        raise ConfigError(f"{key} is a list, got {value!r}")
    if args[1:] == (Ellipsis,):
        args = args[:1] * len(items)
    if len(args) != len(items):
        raise ConfigError(f"{key} holds {len(args)} values, got {value!r}")
    values = []
    for place, (hint, item) in enumerate(zip(args, items)):
        values.append(_read(hint, item, f"{key}[{place}]"))
    return tuple(values)


def _read_code(value: Any, key: str) -> str:
    """The name that code has which was handed over where a text names it: a tool, a reward function, a loader."""
    if not callable(value):
        raise ConfigError(f"{key} is text, got {value!r}")
    if reference := reference_to(value):
        return reference
    raise ConfigError(
        f"{key}: {value!r:.80} is not a module-level name, so that a run could not find it again; define it at the top "
        "of a module or of a notebook's cell, and hand over that name"
    )


def _read_truth(value: Any, key: str) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.lower(), value)
    if not isinstance(value, bool):
        raise ConfigError(f"{key} is true or false, got {value!r}")
    return value


def _read_number(kind: type, value: Any, key: str) -> int | float:
    # Digits of other scripts are digits to Python, and look like letters to whoever reads them.
    is_plain = not isinstance(value, str) or value.isascii()
    if is_plain and isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            number = kind(value)
        except (ValueError, OverflowError):  # not a number, or infinity for a whole one
            number = None
        if isinstance(number, int) and abs(number) > MOST_WHOLE:
            raise ConfigError(f"{key} is a whole number of at most 63 bits, got {value!r:.60}")
        if number is not None and (isinstance(value, str) or number == value):
            return number
    raise ConfigError(f"{key} is {'a whole' if kind is int else 'a'} number, got {value!r}")
