"""The attempts of a step in the form that `workbench.plain` takes, and their tokens end to end.

    attempts_of(groups, flat)      from trajectories, by their spans and turns
    attempts_of_batch(batch)       from a batch alone, by what it stores

A batch holds the same facts, made by the code that trains. Rules that look for faults in that code cannot take its
word for them.

Axis letters: N trajectories · K turns (flat) · S segments (flat) · T tokens (flat).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.linting.flat import POLICY, Flat
from workbench.plain.rewards import AttemptTokens, attempt_of
from workbench.types import StopReason, Trajectory
from workbench.types.findings import Place

if TYPE_CHECKING:
    from workbench.learn.batch import Batch


@dataclass(frozen=True, eq=False)
class Attempts:
    """`facts_N`: of each trajectory, what `AttemptTokens` holds beside its tokens. Segments lie in the order of their
    trajectories; `offset_S` [S + 1] says where each of them begins, and the last one ends. NaN in `reward_N` and its
    like: not scored, or none given. `step`: of the run, for places."""

    facts_N: tuple[Mapping[str, Any], ...]
    names_N: tuple[str, ...]
    terminated_N: np.ndarray
    row_S: np.ndarray
    offset_S: np.ndarray
    token_id_T: np.ndarray
    source_T: np.ndarray
    turn_T: np.ndarray
    sampled_T: np.ndarray  # by the policy, in this very segment
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
        """Values per token, attempt by attempt."""
        return np.split(values_T, self._ends_N[:-1])

    @cached_property
    def _ends_N(self) -> np.ndarray:
        return np.searchsorted(self.row_T, np.arange(self.num_trajectories), side="right")

    def with_facts(self, facts: Mapping[str, np.ndarray]) -> list[AttemptTokens]:
        """The attempts with what models said of them: "old_logp", "ref_logp", "rollout_logp", "value" [T] and
        "final_value" [N]; what is not there stays as it is."""
        parts = {
            name: self.split(values) for name, values in facts.items() if name != "final_value"
        }
        final_N = facts.get("final_value", np.zeros(self.num_trajectories))
        return [
            replace(
                attempt,
                final_value=float(final_N[n]),
                **{name: part[n] for name, part in parts.items()},
            )
            for n, attempt in enumerate(self.each)
        ]

    # -------------------------------------------------------------------------------------------- attempts

    @cached_property
    def each(self) -> tuple[AttemptTokens, ...]:
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
            AttemptTokens(
                ids=ids,
                turn=turn,
                segment=segment - first,
                sampled=sampled,
                rollout_logp=logp.astype(np.float64),
                **facts,
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
        return int(self.group_N.max(initial=-1)) + 1

    def _of_each(self, name: str, kind: type) -> np.ndarray:
        return np.array([getattr(attempt, name) for attempt in self.each], kind)

    @cached_property
    def group_N(self) -> np.ndarray:
        return self._of_each("group", np.int64)

    @cached_property
    def tag_N(self) -> np.ndarray:
        """The kinds of tasks, by number."""
        return numbered([attempt.tag for attempt in self.each])

    @cached_property
    def reward_N(self) -> np.ndarray:
        return np.array([number(attempt.reward) for attempt in self.each])

    @cached_property
    def outcome_N(self) -> np.ndarray:
        return np.array([number(attempt.outcome) for attempt in self.each])

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
        return np.cumsum([0, *(len(attempt.rewards) for attempt in self.each)])

    @cached_property
    def turn_reward_K(self) -> np.ndarray:
        return np.array(
            [number(reward) for attempt in self.each for reward in attempt.rewards], np.float64
        )

    @cached_property
    def state_K(self) -> np.ndarray:
        """The states of a group's turns, by number; -1: not named."""
        return numbered(
            [
                None if state is None else (attempt.group, state)
                for attempt in self.each
                for state in attempt.states
            ]
        )

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


def attempts_of(
    groups: Sequence[Sequence[Trajectory]], flat: Flat, greedy: Sequence[Trajectory | None] = ()
) -> Attempts:
    """In the order in which they stand: group by group, attempt by attempt. `greedy`: what each group is compared with."""
    rows = [(number, trajectory) for number, group in enumerate(groups) for trajectory in group]
    terminated_N = np.array([t.stop_reason is StopReason.TERMINATED for _, t in rows], bool)
    facts = [
        {
            "group": group,
            "rewards": [turn.reward for turn in t.turns],
            "outcome": t.outcome,
            "states": [turn.state_key for turn in t.turns],
            "tag": t.task.metadata.get("tag", t.task.env),
            "broken": t.stop_reason.is_fault or not t.scored,
            "truncated": t.stop_reason is not StopReason.TERMINATED and not t.stop_reason.is_fault,
            "context_full": t.stop_reason is StopReason.CONTEXT_FULL,
            **(
                {"greedy": attempt_of(greedy[group], 0).reward}
                if greedy and greedy[group] is not None
                else {}
            ),
        }
        for group, t in rows
    ]
    return Attempts(
        tuple(facts),
        flat.names_N,
        terminated_N,
        flat.trajectory_S,
        flat.offset_S,
        flat.ids_T,
        flat.source_T,
        flat.turn_T,
        flat.sampled_T & (flat.source_T == POLICY),
        flat.logp_T,
        flat.step,
    )


def attempts_of_batch(
    batch: Batch, step: int | None = None, index_N: np.ndarray | None = None
) -> Attempts:
    """Of a batch alone, where its trajectories are not at hand."""
    flags = [
        getattr(batch, name).tolist()
        for name in (
            "group_of_trajectory_N",
            "tag_N",
            "truncated_N",
            "context_full_N",
            "outcome_N",
            "scored_N",
        )
    ]
    offsets = batch.turn_offsets.tolist()
    rewards, states = batch.turn_reward_K.tolist(), batch.state_of_turn_K.tolist()
    greedy = [None] * batch.num_trajectories if batch.greedy_N is None else batch.greedy_N.tolist()
    facts = []
    for n, ((group, tag, truncated, full, outcome, scored), first, after) in enumerate(
        zip(zip(*flags), offsets, offsets[1:])
    ):
        facts.append(
            {
                "group": group,
                "tag": tag,
                "truncated": truncated,
                "context_full": full,
                "broken": not scored,
                "outcome": None if math.isnan(outcome) else outcome,
                "greedy": None if greedy[n] is None or math.isnan(greedy[n]) else greedy[n],
                "rewards": [
                    None if math.isnan(reward) else reward for reward in rewards[first:after]
                ],
                "states": [None if state < 0 else state for state in states[first:after]],
            }
        )
    return Attempts(
        tuple(facts),
        batch.names_N,
        *(
            getattr(batch, name).numpy()
            for name in (
                "terminated_N",
                "trajectory_of_segment_S",
                "segment_offsets",
                "token_ids_T",
                "source_T",
                "turn_T",
                "eligible_T",
                "rollout_logp_T",
            )
        ),
        step,
        index_N,
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
