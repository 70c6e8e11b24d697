"""Does the engine sample from the weights it was told of? Its logprobs beside one plain forward pass of those weights.

Axis letters: N probes · T tokens of a probe, prompt and sampled · D width of the model · V vocabulary.

An engine that prepares weights for itself (packs them, ties them, keeps keys and values of old ones) can go on sampling
from a mixture of old and new without a word. So a short probe is sampled after every sync, and a model that is more
than rounding away is an error that names what is stale.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.engines.intake import WeightNames

# (mean, largest) |difference of logprobs| in nats that rounding explains. Measured on a policy in training: float32 4e-7
# and 7e-6, bfloat16 4e-3 and 6e-2, beside 1e-3 to 3e-2 (mean) for weights that are one update old. So in float32 a single
# forgotten update is noticed; in half precision it hides under the rounding until it has grown. For the output head, which
# is known to stay behind in silence, there is a sharper question: `came_along`.
LIMITS = {torch.float32: (1e-4, 0.01), torch.bfloat16: (0.01, 0.5), torch.float16: (0.01, 0.5)}
# The same between engine and trainer over a step of training, where answers are long and tokens surprise. Measured over
# clean states of three policies: float32 4e-7 and 7e-6, bfloat16 1.4e-2 and 0.2 (KL 3e-4). Where the dtype is tried as a
# hypothesis, or older weights along their own line (`mismatch`), much smaller differences are told apart.
TRAINING_LIMITS = LIMITS | {torch.bfloat16: (0.03, 1.0), torch.float16: (0.03, 1.0)}
CERTAIN = 10.0  # so many times the rounding of one value the whole change must be, before `came_along` says anything
# So many rows of the output head are looked at: it is packed, or forgotten, as a whole.
HEAD_TOKENS = 4096
# 1 - cosine of a row of logits.
HEAD_LIMITS = {torch.float32: 1e-8, torch.bfloat16: 1e-3, torch.float16: 1e-3}


def head_name(model: torch.nn.Module) -> str | None:
    """The name of the output head's weight; None where the model does not say which it is."""
    head = model.get_output_embeddings()
    names = [f"{name}.weight" for name, module in model.named_modules() if module is head]
    return names[0] if names else None


class PlainForward:
    """A model without its weights: they are lent for each pass, so that no second copy of them is kept.

    Made from a Hugging Face causal language model, which is left as it is.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.names = WeightNames.of(model)
        # deepcopy asks `memo` first: what it finds there stands in for the parameter, shared where that is shared.
        shells = {
            id(p): torch.nn.Parameter(p.to("meta"), requires_grad=False) for p in model.parameters()
        }
        self._shell = copy.deepcopy(model, shells).eval()
        self.hidden_size = int(model.config.get_text_config(decoder=True).hidden_size)
        self._head = head_name(model)
        shell_head = self._shell.get_output_embeddings()
        if shell_head is not None:
            # A head in another dtype than the rest: what an audit may want to try.
            shell_head.register_forward_pre_hook(
                lambda module, args: (args[0].to(module.weight.dtype), *args[1:])
            )

    def logprobs(
        self,
        weights: Mapping[str, Tensor],
        ids_NT: np.ndarray,
        count: int,
        temperature: float = 1.0,
    ) -> np.ndarray:
        """log p of the last `count` tokens of each row, float64 [N, count]. `weights` as `WeightNames.choose` gives."""
        logits_NTV = self.logits(weights, ids_NT)
        ids = torch.as_tensor(ids_NT, dtype=torch.long, device=logits_NTV.device)
        # Logits before a token describe it.
        logp_NTV = (logits_NTV[:, -count - 1 : -1].float() / temperature).log_softmax(-1)
        return logp_NTV.gather(2, ids[:, -count:, None])[..., 0].double().cpu().numpy()

    @property
    def head(self) -> str | None:
        """State-dict name of the output head's weight; None: it has none."""
        return self._head

    def logits(
        self,
        weights: Mapping[str, Tensor],
        ids_NT: np.ndarray,
        positions_NT: np.ndarray | None = None,
    ) -> Tensor:
        """[N, T, V], row t predicts token t + 1. `weights` by state-dict name; of names that are tied one is enough,
        and several may differ: an output head that stayed behind can be tried. `positions_NT`: 0, 1, 2 ... if None."""
        named = dict(weights)
        for names in self.names.tied:
            held = next(name for name in names if name in weights)
            named |= {name: weights[held] for name in names if name not in weights}
        device = named[held].device
        ids = torch.as_tensor(ids_NT, dtype=torch.long, device=device)
        # With a mask of its own: without one, transformers takes a jump in position ids for the border of two sequences.
        where = (
            {}
            if positions_NT is None
            else {
                "position_ids": torch.as_tensor(positions_NT, device=device),
                "attention_mask": torch.ones_like(ids),
            }
        )
        with torch.no_grad():
            return torch.func.functional_call(
                self._shell, named, (ids,), {"use_cache": False, **where}, tie_weights=False
            ).logits

    def head_logits(self, weights: Mapping[str, Tensor], hidden_ND: Tensor) -> Tensor | None:
        """The output head's logits for `hidden_ND`, float32 [N, V] on the CPU, bias left out; None: it has no name.

        V: the first tokens of the vocabulary, at most `HEAD_TOKENS`.
        """
        for names in self.names.tied:
            if self._head in names:
                head_VD = weights[names[0]][:HEAD_TOKENS].detach().float().cpu()
                return hidden_ND.float() @ head_VD.T
        return None


@dataclass(frozen=True)
class Gap:
    """|difference of logprobs| over the tokens of a probe, in nats."""

    mean: float
    largest: float
    tokens: int

    @classmethod
    def between(cls, own: np.ndarray, plain: np.ndarray) -> Gap:
        difference = np.abs(np.asarray(own, np.float64) - np.asarray(plain, np.float64))
        return cls(float(difference.mean()), float(difference.max()), difference.size)

    def within(self, mean: float, largest: float) -> bool:
        """False for NaN too: weights that are no numbers agree with nothing."""
        return self.mean < mean and self.largest < largest

    def __str__(self) -> str:
        return f"mean {self.mean:.2g}, max {self.largest:.2g} over {self.tokens} tokens"


def limits(dtype: torch.dtype, gap_mean: float | None = None) -> tuple[float, float]:
    """(mean, largest) that may be left between an engine and a plain forward pass in its own dtype."""
    mean, largest = LIMITS[dtype]
    return (mean, largest) if gap_mean is None else (gap_mean, max(largest, 50 * gap_mean))


def head_differs(own_NV: Tensor, plain_NV: Tensor, dtype: torch.dtype) -> bool:
    """Is the engine's output head another one? Compared by direction: some models scale their logits."""
    width = min(own_NV.shape[-1], plain_NV.shape[-1])  # an engine may pad its vocabulary
    cosine_N = torch.nn.functional.cosine_similarity(
        own_NV[:, :width].double(), plain_NV[:, :width].double(), dim=-1
    )
    return not bool((1 - cosine_N < HEAD_LIMITS[dtype]).all())


def came_along(own_NV: Tensor, old_NV: Tensor, new_NV: Tensor) -> bool | None:
    """Is `own` what new weights make, or still what old ones made? None where that cannot be told. Compares directions.

    The way from old to new is known, and the rounding errors of thousands of logits do not point along it: so a change
    can be told that is much smaller, value by value, than the rounding.
    """
    # An engine may pad its vocabulary.
    width = min(rows.shape[-1] for rows in (own_NV, old_NV, new_NV))

    def directions(rows_NV: Tensor) -> Tensor:
        return torch.nn.functional.normalize(rows_NV[:, :width].double(), dim=-1)

    own = directions(own_NV)
    old = directions(old_NV)
    new = directions(new_NV)
    change = new - old
    moved = own - old
    size = float(change.norm())
    if not size > 0:
        return None
    # Of the way from old to new: 0 or 1, but for rounding.
    share = float((moved * change).sum()) / size**2
    rounding = float((moved - share * change).square().mean().sqrt())
    return share > 0.5 if size > CERTAIN * rounding else None


def what_is_stale(
    *, finite: bool, answers_as_before: bool, head_is_old: bool, prefixes_are_old: bool
) -> str:
    """The likeliest cause of a gap, and what to do about it."""
    if not finite:
        return (
            "the logprobs are not finite: the new weights have diverged, or overflow in the engine's dtype; look at "
            "the learner's gradient norms, or use another engine.dtype"
        )
    if answers_as_before:
        return "nothing of the new weights arrived: the engine answers exactly as before the sync"
    if prefixes_are_old:
        return (
            "the prefix cache is stale: a prompt that was seen before the sync is still answered from it; it must be "
            "dropped after loading (VllmCore.forget_prefixes), or switched off with engine.cache='off'"
        )
    if head_is_old:
        return (
            "the output head is stale: it still holds other weights than those of this sync. Where it is tied to "
            "the embedding it must be prepared again after loading (vllm_transfer.pack_embeddings)"
        )
    return (
        "weights below the output head are stale, or this model is computed differently by the two; if it was so "
        "when the engine was opened, and only a little over the limit in a half-precision dtype, it may be "
        "rounding: engine.gap_mean raises the limit, engine.dtype='float32' removes the doubt"
    )
