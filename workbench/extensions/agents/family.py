"""A program that somebody has, trained as it is: it is started for each task and asks its model at an address of its own.

    [env]
    kind = "agent"
    program = "my_agent:solve"               or "command:line python my_agent.py"
    tasks = "world_qa"                       a kind of environment: its tasks, its tools, its reward

Nothing in the program changes but where its model is. Random play and the solver are those of the tasks' own environment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from workbench.basics.settings import above, at_least, check_settings, one_of
from workbench.extensions.agents.journal import CallJournal
from workbench.extensions.agents.program import COMMAND, check_program
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values.errors import ConfigError, nearest
from workbench.worlds.base import Env, EnvFamily

DECIDED = ("temperature", "top_p")


@dataclass(frozen=True)
class ProgramTasks:
    """Tasks of an environment, tried by a program. The fields are its only configuration."""

    program: Annotated[
        str, "module:function of a task and of where its model is, or command:line COMMAND"
    ] = ""
    tasks: Annotated[
        str, "kind of environment, or the name of one that is set up: its tasks, tools and reward"
    ] = "tools"
    settings: Annotated[Mapping[str, Any], "of that environment"] = field(default_factory=dict)
    most_calls: Annotated[int, at_least(1, most=100_000), "calls of the model in a trajectory"] = 32
    idle_s: Annotated[
        float, above(0), "seconds without a call or an end, after which a program is given up"
    ] = 60.0
    decides: Annotated[
        tuple[str, ...], "temperature, top_p: what the program decides, and not the run"
    ] = ()
    not_followed: Annotated[
        tuple[str, ...],
        "fields of a request that may be sent, are recorded, and change nothing (tool_choice, stop, seed ...)",
    ] = ()
    thoughts: Annotated[
        str,
        one_of("shown", "apart"),
        "shown: a thought stands in the text that a program is given; apart: in reasoning_content",
    ] = "shown"

    name: ClassVar[str] = "agent"
    by_program: ClassVar[bool] = True  # prompts are a program's: no rendering of ours is expected
    deterministic: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_settings(self, "env")
        unknown = [name for name in self.decides if name not in DECIDED]
        if unknown:
            raise ConfigError(
                f"env.decides names {' and '.join(DECIDED)}, got {unknown[0]!r}; what else a program sends and the run "
                "does not follow is named in env.not_followed"
            )

    @cached_property
    def inside(self) -> EnvFamily:
        """The environment of the tasks. Raises ConfigError for one that is not known."""
        from workbench.training.kinds import (
            KINDS,
            TABLES,
        )  # need torch, and are asked for when one is opened
        from workbench.training.reading import read_onto
        from workbench.worlds import ENVS, PRESETS  # a module's PRESETS are its own

        if self.tasks in PRESETS:
            begun: Any = PRESETS[self.tasks]
        elif self.tasks in ENVS or ":" in self.tasks:
            begun = KINDS["env"][self.tasks]
        else:
            raise ConfigError(
                f"env.tasks = {self.tasks!r} is no environment; {nearest(self.tasks, [*ENVS, *PRESETS])}"
            )
        return read_onto(begun, dict(self.settings), TABLES)

    @cached_property
    def kept(self) -> CallJournal:
        """Where its calls are kept, once a run says so."""
        return CallJournal()

    def keep_in(self, path: str | Path) -> None:
        """A training run begins or goes on in this folder."""
        self.kept.run = Path(path)

    @property
    def max_turns(self) -> int:
        return self.most_calls

    def check_files(self) -> None:
        """Raise ConfigError for a program, a file or an environment that is not there."""
        if find_spec("uvicorn") is None or find_spec("starlette") is None:
            raise ConfigError(
                "env.kind = 'agent' needs starlette and uvicorn; pip install 'agent-rl-workbench[agents]'"
            )
        check_program(self.program)
        if self.inside.name == self.name:
            raise ConfigError(
                "env.tasks is the environment that a program is tried on, not 'agent'"
            )
        if hasattr(self.inside, "check_files"):
            self.inside.check_files()

    def task(self, task_seed: int) -> Any:
        return self.inside.task(task_seed)

    def make(self) -> Env:
        return self.inside.make()

    def collector(self) -> type:
        """What collects it: programs call, and are not stepped."""
        from workbench.extensions.agents.collecting import ProgramCollector, ScoredProgramCollector

        return ScoredProgramCollector if hasattr(self, "score") else ProgramCollector

    def rules(self, temperature: float, top_p: float) -> FieldRules:
        return FieldRules(temperature, top_p, self.decides, self.not_followed)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the tasks' environment has: its solver, its random play, its splits, its score."""
        if name.startswith("_") or name == "inside":
            raise AttributeError(name)
        return getattr(self.inside, name)

    @property
    def label(self) -> str:
        named = self.program.removeprefix(COMMAND) or "no program yet"
        return f"{named} on {getattr(self.inside, 'label', self.inside.name)}"
