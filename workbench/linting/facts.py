"""What is kept of a trajectory once its step is over: the problem that it was at, and what it was paid for what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b

from workbench.values import Span, Task, Trajectory

MODES = ("sampled", "greedy")  # ways to play in evaluations


def content(task: Task) -> str:
    """The payload of a task, as text."""
    return json.dumps(dict(task.payload), sort_keys=True, default=str)


def sampled_spans(trajectory: Trajectory) -> Iterator[Span]:
    """The spans of a trajectory that the policy sampled, in order."""
    for segment in trajectory.segments:
        yield from (span for span in segment.spans if span.logprobs is not None)


def num_sampled(trajectory: Trajectory) -> int:
    """How many tokens of a trajectory were sampled."""
    return sum(len(span.token_ids) for span in sampled_spans(trajectory))


def problem_of(trajectory: Trajectory) -> str:
    """A problem by its content: what the policy is shown first and what the task holds, without case and white
    space, as a fingerprint."""
    shown = " ".join(message.text for message in trajectory.first_observation.messages)
    words = " ".join(f"{shown} {content(trajectory.task)}".lower().split())
    return blake2b(words.encode(), digest_size=8).hexdigest()


def payment(trajectory: Trajectory) -> tuple[bool, str, float] | None:
    """(success, what the trajectory looks like, reward); None where success or reward is not known."""
    t = trajectory
    reward = trajectory.reward
    if t.success is None or reward is None or t.stop_reason.is_fault:
        return None
    paid: set[str] = set()
    for parts in (t.outcome_parts, *(turn.reward_parts for turn in t.turns)):
        paid.update(name for name, value in parts.items() if value)
    unread = sum(turn.info.get("valid_format") is False for turn in t.turns)
    documents = sum(len(turn.info.get("support_found", ())) for turn in t.turns)
    return (
        t.success,
        f"{t.stop_reason.value}, {unread} turns unread, {documents} documents, paid for {sorted(paid)}",
        float(reward),
    )
