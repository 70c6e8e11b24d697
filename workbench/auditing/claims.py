"""What an engine said while it sampled: logprobs per token, whole distributions, and the ids that went in and out.

Axis letters: M sampled tokens that are looked at · F of them with a whole distribution · V vocabulary.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.auditing.forward import Sequences
from workbench.engines.base import Engine
from workbench.engines.recorder import Exchange, Journal
from workbench.types import Sampling, Trajectory
from workbench.types.errors import DataError

WHOLE_NUMBERS = 1 << 24  # logits that are kept of whole distributions: 64 MB


@dataclass(frozen=True, eq=False)
class Claims:
    """[M] unless said otherwise. NaN: not said.

    `plain_M`: logprobs of the model's own softmax; `said_M`: of the distribution sampled from, where that is another.
    `trajectory_M`, `segment_M`, `turn_M`: where a token stands. `version_M`: of the weights, -1 where not told.
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

    @property
    def bent_M(self) -> np.ndarray:
        return ~np.isnan(self.said_M)

    def __len__(self) -> int:
        return len(self.plain_M)


def claims_of(trajectories: Sequence[Trajectory], most: int = 2048) -> Claims:
    """Everything that was sampled, segment after segment, at most about `most` tokens. Raises DataError for nothing."""
    ids, sampled, turns, columns = [], [], [], {name: [] for name in (
        "row", "place", "plain", "said", "temperature", "top_p", "trajectory", "segment", "turn", "version")}
    used: set[tuple[str, str]] = set()
    for n, trajectory in enumerate(trajectories):
        for s, segment in enumerate(trajectory.segments):
            if len(columns["row"]) >= most:
                break
            ids.append(segment.token_ids.astype(np.int64))
            sampled.append(segment.eligible)
            turns.append(segment.turns)
            start = 0
            for span in segment.spans:
                if span.logprobs is not None:
                    sampling = span.sampling or Sampling()
                    used.add((sampling.engine, sampling.dtype))
                    unbent = not sampling.bends or sampling.temperature == 0
                    plain = span.plain_logprobs if span.plain_logprobs is not None else (
                        span.logprobs if unbent else np.full(len(span), np.nan))
                    said = np.full(len(span), np.nan) if unbent else span.logprobs
                    for name, values in (("plain", plain), ("said", said), ("place", start + np.arange(len(span)))):
                        columns[name].extend(values.tolist())
                    version = -1 if span.policy_version is None else span.policy_version
                    for name, value in (("row", len(ids) - 1), ("temperature", sampling.temperature),
                                        ("top_p", sampling.top_p), ("trajectory", n), ("segment", s),
                                        ("turn", span.turn), ("version", version)):
                        columns[name].extend([value] * len(span))
                start += len(span)
    if not columns["row"]:
        raise DataError("nothing was sampled in these trajectories, so engine and trainer have nothing to differ about")
    whole = {name: np.array(values, np.float64 if name in ("plain", "said", "temperature", "top_p") else np.int64)
             for name, values in columns.items()}
    return Claims(
        Sequences(tuple(ids), tuple(sampled), tuple(turns), whole["row"], whole["place"]),
        whole["plain"], whole["said"], whole["temperature"], whole["top_p"], whole["trajectory"], whole["segment"],
        whole["turn"], whole["version"], tuple(sorted({e for e, _ in used})), tuple(sorted({d for _, d in used if d})))


# ------------------------------------------------------------------------------------------------ whole distributions


class LogitsRecorder:
    """While open, an engine tells every distribution that it draws from; rows are kept as far as memory was set aside.

        with LogitsRecorder(engine) as ear: ...
        ear.rows      {(request id, place): logits [V]}
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = _inner(engine)
        self.can_hear = hasattr(self.engine, "listener")
        self.rows: dict[tuple[int, int], Tensor] = {}
        self.bent = False
        self._left = WHOLE_NUMBERS

    def __enter__(self) -> "LogitsRecorder":
        if self.can_hear:
            self.engine.listener = self._record
        return self

    def __exit__(self, *_: object) -> None:
        if self.can_hear:
            self.engine.listener = None

    def _record(self, request_ids: Sequence[int], places: Sequence[int], logits_RV: Tensor, bent: bool) -> None:
        self.bent = bent
        for request_id, place, row_V in zip(request_ids, places, logits_RV):
            if self._left < len(row_V):
                return
            self._left -= len(row_V)
            self.rows[request_id, place] = row_V.detach().to("cpu", torch.float32, copy=True)


def _inner(engine: Engine) -> Engine:
    return engine.engine if isinstance(engine, Journal) else engine


@dataclass(frozen=True, eq=False)
class RecordedLogits:
    """Logprobs over the whole vocabulary: row f is of looked-at token `index_F[f]`. `bent`: as they were drawn from."""

    index_F: np.ndarray
    logp_FV: Tensor
    bent: bool


def heard(ear: LogitsRecorder, claims: Claims, trajectories: Sequence[Trajectory],
          exchanges: Sequence[Exchange]) -> RecordedLogits | None:
    """The rows of an ear, put to the tokens that they are of; None where there are none."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    index, rows = [], []
    count_of_turn: dict[tuple[int, int, int], int] = {}
    for m, key in enumerate(zip(claims.trajectory_M.tolist(), claims.segment_M.tolist(), claims.turn_M.tolist())):
        place = count_of_turn.get(key, 0)
        count_of_turn[key] = place + 1
        exchange = by_turn.get(key)
        row = None if exchange is None else ear.rows.get((exchange.request.id, place))
        if row is not None:
            index.append(m)
            rows.append(row)
    return RecordedLogits(np.array(index), torch.stack(rows).log_softmax(-1), ear.bent) if rows else None


def exchanges_by_turn(trajectories: Sequence[Trajectory],
                      exchanges: Sequence[Exchange]) -> dict[tuple[int, int, int], Exchange]:
    """(trajectory, segment, turn) -> what the engine was asked and answered for it, by the session's name."""
    by_session: dict[str, list[Exchange]] = {}
    for exchange in exchanges:
        if exchange.completion is not None and exchange.completion.error is None:
            by_session.setdefault(exchange.request.session, []).append(exchange)
    found = {}
    for n, trajectory in enumerate(trajectories):
        for s, segment in enumerate(trajectory.segments):
            asked = by_session.get(f"{trajectory.task.id}#{trajectory.attempt}/{s}", [])
            turns = [span.turn for span in segment.spans if span.logprobs is not None]
            found |= {(n, s, turn): exchange for turn, exchange in zip(turns, asked)}
    return found


@dataclass(frozen=True, eq=False)
class OtherIds:
    """Tokens that are trained with other ids than the engine sampled, or after others than it saw: `words` names the
    first. `journal`: the engine's own sequences, one per turn."""

    journal: Sequences
    count: int
    words: str


def other_ids(claims: Claims, trajectories: Sequence[Trajectory], exchanges: Sequence[Exchange]) -> OtherIds | None:
    """Hold the trained ids against the journal's. None where they are the same, or no exchange is known."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    ids, row_M, place_M, differ, words = [], [], [], 0, ""
    row_of_turn: dict[tuple[int, int, int], int] = {}
    seen: dict[tuple[int, int, int], int] = {}
    sequences = claims.sequences
    for m, key in enumerate(zip(claims.trajectory_M.tolist(), claims.segment_M.tolist(), claims.turn_M.tolist())):
        if key not in by_turn:
            return None
        exchange, place = by_turn[key], seen.get(key, 0)
        seen[key] = place + 1
        prompt, answer = exchange.request.prompt_ids, exchange.completion.token_ids
        if key not in row_of_turn:
            row_of_turn[key] = len(ids)
            ids.append(np.concatenate([prompt, answer]).astype(np.int64))
        row, at = int(sequences.row_M[m]), int(sequences.place_M[m])
        own = sequences.ids[row][: at + 1]
        theirs = ids[row_of_turn[key]][: len(prompt) + min(place, len(answer) - 1) + 1]
        row_M.append(row_of_turn[key])
        place_M.append(len(theirs) - 1)
        if not np.array_equal(own, theirs):
            differ += 1
            words = words or _first_difference(trajectories[key[0]], key, own, theirs)
    if not differ:
        return None
    nothing = tuple(np.zeros(len(each), bool) for each in ids)
    return OtherIds(Sequences(tuple(ids), nothing, tuple(np.zeros(len(each), np.int64) for each in ids),
                              np.array(row_M), np.array(place_M)), differ, words)


def _first_difference(trajectory: Trajectory, key: tuple[int, int, int], own: np.ndarray, theirs: np.ndarray) -> str:
    short = min(len(own), len(theirs))
    at = int((own[:short] != theirs[:short]).argmax()) if (own[:short] != theirs[:short]).any() else short
    said = [str(each[at]) if at < len(each) else "nothing" for each in (own, theirs)]
    return (f"trajectory {trajectory.task.id}/{trajectory.attempt}, segment {key[1]}, turn {key[2]}, token {at}: trained "
            f"is id {said[0]}, the engine had {said[1]}")
