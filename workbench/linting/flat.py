"""The tokens of all trajectories end to end, put together from the spans by themselves.

A batch says the same, and so do the properties of segments; that is why they are not asked here: rules hold them
against this.

Axis letters: N trajectories · S segments · P spans (all of them, in order) · T tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np

from workbench.basics.findings import Place
from workbench.values import Segment, Span, Trajectory

# `values.Source`, as the numbers that arrays hold.
PROMPT = 0
SCAFFOLD = 1
POLICY = 2
ENV = 3


@dataclass(frozen=True, eq=False)
class Flat:
    """`logp_T` is NaN where a span has no logprobs. `end_P` counts tokens, `segment_P` segments of all trajectories;
    `number_S` counts the segments within their trajectory. `step`: of the run, for places."""

    spans: tuple[Span, ...]
    ids_T: np.ndarray  # int32
    logp_T: np.ndarray  # float32
    end_P: np.ndarray  # int64
    source_P: np.ndarray  # int8
    turn_P: np.ndarray  # int32
    sampled_P: np.ndarray  # bool: it carries logprobs
    trained_P: np.ndarray  # bool: ... and its segment is trained
    segment_P: np.ndarray  # int64
    trajectory_S: np.ndarray  # int64
    number_S: np.ndarray  # int64
    names_N: tuple[str, ...]
    step: int | None = None

    @cached_property
    def length_P(self) -> np.ndarray:
        return np.diff(self.end_P, prepend=0)

    @cached_property
    def trajectory_P(self) -> np.ndarray:
        return self.trajectory_S[self.segment_P]

    @cached_property
    def offset_S(self) -> np.ndarray:
        """int64 [S + 1]: where each segment begins, and the last one ends."""
        length_S = np.bincount(self.segment_P, self.length_P, len(self.trajectory_S)).astype(
            np.int64
        )
        return np.concatenate([[0], np.cumsum(length_S)])

    @cached_property
    def start_P(self) -> np.ndarray:
        """Where each span begins within its segment."""
        return self.end_P - self.length_P - self.offset_S[self.segment_P]

    @cached_property
    def span_T(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.spans)), self.length_P)

    @cached_property
    def source_T(self) -> np.ndarray:
        return np.repeat(self.source_P, self.length_P)

    @cached_property
    def turn_T(self) -> np.ndarray:
        return np.repeat(self.turn_P, self.length_P)

    @cached_property
    def trained_T(self) -> np.ndarray:
        return np.repeat(self.trained_P, self.length_P)

    @cached_property
    def plain_logp_T(self) -> np.ndarray:
        """float32: of the model's own softmax; NaN where it is not known."""
        plain_P = [
            np.full(len(span), np.nan, np.float32) if (own := plain_logprobs(span)) is None else own
            for span in self.spans
        ]
        return np.concatenate([np.zeros(0, np.float32), *plain_P])

    @cached_property
    def first_segment_N(self) -> np.ndarray:
        """int64 [N + 1]: the number of each trajectory's first segment, and the number of all segments."""
        return np.searchsorted(self.trajectory_S, np.arange(len(self.names_N) + 1))

    @cached_property
    def first_span_S(self) -> np.ndarray:
        """int64 [S + 1]"""
        return np.searchsorted(self.segment_P, np.arange(len(self.trajectory_S) + 1))

    def place(self, token: int, length: int = 1) -> Place:
        """Where flat token `token` is."""
        span = int(np.searchsorted(self.end_P, token, side="right"))
        return self.place_of_span(span, token - int(self.end_P[span] - self.length_P[span]), length)

    def place_of_span(self, span: int, token: int | None = None, length: int = 1) -> Place:
        """Where span `span` is, or `length` tokens of it, from its token number `token` on."""
        return self.place_of_segment(
            int(self.segment_P[span]),
            turn=int(self.turn_P[span]),
            position=int(self.start_P[span]) + (token or 0),
            length=max(int(self.length_P[span]), 1) if token is None else length,
        )

    def place_in(self, segment: int, position: int = 0, length: int = 1) -> Place:
        """Where token `position` of segment `segment` of all is."""
        return self.place(int(self.offset_S[segment]) + position, length)

    def place_of_segment(self, segment: int, **where: int) -> Place:
        """Where segment `segment` of all is."""
        n = int(self.trajectory_S[segment])
        return Place(self.names_N[n], n, int(self.number_S[segment]), step=self.step, **where)

    def segments_of(self, n: int) -> range:
        """The segments of trajectory number `n`."""
        return range(*self.first_segment_N[n : n + 2].tolist())

    def spans_of(self, segment: int) -> range:
        """The spans of one segment."""
        return range(*self.first_span_S[segment : segment + 2].tolist())

    def ids_of(self, spans: Iterable[int]) -> list[int]:
        """The token ids of several spans, end to end."""
        return list(chain.from_iterable(self.spans[p].token_ids.tolist() for p in spans))

    def segment_ids(self, segment: int) -> np.ndarray:
        """The token ids of one segment."""
        return self.ids_T[self.offset_S[segment] : self.offset_S[segment + 1]]


def plain_logprobs(span: Span) -> np.ndarray | None:
    """Logprobs of the model's own softmax, for a sampled span: stored, or those of the distribution itself where nothing bends
    it. None: not known."""
    if span.plain_logprobs is not None:
        return span.plain_logprobs
    return None if span.sampling is not None and span.sampling.bends else span.logprobs


def flatten(trajectories: Sequence[Trajectory], step: int | None = None) -> Flat:
    """All spans in order."""
    segments: list[Segment] = []
    trajectory_S: list[int] = []
    number_S: list[int] = []
    for n, trajectory in enumerate(trajectories):
        segments += trajectory.segments
        trajectory_S += [n] * len(trajectory.segments)
        number_S += range(len(trajectory.segments))
    spans = tuple(chain.from_iterable(segment.spans for segment in segments))
    length_P = np.array([len(span.token_ids) for span in spans], np.int64)
    num_spans_S = [len(segment.spans) for segment in segments]
    sampled_P = np.array([span.logprobs is not None for span in spans], bool)
    trained_S = [not segment.untrained for segment in segments]
    return Flat(
        spans,
        np.concatenate([np.zeros(0, np.int32), *(span.token_ids for span in spans)]),
        np.concatenate([np.zeros(0, np.float32), *map(_logprobs, spans)]),
        np.cumsum(length_P),
        np.array([int(span.source) for span in spans], np.int8),
        np.array([span.turn for span in spans], np.int32),
        sampled_P,
        sampled_P & np.repeat(np.array(trained_S, bool), num_spans_S),
        np.repeat(np.arange(len(segments)), num_spans_S),
        np.array(trajectory_S, np.int64),
        np.array(number_S, np.int64),
        tuple(f"{t.task.id}/{t.attempt}" for t in trajectories),
        step,
    )


def _logprobs(span: Span) -> np.ndarray:
    """NaN at each token where a span has none."""
    return np.full(len(span), np.nan, np.float32) if span.logprobs is None else span.logprobs
