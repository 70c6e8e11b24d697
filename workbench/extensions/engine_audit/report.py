"""The audit as one value: figures, waterfall, verdict, control; and the function that makes it of what was sampled.

Axis letters: M sampled tokens that are looked at · T tokens of the batch (flat).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from workbench.engines.gap import Gap
from workbench.engines.recorder import Exchange
from workbench.extensions.engine_audit.attribution import (
    Attribution,
    MismatchEvidence,
    WeightVersions,
    attribute,
    off_turns,
    turn_of_tokens,
)
from workbench.extensions.engine_audit.causes import (
    ROUGH,
    Cause,
    Explained,
    WaterfallStep,
    difference,
    explain,
    gap_words,
    hidden_weights,
    limits_for,
)
from workbench.extensions.engine_audit.claims import (
    Claims,
    LogitsRecorder,
    OtherIds,
    RecordedLogits,
    claims_of,
    exchanges_by_turn,
    other_ids,
    recorded_logits,
)
from workbench.extensions.engine_audit.control import Control
from workbench.extensions.engine_audit.figures import BIN_NAMES, Ratios, Whole
from workbench.extensions.engine_audit.forward import (
    HELD,
    NOW,
    Forward,
    Hypothesis,
    Weights,
    bent,
)
from workbench.extensions.engine_audit.held import HeldWeights
from workbench.extensions.engine_audit.recovery import recovered_ids
from workbench.extensions.engine_audit.toggles import (
    IDS,
    STALE,
    TRAINER,
    UNEXPLAINED,
    Toggle,
    further_toggles,
    is_adapter,
    part_toggles,
    setting_toggles,
    weight_toggles,
)
from workbench.values import Trajectory
from workbench.values.view import HasView

ALARM_KL = 0.015  # nats: the bar that prime-rl sets for a new model, over 20 steps
ALARM_MULT = 1.05  # mean exp|difference|: above it NeMo-RL speaks of a bug


@dataclass(frozen=True, eq=False)
class PerToken:
    """What is drawn, [M]: `gap_M` = engine - trainer in nats (NaN: not comparable), and where each token stands."""

    gap_M: np.ndarray
    token_M: np.ndarray
    trajectory_M: np.ndarray
    segment_M: np.ndarray
    turn_M: np.ndarray
    place_M: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class MismatchReport(HasView):
    """`causes` is the verdict: empty where nothing is wrong. `gap`: of logprobs of sampled tokens, engine against
    trainer; `alarm`: (mean, largest) of it that rounding explains. `whole` None: `whole_missing` says why. `trainer`:
    of the trainer's own numbers to a plain pass of its own weights."""

    about: str
    gap: Gap
    alarm: tuple[float, float]
    alarm_words: str
    ratios: Ratios | None
    whole: Whole | None
    whole_missing: str
    trainer: Gap | None
    steps: tuple[WaterfallStep, ...]
    causes: tuple[Cause, ...]
    left: Gap
    tried: int
    known: Mapping[str, str]
    tokens: PerToken
    control: Control | None = None
    engine: str = ""
    trajectories: tuple[Trajectory, ...] = ()
    token_texts: Any = None
    attribution: Attribution | None = None  # None: nothing that rounding does not explain

    @property
    def clean(self) -> bool:
        """True where no fault was named."""
        return not self.causes

    @property
    def named(self) -> tuple[str, ...]:
        """The kinds of faults, each once, the one that explains most first."""
        return tuple(dict.fromkeys(cause.kind for cause in self.causes))

    @property
    def bins(self) -> Sequence[str]:
        """Names of the bins of the ratios' histogram."""
        return BIN_NAMES

    @property
    def verdict(self) -> str:
        if self.clean:
            return "nothing is wrong: engine and trainer agree as far as rounding lets them"
        return "; ".join(f"{cause.kind}: {cause.words}" for cause in self.causes)

    @property
    def view(self):
        from workbench.extensions.engine_audit.view import show_mismatch

        return show_mismatch(self)

    def as_dict(self) -> dict[str, Any]:
        """Every number but those per token, as JSON values (not finite: null)."""
        control = (
            None
            if self.control is None
            else {**asdict(self.control), "passed": self.control.passed}
        )
        return _json_values(
            {
                "about": self.about,
                "engine": self.engine,
                "clean": self.clean,
                "named": list(self.named),
                "verdict": self.verdict,
                "causes": [{**asdict(cause), "mend": cause.mend} for cause in self.causes],
                "gap": asdict(self.gap),
                "alarm": {"mean": self.alarm[0], "largest": self.alarm[1], "why": self.alarm_words},
                "left": asdict(self.left),
                "waterfall": [asdict(step) for step in self.steps],
                "ratios": None
                if self.ratios is None
                else {**asdict(self.ratios), "bins": list(BIN_NAMES)},
                "whole_vocabulary": None if self.whole is None else asdict(self.whole),
                "whole_vocabulary_missing": self.whole_missing,
                "trainer": None if self.trainer is None else asdict(self.trainer),
                "hypotheses_tried": self.tried,
                "known_weights": dict(self.known),
                "control": control,
                "attribution": None if self.attribution is None else asdict(self.attribution),
            }
        )


@dataclass(frozen=True, eq=False)
class Trainer:
    """What is known of the trainer. `known`: sets of weights by name, `NOW` the ones it holds; `words` says what the
    others are. `logp`: its own numbers for these claims [M], by its own way of computing; None: by a plain pass.
    `bf16`: under autocast. `version` of its weights; `versions` of the sets that are known; `held`: what the engine holds, None:
    it does not say."""

    model: torch.nn.Module
    known: Mapping[str, Weights]
    words: Mapping[str, str]
    logp_M: np.ndarray | None = None
    bf16: bool = False
    version: int | None = None
    versions: Mapping[str, int] = field(default_factory=dict)
    held: HeldWeights | None = None

    def beside(self, held: HeldWeights | None) -> Trainer:
        """With what the engine holds, as one more set of weights where no version has it."""
        if held is None or held.weights is None:
            return replace(self, held=held)
        known = {**self.known, HELD: held.weights}
        words = {
            **self.words,
            HELD: f"what it holds, which no version is known to have: {held.words}",
        }
        return replace(self, held=held, known=known, words=words)


def measure(
    trajectories: Sequence[Trajectory],
    trainer: Trainer,
    *,
    exchanges: Sequence[Exchange] = (),
    recorder: LogitsRecorder | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    claims: Claims | None = None,
    about: str = "",
    token_texts: Any = None,
    tokenizer: Any = None,
    on_note: Callable[[str], None] = lambda words: None,
) -> MismatchReport:
    """Hold what an engine said while it sampled `trajectories` against the trainer.

    `exchanges`: the journal of that rollout; `recorder`: of whole distributions; `temperature`, `top_p`: what
    was asked for. `on_note` is told what is tried. Raises DataError where nothing was sampled.
    """
    claims = claims_of(trajectories) if claims is None else claims
    others = other_ids(claims, trajectories, exchanges)
    journal = None if others is None else others.journal
    forward = Forward(trainer.model, trainer.known, claims.sequences, journal, bf16=trainer.bf16)
    limits = limits_for(claims.dtypes, trainer.bf16)
    plain = difference(forward, claims, Hypothesis())
    own, gap_M, trainer_causes, steps = _against_trainer(trainer, claims, plain, limits)
    on_note(gap_words(plain, limits))
    explained = _explain(forward, claims, trainer, limits, temperature, top_p, others, on_note)
    missing, recorded = _recorded(claims, trajectories, exchanges, recorder)
    causes = [*trainer_causes, *explained.causes] or _read_from_engine(trainer)
    if not causes and recorded is not None and limits[0] > ROUGH:
        older = sum(_older_weights(forward, trainer), [])
        hidden = hidden_weights(forward, claims, recorded, explained.now, older)
        causes += [] if hidden is None else [hidden]
    causes = _with_other_ids(causes, others) or _older_version(claims, trainer)
    facts = _mismatch_evidence(
        forward,
        claims,
        limits,
        trainer,
        others,
        _in_journal(claims, trajectories, exchanges),
        tokenizer,
    )
    attribution = attribute(replace(facts, explained=lambda: explained))
    return MismatchReport(
        about,
        _gap(gap_M),
        limits,
        alarm_words(limits, claims, trainer.bf16),
        Ratios.between(gap_M, np.zeros_like(gap_M)),
        None if recorded is None else _whole(forward, claims, recorded),
        missing,
        own,
        (*steps, *explained.steps),
        tuple(causes),
        _gap(explained.left_M),
        explained.tried,
        {name: words for name, words in trainer.words.items() if name != NOW},
        _per_token(claims, gap_M),
        attribution=attribution,
        engine=", ".join(claims.engines),
        trajectories=tuple(trajectories),
        token_texts=token_texts,
    )


def attribution_of(
    trajectories: Sequence[Trajectory],
    trainer: Trainer,
    *,
    exchanges: Sequence[Exchange] = (),
    temperature: float | None = None,
    top_p: float | None = None,
    tokenizer: Any = None,
) -> Attribution | None:
    """Which of the four causes a gap has, by itself: arguments as of `measure`. None: rounding explains it."""
    claims = claims_of(trajectories)
    others = other_ids(claims, trajectories, exchanges)
    journal = None if others is None else others.journal
    forward = Forward(trainer.model, trainer.known, claims.sequences, journal, bf16=trainer.bf16)
    limits = limits_for(claims.dtypes, trainer.bf16)
    has_journal = _in_journal(claims, trajectories, exchanges)
    facts = _mismatch_evidence(forward, claims, limits, trainer, others, has_journal, tokenizer)

    def explained() -> Explained:
        return _explain(
            forward, claims, trainer, limits, temperature, top_p, others, lambda words: None
        )

    return attribute(replace(facts, explained=explained))


def _in_journal(
    claims: Claims, trajectories: Sequence[Trajectory], exchanges: Sequence[Exchange]
) -> bool:
    """Whether every turn that is looked at stands in the journal."""
    by_turn = exchanges_by_turn(trajectories, exchanges)
    columns_3M = np.stack([claims.trajectory_M, claims.segment_M, claims.turn_M])
    return all(tuple(key) in by_turn for key in columns_3M.T.tolist())


def _mismatch_evidence(
    forward: Forward,
    claims: Claims,
    limits: tuple[float, float],
    trainer: Trainer,
    others: OtherIds | None,
    has_journal: bool,
    tokenizer: Any,
) -> MismatchEvidence:
    def recovered(gap_M: np.ndarray) -> str | None:
        if tokenizer is None:
            return None
        turn_M = turn_of_tokens(claims)
        off_U = off_turns(gap_M, turn_M, limits)
        return recovered_ids(forward, claims, tokenizer, turn_M, off_U)

    versions = WeightVersions(trainer.versions, trainer.version, trainer.held)
    return MismatchEvidence(forward, claims, limits, versions, others, has_journal, recovered)


def _with_other_ids(causes: list[Cause], others: OtherIds | None) -> list[Cause]:
    """With the fault that other ids are trained than were sampled, before all others, where none of them is it."""
    if others is None or IDS in (cause.kind for cause in causes):
        return causes
    cause = Cause(
        IDS,
        f"the trained ids differ from the sampled ids: {others.words}",
        f"{others.count} sampled tokens or what stands before them",
    )
    return [cause, *(other for other in causes if other.kind != UNEXPLAINED)]


def _per_token(claims: Claims, gap_M: np.ndarray) -> PerToken:
    sequences = claims.sequences
    return PerToken(
        gap_M,
        sequences.token_M,
        claims.trajectory_M,
        claims.segment_M,
        claims.turn_M,
        sequences.place_M,
    )


def alarm_words(limits: tuple[float, float], claims: Claims, bf16: bool) -> str:
    """Why the alarm stands where it stands."""
    dtypes = "/".join(claims.dtypes) or "a dtype that is not told"
    half = limits[0] > 1e-3
    rounding = (
        "up to 1.4e-2 nats on average and 0.2 at one token"
        if half
        else "4e-7 nats on average and 7e-6 at one token"
    )
    return (
        f"the engine computes in {dtypes}, the trainer in {'bfloat16 (autocast)' if bf16 else 'float32'}; measured on "
        f"policies in training, rounding alone leaves {rounding}. Bars that others set: a KL "
        f"below {ALARM_KL:g} (prime-rl), mean exp|gap| above {ALARM_MULT:g} is a bug (NeMo-RL)"
    )


def _against_trainer(
    trainer: Trainer, claims: Claims, plain: np.ndarray, limits: tuple[float, float]
) -> tuple[Gap | None, np.ndarray, list[Cause], list[WaterfallStep]]:
    """(the trainer's numbers against a plain pass, engine - trainer [M], what is wrong with the trainer's own pass)"""
    by_plain_M = np.where(np.isnan(plain[0]), plain[1], plain[0])
    if trainer.logp_M is None:
        return None, by_plain_M, [], []
    plain_logp_M = np.where(np.isnan(claims.plain_M), np.nan, claims.plain_M - plain[0])
    off_M = trainer.logp_M - plain_logp_M
    if np.isnan(off_M).all():
        return None, by_plain_M, [], []
    own = _gap(off_M)
    gap_M = np.where(np.isnan(claims.plain_M), plain[1], claims.plain_M - trainer.logp_M)
    rounding = limits_for((), trainer.bf16)
    if own.within(*rounding):
        return own, gap_M, [], []
    words = "the trainer's own forward pass gives other logprobs than a plain forward pass of its weights over the same ids"
    before = float(np.nanmean(np.abs(gap_M)))
    after = float(np.nanmean(np.abs(by_plain_M)))
    return (
        own,
        gap_M,
        [Cause(TRAINER, words, str(own))],
        [WaterfallStep(TRAINER, words, before, after)],
    )


def _explain(
    forward: Forward,
    claims: Claims,
    trainer: Trainer,
    limits: tuple[float, float],
    temperature: float | None,
    top_p: float | None,
    others: Any,
    on_note: Callable[[str], None],
) -> Explained:
    settings = setting_toggles(
        claims,
        temperature,
        top_p,
        bf16=trainer.bf16,
        other_ids=None if others is None else others.words,
    )
    whole, parts = _older_weights(forward, trainer)
    rarely = [*parts, *further_toggles(claims.dtypes)]
    return explain(forward, claims, limits, [*settings, *whole], rarely, on_note=on_note)


def _older_weights(forward: Forward, trainer: Trainer) -> tuple[list[Toggle], list[Toggle]]:
    """(older weights as a whole, part by part)"""
    now = trainer.known[NOW]
    adapters = [
        name for name, weights in trainer.known.items() if name != NOW and is_adapter(now, weights)
    ]
    tied = any(len(names) > 1 for names in forward.plain.names.tied)
    of_versions = {name: words for name, words in trainer.words.items() if name != HELD}
    kinds = {HELD: trainer.held.kind} if HELD in trainer.words else {}
    return weight_toggles(trainer.words, adapters, kinds), part_toggles(forward, of_versions, tied)


def _read_from_engine(trainer: Trainer) -> list[Cause]:
    """The engine can be read and has other weights under the learner's version, however little that does to the logprobs."""
    held = trainer.held
    if held is None or not held.kind or held.version != trainer.version:
        return []
    words = f"the engine samples from {trainer.words[held.name]}"
    return [Cause(held.kind, words, f"read from the engine, bit for bit: {held.words}")]


def _older_version(claims: Claims, trainer: Trainer) -> list[Cause]:
    """An engine that says itself that it holds older weights."""
    versions = np.unique(claims.version_M[claims.version_M >= 0])
    if trainer.version is None or not len(versions) or (versions == trainer.version).all():
        return []
    old = ", ".join(str(version) for version in versions.tolist() if version != trainer.version)
    return [
        Cause(
            STALE,
            f"sampled by version {old} of the weights, the learner holds version {trainer.version}",
            "the engine says so itself; the weights may be too alike to tell",
        )
    ]


def _recorded(
    claims: Claims,
    trajectories: Sequence[Trajectory],
    exchanges: Sequence[Exchange],
    recorder: LogitsRecorder | None,
) -> tuple[str, RecordedLogits | None]:
    """(why there are no whole distributions, the ones there are)"""
    if recorder is None or not exchanges:
        return (
            "these trajectories were stored with the sampled tokens' logprobs only; audit a session or a run",
            None,
        )
    if not recorder.can_record:
        return (
            f"the engine {type(recorder.engine).__name__} does not tell whole distributions (it has no `listener`)",
            None,
        )
    recorded = recorded_logits(recorder, claims, trajectories, exchanges)
    return ("the engine told no distribution" if recorded is None else ""), recorded


def _whole(forward: Forward, claims: Claims, recorded: RecordedLogits) -> Whole:
    logits_FV = forward.logits(Hypothesis())[torch.from_numpy(recorded.index_F)]
    return Whole.between(recorded.logp_FV, bent(logits_FV, *recorded.settings(claims)).cpu())


def _gap(difference_M: np.ndarray) -> Gap:
    known = difference_M[~np.isnan(difference_M)]
    return Gap.between(known, np.zeros_like(known))


def _json_values(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _json_values(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    return value
