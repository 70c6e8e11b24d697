"""What the loss is handed and what it does with it (R4 R6 R10 R18 R19 R12 R23), a micro-batch at a time.

The gradient of TRL's loss by the log-probability of each token is taken where the loss is made, before it goes back
through the model: elementwise arithmetic, and no further pass. It must be the gradient of the declared loss.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked
from workbench.basics.tensors import Tensor, torch
from workbench.extensions.trl_live.declared import (
    DeclaredLoss,
    LossSettings,
    declared_loss,
    not_known,
)
from workbench.extensions.trl_live.journal import SampledTokens
from workbench.extensions.trl_live.rows import SampledRows, array_of, arrays_of
from workbench.linting.messages import many
from workbench.linting.rule import RuleResult

SLACK = 5e-3  # of a gradient, as a share of its largest entry
NATS = 0.02  # a mean difference of logprobs that rounding does not make
HANDED = ("completion_mask", "tool_mask", "prompt_mask", "sampling_per_token_logps")
ABSENT = "a row of the generation that it was taken from"


@dataclass(frozen=True, eq=False)
class LossLogprobs:
    """The trainer's own pass in its loss: log-probabilities and entropies [N, C], with their graph."""

    logp_NC: Tensor
    entropy_NC: Tensor | None


@dataclass(frozen=True, eq=False)
class LossMicroBatch:
    """A micro-batch in the loss.

    rows      of the generation that its rows are; None where one is none of them
    arrays    what the loss was handed
    first     whether no update lies between its generation and it
    """

    rows: tuple[int | None, ...]
    arrays: Mapping[str, np.ndarray]
    logp_NC: np.ndarray
    entropy_NC: np.ndarray | None
    gradient_NC: np.ndarray | None
    declared: DeclaredLoss | None
    value: float
    unknown: str | None
    first: bool


@dataclass(eq=False)
class SampledRowTable:
    """Finds the rows of a generation again after they were shuffled and split."""

    generated: SampledRows
    by_content: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        padded = self.generated.padded
        for row in range(len(padded["completion_ids"])):
            self.by_content[_content(padded, row)].append(row)

    def find(self, arrays: Mapping[str, np.ndarray]) -> tuple[int | None, ...]:
        """Rows by content; of several that are alike, the one with this advantage."""
        return tuple(self._row(arrays, row) for row in range(len(arrays["completion_ids"])))

    def _row(self, arrays: Mapping[str, np.ndarray], row: int) -> int | None:
        alike = self.by_content.get(_content(arrays, row), [])
        if len(alike) > 1 and "advantages" in arrays:
            all_credit = self.generated.padded["advantages"]
            credit = arrays["advantages"][row]
            alike = [n for n in alike if np.array_equal(all_credit[n], credit)] or alike
        return alike[0] if alike else None


def _content(arrays: Mapping[str, np.ndarray], row: int) -> bytes:
    return arrays["prompt_ids"][row].tobytes() + b"|" + arrays["completion_ids"][row].tobytes()


def micro_batch(
    finder: SampledRowTable,
    settings: LossSettings,
    inputs: Mapping[str, Any],
    forward: LossLogprobs,
    loss: Tensor,
    first: bool,
) -> LossMicroBatch:
    """What there is to look at, taken while the graph is there."""
    gradient = None
    unknown = not_known(settings)
    if loss.requires_grad and forward.logp_NC.requires_grad:
        (gradient,) = torch.autograd.grad(
            loss, forward.logp_NC, retain_graph=True, allow_unused=True
        )
        if gradient is None:
            gradient = torch.zeros_like(forward.logp_NC)
    arrays = arrays_of(inputs)
    return LossMicroBatch(
        finder.find(arrays),
        arrays,
        array_of(forward.logp_NC).astype(np.float64),
        None if forward.entropy_NC is None else array_of(forward.entropy_NC).astype(np.float64),
        None if gradient is None else array_of(gradient).astype(np.float64),
        None if unknown else declared_loss(settings, inputs, forward.logp_NC),
        float(loss.detach()),
        unknown,
        first,
    )


# ------------------------------------------------------------------------------------------------ R4, R6


def rows_arrive(generated: SampledRows, batch: LossMicroBatch) -> Iterator[RuleResult]:
    """R4: the rows in the loss are rows of the generation, with their own masks and logprobs."""
    looked = 0
    for here, row in enumerate(batch.rows):
        if row is None:
            yield Finding(
                f"row {here} of the micro-batch has a prompt and a completion that were not generated together: columns "
                "were shuffled apart, or altered",
                generated.place(0),
            )
            continue
        for name in HANDED:
            if name not in batch.arrays or name not in generated.padded:
                continue
            looked += 1
            now = batch.arrays[name][here]
            made = generated.padded[name][row]
            if not np.array_equal(now, made, equal_nan=now.dtype.kind == "f"):
                token = int((now != made).argmax())
                yield Finding(
                    f"{name} is another one in the loss than was generated, at [{here}, {token}]",
                    generated.place(row, token if name != "prompt_mask" else None),
                )
    yield Checked(looked)


def credit_arrives(generated: SampledRows, batch: LossMicroBatch) -> Iterator[RuleResult]:
    """R6: each row has its own advantage in the loss."""
    used = batch.arrays.get("advantages")
    made = generated.padded.get("advantages")
    if used is None or made is None or used.shape[1:] != made.shape[1:]:
        yield NotChecked("advantages in the loss")
        return
    known = [(here, row) for here, row in enumerate(batch.rows) if row is not None]
    yield Checked(len(known))
    for here, row in known:
        if np.array_equal(used[here], made[row]):
            continue
        words = "its advantage in the loss is not the one that was computed for it"
        if used.ndim == 1:
            words += f": {used[here]:+.4g}, and not {made[row]:+.4g}"
            others = np.flatnonzero(made == used[here])
            if len(others):
                words += f"; it is that of {generated.name(int(others[0]))}"
        yield Finding(words, generated.place(row))
        return


# ------------------------------------------------------------------------------------------------ R10, R18, R19


def only_sampled_count(
    generated: SampledRows, batch: LossMicroBatch, authors: Sequence[SampledTokens]
) -> Iterator[RuleResult]:
    """R10: the loss moves no token that the policy did not sample."""
    if batch.gradient_NC is None:
        yield NotChecked("the gradient by the log-probabilities of the trainer's own pass")
        return
    looked = 0
    scale = float(np.abs(batch.gradient_NC).max(initial=0.0))
    for here, row in enumerate(batch.rows):
        if row is None:
            continue
        length = len(generated.completion_ids[row])
        gradient = batch.gradient_NC[here]
        counted = np.arange(len(gradient)) < length
        if authors[row].known:
            counted[:length] &= authors[row].sampled
        elif generated.tool_mask is not None and len(generated.tool_mask[row]) == length:
            counted[:length] &= generated.tool_mask[row] != 0
        looked += len(gradient)
        moved = np.flatnonzero(~counted & (np.abs(gradient) > 1e-6 * scale))
        if len(moved) and not authors[row].departures:
            where = "padding" if moved[0] >= length else "a tool, an environment or a template"
            yield Finding(
                f"the loss moves {many(len(moved))} that the policy did not sample (gradient {gradient[moved[0]]:+.3g} at "
                f"the first, of {where})",
                generated.place(row, int(moved[0])),
                ERROR,
                len(moved),
            )
    yield Checked(looked)


def loss_is_declared(generated: SampledRows, batch: LossMicroBatch) -> Iterator[RuleResult]:
    """R18: the loss's value is that of the declared loss."""
    if batch.declared is None or batch.declared.value is None:
        yield NotChecked(batch.unknown or "the entropy bonus or the auxiliary loss by itself")
        return
    wanted = batch.declared.value
    value = batch.value
    size = max(abs(wanted), float(np.abs(batch.declared.gradient_NC).sum()), 1e-9)
    yield Checked(1)
    if abs(value - wanted) > SLACK * size:
        yield Finding(
            f"the loss of a micro-batch is {value:.5g}, and the declared one {wanted:.5g} "
            f"(of the same log-probabilities, advantages and masks){_times(value, wanted)}",
            _place_of(generated, batch),
        )


def gradient_is_declared(generated: SampledRows, batch: LossMicroBatch) -> Iterator[RuleResult]:
    """R19: what the loss does to each log-probability is what the declared loss does."""
    if batch.declared is None or batch.gradient_NC is None:
        yield NotChecked(
            batch.unknown or "the gradient by the log-probabilities of the trainer's own pass"
        )
        return
    wanted = batch.declared.gradient_NC
    gradient = batch.gradient_NC
    yield Checked(wanted.size)
    scale = float(np.abs(wanted).max(initial=0.0))
    wrong = np.abs(gradient - wanted) > SLACK * max(scale, 1e-9)
    if not wrong.any():
        return
    here, token = (
        int(n) for n in np.unravel_index(np.abs(gradient - wanted).argmax(), wanted.shape)
    )
    has = gradient[here, token]
    should = wanted[here, token]
    counted = np.abs(wanted) > SLACK * scale
    ratios = gradient[counted] / wanted[counted] if counted.any() else np.zeros(0)
    words = (
        f"the loss pulls this token's log-probability by {has:+.4g}, and the declared loss by {should:+.4g}; "
        f"{int(wrong.sum())} of {int(counted.sum())} tokens are moved otherwise"
    )
    if len(ratios) and np.ptp(ratios) < 1e-2 * abs(ratios).max(initial=1e-9):
        words = (
            f"every token is pulled {ratios.mean():.4g} times as far as by the declared loss: another denominator, or a "
            "factor that no setting names"
        )
    row = batch.rows[here]
    place = _place_of(generated, batch) if row is None else generated.place(row, token)
    yield Finding(words, place, ERROR, int(wrong.sum()))


def _times(value: float, wanted: float) -> str:
    return f", {value / wanted:.4g} times as much" if abs(wanted) > 1e-9 else ""


def _place_of(generated: SampledRows, batch: LossMicroBatch) -> Any:
    rows = [row for row in batch.rows if row is not None]
    return generated.place(rows[0] if rows else 0)


# ------------------------------------------------------------------------------------------------ R18: old logprobs


def old_is_old(
    generated: SampledRows, batch: LossMicroBatch, has_dropout: bool
) -> Iterator[RuleResult]:
    """R18: before the first update, the old log-probabilities are those of the policy as it is."""
    old = batch.arrays.get("old_per_token_logps")
    if old is None or not batch.first:
        return
    counted = _counted(batch)
    if not counted.any():
        return
    gap = np.abs(old - batch.logp_NC)
    yield Checked(int(counted.sum()))
    mean = float(gap[counted].mean())
    if mean > NATS:
        here, token = (int(n) for n in np.unravel_index((gap * counted).argmax(), gap.shape))
        row = batch.rows[here]
        yield Finding(
            f"before any update the old log-probabilities differ from the policy's by {mean:.3g} nats a token"
            f"{'; dropout is on' if has_dropout else ''}: ratios begin at another number than 1",
            generated.place(0 if row is None else row, token),
            NOTE if has_dropout else ERROR,
            int(counted.sum()),
        )


def _counted(batch: LossMicroBatch) -> np.ndarray:
    """bool [N, C]: tokens that the loss counts."""
    mask = batch.arrays["completion_mask"] != 0
    if "tool_mask" in batch.arrays:
        mask = mask & (batch.arrays["tool_mask"] != 0)
    return mask


# ------------------------------------------------------------------------------------------------ R23


def sampler_agrees(
    generated: SampledRows, batches: Sequence[LossMicroBatch], heard: bool, plain: bool
) -> Iterator[RuleResult]:
    """R23: the sampler's log-probabilities are the trainer's, before the first update; where the sampler gave none, what was
    sampled looks drawn from the trainer's distribution (the mean of log p + entropy is 0).

    heard   the sampler was the trainer's own model, whose settings R12 compares
    plain   nothing but a temperature bends the distribution
    """
    gaps: list[tuple[float, int, np.ndarray, np.ndarray]] = []
    for batch in batches:
        given = batch.arrays.get("sampling_per_token_logps")
        counted = _counted(batch)
        if given is None or not batch.first:
            continue
        for here, row in enumerate(batch.rows):
            known = counted[here] & np.isfinite(given[here])
            if row is not None and known.any():
                gap = np.abs(given[here] - batch.logp_NC[here])[known]
                gaps.append(
                    (float(gap.mean()), row, given[here][known], batch.logp_NC[here][known])
                )
    if gaps and np.ptp(np.concatenate([given for _, _, given, _ in gaps])) > 0:
        yield from _gaps(generated, gaps)
    elif heard or not plain:
        yield NotChecked("log-probabilities that the sampler gave")
    else:
        yield from _drawn_from_it(generated, batches)


def _gaps(
    generated: SampledRows, gaps: Sequence[tuple[float, int, np.ndarray, np.ndarray]]
) -> Iterator[RuleResult]:
    mean = float(np.average([gap[0] for gap in gaps], weights=[len(gap[2]) for gap in gaps]))
    yield Checked(sum(len(gap[2]) for gap in gaps))
    if mean <= NATS:
        return
    size, row, given, own = max(gaps, key=lambda gap: gap[0])
    words = f"the sampler's log-probabilities differ from the trainer's by {mean:.3g} nats a token, here by {size:.3g}"
    for shift in (1, -1):
        if len(own) > 8 and np.abs(np.roll(given, shift) - own)[1:-1].mean() < 0.2 * size:
            words += f"; shifted by {-shift} token they agree"
    yield Finding(words, generated.place(row), ERROR if mean > 0.1 else NOTE, len(gaps))


def _drawn_from_it(
    generated: SampledRows, batches: Sequence[LossMicroBatch]
) -> Iterator[RuleResult]:
    parts = []
    for batch in batches:
        if batch.first and batch.entropy_NC is not None:
            counted = _counted(batch)
            parts.append((batch.logp_NC + batch.entropy_NC)[counted])
    surprise = np.concatenate(parts) if parts else np.zeros(0)
    if len(surprise) < 200:
        yield NotChecked(
            "log-probabilities that the sampler gave, or 200 tokens and their entropies"
        )
        return
    yield Checked(len(surprise))
    z = float(surprise.sum() / max(np.sqrt((surprise**2).sum()), 1e-9))
    mean = float(surprise.mean())
    if abs(z) > 8 and abs(mean) > 0.05:
        way = "likelier" if mean > 0 else "less likely"
        yield Finding(
            f"the tokens are {abs(mean):.3g} nats {way}, on average, than tokens drawn from the trainer's distribution "
            f"({abs(z):.0f} standard errors over {len(surprise)} tokens): they come from another one, by its temperature, "
            "its weights or its tokens",
            generated.place(0),
            ERROR,
            len(surprise),
        )


def all_rows_came(
    generated: SampledRows, batches: Sequence[LossMicroBatch]
) -> Iterator[RuleResult]:
    """R4: every row of a generation comes into the loss once."""
    times = Counter(chain.from_iterable(batch.rows for batch in batches))
    yield Checked(len(generated))
    alike = Counter(
        _content(generated.padded, row) for row in range(len(generated))
    )  # rows that are alike cannot be told apart
    for row in range(len(generated)):
        if alike[_content(generated.padded, row)] == 1 and times[row] != 1:
            yield Finding(
                f"the row came {times[row]} times into the loss of its generation, and once was expected",
                generated.place(row),
            )
