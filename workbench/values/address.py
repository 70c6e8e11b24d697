"""The address of something in a run, as a person types it, a finding names it and a notebook keeps it.

step 3 / task 2 / attempt 5 / token 812
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.values.errors import DataError

_EXAMPLE = "step 3 / task 2 / attempt 5 / token 812"
_ABOVE = {"task": "step", "attempt": "task", "turn": "attempt", "token": "attempt"}


@dataclass(frozen=True)
class Address:
    """A place in a run. None: all of that level. A level needs those above it; a token needs no turn.

    step     as the run counts it, from 1
    task     within the step, from 0
    attempt  within its group, from 0
    turn     within the trajectory, from 0
    token    within the trajectory, from 0, its segments end to end

    Raises DataError for a level without the one above it, and for a negative number.
    """

    step: int | None = None
    task: int | None = None
    attempt: int | None = None
    turn: int | None = None
    token: int | None = None

    def __post_init__(self) -> None:
        numbers = self._numbers()
        for name, number in numbers.items():
            above = _ABOVE.get(name)
            if above is not None and above not in numbers:
                raise DataError(
                    f"{name} {number} of which {above}? An address is written {_EXAMPLE!r}"
                )
        for name, number in numbers.items():
            if number < 0:
                raise DataError(
                    f"{name} {number}: steps, tasks, trajectories, turns and tokens are never negative"
                )

    @classmethod
    def of(cls, text: str | Address) -> Address:
        """Read an address in the form that `str` gives; "" is the whole run."""
        if isinstance(text, Address):
            return text
        numbers: dict[str, int] = {}
        parts = [part.strip() for part in str(text).split("/")]
        for part in filter(None, parts):
            match = re.fullmatch(r"([a-z]+)\s+(\d+)", part)
            if match is None or match[1] not in cls.__dataclass_fields__ or match[1] in numbers:
                raise DataError(
                    f"{part!r} is not a valid part of an address; expected {_EXAMPLE!r}, or the beginning of one"
                )
            numbers[match[1]] = int(match[2])
        return cls(**numbers)

    def _numbers(self) -> dict[str, int]:
        """Level -> its number, of those that are given, from above to below."""
        return {name: number for name, number in vars(self).items() if number is not None}

    def __str__(self) -> str:
        return " / ".join(f"{name} {number}" for name, number in self._numbers().items())
