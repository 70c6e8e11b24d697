"""How much code one training step enters: files, tokens of the functions, frames deep.

    python -m tests.traced_step          the numbers, and what each file adds to them

One FrozenLake GRPO step without instruments, its second: what happens once, at the first, is left out. Only files of the
package count. A function's tokens are those of its source, without its docstring (`tests/measures.py`); comprehensions
belong to the function that they stand in. `tests/test_measures.py` keeps the numbers from rising.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from tests.measures import FUNCTIONS, length_in_tokens, positions

PACKAGE = Path(__file__).resolve().parents[1] / "workbench"
SMALL = {"train.tasks_per_step": 2, "train.group_size": 4, "lint.mode": "off"}


@dataclass(frozen=True)
class TracedStep:
    """`tokens`: file -> tokens of the functions of it that were entered. `deepest`: the innermost stack, outermost first."""

    tokens: dict[str, int]
    deepest: tuple[str, ...]

    @property
    def numbers(self) -> dict[str, int]:
        return {
            "files": len(self.tokens),
            "tokens": sum(self.tokens.values()),
            "frames": len(self.deepest),
        }


def traced(action: Callable[[], Any]) -> TracedStep:
    """What of the package is entered while `action` runs, in this thread."""
    entered: set[CodeType] = set()
    deepest: list[tuple[str, ...]] = [()]

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not _is_ours(frame.f_code):
            return
        entered.add(frame.f_code)
        stack, at = [], frame
        while at is not None:
            if _is_ours(at.f_code):
                stack.append(f"{_place(at.f_code)} {at.f_code.co_qualname}")
            at = at.f_back
        if len(stack) > len(deepest[0]):
            deepest[0] = tuple(reversed(stack))

    sys.setprofile(profile)
    try:
        action()
    finally:
        sys.setprofile(None)
    tokens: dict[str, int] = {}
    for code in entered:
        tokens[_place(code)] = tokens.get(_place(code), 0) + _length(code)
    return TracedStep(tokens, deepest[0])


def traced_step() -> TracedStep:
    """One FrozenLake GRPO step, instruments off."""
    from workbench.training.config import load_config
    from workbench.training.session import open_session
    from workbench.training.step import train_step

    session = open_session(load_config("frozenlake", SMALL))
    train_step(session, 1)
    return traced(lambda: train_step(session, 2))


def _is_ours(code: CodeType) -> bool:
    """A function of the package. Comprehensions are none, nor is the body of a module."""
    return code.co_filename.startswith(str(PACKAGE)) and (
        not code.co_name.startswith("<") or code.co_name == "<lambda>"
    )


def _place(code: CodeType) -> str:
    return Path(code.co_filename).relative_to(PACKAGE).as_posix()


def _length(code: CodeType) -> int:
    return _lengths(code.co_filename).get(code.co_firstlineno, 1)


@cache
def _lengths(file: str) -> dict[int, int]:
    """First line of each function, its decorators included -> number of tokens, without its docstring."""
    text = Path(file).read_text()
    starts = positions(text)
    lengths: dict[int, int] = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, FUNCTIONS):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            has_docstring = ast.get_docstring(node) is not None
            lengths[first] = length_in_tokens(starts, node) - has_docstring
    return lengths


if __name__ == "__main__":
    step = traced_step()
    for file, count in sorted(step.tokens.items(), key=lambda item: -item[1]):
        print(f"{count:6}  {file}")
    print(", ".join(f"{number} {name}" for name, number in step.numbers.items()))
    print("deepest:", *step.deepest, sep="\n  ")
