"""All settings that there are, part by part: what `workbench settings` prints and the page of the reference shows."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace

from workbench.training.config import KINDS, Config
from workbench.training.words import meant
from workbench.types.errors import ConfigError
from workbench.types.plugins import is_named, load_named
from workbench.types.settings import Setting, annotations_of, bare, settings_of

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
    """Every part in the order of `Config`; one that comes in kinds once for each."""
    alone = {setting.key: setting for setting in settings_of(Config)}
    for part in fields(Config):
        kinds = KINDS.get(part.name, {"": bare(annotations_of(Config)[part.name])})
        for kind, cls in kinds.items():
            if is_dataclass(cls):
                yield SettingsPart(
                    part.name, kind, cls.__doc__ or "", tuple(settings_of(cls, part.name))
                )
            else:
                yield SettingsPart(part.name, kind, "", (alone[part.name],))


def settings_text(key: str = "") -> str:
    """The settings that `key` names, as text: "" for all, a part, a whole key, the last word of one, or
    "package.module:Name" of your own.

    Raises ConfigError for a key that is none, naming the nearest.
    """
    for name, kinds in KINDS.items():
        if key.lower() == f"{name}.kind":
            return f"  {name}.kind: which {name} it is\n      one of {', '.join(kinds)}, or package.module:Name of your own"
    if is_named(key):
        return _text(_own_part(key))
    chosen = [
        (
            part,
            [
                each
                for each in part.settings
                if not key or f".{key.lower()}." in f".{each.key.lower()}."
            ],
        )
        for part in settings_parts()
    ]
    chosen = [(part, settings) for part, settings in chosen if settings]
    if not chosen:
        known = {each.key for part in settings_parts() for each in part.settings}
        words = (
            known
            | {word for each in known for word in each.split(".")}
            | {f"{part}.kind" for part in KINDS}
        )
        raise ConfigError(f"no setting {key!r}; {meant(key, words)}")
    return "\n\n".join(_text(replace(part, settings=tuple(settings))) for part, settings in chosen)


def _own_part(reference: str) -> SettingsPart:
    """The settings of an environment, engine or algorithm of the user's own."""
    found = load_named(reference, "settings of")
    part = "env" if hasattr(found, "make") else "engine" if hasattr(found, "open") else "algorithm"
    cls = KINDS[part][reference]
    return SettingsPart(part, reference, cls.__doc__ or "", tuple(settings_of(cls, part)))


def _text(part: SettingsPart) -> str:
    return "\n".join([part.title, *map(_lines, part.settings)])


def _lines(setting: Setting) -> str:
    """`key = default`, and below it the type, the range and the meaning."""
    default = "needed" if setting.default is MISSING else f"= {shown(setting.default)}"
    kind = ", ".join(filter(None, [setting.type, setting.range]))
    below = textwrap.fill(
        f"{kind}: {setting.meaning}" if setting.meaning else kind,
        WIDTH,
        initial_indent=" " * 6,
        subsequent_indent=" " * 6,
    )
    return f"  {setting.key} {default}\n{below}"


def shown(default: object) -> str:
    """A default as one would write it, cut where it is long."""
    text = (
        {None: "none", True: "true", False: "false"}.get(default)
        if isinstance(default, (bool, type(None)))
        else None
    )
    return text or textwrap.shorten(repr(default), 60, placeholder=" ...")
