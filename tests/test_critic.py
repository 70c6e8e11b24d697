"""The critic: values at the right places, fitted under one denominator, with state that goes on bit for bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from learning_data import FIRST, make_groups, span, tiny_model, unscore
from safetensors.torch import load, save
from torch import Tensor

from workbench.learn.algorithms import GRPO, PPO, Credit
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.values import Group, Segment, Source, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError, LearnerError

TRUNKS = ("own", "policy")
ONE_BY_ONE, ALL_AT_ONCE = 1, 100_000  # micro_batch_tokens


def learner(
    algorithm=PPO(),
    *,
    trunk: str = "own",
    seed: int = 0,
    critic_lr: float = 1e-3,
    value_coef: float = 0.5,
    opinion: bool = True,
    **config,
) -> Learner:
    """`opinion`: the value head says something from the start, so that there is something to compare."""
    model = tiny_model(seed)
    found = Learner(
        model,
        algorithm,
        LearnerConfig(**({"lr": 1e-3} | config)),
        reference=model,
        critic=CriticConfig(trunk=trunk, lr=critic_lr, value_coef=value_coef),
    )
    if opinion:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            found.models.critic.bare.head.weight.copy_(torch.randn(1, 32, generator=generator) / 10)
    return found


def cut_short(groups: list[Group], reason: StopReason = StopReason.CONTEXT_FULL) -> list[Group]:
    """The same groups; every other trajectory ran into a limit."""
    return [
        Group(tuple(replace(t, stop_reason=reason) if t.attempt % 2 else t for t in group))
        for group in groups
    ]


def batch_of(**settings) -> Batch:
    return Batch.from_groups(cut_short(make_groups(**({"turns": 3} | settings))))


def prepared(a_learner: Learner, batch: Batch) -> tuple[Batch, Credit]:
    batch = a_learner.facts(batch)
    return batch, a_learner.algorithm.credit(batch)


def gradient(batch: Batch, credit: Credit, algorithm=PPO(), **settings) -> dict[str, Tensor]:
    """All gradients of one update, policy's and critic's, caught before an optimizer would use them."""
    caught: dict[str, Tensor] = {}
    a_learner = learner(algorithm, max_grad_norm=0, **settings)
    models = a_learner.models
    models.critic.weights.step = lambda lr: caught.update(
        {n: g.clone() for n, g in models.gradients().items()}
    )
    models.policy.step = lambda lr: None
    a_learner.update(batch, credit, step=1)
    return caught


def distance(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys() and a
    norm = torch.cat([t.reshape(-1) for t in a.values()]).double().norm()
    return float(torch.cat([(a[k] - b[k]).reshape(-1) for k in a]).double().norm() / norm)


def full_state(a_learner: Learner) -> dict[str, Tensor]:
    return {
        f"{part}/{name}": t
        for part, named in a_learner.state()[0].items()
        for name, t in named.items()
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def naive_values(a_learner: Learner, ids: Tensor) -> Tensor:
    """[L]: the head on the hidden state at each place, one sequence at a time."""
    with torch.no_grad():
        hidden_LH = a_learner.models.critic.bare.trunk(
            input_ids=ids[None], use_cache=False
        ).last_hidden_state[0]
        return (
            hidden_LH @ a_learner.models.critic.bare.head.weight[0]
            + a_learner.models.critic.bare.head.bias
        )


# ------------------------------------------------------------------------------------------------ where values stand


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_the_value_at_index_t_is_of_what_stands_before_token_t(trunk, fresh):
    """Read from the state at t - 1; the one after the last token from the state at the last token. Observation tokens
    have none."""
    a_learner, batch = learner(trunk=trunk, micro_batch_tokens=100), batch_of(fresh=fresh)
    found = a_learner.facts(batch)
    assert batch.value_T is None and found.value_T.dtype == torch.float32
    for s in range(batch.num_segments):
        part = slice(int(batch.segment_offsets[s]), int(batch.segment_offsets[s + 1]))
        values, sampled = naive_values(a_learner, batch.token_ids_T[part]), batch.eligible_T[part]
        torch.testing.assert_close(
            found.value_T[part][sampled], values[:-1][sampled[1:]], atol=1e-5, rtol=1e-5
        )
        assert bool(found.value_T[part][~sampled].isnan().all())
        n = int(batch.trajectory_of_segment_S[s])
        if int(batch.last_token_N[n]) == part.stop - 1 and batch.truncated_N[n]:
            assert float(found.final_value_N[n]) == pytest.approx(float(values[-1]), abs=1e-5)
    assert torch.equal(found.final_value_N.isnan(), ~batch.truncated_N)


def test_an_untrained_critic_expects_nothing():
    found = learner(opinion=False).facts(batch_of())
    assert (
        not found.value_T[found.eligible_T].any()
        and not found.final_value_N[found.truncated_N].any()
    )


def test_facts_are_those_that_are_required_and_no_others():
    batch = batch_of()
    plain = Learner(tiny_model(), GRPO(), LearnerConfig())
    assert plain.facts(batch) is batch and plain.models.critic is None
    found = learner(PPO(critic={"bootstrap": "never"})).facts(batch)
    assert found.final_value_N is None and found.value_T is not None and found.ref_logp_T is None
    found = learner(PPO(reference={"kl_coef": 0.1})).facts(batch)
    assert all(value is not None for value in (found.old_logp_T, found.ref_logp_T, found.value_T))
    kept = replace(
        batch,
        value_T=torch.zeros(batch.num_tokens),
        final_value_N=torch.zeros(batch.num_trajectories),
    )
    assert learner().facts(kept) is kept  # what is there already is not computed again


def test_unscored_trajectories_get_no_facts():
    batch = Batch.from_groups(unscore(make_groups(), 0, 1))
    found, row_T = (
        learner(PPO(reference={"kl_coef": 0.1})).facts(batch),
        batch.trajectory_of_token_T,
    )
    for values_T in (found.value_T, found.ref_logp_T, found.old_logp_T):
        assert torch.equal(values_T.isnan(), ~(batch.eligible_T & (row_T != 1)))


def test_the_reference_is_the_untrained_policy_also_later():
    a_learner = learner(PPO(reference={"kl_coef": 0.1, "kl_in": "loss", "kl_estimator": "k2"}))
    batch = batch_of()
    first = a_learner.facts(batch)
    a_learner.update(*prepared(a_learner, batch), step=1)
    later = a_learner.facts(batch)
    assert torch.equal(first.ref_logp_T.nan_to_num(), later.ref_logp_T.nan_to_num())
    assert not torch.equal(
        a_learner.logprobs(batch, batch.eligible_T).nan_to_num(), later.ref_logp_T.nan_to_num()
    )
    assert not torch.equal(first.value_T.nan_to_num(), later.value_T.nan_to_num())


@pytest.mark.parametrize("layout", ["auto", "padded"])
def test_a_reference_with_the_policys_weights_agrees_to_the_last_bit(layout):
    """Layouts differ in rounding: with one of each, a pull towards oneself would not be zero."""
    model = tiny_model()
    a_learner = Learner(
        model,
        GRPO(reference={"kl_coef": 0.1, "kl_in": "reward"}, estimator={"normalize_std": False}),
        LearnerConfig(layout=layout),
        reference=model,
    )
    before, batch = model.config._attn_implementation, batch_of()
    found = a_learner.facts(batch)
    assert torch.equal(found.old_logp_T.nan_to_num(), found.ref_logp_T.nan_to_num())
    assert model.config._attn_implementation == before, "the model handed in is only read"
    assert (
        a_learner._reference.get_input_embeddings().weight is model.get_input_embeddings().weight
    ), "nothing is copied"


def test_a_reference_that_nobody_handed_over_is_named():
    a_learner = Learner(tiny_model(), GRPO(reference={"kl_coef": 0.1}), LearnerConfig())
    with pytest.raises(LearnerError, match=r"grpo needs ref_logp_T.*Learner\(reference=...\)"):
        a_learner.facts(batch_of())


# ------------------------------------------------------------------------------------------------ invariant 4


@pytest.mark.parametrize("trunk", TRUNKS)
@pytest.mark.parametrize("fresh", [False, True], ids=["append", "segment-per-turn"])
def test_the_gradients_do_not_depend_on_how_the_batch_is_cut(trunk, fresh):
    batch, credit = prepared(learner(trunk=trunk), batch_of(fresh=fresh))
    whole = gradient(batch, credit, trunk=trunk, micro_batch_tokens=ALL_AT_ONCE)
    third = int(batch.segment_lengths_S.max()) * (batch.num_segments // 3)
    assert any(name.startswith("critic.") for name in whole)
    for budget in (third, ONE_BY_ONE):
        assert (
            distance(whole, gradient(batch, credit, trunk=trunk, micro_batch_tokens=budget)) < 2e-6
        )


@pytest.mark.parametrize("trunk", TRUNKS)
def test_the_critics_gradient_is_the_one_of_the_definition(trunk):
    """Sum over trained tokens of half the squared error, over their count, written out."""
    a_learner = learner(trunk=trunk)
    batch, credit = prepared(a_learner, batch_of())
    mine = {
        n: g for n, g in gradient(batch, credit, trunk=trunk).items() if n.startswith("critic.")
    }
    value_model = a_learner.models.critic.bare
    logits = [
        value_model(input_ids=ids[None]).logits[0, :-1, 0]
        for ids in batch.token_ids_T.split(batch.segment_lengths_S.tolist())
    ]
    value_T = torch.cat([torch.cat([torch.zeros(1), values]) for values in logits])
    error_T = (value_T - credit.return_T.float())[batch.eligible_T]
    (0.5 * error_T**2).sum().div(batch.eligible_T.sum()).backward()
    owned, share = (
        (value_model, 1.0) if trunk == "own" else (value_model.head, CriticConfig().value_coef)
    )
    assert (
        distance({f"critic.{name}": p.grad * share for name, p in owned.named_parameters()}, mine)
        < 1e-5
    )


def test_the_policys_gradient_does_not_feel_an_own_critic_and_feels_a_shared_one():
    batch, credit = prepared(learner(), batch_of())
    own, shared = (gradient(batch, credit, trunk=trunk) for trunk in TRUNKS)
    plain: dict[str, Tensor] = {}
    alone = Learner(tiny_model(), GRPO(), LearnerConfig())
    alone.models.policy.scale_down = lambda norm, most: plain.update(
        {n: g.clone() for n, g in alone.models.gradients().items()}
    )
    alone.update(batch, credit, step=1)
    policy = {name: own[name] for name in plain}
    assert distance(plain, policy) == 0.0
    assert distance(plain, {name: shared[name] for name in plain}) > 1e-3


def test_a_shared_trunk_passes_once_per_micro_batch():
    a_learner = learner(trunk="policy")
    batch, credit = prepared(a_learner, batch_of())
    passes: list[int] = []
    a_learner.models.policy.module.model.register_forward_hook(lambda *_: passes.append(1))
    (report,) = a_learner.update(batch, credit, step=1)
    assert len(passes) == report.metrics["micro_batches"]


# ------------------------------------------------------------------------------------------------ it learns


def two_states(seed: int) -> Batch:
    """The prompt's only token is the state: 1 pays 1 at the end, 2 pays nothing. What is said in between is noise."""
    rng = np.random.default_rng(seed)

    def a_trajectory(task: int, number: int) -> Trajectory:
        state = 1 + task % 2
        said = span(Source.POLICY, 0, rng.integers(3, 60, 5), rng, sampled=True)
        segment = Segment((span(Source.PROMPT, 0, [state]), said))
        return Trajectory(
            Task(f"t{task}", "test", task),
            number,
            number,
            FIRST,
            (Turn(0, "", reward=float(task % 2)),),
            (segment,),
            StopReason.TERMINATED,
        )

    return Batch.from_groups([Group(tuple(a_trajectory(t, a) for a in range(4))) for t in range(8)])


@pytest.mark.full
@pytest.mark.parametrize(
    "trunk, steps, lr, settings",
    [
        ("own", 40, 1e-5, {"critic_lr": 3e-3}),
        ("policy", 64, 1e-3, {"critic_lr": 1e-2, "value_coef": 5.0}),
    ],
)
def test_two_states_are_told_apart(trunk, steps, lr, settings):
    """Fresh trajectories every step. With a trunk of its own the critic learns while the policy all but stands still; on
    the policy's trunk the two pull at the same weights, and it takes longer."""
    a_learner = learner(trunk=trunk, lr=lr, opinion=False, **settings)
    explained = []
    for step in range(steps):
        (report,) = a_learner.update(*prepared(a_learner, two_states(step)), step=step)
        explained.append(report.metrics["explained_variance"])
    assert explained[0] == pytest.approx(0, abs=1e-6) and np.mean(explained[-5:]) > 0.9


def test_several_updates_clip_values_and_ratios():
    algorithm = PPO(
        epochs=4,
        minibatches=2,
        objective={"clip_low": 0.02, "clip_high": 0.02},
        critic={"value_clip": 0.01},
    )
    a_learner = learner(algorithm, lr=3e-3, critic_lr=1e-2)
    reports = a_learner.update(*prepared(a_learner, batch_of()), step=1)
    assert len(reports) == 8 and reports[0].metrics["value_clip_fraction"] == 0.0
    assert (
        reports[-1].metrics["value_clip_fraction"] > 0.1
        and reports[-1].metrics["clip_fraction"] > 0
    )
    first, last = reports[0].table, reports[-1].table
    for name in (
        "value",
        "return",
        "old_logp",
        "final_value",
        "advantage",
    ):  # the step's, whatever was moved since
        assert np.array_equal(first[name], last[name], equal_nan=True)
    assert np.nanmax(np.abs(first["new_value"] - first["value"])) < 1e-5
    assert np.nanmax(np.abs(last["new_value"] - last["value"])) > 1e-2


# ------------------------------------------------------------------------------------------------ the table and metrics


def test_the_table_has_what_credit_was_made_of():
    a_learner = learner(PPO(reference={"kl_coef": 0.1}))
    batch, credit = prepared(a_learner, batch_of())
    (report,) = a_learner.update(batch, credit, step=1)
    table = report.table
    for name, column in {
        "value": batch.value_T,
        "return": credit.return_T,
        "ref_logp": batch.ref_logp_T,
        "old_logp": batch.old_logp_T,
    }.items():
        assert (
            np.array_equal(table[name], column.numpy(), equal_nan=True)
            and table[name].dtype == column.numpy().dtype
        )
    assert np.array_equal(
        table["final_value"][batch.last_token_N], batch.final_value_N.numpy(), equal_nan=True
    )
    assert np.isfinite(table["final_value"]).sum() == int(batch.truncated_N.sum())
    used = table["used"]
    assert report.metrics["value_loss"] == pytest.approx(
        0.5 * ((table["new_value"] - table["return"])[used] ** 2).mean(), rel=1e-5
    )
    assert {"explained_variance", "critic_grad_norm", "value_clip_fraction", "kl_ref"} <= set(
        report.metrics
    )


# ------------------------------------------------------------------------------------------------ bad updates


@pytest.mark.parametrize("trunk", TRUNKS)
def test_a_value_loss_that_is_not_finite_is_skipped_and_named(trunk):
    a_learner = learner(trunk=trunk)
    batch, credit = prepared(a_learner, batch_of())
    index = int(batch.eligible_T.nonzero()[5])
    return_T = credit.return_T.clone()
    return_T[index] = float("inf")
    before = full_state(a_learner)
    (report,) = a_learner.update(batch, replace(credit, return_T=return_T), step=1)
    assert same(before, full_state(a_learner)) and a_learner.version == 0
    assert "return = inf" in report.skipped and batch.describe_token(index) in report.skipped
    (report,) = a_learner.update(batch, credit, step=2)
    assert report.skipped is None


def test_a_spoilt_critic_touches_nothing_and_is_named():
    a_learner = learner()
    batch, credit = prepared(a_learner, batch_of())
    with torch.no_grad():
        a_learner.models.critic.bare.head.weight[0, 0] = float("nan")
    before = full_state(a_learner)
    (report,) = a_learner.update(batch, credit, step=1)
    assert "new_value" in report.skipped
    after = full_state(a_learner)
    assert all(torch.equal(before[k].nan_to_num(), after[k].nan_to_num()) for k in before)


def test_the_critic_learns_where_the_policy_has_nothing_to_learn():
    """Every trajectory earned the same and was expected to: advantages are zero, and yet the critic is wrong."""
    a_learner = learner(opinion=False)
    batch, credit = prepared(a_learner, Batch.from_groups(make_groups(rewards=[[1.0] * 4] * 3)))
    flat = replace(credit, advantage_T=torch.zeros_like(credit.advantage_T))
    policy, critic = (
        {k: t for k, t in full_state(a_learner).items() if k.startswith(p)}
        for p in ("model", "critic/")
    )
    (report,) = a_learner.update(batch, flat, step=1)
    after = full_state(a_learner)
    assert "exactly zero" in report.skipped and report.metrics["critic_grad_norm"] > 0
    assert all(torch.equal(policy[k], after[k]) for k in policy)
    assert not all(torch.equal(critic[k], after[k]) for k in critic)


def test_credit_without_returns_is_refused():
    a_learner = learner()
    batch, credit = prepared(a_learner, batch_of())
    with pytest.raises(LearnerError, match="no return_T"):
        a_learner.update(batch, replace(credit, return_T=None), step=1)


# ------------------------------------------------------------------------------------------------ state


@pytest.mark.parametrize("trunk", TRUNKS)
def test_state_goes_on_bit_for_bit(trunk):
    """Through safetensors and JSON, into a learner that started from other weights."""
    algorithm = PPO(minibatches=2, reference={"kl_coef": 0.01})
    batch = batch_of()
    straight = learner(algorithm, trunk=trunk)
    straight.update(*prepared(straight, batch), step=1)
    tensors, state = straight.state()
    assert set(tensors) == {"model", "optimizer", "critic", "critic_optimizer"}
    stored = {part: save(named) for part, named in tensors.items()}
    resumed = Learner(
        tiny_model(99),
        algorithm,
        LearnerConfig(lr=1e-3),
        reference=tiny_model(),
        critic=CriticConfig(trunk=trunk),
    )
    resumed.load_state(
        {part: load(data) for part, data in stored.items()}, json.loads(json.dumps(state))
    )
    assert same(full_state(straight), full_state(resumed))
    for a_learner in (straight, resumed):
        a_learner.update(*prepared(a_learner, batch), step=2)
    assert same(full_state(straight), full_state(resumed))


def test_negative_control_without_the_critics_moments_it_does_not():
    batch, straight, resumed = batch_of(), learner(), learner()
    straight.update(*prepared(straight, batch), step=1)
    tensors, state = straight.state()
    resumed.load_state({**tensors, "critic_optimizer": {}}, state)
    for a_learner in (straight, resumed):
        a_learner.update(*prepared(a_learner, batch), step=2)
    assert not same(full_state(straight), full_state(resumed))


def test_a_state_without_a_critic_or_with_another_one_is_refused_before_anything_changes():
    a_learner = learner()
    before = full_state(a_learner)
    tensors, state = Learner(tiny_model(1), GRPO(), LearnerConfig()).state()
    with pytest.raises(LearnerError, match="this state has no critic, but the algorithm needs one"):
        a_learner.load_state(tensors, state)
    with pytest.raises(LearnerError, match="trunk 'policy', but critic.trunk is 'own'"):
        a_learner.load_state(*learner(trunk="policy", seed=1).state())
    assert same(before, full_state(a_learner))
    plain = Learner(tiny_model(), GRPO(), LearnerConfig())
    with pytest.raises(LearnerError, match="this state has a critic, but grpo needs none"):
        plain.load_state(*a_learner.state())


def test_two_learners_are_equal_bit_for_bit_and_the_model_handed_in_is_left_alone():
    model, batch = tiny_model(), batch_of()
    before = {name: p.clone() for name, p in model.named_parameters()}
    states = []
    for _ in range(2):
        a_learner = Learner(model, PPO(minibatches=2), LearnerConfig(lr=1e-3))
        a_learner.update(*prepared(a_learner, batch), step=1)
        states.append(full_state(a_learner))
    assert same(*states) and same(before, dict(model.named_parameters()))


def test_the_critics_gradient_is_scaled_down_by_itself():
    batch, credit = prepared(learner(), batch_of())
    held: list[float] = []
    a_learner = learner(max_grad_norm=0.01)
    weights = a_learner.models.critic.weights
    weights.step = lambda lr: held.append(
        float(torch.nn.utils.get_total_norm([p.grad for p in weights.parameters]))
    )
    (report,) = a_learner.update(batch, credit, step=1)
    assert held == [pytest.approx(0.01, rel=1e-4)] and report.metrics["critic_grad_norm"] > 0.01


@pytest.mark.parametrize(
    "wrong", [dict(trunk="shared"), dict(lr=0.0), dict(lr=float("nan")), dict(value_coef=-1.0)]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CriticConfig(**wrong)


def test_a_model_without_a_trunk_is_refused():
    class Bare(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.lm_head = torch.nn.Linear(4, 4)

        def get_output_embeddings(self):
            return self.lm_head

    with pytest.raises(LearnerError, match="Bare names no base_model"):
        Learner(Bare(), PPO(), LearnerConfig())
