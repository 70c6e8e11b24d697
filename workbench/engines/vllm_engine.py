"""The vllm engine: vLLM in this process behind the same contract as the embedded engine. No vllm is imported here.

    submit ─▶ intake (refuses) ─▶ core.add          poll ─▶ core.step() ─▶ completion_of
    sync   ─▶ names checked ─▶ core.load, refresh_tied, forget_prefixes ─▶ the gap to a plain forward pass, asserted

What is the same: ids in and out, the stop token among them, one logprob per token of the distribution sampled from.
What is not, and cannot be: the noise is vLLM's own, so the same address gives other tokens than in the embedded engine.
Noise of position t of a turn depends on the request's seed and t alone, never on the batch; but its matrix products
round differently in batches of other sizes, so that a token whose choice hangs on the last bits may differ between
"alone" and "in a batch". The same requests submitted at the same polls give the same bits again (one thread, CPU).

Keys and values are kept by content, in whole blocks, and shared by all sessions: `release` frees nothing, and a session
that went on from its last turn pays for the rest of a block again.
"""
from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np
import torch

from workbench.engines.base import Completion, Listener, Request
from workbench.engines.config import VllmEngineConfig
from workbench.engines.gap import Gap, PlainForward, came_along, head_differs, limits, what_is_stale
from workbench.engines.intake import Intake, model_context, new_token_limit
from workbench.engines.vllm_core import VllmOutput, open_core
from workbench.types import Sampling
from workbench.types.errors import EngineError

PROBES, PROBE_PROMPT, PROBE_TOKENS = 8, 16, 6  # prompts that were never seen; tokens of each; tokens sampled
PROBE = "probe"                                # begins the names of the engine's own requests
# A trained policy is certain of most tokens, and certainty hides every change: probes are sampled hotter than it acts.
PROBE_TEMPERATURE = 2.0


class Core(Protocol):
    """What the engine needs of vLLM: `vllm_core.VllmCore`, or a stand-in in tests."""

    cache_tokens: int

    def add(self, name: str, prompt: list[int], params: Mapping[str, Any]) -> None: ...
    def step(self) -> list[VllmOutput]: ...
    def abort(self, name: str) -> None: ...
    def load(self, weights: Mapping[str, torch.Tensor]) -> None: ...
    def refresh_tied(self) -> None: ...
    def forget_prefixes(self) -> None: ...
    def head_logits(self, hidden_ND: torch.Tensor) -> torch.Tensor: ...


@dataclass
class VllmCounters:
    """What the engine did since it was made, its own probes left out. Tokens of prompts are counted once a turn."""

    ticks: int = 0
    prefill_tokens: int = 0      # of prompts, computed
    reused_tokens: int = 0       # of prompts, taken from the prefix cache
    generated_tokens: int = 0
    scored_tokens: int = 0       # passed through the model once more, for the plain logprobs of bent sampling
    loads: int = 0               # of weights: opening and each sync
    gap_mean: float = 0.0        # to a plain forward pass, after the newest sync (or opening), in nats
    gap_max: float = 0.0
    gap_max_ever: float = 0.0    # the largest of all syncs
    cpu_seconds: float = 0.0     # of this process, all threads, while polling
    sync_cpu_seconds: float = 0.0


@dataclass
class _Turn:
    """A request in flight; `sampled` is set while its plain logprobs are still being computed."""

    request: Request
    limit: int
    sampled: VllmOutput | None = None


class VllmEngine:
    """Samples turns with vLLM. Not thread-safe: one thread submits and polls.

    `core` may hold anything: the weights of `model` are loaded into it here, and checked. Raises EngineError.
    """

    name = "vllm"

    def __init__(self, core: Core, model: torch.nn.Module, config: VllmEngineConfig = VllmEngineConfig()) -> None:
        self.config = config
        self._core = core
        self._plain = PlainForward(model)
        self._counters = VllmCounters()
        self._policy_version = 0
        self.listener: Listener | None = None  # while set, turns are asked for with every logprob: slow
        self._fault: str | None = None   # why it must not be sampled from, until a sync mends it
        self._cannot_score: str | None = None  # why bent sampling is refused: found out at opening
        self._turns: dict[str, _Turn] = {}
        self._head_NV: torch.Tensor | None = None  # of fixed states, by the newest weights the head was seen to have
        vocab_size = int(model.get_input_embeddings().weight.shape[0])
        self._intake = Intake(context_for(model, config), vocab_size, core.cache_tokens)
        self._load(self._plain.names.choose({name: w.detach() for name, w in model.state_dict().items()}), 0)

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def context_length(self) -> int:
        return self._intake.context_length

    @property
    def keeps_cache(self) -> bool:
        """True where keys and values are kept from turn to turn; `cache_reason` says why, or why not."""
        return self.config.cache != "off"

    @property
    def cache_reason(self) -> str:
        if not self.keeps_cache:
            return "switched off by engine.cache='off'"
        return (f"vLLM keeps prefixes in blocks of {self.config.block_tokens} tokens, by content; a prompt seen before "
                "a sync is compared with a plain forward pass after it")

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises EngineError for a request that can never be served."""
        if self._fault is not None:
            raise EngineError(f"request {request.id} refused: {self._fault}")
        if self._cannot_score is not None and is_bent(request):
            raise EngineError(f"request {request.id} refused: {self._cannot_score}; sample at temperature 1 and top_p 1, "
                              "or use engine.kind='transformers'")
        prompt = self._intake.accept(request)
        limit = new_token_limit(len(prompt), request, self.context_length)
        name = str(request.id)
        try:
            whole = {} if self.listener is None else {"logprobs": -1}
            self._core.add(name, prompt.tolist(), sampling_params(request, limit) | whole)
        except Exception as error:  # what only vLLM knows that it cannot do
            self._intake.finish(request.id)
            raise EngineError(f"request {request.id} refused by vLLM: {error}") from error
        self._turns[name] = _Turn(request, limit)

    def poll(self) -> list[Completion]:
        """One scheduler step; what is over, in the order of request ids."""
        if not len(self._intake):
            return []
        started = time.process_time()
        self._counters.ticks += 1
        try:
            answers = self._core.step()
        except Exception as error:  # vLLM raises whatever its kernels raise; it is told to all who wait (law 10)
            return self._fail(f"vLLM failed in the middle of a step ({type(error).__name__}: {error})")
        done = [completion for answer in answers if (completion := self._take(answer)) is not None]
        self._counters.cpu_seconds += time.process_time() - started
        return sorted(done, key=lambda completion: completion.request_id)

    def release(self, session: str) -> None:
        """A request that the session still has in flight is dropped and never answered; prefixes age by themselves."""
        request_id = self._intake.cancel(session)
        if request_id is not None:
            del self._turns[str(request_id)]
            self._abort(str(request_id))

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy new weights in, drop every cached prefix, and assert that they are what is sampled from.

        Raises EngineError for wrong names or shapes, and then nothing has changed; and for a gap to a plain forward
        pass that rounding does not explain, naming what is stale: then nothing is sampled until a sync succeeds.
        """
        self._intake.check_sync(version, self._policy_version)
        self._load(self._plain.names.choose(weights), version)

    def stats(self) -> dict[str, float]:
        """Counts since the engine was made (see `VllmCounters`), and the positions its cache has room for."""
        return {**asdict(self._counters), "cache_tokens": self._core.cache_tokens}

    # ------------------------------------------------------------------------------------------ turns

    def _take(self, answer: VllmOutput) -> Completion | None:
        """The completion of a turn that is over; None while its plain logprobs are still to come."""
        turn = self._turns.get(answer.name)
        if turn is None:
            return None  # released while it was being sampled
        request, sampled = turn.request, turn.sampled or answer
        if turn.sampled is None:
            self._counters.reused_tokens += answer.cached_tokens
            self._counters.prefill_tokens += len(request.prompt_ids) - answer.cached_tokens
            self._counters.generated_tokens += len(answer.token_ids)
            if self.listener is not None and answer.whole is not None:
                count = len(answer.whole)
                self.listener([request.id] * count, range(count), _rows(answer.whole, self._intake.vocab_size), True)
            if is_bent(request) and fault_of(request, turn.limit, answer) is None:
                turn.sampled = answer
                sequence = [*(int(token) for token in request.prompt_ids), *answer.token_ids]
                self._counters.scored_tokens += len(sequence)
                try:
                    self._core.add(answer.name, sequence, SCORING)
                    return None
                except Exception as error:  # whatever vLLM has against it ends this turn and no other (law 10)
                    return self._end(request, f"vLLM refused to score the turn ({type(error).__name__}: {error})")
        self._intake.finish(request.id)
        del self._turns[answer.name]
        return completion_of(request, turn.limit, sampled, self._policy_version, self.config.dtype,
                             scored=answer if turn.sampled is not None else None)

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
            self._fault = self._fault or (f"vLLM could not drop a request ({type(error).__name__}: {error}); open the "
                                          "engine anew, or sync")

    # ------------------------------------------------------------------------------------------ weights

    def _load(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        started = time.process_time()
        opening = self._counters.loads == 0
        before = None
        if not opening and self.keeps_cache and self._fault is None:
            # Its prefix is in the cache now, computed by the old weights: the check finds out whether it is dropped.
            before = self._probe(self._seen_prompt(), "before")
        self._fault = f"the sync to version {version} was interrupted"
        try:
            self._core.load(weights)
        except Exception as error:  # a name or layout that vLLM has otherwise than transformers
            raise EngineError(f"vLLM could not take the weights of version {version} ({type(error).__name__}: {error}); "
                              "it may know this architecture by other names: use engine.kind='transformers'") from error
        self._core.refresh_tied()
        self._core.forget_prefixes()
        if opening:
            self._cannot_score = self._try_scoring()
        self._fault = self._check(weights, version, before)
        self._counters.loads += 1
        self._counters.sync_cpu_seconds += time.process_time() - started
        if self._fault is not None:
            raise EngineError(self._fault)
        self._policy_version = version

    def _check(self, weights: Mapping[str, torch.Tensor], version: int, before: "_Probed | None") -> str | None:
        """None where the engine samples from `weights`; else what is wrong. Notes the gap."""
        new = self._probe(self._new_prompts(version), "new")
        seen = self._probe(self._seen_prompt(), "seen")
        own = getattr(torch, self.config.dtype)
        # The engine may round what it was given to its dtype: that difference is no fault of the sync. (What is left
        # of it in training is `logp_gap_mean` of every step.)
        rounded = {name: w.to(own) if w.is_floating_point() else w for name, w in weights.items()}
        gap_new, gap_seen = self._gap(rounded, new), self._gap(rounded, seen)
        counters = self._counters
        counters.gap_mean = max(gap_new.mean, gap_seen.mean, key=_nan_first)
        counters.gap_max = max(gap_new.largest, gap_seen.largest, key=_nan_first)
        counters.gap_max_ever = max(counters.gap_max, counters.gap_max_ever, key=_nan_first)
        allowed = limits(own, self.config.gap_mean)
        head_came, head_is_near = self._look_at_head(rounded, own)
        within = gap_new.within(*allowed) and gap_seen.within(*allowed)
        if within and not seen.cached_tokens and head_came is not False:
            return None
        cause = what_is_stale(
            finite=bool(np.isfinite([counters.gap_mean, counters.gap_max]).all()),
            answers_as_before=before is not None and seen == before,
            head_is_old=head_came is False or not head_is_near,
            prefixes_are_old=bool(seen.cached_tokens) or (gap_new.within(*allowed) and not gap_seen.within(*allowed)),
        )
        return (f"version {version}: vLLM does not sample from the weights it was given. Its logprobs differ from a plain "
                f"forward pass by {gap_new} (a prompt seen before: {gap_seen}), allowed are mean {allowed[0]:g} and max "
                f"{allowed[1]:g}; {cause}")

    def _gap(self, weights: Mapping[str, torch.Tensor], probed: "_Probed") -> Gap:
        count = probed.logp_NT.shape[1]
        return Gap.between(probed.logp_NT, self._plain.logprobs(weights, probed.ids_NT, count, PROBE_TEMPERATURE))

    def _look_at_head(self, weights: Mapping[str, torch.Tensor], dtype: torch.dtype) -> tuple[bool | None, bool]:
        """(did the output head come along with these weights? None: cannot be told; is it theirs as far as one sees?)"""
        # Small numbers: a model that caps its logits leaves these as they are.
        hidden_ND = torch.from_numpy(np.random.default_rng(0).normal(size=(4, self._plain.hidden_size)) * 0.01).to(dtype)
        new_NV = self._plain.head_logits(weights, hidden_ND)
        if new_NV is None:
            return None, True
        own_NV = self._core.head_logits(hidden_ND)
        came = None if self._head_NV is None else came_along(own_NV, self._head_NV, new_NV)
        # While nothing can be told the older one stays, so that small changes add up until something can.
        if came or self._head_NV is None:
            self._head_NV = new_NV
        return came, not head_differs(own_NV, new_NV, dtype)

    def _new_prompts(self, version: int) -> np.ndarray:
        """Prompts that no cache can hold: drawn from the version."""
        length = max(1, min(PROBE_PROMPT, self.context_length - PROBE_TOKENS))
        return np.random.default_rng([1, version]).integers(0, self._intake.vocab_size, (PROBES, length))

    def _seen_prompt(self) -> np.ndarray:
        """The same prompt every time, longer than a block where the context allows it, so that it is cached."""
        length = max(1, min(self.config.block_tokens + 1, self.context_length - PROBE_TOKENS))
        return np.random.default_rng(0).integers(0, self._intake.vocab_size, (1, length))

    def _try_scoring(self) -> str | None:
        """Why this vLLM cannot tell the plain logprobs of a sequence, or None. Bent sampling alone needs that."""
        sequence, name, answers = [0, 0], f"{PROBE}-scoring", []  # less than a block, so that no cache holds it
        try:
            self._core.add(name, sequence, SCORING)
            for _ in range(100):
                answers += self._core.step()
                if answers:
                    break
        except Exception as error:  # as in `_probe`; a core that is broken altogether fails there
            self._abort(name)
            return f"vLLM cannot score what was sampled ({type(error).__name__}: {error})"
        scored = answers[0].prompt_logprobs if answers else None
        if scored is None or len(scored) != len(sequence) - 1:
            return f"vLLM cannot score what was sampled (asked for one logprob it gave {scored})"
        return None

    def _probe(self, prompts_NT: np.ndarray, what: str) -> "_Probed":
        """Sample a few tokens after each prompt. Only while nothing else is in flight. Raises EngineError."""
        count = min(PROBE_TOKENS, self.context_length - prompts_NT.shape[1])
        names = [f"{PROBE}-{what}-{row}" for row in range(len(prompts_NT))]
        found: dict[str, VllmOutput] = {}
        try:
            for row, name in enumerate(names):
                request = Request(row, name, prompts_NT[row], seed=row, max_new_tokens=count, stop_ids=frozenset(),
                                  temperature=PROBE_TEMPERATURE)
                self._core.add(name, prompts_NT[row].tolist(), sampling_params(request, count))
            for _ in range(100 + prompts_NT.size + count * len(names)):
                found |= {answer.name: answer for answer in self._core.step()}
                if len(found) == len(names):
                    break
        except Exception as error:  # a kernel that this model has none of shows here, when the engine is opened
            raise EngineError(f"vLLM cannot sample from this model in {self.config.dtype} "
                              f"({type(error).__name__}: {error}); use engine.kind='transformers'") from error
        if short := [name for name in names if name not in found or len(found[name].logprobs) != count]:
            raise EngineError(f"vLLM did not answer its probe: {short[0]} got "
                              f"{found.get(short[0], 'nothing')} instead of {count} tokens")
        answers = [found[name] for name in names]
        ids_NT = np.concatenate([prompts_NT, np.array([answer.token_ids for answer in answers])], axis=1)
        return _Probed(ids_NT, np.array([answer.logprobs for answer in answers]),
                       sum(answer.cached_tokens for answer in answers))


@dataclass(frozen=True, eq=False)
class _Probed:
    """Probes with what was sampled after them: ids [N, T], logprobs [N, sampled] at `PROBE_TEMPERATURE`."""

    ids_NT: np.ndarray
    logp_NT: np.ndarray
    cached_tokens: int = 0  # of the prompts, taken from the prefix cache: says where the answer is from, not what it is

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Probed) and np.array_equal(self.ids_NT, other.ids_NT) and np.array_equal(
            self.logp_NT, other.logp_NT)


# ---------------------------------------------------------------------------------------------- to and from vLLM

# Of a finished sequence: the logprobs of all its tokens by the unbent softmax. vLLM insists on sampling one token.
SCORING = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "ignore_eos": True}


def sampling_params(request: Request, limit: int) -> dict[str, Any]:
    """A request in the words of vllm.SamplingParams. `limit`: tokens that it may get."""
    greedy = request.temperature == 0.0
    return {
        "temperature": float(request.temperature),
        "top_p": 1.0 if greedy else float(request.top_p),  # the most likely token is always inside the nucleus
        "seed": request.seed % 2**63,                      # what torch takes; our seeds are hashes, any bits will do
        "max_tokens": limit,
        "stop_token_ids": sorted(int(token) for token in request.stop_ids),
        "ignore_eos": True,                                # turns end where the request says, not the model's config
        "logprobs": 0,                                     # of the sampled token, of no others
    }


def is_bent(request: Request) -> bool:
    """True where plain logprobs differ from those sampled from. Greedy ones are the model's own already."""
    return request.temperature != 0.0 and (request.temperature != 1.0 or request.top_p != 1.0)


def fault_of(request: Request, limit: int, answer: VllmOutput) -> str | None:
    """Why an answer cannot be a turn, or None."""
    ids, last_stops = answer.token_ids, bool(answer.token_ids) and answer.token_ids[-1] in request.stop_ids
    if answer.finish not in ("stop", "length"):
        return f"vLLM ended the turn with {answer.finish!r} after {len(ids)} of {limit} tokens"
    if len(ids) != len(answer.logprobs):
        return f"vLLM returned {len(ids)} tokens and {len(answer.logprobs)} logprobs; expected one for each"
    if not np.isfinite(answer.logprobs).all():
        return ("a logprob is not finite, so the logits were no distribution; the weights have diverged or overflow in "
                "the engine's dtype")
    if not last_stops and len(ids) != limit:
        return f"vLLM stopped after {len(ids)} of {limit} tokens without a stop token"
    return None


def completion_of(request: Request, limit: int, sampled: VllmOutput, version: int, dtype: str,
                  scored: VllmOutput | None = None) -> Completion:
    """The turn as our contract says it. `scored`: the answer to `SCORING`, where sampling was bent."""
    if why := fault_of(request, limit, sampled):
        return failure(request, f"{why} (policy version {version}, {dtype})", version, dtype)
    sampling = Sampling(request.temperature, request.top_p, engine="vllm", dtype=dtype)
    ids = np.array(sampled.token_ids, np.int32)
    plain = None
    if sampling.bends:
        plain = sampled.logprobs
        if scored is not None:
            plain = (scored.prompt_logprobs or [])[-len(ids):]
            if len(plain) != len(ids):
                return failure(request, f"vLLM scored {len(plain)} of {len(ids)} sampled tokens", version, dtype)
    return Completion(
        request_id=request.id, token_ids=ids, logprobs=np.array(sampled.logprobs, np.float32),
        finish="stop" if sampled.token_ids[-1] in request.stop_ids else "length", policy_version=version,
        sampling=sampling, plain_logprobs=None if plain is None else np.array(plain, np.float32),
    )


def failure(request: Request, why: str, version: int, dtype: str) -> Completion:
    """Of a turn that broke nothing is handed over."""
    sampling = Sampling(request.temperature, request.top_p, engine="vllm", dtype=dtype)
    nothing = np.zeros(0, np.float32)
    return Completion(request.id, np.zeros(0, np.int32), nothing, "error", version, sampling,
                      plain_logprobs=nothing if sampling.bends else None, error=why)


def _rows(whole: list[Mapping[int, float]], vocab_size: int) -> torch.Tensor:
    """Logprobs by token as rows [tokens of the turn, V]; what vLLM does not list was cut."""
    rows = torch.full((len(whole), vocab_size), -torch.inf)
    for row, logprobs in zip(rows, whole):
        tokens = torch.tensor([token for token in logprobs if token < vocab_size])
        row[tokens] = torch.tensor([logprobs[int(token)] for token in tokens])
    return rows


def _nan_first(value: float) -> float:
    return np.inf if np.isnan(value) else value


# ---------------------------------------------------------------------------------------------- opening


def context_for(model: torch.nn.Module, config: VllmEngineConfig) -> int:
    """Tokens of one sequence. One position stays free: a finished sequence is scored by asking for one token more."""
    context = model_context(model, config.max_context)
    positions = model_context(model, None)
    if context == positions:
        if config.max_context is not None:
            raise EngineError(f"engine.max_context = {context}: vLLM needs one position for itself, so at most "
                              f"{positions - 1} here")
        context = positions - 1
    if context > config.cache_tokens:
        raise EngineError(f"a sequence of {context} tokens does not fit into a cache of {config.cache_tokens}; lower "
                          "engine.max_context or raise engine.cache_tokens")
    return context


def open_vllm_engine(model: torch.nn.Module, config: VllmEngineConfig) -> VllmEngine:
    """vLLM with `model`'s weights, checked against it. Takes ten to forty seconds. Raises EngineError."""
    if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
        raise EngineError(f"expected a Hugging Face causal language model, got {type(model).__name__}; if it is wrapped "
                          "(DDP, FSDP, accelerate), hand over the model inside")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise EngineError("engine.kind='vllm' runs in one process so far, and torchrun or accelerate started "
                          f"{os.environ['WORLD_SIZE']}; start one, or use engine.kind='transformers'")
    if config.device.startswith("cuda:") and config.device != "cuda:0":
        raise EngineError(f"vLLM takes the first GPU that this process sees, and the policy is on {config.device}; set "
                          "CUDA_VISIBLE_DEVICES and policy.device='cuda'")
    return VllmEngine(open_core(model, config, context_for(model, config) + 1), model, config)
