"""The learner: one denominator, nothing non-finite ever reaches the weights, and state that goes on bit for bit."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from learning_data import FIRST, VOCAB, make_groups, tiny_model, token_logprobs, unscore
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Request
from workbench.extensions.engine_audit.older import before_last_update
from workbench.learn.algorithms import GRPO, Credit
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner, dealt
from workbench.learn.noise import signal_to_noise
from workbench.values import Group, Segment, Source, Span, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, DataError, LearnerError

ONE_BY_ONE, ALL_AT_ONCE = 1, 100_000  # micro_batch_tokens


def learner(algorithm=GRPO(), model=None, **config) -> Learner:
    return Learner(
        tiny_model() if model is None else model,
        algorithm,
        LearnerConfig(**({"lr": 1e-3} | config)),
    )


def batch_and_credit(algorithm=GRPO(), **settings) -> tuple[Batch, Credit]:
    batch = Batch.from_groups(make_groups(**settings))
    return batch, algorithm.credit(batch)


def snapshot(a_learner: Learner) -> dict[str, Tensor]:
    return {name: w.clone() for name, w in a_learner.weights().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def gradient(batch: Batch, credit: Credit, algorithm=GRPO(), **config) -> dict[str, Tensor]:
    """The gradient of one update, caught just before the optimizer would use it."""
    caught: dict[str, Tensor] = {}
    a_learner = learner(algorithm, **config)
    policy = a_learner.models.policy
    policy.scale_down = lambda norm, most: caught.update(
        {n: g.clone() for n, g in policy.gradients().items()}
    )
    a_learner.update(batch, credit, step=1)
    return caught


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    """|a - b| / |a| over all parameters."""
    norm = torch.cat([a[k].reshape(-1) for k in a]).double().norm()
    return float(torch.cat([(a[k] - b[k]).reshape(-1) for k in a]).double().norm() / norm)


def test_signal_over_noise_is_that_of_two_halves_written_out():
    """And measuring it moves nothing: the update afterwards is the same to the last bit."""
    batch, credit = batch_and_credit()
    a_learner, same_learner = learner(), learner()
    found = signal_to_noise(a_learner, batch, credit, step=3)["gradient_snr"]
    halves = dealt(batch, credit.trained_T, 2, (0, "halves", 3))
    assert not (halves[0] & halves[1]).any() and ((halves[0] | halves[1]) == credit.trained_T).all()
    first, second = (
        naive_gradient(batch, replace(credit, weight_T=credit.weight_T * half)) for half in halves
    )
    flat_a, flat_b = (
        torch.cat([each[name].reshape(-1) for name in sorted(each)]).double()
        for each in (first, second)
    )
    assert found == pytest.approx(
        float(flat_a @ flat_b / ((flat_a - flat_b).square().sum() / 4)), rel=1e-4
    )
    for each in (a_learner, same_learner):
        each.update(batch, credit, step=1)
    assert same(a_learner.weights(), same_learner.weights())


def test_one_trajectory_has_no_halves():
    batch, credit = batch_and_credit()
    only = credit.trained_T & (
        batch.trajectory_of_token_T == batch.trajectory_of_token_T[credit.trained_T][0]
    )
    assert (
        signal_to_noise(learner(), batch, replace(credit, weight_T=credit.weight_T * only), step=1)
        == {}
    )


def naive_gradient(batch: Batch, credit: Credit, denominator=None) -> dict[str, Tensor]:
    """Written out from the definition: sum over tokens of -A logp, over the count of trained tokens."""
    model = tiny_model()
    logp_T = torch.cat(
        [
            token_logprobs(model(input_ids=ids[None]).logits, ids[None])[0]
            for ids in batch.token_ids_T.split(batch.segment_lengths_S.tolist())
        ]
    )
    used = credit.weight_T != 0
    (-(logp_T * credit.advantage_T.float())[used].sum() / (denominator or used.sum())).backward()
    return {name: p.grad for name, p in model.named_parameters()}


# ------------------------------------------------------------------------------------------------ invariant 4


@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
@pytest.mark.parametrize("entropy_coef", [0.0, 0.1])
def test_the_gradient_does_not_depend_on_how_the_batch_is_cut(fresh, entropy_coef):
    """1, 3 and as many micro-batches as segments: the same gradient to 2e-6 of its norm (float32 sums)."""
    algorithm = GRPO(entropy_coef=entropy_coef)
    batch, credit = batch_and_credit(algorithm, fresh=fresh, turns=3)
    whole = gradient(batch, credit, algorithm, micro_batch_tokens=ALL_AT_ONCE)
    third = int(batch.segment_lengths_S.max()) * (batch.num_segments // 3)
    for budget in (third, ONE_BY_ONE):
        assert distance(whole, gradient(batch, credit, algorithm, micro_batch_tokens=budget)) < 2e-6


def test_three_micro_batches_are_three():
    batch, credit = batch_and_credit()
    longest = int(batch.segment_lengths_S.max())
    (report,) = learner(micro_batch_tokens=4 * longest, layout="padded").update(
        batch, credit, step=1
    )
    assert report.metrics["micro_batches"] == 3


@pytest.mark.parametrize("layout", ["auto", "padded"])
@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_the_gradient_is_the_one_of_the_definition(fresh, layout):
    batch, credit = batch_and_credit(fresh=fresh)
    assert (
        distance(
            naive_gradient(batch, credit),
            gradient(batch, credit, micro_batch_tokens=60, layout=layout),
        )
        < 1e-5
    )


def test_negative_control_a_mean_of_means_depends_on_the_cut(monkeypatch):
    """Divide by each micro-batch's own count, as is often done: the law above is far out."""
    import workbench.learn.update as module

    monkeypatch.setattr(
        module,
        "masked_sum_over",
        lambda loss, weight, _: (loss * weight).sum() / (weight != 0).sum(),
    )
    batch, credit = batch_and_credit(turns=3)
    whole = gradient(batch, credit, micro_batch_tokens=ALL_AT_ONCE)
    assert distance(whole, gradient(batch, credit, micro_batch_tokens=ONE_BY_ONE)) > 0.1


def test_the_order_of_groups_does_not_matter():
    batch, credit = batch_and_credit()
    shuffled = batch.select([8, 9, 10, 11, 3, 2, 1, 0, 7, 5, 6, 4])
    assert distance(gradient(batch, credit), gradient(shuffled, GRPO().credit(shuffled))) < 2e-6


def test_an_unscored_trajectory_is_as_if_it_had_never_been():
    """It leaves the denominator too (invariant 5)."""
    with_it = Batch.from_groups(unscore(make_groups(), 1, 2))
    without = with_it.select([n for n in range(12) if n != 6])
    assert (
        distance(
            gradient(with_it, GRPO().credit(with_it)), gradient(without, GRPO().credit(without))
        )
        < 2e-6
    )


# ------------------------------------------------------------------------------------------------ what is trained


def test_only_sampled_tokens_get_a_gradient():
    """Invariant 1: the logits' gradient is zero at every position that predicts a token which was not sampled here."""
    batch, credit = batch_and_credit(tasks=1, attempts=2)
    model = tiny_model()
    seen: list[Tensor] = []
    a_learner = Learner(model, GRPO(), LearnerConfig(micro_batch_tokens=ONE_BY_ONE), own_copy=False)
    model.get_output_embeddings().register_forward_hook(
        lambda module, args, out: seen.append(out.shape[1])
    )
    (report,) = a_learner.update(batch, credit, step=1)
    assert sum(seen) == int(batch.eligible_T.sum()) == report.metrics["trained_tokens"]
    assert np.array_equal(np.isfinite(report.table["new_logp"]), batch.eligible_T.numpy())


def test_a_weight_on_a_token_that_was_not_sampled_is_refused_unless_named():
    batch, credit = batch_and_credit()
    everywhere = replace(credit, weight_T=torch.where(batch.position_T > 0, 1.0, 0.0).double())
    with pytest.raises(
        LearnerError, match="were not sampled by the policy here, the first: trajectory task-0/0"
    ):
        learner().update(batch, everywhere, step=1)
    (report,) = learner().update(
        batch, replace(everywhere, widened="supervised fine-tuning"), step=1
    )
    assert report.metrics["trained_tokens"] == int((batch.position_T > 0).sum())


def test_credit_of_another_batch_is_refused():
    batch, _ = batch_and_credit()
    _, other = batch_and_credit(tasks=2)
    with pytest.raises(LearnerError, match="another batch"):
        learner().update(batch, other, step=1)


def test_a_missing_fact_is_named():
    batch, credit = batch_and_credit()
    with pytest.raises(
        DataError, match=r"needs ref_logp_T.*Learner.facts\(batch\) makes one that does"
    ):
        learner(GRPO(reference={"kl_coef": 0.1})).update(batch, credit, step=1)


def test_the_model_handed_in_stays_the_untrained_policy():
    model, (batch, credit) = tiny_model(), batch_and_credit()
    before = {name: p.clone() for name, p in model.named_parameters()}
    a_learner = learner(model=model)
    a_learner.update(batch, credit, step=1)
    assert same(before, dict(model.named_parameters())) and not same(before, snapshot(a_learner))


def test_batch_and_credit_are_left_as_they_were():
    """Invariant 6, through a whole step of several updates: torch counts writes into every tensor."""
    algorithm = GRPO(epochs=2, minibatches=2, entropy_coef=0.01)
    batch, credit = batch_and_credit(algorithm)
    held = [
        getattr(v, f.name)
        for v in (batch, credit)
        for f in fields(v)
        if isinstance(getattr(v, f.name), Tensor)
    ]
    versions = [t._version for t in held]
    learner(algorithm).update(batch, credit, step=1)
    assert [t._version for t in held] == versions and batch.old_logp_T is None


# ------------------------------------------------------------------------------------------------ several updates


def test_one_update_is_on_policy_exactly():
    batch, credit = batch_and_credit()
    (report,) = learner().update(batch, credit, step=1)
    used = report.table["used"]
    assert (report.table["ratio"][used] == 1.0).all() and report.metrics["approx_kl"] == 0.0
    assert np.array_equal(report.table["old_logp"][used], report.table["new_logp"][used])


def test_a_samplers_logprob_is_never_taken_for_the_old_one():
    """The rollout logprobs of this batch are random numbers; with several updates the first ratio is 1 nevertheless,
    because the trainer worked out its own before it moved."""
    algorithm = GRPO(epochs=2)
    batch, credit = batch_and_credit(algorithm)
    first, second = learner(algorithm).update(batch, credit, step=1)
    used = first.table["used"]
    assert np.abs(first.table["ratio"][used] - 1).max() < 1e-5
    assert np.abs(second.table["ratio"][used] - 1).max() > 1e-2
    assert np.array_equal(first.table["old_logp"][used], second.table["old_logp"][used])
    assert first.metrics["logp_gap_mean"] > 1.0 and "logp_gap_mean" not in second.metrics


def test_minibatches_share_out_whole_trajectories():
    algorithm = GRPO(epochs=2, minibatches=3)
    batch, credit = batch_and_credit(algorithm, fresh=True)
    reports = learner(algorithm).update(batch, credit, step=1)
    assert [r.table.update for r in reports] == list(range(6))
    for epoch in (reports[:3], reports[3:]):
        used = np.stack([r.table["used"] for r in epoch])
        assert np.array_equal(used.sum(0), batch.eligible_T.numpy())
        owners = [set(r.table["trajectory"][r.table["used"]]) for r in epoch]
        assert (
            not owners[0] & owners[1] and not owners[1] & owners[2] and sum(map(len, owners)) == 12
        )
    assert not np.array_equal(reports[0].table["used"], reports[3].table["used"])  # shuffled anew
    again = learner(algorithm).update(batch, credit, step=1)
    other = learner(algorithm, seed=1).update(batch, credit, step=1)
    assert all(np.array_equal(a.table["used"], b.table["used"]) for a, b in zip(reports, again))
    assert not all(np.array_equal(a.table["used"], b.table["used"]) for a, b in zip(reports, other))


def test_minibatches_clip_when_the_policy_has_moved():
    algorithm = GRPO(epochs=4, objective={"clip_low": 0.05, "clip_high": 0.05})
    batch, credit = batch_and_credit(algorithm)
    reports = learner(algorithm, lr=3e-3).update(batch, credit, step=1)
    assert reports[0].metrics["clip_fraction"] == 0.0 < reports[-1].metrics["clip_fraction"]
    table = reports[-1].table
    free = table["used"] & (table["clip_state"] == 0)
    assert set(np.unique(table["clip_state"])) <= {-1, 0, 1} and free.any()
    assert (table["advantage"] * table["clip_state"])[
        table["clip_state"] != 0
    ].min() > 0  # held where it gains


def test_training_makes_good_tokens_likelier():
    batch, credit = batch_and_credit()
    a_learner = learner()
    before = a_learner.logprobs(batch, batch.eligible_T)
    for step in range(5):
        a_learner.update(batch, credit, step=step)
    gain = (a_learner.logprobs(batch, batch.eligible_T) - before)[batch.eligible_T].double()
    assert (gain * credit.advantage_T[batch.eligible_T]).mean() > 0.01


# ------------------------------------------------------------------------------------------------ the table


def test_the_table_is_what_was_used():
    batch, credit = batch_and_credit(fresh=True)
    (report,) = learner().update(batch, credit, step=7)
    table = report.table
    assert (table.step, table.update) == (7, 0)
    dtypes = {name: column.dtype.name for name, column in table.columns.items()}
    assert dtypes == {
        **dict.fromkeys(("trajectory", "segment", "turn", "position", "token_id"), "int32"),
        "source": "int8",
        "eligible": "bool",
        "used": "bool",
        "advantage": "float64",
        "weight": "float64",
        "clip_state": "int8",
        **dict.fromkeys(("rollout_logp", "old_logp", "new_logp", "entropy", "ratio"), "float32"),
    }
    assert np.array_equal(table["advantage"], credit.advantage_T.numpy())  # bit for bit
    assert np.array_equal(table["weight"], credit.weight_T.numpy())
    assert np.array_equal(np.isnan(table["entropy"]), ~batch.eligible_T.numpy())
    loss = (
        -(table["ratio"] * table["advantage"] * table["weight"])[table["used"]].sum()
        / table["used"].sum()
    )
    assert report.metrics["loss"] == pytest.approx(loss, abs=1e-6)
    assert not any(column.flags.writeable for column in table.columns.values())


def test_metrics_are_finite_numbers_and_entropy_is_over_trained_tokens():
    batch, credit = batch_and_credit()
    (report,) = learner().update(batch, credit, step=1)
    assert all(np.isfinite(value) for value in report.metrics.values())
    trained = report.table["entropy"][batch.eligible_T.numpy()]
    assert report.metrics["entropy"] == pytest.approx(trained.mean(), rel=1e-6)
    assert report.metrics["trained_share"] == pytest.approx(float(batch.eligible_T.double().mean()))


def test_tokens_of_older_weights_are_counted():
    batch, credit = batch_and_credit()
    a_learner = learner()
    shares = [
        a_learner.update(batch, credit, step=step)[0].metrics["stale_share"] for step in (1, 2)
    ]
    assert shares == [0.0, 1.0]  # every token here says that version 0 sampled it
    unknown = replace(batch, policy_version_T=torch.full_like(batch.policy_version_T, -1))
    assert "stale_share" not in a_learner.update(unknown, credit, step=3)[0].metrics


def test_the_gap_is_zero_when_the_sampler_is_the_trainer():
    batch, credit = batch_and_credit()
    logp_T = learner().logprobs(batch, batch.eligible_T)
    (report,) = learner().update(replace(batch, plain_logp_T=logp_T), credit, step=1)
    assert report.metrics["logp_gap_max"] < 1e-6
    stale = replace(
        batch, plain_logp_T=learner(model=tiny_model(1)).logprobs(batch, batch.eligible_T)
    )
    (report,) = learner().update(stale, credit, step=1)
    assert report.metrics["logp_gap_max"] > 0.5  # other weights are noticed
    unknown = replace(batch, plain_logp_T=torch.full_like(logp_T, float("nan")))
    (report,) = learner().update(unknown, credit, step=1)
    assert "logp_gap_max" not in report.metrics  # not known is not zero


# ------------------------------------------------------------------------------------------------ bad updates


def poisoned(batch: Batch, credit: Credit, value: float = float("nan")) -> tuple[Credit, int]:
    index = int(batch.eligible_T.nonzero()[7])
    advantage_T = credit.advantage_T.clone()
    advantage_T[index] = value
    return replace(credit, advantage_T=advantage_T), index


def full_state(a_learner: Learner) -> dict[str, Tensor]:
    tensors, _ = a_learner.state()
    return {f"{part}/{name}": t for part, named in tensors.items() for name, t in named.items()}


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_loss_is_skipped_before_it_touches_anything(value):
    batch, credit = batch_and_credit()
    a_learner = learner()
    a_learner.update(batch, credit, step=1)
    before, version = full_state(a_learner), a_learner.version
    bad, index = poisoned(batch, credit, value)
    (report,) = a_learner.update(batch, bad, step=2)
    assert same(before, full_state(a_learner)) and a_learner.version == version
    assert "advantage" in report.skipped and batch.describe_token(index) in report.skipped
    assert not np.isfinite(report.table["advantage"][index])  # what to keep
    assert (
        all(np.isfinite(v) for v in report.metrics.values()) and report.metrics["bad_updates"] == 1
    )
    (after,) = a_learner.update(batch, credit, step=3)  # and training goes on
    assert after.skipped is None and a_learner.version == version + 1


def test_a_skipped_update_leaves_no_trace_in_the_next():
    batch, credit = batch_and_credit()
    clean, stained = learner(), learner()
    stained.update(batch, poisoned(batch, credit)[0], step=1)
    for a_learner in (clean, stained):
        a_learner.update(batch, credit, step=2)
    assert same(full_state(clean), full_state(stained))


def test_a_non_finite_gradient_is_skipped_and_named():
    """The loss is fine; the gradient of one weight is made infinite on its way back."""
    model = tiny_model()
    a_learner = Learner(model, GRPO(), LearnerConfig(), own_copy=False)
    model.model.norm.weight.register_hook(lambda g: g * float("inf"))
    before = full_state(a_learner)
    (report,) = a_learner.update(*batch_and_credit(), step=1)
    assert "gradient of model.norm.weight" in report.skipped and same(before, full_state(a_learner))


def test_bad_weights_are_named_by_what_they_first_spoil():
    model = tiny_model()
    with torch.no_grad():
        model.model.norm.weight[0] = float("nan")
    (report,) = learner(model=model).update(*batch_and_credit(), step=1)
    assert "new_logp" in report.skipped or "old_logp" in report.skipped


@pytest.mark.parametrize("between", [1.0, 0.0], ids=["an update", "a finite gradient of zero"])
def test_too_many_bad_updates_in_a_row_end_training_with_reports(between):
    batch, credit = batch_and_credit()
    bad, _ = poisoned(batch, credit)
    a_learner = learner(max_bad_updates=2)
    a_learner.update(batch, bad, step=1)
    # A finite one in between starts the count anew, whether it moves anything or not.
    a_learner.update(batch, replace(credit, advantage_T=credit.advantage_T * between), step=2)
    a_learner.update(batch, bad, step=3)
    with pytest.raises(LearnerError, match="2 updates in a row") as caught:
        a_learner.update(batch, bad, step=4)
    assert len(caught.value.reports) == 1 and caught.value.reports[0].skipped


def test_a_fully_masked_batch_makes_no_update_and_says_so():
    groups = make_groups(tasks=1, attempts=2)
    batch = Batch.from_groups(unscore(unscore(groups, 0, 0), 0, 1))
    a_learner = learner()
    before = full_state(a_learner)
    for expected in (1, 2):
        (report,) = a_learner.update(batch, GRPO().credit(batch), step=1)
        assert "nothing to train" in report.skipped and report.metrics == {
            "trained_tokens": 0,
            "empty_updates": expected,
            "bad_updates": 0,
        }
    assert same(before, full_state(a_learner)) and a_learner.version == 0


# ------------------------------------------------------------------------------------------------ the optimizer


def test_a_batch_of_flat_groups_moves_nothing_although_adam_has_momentum():
    """A zero gradient is no reason to stand still for AdamW: its momentum would move the weights all the same."""
    a_learner = learner()
    a_learner.update(*batch_and_credit(), step=1)  # now there is momentum
    before, version = snapshot(a_learner), a_learner.version
    flat = Batch.from_groups(make_groups(rewards=[[1.0] * 4, [0.0] * 4, [0.5] * 4]))
    (report,) = a_learner.update(flat, GRPO().credit(flat), step=2)
    assert "exactly zero" in report.skipped and report.metrics["empty_updates"] == 1
    assert same(before, snapshot(a_learner)) and a_learner.version == version
    # Negative control: the optimizer's step, had it been taken, would have moved them.
    for parameter in a_learner.models.policy.parameters:
        parameter.grad = torch.zeros_like(parameter)
    a_learner.models.policy.optimizer.step()
    assert not same(before, snapshot(a_learner))


def test_gradient_clipping_and_what_is_reported():
    batch, credit = batch_and_credit()
    (free,) = learner(max_grad_norm=0).update(batch, credit, step=1)
    norm = free.metrics["grad_norm"]
    held: dict[str, Tensor] = {}
    a_learner = learner(max_grad_norm=norm / 2)
    policy, step = a_learner.models.policy, a_learner.models.policy.optimizer.step
    policy.optimizer.step = lambda: (
        held.update({n: g.clone() for n, g in policy.gradients().items()}),
        step(),
    )
    (report,) = a_learner.update(batch, credit, step=1)
    assert report.metrics["grad_norm"] == norm  # as it was before clipping
    assert torch.cat([g.reshape(-1) for g in held.values()]).norm().item() == pytest.approx(
        norm / 2, rel=1e-5
    )


def test_warm_up_is_linear_and_a_skipped_update_does_not_count():
    batch, credit = batch_and_credit()
    a_learner = learner(lr=1.0e-3, warmup_updates=4)
    rates = [a_learner.update(batch, credit, step=1)[0].metrics["lr"] for _ in range(2)]
    a_learner.update(batch, poisoned(batch, credit)[0], step=2)
    rates += [a_learner.update(batch, credit, step=3)[0].metrics["lr"] for _ in range(4)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_the_first_update_is_that_of_adamw():
    """Adam's first step moves every weight by lr * sign(gradient), where the gradient is far above eps."""
    batch, credit = batch_and_credit()
    grad, a_learner = gradient(batch, credit, max_grad_norm=0), learner(lr=1e-3, max_grad_norm=0)
    before = snapshot(a_learner)
    a_learner.update(batch, credit, step=1)
    for name, weight in a_learner.weights().items():
        if name in grad:
            large = grad[name].abs() > 1e-4
            expected = 1e-3 * grad[name][large].sign()
            torch.testing.assert_close(
                (before[name] - weight)[large], expected, atol=1e-6, rtol=1e-3
            )


@pytest.mark.parametrize("other, near", [(dict(fused_adamw=True), True), (dict(eps=1e-2), False)])
def test_the_fused_kernel_of_adamw_moves_weights_alike(other, near):
    """Three updates with decay and a warm-up; another eps is the negative control."""
    batch, credit = batch_and_credit()
    asked = dict(weight_decay=0.1, warmup_updates=2, eps=1e-5)
    one = learner(**asked)
    two = learner(**asked | other)
    for step in range(3):
        for a_learner in (one, two):
            a_learner.update(batch, credit, step=step)
    apart = max(float((two.weights()[name] - w).abs().max()) for name, w in one.weights().items())
    assert (apart < 2e-6) == near
    older = before_last_update(two)
    assert max(float((older[name] - w).abs().max()) for name, w in two.weights().items()) > 1e-4


def test_bf16_autocast_is_near_and_keeps_float32_weights():
    """bf16 has 8 bits of mantissa: the gradient agrees to a few percent, the weights stay float32."""
    batch, credit = batch_and_credit()
    single, half = gradient(batch, credit), gradient(batch, credit, precision="bf16")
    assert 1e-6 < distance(single, half) < 0.1
    assert all(g.dtype == torch.float32 for g in half.values())


def test_dropout_is_off():
    """The sampler never saw it. A model that is handed in with dropout on gives the same gradient every time."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=16, n_layer=1, n_head=2, n_positions=99, resid_pdrop=0.5
    )
    model, (batch, credit) = GPT2LMHeadModel(config).train(), batch_and_credit()
    assert same(gradient(batch, credit, model=model), gradient(batch, credit, model=model))
    assert model.training  # and the model handed in is left as it was


def test_entropy_is_the_same_with_and_without_its_gradient():
    """Without a bonus it is taken a few rows at a time, to bound memory."""
    batch, credit = batch_and_credit()
    (plain,) = learner().update(batch, credit, step=1)
    (bonus,) = learner(GRPO(entropy_coef=1e-9)).update(batch, credit, step=1)
    assert np.array_equal(plain.table["entropy"], bonus.table["entropy"], equal_nan=True)


def test_weights_in_half_precision_are_refused():
    with pytest.raises(LearnerError, match="dtype='float32'"):
        learner(model=tiny_model().bfloat16())


def test_the_number_of_processes_is_asserted():
    with pytest.raises(LearnerError, match="torchrun --nproc_per_node 2"):
        learner(num_processes=2)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(precision="fp16"),
        dict(lr=-1.0),
        dict(lr=float("nan")),
        dict(micro_batch_tokens=0),
        dict(max_bad_updates=0),
        dict(num_processes=0),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LearnerConfig(**wrong)


# ------------------------------------------------------------------------------------------------ determinism and state


def test_two_runs_are_equal_bit_for_bit():
    algorithm = GRPO(epochs=2, minibatches=2, entropy_coef=0.01)
    batch, credit = batch_and_credit(algorithm)
    first, second = learner(algorithm), learner(algorithm)
    for a_learner in (first, second):
        a_learner.update(batch, credit, step=1)
    assert same(full_state(first), full_state(second))


@pytest.mark.parametrize("fused_adamw", [False, True])
def test_state_goes_on_bit_for_bit(fused_adamw):
    """Through safetensors and JSON, into a learner that started from other weights."""
    import json

    from safetensors.torch import load, save

    algorithm = GRPO(minibatches=2)
    batch, credit = batch_and_credit(algorithm)
    asked = dict(warmup_updates=5, fused_adamw=fused_adamw)
    straight = learner(algorithm, **asked)
    straight.update(batch, credit, step=1)
    tensors, state = straight.state()
    stored = {part: save(named) for part, named in tensors.items()}
    text = json.dumps(state)
    resumed = learner(algorithm, model=tiny_model(99), **asked)
    resumed.load_state({part: load(data) for part, data in stored.items()}, json.loads(text))
    assert resumed.version == straight.version == 2 and same(
        full_state(straight), full_state(resumed)
    )
    for a_learner in (straight, resumed):
        a_learner.update(batch, credit, step=2)
    assert same(full_state(straight), full_state(resumed))


def test_negative_control_without_the_optimizers_moments_it_does_not():
    batch, credit = batch_and_credit()
    straight, resumed = learner(), learner()
    straight.update(batch, credit, step=1)
    tensors, state = straight.state()
    resumed.load_state({**tensors, "optimizer": {}}, state)
    for a_learner in (straight, resumed):
        a_learner.update(batch, credit, step=2)
    assert not same(full_state(straight), full_state(resumed))


def test_state_is_a_copy_and_tied_weights_are_stored_once():
    batch, credit = batch_and_credit()
    a_learner = learner()
    tensors, _ = a_learner.state()
    kept = tensors["model"]["model.embed_tokens.weight"].clone()
    assert "lm_head.weight" not in tensors["model"] and "lm_head.weight" in a_learner.weights()
    a_learner.update(batch, credit, step=1)
    assert torch.equal(tensors["model"]["model.embed_tokens.weight"], kept)


def test_the_state_of_another_model_is_refused_before_anything_changes():
    a_learner = learner()
    before = full_state(a_learner)
    tensors, state = learner(model=tiny_model(hidden_size=16)).state()
    with pytest.raises(LearnerError, match="another model"):
        a_learner.load_state(tensors, state)
    with pytest.raises(LearnerError, match="format 99"):
        a_learner.load_state(tensors, state | {"format": 99})
    assert same(before, full_state(a_learner))


def test_frozen_parameters_stay_and_only_the_others_have_state():
    model = tiny_model()
    model.model.embed_tokens.weight.requires_grad_(False)
    a_learner = learner(model=model)
    a_learner.update(*batch_and_credit(), step=1)
    assert torch.equal(
        a_learner.weights()["model.embed_tokens.weight"], model.model.embed_tokens.weight
    )
    assert not torch.equal(a_learner.weights()["model.norm.weight"], model.model.norm.weight)


# ------------------------------------------------------------------------------------------------ with the real sampler


def sampled_groups(a_learner: Learner, *, synced: bool = True):
    """Two tasks, four trajectories each, one turn sampled by the embedded engine from the learner's weights."""
    engine = open_engine(TransformersEngineConfig(max_rows=8), tiny_model())
    if synced:
        engine.sync(a_learner.weights(), a_learner.version)
    rng = np.random.default_rng(5)
    prompts = [rng.integers(0, VOCAB, 9 + task).astype(np.int32) for task in range(2)]
    for number in range(8):
        engine.submit(
            Request(number, f"s{number}", prompts[number // 4], number, 12, frozenset({3}))
        )
    done = {}
    while len(done) < 8:
        done |= {completion.request_id: completion for completion in engine.poll()}

    def a_trajectory(number: int) -> Trajectory:
        c = done[number]
        spans = (
            Span(Source.PROMPT, 0, prompts[number // 4]),
            Span(
                Source.POLICY,
                0,
                c.token_ids,
                c.logprobs,
                c.plain_logprobs,
                c.policy_version,
                c.sampling,
                sampled=True,
            ),
        )
        return Trajectory(
            Task(f"t{number // 4}", "test", number // 4),
            number % 4,
            number,
            FIRST,
            (Turn(0, "", reward=float(number % 3)),),
            (Segment(spans),),
            StopReason.TERMINATED,
        )

    return [
        Group(tuple(a_trajectory(n) for n in range(4 * task, 4 * task + 4))) for task in range(2)
    ]


def moved_learner() -> Learner:
    a_learner = learner(lr=3e-3)
    a_learner.update(*batch_and_credit(), step=1)
    return a_learner


def test_the_engines_logprobs_are_the_trainers():
    """fp32: the gap is rounding (1e-4), also after the weights have moved and were handed over."""
    a_learner = moved_learner()
    batch = Batch.from_groups(sampled_groups(a_learner))
    (report,) = a_learner.update(batch, GRPO().credit(batch), step=2)
    assert report.metrics["logp_gap_max"] < 1e-4 and report.metrics["stale_share"] == 0.0


def test_negative_control_an_engine_with_old_weights_is_noticed():
    a_learner = moved_learner()
    batch = Batch.from_groups(sampled_groups(a_learner, synced=False))
    (report,) = a_learner.update(batch, GRPO().credit(batch), step=2)
    assert report.metrics["logp_gap_max"] > 1e-2 and report.metrics["stale_share"] == 1.0


def test_a_precision_that_another_trainer_set_for_the_process_is_said_in_words():
    AcceleratorState._reset_state()
    Accelerator(cpu=True, mixed_precision="bf16")
    try:
        with pytest.raises(LearnerError, match="another trainer of this Python process .*restart"):
            learner()
    finally:
        AcceleratorState._reset_state()
    assert learner().is_main  # once nothing is left of it, one is made
