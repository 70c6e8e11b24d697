"""Outcomes of an exact task as the very values that training sees: trajectories, groups, a batch.

A task's outcomes are made into trajectories once (`templates`); thousands of groups are then rows of that one batch,
repeated (`batch_of`). That this gives what `Batch.from_groups` gives of the same trajectories is tested.

Axis letters: O outcomes · N trajectories · T tokens (flat) · V token ids · D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from workbench.bias.tasks import ExactTask, TaskOutcome
from workbench.learn.batch import Batch, concatenated_ranges
from workbench.types import (
    Group,
    Message,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from workbench.types.errors import DataError

PROMPT_ID, REPLY_ID, FIRST_ID = (
    0,
    1,
    2,
)  # token ids: the prompt's, a reply's, and the first of the policy's own
FIRST = Observation((Message("user", "choose"),))
EXACT = Sampling(engine="table", dtype="float64")


@dataclass(frozen=True, eq=False)
class SoftmaxPolicy:
    """The softmax table of a task, by token id. All float64."""

    task: ExactTask

    @cached_property
    def logits_D(self) -> Tensor:
        return torch.tensor(
            [z for node in self.task.nodes for z in node.logits], dtype=torch.float64
        )

    def id_of(self, node: str, choice: str) -> int:
        """Every choice of every node has a token id of its own."""
        sizes = [len(each.choices) for each in self.task.nodes]
        place = [each.name for each in self.task.nodes].index(node)
        return FIRST_ID + sum(sizes[:place]) + self.task.node(node).choices.index(choice)

    def logp_V(self, logits_D: Tensor) -> Tensor:
        """The logprob of every token id where it is drawn; 0 for the ids that are never drawn. Differentiable."""
        counts = [len(node.logits) for node in self.task.nodes]
        parts = [
            torch.cat([free.new_zeros(1), free]).log_softmax(0) for free in logits_D.split(counts)
        ]
        return torch.cat([logits_D.new_zeros(FIRST_ID), *parts])

    @cached_property
    def score_VD(self) -> Tensor:
        """d logp(token) / d logits: one minus the probability for the logit of what was drawn, minus it for others."""
        logp_V = self.logp_V(self.logits_D)
        score_VD = torch.zeros(len(logp_V), len(self.logits_D), dtype=torch.float64)
        ends = list(accumulate(len(node.logits) for node in self.task.nodes))
        for node, end in zip(self.task.nodes, ends):
            ids = [self.id_of(node.name, choice) for choice in node.choices]
            own = slice(end - len(node.logits), end)
            score_VD[ids, own] = (
                torch.eye(len(ids), dtype=torch.float64)[:, 1:] - logp_V[ids[1:]].exp()
            )
        return score_VD

    def token_ids(self, outcome: TaskOutcome) -> list[int]:
        return [self.id_of(*token) for step in outcome.steps for token in step.tokens]


def trajectory(
    policy: SoftmaxPolicy, outcome: TaskOutcome, attempt: int, task_number: int = 0
) -> Trajectory:
    """An outcome as an attempt: a prompt, then each turn's sampled tokens and, between turns, a reply of one token."""
    logp_V = policy.logp_V(policy.logits_D).numpy()
    turns, spans, segments = [], [Span(Source.PROMPT, 0, [PROMPT_ID])], []
    for k, step in enumerate(outcome.steps):
        ids = [policy.id_of(*token) for token in step.tokens]
        spans.append(
            Span(Source.POLICY, k, ids, logp_V[ids], policy_version=0, sampling=EXACT, sampled=True)
        )
        last = k + 1 == len(outcome.steps)
        if policy.task.fresh:
            segments.append(Segment(tuple(spans)))
            spans = [Span(Source.PROMPT, k + 1, [PROMPT_ID, REPLY_ID])]
        elif not last:
            spans.append(Span(Source.ENV, k, [REPLY_ID]))
        turns.append(
            Turn(
                k,
                " ".join(choice for _, choice in step.tokens),
                reward=step.reward,
                state_key=step.state,
            )
        )
    if not policy.task.fresh:
        segments.append(Segment(tuple(spans)))
    name = policy.task.name
    return Trajectory(
        Task(f"{name}/{task_number}", name, task_number),
        attempt,
        attempt,
        FIRST,
        tuple(turns),
        tuple(segments),
        StopReason.TERMINATED,
    )


@dataclass(frozen=True, eq=False)
class Templates:
    """A task's outcomes as one batch, one trajectory per outcome, in their order."""

    policy: SoftmaxPolicy
    batch: Batch
    probability_O: np.ndarray  # float64, sums to 1

    @property
    def task(self) -> ExactTask:
        return self.policy.task


def templates(task: ExactTask) -> Templates:
    """All outcomes of a task, each once, in one group. Raises DataError if their probabilities do not sum to 1."""
    policy = SoftmaxPolicy(task)
    logp_V = policy.logp_V(policy.logits_D)
    probability_O = np.array(
        [o.chance * float(logp_V[policy.token_ids(o)].sum().exp()) for o in task.outcomes]
    )
    if abs(probability_O.sum() - 1) > 1e-12:
        raise DataError(
            f"{task.name}: the outcomes' probabilities sum to {probability_O.sum()}, so some are missing "
            "or stand there twice"
        )
    group = Group(
        tuple(trajectory(policy, outcome, attempt) for attempt, outcome in enumerate(task.outcomes))
    )
    return Templates(policy, Batch.from_groups([group]), probability_O)


def batch_of(source: Templates, outcome_N: Tensor, group_N: Tensor) -> Batch:
    """The batch of attempts with these outcomes [N], in these groups [N] (numbered 0, 1, ... without a gap)."""
    batch, lengths_O = source.batch, torch.bincount(source.batch.trajectory_of_segment_S)
    segments = concatenated_ranges(
        torch.cat([lengths_O.new_zeros(1), lengths_O.cumsum(0)]), outcome_N
    )
    chosen = {
        "T": concatenated_ranges(batch.segment_offsets, segments),
        "K": concatenated_ranges(batch.turn_offsets, outcome_N),
        "N": outcome_N,
    }
    moved = {
        f.name: value[chosen[f.name[-1]]]
        for f in fields(batch)
        if f.name[-2:] in ("_T", "_K", "_N")
        and f.name != "names_N"
        and (value := getattr(batch, f.name)) is not None
    }
    turns_N = batch.turn_offsets.diff()[outcome_N]
    attempt_N = torch.arange(len(group_N)) - torch.searchsorted(group_N, group_N)
    name = source.task.name
    return replace(
        batch,
        **moved
        | {
            "group_of_trajectory_N": group_N,
            "state_of_turn_K": _states(moved["state_of_turn_K"], turns_N, group_N),
        },
        segment_offsets=_offsets(batch.segment_lengths_S[segments]),
        trajectory_of_segment_S=torch.repeat_interleave(
            torch.arange(len(outcome_N)), lengths_O[outcome_N]
        ),
        turn_offsets=_offsets(turns_N),
        names_N=tuple(f"{name}/{g}/{a}" for g, a in zip(group_N.tolist(), attempt_N.tolist())),
    )


def _states(state_K: Tensor, turns_N: Tensor, group_N: Tensor) -> Tensor:
    """States are compared inside a group only: numbered anew, in the order in which (group, state) first comes."""
    key_K = (torch.repeat_interleave(group_N, turns_N) * (int(state_K.max()) + 1) + state_K).numpy()
    _, first, inverse_K = np.unique(key_K, return_index=True, return_inverse=True)
    return torch.from_numpy(first.argsort().argsort()[inverse_K])


def _offsets(lengths: Tensor) -> Tensor:
    return torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])


# ------------------------------------------------------------------------------------------------ what is known exactly


def true_gradient(source: Templates, gamma: float) -> Tensor:
    """dJ / dlogits [D] by enumeration: sum over outcomes of probability, worth and the scores of its tokens."""
    score_OD = torch.stack(
        [source.policy.score_VD[source.policy.token_ids(o)].sum(0) for o in source.task.outcomes]
    )
    worth_O = torch.tensor([o.worth(gamma) for o in source.task.outcomes], dtype=torch.float64)
    return (torch.from_numpy(source.probability_O) * worth_O) @ score_OD


def state_values(source: Templates, told: bool = False) -> Tensor:
    """What a perfect critic says before every token of the templates [T], float64: the expected sum of the rewards from
    this turn on, given all that was drawn and paid before (and, where it is `told`, what the environment had drawn before the
    first token); 0 where no token is drawn."""
    seen, totals, weights = _histories(source, told)
    mean = {key: totals[key] / weights[key] for key in totals}
    value_T = torch.zeros(source.batch.num_tokens, dtype=torch.float64)
    value_T[source.batch.eligible_T] = torch.tensor(
        [mean[key] for key in seen], dtype=torch.float64
    )
    return value_T


def end_values(source: Templates) -> Tensor:
    """What a critic says that was told how the attempt will end [T]: what is still paid. It knows what the policy will draw."""
    left = [
        sum(step.reward for step in o.steps[k:])
        for o in source.task.outcomes
        for k, step in enumerate(o.steps)
        for _ in step.tokens
    ]
    value_T = torch.zeros(source.batch.num_tokens, dtype=torch.float64)
    value_T[source.batch.eligible_T] = torch.tensor(left, dtype=torch.float64)
    return value_T


def _histories(source: Templates, told: bool = False) -> tuple[list, dict, dict]:
    """What stood before each sampled token, in the order of the batch, and for each such history the probability of
    meeting it and the probability-weighted sum of what was still paid."""
    seen, totals, weights = [], {}, {}
    for outcome, probability in zip(source.task.outcomes, source.probability_O.tolist()):
        rewards, before = [step.reward for step in outcome.steps], ()
        for k, step in enumerate(outcome.steps):
            for token in step.tokens:
                key = (before, tuple(rewards[:k]), outcome.drawn if told else 0)
                seen.append(key)
                totals[key] = totals.get(key, 0.0) + probability * sum(rewards[k:])
                weights[key] = weights.get(key, 0.0) + probability
                before += (token,)
    return seen, totals, weights


def wrong_values(source: Templates) -> Tensor:
    """What a bad critic says [T]: half of the truth, and something that depends on the history besides."""
    seen, _, _ = _histories(source)
    value_T = 0.5 * state_values(source)
    turned = [
        0.3 - 0.2 * len(before) + 0.1 * sum(len(choice) for _, choice in before)
        for before, *_ in seen
    ]
    value_T[source.batch.eligible_T] += torch.tensor(turned, dtype=torch.float64)
    return value_T


def with_greedy(source: Templates) -> Templates:
    """The same templates with what greedy play earns on average over what the environment draws: credit is linear in it, so
    the expectation of the estimate is that of a greedy attempt made anew each time."""
    logp_V = source.policy.logp_V(source.policy.logits_D)
    best = {
        max(
            (source.policy.id_of(node.name, choice) for choice in node.choices),
            key=lambda id: float(logp_V[id]),
        )
        for node in source.task.nodes
    }
    greedy = [o for o in source.task.outcomes if best.issuperset(source.policy.token_ids(o))]
    mean = sum(o.chance * o.worth(1.0) for o in greedy) / sum(o.chance for o in greedy)
    greedy_N = torch.full((source.batch.num_trajectories,), mean, dtype=torch.float64)
    return replace(source, batch=replace(source.batch, greedy_N=greedy_N))


def with_critic(source: Templates, value_T: Tensor) -> Templates:
    """The same templates with a critic's values, kept in float64: no rounding is to be taken for bias."""
    final_N = torch.full((source.batch.num_trajectories,), torch.nan, dtype=torch.float64)
    return replace(source, batch=replace(source.batch, value_T=value_T, final_value_N=final_N))
