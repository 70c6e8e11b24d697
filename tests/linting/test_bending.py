"""R12 at the start: a sampler that modifies the distribution in another way than declared is told from the whole distribution."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest
import torch

from tests.linting.clean_rollouts import Recipe, bigram_model, collected
from workbench.basics.findings import ERROR, Finding, Place
from workbench.learn.algorithms import GRPO
from workbench.learn.config import LearnerConfig
from workbench.linting import RULES, Evidence, check
from workbench.linting.bending import drawn_as_said, drawn_from_the_model
from workbench.linting.probe import probe_of
from workbench.plain.engine import distribution
from workbench.training.config import load_config
from workbench.training.session import open_session, rollout
from workbench.values import Sampling, Segment, Span

BENDS = ((0.7, 1.0), (1.0, 0.8), (0.7, 0.9))


@lru_cache
def evidence_at(temperature: float, top_p: float) -> Evidence:
    recipe = Recipe(
        policy="pairs", temperature=temperature, top_p=top_p, max_turn_tokens=24, group_size=3
    )
    probe = probe_of(bigram_model(recipe.template, recipe.preset), GRPO(), LearnerConfig())
    return replace(collected(recipe), probe=probe, journal=None)


def said_otherwise(evidence: Evidence, change) -> Evidence:
    """The same tokens; `change(logprobs, plain_logprobs)` is what the engine says of those it sampled."""

    def of_span(span: Span) -> Span:
        return (
            span
            if span.logprobs is None
            else replace(span, logprobs=change(span.logprobs, span.plain_logprobs))
        )

    groups = tuple(
        tuple(
            replace(
                t,
                segments=tuple(
                    Segment(tuple(map(of_span, segment.spans))) for segment in t.segments
                ),
            )
            for t in group
        )
        for group in evidence.groups
    )
    return replace(evidence, groups=groups, batch=None, credit=None)


def bending(evidence: Evidence) -> list[str]:
    found = check(evidence, [RULES["R12"]])["R12"].errors
    return [finding.what for finding in found if "in another way than declared" in finding.what]


@pytest.mark.parametrize(("temperature", "top_p"), BENDS)
def test_an_honest_sampler_passes(temperature, top_p):
    evidence = evidence_at(temperature, top_p)
    assert not check(evidence, [RULES["R12"]])["R12"].errors


@pytest.mark.parametrize(("temperature", "top_p"), BENDS)
def test_another_temperature_or_a_nucleus_that_is_not_renormalised_is_named(temperature, top_p):
    evidence = evidence_at(temperature, top_p)
    assert not bending(said_otherwise(evidence, lambda logp, plain: logp))
    hotter = replace(
        evidence,
        groups=tuple(
            tuple(
                replace(
                    t,
                    segments=tuple(
                        Segment(
                            tuple(
                                span
                                if span.sampling is None
                                else replace(
                                    span,
                                    sampling=Sampling(
                                        0.5 * temperature,
                                        top_p,
                                        span.sampling.engine,
                                        span.sampling.dtype,
                                    ),
                                )
                                for span in segment.spans
                            )
                        )
                        for segment in t.segments
                    ),
                )
                for t in group
            )
            for group in evidence.groups
        ),
        batch=None,
        credit=None,
    )
    assert bending(hotter)
    (words,) = bending(said_otherwise(evidence, lambda logp, plain: logp - np.float32(0.1)))
    assert "of the model's own distribution" in words and "stored is" in words


def test_weights_that_have_moved_are_not_judged_by_those_that_have_not():
    evidence = said_otherwise(evidence_at(0.7, 1.0), lambda logp, plain: logp - np.float32(0.1))
    assert bending(evidence) and not bending(replace(evidence, policy_version=3))


def test_a_policy_that_trains_adapters_is_asked_without_them():
    """A probe draws its adapters at random, so that all of the gradient is seen; what sampled has none yet."""
    settings = {"learner.lora_rank": 8, "collect.temperature": 0.7}
    session = open_session(load_config("frozenlake", settings), quiet=True)
    groups = rollout(session, 2, group_size=3, step=1)
    probe = probe_of(session.policy.model, GRPO(), session.config.learner)
    evidence = Evidence(tuple(map(tuple, groups)), policy_version=0, probe=probe)
    assert not bending(evidence)
    # Controls: another sampler is named, and so it is beside the adapters that a probe draws.
    assert bending(said_otherwise(evidence, lambda logp, plain: logp - np.float32(0.1)))
    assert bending(replace(evidence, probe=replace(probe, sampler=None)))


def test_a_large_policy_is_asked_itself_about_a_few_tokens(monkeypatch):
    """A stand-in answers for gradients; what was sampled is its own, and the beginning of a segment is enough."""
    session = open_session(load_config("frozenlake", {"collect.temperature": 0.7}), quiet=True)
    groups = rollout(session, 2, group_size=3, step=1)
    monkeypatch.setattr("workbench.linting.probe.MAX_PARAMETERS", 1)
    probe = probe_of(session.policy.model, session.config.algorithm, session.config.learner)
    assert probe.stood_for and probe.own is session.policy.model
    evidence = Evidence(tuple(map(tuple, groups)), policy_version=0, probe=probe)
    asked = []
    predictions = type(probe).predictions
    monkeypatch.setattr(
        type(probe),
        "predictions",
        lambda self, ids: asked.append(len(ids)) or predictions(self, ids),
    )
    part = "tokens compared with the model's own distribution"
    answer = check(evidence, [RULES["R12"]])["R12"]
    assert not answer.errors and part not in answer.gaps
    assert 0 < sum(asked) <= 256
    shifted = said_otherwise(evidence, lambda logp, plain: logp - np.float32(0.1))
    assert bending(shifted)
    # Negative control: a policy of half precision is not asked, and that is said.
    monkeypatch.setattr("workbench.linting.probe.OWN_TOKENS", 0)
    assert part in check(shifted, [RULES["R12"]])["R12"].gaps and not bending(shifted)


def test_the_definition_by_hand():
    logits = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64).log()
    assert np.allclose(np.exp(distribution(logits, 1.0, 0.7)), [0.625, 0.375, 0, 0])
    squares = np.square([0.5, 0.3, 0.15, 0.05])
    assert np.allclose(np.exp(distribution(logits, 0.5, 1.0)), squares / squares.sum())
    first = np.exp(distribution(logits, 1.0, 0.5))
    assert np.allclose(first, [1, 0, 0, 0]), "0.5 is reached by the first"


# ------------------------------------------------------------------------------------------------ are they drawn?


def freshly_sampled() -> Evidence:
    session = open_session(load_config("frozenlake"), quiet=True)
    config, groups = session.config, rollout(session, 4, group_size=12, step=1)
    probe = probe_of(session.policy.model, config.algorithm, config.learner, config.critic)
    return Evidence(tuple(map(tuple, groups)), policy_version=0, probe=probe)


@pytest.mark.parametrize(
    "bug, words",
    [(None, ""), ("squared", "are not even"), ("the first again", "are alike")],
    ids=str,
)
def test_random_numbers_that_are_not_uniform_or_used_again_are_told(bug, words, monkeypatch):
    import workbench.engines.transformers_engine as module

    real = module.sample_rows
    real_sample = module.TransformersEngine._sample

    def bent(logits_RV, temperature, top_p, uniform):
        return real(logits_RV, temperature, top_p, uniform**2)

    def again(self, rows, logits_RV):
        for row in rows:
            row.uniforms[:] = row.uniforms[0]
        return real_sample(self, rows, logits_RV)

    if bug == "squared":
        monkeypatch.setattr(module, "sample_rows", bent)
    elif bug:
        monkeypatch.setattr(module.TransformersEngine, "_sample", again)
    said = [
        each.what for each in drawn_from_the_model(freshly_sampled()) if isinstance(each, Finding)
    ]
    assert any(words in what for what in said) if bug else not said, said


def test_logprobs_of_tokens_that_are_likelier_than_draws_are_told():
    rng = np.random.default_rng(5)
    p_V = np.array([0.6, 0.3, 0.08, 0.02])
    entropy_M = np.full(2000, -(p_V * np.log(p_V)).sum())
    fair, bent = (
        np.log(p_V[rng.choice(4, 2000, p=p_V)]),
        np.log(p_V[rng.choice(4, 2000, p=p_V**2 / (p_V**2).sum())]),
    )
    assert not [s for s in drawn_as_said(fair, entropy_M, Place()) if isinstance(s, Finding)]
    found = [s for s in drawn_as_said(bent, entropy_M, Place()) if isinstance(s, Finding)]
    assert found[0].severity == ERROR and "more likely than draws" in found[0].what
