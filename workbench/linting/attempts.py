"""What attempts said and earned, laid end to end: read straight off spans and turns, in numpy.

`Batch` holds the same facts, made by the code that trains. Rules that are to find faults in that code cannot take its
word for them; this is their own reading, and shares nothing with it.

Axis letters: N trajectories · K turns (flat) · S segments (flat) · Q spans (flat) · T tokens (flat).
"""
from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workbench.types import Source, StopReason, Trajectory
from workbench.types.findings import Place

if TYPE_CHECKING:
    from workbench.learn.batch import Batch

FAULTS = (StopReason.ENV_ERROR, StopReason.ENV_TIMEOUT, StopReason.ENGINE_ERROR)


@dataclass(frozen=True, eq=False)
class Attempts:
    """`sampled_T`: by the policy, in this very segment. `response_T`: from the first such token of its segment on.

    NaN in `reward_N`, `outcome_N`, `turn_reward_K`: not scored, or none given. `state_K` numbers the states of a
    group's turns (-1: not named), `tag_N` the kinds of tasks.
    """

    token_id_T: np.ndarray
    source_T: np.ndarray
    turn_T: np.ndarray
    sampled_T: np.ndarray
    response_T: np.ndarray
    segment_T: np.ndarray
    position_T: np.ndarray
    row_T: np.ndarray
    row_S: np.ndarray
    group_N: np.ndarray
    tag_N: np.ndarray
    reward_N: np.ndarray
    outcome_N: np.ndarray
    terminated_N: np.ndarray
    truncated_N: np.ndarray
    context_full_N: np.ndarray
    names_N: tuple[str, ...]
    turn_offsets_N1: np.ndarray
    turn_reward_K: np.ndarray
    state_K: np.ndarray

    @cached_property
    def scored_N(self) -> np.ndarray:
        return np.isfinite(self.reward_N)

    @cached_property
    def acted_N(self) -> np.ndarray:
        """bool: at least one token was sampled."""
        return np.bincount(self.row_T[self.sampled_T], minlength=self.num_trajectories) > 0

    @property
    def num_tokens(self) -> int:
        return len(self.token_id_T)

    @property
    def num_trajectories(self) -> int:
        return len(self.group_N)

    @property
    def num_groups(self) -> int:
        return int(self.group_N.max(initial=-1)) + 1

    def place(self, token: int, step: int | None = None, length: int = 1) -> Place:
        """Where flat token `token` is."""
        row = int(self.row_T[token])
        first = int(np.searchsorted(self.row_S, row))
        return Place(self.names_N[row], row, int(self.segment_T[token]) - first, int(self.turn_T[token]),
                     int(self.position_T[token]), length, step)

    def place_of_row(self, row: int, step: int | None = None, turn: int | None = None) -> Place:
        return Place(self.names_N[row], int(row), turn=turn, step=step)


def attempts_of(groups: Sequence[Sequence[Trajectory]]) -> Attempts:
    """In the order in which they stand: group by group, attempt by attempt."""
    rows = [trajectory for group in groups for trajectory in group]
    ids, source_Q, turn_Q, sampled_Q, segment_Q, row_S = [], [], [], [], [], []
    for n, trajectory in enumerate(rows):
        for segment in trajectory.segments:
            for span in segment.spans:
                ids.append(span.token_ids)
                source_Q.append(int(span.source))
                turn_Q.append(span.turn)
                sampled_Q.append(span.source is Source.POLICY and span.logprobs is not None)
                segment_Q.append(len(row_S))
            row_S.append(n)
    states: dict[Hashable, int] = {}
    tags: dict[Hashable, int] = {}
    return Attempts(
        **_tokens(ids, source_Q, turn_Q, sampled_Q, segment_Q, row_S),
        group_N=np.array([g for g, group in enumerate(groups) for _ in group], np.int64),
        tag_N=np.array([tags.setdefault(t.task.metadata.get("tag", t.task.env), len(tags)) for t in rows], np.int64),
        reward_N=np.array([reward_of(t) for t in rows], np.float64),
        outcome_N=np.array([nan(t.outcome) for t in rows], np.float64),
        terminated_N=np.array([t.stop_reason is StopReason.TERMINATED for t in rows], bool),
        truncated_N=np.array([t.stop_reason is not StopReason.TERMINATED and t.stop_reason not in FAULTS for t in rows],
                             bool),
        context_full_N=np.array([t.stop_reason is StopReason.CONTEXT_FULL for t in rows], bool),
        names_N=tuple(f"{t.task.id}/{t.attempt}" for t in rows),
        turn_offsets_N1=np.concatenate([[0], np.cumsum([len(t.turns) for t in rows])]).astype(np.int64),
        turn_reward_K=np.array([nan(turn.reward) for t in rows for turn in t.turns], np.float64),
        state_K=np.array([-1 if turn.state_key is None else states.setdefault((g, turn.state_key), len(states))
                          for g, group in enumerate(groups) for t in group for turn in t.turns], np.int64),
    )


def attempts_of_batch(batch: Batch) -> Attempts:
    """Of a batch alone, where its trajectories are not at hand: from what it stores, not from what it derives."""
    lengths_S = np.diff(batch.segment_offsets.numpy())
    row_S = batch.trajectory_of_segment_S.numpy()
    segment_T = np.repeat(np.arange(len(lengths_S)), lengths_S)
    begin_S = np.concatenate([[0], np.cumsum(lengths_S)])[:-1]
    return Attempts(
        batch.token_ids_T.numpy(), batch.source_T.numpy(), batch.turn_T.numpy(), batch.eligible_T.numpy(),
        batch.response_T.numpy(), segment_T, np.arange(len(segment_T)) - begin_S[segment_T], row_S[segment_T], row_S,
        batch.group_of_trajectory_N.numpy(), batch.tag_N.numpy(), batch.reward_N.numpy(), batch.outcome_N.numpy(),
        batch.terminated_N.numpy(), batch.truncated_N.numpy(), batch.context_full_N.numpy(), batch.names_N,
        batch.turn_offsets.numpy(), batch.turn_reward_K.numpy(), batch.state_of_turn_K.numpy())


def _tokens(ids: list[np.ndarray], source_Q: list[int], turn_Q: list[int], sampled_Q: list[bool],
            segment_Q: list[int], row_S: list[int]) -> dict[str, np.ndarray]:
    length_Q = np.array([len(some) for some in ids], np.int64)
    of_T = np.repeat(np.arange(len(length_Q)), length_Q)
    row_of_S = np.array(row_S, np.int64)
    segment_T = np.array(segment_Q, np.int64)[of_T]
    length_S = np.bincount(segment_T, minlength=len(row_of_S))
    begin_S = np.cumsum(length_S) - length_S
    position_T = np.arange(len(of_T)) - begin_S[segment_T]
    sampled_T = np.array(sampled_Q, bool)[of_T]
    first_S = np.full(len(row_of_S), np.iinfo(np.int64).max)
    np.minimum.at(first_S, segment_T[sampled_T], position_T[sampled_T])
    return {
        "token_id_T": np.concatenate(ids) if ids else np.zeros(0, np.int32),
        "source_T": np.array(source_Q, np.int8)[of_T], "turn_T": np.array(turn_Q, np.int32)[of_T],
        "sampled_T": sampled_T, "response_T": position_T >= first_S[segment_T], "segment_T": segment_T,
        "position_T": position_T, "row_T": row_of_S[segment_T], "row_S": row_of_S,
    }


def reward_of(trajectory: Trajectory) -> float:
    """All that was earned; NaN where any of it could not be scored (None), or is no finite number."""
    if not trajectory.scored or trajectory.stop_reason in FAULTS:
        return math.nan
    total = 0.0
    for turn in trajectory.turns:
        if turn.reward is None:
            return math.nan
        total += turn.reward
    if trajectory.outcome is not None:
        total += trajectory.outcome
    return total if math.isfinite(total) else math.nan


def nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
