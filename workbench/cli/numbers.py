"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse

MOST_DIGITS = 18


def is_digits(text: str) -> bool:
    """Whether it is a whole number in plain digits, none of another script, and not too long."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def whole_number(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text) if is_digits(text) else 0
    if number < 1:
        raise argparse.ArgumentTypeError(
            f"a whole number, at least 1, is expected; got {text!r:.60}"
        )
    return number
