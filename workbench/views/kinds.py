"""Success by kind of task: a line a kind over training, and the held-out tasks before and after it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.types import View
from workbench.types.kinds import ByKind
from workbench.views import doc, words
from workbench.views.figures import Plot, Trace
from workbench.views.html import shown
from workbench.views.looks import BLUE, GREEN, GREY, ORANGE, PURPLE
from workbench.views.png import curves_picture

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
ORDER = ("random", "untrained", "trained", "solver")  # of policies; others come after them


def show_by_kind(found: ByKind) -> View:
    """You will see the share of attempts at each kind of task that succeeded, over training; where each kind succeeded
    first; and a table of the held-out tasks by kind, policy and mode, with 95 % intervals, and what training changed in
    pairs."""
    title = f"{found.name}: success by {found.key}"
    if not found.kinds:
        return shown(
            doc.ViewDocument(
                (doc.Heading(title), doc.Note("no committed step and no evaluation yet"))
            )
        )
    plots = (
        Plot(
            "share of training attempts that succeed",
            tuple(_line(found, kind, number) for number, kind in enumerate(found.kinds)),
        ),
    )
    firsts = [
        f"{found.key} {kind}: first success in training at {found.first[kind]}"
        if kind in found.first
        else f"{found.key} {kind}: no success in training"
        for kind in found.kinds
    ]
    picture = curves_picture(plots, title, f"{title}. {'; '.join(firsts)}")
    columns = (
        found.key,
        "policy",
        "mode",
        *doc.numbers("success %", "95 % interval", "tasks", "less untrained, paired"),
    )
    return shown(
        doc.ViewDocument(
            (
                doc.TextPart(title),
                picture if found.training else None,
                *map(doc.Note, firsts),
                doc.BlankLine(),
                doc.Table(columns, list(_rows(found)))
                if found.held_out
                else doc.Note("no evaluation kept its attempts"),
            )
        )
    )


def _line(found: ByKind, kind: str, number: int) -> Trace:
    own = [each for each in found.training if each.kind == kind]
    return Trace(
        f"{found.key} {kind}",
        np.array([each.step for each in own], float),
        np.array([each.won / each.attempts for each in own], float),
        COLOURS[number % len(COLOURS)],
        DASHES[number % len(DASHES)],
        marker=".",
    )


def _rows(found: ByKind) -> Iterator[list[str]]:
    def rank(side: tuple[str, str]) -> tuple[int, str, str]:
        return (ORDER.index(side[0]) if side[0] in ORDER else len(ORDER), side[0], side[1])

    for kind in found.kinds:
        for policy, mode in sorted(found.held_out, key=rank):
            if kind not in found.held_out[policy, mode]:
                continue
            rate = found.success(kind, policy, mode)
            paired = policy == "trained" and kind in found.held_out.get(("untrained", mode), {})
            change = found.difference(kind, mode) if paired else None
            yield [
                kind,
                policy,
                mode,
                f"{100 * rate.mean:.1f}",
                f"{100 * rate.low:.1f} to {100 * rate.high:.1f}",
                words.number(rate.n),
                f"{100 * change.mean:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
                if change
                else "—",
            ]
