"""A track to be walked to a flag, with one bug each by name in how it ends and what it pays, "" for none; and legitimate ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from workbench.values import Message, Observation, StepResult, Task
from workbench.values.errors import EnvError
from workbench.values.seeds import rng_at

FAR = 12
WAYS = {"left": -1, "right": 1, "stay": 0}


def user(text: str) -> Observation:
    return Observation((Message("user", text),))


class TrackEnv:
    def __init__(self, family):
        self.family, self.bug = family, family.bug

    @property
    def limit(self):
        return self.family.limit + {"one less": -1, "one more": 1}.get(self.bug, 0)

    def reset(self, task, dynamics_seed):
        self.at, self.flag = task.payload["at"], task.payload["flag"]
        self.turns, self.over, self.owed = 0, False, 0.0
        noun = self.family.noun
        return user(
            f"A track from 0 to {FAR}; you stand at {self.at}, the flag at {self.flag}. Say left, right or stay. You have "
            f"{self.family.limit} {noun}."
        )

    def step(self, text):
        if self.over and self.bug != "goes on":
            raise EnvError("over")
        self.turns += 1
        away = abs(self.flag - self.at)
        word = text.strip()
        self.at = min(max(self.at + WAYS.get(word, 0), 0), FAR)
        nearer = away - abs(self.flag - self.at)
        solved = self.at == self.flag
        cut = self.turns >= self.limit
        if self.bug == "last answer" and cut:
            solved = False
        if self.bug == "cut is success" and cut:
            solved = True
        parts = self.parts(nearer, solved, cut, word)
        self.over = (solved and self.bug != "never") or cut
        where = (
            f"You are at {self.at}."
            if word in WAYS
            else f"Say left, right or stay. You are at {self.at}."
        )
        ended = solved and self.bug not in ("never", "truncated")
        return StepResult(
            user(where),
            sum(parts.values()),
            parts if self.family.named else {},
            terminated=ended,
            truncated=(cut or self.bug == "truncated" and solved) and not ended,
            info={"success": solved},
        )

    def parts(self, nearer, solved, cut, word):
        shaping = 0.05 * nearer
        if self.bug == "turned":
            shaping = -shaping
        if self.bug == "large":
            shaping *= 200
        if self.bug == "small":
            shaping /= 5000
        if self.bug == "flat":
            shaping = float(int(shaping))
        if self.bug in ("late", "part late"):
            shaping, self.owed = self.owed, shaping
        outcome = float(solved)
        if self.bug == "late":
            outcome = 0.0 if solved else outcome
        if self.bug == "cut pays" and cut and not solved:
            outcome = 0.4
        if self.bug == "constant":
            shaping = 0.05
        return {"outcome": outcome, "nearer": shaping}


@dataclass(frozen=True)
class Track:
    bug: str = ""
    named: bool = True  # its reward in parts
    noun: str = "moves"
    limit: int = 14
    max_turns: int = 14
    name: ClassVar[str] = "track"

    def task(self, task_seed):
        rng = rng_at("track.task", task_seed)
        at, flag = (int(x) for x in rng.choice(FAR + 1, 2, replace=False))
        while abs(at - flag) < 3:
            at, flag = (int(x) for x in rng.choice(FAR + 1, 2, replace=False))
        return Task(f"track/{task_seed}", "track", task_seed, {"at": at, "flag": flag})

    def make(self):
        return TrackEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice(list(WAYS)))

    def solver_action(self, env, rng):
        return "right" if env.flag > env.at else "left"


class LedgerEnv:
    """Legitimate: goods are bought in one turn and arrive in the next one, which pays; then the last one is sold."""

    def __init__(self, family):
        self.family = family

    def reset(self, task, dynamics_seed):
        self.turns, self.owed, self.price = 0, 0.0, task.payload["price"]
        return user(
            f"A stall for 5 days; apples are {self.price}. Say buy or wait. What is bought is sold on the next day for 3 more."
        )

    def step(self, text):
        self.turns += 1
        paid, self.owed = self.owed, 0.3 if text.strip() == "buy" else 0.0
        over = self.turns == 5
        return StepResult(user(f"Day {self.turns}, sold {paid:g}."), paid, terminated=over)


@dataclass(frozen=True)
class Ledger:
    max_turns: int = 5
    name: ClassVar[str] = "ledger"

    def task(self, task_seed):
        return Task(f"ledger/{task_seed}", "ledger", task_seed, {"price": task_seed % 1000})

    def make(self):
        return LedgerEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice(["buy", "wait"]))

    def solver_action(self, env, rng):
        return "buy"
