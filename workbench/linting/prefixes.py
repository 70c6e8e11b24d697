"""Exact prefix or explicit fork (R1): every turn was sampled after exactly the tokens that training shows it after.

The engine's journal says what it was really asked; the trajectory says what it is trained on. Without the journal, what
the trajectory's own segments say about each other is held against the declared kind of history.

Axis letters: N trajectories · S segments · P spans · T tokens.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from workbench.engines.recorder import Exchange
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, POLICY, PROMPT, Flat
from workbench.linting.rule import Rule, RuleResult
from workbench.types.findings import NOTE, Checked, Finding, NotChecked

HISTORY = "the sampling settings (which history was asked for)"
JOURNAL = "what the engine was asked and answered"


class JournalEntry(NamedTuple):
    """An exchange with the engine: of trajectory `row`, in its segment number `segment`."""

    row: int
    segment: int
    exchange: Exchange

    @property
    def answered(self) -> bool:
        completion = self.exchange.completion
        return completion is not None and completion.finish != "error"


def journal_of(evidence: Evidence) -> list[JournalEntry]:
    """The exchanges of the trajectories at hand, in order; those of others, by session, are left out."""
    index = {f"{t.task.id}#{t.attempt}": n for n, t in enumerate(evidence.trajectories)}
    found = []
    for exchange in evidence.journal or ():
        key, _, number = exchange.request.session.rpartition("/")
        if key in index and number.isdigit():
            found.append(JournalEntry(index[key], int(number), exchange))
    return found


def token(evidence: Evidence, token_id: int) -> str:
    """A token for a message: its text where a tokenizer is at hand, and its id."""
    text = f"{evidence.chat.token_texts([token_id])[0]!r} " if evidence.chat is not None else ""
    return f"{text}(id {token_id})"


def first_difference(ours: np.ndarray, theirs: np.ndarray) -> int | None:
    """The first index at which two arrays differ (the end of the shorter one counts), None: they are equal."""
    size = min(len(ours), len(theirs))
    unequal = np.flatnonzero(ours[:size] != theirs[:size])
    if len(unequal):
        return int(unequal[0])
    return None if len(ours) == len(theirs) else size


def check_prefixes(evidence: Evidence) -> Iterator[RuleResult]:
    if evidence.journal is not None:
        yield from _prompts(evidence, evidence.flat)
    else:
        yield NotChecked(JOURNAL)
    yield from _shown_again(evidence, evidence.flat)
    if evidence.collect is not None:
        yield from _forks(evidence, evidence.flat)
    else:
        yield NotChecked(HISTORY)


# ------------------------------------------------------------------------------------------------ the journal's word


def _prompts(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    found, told = journal_of(evidence), set()
    yield Checked(len(found))
    yield from _lost_attempts(evidence)
    yield from _shorter(evidence, flat, found)
    texts = [flat.segment_ids(segment).tobytes() for segment in range(len(flat.trajectory_S))]
    for n, number, (request, completion) in found:
        segment = int(flat.first_segment_N[n]) + number
        if segment >= flat.first_segment_N[n + 1]:
            # A segment in which nothing could be sampled is left out of the trajectory.
            if completion is not None and completion.finish != "error" and n not in told:
                told.add(n)
                yield Finding(f"the engine sampled turn {_turn_of(found, n, request.id)} in segment {number}, but the "
                              f"trajectory has {int(flat.first_segment_N[n + 1] - flat.first_segment_N[n])} segments",
                              evidence.place(n, segment=number))
            continue
        prompt = np.ascontiguousarray(request.prompt_ids, np.int32)
        if n in told or texts[segment].startswith(prompt.tobytes()):
            continue
        told.add(n)
        yield _other_prompt(evidence, flat, segment, prompt)


def _shorter(evidence: Evidence, flat: Flat, found: list[JournalEntry]) -> Iterator[Finding]:
    """Each turn stands right behind the whole prompt that it was sampled after, and not further on."""
    sampled = np.flatnonzero(flat.sampled_P)
    bounds_N = np.searchsorted(flat.trajectory_P[sampled], np.arange(flat.trajectories + 1)).tolist()
    starts, turns = flat.start_P[sampled].tolist(), dict.fromkeys(range(flat.trajectories), 0)
    told = set()
    for entry in found:
        if not entry.answered:
            continue
        q = bounds_N[entry.row] + turns[entry.row]
        turns[entry.row] += 1
        size = len(entry.exchange.request.prompt_ids)
        if q < bounds_N[entry.row + 1] and starts[q] != size and entry.row not in told:
            told.add(entry.row)
            yield Finding(f"the engine sampled turn {turns[entry.row] - 1} after a prompt of {size} tokens; the trajectory "
                          f"shows it after {starts[q]}", flat.place_of_span(evidence, int(sampled[q])))


def _turn_of(found: list[JournalEntry], n: int, request: int) -> int:
    return [entry.exchange.request.id for entry in found if entry.row == n].index(request)


def _other_prompt(evidence: Evidence, flat: Flat, segment: int, prompt: np.ndarray) -> Finding:
    ids = flat.segment_ids(segment)
    at = first_difference(ids[: len(prompt)], prompt)
    ours = f"ends after {len(ids)} tokens" if at >= len(ids) else f"has {token(evidence, int(ids[at]))}"
    return Finding(
        f"the engine was asked with {token(evidence, int(prompt[at]))} as token {at} of a prompt of {len(prompt)}; the "
        f"trajectory {ours} there",
        flat.place(evidence, int(flat.offset_S[segment]) + min(at, max(len(ids) - 1, 0))) if len(ids) else
        evidence.place(int(flat.trajectory_S[segment]), segment=int(flat.number_S[segment])))


def _lost_attempts(evidence: Evidence) -> Iterator[Finding]:
    """Attempts that the engine sampled for and that are nowhere among the trajectories."""
    known = {f"{t.task.id}#{t.attempt}" for t in evidence.trajectories}
    tasks = {t.task.id for t in evidence.trajectories}
    lost: dict[str, int] = {}
    for exchange in evidence.journal or ():
        key = exchange.request.session.rpartition("/")[0]
        if key not in known:
            lost[key] = lost.get(key, 0) + 1
    for key, count in lost.items():
        # Of a task that is here, an attempt went astray; of another one, somebody handed in a part of what was sampled.
        severity = "error" if key.rpartition("#")[0] in tasks else NOTE
        yield Finding(f"the engine was asked {count} times for attempt {key!r}, which is not among the trajectories",
                      severity=severity, count=count)


# ------------------------------------------------------------------------------------------------ forks


def _forks(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """New segments only where the declared history opens one, and with what it shows there."""
    history, window = evidence.collect.history, evidence.collect.window
    spans = np.flatnonzero(flat.sampled_P)
    yield Checked(len(spans))
    if history == "template":
        yield from _needless(evidence, flat)
        return
    turn_Q, number_Q = flat.turn_P[spans], flat.number_S[flat.segment_P[spans]]
    expected_Q = {"append": np.zeros_like(turn_Q), "fresh": turn_Q}.get(history, np.maximum(turn_Q - window, 0))
    wrong = np.flatnonzero(number_Q != expected_Q)
    for q in _first_of_each(flat.trajectory_P[spans[wrong]], wrong):
        yield Finding(f"turn {turn_Q[q]} was sampled in segment {number_Q[q]}; with history={history!r}"
                      f"{f', window={window}' * (history == 'window')} it belongs into segment {expected_Q[q]}",
                      flat.place_of_span(evidence, int(spans[q])))
    if history != "append":
        yield from _openings(evidence, flat, history)
        yield from _kept_turns(evidence, flat, history, window)


def _first_of_each(trajectory: np.ndarray, items: np.ndarray) -> list[int]:
    _, first = np.unique(trajectory, return_index=True)
    return items[first].tolist()


def _needless(evidence: Evidence, flat: Flat) -> Iterator[Finding]:
    """A template that kept every old token needs no new segment (slime#2288: 8 rollouts became 64)."""
    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        before, now = flat.segment_ids(segment - 1), flat.segment_ids(segment)
        if len(before) <= len(now) and np.array_equal(before, now[: len(before)]):
            yield Finding(f"segment {flat.number_S[segment]} begins with all {len(before)} tokens of the one before: "
                          "nothing was edited, and yet it is a sequence of its own",
                          flat.place(evidence, int(flat.offset_S[segment])))


def _openings(evidence: Evidence, flat: Flat, history: str) -> Iterator[Finding]:
    """Every segment begins with the first observation: in a window token by token, fresh in what it says."""
    bounds, sources = flat.first_span_S.tolist(), flat.source_P.tolist()
    known: dict[int, np.ndarray] = {}

    def opening(segment: int) -> np.ndarray:
        own = range(bounds[segment], bounds[segment + 1])
        if history == "window":
            end = next((p for p in own if sources[p] == POLICY), own.stop)
            return flat.ids_T[flat.offset_S[segment] :][: sum(len(flat.spans[p]) for p in own[: end - own.start])]
        parts = [flat.spans[p].token_ids for p in own if sources[p] == PROMPT]
        return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, np.int32), *parts])

    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        first = segment - int(flat.number_S[segment])
        if first not in known:
            known[first] = opening(first)
        wanted, here = known[first], opening(segment)[: len(known[first])]
        at = first_difference(here, wanted)
        if at is not None:
            got = token(evidence, int(here[at])) if at < len(here) else "nothing more"
            yield Finding(f"token {at} of the first observation, shown again: expected "
                          f"{token(evidence, int(wanted[at]))}, got {got}",
                          evidence.place(int(flat.trajectory_S[segment]), segment=int(flat.number_S[segment])))


def _kept_turns(evidence: Evidence, flat: Flat, history: str, window: int) -> Iterator[Finding]:
    """Which turns of the past a new segment shows: the newest reply, in a window the last exchanges."""
    bounds, sources, turns, sampled = (
        values.tolist() for values in (flat.first_span_S, flat.source_P, flat.turn_P, flat.sampled_P))
    for segment in np.flatnonzero(flat.number_S > 0).tolist():
        low, high = bounds[segment], bounds[segment + 1]
        first = next((p for p in range(low, high) if sampled[p]), None)
        if first is None:
            continue
        now = turns[first]
        wanted = list(range(max(now - window, 0), now)) if history == "window" else []
        shown = [turns[p] for p in range(low, first) if sources[p] == POLICY]
        if shown != wanted:
            yield Finding(f"before turn {now} the policy is shown its turns {shown}; with history={history!r} it is "
                          f"shown {wanted}", flat.place_of_span(evidence, first))
        replies = {turns[p] for p in range(low, first) if sources[p] == ENV}
        strange = sorted(replies - set(wanted or [now - 1]))
        if strange:
            yield Finding(f"before turn {now} the policy is shown the replies to turns {strange}, which history="
                          f"{history!r} leaves out", flat.place_of_span(evidence, first))


# ------------------------------------------------------------------------------------------------ shown again


def _shown_again(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """A turn of the policy that is shown again is made of the very ids that were sampled."""
    again = np.flatnonzero((flat.source_P == POLICY) & ~flat.sampled_P & (flat.length_P > 0))
    sampled = np.flatnonzero(flat.sampled_P)
    where = {(int(n), int(turn)): int(p) for n, turn, p in
             zip(flat.trajectory_P[sampled], flat.turn_P[sampled], sampled, strict=True)}
    yield Checked(len(again))
    rewrites = evidence.collect is None or evidence.collect.history == "template"
    for p in again.tolist():
        n, turn = int(flat.trajectory_P[p]), int(flat.turn_P[p])
        source = where.get((n, turn))
        if source is None or flat.segment_P[source] >= flat.segment_P[p]:
            yield Finding(f"tokens of the policy's turn {turn} stand here without logprobs, but no earlier segment "
                          "has them as sampled", flat.place_of_span(evidence, p))
            continue
        ids, said = flat.spans[p].token_ids, flat.spans[source].token_ids
        if np.array_equal(ids, said):
            continue
        if rewrites and (_holds(said, ids) or _same_words(evidence, said, ids)):
            continue
        at = first_difference(ids, said)
        now = token(evidence, int(ids[at])) if at < len(ids) else "nothing more"
        then = token(evidence, int(said[at])) if at < len(said) else "nothing more"
        yield Finding(f"turn {turn} is shown again with {now} as its token {at}; sampled was {then}: it was encoded "
                      "anew or cut", flat.place_of_span(evidence, p))


def _holds(whole: np.ndarray, part: np.ndarray) -> bool:
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
    said = decode(part.tolist(), skip_special_tokens=False).replace("\ufffd", "")
    return said in decode(whole.tolist(), skip_special_tokens=False) or not said.strip()


R1 = Rule(
    "R1", "exact prefix or explicit fork",
    "A turn is trained as if it had been sampled after tokens that the policy never saw: its logprob under the trainer "
    "is of another sequence, so ratios and gradients are wrong although rewards look right.",
    "Train on the ids that the engine was asked with and answered, as they are; where the past is edited, open a new "
    "segment and train there only what was sampled there.",
    ("groups",), check_prefixes, threads=("trl#5224", "prime-rl#1383", "slime#2288"))
