"""R12 at the start: a sampler that bends otherwise than it says is told from the whole distribution."""
from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from tests.linting.clean_rollouts import Recipe, bigram_model, collected
from workbench.algorithms import GRPO
from workbench.learner import LearnerConfig
from workbench.learner_probe import probe_of
from workbench.linting import RULES, Evidence, check
from workbench.linting.bending import bent_logprobs
from workbench.types import Sampling, Segment, Span

BENDS = ((0.7, 1.0), (1.0, 0.8), (0.7, 0.9))


@lru_cache
def evidence_at(temperature: float, top_p: float) -> Evidence:
    recipe = Recipe(policy="pairs", temperature=temperature, top_p=top_p, max_turn_tokens=24, group_size=3)
    probe = probe_of(bigram_model(recipe.template, recipe.preset), GRPO(), LearnerConfig())
    return replace(collected(recipe), probe=probe, journal=None)


def said_otherwise(evidence: Evidence, change) -> Evidence:
    """The same tokens; `change(logprobs, plain_logprobs)` is what the engine says of those it sampled."""
    def of_span(span: Span) -> Span:
        return span if span.logprobs is None else replace(span, logprobs=change(span.logprobs, span.plain_logprobs))

    groups = tuple(tuple(
        replace(t, segments=tuple(Segment(tuple(map(of_span, segment.spans))) for segment in t.segments))
        for t in group) for group in evidence.groups)
    return replace(evidence, groups=groups, batch=None, credit=None)


def bending(evidence: Evidence) -> list[str]:
    found = check(evidence, [RULES["R12"]])["R12"].errors
    return [finding.what for finding in found if "bends otherwise" in finding.what]


@pytest.mark.parametrize(("temperature", "top_p"), BENDS)
def test_an_honest_sampler_passes(temperature, top_p):
    evidence = evidence_at(temperature, top_p)
    assert not check(evidence, [RULES["R12"]])["R12"].errors


@pytest.mark.parametrize(("temperature", "top_p"), BENDS)
def test_another_temperature_or_a_nucleus_that_is_not_renormalised_is_named(temperature, top_p):
    evidence = evidence_at(temperature, top_p)
    assert not bending(said_otherwise(evidence, lambda logp, plain: logp))
    hotter = replace(evidence, groups=tuple(tuple(replace(t, segments=tuple(
        Segment(tuple(span if span.sampling is None else replace(span, sampling=Sampling(
            0.5 * temperature, top_p, span.sampling.engine, span.sampling.dtype)) for span in segment.spans))
        for segment in t.segments)) for t in group) for group in evidence.groups), batch=None, credit=None)
    assert bending(hotter)
    (words,) = bending(said_otherwise(evidence, lambda logp, plain: logp - np.float32(0.1)))
    assert "of the model's own distribution" in words and "stored is" in words


def test_weights_that_have_moved_are_not_judged_by_those_that_have_not():
    evidence = said_otherwise(evidence_at(0.7, 1.0), lambda logp, plain: logp - np.float32(0.1))
    assert bending(evidence) and not bending(replace(evidence, policy_version=3))


def test_bending_by_hand():
    logp_LV = np.log(np.array([[0.5, 0.3, 0.15, 0.05]]))
    assert np.allclose(np.exp(bent_logprobs(logp_LV, 1.0, 0.7)), [[0.625, 0.375, 0, 0]])
    assert np.allclose(np.exp(bent_logprobs(logp_LV, 0.5, 1.0)), np.square([[0.5, 0.3, 0.15, 0.05]]) / 0.365)
    assert np.allclose(np.exp(bent_logprobs(logp_LV, 1.0, 0.5)), [[1, 0, 0, 0]]), "0.5 is reached by the first"
