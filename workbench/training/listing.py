"""All settings that there are, part by part: what `workbench settings` prints and the page of the reference shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import Any

from workbench.basics.plugins import is_named, load_named
from workbench.basics.settings import Setting, annotations_of, bare, settings_of
from workbench.learn.algorithms import Algorithm
from workbench.training.config import Config
from workbench.training.kinds import KINDS, TABLES
from workbench.training.words import meant
from workbench.values.errors import ConfigError

WIDTH = 100  # characters of a line that is printed


@dataclass(frozen=True)
class SettingsPart:
    """A part of the configuration: `key` as in "env", `kind` as in "frozenlake" ("" where there is only one)."""

    key: str
    kind: str
    about: str
    settings: tuple[Setting, ...]

    @property
    def title(self) -> str:
        return f"{self.key}, {self.key}.kind = {self.kind}" if self.kind else self.key


def settings_parts() -> Iterator[SettingsPart]:
    """Every part in the order of `Config`; one that comes in kinds once for each, and below it the kinds inside it."""
    alone = {setting.key: setting for setting in settings_of(Config)}
    for part in fields(Config):
        cls = bare(annotations_of(Config)[part.name])
        if part.name not in KINDS and is_dataclass(cls):
            yield _part_of(part.name, "", cls)
        elif part.name not in KINDS:
            yield SettingsPart(part.name, "", "", (alone[part.name],))
        for key in TABLES:
            if key.partition(".")[0] == part.name:
                yield from (_part_of(key, kind, TABLES[key][kind]) for kind in TABLES[key])


def _part_of(key: str, kind: str, begun: Any) -> SettingsPart:
    """`begun`: the class, or the value, that settings of this kind are read onto."""
    about = begun.estimator.function if isinstance(begun, Algorithm) else begun
    return SettingsPart(key, kind, about.__doc__ or "", tuple(settings_of(begun, key)))


def settings_text(key: str = "") -> str:
    """The settings that `key` names, as text: "" for all, a part, a whole key, the last word of one, or
    "package.module:Name" of your own.

    Raises ConfigError for a key that is none, naming the nearest.
    """
    for name, kinds in TABLES.items():
        if key.lower() == f"{name}.kind":
            return f"  {name}.kind: which {name} it is\n      one of {', '.join(kinds)}, or package.module:Name of your own"
    if is_named(key):
        return _text(_own_part(key))
    chosen = []
    for part in settings_parts():
        settings = tuple(setting for setting in part.settings if _is_named(setting, key))
        if settings:
            chosen.append(replace(part, settings=settings))
    if not chosen:
        raise ConfigError(f"no setting {key!r}; {meant(key, _words())}")
    return "\n\n".join(map(_text, chosen))


def _is_named(setting: Setting, key: str) -> bool:
    """Whether `key` is whole words of the setting's key, or nothing."""
    return not key or f".{key.lower()}." in f".{setting.key.lower()}."


def _words() -> set[str]:
    """Every key, every word of one, and the keys of kinds."""
    words = {f"{part}.kind" for part in TABLES}
    for part in settings_parts():
        for setting in part.settings:
            words |= {setting.key, *setting.key.split(".")}
    return words


def _own_part(reference: str) -> SettingsPart:
    """The settings of an environment, engine or algorithm of the user's own."""
    named = load_named(reference, "settings of")
    if hasattr(named, "make"):
        part = "env"
    elif hasattr(named, "open"):
        part = "engine"
    else:
        part = "algorithm"
    return _part_of(part, reference, KINDS[part][reference])


def _text(part: SettingsPart) -> str:
    return "\n".join([part.title, *map(_lines, part.settings)])


def _lines(setting: Setting) -> str:
    """`key = default`, and below it the type, the range and the meaning."""
    default = "needed" if setting.default is MISSING else f"= {shown(setting.default)}"
    kind = ", ".join(filter(None, [setting.type, setting.range]))
    meaning = f"{kind}: {setting.meaning}" if setting.meaning else kind
    below = textwrap.fill(meaning, WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return f"  {setting.key} {default}\n{below}"


def shown(default: object) -> str:
    """A default as one would write it, cut where it is long."""
    if default is None:
        return "none"
    if isinstance(default, bool):
        return "true" if default else "false"
    return textwrap.shorten(repr(default), 60, placeholder=" ...")
