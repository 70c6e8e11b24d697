"""The learner's gradient beside that of the plain twin (R19): the last place where a mask, a shift or a denominator can
go wrong.

Everything before it may be right, and the update still not be what credit says: a term under `no_grad` has its value
and no gradient, padding is counted, packed sequences see each other, the last token is dropped. Two questions are
asked, on a few groups of the step:

    moved        old logprobs, reference, values and credit are moved away from where they stand at a step's first
                 update, each token on its own, so that every bound holds some and frees some; coefficients are raised,
                 so that no term hides behind a larger one; each term has tokens of its own; several micro-batches
    as trained   the very algorithm and credit, in one micro-batch

Where an objective brings no twin, only the way from its own loss to the gradient is compared; what holds of any
objective is in objective.py.

Axis letters: T tokens of the batch (flat) · N trajectories.
"""
from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import TERMS, Credit, needs_critic
from workbench.learn.algorithms.twin import plain_recipe
from workbench.learn.batch import Batch
from workbench.linting.attempts import Attempts, attempts_of_batch
from workbench.linting.evidence import Evidence, Gradient
from workbench.linting.objective import holds_of_any
from workbench.linting.rule import WORDS, Rule, RuleResult
from workbench.linting.twin import credits_of, is_by_token, own_objective
from workbench.plain.rewards import AttemptTokens
from workbench.types.errors import ConfigError, DataError
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.types.seeds import rng_at

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

# Relative to the norm of a parameter's gradient. Rounding, measured on the three shipped policies and on small random
# models: up to 3e-6 in float32; 2.5e-2 where the forward pass has 8 bits. A bug is a part of the gradient.
BOUND, BOUND_BF16 = 3e-4, 0.15
FLOOR = 1e-2              # of the whole gradient's norm: below it a parameter's own norm says nothing of its rounding
NATS, NATS_BF16 = 1e-3, 0.1  # mean difference of facts; measured 1e-6 and 1e-2
RAISED = 0.3              # coefficients that are set are raised to this
BOUNDS = {"clip_low": 0.15, "clip_high": 0.3}  # different ones, so that one cannot stand in for the other
PARTS = 4                 # micro-batches, about
LOUD = 1e4                # times the credit: then any bound on the gradient's norm binds
NOT_FINITE = ("a finite gradient: by the definition of this loss it is not finite at the ratios and advantages that "
              "are tried here, and a learner leaves such an update out")
GIVE_CREDIT = {"estimator", "masks", "rewards", "filter"}  # of an algorithm: here credit is taken as it is given
TRIED = 6                 # trajectories that are asked about one by one where the gradient is off


@dataclass(frozen=True, eq=False)
class _Trial:
    """What both sides are asked about."""

    what: str
    algorithm: Algorithm
    batch: Batch
    credit: Credit
    micro_batch_tokens: int

    @cached_property
    def has_twin(self) -> bool:
        return "objective" not in plain_recipe(self.algorithm).missing

    @cached_property
    def terms(self) -> list[str]:
        """Of the loss, those that the algorithm has."""
        algorithm = self.algorithm
        has = {"policy": True, "critic": needs_critic(algorithm),
               "entropy": bool(getattr(algorithm, "entropy_coef", 0)),
               "kl": bool(getattr(algorithm, "kl_coef", 0)) and getattr(algorithm, "kl_in", "") == "loss"}
        return [term for term in TERMS if has[term]]

    def weighted(self, factor_T: Tensor | float = 1.0, terms: Collection[str] = TERMS) -> _Trial:
        """The same with weights that are multiplied, and with these terms alone."""
        weights = {name: self.credit.weights_of(name) * (name in terms) * factor_T for name in TERMS}
        return replace(self, credit=replace(
            self.credit, weight_T=weights["policy"], entropy_weight_T=weights["entropy"], kl_weight_T=weights["kl"],
            critic_weight_T=weights["critic"]))


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    probe, algorithm, missing = evidence.probe, evidence.algorithm, set(evidence.twin.missing)
    if missing:
        yield NotChecked(f"a plain twin of the {', '.join(evidence.twin.missing)} of {algorithm.name}",
                         decides=bool(missing - GIVE_CREDIT))
    yield from holds_of_any(algorithm, "objective" not in missing)
    if probe is None or probe.unable:
        yield NotChecked(WORDS["probe"] if probe is None else probe.unable, decides=True)
        return
    chosen = few_groups(evidence.batch, probe.tokens)
    if not len(chosen):
        yield NotChecked("a scored attempt with sampled tokens", decides=True)
        return
    batch = evidence.batch.select(chosen)
    place = _Places(evidence, attempts_of_batch(batch), chosen)
    plain = plain_facts(probe, place.attempts)
    yield from _facts(probe, algorithm, batch, plain, place)
    trials = [moved_trial(algorithm, batch, plain)]
    try:
        known = probe.facts(algorithm, _bare(batch))
        credit = algorithm.credit(known)
    except DataError as error:
        yield NotChecked(f"credit for these few groups ({error})")
    else:
        # In 8 bits a ratio of one is off by more than narrow bounds allow: which tokens they hold is then chance.
        told = probe.bf16 and known.old_logp_T is not None and getattr(algorithm, "clip_high", 1.0) < NATS_BF16
        if bool(credit.trained_T.any()) and not told:
            trials.append(_Trial("as trained", algorithm, _off_the_kink(known), credit, 10 * batch.num_tokens))
    for trial in trials if not missing - GIVE_CREDIT - {"objective"} else ():
        yield from _compare(probe, trial, place)
    yield from _one_step(probe, trials[0], place)
    yield from _passes(probe, algorithm, trials[0])


@dataclass(frozen=True, eq=False)
class _Places:
    """Where trajectories and tokens of the few are in the whole step."""

    evidence: Evidence
    attempts: Attempts
    chosen: Tensor

    def trajectory(self, n: int) -> Place:
        return replace(self.attempts.place_of_row(n), index=int(self.chosen[n]))

    def token(self, t: int) -> Place:
        place = self.attempts.place(t)
        return replace(place, index=int(self.chosen[place.index]))


def plain_facts(probe: LearnerProbe, attempts: Attempts) -> dict[str, Tensor]:
    """By the names of the batch's fields: what a plain pass says of every token."""
    known: list[AttemptTokens] = probe.plain_facts(attempts.each)
    found = {f"{name}_T": torch.from_numpy(np.concatenate([getattr(each, name) for each in known])).float()
             for name in ("old_logp", "ref_logp", "value") if getattr(known[0], name) is not None}
    return found | {"final_value_N": torch.tensor([each.final_value for each in known])}


def _bare(batch: Batch) -> Batch:
    """Without what models said of it."""
    return replace(batch, old_logp_T=None, ref_logp_T=None, value_T=None, final_value_N=None)


def few_groups(batch: Batch, tokens: int) -> Tensor:
    """Trajectories [some of N] of whole groups, as many as have about so many tokens; of a first group that is longer
    than that, its first attempts."""
    length_N = torch.zeros(batch.num_trajectories, dtype=torch.int64).index_add(
        0, batch.trajectory_of_segment_S, batch.segment_offsets.diff())
    sampled_N = torch.zeros(batch.num_trajectories, dtype=torch.bool).index_fill(
        0, batch.trajectory_of_token_T[batch.eligible_T], True) & batch.scored_N
    chosen: list[int] = []
    total = 0
    for group in batch.group_of_trajectory_N.unique().tolist():
        members = (batch.group_of_trajectory_N == group).nonzero()[:, 0]
        if not bool(sampled_N[members].any()):
            continue
        for n in sorted(members.tolist(), key=lambda n: not bool(sampled_N[n])):
            if total + int(length_N[n]) > tokens and len(chosen) >= 2:
                return torch.tensor(sorted(chosen), dtype=torch.int64)
            chosen.append(n)
            total += int(length_N[n])
    return torch.tensor(sorted(chosen), dtype=torch.int64)


# ------------------------------------------------------------------------------------------------ the facts


def _facts(probe: LearnerProbe, algorithm: Algorithm, batch: Batch, plain: Mapping[str, Tensor],
           place: _Places) -> Iterator[RuleResult]:
    """What the learner says of tokens before credit is given: logprobs, the reference's, values."""
    asked_T = batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]
    bare = _bare(batch)
    said = {"old_logp_T": probe.logprobs(bare, asked_T)}
    known = probe.facts(algorithm, bare)
    said |= {name: getattr(known, name) for name in algorithm.requires if name in plain}
    most = NATS_BF16 if probe.bf16 else NATS
    for name, values in said.items():
        at = asked_T.nonzero()[:, 0]
        if name == "final_value_N":
            acted_N = torch.zeros(batch.num_trajectories, dtype=torch.bool).index_fill(
                0, batch.trajectory_of_token_T[asked_T], True)
            at = (acted_N & batch.truncated_N).nonzero()[:, 0]
        if not len(at):
            continue
        yield Checked(len(at))
        gap = (values[at].double() - plain[name][at].double()).abs()
        if not bool(gap.isnan().any()) and float(gap.mean()) <= most and float(gap.max()) <= 20 * most:
            continue
        worst = int(gap.nan_to_num(math.inf).argmax())
        where = place.trajectory(int(at[worst])) if name.endswith("_N") else place.token(int(at[worst]))
        yield Finding(f"{name[:-2]} is {float(values[at[worst]]):.4g} as the learner computes it and "
                      f"{float(plain[name][at[worst]]):.4g} by a forward pass over this sequence alone (largest of "
                      f"{len(at)} differences, {float(gap.nanmean()):.2g} on average; rounding stays below {most:g})",
                      where, count=int((gap.nan_to_num(math.inf) > most).sum()))


# ------------------------------------------------------------------------------------------------ the gradient


def moved_trial(algorithm: Algorithm, batch: Batch, plain: Mapping[str, Tensor]) -> _Trial:
    """Facts and credit at which every bound holds some tokens and frees others, whatever the weights are."""
    algorithm = raised(algorithm)
    rng = rng_at("lint.gradients")
    draw = lambda choices: torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()  # noqa: E731
    logp_T = plain["old_logp_T"]
    old_T = logp_T - _moves(algorithm, batch, rng)
    asked_T = batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]
    rollout_T = torch.where(asked_T, old_T - draw([-0.7, 0.1, 0.9, 1.9]), torch.nan)
    facts = {"old_logp_T": old_T, "ref_logp_T": plain["ref_logp_T"] + draw([-0.6, -0.2, 0.3, 0.5]),
             "rollout_logp_T": rollout_T}
    parts = {name: asked_T * torch.from_numpy(rng.random(batch.num_tokens) < share).double()
             for name, share in (("weight_T", 0.85), ("entropy_weight_T", 0.7), ("kl_weight_T", 0.75),
                                 ("critic_weight_T", 0.8))}
    # Not zero where the weight is: it is the weight that has to keep a token out.
    advantage_T = asked_T * torch.from_numpy(rng.choice([-1.4, -0.6, 0.5, 1.2], batch.num_tokens))
    return_T = None
    if needs_critic(algorithm):
        clip = getattr(algorithm, "value_clip", 0.5) or 0.5
        facts["value_T"] = plain["value_T"] - clip * draw([-2.0, -0.5, 0.5, 2.0])
        facts["final_value_N"] = torch.zeros(batch.num_trajectories)
        return_T = torch.where(parts["critic_weight_T"] != 0, plain["value_T"].double() + draw([-3.0, -0.7, 0.8, 2.5]),
                               torch.nan)
    else:
        del parts["critic_weight_T"]
    longest = int(batch.segment_offsets.diff().max())
    return _Trial("with every bound in reach", algorithm, replace(batch, **facts),
                  Credit(advantage_T, return_T=return_T, **parts), max(longest, batch.num_tokens // PARTS))


def _off_the_kink(known: Batch) -> Batch:
    """With the reference away from the policy: where both agree, |x| has no gradient, and rounding would choose one."""
    if known.ref_logp_T is None:
        return known
    away = rng_at("lint.gradients.reference").choice([-0.3, 0.2], known.num_tokens)
    return replace(known, ref_logp_T=known.ref_logp_T + torch.from_numpy(away).float())


def raised(algorithm: Algorithm) -> Algorithm:
    """The same with coefficients that nobody can overlook, and with two bounds that differ."""
    if not isinstance(algorithm, Algorithm):
        return algorithm
    changed: dict[str, Any] = {name: RAISED for name in ("entropy_coef", "kl_coef") if getattr(algorithm, name, 0)}
    changed |= {name: value for name, value in BOUNDS.items() if hasattr(algorithm, name)}
    try:
        return algorithm(**changed)
    except ConfigError:  # an algorithm of its own mind about these
        return algorithm


def _moves(algorithm: Algorithm, batch: Batch, rng: np.random.Generator) -> Tensor:
    """How far the policy has moved at each token, in nats [T]: half and twice as far as each bound."""
    below, above = math.log1p(-min(getattr(algorithm, "clip_low", 0.2), 0.8)), math.log1p(
        getattr(algorithm, "clip_high", 0.2))
    choices = [2 * below, below / 2, above / 2, 2 * above]
    if getattr(algorithm, "dual_clip", 0):
        choices.append(1.3 * math.log(algorithm.dual_clip))
    twin = plain_recipe(algorithm)
    if "objective" in twin.missing or is_by_token(twin.recipe.objective):
        return torch.from_numpy(rng.choice(choices, batch.num_tokens)).float()
    # One ratio for a sequence: its tokens move together, up and down around what they have in common.
    common_S = torch.from_numpy(np.resize(choices, batch.num_segments))
    move_T = torch.repeat_interleave(common_S, batch.segment_offsets.diff())
    counted_T = batch.eligible_T & batch.scored_N[batch.trajectory_of_token_T]
    for start, stop in zip(batch.segment_offsets.tolist(), batch.segment_offsets[1:].tolist()):
        at = start + counted_T[start:stop].nonzero()[:, 0]
        even = len(at) // 2 * 2
        move_T[at[:even]] += 0.05 * torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(even // 2)
    return torch.where(counted_T, move_T, 1.0).float()


def _both(probe: LearnerProbe, trial: _Trial) -> tuple[Gradient, Gradient]:
    """(the learner's gradient, the plain one)."""
    attempts, recipe = attempts_of_batch(trial.batch), plain_recipe(trial.algorithm).recipe
    if not trial.has_twin:  # what it makes of entropy and of the reference is its own matter, too
        trial = trial.weighted(terms=set(TERMS) - ({"entropy", "kl"} & set(trial.terms)))
        recipe = replace(recipe, objective=own_objective(trial.algorithm), bounds={}, entropy_coef=0.0, kl_coef=0.0)
    facts = {name: values.double().numpy() for name, values in (
        ("old_logp", trial.batch.old_logp_T), ("ref_logp", trial.batch.ref_logp_T), ("value", trial.batch.value_T),
        ("rollout_logp", trial.batch.rollout_logp_T)) if values is not None}
    plain = probe.plain(recipe, attempts.with_facts(facts), credits_of(attempts, trial.credit, recipe))
    return probe.learner(trial.algorithm, trial.batch, trial.credit, trial.micro_batch_tokens), plain


def _compare(probe: LearnerProbe, trial: _Trial, place: _Places) -> Iterator[RuleResult]:
    learner, plain = _both(probe, trial)
    if not _is_finite(plain):
        yield Finding(f"{trial.what}: {NOT_FINITE}", Place(step=place.evidence.step), NOTE)
        return
    yield Checked(len(plain.by_name))
    bound = BOUND_BF16 if probe.bf16 else BOUND
    off = difference(learner, plain, bound)
    if off is None:
        return

    def is_off(part: _Trial) -> bool:
        return bool((part.credit.trained_T).any()) and difference(*_both(probe, part), bound) is not None

    terms = [term for term in trial.terms if is_off(trial.weighted(terms=[term]))]
    said = f" Of the {_list(terms)} term by itself it is off, too." if terms else \
        " Of each term by itself it is not: it is how they are put together."
    row_T = trial.batch.trajectory_of_token_T
    rows = row_T[trial.credit.trained_T].unique().tolist()[:TRIED]
    where = next((place.trajectory(n) for n in rows if is_off(trial.weighted(row_T == n))),
                 Place(step=place.evidence.step))
    yield Finding(f"{trial.what}: {off}{said}", where)


def difference(learner: Gradient, plain: Gradient, bound: float) -> str | None:
    """What is wrong with the learner's gradient, in words, or None. The critic's weights are looked at apart: their
    gradients are on another scale."""
    if learner.by_name.keys() != plain.by_name.keys():
        strange = sorted(learner.by_name.keys() ^ plain.by_name.keys())
        return f"the learner trains other parameters than the model has: {', '.join(strange[:3])}"
    worst: tuple[float, str] = (0.0, "")
    for critic in (False, True):
        names = [name for name in plain.by_name if name.startswith("critic.") is critic]
        whole = math.sqrt(sum(_squares(plain.by_name[name]) for name in names))
        for name in names:
            gap = math.sqrt(_squares(learner.by_name[name] - plain.by_name[name]))
            own = max(math.sqrt(_squares(plain.by_name[name])), FLOOR * whole)
            relative = gap / own if own > 0 else math.inf if gap > 1e-9 else 0.0
            worst = max(worst, (math.inf if math.isnan(relative) else relative, name))
    loss_off = not abs(learner.loss - plain.loss) <= bound * (1 + abs(plain.loss))
    if worst[0] <= bound and not loss_off:
        return None
    if worst[0] <= bound:
        return (f"the learner back-propagates a loss of {learner.loss:.6g}, and by the definition it is "
                f"{plain.loss:.6g}")
    mine, theirs = (_flat(side, worst[1].startswith("critic.")) for side in (learner, plain))
    norms = float(mine.norm()), float(theirs.norm())
    cosine = float(mine @ theirs) / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
    guess = " (only its length: a denominator or a coefficient)" if cosine > 0.9999 else \
        " (it points the other way: a sign)" if cosine < -0.99 else \
        " (the loss is right: a part of it has no gradient, or another one)" if not loss_off else ""
    return (f"the gradient of {worst[1]} is off by {worst[0]:.2g} of its norm, rounding by less than {bound:g}; all "
            f"together: norm {norms[0]:.4g} instead of {norms[1]:.4g}, cosine {cosine:.4f}, loss {learner.loss:.6g} "
            f"instead of {plain.loss:.6g}{guess}.")


def _is_finite(gradient: Gradient) -> bool:
    return math.isfinite(gradient.loss) and all(bool(g.isfinite().all()) for g in gradient.by_name.values())


def _squares(values: Tensor) -> float:
    return float(values.double().square().sum())


def _flat(gradient: Gradient, critic: bool) -> Tensor:
    return torch.cat([g.double().reshape(-1) for name, g in sorted(gradient.by_name.items())
                      if name.startswith("critic.") is critic])


def _list(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# ------------------------------------------------------------------------------------------------ what is done with it


def _one_step(probe: LearnerProbe, trial: _Trial, place: _Places) -> Iterator[RuleResult]:
    """One update hands the optimizer its gradient, scaled down where it is too long, and moves each weight as the
    optimizer's definition says."""
    two = trial.weighted(trial.batch.trajectory_of_token_T < 2)
    # So much credit that no bound on the gradient's norm is above it; less where a loss of yours cannot take as much.
    for loud in (LOUD, 1.0, 1 / LOUD):
        tried, turned = (replace(two.credit, advantage_T=by * two.credit.advantage_T) for by in (loud, -loud))
        if all(_is_finite(probe.learner(two.algorithm, two.batch, credit)) for credit in (tried, turned)):
            break
    else:
        yield NotChecked(NOT_FINITE)
        return
    updates = probe.moved(two.algorithm, two.batch, tried)
    yield Checked(len(updates[0].plain))
    where = Place(step=place.evidence.step)
    for critic in (False, True):
        if (wrong := _handed(updates[0].handed, updates[0].due, critic)) is not None:
            yield Finding(wrong, where)
            return
    for number, update in enumerate(updates, start=1):
        for name, weight in update.plain.items():
            gap, lr = float((weight - update.learner[name]).abs().max()), probe.learning_rate(name)
            # Steps are of the size of the learning rate; float32 keeps 7 digits of the weight that they are added to.
            if gap <= max(1e-2 * lr, 4e-7 * float(weight.abs().max())):
                continue
            yield Finding(
                f"one update leaves {name} {gap:.2g} away from where AdamW takes it with this gradient, this learning "
                f"rate ({lr:.2g}) and these settings" if number == 1 else
                f"update {number} leaves {name} {gap:.2g} away from where AdamW takes it with the gradients so far: "
                "learner.betas, or what the optimizer remembers of earlier updates, is not what the settings say",
                where)
            return


def _handed(handed: Mapping[str, Tensor], due: Mapping[str, Tensor], critic: bool) -> str | None:
    """What is wrong with the gradient that the policy's or the critic's optimizer was handed, or None."""
    names = [name for name in due if name.startswith("critic.") is critic]
    if not names or not any(float(due[name].abs().max()) for name in names):
        return None
    if lost := [name for name in names if name not in handed]:
        return f"the optimizer has no part in {lost[0]} (and {len(lost) - 1} others), which has a gradient"
    gap = math.sqrt(sum(_squares(handed[name] - due[name]) for name in names))
    norms = [math.sqrt(sum(_squares(side[name]) for name in names)) for side in (handed, due)]
    if gap <= 1e-4 * norms[1]:
        return None
    return (f"the {'critic' if critic else 'policy'}'s optimizer was handed a gradient of norm {norms[0]:.4g}; the one "
            f"of this update, scaled down as learner.max_grad_norm says, has {norms[1]:.4g}")


def _passes(probe: LearnerProbe, algorithm: Algorithm, trial: _Trial) -> Iterator[RuleResult]:
    """Every pass trains every token once, a trajectory's together, in as many updates as were asked for."""
    credit, batch = trial.credit, trial.batch
    updates = probe.updates(algorithm, batch, credit)
    rows = len(batch.trajectory_of_token_T[credit.trained_T].unique())
    count = min(algorithm.minibatches if credit.minibatches is None else credit.minibatches, max(rows, 1))
    yield Checked(len(updates))
    if len(updates) != algorithm.epochs * count:
        yield Finding(f"a step makes {len(updates)} updates, and algorithm.epochs x updates of a pass are "
                      f"{algorithm.epochs} x {count}")
        return
    for epoch in range(algorithm.epochs):
        times_T = torch.stack([used_T.long() for used_T in updates[epoch * count:(epoch + 1) * count]]).sum(0)
        wrong_T = times_T != credit.trained_T.long()
        if bool(wrong_T.any()):
            t = int(wrong_T.nonzero()[0])
            yield Finding(f"pass {epoch} trains {int(wrong_T.sum())} tokens more or less often than once, the first of "
                          f"them {int(times_T[t])} times", Place(batch.names_N[int(batch.trajectory_of_token_T[t])]),
                          count=int(wrong_T.sum()))
            return


RULES: tuple[Rule, ...] = (
    Rule(
        "R19", "the learner's gradient is the one of the definition",
        means="The weights move in another direction, or another distance, than credit and loss say. Curves stay "
              "plausible: part of the gradient is still right.",
        mend="Look at how the learner gets from tokens to this term: the shift by one, what it is masked with and "
             "divided by, whether it is computed with gradients, which sequences can see each other.",
        needs=("batch", "algorithm"), check=_check, when="start",
        threads=("SkyRL#1353", "unsloth#5673", "SkyRL#462", "trl#4974",
                 "verl#7278"),
    ),
)
