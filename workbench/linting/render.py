"""What the policy was shown, against the tokenizer's own rendering (R2), and what untrusted text became (R15).

The reference is `apply_chat_template` of the tokenizer itself, from the messages of the environment; nothing of
`workbench.chat` is asked to render. Two things must be kept from it: text that merely looks like a control token
(broken up by a character that is taken out again), and the policy's own turns, whose ids were sampled and not encoded
(a mark stands for each; only where the template is to render the past anew does it see their text).

A past that the template would write differently is no finding where it was declared (`chat.differences`): what follows
a turn of the policy is then held against the rendering of the conversation up to there.

Axis letters: N trajectories · S segments · P spans · T tokens.
"""
from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, SCAFFOLD, Flat
from workbench.linting.reference import Piece, Reference, Refused, pieces_text
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Message, Trajectory
from workbench.types.findings import NOTE, Checked, Finding, NotChecked


def chosen(evidence: Evidence) -> list[int]:
    """The attempts that slower rules look at: spread over the step, others in every step, and the one with most turns.
    """
    count, samples = len(evidence.trajectories), evidence.samples
    if samples is None or samples >= count:
        return list(range(count))
    longest = max(range(count), key=lambda n: len(evidence.trajectories[n].turns))
    shift = (evidence.step or 0) * 7
    return list(dict.fromkeys([longest, *((shift + k * count // samples) % count for k in range(samples))]))[:samples]


# ------------------------------------------------------------------------------------------------ R2


def check_rendering(evidence: Evidence) -> Iterator[RuleResult]:
    """Opening and every stretch between two turns of the policy, as the tokenizer itself would have it."""
    if evidence.collect is None:
        yield NotChecked("the sampling settings (which history was asked for)")
        return
    flat, reference = evidence.flat, Reference(evidence.chat)
    for number, n in enumerate(chosen(evidence)):
        low, high = flat.first_segment_N[n : n + 2].tolist()
        segments = range(low, high)
        if evidence.samples is not None and len(segments) > 2:  # the last one, and another one each time
            segments = sorted({high - 1, low + (number + (evidence.step or 0)) % len(segments)})
        for segment in segments:
            try:
                yield Checked(1)
                yield from _segment(evidence, flat, reference, n, segment)
            except Refused as refusal:
                yield NotChecked(f"a reference: {refusal}")


def _segment(evidence: Evidence, flat: Flat, reference: Reference, n: int, segment: int) -> Iterator[Finding]:
    trajectory, history = evidence.trajectories[n], evidence.collect.history
    low, high = flat.first_span_S[segment : segment + 2].tolist()
    if high > low and flat.sampled_P[high - 1]:
        high -= 1  # what is sampled last is answered by nothing
    if high == low:
        return
    sampled = [p for p in range(low, high) if flat.sampled_P[p]]
    if high < flat.first_span_S[segment + 1]:
        now = int(flat.turn_P[high])
    else:
        now = int(flat.turn_P[sampled[-1]]) + 1 if sampled else len(trajectory.turns)
    turns = _exchanges(trajectory, history, evidence.collect.window, int(flat.number_S[segment]), now)
    if history == "template":
        said = {t: _said(evidence, flat, reference, n, t) for t in turns}
        theirs = reference.pieces(trajectory, turns, said)
        yield from _compare(evidence, flat, reference, segment, _ours(flat, reference, low, high, None), theirs)
        return
    if history == "fresh" and flat.number_S[segment] > 0:
        theirs = reference.fresh(trajectory, trajectory.turns[now - 1])
        yield from _compare(evidence, flat, reference, segment, _ours(flat, reference, low, high, {}), theirs)
        return
    marks = {t: reference.mark(t) for t in turns}
    theirs = reference.pieces(trajectory, turns, marks)
    for token_id in sorted(set(_ends(theirs).values()) - reference.stops):
        yield Finding(f"the template ends a turn with {reference.name(token_id)!r} (id {token_id}), and sampling goes "
                      f"on after it: {sorted(reference.stops)} end one", evidence.place(n))
    ours = _ours(flat, reference, low, high, _ends(theirs))
    if not list(_compare(evidence, flat, reference, segment, ours, theirs)):
        return
    # The template may write the past otherwise: what was sampled stays, so each stretch has a reference of its own.
    found = list(_stretches(evidence, flat, reference, trajectory, segment, ours, turns))
    yield from found
    if not found and not any("a later turn" in said for said in evidence.chat.differences):
        first = next(_compare(evidence, flat, reference, segment, ours, theirs))
        yield Finding(f"the template would write the past otherwise, and nobody said so: {first.what}", first.place,
                      NOTE)


def _exchanges(trajectory: Trajectory, history: str, window: int, number: int, now: int) -> list[int]:
    """Numbers of the exchanges that the declared history shows before turn `now`."""
    first = max(now - window, 0) if history == "window" and number else 0
    return [t for t in range(first, now) if t < len(trajectory.turns)]


def _said(evidence: Evidence, flat: Flat, reference: Reference, n: int, turn: int) -> str:
    """The sampled text of a turn for the template to see: control tokens that were sampled are spelled out, text that
    only looks like one is guarded."""
    low, high = flat.first_segment_N[n : n + 2].tolist()
    spans = range(*np.searchsorted(flat.segment_P, [low, high]).tolist())
    p = next((p for p in spans if flat.sampled_P[p] and flat.turn_P[p] == turn), None)
    if p is None:
        raise Refused(f"turn {turn} of {evidence.place(n)} was sampled nowhere")
    return reference.spelled(flat.spans[p].token_ids.tolist())


def _ours(flat: Flat, reference: Reference, low: int, high: int, ends: Mapping[int, int] | None) -> list[Piece]:
    """The spans low..high as pieces. `ends`: a mark stands for each turn of the policy, followed by its stop token
    where that is what the template writes there, by turn. None: the policy's turns are text like any other, which was
    never encoded, so that only its words can be compared."""
    if ends is None:
        return _rerendered(flat, reference, low, high)
    runs: list[tuple[int | None, list[int], int]] = []
    for p in range(low, high):
        ids, start = flat.spans[p].token_ids.tolist(), int(flat.start_P[p])
        turn = int(flat.turn_P[p]) if flat.source_P[p] == POLICY else None
        if runs and runs[-1][0] == turn:
            runs[-1][1].extend(ids)
        else:
            runs.append((turn, ids, start))
    pieces: list[Piece] = []
    for turn, ids, start in runs:
        if turn is None:
            pieces += reference.cut(ids, start)
            continue
        pieces.append(Piece("mark", str(turn), None, start))
        if ids and ids[-1] == ends.get(turn):
            pieces.append(Piece("control", reference.name(ids[-1]), [ids[-1]], start + len(ids) - 1))
    return pieces


def _rerendered(flat: Flat, reference: Reference, low: int, high: int) -> list[Piece]:
    ids: list[int] = []
    said: list[bool] = []
    places: list[int] = []
    for p in range(low, high):
        own = flat.spans[p].token_ids.tolist()
        if flat.source_P[p] == POLICY and own and p + 1 < high and flat.source_P[p + 1] == SCAFFOLD:
            # Another stop token than the template's own: that one stands behind it, supplied.
            after = int(flat.spans[p + 1].token_ids[0]) if flat.length_P[p + 1] else None
            own = own[:-1] if own[-1] in reference.stops and after in reference.stops else own
        ids += own
        said += [bool(flat.source_P[p] == POLICY)] * len(own)
        places += range(int(flat.start_P[p]), int(flat.start_P[p]) + len(own))
    pieces = []
    for piece in reference.cut(ids):
        at = slice(piece.position, piece.position + len(piece.ids))
        unknown = piece.kind == "text" and any(said[at])
        pieces.append(piece._replace(ids=None if unknown else piece.ids, position=places[piece.position]))
    return pieces


def _ends(pieces: Sequence[Piece]) -> dict[int, int]:
    """By turn: the control token that the template writes right behind the policy's words."""
    ends = {}
    for k, piece in enumerate(pieces):
        after = [each for each in pieces[k + 1 : k + 3] if each.kind == "control" or each.text.strip()]
        if piece.kind == "mark" and after and after[0].kind == "control":
            ends[int(piece.text)] = after[0].ids[0]
    return ends


def _compare(evidence: Evidence, flat: Flat, reference: Reference, segment: int, ours: Sequence[Piece],
             theirs: Sequence[Piece]) -> Iterator[Finding]:
    """The first piece that differs, if any: by its ids where both have some, else by its text."""
    for k in range(max(len(ours), len(theirs))):
        a, b = (pieces[k] if k < len(pieces) else None for pieces in (ours, theirs))
        if a is not None and b is not None and a.kind == b.kind:
            if a.ids == b.ids if a.ids is not None and b.ids is not None else _same_text(reference, a, b):
                continue
            if a.text == b.text:
                yield Finding(f"{a.text[:40]!r} is written in the tokens {a.ids[:12]}, by the tokenizer itself in "
                              f"{b.ids[:12]}",
                              flat.place(evidence, int(flat.offset_S[segment]) + a.position, len(a.ids)))
                return
        position = a.position if a is not None else len(flat.segment_ids(segment)) - 1
        if a is not None and b is not None and a.kind == b.kind == "text" and a.ids is not None:
            position += _common_tokens(reference, a.ids, b.text)
        before = pieces_text(theirs[max(k - 2, 0) : k])
        yield Finding(f"after {before[-30:]!r} the tokenizer's own template writes "
                      f"{pieces_text(theirs[k : k + 3])[:60]!r}; shown was {pieces_text(ours[k : k + 3])[:60]!r}",
                      flat.place(evidence, int(flat.offset_S[segment]) + max(position, 0)))
        return


def _same_text(reference: Reference, a: Piece, b: Piece) -> bool:
    # Beside a control token that the policy sampled, the tokenizer's own encoding may swallow white space.
    return a.text == b.text or (a.ids is None and reference.swallows and a.text.strip() == b.text.strip())


def _common_tokens(reference: Reference, ids: Sequence[int], text: str) -> int:
    """How many tokens at the start of `ids` spell the start of `text`."""
    low, high = 0, len(ids)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if text.startswith(reference.decode(ids[:middle])) else (low, middle - 1)
    return min(low, len(ids) - 1)


def _stretches(evidence: Evidence, flat: Flat, reference: Reference, trajectory: Trajectory, segment: int,
               ours: Sequence[Piece], turns: Sequence[int]) -> Iterator[Finding]:
    """Opening, and what follows each turn of the policy, each against the rendering of the conversation up to there."""
    marks = [k for k, piece in enumerate(ours) if piece.kind == "mark"]
    cuts = [0, *marks, len(ours)]
    shown = [int(ours[k].text) for k in marks]
    if shown != list(turns):
        place = flat.place(evidence, int(flat.offset_S[segment]))
        yield Finding(f"the policy's turns {shown} are shown; the declared history shows {list(turns)}", place)
        return
    for k, (start, end) in enumerate(zip(cuts[:-1], cuts[1:], strict=True)):
        known = turns[:k]
        theirs = reference.pieces(trajectory, known, {t: reference.mark(t) for t in known})
        at = next((i for i, piece in enumerate(theirs) if piece.kind == "mark" and int(piece.text) == known[-1]), 0
                  ) if known else 0
        if known:
            # A stop token that the template writes there may be sampled here or supplied: both stand as a piece.
            stop = _ends(theirs).get(known[-1])
            own = list(ours[start:end])
            if len(own) > 1 and own[1].kind == "control" and own[1].ids[0] != stop and stop is not None:
                own = own[:1] + own[2:]
        else:
            own = list(ours[start:end])
        found = next(_compare(evidence, flat, reference, segment, own, theirs[at:]), None)
        if found is not None:
            yield found
            return


R2 = Rule(
    "R2", "prompts are what the tokenizer's own template writes",
    "The policy is trained on prompts that its chat template never writes: a lost newline or header between turns, a "
    "second BOS, a missing generation prompt, tools or system text that are not there. At inference it sees others.",
    "Take what stands between two turns from the template itself, token by token, and prove it at load time; what the "
    "template does differently on purpose (dropping old thoughts) is declared, or use history='template'.",
    ("groups", "chat"), check_rendering, threads=("verl#6921", "verl#6501", "slime#2263"))


# ------------------------------------------------------------------------------------------------ R15


def check_untrusted(evidence: Evidence) -> Iterator[RuleResult]:
    """No control token from outside, and nothing of what the environment said lost or changed."""
    reference, flat = Reference(evidence.chat), evidence.flat
    yield from _forged(evidence, flat, reference)
    looked = chosen(evidence)
    for n in looked:
        yield from _whole(evidence, flat, reference, n)
    # The openings of all others, each different one once: attempts at a task share theirs.
    known = set()
    for n in sorted(set(range(len(evidence.trajectories))) - set(looked)):
        segment = int(flat.first_segment_N[n])
        if segment == flat.first_segment_N[n + 1]:
            continue
        prompt = _prompt_spans(flat, segment)
        messages = evidence.trajectories[n].first_observation.messages
        key = (messages, *(flat.spans[p].token_ids.tobytes() for p in prompt))
        if key not in known:
            known.add(key)
            yield from _said_whole(evidence, flat, reference, messages, prompt, n, segment, 0)


def _forged(evidence: Evidence, flat: Flat, reference: Reference) -> Iterator[RuleResult]:
    """Control tokens in prompts and replies: only those that trusted parts of the message spell out."""
    outside_P = np.isin(flat.source_P, (ENV, PROMPT))
    yield Checked(int(flat.length_P[outside_P].sum()))
    is_control_V = reference.is_control(int(flat.ids_T.max(initial=0)) + 1)
    hits = np.flatnonzero(is_control_V[flat.ids_T] & outside_P[flat.span_T])
    if not len(hits):
        return
    # One message in one segment is one count; spans of the same author and turn lie in several pieces.
    span_H = flat.span_T[hits]
    key_H = (flat.segment_P[span_H] * 4 + flat.source_P[span_H]) * 1_000_003 + flat.turn_P[span_H]
    order = np.argsort(key_H, kind="stable")
    cuts = np.flatnonzero(np.diff(key_H[order])) + 1
    allowed: dict[tuple[int, ...], Counter] = {}
    for members in np.split(order, cuts):
        p = int(span_H[members[0]])
        trajectory = evidence.trajectories[int(flat.trajectory_P[p])]
        messages = _messages_of(trajectory, int(flat.source_P[p]), int(flat.turn_P[p]))
        key = tuple(map(id, messages))
        if key not in allowed:
            allowed[key] = Counter(token for message in messages for part in message.content if part.trusted
                                   for token in reference.controls_in(part.text))
        spare = Counter(allowed[key])
        for hit in members.tolist():
            token_id = int(flat.ids_T[hits[hit]])
            spare[token_id] -= 1
            if spare[token_id] < 0:
                yield Finding(
                    f"{reference.name(token_id)!r} stands here as the control token {token_id}, and no trusted text "
                    f"of the environment says it", flat.place(evidence, int(hits[hit])))
                break


def _messages_of(trajectory: Trajectory, source: int, turn: int) -> tuple[Message, ...]:
    if source == PROMPT:
        return trajectory.first_observation.messages
    return trajectory.turns[turn].reply if turn < len(trajectory.turns) else ()


def _whole(evidence: Evidence, flat: Flat, reference: Reference, n: int) -> Iterator[RuleResult]:
    """The first observation in every segment, and the newest reply before every turn, in all their words."""
    trajectory = evidence.trajectories[n]
    for segment in range(*flat.first_segment_N[n : n + 2].tolist()):
        low, high = flat.first_span_S[segment : segment + 2].tolist()
        yield from _said_whole(evidence, flat, reference, trajectory.first_observation.messages,
                               _prompt_spans(flat, segment), n, segment, 0)
        for tool in trajectory.first_observation.tools:
            yield from _schema_shown(evidence, flat, reference, tool, range(low, high), n, segment)
        for p in range(low, high):
            turn = int(flat.turn_P[p]) - 1
            if flat.sampled_P[p] and 0 <= turn < len(trajectory.turns):
                reply = [q for q in range(low, p) if flat.source_P[q] == ENV and flat.turn_P[q] == turn]
                yield from _said_whole(evidence, flat, reference, trajectory.turns[turn].reply, reply, n, segment, turn)


def _prompt_spans(flat: Flat, segment: int) -> list[int]:
    low, high = flat.first_span_S[segment : segment + 2].tolist()
    return [p for p in range(low, high) if flat.source_P[p] == PROMPT]


def _said_whole(evidence: Evidence, flat: Flat, reference: Reference, messages: Sequence[Message],
                spans: Sequence[int], n: int, segment: int, turn: int) -> Iterator[RuleResult]:
    shown = reference.decode([token for p in spans for token in flat.spans[p].token_ids.tolist()])
    at = 0
    for message in messages:
        yield Checked(1)
        text = reference.normalized(message.text).strip()
        if not text:
            continue
        ways = (text, json.dumps(text, ensure_ascii=False)[1:-1])
        place = next(((shown.find(way, at), len(way)) for way in ways if shown.find(way, at) >= 0), None)
        if place is not None:
            at = place[0] + place[1]
        elif not (reference.swallows and any(_squeezed(way) in _squeezed(shown) for way in ways)):
            first = flat.start_P[spans[0]] if spans else 0
            yield Finding(
                f"the environment said {_excerpt(text, shown)!r}; the tokens by its hand say {shown[at : at + 60]!r}",
                evidence.place(n, segment=int(flat.number_S[segment]), turn=turn, position=int(first)))
            return


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _excerpt(text: str, shown: str) -> str:
    """From where on `text` is not found."""
    size = len(text)
    while size and text[:size] not in shown:
        size = size // 2 if size > 8 else size - 1
    return text[max(size - 10, 0) : size + 50]


def _schema_shown(evidence: Evidence, flat: Flat, reference: Reference, tool: Mapping[str, Any],
                  spans: Sequence[int], n: int, segment: int) -> Iterator[RuleResult]:
    name = (tool.get("function") or tool).get("name", "")
    shown = reference.decode([token for p in spans if not flat.sampled_P[p]
                              for token in flat.spans[p].token_ids.tolist()])
    yield Checked(1)
    if name and name not in shown:
        yield Finding(f"the tool {name!r} is on offer and stands nowhere in the prompt",
                      evidence.place(n, segment=int(flat.number_S[segment])))


R15 = Rule(
    "R15", "no untrusted text becomes a control token",
    "Whoever writes an observation can end the policy's turn, open one of its own or call its tools; and what is lost "
    "of an observation, the policy is blamed for not knowing.",
    "Encode what comes from outside with a tokenizer that knows no control tokens, and mark instructions of the "
    "environment's author as trusted.",
    ("groups", "chat"), check_untrusted, threads=("transformers#29279", "vllm#31735", "renderers#116"))

RULES: tuple[Rule, ...] = (R2, R15)
