"""Turns in vLLM's words and back, and what the engine needs of vLLM. No vllm is imported here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from workbench.engines.base import Completion, Request
from workbench.engines.vllm_core import VllmOutput
from workbench.values import Sampling


class Core(Protocol):
    """What the engine needs of vLLM: `vllm_core.VllmCore` in this process, `server.core.ServerCore`, a stand-in in tests."""

    cache_tokens: int
    # That an answer may take which comes from elsewhere; 0: `step` itself computes it.
    patience_s: float
    makes_generators: bool  # for requests that have a seed, one each

    def add(self, name: str, prompt: list[int], params: Mapping[str, Any]) -> None: ...
    def step(self) -> list[VllmOutput]: ...
    def abort(self, name: str) -> None: ...
    def load(
        self, weights: Mapping[str, Tensor], version: int
    ) -> Mapping[str, str]: ...  # digests of what arrived
    def forget_prefixes(self) -> None: ...
    def resume(self) -> None: ...  # after `load`, once the digests were seen to be right
    def rest(self) -> None: ...  # where engine.sleep may be set: not of a server
    def close(self) -> None: ...
    def head_logits(self, hidden_ND: Tensor) -> Tensor: ...


@dataclass
class VllmCounters:
    """Counts of the engine since it was made, its own probes left out. Tokens of prompts are counted once a turn."""

    ticks: int = 0
    prefill_tokens: int = 0  # of prompts, computed
    reused_tokens: int = 0  # of prompts, taken from the prefix cache
    generated_tokens: int = 0
    # Passed through the model once more, for the plain logprobs of bent sampling.
    scored_tokens: int = 0
    loads: int = 0  # of weights: opening and each sync
    gap_mean: float = 0.0  # to a plain forward pass, after the newest sync (or opening), in nats
    gap_max: float = 0.0
    gap_max_ever: float = 0.0  # the largest of all syncs
    cpu_seconds: float = 0.0  # of this process, all threads, while polling


# ---------------------------------------------------------------------------------------------- to and from vLLM

# Of a finished sequence: the logprobs of all its tokens by the unbent softmax. vLLM insists on sampling one token.
SCORING = {"temperature": 0.0, "max_tokens": 1, "prompt_logprobs": 0, "ignore_eos": True}


def sampling_params(request: Request, limit: int) -> dict[str, Any]:
    """A request in the words of vllm.SamplingParams. `limit`: tokens that it may get."""
    greedy = request.temperature == 0.0
    return {
        "temperature": float(request.temperature),
        # The most likely token is always inside the nucleus.
        "top_p": 1.0 if greedy else float(request.top_p),
        "seed": request.seed % 2**63,  # what torch takes; our seeds are hashes, any bits will do
        "max_tokens": limit,
        "stop_token_ids": sorted(int(token) for token in request.stop_ids),
        "ignore_eos": True,  # turns end where the request says, not the model's config
        "logprobs": 0,  # of the sampled token, of no others
    }


def is_bent(request: Request) -> bool:
    """True where plain logprobs differ from those sampled from. Greedy ones are the model's own already."""
    return request.temperature != 0.0 and (request.temperature != 1.0 or request.top_p != 1.0)


def fault_of(request: Request, limit: int, answer: VllmOutput) -> str | None:
    """Why an answer cannot be a turn, or None."""
    if answer.error is not None:
        return answer.error
    ids = answer.token_ids
    last_stops = bool(answer.token_ids) and answer.token_ids[-1] in request.stop_ids
    if answer.finish not in ("stop", "length"):
        return f"vLLM ended the turn with {answer.finish!r} after {len(ids)} of {limit} tokens"
    if len(ids) != len(answer.logprobs):
        return f"vLLM returned {len(ids)} tokens and {len(answer.logprobs)} logprobs; expected one for each"
    if not np.isfinite(answer.logprobs).all():
        return (
            "a logprob is not finite, so the logits were no distribution; the weights have diverged or overflow in "
            "the engine's dtype"
        )
    if not last_stops and len(ids) != limit:
        return f"vLLM stopped after {len(ids)} of {limit} tokens without a stop token"
    return None


def completion_of(
    request: Request,
    limit: int,
    sampled: VllmOutput,
    version: int,
    dtype: str,
    scored: VllmOutput | None = None,
    *,
    addressed: bool = True,
) -> Completion:
    """The turn as our contract says it. `scored`: the answer to `SCORING`, where sampling was bent. `addressed`: it was asked
    for with its seed."""
    if why := fault_of(request, limit, sampled):
        return failure(request, f"{why} (policy version {version}, {dtype})", version, dtype)
    sampling = Sampling(
        request.temperature, request.top_p, engine="vllm", dtype=dtype, addressed=addressed
    )
    ids = np.array(sampled.token_ids, np.int32)
    plain = None
    if sampling.bends:
        plain = sampled.logprobs
        if scored is not None:
            plain = (scored.prompt_logprobs or [])[-len(ids) :]
            if len(plain) != len(ids):
                why = f"vLLM scored {len(plain)} of {len(ids)} sampled tokens"
                return failure(request, why, version, dtype)
    return Completion(
        request_id=request.id,
        token_ids=ids,
        logprobs=np.array(sampled.logprobs, np.float32),
        finish="stop" if sampled.token_ids[-1] in request.stop_ids else "length",
        policy_version=version,
        sampling=sampling,
        plain_logprobs=None if plain is None else np.array(plain, np.float32),
    )


def failure(request: Request, why: str, version: int, dtype: str) -> Completion:
    """The completion of a turn that broke: no tokens, and why."""
    sampling = Sampling(request.temperature, request.top_p, engine="vllm", dtype=dtype)
    nothing = np.zeros(0, np.float32)
    return Completion(
        request.id,
        np.zeros(0, np.int32),
        nothing,
        "error",
        version,
        sampling,
        plain_logprobs=nothing if sampling.bends else None,
        error=why,
    )


def rows_of(whole: list[Mapping[int, float]], vocab_size: int) -> Tensor:
    """Logprobs by token as rows [tokens of the turn, V]; what vLLM does not list was cut."""
    rows = torch.full((len(whole), vocab_size), -torch.inf)
    for row, logprobs in zip(rows, whole):
        tokens = torch.tensor([token for token in logprobs if token < vocab_size])
        row[tokens] = torch.tensor([logprobs[int(token)] for token in tokens])
    return rows
