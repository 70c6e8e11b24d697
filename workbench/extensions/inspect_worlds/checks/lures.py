"""What earns more than solving (E12): another way to play, going on for the next reward without an end, waiting first; and a
part of the reward that only goes down as the task is solved.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_worlds.checks.once_more import check_once_more
from workbench.extensions.scripted_play.given import EMPTY, CheckInput, until_a_finding
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    Spent,
    is_number,
    is_over,
    replay,
    unplayable,
)
from workbench.values.seeds import rng_at, seed_of
from workbench.values.stats import Estimate, mean_interval

LEAST = 4  # trajectories by which a way to play is judged
SIGMAS = 4.0
WEAK = 0.5  # success of a solver that is no standard
TASKS = 3  # at which the next reward is looked for
ACTIONS = 5  # that are tried in each turn
TURNS = 24
CHANCES = 6  # dynamics seeds of what was found
WAITED = 2  # turns that are spent before the solver plays
GAIN = 0.01  # of what the solver earns
ENOUGH = 8  # turns by which a part of the reward is judged
OFTEN = 0.25  # of the turns of others
BETWEEN = "the reward of turns before the last"


def check_lures(given: CheckInput) -> Iterator[RuleResult]:
    """The solver earns most: whoever earns more has found what is paid beside the task."""
    solver = given.own.get("solver", ())
    if len(solver) < LEAST or not any(played.success is not False for played in solver):
        return
    looks = (_earns_more, _never_ends, check_once_more, _waits, _turned)
    yield from until_a_finding(looks, given, solver)


# ------------------------------------------------------------------------------------------------ another way to play


class RewardEstimate(NamedTuple):
    reward: Estimate
    success: float | None


def _earned(trajectories: Sequence[PlayedTrajectory]) -> RewardEstimate | None:
    paid = [played.reward for played in trajectories if played.reward is not None]
    known = [played.success for played in trajectories if played.success is not None]
    if len(paid) < LEAST:
        return None
    return RewardEstimate(mean_interval(paid), float(np.mean(known)) if known else None)


def _earns_more(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    best = _earned(solver)
    if best is None or not best.success:
        return
    for name, trajectories in given.plays.items():
        other = None if name == "solver" else _earned(trajectories)
        if other is None or other.success is None or other.success >= best.success:
            continue
        yield Checked(len(trajectories))
        clear = other.reward.low > best.reward.high + NEAR
        if clear and best.success - other.success > 1 / len(trajectories):
            part, theirs, ours = _most_apart(trajectories, solver)
            most = (
                f": mostly {part!r}, {theirs:.3g} of it, {ours:.3g} to the solver" if part else ""
            )
            yield Finding(
                f"{name} earns {other.reward.mean:.3g} on average of {len(trajectories)} trajectories and succeeds at "
                f"{other.success:.0%} of them; expected less than the solver, which earns {best.reward.mean:.3g} and "
                f"succeeds at {best.success:.0%}{most}. Pay it once, or as a difference that comes back when it is undone",
                severity=ERROR if best.success >= WEAK else NOTE,
            )
            return


def _most_apart(
    others: Sequence[PlayedTrajectory], solver: Sequence[PlayedTrajectory]
) -> tuple[str, float, float]:
    """The part of the reward by which others earn most above the solver."""
    theirs = _parts(others)
    ours = _parts(solver)
    if not theirs:
        return "", 0.0, 0.0
    part = max(theirs, key=lambda name: theirs[name] - ours.get(name, 0.0))
    return part, theirs[part], ours.get(part, 0.0)


def _parts(trajectories: Sequence[PlayedTrajectory]) -> dict[str, float]:
    """What each part pays in a trajectory, on average."""
    sums: Counter[str] = Counter()
    for played in trajectories:
        for result in played.results:
            for name, value in result.reward_parts.items():
                sums[name] += float(value) if is_number(value) else 0.0
    return {name: total / len(trajectories) for name, total in sums.items()}


# ------------------------------------------------------------------------------------------------ for the next reward


def _never_ends(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Take whatever pays most in the next turn and ends nothing; that fails, and must earn less than solving."""
    if given.family.max_turns < 3 or unplayable(given.family) is not None:
        return
    actions = given.common_actions(ACTIONS)
    by_task = _solved_for(solver)
    first = {played.task.id: played for played in solver if played.task.id in by_task}
    pairs: list[tuple[float, float]] = []
    example: PlayedTrajectory | None = None
    spent = Spent()
    for played in list(first.values())[:TASKS]:
        script = _greedy(given, Script(played.task, played.seed, ()), actions, spent)
        again = _at_other_chances(given, script)
        if not again or any(one.success or one.reward is None for one in again):
            return
        example = again[0]
        pairs.append((float(np.mean([one.reward for one in again])), max(by_task[played.task.id])))
    if example is None or len(pairs) < TASKS:
        return
    yield Checked(len(pairs))
    if all(got > most + GAIN * abs(most) for got, most in pairs):
        yield _paid_without_end(pairs, example)


def _solved_for(solver: Sequence[PlayedTrajectory]) -> dict[str, list[float]]:
    """Task -> what the solver was paid for solving it."""
    by_task: dict[str, list[float]] = defaultdict(list)
    for played in solver:
        if played.success and played.reward is not None:
            by_task[played.task.id].append(played.reward)
    return by_task


def _paid_without_end(pairs: Sequence[tuple[float, float]], example: PlayedTrajectory) -> Finding:
    got = float(np.mean([pair[0] for pair in pairs]))
    most = float(np.mean([pair[1] for pair in pairs]))
    last = ", ".join(repr(text) for text in example.texts[-3:])
    return Finding(
        f"whoever takes the action that pays most in each turn and never ends the task earns {got:.3g} at "
        f"{len(pairs)} tasks and succeeds at none; expected less than the solver, which solves them for {most:.3g}. At "
        f"{example.task.id!r} the last of {len(example.texts)} actions are {last}: what they pay can be had again and "
        "again. Pay it once, or as a difference that comes back when it is undone"
    )


def _greedy(given: CheckInput, script: Script, actions: Sequence[str], spent: Spent) -> Script:
    """The actions of whoever looks one turn ahead; equal ones by chance."""
    rng = rng_at("check-env", "greedy", script.task.id)
    for _ in range(min(given.family.max_turns - 1, TURNS)):
        if spent.seconds > given.budget_s:
            break
        worth = _next_rewards(given, script, rng.permutation(actions).tolist())
        if not worth:
            break
        best = [text for text, reward in worth.items() if reward >= max(worth.values()) - NEAR]
        if len(best) > 1:  # of equal ones, that after which most can be had
            ahead = {text: _most_after(given, script, text, actions) for text in best}
            best = [max(ahead, key=ahead.get)]
        script = script.then(best[0])
    return script


def _next_rewards(given: CheckInput, script: Script, actions: Sequence[str]) -> dict[str, float]:
    """What each action pays next, of those that end nothing."""
    worth: dict[str, float] = {}
    for text in actions:
        ahead = replay(given.family, script.then(text))
        last = ahead.results[-1] if ahead.results and not ahead.error else None
        if last is not None and not is_over(last) and is_number(last.reward):
            worth[text] = float(last.reward)
    return worth


def _most_after(given: CheckInput, script: Script, text: str, actions: Sequence[str]) -> float:
    further = _next_rewards(given, script.then(text), actions)
    return max(further.values(), default=float("-inf"))


def _at_other_chances(given: CheckInput, script: Script) -> list[PlayedTrajectory]:
    seeds = [script.seed]
    if given.by_chance:  # what was found by looking ahead knew its luck
        seeds = [seed_of("check-env", "luck", n) for n in range(CHANCES)]
    return [replay(given.family, script._replace(seed=seed)) for seed in seeds]


# ------------------------------------------------------------------------------------------------ waiting first


def _waits(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """The solver, after some turns that say nothing, or something that random play would do: solving later pays no more."""
    family: Any = given.family
    if family.max_turns < WAITED + 2:
        return
    ways: dict[str, Callable[[Any, np.random.Generator], str]] = {EMPTY: lambda env, rng: ""}
    if "random" in given.own:
        ways["random play"] = family.random_action
    at_once = {(played.task.id, played.seed): played for played in solver}
    for name, act in ways.items():
        later = given.play("solver", _after(act, family.solver_action), chances=2)
        pairs = []
        for played in later:
            other = at_once.get((played.task.id, played.seed))
            # A solver that does something else when it begins late is no comparison.
            if other is not None and _both_solved(played, other) and _alike(played, other):
                pairs.append((played.reward, other.reward, played))
        yield Checked(len(pairs))
        if len(pairs) >= LEAST and (gain := _clear_gain(pairs)) is not None:
            yield _waiting_pays(name, gain, pairs, at_once)
            return


def _waiting_pays(
    name: str,
    gain: float,
    pairs: Sequence[tuple[float, float, PlayedTrajectory]],
    at_once: Mapping[tuple[str, int], PlayedTrajectory],
) -> Finding:
    mean = float(np.mean([reward for _, reward, _ in pairs]))
    part, theirs, ours = _most_apart(
        [played for _, _, played in pairs],
        [at_once[played.task.id, played.seed] for _, _, played in pairs],
    )
    most = f" (mostly {part!r}: {theirs:.3g} instead of {ours:.3g})" if part else ""
    return Finding(
        f"{WAITED} turns of {name} before the solver's earn {gain:+.3g} more at {len(pairs)} tasks, all of them "
        f"solved; expected no more than the {mean:.3g} of solving at once{most}. The sign of what is paid for "
        "turns may be turned: let turns cost, or pay nothing for them",
        severity=NOTE if name != EMPTY and gain < 0.05 * abs(mean) else "error",
    )


def _after(
    first: Callable[[Any, np.random.Generator], str],
    then: Callable[[Any, np.random.Generator], str],
) -> Callable[[Any, np.random.Generator], str]:
    """Play `first` for some turns of each trajectory, and `then` to its end."""
    turns: Counter[np.random.Generator] = Counter()  # each trajectory is played with one of its own

    def act(env: Any, rng: np.random.Generator) -> str:
        turns[rng] += 1
        return first(env, rng) if turns[rng] <= WAITED else then(env, rng)

    return act


def _both_solved(one: PlayedTrajectory, other: PlayedTrajectory) -> bool:
    solved = one.success is True and other.success is True
    return solved and None not in (one.reward, other.reward)


def _alike(later: PlayedTrajectory, at_once: PlayedTrajectory) -> bool:
    return later.texts[WAITED : WAITED + 1] == at_once.texts[:1]


def _clear_gain(pairs: Sequence[tuple[float, float, PlayedTrajectory]]) -> float | None:
    """By how much the first of each pair is more on average; None where that is not clear."""
    gains = np.array([one - other for one, other, _ in pairs])
    error = float(gains.std()) / max(len(gains), 1) ** 0.5
    mean = float(gains.mean())
    scale = float(np.mean([abs(other) for _, other, _ in pairs]))
    all_more = bool((gains > NEAR).all())
    clear = all_more or mean > max(SIGMAS * error, NEAR)
    return mean if clear and mean > GAIN * scale else None


# ------------------------------------------------------------------------------------------------ a turned sign


def _turned(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """A part that never goes up in any turn of the solver, goes down in some, and often goes up for others."""
    ours = _by_turn(solver)
    others: list[PlayedTrajectory] = []
    for name, trajectories in given.own.items():
        others += trajectories if name != "solver" else ()
    theirs = _by_turn(others)
    for part, values in ours.items():
        rest = theirs.get(part, [])
        if len(values) < ENOUGH or len(rest) < ENOUGH:
            continue
        yield Checked(len(values))
        up = sum(value > NEAR for value in rest)
        down = sum(value < -NEAR for value in values)
        falls = max(values) <= NEAR and 2 * down >= len(values)
        if falls and up >= OFTEN * len(rest):
            where = part if part == BETWEEN else f"the part {part!r} of the reward"
            yield Finding(
                f"{where} is below zero in {down} of {len(values)} turns of the solver and above zero in none, and above "
                f"zero in {up} of {len(rest)} turns of random play; expected that what solves the task is paid for. Its "
                "sign may be turned: look at which of the two numbers is taken from the other"
            )
            return


def _by_turn(trajectories: Sequence[PlayedTrajectory]) -> Mapping[str, list[float]]:
    """The values of each part by turn, and of the whole reward before the last turn."""
    values: dict[str, list[float]] = defaultdict(list)
    for played in trajectories:
        for k, result in enumerate(played.results):
            for name, value in result.reward_parts.items():
                values[name] += [float(value)] if is_number(value) else []
            if k + 1 < len(played.results) and is_number(result.reward):
                values[BETWEEN].append(float(result.reward))
    return values
