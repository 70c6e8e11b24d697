"""A stall that is asked of tools, each with one slip by name, "" for none: sums, lists, orders, pages, and a till that keeps."""

from __future__ import annotations

import ast
import json
import operator
from dataclasses import dataclass
from typing import ClassVar

from workbench.tools.base import tool
from workbench.values import Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv

STALLS = {
    f"stall {letter}": [
        (2 + int(rng_at("stall", letter, n).integers(90)), f"ware {letter}{n}")
        for n in range(2 + (3 * ord(letter)) % 7)
    ]
    for letter in "ABCDEFGHIJ"
}
DOES = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def value_of(node: ast.AST, whole: bool) -> float:
    if isinstance(node, ast.Expression):
        return value_of(node.body, whole)
    if isinstance(node, ast.Constant):
        return node.value
    one, other = (value_of(part, whole) for part in (node.left, node.right))
    if isinstance(node.op, ast.Div):
        return one // other if whole else one / other
    return DOES[type(node.op)](one, other)


def tools_of(bug: str) -> tuple:
    @tool(trusted=True)
    def evaluate(expression: str) -> str:
        """Calculate an expression of numbers, + - * / and brackets."""
        try:
            return f"{value_of(ast.parse(expression, mode='eval'), bug == 'floors'):g}"
        except (SyntaxError, AttributeError, TypeError, KeyError):
            return "That is no expression."

    @tool(trusted=True)
    def wares(stall: str) -> str:
        """List all wares of a stall, cheapest first, with their prices."""
        found = sorted(STALLS.get(stall, []), reverse=bug == "dearest")
        found = found[:4] if bug == "four" else found
        return "\n".join(f"{name}: {price}" for price, name in found) or "There is no such stall."

    @tool(trusted=True)
    def browse(stall: str, page: int = 1) -> str:
        """Read the wares of a stall, two on a page."""
        first = (page - 1) * (1 if bug == "overlap" else 2)
        found = STALLS.get(stall, [])[first : first + 2]
        return "\n".join(f"{name}: {price}" for price, name in found) or "Nothing is there."

    return evaluate, wares, browse


@dataclass(frozen=True)
class Stalls:
    bug: str = ""
    max_turns: int = 3
    name: ClassVar[str] = "stalls"

    def task(self, task_seed):
        stall = f"stall {'ABCDEFGHIJ'[int(rng_at('stalls', task_seed).integers(10))]}"
        price, name = min(STALLS[stall])
        payload = {
            "question": f"What is cheapest at {stall}? (case {task_seed % 997})",
            "answers": [name],
            "support": [],
            "stall": stall,
        }
        return Task(f"stalls/{task_seed}", "stalls", task_seed, payload)

    def make(self):
        return ToolEnv(tools_of(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        stall = f"stall {rng.choice(list('ABCDEFGHIJ'))}"
        called = {"name": str(rng.choice(["wares", "browse"])), "arguments": {"stall": stall}}
        return f"<tool_call>{json.dumps(called)}</tool_call>"

    def solver_action(self, env, rng):
        now = env.trajectory_values()
        payload = now["task"]["payload"]
        if now["turn"] < 1:
            called = {"name": "wares", "arguments": {"stall": payload["stall"]}}
            return f"<tool_call>{json.dumps(called)}</tool_call>"
        return f"<answer>{payload['answers'][0]}</answer>"
