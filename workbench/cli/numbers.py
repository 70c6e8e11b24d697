"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse


def whole_number(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, is expected; got {text!r}")
    return number
