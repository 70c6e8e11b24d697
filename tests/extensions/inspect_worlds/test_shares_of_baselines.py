"""What solver and random play reach of the tasks, and when success is said: each mistake is noted, its twin is passed by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.extensions.inspect_worlds.slips import Room, RoomEnv
from workbench.extensions.inspect_worlds.checks import check_family
from workbench.values import StepResult

WIDTH = 7


class FieldEnv(RoomEnv):
    """A coin and a chest on a line of places; the coin is on the way."""

    def opening(self):
        return (
            f"Places 1 to {WIDTH} lie on a line. Walk with: go 3. A coin (0.2) lies at place {self.coin}, the chest (1) at "
            f"{self.chest}; open it when you have the coin. You may go {self.reach} places at once, and {self.family.max_turns} times."
        )

    def begin(self, task):
        self.coin, self.chest, self.reach = (
            task.payload[name] for name in ("coin", "chest", "reach")
        )
        self.at, self.earned = 1, 0.0

    def step(self, text):
        result = super().step(text)
        info = {**result.info, "valid_format": self.read}
        return StepResult(
            result.observation, result.reward, result.reward_parts, result.terminated, info=info
        )

    def act(self, text):
        place = text.removeprefix("go ")
        self.read = place.isdigit() and 1 <= int(place) <= WIDTH
        if not self.read or abs(int(place) - self.at) > self.reach:
            return f"No. You are at {self.at}.", 0.0, {}, self.succeeds(False), False
        self.at = int(place)
        coin = self.at == self.coin and not self.earned
        chest = self.at == self.chest and self.earned > 0
        reward = 0.2 * coin + 1.0 * chest
        self.earned += reward
        return f"You are at {self.at}.", reward, {}, self.succeeds(chest), chest

    def succeeds(self, chest):
        return self.earned > 0 if self.bug == "any reward" else chest


@dataclass(frozen=True)
class Field(Room):
    env: ClassVar[type] = FieldEnv

    def problem(self, rng):
        coin, chest = (int(place) for place in 2 + rng.choice(WIDTH - 1, 2, replace=False))
        reach = int(rng.choice([0, WIDTH])) if self.bug == "out of reach" else WIDTH
        return {"coin": coin, "chest": chest, "reach": reach}

    def random_action(self, env, rng):
        first = 1 - 4 * (self.bug == "other names")
        return f"go {rng.integers(first, WIDTH + 1)}"

    def solver_action(self, env, rng):
        return f"go {env.chest if env.earned else env.coin}"


BUGS = {
    "any reward": ("E10", "success is true from action"),
    "out of reach": ("E25", "fails at the others"),
    "other names": ("E25", "is not understood"),
}


def notes_of(bug):
    report = check_family(Field(bug), only=("E10", "E25"), tasks=12, budget_s=0.5).findings
    return [(check, each.what) for check, each in (*report.errors, *report.notes)]


@pytest.mark.parametrize("bug", BUGS)
def test_a_share_that_says_less_than_it_seems_is_noted(bug):
    check, words = BUGS[bug]
    assert [words in what for where, what in notes_of(bug) if where == check] == [True]


def test_control_the_right_one_is_passed_by():
    assert notes_of("") == []
