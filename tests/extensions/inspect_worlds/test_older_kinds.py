"""Checks that had no bug and twin of their own: oracles among tools, rows in other words, a solver that goes by a plan, a
score that reads the world's words, and calls that remember other tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tests.extensions.inspect_worlds import quizzes
from tests.extensions.inspect_worlds.planted import Sum, user
from tests.extensions.inspect_worlds.test_users_own_bugs import findings
from workbench.tools.base import tool
from workbench.values import Observation, StepResult, Task
from workbench.values.seeds import rng_at
from workbench.worlds.tool_env import ToolEnv

ASKED: dict[str, str] = {}


@dataclass(frozen=True)
class Boxes:
    """What is in a box is asked; a tool may know it, or remember what it was asked at another task."""

    bug: str = ""
    max_turns: int = 3
    name: ClassVar[str] = "boxes"

    def task(self, task_seed):
        made = str(rng_at("boxes", task_seed).choice(quizzes.WORDS))
        payload = {"question": f"What is in box {task_seed}?", "answers": [made]}
        return Task(f"boxes/{task_seed}", "boxes", task_seed, payload)

    def make(self):
        @tool(trusted=True)
        def check(word: str, task: Task) -> str:
            """Look whether a word is known."""
            if self.bug == "oracle":
                return "yes" if word == task.payload["answers"][0] else "no"
            if self.bug == "remembers":
                return ASKED.setdefault(word, task.payload["question"])
            return "known" if word in quizzes.WORDS else "unknown"

        return ToolEnv([check], max_turns=self.max_turns)

    def random_action(self, env, rng):
        return env.format.write_answer(str(rng.choice(quizzes.WORDS)))

    def solver_action(self, env, rng):
        return env.format.write_answer(env.golds[0])


@dataclass(frozen=True)
class Rows(Sum):
    """Held-out questions may be training questions in capitals."""

    def task(self, task_seed):
        task = super().task(task_seed)
        a, b = task_seed // 4 % 12, 5
        text = f"What is {a} plus {b}?"
        held_out = task_seed % 4 == 0
        if self.bug == "in capitals" and held_out:
            text = text.upper()
        if self.bug == "" and held_out:
            a += 1000
            text = f"What is {a} plus {b}?"
        return replace(task, payload={"text": text, "a": a, "b": b})

    def split_of(self, task):
        return "held-out" if task.task_seed % 4 == 0 else "train"


class DriftEnv:
    def __init__(self, family):
        self.family = family

    def reset(self, task, dynamics_seed):
        self.at, self.flag, self.turns = task.payload["at"], task.payload["flag"], 0
        self.dice = rng_at("drift", dynamics_seed)
        return user(f"From {self.at} to {self.flag}, left, right or stay; 8 answers.")

    def step(self, text):
        self.turns += 1
        step = {"left": -1, "right": 1}.get(text, 0)
        self.at += step if self.dice.random() < 0.7 else 0
        solved = self.at == self.flag
        return StepResult(
            user(f"You are at {self.at}."),
            float(solved),
            terminated=solved,
            truncated=self.turns == 8 and not solved,
            info={"success": solved},
        )


@dataclass(frozen=True)
class Drift:
    """Steps fail by chance; the solver looks where it is, or counts."""

    bug: str = ""
    max_turns: int = 8
    name: ClassVar[str] = "drift"

    def task(self, task_seed):
        at = int(rng_at("drift.task", task_seed).integers(10, 50))
        return Task(f"drift/{task_seed}", "drift", task_seed, {"at": at, "flag": at + 3})

    def make(self):
        return DriftEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice(["left", "right", "stay"]))

    def solver_action(self, env, rng):
        if self.bug == "plan":
            return "right" if env.turns % 2 == 0 else "stay"
        return "right" if env.at < env.flag else "left"


class LookedUpEnv:
    def __init__(self, family):
        self.family = family

    def reset(self, task, dynamics_seed):
        self.gold, self.turns = task.payload["gold"], 0
        return user("Say look, then what is in the box.")

    def step(self, text):
        self.turns += 1
        over = self.turns == 2
        shown = Observation(()) if over else user(f"It is {self.gold}." if text == "look" else "?")
        return StepResult(shown, 0.0, terminated=over)


@dataclass(frozen=True)
class LookedUp:
    """What was looked up is to be said; the score reads the last answer, or all that was shown, too."""

    bug: str = ""
    max_turns: int = 2
    name: ClassVar[str] = "looked-up"

    def task(self, task_seed):
        gold = str(rng_at("looked", task_seed).choice(quizzes.WORDS))
        return Task(f"looked/{task_seed}", "looked-up", task_seed, {"gold": gold})

    def make(self):
        return LookedUpEnv(self)

    def random_action(self, env, rng):
        return str(rng.choice(quizzes.WORDS))

    def solver_action(self, env, rng):
        return "look" if env.turns == 0 else env.gold

    def score(self, trajectory):
        said = trajectory.turns[-1].text
        if self.bug == "transcript":
            for turn in trajectory.turns:
                said += " ".join(message.text for message in turn.reply)
        success = trajectory.task.payload["gold"] in said
        return {"right": float(success), "success": success}


KINDS = {
    (Boxes, "oracle"): ("E9", "it is an oracle"),
    (Boxes, "remembers"): ("E22", "depends on what was played before it"),
    (Rows, "in capitals"): ("E2", "are training tasks but for case and spacing"),
    (Drift, "plan"): ("E25", "follows a plan made at the start"),
    (LookedUp, "transcript"): ("E26", "anywhere in the transcript"),
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0].__name__} {kind[1]}")
def test_a_kind_is_named_and_its_twin_is_passed_by(kind):
    family, bug = kind
    check, words = KINDS[kind]
    found = findings(family(bug=bug), check)
    assert any(words in what for _, _, what in found), found
    assert not [what for _, _, what in findings(family(), check) if words in what]
