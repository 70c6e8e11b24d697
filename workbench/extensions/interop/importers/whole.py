"""Trajectories that are whole, as our own types: then views, estimators and the rules for our own rollouts take them too.

Whole is: token ids of prompt and completion, a mask and logprobs that fit them, and one history that only grows. What
stands between two sampled stretches is taken for the environment's, since these files seldom say which of it a
template put there. A trajectory that is not whole stays in `Imported.sequences` alone: nothing is made up for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from workbench.extensions.interop.dumps import RawSequence
from workbench.values import (
    Message,
    Observation,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from workbench.values.seeds import seed_of


def groups_of(sequences: Sequence[RawSequence]) -> tuple[tuple[Trajectory, ...], ...]:
    """The whole trajectories by group, in the order of the file."""
    trajectories: dict[str, list[RawSequence]] = {}
    for sequence in sequences:
        trajectories.setdefault(sequence.attempt, []).append(sequence)
    groups: dict[str, list[Trajectory]] = {}
    for name, turns in trajectories.items():
        group = turns[0].group if turns[0].group is not None else name
        trajectory = _trajectory(group, len(groups.get(group, ())), turns)
        if trajectory is not None:
            groups.setdefault(group, []).append(trajectory)
    return tuple(tuple(group) for group in groups.values())


def _trajectory(group: str, attempt: int, sequences: Sequence[RawSequence]) -> Trajectory | None:
    spans = _spans(sequences)
    if spans is None:
        return None
    first = sequences[0]
    was_cut = bool(sequences[-1].truncated)
    count = 1 + max(span.turn for span in spans)
    texts = [""] * count
    if len(sequences) == count:
        texts = [sequence.completion_text or "" for sequence in sequences]
    finishes = ["stop"] * count
    stop = StopReason.TERMINATED
    if was_cut:
        finishes[-1] = "length"
        stop = StopReason.CONTEXT_FULL
    if first.failed:
        stop = StopReason.ENV_ERROR
    turns = [Turn(k, texts[k], finish=finishes[k], reward=0.0) for k in range(count)]
    scored = first.reward is not None and np.isfinite(first.reward) and not first.failed
    return Trajectory(
        Task(group, "imported", seed_of("imported", group), {"prompt": first.prompt_text}),
        attempt,
        attempt,
        Observation((Message("user", first.prompt_text or ""),)),
        tuple(turns),
        (Segment(tuple(spans)),),
        stop,
        outcome=first.reward if scored else None,
        scored=scored,
        error=first.failed,
    )


def _spans(sequences: Sequence[RawSequence]) -> list[Span] | None:
    """The one sequence that the model saw, by author; None where the trajectory is not whole."""
    spans: list[Span] = []
    seen = np.zeros(0, np.int32)
    turn = -1
    for number, sequence in enumerate(sequences):
        if sequence.number != number or not _is_whole(sequence):
            return None
        prompt = sequence.prompt_ids
        if (
            len(prompt) < len(seen)
            or not np.array_equal(prompt[: len(seen)], seen)
            or (prompt < 0).any()
        ):
            return None
        if len(prompt) > len(seen):
            source = Source.ENV if number else Source.PROMPT
            spans.append(Span(source, max(turn, 0), prompt[len(seen) :]))
        mask = sequence.trained
        edges = np.flatnonzero(np.diff(mask)) + 1
        for start, end in pairwise([0, *edges, len(mask)]):
            turn += int(mask[start])
            spans.append(_span(sequence, bool(mask[start]), max(turn, 0), start, end))
        seen = np.concatenate([prompt, sequence.completion_ids])
    return spans


def _is_whole(sequence: RawSequence) -> bool:
    """Whether a sequence has ids, a mask and logprobs, and they fit each other."""
    mask = sequence.trained
    if mask is None or not mask.any() or sequence.fork:
        return False
    if sequence.logprobs is None or len(sequence.logprobs) != len(mask):
        return False
    if sequence.prompt_ids is None or not len(sequence.prompt_ids):
        return False
    if sequence.prompt_mask is not None and sequence.prompt_mask.any():
        return False
    logprobs = sequence.logprobs[mask]
    can_be_logprobs = np.isfinite(logprobs).all() and not (logprobs > 0).any()
    return bool(can_be_logprobs and not (sequence.completion_ids < 0).any())


def _span(sequence: RawSequence, sampled: bool, turn: int, start: int, end: int) -> Span:
    ids = sequence.completion_ids[start:end]
    if not sampled:
        return Span(Source.ENV, turn, ids, None, sampled=False)
    return Span(Source.POLICY, turn, ids, sequence.logprobs[start:end], sampled=True)
