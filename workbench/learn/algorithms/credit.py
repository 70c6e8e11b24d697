"""From a batch to what an estimator sees of it, and from its advantages to credit, one step a function.

    timeline       which tokens get credit, in the order of time
    payments       what was paid at each token sampled, on the scale that the rewards are put on
    land           payments that belong to other tokens fall to the nearest one on the timeline
    critic_values  what a critic expects before each token, and after the end of trajectories that were cut short
    critic_targets what a critic is fitted to

Axis letters: N trajectories · T tokens of the whole batch (flat) · A timeline tokens · E tokens sampled · P tokens that
pay · C tokens that the critic is fitted at ·
K turns (flat).
"""

from __future__ import annotations

import math

from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.base import CreditAlgorithm, CreditInputs
from workbench.learn.batch import Batch
from workbench.learn.ops.group import group_statistics
from workbench.learn.ops.normalize import Change


def credit_inputs(algorithm: CreditAlgorithm, batch: Batch, kept_N: Tensor) -> CreditInputs:
    """What the estimator of this algorithm sees of the trajectories that count (bool [N])."""
    row_T = batch.trajectory_of_token_T
    group_N = batch.group_of_trajectory_N
    kept_T = kept_N[row_T]
    at_A = timeline(algorithm, batch, kept_T)
    reward_N = batch.reward_N
    greedy_N = batch.greedy_N
    change = None
    if algorithm.rewards.normalize != "none":
        change = algorithm.rewards.change(batch.reward_N, group_N, batch.tag_N, kept_N)
        reward_N = _on_scale(reward_N, change)
        greedy_N = None if greedy_N is None else _on_scale(greedy_N, change)
    paid_E, acted_E = payments(batch, kept_T, change)
    reward_A = land(paid_E, acted_E, at_A, row_T)
    if algorithm.reference.in_reward:
        penalty_P, paying_P = reference_penalties(algorithm, batch, kept_T)
        reward_A = reward_A - land(penalty_P, paying_P, at_A, row_T)
        reward_N = reward_N - torch.zeros_like(reward_N).index_add(0, row_T[paying_P], penalty_P)
    value_A = None
    final_N = None
    if algorithm.critic is not None:
        value_A, final_N = critic_values(algorithm, batch, kept_N, at_A)
    whiten_T = algorithm.masks.tokens("whiten_over", batch) & kept_T
    return CreditInputs(
        batch,
        kept_N,
        group_N,
        torch.where(kept_N, reward_N, torch.nan),
        at_A,
        row_T[at_A],
        batch.turn_T[at_A],
        reward_A,
        value_A,
        final_N,
        whiten_T,
        greedy_N,
    )


def _on_scale(reward_N: Tensor, change: Change) -> Tensor:
    return reward_N * change.scale_N + change.shift_N


def reference_penalties(
    algorithm: CreditAlgorithm, batch: Batch, kept_T: Tensor
) -> tuple[Tensor, Tensor]:
    """(what each token pays for leaving the reference [P], their indices into T)."""
    paying_P = (algorithm.masks.tokens("kl_reward_over", batch) & kept_T).nonzero()[:, 0]
    penalty_P = algorithm.reference.price(batch, paying_P)
    return penalty_P, paying_P


def timeline(algorithm: CreditAlgorithm, batch: Batch, kept_T: Tensor) -> Tensor:
    """Indices into T of the tokens that get credit [A], ascending. Where credit follows the order of tokens it matters
    which there are; else they are those that are trained, or that whitening counts."""
    masks = algorithm.masks
    if algorithm.has_timeline:
        timeline_T = masks.tokens("gae_over", batch) & kept_T
    else:
        either_T = masks.tokens("loss_over", batch) | masks.tokens("whiten_over", batch)
        timeline_T = either_T & kept_T
    return timeline_T.nonzero()[:, 0]


def payments(batch: Batch, kept_T: Tensor, change: Change | None) -> tuple[Tensor, Tensor]:
    """(what was paid at each token sampled [E], their indices into T): a turn's reward at its last token, the outcome
    at the trajectory's last. A change of scale multiplies them; what it adds is paid at the trajectory's last token."""
    row_T = batch.trajectory_of_token_T
    acted_E = (batch.eligible_T & kept_T).nonzero()[:, 0]
    row_E = row_T[acted_E]
    paid_E = rewards_at_turn_ends(
        batch.turn_reward_K, batch.turn_offsets, batch.outcome_N, row_E, batch.turn_T[acted_E]
    )
    if change is not None:
        paid_E = paid_E * change.scale_N[row_E]
        last_E = torch.ones(len(acted_E), dtype=torch.bool)
        last_E[:-1] = row_E.diff() != 0
        paid_E[last_E] += change.shift_N[row_E[last_E]]
    return paid_E, acted_E


def rewards_at_turn_ends(
    turn_reward_K: Tensor, turn_offsets: Tensor, outcome_N: Tensor, row_A: Tensor, turn_A: Tensor
) -> Tensor:
    """What was paid, at the token it was paid for [A], float64: a turn's reward on the last token sampled in that turn,
    the outcome on the trajectory's last token. Nothing is lost: a turn without a sampled token pays the last one before
    it (or, where there is none, the first one after).

    `turn_offsets` [N + 1] cuts `turn_reward_K` into trajectories; turns are numbered from 0 in each. `outcome_N` may be
    NaN (none given). Trajectories without an action token get nothing. Raises ValueError where tokens are not in order.
    """
    turns_N = turn_offsets.diff()
    row_N = torch.arange(len(turns_N))
    row_K = torch.repeat_interleave(row_N, turns_N)
    turn_K = torch.arange(len(row_K)) - turn_offsets[:-1][row_K]
    most = 1 + max(_largest(turns_N), _largest(turn_A) + 1)
    time_A = row_A * most + turn_A  # one number that orders tokens by trajectory, then turn
    if bool((time_A.diff() < 0).any()):
        raise ValueError("action tokens must stand in the order of trajectories and turns")
    first_N = torch.searchsorted(row_A, row_N)
    last_N = torch.searchsorted(row_A, row_N, right=True) - 1
    present_N = first_N <= last_N
    end_K = torch.searchsorted(time_A, row_K * most + turn_K, right=True) - 1
    end_K = torch.maximum(end_K, first_N[row_K])
    paid_K = present_N[row_K]
    given_N = present_N & ~outcome_N.isnan()
    reward_A = torch.zeros(len(row_A), dtype=torch.float64)
    reward_A = reward_A.index_add(0, end_K[paid_K], turn_reward_K[paid_K].double())
    return reward_A.index_add(0, last_N[given_N], outcome_N[given_N].double())


def _largest(numbers: Tensor) -> int:
    return int(numbers.max()) if len(numbers) else 0


def land(amount_P: Tensor, at_P: Tensor, at_A: Tensor, row_T: Tensor) -> Tensor:
    """What falls to each token of the timeline [A] of amounts that belong to the tokens `at_P`: to that very token, else
    to the last one before it in its trajectory, else to the first one after. Nothing is lost where a trajectory has any.
    """
    landed_A = torch.zeros(len(at_A), dtype=torch.float64)
    if not len(at_A) or not len(at_P):
        return landed_A
    row_A = row_T[at_A]
    before_P = torch.searchsorted(at_A, at_P, right=True) - 1
    before_is_own_P = (before_P >= 0) & (row_A[before_P.clamp(min=0)] == row_T[at_P])
    after_P = (before_P + 1).clamp(max=len(at_A) - 1)
    target_P = torch.where(before_is_own_P, before_P, after_P)
    valid_P = row_A[target_P] == row_T[at_P]
    return landed_A.index_add(0, target_P[valid_P], amount_P[valid_P].double())


def critic_values(
    algorithm: CreditAlgorithm, batch: Batch, kept_N: Tensor, at_A: Tensor
) -> tuple[Tensor, Tensor]:
    """(value before each token of the timeline [A], value after the end [N]: 0 where nothing comes), float64."""
    final_N = torch.zeros(batch.num_trajectories, dtype=torch.float64)
    cut_N = algorithm.critic.bootstraps_N(batch) & kept_N
    if bool(cut_N.any()):
        final_N = torch.where(cut_N, batch.final_value_N.double(), final_N)
    return batch.value_T[at_A].double(), final_N


def critic_targets(inputs: CreditInputs, target_A: Tensor, critic_T: Tensor) -> Tensor:
    """What the critic is fitted to [T], at the tokens `critic_T` (bool), NaN elsewhere. Beside the timeline
    (`critic_over` is wider than `gae_over`) nothing happens that earns, so a token there is worth what the next one on
    it is."""
    batch = inputs.batch
    row_T = batch.trajectory_of_token_T
    at_C = critic_T.nonzero()[:, 0]
    target_C = torch.zeros(len(at_C), dtype=torch.float64)
    if inputs.final_value_N is not None:
        target_C = inputs.final_value_N[row_T[at_C]].double()
    if len(target_A):
        next_C = torch.searchsorted(inputs.token_A, at_C)
        inside_C = next_C < len(target_A)
        next_C = next_C.clamp(max=len(target_A) - 1)
        same_C = inside_C & (inputs.row_A[next_C] == row_T[at_C])
        target_C = torch.where(same_C, target_A[next_C], target_C)
    target_T = torch.full((batch.num_tokens,), torch.nan, dtype=torch.float64)
    return target_T.index_copy(0, at_C, target_C)


def updates_of_a_pass(
    algorithm: CreditAlgorithm, batch: Batch, kept_N: Tensor
) -> tuple[int | None, dict[str, float]]:
    """(updates per epoch where they depend on the number of trajectories, how many the filter took of the step's).
    An update needs a trajectory, so a filter that keeps fewer than there would be updates takes some in any mode.
    """
    acted_N = torch.zeros_like(kept_N).index_fill(
        0, batch.trajectory_of_token_T[batch.eligible_T], True
    )
    scored = int((acted_N & batch.scored_N).sum())
    kept = int((acted_N & kept_N).sum())
    whole = wanted = min(algorithm.minibatches, scored)
    if algorithm.minibatch_size:
        whole = math.ceil(scored / algorithm.minibatch_size)
        wanted = (
            whole if algorithm.filter.equal_updates else math.ceil(kept / algorithm.minibatch_size)
        )
    made = min(wanted, kept)
    count = max(made, 1) if algorithm.minibatch_size else None
    if not algorithm.filter.acts:
        return count, {}
    return count, {"updates_removed_by_filter": float(algorithm.epochs * (whole - made))}


def notes_of(algorithm: CreditAlgorithm, inputs: CreditInputs) -> dict[str, float]:
    """Figures about the batch for the metrics line."""
    batch = inputs.batch
    kept_N = inputs.kept_N
    notes = {"trajectories_unscored": float((~batch.scored_N).sum())}
    if algorithm.filter.acts:
        notes |= algorithm.filter.notes(batch.reward_N, inputs.group_N, batch.scored_N, kept_N)
    if inputs.value_A is not None and len(inputs.token_A):
        bootstrapped_N = algorithm.critic.bootstraps_N(batch) & kept_N
        notes["value_mean"] = float(inputs.value_A.mean())
        notes["trajectories_bootstrapped"] = float(bootstrapped_N.sum())
    if algorithm.estimator.greedy:
        notes |= _notes_of_greedy(batch)
    if algorithm.estimator.says("compares"):
        # A filter reports on its own which groups it left out.
        counted_N = kept_N if algorithm.filter.acts else torch.ones_like(kept_N)
        notes |= _notes_of_groups(batch, kept_N, counted_N)
    return notes


def _notes_of_greedy(batch: Batch) -> dict[str, float]:
    """How the greedy trajectories went, one a task."""
    of_task = torch.zeros(batch.num_groups, dtype=torch.float64)
    of_task = of_task.index_copy(0, batch.group_of_trajectory_N, batch.greedy_N)
    known = of_task[~of_task.isnan()]
    notes = {"greedy_unscored": float(len(of_task) - len(known))}
    if len(known):
        notes["greedy_reward"] = float(known.mean())
    return notes


def _notes_of_groups(batch: Batch, kept_N: Tensor, counted_N: Tensor) -> dict[str, float]:
    """Groups that teach nothing, by reason, and the spread that the others live on: of the raw rewards."""
    group_N = batch.group_of_trajectory_N
    statistics = group_statistics(batch.reward_N, group_N, kept_N)
    alone_G = (statistics.count < 2)[group_N[counted_N].unique()]
    spread_G = statistics.std[statistics.count > 1]
    notes = {
        "groups_flat": float(statistics.flat.sum()),
        "groups_without_baseline": float(alone_G.sum()),
    }
    if len(spread_G):
        notes["reward_std_in_group"] = float(spread_G.mean())
    return notes
