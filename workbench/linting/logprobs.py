"""Are the stored logprobs those of the distribution that the settings name, and by the weights that were meant?
(R12 R17 R23)

Axis letters: P sampled spans · T sampled tokens of all spans, end to end.

Three numbers may stand at a sampled token: the logprob under the distribution that was sampled from, the one under the
model's own softmax where temperature or top-p bend it, and the trainer's. Training that takes one for another goes on
without a word. Everything here is taken from the spans and compared with batch, journal, settings and credit tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.basics.tensors import torch
from workbench.linting.bending import WHOLE, against_the_model, drawn_as_said, drawn_from_the_model
from workbench.linting.evidence import Evidence
from workbench.linting.flat import plain_logprobs
from workbench.linting.messages import at_first, unequal
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Sampling, Span

SURE = -1e-3  # a token less likely than this has a logprob that temperature or top-p visibly move
ENOUGH = 16  # so many such tokens before "all of them are the same" means anything
SAME = (
    0.9  # share of equal bits above which one column is a copy of the other; measured are 0 to 0.05
)
ROUNDING = {
    "float32": 1e-3,
    "bfloat16": 0.1,
    "float16": 0.1,
}  # nats between two passes of the same weights
SCRIPTED = (
    "scripted",
    "human",
    "",
)  # engines without a distribution: they say 0 or what they were told to


class _Sampled:
    """Everything that was sampled and is trained: the spans [P], and their tokens end to end [T]. Where the logprob under the model's
    own softmax is not known (`known_T`), `plain_T` has the other one."""

    def __init__(self, evidence: Evidence) -> None:
        flat = evidence.flat
        self.evidence = evidence
        self.at_P = np.flatnonzero(flat.trained_P)
        self.spans = [flat.spans[p] for p in self.at_P]
        self.length_P = flat.length_P[self.at_P]
        self.logp_T = flat.logp_T[flat.trained_T]
        self.known_T = self.tokens_of(lambda span: plain_logprobs(span) is not None)
        self.plain_T = np.where(self.known_T, flat.plain_logp_T[flat.trained_T], self.logp_T)

    def place(self, span: int) -> Place:
        return self.evidence.flat.place_of_span(int(self.at_P[span]), 0)

    def at(self, token: int) -> Place:
        return self.evidence.flat.place(int(np.flatnonzero(self.evidence.flat.trained_T)[token]))

    def tokens_of(self, which: Callable[[Span], bool]) -> np.ndarray:
        """bool [T]: the tokens of these spans."""
        return np.repeat(np.array([which(span) for span in self.spans], bool), self.length_P)

    def finding(
        self, wrong_T: np.ndarray, words: Callable[[int], str], severity: str = ERROR
    ) -> Iterator[Finding]:
        """One finding for all wrong tokens, at the first of them."""
        return at_first(wrong_T, words, self.at, severity)


# ------------------------------------------------------------------------------------------------ R12


def logprob_settings(evidence: Evidence) -> Iterator[RuleResult]:
    sampled = _Sampled(evidence)
    yield Checked(len(sampled.logp_T), "whether logprobs can be logprobs")
    if not sampled.spans:
        return
    yield from _as_declared(evidence, sampled)
    for name, values_T in (("logprob", sampled.logp_T), ("plain logprob", sampled.plain_T)):
        yield from sampled.finding(
            ~(values_T <= 1e-4) | ~np.isfinite(values_T),
            lambda t: (
                f"the {name} of a sampled token is {values_T[t]:g}, which is no log probability"
            ),
        )
    for sampling in dict.fromkeys(span.sampling for span in sampled.spans):
        if sampling is not None and sampling.engine not in SCRIPTED:
            yield from _bent_as_named(sampled, sampling)
    yield from _batch_columns(evidence, sampled)
    if evidence.probe is not None and evidence.probe.not_itself:
        yield NotChecked(
            evidence.probe.not_itself, "tokens compared with the model's own distribution"
        )
    yield from against_the_model(evidence)
    yield from drawn_from_the_model(evidence)


def _as_declared(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """Each span says how it was sampled, and that is how it was to be."""
    unknown = [p for p, span in enumerate(sampled.spans) if span.sampling is None]
    if unknown:
        yield Finding(
            f"{len(unknown)} sampled spans do not say at which temperature and top-p: nobody can tell whose "
            "logprobs these are",
            sampled.place(unknown[0]),
            NOTE,
            len(unknown),
        )
    if evidence.collect is None or evidence.by_program:  # a program may decide (R46)
        yield NotChecked("the sampling settings", "temperature and top-p")
        return
    asked = (evidence.collect.temperature, evidence.collect.top_p)
    other = [
        p
        for p, span in enumerate(sampled.spans)
        if span.sampling is not None and (span.sampling.temperature, span.sampling.top_p) != asked
    ]
    if other:
        sampling = sampled.spans[other[0]].sampling
        yield Finding(
            f"sampled at temperature {sampling.temperature:g} and top-p {sampling.top_p:g}, while the settings say "
            f"{asked[0]:g} and {asked[1]:g}",
            sampled.place(other[0]),
            count=len(other),
        )


def _bent_as_named(sampled: _Sampled, sampling: Sampling) -> Iterator[RuleResult]:
    """Do the two logprobs of a token stand to each other as this temperature and top-p make them stand?"""
    chosen_T = sampled.tokens_of(lambda span: span.sampling == sampling)
    logp_T = sampled.logp_T
    plain_T = sampled.plain_T
    rounding = ROUNDING.get(sampling.dtype, ROUNDING["bfloat16"])
    words = f"temperature {sampling.temperature:g} and top-p {sampling.top_p:g}"
    if not sampling.bends or sampling.temperature == 0:
        yield from sampled.finding(
            chosen_T & (np.abs(logp_T - plain_T) > rounding),
            lambda t: (
                f"{words} leave the distribution as it is, but the token has logprob {logp_T[t]:.4f} and plain logprob "
                f"{plain_T[t]:.4f}"
            ),
        )
        return
    without = [
        p
        for p, span in enumerate(sampled.spans)
        if span.sampling == sampling and plain_logprobs(span) is None
    ]
    if without:
        yield Finding(
            f"sampled at {words} without the plain logprobs: what is stored is not comparable with the "
            "trainer's",
            sampled.place(without[0]),
            count=len(without),
        )
        chosen_T &= sampled.known_T
    if sampling.temperature == 1:  # top-p alone moves a token only where something was cut
        yield from _nucleus(sampled, sampling, chosen_T, rounding)
        return
    telling = chosen_T & (plain_T < SURE) & (logp_T < SURE)
    if telling.sum() >= ENOUGH and (logp_T[telling] == plain_T[telling]).mean() > SAME:
        yield from sampled.finding(
            telling,
            lambda t: (
                f"at temperature {sampling.temperature:g} both logprobs of a token are the same ({logp_T[t]:.4f}) at "
                f"{int(telling.sum())} tokens: one is a copy of the other, so either the temperature was not applied, or "
                "what is stored as the model's own logprob is the modified one"
            ),
        )


def _nucleus(
    sampled: _Sampled, sampling: Sampling, chosen_T: np.ndarray, rounding: float
) -> Iterator[RuleResult]:
    """Top-p cuts and renormalises: a token gains, by no more than what was cut."""
    gained_T = sampled.logp_T - sampled.plain_T
    most = -np.log(sampling.top_p)
    yield from sampled.finding(
        chosen_T & ((gained_T < -rounding) | (gained_T > most + rounding)),
        lambda t: (
            f"top-p {sampling.top_p:g} can raise a logprob by 0 to {most:.4f} nats, here it is {gained_T[t]:+.4f} "
            f"({sampled.plain_T[t]:.4f} to {sampled.logp_T[t]:.4f})"
        ),
    )
    unsure_T = chosen_T & (sampled.plain_T < SURE)
    if unsure_T.sum() < ENOUGH or (gained_T[unsure_T] > 1e-5).any():
        return
    # Where nothing was cut, the others by themselves did not reach top-p: what was drawn had more than 1 - top-p. A
    # policy torn between two tokens is never cut.
    tail_T = unsure_T & (sampled.plain_T < np.log1p(-sampling.top_p) - rounding)
    sentence = f"top-p {sampling.top_p:g} left every one of {int(unsure_T.sum())} unlikely tokens as it was"
    if tail_T.any():
        yield from sampled.finding(
            tail_T,
            lambda t: (
                f"{sentence}, this one with a probability of {np.exp(sampled.plain_T[t]):.2g} too, at which something must have "
                "been cut: it was not applied, or the stored logprobs are not those sampled from"
            ),
        )
    else:
        yield from sampled.finding(
            unsure_T,
            lambda t: (
                f"{sentence}: it was not applied, or there was nothing to cut (none was less likely than "
                f"{1 - sampling.top_p:.2g})"
            ),
            NOTE,
        )


def _batch_columns(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """The columns that training reads hold the spans' numbers, each its own; old_logp is nobody else's."""
    batch = evidence.batch
    if batch is None:
        yield NotChecked("the batch", "logprobs that training reads")
        return
    place_T = np.flatnonzero(batch.eligible_T.numpy())
    if len(place_T) != len(sampled.logp_T):
        yield NotChecked(
            "columns that are as long as what was sampled (R4 says more)",
            "logprobs that training reads",
        )
        return
    plain_T = np.where(sampled.known_T, sampled.plain_T, np.nan)
    for name, own_T in (("rollout_logp", sampled.logp_T), ("plain_logp", plain_T)):
        column_T = getattr(batch, f"{name}_T").numpy()[place_T]
        yield from sampled.finding(
            unequal(column_T, own_T),
            lambda t: (
                f"the batch has {name} {column_T[t]:.4f} where the rollout has {own_T[t]:.4f}"
            ),
        )
    if batch.old_logp_T is not None:
        yield from _copied(sampled, batch.old_logp_T.numpy()[place_T])


def _copied(sampled: _Sampled, old_T: np.ndarray) -> Iterator[RuleResult]:
    """The trainer's own numbers differ from the engine's in their last bits almost everywhere."""
    telling_T = ~np.isnan(old_T) & (sampled.logp_T < SURE)
    if telling_T.sum() < ENOUGH:
        return
    same = max(
        (old_T[telling_T] == values_T[telling_T]).mean()
        for values_T in (sampled.logp_T, sampled.plain_T)
    )
    if same > SAME:
        yield from sampled.finding(
            telling_T,
            lambda t: (
                f"old_logp is the sampler's number, bit for bit, at {same:.0%} of {int(telling_T.sum())} tokens (the first: "
                f"{old_T[t]:.6f}): the trainer's own would differ in its last bits"
            ),
        )


# ------------------------------------------------------------------------------------------------ R17


def stale_weights(evidence: Evidence) -> Iterator[RuleResult]:
    """One version per span, and it is the one that was to sample this step."""
    sampled = _Sampled(evidence)
    version_P = [span.policy_version for span in sampled.spans]
    known = [p for p, version in enumerate(version_P) if version is not None]
    yield Checked(len(known))
    if len(known) < len(version_P):
        yield NotChecked("their version of the weights", "some spans")
    if evidence.policy_version is not None:
        other = [
            p
            for p in known
            if version_P[p] != evidence.policy_version
            and not (evidence.staleness and version_P[p] > evidence.policy_version)
        ]
        if other:
            bound = "the oldest that may is" if evidence.staleness else "the learner holds"
            yield Finding(
                f"sampled by version {version_P[other[0]]} of the weights, while {bound} version "
                f"{evidence.policy_version}",
                sampled.place(other[0]),
                count=len(other),
            )
        return
    versions = sorted({version_P[p] for p in known})
    if len(versions) > 1:
        yield Finding(
            f"one step was sampled by versions {', '.join(map(str, versions))} of the weights",
            sampled.place(version_P.index(versions[-1])),
            NOTE,
            len(versions),
        )


# ------------------------------------------------------------------------------------------------ R23


def engine_gap(evidence: Evidence) -> Iterator[RuleResult]:
    """The trainer's logprobs of the first update, before which no weight has moved, beside the engine's."""
    sampled = _Sampled(evidence)
    first = min(evidence.updates, key=lambda update: update.table.update)
    columns = first.table.columns
    eligible = columns["eligible"]
    if (missing := _not_comparable(evidence, sampled, eligible)) is not None:
        yield NotChecked(missing)
        return
    used_T = columns["used"][eligible]
    new_T = columns["new_logp"][eligible]
    # What is not finite says so itself.
    here_T = used_T & np.isfinite(new_T) & sampled.tokens_of(_is_of_a_model)
    yield Checked(int(here_T.sum()))
    if not here_T.any():
        yield NotChecked("logprobs of the model's own softmax from an engine")
        return
    gap = _too_far(evidence, sampled, new_T, here_T)
    if gap is not None:
        yield gap
    # Later updates of a step have the rest of the trajectories; which one has which is drawn, by another generator.
    elif evidence.precision == "fp32" and (columns["weight"][eligible] != 0).mean() >= WHOLE:
        here_T &= sampled.tokens_of(_is_unbent_float32)
        yield from drawn_as_said(
            new_T[here_T],
            columns["entropy"][eligible][here_T],
            Place(step=evidence.step, update=first.table.update),
        )
    yield from _copied(sampled, np.where(used_T, columns["old_logp"][eligible], np.nan))


def _not_comparable(evidence: Evidence, sampled: _Sampled, eligible: np.ndarray) -> str | None:
    """Name what is missing to compare engine and trainer; None: nothing."""
    if not len(eligible) or int(eligible.sum()) != len(sampled.logp_T):
        return "a credit table that is as long as what was sampled (R4 says more)"
    if evidence.staleness and evidence.step != 1:
        return (
            "the trainer's logprobs by the weights that sampled (train.staleness: these are older)"
        )
    handed = evidence.handed
    if handed is not None and handed.gap is not None and not handed.gap.within(*handed.allowed):
        return "an engine that was given what learns: it was given other weights (R35 says more)"
    return None


def _too_far(
    evidence: Evidence, sampled: _Sampled, new_T: np.ndarray, here_T: np.ndarray
) -> Finding | None:
    """Engine and trainer are further apart than rounding explains, at the tokens that are compared."""
    gap_T = np.where(here_T, np.abs(sampled.plain_T - new_T, dtype=np.float64), 0.0)
    mean, largest = _alarm(evidence, sampled)
    mean_gap = float(gap_T[here_T].mean())
    if mean_gap < mean and gap_T.max() < largest:
        return None
    worst = int(gap_T.argmax())
    # By one token in a thousand: kernels now and then round one far off, and of many tokens one always is.
    far = float(np.quantile(gap_T[here_T], 0.999, method="lower"))
    alone = float(gap_T[here_T & (gap_T <= far)].mean()) < mean and far < largest
    return Finding(
        f"engine and trainer differ by {mean_gap:.2g} nats per sampled token, the most by {gap_T[worst]:.2g} "
        f"({sampled.plain_T[worst]:.4f} and {new_T[worst]:.4f}); rounding explains a mean of {mean:g} and "
        f"{largest:g} at most. {_cause(evidence)}",
        sampled.at(worst),
        NOTE if alone else ERROR,
        int(here_T.sum()),
    )


def _cause(evidence: Evidence) -> str:
    if not has_service("mismatch_cause"):
        return "`workbench audit` tries out why"
    return service("mismatch_cause", "R23")(evidence)


def _is_unbent_float32(span: Span) -> bool:
    sampling = span.sampling
    return sampling is not None and sampling.dtype == "float32" and not sampling.bends


def _is_of_a_model(span: Span) -> bool:
    """Whether it has logprobs of the model's own softmax."""
    sampling = span.sampling
    return (
        sampling is not None
        and sampling.engine not in SCRIPTED
        and (plain_logprobs(span) is not None or sampling.temperature == 0)
    )


def _alarm(evidence: Evidence, sampled: _Sampled) -> tuple[float, float]:
    """The larger of what rounding explains in the engine's and in the trainer's dtype; half precision if not known."""
    from workbench.engines.gap import TRAINING_LIMITS

    dtypes = {span.sampling.dtype for span in sampled.spans if span.sampling is not None}
    dtypes |= {"float32"} if evidence.precision == "fp32" else {"bfloat16"}
    half = TRAINING_LIMITS[torch.bfloat16]
    pairs = [
        TRAINING_LIMITS.get(getattr(torch, dtype or "bfloat16", None), half) for dtype in dtypes
    ]
    return max(mean for mean, _ in pairs), max(largest for _, largest in pairs)


RULES: tuple[Rule, ...] = (
    Rule(
        "R12",
        "logprobs are of the declared distribution",
        "the ratio between trainer and sampler then compares two different distributions: at top-p 0.8 alone its mean is "
        "0.9 instead of 1, and half of all tokens look off-policy.",
        "store both logprobs where temperature or top-p modify the distribution, compare the plain one with the trainer's, "
        "and let the trainer compute old_logp itself.",
        ("groups",),
        logprob_settings,
        "step",
        ("trl#4159", "trl#6789", "trl#7269", "trl#5231"),
    ),
    Rule(
        "R17",
        "the current weights sampled",
        "the policy that is updated is not the one that acted, so every ratio and every advantage is of somebody else.",
        "sync the engine after the updates and before the next rollout; a step that is older on purpose says so by its "
        "version.",
        ("groups",),
        stale_weights,
        "step",
        ("trl#5312", "SkyRL#1680", "trl#5293"),
    ),
    Rule(
        "R23",
        "sampler/trainer logprob mismatch",
        "the engine samples from another policy than the one that is trained: rewards fall slowly and plausibly.",
        "run `workbench audit`: it tries stale weights, output head, dtype, positions, temperature and more, and names "
        "what closes the gap.",
        ("groups", "updates"),
        engine_gap,
        "update",
        ("SkyRL#2201", "trl#4772", "NeMo-RL#1767"),
    ),
)
