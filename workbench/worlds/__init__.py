"""Environments: messages in and out, no token in sight; Python and numpy only.

`ENVS` are the kinds of families, `PRESETS` families under a name: those that a family's module lists in its own PRESETS.
A preset's name begins with its kind, and promises nothing that its `label` does not spell out. A kind is imported when
it is asked for: whoever plays FrozenLake waits for no search engine.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.basics.extensions import provided
from workbench.basics.plugins import NameTable
from workbench.worlds.base import Env, EnvFamily
from workbench.worlds.splits import split_of, tasks

if TYPE_CHECKING:
    from workbench.worlds.bandit import Bandit
    from workbench.worlds.countdown import Countdown
    from workbench.worlds.frozen_lake import FrozenLake
    from workbench.worlds.sokoban import Sokoban
    from workbench.worlds.tool_tasks import ToolTasks
    from workbench.worlds.world_qa import WorldQA

# Kinds of environment by the name that a config gives them; a new one is one more line here, or of an
# extension's face.
ENVS = NameTable(
    {
        "frozenlake": "workbench.worlds.frozen_lake:FrozenLake",
        "bandit": "workbench.worlds.bandit:Bandit",
        "sokoban": "workbench.worlds.sokoban:Sokoban",
        "world_qa": "workbench.worlds.world_qa:WorldQA",
        "file_qa": "workbench.worlds.file_qa:FileQA",
        "countdown": "workbench.worlds.countdown:Countdown",
        "tools": "workbench.worlds.tool_tasks:ToolTasks",
    },
    functools.partial(provided, "environments"),
)


class _Presets(Mapping[str, EnvFamily]):
    """The presets of all kinds. One is looked for in the modules of those kinds alone that its name begins with."""

    def __getitem__(self, name: str) -> EnvFamily:
        for kind in ENVS:
            if name.startswith(kind.replace("_", "-")):
                presets = _presets_of(kind)
                if name in presets:
                    return presets[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        for kind in ENVS:
            yield from _presets_of(kind)

    def __len__(self) -> int:
        return sum(len(_presets_of(kind)) for kind in ENVS)


def _presets_of(kind: str) -> Mapping[str, EnvFamily]:
    return getattr(import_module(ENVS.names[kind].partition(":")[0]), "PRESETS", {})


PRESETS: Mapping[str, EnvFamily] = _Presets()


def __getattr__(name: str) -> Any:
    """A family's class, imported on first use."""
    if not name.startswith("_"):
        for kind, place in ENVS.names.items():
            if place.rpartition(":")[2] == name:
                return ENVS[kind]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


__all__ = [
    "ENVS",
    "PRESETS",
    "Bandit",
    "Countdown",
    "Env",
    "EnvFamily",
    "FrozenLake",
    "Sokoban",
    "ToolTasks",
    "WorldQA",
    "split_of",
    "tasks",
]


class _Listing(ModuleType):
    """This module, which shows what there is when it is called: `wb.envs()` reads like `wb.presets()`, and a function of
    that name would be replaced by this module on its first import."""

    def __call__(self) -> Any:
        return import_module(__package__.partition(".")[0]).environments()

    def __repr__(self) -> str:
        return "wb.envs(), with its parentheses: kinds of environments"


sys.modules[__name__].__class__ = _Listing
