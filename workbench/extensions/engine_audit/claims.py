"""What an engine reported while it sampled: logprobs per token, whole distributions, the ids that went in and out.

Axis letters: M sampled tokens that are looked at · F of them with a whole distribution · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.engines.base import Engine
from workbench.engines.recorder import Exchange, Journal
from workbench.extensions.engine_audit.forward import Sequences
from workbench.values import Sampling, Segment, Span, Trajectory
from workbench.values.errors import DataError
from workbench.values.sequences import first_difference

WHOLE_NUMBERS = 1 << 24  # logits that are kept of whole distributions: 64 MB


@dataclass(frozen=True, eq=False)
class Claims:
    """[M] unless said otherwise. NaN: not said.

    `plain_M`: logprobs of the model's own softmax; `said_M`: of the distribution sampled from, where that is another.
    `trajectory_M`, `segment_M`, `turn_M`: where a token stands. `version_M`: of the weights, -1 where not known.
    """

    sequences: Sequences
    plain_M: np.ndarray
    said_M: np.ndarray
    temperature_M: np.ndarray
    top_p_M: np.ndarray
    trajectory_M: np.ndarray
    segment_M: np.ndarray
    turn_M: np.ndarray
    version_M: np.ndarray
    engines: tuple[str, ...]
    dtypes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.plain_M)

    @property
    def keys_M(self) -> list[tuple[int, int, int, int]]:
        """(trajectory, segment, turn, place among the turn's sampled tokens) of each."""
        seen: dict[tuple[int, int, int], int] = {}
        keys = []
        columns = (self.trajectory_M, self.segment_M, self.turn_M)
        for key in zip(*(column_M.tolist() for column_M in columns)):
            keys.append((*key, seen.get(key, 0)))
            seen[key] = keys[-1][-1] + 1
        return keys


def claims_of(trajectories: Sequence[Trajectory], most: int = 2048) -> Claims:
    """Everything that was sampled, segment after segment, at most about `most` tokens. Raises DataError for nothing."""
    segments: list[Segment] = []
    spans: list[dict[str, np.ndarray]] = []  # of each sampled span, every entry [its tokens]
    used: set[tuple[str, str]] = set()
    for n, trajectory in enumerate(trajectories):
        for s, segment in enumerate(trajectory.segments):
            if sum(len(columns["place"]) for columns in spans) >= most:
                break
            where = {"row": len(segments), "trajectory": n, "segment": s}
            spans += _sampled_columns(segment, where)
            settings = [span.sampling or Sampling() for span in segment.spans if _is_sampled(span)]
            used.update((sampling.engine, sampling.dtype) for sampling in settings)
            segments.append(segment)
    if not spans:
        raise DataError(
            "nothing was sampled in these trajectories, so engine and trainer have nothing to differ about"
        )
    whole: dict[str, np.ndarray] = {}
    for name in spans[0]:
        whole[name] = np.concatenate([columns[name] for columns in spans])
    sequences = Sequences(
        tuple(segment.token_ids.astype(np.int64) for segment in segments),
        tuple(segment.eligible for segment in segments),
        tuple(segment.turns for segment in segments),
        whole.pop("row"),
        whole.pop("place"),
    )
    return Claims(
        sequences,
        engines=tuple(sorted({engine for engine, _ in used})),
        dtypes=tuple(sorted({dtype for _, dtype in used if dtype})),
        **{f"{name}_M": values for name, values in whole.items()},
    )


def _is_sampled(span: Span) -> bool:
    return span.logprobs is not None


def _sampled_columns(segment: Segment, where: Mapping[str, int]) -> Iterator[dict[str, np.ndarray]]:
    """By sampled span, what is known of each of its tokens; `where`: what is the same for all of a segment."""
    start = 0
    for span in segment.spans:
        if _is_sampled(span):
            sampling = span.sampling or Sampling()
            numbers = {
                **where,
                "turn": span.turn,
                "version": -1 if span.policy_version is None else span.policy_version,
                "temperature": float(sampling.temperature),
                "top_p": float(sampling.top_p),
            }
            columns = {name: np.full(len(span), number) for name, number in numbers.items()}
            place = start + np.arange(len(span))
            yield columns | _logprobs_of(span, sampling) | {"place": place}
        start += len(span)


def _logprobs_of(span: Span, sampling: Sampling) -> dict[str, np.ndarray]:
    """A span's logprobs by the distribution that they are of: `plain`, the model's own softmax, or `said`, what was
    sampled from where that is another."""
    unknown = np.full(len(span), np.nan)
    unbent = not sampling.bends or sampling.temperature == 0
    plain = span.logprobs if unbent else unknown
    if span.plain_logprobs is not None:
        plain = span.plain_logprobs
    return {
        "plain": plain.astype(np.float64),
        "said": unknown if unbent else span.logprobs.astype(np.float64),
    }


# ------------------------------------------------------------------------------------------------ whole distributions


class LogitsRecorder:
    """While open, keeps every distribution that an engine draws from, as far as memory was set aside.

    with LogitsRecorder(engine) as recorder: ...
    recorder.rows      {(request id, place): logits [V]}
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine.engine if isinstance(engine, Journal) else engine
        self.can_record = hasattr(self.engine, "listener")
        self.rows: dict[tuple[int, int], Tensor] = {}
        self.bent = False
        self._left = WHOLE_NUMBERS

    def __enter__(self) -> LogitsRecorder:
        if self.can_record:
            self.engine.listener = self._record
        return self

    def __exit__(self, *_: object) -> None:
        if self.can_record:
            self.engine.listener = None

    def _record(
        self, request_ids: Sequence[int], places: Sequence[int], logits_RV: Tensor, bent: bool
    ) -> None:
        self.bent = bent
        for request_id, place, row_V in zip(request_ids, places, logits_RV):
            if self._left < len(row_V):
                return
            self._left -= len(row_V)
            self.rows[request_id, place] = row_V.detach().to("cpu", torch.float32, copy=True)


@dataclass(frozen=True, eq=False)
class RecordedLogits:
    """Logprobs over the whole vocabulary: row f is of looked-at token `index_F[f]`. `bent`: as they were drawn from."""

    index_F: np.ndarray
    logp_FV: Tensor
    bent: bool

    def settings(self, claims: Claims) -> tuple[np.ndarray | float, np.ndarray | float]:
        """The temperature and top-p that these rows are of."""
        return (
            (claims.temperature_M[self.index_F], claims.top_p_M[self.index_F])
            if self.bent
            else (1.0, 1.0)
        )


def recorded_logits(
    recorder: LogitsRecorder,
    claims: Claims,
    trajectories: Sequence[Trajectory],
    exchanges: Sequence[Exchange],
) -> RecordedLogits | None:
    """The rows of a recorder with the tokens that they are of; None where there are none."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    rows = {
        m: recorder.rows.get((by_turn[n, s, turn].request.id, place))
        for m, (n, s, turn, place) in enumerate(claims.keys_M)
        if (n, s, turn) in by_turn
    }
    rows = {m: row for m, row in rows.items() if row is not None}
    return (
        RecordedLogits(
            np.array(list(rows)), torch.stack(list(rows.values())).log_softmax(-1), recorder.bent
        )
        if rows
        else None
    )


def exchanges_by_turn(
    trajectories: Sequence[Trajectory], exchanges: Sequence[Exchange]
) -> dict[tuple[int, int, int], Exchange]:
    """(trajectory, segment, turn) -> what the engine was asked and answered for it, by the session's name."""
    by_session: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        if exchange.completion is not None and exchange.completion.error is None:
            by_session.setdefault(exchange.request.session, []).append(exchange)
    by_turn = {}
    for n, trajectory in enumerate(trajectories):
        for s, segment in enumerate(trajectory.segments):
            asked = by_session.get(f"{trajectory.task.id}#{trajectory.attempt}/{s}", [])
            turns = [span.turn for span in segment.spans if span.logprobs is not None]
            by_turn |= {(n, s, turn): exchange for turn, exchange in zip(turns, asked)}
    return by_turn


@dataclass(frozen=True, eq=False)
class OtherIds:
    """Tokens that are trained with other ids than the engine sampled, or after others than it saw: `words` names the
    first. `journal`: the engine's own sequences, one per turn."""

    journal: Sequences
    count: int
    words: str


def other_ids(
    claims: Claims, trajectories: Sequence[Trajectory], exchanges: Sequence[Exchange]
) -> OtherIds | None:
    """Hold the trained ids against the journal's. None where they are the same, or no exchange is known."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    ids: list[np.ndarray] = []
    row_of_turn: dict[tuple[int, int, int], int] = {}
    row_M: list[int] = []
    place_M: list[int] = []
    differ = 0
    words = ""
    trained = claims.sequences
    for row, at, (*turn, place) in zip(
        trained.row_M.tolist(), trained.place_M.tolist(), claims.keys_M
    ):
        key = tuple(turn)
        if key not in by_turn:
            return None
        prompt = by_turn[key].request.prompt_ids
        answer = by_turn[key].completion.token_ids
        if key not in row_of_turn:
            row_of_turn[key] = len(ids)
            ids.append(np.concatenate([prompt, answer]).astype(np.int64))
        own = trained.ids[row][: at + 1]
        theirs = ids[row_of_turn[key]][: len(prompt) + min(place, len(answer) - 1) + 1]
        row_M.append(row_of_turn[key])
        place_M.append(len(theirs) - 1)
        if not np.array_equal(own, theirs):
            differ += 1
            words = words or _first_difference(trajectories[key[0]], key, own, theirs)
    if not differ:
        return None
    sampled = tuple(np.zeros(len(turn_ids), bool) for turn_ids in ids)
    turns = tuple(np.zeros(len(turn_ids), np.int64) for turn_ids in ids)
    journal = Sequences(tuple(ids), sampled, turns, np.array(row_M), np.array(place_M))
    return OtherIds(journal, differ, words)


def _first_difference(
    trajectory: Trajectory, key: tuple[int, int, int], own: np.ndarray, theirs: np.ndarray
) -> str:
    at = first_difference(own, theirs)
    shown = [str(ids[at]) if at < len(ids) else "nothing" for ids in (own, theirs)]
    return (
        f"trajectory {trajectory.task.id}/{trajectory.attempt}, segment {key[1]}, turn {key[2]}, token {at}: trained "
        f"is id {shown[0]}, the engine had {shown[1]}"
    )
