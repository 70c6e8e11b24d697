"""Success by kind of task, over a run: which kind training learned, when it first did, and what it cost the others.

found = wb.by_kind(run, "hops")     a picture of it, as the last line of a cell
found.first["3"]                    the first training attempt at a task of this kind that succeeded
found.difference("3", "greedy")     trained less untrained on the held-out tasks of this kind, in pairs
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from workbench.types.address import Address
from workbench.types.errors import DataError
from workbench.types.stats import (
    Difference,
    Estimate,
    clustered_difference,
    paired_difference,
    share,
)
from workbench.types.view import Shown

if TYPE_CHECKING:
    import pandas


class KindRecord(NamedTuple):
    """The attempts of a training step at tasks of one kind: how many, and how many of them succeeded."""

    step: int
    kind: str
    attempts: int
    won: int


@dataclass(frozen=True, repr=False)
class ByKind(Shown):
    """`key`: what of a task's payload says its kind. `training`: steps in order, kinds in order of their names.
    `held_out`: (policy, mode) -> kind -> share of each held-out task's attempts that succeeded, in task order; the same
    tasks for all of them; `attempts` at each. `first`: kind -> where the first success in training is stored; a kind without one is not there."""

    name: str
    key: str
    training: tuple[KindRecord, ...]
    held_out: Mapping[tuple[str, str], Mapping[str, tuple[float, ...]]]
    attempts: Mapping[tuple[str, str], int]
    first: Mapping[str, Address]

    @property
    def kinds(self) -> list[str]:
        """Every kind that was met, in order of their names; numbers by size."""
        met = {each.kind for each in self.training} | {
            kind for side in self.held_out.values() for kind in side
        }
        return sorted(
            met, key=lambda kind: (not kind.isdigit(), int(kind) if kind.isdigit() else 0, kind)
        )

    def success(self, kind: str, policy: str = "trained", mode: str = "sampled") -> Estimate:
        """The share of the held-out tasks of a kind at which this policy succeeds, with its 95 % interval. Raises DataError
        for a side or a kind that was not evaluated."""
        return share(self._of(kind, policy, mode), self.attempts[policy, mode])

    def difference(self, kind: str, mode: str = "sampled") -> Difference:
        """Trained less untrained at the same held-out tasks of a kind, with its paired 95 % interval. Raises DataError."""
        before, after = (self._of(kind, policy, mode) for policy in ("untrained", "trained"))
        single = all(self.attempts[policy, mode] == 1 for policy in ("untrained", "trained"))
        return (
            paired_difference(before, after)
            if single
            else clustered_difference(before, after, range(len(before)))
        )

    def _of(self, kind: str, policy: str, mode: str) -> tuple[float, ...]:
        side = self.held_out.get((policy, mode), {})
        if kind not in side:
            known = ", ".join(
                f"{policy} {mode} ({', '.join(kinds)})"
                for (policy, mode), kinds in self.held_out.items()
            )
            raise DataError(
                f"{self.name} was not evaluated {mode}, {policy}, at tasks of {self.key} {kind!r}; it was: "
                f"{known or 'not at all, or its attempts were not kept'}"
            )
        return side[kind]

    def to_frame(self) -> pandas.DataFrame:
        """A row a training step and kind: step, kind, attempts, won. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.training, columns=KindRecord._fields)
