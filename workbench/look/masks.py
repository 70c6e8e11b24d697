"""The masks of many trajectories at one glance: each row a sequence that the model saw, each pixel a token or more.

Axes: S segments (rows), T tokens (columns).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from workbench.look import doc, words
from workbench.look.html import view_from
from workbench.look.looks import BOLD, INK, Look
from workbench.look.png import palette_png
from workbench.look.tokens import (
    AGAIN,
    ENV,
    KINDS,
    PROMPT,
    SCAFFOLD,
    TRAINED,
    UNWEIGHTED,
    kinds_of,
)
from workbench.values import Group, Trajectory, View, trajectories_of
from workbench.values.errors import DataError

NOTHING = 6
LINE = 7
PALETTE = ("#b9c6d4", "#e2e4e7", "#8fc3e8", "#f0a848", "#0b4f87", "#8a5fa8", "#ffffff", "#1b2733")
USUAL = {PROMPT: "p", SCAFFOLD: ".", AGAIN: "r", ENV: "e", TRAINED: "#"}
CHARACTERS = USUAL | {UNWEIGHTED: "-", NOTHING: " "}
# Where several tokens share a pixel, the first of these that occurs is drawn: trained tokens never vanish.
PRECEDENCE = (TRAINED, UNWEIGHTED, AGAIN, ENV, PROMPT, SCAFFOLD)


def show_masks(groups: Sequence[Group], *, max_rows: int = 512, max_columns: int = 1200) -> View:
    """Who wrote which token, and which are trained, over whole groups.

    You will see one row per segment (a dark line between groups), light for what stands in the context, dark blue for
    what is trained. A batch that trains on prompts or replies, or a group of trajectories all alike, catches the eye.
    Long sequences are drawn several tokens to a pixel, and trained ones win; the caption says how many.
    """
    if max_rows < 1 or max_columns < 1:
        raise DataError(
            f"max_rows and max_columns are at least 1, got {max_rows} and {max_columns}"
        )
    rows = list(_rows_of(groups))
    drawn = rows[:max_rows]
    longest = max((len(kind_T) for _, _, kind_T in drawn), default=0)
    if not longest:
        return view_from(
            doc.Note("no tokens to show"),
        )
    per_pixel = -(-longest // max_columns)
    kind_SX = np.stack(
        [_binned(kind_T, per_pixel, -(-longest // per_pixel)) for _, _, kind_T in drawn]
    )
    all_T = np.concatenate([kind_T for _, _, kind_T in rows])
    kinds = [*USUAL, *([UNWEIGHTED] if UNWEIGHTED in all_T else [])]
    counts = {kind: int((all_T == kind).sum()) for kind in kinds}
    total = sum(counts.values())
    summary = (
        f"{words.count(len(groups), 'group')}, "
        f"{words.count(len(trajectories_of(groups)), 'trajectory', 'trajectories')}, "
        f"{words.count(len(rows), 'segment')}, {words.count(total, 'token')}, {counts[TRAINED]:,} trained "
        f"({words.percent(counts[TRAINED] / total)})"
    )
    scale_words = (
        "one column is "
        + words.count(per_pixel, "token")
        + (", trained ones win" if per_pixel > 1 else "")
    )
    legend = [
        (
            CHARACTERS[kind],
            Look(PALETTE[kind], "#ffffff" if kind in (TRAINED, UNWEIGHTED) else INK),
            f"{KINDS[kind].mark}: {count:,}",
        )
        for kind, count in counts.items()
    ]
    picture = doc.Picture(
        _picture(kind_SX, [number for number, _, _ in drawn]), f"Mask overview: {summary}"
    )
    return view_from(
        doc.Heading(f"masks: {summary}"),
        doc.Legend(legend),
        picture,
        doc.PagePart((doc.Note(f"rows: segments, in order; {scale_words}"),)),
        doc.TextPart(_rows(drawn, longest, kinds)),
        *map(doc.Note, _reasons(groups)),
        doc.first_shown(len(drawn), len(rows), "segments"),
    )


def _rows_of(groups: Sequence[Group]) -> Iterator[tuple[int, Trajectory, np.ndarray]]:
    """(number of the group, trajectory, kind of each token) of every segment."""
    for number, group in enumerate(groups):
        for trajectory in group:
            for segment in trajectory.segments:
                yield number, trajectory, kinds_of(segment)


def _reasons(groups: Sequence[Group]) -> Iterator[str]:
    """Why segments are not trained, each reason once, with the tokens that were sampled in them."""
    sampled: Counter[str] = Counter()
    for trajectory in trajectories_of(groups):
        for segment in trajectory.segments:
            if segment.untrained:
                sampled[segment.untrained] += int((kinds_of(segment) == UNWEIGHTED).sum())
    for reason, count in sampled.items():
        yield f"{reason}: {words.count(count, 'sampled token')}"


def _binned(kind_T: np.ndarray, per_pixel: int, width: int) -> np.ndarray:
    """One row of pixels: `per_pixel` tokens each, the kind that comes first in PRECEDENCE."""
    padded = np.full(width * per_pixel, NOTHING, np.int8)
    padded[: len(kind_T)] = kind_T
    bins = padded.reshape(width, per_pixel)
    row = np.full(width, NOTHING, np.int8)
    for kind in reversed(PRECEDENCE):
        row[(bins == kind).any(axis=1)] = kind
    return row


def _picture(kind_SX: np.ndarray, group_of_row: Sequence[int]) -> bytes:
    """Rows made tall enough to be seen when they are few, with a line between groups."""
    rows, columns = kind_SX.shape
    tall = int(np.clip(360 // rows, 2, 14))
    wide = int(np.clip(700 // columns, 1, 8))
    pieces = []
    for index in range(rows):
        if index and group_of_row[index] != group_of_row[index - 1]:
            pieces.append(np.full((1, columns * wide), LINE, np.int8))
        band = np.repeat(np.repeat(kind_SX[index : index + 1], wide, axis=1), tall, axis=0)
        if tall >= 4:
            band[-1] = NOTHING  # a hair of paper between rows
        pieces.append(band)
    return palette_png(np.concatenate(pieces), PALETTE)


def _rows(
    drawn: Sequence, longest: int, kinds: Sequence[int], *, width: int = 96, max_lines: int = 64
) -> str:
    """The picture in characters."""
    per_character = -(-longest // width)
    keys = "  ".join(f"{CHARACTERS[kind]} {KINDS[kind].mark}" for kind in kinds)
    lines = [f"{keys}  (one character is {words.count(per_character, 'token')}, trained ones win)"]
    previous = None
    for number, trajectory, kind_T in drawn[:max_lines]:
        if number != previous:
            lines.append(f"group {words.name_of(trajectory.task.id)}")
            previous = number
        row = _binned(kind_T, per_character, -(-longest // per_character))
        lines.append(
            f"{trajectory.attempt:>4} |" + "".join(CHARACTERS[int(kind)] for kind in row).rstrip()
        )
    if len(drawn) > max_lines:
        lines.append(
            f"… first {max_lines} rows shown, {len(drawn) - max_lines} more in the picture"
        )
    return "\n".join(lines)


def show_counts(groups: Sequence[Group]) -> View:
    """How many tokens each author wrote, and which of them are trained: the masks as numbers.

    You will see a row per kind of token: how many there are in all and per trajectory, and their share. The kind `TRAIN`
    is what the policy sampled in that very segment; `repeated` are its tokens where they are shown once more.
    """
    kinds = [kind_T for _, _, kind_T in _rows_of(groups)]
    kind_T = np.concatenate([np.zeros(0, np.int8), *kinds])
    attempts = len(trajectories_of(groups))
    rows = []
    for kind in (PROMPT, SCAFFOLD, ENV, AGAIN, TRAINED, UNWEIGHTED):
        count = int((kind_T == kind).sum())
        if kind == UNWEIGHTED and not count:
            continue
        look = KINDS[kind]
        rows.append(
            [
                doc.Cell(look.mark, Look(look.background, look.foreground, bold=True, mono=True)),
                look.meaning,
                f"{count:,}",
                words.percent(count / max(len(kind_T), 1)),
                f"{count / max(attempts, 1):.1f}",
            ]
        )
    rows.append(
        [doc.Cell("all", BOLD), "", f"{len(kind_T):,}", "", f"{len(kind_T) / max(attempts, 1):.1f}"]
    )
    columns = ["kind", "who wrote it", *doc.numbers("tokens", "share", "per trajectory")]
    return view_from(
        doc.Heading(
            f"tokens of {words.count(attempts, 'trajectory', 'trajectories')}, by who wrote them"
        ),
        doc.Table(columns, rows),
    )
