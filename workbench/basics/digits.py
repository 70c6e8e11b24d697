"""Whole numbers in texts that may be anybody's."""

from __future__ import annotations

MOST_DIGITS = 18


def whole_in(text: str) -> int | None:
    """The whole number that a text is in digits of ASCII, at most 18 of them; None for any other text. `str.isdigit` is true of
    "²" and of 5,000 digits, and `int` of neither is a number."""
    is_one = text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
    return int(text) if is_one else None
