"""What the policy was shown, against the tokenizer's own rendering (R2).

The reference is `apply_chat_template` of the tokenizer itself, from the messages of the environment; nothing of
`workbench.chat` is asked to render. Two things must be kept from it: text that merely looks like a control token
(broken up by a character that is taken out again), and the policy's own turns, whose ids were sampled and not encoded
(a mark stands for each; only where the template is to render the past anew does it see their text).

A past that the template would write differently is no finding where it was declared (`chat.differences`): what follows
a turn of the policy is then compared with the rendering of the conversation up to there.

Axis letters: N trajectories · S segments · P spans · T tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, pairwise, zip_longest

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked
from workbench.linting.evidence import Evidence
from workbench.linting.flat import POLICY, SCAFFOLD, Flat
from workbench.linting.reference import Piece, Reference, Refused, pieces_text
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Trajectory


def chosen(evidence: Evidence) -> list[int]:
    """The trajectories that slower rules look at: spread over the step, others in every step, and the one with most turns."""
    count = len(evidence.trajectories)
    samples = evidence.samples
    if samples is None or samples >= count:
        return list(range(count))
    longest = max(range(count), key=lambda n: len(evidence.trajectories[n].turns))
    shift = (evidence.step or 0) * 7
    return list(
        dict.fromkeys([longest, *((shift + k * count // samples) % count for k in range(samples))])
    )[:samples]


# ------------------------------------------------------------------------------------------------ R2


def check_rendering(evidence: Evidence) -> Iterator[RuleResult]:
    """Opening and every stretch between two turns of the policy, as the tokenizer itself would have it."""
    if evidence.collect is None or evidence.by_program:
        yield NotChecked("the sampling settings (which history was asked for)")
        return
    flat = evidence.flat
    reference = Reference(evidence.chat)
    for number, n in enumerate(chosen(evidence)):
        segments = flat.segments_of(n)
        if (
            evidence.samples is not None and len(segments) > 2
        ):  # the last one, and another one each time
            segments = sorted(
                {segments[-1], segments[(number + (evidence.step or 0)) % len(segments)]}
            )
        for segment in segments:
            try:
                yield from _segment(evidence, flat, reference, n, segment)
                yield Checked(1)
            except Refused as refusal:
                yield NotChecked(f"a reference: {refusal}", "some segments")


def _segment(
    evidence: Evidence, flat: Flat, reference: Reference, n: int, segment: int
) -> Iterator[Finding]:
    trajectory = evidence.trajectories[n]
    history = evidence.collect.history
    spans, now = _shown(flat, segment, len(trajectory.turns))
    if not spans:
        return
    number = int(flat.number_S[segment])
    turns = _exchanges(trajectory, history, evidence.collect.window, number, now)
    keeps_the_past = False
    if history == "template":
        texts = {t: _spelled_turn(evidence, flat, reference, n, t) for t in turns}
        ours = _rerendered(flat, reference, spans)
        theirs = reference.pieces(trajectory, turns, texts)
    elif history == "fresh" and number > 0:
        ours = _marked(flat, reference, spans, {})
        theirs = reference.fresh(trajectory, trajectory.turns[now - 1])
    else:
        keeps_the_past = True
        theirs = reference.pieces(trajectory, turns, {t: reference.mark(t) for t in turns})
        ours = _marked(flat, reference, spans, _ends(theirs))
        yield from _unknown_ends(evidence, reference, theirs, n)
    finding = _differs(flat, reference, segment, ours, theirs)
    if finding is not None and keeps_the_past:
        # The template may write the past otherwise: what was sampled stays, so each stretch has its own reference.
        stretch = _stretches(flat, reference, trajectory, segment, ours, turns)
        finding = stretch or _undeclared(evidence, finding)
    if finding is not None:
        yield finding


def _unknown_ends(
    evidence: Evidence, reference: Reference, theirs: Sequence[Piece], n: int
) -> Iterator[Finding]:
    """What the template ends a turn with ends sampling, too, or is known to stand inside of turns."""
    for token_id in sorted(set(_ends(theirs).values()) - reference.stops - reference.inside):
        yield Finding(
            f"the template ends a turn with {reference.name(token_id)!r} (id {token_id}), and sampling "
            f"goes on after it: {sorted(reference.stops)} end one",
            evidence.place(n),
        )


def _shown(flat: Flat, segment: int, num_turns: int) -> tuple[range, int]:
    """(the spans of a segment that were shown, the turn that was sampled after them); what is sampled last is answered
    by nothing."""
    spans = flat.spans_of(segment)
    sampled = [p for p in spans if flat.sampled_P[p]]
    if not sampled:
        return spans, num_turns
    last = int(flat.turn_P[sampled[-1]])
    return (spans[:-1], last) if sampled[-1] == spans[-1] else (spans, last + 1)


def _undeclared(evidence: Evidence, difference: Finding) -> Finding | None:
    """A past that the template would write otherwise is declared in the chat format."""
    if any("a later turn" in words for words in evidence.chat.differences):
        return None
    what = f"the template would write the past otherwise, and nobody said so: {difference.what}"
    return Finding(what, difference.place, NOTE)


def _exchanges(
    trajectory: Trajectory, history: str, window: int, number: int, now: int
) -> list[int]:
    """Numbers of the exchanges that the declared history shows before turn `now`."""
    first = max(now - window, 0) if history == "window" and number else 0
    return [t for t in range(first, now) if t < len(trajectory.turns)]


def _spelled_turn(evidence: Evidence, flat: Flat, reference: Reference, n: int, turn: int) -> str:
    """The sampled text of a turn for the template to see: control tokens that were sampled are spelled out, text that
    only looks like one is guarded."""
    for p in chain.from_iterable(map(flat.spans_of, flat.segments_of(n))):
        if flat.sampled_P[p] and flat.turn_P[p] == turn:
            return reference.spelled(flat.spans[p].token_ids.tolist())
    raise Refused(f"turn {turn} of {evidence.place(n)} was sampled nowhere")


def _marked(
    flat: Flat, reference: Reference, spans: Sequence[int], ends: Mapping[int, int]
) -> list[Piece]:
    """Spans as pieces. A mark stands for each turn of the policy, followed by its stop token where that is what the
    template writes there (`ends`, by turn)."""
    pieces: list[Piece] = []
    turn_of = lambda p: int(flat.turn_P[p]) if flat.source_P[p] == POLICY else None  # noqa: E731
    for turn, group in groupby(spans, turn_of):
        own = list(group)
        ids = flat.ids_of(own)
        start = int(flat.start_P[own[0]])
        if turn is None:
            pieces += reference.cut(ids, start)
            continue
        pieces.append(Piece("mark", str(turn), None, start))
        end = ends.get(turn)
        # A stop token that a past turn has another one in place of stands for that one.
        if ids and end is not None and (ids[-1] == end or ids[-1] in reference.instead):
            pieces.append(Piece("control", reference.name(end), [end], start + len(ids) - 1))
    return pieces


def _rerendered(flat: Flat, reference: Reference, spans: Sequence[int]) -> list[Piece]:
    """Spans as pieces. The policy's turns are text like any other, which was never encoded, so that only its words can
    be compared."""
    ids: list[int] = []
    by_policy: list[bool] = []
    places: list[int] = []
    for p, after in zip_longest(spans, spans[1:]):
        own = flat.spans[p].token_ids.tolist()
        if (
            flat.source_P[p] == POLICY
            and own
            and after is not None
            and flat.source_P[after] == SCAFFOLD
        ):
            # Another stop token than the template's own: that one stands behind it, supplied.
            supplied = int(flat.spans[after].token_ids[0]) if flat.length_P[after] else None
            own = own[:-1] if own[-1] in reference.stops and supplied in reference.stops else own
        ids += own
        by_policy += [bool(flat.source_P[p] == POLICY)] * len(own)
        places += range(int(flat.start_P[p]), int(flat.start_P[p]) + len(own))
    pieces = []
    for piece in reference.cut(ids):
        at = slice(piece.position, piece.position + len(piece.ids))
        unknown = piece.kind == "text" and any(by_policy[at])
        pieces.append(
            piece._replace(ids=None if unknown else piece.ids, position=places[piece.position])
        )
    return pieces


def _ends(pieces: Sequence[Piece]) -> dict[int, int]:
    """By turn: the control token that the template writes right behind the policy's words."""
    ends = {}
    for k, piece in enumerate(pieces):
        after = [
            following
            for following in pieces[k + 1 : k + 3]
            if following.kind == "control" or following.text.strip()
        ]
        if piece.kind == "mark" and after and after[0].kind == "control":
            ends[int(piece.text)] = after[0].ids[0]
    return ends


def _differs(
    flat: Flat, reference: Reference, segment: int, ours: Sequence[Piece], theirs: Sequence[Piece]
) -> Finding | None:
    """The first piece that differs, if any: by its ids where both have some, else by its text."""
    for k, (a, b) in enumerate(zip_longest(ours, theirs)):
        position = a.position if a is not None else len(flat.segment_ids(segment)) - 1
        if a is not None and b is not None and a.kind == b.kind:
            if (
                a.ids == b.ids
                if a.ids is not None and b.ids is not None
                else _same_text(reference, a, b)
            ):
                continue
            if a.text == b.text:
                return Finding(
                    f"{a.text[:40]!r} is written in the tokens {a.ids[:12]}, by the tokenizer itself in "
                    f"{b.ids[:12]}",
                    flat.place_in(segment, position, len(a.ids)),
                )
            if a.kind == "text" and a.ids is not None:
                position += _common_tokens(reference, a.ids, b.text)
        before = pieces_text(theirs[max(k - 2, 0) : k])
        return Finding(
            f"after {before[-30:]!r} the tokenizer's own template writes "
            f"{pieces_text(theirs[k : k + 3])[:60]!r}; shown was {pieces_text(ours[k : k + 3])[:60]!r}",
            flat.place_in(segment, max(position, 0)),
        )
    return None


def _same_text(reference: Reference, a: Piece, b: Piece) -> bool:
    # Beside a control token that the policy sampled, the tokenizer's own encoding may swallow white space.
    return a.text == b.text or (
        a.ids is None and reference.swallows and a.text.strip() == b.text.strip()
    )


def _common_tokens(reference: Reference, ids: Sequence[int], text: str) -> int:
    """How many tokens at the start of `ids` spell the start of `text`."""
    low = 0
    high = len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if text.startswith(reference.decode(ids[:middle])) else (low, middle - 1)
        )
    return min(low, len(ids) - 1)


def _stretches(
    flat: Flat,
    reference: Reference,
    trajectory: Trajectory,
    segment: int,
    ours: Sequence[Piece],
    turns: Sequence[int],
) -> Finding | None:
    """Opening, and what follows each turn of the policy, each against the rendering of the conversation up to there."""
    marks = [k for k, piece in enumerate(ours) if piece.kind == "mark"]
    shown = [int(ours[k].text) for k in marks]
    if shown != list(turns):
        return Finding(
            f"the policy's turns {shown} are shown; the declared history shows {list(turns)}",
            flat.place_in(segment),
        )
    for k, (start, end) in enumerate(pairwise([0, *marks, len(ours)])):
        known = turns[:k]
        own = list(ours[start:end])
        theirs = reference.pieces(trajectory, known, {t: reference.mark(t) for t in known})
        if known:
            # A stop token that the template writes there may be sampled here or supplied: both stand as a piece.
            stop = _ends(theirs).get(known[-1])
            if (
                len(own) > 1
                and own[1].kind == "control"
                and stop is not None
                and own[1].ids[0] != stop
            ):
                del own[1]
            newest = ("mark", str(known[-1]))
            theirs = theirs[next((i for i, piece in enumerate(theirs) if piece[:2] == newest), 0) :]
        if (finding := _differs(flat, reference, segment, own, theirs)) is not None:
            return finding
    return None


R2 = Rule(
    "R2",
    "prompts are what the tokenizer's own template writes",
    "The policy is trained on prompts that its chat template never writes: a lost newline or header between turns, a "
    "second BOS, a missing generation prompt, tools or system text that are not there. At inference it sees others.",
    "Take what stands between two turns from the template itself, token by token, and prove it at load time; what the "
    "template does differently on purpose (dropping old thoughts) is declared, or use history='template'.",
    ("groups", "chat"),
    check_rendering,
    threads=("verl#6921", "verl#6501", "slime#2263"),
)

RULES: tuple[Rule, ...] = (R2,)
