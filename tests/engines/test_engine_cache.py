"""What the cache saves, what it may not save, and that it cannot grow without bound."""

from __future__ import annotations

import numpy as np
import pytest
from engine_models import VOCAB, ask, drain, plain_logprobs, play, prompts, tiny, worst_gap
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.attention import PackedPiece, bundle_pieces
from workbench.engines.slot_runner import _common_prefix

MODEL = tiny("qwen3")
GAP = 2e-5


def engine_for(model=MODEL, **settings):
    return open_engine(TransformersEngineConfig(**settings), model)


def passed(stats) -> int:
    """Tokens of prompts that went through the model."""
    return int(stats["prefill_tokens"])


def test_the_cost_of_an_append_only_trajectory_is_linear():
    """Prefilled: the first prompt, and each turn its observation and the one token sampled last before it."""
    engine = engine_for()
    sessions = play(engine, prompts(4), turns=6, observation=3)
    stats = engine.stats()
    expected = sum(p.prompt_tokens + p.env_tokens + (p.turns - 1) for p in sessions)
    assert passed(stats) == expected
    # Every token passes through the model once, but for the last sampled one of each session.
    once = sum(len(p.ids) - 1 for p in sessions)
    decoded = stats["generated_tokens"] - sum(p.turns for p in sessions)
    assert passed(stats) + decoded == once


def test_control_without_a_kept_cache_it_is_not_linear():
    linear, anew = engine_for(), engine_for(cache="off")
    for engine in (linear, anew):
        play(engine, prompts(4), turns=6, observation=3)
    assert passed(anew.stats()) > 3 * passed(linear.stats())


def test_the_prompt_of_a_group_passes_through_the_model_once():
    """The others copy it, and compute its last token again for the logits."""
    size, prompt = 8, prompts(1, low=30, high=31)[0]
    engine = engine_for()
    sessions = play(engine, [prompt] * size, turns=1)
    stats = engine.stats()
    assert passed(stats) == len(prompt) + (size - 1)
    assert stats["shared_prompt_tokens"] == (size - 1) * (len(prompt) - 1)
    assert worst_gap(MODEL, sessions) < GAP
    assert len({tuple(p.ids) for p in sessions}) > 1


def test_a_late_member_of_a_group_still_copies():
    prompt = prompts(1, low=30, high=31)[0]
    engine = engine_for(max_rows=2)
    sessions = play(engine, [prompt] * 5, turns=2)
    assert passed(engine.stats()) == len(prompt) + 4 + sum(p.env_tokens + 1 for p in sessions)
    assert worst_gap(MODEL, sessions) < GAP


@pytest.mark.parametrize("kept", [0, 1, 5, 9])
def test_a_rewritten_history_is_noticed_and_only_the_common_beginning_reused(kept):
    engine = engine_for()
    engine.submit(ask(0, "s", np.arange(6, 16)))
    drain(engine)
    rewritten = np.concatenate([np.arange(6, 6 + kept), np.arange(40, 50)])
    before = engine.stats()
    engine.submit(ask(1, "s", rewritten))
    (completion,) = drain(engine)
    after = engine.stats()
    assert after["reused_tokens"] - before["reused_tokens"] == kept
    assert passed(after) - passed(before) == len(rewritten) - kept
    plain = plain_logprobs(MODEL, np.concatenate([rewritten, completion.token_ids]))[
        len(rewritten) :
    ]
    np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=GAP)


def test_nobody_copies_a_first_prompt_that_its_session_has_overwritten():
    engine, prompt = engine_for(), np.arange(6, 16)
    engine.submit(ask(0, "a", prompt))
    drain(engine)
    engine.submit(ask(1, "a", np.arange(30, 45)))
    drain(engine)
    engine.submit(ask(2, "b", prompt))
    (completion,) = drain(engine)
    assert engine.stats()["shared_prompt_tokens"] == 0
    plain = plain_logprobs(MODEL, np.concatenate([prompt, completion.token_ids]))[len(prompt) :]
    np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=GAP)


def test_a_session_evicted_for_the_one_that_wants_to_copy_it_is_not_copied():
    engine = engine_for(cache_tokens=60)
    starts = [np.arange(6 + number, 16 + number) for number in range(3)]
    for number, prompt in enumerate(starts):
        engine.submit(ask(number, f"s{number}", prompt, max_new_tokens=4))
        drain(engine)
    assert engine.stats()["evictions"] == 0
    engine.submit(
        ask(3, "large", starts[2], max_new_tokens=50, stop_ids=frozenset())
    )  # room for nobody else
    (completion,) = drain(engine)
    assert engine.stats()["evictions"] == 3 and engine.stats()["shared_prompt_tokens"] == 0
    plain = plain_logprobs(MODEL, np.concatenate([starts[2], completion.token_ids]))[10:]
    np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=GAP)


def test_the_same_prompt_again_computes_one_token():
    engine, prompt = engine_for(), np.arange(6, 16)
    for number in range(2):
        engine.submit(ask(number, "s", prompt, max_new_tokens=1))
        drain(engine)
    assert passed(engine.stats()) == len(prompt) + 1


def test_no_turn_waits_for_another():
    """While one session decodes a long turn, another plays many short ones."""
    engine = engine_for()
    engine.submit(ask(0, "long", [7, 8, 9], max_new_tokens=60, stop_ids=frozenset()))
    ids, turns, done = np.array([10, 11]), 0, []
    engine.submit(ask(1, "short", ids, max_new_tokens=2, stop_ids=frozenset()))
    while not any(completion.request_id == 0 for completion in done):
        done = engine.poll()
        for completion in done:
            if completion.request_id != 0:
                turns += 1
                ids = np.concatenate([ids, completion.token_ids, [12]])
                engine.submit(ask(1 + turns, "short", ids, max_new_tokens=2, stop_ids=frozenset()))
    assert turns == 30  # two ticks each, in the 60 of the long turn
    assert engine.stats()["ticks"] == 60


def test_sync_drops_every_cache_and_the_new_weights_are_used():
    other = tiny("qwen3", seed=1)
    engine = engine_for()
    (first,) = list(play(engine, prompts(1), turns=2))
    engine.sync(other.state_dict(), 1)
    assert engine.stats()["cached_tokens"] == 0
    before = engine.stats()["reused_tokens"]
    prompt = np.concatenate([first.ids, [9, 9]])
    engine.submit(ask(100, "s0", prompt))  # extends what the old weights had cached
    (completion,) = drain(engine)
    assert engine.stats()["reused_tokens"] == before
    ids = np.concatenate([prompt, completion.token_ids])
    np.testing.assert_allclose(
        completion.logprobs, plain_logprobs(other, ids)[len(prompt) :].numpy(), atol=GAP
    )
    assert (
        np.abs(completion.logprobs - plain_logprobs(MODEL, ids)[len(prompt) :].numpy()).max() > 0.05
    )


def test_idle_sessions_are_evicted_longest_unused_first_and_come_back_right():
    engine = engine_for(cache_tokens=150)
    sessions = play(engine, prompts(8, low=10, high=12), turns=3)
    stats = engine.stats()
    assert stats["evictions"] > 0
    assert stats["cached_tokens"] <= 150
    assert worst_gap(MODEL, sessions) < GAP
    assert passed(stats) > sum(p.prompt_tokens + p.env_tokens + p.turns - 1 for p in sessions), (
        "the evicted paid again"
    )


def test_release_makes_room_without_eviction():
    engine = engine_for(cache_tokens=150)
    for number in range(20):
        engine.submit(ask(number, f"s{number}", np.arange(6, 30)))
        drain(engine)
        engine.release(f"s{number}")
    assert engine.stats()["evictions"] == 0
    assert engine.stats()["cached_tokens"] <= 150


def test_a_request_that_no_cache_could_hold_is_refused_with_numbers():
    from workbench.values.errors import EngineError

    with pytest.raises(
        EngineError,
        match=r"30 prompt and up to 20 new tokens.*49 tokens; raise engine.cache_tokens",
    ):
        engine_for(cache_tokens=49).submit(ask(0, "s", np.full(30, 9), max_new_tokens=20))


@given(st.integers(0, 10**6))
@settings(max_examples=8)
def test_any_schedule_gives_the_logprobs_of_a_plain_forward(seed):
    """Random sessions, releases in the middle, rewritten histories, tiny limits: everything is answered and right."""
    rng = np.random.default_rng(seed)
    engine = engine_for(
        cache_tokens=int(rng.integers(60, 400)),
        max_rows=int(rng.integers(1, 6)),
        prefill_tokens=int(rng.integers(1, 40)),
    )
    shared = rng.integers(6, VOCAB, 10)
    held: dict[str, np.ndarray] = {}
    flight: dict[int, tuple[str, np.ndarray]] = {}
    number = 0
    for _ in range(40):
        name = f"s{rng.integers(8)}"
        if rng.random() < 0.08:
            engine.release(name)
            held.pop(name, None)
            flight = {key: value for key, value in flight.items() if value[0] != name}
        elif name not in {value[0] for value in flight.values()}:
            ids = held.get(name, shared)
            if len(ids) > 40 or rng.random() < 0.15:
                ids = np.concatenate(
                    [ids[: rng.integers(0, len(ids))], rng.integers(6, VOCAB, rng.integers(1, 9))]
                )
            engine.submit(ask(number, name, ids, max_new_tokens=int(rng.integers(1, 8))))
            flight[number] = (name, ids)
            number += 1
        for _ in range(rng.integers(0, 3)):
            for completion in engine.poll():
                _check(completion, *flight.pop(completion.request_id), held, rng)
    for completion in drain(engine):
        _check(completion, *flight.pop(completion.request_id), held, rng)
    assert not flight
    assert engine.stats()["cached_tokens"] <= engine.config.cache_tokens


def _check(completion, name, prompt, held, rng):
    assert completion.error is None
    ids = np.concatenate([prompt, completion.token_ids])
    plain = plain_logprobs(MODEL, ids)[len(prompt) :]
    np.testing.assert_allclose(completion.logprobs, plain.numpy(), atol=GAP)
    held[name] = (
        np.concatenate([ids, rng.integers(6, VOCAB, rng.integers(0, 5))])
        if rng.random() < 0.9
        else prompt
    )


@given(st.lists(st.integers(0, 5), max_size=8), st.lists(st.integers(0, 5), min_size=1, max_size=8))
def test_common_prefix_leaves_one_token_to_compute(held, prompt):
    found = _common_prefix(np.array(held, np.int64), np.array(prompt, np.int64))
    assert found < len(prompt) and held[:found] == prompt[:found]
    longer = found + 1
    assert longer >= len(prompt) or longer > len(held) or held[:longer] != prompt[:longer]


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(0, 3000)), max_size=30))
def test_bundles_hold_every_piece_once_in_order_and_waste_little(shapes):
    pieces = [
        PackedPiece(index, start, count, index)
        for index, (count, start) in enumerate(sorted(shapes))
    ]
    bundles = bundle_pieces(pieces)
    assert [piece for bundle in bundles for piece in bundle] == pieces
    for bundle in bundles:
        padded = len(bundle) * max(p.count for p in bundle) * max(p.start + p.count for p in bundle)
        assert padded <= 2 * sum(p.count * (p.start + p.count) for p in bundle) + 4096
