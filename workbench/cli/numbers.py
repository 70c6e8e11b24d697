"""Numbers as people write them on a command line."""

from __future__ import annotations

import argparse
import math
import re

MOST_DIGITS = 18
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)


def is_digits(text: str) -> bool:
    """Whether it is a whole number in plain digits, none of another script, and not too long."""
    return text.isascii() and text.isdecimal() and len(text) <= MOST_DIGITS


def whole_number(text: str) -> int:
    """A whole number, at least 1."""
    number = int(text) if is_digits(text) else 0
    if number < 1:
        raise _expected("a whole number, at least 1,", text)
    return number


def number_from_zero(text: str) -> int:
    """A whole number, at least 0: a seed, a port, a place in a list."""
    if not is_digits(text):
        raise _expected("a whole number, at least 0,", text)
    return int(text)


def decimal(text: str) -> float:
    """A number that is one: neither nan nor infinite, in plain digits."""
    number = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not math.isfinite(number):
        raise _expected("a number such as 0.5", text)
    return number


def decimal_above_zero(text: str) -> float:
    """A number above 0: seconds, inches, a learning rate."""
    number = decimal(text)
    if number <= 0:
        raise _expected("a number above 0", text)
    return number


def decimal_from_zero(text: str) -> float:
    """A number, at least 0."""
    number = decimal(text)
    if number < 0:
        raise _expected("a number, at least 0,", text)
    return number


def _expected(what: str, text: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"{what} is expected; got {text!r:.60}")
