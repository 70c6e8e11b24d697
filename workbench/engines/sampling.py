"""Turns that are being sampled, and how their tokens are chosen: one uniform number per (request, position), turned into
a token by the inverse of the distribution.

Axis letters: R rows of this step · V vocabulary · N blocks of it · B tokens of a block · L new tokens of one turn.

The noise belongs to the address (invariant 8), so a row's choice does not depend on who else is in the batch: the same
uniform picks the same token as long as the logits agree (batched matrix products may differ in their last bits).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.basics.extensions import has_service, service
from workbench.engines.base import Request

LARGE = 8192  # tokens of a vocabulary from which on it is searched in blocks
BLOCK = 512  # tokens


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

    The token is the first v with cdf(v) > u * cdf(V), the cdf summed in float64 in the order of the vocabulary (of a large
    one: over blocks, then within one). temperature 0 takes the most likely token (the lowest id of equals).
    """
    greedy_R = temperature_R == 0.0
    temperature_R = np.where(greedy_R, 1.0, temperature_R)
    # Greedy ignores top-p: the most likely token is always inside the nucleus.
    top_p_R = np.where(greedy_R, 1.0, top_p_R)
    logits_RV = logits_RV.float()
    rows_4R = logits_RV.new_empty((4, len(logits_RV)), dtype=torch.float64)
    # A row's bits may not depend on its neighbours', so each goes its own way.
    in_blocks_R = (top_p_R >= 1.0) & (logits_RV.shape[1] >= LARGE)
    for draw, chosen_R in ((_draw, ~in_blocks_R), (_draw_in_blocks, in_blocks_R)):
        if chosen_R.any():
            rows = slice(None) if chosen_R.all() else np.flatnonzero(chosen_R)
            uniform = torch.from_numpy(uniform_R[rows]).to(logits_RV.device)
            rows_4R[:, rows] = draw(
                logits_RV[rows], temperature_R[rows], top_p_R[rows], greedy_R[rows], uniform
            )
    # One transfer for everything; token ids are exact in float64.
    token, logp, plain_logp, total = rows_4R.cpu().numpy()
    return Sampled(
        token=token.astype(np.int64),
        logp=logp.astype(np.float32),
        plain_logp=plain_logp.astype(np.float32),
        valid=np.isfinite(total),
    )


def _draw(
    logits_RV: Tensor,
    temperature_R: np.ndarray,
    top_p_R: np.ndarray,
    greedy_R: np.ndarray,
    uniform_R: Tensor,
) -> Tensor:
    """[4, R]: token, its log-probability, the same of the unbent softmax, and the total probability, which is NaN where a
    row is no distribution."""
    if draw := _for_large("draw_in_nuclei", logits_RV):
        return draw(logits_RV, temperature_R, top_p_R, uniform_R)
    plain_RV = torch.log_softmax(logits_RV, dim=-1)
    logp_RV = plain_RV
    if ((temperature_R != 1.0) | (top_p_R < 1.0)).any():
        logp_RV = bend(logits_RV, temperature_R, top_p_R)
    token_R, _, total_R = inverse_cdf(logp_RV.exp(), uniform_R)
    token_R1 = _or_most_likely(token_R, logits_RV, greedy_R)[:, None]
    plain_R = plain_RV.gather(1, token_R1)[:, 0]
    logp_R = plain_R if logp_RV is plain_RV else logp_RV.gather(1, token_R1)[:, 0]
    return torch.stack([token_R1[:, 0].double(), logp_R.double(), plain_R.double(), total_R])


def _draw_in_blocks(
    logits_RV: Tensor,
    temperature_R: np.ndarray,
    top_p_R: np.ndarray,
    greedy_R: np.ndarray,
    uniform_R: Tensor,
) -> Tensor:
    """`_draw` without top-p, for a large vocabulary: a running sum over all of it takes several times as long as its
    softmax, one over the sums of blocks next to nothing."""
    temperature_R1 = torch.from_numpy(temperature_R.astype(np.float32)).to(logits_RV.device)[
        :, None
    ]
    bends = (temperature_R != 1.0).any()
    # One piece of memory for all: to get a new one of this size takes as long as to fill it.
    p_RV = logits_RV / temperature_R1 if bends else logits_RV
    p_RV = torch.softmax(p_RV, dim=-1, out=p_RV if bends else None)
    whole = p_RV.shape[1] // BLOCK * BLOCK
    blocks_RNB = p_RV[:, :whole].unflatten(1, (-1, BLOCK))
    last_R1 = p_RV[:, whole:].sum(dim=-1, keepdim=True)
    sum_RN = torch.cat([blocks_RNB.sum(dim=-1), last_R1], dim=-1)
    choose = _for_large("choose_of_blocks", p_RV) or choose_of_blocks
    token_R, total_R = choose(p_RV, sum_RN, uniform_R)
    token_R1 = _or_most_likely(token_R, logits_RV, greedy_R)[:, None]
    logp_R1 = p_RV.gather(1, token_R1).log()
    plain_R1 = logp_R1
    if bends:
        torch.log_softmax(logits_RV, dim=-1, out=p_RV)
        plain_R1 = p_RV.gather(1, token_R1)
        plain_R1 = torch.where(temperature_R1 == 1.0, logp_R1, plain_R1)
    return torch.stack(
        [token_R1[:, 0].double(), logp_R1[:, 0].double(), plain_R1[:, 0].double(), total_R]
    )


def choose_of_blocks(p_RV: Tensor, sum_RN: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor]:
    """(token [R], total probability [R]) by the sums of blocks, of which the last is shorter, then within one of them."""
    block_R, rest_R, total_R = inverse_cdf(sum_RN, uniform_R)
    place_RB = block_R[:, None] * BLOCK + torch.arange(BLOCK, device=p_RV.device)
    beyond_RB = place_RB >= p_RV.shape[1]
    block_RB = p_RV.gather(1, place_RB.masked_fill(beyond_RB, 0)).masked_fill(beyond_RB, 0.0)
    within_R, _, _ = inverse_cdf(block_RB, rest_R)
    return (block_R * BLOCK + within_R).clamp(max=p_RV.shape[1] - 1), total_R  # rows of NaN again


def _or_most_likely(token_R: Tensor, logits_RV: Tensor, greedy_R: np.ndarray) -> Tensor:
    """The most likely token in greedy rows, the drawn one in the others."""
    if not greedy_R.any():
        return token_R
    is_greedy_R = torch.from_numpy(greedy_R).to(token_R.device)
    return torch.where(is_greedy_R, logits_RV.argmax(dim=-1), token_R)


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
    top_p_R = top_p_R[top_p_R < 1.0]
    if cut := _for_large("cut_to_nuclei", cut_RV):
        logp_RV[nucleus] = cut(cut_RV, top_p_R)
        return logp_RV
    sorted_RV, order_RV = cut_RV.sort(dim=-1, descending=True, stable=True)
    probability_RV = sorted_RV.double().exp()
    before_RV = probability_RV.cumsum(dim=-1) - probability_RV
    limit = torch.from_numpy(top_p_R.astype(np.float64)).to(device)[:, None]
    outside_RV = torch.zeros_like(cut_RV, dtype=torch.bool)
    outside_RV.scatter_(1, order_RV, before_RV >= limit)
    cut_RV = cut_RV.masked_fill(outside_RV, -torch.inf)
    logp_RV[nucleus] = cut_RV - torch.logsumexp(cut_RV, dim=-1, keepdim=True)
    return logp_RV


def _for_large(name: str, logits_RV: Tensor) -> Any:
    """The way of an extension, with the same bits, for a large vocabulary on a CPU, where sorting is slow; else None."""
    is_large = logits_RV.device.type == "cpu" and logits_RV.shape[1] >= LARGE
    return service(name, "sampling") if is_large and has_service(name) else None


def inverse_cdf(p_RV: Tensor, uniform_R: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(token [R], how far into its own probability the uniform number reaches, 0 to 1 [R], total probability [R], which is
    NaN where the row is no distribution)"""
    cdf_RV = p_RV.cumsum(dim=-1, dtype=torch.float64)
    total_R = cdf_RV[:, -1]
    # u * total may round up to total itself; one step below it the chosen token still has probability > 0.
    below_total_R = torch.nextafter(total_R, total_R.new_zeros(()))
    target_R1 = torch.minimum(uniform_R * total_R, below_total_R)[:, None]
    token_R1 = torch.searchsorted(cdf_RV, target_R1, right=True)
    token_R1 = token_R1.clamp(max=p_RV.shape[1] - 1)  # only rows of NaN reach it
    rest_R1 = 1 - (cdf_RV.gather(1, token_R1) - target_R1) / p_RV.gather(1, token_R1)
    return token_R1[:, 0], rest_R1[:, 0].clamp(0, 1), total_R
