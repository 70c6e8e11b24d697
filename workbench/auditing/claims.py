"""What an engine reported while it sampled: logprobs per token, whole distributions, the ids that went in and out.

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
from workbench.types import Sampling, Segment, Span, Trajectory
from workbench.types.errors import DataError

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
        for key in zip(self.trajectory_M.tolist(), self.segment_M.tolist(), self.turn_M.tolist()):
            keys.append((*key, seen.get(key, 0)))
            seen[key] = keys[-1][-1] + 1
        return keys


def claims_of(trajectories: Sequence[Trajectory], most: int = 2048) -> Claims:
    """Everything that was sampled, segment after segment, at most about `most` tokens. Raises DataError for nothing."""
    segments: list[Segment] = []
    found: list[dict[str, np.ndarray]] = []  # of each sampled span, every entry [its tokens]
    used: set[tuple[str, str]] = set()
    for n, trajectory in enumerate(trajectories):
        for s, segment in enumerate(trajectory.segments):
            if sum(len(span["place"]) for span in found) >= most:
                break
            start = 0
            for span in segment.spans:
                if span.logprobs is not None:
                    sampling = span.sampling or Sampling()
                    used.add((sampling.engine, sampling.dtype))
                    numbers = {
                        "row": len(segments),
                        "trajectory": n,
                        "segment": s,
                        "turn": span.turn,
                        "version": -1 if span.policy_version is None else span.policy_version,
                        "temperature": float(sampling.temperature),
                        "top_p": float(sampling.top_p),
                    }
                    found.append(
                        {name: np.full(len(span), number) for name, number in numbers.items()}
                        | _said(span, sampling)
                        | {"place": start + np.arange(len(span))}
                    )
                start += len(span)
            segments.append(segment)
    if not found:
        raise DataError(
            "nothing was sampled in these trajectories, so engine and trainer have nothing to differ about"
        )
    whole = {name: np.concatenate([span[name] for span in found]) for name in found[0]}
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


def _said(span: Span, sampling: Sampling) -> dict[str, np.ndarray]:
    """A span's logprobs by the distribution that they are of: `plain`, the model's own softmax, or `said`, what was
    sampled from where that is another."""
    unknown = np.full(len(span), np.nan)
    unbent = not sampling.bends or sampling.temperature == 0
    plain = (
        span.plain_logprobs
        if span.plain_logprobs is not None
        else span.logprobs
        if unbent
        else unknown
    )
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


def other_ids(
    claims: Claims, trajectories: Sequence[Trajectory], exchanges: Sequence[Exchange]
) -> OtherIds | None:
    """Hold the trained ids against the journal's. None where they are the same, or no exchange is known."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    ids: list[np.ndarray] = []
    row_of_turn: dict[tuple[int, int, int], int] = {}
    row_M, place_M, differ, words = [], [], 0, ""
    sequences = claims.sequences
    for row, at, (*key, place) in zip(
        sequences.row_M.tolist(), sequences.place_M.tolist(), claims.keys_M
    ):
        if (key := tuple(key)) not in by_turn:
            return None
        prompt, answer = by_turn[key].request.prompt_ids, by_turn[key].completion.token_ids
        if key not in row_of_turn:
            row_of_turn[key] = len(ids)
            ids.append(np.concatenate([prompt, answer]).astype(np.int64))
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
    return OtherIds(
        Sequences(
            tuple(ids),
            nothing,
            tuple(np.zeros(len(each), np.int64) for each in ids),
            np.array(row_M),
            np.array(place_M),
        ),
        differ,
        words,
    )


def _first_difference(
    trajectory: Trajectory, key: tuple[int, int, int], own: np.ndarray, theirs: np.ndarray
) -> str:
    short = min(len(own), len(theirs))
    at = (
        int((own[:short] != theirs[:short]).argmax())
        if (own[:short] != theirs[:short]).any()
        else short
    )
    said = [str(each[at]) if at < len(each) else "nothing" for each in (own, theirs)]
    return (
        f"trajectory {trajectory.task.id}/{trajectory.attempt}, segment {key[1]}, turn {key[2]}, token {at}: trained "
        f"is id {said[0]}, the engine had {said[1]}"
    )
