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
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.auditing.causes import (DTYPE, SHARED, SYNC, UNEXPLAINED, Cause, Explained, Toggle, explain, limits_for,
                                       part_toggles, sharper, weight_toggles)
from workbench.auditing.claims import Claims, LogitsRecorder, RecordedLogits
from workbench.auditing.forward import NOW, Forward, Hypothesis, Sequences, Weights
from workbench.engines.base import Engine, Request
from workbench.engines.gap import PlainForward
from workbench.types.errors import DataError, EngineError, LearnerError

PROMPTS, PROMPT, TOKENS = 20, 12, 12   # of the probe: prompts of random ids, tokens of each, tokens sampled
# Relative size of the planted change: a tenth of a nat or so per token; more where rounding is coarse.
PLANTED = {"float32": 0.02, "bfloat16": 0.1, "float16": 0.1}
ROUNDING = {"float32": 2e-5, "bfloat16": 0.1, "float16": 0.1}  # nats a probability may move when asked once more
FULL = (0.8, 1.25)                      # share of a planted change that must arrive


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
    def lines(self) -> list[str]:
        """What was tried and found, in words."""
        if self.still_moved is None:
            return [f"not run: {self.skipped}"]
        over = "the whole vocabulary" if self.whole else "sampled tokens"
        said = [f"{self.syncs} syncs of the same weights: {self.tokens_changed} sampled tokens changed, the largest "
                f"change of a logprob is {self.still_moved:.2g} nats over {over}"]
        if self.untold_moved is not None:
            said.append(f"a weight of the learner changed, no sync: the engine moved by {self.untold_moved:.2g} nats")
        if self.zero_moved is not None:
            same = "the same bit for bit" if self.zero_weights else "NOT the same"
            said.append(f"{self.zero_updates} update(s) at learning rate 0: weights {same}, the engine moved by "
                        f"{self.zero_moved:.2g} nats")
        elif self.skipped:
            said.append(f"updates at learning rate 0 were not made: {self.skipped}")
        if self.planted_share is not None:
            said.append(f"a planted change of {self.planted_nats:.2g} nats per token: {self.planted_share:.1%} of it "
                        "arrived")
        return said


@dataclass(frozen=True, eq=False)
class _Said:
    """One round of the probe: `ids` sequences, their sampled tokens' logprobs [R], whole rows [R, V] or None."""

    ids: tuple[np.ndarray, ...]
    logp_R: np.ndarray
    rows_RV: Tensor | None

    def moved(self, other: "_Said") -> tuple[int, float]:
        """(sampled tokens that differ, largest change of a logprob)"""
        changed = sum(int((a != b).sum()) for a, b in zip(self.ids, other.ids))
        if changed:
            return changed, float("inf")
        if self.rows_RV is not None and other.rows_RV is not None:
            return 0, float((self.rows_RV - other.rows_RV).abs().nan_to_num(0.0).max())
        return 0, float(np.abs(self.logp_R - other.logp_R).max())


def zero_control(engine: Engine, model: torch.nn.Module, weights: Callable[[], Weights], *, times: int = 3,
                 zero_updates: Callable[[], tuple[int, Weights]] | None = None,
                 live: Mapping[str, Tensor] | None = None, dtype: str = "float32") -> Control:
    """Run the control on an engine that nobody else uses: its version counts up with every sync.

    `weights()`: the learner's, now. `zero_updates()`: make updates at learning rate 0, return how many and the weights
    after them. `live`: the learner's own tensors by name, one of which is changed for a moment. `model` is only read.
    """
    allowed = ROUNDING[dtype]
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    version = engine.policy_version
    causes: list[Cause] = []
    result: dict[str, object] = {}

    def sync(new: Weights) -> None:
        nonlocal version
        version += 1
        engine.sync(new, version)

    try:
        now = {name: tensor.detach().clone() for name, tensor in weights().items()}
        sync(now)
        first = _ask(engine, vocabulary)
        result["whole"] = first.rows_RV is not None
        if live:
            result["untold_moved"] = untold = _untold(engine, vocabulary, live, first)
            if untold > allowed:
                causes.append(Cause(SHARED, "the engine has no copy of its own: it moved with the learner's weights, so "
                                    "nothing that this control says of syncs counts", f"it moved by {untold:.2g} nats"))
        moved = []
        for _ in range(times):
            sync(now)
            moved.append(_ask(engine, vocabulary).moved(first))
        result |= {"tokens_changed": sum(c for c, _ in moved), "still_moved": max(m for _, m in moved)}
        if result["still_moved"] > allowed:
            causes.append(Cause(SYNC, "the policy moves although nothing was learned: a sync of the same weights changes "
                                "what is sampled", f"by {result['still_moved']:.2g} nats, allowed are {allowed:g}"))
        made, after = None, None
        if zero_updates is not None:
            try:
                made, after = zero_updates()
            except (DataError, LearnerError) as error:
                result["skipped"] = str(error)
        if made is not None:
            same = all(torch.equal(tensor, after[name]) for name, tensor in now.items())
            sync(after)
            changed, zero = _ask(engine, vocabulary).moved(first)
            result |= {"zero_updates": made, "zero_weights": same, "zero_moved": zero}
            if not same or zero > allowed:
                causes.append(Cause(SYNC, "updates at learning rate 0 moved the policy", f"weights "
                                    f"{'are the same' if same else 'differ'}, the engine moved by {zero:.2g} nats"))
        share, nats, named = _planted(engine, model, now, sync, vocabulary, first, dtype)
        result |= {"planted_share": share, "planted_nats": nats}
        causes += named
    except EngineError as error:  # an engine that checks itself says what is wrong before we do
        causes.append(Cause(SYNC, f"the engine refused a sync: {error}", "it checks itself after every sync"))
    return Control(times, causes=tuple(causes), **result)


def _ask(engine: Engine, vocabulary: int) -> _Said:
    """Sample the probe: the same prompts under the same seeds every time, whatever was asked before."""
    prompts = np.random.default_rng(5).integers(0, vocabulary, (PROMPTS, min(PROMPT, engine.context_length - TOKENS)))
    done = {}
    with LogitsRecorder(engine) as ear:
        for number, prompt in enumerate(prompts):
            engine.submit(Request(number, f"control#{number}", prompt, seed=number, max_new_tokens=TOKENS,
                                  stop_ids=frozenset()))
        for _ in range(100 * TOKENS):
            done |= {completion.request_id: completion for completion in engine.poll()}
            if len(done) == len(prompts):
                break
    for number in range(len(prompts)):
        engine.release(f"control#{number}")
    if bad := next((c.error for c in done.values() if c.error), None) or (None if len(done) == len(prompts) else
                                                                          "it did not answer"):
        raise EngineError(f"the probe of the control was not sampled: {bad}")
    ids = tuple(np.concatenate([prompt, done[number].token_ids]) for number, prompt in enumerate(prompts))
    keys = [(number, place) for number in range(len(prompts)) for place in range(len(done[number].token_ids))]
    rows = torch.stack([ear.rows[key] for key in keys]).log_softmax(-1) if all(k in ear.rows for k in keys) else None
    return _Said(ids, np.concatenate([done[number].logprobs for number in range(len(prompts))]), rows)


def _untold(engine: Engine, vocabulary: int, live: Mapping[str, Tensor], first: _Said) -> float:
    """How far the engine moves when every learner's tensor is changed in place and no sync is made; all are put back."""
    floats = [tensor for tensor in live.values() if tensor.is_floating_point()]
    kept = [tensor.clone() for tensor in floats]
    try:
        with torch.no_grad():
            for tensor in floats:
                tensor.mul_(1.5)
        return _ask(engine, vocabulary).moved(first)[1]
    finally:
        with torch.no_grad():
            for tensor, old in zip(floats, kept):
                tensor.copy_(old)


def _planted(engine: Engine, model: torch.nn.Module, now: Weights, sync: Callable[[Weights], None], vocabulary: int,
             first: _Said, dtype: str) -> tuple[float, float, list[Cause]]:
    """Plant a change, and say how much of it arrived, how large it was, and what is wrong."""
    planted = plant(now, PlainForward(model).names.tied, PLANTED[dtype])
    sync(planted)
    after = _ask(engine, vocabulary)
    claims, sequences = _claims(after), _sequences(after)
    known = {NOW: planted, "before": now}
    forward = Forward(model, known, sequences)
    words = {NOW: "", "before": "the weights of the sync before"}
    ones = np.ones(len(claims))
    old_M, new_M = (forward.claims(h, ones, ones) for h in (Hypothesis(weights="before"), Hypothesis()))
    line = new_M - old_M
    share = float(((claims.plain_M - old_M) * line).sum() / (line**2).sum())
    tied = any(len(names) > 1 for names in forward.plain.names.tied)
    whole, parts = weight_toggles(words), part_toggles(forward, words, tied)
    declared = [Toggle(DTYPE, f"in {dtype}, as declared", {"dtype": dtype}, declared=True)] * (dtype != "float32")
    found: Explained = explain(forward, claims, limits_for((dtype,), False), [*declared, *whole], parts, fit=False)
    named = [cause for cause in found.causes if cause.kind != UNEXPLAINED]
    if not named and declared and after.rows_RV is not None:
        heard = RecordedLogits(np.arange(len(claims)), after.rows_RV, True)
        hidden = sharper(forward, claims, heard, found.now, [*whole, *parts])
        named = [] if hidden is None else [hidden]
    if not named and not FULL[0] < share < FULL[1]:
        named = [Cause(SYNC, "a planted change did not arrive in full", f"{share:.0%} of it")]
    sync(now)
    changed, moved = _ask(engine, vocabulary).moved(first)
    if changed and not named:
        named = [Cause(SYNC, "the weights were handed back and the policy did not come back",
                       f"{changed} sampled tokens are others")]
    return share, float(np.abs(line).mean()), named


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
        planted |= {name: changed for name in held}
    return planted


def _sequences(said: _Said) -> Sequences:
    """The probe's sequences; every sampled token is looked at."""
    row_M, place_M = [], []
    for row, ids in enumerate(said.ids):
        row_M += [row] * TOKENS
        place_M += range(len(ids) - TOKENS, len(ids))
    sampled = tuple(np.arange(len(ids)) >= len(ids) - TOKENS for ids in said.ids)
    return Sequences(tuple(ids.astype(np.int64) for ids in said.ids), sampled,
                     tuple(np.zeros(len(ids), np.int64) for ids in said.ids), np.array(row_M), np.array(place_M))


def _claims(said: _Said) -> Claims:
    count = len(said.logp_R)
    nothing, zeros = np.full(count, np.nan), np.zeros(count, np.int64)
    sequences = _sequences(said)
    return Claims(sequences, said.logp_R.astype(np.float64), nothing, np.ones(count), np.ones(count),
                  sequences.row_M, zeros, zeros, zeros, (), ())
