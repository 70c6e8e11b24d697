"""Clean evidence with one thing changed in it, and what a rule says to that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tests.linting.clean_rollouts import Recipe, collected
from workbench.basics.findings import Finding
from workbench.engines.recorder import Exchange
from workbench.learn.batch import Batch
from workbench.linting import Evidence, all_rules, check
from workbench.values import Group, Segment, Source, Span, Trajectory

RULES = all_rules()


@lru_cache
def clean(**settings: Any) -> Evidence:
    return collected(Recipe(**settings))


def found(rule: str, evidence: Evidence) -> list[Finding]:
    """The errors of one rule."""
    return list(check(evidence, [RULES[rule]])[rule].errors)


def says(rule: str, evidence: Evidence, words: str = "", **where: Any) -> Finding:
    """The first error of the rule that has these words and this place; fails where there is none."""
    errors = found(rule, evidence)
    for error in errors:
        if words in error.what and all(
            getattr(error.place, name) == value for name, value in where.items()
        ):
            return error
    raise AssertionError(f"{rule} does not say {words!r} at {where}; it says {errors}")


def with_trajectory(
    evidence: Evidence, n: int, change: Callable[[Trajectory], Trajectory], *, batch: bool = True
) -> Evidence:
    """Trajectory number `n` changed; `batch`: the batch is made anew of what came out (and credit is left out)."""
    groups, count = [], 0
    for group in evidence.groups:
        groups.append(tuple(change(t) if count + i == n else t for i, t in enumerate(group)))
        count += len(group)
    made = replace(evidence, groups=tuple(groups))
    if batch:
        made = replace(
            made, batch=Batch.from_groups([Group(group) for group in groups]), credit=None
        )
    return made


def with_spans(
    evidence: Evidence,
    n: int,
    segment: int,
    change: Callable[[tuple[Span, ...]], Sequence[Span]],
    *,
    batch: bool = True,
) -> Evidence:
    """The spans of one segment changed."""

    def changed(trajectory: Trajectory) -> Trajectory:
        segments = list(trajectory.segments)
        segments[segment] = Segment(tuple(change(segments[segment].spans)))
        return replace(trajectory, segments=tuple(segments))

    return with_trajectory(evidence, n, changed, batch=batch)


def at(
    index: int, change: Callable[[Span], Span | Sequence[Span]]
) -> Callable[[tuple[Span, ...]], list[Span]]:
    """A change of the span number `index`: another one, or several."""

    def changed(spans: tuple[Span, ...]) -> list[Span]:
        new = change(spans[index])
        return [*spans[:index], *([new] if isinstance(new, Span) else new), *spans[index + 1 :]]

    return changed


def with_batch(evidence: Evidence, **fields: Any) -> Evidence:
    return replace(evidence, batch=replace(evidence.batch, **fields))


def with_exchange(
    evidence: Evidence, index: int, *, request: dict = None, completion: dict = None
) -> Evidence:
    if completion is None:
        completion = {}
    if request is None:
        request = {}
    journal = list(evidence.journal)
    asked, answered = journal[index]
    journal[index] = Exchange(
        replace(asked, **request), replace(answered, **completion) if completion else answered
    )
    return replace(evidence, journal=tuple(journal))


def sampled(evidence: Evidence) -> list[tuple[int, int, int, Span]]:
    """(trajectory, segment, number in the segment, span) of every sampled span."""
    return [
        (n, s, k, span)
        for n, trajectory in enumerate(evidence.trajectories)
        for s, segment in enumerate(trajectory.segments)
        for k, span in enumerate(segment.spans)
        if span.logprobs is not None
    ]


def start_of(evidence: Evidence, n: int, segment: int, index: int) -> int:
    """The position of a span in its segment."""
    return sum(len(span) for span in evidence.trajectories[n].segments[segment].spans[:index])


def exchange_of(evidence: Evidence, n: int, turn: int) -> int:
    """The number of the exchange in which trajectory `n` sampled this turn."""
    trajectory = evidence.trajectories[n]
    mine = [
        i
        for i, (request, _) in enumerate(evidence.journal)
        if request.session.rpartition("/")[0] == f"{trajectory.task.id}#{trajectory.attempt}"
    ]
    return mine[turn]


def other_id(evidence: Evidence, token_id: int) -> int:
    """Another ordinary token."""
    plain = [
        i
        for i in range(len(evidence.chat.template.tokenizer))
        if i not in evidence.chat.encoder.control_ids
    ]
    return plain[(plain.index(token_id) + 1) % len(plain)] if token_id in plain else plain[0]


def changed_id(values: np.ndarray, place: int, new: int) -> np.ndarray:
    values = np.array(values)
    values[place] = new
    return values


def rolled(values: torch.Tensor) -> torch.Tensor:
    return torch.roll(values, 1)


__all__ = [
    "Source",
    "at",
    "changed_id",
    "clean",
    "exchange_of",
    "found",
    "other_id",
    "rolled",
    "sampled",
    "says",
    "start_of",
    "with_batch",
    "with_exchange",
    "with_spans",
    "with_trajectory",
]
