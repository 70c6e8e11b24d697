"""Where nobody says what a success is and most answers are paid, one good answer is no loophole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.extensions.inspect_worlds.checks import check_family
from workbench.values import Message, Observation, StepResult, Task


class Watering:
    def __init__(self, others: float) -> None:
        self.others = others

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        text = f"Plant {task.payload['plant']} is dry. How many cans, 0 to 3? You have 1 answer."
        return Observation((Message("user", text),))

    def step(self, action_text: str) -> StepResult:
        paid = 0.6 if action_text.strip() == "2" else self.others
        reward = paid if action_text.strip() in ("0", "1", "2", "3") else 0.0
        return StepResult(Observation(()), reward, terminated=True)


@dataclass(frozen=True)
class Garden:
    """`others`: what all answers but the best earn."""

    others: float
    name: ClassVar[str] = "garden"
    max_turns: ClassVar[int] = 1

    def task(self, task_seed: int) -> Task:
        return Task(f"garden/{task_seed}", "garden", task_seed, {"plant": task_seed % 997})

    def make(self) -> Watering:
        return Watering(self.others)

    def random_action(self, env, rng) -> str:
        return str(rng.integers(4))

    def solver_action(self, env, rng) -> str:
        return "2"


def what_pays(others: float) -> set[str]:
    """Severities of what E12 says of a fixed answer."""
    (answer,) = check_family(Garden(others), only=("E12",), budget_s=0.3).findings
    return {finding.severity for finding in answer.findings if finding.what.startswith("always")}


def test_a_fixed_answer_that_earns_what_the_solver_does_is_an_error_unless_random_play_earns_much():
    assert "error" in what_pays(others=0.05)
    assert "error" not in what_pays(others=0.5)
