"""Rows, tools and a reward function of the user's, by configuration alone; and MCP tasks, judged by a server's state.

    [env]
    kind = "tools"
    data.files = ["sums.jsonl"]
    tools = ["calculator", "my_tools:look_up", "mcp:stdio python notes_server.py {folder}"]
    reward = "my_rewards:reward"

A tool that begins with "mcp:stdio " is the command of an MCP server. Every trajectory has a server of its own, begun with its first
call and ended with it, and a folder of its own, which is empty and stands for {folder} in the command. `prepare` may put
into it what the task begins with; `reward` may read what was left there, and call the server's tools.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.extensions import service
from workbench.basics.plugins import load_named
from workbench.basics.settings import Inert, at_least, check_settings
from workbench.tools.base import Tool, tools_named
from workbench.values import Observation, Task
from workbench.values.errors import ConfigError, DataError
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.rows import DataRow, RowFamily, RowSettings
from workbench.worlds.tool_env import CallSettings, ToolEnv
from workbench.worlds.tool_rewards import asked

MCP = "mcp:stdio "
FOLDER = "{folder}"
_COLUMN = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class ToolTasks(RowFamily):
    """A family of tasks with tools: a row each. The fields are its only configuration."""

    data: RowSettings = field(default_factory=RowSettings)
    question: Annotated[str, "column of what the agent is asked, or a text with {column} in it"] = (
        "question"
    )
    answer: Annotated[
        str,
        "column of the gold answer, a text or a list of texts; empty: there is none, and reward says what "
        "is paid",
    ] = "answer"
    instructions: Annotated[str, "your words before the question; empty: the workbench's own"] = ""
    tools: Annotated[
        tuple[str, ...],
        "calculator, module:name, or mcp:stdio COMMAND, a server for each trajectory, with {folder} "
        "for the trajectory's own folder",
    ] = ()
    reward: Annotated[
        str, "module:function of what happened; empty: the answer's match with the gold one"
    ] = ""
    prepare: Annotated[
        str,
        "module:function that is called before a trajectory: it fills the folder, or calls tools; empty: "
        "nothing is",
    ] = ""
    resources: Annotated[bool, "what the servers have to read is offered by two tools more"] = False
    prompts: Annotated[bool, "prompts of the servers are tools, too"] = False
    solver: Annotated[
        str,
        "module:function of (env, generator) that writes the best turn it knows; empty: none known",
    ] = ""
    random_play: Annotated[
        str, "module:function like it, that writes a turn at random; empty: none known"
    ] = ""
    turns: Annotated[
        int, at_least(1, most=10_000), "of a trajectory, the answering one included"
    ] = 5
    deterministic: Annotated[
        bool, "false: tools or reward do not say the same twice; the lint then replays nothing"
    ] = True
    calls: CallSettings = field(default_factory=CallSettings)
    rewards: AnswerRewards = field(default_factory=AnswerRewards)

    name: ClassVar[str] = "tools"

    def __post_init__(self) -> None:
        check_settings(self, "env")
        if not self.reward and not self.answer:
            raise ConfigError(
                "env.answer names no column and env.reward no function, so that nothing could be scored; name "
                "one of them"
            )
        if self.reward and self.rewards.rule != "sum":
            raise ConfigError(
                f"env.rewards.rule = {self.rewards.rule!r} scores the answer, and env.reward = {self.reward!r} "
                "does; leave one of them out"
            )
        for name in self.tools:
            if name.startswith("mcp:") and not (name.startswith(MCP) and _split(name)):
                raise ConfigError(
                    "a server in env.tools is mcp:stdio and a command, such as 'mcp:stdio python my_server.py "
                    f"{{folder}}'; got {name!r}. One at a URL is mounted in a module: module:name"
                )

    @property
    def servers(self) -> tuple[str, ...]:
        """The tools that are commands of MCP servers. They begin as code that is named does, module:name, by which a run
        that was made elsewhere is told to run nothing (invariant 16)."""
        return tuple(name for name in self.tools if name.startswith(MCP))

    @property
    def max_turns(self) -> int:
        return self.turns

    def inert_settings(self) -> list[Inert]:
        """Settings that cannot act beside the others."""
        judged = bool(self.reward)
        return [
            Inert("rewards.answer", judged, "env.reward says what is paid"),
            Inert("rewards.no_answer", judged, "env.reward is asked where the turns run out, too"),
            Inert("rewards.process", True, "rows do not say which documents support an answer"),
            Inert("resources", not self.servers, "env.tools names no MCP server"),
            Inert("prompts", not self.servers, "env.tools names no MCP server"),
        ]

    def check_files(self) -> None:
        """Raise ConfigError, or ToolError, for a file, a function or a tool that is not there."""
        super().check_files()
        self.function("reward")
        for setting in ("prepare", "solver", "random_play"):
            self.function(setting)
        self.tools_in(FOLDER)

    def function(self, setting: str) -> Callable | None:
        """The user's function that a setting names; None where it is empty. Raises ConfigError."""
        named = getattr(self, setting)
        return load_named(named, f"env.{setting}") if named else None

    @property
    def solver_action(self) -> Callable[[ToolTaskEnv, np.random.Generator], str]:
        """AttributeError, so none known, where none is named."""
        return self._player("solver")

    @property
    def random_action(self) -> Callable[[ToolTaskEnv, np.random.Generator], str]:
        """AttributeError, so none known, where none is named."""
        return self._player("random_play")

    def _player(self, setting: str) -> Callable[[ToolTaskEnv, np.random.Generator], str]:
        player = self.function(setting)
        if player is None:
            raise AttributeError(f"env.{setting} names nothing")
        return player

    def payload_of(self, row: DataRow) -> Mapping[str, Any]:
        return {
            "question": _question(self.question, row),
            "answers": _answers(self.answer, row),
            "support": [],
            "row": dict(row.fields),
        }

    def make(self) -> ToolTaskEnv:
        return ToolTaskEnv(self)

    def tools_in(self, folder: str) -> list[Tool]:
        """The tools of a trajectory, in the order of the setting."""
        tools: list[Tool] = []
        for name in self.tools:
            if name in self.servers:
                tools += _served(name, folder, self.resources, self.prompts)
            else:
                tools += tools_named([name])
        return tools

    @property
    def label(self) -> str:
        files = ", ".join(Path(name).name for name in self.data.files) or "no file yet"
        tools = ", ".join(self.tools) or "no tool"
        return f"Rows of {files}, {tools}, {self.turns} turns, {self.reward or 'exact match'}"


class ToolTaskEnv(ToolEnv):
    """One trajectory of a row: with a folder, and servers, of its own."""

    def __init__(self, family: ToolTasks) -> None:
        super().__init__(
            family.tools_in(FOLDER),
            max_turns=family.turns,
            calls=family.calls,
            rewards=family.rewards,
            instructions=family.instructions or None,
            reward=family.function("reward"),
        )
        self.family = family
        self._held: TemporaryDirectory | None = None

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        observation = super().reset(task, dynamics_seed)
        if prepare := self.family.function("prepare"):
            asked(
                prepare,
                self.as_seen(self._trajectory),
                f"env.prepare = {self.family.prepare!r} on task {task.id!r}",
            )
        return observation

    def own_tools(self) -> tuple[Tool, ...]:
        if not self.family.servers and not self.family.prepare:
            return self.tools
        self._held = TemporaryDirectory(prefix="attempt-", ignore_cleanup_errors=True)
        self.folder = Path(self._held.name)
        return tuple(self.family.tools_in(str(self.folder)))

    def close(self) -> None:
        super().close()
        if self._held is not None:
            self._held.cleanup()
            self._held = self.folder = None


# ------------------------------------------------------------------------------------------------ servers


def _split(command: str) -> list[str]:
    try:
        return shlex.split(command.removeprefix(MCP))
    except ValueError:  # a quote that is not closed
        return []


@lru_cache(maxsize=16)
def _offered(command: str, resources: bool, prompts: bool) -> tuple[Tool, ...]:
    """The tools that a server offers, asked once a process; it then ends."""
    with TemporaryDirectory(prefix="listing-", ignore_cleanup_errors=True) as folder:
        mount = service("mount_mcp", "a server in env.tools")
        filled = [part.replace(FOLDER, folder) for part in _split(command)]
        mounted = mount(filled, resources=resources, prompts=prompts)
        mounted.close()
    return mounted.tools


def _served(command: str, folder: str, resources: bool, prompts: bool) -> list[Tool]:
    """Its tools, of a server that is a trajectory's own."""
    filled = tuple(part.replace(FOLDER, folder) for part in _split(command))
    return [
        replace(tool, server=replace(tool.server, command=filled, stateful=True))
        for tool in _offered(command, resources, prompts)
    ]


# ------------------------------------------------------------------------------------------------ rows


def _question(asked_for: str, row: DataRow) -> str:
    if not _COLUMN.search(asked_for):
        asked_for = f"{{{asked_for}}}"
    missing = [name for name in _COLUMN.findall(asked_for) if row.fields.get(name) is None]
    if missing:
        raise DataError(
            f"{row.where}: env.question asks for a column {missing[0]!r}; there are {', '.join(row.fields)}"
        )
    return _COLUMN.sub(lambda match: str(row.fields[match[1]]), asked_for)


def _answers(column: str, row: DataRow) -> list[str]:
    """Gold answers as texts; none where no column is named."""
    if not column:
        return []
    value = row.fields.get(column)
    values = value if isinstance(value, list) else [value]
    if not values or not all(isinstance(answer, (str, int, float)) for answer in values):
        raise DataError(
            f"{row.where}, column {column!r}: expected a text, a number or a list of texts as the answer, got "
            f"{value!r:.80}; there are the columns {', '.join(row.fields)}. env.answer = '' for none"
        )
    return list(map(str, values))
