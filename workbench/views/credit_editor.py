"""The credit editor: change a reward, an estimator or one of its settings, and see the credit of every token change.

It knows no tensor library and no algorithm. Whoever opens it (`notebook/credit.py`) hands over the settings there are
and a function `edit -> Outcome`, which calls what training calls. In JupyterLab it is made of widgets that live as long
as the kernel does, and in an output of its own stands the picture as it was when the cell was run: hidden while the
widgets are alive, there when the notebook is opened again without them. (In one output JupyterLab would prefer the
dead widget.) Without anybody looking (papermill) there is nothing but that picture.

An edit that cannot be computed is shown as such, with the reason, in the place of the picture: whatever is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.types import Group, View, trajectories_of
from workbench.types.errors import ConfigError, DataError
from workbench.types.view import HasView
from workbench.views import words
from workbench.views.credit import failed_view, show_credit
from workbench.views.credited import Credited
from workbench.views.tokens import TokenTexts


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
    an attempt earned: (number of the attempt over all groups, turn) -> reward, None: not scored. The turn after the
    last one is the outcome. `dropped`: attempts that leave baseline and loss, by the same numbers."""

    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    rewards: Mapping[tuple[int, int], float | None] = field(default_factory=dict)
    dropped: tuple[int, ...] = ()

    def __str__(self) -> str:
        parts = [self.algorithm, *(f"{name} = {value}" for name, value in self.settings.items())]
        for (attempt, turn), reward in self.rewards.items():
            parts.append(f"attempt {attempt}, turn {turn} earns {words.signed(reward)}")
        parts += [f"attempt {attempt} dropped" for attempt in self.dropped]
        return " · ".join(parts)


@dataclass(frozen=True, eq=False)
class Outcome:
    """What an edit came to: the groups with the edited rewards, and their credit."""

    groups: tuple[Group, ...]
    credited: Credited


class CreditEditor(HasView):
    """Shows itself as the last line of a cell. `edit` is what is set now; `outcome()` its arrays; `view()` its picture;
    `after(...)` the picture of another edit, without touching this one: for a notebook that is read, not played with.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        token_texts: TokenTexts,
        knobs: Mapping[str, Sequence[Knob]],
        credit: Callable[[Edit], Outcome],
        start: Edit,
        *,
        own: str = "",
        attempt: int = 0,
        widgets: bool = False,
    ) -> None:
        """`knobs`: the settings of each algorithm there is. `own`: what the one that `start` names was set to already,
        in words. The rest as in `notebook.credit.credit_editor`."""
        if start.algorithm not in knobs:
            raise ConfigError(f"no algorithm {start.algorithm!r}; there are {', '.join(knobs)}")
        self.groups, self.token_texts, self.knobs = tuple(groups), token_texts, knobs
        self.start, self.edit, self.own, self.attempt = start, start, own, self._attempt(attempt)
        self._credit, self._before = credit, None
        self._inert: dict[str, Mapping[str, str]] = {}  # by algorithm, as last known
        self._panel = None
        if widgets:
            from workbench.views.credit_panel import CreditPanel

            self._panel = CreditPanel(self)

    def _attempt(self, attempt: int) -> int:
        count = len(trajectories_of(self.groups))
        if not 0 <= attempt < count:
            raise DataError(
                f"no attempt {attempt}: they are counted over all groups, from 0 to {count - 1}"
            )
        return attempt

    # -------------------------------------------------------------------------------------------- value to picture

    def outcome(self, edit: Edit | None = None) -> Outcome:
        """Arrays of an edit (default: the present one). Raises what the algorithm raises."""
        return self._credit(edit or self.edit)

    def view(self, edit: Edit | None = None, attempt: int | None = None) -> View:
        """The picture of an edit, compared with the one that the editor was opened with. Never raises for an edit that
        has no credit: the picture says why."""
        edit = edit or self.edit
        own = f" ({self.own})" if self.own and edit.algorithm == self.start.algorithm else ""
        title = f"credit: {edit.algorithm}{own}{str(edit).removeprefix(edit.algorithm)}"
        try:
            outcome = self.outcome(edit)
        except Exception as error:  # whatever it is: out of a widget's callback it would go to a log that nobody reads
            return failed_view(title, f"{type(error).__name__}: {error}")
        chosen = self.attempt if attempt is None else self._attempt(attempt)
        before = None if edit == self.start else self._unedited()
        return show_credit(
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
        """The picture after a further edit of what is set now. Another algorithm begins with its own settings."""
        kept = self.edit.settings if algorithm in (None, self.edit.algorithm) else {}
        return self.view(
            Edit(
                algorithm or self.edit.algorithm,
                {**kept, **settings},
                {**self.edit.rewards, **rewards},
                (*self.edit.dropped, *dropped),
            ),
            attempt,
        )

    def inert(self) -> Mapping[str, str]:
        """Settings of the present edit that cannot change its credit, each with the reason. Of an edit that has no
        credit: those of the last one under the same algorithm that had."""
        try:
            self._inert[self.edit.algorithm] = self.outcome().credited.inert
        except Exception:  # the picture of this very edit says what is wrong with it
            pass
        return self._inert.get(self.edit.algorithm, {})

    def _unedited(self) -> Credited | None:
        """The credit that the editor was opened with; None where there is none to compare with."""
        if self._before is None:
            try:
                self._before = self.outcome(self.start).credited
            except (
                Exception
            ):  # then there is nothing to compare with, and the picture of that edit says why
                return None
        return self._before

    # -------------------------------------------------------------------------------------------- showing itself

    def _ipython_display_(self) -> None:
        from IPython.display import display

        if self._panel is not None:
            display(self._panel.bundle(), raw=True)
        display(self._repr_mimebundle_(), raw=True)
