"""Bounds that a tool's parameter states (E28): what stands exactly at the bound is brought where the description says "at most" or
"at least"."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
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
BASES = 8
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
