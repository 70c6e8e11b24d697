"""Who shows how to write a program from vague words, imperfectly on purpose: what the shipped policy imitates first.

It knows that the example tells what is meant: it puts the example into a program that it tries by the tool, and answers
what came out True. But mostly it is hasty: it answers the first thing that could be meant. Rewards tell the two apart;
the demonstrator does not.
"""
from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.envs.code.judging import CodeVerdict
from workbench.envs.code.tasks import Code, CodeEnv
from workbench.envs.tools.base import ToolResult
from workbench.envs.tools.python import PythonTool
from workbench.types.errors import ConfigError

_EXAMPLE = re.compile(r"For example, (solve\(.*\)) gives (.*)\.$")


@dataclass(frozen=True)
class CodeDemonstrator:
    """Tries what could be meant, in an order that is drawn, until it is right or one is left; answers that.

    hasty     probability of an answer at once
    heedless  probability, after a program that came out False, of answering it all the same
    slip      probability of a turn whose last tag is not closed
    """

    hasty: float = 0.75
    heedless: float = 0.20
    slip: float = 0.04

    def __post_init__(self) -> None:
        if not all(0 <= share <= 1 for share in (self.hasty, self.heedless, self.slip)):
            raise ConfigError(f"habits are probabilities, got {self}")

    def action(self, env: CodeEnv, rng: np.random.Generator) -> str:
        """The text of one turn in the current state of `env`."""
        rivals = [short(program) for program in env.payload.get("rivals", ())]
        if not rivals:
            raise ConfigError("this demonstrator writes programs from vague words; use the preset code-vague")
        calls = env.attempt_values()["made"]
        tried = [call["arguments"]["code"].split("\n")[0] for call in calls]
        said = [call["text"].strip() for call in calls]
        left = [program for program in rivals if program not in tried]
        if said and (said[-1] == "True" or rng.random() < self.heedless):
            return self._slipped(env.format.write_answer(tried[-1]), rng)
        chosen = left[int(rng.integers(len(left)))]
        if len(left) == 1 or (not said and rng.random() < self.hasty):
            return self._slipped(env.format.write_answer(chosen), rng)
        asked, value = _EXAMPLE.search(env.payload["question"]).groups()
        return self._slipped(env.format.write_call("python", {"code": f"{chosen}\n{asked} == {value}"}), rng)

    def _slipped(self, turn: str, rng: np.random.Generator) -> str:
        return turn[:turn.rindex("</")] if rng.random() < self.slip else turn


@dataclass(frozen=True)
class OwnPython(PythonTool):
    """`python` for programs of the demonstrator's own: says what a box would say (a test compares), without one."""

    def call(self, arguments: Mapping[str, Any]) -> ToolResult:
        program, _, asked = arguments["code"].rpartition("\n")
        names: dict[str, Any] = {}
        exec(program, names)
        return ToolResult(f"{eval(asked, names)!r}\n")


class OwnPrograms(CodeEnv):
    """An attempt in which nothing runs but the demonstrator's own programs. A box for each took longer than learning."""

    def __init__(self, family: Code) -> None:
        super().__init__(family)
        self.tools = (OwnPython(family.sandbox),) if family.tool else ()

    def judged(self, answer: str) -> CodeVerdict:
        """An answer is right where it is the program that was meant."""
        return CodeVerdict(int(answer == short(self.payload["reference"])), 1)


def short(program: str) -> str:
    """`def solve(x): return sum([n * 3 for n in x])`: a program that was made here, in one line."""
    inside = "x"
    for line in program.splitlines()[2:-1]:
        inside = re.sub(r"\bx\b", lambda _: inside, line.partition(" = ")[2])
    return f"def solve(x): return {inside}"
