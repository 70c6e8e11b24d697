"""What is paid beside the task (E12), by four plays: words again and again, nothing after something, nonsense in place of a
try, and tasks of one kind by themselves."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from workbench.basics.findings import (
    ERROR,
    NOTE,
    Checked,
    Finding,
    RuleResult,
)
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput, until_a_finding
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Script, replay
from workbench.values.errors import shortened
from workbench.values.stats import Estimate, mean_interval

LEAST = 4
TASKS = 4
WORDS = 6  # of the solver's text that are said again and again
TIMES = 40
KINDS = (2, 4)  # values of a field by which tasks are sorted: at least, and at most
# What a prompt says where income by the turn, or no answer, is a part of the task.
INCOME = re.compile(
    r"\b(?:each|every|per) (?:\w+ )?(?:turn|step|day|round|week|month|year|move)|income|interest|yield|profit",
    re.IGNORECASE,
)
ABSTAIN = re.compile(
    r"\b(?:abstain|pass|skip|give up|no answer|resign|decline|fold|stop|leave)\b", re.IGNORECASE
)


def check_beside(given: CheckInput) -> Iterator[RuleResult]:
    solver = [played for played in given.acted("solver") if played.reward is not None]
    if len(solver) < LEAST:
        return
    looks = (_said_again, _paid_again, _nonsense_saves, _of_one_kind)
    yield from until_a_finding(looks, given, solver)


# ------------------------------------------------------------------------------------------------ words again and again


def _said_again(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """One of the solver's words many times, in place of its last text, earns more than the solver."""
    example = ""
    gains: list[tuple[float, float]] = []
    for played in given.solved_once()[:TASKS]:
        words = dict.fromkeys(re.findall(r"\w{3,}", played.texts[-1]))
        best = 0.0
        for word in list(words)[-WORDS:]:
            text = given.as_answer(" ".join([word] * TIMES))
            again = replay(given.family, played.script.ending(text))
            reward = again.reward or 0.0
            if reward > best:
                best, example = reward, word
        gains.append((best, float(played.reward or 0.0)))
    yield Checked(len(gains), "words again and again")
    if len(gains) >= TASKS and all(got > max(1.01 * most, 0.0) + NEAR for got, most in gains):
        got, most = np.mean(gains, axis=0)
        yield Finding(
            f"one word, {example!r} for one, said {TIMES} times earns {got:.3g} at {len(gains)} tasks, more than the solver, "
            f"which earns {most:.3g}: what it counts is counted as often as it stands there. Count each thing once, or bound "
            "the reward"
        )


# ------------------------------------------------------------------------------------------------ paid again for nothing


def _paid_again(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Two turns of the solver, and then nothing that can be read: each of these turns is paid, as it is not at the start."""
    if INCOME.search(given.first_prompt):
        return
    paid: list[float] = []
    asked = 0
    for played in given.solved_once(least_turns=4)[:TASKS]:
        rest = len(played.texts) - 2
        idle = _rewards(given, played, (NONSENSE,) * len(played.texts))
        after = _rewards(given, played, (*played.texts[:2], *(NONSENSE,) * rest))[2:]
        if len(after) < 2 or not idle:
            continue
        asked += 1
        if max(idle) <= NEAR and min(after) > NEAR and max(after) - min(after) < NEAR:
            paid.append(after[0])
    yield Checked(asked, "turns after something was earned")
    if asked >= 3 and len(paid) == asked:
        yield Finding(
            f"after two turns of the solver each further turn is paid {np.mean(paid):.3g} for {NONSENSE!r}, at {asked} of "
            f"{asked} tasks, and nothing is paid for it at the start: what was earned is paid again in every later turn (the "
            "running total, not what was added). Pay each turn what it added"
        )


def _rewards(given: CheckInput, played: PlayedTrajectory, texts: tuple[str, ...]) -> list[float]:
    again = replay(given.family, Script(played.task, played.seed, texts))
    return [float(result.reward or 0.0) for result in again.results]


# ------------------------------------------------------------------------------------------------ nonsense saves a fee


def _nonsense_saves(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """A text that cannot be read ends the trajectory, fails, and earns more than trying does by chance."""
    random = [played.reward for played in given.own.get("random", ()) if played.reward is not None]
    tries = [len(played.results) for played in given.own.get("random", ())]
    if len(random) < LEAST or given.family.max_turns < 2 or ABSTAIN.search(given.first_prompt):
        return
    nonsense = given.play("nonsense", lambda env, rng: NONSENSE)
    scored = [played for played in nonsense if played.reward is not None and not played.error]
    if len(scored) < LEAST:
        return
    yield Checked(len(scored), "nonsense")
    at_once = all(len(played.results) == 1 and played.ended for played in scored)
    fails = all(played.success is False for played in scored)
    rewards = [float(played.reward) for played in scored]
    by_chance = mean_interval(random)
    if at_once and fails and np.mean(tries) > 1.5 and min(rewards) > by_chance.high + NEAR:
        yield Finding(
            f"{NONSENSE!r}, which cannot be read, ends the trajectory at once and earns {np.mean(rewards):.3g}; random play "
            f"tries {np.mean(tries):.1f} times and earns {by_chance.mean:.3g}. A policy that cannot solve it yet learns to say "
            "nonsense, which is cheaper than a wrong try. Let an unreadable text cost what a wrong one costs, and go on"
        )


# ------------------------------------------------------------------------------------------------ tasks of one kind


def _of_one_kind(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """At tasks of one kind the solver earns less than another way to play, and at those of another kind more."""
    fields: dict[str, set[str]] = defaultdict(set)
    for task in given.tasks:
        for name, value in task.payload.items():
            if isinstance(value, (str, bool)):
                fields[name].add(str(value))
    low, high = KINDS
    for field, values in sorted(fields.items(), key=lambda pair: max(map(len, pair[1]))):
        if not low <= len(values) <= high:
            continue
        ours = _by_kind(solver, field)
        for way, trajectories in given.plays.items():
            theirs = _by_kind(trajectories, field)
            worse = [
                v
                for v in values
                if v in theirs and v in ours and theirs[v].low > ours[v].high + NEAR
            ]
            better = [
                v
                for v in values
                if v in theirs and v in ours and ours[v].low > theirs[v].high + NEAR
            ]
            yield Checked(len(trajectories), "tasks of one kind")
            if way != "solver" and worse and better:
                one, other = worse[0], better[0]
                yield Finding(
                    f"at tasks whose {field!r} is {one!r} {way} earns {theirs[one].mean:.3g} and the solver {ours[one].mean:.3g}, "
                    f"and where it is {other!r} the solver earns {ours[other].mean:.3g} and {way} {theirs[other].mean:.3g}: the "
                    f"reward of one role or side is paid to the other, its sign is turned for {shortened(one, 30)}, or the "
                    "solver plays that side wrong. Compute the reward from the side that the policy plays",
                    severity=ERROR if ours[one].mean < 0 < ours[other].mean else NOTE,
                )
                return


def _by_kind(trajectories: Sequence[PlayedTrajectory], field: str) -> Mapping[str, Estimate]:
    """The reward by the value of a field, of values with enough trajectories."""
    paid: dict[str, list[float]] = defaultdict(list)
    for played in trajectories:
        if played.reward is not None and field in played.task.payload:
            paid[str(played.task.payload[field])].append(played.reward)
    return {
        value: mean_interval(rewards) for value, rewards in paid.items() if len(rewards) >= LEAST
    }
