"""Who shows how to write a program from vague words, imperfectly on purpose: what the shipped policy imitates first.

It knows that the example tells what is meant: it puts the example into the program that it tries by the tool, and answers
that one or the other, as the reply says. But mostly it is hasty: it answers one of the two at once. Rewards tell the two
habits apart; the demonstrator does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.extensions.sandbox.code.judging import CodeVerdict
from workbench.extensions.sandbox.code.tasks import Code, CodeEnv
from workbench.extensions.sandbox.python_tool import PythonTool
from workbench.tools.base import ToolResult
from workbench.values.errors import ConfigError

_EXAMPLE = re.compile(r"For example, (solve\(.*\)) gives (.*)\.$")


@dataclass(frozen=True)
class CodeDemonstrator:
    """Tries the first of the two programs that could be meant; answers it where it came out True, else the other one.

    hasty     probability of an answer at once, of one of the two, drawn

    It always tries the same one first, so that the reply alone says what to answer. A tiny model that had to combine the
    reply with which one was tried learned to copy without a fault and answered by chance.
    """

    hasty: float = 0.80

    def __post_init__(self) -> None:
        if not 0 <= self.hasty <= 1:
            raise ConfigError(f"hasty is a probability, got {self.hasty}")

    def action(self, env: CodeEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`."""
        rivals = [short(program) for program in env.payload.get("rivals", ())]
        if len(rivals) != 2:
            raise ConfigError(
                "this demonstrator writes programs from vague words; use the preset code-vague"
            )
        calls = env.trajectory_values()["made"]
        if calls:
            return env.format.write_answer(rivals[calls[-1]["text"].strip() != "True"])
        if rng.random() < self.hasty:
            return env.format.write_answer(rivals[int(rng.integers(2))])
        asked, value = _EXAMPLE.search(env.payload["question"]).groups()
        return env.format.write_call("python", {"code": f"{rivals[0]}\n{asked} == {value}"})


@dataclass(frozen=True)
class OwnPython(PythonTool):
    """`python` for programs of the demonstrator's own: says what a sandbox would say (a test compares), without one."""

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        program, _, asked = arguments["code"].rpartition("\n")
        names: dict[str, Any] = {}
        exec(program, names)
        return ToolResult(f"{eval(asked, names)!r}\n")


class OwnPrograms(CodeEnv):
    """A trajectory in which nothing runs but the demonstrator's own programs. A sandbox for each took longer than learning."""

    def __init__(self, family: Code) -> None:
        super().__init__(family)
        self.tools = (OwnPython(family.sandbox),) if family.tool else ()

    def judged(self, answer: str) -> CodeVerdict:
        """An answer is right where it is the program that was meant."""
        return CodeVerdict(int(answer == short(self.payload["reference"])), 1)


def short(program: str) -> str:
    """`def solve(x): x = [n * 3 for n in x]; return sum(x)`: a program that was made here, in one line."""
    *steps, end = [line.strip() for line in program.splitlines()[2:-1]]
    return f"def solve(x): {'; '.join(steps)}; return {end.removeprefix('x = ')}"
