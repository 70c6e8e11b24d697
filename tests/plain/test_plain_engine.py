"""Sampling by `plain` and by the engine that samples a hundred turns at once: the same noise draws the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.learning_data import VOCAB, tiny_model
from workbench.engines.base import Request
from workbench.engines.sampling import sample_rows, uniforms
from workbench.engines.transformers_engine import TransformersEngine
from workbench.plain.engine import choose, distribution, generate

STOP = frozenset(range(6))


@given(
    st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 1.0, 1.7]), st.sampled_from([0.3, 0.9, 1.0])
)
def test_one_token(seed, temperature, top_p):
    rng = np.random.default_rng(seed)
    logits = torch.from_numpy((3 * rng.normal(size=(8, 20))).astype(np.float32))
    noise = rng.random(8)
    theirs = sample_rows(logits, np.full(8, temperature), np.full(8, top_p), noise)
    for row, uniform, token, logp in zip(logits, noise, theirs.token, theirs.logp):
        own = distribution(row, temperature, top_p)
        assert (choose(own, uniform) if temperature else int(row.argmax())) == token
        assert own[token] == pytest.approx(logp, abs=1e-5)


def test_noise_at_its_ends_draws_a_token_that_can_be():
    logp = np.log(
        np.array([0.0, 0.25, 0.75, 0.0], dtype=float),
        where=[False, True, True, False],
        out=np.full(4, -np.inf),
    )
    assert (
        choose(logp, 0.0) == 1
        and choose(logp, 0.25) == 2
        and choose(logp, np.nextafter(1.0, 0.0)) == 2
    )


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.7, 0.9), (0.0, 1.0)])
def test_whole_turns_many_at_once(temperature, top_p):
    model, rng = tiny_model(), np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, rng.integers(2, 20)) for _ in range(12)]
    engine = TransformersEngine(model)
    for n, prompt in enumerate(prompts):
        engine.submit(Request(n, f"s{n}", prompt, 100 + n, 16, STOP, temperature, top_p))
    theirs = {}
    while len(theirs) < len(prompts):
        theirs |= {done.request_id: done for done in engine.poll()}
    for n, prompt in enumerate(prompts):
        ids, logps, finish = generate(
            model, prompt.tolist(), uniforms(100 + n, 16), STOP, temperature, top_p
        )
        assert ids == theirs[n].token_ids.tolist() and finish == theirs[n].finish
        assert np.allclose(logps, theirs[n].logprobs, atol=1e-4)
    assert "stop" in {done.finish for done in theirs.values()}


def test_other_noise_draws_other_tokens():
    model, prompt = tiny_model(), [1, 2, 3]
    one, other = (generate(model, prompt, uniforms(seed, 16), STOP)[0] for seed in (1, 2))
    assert one != other and one == generate(model, prompt, uniforms(1, 32), STOP)[0][: len(one)]
