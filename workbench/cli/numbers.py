"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse


def whole_number(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, is expected; got {text!r}")
    return number


def step_numbers(text: str) -> list[int]:
    """Steps as people write them: 1-10,15."""
    steps: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal():
            raise argparse.ArgumentTypeError(f"steps such as 1-10,15 are expected; got {text!r}")
        steps += range(int(first), int(last or first) + 1)
    return steps
