"""The credit of a batch: what each attempt is worth, what each token of one of them is, and what an edit changed.

    show_credit(groups, chat.token_texts, credited, before, attempt=2)     one estimator, one batch, one attempt in full
    show_estimators(groups, {"grpo": credited, "ppo": "needs value_T"})    the same batch under several estimators

Pure functions of arrays: who computes them, and how, is the business of `notebook/credit.py`.

Axis letters: N trajectories, all groups end to end · T tokens, all their segments end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from workbench.types import Group, Trajectory, View, trajectories_of
from workbench.types.errors import DataError
from workbench.views import doc, words
from workbench.views.credited import (
    Credited,
    changed_tokens,
    largest_change,
    same_where_close,
    tokens_of,
)
from workbench.views.html import shown
from workbench.views.looks import LILAC_INK, LILAC_PAPER, PLAIN, YELLOW_PAPER, Look, red_blue
from workbench.views.strips import GAP, cut_words, pixels_of, row_labels, stacked
from workbench.views.tokens import TokenTexts, tokens_document

WORDY = ("attempt", "", "reward by turn", "kept")  # columns without numbers


def show_credit(
    groups: Sequence[Group],
    token_texts: TokenTexts,
    credited: Credited,
    before: Credited | None = None,
    *,
    title: str,
    attempt: int = 0,
    edited: Mapping[tuple[int, int], float | None] = {},
    max_tokens: int = 1200,
    max_rows: int = 16,
) -> View:
    """What each attempt of a batch is worth, and every token of one of them.

    You will see a line of facts about the whole batch, a row per attempt (whether the filter kept it; the range of its
    tokens' advantages; with `before` also how many of them changed; rewards by turn, `*` where edited), strips with
    every sampled (or widened) token of every attempt from red to blue, each with its number, and the tokens of the
    attempt number `attempt` (counted over all groups), those that changed with a line below. Of more than `max_rows`
    attempts the chosen one, the edited ones and the first have a row.
    """
    trajectories = trajectories_of(groups)
    spans = tokens_of(trajectories)
    _check(credited, trajectories, spans)
    facts = _facts(credited, before)
    header, lines = _table(groups, credited, before, spans, edited)
    by_edit = {n for n, _ in edited}
    told = sorted(
        sorted(range(len(lines)), key=lambda n: (n != attempt, n not in by_edit, n))[:max_rows]
    )
    one = spans[attempt]
    columns = {"advantage": credited.advantage_T[one], "weight": credited.weight_T[one]}
    if credited.return_T is not None:
        columns["return"] = credited.return_T[one]
    if before is not None:
        columns["was"] = same_where_close(before.advantage_T, credited.advantage_T)[one]
    tokens = tokens_document(
        trajectories[attempt],
        token_texts,
        columns,
        max_tokens=max_tokens,
        context=16,
        scale=_scale(credited),
    )
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(title),
                doc.Note(facts),
                doc.Table(
                    ["", *(doc.Column(name, name not in WORDY) for name in header)],
                    [_row(lines[n], header, n == attempt) for n in told],
                    dense=True,
                ),
                doc.WarningLine(
                    f"{len(told)} of {len(lines)} attempts shown, {len(lines) - len(told)} hidden",
                    mark="",
                )
                if len(told) < len(lines)
                else None,
                _labelled_strips(
                    trajectories,
                    spans,
                    credited,
                    attempt,
                    f"credit of every sampled token, one row per attempt: {facts}",
                ),
                doc.PagePart(
                    (
                        doc.Note(
                            "above: the tokens that are sampled or weigh something, a row per attempt with its number; red below zero, "
                            f"blue above, grey between turns, lilac: weight 0{cut_words(max(t.num_sampled for t in trajectories))}"
                        ),
                    )
                ),
                *tokens.parts,
            )
        )
    )


def show_estimators(
    groups: Sequence[Group],
    credited: Mapping[str, Credited | str],
    *,
    title: str = "",
    max_rows: int = 40,
) -> View:
    """The same turns under several estimators, side by side.

    You will see one row per turn and one column per estimator: the advantage of the turn's tokens (first..last where
    they differ), coloured by the column's own largest one, so that shapes can be compared though scales cannot. An
    estimator that could not be computed has dashes, and its reason below.
    """
    trajectories = trajectories_of(groups)
    spans = tokens_of(trajectories)
    names = list(credited)
    rows = []
    for n, (trajectory, span) in enumerate(zip(trajectories, spans)):
        turn_T, sampled_T = _turns(trajectory), _sampled(trajectory)
        for turn in trajectory.turns:
            where = np.flatnonzero(sampled_T & (turn_T == turn.index)) + span.start
            rows.append(
                [
                    str(n),
                    str(turn.index),
                    words.signed(turn.reward),
                    *(_worth_cell(found, where) for found in credited.values()),
                ]
            )
    png = _estimator_strips(trajectories, spans, credited)
    order = ", ".join(names)
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(
                    title
                    or f"the same {words.count(len(rows), 'turn')} under {words.count(len(names), 'estimator')}"
                ),
                doc.PagePart(
                    (
                        doc.Note(
                            "advantage of a turn's tokens, first..last where they differ; colours: red below zero, "
                            "blue above, full at the column's own largest"
                        ),
                    )
                ),
                doc.Table(
                    doc.numbers("attempt", "turn", "reward", *names), rows[:max_rows], dense=True
                ),
                doc.first_shown(max_rows, len(rows), "turns"),
                *(
                    doc.WarningLine(f"{name}: {found}", mark="")
                    for name, found in credited.items()
                    if isinstance(found, str)
                ),
                *(
                    (
                        doc.Picture(png, f"one row per estimator: {order}"),
                        doc.PagePart(
                            (
                                doc.Note(
                                    f"every sampled token, all attempts end to end; rows from above: {order}"
                                    f"{cut_words(sum(t.num_sampled for t in trajectories))}"
                                ),
                            )
                        ),
                    )
                    if png
                    else ()
                ),
            )
        )
    )


def failed_view(title: str, error: str) -> View:
    """An edit that has no credit: the reason, in place of numbers."""
    return shown(doc.ViewDocument((doc.Heading(title), doc.WarningLine(error))))


# ------------------------------------------------------------------------------------------------ numbers


def _check(credited: Credited, trajectories: Sequence[Trajectory], spans: Sequence[slice]) -> None:
    total = spans[-1].stop if spans else 0
    if credited.advantage_T.shape != (total,) or credited.kept_N.shape != (len(trajectories),):
        raise DataError(
            f"credit of another batch: expected {total} tokens of {len(trajectories)} trajectories, got "
            f"{credited.advantage_T.shape} and {credited.kept_N.shape}"
        )


def _scale(credited: Credited) -> float:
    values = np.abs(credited.advantage_T[credited.weight_T != 0])
    return float(values[np.isfinite(values)].max(initial=0.0))


def _turns(trajectory: Trajectory) -> np.ndarray:
    return np.concatenate(
        [np.zeros(0, np.int32), *(segment.turns for segment in trajectory.segments)]
    )


def _sampled(trajectory: Trajectory) -> np.ndarray:
    return np.concatenate(
        [np.zeros(0, bool), *(segment.eligible for segment in trajectory.segments)]
    )


# ------------------------------------------------------------------------------------------------ the table of attempts


def _facts(credited: Credited, before: Credited | None) -> str:
    trained = int((credited.weight_T != 0).sum())
    kept, total = int(credited.kept_N.sum()), len(credited.kept_N)
    facts = [f"{trained:,} tokens trained", f"{kept} of {words.count(total, 'attempt')} kept"]
    if unscored := int(np.isnan(credited.reward_N).sum()):
        facts.append(f"{unscored} not scored")
    if trained:
        worth = credited.advantage_T[credited.weight_T != 0]
        facts.append(
            f"advantages {words.signed(float(worth.min()))} to {words.signed(float(worth.max()))}, mean "
            f"{words.signed(round(float(worth.mean()), 6) + 0.0)}, deviation "
            f"{words.number(float(worth.std()), 3)}"
        )
    if before is not None:
        changed = int(changed_tokens(credited.advantage_T, before.advantage_T).sum())
        facts.append(f"{words.count(changed, 'token')} with another advantage than before")
        if weights := int((credited.weight_T != before.weight_T).sum()):
            facts.append(f"{weights:,} with another weight")
    return " · ".join(facts)


def _table(
    groups: Sequence[Group],
    credited: Credited,
    before: Credited | None,
    spans: Sequence[slice],
    edited: Mapping[tuple[int, int], float | None],
) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a line per attempt."""
    header = ["attempt", "", "reward", "kept", "advantage"]
    header += ["return"] * (credited.return_T is not None) + ["trained"]
    header += ["changed", "by ≤"] * (before is not None) + ["reward by turn"]
    lines, n = [], 0
    for number, group in enumerate(groups):
        for trajectory in group:
            name = str(n) if len(groups) == 1 else f"{n} (group {number})"
            lines.append(
                [
                    name,
                    words.success_mark(trajectory.success),
                    words.signed(_or_none(credited.reward_N[n])),
                    _kept_words(credited, n),
                    *_worth_words(credited, before, spans[n]),
                    _paid(trajectory, n, edited),
                ]
            )
            n += 1
    return header, lines


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _paid(trajectory: Trajectory, n: int, edited: Mapping[tuple[int, int], float | None]) -> str:
    """`+0.00 +1.00*`: what each turn earned, then the outcome if there is one; a star where it was edited."""
    paid = [
        words.signed(turn.reward) + "*" * ((n, k) in edited)
        for k, turn in enumerate(trajectory.turns)
    ]
    if trajectory.outcome is not None:
        paid.append(
            f"outcome {words.signed(trajectory.outcome)}"
            + "*" * ((n, len(trajectory.turns)) in edited)
        )
    shown = paid if len(paid) <= 12 else [*paid[:8], f"… {len(paid) - 11} more …", *paid[-3:]]
    return " ".join(shown)


def _kept_words(credited: Credited, n: int) -> str:
    if np.isnan(credited.reward_N[n]):
        return "not scored"
    return "yes" if credited.kept_N[n] else "filtered"


def _worth_words(credited: Credited, before: Credited | None, span: slice) -> list[str]:
    weighs_T = credited.weight_T[span] != 0
    cells = [words.signed_bounds(credited.advantage_T[span][weighs_T])]
    if credited.return_T is not None:
        cells.append(words.signed_bounds(credited.return_T[span][weighs_T]))
    cells.append(f"{int(weighs_T.sum()):,}")
    if before is not None:
        now_T, was_T = credited.advantage_T, before.advantage_T
        changed_T = changed_tokens(now_T, was_T)[span]
        by = largest_change(now_T[span], was_T[span], changed_T)
        cells += [f"{int(changed_T.sum()):,}", words.number(by, 2)] if changed_T.any() else ["", ""]
    return cells


def _row(line: Sequence[str], header: Sequence[str], chosen: bool) -> list[doc.Cell]:
    cells = [doc.Cell("→" if chosen else "", Look(YELLOW_PAPER) if chosen else PLAIN)]
    for name, text in zip(header, line):
        look = Look(LILAC_PAPER, LILAC_INK) if name == "kept" and text != "yes" else cells[0].look
        cells.append(doc.Cell(text, look))
    return cells


# ------------------------------------------------------------------------------------------------ estimators


def _worth_cell(found: Credited | str, where: np.ndarray) -> doc.Cell:
    """Advantage of the first and of the last of these tokens; a dash where there is none."""
    if isinstance(found, str) or not len(where) or not (found.weight_T[where] != 0).any():
        return doc.Cell(words.signed(None))
    first, last = float(found.advantage_T[where[0]]), float(found.advantage_T[where[-1]])
    return doc.Cell(
        words.signed_range(first, last), Look(*red_blue(first + last, 2 * _scale(found)))
    )


# ------------------------------------------------------------------------------------------------ strips


def _labelled_strips(
    trajectories: Sequence[Trajectory],
    spans: Sequence[slice],
    credited: Credited,
    chosen: int,
    alt: str,
) -> doc.Picture:
    """A row per attempt with its number beside it."""
    rows = [
        pixels_of(
            credited.advantage_T[span],
            credited.weight_T[span],
            _turns(t),
            _sampled(t),
            _scale(credited),
        )
        for t, span in zip(trajectories, spans)
    ]
    return doc.Picture(stacked(rows), alt, *row_labels(len(rows), chosen))


def _estimator_strips(
    trajectories: Sequence[Trajectory],
    spans: Sequence[slice],
    credited: Mapping[str, Credited | str],
) -> bytes | None:
    """A row per estimator that could be computed, a gap between attempts; None where there is nothing to draw."""
    rows = [
        np.concatenate(
            [
                np.append(
                    pixels_of(
                        found.advantage_T[span],
                        found.weight_T[span],
                        _turns(t),
                        _sampled(t),
                        _scale(found),
                        gaps=False,
                    ),
                    GAP,
                )
                for t, span in zip(trajectories, spans)
            ]
        )
        for found in credited.values()
        if not isinstance(found, str)
    ]
    return stacked(rows, widest=1180) if rows else None
