"""Where something of a run is, in words that a person can type, a finding can name and a notebook can keep.

step 3 / task 2 / attempt 5 / token 812
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

from workbench.types.errors import DataError

_EXAMPLE = "step 3 / task 2 / attempt 5 / token 812"


@dataclass(frozen=True)
class Address:
    """A place in a run; None: all of that level. `step` is counted as the run counts it (from 1), the others from 0:
    `task` within the step, `attempt` within its group, `turn` and `token` within the attempt (tokens over its segments, end
    to end). A level needs those above it; a token needs no turn. Raises DataError for anything else."""

    step: int | None = None
    task: int | None = None
    attempt: int | None = None
    turn: int | None = None
    token: int | None = None

    def __post_init__(self) -> None:
        for name, above in (
            ("task", "step"),
            ("attempt", "task"),
            ("turn", "attempt"),
            ("token", "attempt"),
        ):
            if getattr(self, name) is not None and getattr(self, above) is None:
                raise DataError(
                    f"{name} {getattr(self, name)} of which {above}? An address is written {_EXAMPLE!r}"
                )
        if low := [each.name for each in fields(self) if (getattr(self, each.name) or 0) < 0]:
            raise DataError(
                f"{low[0]} {getattr(self, low[0])}: steps, tasks, attempts, turns and tokens are never negative"
            )

    @classmethod
    def of(cls, text: str | Address) -> Address:
        """Read what `str` of one says; "" is the whole run."""
        if isinstance(text, Address):
            return text
        found: dict[str, int] = {}
        for part in filter(None, (each.strip() for each in str(text).split("/"))):
            match = re.fullmatch(r"([a-z]+)\s+(\d+)", part)
            if match is None or match[1] not in cls.__dataclass_fields__ or match[1] in found:
                raise DataError(
                    f"{text!r} is no place in a run: got {part!r}; an address is written {_EXAMPLE!r}, or less of it"
                )
            found[match[1]] = int(match[2])
        return cls(**found)

    def __str__(self) -> str:
        return " / ".join(
            f"{each.name} {getattr(self, each.name)}"
            for each in fields(self)
            if getattr(self, each.name) is not None
        )
