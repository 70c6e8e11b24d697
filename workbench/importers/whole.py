"""Attempts that are whole, as our own types: then views, estimators and the rules for our own rollouts take them too.

Whole is: token ids of prompt and completion, a mask and logprobs that fit them, and one history that only grows. What
stands between two sampled stretches is taken for the environment's, since these files seldom say which of it a
template put there. An attempt that is not whole stays in `Imported.sequences` alone: nothing is made up for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from workbench.types import (
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
from workbench.types.dumps import RawSequence
from workbench.types.seeds import seed_of


def groups_of(sequences: Sequence[RawSequence]) -> tuple[tuple[Trajectory, ...], ...]:
    """The whole attempts by group, in the order of the file."""
    attempts: dict[str, list[RawSequence]] = {}
    for sequence in sequences:
        attempts.setdefault(sequence.attempt, []).append(sequence)
    groups: dict[str, list[Trajectory]] = {}
    for name, turns in attempts.items():
        group = turns[0].group if turns[0].group is not None else name
        trajectory = _trajectory(group, len(groups.get(group, ())), turns)
        if trajectory is not None:
            groups.setdefault(group, []).append(trajectory)
    return tuple(tuple(group) for group in groups.values())


def _trajectory(group: str, attempt: int, turns: Sequence[RawSequence]) -> Trajectory | None:
    spans = _spans(turns)
    if spans is None:
        return None
    first, last = turns[0], turns[-1]
    count = 1 + max(span.turn for span in spans)
    texts = [turn.completion_text or "" for turn in turns] if len(turns) == count else [""] * count
    cut = bool(last.truncated)
    said = tuple(
        Turn(k, texts[k], finish="length" if cut and k == count - 1 else "stop", reward=0.0)
        for k in range(count)
    )
    scored = first.reward is not None and np.isfinite(first.reward) and not first.failed
    stop = (
        StopReason.ENV_ERROR
        if first.failed
        else StopReason.CONTEXT_FULL
        if cut
        else StopReason.TERMINATED
    )
    return Trajectory(
        Task(group, "imported", seed_of("imported", group), {"prompt": first.prompt_text}),
        attempt,
        attempt,
        Observation((Message("user", first.prompt_text or ""),)),
        said,
        (Segment(tuple(spans)),),
        stop,
        outcome=first.reward if scored else None,
        scored=scored,
        error=first.failed,
    )


def _spans(turns: Sequence[RawSequence]) -> list[Span] | None:
    """The one sequence that the model saw, by author; None where the attempt is not whole."""
    spans: list[Span] = []
    seen, turn = np.zeros(0, np.int32), -1
    for number, sequence in enumerate(turns):
        mask, logprobs, prompt = sequence.trained, sequence.logprobs, sequence.prompt_ids
        if (
            sequence.number != number
            or mask is None
            or not mask.any()
            or logprobs is None
            or prompt is None
            or len(logprobs) != len(mask)
            or sequence.fork
            or not len(prompt)
            or (sequence.prompt_mask is not None and sequence.prompt_mask.any())
        ):
            return None
        trained = logprobs[mask]
        if (
            not np.isfinite(trained).all()
            or (trained > 0).any()
            or (sequence.completion_ids < 0).any()
        ):
            return None
        if (
            len(prompt) < len(seen)
            or not np.array_equal(prompt[: len(seen)], seen)
            or (prompt < 0).any()
        ):
            return None
        if len(prompt) > len(seen):
            spans.append(
                Span(Source.ENV if number else Source.PROMPT, max(turn, 0), prompt[len(seen) :])
            )
        edges = np.flatnonzero(np.diff(mask)) + 1
        for a, b in zip([0, *edges], [*edges, len(mask)]):
            turn += int(mask[a])
            spans.append(
                Span(
                    Source.POLICY if mask[a] else Source.ENV,
                    max(turn, 0),
                    sequence.completion_ids[a:b],
                    logprobs[a:b] if mask[a] else None,
                    sampled=bool(mask[a]),
                )
            )
        seen = np.concatenate([prompt, sequence.completion_ids])
    return spans
