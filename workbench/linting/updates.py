"""An update is what its credit table says (R18).

The table of an update holds, token by token, all that its loss was made of. From those columns everything that the
update reports is computed once more by the algorithm's reference implementation: ratios, what was held at a bound, each term, what it
was divided by, the figures. What the gradient did with it is R19's question.

Axis letters: T tokens (flat) · U the tokens that this update used · N trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.credit import columns_of
from workbench.linting.evidence import Evidence, Update
from workbench.linting.expected import LOSS_PARTS, WEIGHT_COLUMNS, ExpectedUpdate, expected_update
from workbench.linting.messages import at_first, unequal
from workbench.linting.rule import Rule, RuleResult

# Numbers per token are float32 and were added up in float64: measured differences stay below 1e-7 of the sum of sizes
# on a CPU. Another exponential may be off by a few units in the last place.
NEAR = 1e-5
# Mean |log ratio| of a step's first update, where old and new are the same weights: what two cuts of a batch round.
# On a CPU it was exactly 0, with 8 bits too; a kernel that goes by the shape of a batch leaves 1e-5, of 8 bits 1e-2.
FIRST = 2e-4
FIRST_BF16 = 5e-2

# AdamW moves a weight by about the learning rate. Weights are below 1 or not much above it, where float32 has a spacing
# of 6e-8, and gradients far below its epsilon (1e-8 each, 3e-4 all together in a model of 1e9 weights) move nothing.
VISIBLE = 1e-7
SLOPE = 1e-3
OLD_FROM_NEW = "old logprobs compared with those of later updates"


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    algorithm = evidence.algorithm
    updates = evidence.updates
    step = columns_of(evidence)
    for update in updates:
        yield from _same_step(evidence, update, step)
    yield from _passes(evidence)
    yield from _old_is_old(evidence)
    if algorithm is None:
        yield NotChecked("the algorithm, whose settings the loss is made by", "the loss")
        return
    if LOSS_PARTS & set(evidence.plain_recipe.missing):
        yield NotChecked(f"a reference implementation of the loss of {algorithm.name}", "the loss")
        return
    for number, update in enumerate(updates):
        if not update.table.columns["used"].any():
            yield from _nothing_used(evidence, update)
            continue
        own = expected_update(update.table.columns, evidence.plain_recipe.recipe)
        yield Checked(len(own.used_U), "the loss, token by token")
        yield from _tokens(evidence, update, own)
        yield from _left_out(evidence, update)
        if update.skipped is None or "not finite" not in update.skipped:
            yield from _figures(evidence, update, own)
        if number == 0:
            yield from _on_policy(evidence, update, own)
            yield from _sampler_gap(evidence, update)


def _place(evidence: Evidence, update: Update, token: int | None = None) -> Place:
    here = Place(step=evidence.step, update=update.table.update)
    if token is None or evidence.plain_trajectories is None:
        return here
    return replace(evidence.plain_trajectories.place(token), update=update.table.update)


# ------------------------------------------------------------------------------------------------ the step's credit


def _same_step(
    evidence: Evidence, update: Update, step: Mapping[str, np.ndarray] | None
) -> Iterator[RuleResult]:
    """Advantages, weights, returns and tokens of a table are the step's, bit for bit; numbers stand where it trained."""
    columns = update.table.columns
    here = partial(_place, evidence, update)
    used_T = columns["used"]
    yield Checked(1)
    wanted = dict(step or {})
    trajectories = evidence.plain_trajectories
    if trajectories is not None:
        wanted |= {
            "token_id": trajectories.token_id_T,
            "trajectory": trajectories.row_T,
            "segment": trajectories.segment_T,
            "position": trajectories.position_T,
            "turn": trajectories.turn_T,
            "source": trajectories.source_T,
            "eligible": trajectories.sampled_T,
            "rollout_logp": trajectories.rollout_logp_T,
        }
    for name, theirs_T in wanted.items():
        mine_T = columns.get(name)
        if mine_T is None:
            if name != "return":
                yield Finding(f"the step has {name}, this update's table has not", here())
            continue
        if len(mine_T) != len(theirs_T):
            yield Finding(
                f"{name} of this update is about {len(mine_T)} tokens, of the step about {len(theirs_T)}",
                here(),
            )
            return
        yield from at_first(
            unequal(mine_T, theirs_T),
            lambda t: (
                f"{name} {mine_T[t]:.6g} in this update, {theirs_T[t]:.6g} in the step's credit"
            ),
            here,
        )
    for name in ("new_logp", "ratio", "entropy") if update.skipped is None else ():
        yield from at_first(
            np.isnan(columns[name]) == used_T,
            lambda t: (
                f"{name} is {'not there' if used_T[t] else 'there'} at a token that this update "
                f"{'used' if used_T[t] else 'did not use'}"
            ),
            here,
        )


def _passes(evidence: Evidence) -> Iterator[RuleResult]:
    """Each pass over a step uses every token that has a weight once, and each trajectory in one update only."""
    updates = evidence.updates
    if not updates:
        return
    columns = updates[0].table.columns
    weights = [columns[name] for name in WEIGHT_COLUMNS.values() if name in columns]
    trained_T = np.any([weight_T != 0 for weight_T in weights], axis=0)
    epochs = int(getattr(evidence.algorithm, "epochs", 1))
    if len(updates) % epochs:
        yield NotChecked(
            f"updates of whole passes ({len(updates)} are here, of {epochs} passes)", "passes"
        )
        return
    per_epoch = len(updates) // epochs
    rows = len(np.unique(columns["trajectory"][trained_T]))
    wanted = _updates_asked(evidence)
    if wanted is not None and per_epoch != max(1, min(wanted, rows)):
        yield Finding(
            f"{per_epoch} updates per pass over {rows} trajectories, where {wanted} were asked for",
            Place(step=evidence.step),
        )
    for epoch in range(epochs):
        part = updates[epoch * per_epoch : (epoch + 1) * per_epoch]
        yield from _one_pass(evidence, epoch, part, trained_T)


def _updates_asked(evidence: Evidence) -> int | None:
    """How many updates a pass is to have, as the credit says, else the algorithm; None: that goes by their size."""
    credit = evidence.credit
    if credit is not None and credit.minibatches is not None:
        return credit.minibatches
    if getattr(evidence.algorithm, "minibatch_size", 0):
        return None
    return getattr(evidence.algorithm, "minibatches", None)


def _one_pass(
    evidence: Evidence, epoch: int, updates: Sequence[Update], trained_T: np.ndarray
) -> Iterator[Finding]:
    row_T = updates[0].table.columns["trajectory"]
    used = [update.table.columns["used"] for update in updates]
    times_T = np.sum(used, axis=0, dtype=np.int64)
    yield from at_first(
        times_T != trained_T,
        lambda t: (
            f"used {times_T[t]} times in pass {epoch}, but it "
            f"{'has a weight and is to be used once' if trained_T[t] else 'has no weight'}"
        ),
        partial(_place, evidence, updates[0]),
    )
    for update, used_T in zip(updates, used):
        yield from at_first(
            np.isin(row_T, row_T[used_T]) & trained_T & ~used_T,
            lambda t: (
                "not used, though other tokens of its trajectory are: a trajectory is trained whole"
            ),
            partial(_place, evidence, update),
        )


def _sampler_gap(evidence: Evidence, update: Update) -> Iterator[RuleResult]:
    """What the step's first update says of sampler and trainer, from the spans' own logprobs and the column."""
    columns = update.table.columns
    metrics = update.metrics
    at = np.flatnonzero(columns["eligible"])
    plain = evidence.flat.plain_logp_T[evidence.flat.trained_T]
    if not metrics or update.skipped is not None or len(plain) != len(at):
        return
    change = columns["new_logp"][at].astype(np.float64) - plain
    change = change[columns["used"][at] & ~np.isnan(change)]
    if not len(change) or np.abs(change).max() > 20:
        return
    yield Checked(len(change))
    for name, value in _gap_figures(change).items():
        reported = metrics.get(name)
        # Both logprobs are float32: their difference is known to a few of their last bits.
        if reported is None or not abs(float(reported) - value) <= 1e-4 * abs(value) + 2e-6:
            yield Finding(
                f"{name} is reported as {reported if reported is None else f'{float(reported):.7g}'}, sampler and "
                f"trainer make it {value:.7g}",
                _place(evidence, update),
                NOTE if reported is None else ERROR,
            )


def _gap_figures(change: np.ndarray) -> dict[str, float]:
    """By the names of the metrics: what differences of log-probabilities say of sampler and trainer."""
    ratio = np.exp(change)
    figures = {
        "logp_gap_mean": np.abs(change).mean(),
        "logp_gap_max": np.abs(change).max(),
        "raw_ratio_mean": ratio.mean(),
        "mismatch_kl": (ratio - 1 - change).mean(),
    }
    to_bounds = np.minimum(np.abs(ratio - 0.9), np.abs(ratio - 1.1))
    if to_bounds.min() >= 1e-5:  # else rounding decides on which side a token is
        figures["raw_ratio_outside"] = ((ratio < 0.9) | (ratio > 1.1)).mean()
    return figures


def _left_out(evidence: Evidence, update: Update) -> Iterator[RuleResult]:
    """An update is left out for what its numbers say, and made otherwise."""
    reason = update.skipped
    metrics = update.metrics
    columns = update.table.columns
    norm = metrics.get("grad_norm")
    here = _place(evidence, update)
    yield Checked(1)
    if reason is None:
        if norm == 0:
            yield Finding(
                "the gradient is exactly zero, and the weights were moved all the same: by what the optimizer "
                "remembers of other batches",
                here,
            )
        return
    if "exactly zero" in reason and norm is not None and norm != 0:
        yield Finding(
            f"it was left out, as if the gradient were exactly zero; its norm is {norm:.6g}", here
        )
    if "not finite" not in reason or "loss" not in metrics or norm is None:
        return  # numbers that are not finite are not among the metrics
    used_T = columns["used"]
    names = [
        name
        for name in (
            "new_logp",
            "old_logp",
            "entropy",
            "ratio",
            "advantage",
            "weight",
            "ref_logp",
            "value",
            "new_value",
        )
        if name in columns
    ]
    broken = [name for name in names if not np.isfinite(columns[name][used_T]).all()]
    broken += [
        name
        for name in ("grad_norm", "critic_grad_norm", "loss", "value_loss")
        if not math.isfinite(metrics.get(name, 0.0))
    ]
    has_critic = bool({"critic_weight", "value", "return"} & columns.keys())
    lost = has_critic and not {"critic_grad_norm", "value_loss"} <= metrics.keys()
    if not broken and not lost:
        yield Finding(
            f"it was left out as not finite, but loss {metrics['loss']:.6g}, gradient norm {norm:.6g} and "
            "every number per token are finite: a sound update was thrown away",
            here,
        )


def _nothing_used(evidence: Evidence, update: Update) -> Iterator[RuleResult]:
    weight_T = update.table.columns["weight"]
    yield Checked(1)
    if (weight_T != 0).any() and len(evidence.updates) == 1:
        yield Finding(
            f"nothing was trained, though {int((weight_T != 0).sum())} tokens have a weight",
            _place(evidence, update),
        )


# ------------------------------------------------------------------------------------------------ old logprobs


def _old_is_old(evidence: Evidence) -> Iterator[RuleResult]:
    """What ratios are taken against stays what it was at the step's beginning, and is the trainer's own."""
    updates = evidence.updates
    seen_T: np.ndarray | None = None
    for update in updates:
        columns = update.table.columns
        old_T = columns["old_logp"]
        used_T = columns["used"]
        if seen_T is not None:
            yield from at_first(
                ~np.isnan(seen_T) & ~np.isnan(old_T) & (seen_T != old_T),
                lambda t: (
                    f"old_logp is {old_T[t]:.6g}, and was {seen_T[t]:.6g} in an earlier update of the same step"
                ),
                partial(_place, evidence, update),
            )
            old_T = np.where(np.isnan(old_T), seen_T, old_T)
        seen_T = old_T
        at = np.flatnonzero(used_T & ~np.isnan(columns["rollout_logp"]))
        old = columns["old_logp"][at]
        new = columns["new_logp"][at]
        rollout = columns["rollout_logp"][at]
        if len(at) >= 32 and (old == rollout).all() and not (new == old).all():
            yield Finding(
                "old_logp is the sampler's own logprob at every token: its rounding, temperature and top-p "
                "look like a change of the policy",
                _place(evidence, update, int(at[0])),
                NOTE,
                len(at),
            )
    yield from _old_is_not_new(evidence)


def _old_is_not_new(evidence: Evidence) -> Iterator[RuleResult]:
    """Once the weights have moved, old and current logprobs differ somewhere."""
    first, *others = evidence.updates or (None,)
    later = [update for update in others if update.skipped is None]
    if not later or first.skipped is not None:
        return
    reported = dict(evidence.means or {}) | dict(first.metrics)
    if reported.get("lr") is None or reported.get("grad_norm") is None:
        yield NotChecked(
            "the learning rate and the gradient's norm (whether the first update moved the weights)",
            OLD_FROM_NEW,
        )
        return
    columns = first.table.columns
    taught = (columns["used"] & (columns["weight"] != 0) & (columns["advantage"] != 0)).any()
    if reported["lr"] < VISIBLE or reported["grad_norm"] < SLOPE or not taught:
        yield NotChecked("a first update that visibly moves the weights", OLD_FROM_NEW)
        return
    columns = later[-1].table.columns
    at = np.flatnonzero(columns["used"] & (columns["weight"] != 0))
    if len(at) and (columns["old_logp"][at] == columns["new_logp"][at]).all():
        yield Finding(
            "old_logp is the current one at every token, though earlier updates of this step moved the "
            "weights: no ratio is ever off 1 and nothing can be clipped",
            _place(evidence, later[-1], int(at[0])),
            count=len(at),
        )


def _on_policy(evidence: Evidence, update: Update, own: ExpectedUpdate) -> Iterator[RuleResult]:
    """At a step's first update the weights are those that old_logp is of."""
    columns = update.table.columns
    change_U = np.abs(
        columns["new_logp"][own.used_U].astype(np.float64) - columns["old_logp"][own.used_U]
    )
    change = change_U[np.isfinite(change_U)]
    bound = FIRST if evidence.precision == "fp32" else FIRST_BF16
    if len(change) and change.mean() > bound:
        worst = int(own.used_U[np.nanargmax(change_U)])
        yield Finding(
            f"mean |new_logp - old_logp| is {change.mean():.3g} nats in the step's first update, before "
            f"anything was moved; rounding stays below {bound:g}",
            _place(evidence, update, worst),
            count=len(change),
        )


# ------------------------------------------------------------------------------------------------ tokens and figures


def _tokens(evidence: Evidence, update: Update, own: ExpectedUpdate) -> Iterator[RuleResult]:
    columns = update.table.columns
    used_U = own.used_U
    ratio_U = columns["ratio"][used_U].astype(np.float64)
    state_U = columns["clip_state"][used_U]
    advantage_U, new_U, entropy_U = (
        columns[name][used_U] for name in ("advantage", "new_logp", "entropy")
    )

    def here(u: int) -> Place:
        return _place(evidence, update, int(used_U[u]))

    if update.skipped is None:
        wrong_U = ~(np.abs(ratio_U - own.ratio_U) <= NEAR * (1 + own.ratio_U))
        yield from at_first(
            wrong_U,
            lambda u: (
                f"ratio {ratio_U[u]:.6g}, but new_logp - old_logp makes it {own.ratio_U[u]:.6g}"
            ),
            here,
        )
        if not wrong_U.any():
            yield from at_first(
                (state_U != own.state_U) & ~own.at_edge_U,
                lambda u: (
                    f"clip state {int(state_U[u])} at ratio {ratio_U[u]:.6g} and advantage {advantage_U[u]:.3g}; the bounds "
                    f"make it {int(own.state_U[u])}"
                ),
                here,
            )
    yield from at_first(
        new_U > 1e-4, lambda u: f"new_logp {new_U[u]:.6g} is no logarithm of a probability", here
    )
    yield from at_first(
        entropy_U < -1e-3, lambda u: f"entropy {entropy_U[u]:.6g} is negative", here
    )


def _figures(evidence: Evidence, update: Update, own: ExpectedUpdate) -> Iterator[RuleResult]:
    """Every figure that the metrics and the columns share."""
    metrics = update.metrics
    if not metrics:
        yield NotChecked(
            "the metrics of each update (of several, a run keeps their means)", "figures"
        )
        return
    missing = [name for name in own.figures if name not in metrics and name not in OPTIONAL]
    if missing:
        yield Finding(
            f"the update does not say its {', '.join(missing)}", _place(evidence, update), NOTE
        )
    for name, figure in own.figures.items():
        reported = metrics.get(name)
        if reported is None:
            continue
        if not abs(float(reported) - figure.value) <= NEAR * figure.size + 1e-9:
            yield Finding(
                f"{name} is reported as {float(reported):.7g}, the columns make it {figure.value:.7g}"
                + _divided_by(evidence, update, own, name, float(reported)),
                _place(evidence, update),
            )
    if metrics.get("grad_norm") == 0.0 and (count := own.teaches(update.table.columns)):
        yield Finding(
            f"the gradient is exactly zero, though {count} tokens have credit and no bound holds them",
            _place(evidence, update),
        )


OPTIONAL = (
    "value_loss",
    "value_clip_fraction",
    "kl_ref",
    "sampler_weight",
    "kl_loss",
    "entropy_loss",
    "clip_fraction_dual",
    "stale_share",
)


def _divided_by(
    evidence: Evidence, update: Update, own: ExpectedUpdate, name: str, reported: float
) -> str:
    """Name what a wrong loss seems to have been divided by."""
    figure = own.figures["loss"]
    columns = update.table.columns
    recipe = evidence.plain_recipe.recipe
    if name != "loss" or not reported or not math.isfinite(reported) or not figure.value:
        return ""
    counts = columns["used"] & (columns["weight"] != 0)
    tokens = int(counts.sum())
    rows = len(np.unique(columns["trajectory"][counts]))
    due = tokens if recipe.reduction == "token-mean" else rows * (recipe.fixed_length or 1)
    known = {
        "the tokens of the whole batch": len(counts),
        "the tokens that count": tokens,
        "the trajectories": rows,
        "nothing": 1,
    }
    by = due * figure.value / reported
    for what, count in known.items():
        if count and abs(by - count) <= 1e-4 * count:
            return f"; as if it were divided by {count} ({what}) instead of {due:g}"
    return f"; that is {reported / figure.value:.6g} times as much"


RULES: tuple[Rule, ...] = (
    Rule(
        "R18",
        "an update is what its table says",
        means="the loss that was minimised is not the one that the settings name: another denominator scales the learning "
        "rate with padding or batch size, a dropped term has no effect, a stale ratio is clipped for no reason.",
        mend="sum weight x term over the tokens of the whole update and divide once, by what algorithm.reduction names; "
        "take old_logp at the step's beginning, from the trainer; write down what was used, not what was meant.",
        needs=("updates",),
        check=_check,
        when="update",
        threads=("SkyRL#462", "SkyRL#1353", "NeMo-RL#3792", "trl#5231", "trl#5775"),
    ),
)
