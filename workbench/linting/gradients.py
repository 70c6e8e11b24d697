"""The learner's gradient beside that of the reference implementation (R19): the last place where a mask, a shift or a denominator can
go wrong.

Everything before it may be right, and the update still not be what credit says: a term under `no_grad` has its value
and no gradient, padding is counted, packed sequences see each other, the last token is dropped. Two questions are
asked, on a few groups of the step:

    moved        old logprobs, reference, values and credit are moved away from where they stand at a step's first
                 update, each token on its own, so that every bound holds some and frees some; coefficients are raised,
                 so that no term hides behind a larger one; each term has tokens of its own; several micro-batches
    as trained   the very algorithm and credit, in one micro-batch

Where an objective brings no reference implementation, only the way from its own loss to the gradient is compared; what holds of any
objective is in objective.py.

Axis letters: T tokens of the batch (flat) · N trajectories.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, Credit
from workbench.learn.algorithms.plain_recipe import plain_recipe
from workbench.learn.algorithms.settings import setting_of
from workbench.learn.batch import Batch
from workbench.linting.evidence import Evidence
from workbench.linting.expected import credits_of, own_objective
from workbench.linting.frozen import Gradient, handed_otherwise, names_of, norm, squares
from workbench.linting.objective import holds_of_any
from workbench.linting.plain_trajectories import TrajectoryTable, trajectory_tokens_of_batch
from workbench.linting.questions import (
    GradientQuestion,
    few_groups,
    moved_question,
    off_the_kink,
    plain_facts,
    rows_with,
    scored_T,
    without_facts,
)
from workbench.linting.rule import WORDS, Rule, RuleResult
from workbench.values.errors import DataError

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

# Relative to the norm of a parameter's gradient. Rounding, measured on the three shipped policies and on small random
# models: up to 3e-6 in float32; 2.5e-2 where the forward pass has 8 bits. A bug is a part of the gradient.
BOUND = 3e-4
BOUND_BF16 = 0.15
FLOOR = 1e-2  # of the whole gradient's norm: below it a parameter's own norm says nothing of its rounding
# Mean difference of facts; measured 1e-6 and 1e-2.
NATS = 1e-3
NATS_BF16 = 0.1
LOUD = 1e4  # times the credit: then any bound on the gradient's norm binds
NOT_FINITE = (
    "a finite gradient: by the definition of this loss it is not finite at the ratios and advantages that "
    "are tried here, and a learner leaves such an update out"
)
GIVE_CREDIT = {
    "estimator",
    "masks",
    "rewards",
    "filter",
}  # of an algorithm: here credit is taken as it is given
GRADIENT = "the learner's gradient"
OWN_WEIGHTS = "the gradient through this policy's own weights"
OWN_BOUND = 0.05  # of a gradient's norm; measured below 0.002 in float32
TRIED = 6  # trajectories that are asked about one by one where the gradient is off


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    probe = evidence.probe
    algorithm = evidence.algorithm
    missing = [part for part in evidence.plain_recipe.missing if part not in GIVE_CREDIT]
    if missing:
        yield NotChecked(
            f"a reference implementation of the {', '.join(missing)} of {algorithm.name}", GRADIENT
        )
    yield from holds_of_any(algorithm, "objective" not in missing)
    if probe is None or probe.unable:
        yield NotChecked(WORDS["probe"] if probe is None else probe.unable, GRADIENT)
        return
    if probe.stood_for:
        yield from _through_own_weights(probe, Place(step=evidence.step))
    chosen = few_groups(evidence.batch, probe.tokens)
    if not len(chosen):
        yield NotChecked("a scored trajectory with sampled tokens", GRADIENT)
        return
    batch = evidence.batch.select(chosen)
    batch = replace(batch, token_ids_T=probe.known(batch.token_ids_T))
    trajectories = trajectory_tokens_of_batch(batch, evidence.step, chosen.numpy())
    plain = plain_facts(probe, trajectories)
    yield from _fact_differences(probe, algorithm, batch, plain, trajectories)
    questions = [moved_question(algorithm, batch, plain)]
    try:
        questions += _as_trained(probe, algorithm, batch)
    except DataError as error:
        yield NotChecked(f"credit for these few groups ({error})", "the gradient as trained")
    for question in questions if set(missing) <= {"objective"} else ():
        yield from _compare(probe, question, trajectories)
    yield from _one_step(probe, questions[0], Place(step=evidence.step))
    yield from _passes(probe, algorithm, questions[0])


def _through_own_weights(probe: LearnerProbe, where: Place) -> Iterator[RuleResult]:
    """One matrix of a policy that a stand-in answers for otherwise."""
    asked = probe.own_gradient()
    if asked is None:
        yield NotChecked(probe.stood_for, OWN_WEIGHTS)
        return
    name, gap = asked
    yield Checked(1, OWN_WEIGHTS)
    if not gap <= OWN_BOUND:
        yield Finding(
            f"along the gradient of {name} the log-probabilities of a short sequence do not change as the gradient says: off by "
            f"{gap:.2g} of it, rounding by less than {OWN_BOUND:g}. What computes this policy's layers (kernels, weights in "
            "few bits) has another gradient than it has values",
            where,
        )


def _as_trained(
    probe: LearnerProbe, algorithm: Algorithm, batch: Batch
) -> Iterator[GradientQuestion]:
    """The very algorithm and credit, where they train anything. Raises DataError where there is no credit."""
    known = probe.facts(algorithm, without_facts(batch))
    credit = algorithm.credit(known)
    # In 8 bits a ratio of one is off by more than narrow bounds allow: which tokens they hold is then chance.
    narrow = setting_of(algorithm, "objective.clip_high", 1.0) < NATS_BF16
    bounds_are_chance = probe.bf16 and known.old_logp_T is not None and narrow
    if bool(credit.trained_T.any()) and not bounds_are_chance:
        yield GradientQuestion(
            "as trained", algorithm, off_the_kink(known), credit, 10 * batch.num_tokens
        )


# ------------------------------------------------------------------------------------------------ the facts


def _fact_differences(
    probe: LearnerProbe,
    algorithm: Algorithm,
    batch: Batch,
    plain: Mapping[str, Tensor],
    trajectories: TrajectoryTable,
) -> Iterator[RuleResult]:
    """What the learner says of tokens before credit is given: logprobs, the reference's, values."""
    asked_T = scored_T(batch)
    bare = without_facts(batch)
    learner_facts = {"old_logp_T": probe.logprobs(bare, asked_T)}
    known = probe.facts(algorithm, bare)
    learner_facts |= {name: getattr(known, name) for name in algorithm.requires if name in plain}
    most = NATS_BF16 if probe.bf16 else NATS
    for name, values in learner_facts.items():
        of_rows = name == "final_value_N"
        wanted = rows_with(batch, asked_T) & batch.truncated_N if of_rows else asked_T
        at = wanted.nonzero()[:, 0]
        if not len(at):
            continue
        yield Checked(len(at), "facts of the models")
        gap = (values[at].double() - plain[name][at].double()).abs()
        if _is_rounding(gap, most):
            continue
        worst = int(at[int(gap.nan_to_num(math.inf).argmax())])
        yield Finding(
            f"{name[:-2]} is {float(values[worst]):.4g} as the learner computes it and "
            f"{float(plain[name][worst]):.4g} by a forward pass over this sequence alone (largest of "
            f"{len(at)} differences, {float(gap.nanmean()):.2g} on average; rounding stays below {most:g})",
            trajectories.place_of_row(worst) if of_rows else trajectories.place(worst),
            count=int((gap.nan_to_num(math.inf) > most).sum()),
        )


def _is_rounding(gap: Tensor, most: float) -> bool:
    if bool(gap.isnan().any()):
        return False
    return float(gap.mean()) <= most and float(gap.max()) <= 20 * most


# ------------------------------------------------------------------------------------------------ the gradient


def _both_gradients(probe: LearnerProbe, question: GradientQuestion) -> tuple[Gradient, Gradient]:
    """(the learner's gradient, the plain one)."""
    trajectories = trajectory_tokens_of_batch(question.batch)
    recipe = plain_recipe(question.algorithm).recipe
    if (
        not question.has_plain_form
    ):  # what it makes of entropy and of the reference is its own matter, too
        question = question.weighted(terms=set(TERMS) - ({"entropy", "kl"} & set(question.terms)))
        recipe = replace(
            recipe,
            objective=own_objective(question.algorithm),
            bounds={},
            entropy_coef=0.0,
            kl_coef=0.0,
        )
    known = {
        name: getattr(question.batch, f"{name}_T")
        for name in ("old_logp", "ref_logp", "value", "rollout_logp")
    }
    facts = {
        name: values_T.double().numpy() for name, values_T in known.items() if values_T is not None
    }
    plain = probe.plain(
        recipe, trajectories.with_facts(facts), credits_of(trajectories, question.credit, recipe)
    )
    return probe.learner(
        question.algorithm, question.batch, question.credit, question.micro_batch_tokens
    ), plain


def _compare(
    probe: LearnerProbe, question: GradientQuestion, trajectories: TrajectoryTable
) -> Iterator[RuleResult]:
    learner, plain = _both_gradients(probe, question)
    if not _is_finite(plain):
        yield Finding(f"{question.what}: {NOT_FINITE}", Place(step=trajectories.step), NOTE)
        return
    yield Checked(len(plain.by_name), GRADIENT)
    if (off := _what_is_off(probe, question, learner, plain)) is None:
        return

    def is_off(part: GradientQuestion) -> bool:
        return (
            bool((part.credit.trained_T).any())
            and _what_is_off(probe, part, *_both_gradients(probe, part)) is not None
        )

    terms = [term for term in question.terms if is_off(question.weighted(terms=[term]))]
    by_term = (
        f" Of the {_listed(terms)} term by itself it is off, too."
        if terms
        else " Of each term by itself it is not: it is how they are put together."
    )
    row_T = question.batch.trajectory_of_token_T
    rows = row_T[question.credit.trained_T].unique().tolist()[:TRIED]
    where = next(
        (trajectories.place_of_row(n) for n in rows if is_off(question.weighted(row_T == n))),
        Place(step=trajectories.step),
    )
    yield Finding(f"{question.what}: {off}{by_term}", where)


def _what_is_off(
    probe: LearnerProbe, question: GradientQuestion, learner: Gradient, plain: Gradient
) -> str | None:
    """`difference`, where nothing but rounding is left of trajectories with the same tokens and opposite advantages, too."""
    bound = BOUND_BF16 if probe.bf16 else BOUND
    if difference(learner, plain, bound) is None:
        return None
    unsigned = replace(question.credit, advantage_T=question.credit.advantage_T.abs())
    return difference(
        learner, plain, bound, _both_gradients(probe, replace(question, credit=unsigned))[1]
    )


def difference(
    learner: Gradient, plain: Gradient, bound: float, unsigned: Gradient | None = None
) -> str | None:
    """Say what is wrong with the learner's gradient; None: nothing. `unsigned`: the gradient by which rounding is
    measured where advantages cancel."""
    if learner.by_name.keys() != plain.by_name.keys():
        strange = sorted(learner.by_name.keys() ^ plain.by_name.keys())
        return f"the learner trains other parameters than the model has: {', '.join(strange[:3])}"
    relative, name = _worst_parameter(learner, plain, unsigned or plain)
    loss_off = not abs(learner.loss - plain.loss) <= bound * (1 + abs(plain.loss))
    if relative <= bound:
        if not loss_off:
            return None
        return (
            f"the learner back-propagates a loss of {learner.loss:.6g}, and by the definition it is "
            f"{plain.loss:.6g}"
        )
    mine = _flat(learner, name.startswith("critic."))
    theirs = _flat(plain, name.startswith("critic."))
    norms = float(mine.norm()), float(theirs.norm())
    cosine = float(mine @ theirs) / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
    return (
        f"the gradient of {name} is off by {relative:.2g} of its norm, rounding by less than {bound:g}; all "
        f"together: norm {norms[0]:.4g} instead of {norms[1]:.4g}, cosine {cosine:.4f}, loss {learner.loss:.6g} "
        f"instead of {plain.loss:.6g}{_likely_reason(cosine, loss_off)}."
    )


def _worst_parameter(learner: Gradient, plain: Gradient, unsigned: Gradient) -> tuple[float, str]:
    """(how far off the gradient of a parameter is, by its norm; the parameter), where that is most. The critic's weights
    are looked at apart: their gradients are on another scale."""
    worst = (0.0, "")
    for critic in (False, True):
        names = names_of(plain.by_name, critic)
        whole = max(norm(side.by_name, names) for side in (plain, unsigned))
        for name in names:
            gap = math.sqrt(squares(learner.by_name[name] - plain.by_name[name]))
            own = max(norm(plain.by_name, [name]), FLOOR * whole)
            worst = max(worst, (_relative(gap, own), name))
    return worst


def _relative(gap: float, size: float) -> float:
    """A gap by the size of what it is in; infinite where that is not known."""
    if size > 0:
        return math.inf if math.isnan(gap / size) else gap / size
    return math.inf if gap > 1e-9 else 0.0


def _likely_reason(cosine: float, loss_off: bool) -> str:
    if cosine > 0.9999:
        return " (only its length: a denominator or a coefficient)"
    if cosine < -0.99:
        return " (it points the other way: a sign)"
    if not loss_off:
        return " (the loss is right: a part of it has no gradient, or another one)"
    return ""


def _is_finite(gradient: Gradient) -> bool:
    return math.isfinite(gradient.loss) and all(
        bool(g.isfinite().all()) for g in gradient.by_name.values()
    )


def _flat(gradient: Gradient, critic: bool) -> Tensor:
    names = sorted(names_of(gradient.by_name, critic))
    return torch.cat([gradient.by_name[name].double().reshape(-1) for name in names])


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ------------------------------------------------------------------------------------------------ what is done with it


def _one_step(
    probe: LearnerProbe, question: GradientQuestion, where: Place
) -> Iterator[RuleResult]:
    """One update hands the optimizer its gradient, scaled down where it is too long, and moves each weight as the
    optimizer's definition says."""
    two = question.weighted(question.batch.trajectory_of_token_T < 2)
    loud = _loudest_credit(probe, two)
    if loud is None:
        yield NotChecked(NOT_FINITE, "the optimizer's step")
        return
    updates = probe.moved(two.algorithm, two.batch, loud)
    yield Checked(len(updates[0].plain), "the optimizer's step")
    if not updates[0].shared:
        yield NotChecked(
            "the same gradient in every process: they were handed different ones (R32 says more)",
            "the optimizer's step",
        )
        return
    for critic in (False, True):
        if (wrong := handed_otherwise(updates[0].handed, updates[0].due, critic)) is not None:
            yield Finding(wrong, where)
            return
    for number, update in enumerate(updates, start=1):
        for name, weight in update.plain.items():
            gap = float((weight - update.learner[name]).abs().max())
            lr = probe.learning_rate(name)
            # Steps are of the size of the learning rate; float32 keeps 7 digits of the weight that they are added to.
            if gap <= max(1e-2 * lr, 4e-7 * float(weight.abs().max())):
                continue
            yield Finding(
                f"one update leaves {name} {gap:.2g} away from where AdamW takes it with this gradient, this learning "
                f"rate ({lr:.2g}) and these settings"
                if number == 1
                else f"update {number} leaves {name} {gap:.2g} away from where AdamW takes it with the gradients so far: "
                "learner.betas, or what the optimizer remembers of earlier updates, is not what the settings say",
                where,
            )
            return


def _loudest_credit(probe: LearnerProbe, question: GradientQuestion) -> Credit | None:
    """So much credit that no bound on the gradient's norm is above it; less where a loss of yours cannot take as much."""
    advantage_T = question.credit.advantage_T
    for loud in (LOUD, 1.0, 1 / LOUD):
        credits = [replace(question.credit, advantage_T=by * advantage_T) for by in (loud, -loud)]
        gradients = (probe.learner(question.algorithm, question.batch, c) for c in credits)
        if all(map(_is_finite, gradients)):
            return credits[0]
    return None


def _passes(
    probe: LearnerProbe, algorithm: Algorithm, question: GradientQuestion
) -> Iterator[RuleResult]:
    """Every pass trains every token once, a trajectory's together, in as many updates as were asked for."""
    credit = question.credit
    batch = question.batch
    updates = probe.updates(algorithm, batch, credit)
    rows = int(rows_with(batch, credit.trained_T).sum())
    count = min(
        algorithm.minibatches if credit.minibatches is None else credit.minibatches, max(rows, 1)
    )
    yield Checked(len(updates), "passes over a step")
    if len(updates) != algorithm.epochs * count:
        yield Finding(
            f"a step makes {len(updates)} updates, and algorithm.epochs x updates of a pass are "
            f"{algorithm.epochs} x {count}"
        )
        return
    times_ET = torch.stack(updates).reshape(algorithm.epochs, count, -1).sum(1)
    for epoch, times_T in enumerate(times_ET):
        wrong = (times_T != credit.trained_T).nonzero()[:, 0]
        if len(wrong):
            t = int(wrong[0])
            yield Finding(
                f"pass {epoch} trains {len(wrong)} tokens more or less often than once, the first of them "
                f"{int(times_T[t])} times",
                Place(batch.names_N[int(batch.trajectory_of_token_T[t])]),
                count=len(wrong),
            )
            return


RULES: tuple[Rule, ...] = (
    Rule(
        "R19",
        "the learner's gradient is the one of the definition",
        means="The weights move in another direction, or another distance, than credit and loss say. Curves stay "
        "plausible: part of the gradient is still right.",
        mend="Look at how the learner gets from tokens to this term: the shift by one, what it is masked with and "
        "divided by, whether it is computed with gradients, which sequences can see each other. Where the loss itself "
        "is named, look at the objective: what is minimised is -A log pi.",
        needs=("batch", "algorithm"),
        check=_check,
        when="start",
        threads=("SkyRL#1353", "unsloth#5673", "SkyRL#462", "trl#4974", "verl#7278"),
    ),
)
