"""What `workbench serve` is handed, opened: a run, one of its checkpoints, or a policy's folder or name.

    with open_served("runs/first") as policy:        also runs/first/checkpoints/step-00000010, ./exported, frozenlake-tiny
        ChatServer(policy, port=8000)

A run's policy is exported into a folder that goes with the block, adapters merged; its template's variables, its way of
writing calls and its temperature are kept.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.chat import ChatFormat
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy
from workbench.extensions.servers.chat_server import ServedPolicy
from workbench.look.cells.export_policy import export_policy
from workbench.run.store import open_run
from workbench.tools.formats import TEMPLATE, format_names
from workbench.training.config import Config
from workbench.training.starting import device_of
from workbench.training.stored import stored_config
from workbench.values.errors import ConfigError, nearest

CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class ServedSettings:
    """How a policy is served. None: as the run has it, else the default. `name`: of the model, for clients; `calls`: how calls are
    written; `device`, `dtype`: of the engine; `max_rows`: replies that are decoded at once."""

    step: int | None = None
    name: str | None = None
    calls: str | None = None
    device: str | None = None
    dtype: str | None = None
    max_rows: int = 32


@dataclass(frozen=True)
class _Manner:
    """How a policy was trained, as far as a server must know."""

    flags: Mapping[str, Any] = field(default_factory=dict)
    calls: str = TEMPLATE
    think: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    device: str = "auto"
    dtype: str = "float32"


@contextmanager
def open_served(
    source: str | Path, settings: ServedSettings = ServedSettings()
) -> Iterator[ServedPolicy]:
    """The policy with an engine of its own. Raises ConfigError, StoreError, PolicyError and ChatFormatError for what cannot be
    served."""
    with tempfile.TemporaryDirectory(prefix="workbench-serve-") as folder:
        place, manner, name = _found(Path(source), str(source), settings, Path(folder))
        calls = settings.calls or manner.calls
        if calls not in format_names():
            raise ConfigError(
                f"no way of writing calls is called {calls!r}; {nearest(calls, format_names())}"
            )
        device = device_of(settings.device or manner.device)
        policy = load_policy(place, device=device)
        chat = ChatFormat.from_tokenizer(policy.tokenizer, template_flags=dict(manner.flags))
        if calls == TEMPLATE:
            calls = _form_of(chat)
        config = TransformersEngineConfig(
            device=device, dtype=settings.dtype or manner.dtype, max_rows=settings.max_rows
        )
        engine = open_engine(config, policy.model)
        about = {
            "model": name,
            "engine": engine.name,
            "dtype": config.dtype,
            "context": engine.context_length,
            "calls": calls,
        }
        yield ServedPolicy(
            settings.name or name,
            engine,
            chat,
            calls,
            manner.think,
            manner.temperature,
            manner.top_p,
            about,
        )


def _form_of(chat: ChatFormat) -> str:
    """The form of calls that the chat template asks for. A template that shows no tools itself is given them as our text, which
    asks for hermes; so is one whose form nobody here reads."""
    return (chat.manner.calls if chat.capabilities.tool_schemas else None) or "hermes"


def is_run(source: str | Path) -> bool:
    """Whether it is a run's folder, or the folder of a run's checkpoint."""
    path = Path(source)
    return (path / "run.json").is_file() or path.absolute().parent.name == CHECKPOINTS


def _found(
    path: Path, words: str, settings: ServedSettings, folder: Path
) -> tuple[str, _Manner, str]:
    """(what `load_policy` takes, how it was trained, its name)"""
    if not is_run(path):
        if settings.step is not None:
            raise ConfigError(f"--step names a checkpoint of a run, and {words} is none")
        return words, _Manner(), path.name
    step = settings.step
    if path.absolute().parent.name == CHECKPOINTS:
        step = _step_of(path)
        path = path.absolute().parent.parent
    run = open_run(path)
    export_policy(run, folder / "policy", step=step)
    return str(folder / "policy"), _manner_of(stored_config(run).config), run.name


def _step_of(path: Path) -> int:
    number = path.name.rpartition("-")[2]
    if not number.isdecimal():
        raise ConfigError(
            f"{path} is no checkpoint: expected a folder like checkpoints/step-00000010"
        )
    return int(number)


def _manner_of(config: Config) -> _Manner:
    """How the policy of a run was trained. Parts whose code cannot be had here are None, and their defaults hold."""
    calls = getattr(config.env, "calls", None)
    collecting = config.collect
    engine = config.engine
    return _Manner(
        dict(config.policy.template_flags),
        getattr(calls, "format", "hermes"),
        bool(getattr(calls, "think", False)),
        collecting.temperature,
        collecting.top_p,
        config.policy.device,
        getattr(engine, "dtype", "float32"),
    )
