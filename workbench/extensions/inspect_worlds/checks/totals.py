"""Rewards that are a running total (E29): what was earned so far, paid anew in every turn."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    is_number,
    replay,
    text_of,
)

LABELLED = re.compile(
    r"([A-Za-z][A-Za-z ]{1,24}?)\s*(?::|=|\bis\b)\s*([-+]?[$€£]?\d[\d,]*(?:\.\d+)?)(?![\w:]|\.\d)"
)
TOTALS = re.compile(
    r"\b(?:total|so far|points?|scores?|cash|money|balance|wealth|profit|earned|collected|won"
    r"|gained|bank|income)\b",
    re.IGNORECASE,
)
STANDS = re.compile(
    r"\b(?:each|every|per) (?:\w+ )?(?:turn|step|day|round|week|month"
    r"|move)s?\b[^.]{0,60}\b(?:pays?|earns?|worth|reward|rent|interest)|"
    r"\breward (?:of|in) (?:each|every|a) (?:turn|step|day|round) is (?:the|your) (?:total"
    r"|current|whole)",
    re.IGNORECASE,
)
TURNS = 4  # of a trajectory that has them, at least
FEWEST = 3  # trajectories
DIFFERENT = 3  # values of the reward
IDLE = 6  # turns that are tried


class LabelTurns(NamedTuple):
    """Of one trajectory and one label: its number at the start (None: not shown) and after each turn, and what turns were paid."""

    start: float | None
    shown: list[float]
    paid: list[float]


def check_totals(given: CheckInput) -> Iterator[RuleResult]:
    """Neither a number that is shown, nor what idle turns are paid, says that a reward is the sum so far."""
    if given.family.max_turns < TURNS or given.why_not_played(baselines=True) is not None:
        return
    played = [
        one
        for trajectories in given.own.values()
        for one in trajectories
        if len(one.results) >= TURNS
        and not one.error
        and all(is_number(result.reward) for result in one.results)
    ]
    yield Checked(len(played), "rewards that may be a running total")
    stands = STANDS.search(given.first_prompt) is not None
    for label, records in _by_label(played).items():
        how = _is_total_of(records)
        if how and len(records) >= FEWEST and not stands:
            paid_again = _paid_again(given, played)
            turn = records[0]
            sure = how != "so far" or TOTALS.search(label) is not None
            if how == "so far" and paid_again is False:
                continue
            yield Finding(
                f"the reward of a turn is all that was earned so far: "
                f"in {sum(len(one.paid) for one in records)} turns of {len(records)} "
                f"trajectories "
                f"it "
                f"equals {'the sum of all ' + repr(label) + ' up to it' if how == 'sum' else repr(label) + ' since the start'} "
                f"({', '.join(f'{value:g}' for value in turn.paid[:5])} ... "
                f"where {', '.join(f'{value:g}' for value in turn.shown[:5])} ... is shown), "
                "so what was earned once is paid again in every later turn, and early gains "
                "count for more. Pay the change of the turn",
                severity=ERROR if sure else NOTE,
            )
            return
    if not stands and (again := _paid_again(given, played)):
        one, k, amounts = again
        yield Finding(
            f"a turn that does nothing is paid what the turn before it was paid: "
            f"after {one.results[k].reward:+.3g} at {one.task.id!r} "
            f"{NONSENSE!r} is paid it once more, so with {len(amounts)} different amounts "
            f"({', '.join(f'{amount:g}' for amount in sorted(amounts)[:5])}), and rewards of a "
            f"trajectory grow with what was earned before: "
            "they look like the sum so far, paid anew in every turn. Pay the change of the turn",
            severity=NOTE,
        )


def _by_label(played: Sequence[PlayedTrajectory]) -> dict[str, list[LabelTurns]]:
    """Labels that stand in every reply of a trajectory, once each."""
    records: dict[str, list[LabelTurns]] = defaultdict(list)
    for one in played:
        start = _numbers(text_of(one.opening))
        by_turn = [_numbers(text_of(result.observation)) for result in one.results]
        paid = [float(result.reward) for result in one.results]
        for label in set.intersection(*(set(numbers) for numbers in by_turn)):
            shown = [numbers[label] for numbers in by_turn]
            records[label].append(LabelTurns(start.get(label), shown, paid))
    return records


def _numbers(text: str) -> dict[str, float]:
    matching: dict[str, list[float]] = defaultdict(list)
    for label, number in LABELLED.findall(text):
        matching[label.strip().casefold()].append(float(re.sub(r"[$€£,]", "", number)))
    return {label: values[0] for label, values in matching.items() if len(values) == 1}


def _is_total_of(records: Sequence[LabelTurns]) -> str:
    """ "so far": each reward is the number's change since the start, and "sum": the sum of the numbers so far; "" for neither."""
    paid = {round(value, 6) for one in records for value in one.paid}
    if len(paid) < DIFFERENT or not any(len(set(one.paid)) >= DIFFERENT for one in records):
        return ""
    sums = [[sum(one.shown[: k + 1]) for k in range(len(one.shown))] for one in records]
    apart = any(
        abs(total - shown) > NEAR
        for one, them in zip(records, sums)
        for total, shown in zip(them, one.shown)
    )
    if apart and all(_near(one.paid, them) for one, them in zip(records, sums)):
        return "sum"
    since = [[value - (one.start or 0.0) for value in one.shown] for one in records]
    still = any(
        abs(a - b) <= NEAR and abs(a) > NEAR for them in since for a, b in zip(them, them[1:])
    )
    rises = any(abs(them[0]) > NEAR and len(them) > 1 for them in since)
    return (
        "so far"
        if (still or rises) and all(_near(one.paid, them) for one, them in zip(records, since))
        else ""
    )


def _near(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a - b) <= 1e-6 for a, b in zip(one, other))


def _paid_again(
    given: CheckInput, played: Sequence[PlayedTrajectory]
) -> tuple[PlayedTrajectory, int, set[float]] | None | bool:
    """A turn after which nonsense is paid the same again, as at all that were tried, each by another amount and each more than
    nonsense is paid at the start. None: too few; False: it is not so at one of them."""
    costs: set[float] = set()
    amounts: set[float] = set()
    example = None
    spent = Spent()
    for one in played:
        if len(amounts) >= IDLE or spent.seconds > given.budget_s / 3:
            break
        cost = _paid_for_nonsense(given, one)
        if cost is None:
            return None
        costs.add(round(cost, 9))
        if abs(cost) > NEAR and len(costs) > 1:
            return None
        for k in range(1, len(one.results) - 2):
            amount = float(one.results[k].reward)
            if abs(amount) <= NEAR or round(amount, 6) in amounts or abs(amount - cost) <= NEAR:
                continue
            again = replay(
                given.family, one.script._replace(texts=(*one.texts[: k + 1], NONSENSE, NONSENSE))
            )
            if again.error or len(again.results) < k + 3:
                continue
            later = [float(result.reward or 0.0) for result in again.results[k + 1 :]]
            if not _near(later, [amount + cost, amount + 2 * cost]):
                return False
            amounts.add(round(amount, 6))
            example = one, k
    if example is None or len(amounts) < DIFFERENT or not _grows(played):
        return None
    return *example, amounts


def _paid_for_nonsense(given: CheckInput, one: PlayedTrajectory) -> float | None:
    """The reward of nonsense as the first action; None where that is no number, or the end."""
    first = replay(given.family, one.script._replace(texts=(NONSENSE,)))
    if first.error or first.ended or not first.results or not is_number(first.results[0].reward):
        return None
    return float(first.results[0].reward)


def _grows(played: Sequence[PlayedTrajectory]) -> bool:
    """Rewards go on from what they were: they rise in most trajectories, and each begins smaller than it ends."""
    rising = [one.results[-1].reward > one.results[0].reward + NEAR for one in played]
    moving = [
        len({round(result.reward, 6) for result in one.results}) >= DIFFERENT for one in played
    ]
    downs = [
        b.reward < a.reward - NEAR for one in played for a, b in zip(one.results, one.results[1:])
    ]
    return sum(moving) >= FEWEST and 2 * sum(rising) >= len(rising) and not any(downs)
