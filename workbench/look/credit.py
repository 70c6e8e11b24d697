"""The credit of a batch: what each trajectory is worth, what each token of one of them is, and what an edit changed.

    credit_view(groups, chat.token_texts, credited, before, attempt=2)     one estimator, one batch, one trajectory in full
    estimators_view(groups, {"grpo": credited, "ppo": "needs value_T"})    the same batch under several estimators

Pure functions of arrays: who computes them, and how, is the business of `notebook/credit.py`.

Axis letters: N trajectories, all groups end to end · T tokens, all their segments end to end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from workbench.look import doc, words
from workbench.look.credited import (
    Credited,
    changed_tokens,
    largest_change,
    same_where_close,
    tokens_of,
)
from workbench.look.html import view_from
from workbench.look.looks import LILAC_INK, LILAC_PAPER, PLAIN, YELLOW_PAPER, Look, red_blue
from workbench.look.strips import GAP, cut_words, pixels_of, row_labels, stacked
from workbench.look.tokens import TokenTexts, tokens_document
from workbench.values import Group, Trajectory, View, trajectories_of
from workbench.values.errors import DataError

STRIPS = (
    "above: sampled tokens or tokens with non-zero loss weight, a row per trajectory with its number; red below zero, "
    "blue above, grey between turns, lilac: weight 0"
)
ADVANTAGES = (
    "advantage of a turn's tokens, first..last where they differ; colours: red below zero, blue above, full at the column's "
    "own largest"
)
WORDY = ("attempt", "", "reward by turn", "kept")  # columns without numbers


def credit_view(
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
    """What each trajectory of a batch is worth, and every token of one of them.

    You will see a line of facts about the whole batch, a row per trajectory (whether the filter kept it; the range of its
    tokens' advantages; with `before` also how many of them changed; rewards by turn, `*` where edited), strips with
    every sampled (or widened) token of every trajectory from red to blue, each with its number, and the tokens of the
    attempt number `attempt` (counted over all groups), those that changed with a line below. Of more than `max_rows`
    trajectories the chosen one, the edited ones and the first have a row.
    """
    trajectories = trajectories_of(groups)
    spans = tokens_of(trajectories)
    _check(credited, trajectories, spans)
    facts = _facts(credited, before)
    header, lines = _table(groups, credited, before, spans, edited)
    by_edit = {n for n, _ in edited}
    first_ones = sorted(range(len(lines)), key=lambda n: (n != attempt, n not in by_edit, n))
    listed = sorted(first_ones[:max_rows])
    columns = ["", *(doc.Column(name, name not in WORDY) for name in header)]
    rows = [_row(lines[n], header, n == attempt) for n in listed]
    hidden = None
    if len(listed) < len(lines):
        counts = (
            f"{len(listed)} of {len(lines)} trajectories shown, {len(lines) - len(listed)} hidden"
        )
        hidden = doc.WarningLine(counts, mark="")
    tokens = tokens_document(
        trajectories[attempt],
        token_texts,
        _token_columns(credited, before, spans[attempt]),
        max_tokens=max_tokens,
        context=16,
        scale=_scale(credited),
    )
    alt = f"credit of every sampled token, one row per trajectory: {facts}"
    caption = STRIPS + cut_words(max(t.num_sampled for t in trajectories))
    return view_from(
        doc.Heading(title),
        doc.Note(facts),
        doc.Table(columns, rows, dense=True),
        hidden,
        _labelled_strips(trajectories, spans, credited, attempt, alt),
        doc.PagePart((doc.Note(caption),)),
        *tokens.parts,
    )


def _token_columns(
    credited: Credited, before: Credited | None, tokens: slice
) -> dict[str, np.ndarray]:
    """What the tokens of one trajectory are drawn with."""
    columns = {"advantage": credited.advantage_T[tokens], "weight": credited.weight_T[tokens]}
    if credited.return_T is not None:
        columns["return"] = credited.return_T[tokens]
    if before is not None:
        columns["was"] = same_where_close(before.advantage_T, credited.advantage_T)[tokens]
    return columns


def estimators_view(
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
    rows: list[list[str | doc.Cell]] = []
    for n, (trajectory, span) in enumerate(zip(trajectories, spans)):
        rows += _turn_rows(n, trajectory, span, credited)
    counts = f"{words.count(len(rows), 'turn')} under {words.count(len(names), 'estimator')}"
    header = doc.numbers("attempt", "turn", "reward", *names)
    reasons = {name: reason for name, reason in credited.items() if isinstance(reason, str)}
    return view_from(
        doc.Heading(title or f"the same {counts}"),
        doc.PagePart((doc.Note(ADVANTAGES),)),
        doc.Table(header, rows[:max_rows], dense=True),
        doc.first_shown(max_rows, len(rows), "turns"),
        *(doc.WarningLine(f"{name}: {reason}", mark="") for name, reason in reasons.items()),
        *_estimator_pictures(trajectories, spans, credited),
    )


def _turn_rows(
    n: int, trajectory: Trajectory, span: slice, credited: Mapping[str, Credited | str]
) -> Iterator[list[str | doc.Cell]]:
    """A row a turn of attempt number `n`: its reward, and its worth under each estimator."""
    turn_T = _turns(trajectory)
    sampled_T = _sampled(trajectory)
    for turn in trajectory.turns:
        where = np.flatnonzero(sampled_T & (turn_T == turn.index)) + span.start
        worth = [_worth_cell(credit, where) for credit in credited.values()]
        yield [str(n), str(turn.index), words.signed(turn.reward), *worth]


def _estimator_pictures(
    trajectories: Sequence[Trajectory],
    spans: Sequence[slice],
    credited: Mapping[str, Credited | str],
) -> Iterator[doc.Part]:
    png = _estimator_strips(trajectories, spans, credited)
    if png:
        order = ", ".join(credited)
        cut = cut_words(sum(t.num_sampled for t in trajectories))
        caption = f"every sampled token, all trajectories end to end; rows from above: {order}{cut}"
        yield doc.Picture(png, f"one row per estimator: {order}")
        yield doc.PagePart((doc.Note(caption),))


def failed_view(title: str, error: str) -> View:
    """An edit that has no credit: the reason, in place of numbers."""
    return view_from(
        doc.Heading(title),
        doc.WarningLine(error),
    )


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


# ------------------------------------------------------------------------------------------------ the table of trajectories


def _facts(credited: Credited, before: Credited | None) -> str:
    trained = int((credited.weight_T != 0).sum())
    kept = int(credited.kept_N.sum())
    total = len(credited.kept_N)
    facts = [
        f"{trained:,} tokens trained",
        f"{kept} of {words.count(total, 'trajectory', 'trajectories')} kept",
    ]
    if unscored := int(np.isnan(credited.reward_N).sum()):
        facts.append(f"{unscored} not scored")
    if trained:
        worth = credited.advantage_T[credited.weight_T != 0]
        facts.append(
            f"advantages {words.signed(float(worth.min()))} to {words.signed(float(worth.max()))}, mean "
            f"{words.signed(round(float(worth.mean()), 6) + 0.0)}, std (n) "
            f"{words.number(float(worth.std()), 3)}"
        )
    if before is not None:
        changed = int(changed_tokens(credited.advantage_T, before.advantage_T).sum())
        facts.append(f"{words.count(changed, 'token')} with a changed advantage")
        if weights := int((credited.weight_T != before.weight_T).sum()):
            facts.append(f"{weights:,} with a changed weight")
    return " · ".join(facts)


def _table(
    groups: Sequence[Group],
    credited: Credited,
    before: Credited | None,
    spans: Sequence[slice],
    edited: Mapping[tuple[int, int], float | None],
) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a line per trajectory."""
    header = ["attempt", "", "reward", "kept", "advantage"]
    header += ["return"] * (credited.return_T is not None) + ["trained"]
    header += ["changed", "max. abs. change"] * (before is not None) + ["reward by turn"]
    lines = []
    n = 0
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
        now_T = credited.advantage_T
        was_T = before.advantage_T
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


def _worth_cell(credit: Credited | str, where: np.ndarray) -> doc.Cell:
    """Advantage of the first and of the last of these tokens; a dash where there is none."""
    if isinstance(credit, str) or not len(where) or not (credit.weight_T[where] != 0).any():
        return doc.Cell(words.signed(None))
    first = float(credit.advantage_T[where[0]])
    last = float(credit.advantage_T[where[-1]])
    return doc.Cell(
        words.signed_range(first, last), Look(*red_blue(first + last, 2 * _scale(credit)))
    )


# ------------------------------------------------------------------------------------------------ strips


def _labelled_strips(
    trajectories: Sequence[Trajectory],
    spans: Sequence[slice],
    credited: Credited,
    chosen: int,
    alt: str,
) -> doc.Picture:
    """A row per trajectory with its number beside it."""
    rows = [_strip(t, span, credited) for t, span in zip(trajectories, spans)]
    return doc.Picture(stacked(rows), alt, *row_labels(len(rows), chosen))


def _estimator_strips(
    trajectories: Sequence[Trajectory],
    spans: Sequence[slice],
    credited: Mapping[str, Credited | str],
) -> bytes | None:
    """A row per estimator that could be computed, a gap between trajectories; None where there is nothing to draw."""
    rows = []
    for credit in credited.values():
        if not isinstance(credit, str):
            pieces = []
            for trajectory, span in zip(trajectories, spans):
                pieces += [_strip(trajectory, span, credit, gaps=False), [GAP]]
            rows.append(np.concatenate(pieces))
    return stacked(rows, widest=1180) if rows else None


def _strip(
    trajectory: Trajectory, span: slice, credited: Credited, gaps: bool = True
) -> np.ndarray:
    """The pixels of one trajectory."""
    return pixels_of(
        credited.advantage_T[span],
        credited.weight_T[span],
        _turns(trajectory),
        _sampled(trajectory),
        _scale(credited),
        gaps=gaps,
    )
