"""The zero-learning-rate control: weights are handed over again and again and nothing was learned, so nothing may move.

Axis letters: R rows, one per sampled token of the probe · V vocabulary.

A gap that is small says that two numbers agree, not that weights arrive. So: the same weights, synchronised k times and
once more after updates at learning rate 0, must leave sampled tokens and whole distributions as they are. That alone
could be passed by an engine that hears nothing at all, or by one that looks at the learner's own tensors. Therefore two
controls of the control: a learner's weight is changed without a sync (the engine must not move), and a change whose
effect is known is planted (it must show, in full).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from workbench.engines.base import Completion, Engine, Request
from workbench.engines.gap import PlainForward
from workbench.extensions.engine_audit.causes import (
    Cause,
    explain,
    hidden_weights,
    limits_for,
)
from workbench.extensions.engine_audit.claims import Claims, LogitsRecorder, RecordedLogits
from workbench.extensions.engine_audit.forward import NOW, Forward, Hypothesis, Sequences, Weights
from workbench.extensions.engine_audit.toggles import (
    DTYPE,
    SHARED,
    SYNC,
    UNEXPLAINED,
    Toggle,
    part_toggles,
    weight_toggles,
)
from workbench.values.errors import DataError, EngineError, LearnerError

PROMPTS = 20  # of random ids, in the probe
PROMPT = 12  # tokens of each
TOKENS = 12  # that are sampled after each
# Relative size of the planted change: a tenth of a nat or so per token; more where rounding is coarse.
PLANTED = {"float32": 0.02, "bfloat16": 0.1, "float16": 0.1}
ROUNDING = {
    "float32": 2e-5,
    "bfloat16": 0.1,
    "float16": 0.1,
}  # nats a probability may move when asked once more
FULL = (0.8, 1.25)  # share of a planted change that must arrive


@dataclass(frozen=True)
class Control:
    """What moved. Each `*_moved` is the largest change of a logprob over all probes and the whole vocabulary, in nats
    (of sampled tokens only, where `whole` is False); None: not tried, `skipped` says why.

    `untold_moved`: after a weight of the learner was changed without a sync; above rounding the engine has no copy of
    its own, and nothing else here says anything. `still_moved`: over all syncs of unchanged weights. `zero_moved`:
    after updates at learning rate 0 (`zero_updates` were made, `zero_weights` says whether the weights are the same bit
    for bit). `planted_share`: how much of a planted change arrived, 1 is all. `tokens_changed`: sampled tokens that
    were others, though nothing had been learned.
    """

    syncs: int
    still_moved: float | None = None
    untold_moved: float | None = None
    zero_moved: float | None = None
    zero_updates: int = 0
    zero_weights: bool | None = None
    planted_share: float | None = None
    planted_nats: float | None = None
    tokens_changed: int = 0
    whole: bool = False
    causes: tuple[Cause, ...] = ()
    skipped: str = ""
    about: str = ""

    @property
    def passed(self) -> bool:
        return not self.causes and not self.skipped

    @property
    def verdict(self) -> str:
        if self.still_moved is None and not self.causes:
            return "not run"
        return "passed" if self.passed else "NOT PASSED"

    @property
    def lines(self) -> list[str]:
        """Each part of the control and its result, in words."""
        if self.still_moved is None:
            return [f"not run: {self.skipped}"]
        over = "the whole vocabulary" if self.whole else "sampled tokens"
        sentences = [
            f"{self.syncs} syncs of the same weights: {self.tokens_changed} sampled tokens changed, the largest "
            f"change of a logprob is {self.still_moved:.2g} nats over {over}"
        ]
        if self.untold_moved is not None:
            sentences.append(
                f"a weight of the learner changed, without a sync: the engine moved by {self.untold_moved:.2g} nats"
            )
        if self.zero_moved is not None:
            same = "the same bit for bit" if self.zero_weights else "NOT the same"
            sentences.append(
                f"{self.zero_updates} update(s) at learning rate 0: weights {same}, the engine moved by "
                f"{self.zero_moved:.2g} nats"
            )
        elif self.skipped:
            sentences.append(f"updates at learning rate 0 were not made: {self.skipped}")
        if self.planted_share is not None:
            sentences.append(
                f"a planted change of {self.planted_nats:.2g} nats per token: {self.planted_share:.1%} of it "
                "arrived"
            )
        return sentences


@dataclass(frozen=True, eq=False)
class _Round:
    """One round of the probe: `ids` sequences, their sampled tokens' logprobs [R], whole rows [R, V] or None."""

    ids: tuple[np.ndarray, ...]
    logp_R: np.ndarray
    rows_RV: Tensor | None

    def moved(self, other: _Round) -> tuple[int, float]:
        """(sampled tokens that differ, largest change of a logprob)"""
        changed = sum(int((a != b).sum()) for a, b in zip(self.ids, other.ids))
        if changed:
            return changed, float("inf")
        if self.rows_RV is not None and other.rows_RV is not None:
            return 0, float((self.rows_RV - other.rows_RV).abs().nan_to_num(0.0).max())
        return 0, float(np.abs(self.logp_R - other.logp_R).max())


class _ProbedEngine:
    """An engine that is handed weights and probed. `first`: the round to compare with, right after the first sync."""

    def __init__(self, engine: Engine, vocabulary: int, weights: Weights) -> None:
        self.engine = engine
        self.vocabulary = vocabulary
        self.version = engine.policy_version
        self.sync(weights)
        self.first = self.probe()

    def sync(self, weights: Weights) -> None:
        self.version += 1
        self.engine.sync(weights, self.version)

    def moved(self) -> tuple[int, float]:
        return self.probe().moved(self.first)

    def probe(self) -> _Round:
        """Sample: the same prompts under the same seeds every time, whatever was asked before."""
        length = min(PROMPT, self.engine.context_length - TOKENS)
        prompts = np.random.default_rng(5).integers(0, self.vocabulary, (PROMPTS, length))
        with LogitsRecorder(self.engine) as recorder:
            answers = self._sampled(prompts)
        rows: list[Tensor | None] = []
        for answer in answers:
            places = range(len(answer.token_ids))
            rows += [recorder.rows.get((answer.request_id, place)) for place in places]
        pairs = zip(prompts, answers)
        return _Round(
            tuple(np.concatenate([prompt, answer.token_ids]) for prompt, answer in pairs),
            np.concatenate([answer.logprobs for answer in answers]),
            None if any(row is None for row in rows) else torch.stack(rows).log_softmax(-1),
        )

    def _sampled(self, prompts: np.ndarray) -> list[Completion]:
        """An answer to each prompt. Raises EngineError where one is missing or failed."""
        for number, prompt in enumerate(prompts):
            self.engine.submit(
                Request(
                    number,
                    f"control#{number}",
                    prompt,
                    seed=number,
                    max_new_tokens=TOKENS,
                    stop_ids=frozenset(),
                )
            )
        done: dict[int, Completion] = {}
        for _ in range(100 * TOKENS):
            done |= {completion.request_id: completion for completion in self.engine.poll()}
            if len(done) == len(prompts):
                break
        for number in range(len(prompts)):
            self.engine.release(f"control#{number}")
        bad = next((completion.error for completion in done.values() if completion.error), None)
        if bad is None and len(done) < len(prompts):
            bad = "it did not answer"
        if bad is not None:
            raise EngineError(f"the probe of the control was not sampled: {bad}")
        return [done[number] for number in range(len(prompts))]


def zero_control(
    engine: Engine,
    model: torch.nn.Module,
    weights: Callable[[], Weights],
    *,
    times: int = 3,
    zero_updates: Callable[[], tuple[int, Weights]] | None = None,
    live: Mapping[str, Tensor] | None = None,
    dtype: str = "float32",
) -> Control:
    """Run the control on an engine that is used for nothing else: its version counts up with every sync.

    `weights()`: the learner's, now. `zero_updates()`: make updates at learning rate 0, return how many and the weights
    after them. `live`: the learner's own tensors by name, one of which is changed for a moment. `model` is only read.
    """
    control = Control(times)
    allowed = ROUNDING[dtype]
    try:
        now = {name: tensor.detach().clone() for name, tensor in weights().items()}
        probed = _ProbedEngine(engine, int(model.get_input_embeddings().weight.shape[0]), now)
        control = replace(control, whole=probed.first.rows_RV is not None)
        if live:
            control = _without_a_sync(control, probed, live, allowed)
        control = _same_weights(control, probed, now, allowed)
        if zero_updates is not None:
            control = _zero_updates(control, probed, now, zero_updates, allowed)
        share, nats, causes = _planted(probed, model, now, dtype)
        return replace(
            control, planted_share=share, planted_nats=nats, causes=(*control.causes, *causes)
        )
    except EngineError as error:  # an engine that checks itself says what is wrong before we do
        cause = Cause(
            SYNC, f"the engine refused a sync: {error}", "it checks itself after every sync"
        )
        return replace(control, causes=(*control.causes, cause))


def _with_cause(control: Control, is_one: bool, kind: str, words: str, evidence: str) -> Control:
    return (
        replace(control, causes=(*control.causes, Cause(kind, words, evidence)))
        if is_one
        else control
    )


def _without_a_sync(
    control: Control, probed: _ProbedEngine, live: Mapping[str, Tensor], allowed: float
) -> Control:
    """How far the engine moves when every learner's tensor is changed in place and no sync is made; all are put back."""
    floats = [tensor for tensor in live.values() if tensor.is_floating_point()]
    kept = [tensor.clone() for tensor in floats]
    try:
        with torch.no_grad():
            for tensor in floats:
                tensor.mul_(1.5)
        _, untold = probed.moved()
    finally:
        with torch.no_grad():
            for tensor, old in zip(floats, kept):
                tensor.copy_(old)
    return _with_cause(
        replace(control, untold_moved=untold),
        untold > allowed,
        SHARED,
        "the engine has no copy of its own: it moved with the learner's weights, so nothing that this "
        "control says of syncs counts",
        f"it moved by {untold:.2g} nats",
    )


def _same_weights(control: Control, probed: _ProbedEngine, now: Weights, allowed: float) -> Control:
    rounds = []
    for _ in range(control.syncs):
        probed.sync(now)
        rounds.append(probed.moved())
    still = max(moved for _, moved in rounds)
    control = replace(
        control, tokens_changed=sum(changed for changed, _ in rounds), still_moved=still
    )
    return _with_cause(
        control,
        still > allowed,
        SYNC,
        "the policy moves although nothing was learned: a sync of the "
        "same weights changes what is sampled",
        f"by {still:.2g} nats, allowed are {allowed:g}",
    )


def _zero_updates(
    control: Control,
    probed: _ProbedEngine,
    now: Weights,
    zero_updates: Callable[[], tuple[int, Weights]],
    allowed: float,
) -> Control:
    try:
        made, after = zero_updates()
    except (DataError, LearnerError) as error:
        return replace(control, skipped=str(error))
    same = all(torch.equal(tensor, after[name]) for name, tensor in now.items())
    probed.sync(after)
    _, zero = probed.moved()
    control = replace(control, zero_updates=made, zero_weights=same, zero_moved=zero)
    return _with_cause(
        control,
        not same or zero > allowed,
        SYNC,
        "updates at learning rate 0 moved the policy",
        f"weights {'are the same' if same else 'differ'}, the engine moved by {zero:.2g} nats",
    )


def _planted(
    probed: _ProbedEngine, model: torch.nn.Module, now: Weights, dtype: str
) -> tuple[float, float, list[Cause]]:
    """Plant a change, and say how much of it arrived, how large it was, and what is wrong."""
    planted = plant(now, PlainForward(model).names.tied, PLANTED[dtype])
    probed.sync(planted)
    after = probed.probe()
    claims = _claims(after)
    forward = Forward(model, {NOW: planted, "before": now}, claims.sequences)
    old_M = forward.claims(Hypothesis(weights="before"))
    line_M = forward.claims(Hypothesis()) - old_M
    share = float(((claims.plain_M - old_M) * line_M).sum() / (line_M**2).sum())
    causes = _causes_of_loss(forward, claims, after, dtype)
    if not causes and not FULL[0] < share < FULL[1]:
        causes = [Cause(SYNC, "a planted change did not arrive in full", f"{share:.0%} of it")]
    probed.sync(now)
    changed, _ = probed.moved()
    if changed and not causes:
        causes = [
            Cause(
                SYNC,
                "the weights were handed back and the policy did not come back",
                f"{changed} sampled tokens are others",
            )
        ]
    return share, float(np.abs(line_M).mean()), causes


def _causes_of_loss(forward: Forward, claims: Claims, after: _Round, dtype: str) -> list[Cause]:
    """Which weights of before the engine still samples from, after a change was planted."""
    words = {NOW: "", "before": "the weights of the sync before"}
    tied = any(len(names) > 1 for names in forward.plain.names.tied)
    whole = weight_toggles(words)
    parts = part_toggles(forward, words, tied)
    declared: list[Toggle] = []
    if dtype != "float32":
        change = {"dtype": dtype}
        declared = [Toggle(DTYPE, f"in {dtype}, as declared", change, declared=True)]
    limits = limits_for((dtype,), False)
    explained = explain(forward, claims, limits, [*declared, *whole], parts, fit=False)
    causes = [cause for cause in explained.causes if cause.kind != UNEXPLAINED]
    if not causes and declared and after.rows_RV is not None:
        recorded = RecordedLogits(np.arange(len(claims)), after.rows_RV, True)
        hidden = hidden_weights(forward, claims, recorded, explained.now, [*whole, *parts])
        causes = [] if hidden is None else [hidden]
    return causes


def plant(weights: Weights, tied: Sequence[Sequence[str]], size: float) -> dict[str, Tensor]:
    """Every matrix changed a little, relative to its own size: the same change every time; ties stay ties."""
    planted = {name: tensor.detach().clone() for name, tensor in weights.items()}
    for number, names in enumerate(tied):
        held = [name for name in names if name in weights]
        tensor = weights[held[0]]
        if not tensor.is_floating_point() or tensor.ndim < 2:
            continue
        generator = torch.Generator().manual_seed(number)
        noise = torch.randn(tensor.shape, generator=generator).to(tensor)
        changed = tensor + size * tensor.std() * noise
        planted |= dict.fromkeys(held, changed)
    return planted


def _claims(probe: _Round) -> Claims:
    """Every sampled token of the probe."""
    ids = tuple(row_ids.astype(np.int64) for row_ids in probe.ids)
    sampled = tuple(np.arange(len(row_ids)) >= len(row_ids) - TOKENS for row_ids in ids)
    row_M = np.repeat(np.arange(len(ids)), TOKENS)
    place_M = np.concatenate([np.flatnonzero(row_sampled) for row_sampled in sampled])
    sequences = Sequences(
        ids, sampled, tuple(np.zeros(len(row_ids), np.int64) for row_ids in ids), row_M, place_M
    )
    unknown = np.full(len(row_M), np.nan)
    ones = np.ones(len(row_M))
    zeros = np.zeros(len(row_M), np.int64)
    return Claims(
        sequences,
        probe.logp_R.astype(np.float64),
        unknown,
        ones,
        ones,
        row_M,
        zeros,
        zeros,
        zeros,
        (),
        (),
    )
