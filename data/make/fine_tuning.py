"""Supervised fine-tuning of a small causal LM on transcripts: one loop, one denominator.

A named exception of invariant 1: what is trained here was written by a demonstrator, not sampled by the policy.

Axes: B transcripts in a micro-batch · T tokens, padded on the right to the longest of them · A trained tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workbench.values.errors import ConfigError, DataError

Example = tuple[
    np.ndarray, np.ndarray
]  # token ids [T]; True where the demonstrator wrote the token [T]


@dataclass(frozen=True)
class FineTuning:
    """Muon for the matrices inside the blocks, AdamW for embeddings and norms; both warm up, stay, and fall linearly.

    Muon (Jordan et al. 2024, in torch since 2.9) learns to read a grid from half the transcripts that AdamW needs.
    `batch` transcripts a step; `fall` is the share of the steps, at the end, in which the learning rates fall to a
    twentieth. `micro_batch_tokens` bounds the padded size of one forward pass: speed and memory, not the result.
    """

    batch: int = 8
    matrix_lr: float = 0.02
    lr: float = 2e-3
    warmup: int = 40
    fall: float = 0.4
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    micro_batch_tokens: int = 4096

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch_tokens", "warmup"):
            if getattr(self, name) < 1:
                raise ConfigError(f"FineTuning.{name} is at least 1, got {getattr(self, name)}")
        if not 0 < self.fall <= 1:
            raise ConfigError(
                f"FineTuning.fall is a share of the steps, above 0 and at most 1, got {self.fall}"
            )

    def rate_at(self, step: int, steps: int) -> float:
        """What both learning rates are multiplied with in update number `step` of `steps`, counted from 0."""
        falling = (steps - step) / (self.fall * steps)
        return min(1.0, (step + 1) / self.warmup) * max(0.05, min(1.0, falling))


def fine_tune(
    model: torch.nn.Module,
    example: Callable[[int], Example],
    steps: int,
    settings: FineTuning,
    *,
    say: Callable[[str], None] = lambda line: None,
) -> list[float]:
    """Train `model` in place on example(0), example(1), ...; returns the loss of every step (nats per trained token).

    Each example is used once. The loss of a step is a sum over its trained tokens divided by their number in the whole
    step, so the size of micro-batches does not matter (invariant 4). Raises DataError for a step with nothing to train.
    """
    optimizers = _optimizers(model, settings)
    losses, began, every = [], time.process_time(), max(steps // 20, 1)
    model.train()
    for step in range(steps):
        for optimizer, lr in optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * settings.rate_at(step, steps)
        examples = [example(step * settings.batch + index) for index in range(settings.batch)]
        losses.append(accumulate_gradient(model, examples, settings.micro_batch_tokens))
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
        for optimizer, _ in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if (step + 1) % every == 0:
            recent, seconds = sum(losses[-every:]) / every, time.process_time() - began
            say(f"step {step + 1}/{steps}  loss {recent:.3f}  {seconds:.0f} CPU-s")
    model.eval()
    return losses


def _optimizers(
    model: torch.nn.Module, settings: FineTuning
) -> list[tuple[torch.optim.Optimizer, float]]:
    """Each with its own learning rate. Every parameter belongs to exactly one."""
    tables = {module.weight for module in model.modules() if isinstance(module, torch.nn.Embedding)}
    matrices = [
        p for p in model.parameters() if p.ndim == 2 and p not in tables
    ]  # a tied output layer is a table too
    others = [p for p in model.parameters() if p.ndim != 2 or p in tables]
    muon = torch.optim.Muon(
        matrices, lr=settings.matrix_lr, momentum=0.95, weight_decay=0.0, adjust_lr_fn="original"
    )
    adamw = torch.optim.AdamW(
        others, lr=settings.lr, betas=settings.betas, weight_decay=settings.weight_decay
    )
    return [(muon, settings.matrix_lr), (adamw, settings.lr)]


def accumulate_gradient(
    model: torch.nn.Module, examples: Sequence[Example], micro_batch_tokens: int
) -> float:
    """Add the gradient of the mean loss over all trained tokens of `examples`; returns that loss."""
    trained = sum(
        int(mask[1:].sum()) for _, mask in examples
    )  # a first token has nothing to be predicted from
    if not trained:
        raise DataError(
            "no token to train on: every transcript lacks demonstrated tokens after its first token"
        )
    total = 0.0
    for rows in by_length(examples, micro_batch_tokens):
        longest = max(len(ids) for ids, _ in rows)
        ids_BT = torch.zeros(len(rows), longest, dtype=torch.long)
        mask_BT = torch.zeros(len(rows), longest, dtype=torch.bool)
        for row, (ids, mask) in enumerate(rows):
            ids_BT[row, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
            mask_BT[row, : len(ids)] = torch.from_numpy(mask)
        # Padding stands on the right of a causal model: no real token sees it, so no attention mask is needed.
        hidden = model.model(input_ids=ids_BT[:, :-1]).last_hidden_state
        logits_AV = model.lm_head(hidden[mask_BT[:, 1:]])
        loss = (
            torch.nn.functional.cross_entropy(
                logits_AV, ids_BT[:, 1:][mask_BT[:, 1:]], reduction="sum"
            )
            / trained
        )
        loss.backward()
        total += float(loss.detach())
    return total


def by_length(examples: Sequence[Example], micro_batch_tokens: int) -> Iterator[list[Example]]:
    """Cut `examples`, sorted by length, into micro-batches of at most `micro_batch_tokens` padded tokens (or 1 row)."""
    rows: list[Example] = []
    for example in sorted(examples, key=lambda e: len(e[0])):
        if rows and (len(rows) + 1) * len(example[0]) > micro_batch_tokens:
            yield rows
            rows = []
        rows.append(example)
    if rows:
        yield rows
