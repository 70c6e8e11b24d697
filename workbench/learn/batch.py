"""A step's trajectories as flat tensors: what credit is computed on and what the learner trains on.

Axis letters: N trajectories · K turns (flat: all turns of all trajectories end to end) · S segments · G groups ·
T tokens (flat: all segments end to end, nothing padded). Two segments of 4 and 3 tokens, one trajectory each:

    token_ids_T            a b c d | e f g
    segment_offsets        0         4       7
    trajectory_of_segment  0         1
    group_of_trajectory    0         0

Everything at index t describes token t (invariant 3). A number that does not exist is NaN in a float tensor, and a later
fact (old_logp_T ...) is None until `dataclasses.replace` makes a new batch that has it (invariants 5 and 6).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.tensors import Tensor, torch
from workbench.values import Group, Segment, StopReason, Trajectory, Turn, trajectories_of
from workbench.values.errors import DataError, shortened
from workbench.values.parts import whole
from workbench.values.view import Shown


@dataclass(frozen=True, eq=False, repr=False)
class Batch(Shown):
    """Frozen: no field is rebound and no tensor is changed in place."""

    # tokens [T]
    token_ids_T: Tensor  # int64
    source_T: Tensor  # int8, see types.Source
    turn_T: Tensor  # int32
    eligible_T: (
        Tensor  # bool: the policy sampled it in this very segment, which is trained (invariant 1)
    )
    response_T: Tensor  # bool: stands after the segment's first prompt
    rollout_logp_T: Tensor  # float32, of the distribution sampled from; NaN where not sampled here
    plain_logp_T: (
        Tensor  # float32, of the model's own softmax; NaN where not sampled here or not known
    )
    policy_version_T: Tensor  # int32, -1 where not sampled here or not known
    # segments [S] and trajectories [N]
    segment_offsets: Tensor  # int64 [S + 1]
    trajectory_of_segment_S: Tensor  # int64
    group_of_trajectory_N: Tensor  # int64
    reward_N: Tensor  # float64, undiscounted sum; NaN where unscored
    scored_N: Tensor  # bool
    outcome_N: Tensor  # float64; NaN where the environment gave none
    terminated_N: Tensor  # bool
    truncated_N: Tensor  # bool: a limit ended it, not the task; a critic may bootstrap here
    context_full_N: Tensor  # bool: ... and it was the context's, of which the policy is not told
    turn_offsets: Tensor  # int64 [N + 1], into turn_reward_K
    turn_reward_K: Tensor  # float64; NaN where a turn could not be scored
    # int64: turns of a group that stood in the same state have the same number; -1: not known
    state_of_turn_K: Tensor
    tag_N: Tensor  # int64: numbers the kinds of tasks (metadata "tag", else the environment)
    names_N: tuple[str, ...]  # "task id/attempt", for messages to people
    # later facts, float32; None: not computed; NaN for a token or trajectory that none was needed for
    old_logp_T: Tensor | None = None
    ref_logp_T: Tensor | None = None
    value_T: Tensor | None = None  # a critic's value of what stands before token t
    # ... and of what stands after the last token of a truncated trajectory
    final_value_N: Tensor | None = None
    # what a critic reads of the state of each turn; None: nobody asked
    privileged_K: tuple[str, ...] | None = None
    # float64: what the greedy trajectory of its task earned; NaN: unscored, or none made
    greedy_N: Tensor | None = None

    @classmethod
    def from_groups(cls, groups: Sequence[Group]) -> Batch:
        """Flatten groups in address order. Raises DataError for no groups, and for a sampled token that stands first
        in its segment (nothing precedes it, so no model can score it)."""
        if not groups:
            raise DataError(
                "a batch needs at least one group, got none: was every task of the step left out?"
            )
        trajectories = trajectories_of(groups)
        segments = list(chain.from_iterable(t.segments for t in trajectories))
        turns = list(chain.from_iterable(t.turns for t in trajectories))
        turn_rewards = [_nan(turn.reward) for turn in turns]
        batch = cls(
            **_token_columns(segments),
            **_trajectory_columns(trajectories),
            segment_offsets=_offsets(len(segment) for segment in segments),
            trajectory_of_segment_S=_owners([len(t.segments) for t in trajectories]),
            group_of_trajectory_N=torch.tensor(
                [g for g, group in enumerate(groups) for _ in group]
            ),
            turn_offsets=_offsets(len(t.turns) for t in trajectories),
            turn_reward_K=torch.tensor(turn_rewards, dtype=torch.float64),
            state_of_turn_K=_numbered(_state_keys(groups)),
            privileged_K=_privileged(turns),
            greedy_N=_greedy_rewards(groups),
        )
        _refuse_first_token_sampled(batch)
        return batch

    # Maps below are derived, so they can never disagree with the offsets.

    @cached_property
    def segment_of_token_T(self) -> Tensor:
        """int64 [T]"""
        return torch.repeat_interleave(torch.arange(self.num_segments), self.segment_lengths_S)

    @cached_property
    def trajectory_of_token_T(self) -> Tensor:
        """int64 [T]"""
        return self.trajectory_of_segment_S[self.segment_of_token_T]

    @cached_property
    def position_T(self) -> Tensor:
        """int64 [T]: the token's place in its own segment, from 0"""
        return torch.arange(self.num_tokens) - self.segment_offsets[:-1][self.segment_of_token_T]

    @cached_property
    def last_token_N(self) -> Tensor:
        """int64 [N]: the index into T of each trajectory's last token; -1 for one that failed before it had any"""
        nowhere_N = torch.full((self.num_trajectories,), -1)
        return nowhere_N.scatter_reduce(
            0, self.trajectory_of_token_T, torch.arange(self.num_tokens), "amax"
        )

    @property
    def segment_lengths_S(self) -> Tensor:
        return self.segment_offsets.diff()

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids_T)

    @property
    def num_segments(self) -> int:
        return len(self.trajectory_of_segment_S)

    @property
    def num_trajectories(self) -> int:
        return len(self.group_of_trajectory_N)

    @property
    def num_groups(self) -> int:
        return int(self.group_of_trajectory_N.max()) + 1

    def describe_token(self, index: int) -> str:
        """Where flat token `index` is, for an error message. Raises DataError for one that is not there."""
        if not 0 <= whole("index", index) < self.num_tokens:
            raise DataError(f"tokens are numbered 0..{self.num_tokens - 1}, got {index}")
        trajectory = int(self.trajectory_of_token_T[index])
        return (
            f"trajectory {self.names_N[trajectory]}, segment {int(self.segment_of_token_T[index])}, "
            f"turn {int(self.turn_T[index])}, position {int(self.position_T[index])}"
        )

    def select(self, trajectories: Sequence[int] | Tensor) -> Batch:
        """A new batch of these trajectories (indices into N), whole, in the given order; groups keep their identity
        but are numbered anew in order of appearance. Raises DataError for an index that repeats or is out of range."""
        chosen = _indices(trajectories)
        self._refuse_other_rows(chosen)
        segments = torch.cat([(self.trajectory_of_segment_S == n).nonzero()[:, 0] for n in chosen])
        tokens = concatenated_ranges(self.segment_offsets, segments)
        turns = concatenated_ranges(self.turn_offsets, chosen)
        new_index = torch.full((self.num_trajectories,), -1)
        new_index = new_index.scatter(0, chosen, torch.arange(len(chosen)))
        by_trajectory = self.columns_at("_N", chosen)
        groups = by_trajectory.pop("group_of_trajectory_N").tolist()
        privileged_K = None
        if self.privileged_K is not None:
            privileged_K = tuple(self.privileged_K[k] for k in turns.tolist())
        return replace(
            taken(self, tokens, _offsets(self.segment_lengths_S[segments].tolist())),
            **by_trajectory,
            trajectory_of_segment_S=new_index[self.trajectory_of_segment_S[segments]],
            group_of_trajectory_N=_numbered(groups),
            turn_offsets=_offsets(self.turn_offsets.diff()[chosen].tolist()),
            turn_reward_K=self.turn_reward_K[turns],
            state_of_turn_K=self.state_of_turn_K[turns],
            names_N=tuple(self.names_N[n] for n in chosen.tolist()),
            privileged_K=privileged_K,
        )

    def _refuse_other_rows(self, chosen: Tensor) -> None:
        if len(chosen) == 0 or len(chosen.unique()) != len(chosen):
            raise DataError(
                f"select wants each trajectory at most once and at least one, got {chosen.tolist()}"
            )
        if int(chosen.min()) < 0 or int(chosen.max()) >= self.num_trajectories:
            raise DataError(
                f"trajectories are numbered 0..{self.num_trajectories - 1}, got {chosen.tolist()}"
            )

    def columns_at(self, axis: str, chosen: Tensor) -> dict[str, Tensor]:
        """The tensors of an axis ("_N", "_T"), by name, at these indices; not those that were never computed."""
        columns = {}
        for own in fields(self):
            values = getattr(self, own.name)
            if own.name.endswith(axis) and own.name != "names_N" and values is not None:
                columns[own.name] = values[chosen]
        return columns

    def with_a_token_after(self, trajectories: Tensor) -> tuple[Batch, Tensor, Tensor]:
        """A new batch in which each of these trajectories [C] is one token longer: its last one once more. So there is
        an index for what stands after its end, and nothing that is asked about that index sees the added token itself.

        Returns the batch, where each old token went [T], and where the added ones are [C]. Raises DataError for a
        trajectory without a token.
        """
        chosen = _indices(trajectories)
        if bool(((chosen < 0) | (chosen >= self.num_trajectories)).any()):
            raise DataError(f"trajectories are numbered 0..{self.num_trajectories - 1}")
        ends = self.last_token_N[chosen]
        if bool((ends < 0).any()):
            raise DataError("a trajectory without tokens has no end to add a token to")
        added_S = torch.zeros(self.num_segments, dtype=torch.int64)
        added_S[self.segment_of_token_T[ends]] = 1
        offsets = self.segment_offsets.clone()
        offsets[1:] += added_S.cumsum(0)
        moved_S = (offsets - self.segment_offsets)[:-1]
        old_T = torch.arange(self.num_tokens) + moved_S[self.segment_of_token_T]
        added = old_T[ends] + 1
        source = torch.zeros(int(offsets[-1]), dtype=torch.int64)
        source[old_T] = torch.arange(self.num_tokens)
        source[added] = ends
        return taken(self, source, offsets), old_T, added


def _indices(trajectories: Any) -> Tensor:
    """The numbers of trajectories [C]. Raises DataError for what is no list of whole numbers."""
    try:
        chosen = torch.as_tensor(trajectories)
    except Exception as error:
        raise DataError(
            f"expected numbers of trajectories, got {shortened(trajectories)}"
        ) from error
    is_whole = not (chosen.is_floating_point() or chosen.is_complex()) or not chosen.numel()
    if chosen.ndim != 1 or not is_whole or chosen.is_meta:
        raise DataError(
            f"expected a list of numbers of trajectories, got {shortened(trajectories)}"
        )
    return chosen.to(torch.int64)


def taken(batch: Batch, source: Tensor, offsets: Tensor) -> Batch:
    """The same trajectories, of which token t is now what `source[t]` was; segments end where `offsets` [S + 1] says."""
    return replace(batch, **batch.columns_at("_T", source), segment_offsets=offsets)


def deal(lengths_R: Sequence[int], ranks: int) -> tuple[tuple[int, ...], ...]:
    """Deal rows to ranks so that each gets about the same number of tokens: longest first, to whoever has least.

    Deterministic, so that every rank works out the same deal without talking. A rank may get no row at all (there are
    fewer rows than ranks). Returns row numbers per rank, ascending.
    """
    hands: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for row in sorted(range(len(lengths_R)), key=lambda r: (-int(lengths_R[r]), r)):
        rank = min(range(ranks), key=lambda k: (load[k], k))
        hands[rank].append(row)
        load[rank] += int(lengths_R[row])
    return tuple(tuple(sorted(hand)) for hand in hands)


def concatenated_ranges(offsets: Tensor, chosen: Tensor) -> Tensor:
    """Flat indices of the chosen ragged rows, row after row: offsets [0, 4, 7], chosen [1, 0] -> 4 5 6 0 1 2 3."""
    lengths = offsets.diff()[chosen]
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    within = torch.arange(total) - torch.repeat_interleave(ends - lengths, lengths)
    return torch.repeat_interleave(offsets[chosen], lengths) + within


# ------------------------------------------------------------------------------------------------ building


def _nan(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def _offsets(lengths: Iterable[int]) -> Tensor:
    """int64, one more than there are lengths: where each begins, and where the last one ends."""
    lengths = np.fromiter(lengths, np.int64)
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _owners(counts: Sequence[int]) -> Tensor:
    """int64: of 2, 0 and 1 things the owners 0, 0, 2."""
    return torch.from_numpy(np.repeat(np.arange(len(counts)), counts))


def _numbered(keys: Iterable[Hashable | None]) -> Tensor:
    """Different keys numbered in the order in which they first come, int64; -1 for None."""
    known: dict[Hashable, int] = {}
    return torch.tensor(
        [-1 if key is None else known.setdefault(key, len(known)) for key in keys],
        dtype=torch.int64,
    )


def _trajectory_columns(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    reward_N = torch.tensor([_nan(t.reward) for t in trajectories], dtype=torch.float64)
    return dict(
        reward_N=reward_N,
        scored_N=reward_N.isfinite(),  # an environment that pays NaN has not scored anything
        outcome_N=torch.tensor([_nan(t.outcome) for t in trajectories], dtype=torch.float64),
        terminated_N=torch.tensor([t.terminated for t in trajectories]),
        truncated_N=torch.tensor([t.truncated for t in trajectories]),
        context_full_N=torch.tensor(
            [t.stop_reason is StopReason.CONTEXT_FULL for t in trajectories]
        ),
        tag_N=_numbered(t.task.metadata.get("tag", t.task.env) for t in trajectories),
        names_N=tuple(f"{t.task.id}/{t.attempt}" for t in trajectories),
    )


def _state_keys(groups: Sequence[Group]) -> Iterator[tuple[int, str] | None]:
    """The state that each turn began in, by its group; None where the environment did not say."""
    for number, group in enumerate(groups):
        for trajectory in group:
            for turn in trajectory.turns:
                yield None if turn.state_key is None else (number, turn.state_key)


def _privileged(turns: Sequence[Turn]) -> tuple[str, ...] | None:
    if all(turn.privileged is None for turn in turns):
        return None
    return tuple(turn.privileged or "" for turn in turns)


def _greedy_rewards(groups: Sequence[Group]) -> Tensor | None:
    """The reward of the greedy trajectory of each trajectory's group [N]; None where no group has one."""
    if not any(group.greedy for group in groups):
        return None
    rewards = [_nan(group.greedy.reward if group.greedy else None) for group in groups]
    return torch.tensor(rewards, dtype=torch.float64)[_owners([len(group) for group in groups])]


def _token_columns(segments: Sequence[Segment]) -> dict[str, Tensor]:
    def column(value, dtype) -> Tensor:
        parts = [np.asarray(value(segment), dtype) for segment in segments]
        return torch.from_numpy(np.concatenate(parts) if parts else np.zeros(0, dtype))

    return {
        "token_ids_T": column(lambda s: s.token_ids, np.int64),
        "source_T": column(lambda s: s.sources, np.int8),
        "turn_T": column(lambda s: s.turns, np.int32),
        "eligible_T": column(lambda s: s.eligible, bool),
        "response_T": column(lambda s: np.arange(len(s)) >= s.prompt_length, bool),
        "rollout_logp_T": column(lambda s: s.logprobs, np.float32),
        "plain_logp_T": column(_plain_logprobs, np.float32),
        "policy_version_T": column(_policy_versions, np.int32),
    }


def _plain_logprobs(segment: Segment) -> np.ndarray:
    """The sampled tokens' logprobs under the model's own softmax: as recorded, or the sampler's own where nothing
    bent them; NaN where temperature or top-p did and the engine could not say."""
    parts = [np.zeros(0, np.float32)]
    for span in segment.spans:
        known = span.plain_logprobs
        if known is None and (span.sampling is None or not span.sampling.bends):
            known = span.logprobs
        parts.append(np.full(len(span), np.nan, np.float32) if known is None else known)
    return np.concatenate(parts)


def _policy_versions(segment: Segment) -> np.ndarray:
    parts = [np.zeros(0, np.int32)]
    for span in segment.spans:
        known = span.sampled and span.policy_version is not None
        parts.append(np.full(len(span), span.policy_version if known else -1, np.int32))
    return np.concatenate(parts)


def _refuse_first_token_sampled(batch: Batch) -> None:
    starts = batch.segment_offsets[:-1][batch.segment_lengths_S > 0]
    sampled_first = starts[batch.eligible_T[starts]]
    if len(sampled_first):
        raise DataError(
            f"{batch.describe_token(int(sampled_first[0]))}: the first token of a segment is marked as sampled, but "
            "nothing stands before it that a model could have predicted it from; open every segment with a prompt"
        )
