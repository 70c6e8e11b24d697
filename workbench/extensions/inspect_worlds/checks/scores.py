"""What a score goes by (E26): by what the policy wrote, and by nothing that the world said; and that it is there for wrong answers.
And by nothing that was scored before (part of E22)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from workbench.basics.findings import (
    Checked,
    Finding,
    NotChecked,
    RuleResult,
)
from workbench.extensions.scripted_play.given import (
    NONSENSE,
    SLOW_S,
    CheckInput,
    until_a_finding,
)
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Spent, play, replay
from workbench.values import Message, Observation, Task, Trajectory
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.baselines import trajectory_of, with_its_score
from workbench.worlds.scoring import scores_after

LEAST = 4  # trajectories by which a score is judged
FRESH = 4  # tasks that nobody has played, in either order
AGAIN = 4  # trajectories that are scored once more


def check_scores(given: CheckInput) -> Iterator[RuleResult]:
    """A score goes by the policy's words, and wrong or unreadable ones have one."""
    family: Any = given.family
    if not callable(getattr(family, "score", None)):
        yield NotChecked("a score(trajectory) of the family's own")
        return
    solved = [
        played for played in given.own.get("solver", ()) if played.success and not played.error
    ]
    if len(solved) < LEAST:
        yield NotChecked("a solver that succeeds, whose trajectories are scored")
        return
    yield from _of_the_worlds_words(family, solved)
    yield from _unscored(given, family)


def _of_the_worlds_words(family: Any, solved: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """The policy says nothing, and the world says the right answer."""
    paid = []
    for played in solved[: 2 * LEAST]:
        if len(played.texts) < 2:
            continue
        answering = Observation((Message("user", played.texts[-1]),))
        turns = [
            (NONSENSE, replace(result, observation=answering, reward=0.0, reward_parts={}))
            for result in played.results
        ]
        paid.append(
            _success_of(family, trajectory_of(played.task, played.seed, played.opening, turns))
        )
    yield Checked(len(paid), "the world's words")
    if len(paid) >= LEAST and all(paid):
        yield Finding(
            f"score() is success at {len(paid)} tasks where the policy said {NONSENSE!r} in every turn and the world's "
            f"replies held the right answer ({shortened(solved[0].texts[-1], 60)}): it looks for the answer anywhere in "
            "the transcript, so looking something up is paid without answering. Score what the policy wrote: "
            "trajectory.turns[-1].text"
        )


def _success_of(family: Any, trajectory: Trajectory) -> bool:
    scored = with_its_score(family, trajectory)  # unscored, where it asks for more than was made up
    return scored.scored and scored.success is True


def _unscored(given: CheckInput, family: Any) -> Iterator[RuleResult]:
    """An answer that cannot be read is wrong, and not without a score."""
    for name, trajectories in {**given.own, **given.fixed}.items():
        complete = [played for played in trajectories if played.results and not played.error]
        if name == "solver" or len(complete) < LEAST:
            continue
        none = [played for played in complete[:LEAST] if not _is_scored(family, played)]
        yield Checked(len(complete), "unreadable answers")
        if len(none) == LEAST:
            yield Finding(
                f"score() is None for all {len(none)} trajectories of {name}, and a number for the solver's: answers that "
                "cannot be read are not scored, so failures are left out of the loss, the baseline and the evaluation, and "
                "success is counted over the readable ones. Return a score of zero for a wrong or unreadable answer, and "
                "None only where the score could not be computed"
            )
            return


def _is_scored(family: Any, played: PlayedTrajectory) -> bool:
    ended = with_its_score(family, played.trajectory)
    return ended.scored and ended.outcome is not None


# ------------------------------------------------------------------------------------------------ what was scored before


def check_score_order(given: CheckInput) -> Iterator[RuleResult]:
    """What a trajectory earns depends on no other one: the same trajectories once more, and new tasks played wrong first or
    right first."""
    if given.step_s > SLOW_S or not given.baselines:
        return
    looks = (_scored_twice, _in_either_order)
    yield from until_a_finding(looks, given)


def _scored_twice(given: CheckInput) -> Iterator[RuleResult]:
    if not scores_after(given.family):
        return  # what step() pays is compared by E3
    for trajectories in given.own.values():
        for played in trajectories[:AGAIN]:
            if played.error or played.reward is None:
                continue
            again = [replay(given.family, played.script).reward for _ in range(2)]
            yield Checked(1, "scores once more")
            if None not in again and abs(again[0] - again[1]) > NEAR * (1 + abs(again[0])):
                yield Finding(
                    f"the same trajectory of {played.task.id!r} is scored {again[0]:.6g}, and the next time {again[1]:.6g}: "
                    "what it earns depends on what was scored before it. Something outlives it: a running mean, a cache, a "
                    "counter of the class or module. Compute a score from its trajectory alone"
                )
                return


def _in_either_order(given: CheckInput) -> Iterator[RuleResult]:
    """At tasks that are new to this process: a wrong trajectory and the solver's, in either order. Wrong is what cannot be
    read; then what the solver says at another task."""
    family: Any = given.family
    solver = given.own.get("solver", ())
    if not solver or hasattr(family, "task_seeds"):
        return
    for wrong in ((NONSENSE,) * family.max_turns, solver[0].texts):
        outcomes = _outcomes(given, wrong)
        if outcomes is None:
            return
        yield Checked(2 * FRESH, "wrong and right in both orders")
        remembered = all(outcomes["wrong after"]) and not any(outcomes["wrong"])
        forgotten = all(outcomes["right"]) and not any(outcomes["right after"])
        if remembered or forgotten:
            first, then = ("the solver's", "wrong") if remembered else ("a wrong", "the solver's")
            yield Finding(
                f"at {FRESH} new tasks {then} trajectories {'succeed' if remembered else 'fail'} where {first} one was played "
                "before them, and at no task where they came first: success is remembered by task, and given to other "
                "attempts at it. Something outlives its trajectory (a set of the class, a cache whose key is the task alone): "
                "keep it in reset, or put the answer into the key"
            )
            return


def _outcomes(given: CheckInput, wrong: Sequence[str]) -> dict[str, list[bool]] | None:
    """Success of wrong and right trajectories that came first, and of those that came after the other; None where it is
    not known."""
    family: Any = given.family
    spent = Spent()
    outcomes: dict[str, list[bool]] = {
        "wrong": [],
        "wrong after": [],
        "right": [],
        "right after": [],
    }
    for number in range(2 * FRESH):
        task = family.task(seed_of("check-env", "in order", wrong[0], number))
        wrong_first = number % 2 == 0
        for turn in (0, 1):
            is_wrong = wrong_first == (turn == 0)
            success = _played_once(family, task, wrong if is_wrong else None)
            if success is None or spent.seconds > given.budget_s:
                return None
            name = "wrong" if is_wrong else "right"
            outcomes[f"{name} after" if turn else name].append(success)
    return outcomes


def _played_once(family: Any, task: Task, texts: Sequence[str] | None) -> bool | None:
    """By these texts, as many as there are, or by the solver."""
    if texts is not None:
        fixed = iter(texts)
        most = min(len(texts), family.max_turns)
        return play(family, task, 0, lambda env: next(fixed), most=most).success
    rng = rng_at("check-env", "in order", task.id)
    return play(family, task, 0, lambda env: family.solver_action(env, rng)).success
