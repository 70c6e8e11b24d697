"""How numbers, outcomes and tables are put into words: the same in the text form and in the HTML form of a view."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping, Sequence

import numpy as np

from workbench.look.escape import capped
from workbench.values import StopReason, Trajectory

LONGEST_NAME = 120  # characters of a task's, move's or reward part's name
LONGEST_ARGUMENTS = 1000  # of a tool call
MOST_PARTS = 12  # named parts of one reward

SPARKS = "▁▂▃▄▅▆▇█"
AUTHORS = ("prompt", "template", "policy", "env")  # of a token, by `Source`

STOP_WORDS = {
    StopReason.TERMINATED: "the task was over",
    StopReason.ENV_TRUNCATED: "the environment's own limit ran out",
    StopReason.MAX_TURNS: "the limit on turns ran out",
    StopReason.CONTEXT_FULL: "the context was full",
    StopReason.ENV_ERROR: "the environment raised an error",
    StopReason.ENV_TIMEOUT: "the environment missed its deadline",
    StopReason.ENGINE_ERROR: "the engine gave no answer",
}


def missing(value: object) -> bool:
    """None or NaN: not computed, which is not zero (invariant 5)."""
    return value is None or (isinstance(value, (float, np.floating)) and math.isnan(value))


def signed(value: float | None, digits: int = 2) -> str:
    """A reward or an advantage; a dash where it was not scored."""
    return "—" if missing(value) else f"{value:+.{digits}f}"


def signed_range(first: float | None, last: float | None) -> str:
    """`-0.20..+0.41`, or one of them where both read alike."""
    begin = signed(first)
    end = signed(last)
    return begin if begin == end else f"{begin}..{end}"


def signed_bounds(values: np.ndarray) -> str:
    """The lowest and the highest of the finite values."""
    known = values[np.isfinite(values)]
    return signed_range(float(known.min()), float(known.max())) if len(known) else signed(None)


def call(name: object, arguments: Mapping[str, object]) -> str:
    """A tool call as one would write it: `search({"query": "Ada"})`."""
    return f"{name_of(name)}({capped(json.dumps(dict(arguments), ensure_ascii=False, default=str), LONGEST_ARGUMENTS)})"


def number(value: object, digits: int = 4) -> str:
    """A value of any size in few characters: 0.0132, 1.2e-05, 12,345, yes, —."""
    if missing(value):
        return "—"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    if isinstance(value, (float, np.floating)):
        whole = math.isfinite(value) and value == int(value) and abs(value) < 1e6
        return f"{value:.1f}" if whole else f"{value:.{digits}g}"
    return str(value)


def alike(values: Sequence[float | None]) -> list[str]:
    """Values that are compared, with the same decimals: three, or more where the largest of them needs more for three
    digits."""
    largest = np.nanmax(np.abs(np.array(values, float)), initial=0.0) or 1.0
    places = 2 - math.floor(math.log10(largest))
    if places > 6:
        return [number(value, 3) for value in values]
    return [fixed(value, max(3, places)) for value in values]


def fixed(value: float | None, digits: int = 2) -> str:
    """A mean, with so many digits behind the point."""
    return "—" if missing(value) else f"{value:.{digits}f}"


def percent(value: float | None) -> str:
    return "—" if missing(value) else f"{100 * value:.1f} %"


def count(amount: int, one: str, many: str | None = None) -> str:
    """1 turn, 2 turns, 1,204 tokens."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def success_mark(success: bool | None) -> str:
    """A sign that needs no colour."""
    return {True: "✓", False: "✗"}.get(success, "?")


def success_words(trajectory: Trajectory) -> str:
    if trajectory.stop_reason.is_fault:
        return "! fault"
    return {True: "✓ success", False: "✗ no success"}.get(trajectory.success, "? success not known")


def reward_words(trajectory: Trajectory) -> str:
    return "not scored" if trajectory.reward is None else signed(trajectory.reward)


def parts_words(parts: object) -> str:
    """`goal +1.00, format 0` for the named parts of a reward."""
    pairs = list(dict(parts).items())
    more = [f"and {len(pairs) - MOST_PARTS} more"] if len(pairs) > MOST_PARTS else []
    shown = [
        f"{name_of(name)} {'0' if value == 0 else signed(value)}"
        for name, value in pairs[:MOST_PARTS]
    ]
    return ", ".join(shown + more)


def name_of(text: object) -> str:
    """A name that an environment or a policy gave, kept to one short line."""
    return capped(str(text).replace("\n", "⏎"), LONGEST_NAME)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of a series in `width` block characters; gaps where nothing was measured."""
    array = np.asarray(values, float)
    if not np.isfinite(array).any():
        return ""
    bins = np.array_split(array, min(width, len(array)))
    finite = [part[np.isfinite(part)] for part in bins]
    means = np.array([part.mean() if len(part) else np.nan for part in finite])
    low = np.nanmin(means)
    high = np.nanmax(means)
    level = (
        np.zeros(len(means)) if high == low else (means - low) / (high - low) * (len(SPARKS) - 1)
    )
    return "".join(" " if math.isnan(x) else SPARKS[int(round(x))] for x in level)


def display_width(text: str) -> int:
    """Columns that `text` takes in a terminal: wide characters take two, combining ones none."""
    width = 0
    for character in text:
        if not unicodedata.combining(character):
            width += 2 if unicodedata.east_asian_width(character) in "WF" else 1
    return width


def aligned(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Columns of text, two spaces apart; those whose index is in `right` are flush right. No trailing spaces."""
    if not rows:
        return ""
    widths = [0] * max(map(len, rows))
    for row in rows:
        for i, text in enumerate(row):
            widths[i] = max(widths[i], display_width(text))
    lines = []
    for row in rows:
        padded = []
        for i, text in enumerate(row):
            gap = " " * (widths[i] - display_width(text))
            padded.append(gap + text if i in right else text + gap)
        lines.append((indent + "  ".join(padded)).rstrip())
    return "\n".join(lines)


def markdown(lines: Sequence[Sequence[str]]) -> list[str]:
    """A pipe table, its columns aligned for a terminal; the first line is its head."""
    widths = [max(map(display_width, column)) for column in zip(*lines)]
    rows = []
    for line in lines:
        cells = [cell + " " * (width - display_width(cell)) for cell, width in zip(line, widths)]
        rows.append(f"| {' | '.join(cells)} |")
    rule = "|".join("-" * (width + 2) for width in widths)
    return [rows[0], f"|{rule}|", *rows[1:]]


def points(difference: Mapping[str, float | None]) -> str:
    """A difference of shares with its interval, in points: `+20.5 [+16.0, +24.9]`. An interval that is not known (one
    run alone has no spread) is a dash."""
    mean, low, high = (difference[key] for key in ("mean", "low", "high"))
    interval = "—" if missing(low) or missing(high) else f"{100 * low:+.1f}, {100 * high:+.1f}"
    return f"{100 * mean:+.1f} [{interval}]"


def quoted(text: str, first: str) -> str:
    """Every line of `text` behind a bar: `wrote  | ...`, later lines indented alike."""
    return "\n".join(
        f"{' ' * len(first) if i else first}| {line}".rstrip()
        for i, line in enumerate(text.split("\n"))
    )
