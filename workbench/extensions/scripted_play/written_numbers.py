"""Numbers as people write them: in an answer, with a sign, a currency, commas between thousands, a fraction, a unit; and in words."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import NamedTuple

NUMBER_WORDS = (
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
)
_WRITTEN = re.compile(
    r"(?P<before>[-+]?[$€£]?|[$€£]-?)(?P<whole>\d{1,3}(?:,\d{3})+|\d{1,15})(?P<point>\.(?P<fraction>\d{1,9}))?"
    r"(?P<after> ?(?:%|[A-Za-z€£$°]{1,12})?)"
)


class WrittenNumber(NamedTuple):
    """A number in the form that it was written in."""

    value: Decimal
    currency: str  # before it
    decimals: int
    commas: bool  # between thousands
    after: str  # its unit, with the blank before it

    def written(self, value: Decimal | None = None, decimals: int | None = None) -> str:
        """Another value in the same form."""
        value = self.value if value is None else value
        decimals = self.decimals if decimals is None else decimals
        digits = f"{abs(value):{',' if self.commas else ''}.{decimals}f}"
        return f"{'-' if value < 0 else ''}{self.currency}{digits}{self.after}"


def counted(text: str) -> int:
    """A whole number in digits, or in a word up to twelve. Raises ValueError for anything else."""
    word = text.lower()
    return NUMBER_WORDS.index(word) if word in NUMBER_WORDS else int(text)


def number_of(text: str) -> WrittenNumber | None:
    """The number that a text consists of; None where it holds more, or none."""
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        return None
    sign = "-" if "-" in match["before"] else ""
    fraction = match["fraction"] or ""
    digits = match["whole"].replace(",", "")
    value = Decimal(f"{sign}{digits}.{fraction or 0}")
    currency = match["before"].strip("+-")
    return WrittenNumber(value, currency, len(fraction), "," in match["whole"], match["after"])
