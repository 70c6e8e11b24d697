"""The credit of a batch: what each attempt is worth, what each token of one of them is, and what an edit changed.

    show_credit(groups, chat.token_texts, credited, before, attempt=2)     one estimator, one batch, one attempt in full
    show_estimators(groups, {"grpo": credited, "ppo": "needs value_T"})    the same batch under several estimators

Pure functions of arrays: who computes them, and how, is the business of `notebook/credit.py`.

Axis letters: N trajectories, all groups end to end · T tokens, all their segments end to end.
"""
from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from workbench.types import Group, Trajectory, View, trajectories_of
from workbench.types.errors import DataError
from workbench.views import markup as m
from workbench.views import words
from workbench.views.escape import visible
from workbench.views.markup import Html, tag
from workbench.views.png import palette_png
from workbench.views.tokens import show_tokens

TokenTexts = Callable[[Sequence[int]], list[str]]

PAPER, GAP, UNTRAINED = 7, 8, 9  # colours of the strips, after the seven steps from red to blue
STRIP_PALETTE = (*(fill for fill, _ in m.RED_BLUE), m.CARD, "#525f6b", "#e3dcea")
MOST_COLUMNS = 4000  # pixels of a strip
ROUNDING = 1e-12  # of the largest value: below it, sums that were added up in another order are the same


@dataclass(frozen=True, eq=False)
class Credited:
    """What `Algorithm.credit` gave for a batch, as arrays. `reward_N`: what was paid in all, NaN where not scored.
    `kept_N`: scored, and left in by the filter. `inert`: settings that could not have changed any of it, with why."""

    advantage_T: np.ndarray
    weight_T: np.ndarray
    return_T: np.ndarray | None
    reward_N: np.ndarray
    kept_N: np.ndarray
    notes: Mapping[str, float] = field(default_factory=dict)
    inert: Mapping[str, str] = field(default_factory=dict)


def tokens_of(trajectories: Sequence[Trajectory]) -> list[slice]:
    """Where in T the tokens of each trajectory stand."""
    ends = np.cumsum([sum(len(segment) for segment in t.segments) for t in trajectories])
    return [slice(int(end) - sum(len(s) for s in t.segments), int(end)) for t, end in zip(trajectories, ends)]


def show_credit(groups: Sequence[Group], token_texts: TokenTexts, credited: Credited, before: Credited | None = None, *,
                title: str, attempt: int = 0, edited: Mapping[tuple[int, int], float | None] = {},
                max_tokens: int = 1200, max_rows: int = 16) -> View:
    """What each attempt of a batch is worth, and every token of one of them.

    You will see a line of facts about the whole batch, a row per attempt (whether the filter kept it; the range of its
    tokens' advantages; with `before` also how many of them changed; rewards by turn, `*` where edited), strips with
    every sampled (or widened) token of every attempt from red to blue, each with its number, and the tokens of the attempt number `attempt` (counted over
    all groups), those that changed with a line below. Of more than `max_rows` attempts the chosen one, the edited ones
    and the first have a row.
    """
    trajectories = trajectories_of(groups)
    spans = tokens_of(trajectories)
    _check(credited, trajectories, spans)
    facts = _facts(credited, before)
    header, lines = _table(groups, credited, before, spans, edited)
    right = [name for name in header if name not in ("attempt", "", "reward by turn", "kept")]
    by_edit = {n for n, _ in edited}
    told = sorted(sorted(range(len(lines)), key=lambda n: (n != attempt, n not in by_edit, n))[:max_rows])
    hidden = len(lines) - len(told)
    notice = f"{len(told)} of {len(lines)} attempts shown, {hidden} hidden" if hidden else ""
    names = ["", *header]
    text = [visible(title), facts, words.aligned(
        [names, *(["→" if n == attempt else "", *(visible(cell, newline="⏎") for cell in lines[n])] for n in told)],
        right=[i for i, name in enumerate(names) if name in right]), *([notice] if notice else [])]
    rows = [_row(lines[n], header, right, n == attempt) for n in told]
    one = spans[attempt]
    columns = {"advantage": credited.advantage_T[one], "weight": credited.weight_T[one]}
    if credited.return_T is not None:
        columns["return"] = credited.return_T[one]
    if before is not None:
        columns["was"] = _same_where_close(before.advantage_T, credited.advantage_T)[one]
    tokens = show_tokens(trajectories[attempt], token_texts, columns, max_tokens=max_tokens, context=16,
                         scale=_scale(credited))
    png = strips([(credited.advantage_T[span], credited.weight_T[span], _turns(t), _sampled(t))
                  for t, span in zip(trajectories, spans)], _scale(credited))
    body = m.card(m.heading(title), m.note(facts), _grid(rows, m.head_cells(header, right=right)),
                  m.warning(notice) if notice else None,
                  _labelled(png, len(trajectories), attempt,
                            f"credit of every sampled token, one row per attempt: {facts}"),
                  m.note("above: the tokens that are sampled or weigh something, a row per attempt with its number; red "
                         "below zero, blue above, grey between turns, lilac: weight 0"
                         f"{_cut_words(max(t.num_sampled for t in trajectories))}"))
    return m.finished(Html(body + tokens.html), "\n".join([*text, tokens.text]), png)


def show_estimators(groups: Sequence[Group], credited: Mapping[str, Credited | str], *, title: str = "",
                    max_rows: int = 40) -> View:
    """The same turns under several estimators, side by side.

    You will see one row per turn and one column per estimator: the advantage of the turn's tokens (first..last where
    they differ), coloured by the column's own largest one, so that shapes can be compared though scales cannot. An
    estimator that could not be computed has dashes, and its reason below.
    """
    trajectories = trajectories_of(groups)
    spans = tokens_of(trajectories)
    names = list(credited)
    lines, cells = [], []
    for n, (trajectory, span) in enumerate(zip(trajectories, spans)):
        turn_T, sampled_T = _turns(trajectory), _sampled(trajectory)
        for turn in trajectory.turns:
            where = np.flatnonzero(sampled_T & (turn_T == turn.index)) + span.start
            worth = [_worth(found, where) for found in credited.values()]
            head = [str(n), str(turn.index), words.signed(turn.reward)]
            lines.append([*head, *(_ends(w) for w in worth)])
            cells.append([*map(_cell, head), *(_worth_cell(w, found) for w, found in zip(worth, credited.values()))])
    header = ["attempt", "turn", "reward", *names]
    hidden = max(0, len(lines) - max_rows)
    notices = [f"first {max_rows} turns shown, {hidden} hidden"] if hidden else []
    notices += [f"{name}: {found}" for name, found in credited.items() if isinstance(found, str)]
    title = title or f"the same {words.count(len(lines), 'turn')} under {words.count(len(names), 'estimator')}"
    spelled = [[visible(cell, newline="⏎") for cell in line] for line in [header, *lines[:max_rows]]]
    text = "\n".join([visible(title), words.aligned(spelled, right=range(len(header))), *map(visible, notices)])
    png = _estimator_strips(trajectories, spans, credited)
    body = m.card(m.heading(title),
                  m.note("advantage of a turn's tokens, first..last where they differ; colours: red below zero, blue "
                         "above, full at the column's own largest"),
                  _grid(cells[:max_rows], m.head_cells(header, right=header)), *map(m.warning, notices),
                  *([m.picture(png, f"one row per estimator: {', '.join(names)}"),
                     m.note(f"every sampled token, all attempts end to end; rows from above: {', '.join(names)}"
                            f"{_cut_words(sum(t.num_sampled for t in trajectories))}")]
                    if png else []))
    return m.finished(body, text, png)


def failed_view(title: str, error: str, below: View | None = None) -> View:
    """An edit that has no credit: the reason, in place of numbers."""
    card = m.card(m.heading(title), m.warning(error))
    text = f"{visible(title)}\n! {visible(error)}"
    if below is None:
        return m.finished(card, text)
    return m.finished(Html(card + below.html), f"{text}\n{below.text}", below.png)


# ------------------------------------------------------------------------------------------------ numbers


def changed_tokens(now_T: np.ndarray, was_T: np.ndarray) -> np.ndarray:
    """bool [T]: another value, by more than the rounding of sums that were added up in another order. NaN (none) and a
    number differ."""
    differs_T = ~((now_T == was_T) | (np.isnan(now_T) & np.isnan(was_T)))
    largest = np.nanmax(np.abs(np.concatenate([now_T, was_T])), initial=0.0) if len(now_T) else 0.0
    with np.errstate(invalid="ignore"):
        close_T = np.abs(now_T - was_T) <= ROUNDING * largest
    return differs_T & ~close_T


def largest_change(now_T: np.ndarray, was_T: np.ndarray, where_T: np.ndarray) -> float:
    """The largest difference among these tokens; one that is not finite on one side only is infinite."""
    now, was = now_T[where_T], was_T[where_T]
    known = np.isfinite(now) & np.isfinite(was)
    if (np.isfinite(now) != np.isfinite(was)).any():
        return float("inf")
    return float(np.abs(now[known] - was[known]).max(initial=0.0))


def _same_where_close(was_T: np.ndarray, now_T: np.ndarray) -> np.ndarray:
    return np.where(changed_tokens(now_T, was_T), was_T, now_T)


def _check(credited: Credited, trajectories: Sequence[Trajectory], spans: Sequence[slice]) -> None:
    total = spans[-1].stop if spans else 0
    if credited.advantage_T.shape != (total,) or credited.kept_N.shape != (len(trajectories),):
        raise DataError(f"credit of another batch: expected {total} tokens of {len(trajectories)} trajectories, got "
                        f"{credited.advantage_T.shape} and {credited.kept_N.shape}")


def _scale(credited: Credited) -> float:
    values = np.abs(credited.advantage_T[credited.weight_T != 0])
    return float(values[np.isfinite(values)].max(initial=0.0))


def _turns(trajectory: Trajectory) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int32), *(segment.turns for segment in trajectory.segments)])


def _sampled(trajectory: Trajectory) -> np.ndarray:
    return np.concatenate([np.zeros(0, bool), *(segment.eligible for segment in trajectory.segments)])


# ------------------------------------------------------------------------------------------------ the table of attempts


def _facts(credited: Credited, before: Credited | None) -> str:
    trained = int((credited.weight_T != 0).sum())
    kept, total = int(credited.kept_N.sum()), len(credited.kept_N)
    facts = [f"{trained:,} tokens trained", f"{kept} of {words.count(total, 'attempt')} kept"]
    if unscored := int(np.isnan(credited.reward_N).sum()):
        facts.append(f"{unscored} not scored")
    if trained:
        worth = credited.advantage_T[credited.weight_T != 0]
        facts.append(f"advantages {words.signed(float(worth.min()))} to {words.signed(float(worth.max()))}, mean "
                     f"{words.signed(round(float(worth.mean()), 6) + 0.0)}, deviation "
                     f"{words.number(float(worth.std()), 3)}")
    if before is not None:
        changed = int(changed_tokens(credited.advantage_T, before.advantage_T).sum())
        facts.append(f"{words.count(changed, 'token')} with another advantage than before")
        if weights := int((credited.weight_T != before.weight_T).sum()):
            facts.append(f"{weights:,} with another weight")
    return " · ".join(facts)


def _table(groups: Sequence[Group], credited: Credited, before: Credited | None, spans: Sequence[slice],
           edited: Mapping[tuple[int, int], float | None]) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and a line per attempt."""
    header = ["attempt", "", "reward", "kept", "advantage"]
    header += ["return"] * (credited.return_T is not None) + ["trained"]
    header += ["changed", "by ≤"] * (before is not None) + ["reward by turn"]
    lines, n = [], 0
    for number, group in enumerate(groups):
        for trajectory in group:
            name = str(n) if len(groups) == 1 else f"{n} (group {number})"
            lines.append([name, words.success_mark(trajectory.success), words.signed(_or_none(credited.reward_N[n])),
                          _kept_words(credited, n), *_worth_words(credited, before, spans[n]),
                          _paid(trajectory, n, edited)])
            n += 1
    return header, lines


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def _paid(trajectory: Trajectory, n: int, edited: Mapping[tuple[int, int], float | None]) -> str:
    """`+0.00 +1.00*`: what each turn earned, then the outcome if there is one; a star where it was edited."""
    paid = [words.signed(turn.reward) + "*" * ((n, k) in edited) for k, turn in enumerate(trajectory.turns)]
    if trajectory.outcome is not None:
        paid.append(f"outcome {words.signed(trajectory.outcome)}" + "*" * ((n, len(trajectory.turns)) in edited))
    shown = paid if len(paid) <= 12 else [*paid[:8], f"… {len(paid) - 11} more …", *paid[-3:]]
    return " ".join(shown)


def _kept_words(credited: Credited, n: int) -> str:
    if np.isnan(credited.reward_N[n]):
        return "not scored"
    return "yes" if credited.kept_N[n] else "filtered"


def _worth_words(credited: Credited, before: Credited | None, span: slice) -> list[str]:
    weighs_T = credited.weight_T[span] != 0
    cells = [_bounds(credited.advantage_T[span][weighs_T])]
    if credited.return_T is not None:
        cells.append(_bounds(credited.return_T[span][weighs_T]))
    cells.append(f"{int(weighs_T.sum()):,}")
    if before is not None:
        now_T, was_T = credited.advantage_T, before.advantage_T
        changed_T = changed_tokens(now_T, was_T)[span]
        by = largest_change(now_T[span], was_T[span], changed_T)
        cells += [f"{int(changed_T.sum()):,}", words.number(by, 2)] if changed_T.any() else ["", ""]
    return cells


def _bounds(values: np.ndarray) -> str:
    """`+0.41` or `-0.20..+0.41`: lowest and highest."""
    values = values[np.isfinite(values)]
    if not len(values):
        return words.signed(None)
    low, high = words.signed(float(values.min())), words.signed(float(values.max()))
    return low if low == high else f"{low}..{high}"


def _row(line: Sequence[str], header: Sequence[str], right: Sequence[str], chosen: bool) -> list[Html]:
    cells = []
    for name, cell in zip(header, line):
        paper, ink = ("#fff3d6", m.INK) if chosen else (m.CARD, m.INK)
        if name == "kept" and cell != "yes":
            paper, ink = "#e9e2ef", "#432a55"
        arrow = "→ " if chosen and name == "attempt" else ""
        cells.append(_cell(f"{arrow}{cell}", paper, ink, align="right" if name in right else "left"))
    return cells


def _cell(text: str, background: str = m.CARD, foreground: str = m.INK, *, align: str = "right") -> Html:
    """A cell of a `_grid`, which has hundreds of them: no more style than it needs."""
    return tag("td", text, style=f"background-color:{background};color:{foreground};text-align:{align};padding:3px 8px")


def _grid(rows: Sequence[Sequence[Html]], header: Sequence[Html]) -> Html:
    """A `markup.table` in figures of one width."""
    head, *body = [tag("tr", *row, style=f"background-color:{m.CARD}") for row in (header, *rows)]
    return tag("table", tag("thead", head), tag("tbody", *body), style=(
        f"border-collapse:collapse;margin:6px 0;background-color:{m.CARD};color:{m.INK};font-size:12px;"
        f"font-family:{m.MONO};white-space:nowrap"))


# ------------------------------------------------------------------------------------------------ estimators


def _worth(found: Credited | str, where: np.ndarray) -> tuple[float, float] | None:
    """Advantage of the first and of the last of these tokens; None where there is none."""
    if isinstance(found, str) or not len(where) or not (found.weight_T[where] != 0).any():
        return None
    return float(found.advantage_T[where[0]]), float(found.advantage_T[where[-1]])


def _ends(worth: tuple[float, float] | None) -> str:
    if worth is None:
        return words.signed(None)
    first, last = words.signed(worth[0]), words.signed(worth[1])
    return first if first == last else f"{first}..{last}"


def _worth_cell(worth: tuple[float, float] | None, found: Credited | str) -> Html:
    if worth is None or isinstance(found, str):
        return _cell(_ends(worth))
    background, foreground = m.red_blue(worth[0] + worth[1], 2 * _scale(found))
    return _cell(_ends(worth), background, foreground)


def _estimator_strips(trajectories: Sequence[Trajectory], spans: Sequence[slice],
                      credited: Mapping[str, Credited | str]) -> bytes | None:
    rows = []
    for found in credited.values():
        if isinstance(found, str):
            continue
        pieces = [_pixels(found.advantage_T[span], found.weight_T[span], _turns(t), _sampled(t), _scale(found), False)
                  for t, span in zip(trajectories, spans)]
        rows.append(np.concatenate([np.append(piece, GAP) for piece in pieces]))
    return _stacked(rows, widest=1180)


# ------------------------------------------------------------------------------------------------ strips


def strips(attempts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]], scale: float) -> bytes:
    """A picture: one row per attempt, one column per sampled token, a grey one between turns; of more than MOST_COLUMNS
    the first. Each attempt is its advantage, weight, turn [T] and whether it was sampled here [T]."""
    return _stacked([_pixels(*attempt, scale, True) for attempt in attempts]) or palette_png(
        np.full((4, 4), PAPER, np.uint8), STRIP_PALETTE)


def _labelled(png: bytes, count: int, chosen: int, alt: str) -> Html:
    """The strips with the number of the attempt beside each row, or beside every few where a row is lower than a
    number; the chosen one has an arrow. Not scaled to the window, or the numbers would leave their rows."""
    pitch = _tall(count) + 1
    every = -(-11 // pitch)
    lines = []
    for first in range(0, count, every):
        mark = "→" if first <= chosen < first + every else ""
        lines.append(tag("div", f"{mark}{first}", style=f"height:{every * pitch}px;line-height:{every * pitch}px"))
    numbers = tag("div", *lines, style=f"background-color:{m.CARD};color:{m.MUTED};font-family:{m.MONO};font-size:10px;"
                                       "text-align:right;padding:0 6px 0 0;display:inline-block;vertical-align:top;"
                                       "min-width:24px")
    source = {"src": "data:image/png;base64," + base64.b64encode(png).decode("ascii"), "alt": alt}
    strips = tag("img", attributes=source, style=f"background-color:{m.CARD};max-width:none;margin:0;vertical-align:top")
    return tag("div", numbers, strips, style=f"background-color:{m.CARD};color:{m.INK};white-space:nowrap;overflow-x:auto;"
                                             "margin:4px 0")


def _tall(rows: int) -> int:
    """Pixels of a strip; one more lies between two."""
    return int(np.clip(240 // rows, 3, 14))


def _pixels(advantage_T: np.ndarray, weight_T: np.ndarray, turn_T: np.ndarray, sampled_T: np.ndarray, scale: float,
            gaps: bool) -> np.ndarray:
    """One colour per sampled (or widened) token."""
    here = np.flatnonzero(sampled_T | (weight_T != 0))
    row, previous = [], None
    for t in here:
        if gaps and previous is not None and turn_T[t] != previous:
            row.append(GAP)
        previous = turn_T[t]
        row.append(_colour(float(advantage_T[t]), scale) if weight_T[t] != 0 else UNTRAINED)
    return np.array(row, np.uint8)


def _colour(value: float, scale: float) -> int:
    """Index of the step from red to blue, as `markup.red_blue` chooses it."""
    return [pair for pair in m.RED_BLUE].index(m.red_blue(value, scale))


def _stacked(rows: Sequence[np.ndarray], *, widest: int = 1000) -> bytes | None:
    longest = max((len(row) for row in rows), default=0)
    if not longest:
        return None
    wide, tall = int(np.clip(widest // longest, 1, 9)), _tall(len(rows))
    pixels = np.full((len(rows) * (tall + 1), longest * wide), PAPER, np.uint8)
    for i, row in enumerate(rows):
        pixels[i * (tall + 1):i * (tall + 1) + tall, :len(row) * wide] = np.repeat(row, wide)
    return palette_png(pixels[:, :MOST_COLUMNS], STRIP_PALETTE)


def _cut_words(tokens: int) -> str:
    """What a caption says where a row of so many tokens does not fit."""
    return f"; at most the first {MOST_COLUMNS:,} tokens of a row are drawn" if tokens >= MOST_COLUMNS else ""
