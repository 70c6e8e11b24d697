"""An action that was paid, said again and again (E12), and amounts that a prompt states against those that are paid (E29)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    is_over,
    replay,
    unplayable,
)
from workbench.values.errors import shortened

TASKS = 6
LEAST = 3
TIMES = 3  # that an action is paid again, at least
PAID_TURNS = 3  # of a trajectory that are tried
ENOUGH = 40  # turns by which amounts are judged
MOST_TERMS = 60  # of an amount in one reward
COSTS = re.compile(
    r"\b(?:costs?|minus|lose[s]?|penalty(?: of)?|deducted|fine of|subtracts?|takes? (?:off|away))[: ]+(?:you )?(?:a reward of )?-?(\d*\.\d+|\d+)(?!\d| ?(?:%|cents?|coins?|gold|points? of|€|\$|tokens?|turns?|moves?|steps?))",
    re.IGNORECASE,
)
PAYS = re.compile(
    r"\b(?:pays?|earns?|is worth|are worth|a reward of|bonus of|rewarded with)[: ]+(?:you )?(?:a bonus of )?\+?(\d*\.\d+|\d+)(?!\d| ?(?:%|cents?|coins?|gold|€|\$|tokens?|turns?|moves?|steps?))",
    re.IGNORECASE,
)


def check_once_more(given: CheckInput, solver: Sequence[PlayedTrajectory]) -> Iterator[RuleResult]:
    """An action that was paid and ended nothing, said in every turn that is left: at most as much as solving is paid."""
    if given.family.max_turns < TIMES + 2 or unplayable(given.family) is not None:
        return
    paid = [one.reward for one in solver if one.success and one.reward is not None]
    if len(paid) < LEAST:
        return
    most = float(np.mean(paid))
    farmed: list[tuple[PlayedTrajectory, PlayedTrajectory]] = []
    asked = 0
    spent = Spent()
    for one in _one_a_task(given):
        if spent.seconds > given.budget_s or asked == TASKS:
            break
        best = max(_repeated(given, one), key=lambda again: again.reward or 0.0, default=None)
        if best is None:
            continue
        asked += 1
        paid_again = [result.reward or 0.0 for result in best.results[len(best.results) // 2 :]]
        goes_on = len(paid_again) >= TIMES - 1 and min(paid_again) > NEAR and not best.success
        if goes_on and (best.reward or 0.0) > most + NEAR:
            farmed.append((one, best))
    yield Checked(asked, "a paid action again and again")
    if asked >= LEAST and 2 * len(farmed) >= asked and len(farmed) >= 2:
        one, best = farmed[0]
        yield Finding(
            f"an action that is paid once can be said again and is paid again: at {best.task.id!r} {shortened(best.texts[-1], 50)} "
            f"in every turn earns {best.reward:.3g} and solves nothing, and solving earns {most:.3g} on average (so at {len(farmed)} of "
            f"{asked} tasks): not to solve is worth more. Pay what is new (better than the best so far), or each thing once"
        )


def _one_a_task(given: CheckInput) -> Iterator[PlayedTrajectory]:
    """A trajectory that was paid before its end, of each task: random play's first."""
    known: set[str] = set()
    for one in chain(given.own.get("random", ()), given.own.get("solver", ())):
        if one.task.id not in known and not one.error and _paid_turns(one):
            known.add(one.task.id)
            yield one


def _paid_turns(one: PlayedTrajectory) -> list[int]:
    turns = [
        k
        for k, result in enumerate(one.results)
        if is_number(result.reward) and result.reward > NEAR and not is_over(result)
    ]
    return sorted(turns, key=lambda k: -one.results[k].reward)[:PAID_TURNS]


def _repeated(given: CheckInput, one: PlayedTrajectory) -> Iterator[PlayedTrajectory]:
    for k in _paid_turns(one):
        left = given.family.max_turns - k
        texts = (*one.texts[:k], *[one.texts[k]] * left)
        again = replay(given.family, one.script._replace(texts=texts))
        if again.error:  # it ended before
            texts = texts[: len(again.results)]
            again = replay(given.family, one.script._replace(texts=texts))
        if not again.error and again.reward is not None:
            yield again


# ------------------------------------------------------------------------------------------------ stated amounts


def check_amounts(given: CheckInput) -> Iterator[RuleResult]:
    """What a prompt says that something costs or pays is found, with that sign, in some reward."""
    turns = list(chain.from_iterable(one.results for one in given.played if not one.error))
    if len(turns) < ENOUGH or not given.baselines:
        return
    values = _amounts_paid(given)
    prompt = given.first_prompt
    for pattern, sign, verb in ((COSTS, -1, "costs"), (PAYS, 1, "pays")):
        for match in pattern.finditer(prompt):
            amount = float(match[1].rstrip("."))
            if amount <= 0:
                continue
            yield Checked(1, "amounts that a prompt states")
            ours = [value for value in values if _is_of(value, sign * amount)]
            turned = [value for value in values if abs(value + sign * amount) < NEAR]
            if ours or any(abs(value) > NEAR and _hides(value, sign * amount) for value in values):
                continue
            what = shortened(match[0], 50)
            if turned and not any(abs(value - sign * amount) < NEAR for value in values):
                yield Finding(
                    f"the prompt states {what}, and {turned[0]:+g} is what is paid, never {sign * amount:+g}, in {len(turns)} turns by "
                    f"{len(given.plays)} ways to play: the sign of the reward is not that of the prompt",
                    severity=ERROR,
                )
            elif sign < 0:  # what solving pays may be less something each time
                yield Finding(
                    f"the prompt states {what}, and no reward of {len(turns)} turns by {len(given.plays)} ways to play, nonsense and "
                    f"the solver among them, has {sign * amount:+g} in it: it is never paid, or is another number. What {verb} so is "
                    "never reached, or the prompt promises what the code does not do",
                    severity=NOTE,
                )
            return


def _amounts_paid(given: CheckInput) -> list[float]:
    """Rewards of turns and their parts, each once."""
    values: set[float] = set()
    for one in given.played:
        for result in one.results:
            paid = (result.reward, *result.reward_parts.values())
            values |= {round(float(value), 9) for value in paid if is_number(value)}
        if one.reward is not None:
            values.add(round(one.reward, 9))
    return sorted(values)


def _is_of(value: float, amount: float) -> bool:
    """Whether it is some times the amount."""
    times = value / amount
    return 1 - 1e-6 <= times <= MOST_TERMS and abs(times - round(times)) < 1e-6


def _hides(value: float, amount: float) -> bool:
    """Whether it is one, or another small number, and some times the amount beside it."""
    for base in (1.0, 0.5, 10.0):
        if value >= base / 2 and abs(value - base) > NEAR and _is_of(value - base, amount):
            return True
    return False
