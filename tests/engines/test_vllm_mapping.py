"""The vllm engine without vLLM: requests in its words, answers in ours, and the check after every sync. All of it runs
on a stand-in that keeps vLLM's promises, or breaks the one that a test names."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from engine_models import VOCAB, ask, drain, plain_logprobs, play, prompts, worst_gap
from hypothesis import given
from hypothesis import strategies as st
from vllm_kit import CONTEXT, STEPS, StandIn, stand_in, wide

from workbench.engines import VllmEngineConfig, open_engine
from workbench.engines.digests import digests
from workbench.engines.gap import Gap, PlainForward, came_along, head_differs, limits, what_is_stale
from workbench.engines.vllm_core import VllmCore, VllmOutput, renewed_arguments, server_arguments
from workbench.engines.vllm_engine import VllmEngine, context_for
from workbench.engines.vllm_turns import completion_of, fault_of, is_bent, sampling_params
from workbench.training.config import load_config
from workbench.values.errors import ConfigError, EngineError

PROMPT = np.arange(6, 16)


def answer(ids=(7, 8, 5), logprobs=(-1.0, -2.0, -3.0), finish="stop", scored=None):
    return VllmOutput("0", list(ids), list(logprobs), finish, 0, scored)


# ---------------------------------------------------------------------------------------------- requests


def test_a_request_in_the_words_of_vllm():
    request = ask(
        3, "s", PROMPT, temperature=0.7, top_p=0.9, stop_ids=frozenset({9, 5}), seed=2**64 + 17
    )
    assert sampling_params(request, 4) == {
        "temperature": 0.7,
        "top_p": 0.9,
        "seed": 17,
        "max_tokens": 4,
        "stop_token_ids": [5, 9],
        "ignore_eos": True,
        "logprobs": 0,
    }


def test_greedy_ignores_top_p():
    assert sampling_params(ask(0, "s", PROMPT, temperature=0.0, top_p=0.5), 4)["top_p"] == 1.0


@given(st.integers(0, 2**128 - 1))
def test_every_seed_fits_a_generator_of_torch(seed):
    params = sampling_params(ask(0, "s", PROMPT, seed=seed), 4)
    torch.Generator().manual_seed(params["seed"])
    assert params["seed"] >= 0 and params["seed"] % 2**32 == seed % 2**32, (
        "different addresses, different noise"
    )


@pytest.mark.parametrize(
    "device, seeded, makes_generators, addressed",
    [
        ("cpu", None, True, True),
        ("cpu", False, True, False),
        ("cuda", None, True, False),
        ("cuda", None, False, True),
        ("cuda", True, True, True),
        ("cuda", False, False, False),
    ],
)
def test_turns_have_seeds_unless_a_gpu_would_keep_a_generator_for_each(
    device, seeded, makes_generators, addressed
):
    config = VllmEngineConfig(device=device, seeded=seeded)
    assert config.seeds_turns(makes_generators) is addressed
    # its own stream is begun anew with another seed wherever turns may draw from it
    assert bool(renewed_arguments(config)) is not (seeded or (seeded is None and device == "cpu"))


def test_turns_without_seeds_say_so_and_audits_and_greedy_turns_have_them():
    def one(engine, **changes):
        engine.submit(ask(0, "s", PROMPT, **changes))
        (done,) = drain(engine)
        engine.release("s")
        return done

    for seeded, engine in ((True, stand_in()), (False, stand_in(seeded=False))):
        drawn = [one(engine, max_new_tokens=8, stop_ids=frozenset()) for _ in range(2)]
        assert engine.addressed is seeded and all(
            done.sampling.addressed is seeded for done in drawn
        )
        assert (drawn[0].token_ids.tolist() == drawn[1].token_ids.tolist()) is seeded
        assert one(engine, temperature=0.0).sampling.addressed, "nothing is drawn"
        engine.listener = lambda *heard: None
        assert one(engine).sampling.addressed, "an audit compares the same turns"
    assert (
        len({str(done.sampling) for done in drawn}) == 1
        and drawn[0].sampling != one(stand_in()).sampling
    )


def test_weights_that_did_not_arrive_are_told_apart_without_seeds_too():
    """Probes keep their seeds: the same answer as before means the same weights as before."""
    for settings in ({}, {"seeded": False}):
        left_out = set()
        engine = stand_in(left_out, **settings)
        left_out.add("load")
        with pytest.raises(EngineError, match="answers as before|as before"):
            engine.sync(wide(seed=1).state_dict(), 1)


@pytest.mark.parametrize(
    "temperature, top_p, bent",
    [(1.0, 1.0, False), (0.0, 1.0, False), (0.0, 0.5, False), (0.7, 1.0, True), (1.0, 0.9, True)],
)
def test_plain_logprobs_are_computed_where_they_differ(temperature, top_p, bent):
    assert is_bent(ask(0, "s", PROMPT, temperature=temperature, top_p=top_p)) is bent


# ---------------------------------------------------------------------------------------------- answers


def test_a_turn_keeps_its_stop_token_and_says_why_it_ended():
    request = ask(0, "s", PROMPT, stop_ids=frozenset({5}))
    done = completion_of(request, 6, answer(), 3, "float32")
    assert (
        done.token_ids.tolist() == [7, 8, 5] and done.finish == "stop" and done.policy_version == 3
    )
    assert (
        done.logprobs.tolist() == [-1.0, -2.0, -3.0]
        and done.plain_logprobs is None
        and done.error is None
    )
    cut = completion_of(request, 3, answer(ids=(7, 8, 9), finish="length"), 3, "float32")
    assert cut.finish == "length"
    assert completion_of(request, 3, answer(), 3, "float32").finish == "stop", (
        "a stop token in the last place is one"
    )


def test_bent_turns_carry_both_kinds_of_logprobs():
    request = ask(0, "s", PROMPT, temperature=0.5, stop_ids=frozenset({5}))
    scored = answer(
        ids=(1,), logprobs=(-0.1,), finish="length", scored=[-9.0] * 9 + [-4.0, -5.0, -6.0]
    )
    done = completion_of(request, 6, answer(), 0, "float32", scored=scored)
    assert done.logprobs.tolist() == [-1.0, -2.0, -3.0] and done.plain_logprobs.tolist() == [
        -4.0,
        -5.0,
        -6.0,
    ]


@pytest.mark.parametrize(
    "wrong, told",
    [
        (answer(logprobs=(-1.0, -2.0)), "3 tokens and 2 logprobs"),
        (answer(logprobs=(-1.0, float("nan"), -3.0)), "not finite"),
        (answer(finish="abort"), "'abort' after 3 of 6"),
        (answer(ids=(7, 8, 9)), "3 of 6 tokens without a stop token"),
        (answer(ids=(), logprobs=()), "0 of 6 tokens without"),
    ],
)
def test_an_answer_that_cannot_be_a_turn_is_an_error_of_its_own(wrong, told):
    done = completion_of(ask(0, "s", PROMPT), 6, wrong, 4, "float32")
    assert done.finish == "error" and told in done.error and "policy version 4" in done.error
    assert len(done.token_ids) == len(done.logprobs) == 0
    assert fault_of(ask(0, "s", PROMPT), 6, answer()) is None


def test_a_step_that_fails_is_told_to_all_who_wait_and_a_sync_mends_it():
    engine = stand_in()
    engine.submit(ask(1, "b", PROMPT))
    engine.submit(ask(0, "a", PROMPT))
    engine._core.explode = "no kernel"
    failed = engine.poll()
    assert [c.request_id for c in failed] == [0, 1] and all("no kernel" in c.error for c in failed)
    with pytest.raises(EngineError, match="no kernel.*open the engine anew, or sync"):
        engine.submit(ask(2, "c", PROMPT))
    engine._core.explode = None
    engine.sync(wide(seed=1).state_dict(), 1)
    engine.submit(ask(2, "c", PROMPT))
    assert drain(engine)[0].error is None


def raising(words):
    def call(*arguments):
        raise RuntimeError(words)

    return call


def test_a_core_that_cannot_even_drop_requests_ends_turns_and_not_the_run():
    engine = stand_in()
    for number, session in enumerate("ab"):
        engine.submit(ask(number, session, PROMPT))
    engine._core.abort = raising("core is dead")
    engine.release("a")
    with pytest.raises(
        EngineError, match="could not drop a request .*core is dead.*open the engine anew, or sync"
    ):
        engine.submit(ask(2, "c", PROMPT))
    engine._core.explode = "no kernel"
    assert [(c.request_id, "no kernel" in c.error) for c in engine.poll()] == [
        (1, True)
    ] and engine.poll() == []


def test_a_turn_that_vllm_refuses_to_score_ends_alone():
    engine = stand_in()
    bent, plain = ask(0, "a", PROMPT, temperature=0.5), ask(1, "b", PROMPT)
    engine.submit(bent), engine.submit(plain)
    engine._core.add = raising("too long")
    done = {completion.request_id: completion for completion in drain(engine)}
    assert (
        "refused to score the turn (RuntimeError: too long)" in done[0].error
        and done[1].error is None
    )


@pytest.mark.parametrize("refuses", [True, False])
def test_whether_vllm_can_score_is_found_out_at_opening_and_stops_bent_sampling_only(refuses):
    class Blind(StandIn):
        def add(self, name, prompt, params):
            if "prompt_logprobs" in params and refuses:
                raise RuntimeError("no prompt logprobs")
            super().add(
                name,
                prompt,
                {key: value for key, value in params.items() if key != "prompt_logprobs"},
            )

    engine = VllmEngine(Blind(wide()), wide(), VllmEngineConfig(max_context=CONTEXT))
    with pytest.raises(EngineError, match="cannot score what was sampled.*sample at temperature 1"):
        engine.submit(ask(0, "a", PROMPT, temperature=0.5))
    engine.submit(ask(1, "a", PROMPT))
    assert drain(engine)[0].error is None


# ---------------------------------------------------------------------------------------------- logprobs


@pytest.mark.parametrize("temperature", [1.0, 0.6, 0.0])
def test_logprobs_are_of_what_was_sampled_from(temperature):
    engine, model = stand_in(), wide()
    for version in (1, 2):
        engine.sync((model := wide(seed=version)).state_dict(), version)
        sessions = play(
            engine, prompts(3, high=10), turns=2, temperature=temperature, max_new_tokens=4
        )
        assert worst_gap(model, sessions, temperature or 1.0) < 2e-5


def test_the_counters_tell_computed_from_reused():
    engine = stand_in()
    for number in range(2):
        engine.submit(ask(number, "s", PROMPT, seed=3, temperature=0.5, stop_ids=frozenset()))
        drain(engine)
    stats = engine.stats()
    assert (
        stats["prefill_tokens"] == 10 + 1
        and stats["reused_tokens"] == 9
        and stats["generated_tokens"] == 12
    )
    assert stats["scored_tokens"] == 32 and stats["loads"] == 1 and 0 <= stats["gap_max"] < 1e-4


# ---------------------------------------------------------------------------------------------- the check


@pytest.mark.full
def test_control_every_step_of_a_sync_that_is_left_out_is_named():
    told = {
        "load": "nothing of the new weights arrived",
        "tied head": "output head is stale",
        "forget_prefixes": "prefix cache is stale",
    }
    assert set(told) == set(STEPS)
    for step, words in told.items():
        left_out: set[str] = set()
        engine = stand_in(left_out)
        engine.sync(wide(seed=1).state_dict(), 1)
        left_out.add(step)
        with pytest.raises(EngineError, match=f"version 2.*{words}"):
            engine.sync(wide(seed=2).state_dict(), 2)
        assert engine.policy_version == 1
        with pytest.raises(EngineError, match=f"request 0 refused.*{words}"):
            engine.submit(ask(0, "s", PROMPT))
        left_out.clear()
        engine.sync(wide(seed=2).state_dict(), 3)
        assert (
            engine.policy_version == 3
            and engine.stats()["gap_max"] < 1e-4 < engine.stats()["gap_max_ever"]
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_head_that_is_one_small_update_old_is_noticed(dtype):
    """In bfloat16 the logprobs show nothing of it: the head itself is looked at."""
    model, left_out = wide(), set()
    engine = stand_in(left_out, dtype=dtype)
    left_out.add("tied head")
    with pytest.raises(EngineError, match="output head is stale"):
        engine.sync(updated(model), 1)
    assert dtype == "float32" or engine.stats()["gap_mean"] < limits(torch.bfloat16)[0]
    left_out.clear()
    engine.sync(updated(model), 2)


def test_weights_that_arrived_as_others_are_not_sampled_from():
    """The digests are held against what was sent, before anything is sampled."""
    left_out: set[str] = set()
    engine = stand_in(left_out)
    left_out.add("digests")
    engine._core.resumed = False
    with pytest.raises(
        EngineError,
        match="version 1 did not arrive in vLLM: 1 of .* tensors are not those that were sent, the first",
    ):
        engine.sync(wide(seed=1).state_dict(), 1)
    assert not engine._core.resumed and engine.policy_version == 0
    with pytest.raises(EngineError, match="request 0 refused: version 1 did not arrive"):
        engine.submit(ask(0, "s", PROMPT))
    left_out.clear()
    engine.sync(wide(seed=1).state_dict(), 2)
    assert engine._core.resumed and engine.policy_version == 2


@pytest.mark.parametrize("left_out, told", [({"tied head"}, False), (set(), True)])
def test_updates_too_small_to_be_told_in_bfloat16_add_up_until_they_are(left_out, told):
    model, seen = wide(), []
    engine = stand_in(left_out, dtype="bfloat16")
    while len(seen) < 100 and (not seen or seen[-1] is None):
        rounded = {
            name: w.to(torch.bfloat16)
            for name, w in engine._plain.names.choose(updated(model, 1e-5)).items()
        }
        engine._core.load(rounded, len(seen))
        seen.append(engine._check._look_at_head(rounded, torch.bfloat16)[0])
    assert seen[-1] is told and len(seen) > 1, "else this test shows nothing"


def updated(model, size: float = 3e-4):
    """The weights after one more update, by default of the usual size."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return model.state_dict()


def test_a_change_is_told_below_the_rounding_and_nothing_is_told_without_one():
    noise = torch.Generator().manual_seed(0)
    old = torch.randn(4, 500, generator=noise)
    for size, told in [(1e-2, True), (2e-3, True), (1e-5, None), (0.0, None)]:
        new = old + size * torch.randn(4, 500, generator=noise)
        for own, fresh in ((new, True), (old, False)):
            for scale in (1.0, 0.3):  # some models scale their logits
                rounded = (own * scale).to(torch.bfloat16).float()
                assert came_along(rounded, old, new) is (told and fresh)
    assert came_along(old * float("nan"), old, new) is None


def test_weights_that_diverged_are_told_and_good_ones_mend_it():
    engine = stand_in()
    with pytest.raises(EngineError, match="not finite"):
        engine.sync(
            {
                name: w * float("nan")
                for name, w in wide().state_dict().items()
                if name != "lm_head.weight"
            },
            1,
        )
    engine.sync(wide(seed=1).state_dict(), 2)
    assert np.isinf(engine.stats()["gap_max_ever"]) or np.isnan(engine.stats()["gap_max_ever"])


def test_wrong_weights_are_refused_before_anything_changes():
    engine = stand_in()
    weights = dict(wide(seed=1).state_dict())
    with pytest.raises(EngineError, match="lack 1 name.*model.norm.weight"):
        engine.sync({name: w for name, w in weights.items() if name != "model.norm.weight"}, 1)
    assert engine.policy_version == 0
    assert worst_gap(wide(), play(engine, prompts(2, high=10), turns=1)) < 2e-5


def test_training_the_model_does_not_change_what_is_sampled_until_sync():
    model = wide()
    engine = stand_in()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    assert worst_gap(wide(), play(engine, prompts(2, high=10), turns=1)) < 2e-5


def test_a_gap_is_small_or_it_is_not():
    gap = Gap.between(np.array([-1.0, -2.0]), np.array([-1.0, -2.5]))
    assert (gap.mean, gap.largest, gap.tokens) == (0.25, 0.5, 2)
    assert gap.within(0.3, 0.6) and not gap.within(0.2, 0.6) and not gap.within(0.3, 0.4)
    assert not Gap.between(np.array([np.nan]), np.array([-1.0])).within(1.0, 1.0)
    assert limits(torch.bfloat16) == (0.01, 0.5) and limits(torch.float32)[0] < 1e-3
    assert limits(torch.float32, gap_mean=0.2) == (0.2, 10.0)
    kinds = [
        what_is_stale(finite=f, answers_as_before=a, head_is_old=h, prefixes_are_old=p)
        for f, a, h, p in [(0, 1, 1, 1), (1, 1, 1, 1), (1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 0, 0)]
    ]
    assert len(set(kinds)) == 5


def test_the_plain_forward_borrows_its_weights():
    model = wide()
    plain = PlainForward(model)
    assert all(parameter.is_meta for parameter in plain._shell.parameters()), "no second copy"
    ids = np.random.default_rng(0).integers(0, VOCAB, (2, 12))
    for seed in (0, 1):
        weights = plain.names.choose(wide(seed=seed).state_dict())
        for temperature in (1.0, 2.0):
            found = plain.logprobs(weights, ids, 5, temperature)
            expected = np.stack(
                [plain_logprobs(wide(seed=seed), row, temperature)[-5:].numpy() for row in ids]
            )
            np.testing.assert_allclose(found, expected, atol=1e-5)
    hidden = torch.randn(3, 32)
    own, other = wide().lm_head.weight.detach(), wide(seed=1).lm_head.weight.detach()
    said = plain.head_logits(plain.names.choose(wide().state_dict()), hidden)
    torch.testing.assert_close(said, hidden @ own.T)
    assert not head_differs(said * 0.5, said, torch.float32), "some models scale their logits"
    assert head_differs(hidden @ other.T, said, torch.float32)


# ---------------------------------------------------------------------------------------------- opening


def test_one_position_stays_free_and_what_cannot_fit_is_refused():
    model = wide()
    assert (
        context_for(model, VllmEngineConfig()) == 255
        and context_for(model, VllmEngineConfig(max_context=40)) == 40
    )
    for settings, told in [
        (dict(max_context=256), "at most 255"),
        (dict(max_context=300), "300.*256"),
        (dict(cache_tokens=64), "255 tokens does not fit into a cache of 64"),
    ]:
        with pytest.raises(EngineError, match=told):
            context_for(model, VllmEngineConfig(**settings))


@pytest.mark.parametrize(
    "wrong, told",
    [
        (dict(dtype="int8"), "engine.dtype"),
        (dict(cache="on"), "engine.cache"),
        (dict(max_rows=0), "max_rows"),
        (dict(tensor_parallel=0), "tensor_parallel.*at least 1"),
        (dict(prefill_tokens=8), "max_rows"),
        (dict(gap_mean=0.0), "gap_mean"),
        (dict(max_context=1), "max_context"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(wrong, told):
    with pytest.raises(ConfigError, match=told):
        VllmEngineConfig(**wrong)


def test_vllm_is_opened_to_say_the_logprobs_it_sampled_from():
    """What each of these does is seen on the real one only (test_vllm_engine); that none is lost is seen here."""
    text = wide().config
    said = server_arguments(
        text, VllmEngineConfig(dtype="bfloat16", cache_tokens=64, block_tokens=32), 40
    )
    expected = {
        "logprobs_mode": "processed_logprobs",
        "enable_chunked_prefill": False,
        "enable_prefix_caching": True,
        "load_format": "dummy",
        "max_model_len": 40,
        "dtype": "bfloat16",
    }
    assert said | expected == said
    # 2 blocks and one for vLLM itself: keys and values of 3 layers, 2 heads of 32, two bytes each.
    assert said["kv_cache_memory_bytes"] == (2 + 1) * 32 * 2 * 3 * 2 * 32 * 2
    assert said["max_num_batched_tokens"] >= said["max_model_len"], (
        "a prompt fits whole into a tick"
    )
    assert not server_arguments(text, VllmEngineConfig(cache="off"), 40)["enable_prefix_caching"]
    # Graphs and asynchronous scheduling on a GPU, unless it is told otherwise.
    assert said["enforce_eager"] and "async_scheduling" not in said
    on_gpu = [
        server_arguments(text, VllmEngineConfig(device="cuda", compiled=compiled), 40)
        for compiled in (None, False)
    ]
    assert [each["enforce_eager"] for each in on_gpu] == [False, True] and all(
        each["async_scheduling"] for each in on_gpu
    )
    assert not server_arguments(text, VllmEngineConfig(compiled=True), 40)["enforce_eager"]


def test_without_vllm_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "")  # what opening sets is undone after the test
    with pytest.raises(
        EngineError, match="not installed here.*make setup-vllm.*constraints-vllm.txt.*NVIDIA GPU"
    ):
        open_engine(VllmEngineConfig(max_context=CONTEXT), wide())


@pytest.mark.parametrize(
    "kind, device, told",
    [
        (
            "",
            "cpu",
            "works on no device of this machine.*set policy.device='cpu', or install the other build.*make setup-vllm",
        ),
        (
            "cpu",
            "cuda",
            "the policy is on cuda, but this vLLM works on cpu; set policy.device='cpu'",
        ),
        (
            "cuda",
            "cpu",
            "the policy is on cpu, but this vLLM works on cuda; set policy.device='cuda'",
        ),
        (
            None,
            "cpu",
            "installed but does not import: ImportError: libcudart is not here.*torchvision",
        ),
    ],
)
def test_a_build_for_another_machine_says_so(monkeypatch, kind, device, told):
    class Platforms(ModuleType):
        @property
        def current_platform(self):
            if kind is None:
                raise ImportError("first line\nlibcudart is not here")
            return SimpleNamespace(device_type=kind)

    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    package = ModuleType("vllm")
    for name in ("platforms", "sampling_params"):
        setattr(package, name, Platforms(f"vllm.{name}"))
        monkeypatch.setitem(sys.modules, f"vllm.{name}", getattr(package, name))
    monkeypatch.setitem(sys.modules, "vllm", package)
    for name in ("VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_LOGGING_LEVEL", "VLLM_NO_USAGE_STATS"):
        monkeypatch.setenv(name, "")
    with pytest.raises(EngineError, match=told):
        open_engine(VllmEngineConfig(device=device, max_context=CONTEXT), wide())


class Sleeper:
    """Of vLLM's engine what sleeping needs: `called` in order, `weights` as its worker holds them."""

    vllm_config = SimpleNamespace(cache_config=SimpleNamespace(num_gpu_blocks=4, block_size=8))

    def __init__(self):
        self.called, self.weights, self.asleep, self.wakes = [], torch.ones(4), False, True

    def collective_rpc(self, method, args=()):
        self.called.append(method)
        return [digests({"w": self.weights})]

    def sleep(self, level):
        self.called.append(f"sleep {level}")
        self.asleep = True

    def wake_up(self):
        self.called.append("wake_up")
        self.asleep = not self.wakes

    def is_sleeping(self):
        return self.asleep

    def add_request(self, name, prompt, params):
        assert not self.asleep
        self.called.append(f"turn {name}")


def test_vllm_is_awake_and_as_it_was_before_a_turn_is_asked_of_it():
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(FINAL_ONLY=0))
    vllm = SimpleNamespace(SamplingParams=dict, sampling_params=kinds)
    core = VllmCore(llm := Sleeper(), vllm)
    core.add("a", [1], {})
    core.rest()
    core.add("b", [1], {})
    core.add("c", [1], {})
    assert llm.called[1:] == [
        "turn a",
        "workbench_held",
        "sleep 1",
        "wake_up",
        "workbench_held",
        "turn b",
        "turn c",
    ]
    core.rest()
    llm.weights = torch.zeros(4)
    for _ in range(2):  # it stays refused until weights are loaded
        with pytest.raises(
            EngineError, match="did not wake up as it fell asleep: 1 of 1 tensors.*R33"
        ):
            core.add("d", [1], {})
    llm.wakes, core._left = False, None
    core.rest()
    with pytest.raises(EngineError, match="told to wake up and sleeps on"):
        core.add("e", [1], {})
    assert llm.called[-1] == "wake_up"


def test_sleep_is_refused_where_it_cannot_be_or_was_not_proven():
    with pytest.raises(
        EngineError,
        match="engine.sleep on cpu: vLLM's CPU build .* ignores sleep, and frees nothing",
    ):
        open_engine(VllmEngineConfig(sleep=True), wide())
    sleeping = {"engine.kind": "vllm", "engine.sleep": True, "policy.device": "cuda"}
    assert load_config("frozenlake", sleeping).engine.sleep
    for more, words in (
        ({"policy.device": "cpu"}, "engine.sleep has no effect.*frees nothing"),
        (
            {"layout.kind": "one_node"},
            "engine.sleep has no effect: a server has devices of its own",
        ),
        ({"learner.lora_rank": 4}, "engine.sleep with learner.lora_rank: .*vllm#53888.*not proven"),
        (
            {"train.staleness": 1, "algorithm.sampler_cap": 2.0},
            "vLLM samples while weights are learned",
        ),
    ):
        with pytest.raises(ConfigError, match=words):
            load_config("frozenlake", sleeping | more)


def test_several_processes_and_other_gpus_are_refused(monkeypatch):
    with pytest.raises(EngineError, match="CUDA_VISIBLE_DEVICES"):
        open_engine(VllmEngineConfig(device="cuda:1"), wide())
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(EngineError, match="is for one process.*started 2.*one_node"):
        open_engine(VllmEngineConfig(), wide())
    with pytest.raises(EngineError, match="causal language model, got Linear"):
        open_engine(VllmEngineConfig(), torch.nn.Linear(2, 2))
