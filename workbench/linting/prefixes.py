"""Each prompt extends the previous tokens, or starts a new segment (R1): every turn was sampled after exactly the tokens that training shows it after.

The engine's journal says what it was really asked; the trajectory says what it is trained on. Without the journal, what
the trajectory's own segments say about each other is compared with the declared kind of history.

Axis letters: N trajectories · S segments · P spans · T tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from workbench.basics.digits import whole_in
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.engines.recorder import Exchange
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, Flat
from workbench.linting.messages import each_row
from workbench.linting.rule import Rule, RuleResult
from workbench.values.sequences import first_difference

HISTORY = "the sampling settings (which history was asked for)"
JOURNAL = "what the engine was asked and answered"


class JournalEntry(NamedTuple):
    """An exchange with the engine: of trajectory `row`, in its segment number `segment`, about its turn `turn`."""

    row: int
    segment: int
    turn: int
    exchange: Exchange
    answered: bool


def journal_of(evidence: Evidence) -> list[JournalEntry]:
    """The exchanges of the trajectories at hand, by segment in order; those of others, by session, are left out."""
    index = {f"{t.task.id}#{t.attempt}": n for n, t in enumerate(evidence.trajectories)}
    turns = Counter()
    entries = []
    for exchange in sorted(evidence.journal or (), key=_segment_of):
        key, _, words = exchange.request.session.rpartition("/")
        number = whole_in(words)
        if key in index and number is not None:
            answered = exchange.completion is not None and exchange.completion.finish != "error"
            entries.append(JournalEntry(index[key], number, turns[key], exchange, answered))
            turns[key] += answered
    return entries


def _segment_of(exchange: Exchange) -> int:
    """Turns are numbered by segments, and a program may go back to an earlier one."""
    return whole_in(exchange.request.session.rpartition("/")[2]) or 0


def token(evidence: Evidence, token_id: int) -> str:
    """A token for a message: its text where a tokenizer is at hand, and its id."""
    text = f"{evidence.chat.token_texts([token_id])[0]!r} " if evidence.chat is not None else ""
    return f"{text}(id {token_id})"


def token_at(evidence: Evidence, ids: np.ndarray, at: int) -> str:
    """The token that stands at a place, if there is one."""
    return token(evidence, int(ids[at])) if at < len(ids) else "nothing more"


def check_prefixes(evidence: Evidence) -> Iterator[RuleResult]:
    if evidence.journal is not None:
        yield from _prompts(evidence, evidence.flat)
    else:
        yield NotChecked(JOURNAL, "prompts as they were sent")
    yield from _shown_again(evidence, evidence.flat)
    if evidence.collect is not None and not evidence.by_program:
        yield from _forks(evidence, evidence.flat)
    else:
        yield NotChecked(HISTORY, "forks")


# ------------------------------------------------------------------------------------------------ the journal's word


def _prompts(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    entries = journal_of(evidence)
    reported = set()
    yield Checked(len(entries), "prompts as they were sent")
    yield from _lost_trajectories(evidence)
    yield from _prompt_lengths(flat, entries)
    texts = [flat.segment_ids(segment).tobytes() for segment in range(len(flat.trajectory_S))]
    for entry in entries:
        n = entry.row
        segments = flat.segments_of(entry.row)
        if n in reported:
            continue
        if entry.segment >= len(segments):
            # A segment in which nothing could be sampled is left out of the trajectory.
            if entry.answered:
                reported.add(n)
                yield Finding(
                    f"the engine sampled turn {entry.turn} in segment {entry.segment}, but the trajectory "
                    f"has {len(segments)} segments",
                    evidence.place(n, segment=entry.segment),
                )
            continue
        prompt = np.ascontiguousarray(entry.exchange.request.prompt_ids, np.int32)
        if not texts[segments[entry.segment]].startswith(prompt.tobytes()):
            reported.add(n)
            yield _other_prompt(evidence, flat, segments[entry.segment], prompt)


def _prompt_lengths(flat: Flat, entries: list[JournalEntry]) -> Iterator[Finding]:
    """Each turn stands right behind the whole prompt that it was sampled after, and not further on."""
    sampled = np.flatnonzero(flat.sampled_P)
    of_rows = np.split(
        sampled, np.searchsorted(flat.trajectory_P[sampled], np.arange(1, len(flat.names_N)))
    )
    reported = set()
    for entry in entries:
        spans = of_rows[entry.row]
        size = len(entry.exchange.request.prompt_ids)
        if not entry.answered or entry.turn >= len(spans) or entry.row in reported:
            continue
        p = int(spans[entry.turn])
        if flat.start_P[p] != size:
            reported.add(entry.row)
            yield Finding(
                f"the engine sampled turn {entry.turn} after a prompt of {size} tokens; the trajectory shows "
                f"it after {flat.start_P[p]}",
                flat.place_of_span(p),
            )


def _other_prompt(evidence: Evidence, flat: Flat, segment: int, prompt: np.ndarray) -> Finding:
    ids = flat.segment_ids(segment)
    at = first_difference(ids[: len(prompt)], prompt)
    ours = (
        f"ends after {len(ids)} tokens"
        if at >= len(ids)
        else f"has {token(evidence, int(ids[at]))}"
    )
    return Finding(
        f"the engine was asked with {token(evidence, int(prompt[at]))} as token {at} of a prompt of {len(prompt)}; the "
        f"trajectory {ours} there",
        flat.place_in(segment, min(at, len(ids) - 1))
        if len(ids)
        else flat.place_of_segment(segment),
    )


def _lost_trajectories(evidence: Evidence) -> Iterator[Finding]:
    """Trajectories that the engine sampled for and that are nowhere among the trajectories."""
    known = {f"{t.task.id}#{t.attempt}" for t in (*evidence.trajectories, *evidence.aside)}
    tasks = {t.task.id for t in evidence.trajectories}
    asked = Counter(exchange.request.session.rpartition("/")[0] for exchange in evidence.journal)
    for key, count in asked.items():
        if key in known:
            continue
        # Of a task that is here, a trajectory went astray; of another one, somebody handed in a part of what was sampled.
        severity = ERROR if key.rpartition("#")[0] in tasks else NOTE
        yield Finding(
            f"the engine was asked {count} times for trajectory {key!r}, which is not among the trajectories",
            severity=severity,
            count=count,
        )


# ------------------------------------------------------------------------------------------------ forks


def _forks(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """New segments only where the declared history opens one, and with what it shows there."""
    history = evidence.collect.history
    window = evidence.collect.window
    spans = np.flatnonzero(flat.sampled_P)
    yield Checked(len(spans), "forks")
    if history == "template":
        yield from _needless_segments(flat)
        return
    turn_Q = flat.turn_P[spans]
    number_Q = flat.number_S[flat.segment_P[spans]]
    expected_Q = {"append": np.zeros_like(turn_Q), "fresh": turn_Q}.get(
        history, np.maximum(turn_Q - window, 0)
    )
    for _, (q, *_) in each_row(np.flatnonzero(number_Q != expected_Q), flat.trajectory_P[spans]):
        yield Finding(
            f"turn {turn_Q[q]} was sampled in segment {number_Q[q]}; with history={history!r}"
            f"{f', window={window}' * (history == 'window')} it belongs into segment {expected_Q[q]}",
            flat.place_of_span(int(spans[q])),
        )
    if history != "append":
        yield from _openings(evidence, flat, history)
        yield from _kept_turns(flat, history, window)


def _needless_segments(flat: Flat) -> Iterator[Finding]:
    """A template that kept every old token needs no new segment (slime#2288: 8 rollouts became 64)."""
    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        before = flat.segment_ids(segment - 1)
        now = flat.segment_ids(segment)
        if len(before) <= len(now) and np.array_equal(before, now[: len(before)]):
            yield Finding(
                f"segment {flat.number_S[segment]} begins with all {len(before)} tokens of the one before: "
                "nothing was edited, and yet it is a sequence of its own",
                flat.place_in(segment),
            )


def _openings(evidence: Evidence, flat: Flat, history: str) -> Iterator[Finding]:
    """Every segment begins with the first observation: in a window token by token, fresh in what it says."""

    @cache  # those of first segments are looked at many times
    def opening(segment: int) -> np.ndarray:
        spans = [flat.spans[p] for p in flat.spans_of(segment)]
        if history == "window":
            shown = takewhile(lambda span: span.source != POLICY, spans)
        else:
            shown = (span for span in spans if span.source == PROMPT)
        return np.concatenate([np.zeros(0, np.int32), *(span.token_ids for span in shown)])

    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        wanted = opening(segment - int(flat.number_S[segment]))
        here = opening(segment)[: len(wanted)]
        if not np.array_equal(here, wanted):
            at = first_difference(here, wanted)
            yield Finding(
                f"token {at} of the first observation, shown again: expected "
                f"{token(evidence, int(wanted[at]))}, got {token_at(evidence, here, at)}",
                flat.place_of_segment(segment),
            )


def _kept_turns(flat: Flat, history: str, window: int) -> Iterator[Finding]:
    """Which turns of the past a new segment shows: the newest reply, in a window the last exchanges."""
    sources, turns, sampled = (
        values.tolist() for values in (flat.source_P, flat.turn_P, flat.sampled_P)
    )
    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        spans = flat.spans_of(segment)
        first = next((p for p in spans if sampled[p]), None)
        if first is None:
            continue
        now = turns[first]
        wanted = list(range(max(now - window, 0), now)) if history == "window" else []
        shown = [turns[p] for p in range(spans.start, first) if sources[p] == POLICY]
        if shown != wanted:
            yield Finding(
                f"before turn {now} the policy is shown its turns {shown}; with history={history!r} it is "
                f"shown {wanted}",
                flat.place_of_span(first),
            )
        replies = {turns[p] for p in range(spans.start, first) if sources[p] == ENV}
        strange = sorted(replies - set(wanted or [now - 1]))
        if strange:
            yield Finding(
                f"before turn {now} the policy is shown the replies to turns {strange}, which history="
                f"{history!r} leaves out",
                flat.place_of_span(first),
            )


# ------------------------------------------------------------------------------------------------ shown again


def _shown_again(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """A turn of the policy that is shown again is made of the very ids that were sampled."""
    again = np.flatnonzero((flat.source_P == POLICY) & ~flat.sampled_P & (flat.length_P > 0))
    sampled = np.flatnonzero(flat.sampled_P)
    where = {
        (int(n), int(turn)): int(p)
        for n, turn, p in zip(
            flat.trajectory_P[sampled], flat.turn_P[sampled], sampled, strict=True
        )
    }
    yield Checked(len(again), "turns shown again")
    rewrites = evidence.collect is None or evidence.collect.history == "template"
    for p in again.tolist():
        n = int(flat.trajectory_P[p])
        turn = int(flat.turn_P[p])
        source = where.get((n, turn))
        if source is None or flat.segment_P[source] >= flat.segment_P[p]:
            yield Finding(
                f"tokens of the policy's turn {turn} stand here without logprobs, but no earlier segment "
                "has them as sampled",
                flat.place_of_span(p),
            )
            continue
        ids = flat.spans[p].token_ids
        sampled_ids = flat.spans[source].token_ids
        if np.array_equal(ids, sampled_ids):
            continue
        if rewrites and (_contains(sampled_ids, ids) or _same_words(evidence, sampled_ids, ids)):
            continue
        at = first_difference(ids, sampled_ids)
        yield Finding(
            f"turn {turn} is shown again with {token_at(evidence, ids, at)} as its token {at}; sampled was "
            f"{token_at(evidence, sampled_ids, at)}: it was encoded anew or cut",
            flat.place_of_span(p),
        )


def _contains(whole: np.ndarray, part: np.ndarray) -> bool:
    """Whether `part` stands in `whole` without a gap."""
    starts = np.flatnonzero(whole == part[0])
    return any(np.array_equal(whole[start : start + len(part)], part) for start in starts)


def _same_words(evidence: Evidence, whole: np.ndarray, part: np.ndarray) -> bool:
    """A template may cut inside a token: then the rest of the word is in other tokens, but in the same words."""
    if evidence.chat is None:
        return True
    decode = evidence.chat.encoder.backend.decode
    stops = evidence.chat.stop_ids
    part = part[:-1] if int(part[-1]) in stops else part
    words = decode(part.tolist(), skip_special_tokens=False).replace("\ufffd", "")
    return words in decode(whole.tolist(), skip_special_tokens=False) or not words.strip()


R1 = Rule(
    "R1",
    "each prompt extends the previous tokens, or starts a new segment",
    "A turn is trained as if it had been sampled after tokens that the policy never saw: its logprob under the trainer "
    "is of another sequence, so ratios and gradients are wrong although rewards look right.",
    "Train on the ids that the engine was asked with and answered, as they are; where the past is edited, open a new "
    "segment and train there only what was sampled there.",
    ("groups",),
    check_prefixes,
    threads=("trl#5224", "prime-rl#1383", "slime#2288"),
)

RULES: tuple[Rule, ...] = (R1,)
