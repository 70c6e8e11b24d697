"""Outcomes of an exact task as the very values that training sees: trajectories, groups, a batch.

A task's outcomes are made into trajectories once (`templates`); thousands of groups are then rows of that one batch,
repeated (`batch_of`). That this gives what `Batch.from_groups` gives of the same trajectories is tested.

Axis letters: O outcomes · N trajectories · T tokens (flat) · V token ids · D parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from workbench.extensions.bias.tasks import ExactTask, TaskOutcome
from workbench.learn.batch import Batch, concatenated_ranges
from workbench.values import (
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
from workbench.values.errors import DataError

# Token ids: the prompt's, a reply's, and the first of the policy's own.
PROMPT_ID = 0
REPLY_ID = 1
FIRST_ID = 2
FIRST = Observation((Message("user", "choose"),))
EXACT = Sampling(engine="table", dtype="float64")


@dataclass(frozen=True, eq=False)
class SoftmaxPolicy:
    """The softmax table of a task, by token id. All float64."""

    task: ExactTask

    @cached_property
    def logits_D(self) -> Tensor:
        logits = chain.from_iterable(node.logits for node in self.task.nodes)
        return torch.tensor([*logits], dtype=torch.float64)

    def id_of(self, node: str, choice: str) -> int:
        """Every choice of every node has a token id of its own."""
        first = FIRST_ID
        for other in self.task.nodes:
            if other.name == node:
                return first + other.choices.index(choice)
            first += len(other.choices)
        raise KeyError(node)

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
        ends = accumulate(len(node.logits) for node in self.task.nodes)
        for node, end in zip(self.task.nodes, ends):
            ids = [self.id_of(node.name, choice) for choice in node.choices]
            own = slice(end - len(node.logits), end)
            drawn = torch.eye(len(ids), dtype=torch.float64)[:, 1:]
            score_VD[ids, own] = drawn - logp_V[ids[1:]].exp()
        return score_VD

    def token_ids(self, outcome: TaskOutcome) -> list[int]:
        tokens = chain.from_iterable(step.tokens for step in outcome.steps)
        return [self.id_of(*token) for token in tokens]


def trajectory(
    policy: SoftmaxPolicy, outcome: TaskOutcome, attempt: int, task_number: int = 0
) -> Trajectory:
    """An outcome as a trajectory: a prompt, then each turn's sampled tokens and, between turns, a reply of one token."""
    logp_V = policy.logp_V(policy.logits_D).numpy()
    turns = []
    spans = [Span(Source.PROMPT, 0, [PROMPT_ID])]
    segments = []
    for k, step in enumerate(outcome.steps):
        ids = [policy.id_of(*token) for token in step.tokens]
        spans.append(
            Span(Source.POLICY, k, ids, logp_V[ids], policy_version=0, sampling=EXACT, sampled=True)
        )
        if policy.task.fresh:
            segments.append(Segment(tuple(spans)))
            spans = [Span(Source.PROMPT, k + 1, [PROMPT_ID, REPLY_ID])]
        elif k + 1 < len(outcome.steps):
            spans.append(Span(Source.ENV, k, [REPLY_ID]))
        text = " ".join(choice for _, choice in step.tokens)
        turns.append(Turn(k, text, reward=step.reward, state_key=step.state))
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
    probabilities = []
    trajectories = []
    for number, outcome in enumerate(task.outcomes):
        logp = logp_V[policy.token_ids(outcome)].sum()
        probabilities.append(outcome.chance * float(logp.exp()))
        trajectories.append(trajectory(policy, outcome, number))
    probability_O = np.array(probabilities)
    if abs(probability_O.sum() - 1) > 1e-12:
        raise DataError(
            f"{task.name}: the outcomes' probabilities sum to {probability_O.sum()}, so some are missing "
            "or stand there twice"
        )
    return Templates(policy, Batch.from_groups([Group(tuple(trajectories))]), probability_O)


def batch_of(source: Templates, outcome_N: Tensor, group_N: Tensor) -> Batch:
    """The batch of trajectories with these outcomes [N], in these groups [N] (numbered 0, 1, ... without a gap)."""
    batch = source.batch
    segments_O = torch.bincount(source.batch.trajectory_of_segment_S)
    segments = concatenated_ranges(_offsets(segments_O), outcome_N)
    chosen = {
        "T": concatenated_ranges(batch.segment_offsets, segments),
        "K": concatenated_ranges(batch.turn_offsets, outcome_N),
        "N": outcome_N,
    }
    moved = {}
    for field in fields(batch):
        value = getattr(batch, field.name)
        is_moved = field.name[-2:] in ("_T", "_K", "_N") and field.name != "names_N"
        if is_moved and value is not None:
            moved[field.name] = value[chosen[field.name[-1]]]
    turns_N = batch.turn_offsets.diff()[outcome_N]
    attempt_N = torch.arange(len(group_N)) - torch.searchsorted(group_N, group_N)
    moved["group_of_trajectory_N"] = group_N
    moved["state_of_turn_K"] = _states(moved["state_of_turn_K"], turns_N, group_N)
    trajectory_N = torch.arange(len(outcome_N))
    name = source.task.name
    return replace(
        batch,
        **moved,
        segment_offsets=_offsets(batch.segment_lengths_S[segments]),
        trajectory_of_segment_S=torch.repeat_interleave(trajectory_N, segments_O[outcome_N]),
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
    scores = []
    worths = []
    for outcome in source.task.outcomes:
        scores.append(source.policy.score_VD[source.policy.token_ids(outcome)].sum(0))
        worths.append(outcome.worth(gamma))
    worth_O = torch.tensor(worths, dtype=torch.float64)
    return (torch.from_numpy(source.probability_O) * worth_O) @ torch.stack(scores)


def state_values(source: Templates, told: bool = False) -> Tensor:
    """The values of a perfect critic before every token of the templates [T], float64: the expected sum of the rewards from
    this turn on, given all that was drawn and paid before (and, where it is `told`, what the environment had drawn before the
    first token); 0 where no token is drawn."""
    seen, totals, weights = _histories(source, told)
    return _at_drawn_tokens(source, [totals[history] / weights[history] for history in seen])


def _at_drawn_tokens(source: Templates, values: list[float]) -> Tensor:
    """One value for every token that is drawn, in the order of the batch [T]; 0 for the others."""
    value_T = torch.zeros(source.batch.num_tokens, dtype=torch.float64)
    value_T[source.batch.eligible_T] = torch.tensor(values, dtype=torch.float64)
    return value_T


def end_values(source: Templates) -> Tensor:
    """The values of a critic that was told how the trajectory will end [T]: what is still paid. It knows what the policy will
    draw."""
    left = []
    for outcome in source.task.outcomes:
        for k, step in enumerate(outcome.steps):
            paid = sum(later.reward for later in outcome.steps[k:])
            left += [paid] * len(step.tokens)
    return _at_drawn_tokens(source, left)


def _histories(source: Templates, told: bool = False) -> tuple[list, dict, dict]:
    """What stood before each sampled token, in the order of the batch, and for each such history the probability of
    meeting it and the probability-weighted sum of what was still paid."""
    seen = []
    totals = {}
    weights = {}
    for outcome, probability in zip(source.task.outcomes, source.probability_O.tolist()):
        rewards = [step.reward for step in outcome.steps]
        before = ()
        for k, step in enumerate(outcome.steps):
            for token in step.tokens:
                key = (before, tuple(rewards[:k]), outcome.drawn if told else 0)
                seen.append(key)
                totals[key] = totals.get(key, 0.0) + probability * sum(rewards[k:])
                weights[key] = weights.get(key, 0.0) + probability
                before += (token,)
    return seen, totals, weights


def wrong_values(source: Templates) -> Tensor:
    """The values of a bad critic [T]: half of the truth, and something that depends on the history besides."""
    histories, _, _ = _histories(source)
    errors = []
    for before, *_ in histories:
        letters = sum(len(choice) for _, choice in before)
        errors.append(0.3 - 0.2 * len(before) + 0.1 * letters)
    return 0.5 * state_values(source) + _at_drawn_tokens(source, errors)


def with_greedy(source: Templates) -> Templates:
    """The same templates with what greedy play earns on average over what the environment draws: credit is linear in it, so
    the expectation of the estimate is that of a greedy trajectory made anew each time."""
    policy = source.policy
    logp_V = policy.logp_V(policy.logits_D)
    best = set()
    for node in source.task.nodes:
        ids = [policy.id_of(node.name, choice) for choice in node.choices]
        best.add(max(ids, key=lambda id: float(logp_V[id])))
    greedy = [o for o in source.task.outcomes if best.issuperset(policy.token_ids(o))]
    mean = sum(o.chance * o.worth(1.0) for o in greedy) / sum(o.chance for o in greedy)
    greedy_N = torch.full((source.batch.num_trajectories,), mean, dtype=torch.float64)
    return replace(source, batch=replace(source.batch, greedy_N=greedy_N))


def with_critic(source: Templates, value_T: Tensor) -> Templates:
    """The same templates with a critic's values, kept in float64: no rounding is to be taken for bias."""
    final_N = torch.full((source.batch.num_trajectories,), torch.nan, dtype=torch.float64)
    return replace(source, batch=replace(source.batch, value_T=value_T, final_value_N=final_N))
