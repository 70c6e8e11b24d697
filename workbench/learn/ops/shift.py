"""The autoregressive shift. It happens here and nowhere else (law 3).

A causal model's output at position t-1 is its prediction of token t. Everything in this project at index t describes
token t, so the logprob of token t is read from the logits at t-1; `scoring_position` is the only place that says so.

Axis letters: B rows · L positions of a padded row · M chosen tokens · V vocabulary.
"""
from __future__ import annotations

from workbench.types.tensors import Tensor, torch



def scoring_position(position_M: Tensor) -> Tensor:
    """Where the prediction of the token at `position_M` stands: one to the left.

    Positions are counted in the token's own row, from 0. Raises ValueError for position 0, which nothing predicts.
    """
    if bool((position_M < 1).any()):
        raise ValueError("the token at position 0 of a row has no prediction: nothing stands before it")
    return position_M - 1


def logprobs_of(logits_MV: Tensor, token_ids_M: Tensor) -> Tensor:
    """log softmax(logits)[token], in nats, float32. No shift: row m of the logits must already predict token m."""
    logits_MV = logits_MV.float()  # a half-precision log-sum-exp would lose about 3 of 4 digits
    return logits_MV.gather(-1, token_ids_M.unsqueeze(-1)).squeeze(-1) - logits_MV.logsumexp(-1)


def entropy_of(logits_MV: Tensor) -> Tensor:
    """Shannon entropy of softmax(logits), in nats, float32: H = log sum exp(z) - sum p z. No shift, as above."""
    logits_MV = logits_MV.float()
    # Zero probability times a logit of minus infinity counts as zero, so the product is taken over finite logits only.
    product = logits_MV.softmax(-1) * logits_MV.masked_fill(logits_MV == float("-inf"), 0.0)
    return logits_MV.logsumexp(-1) - product.sum(-1)


def token_logprobs(logits_BLV: Tensor, token_ids_BL: Tensor) -> Tensor:
    """Logprob of every token given the ones before it [B, L], aligned with the tokens.

    Column 0 is NaN, because nothing predicts it. Causal right padding is harmless: whatever stands to the right of
    token t has no part in its logprob.
    """
    return _aligned(token_ids_BL, lambda at_BM: logprobs_of(_rows_at(logits_BLV, at_BM), token_ids_BL[:, 1:]))


def token_entropy(logits_BLV: Tensor, token_ids_BL: Tensor) -> Tensor:
    """Entropy of the distribution that each token was drawn from [B, L]: the same place as its logprob. Column 0 is
    NaN."""
    return _aligned(token_ids_BL, lambda at_BM: entropy_of(_rows_at(logits_BLV, at_BM)))


def _rows_at(logits_BLV: Tensor, at_M: Tensor) -> Tensor:
    return logits_BLV[:, at_M]


def _aligned(token_ids_BL: Tensor, values) -> Tensor:
    rows, length = token_ids_BL.shape
    at_M = scoring_position(torch.arange(1, length, device=token_ids_BL.device))
    values_BM = values(at_M)
    return torch.cat([values_BM.new_full((rows, 1), float("nan")), values_BM], dim=1)
