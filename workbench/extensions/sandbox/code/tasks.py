"""Programs to write, with a Python tool to try them, judged by tests that the trajectory never sees.

    turn   <tool_call>{"name": "python", "arguments": {"code": ...}}</tool_call>     runs in the trajectory's sandbox
           <answer>def solve(numbers): ...</answer>                                  is judged in two others (`judging`)

Tasks are made here (`programs`) or come from a file (`problems`). What is paid is paid once, when the trajectory ends: all
or nothing, or the share of tests that passed. Where the sandbox itself fails the trajectory is unscored (invariant 5).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import Inert, at_least, at_most, check_settings, one_of
from workbench.extensions.sandbox.code.judging import CodeVerdict, judge
from workbench.extensions.sandbox.code.problems import FORMATS, CodeTask, read_problems
from workbench.extensions.sandbox.code.programs import drawn_inputs, drawn_program, drawn_vague
from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.extensions.sandbox.python_tool import PythonTool
from workbench.tools.formats import format_for
from workbench.values import Observation, StepResult, Task
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.splits import content_split
from workbench.worlds.tool_env import CallSettings, ToolEnv
from workbench.worlds.tool_rewards import ToolTrajectory

_OF_PROBLEM = ("names", "tests", "setup", "head", "reference")


@dataclass(frozen=True)
class Code:
    """A family of programs to write. The fields are its only configuration."""

    file: Annotated[str, "of problems, one JSON object a line; empty: tasks are made here"] = ""
    heldout: Annotated[
        str, "file of the problems to evaluate on; empty: one problem in five is held out"
    ] = ""
    format: Annotated[str, one_of(*FORMATS), "of these files"] = "mbpp"
    least_steps: Annotated[int, at_least(1, most=4), "of a task that is made here, from"] = 1
    most_steps: Annotated[int, at_least(1, most=4), "up to"] = 3
    words: Annotated[
        str,
        one_of("full", "vague"),
        "of a task that is made here. vague: one step, of which the words leave "
        "open two; the example tells which",
    ] = "full"
    tests: Annotated[int, at_least(2, most=1_000), "hidden, of a task that is made here"] = 6
    tool: Annotated[bool, "a Python tool to try programs in"] = True
    turns: Annotated[
        int, at_least(1, most=10_000), "of a trajectory, the answering one included"
    ] = 4
    pay: Annotated[
        str,
        one_of("all", "share"),
        "all: 1 where every test passes, else 0; share: of the tests that pass",
    ] = "all"
    format_penalty: Annotated[
        float, at_most(0, why="more would pay for garbage"), "for a turn that is not in order"
    ] = -0.1
    calls: CallSettings = field(default_factory=CallSettings)
    sandbox: SandboxSettings = field(default_factory=SandboxSettings)

    name: ClassVar[str] = "code"
    solver_name: ClassVar[str] = "oracle (is told a solution)"

    def __post_init__(self) -> None:
        check_settings(self, "env")
        if self.least_steps > self.most_steps:
            raise ConfigError(
                f"env.least_steps = {self.least_steps} exceeds env.most_steps = {self.most_steps}; set both "
                "to the same number, or swap them"
            )
        if self.heldout and not self.file:
            raise ConfigError(
                "env.heldout names a file of problems to evaluate on; name those to train on in env.file"
            )

    @property
    def max_turns(self) -> int:
        return self.turns

    @property
    def deterministic(self) -> bool:
        return self.sandbox.deterministic

    def inert_settings(self) -> list[Inert]:
        """What cannot act beside the other settings."""
        of_made_tasks = ("least_steps", "most_steps", "words", "tests")
        of_calls = ("most_calls", "most_bytes", "show_schemas", "recall")
        is_vague = self.words == "vague"
        inert = [
            Inert(name, bool(self.file), "env.file brings the tasks") for name in of_made_tasks
        ]
        for name in ("least_steps", "most_steps"):
            inert.append(Inert(name, is_vague, "env.words = 'vague' asks for one step"))
        for name in of_calls:
            why = "env.tool = false leaves nothing to call"
            inert.append(Inert(f"calls.{name}", not self.tool, why))
        drawn_anew = "env.sandbox.deterministic = false draws anew"
        return [
            *inert,
            Inert("calls.deadline_s", True, "env.sandbox.seconds is the deadline of a program"),
            Inert("calls.workers", True, "programs run in sandboxes, not in worker processes"),
            Inert("format", not self.file, "env.file names no file"),
            Inert("sandbox.seed", not self.sandbox.deterministic, drawn_anew),
        ]

    def check_files(self) -> None:
        """Raise ConfigError for a file that is not there."""
        for path in filter(None, (self.file, self.heldout)):
            if not Path(path).is_file():
                raise ConfigError(
                    f"there is no file {path!r} (looked for in {Path.cwd()}); env.file and env.heldout name "
                    "files of problems, where they are"
                )

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        rng = rng_at("code.task", task_seed)
        problem, split, *rivals = self._read(rng) if self.file else self._made(rng)
        payload: dict[str, Any] = {"question": problem.question, "answers": [], "support": []}
        if rivals:
            payload["rivals"] = rivals
        for name, value in vars(problem).items():
            if name in _OF_PROBLEM:
                payload[name] = list(value) if isinstance(value, tuple) else value
        name = f"code/{problem.id}/{task_seed}" if self.file else f"code/{task_seed}"
        return Task(name, self.name, int(task_seed), payload, {"split": split})

    def _made(self, rng: np.random.Generator) -> tuple[Any, ...]:
        """The problem, its split and, where words are vague, the programs that they could mean."""
        if self.words == "vague":
            program, rivals, example = drawn_vague(rng)
            inputs = drawn_inputs(rng, False, self.tests)
        else:
            program = drawn_program(rng, self.least_steps, self.most_steps)
            rivals = ()
            example, *inputs = drawn_inputs(rng, program.on_text, self.tests + 1)
        value = program.value(example)
        question = f"{program.words} For example, solve({example!r}) gives {value!r}."
        tests = tuple(f"assert solve({given!r}) == {program.value(given)!r}" for given in inputs)
        problem = CodeTask("made", question, ("solve",), tests, reference=program.source)
        return problem, content_split(program.words), *(plan.source for plan in rivals)

    def _read(self, rng: np.random.Generator) -> tuple[CodeTask, str]:
        from_other = bool(self.heldout) and rng.random() < 0.5
        pool = read_problems(self.heldout if from_other else self.file, self.format)
        problem = pool[int(rng.integers(len(pool)))]
        own = "held-out" if from_other else "train"
        return problem, own if self.heldout else content_split(problem.question)

    def split_of(self, task: Task) -> str:
        return task.metadata["split"]

    def make(self) -> CodeEnv:
        return CodeEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: CodeEnv, rng: np.random.Generator) -> str:
        """The program of another task, drawn like this one, as the answer."""
        other = self.task(int(rng.integers(1 << 31))).payload["reference"]
        return env.format.write_answer(other or "pass", "a guess" if self.calls.think else "")

    def solver_action(self, env: CodeEnv, rng: np.random.Generator) -> str:
        """An oracle, no solver: it is handed a program that passes."""
        return env.format.write_answer(
            env.payload["reference"] or "pass", "known" if self.calls.think else ""
        )

    @property
    def example(self) -> str:
        return format_for(self.calls.format, (), think=self.calls.think).write_answer(
            "def name(argument): ...", "why" if self.calls.think else ""
        )

    @property
    def instructions(self) -> str:
        """The trusted part of the first prompt."""
        tries = "You may run programs first, by the tool. " if self.tool else ""
        return (
            f"Write a program in Python. {tries}It is judged by tests that you do not see. When it is done, write "
            f"it like this: {self.example}\n\n"
        )

    @property
    def label(self) -> str:
        if self.file:
            source = f"Programs of {Path(self.file).name} ({self.format})"
        else:
            steps = f"{self.least_steps} to {self.most_steps} steps"
            if self.words == "vague":
                steps = "one step in vague words"
            source = f"Programs of {steps}, {self.tests} hidden tests"
        return f"{source}, {'a Python tool' if self.tool else 'no tool'}, {self.turns} turns"


class CodeEnv(ToolEnv):
    """One trajectory of a program."""

    def __init__(self, family: Code) -> None:
        self.family = family
        self.verdict = None
        super().__init__(
            (PythonTool(family.sandbox),) if family.tool else (),
            max_turns=family.turns,
            calls=family.calls,
            rewards=AnswerRewards(format_penalty=family.format_penalty),
            reward=self._paid,
        )

    @property
    def payload(self) -> Mapping[str, Any]:
        return self._trajectory.task.payload

    @property
    def own_instructions(self) -> str:
        return self.family.instructions

    @property
    def example(self) -> str:
        return self.family.example

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        self.verdict = None
        return super().reset(task, dynamics_seed)

    def step(self, action_text: str) -> StepResult:
        result = super().step(action_text)
        if self.verdict is None:
            return replace(result, info={"success": False, **result.info})
        tests = {"passed": self.verdict.passed, "of": self.verdict.of, "why": self.verdict.why}
        return replace(result, info={**result.info, "tests": tests})

    @property
    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """The state of the tool is the programs that made it, which are run again: not there where that would make
        another."""
        if self.tools and not self.family.deterministic:
            raise AttributeError(
                "an environment whose sandbox is not deterministic has no snapshot"
            )
        cells = [list(tool.cells) for tool in self.executor.tools.values()]
        return lambda: {**self.trajectory_values(), "cells": cells}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        super().restore({name: value for name, value in snapshot.items() if name != "cells"})
        for tool, cells in zip(self.executor.tools.values(), snapshot["cells"], strict=True):
            tool.replay(cells)

    def _paid(self, trajectory: ToolTrajectory) -> dict[str, Any]:
        if trajectory.answer is None:
            return {"tests": 0.0, "success": False}
        self.verdict = self.judged(trajectory.answer)
        passed = self.verdict.passed / self.verdict.of
        paid = passed if self.family.pay == "share" else float(self.verdict.success)
        return {"tests": paid, "success": self.verdict.success}

    def judged(self, answer: str) -> CodeVerdict:
        """The verdict of the hidden tests on an answer."""
        fields = {}
        for name, value in self.payload.items():
            if name in _OF_PROBLEM:
                fields[name] = tuple(value) if isinstance(value, (list, tuple)) else value
        problem = CodeTask("", self.payload["question"], **fields)
        program = problem.program(answer)
        return judge(program, problem.names, problem.tests, problem.setup, self.family.sandbox)


PRESETS: Mapping[str, Code] = MappingProxyType(
    {
        "code-small": Code(least_steps=1, most_steps=2),
        "code-vague": Code(words="vague", calls=CallSettings(show_schemas=False)),
    }
)
