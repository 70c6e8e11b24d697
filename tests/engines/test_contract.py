"""What every engine promises (engines/base.py), the same tests for each: a new engine joins by one line in ENGINES."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from engine_models import VOCAB, ask, drain, tiny
from server_kit import on_a_stand_in_server, real_server, routed_server
from vllm_kit import real, stand_in, wide

from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.scripted import ScriptedEngine
from workbench.learn.adapters import adapted, merged
from workbench.learn.config import LearnerConfig
from workbench.values.errors import EngineError

CONTEXT = 40


def scripted():
    """Ids that depend on the seed, some of them the stop token."""
    return ScriptedEngine(
        lambda request: np.random.default_rng(request.seed).integers(0, 12, 50),
        context_length=CONTEXT,
        vocab_size=VOCAB,
    )


def embedded(**settings):
    model = tiny("qwen3")
    return open_engine(TransformersEngineConfig(max_context=CONTEXT, **settings), model)


ENGINES = {
    "scripted": scripted,
    "transformers": embedded,
    "transformers without a kept cache": lambda: embedded(cache="off"),
    "transformers, one row at a time": lambda: embedded(
        max_rows=1, prefill_tokens=3, cache_tokens=CONTEXT
    ),
    "vllm on a stand-in": stand_in,
    "vllm as a server, a stand-in": on_a_stand_in_server,
    "vllm": real,
    "vllm, two rows at a time": lambda: real(max_rows=2, prefill_tokens=2),
    "vllm as a server": real_server,
    "vllm as a server with room for adapters": routed_server,
}


# Weights go to a server in two ways (layout.transfer). What is promised of weights is asked of both; the rest does not see
# them.
WITH_WEIGHTS = ENGINES | {
    "vllm as a server, by broadcast to a stand-in": lambda: on_a_stand_in_server(
        transfer="broadcast"
    ),
    "vllm as a server, by broadcast": lambda: real_server("broadcast"),
}
each_way = pytest.mark.parametrize("engine", list(WITH_WEIGHTS), indirect=True)


@pytest.fixture(params=list(ENGINES))
def engine(request):
    return WITH_WEIGHTS[request.param]()


def weights_of(engine):
    if engine.name == "scripted":
        return {}
    return (wide(seed=1) if engine.name == "vllm" else tiny("qwen3", seed=1)).state_dict()


PROMPT = np.arange(6, 16)


def test_nothing_to_do_returns_at_once(engine):
    assert engine.poll() == []
    assert engine.policy_version == 0 and engine.context_length == CONTEXT
    assert isinstance(engine.keeps_cache, bool) and engine.cache_reason


def test_every_request_is_answered_once_with_one_logprob_per_token(engine):
    """A turn ends with its first stop token, which is part of it (it was sampled), or where its tokens run out."""
    stops = frozenset(range(0, VOCAB, 4))
    for number in range(20):
        engine.submit(ask(number, f"s{number}", PROMPT[: 3 + number % 7], stop_ids=stops))
    completions = drain(engine)
    assert sorted(c.request_id for c in completions) == list(range(20))
    assert {completion.finish for completion in completions} == {"stop", "length"}
    for completion in completions:
        assert completion.error is None and completion.policy_version == 0
        assert completion.token_ids.dtype == np.int32 and completion.logprobs.dtype == np.float32
        assert 1 <= len(completion.token_ids) == len(completion.logprobs) <= 6
        assert (completion.logprobs <= 0).all()
        assert not stops & set(completion.token_ids[:-1].tolist())
        assert (completion.token_ids[-1] in stops) == (completion.finish == "stop")
        assert completion.finish == "stop" or len(completion.token_ids) == 6


def test_one_poll_hands_over_in_the_order_of_request_ids(engine):
    for number in (5, 3, 9, 1):
        engine.submit(ask(number, f"s{number}", PROMPT, max_new_tokens=1))
    for _ in range(20):
        ids = [completion.request_id for completion in engine.poll()]
        assert ids == sorted(ids)


def test_the_same_address_gives_the_same_tokens_in_whatever_order(engine, request):
    for number in range(5):
        engine.submit(ask(number, f"s{number}", PROMPT))
    first = {c.request_id: c.token_ids.tolist() for c in drain(engine)}
    again = ENGINES[request.node.callspec.params["engine"]]()
    for number in reversed(range(5)):
        again.submit(ask(number, f"s{number}", PROMPT))
    assert first == {c.request_id: c.token_ids.tolist() for c in drain(again)}
    assert len({tuple(tokens) for tokens in first.values()}) > 1, (
        "different addresses draw different noise"
    )


@each_way
def test_a_session_goes_on_and_completions_name_the_version(engine):
    engine.submit(ask(0, "s", PROMPT))
    (first,) = drain(engine)
    engine.submit(ask(1, "s", np.concatenate([PROMPT, first.token_ids, [7, 8]])))
    (second,) = drain(engine)
    engine.sync(weights_of(engine), 3)
    assert engine.policy_version == 3
    engine.submit(ask(2, "s", PROMPT))
    (third,) = drain(engine)
    assert [c.policy_version for c in (first, second, third)] == [0, 0, 3]


@each_way
def test_adapters_arrive_merged(engine):
    """What is answered has the logprobs of the model with its adapters on, not those of the one below them (R23)."""
    if engine.name == "scripted":
        pytest.skip("no weights")
    model = wide(seed=1) if engine.name == "vllm" else tiny("qwen3", seed=1)
    trained = adapted(model, LearnerConfig(lora_rank=4), spread=0.2)
    engine.sync(merged(trained, trained.state_dict()), 1)
    engine.submit(ask(0, "s", PROMPT))
    (completion,) = drain(engine)
    sampled = torch.from_numpy(completion.token_ids).long()
    ids = torch.cat([torch.from_numpy(PROMPT).long(), sampled])[None]

    def logp(of):
        with torch.no_grad():
            logits = of(input_ids=ids).logits[0, len(PROMPT) - 1 : -1].float().log_softmax(-1)
        return logits.gather(1, sampled[:, None])[:, 0].numpy()

    np.testing.assert_allclose(completion.logprobs, logp(trained), atol=2e-4)
    assert np.abs(completion.logprobs - logp(model)).max() > 0.01


@each_way
def test_sync_is_refused_in_flight_and_for_versions_that_do_not_grow(engine):
    engine.submit(ask(0, "s", PROMPT))
    with pytest.raises(EngineError, match="in flight"):
        engine.sync(weights_of(engine), 1)
    drain(engine)
    engine.sync(weights_of(engine), 2)
    for version in (2, 1):
        with pytest.raises(EngineError, match="must grow"):
            engine.sync(weights_of(engine), version)
    assert engine.policy_version == 2


def test_an_answer_is_cut_where_the_context_ends_and_says_so(engine):
    engine.submit(ask(0, "s", np.full(CONTEXT - 3, 9), max_new_tokens=30, stop_ids=frozenset()))
    (completion,) = drain(engine)
    assert len(completion.token_ids) == 3 and completion.finish == "length"


NEVER_SERVED = (
    (dict(prompt=[]), "empty"),
    (dict(prompt=[[1, 2]]), "flat"),
    (dict(prompt=[0.5]), "flat array of token ids"),
    (dict(prompt=[9] * CONTEXT), f"{CONTEXT} tokens.*{CONTEXT}"),
    (dict(prompt=[9, VOCAB]), f"{VOCAB} is outside the vocabulary of {VOCAB}"),
    (dict(prompt=[9, -1]), "-1 is outside"),
    (dict(prompt=PROMPT, max_new_tokens=0), "at least 1"),
    (dict(prompt=PROMPT, temperature=-0.1), "temperature"),
    (dict(prompt=PROMPT, temperature=float("nan")), "temperature"),
    (dict(prompt=PROMPT, top_p=0.0), "top_p"),
    (dict(prompt=PROMPT, top_p=1.5), "top_p"),
    (dict(prompt=PROMPT, seed=-1), "seed"),
)


def test_what_can_never_be_served_is_refused_at_submit(engine):
    for wrong, told in NEVER_SERVED:
        with pytest.raises(EngineError, match=told):
            engine.submit(ask(0, "s", **wrong))
        engine.submit(
            ask(0, "s", PROMPT)
        )  # neither the id nor the session was taken by the refused request
        assert len(drain(engine)) == 1
        engine.release("s")


def test_ids_and_sessions_in_flight_are_taken(engine):
    engine.submit(ask(0, "a", PROMPT))
    with pytest.raises(EngineError, match="id 0 is already in flight"):
        engine.submit(ask(0, "b", PROMPT))
    with pytest.raises(EngineError, match="session 'a' already has request 0"):
        engine.submit(ask(1, "a", PROMPT))
    drain(engine)
    engine.submit(ask(0, "a", PROMPT))


@each_way
def test_release_frees_a_session_and_drops_what_it_has_in_flight(engine):
    engine.release("never seen")
    engine.submit(ask(0, "a", PROMPT))
    engine.submit(ask(1, "b", PROMPT))
    engine.submit(ask(2, "c", PROMPT))
    engine.release("b")
    first = engine.poll()
    engine.release("c")
    engine.submit(ask(1, "b", PROMPT[:4]))
    answered = [c.request_id for c in first + drain(engine)]
    assert answered.count(0) == 1 and answered.count(1) == 1
    assert (2 in answered) == any(c.request_id == 2 for c in first)
    engine.sync(weights_of(engine), 1)  # nothing is in flight any more


@pytest.mark.parametrize("temperature, top_p", [(1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (0.0, 1.0)])
def test_the_span_can_say_how_it_was_sampled(engine, temperature, top_p):
    engine.submit(ask(0, "s", PROMPT, temperature=temperature, top_p=top_p))
    (completion,) = drain(engine)
    sampling = completion.sampling
    assert (sampling.temperature, sampling.top_p, sampling.engine) == (
        temperature,
        top_p,
        engine.name,
    )
    assert sampling.dtype == "float32"
    if sampling.bends:
        assert completion.plain_logprobs.shape == completion.logprobs.shape
    else:
        assert completion.plain_logprobs is None
    if temperature == 0.0 and engine.name != "scripted":
        np.testing.assert_array_equal(completion.logprobs, completion.plain_logprobs)


def test_what_is_sampled_so_far_can_be_watched(engine):
    """`partial` is optional; where it is there, it grows token by token to what the completion holds, and then forgets."""
    if not hasattr(engine, "partial"):
        pytest.skip("this engine hands over whole turns")
    engine.submit(ask(0, "s", PROMPT))
    seen = []
    while not (done := engine.poll()):
        seen.append(engine.partial(0))
    whole = tuple(done[0].token_ids.tolist())
    assert all(ids == whole[: len(ids)] for ids in seen) and [len(ids) for ids in seen] == sorted(
        len(ids) for ids in seen
    )
    assert engine.partial(0) == engine.partial(7) == ()
    engine.submit(ask(1, "s", PROMPT))
    engine.poll()
    engine.release("s")
    assert engine.partial(1) == ()


def test_a_script_trickles_if_it_is_asked_to():
    engine = ScriptedEngine(lambda request: [3, 4, 5], context_length=CONTEXT, trickle=True)
    engine.submit(ask(0, "s", PROMPT, stop_ids=frozenset([5])))
    seen = []
    while not (done := engine.poll()):
        seen.append(engine.partial(0))
    assert (
        seen == [(3,), (3, 4)]
        and done[0].token_ids.tolist() == [3, 4, 5]
        and done[0].finish == "stop"
    )
