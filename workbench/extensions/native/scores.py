"""Logprobs and entropies of the trained tokens by `scores.cpp` (`learner.layers = "native"`), from the output head's
hidden states on.

Logits are tokens times vocabulary. Torch makes an array of that size for every step between them and the loss, forward and
backward; the kernel reads them twice and writes their gradients in their place, so one array is all there is. Where that is
not too large it is kept for the way back, which then need not multiply by the head once more.

For an output head without a bias, in float32 on a CPU, of a model whose logits are its head's answer.

Axis letters: M trained tokens of a micro-batch (flat) · R those of a piece · H hidden size · V vocabulary.
"""

from __future__ import annotations

from ctypes import CDLL, c_int64, c_void_p
from functools import cache

import torch
from torch import Tensor, nn

from workbench.extensions.native.kernel import SCORES, addresses, kernel
from workbench.extensions.native.trials import is_close
from workbench.learn.microbatch import TokenScores, output_head, scored

# Logits of a piece, as numbers. What is made of as many by torch (`microbatch.LOGITS_AT_ONCE`) has four such arrays.
AT_ONCE = 36_000_000
TRIED = (5, 12, 37)  # tokens, hidden size and vocabulary of the trial


def score_by_kernel(model: nn.Module) -> bool:
    """Let the output head of this model (a learner's own) score tokens by the kernel, where it is one that it is for and
    a trial finds its numbers and gradients those of torch; else leave it as it is and return False."""
    head = output_head(model)
    if type(head) is not nn.Linear or not _is_plain(head) or not _agrees():
        return False
    head.__class__ = NativeHead
    return True


class NativeHead(nn.Linear):
    """An output head that says what its tokens are worth without handing out logits (`pieces.token_scores`)."""

    def token_scores(self, states_MH: Tensor, ids_M: Tensor, entropy: str) -> TokenScores | None:
        """The scores of the tokens `ids_M`, as `microbatch.scored` has them; None where the head is no longer one that the
        kernel is for (moved, sharded, in half precision). Raises IndexError for an id beyond the vocabulary."""
        if not _is_plain(self) or states_MH.dtype is not torch.float32:
            return None
        ids_M = ids_M.long().contiguous()
        if len(ids_M) and not 0 <= int(ids_M.min()) <= int(ids_M.max()) < len(self.weight):
            raise IndexError(f"a token id is not of the {len(self.weight)} that the head knows")
        logp_M, entropy_M = _Scores.apply(states_MH, self.weight, ids_M)
        if entropy == "none":
            return TokenScores(logp_M, None)
        return TokenScores(logp_M, entropy_M if entropy == "gradient" else entropy_M.detach())


def _is_plain(head: nn.Linear) -> bool:
    weight = head.weight
    return (
        head.bias is None
        and type(weight) is nn.Parameter
        and weight.dtype is torch.float32
        and weight.device.type == "cpu"
    )


class _Scores(torch.autograd.Function):
    """Logprobs and entropies [M] from hidden states [M, H] and the head's weights [V, H]."""

    @staticmethod
    def forward(ctx, states_MH, weight_VH, ids_M):
        count = len(ids_M)
        log_sum_M, logp_M, entropy_M = torch.empty(3, count).unbind()
        kept = None
        for piece in _pieces(count, len(weight_VH)):
            logits_RV = states_MH[piece] @ weight_VH.T
            made = (log_sum_M[piece], logp_M[piece], entropy_M[piece])
            _kernel().score_forward(*addresses(logits_RV, ids_M[piece], *made), *_sizes(logits_RV))
            if len(logits_RV) == count:
                kept = logits_RV
        ctx.save_for_backward(states_MH, weight_VH, ids_M, log_sum_M, entropy_M)
        # For one backward pass, which writes into it; another one makes its own.
        ctx.kept = kept if any(ctx.needs_input_grad) else None
        return logp_M, entropy_M

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, of_logp_M, of_entropy_M):
        states_MH, weight_VH, ids_M, log_sum_M, entropy_M = ctx.saved_tensors
        of_logp_M = of_logp_M.contiguous()
        of_entropy_M = of_entropy_M.contiguous()
        grad_states_MH = torch.empty_like(states_MH)
        grad_weight_VH = None
        kept, ctx.kept = ctx.kept, None
        for piece in _pieces(len(ids_M), len(weight_VH)):
            logits_RV = states_MH[piece] @ weight_VH.T if kept is None else kept
            facts = (ids_M, log_sum_M, entropy_M, of_logp_M, of_entropy_M)
            numbers = addresses(logits_RV, *(fact_M[piece] for fact_M in facts))
            _kernel().score_backward(*numbers, *_sizes(logits_RV))
            torch.mm(logits_RV, weight_VH, out=grad_states_MH[piece])
            if not ctx.needs_input_grad[1]:
                continue
            if grad_weight_VH is None:
                grad_weight_VH = logits_RV.T @ states_MH[piece]
            else:
                grad_weight_VH.addmm_(logits_RV.T, states_MH[piece])
        return grad_states_MH, grad_weight_VH, None


def _pieces(count: int, vocabulary: int) -> list[slice]:
    rows = max(1, AT_ONCE // vocabulary)
    return [slice(first, first + rows) for first in range(0, count, rows)]


def _agrees() -> bool:
    """Whether scores and gradients of a few drawn numbers are those of torch."""
    tokens, width, vocabulary = TRIED
    generator = torch.Generator().manual_seed(0)
    states = torch.randn((tokens, width), generator=generator, requires_grad=True)
    weight = torch.randn((vocabulary, width), generator=generator, requires_grad=True)
    ids = torch.arange(tokens) * 7919 % vocabulary
    factors = torch.randn((2, tokens), generator=generator)

    def answer(scores: TokenScores) -> list[Tensor]:
        total = (factors[0] * scores.logp_M).sum() + (factors[1] * scores.entropy_M).sum()
        made = [*scores, *torch.autograd.grad(total, (states, weight))]
        return [numbers.detach() for numbers in made]

    with torch.enable_grad():
        ours = answer(TokenScores(*_Scores.apply(states, weight, ids)))
        theirs = answer(scored(states @ weight.T, ids, "gradient"))
    return all(is_close(one, other) for one, other in zip(ours, theirs, strict=True))


# ------------------------------------------------------------------------------------------ calls of the kernel


def _sizes(logits_RV: Tensor) -> tuple[int, int, int]:
    return (*logits_RV.shape, torch.get_num_threads())


def _kernel() -> CDLL:
    return _with_types(kernel(SCORES))


@cache
def _with_types(built: CDLL) -> CDLL:
    built.score_forward.argtypes = [c_void_p] * 5 + [c_int64] * 3
    built.score_backward.argtypes = [c_void_p] * 6 + [c_int64] * 3
    return built
