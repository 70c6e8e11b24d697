"""Off-policy corrections by lag, and the KL term by place and update, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.look import doc, words
from workbench.look.looks import BOLD, INK, Look

EXACT = 1e-9  # of the true gradient: rounding
COLOURS = {
    "good": ("#d9efe3", INK),
    "biased": ("#fddbc7", INK),
    "wrong": ("#b2182b", "#ffffff"),
}
HEADS = {
    "correction": "Off-policy corrections: bias by the number of updates since the data were sampled",
    "kl": "The KL term alone: bias by the number of updates made on the batch before",
}
NOTE = (
    "distance of the mean estimate from the true gradient, relative to its length; 0: unbiased, exactly; red: the wrong way; last "
    "column: standard error of an estimate from 64 trajectories, at the first and the last lag"
)


def lag_parts(rows: Sequence[Any]) -> list[doc.Part]:
    """A table for each kind and task; nothing where there are no rows."""
    parts: list[doc.Part] = []
    for kind, head in HEADS.items():
        own = [row for row in rows if row.kind == kind]
        if own:
            parts += [doc.BlankLine(), doc.Heading(head), doc.Note(NOTE)]
        for task in dict.fromkeys(row.task for row in own):
            parts += [doc.BlankLine(), _table(task, [row for row in own if row.task == task])]
    return parts


def _table(task: str, rows: Sequence[Any]) -> doc.Table:
    lags = list(dict.fromkeys(row.lag for row in rows))
    by_label: dict[str, dict[int, Any]] = {}
    for row in rows:
        by_label.setdefault(row.label, {})[row.lag] = row
    body = []
    for label, by_lag in by_label.items():
        noise = f"{by_lag[lags[0]].noise:.2f} / {by_lag[lags[-1]].noise:.2f}"
        name = doc.Cell(label, parts=(doc.Styled(label, BOLD),))
        body.append([name, *(_cell(by_lag[lag]) for lag in lags), noise])
    drift = f"{task} (drift {rows[-1].drift:.2f} nats)"
    return doc.Table([drift, *doc.numbers(*map(str, lags), "error of 64")], body, dense=True)


def _cell(row: Any) -> doc.Cell:
    exact = row.bias <= EXACT
    kind = "good" if exact else "biased"
    if row.points_back or not row.holds:
        kind = "wrong"
    text = "0" if exact else words.percent(row.bias)
    return doc.Cell(
        text, Look(*COLOURS[kind]), title=f"{row.says}; {row.verdict}; size {row.scale:+.3f}"
    )
