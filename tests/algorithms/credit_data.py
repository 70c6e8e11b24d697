"""Batches for the properties of credit: what was earned and said is drawn from addresses, so that the same trajectories can
be had with other observations, with another history, or in other company."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from learning_data import FIRST, span

from workbench.learn.batch import Batch
from workbench.values import Group, Segment, Source, StopReason, Task, Trajectory, Turn


@dataclass(frozen=True)
class TrajectorySpec:
    """`turns`: (sampled tokens, reward, state or None) of each. `seed` decides its logprobs and values."""

    turns: tuple[tuple[int, float, str | None], ...]
    seed: int = 0
    scored: bool = True
    stop: StopReason = StopReason.TERMINATED
    outcome: float | None = None


EARNED_GREEDILY = (
    0.25  # by the greedy trajectory of the first task, twice that at the second, and so on
)
Groups = tuple[tuple[TrajectorySpec, ...], ...]


def draw(
    seed: int, *, tasks: int = 3, attempts: int = 4, most_turns: int = 3, states: int = 2
) -> Groups:
    """Random trajectories: ragged in turns and tokens, paid at every turn, some cut short."""
    rng, groups = np.random.default_rng(seed), []
    for task in range(tasks):
        group = []
        for attempt in range(attempts):
            count = int(rng.integers(1, most_turns + 1))
            turns = tuple(
                (int(rng.integers(1, 5)), round(rng.normal(), 3), f"s{rng.integers(states)}")
                for _ in range(count)
            )
            stop = (StopReason.TERMINATED, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS)[
                int(rng.integers(3))
            ]
            group.append(TrajectorySpec(turns, seed * 1000 + task * 100 + attempt, stop=stop))
        groups.append(tuple(group))
    return tuple(groups)


def trajectory(
    trajectory: TrajectorySpec, task: int, number: int, *, fresh: bool, observation: int
) -> Trajectory:
    """`fresh`: a new segment per turn. `observation`: how many tokens the environment says after a turn."""
    rng = np.random.default_rng(trajectory.seed)
    opening = span(Source.PROMPT, 0, [1, 2])
    segments, spans = [], [opening]
    for k, (tokens, _, _) in enumerate(trajectory.turns):
        if fresh and k:
            segments.append(Segment(tuple(spans)))
            spans = (
                [opening, span(Source.ENV, k - 1, list(range(observation)))]
                if observation
                else [opening]
            )
        spans.append(span(Source.POLICY, k, rng.integers(0, 60, tokens), rng, sampled=True))
        if not fresh:
            spans += [span(Source.ENV, k, list(range(observation))), span(Source.SCAFFOLD, k, [9])]
    if trajectory.turns:
        segments.append(Segment(tuple(spans)))
    turns = tuple(
        Turn(k, "", reward=reward, state_key=state)
        for k, (_, reward, state) in enumerate(trajectory.turns)
    )
    return Trajectory(
        Task(f"task-{task}", "test", task),
        number,
        number,
        FIRST,
        turns,
        tuple(segments),
        trajectory.stop,
        trajectory.outcome,
        scored=trajectory.scored,
    )


@lru_cache(maxsize=64)
def batch_of(
    groups: Groups, *, fresh: bool = False, observation: int = 2, elsewhere: float = float("nan")
) -> Batch:
    """With a critic's values and two policies' logprobs at sampled tokens (drawn by address, so the same in every
    history), and `elsewhere` at all others."""
    batch = Batch.from_groups(
        [
            Group(
                tuple(
                    trajectory(attempt, task, number, fresh=fresh, observation=observation)
                    for number, attempt in enumerate(group)
                ),
                trajectory(
                    TrajectorySpec(((1, EARNED_GREEDILY * (task + 1), "s0"),)),
                    task,
                    len(group),
                    fresh=fresh,
                    observation=observation,
                ),
            )
            for task, group in enumerate(groups)
        ]
    )
    facts = {
        name: torch.full((batch.num_tokens,), elsewhere)
        for name in ("value_T", "old_logp_T", "ref_logp_T")
    }
    final_N = torch.full((batch.num_trajectories,), torch.nan)
    for n, attempt in enumerate(trajectory for group in groups for trajectory in group):
        rng = np.random.default_rng(attempt.seed + 1)
        mine_T = batch.eligible_T & (batch.trajectory_of_token_T == n)
        final_N[n] = float(rng.normal())
        for fact_T in facts.values():
            fact_T[mine_T] = torch.from_numpy(rng.normal(size=int(mine_T.sum())).astype(np.float32))
    return replace(batch, **facts, final_value_N=torch.where(batch.truncated_N, final_N, torch.nan))


def credit_of(algorithm, batch: Batch) -> list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """(advantages, weights, critic targets) at the sampled tokens of each trajectory, in the order of time."""
    credit = algorithm.credit(batch)
    return_T = (
        torch.full_like(credit.advantage_T, torch.nan)
        if credit.return_T is None
        else credit.return_T
    )
    assert (
        not credit.advantage_T[~batch.eligible_T].any()
        and not credit.weight_T[~batch.eligible_T].any()
    )
    rows = [
        batch.eligible_T & (batch.trajectory_of_token_T == n) for n in range(batch.num_trajectories)
    ]
    return [(credit.advantage_T[row_T], credit.weight_T[row_T], return_T[row_T]) for row_T in rows]


def same(mine, theirs, atol: float = 0.0) -> bool:
    """Whether the credit of two lists of trajectories is the same, NaN where NaN is."""
    return len(mine) == len(theirs) and all(
        a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=atol, equal_nan=True)
        for one, other in zip(mine, theirs)
        for a, b in zip(one, other)
    )
