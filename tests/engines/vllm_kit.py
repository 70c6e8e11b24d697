"""vLLM for tests: the real one, opened once for all tests of a process, and a stand-in that needs none.

The stand-in makes every promise of `vllm_core.VllmCore` by plain forward passes, and can be told to break one; what
the engine makes of it is tested wherever the suite runs. Whether vLLM keeps those promises is asked of the real one:
`make test-vllm`.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import itertools
import os
from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers as hf
from engine_models import SHAPE

from workbench.engines import VllmEngineConfig
from workbench.engines.digests import digests
from workbench.engines.intake import copy_weights
from workbench.engines.sampling import bend, uniforms
from workbench.engines.vllm_core import VllmCore, VllmOutput, open_core
from workbench.engines.vllm_engine import VllmEngine, context_for

CONTEXT = 40
STEPS = ("load", "tied head", "forget_prefixes")


def wide(seed: int = 0, tied: bool = True) -> torch.nn.Module:
    """A random Qwen3 with heads of 32: vLLM's CPU attention knows none smaller."""
    torch.manual_seed(seed)
    model = hf.Qwen3ForCausalLM(
        hf.Qwen3Config(**SHAPE, head_dim=32, tie_word_embeddings=tied)
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(5.0)
    return model


class StandIn:
    """Keeps the promises of VllmCore by plain forward passes; `leave_out` names steps of a sync that do nothing.

    Weights and what the head makes of states are rounded to `dtype`; the rest is computed in float32.
    """

    cache_tokens, patience_s, makes_generators = 1 << 16, 0.0, True

    def __init__(
        self, model: torch.nn.Module, leave_out: set[str] | None = None, dtype: str = "float32"
    ) -> None:
        self.dtype = getattr(torch, dtype)
        self.leave_out = leave_out if leave_out is not None else set()
        self.body = copy.deepcopy(model)
        self.head = model.lm_head.weight.detach().clone()
        self.queue: dict[str, tuple[list[int], dict]] = {}
        self.kept: dict[tuple[int, ...], torch.Tensor] = {}  # prompt -> logits after it
        self.explode: str | None = None
        self.stream = itertools.count(1 << 40)  # what turns without a seed draw from

    def add(self, name, prompt, params):
        assert name not in self.queue and len(prompt) + params["max_tokens"] <= CONTEXT + 1
        self.queue[name] = (prompt, dict(params))

    def abort(self, name):
        self.queue.pop(name, None)

    def step(self):
        if self.explode:
            raise RuntimeError(self.explode)
        queue, self.queue = self.queue, {}
        return [self._answer(name, prompt, params) for name, (prompt, params) in queue.items()]

    def load(self, weights, version):
        if "load" not in self.leave_out:
            copy_weights(self.body, {name: w.to(self.dtype).float() for name, w in weights.items()})
        if "tied head" not in self.leave_out:
            self.head = self.body.lm_head.weight.detach().clone()
        arrived = digests(weights)
        if "digests" in self.leave_out:
            arrived[next(iter(arrived))] = "noise"
        return arrived

    def resume(self):
        self.resumed = True

    def close(self):
        pass

    def forget_prefixes(self):
        if "forget_prefixes" not in self.leave_out:
            self.kept.clear()

    def head_logits(self, hidden_ND):
        return (hidden_ND.float() @ self.head.float().T).to(self.dtype).float()

    def _logits(self, ids):
        with torch.no_grad():
            hidden = self.body.model(
                input_ids=torch.tensor([ids]), use_cache=False
            ).last_hidden_state[0]
        return hidden.float() @ self.head.float().T

    def _answer(self, name, prompt, params):
        cached = len(prompt) - 1 if tuple(prompt) in self.kept else 0
        after = self.kept.setdefault(tuple(prompt), self._logits(prompt)[-1])
        ids, logprobs = list(prompt), []
        for uniform in uniforms(
            params["seed"] if "seed" in params else next(self.stream), params["max_tokens"]
        ):
            logits = after if len(ids) == len(prompt) else self._logits(ids)[-1]
            greedy = params["temperature"] == 0.0
            temperature = 1.0 if greedy else params["temperature"]
            logp = bend(
                logits[None], np.array([temperature]), np.array([params.get("top_p", 1.0)])
            )[0]
            cdf = logp.double().exp().cumsum(0).numpy()
            drawn = (
                int(logp.argmax())
                if greedy
                else int(np.searchsorted(cdf, uniform * cdf[-1], side="right"))
            )
            ids.append(min(drawn, len(cdf) - 1))  # only rows of NaN reach beyond
            logprobs.append(float(logp[ids[-1]]))
            if ids[-1] in params.get("stop_token_ids", ()):
                break
        scored = None
        if "prompt_logprobs" in params:
            logp = self._logits(prompt).log_softmax(-1)
            scored = [float(logp[t - 1, prompt[t]]) for t in range(1, len(prompt))]
        stopped = ids[-1] in params.get("stop_token_ids", ())
        return VllmOutput(
            name, ids[len(prompt) :], logprobs, "stop" if stopped else "length", cached, scored
        )


def stand_in(leave_out: set[str] | None = None, **settings) -> VllmEngine:
    model = wide()
    config = VllmEngineConfig(max_context=CONTEXT, **settings)
    return VllmEngine(StandIn(model, leave_out, config.dtype), model, config)


# ---------------------------------------------------------------------------------------------- the real one

_engines: list[VllmEngine] = []


def need_vllm() -> None:
    """Skip where vLLM is not installed; under WORKBENCH_VLLM=1 (`make test-vllm`) that is a failure."""
    if importlib.util.find_spec("vllm") is None:
        reason = "needs vLLM, in an environment of its own: make test-vllm"
        if os.environ.get("WORKBENCH_VLLM") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)


def leave_out(monkeypatch, step: str) -> None:
    """Have vLLM in this process leave out a step of a sync, while it says that all is well."""
    if step == "load":
        monkeypatch.setattr(VllmCore, "load", lambda core, weights, version: digests(weights))
    elif step == "tied head":
        monkeypatch.setattr("workbench.engines.vllm_transfer.pack_embeddings", lambda model: None)
    else:
        monkeypatch.setattr(VllmCore, step, lambda core: None)


def need_packed_heads(core: VllmCore) -> None:
    """Skip where this vLLM multiplies by the output head's own weight, as it does in bfloat16 on a processor without AVX-512:
    there is nothing to pack again, so nothing can be left out."""
    if not any(core._llm.collective_rpc(_packs_a_head)):
        pytest.skip("on this processor vLLM does not pack an output head of this dtype")


def _packs_a_head(worker) -> bool:
    for module in worker.model_runner.model.modules():
        weight = getattr(module, "weight", None)
        if hasattr(module, "cpu_linear") and weight is not None and weight.numel():
            ones = torch.ones(1, weight.shape[1], dtype=weight.dtype)
            return torch.equal(
                module.cpu_linear(ones, weight, None), module.cpu_linear(ones, weight * 2, None)
            )
    return False


def real(model: torch.nn.Module | None = None, number: int = 0, **settings) -> VllmEngine:
    """An engine at version 0 on a vLLM that was opened before, where its settings are the same: opening takes seconds.

    Of the same `number` only the newest may be used: whatever an older one left in flight is dropped.
    """
    need_vllm()
    model = model or wide()
    config = VllmEngineConfig(**{"max_context": CONTEXT, "cache_tokens": 4096, **settings})
    core = _core(replace(config, gap_mean=None), number, model.config.tie_word_embeddings)
    for engine in [engine for engine in _engines if engine._core is core]:
        for name in list(engine._turns):
            core.abort(name)
        _engines.remove(engine)
    _engines.append(engine := VllmEngine(core, model, config))
    return engine


@functools.cache
def _core(config: VllmEngineConfig, number: int, tied: bool):
    model = wide(tied=tied)
    return open_core(model, config, context_for(model, config) + 1)
