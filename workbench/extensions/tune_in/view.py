"""How the turns of a policy were read under several settings."""

from __future__ import annotations

from typing import Any

from workbench.look import doc
from workbench.look.html import shown
from workbench.look.looks import BOLD, GREY
from workbench.look.words import count, fixed, percent
from workbench.values import View

MOST_FAILURES = 4  # complaints that are shown of each set of settings
LONGEST_EXAMPLE = 300  # characters of a quoted turn


def tune_in_view(tuned: Any) -> View:
    """You will see one row for each set of settings: turns read strictly and in all, with a 95 % interval, turns cut at the
    limit, tokens, success and return; the baselines on the same tasks; below, how turns failed, each complaint with a
    turn that earned it, what was forgiven, how trajectories ended; and what to change."""
    limits = tuned.limits
    cost = sum(row.seconds for row in tuned.rows)
    played = (
        f"{count(limits['tasks'], 'training task')} x {limits['attempts']}, at most {count(limits['turns'], 'turn')} each, "
        f"seed {limits['seed']}; {cost:.0f} s of sampling"
    )
    parts: list[doc.Part] = [
        doc.Heading(f"{tuned.policy} in {tuned.env}"),
        doc.Note(played),
        doc.BlankLine(),
        _table(tuned),
    ]
    for row in tuned.rows:
        parts += _details(row)
    parts += [doc.BlankLine(), doc.Heading("What to change")]
    advice = tuned.advice or ("nothing: the turns are read as they are",)
    parts += [doc.Note(f"- {sentence}") for sentence in advice]
    return shown(doc.ViewDocument(tuple(parts)))


def _table(tuned: Any) -> doc.Table:
    columns = (
        doc.Column("settings", look=BOLD),
        *doc.numbers(
            "strictly valid", "valid", "95 %", "cut", "tokens a turn", "success", "return"
        ),
    )
    rows = [_row(row) for row in tuned.rows]
    for score in tuned.baselines:
        success = percent(score.success)
        rows.append((score.policy, "", "", "", "", "", success, fixed(score.reward)))
    return doc.Table(columns, rows)


def _row(row: Any) -> tuple[str, ...]:
    if row.refused:
        return (row.name, "not tried", "", "", "", "", "", "")
    low, high = row.interval
    return (
        row.name,
        f"{row.strict} of {row.turns}",
        f"{row.valid} of {row.turns}",
        f"[{low:.0%}, {high:.0%}]",
        str(row.cut),
        f"{row.tokens:.0f}",
        percent(row.success),
        fixed(row.reward),
    )


def _details(row: Any) -> list[doc.Part]:
    parts: list[doc.Part] = [doc.BlankLine(), doc.Heading(row.name)]
    if row.refused:
        return [*parts, doc.Note(row.refused)]
    for failure in row.failures[:MOST_FAILURES]:
        parts.append(doc.Note(f"{count(failure.turns, 'turn')}: {failure.complaint}"))
        example = " ".join(failure.example[: LONGEST_EXAMPLE + 1].split())
        mark = " ..." if len(failure.example) > LONGEST_EXAMPLE else ""
        parts.append(doc.Quoted("policy", GREY, example[:LONGEST_EXAMPLE] + mark))
    if row.forgiven:
        notes = [f"{what} {number}" for what, number in row.forgiven.items()]
        parts.append(doc.Note(f"forgiven in turns: {', '.join(notes)}"))
    stops = [f"{what} {number}" for what, number in row.stops.items()]
    lengths = f"turns of at most {row.longest} tokens, first prompts of at most {row.prompt}"
    parts.append(doc.Note(f"trajectories ended by: {', '.join(stops)}; {lengths}"))
    return parts
