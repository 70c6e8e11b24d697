"""Weights that are put together for an engine, adapters merged or parts gathered: do they answer as what learns does?

A frozen base that is handed over while adapters learn looks like weights that are a step old, and so do parts that were
gathered in the wrong order. Asked where weights are handed over, of one short probe, with the weights at hand.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from workbench.engines.gap import TRAINING_LIMITS, Gap, PlainForward

PROBES = 4  # rows
TOKENS = 16  # of each


class HandedWeights:
    """How the newest weights that were put together answer, beside what learns: `gap` between their logprobs, None before
    the first; `allowed`: what rounding explains of it (mean, largest), in nats."""

    def __init__(self, model: nn.Module) -> None:
        """`model` as it was loaded."""
        self._plain = PlainForward(model)
        types = {parameter.dtype for parameter in model.parameters()}
        halves = [dtype for dtype in (torch.bfloat16, torch.float16) if dtype in types]
        self.gap: Gap | None = None
        self.allowed = TRAINING_LIMITS[halves[0] if halves else torch.float32]

    def look(self, learns: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Note the gap of `weights` (as `Learner.weights` gives them) to what `learns`. Every process that holds a part of it
        calls this."""
        vocabulary = learns.get_input_embeddings().weight.shape[0]
        ids_NT = np.random.default_rng(0).integers(0, vocabulary, (PROBES, TOKENS))
        chosen = self._plain.names.choose(weights)
        ids = torch.as_tensor(ids_NT, device=next(iter(chosen.values())).device)
        with torch.no_grad():
            output = learns(ids, attention_mask=torch.ones_like(ids), use_cache=False)
            logits_NTV = output.logits[:, :-1].float()
        if hasattr(learns, "reshard"):  # take apart again what a pass without gradients left whole
            learns.reshard()
        own_NT = logits_NTV.log_softmax(-1).gather(2, ids[:, 1:, None])[..., 0]
        handed_NT = self._plain.logprobs(chosen, ids_NT, TOKENS - 1)
        self.gap = Gap.between(own_NT.double().cpu().numpy(), handed_NT)
