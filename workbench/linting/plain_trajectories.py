"""The trajectories of a step in the form that `workbench.plain` takes, and their tokens end to end.

    trajectory_tokens_of(groups, flat)  from trajectories, by their spans and turns
    trajectory_tokens_of_batch(batch)  from a batch alone, by what it stores

A batch holds the same facts, made by the code that trains. Rules that look for faults in that code cannot take its
word for them.

Axis letters: N trajectories · K turns (flat) · S segments (flat) · T tokens (flat).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.findings import Place
from workbench.linting.flat import POLICY, Flat
from workbench.plain.rewards import TrajectoryTokens, tokens_of_trajectory
from workbench.values import StopReason, Trajectory

if TYPE_CHECKING:
    from workbench.learn.batch import Batch


NO_TOKENS = (np.zeros(0),) * 4  # ids, turns, segments, sampled


@dataclass(frozen=True, eq=False)
class TrajectoryTable:
    """`facts_N`: each trajectory without its tokens. Segments lie in the order of their
    trajectories; `offset_S` [S + 1] says where each of them begins, and the last one ends. NaN in `reward_N` and its
    like: not scored, or none given. `step`: of the run, for places."""

    facts_N: tuple[TrajectoryTokens, ...]
    names_N: tuple[str, ...]
    terminated_N: np.ndarray
    row_S: np.ndarray
    offset_S: np.ndarray
    token_id_T: np.ndarray
    source_T: np.ndarray
    turn_T: np.ndarray
    sampled_T: np.ndarray  # by the policy, in this very segment, where that is trained
    rollout_logp_T: np.ndarray
    step: int | None = None
    index_N: np.ndarray | None = None  # their numbers in a larger batch

    # -------------------------------------------------------------------------------------------- tokens

    @property
    def num_tokens(self) -> int:
        return len(self.token_id_T)

    @cached_property
    def segment_T(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.row_S)), np.diff(self.offset_S))

    @cached_property
    def position_T(self) -> np.ndarray:
        """Within its segment."""
        return np.arange(self.num_tokens) - self.offset_S[self.segment_T]

    @cached_property
    def row_T(self) -> np.ndarray:
        """The trajectory of each token."""
        return self.row_S[self.segment_T]

    @cached_property
    def response_T(self) -> np.ndarray:
        """bool: from the first token that was sampled in its segment on."""
        sampled = np.flatnonzero(self.sampled_T)[::-1]
        first_S = self.offset_S[1:].copy()
        first_S[self.segment_T[sampled]] = sampled  # the first one is written last
        return np.arange(self.num_tokens) >= first_S[self.segment_T]

    def split(self, values_T: np.ndarray) -> list[np.ndarray]:
        """Values per token, trajectory by trajectory."""
        return np.split(values_T, self._ends_N[:-1])

    @cached_property
    def _ends_N(self) -> np.ndarray:
        return np.searchsorted(self.row_T, np.arange(self.num_trajectories), side="right")

    def with_facts(self, facts: Mapping[str, np.ndarray]) -> list[TrajectoryTokens]:
        """The trajectories with what models said of them: "old_logp", "ref_logp", "rollout_logp", "value" [T] and
        "final_value" [N]; what is not there stays as it is."""
        of_tokens = {name: values for name, values in facts.items() if name != "final_value"}
        parts = {name: self.split(values_T) for name, values_T in of_tokens.items()}
        final_N = facts.get("final_value", np.zeros(self.num_trajectories))
        trajectories = []
        for n, trajectory in enumerate(self.each):
            own = {name: part[n] for name, part in parts.items()}
            trajectories.append(replace(trajectory, final_value=float(final_N[n]), **own))
        return trajectories

    # -------------------------------------------------------------------------------------------- trajectories

    @cached_property
    def each(self) -> tuple[TrajectoryTokens, ...]:
        """As `workbench.plain` takes them, one per trajectory."""
        parts = zip(
            *(
                self.split(values_T)
                for values_T in (
                    self.token_id_T,
                    self.turn_T,
                    self.segment_T,
                    self.sampled_T,
                    self.rollout_logp_T,
                )
            )
        )
        first_N = np.searchsorted(self.row_S, np.arange(self.num_trajectories))
        return tuple(
            replace(
                facts,
                ids=ids,
                turn=turn,
                segment=segment - first,
                sampled=sampled,
                rollout_logp=logp.astype(np.float64),
            )
            for facts, first, (ids, turn, segment, sampled, logp) in zip(
                self.facts_N, first_N, parts
            )
        )

    @property
    def num_trajectories(self) -> int:
        return len(self.names_N)

    @property
    def num_groups(self) -> int:
        return int(self.group_of_trajectory_N.max(initial=-1)) + 1

    def _of_each(self, name: str, kind: type) -> np.ndarray:
        return np.array([getattr(trajectory, name) for trajectory in self.each], kind)

    @cached_property
    def group_of_trajectory_N(self) -> np.ndarray:
        return self._of_each("group", np.int64)

    @cached_property
    def tag_N(self) -> np.ndarray:
        """The kinds of tasks, by number."""
        return numbered([trajectory.tag for trajectory in self.each])

    @cached_property
    def reward_N(self) -> np.ndarray:
        return np.array([number(trajectory.reward) for trajectory in self.each])

    @cached_property
    def outcome_N(self) -> np.ndarray:
        return np.array([number(trajectory.outcome) for trajectory in self.each])

    @cached_property
    def scored_N(self) -> np.ndarray:
        return np.isfinite(self.reward_N)

    @cached_property
    def acted_N(self) -> np.ndarray:
        """bool: at least one token was sampled."""
        return np.bincount(self.row_T[self.sampled_T], minlength=self.num_trajectories) > 0

    @cached_property
    def truncated_N(self) -> np.ndarray:
        return self._of_each("truncated", bool)

    @cached_property
    def context_full_N(self) -> np.ndarray:
        return self._of_each("context_full", bool)

    @cached_property
    def turn_offsets(self) -> np.ndarray:
        """int64 [N + 1]"""
        return np.cumsum([0, *(len(trajectory.rewards) for trajectory in self.each)])

    @cached_property
    def turn_reward_K(self) -> np.ndarray:
        rewards = chain.from_iterable(trajectory.rewards for trajectory in self.each)
        return np.array(list(map(number, rewards)), np.float64)

    @cached_property
    def state_of_turn_K(self) -> np.ndarray:
        """The states of a group's turns, by number; -1: not named."""
        keys: list[tuple[int, Hashable] | None] = []
        for trajectory in self.each:
            keys += [
                None if state is None else (trajectory.group, state) for state in trajectory.states
            ]
        return numbered(keys)

    # -------------------------------------------------------------------------------------------- places

    def place(self, token: int, length: int = 1) -> Place:
        """Where flat token `token` is."""
        row = int(self.row_T[token])
        segment = int(self.segment_T[token]) - int(np.searchsorted(self.row_S, row))
        return replace(
            self.place_of_row(row, int(self.turn_T[token])),
            segment=segment,
            position=int(self.position_T[token]),
            length=length,
        )

    def place_of_row(self, row: int, turn: int | None = None) -> Place:
        index = row if self.index_N is None else self.index_N[row]
        return Place(self.names_N[row], int(index), turn=turn, step=self.step)

    def place_of_turn(self, k: int) -> Place:
        """Where turn `k` of all is."""
        row = int(np.searchsorted(self.turn_offsets, k, side="right")) - 1
        return self.place_of_row(row, int(k - self.turn_offsets[row]))


def trajectory_tokens_of(
    groups: Sequence[Sequence[Trajectory]], flat: Flat, greedy: Sequence[Trajectory | None] = ()
) -> TrajectoryTable:
    """In the order in which they stand: group by group, trajectory by trajectory. `greedy`: what each group is compared with."""
    terminated = [t.stop_reason is StopReason.TERMINATED for t in chain.from_iterable(groups)]
    facts: list[TrajectoryTokens] = []
    for group, members in enumerate(groups):
        aside = greedy[group] if greedy else None
        baseline = None if aside is None else _facts_of(aside, group).reward
        facts += [replace(_facts_of(t, group), greedy=baseline) for t in members]
    return TrajectoryTable(
        tuple(facts),
        flat.names_N,
        np.array(terminated, bool),
        flat.trajectory_S,
        flat.offset_S,
        flat.ids_T,
        flat.source_T,
        flat.turn_T,
        flat.trained_T & (flat.source_T == POLICY),
        flat.logp_T,
        flat.step,
    )


def _facts_of(trajectory: Trajectory, group: int) -> TrajectoryTokens:
    """The facts that `workbench.plain` reads off a trajectory, without its tokens."""
    return tokens_of_trajectory(replace(trajectory, segments=()), group)


def trajectory_tokens_of_batch(
    batch: Batch, step: int | None = None, index_N: np.ndarray | None = None
) -> TrajectoryTable:
    """The trajectories of a batch alone, where its trajectories are not at hand."""
    return TrajectoryTable(
        tuple(_facts_of_row(batch, n) for n in range(batch.num_trajectories)),
        batch.names_N,
        batch.terminated_N.numpy(),
        batch.trajectory_of_segment_S.numpy(),
        batch.segment_offsets.numpy(),
        batch.token_ids_T.numpy(),
        batch.source_T.numpy(),
        batch.turn_T.numpy(),
        batch.eligible_T.numpy(),
        batch.rollout_logp_T.numpy(),
        step,
        index_N,
    )


def _facts_of_row(batch: Batch, n: int) -> TrajectoryTokens:
    turns = slice(int(batch.turn_offsets[n]), int(batch.turn_offsets[n + 1]))
    states = batch.state_of_turn_K[turns].tolist()
    return TrajectoryTokens(
        int(batch.group_of_trajectory_N[n]),
        *NO_TOKENS,
        rewards=list(map(_none_for_nan, batch.turn_reward_K[turns].tolist())),
        outcome=_none_for_nan(float(batch.outcome_N[n])),
        broken=not bool(batch.scored_N[n]),
        truncated=bool(batch.truncated_N[n]),
        context_full=bool(batch.context_full_N[n]),
        states=[None if state < 0 else state for state in states],
        tag=int(batch.tag_N[n]),
        greedy=None if batch.greedy_N is None else _none_for_nan(float(batch.greedy_N[n])),
    )


def numbered(keys: Sequence[Hashable]) -> np.ndarray:
    """Equal keys have equal numbers, in order of appearance; -1: None."""
    known: dict[Hashable, int] = {}
    return np.array(
        [-1 if key is None else known.setdefault(key, len(known)) for key in keys], np.int64
    )


def number(value: float | None) -> float:
    """None is NaN in an array."""
    return math.nan if value is None else float(value)


def _none_for_nan(value: float) -> float | None:
    """NaN in an array is None."""
    return None if math.isnan(value) else value
