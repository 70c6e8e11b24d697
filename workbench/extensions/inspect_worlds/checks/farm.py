"""What can be earned without solving anything (E12): by nothing, by one text for all tasks, by saying it again, by length."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_worlds.checks.beside import check_beside
from workbench.extensions.inspect_worlds.checks.failed_calls import check_failed_calls
from workbench.extensions.inspect_worlds.checks.loops import check_loops
from workbench.extensions.inspect_worlds.checks.lures import check_lures
from workbench.extensions.scripted_play.given import (
    EMPTY,
    EVERYTHING,
    CheckInput,
    needs_given_words,
)
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    is_number,
)
from workbench.values.stats import Estimate, mean_interval, share

LEAST = 4  # trajectories by which a way to play is judged
AS_GOOD = 0.9  # of the solver's success (or return), which a constant comes up to
FURTHER = 24  # tasks at which a text that is right at a few is said again
AGAIN = 0.75  # of its successes there
WEAK = 0.5  # success of a solver that is no standard
GENEROUS = 0.5  # of what the solver earns
# Of what the solver earns, paid to trajectories that fail.
NEARLY_ALL = 0.95
MUCH = 0.5
SOME = 0.2
FEW_PROBLEMS = 8  # or fewer: then one text may well be the answer to them
FILLER = " and so on" * 60


class PolicyEstimate(NamedTuple):
    """The results of one way to play. `success` is None where it is not known, `reward` where none was scored;
    intervals are of 95 %."""

    policy: str
    attempts: int
    success: Estimate | None
    reward: Estimate | None
    turns: float


def earned(policy: str, trajectories: Sequence[PlayedTrajectory]) -> PolicyEstimate:
    successes = [float(played.success) for played in trajectories if played.success is not None]
    paid = [played.reward for played in trajectories if played.reward is not None]
    return PolicyEstimate(
        policy,
        len(trajectories),
        share(successes) if successes else None,
        mean_interval(paid) if paid else None,
        float(np.mean([len(played.results) for played in trajectories])) if trajectories else 0.0,
    )


def _mean(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.mean


def all_earned(given: CheckInput) -> list[PolicyEstimate]:
    """Random play and the solver first, then the fixed answers, the one that earns most before the others."""
    fixed = [earned(name, trajectories) for name, trajectories in given.fixed.items()]
    order = sorted(
        fixed,
        key=lambda estimate: (
            estimate.policy != EMPTY,
            -_mean(estimate.success),
            -_mean(estimate.reward),
        ),
    )
    return [*(earned(name, trajectories) for name, trajectories in given.own.items()), *order]


def check_farming(given: CheckInput) -> Iterator[RuleResult]:
    made = {estimate.policy: estimate for estimate in all_earned(given)}
    solver = made.get("solver")
    yield Checked(sum(estimate.attempts for estimate in made.values()))
    yield from _no_signal(given, made)
    few = len(set(given.problems)) <= FEW_PROBLEMS
    findings = [
        *_constants(given, made, solver, few),
        *_paid_for_failing(given, made, solver),
        *_again_and_again(given, solver),
        *_by_length(given, solver),
    ]
    yield from findings
    yield from check_lures(given)
    yield from check_beside(given)
    yield from check_failed_calls(given)
    yield from check_loops(given)


def _no_signal(given: CheckInput, made: Mapping[str, PolicyEstimate]) -> Iterator[RuleResult]:
    paid = [played.reward for played in given.played if played.reward is not None]
    ways = [name for name, estimate in made.items() if estimate.reward is not None]
    if (
        len(ways) >= 4
        and ("solver" in made or "random" in made)
        and len(paid) >= 2 * LEAST
        and np.ptp(paid) == 0
    ):
        yield Finding(
            f"all {len(paid)} trajectories, by {len(ways)} ways to play, earn {paid[0]:g}: nothing can be learned from it",
            severity=ERROR if "solver" in made else NOTE,
        )
    elif (
        "solver" not in made
        and "random" in made
        and len(paid) >= 4 * LEAST
        and max(paid) <= 0.0
        and not any(played.success is not False for played in given.played)
    ):
        yield Finding(
            f"none of {len(paid)} trajectories, by {len(ways)} ways to play, succeeds or earns "
            "anything above zero, and there is no solver: nothing says that a task can be "
            "solved, and a policy that begins like random play learns from penalties alone. "
            "Write a solver_action, or try one task by hand",
            severity=NOTE,
        )


# ------------------------------------------------------------------------------------------------ one text for all


def _constants(
    given: CheckInput, made: Mapping[str, PolicyEstimate], solver: PolicyEstimate | None, few: bool
) -> Iterator[Finding]:
    """A fixed text that succeeds about as often as the solver, or earns as much."""
    best: tuple[float, str] | None = None
    for name in given.fixed:
        estimate = made[name]
        if estimate.attempts < LEAST:
            continue
        if estimate.success is not None:
            bar = AS_GOOD * (solver.success.mean if solver and solver.success else 1.0)
            value = estimate.success.mean if bar > 0 and estimate.success.mean >= bar else None
        else:
            value = _return_like_the_solver(estimate, made[EMPTY], solver)
        if value is not None and (best is None or value > best[0]):
            best = value, name
    if best is None:
        return
    value, name = best
    if not few and made[name].success is not None and not _succeeds_again(given, name, value):
        return
    kind = "succeeds at" if made[name].success is not None else "earns"
    shown = f"{value:.0%}" if made[name].success is not None else f"{value:.3g}"
    solved = (
        ""
        if solver is None
        else f", the solver {_result_of(solver, made[name].success is not None)}"
    )
    many = (
        ""
        if not few
        else (
            f" (there are no more than {len(set(given.problems))} problems among {len(given.tasks)} tasks, so "
            "that one text can be the answer)"
        )
    )
    yield Finding(
        f"{name} {kind} {shown} of {made[name].attempts} trajectories of different tasks{solved}{many}"
        if made[name].success is not None
        else f"{name} {kind} {shown} on average{solved}{many}",
        severity=NOTE if _is_no_loophole(given, made, name) else _severity_of(given, name, few),
    )


def _succeeds_again(given: CheckInput, name: str, value: float) -> bool:
    """At further tasks: of two answers one may be right at eight in a row."""
    further = [*given.further_tasks(FURTHER, "constants")]
    played = given.play(name, lambda env, rng: given.constants[name], further)
    successes = [bool(one.success) for one in played]
    return not successes or float(np.mean(successes)) >= AGAIN * value


def _is_no_loophole(given: CheckInput, made: Mapping[str, PolicyEstimate], name: str) -> bool:
    """Whether a text that comes up to the solver is one good answer, a share of the reward, or a solver that is weak."""
    solver = made.get("solver")
    weak = solver is not None and solver.success is not None and solver.success.mean < WEAK
    paid = [played.reward for played in given.fixed[name] if played.reward is not None]
    graded = made[name].success is None and bool(paid) and float(np.ptp(paid)) > NEAR
    beside = name == EMPTY or name.startswith(EVERYTHING)
    plain = weak or graded or _is_the_solvers_own(given, name) or _earns_less(made, name)
    return _is_generous(made, name) or plain and not beside


def _is_the_solvers_own(given: CheckInput, name: str) -> bool:
    """Whether the solver says nothing else in all turns of its several: then it is what there is to do."""
    solver = [one for one in given.own.get("solver", ()) if one.texts]
    text = given.constants[name]
    return bool(solver) and all(len(one.texts) > 1 and set(one.texts) == {text} for one in solver)


def _earns_less(made: Mapping[str, PolicyEstimate], name: str) -> bool:
    """Whether it succeeds as often and is paid clearly less: success is not all that counts."""
    solver = made["solver"].reward if "solver" in made else None
    own = made[name].reward
    return None not in (solver, own) and own.high < solver.low


def _is_generous(made: Mapping[str, PolicyEstimate], name: str) -> bool:
    """Nobody says what a success is, and random play earns more than half of what the solver does: then one good answer is
    no loophole."""
    random = made.get("random")
    if made[name].success is not None or random is None or random.reward is None:
        return False
    return _return_like_the_solver(random, made[EMPTY], made.get("solver"), GENEROUS) is not None


def _severity_of(given: CheckInput, name: str, few: bool) -> str:
    if name.startswith(EVERYTHING):
        return NOTE if needs_given_words(given) else ERROR
    return NOTE if few and name != EMPTY else ERROR


def _return_like_the_solver(
    estimate: PolicyEstimate,
    empty: PolicyEstimate,
    solver: PolicyEstimate | None,
    as_good: float = AS_GOOD,
) -> float | None:
    if solver is None or solver.reward is None or estimate.reward is None:
        return None
    floor = min(0.0, empty.reward.mean if empty.reward else 0.0)
    reach = solver.reward.mean - floor
    return (
        estimate.reward.mean
        if reach > 0 and estimate.reward.mean - floor >= as_good * reach
        else None
    )


def _result_of(solver: PolicyEstimate, by_success: bool) -> str:
    value = solver.success if by_success else solver.reward
    if value is None:
        return "none known"
    return f"{value.mean:.0%}" if by_success else f"{value.mean:.3g}"


# ------------------------------------------------------------------------------------------------ paid for failing


def _scale(given: CheckInput, solver: PolicyEstimate | None) -> float:
    """The reward of a success: by the solver, or else by the trajectories that succeeded; 0 where nobody did."""
    if solver is not None and solver.reward is not None:
        return solver.reward.mean
    won = [played.reward for played in given.played if played.success and played.reward is not None]
    return float(np.mean(won)) if won else 0.0


def _paid_for_failing(
    given: CheckInput, made: Mapping[str, PolicyEstimate], solver: PolicyEstimate | None
) -> Iterator[Finding]:
    """A fixed text that fails and is paid all the same."""
    scale = _scale(given, solver)
    failed: dict[str, list[float]] = {}
    for name, trajectories in given.fixed.items():
        paid = [
            played.reward
            for played in trajectories
            if played.success is False and played.reward is not None
        ]
        if len(paid) >= LEAST and np.mean(paid) > max(SOME * scale, 0.0):
            failed[name] = paid
    if failed:
        severe = {name for name, paid in failed.items() if _is_severe(paid, scale, solver)}
        name = max(failed, key=lambda name: (name in severe, np.mean(failed[name])))
        beside = f"success is worth {scale:.3g}" if scale > 0 else "nobody succeeded"
        yield Finding(
            f"{name} fails and earns {np.mean(failed[name]):.3g} on average of {len(failed[name])} trajectories; {beside}",
            severity=ERROR if name in severe else NOTE,
        )
    unknown = [
        estimate
        for name, estimate in made.items()
        if name in given.fixed
        and estimate.success is None
        and estimate.reward
        and estimate.reward.mean > 0
        and estimate.attempts >= LEAST
    ]
    if unknown and (solver is None or solver.reward is None):
        most = max(unknown, key=lambda estimate: estimate.reward.mean)
        yield Finding(
            f"{most.policy} earns {most.reward.mean:.3g} on average, and there is no solver or success to compare it "
            "with",
            severity=NOTE,
        )


def _is_severe(paid: Sequence[float], scale: float, solver: PolicyEstimate | None) -> bool:
    """Whether failing is paid like solving: nearly as much, or more than half of it for the form alone, the same at each task.
    Less than that may be a share of what was right (shaping)."""
    mean = float(np.mean(paid))
    if scale <= 0:
        return solver is not None
    for_the_form = float(np.ptp(paid)) <= NEAR and mean > MUCH * scale + NEAR
    return for_the_form or mean >= NEARLY_ALL * scale


def _again_and_again(given: CheckInput, solver: PolicyEstimate | None) -> Iterator[Finding]:
    """The same text, which solves nothing, is paid for again in every turn: the reward grows with the number of turns."""
    scale = _scale(given, solver)
    for name, trajectories in given.fixed.items():
        long = [
            played for played in trajectories if len(played.results) >= 3 and not played.success
        ]
        rewards = [_rewards_after_the_first(played) for played in long]
        gains = [paid for paid in rewards if _pays_again(paid)]
        if len(gains) < 2 or 2 * len(gains) < len(long):
            continue
        total = float(np.mean([sum(paid) for paid in gains]))
        turns = float(np.mean([len(paid) for paid in gains]))
        known_to_fail = all(played.success is False for played in long)
        enough = MUCH if all(map(_for_the_form, gains)) else NEARLY_ALL
        severe = known_to_fail and total >= enough * scale > 0
        yield Finding(
            f"{name} is paid for again in every turn, and solves nothing: {total:.3g} in {turns:.0f} further turns"
            + (f"; success is worth {scale:.3g}" if scale > 0 else ""),
            severity=ERROR if severe else NOTE,
        )
        return


def _rewards_after_the_first(played: PlayedTrajectory) -> list[float | None]:
    return [result.reward for result in played.results[1:]]


def _pays_again(rewards: Sequence[float | None]) -> bool:
    """Whether two turns or more are paid, and none costs anything."""
    if not all(map(is_number, rewards)):
        return False
    return sum(value > 0 for value in rewards) >= 2 and min(rewards) >= 0


def _for_the_form(rewards: Sequence[float]) -> bool:
    """Whether every turn that is paid from the second on is paid, and alike: then it is for what is said. A text that is now
    right and now wrong is paid in some turns (a guess in each turn, each paid its share)."""
    return min(rewards) > 0 and float(np.ptp(rewards)) <= NEAR


def _with_filler(given: CheckInput, name: str, text: str) -> list[tuple[float, float]]:
    """(reward of the words alone or, where that is more, of filler alone; reward of the words with filler behind them) of tasks
    that are not solved by it: an answer that is no longer read may cost less than a bad one."""
    tasks = [played.task for played in given.fixed[name]][:LEAST]
    longer = given.play(f"{name}, longer", lambda env, rng: text + FILLER, tasks)
    unread = given.play("no answer, long", lambda env, rng: FILLER, tasks)
    return [
        (max(a.reward, c.reward), b.reward)
        for a, b, c in zip(given.fixed[name], longer, unread)
        if a.task.id == b.task.id
        and all(is_number(played.reward) for played in (a, b, c))
        and not b.success
    ]


def _by_length(given: CheckInput, solver: PolicyEstimate | None) -> Iterator[Finding]:
    """The same words, with filler behind them, earn more."""
    ways = [
        (name, text) for name, text in given.constants.items() if not name.startswith(EVERYTHING)
    ]
    chosen = ways[:3]
    scale = max(_scale(given, solver), 0.0)
    for name, text in chosen:
        pairs = _with_filler(given, name, text)
        if (
            len(pairs) >= 3
            and all(b > a + 1e-9 for a, b in pairs)
            and np.mean([b for _, b in pairs]) > 0
        ):
            gain = float(np.mean([b - a for a, b in pairs]))
            if gain >= 0.05 * scale:
                yield Finding(
                    f"{name} earns {gain:.3g} more with {len(FILLER.split())} words of filler behind it, and solves "
                    "nothing: the reward grows with length"
                )
                return
