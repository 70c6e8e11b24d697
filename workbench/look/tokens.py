"""Tokens, coloured and marked by who wrote them and whether they are trained.

    show_tokens(trajectory, chat.token_texts)                       who wrote what
    show_tokens(trajectory, chat.token_texts, credit=advantage_T)   ... and what each token is credited with
    segment_view(segment, chat.token_texts, title="a prompt")       one sequence, every token on its own

Axis: T tokens of the trajectory, its segments end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import shown, view_from
from workbench.look.looks import BLUE, CARD, INK, MUTED, Look, red_blue
from workbench.values import CreditTable, Segment, Source, Trajectory, View
from workbench.values.errors import DataError

PROMPT, SCAFFOLD, AGAIN, ENV, TRAINED, UNWEIGHTED, WIDENED = range(7)
LONGEST_TOLD = 400  # characters of what a critic was told of a turn
MOST_TOLD = 50  # such turns
CREDITED = (TRAINED, UNWEIGHTED, WIDENED)  # each token is drawn on its own, with its facts

TokenTexts = Callable[
    [Sequence[int]], list[str]
]  # one display string per token: `ChatFormat.token_texts`


@dataclass(frozen=True)
class Kind:
    """How tokens of one kind look: mark (no colour needed), meaning, background, text colour, top border.

    Trained tokens carry a bar on top, not an underline: an underline would hide the character `_`.
    """

    mark: str
    meaning: str
    background: str
    foreground: str
    top: str

    @property
    def look(self) -> Look:
        return Look(self.background, self.foreground, top=self.top)


KINDS = (
    Kind("prompt", "task text", "#e6ebf1", "#22303d", f"3px solid {CARD}"),
    Kind("template", "chat-template tokens", "#f4f4f4", "#5c6670", f"3px solid {CARD}"),
    Kind(
        "repeated",
        "repeated context (not trained): the policy's earlier text",
        "#e4f1fb",
        "#28506e",
        "3px dotted #4a90bf",
    ),
    Kind("env", "replies of the environment", "#fdebd3", "#583200", f"3px solid {CARD}"),
    Kind("TRAIN", "sampled here by the policy: trained", "#bfdff5", "#06283f", f"3px solid {BLUE}"),
    Kind(
        "weight0",
        "sampled here, but left out, or its trajectory has loss weight 0: not trained",
        "#e9e2ef",
        "#432a55",
        "3px dashed #8a5fa8",
    ),
    Kind(
        "widened",
        "not sampled here, but trained: a widened loss mask",
        "#fbe1d3",
        "#5a2000",
        "3px double #b84a00",
    ),
)

Credit = np.ndarray | Mapping[str, np.ndarray]


def ids_as_texts(ids: Sequence[int]) -> list[str]:
    """Token texts where no tokenizer is known."""
    return [f"[{token_id}]" for token_id in ids]


def kinds_of(segment: Segment) -> np.ndarray:
    """The kind of each token of a segment [T]: its author, and whether it was sampled in this very segment."""
    kind_T = np.array([PROMPT, SCAFFOLD, AGAIN, ENV], np.int8)[segment.sources]
    kind_T[~np.isnan(segment.logprobs)] = UNWEIGHTED  # sampled, in a segment that is not trained
    kind_T[segment.eligible] = TRAINED
    assert Source.POLICY == AGAIN and Source.ENV == ENV  # the table above is indexed by Source
    return kind_T


def credit_of(table: CreditTable, trajectory: int) -> dict[str, np.ndarray]:
    """The rows of an update's credit table that belong to one trajectory of its batch, fit for `show_tokens`."""
    rows = table["trajectory"] == trajectory
    return {name: column[rows] for name, column in table.columns.items()}


def show_tokens(
    trajectory: Trajectory,
    token_texts: TokenTexts,
    credit: Credit | None = None,
    *,
    max_tokens: int = 1600,
    max_segments: int = 12,
    context: int | None = None,
    scale: float | None = None,
) -> View:
    """The sequences that the model really saw, token by token.

    You will see runs of tokens by one author: `[TRAIN ...| text]` was sampled here and is trained (solid bar on top,
    hover for its logprob), `[repeated ...|` is a policy turn shown again (dotted bar), everything else has no bar. Line
    feeds are drawn as ⏎. A rewritten history has several segments, each labelled.

    `token_texts(ids)` gives one display string per token (`ChatFormat.token_texts`). `credit` is the advantage per
    token [T] (NaN where there is none), or columns [T] such as `credit_of` gives: "advantage" colours the trained
    tokens red to blue, "weight" tells which of them count (and which are trained though nobody sampled them), "was" is
    the advantage before an edit: a token whose advantage is another one now has a line below it. The rest is in the
    tooltips. At most about `max_tokens` tokens are drawn, first and last of each segment, with a notice of how many are
    hidden. What a critic was told besides (critic.sees) stands below: no token of these. `context`: of a run that is not trained show at most so many tokens, in one line (None: all of it).
    `scale`: the advantage that is drawn in full colour (None: the largest one here).
    """
    document = tokens_document(
        trajectory,
        token_texts,
        credit,
        max_tokens=max_tokens,
        max_segments=max_segments,
        context=context,
        scale=scale,
    )
    return shown(document)


def tokens_document(
    trajectory: Trajectory,
    token_texts: TokenTexts,
    credit: Credit | None = None,
    *,
    max_tokens: int = 1600,
    max_segments: int = 12,
    context: int | None = None,
    scale: float | None = None,
) -> doc.ViewDocument:
    """What `show_tokens` shows, as parts for a larger view."""
    columns = _columns(credit, sum(len(segment) for segment in trajectory.segments))
    scale = _scale(columns) if scale is None else scale
    drawn = trajectory.segments[:max_segments]
    room = max(40, max_tokens // max(1, len(drawn)))
    parts: list[doc.Part | None] = []
    start = 0
    seen = {TRAINED}
    for index, segment in enumerate(drawn):
        here = {name: column[start : start + len(segment)] for name, column in columns.items()}
        kind_T = _weighed_kinds(segment, here)
        left_out = f" · {segment.untrained}" if segment.untrained else ""
        counted = _counted(segment, kind_T)
        parts += [
            doc.Note(f"segment {index + 1} of {len(trajectory.segments)}: {counted}{left_out}"),
            doc.Tokens(
                tuple(_runs(segment, kind_T, token_texts, here, scale, room, context=context))
            ),
        ]
        start += len(segment)
        seen |= set(kind_T.tolist())
    parts.append(doc.first_shown(len(drawn), len(trajectory.segments), "segments", mark="… "))
    privileged = [
        (turn.index, capped(turn.privileged, LONGEST_TOLD))
        for turn in trajectory.turns[:MOST_TOLD]
        if turn.privileged
    ]
    parts += [
        doc.Note(f"privileged information before turn {index} (critic only): {text}")
        for index, text in privileged
    ]
    return doc.ViewDocument(
        (doc.Heading(_head(trajectory)), _legend(columns, scale, sorted(seen)), *parts)
    )


def segment_view(
    segment: Segment, token_texts: TokenTexts, *, title: str, max_tokens: int = 1600
) -> View:
    """One sequence with the border of every token drawn, not only of those that are trained.

    You will see where one token ends and the next begins: by a thin line, in the text form by `▏`. So a control token
    (one token) and the same characters typed by somebody (several) look different. The rest is as in `show_tokens`.
    """
    kind_T = kinds_of(segment)
    runs = _runs(segment, kind_T, token_texts, {}, 0.0, max(40, max_tokens), split=True)
    return view_from(
        doc.Heading(f"{title}: {_counted(segment, kind_T)}"),
        _legend({}, 0.0, sorted(set(kind_T.tolist()))),
        doc.Tokens(tuple(runs)),
    )


def ids_view(segment: Segment, *, max_tokens: int = 1600) -> View:
    """A segment's tokens by author. It does not know their texts: ids are shown (`show_tokens` takes texts)."""
    return segment_view(segment, ids_as_texts, title="segment", max_tokens=max_tokens)


# ------------------------------------------------------------------------------------------------ credit


def _columns(credit: Credit | None, num_tokens: int) -> dict[str, np.ndarray]:
    if credit is None:
        return {}
    columns = dict(credit) if isinstance(credit, Mapping) else {"advantage": credit}
    columns = {name: np.asarray(column) for name, column in columns.items()}
    for name, column in columns.items():
        if column.shape != (num_tokens,):
            raise DataError(
                f"credit column {name!r} must have one value per token of the trajectory, segments end to "
                f"end: expected shape ({num_tokens},), got {column.shape}; see views.tokens.credit_of"
            )
    return columns


def _scale(columns: Mapping[str, np.ndarray]) -> float:
    """The largest |advantage|: full colour."""
    values = np.abs(np.asarray(columns.get("advantage", np.zeros(0)), float))
    return float(np.nanmax(values)) if np.isfinite(values).any() else 0.0


# ------------------------------------------------------------------------------------------------ runs


def _weighed_kinds(segment: Segment, columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """The kinds, by their weights where these are known."""
    kind_T = kinds_of(segment)
    if "weight" in columns:
        sampled_T = kind_T == TRAINED
        weighs_T = columns["weight"] != 0
        kind_T[sampled_T & ~weighs_T] = UNWEIGHTED
        kind_T[~sampled_T & weighs_T] = WIDENED
    return kind_T


def _runs(
    segment: Segment,
    kind_T: np.ndarray,
    token_texts: TokenTexts,
    columns: Mapping[str, np.ndarray],
    scale: float,
    room: int,
    *,
    split: bool = False,
    context: int | None = None,
) -> Iterator[doc.TokenRun | doc.WarningLine]:
    """All runs of a segment, or those of its first and last tokens where there is no room for all. `split`: see
    `segment_view`."""
    turn_T = segment.turns
    logp_T = segment.logprobs
    ids_T = segment.token_ids
    length = len(segment)
    hidden = max(0, length - room)
    head = length if not hidden else room - room // 2
    for begin, end in ((0, head), (head + hidden, length)):
        if hidden and begin:
            notice = f"first {head:,} and last {length - begin:,} tokens shown, {hidden:,} hidden"
            yield doc.WarningLine(notice, "… ", " …")
        texts = token_texts(ids_T[begin:end].tolist()) if begin < end else []
        for a, b in _bounds(kind_T[begin:end], turn_T[begin:end]):
            run = slice(begin + a, begin + b)
            facts = _Facts(
                ids_T[run], logp_T[run], {name: column[run] for name, column in columns.items()}
            )
            kind = int(kind_T[run.start])
            mark = _mark(kind, int(turn_T[run.start]), b - a, facts)
            if kind in CREDITED or split and context is None:
                yield doc.TokenRun(
                    mark, tuple(_tokens(kind, texts[a:b], facts, scale, split)), split
                )
                continue
            # One element for the whole run: a prompt of thousands of tokens stays cheap to draw.
            text = "".join(texts[a:b] if context is None else _shortened(texts[a:b], context))
            whole = doc.Styled(text, KINDS[kind].look, title=KINDS[kind].meaning)
            yield doc.TokenRun(mark, (whole,), one_line=context is not None)


def _shortened(texts: Sequence[str], limit: int) -> list[str]:
    """The first and last tokens of a run, with a notice of how many stand between them."""
    if len(texts) <= limit:
        return list(texts)
    return [
        *texts[: limit // 2],
        f" … {len(texts) - limit // 2 * 2} more … ",
        *texts[len(texts) - limit // 2 :],
    ]


def _bounds(kind_T: np.ndarray, turn_T: np.ndarray) -> list[tuple[int, int]]:
    """Of the stretches with one kind and one turn."""
    if not len(kind_T):
        return []
    edges = np.flatnonzero((np.diff(kind_T) != 0) | (np.diff(turn_T) != 0)) + 1
    bounds = [0, *edges.tolist(), len(kind_T)]
    return list(zip(bounds[:-1], bounds[1:]))


@dataclass(frozen=True)
class _Facts:
    """What is known about the tokens of one run [len]."""

    ids: np.ndarray
    logp: np.ndarray
    columns: Mapping[str, np.ndarray]

    @property
    def changed(self) -> np.ndarray:
        """bool [len]: the advantage is another one than it was before an edit."""
        if "was" not in self.columns or "advantage" not in self.columns:
            return np.zeros(len(self.ids), bool)
        now = np.nan_to_num(self.columns["advantage"])
        was = np.nan_to_num(self.columns["was"])
        return now != was


def _mark(kind: int, turn: int, length: int, facts: _Facts) -> str:
    """`TRAIN turn 2, 8, +0.41`: kind, turn, number of tokens, and the advantage (or its range) where there is one;
    `, was +0.20` where it was another."""
    mark = f"{KINDS[kind].mark} turn {turn}, {length}"
    if (
        kind not in CREDITED
        or "advantage" not in facts.columns
        or not np.isfinite(facts.columns["advantage"]).any()
    ):
        return mark
    mark += f", {words.signed_bounds(facts.columns['advantage'])}"
    return (
        f"{mark}, was {words.signed_bounds(facts.columns['was'])}" if facts.changed.any() else mark
    )


def _tokens(
    kind: int, texts: Sequence[str], facts: _Facts, scale: float, split: bool
) -> Iterator[doc.Styled]:
    """Each token with its facts, red to blue by its advantage where there is one; a line below where that changed."""
    look = KINDS[kind].look
    advantage = facts.columns.get("advantage")
    changed = facts.changed
    edge = f"1px solid {MUTED if split else CARD}"
    for i, text in enumerate(texts):
        colours = (look.background, look.foreground)
        if advantage is not None and np.isfinite(advantage[i]):
            colours = red_blue(float(advantage[i]), scale)
        below = f"2px solid {INK}" if changed[i] else ""
        yield doc.Styled(
            text, Look(*colours, top=look.top, below=below, right=edge), title=_tooltip(facts, i)
        )


def _tooltip(facts: _Facts, i: int) -> str:
    lines = [f"id {facts.ids[i]}"]
    if np.isfinite(facts.logp[i]):
        lines.append(f"logprob {facts.logp[i]:.4f} (probability {np.exp(facts.logp[i]):.3f})")
    for name in (
        "advantage",
        "was",
        "weight",
        "old_logp",
        "new_logp",
        "ratio",
        "entropy",
        "ref_logp",
        "value",
        "return",
        "final_value",
    ):
        if name in facts.columns and np.isfinite(facts.columns[name][i]):
            lines.append(f"{name} {facts.columns[name][i]:.4g}")
    if "clip_state" in facts.columns and facts.columns["clip_state"][i]:
        lines.append("clipped low" if facts.columns["clip_state"][i] < 0 else "clipped high")
    return " · ".join(lines)


# ------------------------------------------------------------------------------------------------ words


def _head(trajectory: Trajectory) -> str:
    total = sum(len(segment) for segment in trajectory.segments)
    return (
        f"tokens of {words.name_of(trajectory.task.id)}, attempt {trajectory.attempt}: "
        f"{words.count(total, 'token')}, {trajectory.num_sampled:,} sampled, "
        f"{words.count(len(trajectory.segments), 'segment')}, reward {words.reward_words(trajectory)}"
    )


def _counted(segment: Segment, kind_T: np.ndarray) -> str:
    counts = ", ".join(
        f"{int((kind_T == kind).sum()):,} {look.mark}"
        for kind, look in enumerate(KINDS)
        if (kind_T == kind).any()
    )
    return f"{words.count(len(segment), 'token')} ({counts or 'empty'})"


def _legend(columns: Mapping[str, np.ndarray], scale: float, kinds: Sequence[int]) -> doc.Legend:
    items = [(KINDS[kind].mark, KINDS[kind].look, KINDS[kind].meaning) for kind in kinds]
    if "was" in columns:
        items.append(
            (
                "line below",
                Look(CARD, INK, below=f"2px solid {INK}"),
                "advantage changed by the edit",
            )
        )
    steps = [f"{scale * (i - 3) / 3:+.2g}" if i != 3 else "0" for i in range(7)]
    return doc.Legend(items, ("advantage of trained tokens", steps) if scale else None)
