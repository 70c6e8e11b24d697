"""Logprobs and entropies of the trained tokens, without ever holding all their logits.

Logits are tokens times vocabulary: for 4,096 tokens and 152,000 words they are 2.5 GB, and a loss needs several arrays of
that size. Where they would be larger than `microbatch.LOGITS_AT_ONCE`, the model is run up to its output head, and the head
is applied to a few hidden states at a time; in the backward pass each piece is computed once more (torch.utils.checkpoint;
Chen et al. 2016, arXiv 1604.06174).

Axis letters: M trained tokens of a micro-batch (flat) · R those of a piece · H hidden size · V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from workbench.learn.microbatch import (
    LOGITS_AT_ONCE,
    MicroBatch,
    TokenScores,
    fits_at_once,
    scored,
    trained_logits,
)

# Models whose logits are what their head says.
_plain: WeakSet[nn.Module] = WeakSet()
# Those that do something more with them, such as to scale or to cap them.
_other: WeakSet[nn.Module] = WeakSet()


def token_scores(
    model: nn.Module, head: nn.Module, micro: MicroBatch, ids_M: Tensor, entropy: str, *, bf16: bool
) -> TokenScores:
    """The scores of the trained tokens of a micro-batch under a model, as `scored` has them: from all logits where they
    fit at once, else in pieces; by the head itself where it can (`learner.layers = "native"`)."""
    by_head = getattr(head, "token_scores", None)
    if by_head and not bf16 and len(ids_M) and _ends_with_its_head(model, head, micro, bf16):
        with _passing_through(head):
            states_MH = trained_logits(model, head, micro)
        if (scores := by_head(states_MH, ids_M, entropy)) is not None:
            return scores
    if fits_at_once(head, micro):
        return scored(trained_logits(model, head, micro, bf16=bf16), ids_M, entropy)
    return scores_in_pieces(model, head, micro, ids_M, entropy, bf16=bf16)


def scores_in_pieces(
    model: nn.Module, head: nn.Module, micro: MicroBatch, ids_M: Tensor, entropy: str, *, bf16: bool
) -> TokenScores:
    """As `scored` has them from `trained_logits`, within rounding. A model whose logits are more than its
    head's answer is run at once."""
    if not _ends_with_its_head(model, head, micro, bf16):
        return scored(trained_logits(model, head, micro, bf16=bf16), ids_M, entropy)
    with _passing_through(head):
        states_MH = trained_logits(model, head, micro, bf16=bf16)

    def piece(states_RH: Tensor, ids_R: Tensor) -> TokenScores:
        with torch.autocast(ids_M.device.type, torch.bfloat16, enabled=bf16):
            logits_RV = head(states_RH)
        return scored(logits_RV, ids_R, entropy)

    def later(states_RH: Tensor, ids_R: Tensor) -> TokenScores:
        # There is no dropout whose noise would have to be kept.
        return checkpoint(piece, states_RH, ids_R, use_reentrant=False, preserve_rng_state=False)

    made = later if torch.is_grad_enabled() else piece
    rows = max(1, LOGITS_AT_ONCE[ids_M.device.type] // head.weight.shape[0])
    scores = [made(*some) for some in zip(states_MH.split(rows), ids_M.split(rows))]
    logp_M = torch.cat([score.logp_M for score in scores])
    if entropy == "none":
        return TokenScores(logp_M, None)
    return TokenScores(logp_M, torch.cat([score.entropy_M for score in scores]))


def _ends_with_its_head(model: nn.Module, head: nn.Module, micro: MicroBatch, bf16: bool) -> bool:
    """Whether the model's logits are its head's answer: found out once, by a head that hands on its states."""
    if model not in _plain and model not in _other:
        with torch.no_grad(), _passing_through(head) as heard:
            states_MH = trained_logits(model, head, micro, bf16=bf16)
        (_plain if torch.equal(states_MH, heard[0].to(states_MH)) else _other).add(model)
    return model in _plain


@contextmanager
def _passing_through(head: nn.Module) -> Iterator[list[Tensor]]:
    """While open, the head hands on what it is given; that is written down [M, H]."""
    heard: list[Tensor] = []

    def hand_on(states: Tensor) -> Tensor:
        heard.append(states.reshape(-1, states.shape[-1]))
        return states

    head.forward = hand_on  # an attribute of this instance, before the method of its class
    try:
        yield heard
    finally:
        del head.forward
