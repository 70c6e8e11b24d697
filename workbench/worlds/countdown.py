"""Countdown: join the given numbers into an expression that has the value of the target.

    Numbers: 25, 3, 7    Target: 46        <answer>(25 - 3) * 2</answer> is wrong: 7 is missing, and there is no 2
                                           <answer>25 + 3 * 7</answer> is right

Each given number is used exactly once, with + - * / (or fewer: `operations`) and parentheses; values are exact
fractions. Every task can be solved.

What a trajectory earns in all: 1.0 for the right value; `format_reward` for an expression of exactly the given numbers
with another value (or none: a division by zero); nothing for anything else. The format is paid once a trajectory
(`format`), the rest of the 1.0 when the value is right (`value`), so further turns let nobody earn the format again.

Source: TinyZero (Jiayi-Pan/TinyZero, verl/utils/reward_score/countdown.py, 0.1 and 1.0) and RAGEN (arXiv 2504.20073,
ragen/env/countdown). Both demand each number exactly once when they score; TinyZero's prompt says "can only be used
once", this one says what is demanded. TinyZero pays 0.1 for any answer in tags, RAGEN only for one of the given
numbers, which is what is done here: the other is earned by `<answer>1</answer>`. RAGEN keeps tasks that can be solved by + and -
alone (`operations="+-"`). Both evaluate with Python's `eval` and look for digits only, so that `3**2` or `1.5` pass as
numbers; here they are refused. TinyZero's generator draws numbers from 1 to 100; its published data have three or four.

Seeds (invariant 7): `task_seed` makes numbers and target; nothing is drawn while playing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.settings import Inert, at_least, check_settings, one_of, probability
from workbench.tools.action_format import format_action, parse_answer, refusal, shown, user_message
from workbench.values import Observation, StepResult, Task, Text, sum_of
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.arithmetic import LONGEST, Value, joined, judged, reachable, solve
from workbench.worlds.game_settings import ShowRewards, Think
from workbench.worlds.splits import content_split


@dataclass(frozen=True)
class Countdown:
    """A family of Countdown tasks. The fields are its only configuration."""

    least_numbers: Annotated[int, at_least(2, most=4), "given numbers of a task, from"] = 3
    most_numbers: Annotated[
        int, at_least(2, most=4, why="the solver tries all expressions"), "up to"
    ] = 4
    largest_number: Annotated[int, at_least(2, most=100), "numbers are drawn from 1 to this"] = 100
    largest_target: Annotated[int, at_least(2, most=1000), "targets are from 1 to this"] = 100
    operations: Annotated[
        str, one_of("+-*/", "+-*", "+-"), "that expressions may use, and that solve a task"
    ] = "+-*/"
    max_turns: Annotated[
        int, at_least(1, most=10_000), "answers; a wrong one is told its value"
    ] = 1
    format_reward: Annotated[
        float, probability(), "for an expression of the given numbers with another value"
    ] = 0.1
    think: Think = True
    show_rewards: ShowRewards = False

    name: ClassVar[str] = "countdown"
    solver_name: ClassVar[str] = "exact search"

    def __post_init__(self) -> None:
        check_settings(self)
        if self.least_numbers > self.most_numbers:
            raise ConfigError(
                f"Countdown.least_numbers = {self.least_numbers} exceeds most_numbers = "
                f"{self.most_numbers}; set both to the same number, or swap them"
            )

    # -------------------------------------------------------------------------------------------- tasks

    def task(self, task_seed: int) -> Task:
        """How many numbers, the numbers, and one of the targets that they reach: each drawn uniformly."""
        rng = rng_at("countdown.task", task_seed)
        count = int(rng.integers(self.least_numbers, self.most_numbers + 1))
        for _ in range(10_000):
            numbers = rng.integers(1, self.largest_number + 1, size=count).tolist()
            targets = reachable(numbers, self.largest_target, self.operations)
            if len(targets):
                payload = {"numbers": numbers, "target": int(rng.choice(targets))}
                return Task(f"countdown/{task_seed}", self.name, int(task_seed), payload)
        raise ConfigError(
            f"10000 draws brought no task that can be solved: {self.label}; raise largest_target"
        )

    def split_of(self, task: Task) -> str:
        """By the numbers, in whatever order, and the target."""
        return content_split(
            f"countdown/{sorted(task.payload['numbers'])}/{task.payload['target']}"
        )

    def make(self) -> CountdownEnv:
        return CountdownEnv(self)

    # -------------------------------------------------------------------------------------------- baselines

    def random_action(self, env: CountdownEnv, rng: np.random.Generator) -> str:
        """An expression of exactly the given numbers: two of what is there, in any order, are joined by any operation,
        until one is left."""
        parts = [str(number) for number in env.numbers]
        while len(parts) > 1:
            left = parts.pop(rng.integers(len(parts)))
            right = parts.pop(rng.integers(len(parts)))
            operation = self.operations[rng.integers(len(self.operations))]
            parts.append(joined(left, operation, right))
        return format_action([parts[0]], think=self.think)

    def solver_action(self, env: CountdownEnv, rng: np.random.Generator) -> str:
        """The first expression that exact search finds."""
        expression = solve(tuple(sorted(env.numbers)), env.target, self.operations)
        return format_action([expression], think=self.think)

    # -------------------------------------------------------------------------------------------- words

    @property
    def label(self) -> str:
        count = str(self.most_numbers)
        if self.least_numbers < self.most_numbers:
            count = f"{self.least_numbers} to {self.most_numbers}"
        return (
            f"Countdown, {count} numbers up to {self.largest_number}, targets up to {self.largest_target}, "
            f"{' '.join(self.operations)}, {self.max_turns} answer{'s' * (self.max_turns > 1)}"
        )

    @property
    def instructions(self) -> str:
        """The trusted part of the first prompt. The limits in it are those that are enforced."""
        tries = (
            "You have one answer." if self.max_turns == 1 else f"You have {self.max_turns} answers."
        )
        signs = " ".join(self.operations)
        return (
            f"Write an expression that equals the target. Use each number exactly once, with {signs} and "
            f"parentheses, in at most {LONGEST} characters. {tries}\nAnswer like this: {self.example}\n\n"
        )

    @property
    def example(self) -> str:
        return format_action(["(1 + 2) - 3"], think=self.think, thought="plan")

    def inert_settings(self) -> list[Inert]:
        """Settings that cannot act beside the others."""
        return [
            Inert(
                "show_rewards",
                self.show_rewards and self.max_turns == 1,
                "env.max_turns = 1 ends the trajectory before a reward could be read",
            )
        ]


class CountdownEnv:
    """One trajectory. Picklable, and rebuilt by (family, task)."""

    def __init__(self, family: Countdown) -> None:
        self.family = family
        self.numbers: tuple[int, ...] = ()
        self.target = 0
        self.turns = 0
        self.finished = True
        self.format_paid = False

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        numbers = task.payload.get("numbers")
        target = task.payload.get("target")
        are_listed = isinstance(numbers, (list, tuple))
        if not are_listed or not all(type(number) is int for number in (*numbers, target)):
            raise EnvError(
                "the payload of a Countdown task holds numbers (whole numbers) and a target (a whole number)"
                f"; task {task.id!r} has {dict(task.payload)}"
            )
        self.numbers = tuple(numbers)
        self.target = target
        self.turns = 0
        self.finished = False
        self.format_paid = False
        return user_message(Text(self.family.instructions, trusted=True), Text(self.draw()))

    def step(self, action_text: str) -> StepResult:
        if self.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        self.turns += 1
        parsed = parse_answer(action_text, think=self.family.think)
        complaint = parsed.complaint
        quote = parsed.quote
        value = None
        if parsed.valid:
            complaint, quote, value = judged(parsed.moves[0], self.numbers, self.family.operations)
        success = value is not None and value == self.target
        parts = self._paid(not complaint, success)
        reward = sum_of(parts.values())
        self.finished = success or self.turns >= self.family.max_turns
        info = {
            "success": success,
            "moves": [] if complaint else [parsed.moves[0].strip()],
            "effective": not complaint,
            "valid_format": not complaint,
            "complaint": complaint,
            "value": None if value is None else str(value),
            "state": self.draw(),
        }
        reply = self._reply(complaint, quote, value, success, reward)
        return StepResult(user_message(*reply), reward, parts, terminated=self.finished, info=info)

    def snapshot(self) -> dict[str, Any]:
        return {
            "numbers": list(self.numbers),
            "target": self.target,
            "turns": self.turns,
            "finished": self.finished,
            "format_paid": self.format_paid,
        }

    def restore(self, snapshot: dict[str, Any]) -> None:
        self.numbers = tuple(snapshot["numbers"])
        self.target = snapshot["target"]
        self.turns = snapshot["turns"]
        self.finished = snapshot["finished"]
        self.format_paid = snapshot["format_paid"]

    def state_key(self) -> str:
        return f"{self.draw()} {self.turns} {self.format_paid}"

    def draw(self) -> str:
        return f"Numbers: {', '.join(map(str, self.numbers))}\nTarget: {self.target}"

    def _paid(self, well_formed: bool, success: bool) -> dict[str, float]:
        due = well_formed and not self.format_paid
        self.format_paid |= well_formed
        reward = float(self.family.format_reward)
        return {"format": reward if due else 0.0, "value": 1.0 - reward if success else 0.0}

    def _reply(
        self, complaint: str, quote: str, value: Value | None, success: bool, paid: float
    ) -> list[Text]:
        if complaint:
            words = refusal(complaint, quote, self.family.example)
        elif success:
            words = [Text("Right.\n")]
        else:
            actual = "a division by zero" if value is None else shown(str(value), 40)
            words = [Text(f"That is {actual}, not {self.target}.\n")]
        if self.family.show_rewards:
            words.append(Text(f"Reward: {paid:g}\n"))
        return words if self.finished else [*words, Text(self.draw())]


PRESETS: Mapping[str, Countdown] = MappingProxyType(
    {
        "countdown": Countdown(),  # as TinyZero's data: three or four numbers, four operations
        "countdown-ragen": Countdown(operations="+-"),  # RAGEN: what can be solved by + and - alone
        "countdown-small": Countdown(
            most_numbers=3, largest_number=20, largest_target=50, operations="+-*"
        ),
    }
)
