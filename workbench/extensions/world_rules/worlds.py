"""Environments from outside (R30): what chance does, what play earns, where a trajectory ends, what is shown.

The family's own random play and solver are played at a few tasks, and so is nothing at all. Whatever a family does not
have is left out; one that is not the same twice, or remote, is not played here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import chain, islice
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.extensions.scripted_play.leaks import Probe, problem
from workbench.extensions.scripted_play.paid import (
    by_success,
    contradictions,
    solver_fails,
    success_disagrees,
    success_unpaid,
)
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Script,
    is_over,
    play,
    replay,
    text_of,
    unplayable,
)
from workbench.extensions.world_rules.leaks import probes
from workbench.extensions.world_rules.searches import check_searches
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.base import EnvFamily

TASKS = 12  # that are played
CHANCES = 12  # dynamics seeds of one trajectory
ENOUGH_S = 1.5  # of playing, after which no further trajectory is begun
ENOUGH = 8  # trajectories of either kind
ALWAYS = 4  # tasks whose prompt holds what solves them
STATED = r"\b(\d+) (?:moves|turns|steps|answers|tries|guesses|actions)\b"
LONG = 6  # characters of an action that no prompt holds by chance
CHANCE = (
    "slip",
    "noise",
    "noisy",
    "chance",
    "stochastic",
    "random",
    "probab",
)  # in the name of a setting
NOTHING = ("", "zzz", "<answer>zzz</answer>")  # actions that do nothing


# ------------------------------------------------------------------------------------------------ the rule


def check_worlds(evidence: Evidence) -> Iterator[RuleResult]:
    family = evidence.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    known = probes(family, TASKS)
    if not known:
        yield NotChecked(f"tasks of {family.name}")
        return
    plays = {name: _plays(family, known, name) for name in ("random", "solver")}
    every = list(chain.from_iterable(plays.values()))
    yield Checked(len(every))
    yield from _earned(plays, _under_other_chances(family, every))
    yield from _solution_in_prompt(plays["solver"])
    yield from _ends(family, plays["random"])
    yield from islice(filter(None, map(_contradiction, every)), 1)
    yield from _empty_actions(family, known)
    yield from _chance(family, every)
    yield from check_searches(family, known)


def _plays(family: EnvFamily, known: Sequence[Probe], name: str) -> list[PlayedTrajectory]:
    """By the family's own policy of this name. One that breaks is left out: R14 and R20 say where it does."""
    act = getattr(family, f"{name}_action", None)
    began = time.monotonic()
    plays: list[PlayedTrajectory] = []
    for number, probe in enumerate(known if act is not None else ()):
        if time.monotonic() - began > ENOUGH_S and number >= 2:
            break
        rng = rng_at("lint.worlds", name, number)
        seed = seed_of("lint.worlds", number)
        plays.append(play(family, probe.task, seed, lambda env: act(env, rng), read=("draw",)))
    return [played for played in plays if not played.error]


def _under_other_chances(
    family: EnvFamily, plays: Sequence[PlayedTrajectory]
) -> list[PlayedTrajectory]:
    """The same actions under other chances: what a trajectory is worth is an expectation."""
    began = time.monotonic()
    again = list(plays)
    for number in range(1, CHANCES):
        for played in plays:
            if time.monotonic() - began > ENOUGH_S:
                return again
            seed = seed_of("lint.worlds", played.seed, number)
            texts = iter(played.texts)
            other = play(
                family, played.task, seed, lambda env: next(texts), most=len(played.texts), read=()
            )
            again += [] if other.error else [other]
    return again


def _earned(
    plays: dict[str, list[PlayedTrajectory]], again: Sequence[PlayedTrajectory]
) -> Iterator[RuleResult]:
    """Who solves a task earns more than who does not; the best-known solver succeeds, and not less than chance does."""
    won, lost = by_success(again)
    wrong = [solver_fails(plays["solver"], plays["random"], TASKS // 2)]
    if min(len(won), len(lost)) >= ENOUGH:
        wrong.append(success_disagrees(won, lost, ENOUGH))
    else:
        wrong.append(success_unpaid(won, TASKS // 2))
    for what in filter(None, wrong):
        yield Finding(what)


def _solution_in_prompt(plays: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """What solves a task is written by the solver and stands in no prompt: not as its example, either."""
    shown = []
    for played in (played for played in plays if played.success):
        solution = re.sub(r"<[^<>]*>", "", played.texts[0].rpartition("</think>")[2]).strip()
        if (
            len(solution) >= LONG
            and solution in _prompt(played)
            and not any(solution in words for words in problem(played.task))
            and (
                not any(
                    solution in _prompt(other) for other in plays if other.task.id != played.task.id
                )
            )
        ):
            shown.append((played.task.id, solution))
    if len(shown) >= ALWAYS and 2 * len(shown) > len(plays):
        yield Finding(
            f"the first prompt holds what the best-known solver writes, at {len(shown)} of {len(plays)} "
            f"tasks, at each another (so {shortened(shown[0][1])} at {shown[0][0]!r})"
        )


def _prompt(played: PlayedTrajectory) -> str:
    return text_of(played.opening)


def _contradiction(played: PlayedTrajectory) -> Finding | None:
    """Find what one trajectory contradicts itself in."""
    drawn = [reading.get("draw") for reading in played.readings]
    shown = [text_of(observation) for observation in played.shown]
    shows_its_state = bool(drawn[0]) and drawn[0] in shown[0]
    for k, result in enumerate(played.results):
        wrong = next((what for _, what in contradictions(result)), None)
        state = drawn[k + 1]
        words = shown[k + 1]
        if wrong is None and shows_its_state and state and not (is_over(result) or state in words):
            wrong = f"it shows {shortened(words[-60:])} while its state is {shortened(state)}"
        if wrong is not None:
            turns = len(played.results)
            return Finding(
                f"at {played.task.id!r}, after action {k} of a {turns}-turn trajectory, {wrong}"
            )
    return None


def _ends(family: EnvFamily, plays: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """The limit on moves ends a trajectory at its number, and that is a limit and no end of the task."""
    cut = [played for played in plays if played.cut]
    stated = (
        {int(number) for number in re.findall(STATED, _prompt(cut[0]))} if len(cut) >= 3 else set()
    )
    ends = {played.moves or len(played.results) for played in cut}
    if len(ends) == 1 and stated and not stated & {*ends, *(len(played.results) for played in cut)}:
        yield Finding(
            f"{len(cut)} trajectories were cut after {ends.pop()} moves, and the first prompt speaks of "
            f"{' and '.join(map(str, sorted(stated)))}"
        )
    limit = getattr(family, "max_moves", None)
    if not isinstance(limit, int) or not plays:
        return
    at_limit = [played for played in plays if played.moves >= limit and not played.success]
    beyond = next((played for played in plays if played.moves > limit), None)
    early = next(
        (played for played in plays if played.cut and played.moves < limit),
        None,
    )
    if beyond or early:
        yield Finding(
            f"{(beyond or early).moves} moves were made at {(beyond or early).task.id!r} when the limit "
            f"ended it; max_moves is {limit}"
        )
    if len(at_limit) >= 3 and all(played.results[-1].terminated for played in at_limit):
        yield Finding(
            f"all {len(at_limit)} trajectories that used up max_moves = {limit} say that the task is over "
            "(terminated): a limit is truncated, and a critic bootstraps there"
        )


def _empty_actions(family: EnvFamily, known: Sequence[Probe]) -> Iterator[RuleResult]:
    """An action that says nothing solves nothing, and what could not be read is not paid for."""
    for text in NOTHING:
        won = 0
        paid = 0
        looked = 0
        for probe in known[: TASKS // 2]:
            played = play(family, probe.task, 0, lambda env, text=text: text, read=())
            if played.error:
                continue
            looked += 1
            won += played.success is True
            paid += any(
                r.info.get("valid_format") is False and (r.reward or 0) > 0 for r in played.results
            )
        yield Checked(looked)
        if 2 * won > looked >= 3:
            yield Finding(f"the action {text!r} succeeds at {won} of {looked} tasks")
        elif paid:
            yield Finding(
                f"the action {text!r} cannot be read, and is paid for at {paid} of {looked} tasks"
            )


# ------------------------------------------------------------------------------------------------ chance


def _chance(family: EnvFamily, plays: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """Chance belongs to the trajectory: it goes by the dynamics seed, and not by what all trajectories of a task share."""
    longest = sorted(plays, key=lambda played: -len(played.texts))
    scripts = [played.script for played in longest[:TASKS]]
    declared = [
        (name, value, other)
        for name, value in _chances(family)
        if (other := _changed(family, name, value))
    ]
    for script in scripts:
        chances = [script._replace(seed=seed_of("lint.chance", n)) for n in range(CHANCES)]
        own = [replay(family, varied).answers for varied in chances]
        yield Checked(1)
        if any(answers != own[0] for answers in own):
            return
    for name, value, changed in declared:
        differs = _answers_otherwise(family, changed, scripts)
        if sum(len(script.texts) for script in scripts) >= TASKS:
            yield Finding(
                f"{name} = {value} declares chance, and none of {CHANCES} dynamics seeds changes any of "
                f"{len(scripts)} trajectories: "
                + (
                    "all trajectories of a group meet the same"
                    if differs
                    else "it is without effect"
                )
            )


def _answers_otherwise(
    family: EnvFamily, variants: Sequence[EnvFamily], scripts: Sequence[Script]
) -> bool:
    """Whether any of these variants of a family answers otherwise than the family does."""
    for script in scripts:
        expected = _without_states(replay(family, script).answers)
        for variant in variants:
            if _without_states(replay(variant, script).answers) != expected:
                return True
    return False


def _without_states(answered: Sequence[Any]) -> list[Any]:
    """Answers, without the names of states, which may hold the task's."""
    return [answer[0] if isinstance(answer, tuple) else answer for answer in answered[1:]]


def _chances(family: EnvFamily) -> Iterator[tuple[str, Any]]:
    """Settings that declare chance, by their names: a share or a bonus may lie from 0 to 1 as well."""
    for setting in fields(family) if is_dataclass(family) else ():
        value = getattr(family, setting.name)
        if any(word in setting.name.lower() for word in CHANCE) and (
            value is True or isinstance(value, float) and 0.05 <= value <= 0.95
        ):
            yield setting.name, value


def _changed(family: EnvFamily, name: str, value: Any) -> list[EnvFamily]:
    """The family without this chance and with nothing but it; [] where that makes other tasks."""
    variants = []
    for other in (False,) if value is True else (0.0, 1.0):
        try:
            changed = replace(family, **{name: other})
        except Exception:  # a setting that may not be so
            continue
        if any(
            changed.task(seed).payload != family.task(seed).payload for seed in range(2 * TASKS)
        ):
            return []
        variants.append(changed)
    return variants


R30 = Rule(
    "R30",
    "an environment does what it says",
    "What is learned is another task than the one described: chance that a whole group shares, moves that do something "
    "else, success that is not paid, or an end that is none.",
    "Draw all chance from dynamics_seed, say terminated where the task is over and truncated where a limit ran out, "
    "and play the solver by hand with wb.play at the task that is named.",
    ("family",),
    check_worlds,
    "start",
)

RULES: tuple[Rule, ...] = (R30,)
