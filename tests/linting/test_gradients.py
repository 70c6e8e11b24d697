"""R19: whatever is wrong between credit and the weights changes the learner's gradient, and not the plain one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from learning_data import make_groups, tiny_model, unscore
from transformers import GPT2Config, GPT2LMHeadModel

from tests.composed import of_class
from tests.counts import reduced
from workbench.basics.findings import Answer
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, Algorithm, StarPO
from workbench.learn.algorithms.parts import Filter, Masks, ReferenceKL
from workbench.learn.algorithms.plain_recipe import plain_recipe
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.ops.loss import ValueLoss
from workbench.learn.optimizer import TrainedWeights
from workbench.learn.update import GradientPass, Models
from workbench.linting import Evidence, check
from workbench.linting.expected import credits_of
from workbench.linting.gradients import RULES
from workbench.linting.plain_trajectories import trajectory_tokens_of_batch
from workbench.linting.probe import MAX_PARAMETERS, LearnerProbe, probe_of
from workbench.linting.questions import few_groups
from workbench.values import Group


def asked(algorithm, model=None, critic=CriticConfig(), groups=None, **settings) -> Answer:
    """What R19 says of a policy that is about to be trained like this."""
    groups = unscore(make_groups(tasks=2, attempts=3), 1, 2) if groups is None else groups
    probe = probe_of(
        tiny_model() if model is None else model, algorithm, LearnerConfig(**settings), critic
    )
    evidence = Evidence(
        tuple(map(tuple, groups)), batch=Batch.from_groups(groups), algorithm=algorithm, probe=probe
    )
    return check(evidence, RULES)["R19"]


def clean(answer: Answer) -> bool:
    return not answer.findings and not answer.missing and answer.looked > 0


# ------------------------------------------------------------------------------------------------ nothing is wrong


QUICK = ("gspo", "cispo", "reinforce_pp", "turn_ppo")  # the others are these with other credit


@pytest.mark.parametrize("name", reduced([name for name in ALGORITHMS if name != "gigpo"], QUICK))
def test_every_algorithm_passes(name):
    groups = unscore(make_groups(tasks=2, attempts=3), 1, 2)
    if name == "remax":
        groups = [replace(group, greedy=group.trajectories[0]) for group in groups]
    assert clean(answer := asked(ALGORITHMS[name](), groups=groups)), answer


@pytest.mark.parametrize(
    "algorithm",
    [
        GRPO(
            entropy_coef=0.001,
            sampler_cap=2.0,
            epochs=2,
            minibatches=3,
            reference={"kl_coef": 0.001},
            objective={"dual_clip": 3.0},
        ),
        GRPO(
            reduction="seq-mean-token-mean",
            objective={"kind": "gspo", "clip_low": 3e-4, "clip_high": 4e-4},
            reference={"kl_coef": 0.1, "kl_estimator": "k2"},
        ),
        GRPO(
            reduction="fixed-length",
            fixed_length=30,
            masks=Masks(loss_mask=False),
            entropy_coef=0.1,
        ),
        PPO(
            entropy_coef=0.01,
            minibatches=4,
            reference={"kl_in": "loss", "kl_coef": 0.01, "kl_estimator": "abs"},
            critic={"value_clip": 0.0},
        ),
        PPO(
            masks=Masks(advantage_mask=False),
            filter=Filter("top_share", share=0.5),
            critic={"bootstrap": "truncated"},
            reference={"kl_coef": 0.01},
        ),
    ],
    ids=range(5),
)
def test_many_settings_pass(algorithm):
    assert clean(answer := asked(algorithm)), answer


@pytest.mark.parametrize(
    "settings",
    [
        {"precision": "bf16"},
        {"layout": "padded", "weight_decay": 0.1, "warmup_updates": 7, "max_grad_norm": 0.01},
        pytest.param({"micro_batch_tokens": 1}, marks=pytest.mark.full),
    ],
    ids=str,
)
@pytest.mark.parametrize("trunk", ["own", "policy"])
def test_precision_layout_and_trunk_pass(settings, trunk):
    algorithm = StarPO(minibatch_size=0, minibatches=2)
    assert clean(answer := asked(algorithm, critic=CriticConfig(trunk=trunk), **settings)), answer


def test_a_history_of_many_segments_and_another_architecture_pass():
    assert clean(
        asked(GRPO(entropy_coef=0.01), groups=make_groups(tasks=2, attempts=3, fresh=True))
    )
    torch.manual_seed(0)
    gpt = GPT2LMHeadModel(
        GPT2Config(vocab_size=61, n_positions=128, n_embd=32, n_layer=2, n_head=4)
    )
    assert clean(answer := asked(PPO(), model=gpt)), answer


def cancelling():
    """In each group two trajectories with the very same tokens, of which one is paid: the gradients cancel."""
    return [
        Group(
            (
                first,
                replace(
                    first,
                    attempt=1,
                    turns=tuple(replace(turn, reward=turn.reward + 1) for turn in first.turns),
                ),
            )
        )
        for first, *_ in make_groups(tasks=2, attempts=2)
    ]


def test_a_gradient_that_cancels_is_nothing_but_rounding():
    answer = asked(GRPO(), groups=cancelling())
    assert clean(answer), answer


def test_negative_control_what_does_not_cancel_is_found_where_the_rest_does(monkeypatch):
    real = GradientPass.add

    def louder(self, micro):
        self.shares = {
            name: share._replace(
                weight_T=torch.where(self.batch.trajectory_of_token_T == 1, 1.01, 1.0)
                * share.weight_T
            )
            for name, share in self.shares.items()
        }
        real(self, micro)

    monkeypatch.setattr(GradientPass, "add", louder)
    assert asked(GRPO(), groups=cancelling()).errors


def test_it_changes_nothing():
    """Neither the policy nor the process's own random numbers."""
    model = tiny_model()
    before, state = (
        {n: w.clone() for n, w in model.state_dict().items()},
        torch.random.get_rng_state(),
    )
    attention = model.config._attn_implementation
    asked(PPO(), model=model)
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    assert (
        torch.equal(state, torch.random.get_rng_state())
        and model.config._attn_implementation == attention
    )
    assert all(p.grad is None for p in model.parameters())


def of_a_large_one(algorithm, model) -> Answer:
    """What R19 says, asked as of a policy that is too large to be tried."""
    model.weights_of_a_large_one = torch.nn.Parameter(
        torch.zeros(1).expand(MAX_PARAMETERS + 1), requires_grad=False
    )
    return asked(algorithm, model=model)


def test_for_a_policy_that_is_too_large_a_stand_in_is_asked_and_that_is_said(monkeypatch):
    """And the policy itself about one gradient; where that cannot be asked, it is said."""
    whole = of_a_large_one(GRPO(), tiny_model())
    assert whole.status == "passed" and not whole.missing
    monkeypatch.setattr("workbench.linting.probe.LearnerProbe.own_gradient", lambda self: None)
    answer = of_a_large_one(GRPO(), tiny_model())
    assert answer.status == "partly checked"
    assert {"the learner's gradient", "the optimizer's step"} <= set(answer.checked)
    [missing] = answer.missing
    assert missing.startswith("the gradient through this policy's own weights")
    assert "small enough" in missing and "20,000,000" in missing


def test_without_a_stand_in_a_policy_that_is_too_large_is_not_tried(monkeypatch):
    monkeypatch.setattr("workbench.linting.probe.service", lambda *a: lambda model: None)
    answer = of_a_large_one(GRPO(), tiny_model())
    assert (
        answer.status == "partly checked"
        and answer.checked == ("which way the objective pushes",)
        and "the learner's gradient" in answer.missing[0]
        and "small enough" in answer.missing[0]
        and "20,000,000" in answer.missing[0]
    )


def test_a_few_whole_groups_are_taken_and_of_a_long_one_some_trajectories():
    batch = Batch.from_groups(make_groups(tasks=3, attempts=4))
    lengths = [
        int(batch.segment_lengths_S[batch.trajectory_of_segment_S // 4 == g].sum())
        for g in range(3)
    ]
    assert few_groups(batch, sum(lengths[:2])).tolist() == list(range(8))
    assert len(few_groups(batch, 1)) == 2
    assert (
        few_groups(Batch.from_groups(unscore(make_groups(tasks=1, attempts=1), 0, 0)), 100).tolist()
        == []
    )


# ------------------------------------------------------------------------------------------------ something is


@dataclass(frozen=True)
class Loudest(Algorithm):
    """An algorithm with a loss of its own."""

    def loss(self, inputs):
        found = super().loss(inputs)
        return replace(found, loss_M=found.loss_M * 1.5)


def no_grad_around_kl(monkeypatch):
    real = ReferenceKL.loss
    monkeypatch.setattr(ReferenceKL, "loss", lambda *a: (real(*a)[0].detach(), real(*a)[1]))


def the_shift_is_forgotten(monkeypatch):
    import workbench.learn.microbatch as module

    monkeypatch.setattr(
        module, "scoring_position", lambda position_M: position_M.clamp(max=position_M.max() - 1)
    )


def a_mean_per_micro_batch(monkeypatch):
    import workbench.learn.update as module

    monkeypatch.setattr(
        module, "masked_sum_over", lambda v, w, _: (v * w.to(v.dtype)).sum() / (w != 0).sum()
    )


def the_mask_is_not_applied(monkeypatch):
    import workbench.learn.update as module

    monkeypatch.setattr(module, "masked_sum_over", lambda v, w, d: v.sum() / d)


def the_sign_of_the_entropy(monkeypatch):
    import workbench.learn.microbatch as module

    real = module.entropy_of
    monkeypatch.setattr(module, "entropy_of", lambda logits: -real(logits))


def all_prompts_are_the_first(monkeypatch):
    import workbench.learn.microbatch as module

    real = module.Rows.of.__func__
    monkeypatch.setattr(
        module.Rows,
        "of",
        classmethod(
            lambda cls, *a: replace(found := real(cls, *a), same_prompt_S=found.same_prompt_S * 0)
        ),
    )


def advantages_one_token_late(monkeypatch):
    real = Algorithm.loss
    monkeypatch.setattr(
        Algorithm, "loss", lambda self, i: real(self, replace(i, advantage_M=i.advantage_M.roll(1)))
    )


def bounds_change_places(monkeypatch):
    import workbench.learn.algorithms.objectives as module

    real = module.clipped_surrogate
    monkeypatch.setattr(
        module,
        "clipped_surrogate",
        lambda *a, low, high, dual=0.0: real(*a, low=high, high=low, dual=dual),
    )


def every_micro_batch_clears_the_gradient(monkeypatch):
    real = GradientPass.add
    monkeypatch.setattr(
        GradientPass,
        "add",
        lambda self, micro: (self.models.clear_gradients(), real(self, micro)) and None,
    )


def the_last_trained_token_is_dropped(monkeypatch):
    import workbench.learn.update as module

    real = module.shares_of

    def shorter(algorithm, batch, credit, used_T):
        last = batch.segment_offsets[1:] - 1
        used_T = used_T.clone()
        for start, stop in zip(batch.segment_offsets.tolist(), batch.segment_offsets[1:].tolist()):
            if used_T[start:stop].any():
                used_T[start + int(used_T[start:stop].nonzero()[-1])] = False
        return real(algorithm, batch, credit, used_T) if len(last) else {}

    monkeypatch.setattr(module, "shares_of", shorter)


def old_logprobs_are_the_samplers(monkeypatch):
    real = GradientPass.__init__
    monkeypatch.setattr(
        GradientPass,
        "__init__",
        lambda self, models, algorithm, batch, *a: real(
            self, models, algorithm, replace(batch, old_logp_T=batch.rollout_logp_T), *a
        ),
    )


def values_stand_one_token_late(monkeypatch):
    import workbench.learn.critic as module

    real = module.Critic.values
    monkeypatch.setattr(module.Critic, "values", lambda self, micro: real(self, micro).roll(1))


def the_gradient_is_not_scaled_down(monkeypatch):
    monkeypatch.setattr(TrainedWeights, "scale_down", lambda *a: None)


def gradients_are_never_cleared(monkeypatch):
    monkeypatch.setattr(Models, "clear_gradients", lambda self: None)


def decay_without_being_asked(monkeypatch):
    import workbench.learn.optimizer as module

    real = module.adamw

    def adamw(*a):
        optimizer = real(*a)
        optimizer.param_groups[0]["weight_decay"] = 100.0
        return optimizer

    monkeypatch.setattr(module, "adamw", adamw)


def betas_are_the_librarys(monkeypatch):
    import workbench.learn.optimizer as module

    monkeypatch.setattr(
        module,
        "adamw",
        lambda parameters, lr, config: torch.optim.AdamW(
            parameters, lr=lr, eps=config.eps, weight_decay=config.weight_decay
        ),
    )


def the_optimizer_remembers_nothing(monkeypatch):
    real = TrainedWeights.step
    monkeypatch.setattr(
        TrainedWeights,
        "step",
        lambda self, lr: (self.optimizer.state.clear(), real(self, lr)) and None,
    )


def the_warm_up_is_forgotten(monkeypatch):
    import workbench.learn.update as module

    monkeypatch.setattr(module, "rate_of", lambda config, update: config.lr)


def a_pass_leaves_some_out(monkeypatch):
    import workbench.learn.learner as module

    real = module.dealt
    monkeypatch.setattr(module, "dealt", lambda *a: [real(*a)[0]] * len(real(*a)))


def an_epoch_is_lost(monkeypatch):
    real = Learner.update

    def update(self, batch, credit, *, step):
        self.algorithm = replace(self.algorithm, epochs=1)
        return real(self, batch, credit, step=step)

    monkeypatch.setattr(Learner, "update", update)


def the_value_loss_is_not_halved(monkeypatch):
    import workbench.learn.algorithms.parts as module

    real = module.clipped_value_loss
    monkeypatch.setattr(
        module,
        "clipped_value_loss",
        lambda *a, clip: ValueLoss(2 * (found := real(*a, clip=clip)).loss, found.clipped),
    )


def the_last_value_is_that_before_the_last_token(monkeypatch):
    import workbench.learn.critic as module

    real = module.Critic.facts

    def facts(self, batch, needed_T, budget):
        value_T, final_N = real(self, batch, needed_T, budget)
        return value_T, torch.where(
            final_N.isnan(), final_N, value_T[batch.last_token_N.clamp(min=0)].nan_to_num(9.0)
        )

    monkeypatch.setattr(module.Critic, "facts", facts)


FULL = GRPO(entropy_coef=0.001, reduction="seq-mean-token-mean", reference={"kl_coef": 0.001})
BUGS = [
    (no_grad_around_kl, FULL, "kl term"),
    (the_shift_is_forgotten, FULL, "old_logp"),
    (a_mean_per_micro_batch, FULL, "gradient"),
    (the_mask_is_not_applied, FULL, "gradient"),
    (the_sign_of_the_entropy, FULL, "entropy term"),
    (all_prompts_are_the_first, FULL, "old_logp"),
    (advantages_one_token_late, FULL, "policy term"),
    (bounds_change_places, FULL, "policy term"),
    (every_micro_batch_clears_the_gradient, FULL, "gradient"),
    (the_last_trained_token_is_dropped, FULL, "gradient"),
    (old_logprobs_are_the_samplers, FULL, "policy term"),
    (values_stand_one_token_late, PPO(), "value"),
    (the_gradient_is_not_scaled_down, FULL, "max_grad_norm"),
    (gradients_are_never_cleared, FULL, "gradient"),
    (decay_without_being_asked, FULL, "AdamW"),
    (betas_are_the_librarys, FULL, "learner.betas"),
    (the_optimizer_remembers_nothing, FULL, "update 2 leaves"),
    (the_warm_up_is_forgotten, FULL, "AdamW"),
    (a_pass_leaves_some_out, GRPO(minibatches=3), "pass 0"),
    (an_epoch_is_lost, GRPO(epochs=3), "3 x 1"),
    (the_value_loss_is_not_halved, PPO(), "critic term"),
    (
        the_last_value_is_that_before_the_last_token,
        PPO(critic={"bootstrap": "truncated"}),
        "final_value",
    ),
]


@pytest.mark.parametrize(
    ("bug", "algorithm", "words"),
    [
        pytest.param(*case, id=case[0].__name__, marks=[pytest.mark.full] * bool(number % 3))
        for number, case in enumerate(BUGS)
    ],
)
def test_negative_control_a_bug_is_found_and_told(bug, algorithm, words, monkeypatch):
    from workbench.values import Group, StopReason

    groups = make_groups(tasks=2, attempts=3)
    if bug is the_last_value_is_that_before_the_last_token:
        groups = [
            Group(tuple(replace(t, stop_reason=StopReason.MAX_TURNS) for t in group))
            for group in groups
        ]
    bug(monkeypatch)
    answer = asked(algorithm, groups=groups, warmup_updates=5)
    assert answer.errors and any(words in finding.what for finding in answer.errors), answer


def test_an_algorithm_with_a_loss_of_its_own_is_held_to_its_own(monkeypatch):
    """The way to the weights is checked, the formula cannot be."""
    found = asked(of_class(Loudest))
    assert (
        found.status == "partly checked"
        and not found.findings
        and "objective of loudest" in found.missing[0]
    )
    the_mask_is_not_applied(monkeypatch)
    assert asked(of_class(Loudest)).errors


@dataclass(frozen=True)
class Exponential(Algorithm):
    """Weights of exp(A / beta), which soon have no float any more."""

    beta: float = 0.05

    def loss(self, inputs):
        weight_M = torch.exp((inputs.advantage_M / self.beta).float())
        return replace(super().loss(inputs), loss_M=-(weight_M * inputs.logp_M))


@pytest.mark.parametrize("beta", [0.05, 0.001])
def test_a_loss_that_cannot_take_much_credit_is_given_less(beta):
    answer = asked(of_class(Exponential, beta=beta))
    assert not answer.errors, answer
    assert any("finite" in f.what for f in answer.notes) is (beta == 0.001)


def test_the_finding_points_at_the_trajectory(monkeypatch):
    """One trajectory's tokens are left out of the loss: that one is named."""
    real = GradientPass.add

    def deaf(self, micro):
        whole, row_T = self.shares, self.batch.trajectory_of_token_T
        self.shares = {
            name: share._replace(weight_T=torch.where(row_T == 4, 0.0, share.weight_T))
            for name, share in whole.items()
        }
        real(self, micro)
        self.shares = whole

    monkeypatch.setattr(GradientPass, "add", deaf)
    answer = asked(GRPO())
    assert {finding.place.trajectory for finding in answer.errors} == {"task-1/1"}


def test_plain_and_learner_share_no_weights():
    probe: LearnerProbe = probe_of(tiny_model(), PPO(), LearnerConfig())
    batch = Batch.from_groups(make_groups())
    known = probe.facts(PPO(), batch)
    credit = PPO().credit(known)
    trajectories, recipe = trajectory_tokens_of_batch(known), plain_recipe(PPO()).recipe
    facts = {"value": known.value_T.double().numpy()}
    asked_of_plain = (
        recipe,
        trajectories.with_facts(facts),
        credits_of(trajectories, credit, recipe),
    )
    first = probe.plain(*asked_of_plain)
    assert all(
        float(update.plain[name].abs().max()) > 0
        for update in probe.moved(PPO(), known, credit)
        for name in first.by_name
    )
    again = probe.plain(*asked_of_plain)
    assert all(torch.equal(first.by_name[name], again.by_name[name]) for name in first.by_name)


def test_the_reference_is_not_the_policy(monkeypatch):
    """At the start both are the same weights: who computes the one with the other is right by chance, if nothing moves."""
    real = Learner.logprobs
    pulled = GRPO(reference={"kl_coef": 0.1})
    assert not asked(pulled).errors
    monkeypatch.setattr(
        Learner, "logprobs", lambda self, batch, tokens_T, model=None: real(self, batch, tokens_T)
    )
    assert any("ref_logp" in finding.what for finding in asked(pulled).errors)
