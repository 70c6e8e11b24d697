"""One row through the model once more, alone and without padding, and the trainer's log-probabilities beside it (R12).

What the policy was sampled from is softmax(logits / temperature), by TRL's own documentation and by `generate`. A trainer
that leaves the temperature out, reads the logits of the next position, attends to padding or runs other weights computes
other log-probabilities, and every curve stays plausible. A pass of one short row shows it; once in `PROBE_EVERY`
generations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.basics.tensors import torch
from workbench.extensions.trl_live.rows import SampledRows
from workbench.extensions.trl_live.update import LossMicroBatch
from workbench.linting.rule import RuleResult

PROBE_EVERY = 10  # generations
MOST_TOKENS = 64  # of a completion
ENOUGH = 12  # trained tokens; of the rows with as many, the shortest is asked
LIMIT = {"float32": 5e-3}  # mean difference in nats that rounding makes; in half precision 0.1


@dataclass(frozen=True, eq=False)
class RowProbe:
    """logp of the first tokens of a completion [K], at the declared temperature and at 1."""

    row: int
    here: int  # row of the micro-batch
    declared: np.ndarray
    plain: np.ndarray
    temperature: float
    precise: bool


def probe_row(
    model: Any, generated: SampledRows, batch: LossMicroBatch, temperature: float
) -> RowProbe | None:
    """A short row with enough trained tokens through the model; None where nothing is trained."""
    rows = _by_worth(generated, batch)
    if not rows:
        return None
    _, _, here, row = rows[0]
    prompt = generated.prompt_ids[row]
    completion = generated.completion_ids[row][:MOST_TOKENS]
    device = next(model.parameters()).device
    ids = torch.tensor(np.concatenate([prompt, completion])[None], device=device)
    with torch.no_grad(), _evaluating(model):
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
    precise = logits.dtype == torch.float32 and next(model.parameters()).dtype == torch.float32
    logits = logits[0, len(prompt) - 1 : -1].float()
    targets = ids[0, len(prompt) :, None]
    at = [
        torch.log_softmax(logits / divisor, -1).gather(1, targets)[:, 0].cpu().numpy()
        for divisor in (temperature, 1.0)
    ]
    return RowProbe(
        row, here, at[0].astype(np.float64), at[1].astype(np.float64), temperature, precise
    )


def _by_worth(generated: SampledRows, batch: LossMicroBatch) -> list[tuple[int, int, int, int]]:
    """(..., row of the micro-batch, row of the generation): with enough trained tokens first, of these the shortest."""
    rows = []
    for here, row in enumerate(batch.rows):
        trained = 0 if row is None else int(generated.trained(row).sum())
        if trained:
            length = len(generated.prompt_ids[row]) + len(generated.completion_ids[row])
            rows.append((-min(trained, ENOUGH), length, here, row))
    return sorted(rows)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout; every module is put back as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def trainer_agrees(
    generated: SampledRows,
    batch: LossMicroBatch,
    probe: RowProbe | None,
    reason: str,
    has_dropout: bool,
) -> Iterator[RuleResult]:
    """R12: the trainer's log-probabilities are those of the policy, at the temperature that it was sampled with."""
    if probe is None:
        if reason:  # none: another generation was asked
            yield NotChecked(reason)
        return
    counted = generated.trained(probe.row)[: len(probe.declared)]
    own = batch.logp_NC[probe.here, : len(probe.declared)]
    yield from _compared(generated, probe, own, counted, has_dropout)


def _compared(
    generated: SampledRows, probe: RowProbe, own: np.ndarray, counted: np.ndarray, has_dropout: bool
) -> Iterator[RuleResult]:
    limit = LIMIT["float32"] if probe.precise and not has_dropout else 0.1
    gap = np.abs(own - probe.declared)
    mean = float(gap[counted].mean())
    yield Checked(int(counted.sum()))
    if mean <= limit:
        return
    words = f"the trainer's log-probabilities differ from the policy's by {mean:.3g} nats a token"
    cause = _cause(probe, own, counted, limit)
    token = int((gap * counted).argmax())
    yield Finding(
        f"{words}{cause or ': by other weights, other positions or other tokens around it'}",
        generated.place(probe.row, token),
        NOTE if has_dropout and not cause else ERROR,
        int(counted.sum()),
    )


def _cause(probe: RowProbe, own: np.ndarray, counted: np.ndarray, limit: float) -> str:
    """What makes them agree; "" where nothing that is tried does."""
    limit = 2 * limit
    if probe.temperature != 1 and np.abs(own - probe.plain)[counted].mean() < limit:
        return (
            f": they are those at temperature 1, while temperature={probe.temperature:g} is sampled with; logits are not "
            "divided by it"
        )
    if len(own) > 4:
        for shift, words in ((1, "next"), (-1, "one before")):
            moved = np.roll(probe.declared, -shift)[1:-1]
            if np.abs(own[1:-1] - moved).mean() < limit:
                return f": each is that of the token {words}, so they are shifted by one"
    return ""
