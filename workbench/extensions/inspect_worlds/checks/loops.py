"""What is paid beside the task in a circle (E12): two actions that undo each other and are paid each time; what cannot be
read, where that costs less than an honest try; and one answer that is right at most tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_worlds.checks.beside import ABSTAIN, INCOME
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    is_number,
    is_over,
    play,
    replay,
)
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

TASKS = 4
LEAST = 3
COMMON = 10  # actions that are tried everywhere
LOCAL = 8  # ... that random play says in a state
STATES = 3  # of a trajectory
ROUNDS = 3  # of a circle, by which it is known
PAID = 0.02  # of what solving is paid
CHEAPER = 0.2  # of what a right answer is paid above a wrong one
DRAWN = 96  # tasks by which the most frequent answer is known
SECONDS = 1.0
FEWEST = 24
KINDS = (2, 12)  # different texts of random play
UNEVEN = 0.22  # above its share


def check_loops(given: CheckInput) -> Iterator[RuleResult]:
    if given.why_not_played() is not None:
        return
    for look in (_circles, _unread_is_cheaper, _mostly_right):
        yield from look(given)


# ------------------------------------------------------------------------------------------------ circles


class RewardLoop(NamedTuple):
    """Two actions, from a turn of the solver's trajectory on, that are paid in each round."""

    solved: PlayedTrajectory
    turn: int
    actions: tuple[str, str]
    gain: float  # of a round
    farmed: PlayedTrajectory  # rounds, and then the rest of the solver's play where there is time


def _circles(given: CheckInput) -> Iterator[RuleResult]:
    """Do, undo, do again: what it pays comes without an end, and solving afterwards is paid, too."""
    if given.family.max_turns < 2 * ROUNDS:
        return
    solved = [
        one for one in given.solved_once(least_turns=2) if one.success and one.reward is not None
    ]
    circles: list[RewardLoop] = []
    asked = 0
    spent = Spent()
    for one in solved[:TASKS]:
        if spent.seconds > given.budget_s:
            break
        asked += 1
        circle = next(_circles_of(given, one, spent), None)
        circles += [circle] if circle is not None else []
    yield Checked(asked, "two actions in a circle")
    if asked >= LEAST and 2 * len(circles) >= asked:
        yield _farmed(circles, asked, ERROR if INCOME.search(given.first_prompt) is None else NOTE)


def _circles_of(given: CheckInput, one: PlayedTrajectory, spent: Spent) -> Iterator[RewardLoop]:
    for turn in _turns_to_try(one):
        before = one.texts[:turn]
        actions = list(dict.fromkeys([*_local(given, one, before), *given.common_actions(COMMON)]))
        for pair in permutations(actions, 2):
            if spent.seconds > given.budget_s:
                return
            gain = _gain_of_a_round(given, one, before, pair)
            circle = _played_out(given, one, turn, pair, gain) if gain > NEAR else None
            if circle is not None:
                yield circle


def _turns_to_try(one: PlayedTrajectory) -> list[int]:
    """The start, and behind what was paid first."""
    paid = [
        k + 1
        for k, result in enumerate(one.results[:-1])
        if is_number(result.reward) and result.reward > NEAR
    ]
    return [*paid[: STATES - 1], 0]


def _local(given: CheckInput, one: PlayedTrajectory, before: tuple[str, ...]) -> list[str]:
    """What random play says there."""
    family: Any = given.family
    if "random" not in given.own:
        return []
    spoken: dict[str, None] = {}
    for number in range(LOCAL):
        rng = rng_at("check-env", "circle", one.task.id, number)
        texts = iter(before)
        played = play(
            family,
            one.task,
            one.seed,
            lambda env, texts=texts, rng=rng: next(texts, None) or family.random_action(env, rng),
            most=len(before) + 1,
        )
        spoken |= dict.fromkeys(played.texts[len(before) :])
    # One that undoes the last paid action need not be spoken by chance.
    return [*spoken, *before[-1:]]


def _gain_of_a_round(
    given: CheckInput, one: PlayedTrajectory, before: tuple[str, ...], pair: tuple[str, str]
) -> float:
    """What the second and each later round pays; 0 where a round ends something, or pays another time something else."""
    first = replay(given.family, one.script._replace(texts=(*before, *pair)))
    if first.error or len(first.results) != len(before) + 2 or is_over(first.results[-1]):
        return 0.0
    again = replay(given.family, one.script._replace(texts=(*before, *pair * ROUNDS)))
    rewards = [result.reward for result in again.results[len(before) :]]
    if again.error or len(rewards) != 2 * ROUNDS or not all(map(is_number, rewards)):
        return 0.0
    if any(map(is_over, again.results)):
        return 0.0
    later = [rewards[k] + rewards[k + 1] for k in range(2, 2 * ROUNDS, 2)]
    return float(later[0]) if max(later) - min(later) <= NEAR else 0.0


def _played_out(
    given: CheckInput, one: PlayedTrajectory, turn: int, pair: tuple[str, str], gain: float
) -> RewardLoop | None:
    """As many rounds as there is time for, with and without solving it afterwards: more than solving at once."""
    family = given.family
    spare = (family.max_turns - len(one.texts)) // 2
    rounds = (family.max_turns - turn) // 2
    plans = [(*one.texts[:turn], *pair * rounds)]
    if spare >= 2:
        plans.insert(0, (*one.texts[:turn], *pair * spare, *one.texts[turn:]))
    for texts in plans:
        farmed = replay(family, one.script._replace(texts=texts))
        enough = (one.reward or 0.0) + max(PAID * abs(one.reward or 0.0), NEAR)
        if not farmed.error and farmed.reward is not None and farmed.reward > enough:
            return RewardLoop(one, turn, pair, gain, farmed)
    return None


def _farmed(circles: Sequence[RewardLoop], asked: int, severity: str) -> Finding:
    circle = circles[0]
    then = " and then solving" if circle.farmed.success else ""
    return Finding(
        f"two actions in turn are paid in every round: at {circle.solved.task.id!r} {shortened(circle.actions[0], 40)} and "
        f"{shortened(circle.actions[1], 40)} bring {circle.gain:.3g} each time, and going on so{then} earns {circle.farmed.reward:.3g} where solving "
        f"earns {circle.solved.reward:.3g} (so at {len(circles)} of {asked} tasks); expected that what is undone is not paid again. Pay it once, "
        "or take back what it paid where it is undone",
        severity=severity,
    )


# ------------------------------------------------------------------------------------------------ unreadable is cheaper


def _unread_is_cheaper(given: CheckInput) -> Iterator[RuleResult]:
    """Of one answer: what cannot be read earns more than a try that is wrong, and more than trying by chance."""
    tries = [
        one
        for one in given.own.get("random", ())
        if one.reward is not None and len(one.results) == 1 and one.ended and not one.error
    ]
    wrong = [
        one.reward
        for one in tries
        if one.success is False and one.results[0].info.get("valid_format") is not False
    ]
    if len(wrong) < TASKS or ABSTAIN.search(given.first_prompt):
        return
    nonsense = given.play("nonsense", lambda env, rng: NONSENSE)
    scored = [
        one.reward
        for one in nonsense
        if one.reward is not None and one.success is False and len(one.results) == 1 and one.ended
    ]
    yield Checked(len(scored), "what cannot be read")
    if len(scored) < TASKS or min(scored) <= max(wrong) + NEAR:
        return
    by_chance = float(np.mean([one.reward for one in tries]))
    unread = float(np.mean(scored))
    gap = unread - float(np.mean(wrong))
    most = max(one.reward for one in given.played if one.reward is not None)
    pays = by_chance < unread - NEAR and gap >= CHEAPER * (most - float(np.mean(wrong)))
    yield Finding(
        f"{NONSENSE!r}, which cannot be read, earns {unread:.3g}, and a wrong answer {np.mean(wrong):.3g}; random play earns "
        f"{by_chance:.3g} on average, and the prompt says nothing of giving no answer. A policy that is not sure learns to write "
        "what cannot be read, which is cheaper than a wrong try. Let it cost what a wrong answer costs, or more; or say in the prompt how "
        "to pass",
        severity=ERROR if pays else NOTE,
    )


# ------------------------------------------------------------------------------------------------ one answer for most


def _mostly_right(given: CheckInput) -> Iterator[RuleResult]:
    """Without a solver: of the few texts that random play says, one is right far more often than its share."""
    family: Any = given.family
    texts = Counter(one.texts[0] for one in given.own.get("random", ()) if len(one.texts) == 1)
    low, high = KINDS
    one_answer = family.max_turns == 1 and "solver" not in given.own
    if not one_answer or not low <= len(texts) <= high or hasattr(family, "task_seeds"):
        return
    right, asked = _right_of(given, list(texts))
    yield Checked(asked, "the answer that is right most often")
    if asked < FEWEST or not right.total():
        return
    text, most = right.most_common(1)[0]
    share = most / asked
    fair = 1 / len(texts)
    by_chance = (fair * (1 - fair) / asked) ** 0.5
    never = [text for text in texts if not right[text]]
    if never and len(right) - len(never) >= 2 and asked >= 10 * len(texts):
        yield Finding(
            f"{shortened(never[0], 40)} is right at none of {asked} tasks, and is one of the {len(texts)} answers that there are: an index may be off by one where "
            "the right one is drawn (integers(n - 1)), or it may be left out. A policy learns never to say it",
            severity=NOTE,
        )
    if share >= fair + max(UNEVEN, 4 * by_chance):
        yield Finding(
            f"always {shortened(text, 40)} is right at {most} of {asked} tasks ({share:.0%}), and there are {len(texts)} different answers "
            f"({fair:.0%} each, if they were drawn evenly): whoever always says it is mostly paid, and success begins there. Draw what is "
            "right first, evenly, and then a question for it; or report success beside that of the most frequent answer",
            severity=NOTE,
        )


def _right_of(given: CheckInput, texts: Sequence[str]) -> tuple[Counter[str], int]:
    """How often each text is right, of so many new tasks."""
    family: Any = given.family
    right: Counter[str] = Counter()
    asked = 0
    spent = Spent()
    for number in range(DRAWN):
        if spent.seconds > SECONDS:
            break
        task = family.task(seed_of("check-env", "mostly", number))
        asked += 1
        for text in texts:
            right[text] += replay(family, Script(task, 0, (text,))).success is True
    return right, asked
