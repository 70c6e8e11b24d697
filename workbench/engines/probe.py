"""Deciding how a model may be run, by trying it: what the shortcut says must be what a plain forward pass says.

A list of known architectures would be wrong for the next one; a comparison of numbers is not.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.engines.attention import (
    ATTENTION_NAME,
    PIECE,
    ForwardStep,
    PackedPiece,
    bundle_pieces,
    slot_forward,
)
from workbench.engines.cohort_runner import own_cache
from workbench.engines.slots import SlotCache
from workbench.values.errors import EngineError

# Tokens that each session of the probe gets, pass by pass. The long one comes first: a prompt in two passes and several
# pieces, an observation that goes on from the cache after position 512 (beyond the usual short windows), then token by
# token. The short ones end before it, and are two, so that one that leaks into the other is noticed.
LONG = (300, 230, 30, 1, 1, 1, 1, 1, 1, 1)
SHORT = ((11, 1, 1, 1, 1, 1, 1, 1, 1), (4, 1, 1, 1))
FEW = 64  # tokens of a sequence whose logits are all made: more of them would fill the memory
# How newest tokens may attend, where a run chooses by lengths; the passes of the probe take turns.
WAYS = (dict(by_rows=False), dict(by_rows=True), dict(by_rows=True, thin=4_096))
# Largest difference of a log-probability: below it is rounding of the dtype, wrong attention is far above in float32.
TOLERANCE = {torch.float32: 3e-4, torch.float64: 3e-4, torch.float16: 0.05, torch.bfloat16: 0.3}


@dataclass(frozen=True)
class Verdict:
    """`mode`: "slots" (cache kept from turn to turn) | "turn" (the model's own cache within a turn) | "none"."""

    mode: str
    reason: str


def use_slots(model: torch.nn.Module) -> None:
    """Make this model (an engine's own copy) attend through the slab."""
    model.set_attn_implementation(ATTENTION_NAME)
    if model.config._attn_implementation != ATTENTION_NAME:
        raise EngineError("its attention cannot be replaced by name")


@dataclass(frozen=True, eq=False)
class _Session:
    """A sequence of the probe: its ids [T], and how many of them come in each pass."""

    ids_T: Tensor
    takes: tuple[int, ...]

    @property
    def ends(self) -> list[int]:
        """Positions that it has after each pass."""
        return list(itertools.accumulate(self.takes))


def judge(
    model: torch.nn.Module, vocab_size: int, device: torch.device, keeps_logits: bool, longest: int
) -> Verdict:
    """Find the fastest way that agrees with a plain forward pass, for sequences of up to `longest` tokens. Leaves the
    model set up for that way."""
    name = type(model).__name__
    sessions = _sessions(longest, vocab_size, device)
    plain = [_plainly(model, session, keeps_logits) for session in sessions]
    tolerance = TOLERANCE[model.dtype]
    before = model.config._attn_implementation
    if not getattr(model, "_supports_attention_backend", False):
        reason = f"{name} does not take its attention from transformers' AttentionInterface"
    else:
        try:
            use_slots(model)
            worst = _worst(_through_slots(model, sessions, device, keeps_logits), plain)
            if worst <= tolerance:
                tokens = max(len(session.ids_T) for session in sessions)
                return Verdict(
                    "slots",
                    f"kept from turn to turn; probe of {tokens} tokens agrees with a plain forward to {worst:.1e}",
                )
            reason = f"{name}: a kept cache differs from a plain forward by {worst:.1e} in log-probability"
        except EngineError as error:
            reason = f"{name}: {error}"
        except Exception as error:  # whatever a model raises, this way is not for it
            reason = f"{name}: {type(error).__name__}: {error}"
        model.set_attn_implementation(before)
    try:
        cached = [_through_own_cache(model, session) for session in sessions]
        # Whole prompts pass at once here, so there are no logits of their parts.
        worst = _worst(cached, [rows[-len(own) :] for rows, own in zip(plain, cached)])
    except Exception as error:
        worst = float("inf")
        reason = f"{reason}; its own cache fails too ({type(error).__name__}: {error})"
    if worst <= tolerance:
        return Verdict(
            "turn",
            f"{reason}; each turn is prefilled anew, within a turn the model's own cache is used",
        )
    return Verdict(
        "none", f"{reason}; its own cache is off by {worst:.1e}: every token is computed anew"
    )


def _sessions(longest: int, vocab_size: int, device: torch.device) -> list[_Session]:
    rng = np.random.default_rng(0)
    sessions = []
    for takes in (*_long_takes(longest), *SHORT):
        ids_T = torch.from_numpy(rng.integers(0, vocab_size, sum(takes))).to(device)
        sessions.append(_Session(ids_T, takes))
    return sessions


def _long_takes(longest: int) -> list[tuple[int, ...]]:
    """The long session's passes, its prompt cut to what a run can hold; none where that is hardly a prompt."""
    first, second, *later = LONG
    room = min(first + second, longest - sum(later))
    if room < 2:
        return []
    first_part = room * first // (first + second)
    return [(first_part, room - first_part, *later)]


def _plainly(model, session: _Session, keeps_logits: bool) -> Tensor:
    """Log-probabilities [passes, V] after each pass, by one plain forward."""
    last = torch.tensor(session.ends, device=session.ids_T.device) - 1
    chosen = {"logits_to_keep": last} if keeps_logits and len(session.ids_T) > FEW else {}
    logits = model(input_ids=session.ids_T[None], use_cache=False, **chosen).logits[0]
    return _log_softmax(logits if chosen else logits[last])


def _log_softmax(logits: Tensor) -> Tensor:
    return torch.log_softmax(logits.float(), dim=-1)


def _worst(own: list[Tensor], plain: list[Tensor]) -> float:
    """Largest difference of a log-probability over all positions; infinite if anything is not finite."""
    worst = [float((a - b).abs().max()) for a, b in zip(own, plain, strict=True)]
    return max(worst) if np.isfinite(worst).all() else float("inf")


def _through_slots(model, sessions: list[_Session], device, keeps_logits: bool) -> list[Tensor]:
    """Log-probabilities [passes, V] of each session after each of its passes, all together in one slab that grows."""
    cache = SlotCache(device)
    forward = slot_forward(model, keeps_logits)
    rows: list[list[Tensor]] = [[] for _ in sessions]
    for number in range(max(len(session.takes) for session in sessions)):
        # Sessions with fewer passes stand behind, so the active ones are always slots 0 .. A-1.
        active = [session for session in sessions if number < len(session.takes)]
        ends = [session.ends[number] for session in active]
        cache.reserve(len(sessions), max(cache.length, *ends))
        step = _step_of(cache, active, ends, number)
        tokens = zip(step.slot_T.tolist(), step.position_T.tolist())
        ids_T = torch.stack([active[slot].ids_T[position] for slot, position in tokens])
        logits = forward(step, ids_T[None], len(active) if step.pieces else None)
        _check_layers(model, step)
        for slot in range(len(active)):
            rows[slot].append(_log_softmax(logits[slot]))
    return [torch.stack(own) for own in rows]


def _step_of(cache: SlotCache, active: list[_Session], ends: list[int], number: int) -> ForwardStep:
    """The newest token of each session in pass `number`, then what comes before it, in pieces."""
    pieces = []
    slots = list(range(len(active)))
    positions = [end - 1 for end in ends]
    for slot, (session, end) in enumerate(zip(active, ends)):
        for start in range(end - session.takes[number], end - 1, PIECE):
            count = min(PIECE, end - 1 - start)
            pieces.append(PackedPiece(slot, start, count, len(slots)))
            slots += [slot] * count
            positions += range(start, start + count)
    return ForwardStep(
        cache,
        torch.tensor(slots, device=cache.device),
        torch.tensor(positions, device=cache.device),
        len(active),
        tuple(ends),
        bundle_pieces(pieces),
        **WAYS[number % len(WAYS)],
    )


def _check_layers(model, step: ForwardStep) -> None:
    """Raise EngineError for what small numbers could hide: layers without keys and values, windows longer than the probe."""
    config = model.config.get_text_config(decoder=True)
    count = config.num_hidden_layers
    others = sorted(set(range(count)) - set(step.seen_windows))
    if others:
        raise EngineError(
            f"{len(others)} of its {count} layers (such as layer {others[0]}) are not attention"
        )
    kinds = getattr(config, "layer_types", None)
    for layer, window in step.seen_windows.items():
        kind = kinds[layer] if kinds is not None else None
        if kind == "sliding_attention" and window is None:
            raise EngineError(f"layer {layer} is configured as sliding but asks for no window")
        if kind not in (None, "full_attention", "sliding_attention"):
            raise EngineError(f"layer {layer} has attention of kind {kind!r}")


def _through_own_cache(model, session: _Session) -> Tensor:
    """Log-probabilities [passes, V] after what comes before the last single tokens, all at once, and after each of
    those."""
    singles = len(list(itertools.takewhile(lambda take: take == 1, reversed(session.takes))))
    split = len(session.ids_T) - singles
    outputs = model(input_ids=session.ids_T[None, :split], use_cache=True, return_dict=True)
    rows = [_log_softmax(outputs.logits[0, -1])]
    for position in range(split, len(session.ids_T)):
        cache = own_cache(outputs)
        if not cache:
            raise EngineError("the model hands back no cache")
        newest = session.ids_T[None, position : position + 1]
        outputs = model(input_ids=newest, use_cache=True, return_dict=True, **cache)
        rows.append(_log_softmax(outputs.logits[0, -1]))
    return torch.stack(rows)
