"""What untrusted text became (R15): no control token, and nothing of it is lost.

Axis letters: P spans · T tokens · V vocabulary.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.linting.evidence import Evidence
from workbench.linting.flat import ENV, PROMPT, Flat
from workbench.linting.reference import Reference
from workbench.linting.render import chosen
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Message, Trajectory


def check_untrusted(evidence: Evidence) -> Iterator[RuleResult]:
    """No control token from outside, and nothing of what the environment said lost or changed."""
    reference = Reference(evidence.chat)
    flat = evidence.flat
    yield from _forged(evidence, flat, reference)
    if evidence.by_program:
        yield NotChecked("prompts of ours", "observations, in all their words")
        return
    looked = chosen(evidence)
    for n in looked:
        yield from _observations_whole(evidence.trajectories[n], flat, reference, n)
    # The openings of all others, each different one once: trajectories of a task share theirs.
    known = set()
    for n in sorted(set(range(len(evidence.trajectories))) - set(looked)):
        messages = evidence.trajectories[n].first_observation.messages
        for segment in flat.segments_of(n)[:1]:
            prompt = _prompt_spans(flat, segment)
            key = (messages, *(flat.spans[p].token_ids.tobytes() for p in prompt))
            if key not in known:
                known.add(key)
                yield from _messages_whole(flat, reference, messages, prompt, segment, 0)


def _forged(evidence: Evidence, flat: Flat, reference: Reference) -> Iterator[RuleResult]:
    """Control tokens in prompts and replies: only those that trusted parts of the message spell out."""
    outside_P = np.isin(flat.source_P, (ENV, PROMPT))
    yield Checked(int(flat.length_P[outside_P].sum()))
    is_control_V = reference.is_control(int(flat.ids_T.max(initial=0)) + 1)
    spare: dict[
        tuple[int, int, int], Counter
    ] = {}  # of each message in each segment: what it may still have
    reported = set()
    for t in np.flatnonzero(is_control_V[flat.ids_T] & outside_P[flat.span_T]).tolist():
        p = int(flat.span_T[t])
        token_id = int(flat.ids_T[t])
        key = int(flat.segment_P[p]), int(flat.source_P[p]), int(flat.turn_P[p])
        if key not in spare:
            messages = _messages_of(evidence.trajectories[int(flat.trajectory_P[p])], *key[1:])
            spare[key] = _trusted_controls(reference, messages)
        spare[key][token_id] -= 1
        if spare[key][token_id] < 0 and key not in reported:
            reported.add(key)
            yield Finding(
                f"{reference.name(token_id)!r} stands here as the control token {token_id}, and no trusted "
                "text of the environment says it",
                flat.place(t),
            )


def _trusted_controls(reference: Reference, messages: Sequence[Message]) -> Counter[int]:
    """The control tokens that trusted parts of messages spell out."""
    controls: Counter[int] = Counter()
    for message in messages:
        for part in message.content:
            if part.trusted:
                controls.update(reference.controls_in(part.text))
    return controls


def _messages_of(trajectory: Trajectory, source: int, turn: int) -> tuple[Message, ...]:
    if source == PROMPT:
        return trajectory.first_observation.messages
    return trajectory.turns[turn].reply if turn < len(trajectory.turns) else ()


def _observations_whole(
    trajectory: Trajectory, flat: Flat, reference: Reference, n: int
) -> Iterator[RuleResult]:
    """The first observation in every segment, and the newest reply before every turn, in all their words."""
    first = trajectory.first_observation
    for segment in flat.segments_of(n):
        spans = flat.spans_of(segment)
        yield from _messages_whole(
            flat, reference, first.messages, _prompt_spans(flat, segment), segment, 0
        )
        for tool in first.tools:
            yield from _schema_shown(flat, reference, tool, segment)
        for p in spans:
            turn = int(flat.turn_P[p]) - 1
            if flat.sampled_P[p] and 0 <= turn < len(trajectory.turns):
                reply = [
                    q
                    for q in range(spans.start, p)
                    if flat.source_P[q] == ENV and flat.turn_P[q] == turn
                ]
                yield from _messages_whole(
                    flat, reference, trajectory.turns[turn].reply, reply, segment, turn
                )


def _prompt_spans(flat: Flat, segment: int) -> list[int]:
    return [p for p in flat.spans_of(segment) if flat.source_P[p] == PROMPT]


def _text(flat: Flat, reference: Reference, spans: Iterable[int]) -> str:
    return reference.decode(flat.ids_of(spans))


def _messages_whole(
    flat: Flat,
    reference: Reference,
    messages: Sequence[Message],
    spans: Sequence[int],
    segment: int,
    turn: int,
) -> Iterator[RuleResult]:
    shown = _text(flat, reference, spans)
    at = 0
    for message in messages:
        yield Checked(1)
        text = reference.normalized(message.text).strip()
        if not text:
            continue
        ways = (text, json.dumps(text, ensure_ascii=False)[1:-1])
        end = next((start + len(way) for way in ways if (start := shown.find(way, at)) >= 0), None)
        if end is not None:
            at = end
        elif not (reference.swallows and any(_squeezed(way) in _squeezed(shown) for way in ways)):
            position = int(flat.start_P[spans[0]]) if spans else 0
            yield Finding(
                f"the environment said {_excerpt(text, shown)!r}; the tokens by its hand say {shown[at : at + 60]!r}",
                flat.place_of_segment(segment, turn=turn, position=position),
            )
            return


def _squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


def _excerpt(text: str, shown: str) -> str:
    """From where on `text` is not found."""
    size = len(text)
    while size and text[:size] not in shown:
        size = size // 2 if size > 8 else size - 1
    return text[max(size - 10, 0) : size + 50]


def _schema_shown(
    flat: Flat, reference: Reference, tool: Mapping[str, Any], segment: int
) -> Iterator[RuleResult]:
    name = (tool.get("function") or tool).get("name", "")
    yield Checked(1)
    if name and name not in _text(
        flat, reference, (p for p in flat.spans_of(segment) if not flat.sampled_P[p])
    ):
        yield Finding(
            f"the tool {name!r} is on offer and is nowhere in the prompt",
            flat.place_of_segment(segment),
        )


R15 = Rule(
    "R15",
    "no untrusted text becomes a control token",
    "Whoever writes an observation can end the policy's turn, open one of its own or call its tools; and what is lost "
    "of an observation, the policy is blamed for not knowing.",
    "Encode what comes from outside with a tokenizer that knows no control tokens, and mark instructions of the "
    "environment's author as trusted.",
    ("groups", "chat"),
    check_untrusted,
    threads=("transformers#29279", "vllm#31735", "renderers#116"),
)

RULES: tuple[Rule, ...] = (R15,)
