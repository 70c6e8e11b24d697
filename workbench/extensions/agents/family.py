"""A program that somebody has, trained as it is: it is started for each task and asks its model at an address of its own.

    [env]
    kind = "agent"
    program = "my_agent:solve"               or "command:line python my_agent.py"
    tasks = "world_qa"                       a kind of environment: its tasks, its tools, its reward; or "questions.jsonl"

Nothing in the program changes but where its model is. Random play and the solver are those of the tasks' own environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from workbench.basics.settings import above, at_least, check_settings, one_of
from workbench.extensions.agents.conversations import ConversationRules
from workbench.extensions.agents.journal import CallJournal
from workbench.extensions.agents.program import COMMAND, check_program
from workbench.extensions.agents.scoring import (
    OF_TASKS,
    ScoredAttempt,
    judge_of,
    left_to_score,
)
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values.errors import ConfigError, nearest
from workbench.worlds.base import Env, EnvFamily
from workbench.worlds.row_files import SUFFIXES

if TYPE_CHECKING:
    from workbench.extensions.agents.trial import ProgramCheck

DECIDED = ("temperature", "top_p")
ROWS = "tools"  # the kind of environment that rows of a file are tasks of


@dataclass(frozen=True)
class ProgramTasks:
    """Tasks of an environment, tried by a program. The fields are its only configuration."""

    program: Annotated[
        str, "module:function of a task and of where its model is, or command:line COMMAND"
    ] = ""
    tasks: Annotated[
        str,
        "kind of environment, or the name of one that is set up: its tasks, tools and reward; or a file of rows, or a "
        "folder that datasets saved",
    ] = "tools"
    settings: Annotated[Mapping[str, Any], "of that environment"] = field(default_factory=dict)
    scored_by: Annotated[
        str,
        "module:function of the finished attempt; empty: the function `score` beside the program, where there is one, else "
        "the reward of the tasks; tasks: that reward in any case",
    ] = ""
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
    failed_reward: Annotated[
        float | None,
        "of a trajectory whose program raised, hung or was killed; none: it has none, and is not trained",
    ] = None
    trains: Annotated[
        tuple[str, ...],
        "conversations that are trained: all, first (that of the first call), or names",
    ] = ("all",)
    names: Annotated[
        Mapping[str, str],
        "a conversation's name, and the words that its first message begins with; a client may say it: policy:NAME",
    ] = field(default_factory=dict)
    thoughts: Annotated[
        str,
        one_of("shown", "apart"),
        "shown: a thought stands in the text that a program is given; apart: in reasoning_content",
    ] = "shown"

    name: ClassVar[str] = "agent"
    by_program: ClassVar[bool] = True  # prompts are a program's: no rendering of ours is expected
    deterministic: ClassVar[bool] = False
    calls_setting: ClassVar[str] = "env.settings.calls.format"

    def __post_init__(self) -> None:
        check_settings(self, "env")
        unknown = [name for name in self.decides if name not in DECIDED]
        if unknown:
            raise ConfigError(
                f"env.decides names {' and '.join(DECIDED)}, got {unknown[0]!r}; what else a program sends and the run "
                "does not follow is named in env.not_followed"
            )
        self.conversations.check()

    @cached_property
    def inside(self) -> EnvFamily:
        """The environment of the tasks. Raises ConfigError for one that is not known."""
        from workbench.training.kinds import (
            KINDS,
            TABLES,
        )  # need torch, and are asked for when one is opened
        from workbench.training.reading import merged, nest, read_onto
        from workbench.worlds import ENVS, PRESETS  # a module's PRESETS are its own

        settings = nest(self.settings)
        if self.tasks in PRESETS:
            begun: Any = PRESETS[self.tasks]
        elif self.tasks in ENVS or ":" in self.tasks:
            begun = KINDS["env"][self.tasks]
        elif _is_rows(self.tasks):
            begun = KINDS["env"][ROWS]
            settings = merged({"data": {"files": [self.tasks]}}, settings)
        else:
            raise ConfigError(
                f"env.tasks = {self.tasks!r} is neither an environment ({nearest(self.tasks, [*ENVS, *PRESETS])}) nor a "
                f"file of rows ({', '.join(SUFFIXES)}) or a folder that datasets saved"
            )
        scored = "answer" in settings or "reward" in settings
        if begun is KINDS["env"][ROWS] and self.scored_by not in ("", OF_TASKS) and not scored:
            settings |= {"answer": "", "reward": f"{left_to_score.__module__}:left_to_score"}
        return read_onto(begun, settings, TABLES)

    @property
    def conversations(self) -> ConversationRules:
        """How conversations get their names, and which of them are trained."""
        return ConversationRules(self.trains, self.names)

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
        self.judge()
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

    def judge(self) -> Callable[[ScoredAttempt], Any] | None:
        """The function that scores finished attempts; None: the environment of the tasks does. Imports the program."""
        return judge_of(self.program, self.scored_by)

    def collector(self) -> type:
        """What collects it: programs call, and are not stepped."""
        from workbench.extensions.agents.collecting import ProgramCollector, ScoredProgramCollector

        later = hasattr(self, "score") or self.judge() is not None
        return ScoredProgramCollector if later else ProgramCollector

    def own_checks(self) -> tuple[ProgramCheck, ...]:
        """What `check-env` asks beside its own questions, which are about the environment of the tasks."""
        from workbench.extensions.agents.trial import PROGRAM_CHECK

        return (PROGRAM_CHECK,)

    def interactive(self) -> type:
        """What plays it for somebody who talks to a policy."""
        from workbench.extensions.agents.watched import WatchedProgram

        return WatchedProgram

    def with_form(self, form: str) -> ProgramTasks:
        """With calls written and read in this form."""
        calls = {**self.settings.get("calls", {}), "format": form}
        return replace(self, settings={**self.settings, "calls": calls})

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
        scored = f", scored by {self.scored_by}" if self.scored_by not in ("", OF_TASKS) else ""
        return f"{named} on {getattr(self.inside, 'label', self.inside.name)}{scored}"


def _is_rows(tasks: str) -> bool:
    """Whether tasks are named by where their rows lie."""
    path = Path(tasks)
    return path.suffix in SUFFIXES or "*" in path.name or path.is_dir()
