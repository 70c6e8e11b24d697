"""Are the stored logprobs those of the distribution that the settings name, and by the weights that were meant?
(R12 R17 R23)

Axis letters: P sampled spans · T sampled tokens of all spans, end to end.

Three numbers may stand at a sampled token: the logprob under the distribution that was sampled from, the one under the
model's own softmax where temperature or top-p bend it, and the trainer's. Training that takes one for another goes on
without a word. Everything here is taken from the spans and held against batch, journal, settings and credit tables.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from workbench.engines.gap import TRAINING_LIMITS
from workbench.linting.bending import WHOLE, against_the_model, drawn_as_said, drawn_from_the_model
from workbench.linting.evidence import Evidence, Update
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Sampling
from workbench.types.findings import ERROR, NOTE, Finding, Checked, NotChecked, Place

SURE = -1e-3         # a token less likely than this has a logprob that temperature or top-p visibly move
ENOUGH = 16          # so many such tokens before "all of them are the same" means anything
SAME = 0.9           # share of equal bits above which one column is a copy of the other; measured are 0 to 0.05
ROUNDING = {"float32": 1e-3, "bfloat16": 0.1, "float16": 0.1}  # nats between two passes of the same weights
SCRIPTED = ("scripted", "human", "")  # engines without a distribution: they say 0 or what they were told to


@dataclass(frozen=True, eq=False)
class _Sampled:
    """Everything that was sampled. `place_P`: trajectory, segment, position of each span; `bounds`: its tokens [P+1]."""

    place_P: list[tuple[int, int, int, int]]
    sampling_P: list[Sampling | None]
    version_P: list[int | None]
    has_plain_P: list[bool]
    bounds: np.ndarray
    logp_T: np.ndarray
    plain_T: np.ndarray

    @classmethod
    def of(cls, evidence: Evidence) -> "_Sampled":
        places, samplings, versions, has_plain, lengths, logps, plains = [], [], [], [], [], [], []
        for n, trajectory in enumerate(evidence.trajectories):
            for s, segment in enumerate(trajectory.segments):
                start = 0
                for span in segment.spans:
                    count = len(span.token_ids)
                    if span.logprobs is not None:
                        places.append((n, s, span.turn, start))
                        samplings.append(span.sampling)
                        versions.append(span.policy_version)
                        has_plain.append(span.plain_logprobs is not None)
                        lengths.append(count)
                        logps.append(span.logprobs)
                        plains.append(span.logprobs if span.plain_logprobs is None else span.plain_logprobs)
                    start += count
        joined = [np.concatenate(part) if part else np.zeros(0, np.float32) for part in (logps, plains)]
        return cls(places, samplings, versions, has_plain, np.concatenate([[0], np.cumsum(lengths)]).astype(int), *joined)

    def place(self, evidence: Evidence, span: int, offset: int = 0):
        n, s, turn, start = self.place_P[span]
        return evidence.place(n, segment=s, turn=turn, position=start + offset)

    def at(self, evidence: Evidence, token: int):
        span = int(np.searchsorted(self.bounds, token, side="right")) - 1
        return self.place(evidence, span, token - int(self.bounds[span]))

    def tokens_of(self, spans: list[int]) -> np.ndarray:
        """bool [T]"""
        chosen_T = np.zeros(len(self.logp_T), bool)
        for span in spans:
            chosen_T[self.bounds[span]:self.bounds[span + 1]] = True
        return chosen_T


# ------------------------------------------------------------------------------------------------ R12


def logprob_settings(evidence: Evidence) -> Iterator[RuleResult]:
    sampled = _Sampled.of(evidence)
    yield Checked(len(sampled.logp_T))
    if not sampled.place_P:
        return
    yield from _as_declared(evidence, sampled)
    yield from _possible(evidence, sampled)
    for sampling in dict.fromkeys(s for s in sampled.sampling_P if s is not None and s.engine not in SCRIPTED):
        yield from _bent_as_named(evidence, sampled, sampling)
    yield from _batch_columns(evidence, sampled)
    yield from _as_answered(evidence, sampled)
    yield from against_the_model(evidence)
    yield from drawn_from_the_model(evidence)


def _as_declared(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """Each span says how it was sampled, and that is how it was to be."""
    unknown = [p for p, sampling in enumerate(sampled.sampling_P) if sampling is None]
    if unknown:
        yield Finding(f"{len(unknown)} sampled spans do not say at which temperature and top-p: nobody can tell whose "
                      "logprobs these are", sampled.place(evidence, unknown[0]), NOTE, len(unknown))
    if evidence.collect is None:
        yield NotChecked("the sampling settings")
        return
    asked = (evidence.collect.temperature, evidence.collect.top_p)
    other = [p for p, s in enumerate(sampled.sampling_P) if s is not None and (s.temperature, s.top_p) != asked]
    if other:
        said = sampled.sampling_P[other[0]]
        yield Finding(f"sampled at temperature {said.temperature:g} and top-p {said.top_p:g}, while the settings say "
                      f"{asked[0]:g} and {asked[1]:g}", sampled.place(evidence, other[0]), count=len(other))


def _possible(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """No probability is above one, and one that was drawn is above zero."""
    for name, values_T in (("logprob", sampled.logp_T), ("plain logprob", sampled.plain_T)):
        bad = np.flatnonzero(~(values_T <= 1e-4) | ~np.isfinite(values_T))
        if len(bad):
            yield Finding(f"the {name} of a sampled token is {values_T[bad[0]]:g}, which is none",
                          sampled.at(evidence, int(bad[0])), count=len(bad))


def _bent_as_named(evidence: Evidence, sampled: _Sampled, sampling: Sampling) -> Iterator[RuleResult]:
    """Do the two logprobs of a token stand to each other as this temperature and top-p make them stand?"""
    spans = [p for p, other in enumerate(sampled.sampling_P) if other == sampling]
    chosen_T = sampled.tokens_of(spans)
    logp_T, plain_T = sampled.logp_T, sampled.plain_T
    rounding = ROUNDING.get(sampling.dtype, ROUNDING["bfloat16"])
    is_bent = sampling.bends and sampling.temperature != 0
    if is_bent:
        without = [p for p in spans if not sampled.has_plain_P[p]]
        if without:
            yield Finding(f"sampled at temperature {sampling.temperature:g} and top-p {sampling.top_p:g} without the "
                          "plain logprobs: what is stored is not comparable with the trainer's", sampled.place(
                              evidence, without[0]), count=len(without))
            chosen_T &= ~sampled.tokens_of(without)
        telling = chosen_T & (plain_T < SURE) & (logp_T < SURE)
        if sampling.temperature == 1:  # top-p alone moves a token only where something was cut
            telling = np.zeros_like(telling)
            yield from _nucleus(evidence, sampled, sampling, chosen_T, rounding)
        if telling.sum() >= ENOUGH and (logp_T[telling] == plain_T[telling]).mean() > SAME:
            first = int(np.flatnonzero(telling)[0])
            yield Finding(f"at temperature {sampling.temperature:g} both logprobs of a token are the same "
                          f"({logp_T[first]:.4f}) at {int(telling.sum())} tokens: one is a copy of the other, so either "
                          "the temperature was not applied, or what passes for the model's own logprob is the bent one",
                          sampled.at(evidence, first), count=int(telling.sum()))
        return
    off_T = chosen_T & (np.abs(logp_T - plain_T) > rounding)
    if off_T.any():
        first = int(np.flatnonzero(off_T)[0])
        yield Finding(f"temperature {sampling.temperature:g} and top-p {sampling.top_p:g} leave the distribution as it is, "
                      f"but the token has logprob {logp_T[first]:.4f} and plain logprob {plain_T[first]:.4f}",
                      sampled.at(evidence, first), count=int(off_T.sum()))


def _nucleus(evidence: Evidence, sampled: _Sampled, sampling: Sampling, chosen_T: np.ndarray,
             rounding: float) -> Iterator[RuleResult]:
    """Top-p cuts and renormalises: a token gains, by no more than what was cut."""
    gained_T = sampled.logp_T - sampled.plain_T
    most = -np.log(sampling.top_p)
    off_T = chosen_T & ((gained_T < -rounding) | (gained_T > most + rounding))
    if off_T.any():
        first = int(np.flatnonzero(off_T)[0])
        yield Finding(f"top-p {sampling.top_p:g} can raise a logprob by 0 to {most:.4f} nats, here it is "
                      f"{gained_T[first]:+.4f} ({sampled.plain_T[first]:.4f} to {sampled.logp_T[first]:.4f})",
                      sampled.at(evidence, first), count=int(off_T.sum()))
    unsure_T = chosen_T & (sampled.plain_T < SURE)
    if unsure_T.sum() < ENOUGH or (gained_T[unsure_T] > 1e-5).any():
        return
    # Where nothing was cut, the others by themselves did not reach top-p: what was drawn had more than 1 - top-p. A
    # policy torn between two tokens is never cut.
    tail_T = unsure_T & (sampled.plain_T < np.log1p(-sampling.top_p) - rounding)
    first = int(np.flatnonzero(tail_T if tail_T.any() else unsure_T)[0])
    said = f"top-p {sampling.top_p:g} left every one of {int(unsure_T.sum())} unlikely tokens as it was"
    if tail_T.any():
        yield Finding(f"{said}, this one with a probability of {np.exp(sampled.plain_T[first]):.2g} too, at which "
                      "something must have been cut: it was not applied, or the stored logprobs are not those sampled "
                      "from", sampled.at(evidence, first), count=int(unsure_T.sum()))
    else:
        yield Finding(f"{said}: it was not applied, or there was nothing to cut (none was less likely than "
                      f"{1 - sampling.top_p:.2g})", sampled.at(evidence, first), NOTE, int(unsure_T.sum()))


def _batch_columns(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """The columns that training reads hold the spans' numbers, each its own; old_logp is nobody else's."""
    batch = evidence.batch
    if batch is None:
        yield NotChecked("the batch")
        return
    place_T = np.flatnonzero(batch.eligible_T.numpy())
    if len(place_T) != len(sampled.logp_T):
        yield NotChecked("columns that are as long as what was sampled (R4 says more)")
        return
    known_P = [sampling is None or not sampling.bends or has for sampling, has in
               zip(sampled.sampling_P, sampled.has_plain_P)]
    plain_T = np.where(np.repeat(known_P, np.diff(sampled.bounds)), sampled.plain_T, np.nan)
    for name, own_T in (("rollout_logp", sampled.logp_T), ("plain_logp", plain_T)):
        column_T = getattr(batch, f"{name}_T").numpy()[place_T]
        off = np.flatnonzero(~((column_T == own_T) | (np.isnan(column_T) & np.isnan(own_T))))
        if len(off):
            yield Finding(f"the batch has {name} {column_T[off[0]]:.4f} where the rollout has {own_T[off[0]]:.4f}",
                          evidence.place_of_token(int(place_T[off[0]])), count=len(off))
    if batch.old_logp_T is not None:
        yield from _copied(evidence, sampled, batch.old_logp_T.numpy()[place_T])


def _copied(evidence: Evidence, sampled: _Sampled, old_T: np.ndarray) -> Iterator[RuleResult]:
    """The trainer's own numbers differ from the engine's in their last bits almost everywhere."""
    telling_T = ~np.isnan(old_T) & (sampled.logp_T < SURE)
    if telling_T.sum() < ENOUGH:
        return
    for values_T in {id(v): v for v in (sampled.logp_T, sampled.plain_T)}.values():
        same = (old_T[telling_T] == values_T[telling_T]).mean()
        if same > SAME:
            first = int(np.flatnonzero(telling_T)[0])
            yield Finding(f"old_logp is the sampler's number, bit for bit, at {same:.0%} of {int(telling_T.sum())} tokens "
                          f"(the first: {old_T[first]:.6f}): the trainer's own would differ in its last bits",
                          sampled.at(evidence, first), count=int(telling_T.sum()))
            return


def _as_answered(evidence: Evidence, sampled: _Sampled) -> Iterator[RuleResult]:
    """The stored logprobs and settings are those that the engine answered, turn by turn."""
    if evidence.journal is None:
        yield NotChecked("what the engine was asked and answered")
        return
    answered: dict[str, list] = {}
    for exchange in evidence.journal:
        if exchange.completion is not None and exchange.completion.error is None:
            answered.setdefault(exchange.request.session, []).append(exchange)
    numbers: dict[str, int] = {}
    for p, (n, s, _, _) in enumerate(sampled.place_P):
        trajectory = evidence.trajectories[n]
        session = f"{trajectory.task.id}#{trajectory.attempt}/{s}"
        number = numbers.get(session, 0)
        numbers[session] = number + 1
        if number >= len(answered.get(session, ())):
            continue  # R3 looks for turns that nobody sampled
        request, completion = answered[session][number]
        said = completion.sampling
        if (request.temperature, request.top_p) != (said.temperature, said.top_p):
            yield Finding(f"the engine was asked for temperature {request.temperature:g} and top-p {request.top_p:g} and "
                          f"says it used {said.temperature:g} and {said.top_p:g}", sampled.place(evidence, p))
        own_T = sampled.logp_T[sampled.bounds[p]:sampled.bounds[p + 1]]
        theirs_T = completion.logprobs
        if len(own_T) == len(theirs_T) and not np.array_equal(own_T, theirs_T):
            off = int((own_T != theirs_T).argmax())
            yield Finding(f"stored is the logprob {own_T[off]:.4f}, the engine answered {theirs_T[off]:.4f}",
                          sampled.place(evidence, p, off), count=int((own_T != theirs_T).sum()))


# ------------------------------------------------------------------------------------------------ R17


def stale_weights(evidence: Evidence) -> Iterator[RuleResult]:
    """One version per span, and it is the one that was to sample this step."""
    sampled = _Sampled.of(evidence)
    told = [p for p, version in enumerate(sampled.version_P) if version is not None]
    yield Checked(len(told))
    if len(told) < len(sampled.place_P):
        yield NotChecked("the version of the weights that sampled each span")
    if evidence.policy_version is not None:
        other = [p for p in told if sampled.version_P[p] != evidence.policy_version]
        if other:
            yield Finding(f"sampled by version {sampled.version_P[other[0]]} of the weights, while the learner holds "
                          f"version {evidence.policy_version}", sampled.place(evidence, other[0]), count=len(other))
        return
    versions = sorted({sampled.version_P[p] for p in told})
    if len(versions) > 1:
        last = next(p for p in told if sampled.version_P[p] == versions[-1])
        yield Finding(f"one step was sampled by versions {', '.join(map(str, versions))} of the weights",
                      sampled.place(evidence, last), NOTE, len(versions))


# ------------------------------------------------------------------------------------------------ R23


def engine_gap(evidence: Evidence) -> Iterator[RuleResult]:
    """The trainer's logprobs of the first update, before which no weight has moved, beside the engine's."""
    sampled = _Sampled.of(evidence)
    first = min(evidence.updates, key=lambda update: update.table.update)
    used = np.asarray(first.table["used"], bool) & np.asarray(first.table["eligible"], bool)
    if used.shape[0] == 0 or int(np.asarray(first.table["eligible"], bool).sum()) != len(sampled.logp_T):
        yield NotChecked("a credit table that is as long as what was sampled (R4 says more)")
        return
    here = used[np.asarray(first.table["eligible"], bool)]
    comparable_P = [sampling is not None and sampling.engine not in SCRIPTED and (
        has or not sampling.bends or sampling.temperature == 0)
        for sampling, has in zip(sampled.sampling_P, sampled.has_plain_P)]
    here &= np.repeat(comparable_P, np.diff(sampled.bounds)) if comparable_P else False
    new_T = np.asarray(first.table["new_logp"])[np.asarray(first.table["eligible"], bool)]
    here &= np.isfinite(new_T)  # an update that was not finite says so itself
    yield Checked(int(here.sum()))
    if not here.any():
        yield NotChecked("logprobs of the model's own softmax from an engine")
        return
    gap_T = np.where(here, np.abs(sampled.plain_T - new_T, dtype=np.float64), 0.0)
    mean, largest = _alarm(evidence, sampled)
    found = float(gap_T[here].mean())
    # By one token in a thousand: kernels now and then round one far off, and of many tokens one always is.
    far = float(np.quantile(gap_T[here], 0.999, method="lower"))
    if not found < mean or not gap_T.max() < largest:
        worst = int(gap_T.argmax())
        alone = float(gap_T[here & (gap_T <= far)].mean()) < mean and far < largest
        yield Finding(f"engine and trainer differ by {found:.2g} nats per sampled token, the most by {gap_T[worst]:.2g} "
                      f"({sampled.plain_T[worst]:.4f} and {new_T[worst]:.4f}); rounding explains a mean of {mean:g} and "
                      f"{largest:g} at most. `workbench audit` tries out why", sampled.at(evidence, worst),
                      NOTE if alone else ERROR, int(here.sum()))
    elif evidence.precision == "fp32":
        yield from _drawn(evidence, sampled, first, here)
    old_T = np.asarray(first.table["old_logp"])[np.asarray(first.table["eligible"], bool)]
    yield from _copied(evidence, sampled, np.where(used[np.asarray(first.table["eligible"], bool)], old_T, np.nan))


def _drawn(evidence: Evidence, sampled: _Sampled, first: Update, here: np.ndarray) -> Iterator[RuleResult]:
    """Where sampler and trainer agree, and neither temperature nor top-p bends: are the tokens draws from what they say?
    """
    eligible_T = np.asarray(first.table["eligible"], bool)
    plain_P = [s is not None and s.dtype == "float32" and not s.bends for s in sampled.sampling_P]
    here = here & np.repeat(plain_P, np.diff(sampled.bounds))
    # Later updates of a step have the rest of the attempts; which one has which is drawn, by another generator.
    counted_T = np.asarray(first.table["weight"])[eligible_T] != 0
    if counted_T.mean() < WHOLE:
        return
    columns = [np.asarray(first.table[name])[eligible_T][here] for name in ("new_logp", "entropy")]
    yield from drawn_as_said(*columns, Place(step=evidence.step, update=first.table.update))


def _alarm(evidence: Evidence, sampled: _Sampled) -> tuple[float, float]:
    """The larger of what rounding explains in the engine's and in the trainer's dtype; half precision if not known."""
    dtypes = {sampling.dtype for sampling in sampled.sampling_P if sampling is not None}
    dtypes |= {"float32"} if evidence.precision == "fp32" else {"bfloat16"}
    half = TRAINING_LIMITS[torch.bfloat16]
    pairs = [TRAINING_LIMITS.get(getattr(torch, dtype or "bfloat16", None), half) for dtype in dtypes]
    return max(mean for mean, _ in pairs), max(largest for _, largest in pairs)


RULES: tuple[Rule, ...] = (
    Rule("R12", "logprobs are of the declared distribution",
         "the ratio between trainer and sampler then compares two different distributions: at top-p 0.8 alone its mean is "
         "0.9 instead of 1, and half of all tokens look off-policy.",
         "store both logprobs where temperature or top-p bend the distribution, compare the plain one with the trainer's, "
         "and let the trainer compute old_logp itself.",
         ("groups",), logprob_settings, "step",
         ("trl#4159", "trl#6789", "trl#7269", "trl#5231")),
    Rule("R17", "the current weights sampled",
         "the policy that is updated is not the one that acted, so every ratio and every advantage is of somebody else.",
         "sync the engine after the updates and before the next rollout; a step that is older on purpose says so by its "
         "version.",
         ("groups",), stale_weights, "step",
         ("trl#5312", "SkyRL#1680", "trl#5293")),
    Rule("R23", "engine against trainer",
         "the engine samples from another policy than the one that is trained: rewards fall slowly and plausibly.",
         "run `workbench audit`: it tries stale weights, output head, dtype, positions, temperature and more, and names "
         "what closes the gap.",
         ("groups", "updates"), engine_gap, "update",
         ("SkyRL#2201", "trl#4772", "NeMo-RL#1767")),
)
