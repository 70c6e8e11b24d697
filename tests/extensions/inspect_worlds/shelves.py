"""Questions about a shelf, asked of two tools that have one bug each by name, "" for none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from workbench.tools.base import tool
from workbench.values import Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv

KINDS = ("lamp", "chair", "table", "shelf", "clock", "vase")
COLOURS = ("red", "blue", "green", "white", "black")
PRICES = {
    f"{colour} {kind}": 5 + int(rng_at("shelf", colour, kind).integers(90)) + 0.25
    for kind in KINDS
    for colour in COLOURS
}


def tools_of(bug: str) -> tuple:
    @tool(trusted=True)
    def search(words: str, limit: int = 3, unit: Literal["euro", "cent"] = "euro") -> str:
        """Search the shelf; at most five results, cheapest first.

        Args:
            words: of the thing's name
            limit: how many results, default 3
            unit: of the price
        """
        if bug == "raises" and unit == "cent":
            raise ValueError("cent")
        if bug == "default" and limit == 3:
            limit = 4
        asked = words.lower().split() if bug != "words" else ["lamp"]
        found = [(price, name) for name, price in PRICES.items() if set(asked) & set(name.split())]
        found.sort()
        if bug == "limit":
            limit = 3
        if bug == "one more":
            limit += 1
        if bug != "most":
            limit = min(limit, 5)
        cents = unit == "cent" and bug != "unit"
        lines = [f"- {name}: {price * (100 if cents else 1):g}" for price, name in found[:limit]]
        if not lines and bug == "mute":
            return ""
        text = "\n".join(lines) or "Nothing is called so."
        return text[:70] if bug == "cut" else text

    @tool(trusted=True)
    def average(kind: str, note: str = "") -> str:
        """Compute the mean price of a kind.

        Args:
            kind: of the things
            note: for yourself
        """
        prices = [price for name, price in PRICES.items() if name.endswith(kind)]
        mean = sum(prices) / 3 / len(prices) if prices else 0.0
        return f"{mean:.2f}"

    @tool(trusted=True)
    def remember(text: str) -> str:
        """Write a text down."""
        return "Written."

    return search, average, remember


@dataclass(frozen=True)
class Shelf:
    bug: str = ""
    max_turns: int = 3
    name: ClassVar[str] = "shelf"

    def task(self, task_seed):
        rng = rng_at("shelf.task", task_seed)
        name = str(rng.choice(list(PRICES)))
        payload = {
            "question": f"What is the price of the {name}?",
            "answers": [f"{PRICES[name]:g}"],
            "name": name,
        }
        return Task(f"shelf/{task_seed}", "shelf", task_seed, payload)

    def make(self):
        return ToolEnv(tools_of(self.bug), max_turns=self.max_turns)

    def random_action(self, env, rng):
        return env.format.write_answer(str(rng.integers(100)))

    def solver_action(self, env, rng):
        task = env._trajectory.task
        if env._trajectory.turn == 0:
            return env.format.write_call("search", {"words": task.payload["name"]})
        return env.format.write_answer(task.payload["answers"][0])
