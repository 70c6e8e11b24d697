"""What each of the seven mask switches changes on one batch, beside the two groups that they belong to.

Takes numbers and draws them; `notebook/mask_switches.py` computes them, with the functions of training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from workbench.types import View
from workbench.views import doc, words
from workbench.views.html import shown
from workbench.views.looks import CARD, INK, MUTED, PANEL, Look

LEGEND = (
    "advantage, return, weight: tokens that change; then the largest change of an action token's advantage; "
    "last: tokens that a term of the loss is taken over"
)
ROUNDING = (
    1e-9  # a change of an advantage below this is that of sums which were added up in another order
)


@dataclass(frozen=True)
class SwitchEffect:
    """One switch turned to the whole response, everything else as it was.

    `advantages`, `returns`, `weights`: tokens for which these change (None: there are none). `largest`: name of a
    setting of gamma and lambda -> the largest change of an *action* token's advantage (before whitening, None: this
    algorithm always whitens; after whitening, None: it never does). `denominators`: term of the loss -> (tokens
    before, after), where they differ. `set_for_it`: what had to be set besides, so that it can act, in a word
    `variant` where the same switch is also shown without. `error`: why it could not be turned here; `inert`: why it
    cannot change anything."""

    name: str
    advantages: int = 0
    returns: int | None = None
    weights: int = 0
    largest: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    denominators: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    set_for_it: str = ""
    error: str = ""
    inert: str = ""
    variant: str = ""


def show_switches(
    effects: Sequence[SwitchEffect],
    *,
    title: str,
    tokens: str,
    groups: Sequence[str] = (),
    told: Sequence[str] = (),
    remark: str = "",
) -> View:
    """A row per switch, the groups (named in `groups`) last.

    You will see for how many tokens advantage, return and weight change, by how much an action token's advantage
    changes at most (a dot: not at all; 1e-16 is rounding and counts as not at all), and which denominator counts other
    tokens. Above it `told`: sentences that these numbers bear out. `tokens` says what the batch holds, `remark` what
    else there is to know of the algorithm.
    """
    settings = list(dict.fromkeys(name for effect in effects for name in effect.largest))
    changes = [f"{name}, {when}" for name in settings for when in ("unwhitened", "whitened")]
    columns = [
        "switched to the response",
        *doc.numbers("advantage", "return", "weight", *changes),
        "counted in the loss",
    ]
    rows = [_row(effect, settings, effect.name in groups) for effect in effects]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(title),
                doc.Note(tokens),
                *(doc.Block(f"→ {sentence}", bold=True) for sentence in told),
                doc.Note(LEGEND),
                doc.Table(columns, rows),
                doc.Note(remark) if remark else None,
                *(doc.Note(note) for effect in effects for note in _notes(effect)),
            )
        )
    )


def _notes(effect: SwitchEffect) -> list[str]:
    variant = f", {effect.variant}" if effect.variant else ""
    found = [f"{effect.name}{variant}: shown with {effect.set_for_it}"] if effect.set_for_it else []
    if effect.error or effect.inert:
        found.append(f"{effect.name}: {effect.error or 'has no effect here: ' + effect.inert}")
    return found


def _row(effect: SwitchEffect, settings: Sequence[str], is_group: bool) -> list[doc.Cell]:
    paper = PANEL if is_group else CARD
    name = (
        (f"{effect.name} = false" + f", {effect.variant}" * bool(effect.variant))
        if is_group
        else effect.name
    )
    head = doc.Cell(name, Look(paper, bold=True, mono=True, nowrap=True))
    if effect.error or effect.inert:
        why = (
            doc.Cell("not possible", Look(paper, INK))
            if effect.error
            else doc.Cell("no effect here", Look(paper, MUTED))
        )
        return [head, *[doc.Cell("—", Look(paper))] * (3 + 2 * len(settings)), why]
    returns = "—" if effect.returns is None else _count(effect.returns)
    cells = [
        doc.Cell(text, Look(paper))
        for text in (_count(effect.advantages), returns, _count(effect.weights))
    ]
    for value in (
        value for setting in settings for value in effect.largest.get(setting, (None, None))
    ):
        moved = value is not None and value > ROUNDING
        cells.append(
            doc.Cell(
                _size(value),
                Look("#fde3c3" if moved else paper),
                title="" if value is None else f"largest change {value:.3g}",
            )
        )
    counted = ", ".join(
        f"{term} {before:,} → {after:,}" for term, (before, after) in effect.denominators.items()
    )
    return [head, *cells, doc.Cell(counted or "·", Look(paper, INK if counted else MUTED))]


def _count(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "·"


def _size(value: float | None) -> str:
    if value is None:
        return "—"
    return "·" if value <= ROUNDING else words.number(value, 2)
