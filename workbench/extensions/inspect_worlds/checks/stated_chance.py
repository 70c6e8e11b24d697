"""Chance as the prompt states it, and as it is drawn (E32): numbers of which the highest never comes, cards that come twice."""

from __future__ import annotations

import re
from collections.abc import Iterator

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.extensions.inspect_worlds.checks.dice import Draw, draws_of_each
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import text_of
from workbench.extensions.scripted_play.written_numbers import NUMBER_WORDS, counted

PLAYED = 4  # trajectories whose draws are looked at
RANGE = re.compile(
    r"(?<![\d.])(\d{1,4})\s*(?:to|-|–|and|through|until|\.\.\.?)\s*(\d{1,4})(?!\d|\.\d)"
)
SIDES = re.compile(
    rf"\b(\d{{1,3}}|{'|'.join(NUMBER_WORDS[2:])})[- ](?:sided|sides|faces)\b|\bd(\d{{1,3}})\b",
    re.IGNORECASE,
)
ONCE = re.compile(
    r"\b(?:each|every one|all) (?:\w+ )?(?:exists? )?(?:only |exactly )?once\b|\bwithout (?:replacement|putting back)\b"
    r"|\b(?:distinct|all different|no two|never twice|no (?:\w+ )?(?:comes|appears|is drawn) twice)\b",
    re.IGNORECASE,
)


def check_stated_chance(given: CheckInput) -> Iterator[RuleResult]:
    """Each draw of a trajectory beside the prompt of its task."""
    if given.step_s > SLOW_S or given.why_not_played(baselines=True) is not None:
        return
    some = given.acted()[:PLAYED]
    of_each = draws_of_each(given.family, [played.script for played in some])
    for played, draws in zip(some, of_each):
        prompt = text_of(played.opening)
        yield Checked(len(draws), "draws beside their prompts")
        for draw in draws:
            finding = _highest_never_comes(draw, prompt) or _comes_twice(draw, prompt)
            if finding is not None:
                yield finding
                return


def _highest_never_comes(draw: Draw, prompt: str) -> Finding | None:
    """numpy's `integers` leaves out the upper bound."""
    if draw.method != "integers" or draw.asked is None or draw.asked.arguments.get("endpoint"):
        return None
    low, high = draw.asked.arguments["low"], draw.asked.arguments.get("high")
    if not isinstance(low, int) or not isinstance(high, int) or high - low < 2:
        return None
    ranges = {(int(a), int(b)) for a, b in RANGE.findall(prompt)}
    ranges |= {(1, counted(a or b)) for a, b in SIDES.findall(prompt)}
    if (low, high) not in ranges or (low, high - 1) in ranges:
        return None
    return Finding(
        f"the prompt says {low} to {high}, and {draw.place} draws integers({low}, {high}), which is {low} to {high - 1}: the upper "
        f"bound is left out. Where these are the numbers that the prompt speaks of, draw integers({low}, {high} + 1)",
        severity=NOTE,
    )


def _comes_twice(draw: Draw, prompt: str) -> Finding | None:
    """numpy's `choice` puts back what it drew."""
    if draw.method != "choice" or draw.asked is None:
        return None
    arguments = draw.asked.arguments
    several = isinstance(arguments.get("size"), int) and arguments["size"] > 1
    if not several or not arguments.get("replace", True) or not ONCE.search(prompt):
        return None
    return Finding(
        f"the prompt says {ONCE.search(prompt)[0]!r}, and {draw.place} draws {arguments['size']} by choice(...) with replacement: the "
        "same one may come twice. Where these are what the prompt speaks of, say replace=False",
        severity=NOTE,
    )
