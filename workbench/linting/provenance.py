"""The loss mask equals recorded authorship (R3): trained is exactly what the engine answered, stop token included, and nothing else.

With the journal this is exact, bit for bit. Without it: one sampled span per turn, by the policy, that ends with the
stop token where the turn was ended; no weight on anything else.

Axis letters: P spans · T tokens · E answered exchanges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.evidence import Evidence
from workbench.linting.flat import POLICY, SCAFFOLD, Flat
from workbench.linting.messages import at_first, many, unequal
from workbench.linting.prefixes import JOURNAL, JournalEntry, journal_of, token
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Message, StopReason, Turn
from workbench.values.sequences import first_difference

SOURCES = ("PROMPT", "SCAFFOLD", "POLICY", "ENV")
AROUND = 16  # tokens that a template writes around a message, and once more: up to 6.5 over the families of the tests


def check_provenance(evidence: Evidence) -> Iterator[RuleResult]:
    if not evidence.groups and evidence.batch is None:
        yield NotChecked("trajectories")
        return
    if evidence.groups:
        yield from _spans(evidence, evidence.flat)
        yield from _ends_for_want_of_room(evidence, evidence.flat)
        if evidence.journal is not None:
            yield from _answers(evidence, evidence.flat)
        else:
            yield NotChecked(JOURNAL, "tokens as the engine sampled them")
        if evidence.chat is not None:
            yield from _texts(evidence, evidence.flat)
        else:
            yield NotChecked("the chat format", "stop tokens, the text of turns")
    if evidence.batch is not None:
        yield from _batch(evidence)


# ------------------------------------------------------------------------------------------------ the journal's word


def _answers(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """Every completion stands in exactly one sampled span, at the end of the prompt that it answers."""
    at = {
        (int(flat.segment_P[p]), int(flat.start_P[p])): p
        for p in np.flatnonzero(flat.sampled_P).tolist()
    }
    pairs: list[tuple[JournalEntry, int]] = []
    for entry in journal_of(evidence):
        if not entry.answered:
            continue
        start = len(entry.exchange.request.prompt_ids)
        p = at.pop((int(flat.first_segment_N[entry.row]) + entry.segment, start), None)
        if p is None or flat.trajectory_P[p] != entry.row:
            yield _not_trained(evidence, flat, entry, start)
            continue
        pairs.append((entry, p))
        yield from _other_attributes(evidence, flat, entry, p)
    for p in at.values():
        yield Finding(
            f"{many(int(flat.length_P[p]))} marked as sampled here, but the engine answered nothing that "
            "stands here",
            flat.place_of_span(p),
            count=int(flat.length_P[p]),
        )
    yield Checked(int(sum(flat.length_P[p] for _, p in pairs)))
    yield from _values(flat, pairs)
    yield from _stops(evidence, flat, pairs)
    yield from _limits(evidence, flat, pairs)


def _not_trained(evidence: Evidence, flat: Flat, entry: JournalEntry, start: int) -> Finding:
    size = len(entry.exchange.completion.token_ids)
    place = evidence.place(
        entry.row, segment=entry.segment, turn=entry.turn, position=start, length=max(size, 1)
    )
    segments = flat.segments_of(entry.row)
    shown = "nothing"
    for p in flat.spans_of(segments[entry.segment]) if entry.segment < len(segments) else ():
        if 0 <= start - flat.start_P[p] < flat.length_P[p]:
            shown = (
                f"a {SOURCES[flat.source_P[p]]} span "
                + ("with" if flat.sampled_P[p] else "without")
                + " logprobs"
            )
            shown += (
                ""
                if flat.start_P[p] == start
                else f" that begins {start - int(flat.start_P[p])} tokens earlier"
            )
    return Finding(
        f"the engine sampled {many(size)} here in turn {entry.turn}, but the trajectory has {shown} there: "
        "what was sampled is not trained",
        place,
        count=max(size, 1),
    )


def _other_attributes(
    evidence: Evidence, flat: Flat, entry: JournalEntry, p: int
) -> Iterator[Finding]:
    """Author, turn, version and settings of a sampled span."""
    completion = entry.exchange.completion
    span = flat.spans[p]
    turns = evidence.trajectories[entry.row].turns
    finish = turns[entry.turn].finish if entry.turn < len(turns) else None
    for what, ours, theirs in (
        ("version of the policy", span.policy_version, completion.policy_version),
        ("turn", span.turn, entry.turn),
        ("sampling settings", span.sampling, completion.sampling),
        ("way the turn ended", finish, completion.finish),
    ):
        if ours is not theirs and ours != theirs:
            yield Finding(
                f"the {what} recorded is {ours!r}; the engine's answer says {theirs!r}",
                flat.place_of_span(p),
                count=len(span),
            )


def _values(flat: Flat, pairs: list[tuple[JournalEntry, int]]) -> Iterator[Finding]:
    """Ids and logprobs, bit for bit."""
    for entry, p in pairs:
        span = flat.spans[p]
        completion = entry.exchange.completion
        for what, ours, theirs in (
            ("id", span.token_ids, completion.token_ids),
            ("logprob", span.logprobs, completion.logprobs),
            ("plain logprob", span.plain_logprobs, completion.plain_logprobs),
        ):
            if ours is None and theirs is None:
                continue
            if ours is None or theirs is None or len(ours) != len(theirs):
                yield Finding(
                    f"{'no' if ours is None else len(ours)} {what}s recorded for "
                    f"{'none' if theirs is None else len(theirs)} that the engine answered",
                    flat.place_of_span(p),
                )
                continue
            theirs = np.asarray(theirs, ours.dtype)
            yield from at_first(
                unequal(ours, theirs),
                lambda k: f"the {what} recorded is {ours[k]!s}, the engine answered {theirs[k]!s}",
                partial(flat.place_of_span, p),
            )


def _stops(
    evidence: Evidence, flat: Flat, pairs: list[tuple[JournalEntry, int]]
) -> Iterator[Finding]:
    """A turn ends with its stop token, and only there."""
    known = evidence.chat.stop_ids if evidence.chat is not None else None
    for entry, p in pairs:
        stops = entry.exchange.request.stop_ids
        completion = entry.exchange.completion
        if known is not None and stops != known:
            yield Finding(
                f"the engine was told that {sorted(stops)} end a turn; the chat format says {sorted(known)}",
                flat.place_of_span(p),
            )
            return
        ids = completion.token_ids.tolist()
        early = next((i for i, token_id in enumerate(ids[:-1]) if token_id in stops), None)
        if early is not None:
            yield Finding(
                f"the turn goes on after {token(evidence, ids[early])}, which ends a turn",
                flat.place_of_span(p, early),
            )
        if (bool(ids) and ids[-1] in stops) != (completion.finish == "stop"):
            last = token(evidence, ids[-1]) if ids else "nothing"
            yield Finding(
                f"the turn ended by {completion.finish!r} with {last} as its last token",
                flat.place_of_span(p, max(len(ids) - 1, 0)),
            )


def _limits(
    evidence: Evidence, flat: Flat, pairs: list[tuple[JournalEntry, int]]
) -> Iterator[Finding]:
    """A turn may be as long as was declared and as there is room for, no longer and no shorter (R38: it is cut there only);
    and it is sampled as was declared."""
    declared = evidence.collect
    context = _context_length(evidence)
    for entry, p in pairs:
        request = entry.exchange.request
        size = len(entry.exchange.completion.token_ids)
        if size > request.max_new_tokens:
            yield Finding(
                f"{many(size)} sampled where at most {request.max_new_tokens} were asked for",
                flat.place_of_span(p),
            )
        if declared is None or evidence.by_program:
            continue
        room = declared.max_turn_tokens
        room = room if context is None else min(room, context - len(request.prompt_ids))
        if request.max_new_tokens > room or (context is not None and request.max_new_tokens < room):
            yield Finding(
                f"up to {request.max_new_tokens} tokens were asked for after {len(request.prompt_ids)}; "
                f"declared are {declared.max_turn_tokens} in a turn and {context or 'any number'} in a "
                f"sequence, which leaves {room}",
                flat.place_of_span(p),
            )
        for name in ("temperature", "top_p"):
            if getattr(request, name) != getattr(declared, name):
                yield Finding(
                    f"the engine was asked for {name} {getattr(request, name)}; collect.{name} is "
                    f"{getattr(declared, name)}",
                    flat.place_of_span(p),
                )


def _context_length(evidence: Evidence) -> int | None:
    """Tokens of one sequence, None: not known here."""
    declared = evidence.collect
    return (
        evidence.context_length
        if declared is None
        else declared.max_context or evidence.context_length
    )


def _ends_for_want_of_room(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """A trajectory that ended for want of room had none. The observation that did not fit is nowhere in tokens; its text
    is, and how much the template adds to a text was seen before."""
    context = _context_length(evidence)
    full = [
        n
        for n, t in enumerate(evidence.trajectories)
        if t.stop_reason is StopReason.CONTEXT_FULL and t.segments
    ]
    if context is None or not full or evidence.by_program:
        return
    yield Checked(len(full))
    append = evidence.collect is not None and evidence.collect.history == "append"
    for n in full:
        trajectory = evidence.trajectories[n]
        spans = evidence.trajectories[n].segments[-1].spans
        length = sum(len(span) for span in spans)
        if spans and spans[-1].logprobs is None:  # the very prompt that had no room behind it
            if length < context:
                yield Finding(
                    f"ended by context_full with a prompt of {length} tokens, which leaves room for "
                    f"{context - length} more in {context}",
                    evidence.place(n),
                )
            continue
        if evidence.chat is None or not trajectory.turns:
            continue
        longest = length + _most_tokens(evidence, trajectory.turns[-1].reply)
        if longest < context:
            yield Finding(
                f"ended by context_full after {length} tokens; with the reply of the environment they would "
                f"have been {longest} at most, of {context}",
                evidence.place(n),
                ERROR if append else NOTE,
            )


def _most_tokens(evidence: Evidence, reply: Sequence[Message]) -> int:
    """Tokens that a reply may take. Control tokens that somebody typed are written in pieces, and what a tool says may
    be quoted: of both, each byte may be a token."""
    encode = evidence.chat.template.tokenizer.backend_tokenizer.encode
    control = evidence.chat.encoder.control_ids
    total = AROUND * (1 + len(reply))
    for message in reply:
        ids = encode(message.text, add_special_tokens=False).ids
        plain = message.role == "user" and not control.intersection(ids)
        total += len(ids) if plain else 2 * len(message.text.encode())
    return total


# ------------------------------------------------------------------------------------------------ by themselves


def _spans(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """What holds whatever was sampled: the policy alone has logprobs, once for each turn, on finite numbers."""
    sampled = np.flatnonzero(flat.sampled_P)
    yield Checked(int(flat.length_P[sampled].sum()))
    for p in sampled[flat.source_P[sampled] != POLICY].tolist():
        yield Finding(
            f"a {SOURCES[flat.source_P[p]]} span has logprobs: only the policy samples",
            flat.place_of_span(p),
            count=int(flat.length_P[p]),
        )
    yield from at_first(
        flat.trained_T & ~np.isfinite(flat.logp_T),
        lambda t: f"a sampled token has the logprob {flat.logp_T[t]}",
        flat.place,
    )
    counts = np.bincount(flat.trajectory_P[sampled], minlength=len(evidence.trajectories))
    for n, trajectory in enumerate(evidence.trajectories):
        if counts[n] != len(trajectory.turns):
            yield Finding(
                f"{many(int(counts[n]), 'sampled span')} for {many(len(trajectory.turns), 'turn')}: every "
                "turn is sampled in one of its own",
                evidence.place(n),
            )
    key = flat.trajectory_P[sampled] * 1_000_003 + flat.turn_P[sampled]
    _, first, times = np.unique(key, return_index=True, return_counts=True)
    for p in sampled[first[times > 1]].tolist():
        yield Finding(
            f"turn {flat.turn_P[p]} is marked as sampled more than once: it would be trained twice",
            flat.place_of_span(p),
        )


def _texts(evidence: Evidence, flat: Flat) -> Iterator[RuleResult]:
    """The turn that the environment was given is the text of the sampled ids; a turn that was ended has its stop."""
    tokenizer = evidence.chat.template.tokenizer
    stops = evidence.chat.stop_ids
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id not in stops:
        yield Finding(
            f"the tokenizer's own {token(evidence, tokenizer.eos_token_id)} ends no turn: {sorted(stops)} do",
            Place(step=evidence.step),
        )
    sampled = np.flatnonzero(flat.sampled_P & (flat.length_P > 0)).tolist()
    spoken = []
    for p in sampled:
        turn_ids = flat.spans[p].token_ids.tolist()
        spoken.append(turn_ids[:-1] if turn_ids[-1] in stops else turn_ids)
    texts = tokenizer.backend_tokenizer.decode_batch(spoken, skip_special_tokens=False)
    yield Checked(len(sampled))
    for p, spoken_text in zip(sampled, texts, strict=True):
        text = evidence.chat.manner.plain(spoken_text)
        turns = evidence.trajectories[int(flat.trajectory_P[p])].turns
        if flat.turn_P[p] >= len(turns):
            continue  # counted in `_spans`
        turn = turns[int(flat.turn_P[p])]
        yield from _stop_of_a_turn(evidence, flat, p, turn)
        if (at := first_difference(turn.text, text)) is not None:
            yield Finding(
                f"the environment was given {turn.text[at : at + 30]!r} where the sampled tokens say "
                f"{text[at : at + 30]!r}",
                flat.place_of_span(p),
                count=int(flat.length_P[p]),
            )


def _stop_of_a_turn(evidence: Evidence, flat: Flat, p: int, turn: Turn) -> Iterator[Finding]:
    """A turn that was ended has a stop token, once."""
    last = int(flat.spans[p].token_ids[-1])
    is_stop = last in evidence.chat.stop_ids
    place = flat.place_of_span(p, int(flat.length_P[p]) - 1)
    if (turn.finish == "stop") != is_stop:
        yield Finding(
            f"the turn ended by {turn.finish!r}, and its last sampled token is "
            f"{token(evidence, last)}: the stop token that was sampled is an action too",
            place,
        )
    if is_stop and _supplied_again(flat, p, last):
        yield Finding(
            f"the sampled {token(evidence, last)} is followed by another one from the template",
            place,
        )


def _supplied_again(flat: Flat, p: int, token_id: int) -> bool:
    after = p + 1
    return (
        after < len(flat.spans)
        and flat.segment_P[after] == flat.segment_P[p]
        and flat.length_P[after] > 0
        and flat.source_P[after] == SCAFFOLD
        and int(flat.spans[after].token_ids[0]) == token_id
    )


# ------------------------------------------------------------------------------------------------ the batch


def _batch(evidence: Evidence) -> Iterator[RuleResult]:
    """What counts as sampled is what was sampled."""
    batch = evidence.batch
    eligible_T = batch.eligible_T.numpy()
    source_T = batch.source_T.numpy()
    yield Checked(len(eligible_T))
    flawed_T = eligible_T & ((source_T != POLICY) | ~np.isfinite(batch.rollout_logp_T.numpy()))
    yield from at_first(
        flawed_T,
        lambda t: (
            f"{token(evidence, int(batch.token_ids_T[t]))} counts as sampled; it is written by "
            f"{SOURCES[source_T[t]] if 0 <= source_T[t] < 4 else source_T[t]} and has the logprob "
            f"{float(batch.rollout_logp_T[t])}"
        ),
        evidence.place_of_token,
    )
    if evidence.groups and len(evidence.flat.ids_T) == len(eligible_T):
        trained_T = evidence.flat.trained_T
        yield from at_first(
            eligible_T != trained_T,
            lambda t: (
                f"{token(evidence, int(batch.token_ids_T[t]))} was {'' if trained_T[t] else 'not '}sampled here to be trained; the batch "
                f"{'trains it' if eligible_T[t] else 'leaves it out'}"
            ),
            evidence.place_of_token,
        )


R3 = Rule(
    "R3",
    "the loss mask equals recorded authorship",
    "Tokens that the policy never chose are trained as its own, or its own are left out: it learns to write what the "
    "template or the environment writes, or never learns to stop.",
    "Mark a token as sampled where the engine hands it over, with its logprob, and nowhere else; keep the stop token.",
    (),
    check_provenance,
    threads=("SkyRL#710", "SkyRL#758", "prime-rl#2471", "codescout#60"),
)

RULES: tuple[Rule, ...] = (R3,)
