"""The vllm engine: vLLM behind the same contract as the embedded engine, in this process or as a server. No vllm is
imported here.

    submit ─▶ intake (refuses) ─▶ core.add          poll ─▶ core.step() ─▶ completion_of
    sync   ─▶ names checked ─▶ core.load, forget_prefixes ─▶ digests of what arrived ─▶ core.resume
                                                          ─▶ the gap to a plain forward pass, asserted

What is the same: ids in and out, the stop token among them, one logprob per token of the distribution sampled from.
What is not, and cannot be: the noise is vLLM's own, so the same address gives other tokens than in the embedded engine.
Noise of position t of a turn depends on the request's seed and t alone, never on the batch; but its matrix products
round differently in batches of other sizes, so that a token whose choice hangs on the last bits may differ between
"alone" and "in a batch". The same requests submitted at the same polls give the same bits again (one thread, CPU).
Without seeds (engine.seeded) none of this holds: turns draw from one stream of vLLM's, begun anew with the engine, and every
completion says so.

Keys and values are kept by content, in whole blocks, and shared by all sessions: `release` frees nothing, and a session
that went on from its last turn pays for the rest of a block again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from workbench.engines.adapter_route import Adapter
from workbench.engines.base import Completion, Listener, Request
from workbench.engines.config import NO_SLEEP_ON_CPU, VllmEngineConfig
from workbench.engines.digests import digests, unequal
from workbench.engines.gap import PlainForward
from workbench.engines.intake import Intake, model_context
from workbench.engines.vllm_check import Delivery, SyncCheck
from workbench.engines.vllm_core import VllmOutput, open_core
from workbench.engines.vllm_turns import (
    SCORING,
    Core,
    VllmCounters,
    completion_of,
    failure,
    fault_of,
    is_bent,
    rows_of,
    sampling_params,
)
from workbench.values.errors import EngineError


@dataclass
class _Turn:
    """A request in flight; `sampled` is set while its plain logprobs are still being computed."""

    request: Request
    limit: int
    addressed: bool
    sampled: VllmOutput | None = None


class VllmEngine:
    """Samples turns with vLLM. Not thread-safe: one thread submits and polls.

    `core` may hold anything: the weights of `model` are loaded into it here, and checked. Raises EngineError.
    """

    name = "vllm"

    def __init__(
        self, core: Core, model: torch.nn.Module, config: VllmEngineConfig = VllmEngineConfig()
    ) -> None:
        self.config = config
        self._core = core
        # Whether turns are asked for with their seeds (invariant 8).
        self.addressed = config.seeds_turns(core.makes_generators)
        self._plain = PlainForward(model)
        self._counters = VllmCounters()
        self._policy_version = 0
        # While set, turns are asked for with every logprob: slow.
        self.listener: Listener | None = None
        self._fault: str | None = None  # why it must not be sampled from, until a sync fixes it
        self._cannot_score: str | None = None  # why bent sampling is refused: found out at opening
        self._turns: dict[str, _Turn] = {}
        vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self.context_length = context_for(model, config)
        self._intake = Intake(self.context_length, vocab_size, core.cache_tokens)
        self._check = SyncCheck(
            core,
            self._plain,
            config,
            self._counters,
            context_length=self.context_length,
            vocab_size=vocab_size,
        )
        weights = {name: tensor.detach() for name, tensor in model.state_dict().items()}
        self._load(self._plain.names.choose(weights), 0)

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def delivery(self) -> Delivery | None:
        """Whether the newest weights arrived; the lint reads it (R33, R34)."""
        return self._check.delivery

    @property
    def keeps_cache(self) -> bool:
        """True where keys and values are kept from turn to turn; `cache_reason` says why, or why not."""
        return self.config.cache != "off"

    @property
    def cache_reason(self) -> str:
        if not self.keeps_cache:
            return "switched off by engine.cache='off'"
        return (
            f"vLLM keeps prefixes in blocks of {self.config.block_tokens} tokens, by content; a prompt seen before "
            "a sync is compared with a plain forward pass after it"
        )

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises EngineError for a request that can never be served."""
        if self._fault is not None:
            raise EngineError(f"request {request.id} refused: {self._fault}")
        if self._cannot_score is not None and is_bent(request):
            raise EngineError(
                f"request {request.id} refused: {self._cannot_score}; sample at temperature 1 and top_p 1, "
                "or use engine.kind='transformers'"
            )
        prompt, limit = self._intake.accept(request)
        name = str(request.id)
        # An audit compares the same turns; greedy ones draw nothing.
        addressed = self.addressed or self.listener is not None or request.temperature == 0
        params = sampling_params(request, limit)
        if self.listener is not None:
            params["logprobs"] = -1
        if not addressed:
            del params["seed"]
        try:
            self._core.add(name, prompt.tolist(), params)
        except Exception as error:  # what only vLLM knows that it cannot do
            self._intake.finish(request.id)
            raise EngineError(f"request {request.id} refused by vLLM: {error}") from error
        self._turns[name] = _Turn(request, limit, addressed)

    def poll(self) -> list[Completion]:
        """One scheduler step; what is over, in the order of request ids."""
        if not len(self._intake):
            return []
        started = time.process_time()
        self._counters.ticks += 1
        try:
            answers = self._core.step()
        except Exception as error:  # vLLM raises whatever its kernels raise; it is told to all who wait (invariant 10)
            return self._fail(
                f"vLLM failed in the middle of a step ({type(error).__name__}: {error})"
            )
        taken = [self._take(answer) for answer in answers]
        done = [completion for completion in taken if completion is not None]
        self._counters.cpu_seconds += time.process_time() - started
        return sorted(done, key=lambda completion: completion.request_id)

    def release(self, session: str) -> None:
        """A request that the session still has in flight is dropped and never answered; prefixes age by themselves."""
        request_id = self._intake.cancel(session)
        if request_id is not None:
            del self._turns[str(request_id)]
            self._abort(str(request_id))

    def sync(self, weights: Mapping[str, Tensor], version: int) -> None:
        """Copy new weights in, drop every cached prefix, and assert that they are what is sampled from.

        Raises EngineError for wrong names or shapes, and then nothing has changed; and for a gap to a plain forward
        pass that rounding does not explain, naming what is stale: then nothing is sampled until a sync succeeds.
        """
        self._intake.check_sync(version, self._policy_version)
        self._load(self._plain.names.choose(weights), version)

    def sync_adapter(self, adapter: Adapter, merged: Mapping[str, Tensor], version: int) -> None:
        """The same where a server takes the adapter alone (layout.adapters = 'routes'), beside the weights that the engine
        was opened with. `merged`: what the two come to, which its answers are compared with."""
        self._intake.check_sync(version, self._policy_version)
        self._load(self._plain.names.choose(merged), version, adapter)

    def rest(self) -> None:
        """Nothing is asked for while weights are learned: with engine.sleep vLLM sleeps meanwhile. Refused in flight."""
        if self.config.sleep:
            if len(self._intake):
                raise EngineError(
                    f"vLLM cannot sleep with {len(self._intake)} requests in flight; poll() until all are over"
                )
            self._core.rest()

    def close(self) -> None:
        """A server that was started for this engine is ended, and then it cannot be used any more. vLLM in this process
        goes with the last reference to it."""
        self._core.close()

    def stats(self) -> dict[str, float]:
        """Counts since the engine was made (see `VllmCounters`), and the positions its cache has room for."""
        return {**asdict(self._counters), "cache_tokens": self._core.cache_tokens}

    # ------------------------------------------------------------------------------------------ turns

    def _take(self, answer: VllmOutput) -> Completion | None:
        """The completion of a turn that is over; None while its plain logprobs are still to come."""
        turn = self._turns.get(answer.name)
        if turn is None:
            return None  # released while it was being sampled
        request = turn.request
        sampled = turn.sampled or answer
        if turn.sampled is None:
            self._counters.reused_tokens += answer.cached_tokens
            self._counters.prefill_tokens += len(request.prompt_ids) - answer.cached_tokens
            self._counters.generated_tokens += len(answer.token_ids)
            if self.listener is not None and answer.whole is not None:
                count = len(answer.whole)
                rows = rows_of(answer.whole, self._intake.vocab_size)
                self.listener([request.id] * count, range(count), rows, True)
            if is_bent(request) and fault_of(request, turn.limit, answer) is None:
                turn.sampled = answer
                sequence = [*(int(token) for token in request.prompt_ids), *answer.token_ids]
                self._counters.scored_tokens += len(sequence)
                try:
                    self._core.add(answer.name, sequence, SCORING)
                    return None
                except Exception as error:  # whatever vLLM has against it ends this turn and no other (invariant 10)
                    return self._end(
                        request, f"vLLM refused to score the turn ({type(error).__name__}: {error})"
                    )
        self._intake.finish(request.id)
        del self._turns[answer.name]
        return completion_of(
            request,
            turn.limit,
            sampled,
            self._policy_version,
            self.config.dtype,
            scored=answer if turn.sampled is not None else None,
            addressed=turn.addressed,
        )

    def _fail(self, why: str) -> list[Completion]:
        """Everybody who waits is told; nothing more is sampled until a sync has shown that it works again."""
        self._fault = f"{why}; open the engine anew, or sync"
        failed = []
        for name, turn in sorted(self._turns.items(), key=lambda item: item[1].request.id):
            self._abort(name)
            failed.append(self._end(turn.request, why))
        return failed

    def _end(self, request: Request, why: str) -> Completion:
        self._intake.finish(request.id)
        del self._turns[str(request.id)]
        return failure(request, why, self._policy_version, self.config.dtype)

    def _abort(self, name: str) -> None:
        """Drop a request. A core that is past even that is no reason to fail here: whoever submits next is told."""
        try:
            self._core.abort(name)
        except Exception as error:
            self._fault = self._fault or (
                f"vLLM could not drop a request ({type(error).__name__}: {error}); open the "
                "engine anew, or sync"
            )

    # ------------------------------------------------------------------------------------------ weights

    def _load(
        self, weights: Mapping[str, Tensor], version: int, adapter: Adapter | None = None
    ) -> None:
        opening = self._counters.loads == 0
        before = None
        if not opening and self.keeps_cache and self._fault is None:
            before = self._check.before_sync()
        self._fault = f"the sync to version {version} was interrupted"
        try:
            if adapter is None:
                arrived = self._core.load(weights, version)
            else:
                arrived = self._core.load(weights, version, adapter)
        except EngineError as error:  # it says itself what went wrong, as a server's does
            self._fault = str(error)
            raise
        except Exception as error:  # a name or layout that vLLM has otherwise than transformers
            raise EngineError(
                f"vLLM could not take the weights of version {version} ({type(error).__name__}: {error}); "
                "it may know this architecture by other names: use engine.kind='transformers'"
            ) from error
        self._core.forget_prefixes()
        sent = digests(weights) if adapter is None else adapter.digests(self.config.dtype)
        if lost := unequal(sent, arrived):
            self._fault = f"version {version} did not arrive in vLLM: {lost} (rule R33)"
            raise EngineError(self._fault)
        self._core.resume()
        if opening:
            self._cannot_score = self._check.scoring_fault()
        self._fault = self._check.fault(weights, version, before, lost)
        self._counters.loads += 1
        if self._fault is not None:
            raise EngineError(self._fault)
        self.held = arrived  # digests
        self._policy_version = version


# ---------------------------------------------------------------------------------------------- opening


def context_for(model: torch.nn.Module, config: VllmEngineConfig) -> int:
    """Tokens of one sequence. One position stays free: a finished sequence is scored by asking for one token more."""
    context = model_context(model, config.max_context)
    positions = model_context(model, None)
    if context == positions:
        if config.max_context is not None:
            raise EngineError(
                f"engine.max_context = {context}: vLLM needs one position for itself, so at most "
                f"{positions - 1} here"
            )
        context = positions - 1
    if context > config.cache_tokens:
        raise EngineError(
            f"a sequence of {context} tokens does not fit into a cache of {config.cache_tokens}; lower "
            "engine.max_context or raise engine.cache_tokens"
        )
    return context


def check_model(model: torch.nn.Module) -> None:
    """Raise EngineError for what vLLM could not be told the architecture of."""
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise EngineError(
            f"expected a Hugging Face causal language model, got {type(model).__name__}; if it is wrapped "
            "(DDP, FSDP, accelerate), hand over the model inside"
        )


def open_vllm_engine(model: torch.nn.Module, config: VllmEngineConfig) -> VllmEngine:
    """vLLM with `model`'s weights, checked against it. Takes ten to forty seconds. Raises EngineError."""
    check_model(model)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EngineError(
            "engine.kind='vllm' in the learner's process is for one process, and torchrun or accelerate started "
            f"{os.environ['WORLD_SIZE']}; layout.kind='one_node' gives them a server, "
            "engine.kind='transformers' samples in each"
        )
    if config.sleep and not config.on_gpu:
        raise EngineError(
            f"engine.sleep on {config.device}: {NO_SLEEP_ON_CPU}; set engine.sleep = false"
        )
    if config.device.startswith("cuda:") and config.device != "cuda:0":
        raise EngineError(
            f"vLLM takes the first GPU that this process sees, and the policy is on {config.device}; set "
            "CUDA_VISIBLE_DEVICES and policy.device='cuda'"
        )
    return VllmEngine(open_core(model, config, context_for(model, config) + 1), model, config)
