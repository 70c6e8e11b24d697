"""Sampling one turn: a Hugging Face model, one token at a time, one sequence at a time.

The noise is an argument: it belongs to the address of the turn and to nothing else. So an engine
that samples a hundred turns at once, and keeps its caches from turn to turn, draws the very same
tokens."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DynamicCache


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt_ids: list[int],
    noise: np.ndarray,
    stop_ids: set[int],
    temperature: float = 1.0,
    top_p: float = 1.0,
) -> tuple[list[int], list[float], str]:
    """Sample a turn: its tokens, at most one for each number of `noise` (uniform in [0, 1)), their
    logprobs under what they were sampled from, and "stop" (it ended in a stop token, which is an
    action like any other) or "length"."""
    ids = []
    logps = []
    cache = DynamicCache()
    new_ids = torch.tensor([prompt_ids])
    for uniform in noise:
        # The model has the past in its cache: after the prompt it is shown one token at a time.
        logits = model(input_ids=new_ids, past_key_values=cache, use_cache=True).logits[0, -1]
        logp = distribution(logits, temperature, top_p)
        token = choose(logp, uniform) if temperature else int(logits.argmax())
        ids.append(token)
        logps.append(float(logp[token]))
        # A stop token is kept: ending the turn was the policy's choice.
        if token in stop_ids:
            return ids, logps, "stop"
        new_ids = torch.tensor([[token]])
    return ids, logps, "length"


def distribution(logits: Tensor, temperature: float = 1.0, top_p: float = 1.0) -> np.ndarray:
    """Log-probabilities to sample from [V], float64; at temperature 0 (greedy) the model's own.
    Top-p keeps the fewest most likely tokens whose probability reaches it: Holtzman et al. 2020
    (arXiv 1904.09751)."""
    logp = (logits.double() / (temperature or 1.0)).log_softmax(-1)
    if top_p < 1 and temperature:
        falling, order = logp.sort(descending=True, stable=True)
        # A token is needed as long as those before it do not reach top_p.
        probability = falling.exp()
        before = probability.cumsum(-1) - probability
        logp[order[before >= top_p]] = -torch.inf
        logp = logp.log_softmax(-1)
    return logp.numpy()


def choose(logp: np.ndarray, uniform: float) -> int:
    """Invert the distribution, in the order of the vocabulary: the first token v with cdf(v) > u."""
    cdf = np.cumsum(np.exp(logp))
    # u * total may be rounded up to the total itself; below it, the token has a probability above 0.
    below_total = np.nextafter(cdf[-1], 0)
    place = min(uniform * cdf[-1], below_total)
    return int(np.searchsorted(cdf, place, side="right"))
