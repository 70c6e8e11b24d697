"""What an edit of a batch's credit is, what it came to, and its picture.

No tensor library and no algorithm is known here: who computes an edit hands over a function `edit -> Outcome`, which calls
what training calls (`notebook/credit.py`). One edits by clicking in the navigator (`wb.explore`); this is the same for a
line of code and for a notebook that is read. An edit that cannot be computed is shown as such, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.basics.annotated import checked_methods
from workbench.look import words
from workbench.look.credit import credit_view, failed_view
from workbench.look.credited import Credited
from workbench.look.tokens import TokenTexts
from workbench.values import Group, View, trajectories_of
from workbench.values.errors import DataError
from workbench.values.view import HasView


@dataclass(frozen=True)
class Knob:
    """A setting that may decide credit: its dotted name, what it is where nobody sets it, what it may be. `choices`:
    one of these; else a number in `low..high` (`high` None: no bound), whole where `default` is."""

    name: str
    default: Any
    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float | None = None

    @property
    def part(self) -> str:
        """The heading it stands under: "masks" of "masks.gae_over"."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Edit:
    """What differs from the batch as it was collected: the algorithm, its settings by dotted name, and what a turn of
    a trajectory earned: (number of the trajectory over all groups, turn) -> reward, None: not scored. The turn after the
    last one is the outcome. `dropped`: trajectories that leave baseline and loss, by the same numbers."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [self.algorithm, *(f"{name} = {value}" for name, value in self.settings.items())]
        for (attempt, turn), reward in self.rewards.items():
            parts.append(f"reward of attempt {attempt}, turn {turn} = {words.signed(reward)}")
        parts += [f"attempt {attempt} excluded" for attempt in self.dropped]
        return " · ".join(parts)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an edit came to: the groups with the edited rewards, and their credit."""

    groups: tuple[Group, ...]
    credited: Credited


@checked_methods
class EditedCredit(HasView):
    """The credit of a batch under edits. `outcome()` has the arrays, `view()` the picture of the batch as it was collected,
    `after(...)` the picture of an edit.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        token_texts: TokenTexts,
        credit: Callable[[Edit], Outcome],
        start: Edit,
        *,
        own: str = "",
        attempt: int = 0,
    ) -> None:
        """`own`: what the algorithm that `start` names is set to, in words. `attempt`: the one shown in full, counted over
        all groups."""
        self.groups = tuple(groups)
        self.token_texts = token_texts
        self.start = start
        self.own = own
        self.attempt = self._attempt(attempt)
        self._credit = credit
        self._before = None

    def _attempt(self, attempt: int) -> int:
        count = len(trajectories_of(self.groups))
        if not 0 <= attempt < count:
            raise DataError(
                f"no attempt {attempt}: they are counted over all groups, from 0 to {count - 1}"
            )
        return attempt

    def outcome(self, edit: Edit | None = None) -> Outcome:
        """Arrays of an edit (default: none). Raises what the algorithm raises."""
        return self._credit(edit or self.start)

    def view(self, edit: Edit | None = None, attempt: int | None = None) -> View:
        """The picture of an edit, compared with the credit without one. Never raises for an edit that has no credit: the
        picture says why."""
        edit = edit or self.start
        own = f" ({self.own})" if self.own and edit.algorithm == self.start.algorithm else ""
        title = f"credit: {edit.algorithm}{own}{str(edit).removeprefix(edit.algorithm)}"
        try:
            outcome = self.outcome(edit)
        except Exception as error:  # whatever it is: an algorithm may be of the user's own
            return failed_view(title, f"{type(error).__name__}: {error}")
        chosen = self.attempt if attempt is None else self._attempt(attempt)
        before = None if edit == self.start else self._unedited()
        return credit_view(
            outcome.groups,
            self.token_texts,
            outcome.credited,
            before,
            title=title,
            attempt=chosen,
            edited=edit.rewards,
        )

    def after(
        self,
        *,
        algorithm: str | None = None,
        settings: Mapping[str, Any] = {},
        rewards: Mapping[tuple[int, int], float | None] = {},
        dropped: Sequence[int] = (),
        attempt: int | None = None,
    ) -> View:
        """The picture after an edit. Another algorithm begins with its own settings."""
        name = algorithm or self.start.algorithm
        return self.view(Edit(name, settings, rewards, tuple(dropped)), attempt)

    def _unedited(self) -> Credited | None:
        """The credit without an edit; None where there is none to compare with."""
        if self._before is None:
            try:
                self._before = self.outcome(self.start).credited
            except (
                Exception
            ):  # then there is nothing to compare with, and the picture of that edit says why
                return None
        return self._before
