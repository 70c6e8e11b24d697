"""Bounds that a tool's description states (E28): what stands exactly at the bound is brought where it says "at most" or "at least",
and what is of the first or the last day where it says that both are included."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any

from workbench.basics.findings import ERROR, Checked, Finding, RuleResult
from workbench.values.errors import shortened

AT_MOST = re.compile(
    r"\b(?:at most|up to|no more than|not more than|or less|or fewer|or below|maximum|inclusive"
    r"|until and including)\b|<=|≤",
    re.IGNORECASE,
)
AT_LEAST = re.compile(
    r"\b(?:at least|no less than|not less than|or more|or above|minimum|inclusive|from)\b|>=|≥",
    re.IGNORECASE,
)
LESS = re.compile(
    r"\b(?:less than|under|below|before|above|more than|over|exclusive|strictly)\b", re.IGNORECASE
)
BOTH_ENDS = re.compile(
    r"\b(?:both (?:days|dates|ends|bounds|limits)|inclusive(?:ly)?|included|(?:until|up to) and including)\b",
    re.IGNORECASE,
)
DAY = re.compile(r"\b\d{4}-\d{2}-\d{2}\b")
BASES = 8
ITEMS = 4  # of a result
FEWEST = 3
NUMBERS = re.compile(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w]|\.\d)")


def keeps_its_bounds(called: Any) -> Iterator[RuleResult]:
    """Ask with the bound at a number that an item has: the item stays."""
    for name, part in called.properties.items():
        described = str(part.get("description", ""))
        whole = f"{name.replace('_', ' ')} {described}"
        most, least = AT_MOST.search(described), AT_LEAST.search(described)
        if part.get("type") not in ("integer", "number") or bool(most) == bool(least):
            continue
        if LESS.search(re.sub(r"\b(?:no|not) (?:more|less) than\b", "", whole)):
            continue
        left_out = kept = 0
        example = ("", "")
        for base in _bases(called, name):
            for item, number in _items_with_numbers(base):
                at = called.call({**base.arguments, name: number})
                beyond = called.call({**base.arguments, name: number + (1 if most else -1)})
                if not at.worked or not beyond.worked or called.over:
                    continue
                # The bound works on this number: past it the item is there or not by this number alone.
                inside = called.call({**base.arguments, name: number - (1 if most else -1)})
                if item not in beyond.result.text or item in inside.result.text:
                    continue
                if item in at.result.text:
                    kept += 1
                else:
                    left_out += 1
                    example = (str(at.arguments), item)
        yield Checked(left_out + kept, "bounds of tools")
        if left_out >= FEWEST and not kept:
            yield Finding(
                f"the tool {called.tool.name!r} says {shortened(described, 60)!r} of {name!r}, "
                f"and leaves out what is exactly there, at {left_out} of {left_out} calls: "
                f"{shortened(example[1], 60)} is missing from what {shortened(example[0], 90)} "
                f"brings. Compare with <= or >=, as the description says",
                severity=ERROR,
            )
            return


def _bases(called: Any, name: str) -> list[Any]:
    """Calls that list several things, the longest lists first."""
    worked = [one for one in called.worked() if name in one.arguments and len(one.items or ()) >= 2]
    return sorted(worked, key=lambda one: -len(one.items))[:BASES]


def _items_with_numbers(base: Any) -> Iterator[tuple[str, int]]:
    """Items, each with a whole number of it that no other item has."""
    items = base.items or []
    numbers = [[int(text) for text in NUMBERS.findall(item) if "." not in text] for item in items]
    times = Counter(number for them in numbers for number in set(them))
    for item, them in list(zip(items, numbers))[:4]:
        for number in them[:2]:
            if times[number] == 1 and number > 1:
                yield item, number


# ------------------------------------------------------------------------------------------------ days


def keeps_its_days(called: Any) -> Iterator[RuleResult]:
    """Ask for days up to, or from, the very day that an item has: the item stays."""
    if not BOTH_ENDS.search(called.description) or "exclusive" in called.description.lower():
        return
    for name in called.properties:
        left_out: list[tuple[Any, str]] = []
        kept = 0
        for base in _asked_by_day(called, name):
            for item in base.result.text.splitlines()[:ITEMS]:
                days = DAY.findall(item)
                if len(days) != 1 or called.over:
                    continue
                at, there = _at_and_beside(called, base, name, days[0], item)
                kept += at and len(there) == 1
                if there and not at:
                    left_out.append((base, item))
        yield Checked(len(left_out) + kept, "first and last days of tools")
        if len(left_out) >= FEWEST and not kept:
            base, item = left_out[0]
            yield Finding(
                f"the tool {called.tool.name!r} says that the days it is asked for are included "
                f"({shortened(called.tool.description, 60)!r}), and leaves out what is of the very day that {name!r} names, at "
                f"{len(left_out)} of {len(left_out)} calls: {shortened(item, 60)} is missing where {name!r} is its day (else "
                f"{shortened(str(base.arguments), 90)}). Compare with <= and >=",
                severity=ERROR,
            )
            return


def _asked_by_day(called: Any, name: str) -> list[Any]:
    """Calls whose argument is a day, the longest results first."""
    asked = [one for one in called.worked() if DAY.fullmatch(str(one.arguments.get(name, "")))]
    return sorted(asked, key=lambda one: -len(one.result.text))[:BASES]


def _at_and_beside(
    called: Any, base: Any, name: str, day: str, item: str
) -> tuple[bool, list[int]]:
    """Whether the item is there when a bound is its own day, and at which of the days before and after."""
    there = []
    for apart in (-1, 0, 1):
        asked = date.fromisoformat(day) + timedelta(days=apart)
        result = called.call({**base.arguments, name: asked.isoformat()})
        if result.worked and item in result.result.text:
            there.append(apart)
    return 0 in there, [apart for apart in there if apart]
