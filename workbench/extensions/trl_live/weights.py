"""Whose weights, and whose rows (R13, R17, R24): the weights that sample are those that are trained, updates move them, the
reference is a model of its own, and what is evaluated on is not trained on.

Weights are told apart by marks: some numbers of every trainable parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.basics.findings import Checked, Finding, NotChecked, Place
from workbench.extensions.trl_live.rows import SampledRows, array_of
from workbench.linting.rule import RuleResult

NUMBERS = 64  # of a parameter that are kept
UNMOVED = 2  # generations in a row whose updates moved nothing, before that is said
MANY_ROWS = 20_000  # of a data set; a larger one is not read


def marks_of(model: Any) -> np.ndarray:
    """Numbers spread over each trainable parameter, [trainable parameters x NUMBERS at most]."""
    marks = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            flat = parameter.detach().reshape(-1)
            marks.append(array_of(flat[:: max(1, len(flat) // NUMBERS)][:NUMBERS]))
    return np.concatenate(marks) if marks else np.zeros(0, np.float32)


@dataclass
class WeightHistory:
    """What was seen of the weights at the generation before.

    pulled   that generation had a gradient, and the learning rate was not 0
    unmoved  generations in a row whose updates moved nothing
    """

    marks: np.ndarray | None = None
    at_step: int = 0
    pulled: bool = False
    unmoved: int = 0


def sampled_by_the_policy(
    step: int, sampled_with: Sequence[np.ndarray], now: np.ndarray
) -> Iterator[RuleResult]:
    """R17: the model had the same weights while it sampled as it has where the loss begins."""
    comparable = [marks for marks in sampled_with if marks.shape == now.shape and len(now)]
    yield Checked(len(comparable))
    for marks in comparable:
        changed = float((marks != now).mean())
        if changed:
            yield Finding(
                f"the weights that sampled are not the policy's: {changed:.0%} of the numbers that were looked at differ "
                "between sampling and the loss, before any update",
                Place(step=step),
            )
            return


def updates_move_weights(
    generated: SampledRows, history: WeightHistory, now: np.ndarray, at_step: int, rate: float
) -> Iterator[RuleResult]:
    """R17: since the last generation, which had a gradient, updates were counted; then weights moved. `rate`: the learning rate."""
    before = history.marks
    judged = (
        before is not None
        and history.pulled
        and before.shape == now.shape
        and len(now) > 0
        and at_step > history.at_step
    )
    if judged:
        yield Checked(1)
        history.unmoved = history.unmoved + 1 if np.array_equal(before, now) else 0
        if history.unmoved >= UNMOVED:
            yield Finding(
                f"the weights are the same bit for bit as {at_step - history.at_step} updates ago, though there was a "
                f"gradient and the learning rate is {rate:.3g}: the optimizer holds other parameters, updates are undone, "
                "or they are lost in rounding",
                Place(step=generated.step),
            )
    history.marks = now
    history.at_step = at_step
    history.pulled = rate > 0 and _has_gradient(generated)


def _has_gradient(generated: SampledRows) -> bool:
    """Some trained token of a row has an advantage."""
    advantages = generated.padded.get("advantages")
    if advantages is None or not generated.fits or len(advantages) != len(generated):
        return False
    return any(
        generated.trained(row).any() and np.any(advantages[row] != 0)
        for row in range(len(generated))
    )


def learning_rate(trainer: Any) -> float:
    """The largest of all groups of parameters; 0 where there is no optimizer yet."""
    groups = getattr(trainer.optimizer, "param_groups", None) or ()
    return max((float(group["lr"]) for group in groups), default=0.0)


def reference_is_apart(step: int, trainer: Any) -> Iterator[RuleResult]:
    """R13: with a KL penalty, the reference shares no trainable parameter with the policy."""
    reference = getattr(trainer, "ref_model", None)
    if not trainer.args.beta or reference is None:
        yield NotChecked("a reference model of its own")
        return
    own = {id(parameter) for parameter in trainer.model.parameters() if parameter.requires_grad}
    shared = sum(id(parameter) in own for parameter in reference.parameters())
    yield Checked(1)
    if shared:
        yield Finding(
            f"beta={trainer.args.beta:g} does nothing: the reference model shares {shared} trainable parameters with the "
            "policy, so their KL divergence is 0 all along",
            Place(step=step),
        )


def evaluated_apart(step: int, trainer: Any) -> Iterator[RuleResult]:
    """R24: no row of the evaluation's data set is a row of the training's, in all columns."""
    evaluated = getattr(trainer, "eval_dataset", None)
    trained = getattr(trainer, "train_dataset", None)
    sizes = [getattr(data, "num_rows", None) for data in (evaluated, trained)]
    if not all(isinstance(size, int) and size <= MANY_ROWS for size in sizes):
        yield NotChecked(
            f"data sets for training and evaluation with at most {MANY_ROWS:,} rows each"
        )
        return
    known = {repr(row) for row in trained}
    both = [number for number, row in enumerate(evaluated) if repr(row) in known]
    yield Checked(sizes[0])
    if both:
        yield Finding(
            f"{len(both)} of {sizes[0]} rows of the evaluation are rows that are trained on, the first is row {both[0]}: it "
            "tells how well they are remembered",
            Place(step=step),
        )
