"""Environments from outside (R30): what chance does, what play earns, where an attempt ends, what is shown.

The family's own random play and solver are played at a few tasks, and so is nothing at all. Whatever a family does not
have is left out; one that is not the same twice, or remote, is not played here.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, is_dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from workbench.envs.base import EnvFamily
from workbench.envs.checks.scripts import Script, played_alone, unplayable
from workbench.envs.leaks import Probe, problem
from workbench.envs.shared import opened
from workbench.linting.evidence import Evidence
from workbench.linting.leaks import probes
from workbench.linting.rule import Rule, RuleResult
from workbench.linting.searches import check_searches
from workbench.types import StepResult, Task
from workbench.types.findings import Checked, Finding, NotChecked, shortened
from workbench.types.seeds import rng_at, seed_of

TASKS = 12  # that are played
CHANCES = 12  # dynamics seeds of one attempt
ENOUGH_S = 1.5  # of playing, after which no further attempt is begun
SIGMAS = 4.0  # standard errors between the rewards of successes and failures
ENOUGH = 8  # attempts of either kind
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


class AttemptProbe(NamedTuple):
    """One attempt. `shown` [K + 1]: what the policy saw; `drawn` [K + 1]: the state as the environment draws it."""

    task: Task
    seed: int
    texts: tuple[str, ...]
    results: tuple[StepResult, ...]
    shown: tuple[str, ...]
    drawn: tuple[str | None, ...]

    @property
    def success(self) -> bool | None:
        last = self.results[-1].info.get("success") if self.results else None
        return last if isinstance(last, bool) else None

    @property
    def reward(self) -> float | None:
        paid = [result.reward for result in self.results]
        return None if None in paid or not paid else float(sum(paid))

    @property
    def moves(self) -> int:
        return sum(len(result.info.get("moves", ())) for result in self.results)


def played(
    family: EnvFamily, task: Task, seed: int, act: Callable[[Any], str], most: int | None = None
) -> AttemptProbe:
    with opened(family) as env:
        opening = env.reset(task, seed)
        texts, results, shown, drawn = [], [], [_text(opening)], [_drawn(env)]
        for _ in range(most or family.max_turns):
            texts.append(act(env))
            results.append(env.step(texts[-1]))
            shown.append(_text(results[-1].observation))
            drawn.append(_drawn(env))
            if results[-1].terminated or results[-1].truncated:
                break
    return AttemptProbe(task, seed, tuple(texts), tuple(results), tuple(shown), tuple(drawn))


def _text(observation: Any) -> str:
    return "\n".join(message.text for message in observation.messages)


def _drawn(env: Any) -> str | None:
    return env.draw() if callable(getattr(env, "draw", None)) else None


# ------------------------------------------------------------------------------------------------ the rule


def check_worlds(evidence: Evidence) -> Iterator[RuleResult]:
    family = evidence.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    found = probes(family, TASKS)
    if not found:
        yield NotChecked(f"tasks of {family.name}")
        return
    plays = {name: _plays(family, found, name) for name in ("random", "solver")}
    every = [play for some in plays.values() for play in some]
    yield Checked(len(every))
    yield from _earned(plays, _again(family, every))
    yield from _told(plays["solver"])
    yield from _ends(family, plays["random"])
    yield from islice(filter(None, map(_of_one, every)), 1)
    yield from _nothing(family, found)
    yield from _chance(family, every)
    yield from check_searches(family, found)


def _plays(family: EnvFamily, found: Sequence[Probe], name: str) -> list[AttemptProbe]:
    act, began, plays = getattr(family, f"{name}_action", None), time.monotonic(), []
    for number, probe in enumerate(found if act is not None else ()):
        if time.monotonic() - began > ENOUGH_S and number >= 2:
            break
        rng = rng_at("lint.worlds", name, number)
        try:
            plays.append(
                played(
                    family, probe.task, seed_of("lint.worlds", number), lambda env: act(env, rng)
                )
            )
        except Exception:  # anybody's environment; R14 and R20 say where it breaks
            continue
    return plays


def _again(family: EnvFamily, plays: Sequence[AttemptProbe]) -> list[AttemptProbe]:
    """The same actions under other chances: what an attempt is worth is an expectation."""
    began, found = time.monotonic(), list(plays)
    for number in range(1, CHANCES):
        for play in plays:
            if time.monotonic() - began > ENOUGH_S:
                return found
            texts = iter(play.texts)
            try:
                seed = seed_of("lint.worlds", play.seed, number)
                found.append(
                    played(family, play.task, seed, lambda env: next(texts), len(play.texts))
                )
            except Exception:  # some environment took another way, and breaks there
                continue
    return found


def _earned(
    plays: dict[str, list[AttemptProbe]], again: Sequence[AttemptProbe]
) -> Iterator[RuleResult]:
    """Who solves a task earns more than who does not; the best-known solver succeeds, and not less than chance does."""
    every = [play for play in again if play.reward is not None and play.success is not None]
    won, lost = (
        np.array([play.reward for play in every if play.success is value])
        for value in (True, False)
    )
    solver, random = (
        [play.success for play in plays[name] if play.success is not None]
        for name in ("solver", "random")
    )
    if len(solver) >= TASKS // 2 and not any(solver):
        yield Finding(
            f"the best-known solver succeeds at none of {len(solver)} tasks (random play at {sum(random)} of "
            f"{len(random)}): moves do not do what they are called, or success is not seen"
        )
    elif len(solver) >= TASKS // 2 and random and np.mean(solver) + 0.3 < np.mean(random):
        yield Finding(
            f"the best-known solver succeeds at {np.mean(solver):.0%} of {len(solver)} tasks, random play at "
            f"{np.mean(random):.0%}: success is turned, or moves are"
        )
    if min(len(won), len(lost)) >= ENOUGH:
        error = math.sqrt(won.var() / len(won) + lost.var() / len(lost))
        if won.mean() < lost.mean() - max(SIGMAS * error, 1e-9) or (np.ptp([*won, *lost]) == 0):
            yield Finding(
                f"{len(won)} attempts that succeed earn {won.mean():.4g} on average, and {len(lost)} that "
                f"fail earn {lost.mean():.4g}: success and reward disagree"
            )
    elif (
        len(won) >= TASKS // 2
        and won.max() <= 0
        and not any(
            value > 0
            for play in every
            if play.success
            for r in play.results
            for value in r.reward_parts.values()
        )
    ):
        yield Finding(
            f"{len(won)} attempts succeed, and nothing that is positive is paid to any of them (at most "
            f"{won.max():g})"
        )


def _told(plays: Sequence[AttemptProbe]) -> Iterator[RuleResult]:
    """What solves a task is written by the solver and stands in no prompt: not as its example, either."""
    found = []
    for play in (play for play in plays if play.success):
        said = re.sub(r"<[^<>]*>", "", play.texts[0].rpartition("</think>")[2]).strip()
        if (
            len(said) >= LONG
            and said in play.shown[0]
            and not any(said in words for words in problem(play.task))
            and (
                not any(said in other.shown[0] for other in plays if other.task.id != play.task.id)
            )
        ):
            found.append((play.task.id, said))
    if len(found) >= ALWAYS and 2 * len(found) > len(plays):
        yield Finding(
            f"the first prompt holds what the best-known solver writes, at {len(found)} of {len(plays)} "
            f"tasks, at each another (so {shortened(found[0][1])} at {found[0][0]!r})"
        )


def _of_one(play: AttemptProbe) -> Finding | None:
    """What one attempt contradicts itself in."""
    where = f"at {play.task.id!r}, after action {{}} of a {len(play.results)}-turn attempt, "
    for k, result in enumerate(play.results):
        if result.terminated and result.truncated:
            return Finding(where.format(k) + "it is both over and cut by a limit")
        if (
            result.reward_parts
            and result.reward is not None
            and abs(sum(result.reward_parts.values()) - result.reward)
            > 1e-6 * (1 + abs(result.reward))
        ):
            return Finding(
                where.format(k) + f"the reward is {result.reward:g}, and its parts "
                f"{dict(result.reward_parts)} make "
                f"{sum(result.reward_parts.values()):g}"
            )
        if (
            play.drawn[0]
            and play.drawn[0] in play.shown[0]
            and play.drawn[k + 1]
            and not (
                result.terminated or result.truncated or play.drawn[k + 1] in play.shown[k + 1]
            )
        ):
            return Finding(
                where.format(k)
                + f"it shows {shortened(play.shown[k + 1][-60:])} while its state is "
                f"{shortened(play.drawn[k + 1])}"
            )
    return None


def _ends(family: EnvFamily, plays: Sequence[AttemptProbe]) -> Iterator[RuleResult]:
    """The limit on moves ends an attempt at its number, and that is a limit and no end of the task."""
    cut = [play for play in plays if play.results and play.results[-1].truncated]
    stated = (
        {int(number) for number in re.findall(STATED, cut[0].shown[0])} if len(cut) >= 3 else set()
    )
    ends = {play.moves or len(play.results) for play in cut}
    if len(ends) == 1 and stated and not stated & {*ends, *(len(play.results) for play in cut)}:
        yield Finding(
            f"{len(cut)} attempts were cut after {ends.pop()} moves, and the first prompt speaks of "
            f"{' and '.join(map(str, sorted(stated)))}"
        )
    limit = getattr(family, "max_moves", None)
    if not isinstance(limit, int) or not plays:
        return
    at_limit = [play for play in plays if play.moves >= limit and not play.success]
    beyond = next((play for play in plays if play.moves > limit), None)
    early = next(
        (
            play
            for play in plays
            if play.results and play.results[-1].truncated and play.moves < limit
        ),
        None,
    )
    if beyond or early:
        yield Finding(
            f"{(beyond or early).moves} moves were made at {(beyond or early).task.id!r} when the limit "
            f"ended it; max_moves is {limit}"
        )
    if len(at_limit) >= 3 and all(play.results[-1].terminated for play in at_limit):
        yield Finding(
            f"all {len(at_limit)} attempts that used up max_moves = {limit} say that the task is over "
            "(terminated): a limit is truncated, and a critic bootstraps there"
        )


def _nothing(family: EnvFamily, found: Sequence[Probe]) -> Iterator[RuleResult]:
    """An action that says nothing solves nothing, and what could not be read is not paid for."""
    for text in NOTHING:
        won, paid, looked = 0, 0, 0
        for probe in found[: TASKS // 2]:
            try:
                play = played(family, probe.task, 0, lambda env, text=text: text)
            except Exception:
                continue
            looked += 1
            won += play.success is True
            paid += any(
                r.info.get("valid_format") is False and (r.reward or 0) > 0 for r in play.results
            )
        yield Checked(looked)
        if 2 * won > looked >= 3:
            yield Finding(f"the action {text!r} succeeds at {won} of {looked} tasks")
        elif paid:
            yield Finding(
                f"the action {text!r} cannot be read, and is paid for at {paid} of {looked} tasks"
            )


# ------------------------------------------------------------------------------------------------ chance


def _chance(family: EnvFamily, plays: Sequence[AttemptProbe]) -> Iterator[RuleResult]:
    """Chance belongs to the attempt: it goes by the dynamics seed, and not by what all attempts at a task share."""
    scripts = [
        Script(play.task, play.seed, play.texts)
        for play in sorted(plays, key=lambda p: -len(p.texts))[:TASKS]
    ]
    declared = [
        (name, value, other)
        for name, value in _chances(family)
        if (other := _changed(family, name, value))
    ]
    for script in scripts:
        own = [
            played_alone(family, script._replace(seed=seed_of("lint.chance", n)))
            for n in range(CHANCES)
        ]
        yield Checked(1)
        if any(each != own[0] for each in own):
            return
    for name, value, changed in declared:
        differs = any(
            _rest(played_alone(each, script)) != _rest(played_alone(family, script))
            for script in scripts
            for each in changed
        )
        if sum(len(script.texts) for script in scripts) >= TASKS:
            yield Finding(
                f"{name} = {value} declares chance, and none of {CHANCES} dynamics seeds changes any of "
                f"{len(scripts)} attempts: "
                + ("all attempts of a group meet the same" if differs else "it is without effect")
            )


def _rest(said: Sequence[Any]) -> list[Any]:
    """Answers, without the names of states, which may hold the task's."""
    return [each[0] if isinstance(each, tuple) else each for each in said[1:]]


def _chances(family: EnvFamily) -> Iterator[tuple[str, Any]]:
    """Settings that declare chance, by their names: a share or a bonus may lie from 0 to 1 as well."""
    for each in fields(family) if is_dataclass(family) else ():
        value = getattr(family, each.name)
        if any(word in each.name.lower() for word in CHANCE) and (
            value is True or isinstance(value, float) and 0.05 <= value <= 0.95
        ):
            yield each.name, value


def _changed(family: EnvFamily, name: str, value: Any) -> list[EnvFamily]:
    """The family without this chance and with nothing but it; [] where that makes other tasks."""
    found = []
    for other in (False,) if value is True else (0.0, 1.0):
        try:
            changed = replace(family, **{name: other})
        except Exception:  # a setting that may not be so
            continue
        if any(
            changed.task(seed).payload != family.task(seed).payload for seed in range(2 * TASKS)
        ):
            return []
        found.append(changed)
    return found


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
