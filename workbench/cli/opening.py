"""What the commands share: a word of the command line becomes a config, an opened session, a written page."""

from __future__ import annotations

import contextlib
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from workbench.types.errors import ConfigError
from workbench.types.plugins import is_named
from workbench.types.regular_files import is_folder, parse_json, read_json


def overrides(settings: list[str]) -> dict[str, Any]:
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"--set takes KEY=VALUE, got {setting!r}; for example --set train.steps=10"
            )
        key, value = key.strip(), value.strip()
        if (
            key.count(".") > 1
        ):  # env.options.size, policy.template_flags.x: some have no type to be read as
            with contextlib.suppress(ValueError):
                value = parse_json(value)
        pairs[key] = value
    return pairs


def config_of(source: str, settings: list[str], *, trust: bool = False):
    from workbench.training.config import from_dict, load_config_with_warnings
    from workbench.training.session import first_process

    if source.endswith(".json"):
        if settings:
            raise ConfigError(
                "a stored config is taken as it is; --set goes with a preset or a .toml file"
            )
        try:
            tree = read_json(Path(source))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {source}: {error}") from error
        if (
            isinstance(tree, dict) and tree.get("kind") == "config"
        ):  # of a run folder: inside its seal
            from workbench.run.store import open_run
            from workbench.training.stored import config_of_run

            return config_of_run(open_run(Path(source).resolve().parent, trust=trust))
        return from_dict(tree)
    config, warnings = load_config_with_warnings(source, overrides(settings))
    for warning in warnings if first_process() else ():
        print(f"note: {warning}", file=sys.stderr)
    return config


def source_of(source: str, settings: list[str], step: int | None = None, *, trust: bool = False):
    """A run, or the config of a preset or a file. `step`: the checkpoint that is asked for, which only a run has."""
    from workbench.run.store import open_run

    if is_run(source):
        if settings:
            raise ConfigError("a run's config is fixed; --set goes with a preset or a .toml file")
        return open_run(source, trust=trust)
    if step is not None:
        raise ConfigError(f"--step names a checkpoint of a run, but {source!r} is no run folder")
    return config_of(source, settings)


def session_of(source: str, settings: list[str], step: int | None = None, *, trust: bool = False):
    """A run folder's policy, or a preset's untrained one."""
    from workbench.training.session import open_session, reopen

    found = source_of(source, settings, step, trust=trust)
    return reopen(found, step=step) if is_run(source) else open_session(found)


def is_run(source: str) -> bool:
    """A preset's name is a preset, whatever folders there are; `./frozenlake` is a folder."""
    from workbench.training.config import PRESETS

    return source not in PRESETS and is_folder(source)


def is_config(source: str) -> bool:
    from workbench.training.config import PRESETS

    return source in PRESETS or source.endswith(".toml") or is_named(source)


def put(view, html: Path | None) -> None:
    """Print a view, or write it as a page of its own."""
    if html is None:
        return print(view.text)
    from workbench.run.writer import make_folder, write_file

    make_folder(html.absolute().parent)
    page = f'<!doctype html><meta charset="utf-8">{view.html}\n'
    write_file(html, replace=True, content=page.encode("utf-8", "replace"))
    print(html)


def recipes() -> ModuleType:
    """`data/make/pretrain.py` of the checkout: how the shipped policies are made is not part of the package."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "data" / "make" / "pretrain.py").is_file():
        raise ConfigError(
            f"`workbench pretrain` runs the recipes in data/make, which are not in {root}: run it in a "
            "checkout of the repository, installed with `pip install -e .`"
        )
    sys.path.append(str(root))
    return import_module("data.make.pretrain")
