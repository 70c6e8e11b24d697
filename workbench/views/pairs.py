"""Two policies at the same tasks: a row a task, and one task turn by turn.

show_pairs(paired)                  who solved what the other did not
show_pairs(paired, only="lost")     ... the tasks of one kind
show_pair(pair)                     both attempts, from the turn in which they part
"""

from __future__ import annotations

from workbench.types import Trajectory, View
from workbench.types.errors import DataError, nearest
from workbench.types.pairs import ALIKE, BOTH, LOST, NEITHER, UNKNOWN, WON, Pair, PairedGroups
from workbench.views import doc, words
from workbench.views.escape import capped
from workbench.views.html import shown
from workbench.views.looks import BLUE, BOLD, GREEN, GREY, ORANGE

ORDER = (LOST, WON, ALIKE, BOTH, NEITHER, UNKNOWN)
COLOURS = {LOST: ORANGE, WON: GREEN, BOTH: BLUE}
LONGEST_TEXT = 600  # characters of one message
MOST_TASKS = 24


def show_pairs(paired: PairedGroups, *, only: str = "", max_tasks: int = MOST_TASKS) -> View:
    """How many tasks the second won and lost, the difference with its interval, and a row per task: those that were lost
    first, then those that were won. `only`: tasks of one change ("lost", "won", "both", "neither", "alike", "not known").
    """
    if only and only not in ORDER:
        raise DataError(f"only={only!r} is no change; {nearest(only, ORDER)}")
    first, second = paired.names
    counts = {change: len(paired.of(change)) for change in ORDER}
    told = {
        LOST: f"{counts[LOST]} lost ({first} did better)",
        WON: f"{counts[WON]} won ({second} did better)",
    }
    facts = [
        told.get(change, f"{counts[change]} {change}")
        for change in ORDER
        if counts[change] or change in told
    ]
    found = paired.difference
    numbered = sorted(enumerate(paired.pairs), key=lambda item: ORDER.index(item[1].change))
    rows = [(number, pair) for number, pair in numbered if not only or pair.change == only]
    columns = [
        *doc.numbers("pair"),
        doc.Column("task"),
        doc.Column("change"),
        *doc.numbers(
            f"{paired.measure} {first}",
            f"{paired.measure} {second}",
            f"reward {first}",
            f"reward {second}",
            "turns",
            "turns",
        ),
        doc.Column("part in"),
    ]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(f"{second} beside {first}, {words.count(len(paired), 'task')}"),
                doc.Note(" · ".join(facts)),
                doc.Note(f"{paired.measure}, {second} less {first}: {_difference(paired)}")
                if found
                else None,
                doc.Table(
                    columns,
                    [_row(number, pair, paired.measure) for number, pair in rows[:max_tasks]],
                )
                if rows
                else doc.Note(f"no task was {only}" if only else "no task"),
                doc.first_shown(max_tasks, len(rows), "tasks"),
                doc.Note(f"{words.count(paired.left_out, 'group')} of one side alone left out")
                if paired.left_out
                else None,
                doc.Note("next: wb.show(paired.lost[0]), wb.show(paired[0]), paired.to_frame()"),
            )
        )
    )


def show_pair(pair: Pair, *, max_turns: int = 12) -> View:
    """The first attempt of each side, turn by turn; turns in which they wrote the same are told once. From the turn in
    which they part each side stands under its name."""
    a, b, names = pair.first[0], pair.second[0], pair.names
    part = pair.first_difference
    parts: list[doc.Part] = [
        doc.Heading(words.name_of(pair.task.id)),
        *(
            doc.Note(
                f"{name}: {words.success_words(attempt)}, reward {words.reward_words(attempt)}, {words.count(len(attempt.turns), 'turn')}"
                + (f", the first of {len(group)} attempts" if len(group) > 1 else "")
            )
            for name, attempt, group in zip(names, (a, b), (pair.first, pair.second))
        ),
    ]
    same = len(a.turns) if part is None else part
    if same:
        parts.append(
            doc.Note(
                f"the same words in {words.count(same, 'turn')}"
                + ("" if part is None else f", up to turn {part - 1}")
            )
        )
    for number in range(same, min(max(len(a.turns), len(b.turns)), same + max_turns)):
        parts.append(doc.Note(f"turn {number}" + (": here they part" if number == part else "")))
        for name, attempt in zip(names, (a, b)):
            parts += _turn(name, attempt, number)
    hidden = max(len(a.turns), len(b.turns)) - same - max_turns
    if hidden > 0:
        parts.append(doc.Note(f"… {words.count(hidden, 'turn')} more"))
    return shown(doc.ViewDocument(tuple(parts)))


def _turn(name: str, attempt: Trajectory, number: int) -> list[doc.Part]:
    if number >= len(attempt.turns):
        return (
            [doc.Quoted(f"{name:10}", name, f"({attempt.stop_reason.value} before)")]
            if number == len(attempt.turns)
            else []
        )
    turn = attempt.turns[number]
    reply = "\n".join(message.text for message in turn.reply)
    return [
        doc.Quoted(f"{name:10}", name, capped(turn.text, LONGEST_TEXT)),
        *([doc.Quoted(f"{'':10}", "reply", capped(reply, LONGEST_TEXT))] if reply else []),
    ]


def _difference(paired: PairedGroups) -> str:
    found = paired.difference
    if paired.measure == "success":
        return f"{100 * found.mean:+.1f} points [{100 * found.low:+.1f}, {100 * found.high:+.1f}], 95 % over tasks".replace(
            "-", "−"
        )
    return f"{found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], 95 % over tasks".replace(
        "-", "−"
    )


def _row(number: int, pair: Pair, measure: str) -> list[str | doc.Cell]:
    side = words.percent if measure == "success" else words.signed
    first, second = pair.first[0], pair.second[0]
    part = pair.first_difference
    return [
        str(number),
        capped(words.name_of(pair.task.id), 40),
        doc.Cell(
            pair.change,
            BOLD if pair.change in COLOURS else doc.Cell("").look,
            (doc.Badge(pair.change, COLOURS.get(pair.change, GREY)),),
        ),
        *("—" if value is None else side(value) for value in getattr(pair, measure)),
        *("—" if value is None else words.signed(value) for value in pair.reward),
        str(len(first.turns)),
        str(len(second.turns)),
        "the same words" if part is None else f"turn {part}",
    ]
