"""One frozen tree that names everything a run depends on. Each part owns its fields; `Config` only composes them.

    config = load_config("frozenlake", {"algorithm.epochs": 2, "train.steps": 10})
    config = load_config("experiments/mine.toml")        # a TOML file: `base = "frozenlake"` plus the keys that differ
    config = load_config("my_env:Guess")                 # an environment of your own; so does `env.kind = "my_env:Guess"`

A knob that does nothing is an error (invariant 11): an unknown key names the nearest right one; a setting that *you* wrote
and that cannot have an effect with the others is refused; the same setting coming from a preset is a warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from workbench.basics.plugins import is_named
from workbench.basics.regular_files import read_toml
from workbench.basics.settings import settings_of
from workbench.training.format_1 import from_format_1
from workbench.training.kinds import KINDS, TABLES, handed_part
from workbench.training.liveness import inert_settings_of, refuse_contradictions, remarks_on
from workbench.training.reading import flatten, merged, nest, plain_tree, read_onto
from workbench.training.sections import Config
from workbench.values.errors import ConfigError, nearest


@dataclass(frozen=True)
class Presets(Mapping[str, Config]):
    """Configurations by a short name: NAME.toml in a folder, each read when it is asked for. NAME-LAYER is a preset with
    the settings of layers/LAYER.toml on top; such names are not listed."""

    folder: Path

    def __getitem__(self, name: str) -> Config:
        if name in self._paths():
            return _preset(self._paths()[name])
        begun, layer = self._layered(name)
        if layer is None:
            raise KeyError(name)
        return read_onto(self[begun], _read_toml(layer)[1], TABLES)

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths())

    def __len__(self) -> int:
        return len(self._paths())

    def __contains__(self, name: object) -> bool:
        return name in self._paths() or self._layered(name)[1] is not None

    def _layered(self, name: object) -> tuple[str, Path | None]:
        """(the preset below, the layer on top) of a name; (..., None) of one that is none."""
        begun, _, layer = str(name).rpartition("-")
        layers = {path.stem: path for path in self.folder.glob("layers/*.toml")}
        return begun, layers[layer] if layer in layers and begun in self else None

    def _paths(self) -> dict[str, Path]:
        return {path.stem: path for path in sorted(self.folder.glob("*.toml"))}


PRESETS: Mapping[str, Config] = Presets(Path(__file__).parent / "presets")


@cache
def _preset(path: Path) -> Config:
    base, tree = _read_toml(path)
    return read_onto(base, tree, TABLES)


# ------------------------------------------------------------------------------------------------ to and from dicts


FORMAT = 2  # of the tree that `to_dict` makes; what says nothing of a format is of format 1 (format_1.py)


def to_dict(config: Config) -> dict[str, Any]:
    """A JSON-able tree with every setting; parts that come in kinds carry a `kind`. `from_dict(to_dict(c)) == c`."""
    return {"format": FORMAT, **plain_tree(config, TABLES)}


def from_dict(tree: Mapping[str, Any], *, without: Collection[str] = ()) -> Config:
    """Build and check a whole tree. ConfigError for an unknown key, a wrong type or a value that its part refuses.
    `without`: parts that come in kinds and are None instead, so that no code that they name is imported."""
    tables = TABLES | dict.fromkeys(without)
    if isinstance(tree, Mapping):
        tree = {**_of_this_format(tree, Config, "the configuration", 1), **dict.fromkeys(without)}
    return read_onto(Config, tree, tables)


def _of_this_format(
    tree: Mapping[str, Any], base: Any, where: object, usual: int
) -> dict[str, Any]:
    """The tree in today's keys. `usual`: its format where it names none."""
    tree = dict(tree)
    version = tree.pop("format", usual)
    if version not in (1, FORMAT):
        raise ConfigError(f"{where} is of format {version!r}; this version reads 1 and {FORMAT}")
    return from_format_1(tree, base) if version == 1 else tree


# ------------------------------------------------------------------------------------------------ loading


def load_config(source: Any, overrides: Mapping[str, Any] = {}) -> Config:
    """A preset's name, a TOML file, or an environment of your own (as it is, or as "package.module:Name"), with dotted
    overrides on top; of a config, that config with them.

    A file without a `base` names its environment. What you set yourself must have an effect (invariant 11). Code may be
    handed over as it is wherever a name is expected: `{"env": Guess(), "algorithm": MINE, "env.tools": [look_up]}`."""
    return load_config_with_warnings(source, overrides)[0]


def load_config_with_warnings(
    source: Any, overrides: Mapping[str, Any] = {}
) -> tuple[Config, list[str]]:
    """Like `load_config`; also what a preset sets that has no effect here."""
    handed = {} if isinstance(source, (str, Path, Config)) else {"env": source}
    handed |= {part: value for part, value in overrides.items() if _is_handed(part, value)}
    base, tree = _begun(source)
    tree = {key: value for key, value in tree.items() if key not in handed}
    named = {key: value for key, value in overrides.items() if key not in handed}
    tree = merged(tree, nest(named))
    written = frozenset(flatten(tree))
    if base is Config and "env.kind" not in written and "env" not in handed:
        raise ConfigError(
            f'{source} names neither base = "<preset>" nor, in [env], kind: which environment is it about? '
            f"Presets: {', '.join(PRESETS)}"
        )
    if handed:
        base = _with_parts(base, tree, handed)
    config = read_onto(base, tree, TABLES)
    return config, check_liveness(config, written)


def _begun(source: Any) -> tuple[Any, dict[str, Any]]:
    """(what a source begins from: a config, or the class of bare defaults; its settings). Raises ConfigError."""
    if isinstance(source, Config):
        return source, {}
    if not isinstance(source, (str, Path)):
        return Config, {}
    if str(source) in PRESETS:
        return PRESETS[str(source)], {}
    if str(source).endswith(".toml"):
        return _read_toml(Path(source))
    if is_named(str(source)):
        return Config, {"env": {"kind": str(source)}}
    raise ConfigError(
        f"no preset {str(source)!r} (and no run folder there); {nearest(str(source), PRESETS)}; or name "
        "a .toml file, or an environment of your own as package.module:Name"
    )


def _is_handed(part: str, value: Any) -> bool:
    """Whether a part that comes in kinds is given as a value of Python, not by the name of its kind."""
    return part in KINDS and not isinstance(value, (Mapping, str, type(None)))


def _with_parts(base: Any, tree: Mapping[str, Any], handed: Mapping[str, Any]) -> Config:
    """The config that a tree is read onto, with parts that were handed over."""
    parts = {part: handed_part(part, value) for part, value in handed.items()}
    if base is Config:
        env = parts.get("env") or read_onto(Config, {"env": tree["env"]}, TABLES).env
        base = Config(env)
    return replace(base, **parts)


def changed_config(
    tree: Mapping[str, Any], overrides: Mapping[str, Any]
) -> tuple[Config, dict[str, tuple[Any, Any]]]:
    """A stored tree with overrides on top, checked like any other; and what they changed: dotted key -> (old, new)."""
    before = from_dict(tree)
    written = nest(overrides)
    config = read_onto(before, written, TABLES)
    check_liveness(config, frozenset(flatten(written)))
    old = flatten(plain_tree(before, TABLES))
    new = flatten(plain_tree(config, TABLES))
    changed = {}
    for key in {**old, **new}:
        if old.get(key) != new.get(key):
            changed[key] = (old.get(key), new.get(key))
    return config, changed


def _read_toml(path: Path) -> tuple[Any, dict[str, Any]]:
    """(what the file begins from: a preset, or the class of bare defaults; its settings)."""
    try:
        tree = read_toml(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error
    name = tree.pop("base", None)
    if name is not None and (not isinstance(name, str) or name not in PRESETS):
        raise ConfigError(
            f'{path} begins with base = "<preset>", got {name!r}; {nearest(str(name), PRESETS)}'
        )
    base = Config if name is None else PRESETS[name]
    return base, _of_this_format(tree, base, path, FORMAT)


def check_liveness(config: Config, written: frozenset[str]) -> list[str]:
    """Contradictions raise. Settings that cannot act raise if they were written by the user, else come back as
    warnings.
    """
    refuse_contradictions(config)
    dead = [setting for setting in inert_settings_of(config) if setting.dead]
    wrong = [f"{name} has no effect: {why}" for name, _, why in dead if name in written]
    if wrong:
        raise ConfigError("; ".join(wrong) + ". Remove it, or change what makes it inert")
    values = {setting.key: setting.default for setting in settings_of(config)}
    defaults = _defaults(config)
    warnings = []
    for name, _, why in dead:
        if name in values and values[name] != defaults[name]:
            warnings.append(f"{name} = {values[name]!r} has no effect here: {why}")
    return warnings + remarks_on(config)


def _defaults(config: Config) -> dict[str, Any]:
    """Every setting by key as it is by default: of an algorithm, as the one of its kind has it."""
    begun: dict[str, Any] = {part.name: type(getattr(config, part.name)) for part in fields(config)}
    begun["algorithm"] = KINDS["algorithm"][config.kind_of("algorithm")]
    begun["algorithm.objective"] = type(config.algorithm.objective)
    if isinstance(begun["algorithm"].objective, begun["algorithm.objective"]):
        del begun["algorithm.objective"]
    defaults = {}
    for key, part in begun.items():
        if is_dataclass(part):
            defaults |= {setting.key: setting.default for setting in settings_of(part, key)}
    return defaults
