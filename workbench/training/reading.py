"""From trees of plain values (TOML, JSON, a command line) to frozen dataclasses; whatever is wrong is named by its key.

A *part* is a dataclass inside the tree. Parts that come in kinds say which under `kind`: `kinds` maps their key to the
classes by name. A class with a method `make_part` only declares the settings of what that makes; its `with_parts` gives
the class for settings that name a further part, which brings settings of its own (`algorithm.objective`).
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from workbench.training.words import meant
from workbench.types.errors import ConfigError, nearest
from workbench.types.settings import annotations_of, bare, default_of, settings_of

Kinds = Mapping[str, Mapping[str, type]]
BRINGS = "algorithm.objective"  # names code of somebody's, with settings of its own
FREE = "policy.template_flags"  # holds names that only the template knows: one value, not settings below it

_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


# ------------------------------------------------------------------------------------------------ dotted keys


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and path != FREE:
            flat |= flatten(value, path + ".")
        else:
            flat[path] = value
    return flat


def nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    """The tree with these dotted keys."""
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *parents, leaf = key.split(".")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[leaf] = value
    return tree


def with_overrides(
    flat: Mapping[str, Any], written: Mapping[str, Any], kinds: Kinds
) -> dict[str, Any]:
    """`flat` with what was written on top. A part that becomes another kind starts from that kind's own defaults.

    Raises ConfigError for a key that is none, naming the nearest, or the kinds that have it.
    """
    flat, awaited = dict(flat), set()  # awaited: settings of a new kind that have no default
    for key in sorted(
        written, key=lambda key: (not key.endswith(".kind"), key != BRINGS)
    ):  # these bring their defaults
        value, (part, _, rest) = written[key], key.partition(".")
        free, _, flag = key.rpartition(".")
        if rest == "kind" and part in kinds:
            if flat.get(key) != value:
                flat = {
                    other: old for other, old in flat.items() if not other.startswith(part + ".")
                }
                defaults = _defaults(kinds[part], value, part)
                awaited |= {name for name, default in defaults.items() if default is MISSING}
                flat |= {key: value} | {
                    name: default for name, default in defaults.items() if name not in awaited
                }
        elif free == FREE:
            flat[FREE] = {**flat[FREE], flag: value}
        elif key in flat or key in awaited:
            flat = (_with_part(flat, value, kinds) if key == BRINGS else flat) | {key: value}
        elif holder := _holder_of_names(key, flat, kinds):
            flat |= {f"{holder}.{name}": old for name, old in flat.pop(holder, {}).items()} | {
                key: value
            }
        else:
            raise ConfigError(_unknown(key, value, flat | dict.fromkeys(awaited), kinds))
    return flat


def _with_part(flat: Mapping[str, Any], value: Any, kinds: Kinds) -> dict[str, Any]:
    """`flat` with the settings that the part named by `BRINGS` has, in place of those of the one before it."""
    part, _, name = BRINGS.partition(".")
    kind = flat[f"{part}.kind"]
    before, after = (
        _defaults(kinds[part], kind, part, {name: each}) for each in (flat[BRINGS], value)
    )
    return {key: old for key, old in flat.items() if key in after or key not in before} | {
        key: new for key, new in after.items() if key not in before or before[key] != new
    }


def _defaults(
    kinds: Mapping[str, type], kind: Any, part: str, settings: Mapping[str, Any] = {}
) -> dict[str, Any]:
    """Every setting of a kind by key, with its default or MISSING."""
    return {
        setting.key: setting.default
        for setting in settings_of(class_of(kind, kinds, part, settings), part)
    }


def _holder_of_names(key: str, flat: Mapping[str, Any], kinds: Kinds) -> str:
    """The setting in which a key lies whose names only the package behind it knows (`env.options.min_terms`), or ""."""
    part = key.partition(".")[0]
    if part not in kinds:
        return ""
    cls = class_of(flat[f"{part}.kind"], kinds[part], part)
    hints = {f"{part}.{name}": bare(hint) for name, hint in annotations_of(cls).items()}
    return next(
        (name for name, hint in hints.items() if key.startswith(name + ".") and _holds_names(hint)),
        "",
    )


def _holds_names(hint: Any) -> bool:
    kind = typing.get_origin(hint) or hint
    return isinstance(kind, type) and issubclass(kind, Mapping)


def class_of(
    kind: Any, kinds: Mapping[str, type], part: str, settings: Mapping[str, Any] = {}
) -> type:
    """The class that declares the settings of a part of this kind, with those of what `settings` names. ConfigError."""
    if not isinstance(kind, str) or kind not in kinds:
        raise ConfigError(
            f"{part}.kind: no {part} {kind!r}; {nearest(str(kind), kinds)} (one of your own: "
            "package.module:Name)"
        )
    found = kinds[kind]
    return found.with_parts(settings) if hasattr(found, "with_parts") else found


def _unknown(key: str, value: Any, flat: Mapping[str, Any], kinds: Kinds) -> str:
    part, _, rest = key.partition(".")
    if key in kinds:
        return _needs_kind(key, value, kinds)
    if any(known.startswith(key + ".") for known in flat):
        return f"{key} holds settings by name, got {value!r}"
    if holder := next((known for known in flat if key.startswith(known + ".")), ""):
        return f"{holder} holds no further settings, so there is none called {key!r}"
    others = [
        kind
        for kind, cls in kinds.get(part, {}).items()
        if key in {each.key for each in settings_of(cls, part)}
    ]
    if others:
        return f"no setting {key!r}; {part}.kind {flat[part + '.kind']!r} has none; {', '.join(others)} do"
    return f"no setting {key!r}; {meant(key, [*flat, *(f'{part}.kind' for part in kinds)])}"


def _needs_kind(part: str, value: Any, kinds: Kinds) -> str:
    return (
        f"{part} holds a 'kind' (one of {', '.join(sorted(kinds[part]))}, or package.module:Name of your own) and its "
        f"settings, got {value!r}"
    )


# ------------------------------------------------------------------------------------------------ values


def build(cls: type, tree: Any, kinds: Kinds, path: str = "") -> Any:
    """The dataclass that a tree describes. ConfigError for an unknown key, a wrong type, or a value that is refused."""
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{path or 'config'} holds settings by name, got {tree!r}")
    hints = annotations_of(cls)
    known = {field.name: field for field in fields(cls)}
    values = {}
    for key, value in tree.items():
        where = f"{path}.{key}" if path else key
        if key not in known:
            raise ConfigError(f"no setting {where!r}; {nearest(key, known)}")
        if where in kinds:
            values[key] = _build_kind(value, kinds, where)
        elif is_dataclass(kind := bare(hints[key])):
            values[key] = build(kind, value, kinds, where)
        else:
            values[key] = read_value(kind, value, where)
    missing = [
        name for name, field in known.items() if name not in values and default_of(field) is MISSING
    ]
    if missing:
        raise ConfigError(f"{path or 'config'} needs {', '.join(missing)}")
    return cls(**values)


def _build_kind(tree: Any, kinds: Kinds, part: str) -> Any:
    if not isinstance(tree, Mapping) or "kind" not in tree:
        raise ConfigError(_needs_kind(part, tree, kinds))
    settings = {key: value for key, value in tree.items() if key != "kind"}
    built = build(class_of(tree["kind"], kinds[part], part, settings), settings, kinds, part)
    return built.make_part() if hasattr(built, "make_part") else built


def read_value(hint: Any, value: Any, where: str) -> Any:
    """The value in its field's type. Strings (from a command line) are read as that type; nothing else is bent."""
    kind, args = typing.get_origin(hint) or hint, typing.get_args(hint)
    if kind in (typing.Union, types.UnionType):  # a type or none
        if value is None or isinstance(value, str) and value.lower() in ("none", "null"):
            return None
        return read_value(next(arg for arg in args if arg is not type(None)), value, where)
    if kind is tuple:
        return _read_list(args, value, where)
    if kind is bool:
        return _read_truth(value, where)
    if kind in (int, float):
        return _read_number(kind, value, where)
    if kind is str and not isinstance(value, str):
        raise ConfigError(f"{where} is text, got {value!r}")
    if _holds_names(kind):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} holds settings by name, got {value!r}")
        return dict(value)
    return value


def _read_list(args: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ConfigError(f"{where} is a list, got {value!r}")
    if args[1:] == (Ellipsis,):
        args = args[:1] * len(items)
    if len(args) != len(items):
        raise ConfigError(f"{where} holds {len(args)} values, got {value!r}")
    return tuple(
        read_value(hint, item, f"{where}[{i}]") for i, (hint, item) in enumerate(zip(args, items))
    )


def _read_truth(value: Any, where: str) -> bool:
    if isinstance(value, str):
        value = _TRUTH.get(value.lower(), value)
    if not isinstance(value, bool):
        raise ConfigError(f"{where} is true or false, got {value!r}")
    return value


def _read_number(kind: type, value: Any, where: str) -> int | float:
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        try:
            number = kind(value)
        except (ValueError, OverflowError):  # not a number, or infinity for a whole one
            number = None
        if number is not None and (isinstance(value, str) or number == value):
            return number
    raise ConfigError(f"{where} is {'a whole' if kind is int else 'a'} number, got {value!r}")
