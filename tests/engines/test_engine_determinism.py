"""Invariant 8: noise belongs to the address, admission follows a logical clock, two runs are equal bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import ask, drain, play, prompts, tiny

from workbench.engines import TransformersEngineConfig, open_engine

MODEL = tiny("qwen3")


def engine_for(**settings):
    return open_engine(TransformersEngineConfig(**settings), MODEL)


def record(sessions):
    return [(played.ids.tolist(), played.sampled) for played in sessions]


@pytest.mark.parametrize(
    "settings", [dict(), dict(max_rows=3, prefill_tokens=10, cache_tokens=200), dict(cache="off")]
)
def test_two_runs_are_equal_bit_for_bit(settings):
    shared = prompts(6)
    runs = [record(play(engine_for(**settings), [*shared, shared[0]], turns=4)) for _ in range(2)]
    assert runs[0] == runs[1]  # floats compared exactly


def test_a_used_engine_repeats_itself_after_a_sync():
    """Nothing of an earlier step is left over: no state of a random number generator, no layout of the cache."""
    engine, fresh = engine_for(), engine_for()
    play(engine, prompts(5, seed=9), turns=2)
    engine.sync(MODEL.state_dict(), 1)
    assert record(play(engine, prompts(4), turns=3)) == record(play(fresh, prompts(4), turns=3))


def test_the_clock_on_the_wall_has_no_say(monkeypatch):
    """The same submissions at the same ticks, with every clock reading wild numbers."""
    expected = record(play(engine_for(), prompts(4), turns=3))
    wild = iter(np.random.default_rng(0).random(100_000) * 1e6)
    for name in ("time", "process_time", "thread_time", "perf_counter", "monotonic"):
        monkeypatch.setattr(f"time.{name}", lambda: next(wild))
    assert record(play(engine_for(), prompts(4), turns=3)) == expected


def test_the_sample_of_a_row_does_not_depend_on_its_company():
    asked = [
        ask(number, f"s{number}", prompt, max_new_tokens=20)
        for number, prompt in enumerate(prompts(8))
    ]
    together = engine_for()
    for request in asked:
        together.submit(request)
    found = {completion.request_id: completion for completion in drain(together)}
    for request in asked:
        alone = engine_for()
        alone.submit(request)
        (completion,) = drain(alone)
        assert completion.token_ids.tolist() == found[request.id].token_ids.tolist()
        np.testing.assert_allclose(completion.logprobs, found[request.id].logprobs, atol=2e-5)


def test_position_t_of_a_turn_uses_draw_t_of_its_address():
    """A longer turn begins with the shorter one."""
    long, short = engine_for(), engine_for()
    long.submit(ask(0, "s", [7, 8, 9], max_new_tokens=12, stop_ids=frozenset()))
    short.submit(ask(0, "s", [7, 8, 9], max_new_tokens=5, stop_ids=frozenset()))
    (whole,), (part,) = drain(long), drain(short)
    assert whole.token_ids[:5].tolist() == part.token_ids.tolist()


def test_each_token_is_drawn_as_its_address_says():
    """Every token is the one that inverse CDF picks, by hand, from the plain forward and the draws of the seed."""
    engine = engine_for()
    engine.submit(ask(0, "s", [7, 8, 9], seed=4711, max_new_tokens=12, stop_ids=frozenset()))
    (completion,) = drain(engine)
    noise = np.random.Generator(np.random.Philox(key=4711)).random(12)
    ids = [7, 8, 9]
    for token, uniform in zip(completion.token_ids, noise, strict=True):
        with torch.no_grad():
            probability = (
                MODEL(input_ids=torch.tensor([ids])).logits[0, -1].double().softmax(-1).numpy()
            )
        assert token == int(
            np.searchsorted(probability.cumsum(), uniform * probability.sum(), side="right")
        )
        ids.append(int(token))


def test_control_global_randomness_is_neither_used_nor_moved():
    torch.manual_seed(0)
    state = torch.random.get_rng_state()
    first = record(play(engine_for(), prompts(3), turns=2))
    assert torch.equal(torch.random.get_rng_state(), state)
    torch.manual_seed(123)
    np.random.seed(7)
    assert record(play(engine_for(), prompts(3), turns=2)) == first
    other = record(play(engine_for(), prompts(3), turns=2, temperature=0.9))
    assert other != first, "control: this comparison can fail"
