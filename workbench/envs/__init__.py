"""Environments: messages in and out, no token in sight; Python and numpy only.

`ENVS` are the kinds of families, `PRESETS` families under a name: those that a family's module lists in its own PRESETS.
A preset's name begins with its kind, and promises nothing that its `label` does not spell out. A kind is imported when
it is asked for: whoever plays FrozenLake waits for no search engine.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from workbench.envs.base import Env, EnvFamily
from workbench.envs.splits import split_of, tasks
from workbench.types.plugins import NameTable

if TYPE_CHECKING:
    from workbench.envs.bandit import Bandit
    from workbench.envs.countdown import Countdown
    from workbench.envs.frozen_lake import FrozenLake
    from workbench.envs.shop.shop import Shop
    from workbench.envs.sokoban import Sokoban
    from workbench.envs.tool_tasks import ToolTasks
    from workbench.envs.world_qa import WorldQA

# Kinds of environment by the name that a config gives them; a new one is one more line here.
ENVS = NameTable(
    {
        "frozenlake": "workbench.envs.frozen_lake:FrozenLake",
        "bandit": "workbench.envs.bandit:Bandit",
        "sokoban": "workbench.envs.sokoban:Sokoban",
        "world_qa": "workbench.envs.world_qa:WorldQA",
        "file_qa": "workbench.envs.file_qa:FileQA",
        "countdown": "workbench.envs.countdown:Countdown",
        "shop": "workbench.envs.shop.shop:Shop",
        "code": "workbench.envs.code.tasks:Code",
        "tools": "workbench.envs.tool_tasks:ToolTasks",
        "gymnasium": "workbench.envs.adapters.gymnasium:Gymnasium",
        "reasoning_gym": "workbench.envs.adapters.reasoning_gym:ReasoningGym",
        "textarena": "workbench.envs.adapters.textarena:TextArena",
        "verifiers": "workbench.envs.adapters.verifiers:Verifiers",
        "openenv": "workbench.envs.adapters.openenv:OpenEnv",
    }
)


class _Presets(Mapping[str, EnvFamily]):
    """The presets of all kinds. One is looked for in the modules of those kinds alone that its name begins with."""

    def __getitem__(self, name: str) -> EnvFamily:
        for kind in ENVS:
            if name.startswith(kind.replace("_", "-")) and name in (presets := _presets_of(kind)):
                return presets[name]
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for kind in ENVS for name in _presets_of(kind))

    def __len__(self) -> int:
        return sum(len(_presets_of(kind)) for kind in ENVS)


def _presets_of(kind: str) -> Mapping[str, EnvFamily]:
    return getattr(import_module(ENVS.names[kind].partition(":")[0]), "PRESETS", {})


PRESETS: Mapping[str, EnvFamily] = _Presets()

_CLASSES = {name.rpartition(":")[2]: kind for kind, name in ENVS.names.items()}


def __getattr__(name: str) -> Any:
    """A family's class, imported on first use."""
    if name in _CLASSES:
        return ENVS[_CLASSES[name]]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


__all__ = [
    "ENVS",
    "PRESETS",
    "Bandit",
    "Countdown",
    "Env",
    "EnvFamily",
    "FrozenLake",
    "Shop",
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


sys.modules[__name__].__class__ = _Listing
