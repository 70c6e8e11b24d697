"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse

MOST_STEPS = 1_000_000  # of one list
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


def step_numbers(text: str) -> list[int]:
    """Steps as people write them: 1-10,15."""
    steps: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not is_digits(first) or not is_digits(last or first):
            raise argparse.ArgumentTypeError(
                f"steps such as 1-10,15 are expected; got {text!r:.60}"
            )
        span = range(int(first), int(last or first) + 1)
        if len(steps) + len(span) > MOST_STEPS:
            raise argparse.ArgumentTypeError(
                f"at most {MOST_STEPS:,} steps are taken; got {text!r:.60}"
            )
        steps += span
    return steps
