"""R13: a setting that was set and does nothing is found, whoever lost it; one that acts is not."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from learning_data import make_groups, tiny_model

from tests.composed import of_class
from tests.counts import reduced
from workbench.basics.findings import Answer
from workbench.learn.algorithms import ALGORITHMS, GRPO, PPO, Algorithm
from workbench.learn.algorithms.liveness import inert_settings, scales_again
from workbench.learn.algorithms.parts import Filter, Masks, Rewards
from workbench.learn.algorithms.settings import with_settings
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.linting import Evidence, check
from workbench.linting.knobs import RULES, changed_settings
from workbench.linting.made_up import made_up
from workbench.linting.probe import probe_of
from workbench.values import Group, Sampling, Segment, Source, Span
from workbench.values.errors import ConfigError

SET = {
    "objective.clip_low": 0.1,
    "objective.clip_high": 0.4,
    "objective.dual_clip": 2.0,
    "sampler_cap": 1.5,
    "reduction": "seq-mean-token-sum",
    "entropy_coef": 0.001,
    "reference.kl_coef": 0.001,
    "epochs": 2,
    "minibatches": 3,
    "minibatch_size": 8,
    "estimator.gamma": 0.9,
    "estimator.lam": 0.9,
    "estimator.gamma_turn": 0.8,
    "estimator.whiten": False,
    "critic.bootstrap": "truncated",
    "critic.value_clip": 0.1,
    "estimator.omega": 0.5,
    "estimator.baseline": "none",
    "estimator.normalize_std": True,
    "fixed_length": 100,
    "objective.kind": "cispo",
}
NESTED = [
    ("rewards", Rewards("mean_std", "batch")),
    ("filter", Filter("top_share", share=0.5)),
    ("filter", Filter(zero_variance="drop")),
    ("masks", Masks(loss_mask=False)),
]


def asked(algorithm, probe=None) -> Answer:
    batch = Batch.from_groups(make_groups()) if probe is not None else None
    return check(Evidence(algorithm=algorithm, batch=batch, probe=probe), RULES)["R13"]


def with_probe(algorithm) -> Answer:
    return asked(algorithm, probe_of(tiny_model(), algorithm, LearnerConfig()))


def settings_of(algorithm) -> list:
    """The algorithm with each of the settings above by itself, where it has it and accepts it."""
    made = []
    usual = {"objective.kind": algorithm.objective.name, **algorithm.settings}
    for part, value in NESTED:
        with suppress(ConfigError):
            if getattr(algorithm, part) != value:
                made.append(algorithm(**{part: value}))
    for name, value in SET.items():
        with suppress(ConfigError):
            if usual.get(name, value) != value:
                made.append(with_settings(algorithm, {name: value}))
    return made


# ------------------------------------------------------------------------------------------------ what acts


@pytest.mark.parametrize(
    "name", reduced(ALGORITHMS, ("grpo", "dapo", "gspo", "ppo", "reinforce_pp", "starpo_s"))
)
def test_nothing_is_said_of_defaults_and_of_settings_that_act(name):
    algorithm = ALGORITHMS[name]()
    assert changed_settings(algorithm) == [] and asked(algorithm).status == "passed"
    for changed in settings_of(algorithm):
        if scales_again(changed):  # that one is dead
            assert {each.what.split()[0] for each in asked(changed).errors} == {
                "algorithm.rewards.normalize"
            }
            continue
        assert len(changed_settings(changed)) >= 1 and not asked(changed).errors, changed


def test_the_learner_hears_them_too():
    algorithm = GRPO(
        entropy_coef=0.001,
        epochs=2,
        reduction="fixed-length",
        fixed_length=40,
        reference={"kl_coef": 0.001},
        objective={"clip_high": 0.3},
    )
    answer = with_probe(algorithm)
    assert not answer.findings and answer.looked == 6 and not answer.missing


def test_critic_settings_are_heard():
    assert not with_probe(
        PPO(
            minibatches=2,
            estimator={"gamma": 0.9},
            critic={"value_clip": 0.1, "bootstrap": "truncated"},
        )
    ).findings


def test_without_a_learner_that_is_said():
    assert "a learner" in asked(GRPO(epochs=2)).missing[0]
    assert not asked(GRPO()).missing


@settings(max_examples=25)
@given(
    name=st.sampled_from(list(ALGORITHMS)),
    chosen=st.lists(st.sampled_from(list(SET)), min_size=2, max_size=4),
)
def test_settings_together_are_not_called_dead_unless_known_to_be(name, chosen):
    algorithm = ALGORITHMS[name]()
    for key in chosen:
        try:
            algorithm = with_settings(algorithm, {key: SET[key]})
        except (ConfigError, TypeError):
            continue
    dead = {key for key, is_dead, _ in inert_settings(algorithm, 16, 8) if is_dead}
    for finding in asked(algorithm).findings:
        assert (
            finding.severity == "note"
            and finding.what.split()[0].removeprefix("algorithm.") in dead
        )


def test_a_normalisation_that_whitening_takes_off_again_is_found():
    algorithm = ALGORITHMS["reinforce_pp"](rewards=Rewards("mean_std", "batch"))
    assert {finding.what.split()[0] for finding in asked(algorithm).errors} >= {
        "algorithm.rewards.normalize"
    }


def test_an_inert_setting_that_is_known_is_a_note_with_the_reason():
    (finding,) = asked(GRPO(masks=Masks(advantage_mask=False))).findings
    assert finding.severity == "note" and "gives all tokens of a trajectory" in finding.what


# ------------------------------------------------------------------------------------------------ what does not


@dataclass(frozen=True)
class WithDead(Algorithm):
    """A setting that nobody reads (NeMo-RL#3792)."""

    positive_example_nll_weight: float = 0.0


@dataclass(frozen=True)
class Inner:
    depth: int = 1
    words: str = "a"


@dataclass(frozen=True)
class WithNested(Algorithm):
    inner: Inner = field(default_factory=Inner)


@dataclass(frozen=True)
class Overlong(Algorithm):
    """Settings of one's own that act, each in its way."""

    overlong_from: int = 10_000
    label: str = ""

    def credit(self, batch):
        credit = super().credit(batch)
        long_S = batch.segment_offsets.diff() >= max(self.overlong_from, 33)
        long_T = long_S.repeat_interleave(batch.segment_offsets.diff())
        return replace(
            credit, advantage_T=credit.advantage_T - 0.5 * long_T * (credit.weight_T != 0)
        )


@dataclass(frozen=True)
class Forgetting(Algorithm):
    def loss(self, inputs):
        return replace(super().loss(inputs), entropy_loss_M=None)


def test_a_dead_setting_of_ones_own_algorithm_is_a_note():
    """It may act on trajectories unlike any that are at hand."""
    assert not asked(of_class(WithDead)).findings
    (finding,) = asked(of_class(WithDead, positive_example_nll_weight=0.1)).findings
    assert (
        finding.severity == "note"
        and "positive_example_nll_weight = 0.1 had no effect here" in finding.what
    )


def test_a_dead_setting_of_ours_is_an_error_in_ones_own_class_too():
    """Its loss forgets the coefficient that it inherits."""
    (finding,) = asked(of_class(Forgetting, entropy_coef=0.1)).errors
    assert "entropy_coef = 0.1 has no effect" in finding.what


def test_a_dead_nested_setting_is_named():
    assert changed_settings(of_class(WithNested, inner=Inner(depth=2))) == ["inner.depth"]
    (finding,) = asked(of_class(WithNested, inner=Inner(depth=2))).findings
    assert finding.severity == "note" and "inner.depth = 2" in finding.what


def test_settings_of_ones_own_that_need_other_trajectories_or_none_are_no_errors():
    """A length that no made-up trajectory has, a name for a plot, and one that the step's own trajectories do reach."""
    (finding,) = asked(of_class(Overlong, label="run A")).findings
    assert finding.severity == "note"
    (finding,) = asked(of_class(Overlong, overlong_from=400)).findings
    assert finding.severity == "note"
    assert made_up(np.arange(40)).segment_offsets.diff().max() < 33
    span = Span(
        Source.POLICY,
        0,
        np.arange(33),
        np.full(33, -0.5),
        policy_version=0,
        sampling=Sampling(),
        sampled=True,
    )
    groups = [
        Group(
            tuple(
                replace(t, segments=(*t.segments[:-1], Segment((*t.segments[-1].spans[:1], span))))
                if t.attempt == 0
                else t
                for t in group
            )
        )
        for group in make_groups()
    ]
    found = check(
        Evidence(algorithm=of_class(Overlong, overlong_from=400), batch=Batch.from_groups(groups)),
        RULES,
    )["R13"]
    assert not found.findings


def test_a_bound_far_away_is_still_reached():
    assert (
        not asked(GRPO(epochs=2, objective={"dual_clip": 20.0})).findings
        and not asked(GRPO(epochs=2, objective={"dual_clip": 500.0})).findings
    )


def ignore(monkeypatch, module: str, name: str, **instead):
    import importlib

    where = importlib.import_module(module)
    real = getattr(where, name)
    monkeypatch.setattr(where, name, lambda *a, **k: real(*a, **k | instead))


@pytest.mark.parametrize(
    ("setting", "bug"),
    [
        (
            "objective.clip_high",
            ("workbench.learn.algorithms.objectives", "clipped_surrogate", {"high": 0.2}),
        ),
        (
            "objective.clip_low",
            ("workbench.learn.algorithms.objectives", "clipped_surrogate", {"low": 0.2}),
        ),
        (
            "objective.dual_clip",
            ("workbench.learn.algorithms.objectives", "clipped_surrogate", {"dual": 0.0}),
        ),
        (
            "fixed_length",
            ("workbench.learn.algorithms.algorithm", "reduction", {"fixed_length": 256}),
        ),
        (
            "estimator.gamma",
            ("workbench.learn.algorithms.estimators", "gae", {"gamma": 1.0}),
        ),
        ("estimator.lam", ("workbench.learn.algorithms.estimators", "gae", {"lam": 1.0})),
        (
            "critic.value_clip",
            ("workbench.learn.algorithms.parts", "clipped_value_loss", {"clip": 0.5}),
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_negative_control_a_setting_that_is_lost_in_the_arithmetic(setting, bug, monkeypatch):
    kind = (
        PPO
        if setting in ("estimator.gamma", "estimator.lam", "critic.value_clip")
        else ALGORITHMS["dr_grpo"]
        if setting == "fixed_length"
        else GRPO
    )
    # With one update, bounds are known to be inert.
    algorithm = with_settings(kind, {setting: SET[setting], "epochs": 2})
    assert not asked(algorithm).findings
    ignore(monkeypatch, bug[0], bug[1], **bug[2])
    assert [setting in finding.what for finding in asked(algorithm).errors] == [True]


def test_negative_control_a_setting_that_the_learner_does_not_hand_on(monkeypatch):
    """Credit and loss heed it; the learner takes the entropy without a gradient."""
    import workbench.learn.microbatch as module

    real = module.entropy_of
    monkeypatch.setattr(module, "entropy_of", lambda logits: real(logits.detach()))
    (finding,) = with_probe(GRPO(entropy_coef=0.01)).errors
    assert (
        "entropy_coef = 0.01 changes what credit and loss say, but not what the learner does"
        in finding.what
    )


def test_negative_control_epochs_that_are_not_made(monkeypatch):
    real = Learner.update

    def update(self, batch, credit, *, step):
        self.algorithm = replace(self.algorithm, epochs=1)
        return real(self, batch, credit, step=step)

    monkeypatch.setattr(Learner, "update", update)
    (finding,) = with_probe(GRPO(epochs=2)).errors
    assert "epochs = 2" in finding.what and "not what the learner does" in finding.what


# ------------------------------------------------------------------------------------------------ made-up trajectories


def test_made_up_trajectories_have_something_for_every_setting():
    batch = made_up(np.arange(40))
    group_N, reward_N = batch.group_of_trajectory_N, batch.reward_N
    spreads = [float(reward_N[group_N == g].std()) for g in group_N.unique()]
    assert min(spreads) < 1e-12 and max(spreads) > 1 and len({round(s, 3) for s in spreads}) > 3
    assert bool(batch.context_full_N.any()) and bool(
        (batch.truncated_N & ~batch.context_full_N).any()
    )
    assert bool(batch.terminated_N.any()) and len(batch.tag_N.unique()) == 2
    assert int(batch.turn_T.max()) > 0 and bool((batch.response_T & ~batch.eligible_T).any())
    assert set(np.arange(40)) >= set(batch.token_ids_T.tolist())


def test_they_are_the_same_every_time():
    one, other = made_up(np.arange(40)), made_up(np.arange(40))
    assert one.token_ids_T.equal(other.token_ids_T) and one.reward_N.equal(other.reward_N)
    assert one.old_logp_T.nan_to_num().equal(other.old_logp_T.nan_to_num())
