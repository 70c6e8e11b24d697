"""Turns that are being sampled, and how their tokens are chosen: one uniform number per (request, position), turned into
a token by the inverse of the distribution.

Axis letters: R rows of this step · V vocabulary · L new tokens of one turn.

The noise belongs to the address (invariant 8), so a row's choice does not depend on who else is in the batch: the same
uniform picks the same token as long as the logits agree (batched matrix products may differ in their last bits).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from workbench.engines.base import Request


@dataclass(eq=False)
class Row:
    """A request in progress. Mutable, and known to nobody outside the engine."""

    request: Request
    prompt: np.ndarray  # int64 [prompt]
    limit: int  # tokens this turn may get
    uniforms: np.ndarray  # float64 [limit]: the noise of this turn, drawn from its address
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    plain_logps: list[float] = field(default_factory=list)
    # Where the tokens of this turn stand in the model's cache; used by the slot runner only.
    cached: int = 0  # positions whose keys and values are in the slot
    # Tokens that must pass through the model before the next one can be sampled.
    pending: np.ndarray | None = None

    @property
    def session(self) -> str:
        return self.request.session

    @property
    def reach(self) -> int:
        """Positions that it can fill at most."""
        return len(self.prompt) + self.limit

    @property
    def sequence(self) -> np.ndarray:
        """Prompt and what was sampled so far, int64."""
        return np.concatenate([self.prompt, np.array(self.tokens, np.int64)])


@dataclass(frozen=True, eq=False)
class Ticked:
    """The result of one tick: logits [rows, vocabulary] for the next token of each of these rows."""

    rows: list[Row]
    logits: Tensor | None


@dataclass
class Counters:
    """Counts of an engine since it was made. Tokens are counted once each time they pass through the model."""

    ticks: int = 0
    # Of prompts: first prompts, observations, the last sampled token of a turn.
    prefill_tokens: int = 0
    # Tokens of first prompts whose keys and values were copied from another session.
    shared_prompt_tokens: int = 0
    reused_tokens: int = 0  # tokens of prompts that were still in the session's own cache
    decode_steps: int = 0  # forward passes in which at least one row was decoded
    generated_tokens: int = 0
    evictions: int = 0  # idle sessions that lost their cache to make room
    cpu_seconds: float = 0.0  # of this process, all threads, while polling


# ------------------------------------------------------------------------------------------------ choosing tokens


def uniforms(seed: int, count: int) -> np.ndarray:
    """float64 [count] in [0, 1): the first `count` draws of the address `seed`. Philox: the same on every platform."""
    return np.random.Generator(np.random.Philox(key=seed)).random(count)


@dataclass(frozen=True, eq=False)
class Sampled:
    """The token drawn for each row, on the host: numpy [R].

    `logp` is of the distribution sampled from (greedy: of the model's own softmax), `plain_logp` of the unbent softmax.
    `valid` is False where the logits are no distribution (NaN, +inf, all -inf): the other fields mean nothing there.
    """

    token: np.ndarray
    logp: np.ndarray
    plain_logp: np.ndarray
    valid: np.ndarray


def sample_rows(
    logits_RV: Tensor, temperature_R: np.ndarray, top_p_R: np.ndarray, uniform_R: np.ndarray
) -> Sampled:
    """Draw one token per row.

    The token is the first v with cdf(v) > u * cdf(V), the cdf summed in float64 in the order of the vocabulary.
    temperature 0 takes the most likely token (the lowest id of equals).
    """
    plain_RV = torch.log_softmax(logits_RV.float(), dim=-1)
    greedy_R = temperature_R == 0.0
    logp_RV = plain_RV
    # Greedy ignores top-p: the most likely token is always inside the nucleus.
    temperature_R = np.where(greedy_R, 1.0, temperature_R)
    top_p_R = np.where(greedy_R, 1.0, top_p_R)
    if ((temperature_R != 1.0) | (top_p_R < 1.0)).any():
        logp_RV = bend(logits_RV.float(), temperature_R, top_p_R)
    token_R, total_R = _inverse_cdf(logp_RV, torch.from_numpy(uniform_R).to(logits_RV.device))
    if greedy_R.any():
        is_greedy_R = torch.from_numpy(greedy_R).to(token_R.device)
        token_R = torch.where(is_greedy_R, logits_RV.argmax(dim=-1), token_R)
    index_R1 = token_R[:, None]
    plain_R = plain_RV.gather(1, index_R1)[:, 0]
    logp_R = plain_R if logp_RV is plain_RV else logp_RV.gather(1, index_R1)[:, 0]
    # One transfer for everything; token ids are exact in float64.
    drawn = torch.stack([token_R.double(), logp_R.double(), plain_R.double(), total_R])
    token, logp, plain_logp, total = drawn.cpu().numpy()
    return Sampled(
        token=token.astype(np.int64),
        logp=logp.astype(np.float32),
        plain_logp=plain_logp.astype(np.float32),
        valid=np.isfinite(total),
    )


def bend(logits_RV: Tensor, temperature_R: np.ndarray, top_p_R: np.ndarray) -> Tensor:
    """Log-probabilities [R, V] after temperature, then top-p (the smallest set of most likely tokens whose probability
    reaches top_p, renormalised; what is cut has -inf). Source: Holtzman et al. 2020, arXiv 1904.09751."""
    device = logits_RV.device
    temperature = torch.from_numpy(temperature_R.astype(np.float32)).to(device)[:, None]
    logp_RV = torch.log_softmax(logits_RV / temperature, dim=-1)
    if (top_p_R >= 1.0).all():
        return logp_RV
    # Rows without top-p keep their very bits.
    nucleus = torch.from_numpy(np.flatnonzero(top_p_R < 1.0)).to(device)
    cut_RV = logp_RV[nucleus]
    sorted_RV, order_RV = cut_RV.sort(dim=-1, descending=True, stable=True)
    probability_RV = sorted_RV.double().exp()
    before_RV = probability_RV.cumsum(dim=-1) - probability_RV
    limit = torch.from_numpy(top_p_R[top_p_R < 1.0].astype(np.float64)).to(device)[:, None]
    outside_RV = torch.zeros_like(cut_RV, dtype=torch.bool)
    outside_RV.scatter_(1, order_RV, before_RV >= limit)
    cut_RV = cut_RV.masked_fill(outside_RV, -torch.inf)
    logp_RV[nucleus] = cut_RV - torch.logsumexp(cut_RV, dim=-1, keepdim=True)
    return logp_RV


def _inverse_cdf(logp_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """(token [R], total probability [R], which is NaN where the row is no distribution)"""
    cdf_RV = logp_RV.exp().cumsum(dim=-1, dtype=torch.float64)
    total_R = cdf_RV[:, -1]
    # u * total may round up to total itself; one step below it the chosen token still has probability > 0.
    below_total_R = torch.nextafter(total_R, total_R.new_zeros(()))
    target_R = torch.minimum(uniform_R * total_R, below_total_R)
    token_R = torch.searchsorted(cdf_RV, target_R[:, None], right=True)[:, 0]
    return token_R.clamp(max=logp_RV.shape[1] - 1), total_R  # only rows of NaN reach the clamp
