"""Is an update large enough for the dtype that the engine samples in? (R36)

Weights learn in float32, and an engine in half precision has a grid: 8 bits of a number's own size. Of an update that is far
below a step of that grid nearly every weight rounds back to what it was, and the few that move do so by a whole step: what is
sampled next is the old policy and noise. Here a few thousand weights of each tensor are rounded as the engine does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, Place
from workbench.linting.evidence import Evidence, Rounded
from workbench.linting.rule import Rule, RuleResult

if TYPE_CHECKING:
    from torch import Tensor

OF_EACH = 4096  # weights of a tensor that are looked at, evenly spaced
FEW = 0.5  # share that moves on the grid, below which it is said
LOST = 1e-3  # ... and below which nothing of the update arrives
ENOUGH = 1_000  # weights that changed, to call it that


def some_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of a few weights of each tensor, on the CPU, always the same ones."""
    chosen = {}
    for name, tensor in weights.items():
        if tensor.is_floating_point() and tensor.numel():
            flat = tensor.detach().reshape(-1)
            chosen[name] = flat[:: max(1, len(flat) // OF_EACH)][:OF_EACH].float().cpu().clone()
    return chosen


def rounded(before: Mapping[str, Tensor], after: Mapping[str, Tensor], dtype: str) -> Rounded:
    """How much of the way from `before` to `after` is left on the grid of `dtype`."""
    import torch

    names = sorted(before)
    one = torch.cat([before[name] for name in names]).double()
    other = torch.cat([after[name] for name in names]).double()
    grid = getattr(torch, dtype)
    meant = other - one
    made = other.to(grid).double() - one.to(grid).double()
    length = float(meant.norm() * made.norm())
    return Rounded(
        dtype,
        int((meant != 0).sum()),
        int(((meant != 0) & (made != 0)).sum()),
        float(meant @ made) / length if length else 0.0,
    )


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    kept = evidence.rounded
    yield Checked(kept.changed)
    share = kept.moved / kept.changed if kept.changed else 1.0
    if share < FEW:
        lost = kept.changed >= ENOUGH and share < LOST
        yield Finding(
            f"of {kept.changed:,} weights that this step changed, {kept.moved:,} ({share:.2%}) are another number in "
            f"{kept.dtype}, in which the engine samples; between what was learned and what the engine sees of it the "
            f"cosine is {kept.cosine:.2f}",
            Place(step=evidence.step),
            ERROR if lost else NOTE,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R36",
        "an update is larger than the engine's rounding",
        means="The engine goes on sampling from weights that hardly moved, or moved by noise, while the learner drifts away from "
        "them: rewards stand still, and the log shows a policy that learns.",
        mend="Sample in engine.dtype = 'float32', or in float16 where it does not overflow (3 bits more than bfloat16); a larger "
        "learner.lr moves more weights. A step's loss adds up in the learner, so that a low share for a few steps of "
        "warm-up is no harm.",
        needs=("rounded",),
        check=_check,
        when="update",
    ),
)
