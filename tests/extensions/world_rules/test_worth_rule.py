"""R31: what a success is worth stays the same through a run. Learning, chance and other ways to succeed are no change."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.basics.findings import Answer
from workbench.linting import Evidence, StepFacts, all_rules, check
from workbench.linting.facts import payment
from workbench.values import Observation, StopReason, Task, Trajectory, Turn

RULES = all_rules()


def run(*steps: list[tuple[bool, str, float]]) -> Answer:
    rows = tuple(
        StepFacts(number, "", (), {}, paid=tuple(paid)) for number, paid in enumerate(steps, 1)
    )
    return check(Evidence(steps=rows), [RULES["R31"]])["R31"]


def some_trajectories(
    won: int, lost: int, worth: float = 1.0, kind: str = "3 turns", waste: float = 0.0
) -> list:
    return [(True, kind, worth)] * won + [(False, "5 turns", waste)] * lost


@pytest.mark.parametrize(
    "steps",
    [
        [
            some_trajectories(1, 7),
            some_trajectories(2, 6),
            some_trajectories(5, 3),
            some_trajectories(8, 0),
        ],  # it learns
        [
            some_trajectories(4, 4),
            some_trajectories(4, 4, 0.9, kind="4 turns"),
            some_trajectories(4, 4, 0.9, kind="4 turns"),
        ],  # by another way
        [some_trajectories(0, 8), some_trajectories(0, 8, waste=-1.0), some_trajectories(8, 0)],
        [[*some_trajectories(4, 4), *some_trajectories(4, 0, 2.0)]] * 4,  # worth goes by the task
    ],
    ids=["learns", "otherwise", "fails otherwise", "by the task"],
)
def test_a_run_that_pays_alike_is_clean(steps):
    answer = run(*steps)
    assert answer.status == "passed" and answer.looked == sum(map(len, steps)), answer.findings


@pytest.mark.parametrize("seed", range(20))
def test_chance_in_what_is_paid_is_no_change(seed):
    """Success and a noisy reward that have nothing to do with each other, and one where success pays on average."""
    rng = np.random.default_rng(seed)
    for lead in (0.0, 1.0):
        made = [
            [
                (bool(won), f"{rng.integers(3)} turns", float(rng.normal() + lead * won))
                for won in rng.random(16) < 0.4
            ]
            for _ in range(60)
        ]
        assert not run(*made).findings


def test_a_success_that_pays_seldom_may_begin_with_a_dozen_that_earned_nothing():
    """The bandit: success is the arm that pays 1 one time in four, failure the one that always pays 0.1."""
    unlucky = (
        [(True, "1 turn, paid False", 0.0)] * 16
        + [(False, "1 turn", 0.1)] * 40
        + [(False, "1 turn", -0.1)] * 8
    )
    later = [(True, f"1 turn, paid {n % 4 == 0}", float(n % 4 == 0)) for n in range(48)] + [
        (False, "1 turn", 0.1)
    ] * 16
    assert not run(unlucky, *[later] * 9).findings
    turned = [(True, f"1 turn, paid {n % 4 == 0}", -float(n % 4 == 0)) for n in range(48)] + [
        (False, "1 turn", 0.1)
    ] * 16
    assert run(*[later] * 9, *[turned] * 9).errors, (
        "a sign that does turn is found in such rewards, too"
    )


def test_negative_control_the_sign_turns():
    before, after = some_trajectories(4, 4), some_trajectories(4, 4, -1.0)
    found = run(*[before] * 5, *[after] * 5).errors
    assert "earn +1 beside those that fail, since step 6 -1" in found[0].what
    assert found[0].place.step == 7, "as soon as eight of either kind are there"
    assert not run(*[before] * 5, after).findings, "four are no proof"


def test_negative_control_the_scale_changes():
    (found,) = run(*[some_trajectories(4, 4)] * 3, *[some_trajectories(4, 4, 2.0)] * 3).errors
    assert "were all paid 1, and since step 4 all 2" in found.what and found.place.step == 5


def test_another_kind_that_is_paid_as_before_speaks_against_a_change():
    """Something that the trajectories' looks do not tell has changed then."""
    steady = some_trajectories(3, 0, 0.5, kind="1 turn")
    assert not run(
        *[some_trajectories(4, 4) + steady] * 3, *[some_trajectories(4, 4, 2.0) + steady] * 3
    ).findings


def test_one_step_says_nothing():
    assert (
        run(some_trajectories(8, 8)).status == "not checked"
        and run([], [], []).status == "not checked"
    )


def test_what_is_told_of_a_trajectory():
    task, first = Task("t", "e", 0, {}), Observation(())
    turn = Turn(
        0,
        "",
        reward=1.0,
        reward_parts={"goal": 1.0, "format": 0.0},
        moves=("Up", "Up"),
        info={"valid_format": True},
    )
    won = Trajectory(task, 0, 0, first, (turn,), (), StopReason.TERMINATED, success=True)
    assert payment(won) == (True, "terminated, 0 turns unread, 0 documents, paid for ['goal']", 1.0)
    assert payment(Trajectory(task, 0, 0, first, (turn,), (), StopReason.TERMINATED)) is None, (
        "nobody says who won"
    )
    unscored = Trajectory(task, 0, 0, first, (Turn(0, ""),), (), StopReason.ENV_ERROR, scored=False)
    assert payment(unscored) is None
