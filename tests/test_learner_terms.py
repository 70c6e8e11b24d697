"""Every objective, reduction and mask switch through the learner: the gradient of the definition, however it is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from learning_data import make_groups, tiny_model, token_entropy, token_logprobs, unscore
from test_learner import ALL_AT_ONCE, ONE_BY_ONE, distance, gradient, learner
from torch import Tensor

from workbench.learn.algorithms import GRPO, PPO
from workbench.learn.algorithms.base import shares_of
from workbench.learn.algorithms.parts import Filter, Masks
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import REDUCTIONS
from workbench.values.errors import LearnerError

LONG = {"reduction": "fixed-length", "fixed_length": 40}


def batch_of(**settings) -> Batch:
    return Batch.from_groups(unscore(make_groups(turns=3, **settings), 1, 2))


def with_facts(batch: Batch) -> Batch:
    """Facts of models that differ from the one that is trained, at every token that a mask could let in."""
    generator = torch.Generator().manual_seed(5)

    def near(at: float) -> Tensor:
        return torch.where(
            batch.position_T > 0,
            at + 0.3 * torch.randn(batch.num_tokens, generator=generator),
            torch.nan,
        )

    logp_T = torch.cat(
        [
            token_logprobs(tiny_model()(input_ids=ids[None]).logits, ids[None])[0].detach()
            for ids in batch.token_ids_T.split(batch.segment_lengths_S.tolist())
        ]
    )
    return replace(
        batch,
        old_logp_T=logp_T + near(0.0),
        ref_logp_T=logp_T + near(0.1),
        value_T=near(0.5),
        final_value_N=torch.zeros(batch.num_trajectories),
    )


def by_definition(batch: Batch, algorithm) -> dict[str, Tensor]:
    """Written out anew: one sequence at a time, every term over its own tokens, each with its own denominator."""
    credit, model = algorithm.credit(batch), tiny_model()
    ids = batch.token_ids_T.split(batch.segment_lengths_S.tolist())
    logits = [model(input_ids=some[None]).logits for some in ids]
    logp_T = torch.cat([token_logprobs(some, i[None])[0] for some, i in zip(logits, ids)])
    entropy_T = torch.cat([token_entropy(some, i[None])[0] for some, i in zip(logits, ids)])
    old_T = logp_T.detach() if batch.old_logp_T is None else batch.old_logp_T
    row_T, kept_T = batch.trajectory_of_token_T, batch.scored_N[batch.trajectory_of_token_T]
    total = torch.zeros(())
    tokens = {
        over: (batch.eligible_T if over == "actions" else batch.response_T) & kept_T
        for over in ("actions", "response")
    }

    def reduced(values_T: Tensor, over: str) -> Tensor:
        counts_T = tokens[over]
        rows = [values_T[counts_T & (row_T == n)] for n in row_T[counts_T].unique()]
        if algorithm.reduction == "token-mean":
            return torch.cat(rows).mean()
        if algorithm.reduction == "seq-mean-token-mean":
            return torch.stack([row.mean() for row in rows]).mean()
        divisor = algorithm.fixed_length if algorithm.reduction == "fixed-length" else 1
        return torch.stack([row.sum() / divisor for row in rows]).mean()

    advantage_T, low, high = (
        credit.advantage_T.float(),
        1 - algorithm.objective.clip_low,
        1 + algorithm.objective.clip_high,
    )
    ratio_T = (logp_T - old_T).exp()
    if algorithm.objective.name == "gspo":
        ratio_T = torch.ones_like(logp_T)
        for segment in range(batch.num_segments):
            at = tokens[algorithm.masks.over("loss_over")] & (batch.segment_of_token_T == segment)
            if at.any():
                ratio_T = torch.where(at, (logp_T - old_T)[at].mean().exp(), ratio_T)
    policy_T = -torch.minimum(ratio_T * advantage_T, ratio_T.clamp(low, high) * advantage_T)
    if algorithm.objective.name == "cispo":
        policy_T = -ratio_T.detach().clamp(low, high) * advantage_T * logp_T
    if algorithm.sampler_cap:
        weight_T = (old_T.detach() - batch.rollout_logp_T).exp().clamp(max=algorithm.sampler_cap)
        policy_T = policy_T * torch.where(batch.eligible_T, weight_T, 1.0)
    total = total + reduced(policy_T, algorithm.masks.over("loss_over"))
    if algorithm.entropy_coef:
        total = total - algorithm.entropy_coef * reduced(
            entropy_T, algorithm.masks.over("entropy_over")
        )
    if algorithm.reference.kl_coef and algorithm.reference.kl_in == "loss":
        total = total + algorithm.reference.kl_coef * reduced(
            0.5 * (logp_T - batch.ref_logp_T) ** 2, algorithm.masks.over("kl_loss_over")
        )
    total.backward()
    return {name: p.grad for name, p in model.named_parameters()}


CASES = {
    **{
        f"{objective}-{kind}": GRPO(
            objective={"kind": objective},
            reduction=kind,
            fixed_length=40 * (kind == "fixed-length"),
        )
        for objective in ("clip", "gspo", "cispo")
        for kind in REDUCTIONS
    },
    "all-terms": GRPO(entropy_coef=0.2, reference={"kl_coef": 0.3, "kl_estimator": "k2"}),
    "all-terms-every-mask-off": GRPO(
        entropy_coef=0.2,
        masks=Masks(loss_mask=False),
        reference={"kl_coef": 0.3, "kl_estimator": "k2"},
    ),
    "only-the-entropy-is-wide": GRPO(entropy_coef=0.2, masks=Masks(entropy_over="response")),
    "only-the-pull-is-wide": GRPO(
        masks=Masks(kl_loss_over="response"),
        reduction="seq-mean-token-mean",
        reference={"kl_coef": 0.3, "kl_estimator": "k2"},
    ),
    "only-the-policy-gradient-is-wide": GRPO(
        entropy_coef=0.2, masks=Masks(loss_over="response"), **LONG
    ),
    "gspo-over-the-response": GRPO(objective={"kind": "gspo"}, masks=Masks(loss_over="response")),
    "weights-for-the-sampler": GRPO(sampler_cap=0.7, estimator={"normalize_std": False}),
}


# Left to the fuller count: an objective or a reduction that another case here goes through as well.
MORE = (
    "clip-seq-mean-token-sum",
    "clip-fixed-length",
    "gspo-token-mean",
    "gspo-seq-mean-token-sum",
    "gspo-seq-mean-token-mean",
    "cispo-token-mean",
    "cispo-seq-mean-token-mean",
    "cispo-fixed-length",
    "all-terms",
    "only-the-policy-gradient-is-wide",
)


# Every case with one history or the other: the two differ in nothing but which segments a sequence has.
@pytest.mark.parametrize(
    "case, fresh",
    [
        pytest.param(case, bool(i % 2), marks=[pytest.mark.full] * (case in MORE))
        for i, case in enumerate(CASES)
    ],
)
def test_the_gradient_is_that_of_the_definition_and_does_not_depend_on_the_cut(case, fresh):
    algorithm, batch = CASES[case], with_facts(batch_of(fresh=fresh))
    credit = algorithm.credit(batch)
    whole = gradient(batch, credit, algorithm, micro_batch_tokens=ALL_AT_ONCE)
    assert distance(by_definition(batch, algorithm), whole) < 2e-5
    assert distance(whole, gradient(batch, credit, algorithm, micro_batch_tokens=ONE_BY_ONE)) < 5e-6


@pytest.mark.parametrize("case", ["clip-seq-mean-token-mean", "all-terms-every-mask-off"])
def test_negative_control_a_term_over_other_tokens_is_another_gradient(case):
    batch = with_facts(batch_of())
    other = replace(CASES[case], masks=Masks(), reduction="token-mean")
    found = gradient(batch, CASES[case].credit(batch), CASES[case])
    assert distance(by_definition(batch, other), found) > 0.01


def test_a_wider_mask_must_name_itself_and_does():
    batch = batch_of()
    algorithm = GRPO(masks=Masks(loss_mask=False))
    credit = algorithm.credit(batch)
    assert credit.widened == "masks: loss_over, entropy_over, kl_loss_over = response"
    with pytest.raises(LearnerError, match="were not sampled by the policy here"):
        learner(algorithm).update(batch, replace(credit, widened=None), step=1)
    (report,) = learner(algorithm).update(batch, credit, step=1)
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    assert report.metrics["trained_tokens"] == int((batch.response_T & scored_T).sum())


def test_the_entropy_that_is_reported_is_that_of_actions_whatever_the_mask():
    batch = batch_of()
    reports = [
        learner(algorithm).update(batch, algorithm.credit(batch), step=1)[0]
        for algorithm in (GRPO(), GRPO(masks=Masks(loss_mask=False)))
    ]
    assert reports[0].metrics["entropy"] == reports[1].metrics["entropy"]


# ------------------------------------------------------------------------------------------------ denominators


def test_denominators_by_hand():
    batch = batch_of()  # 12 trajectories, one unscored
    credit, rows = GRPO().credit(batch), 11
    used_T = credit.weight_T != 0
    tokens = int(used_T.sum())
    expected = {
        "token-mean": tokens,
        "seq-mean-token-mean": rows,
        "seq-mean-token-sum": rows,
        "fixed-length": rows * 40,
    }
    for kind, denominator in expected.items():
        algorithm = GRPO(reduction=kind, fixed_length=40 * (kind == "fixed-length"))
        share = shares_of(algorithm, batch, credit, used_T)["policy"]
        assert share.denominator == denominator
        per_row = torch.zeros(12, dtype=torch.float64).index_add(
            0, batch.trajectory_of_token_T, share.weight_T
        )
        if kind == "seq-mean-token-mean":
            assert torch.allclose(per_row[batch.scored_N], torch.ones(rows, dtype=torch.float64))
        else:
            assert per_row.sum() == tokens


def test_the_critics_denominator_is_a_count_of_its_own_tokens():
    batch = with_facts(batch_of())
    algorithm = PPO(masks=Masks(critic_over="response"), reduction="seq-mean-token-sum")
    credit = algorithm.credit(batch)
    share = shares_of(algorithm, batch, credit, credit.trained_T)["critic"]
    scored_T = batch.scored_N[batch.trajectory_of_token_T]
    assert (
        share.denominator
        == int((batch.response_T & scored_T).sum())
        == int((~credit.return_T.isnan()).sum())
    )


# ------------------------------------------------------------------------------------------------ updates of a step


def test_a_size_of_minibatches_makes_as_many_updates_as_there_are_trajectories_for():
    batch = batch_of()
    algorithm = GRPO(minibatch_size=4)
    reports = learner(algorithm).update(batch, algorithm.credit(batch), step=1)
    assert len(reports) == 3 and algorithm.updates_per_step is None
    used = [set(report.table["trajectory"][report.table["used"]].tolist()) for report in reports]
    assert sum(map(len, used)) == 11 and not set.intersection(*used)


@pytest.mark.parametrize("equal, updates, removed", [(False, 1, 2.0), (True, 3, 0.0)])
def test_a_filter_removes_updates_unless_told_otherwise(equal, updates, removed):
    algorithm = GRPO(
        minibatch_size=4, filter=Filter(keep="top_share", share=1 / 3, equal_updates=equal)
    )
    batch = batch_of()
    credit = algorithm.credit(batch)
    assert credit.notes["updates_removed_by_filter"] == removed
    assert len(learner(algorithm).update(batch, credit, step=1)) == updates


def test_a_filter_that_keeps_nothing_skips_the_step():
    rewards = [[1.0] * 4, [0.5] * 4, [0.0] * 4]
    batch = Batch.from_groups(make_groups(rewards=rewards))
    for algorithm in (
        GRPO(filter=Filter(zero_variance="drop")),
        GRPO(minibatch_size=4, filter=Filter(zero_variance="drop")),
    ):
        (report,) = learner(algorithm).update(batch, algorithm.credit(batch), step=1)
        assert (
            report.skipped.startswith("nothing to train") and report.metrics["empty_updates"] == 1
        )
