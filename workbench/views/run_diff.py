"""Two runs side by side: do they agree to the last bit, and if not, where do they part first?

    show_diff(diff, rows_a, rows_b, evaluations_a)      `diff`: what `run_diff.compare_runs` gave
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.types import View
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import capped, visible
from workbench.views.markup import Html, tag

LONGEST = 160  # characters of a setting's value
WIDEST = 60  # steps in the table; more are put together, several steps a column
MARKS = {"=": ("#d9efe3", "equal"), "≠": ("#b84a00", "different"), "a": ("#5a6775", "only in a"),
         "b": ("#5a6775", "only in b"), "": (m.CARD, "in neither")}
WORST = ("≠", "a", "b", "=", "")  # of several steps in one column, the first of these is shown
LEGEND = "= equal, ≠ different, a or b: only there"


def show_diff(diff: Any, rows_a: Sequence[Mapping[str, Any]] = (), rows_b: Sequence[Mapping[str, Any]] = (),
              evaluations: Mapping[str, Any] = {}) -> View:
    """What two runs have in common and where they part.

    You will see the verdict; the settings that differ; a table with one column per step, in the order in which a step
    is made, so that the leftmost and topmost difference is the cause and the rest its wake; the first difference of
    every part, to the token; how far the columns of the first differing credit table are apart; and both runs' curves,
    one over the other, with the baselines of `evaluations` (law 12).
    """
    word, reason = _verdict(diff)
    names = [f"a: {diff.a}", f"b: {diff.b}"]
    settings = [(name, _short(left), _short(right)) for name, left, right in diff.settings]
    columns, table = _table(diff)
    firsts = [str(difference) for difference in diff.differences]
    credit = [(c.column, f"{c.tokens:,}", words.number(c.largest, 3), c.first) for c in diff.credit]
    png = _png(diff, rows_a, rows_b, evaluations)
    text = [visible(f"{word}: {reason}"), *map(visible, names)]
    if settings:
        text += ["", words.aligned(_visible([("setting", "a", "b"), *settings]))]
    if columns:
        text += ["", f"step {columns[0]} to {columns[-1]}{_binned(diff)} ({LEGEND})",
                 words.aligned([(part, "".join(mark or "·" for mark in marks)) for part, marks in table.items()])]
    if firsts:
        text += ["", "the first difference of each part, the cause first:", *(f"  {visible(line)}" for line in firsts)]
    if credit:
        text += ["", words.aligned(_visible([CREDIT_HEADER, *credit]), right=(1, 2))]
    text += [f"! {visible(note)}" for note in diff.notes]
    html = m.card(
        m.heading(m.badge(word, m.GREEN if diff.equal else m.ORANGE), reason),
        *map(m.note, names),
        _cells(("setting", "a", "b"), settings) if settings else None,
        _strips(columns, table, _binned(diff)) if columns else None,
        m.note("the first difference of each part, the cause first") if firsts else None,
        *(m.block(line, style="margin:2px 0") for line in firsts),
        m.folded("How far the credit tables are apart", _cells(CREDIT_HEADER, credit)) if credit else None,
        m.picture(png, "metrics of both runs over the steps") if png else None,
        *map(m.warning, diff.notes))
    return m.finished(html, "\n".join(text), png)


CREDIT_HEADER = ("credit column", "tokens that differ", "largest difference", "first")


def _verdict(diff: Any) -> tuple[str, str]:
    if not diff.equal:
        return "different", str(diff.first)
    if diff.exact:
        return "equal", f"to the last bit; every hashed byte was read and compared (digest {diff.digests[0][:16]}…)"
    return "equal", "same settings, same seals on every file, same metrics and evaluations (--exact reads every byte)"


def _short(value: Any) -> str:
    return capped(str(value).replace("\n", "⏎"), LONGEST)


def _visible(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[visible(cell, newline="⏎") for cell in row] for row in rows]


def _per_column(diff: Any) -> int:
    return -(-len(diff.steps) // WIDEST) if diff.steps else 1


def _binned(diff: Any) -> str:
    return f", {_per_column(diff)} steps a column" if _per_column(diff) > 1 else ""


def _table(diff: Any) -> tuple[list[str], dict[str, list[str]]]:
    """The steps that head the columns, and part -> marks; of several steps in a column the worst is shown."""
    size = _per_column(diff)
    starts = range(0, len(diff.steps), size)
    worst = {part: [min(marks[at:at + size], key=WORST.index) for at in starts] for part, marks in diff.table.items()}
    return [str(diff.steps[at]) for at in starts], worst


# ------------------------------------------------------------------------------------------------ html


def _cells(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    mono = f"font-family:{m.MONO}"
    return m.table([[m.cell(row[0]), *(m.cell(value, style=mono) for value in row[1:])] for row in rows],
                   m.head_cells(header))


def _strips(columns: Sequence[str], table: Mapping[str, Sequence[str]], binned: str) -> Html:
    """One row of small boxes per part, a mark in each: colour is not needed to read it."""
    rows = []
    for part, marks in table.items():
        boxes = [tag("span", mark or "·", title=f"step {step}: {MARKS[mark][1]}", style=(
            f"display:inline-block;width:14px;text-align:center;font-family:{m.MONO};font-size:11px;margin:0 1px 0 0;"
            f"background-color:{MARKS[mark][0]};color:{'#ffffff' if mark not in ('=', '') else m.INK}"))
            for step, mark in zip(columns, marks)]
        rows.append([m.cell(part), m.cell(*boxes, style="white-space:nowrap")])
    return tag("div", m.note(f"step {columns[0]} to {columns[-1]}{binned} ({LEGEND})"), m.table(rows))


def _png(diff: Any, rows_a: Sequence, rows_b: Sequence, evaluations: Mapping[str, Any]) -> bytes | None:
    if not rows_a and not rows_b:
        return None
    from workbench.views.run_diff_picture import overlay_png

    return overlay_png((f"a  {diff.a.name}", rows_a), (f"b  {diff.b.name}", rows_b), evaluations)
