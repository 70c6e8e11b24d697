"""Shared by the commands: open the config or the run that a word of the command line names, print or save a view."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from workbench.basics.plugins import is_named
from workbench.basics.regular_files import is_folder, parse_json, read_json
from workbench.values.errors import ConfigError


def overrides(settings: list[str]) -> dict[str, Any]:
    """Dotted key -> value of the words after --set."""
    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(
                f"--set takes KEY=VALUE, got {setting!r}; for example --set train.steps=10"
            )
        key = key.strip()
        pairs[key] = value.strip()
        # env.options.size, policy.template_flags.x: some have no type to be read as
        if key.count(".") > 1:
            with contextlib.suppress(ValueError):
                pairs[key] = parse_json(value.strip())
    return pairs


def config_of(source: str, settings: list[str], *, trust: bool = False):
    """The config of a preset, of a .toml file, or of a config.json as it was stored."""
    from workbench.training.config import load_config_with_warnings
    from workbench.training.session import first_process

    if source.endswith(".json"):
        if settings:
            raise ConfigError(
                "a stored config is taken as it is; --set goes with a preset or a .toml file"
            )
        return _stored_config(source, trust)
    config, warnings = load_config_with_warnings(source, overrides(settings))
    for warning in warnings if first_process() else ():
        print(f"note: {warning}", file=sys.stderr)
    return config


def _stored_config(source: str, trust: bool):
    from workbench.training.config import from_dict

    try:
        tree = read_json(Path(source))
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {source}: {error}") from error
    is_of_a_run = isinstance(tree, dict) and tree.get("kind") == "config"
    if not is_of_a_run:
        return from_dict(tree)
    from workbench.run.store import open_run
    from workbench.training.stored import config_of_run

    return config_of_run(open_run(Path(source).resolve().parent, trust=trust))


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
    from workbench.training.reopening import reopen, session_of

    run_or_config = source_of(source, settings, step, trust=trust)
    return session_of(run_or_config) if step is None else reopen(run_or_config, step=step)


def is_run(source: str) -> bool:
    """A preset's name is a preset, whatever folders there are; `./frozenlake` is a folder."""
    from workbench.training.config import PRESETS

    return source not in PRESETS and is_folder(source)


def is_config(source: str) -> bool:
    """Whether it names a preset, a .toml file, or an environment by package.module:Name."""
    from workbench.training.config import PRESETS

    return source in PRESETS or source.endswith(".toml") or is_named(source)


def print_or_save(view, html: Path | None) -> None:
    """Print a view, or write it as a page of its own."""
    if html is None:
        return print(view.text)
    from workbench.run.writer import make_folder, write_file

    make_folder(html.absolute().parent)
    page = f'<!doctype html><meta charset="utf-8">{view.html}\n'
    write_file(html, replace=True, content=page.encode("utf-8", "replace"))
    print(html)
