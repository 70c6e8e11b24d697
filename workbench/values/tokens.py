"""Tokens with their authors: a span is what one author wrote, a segment is one sequence that the model really saw;
and the record of an update, which has a row for each.

Axis letters: T tokens of a segment (spans end to end)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from workbench.values.errors import DataError, shortened
from workbench.values.parts import as_parts, expect, frozen_array
from workbench.values.view import Shown

# Attribute of a tokenizer: the ids that its model's generation_config ends a turn by (engines/policy.py sets it).
GENERATION_STOPS = "generation_stops"
HISTORIES = (
    "append",
    "template",
    "window",
    "fresh",
)  # what the policy may see of a trajectory's past


class Source(IntEnum):
    """Who wrote a token. Recorded when the token is born, never inferred from text, role or template (invariant 1)."""

    PROMPT = 0  # task text, system text, tool schemas: what stands before the first action
    SCAFFOLD = 1  # literals of the chat template: role headers, separators, a stop token that had to be supplied
    POLICY = 2  # sampled by the policy, in this segment or (shown again, without logprobs) in an earlier one
    ENV = 3  # observations, tool results: what the environment replied


@dataclass(frozen=True)
class Sampling:
    """How a span was sampled, so that a trainer can tell whether its logprobs are comparable."""

    temperature: float = 1.0
    top_p: float = 1.0
    engine: str = ""
    dtype: str = ""
    addressed: bool = True  # its noise is that of its address (invariant 8); False: of a stream that depends on what came before

    @property
    def bends(self) -> bool:
        """True where the sampled-from distribution is not the model's own softmax."""
        return self.temperature != 1.0 or self.top_p != 1.0


PLAIN = {"temperature": 1.0, "top_p": 1.0}  # sampling from the policy's own distribution


def sampling_words(row: Mapping[str, Any]) -> str:
    """How the policy of a row of an evaluation played: "greedy", "sampled", "sampled (temperature 0.8)"."""
    bent = []
    for name, usual in PLAIN.items():
        if row.get(name, usual) != usual:
            bent.append(f"{name.replace('_', '-')} {row[name]:g}")
    return row["mode"] + (f" ({', '.join(bent)})" if bent else "")


def _author(source: Any) -> Source:
    try:
        return Source(source)
    except Exception as error:
        names = ", ".join(f"Source.{author.name}" for author in Source)
        raise DataError(
            f"who wrote a span is one of {names}, got {shortened(source)} ({type(source).__name__})"
        ) from error


@dataclass(frozen=True, eq=False)
class Span:
    """Consecutive tokens by one author.

    `sampled`: the policy sampled these tokens *in this very segment*. It is recorded when they are, and it alone makes
    them trainable; the same tokens shown again later are not sampled there and are never trained twice.
    `logprobs` [len] are those of the distribution that was sampled from: present exactly where `sampled`.
    `plain_logprobs` [len] are of the unbent distribution, where temperature or top-p bend it and the engine can say.
    `turn` is the exchange the span belongs to, counted from 0; the first prompt has turn 0, a reply belongs to the turn
    of the action it answers.
    """

    source: Source
    turn: int
    token_ids: np.ndarray
    logprobs: np.ndarray | None = None
    plain_logprobs: np.ndarray | None = None
    policy_version: int | None = None
    sampling: Sampling | None = None
    sampled: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", _author(self.source))
        object.__setattr__(self, "token_ids", frozen_array(self.token_ids, np.int32, "token_ids"))
        expect(self.sampled, (bool, np.bool_), "whether a span was sampled", "true or false")
        for name in ("logprobs", "plain_logprobs"):
            values = getattr(self, name)
            if values is None:
                continue
            values = frozen_array(values, np.float32, name)
            object.__setattr__(self, name, values)
            if len(values) != len(self.token_ids):
                raise DataError(
                    f"turn {self.turn}: {len(self.token_ids)} sampled tokens but {len(values)} {name}; "
                    "an engine returns one logprob per token, stop token included"
                )
        if self.sampled and self.source is not Source.POLICY:
            raise DataError(f"a {self.source.name} span cannot be sampled: only the policy samples")
        if self.sampled and self.logprobs is None:
            raise DataError(
                f"turn {self.turn}: a sampled span without logprobs; an engine returns one for each token"
            )
        if not self.sampled and (self.logprobs is not None or self.plain_logprobs is not None):
            raise DataError(
                f"turn {self.turn}: a {self.source.name} span with logprobs that was not sampled here; set "
                "sampled=True where the policy sampled it in this segment, else leave them out"
            )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Pickle, which carries spans between processes, brings arrays back writable: frozen again (invariant 6)."""
        self.__dict__.update(state)
        for value in state.values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True, eq=False, repr=False)
class Segment(Shown):
    """One sequence that the model really saw: spans end to end. All arrays below are [T], aligned token by token.

    `untrained`: why what was sampled in it is not trained (a conversation that the run leaves out, say); "" where it is.
    """

    spans: tuple[Span, ...]
    untrained: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "spans", as_parts(self.spans, Span, "the spans of a Segment"))

    def _per_token(self, value, dtype) -> np.ndarray:
        parts = [np.full(len(span), value(span), dtype) for span in self.spans]
        return np.concatenate(parts) if parts else np.zeros(0, dtype)

    @property
    def token_ids(self) -> np.ndarray:
        return (
            np.concatenate([span.token_ids for span in self.spans])
            if self.spans
            else np.zeros(0, np.int32)
        )

    @property
    def sources(self) -> np.ndarray:
        return self._per_token(lambda span: span.source, np.int8)

    @property
    def turns(self) -> np.ndarray:
        return self._per_token(lambda span: span.turn, np.int32)

    @property
    def eligible(self) -> np.ndarray:
        """Invariant 1: trainable if and only if the policy sampled the token in this very segment, and the run does not
        leave that out."""
        return self._per_token(lambda span: span.sampled and not self.untrained, bool)

    @property
    def logprobs(self) -> np.ndarray:
        """float32, NaN where the token was not sampled here (None is not zero, invariant 5)."""
        parts = [np.zeros(0, np.float32)]
        for span in self.spans:
            known = span.logprobs
            parts.append(np.full(len(span), np.nan, np.float32) if known is None else known)
        return np.concatenate(parts)

    @property
    def prompt_length(self) -> int:
        """Tokens before the first one sampled in this segment; everything after is the *response*. Where it is not trained,
        there is none: all of it is context."""
        length = 0
        for span in self.spans:
            if span.sampled and not self.untrained:
                return length
            length += len(span)
        return length

    def __len__(self) -> int:
        return sum(len(span) for span in self.spans)


# ------------------------------------------------------------------------------------------------ credit


@dataclass(frozen=True, eq=False, repr=False)
class CreditTable(Shown):
    """Exactly what one update used, one row per token of the batch [T]; a later view shows it, a replay recomputes it.

    Columns (numpy, all of length T; a column that was not computed is absent, never zero):
        trajectory, segment, turn int32 · position int32 (in its segment) · token_id int32 · source int8 · eligible bool
        advantage, weight, return float64 (credit is computed in float64; what the critic is fitted to)
        rollout_logp, old_logp, new_logp, entropy, ratio float32 (NaN where not eligible)
        clip_state int8 (0 free, -1 clipped low, +1 clipped high) · ref_logp float32
        value, new_value float32: the critic's, before the token, when credit was computed and in this update
        final_value float32: the critic's, after the token, at the last one of a truncated trajectory, else NaN
    """

    step: int
    update: int
    columns: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        expect(self.columns, Mapping, "what a credit table holds", "its columns by name")
        what = "the columns of a credit table"
        columns = as_parts(_held(self.columns), np.ndarray, what)
        lengths = dict(zip(self.columns, map(len, columns)))
        if len(set(lengths.values())) > 1:
            raise DataError(
                f"a credit table has one row per token, but its columns differ in length: {lengths}"
            )

    def __getitem__(self, name: str) -> np.ndarray:
        try:
            return self.columns[name]
        except Exception as error:  # no column of this name, or what is no name of anything
            raise DataError(
                f"the credit table has no column {shortened(name)} (not computed); it has {sorted(self.columns)}"
            ) from error


def _held(columns: Mapping[str, np.ndarray]) -> Iterator[np.ndarray]:
    for name in columns:
        yield columns[name]
