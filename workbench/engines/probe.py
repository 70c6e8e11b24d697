"""Deciding how a model may be run, by trying it: what the shortcut says must be what a plain forward pass says.

A list of known architectures would be wrong for the next one; a comparison of numbers is not.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from workbench.engines.attention import ATTENTION_NAME, Piece, Step, attending, bundle_pieces
from workbench.engines.cohort_runner import own_cache
from workbench.engines.slots import SlotCache
from workbench.errors import EngineError

LENGTHS = (19, 7)       # two sequences, so that one that leaks into the other is noticed
SPLIT = (11, 4)         # tokens of them that come in the first pass; the rest comes one by one
# Largest difference of a log-probability: below it is rounding of the dtype, wrong attention is far above in float32.
TOLERANCE = {torch.float32: 3e-4, torch.float64: 3e-4, torch.float16: 0.05, torch.bfloat16: 0.3}


# (step, ids [1, T], keep: logits of the first `keep` positions only, or None for all) -> logits [positions, V]
Forward = Callable[[Step, torch.Tensor, int | None], torch.Tensor]


@dataclass(frozen=True)
class Verdict:
    """`mode`: "slots" (cache kept from turn to turn) | "turn" (the model's own cache within a turn) | "none"."""

    mode: str
    reason: str


def slot_forward(model: torch.nn.Module, keeps_logits: bool) -> Forward:
    """The forward pass of a model whose attention is `slot_attention`: (step, ids [1, T], keep) -> logits [keep, V].

    `keeps_logits`: the model can be asked for the logits of chosen positions only.
    """

    def forward(step: Step, ids_1T: torch.Tensor, keep: int | None) -> torch.Tensor:
        chosen = {}
        if keep is not None and keeps_logits:
            chosen["logits_to_keep"] = torch.arange(keep, device=ids_1T.device)
        with attending(step):
            logits = model(input_ids=ids_1T, position_ids=step.position_T[None], use_cache=False, **chosen).logits[0]
        return logits if keep is None else logits[:keep]

    return forward


def use_slots(model: torch.nn.Module) -> None:
    """Make this model (an engine's own copy) attend through the slab."""
    model.set_attn_implementation(ATTENTION_NAME)
    if model.config._attn_implementation != ATTENTION_NAME:
        raise EngineError("its attention cannot be replaced by name")


def judge(model: torch.nn.Module, vocab_size: int, device: torch.device, keeps_logits: bool) -> Verdict:
    """Find the fastest way that agrees with a plain forward pass. Leaves the model set up for that way."""
    name = type(model).__name__
    rng = np.random.default_rng(0)
    sequences = [torch.from_numpy(rng.integers(0, vocab_size, length)).to(device) for length in LENGTHS]
    plain = [
        _log_softmax(model(input_ids=ids[None], use_cache=False).logits[0, split - 1 :])
        for ids, split in zip(sequences, SPLIT)
    ]
    tolerance = TOLERANCE[model.dtype]
    before = model.config._attn_implementation
    if not getattr(model, "_supports_attention_backend", False):
        reason = f"{name} does not take its attention from transformers' AttentionInterface"
    else:
        try:
            use_slots(model)
            found = _through_slots(model, sequences, device, keeps_logits)
            worst = _worst(found, plain)
            if worst <= tolerance:
                return Verdict("slots", f"kept from turn to turn; probe agrees with a plain forward to {worst:.1e}")
            reason = f"{name}: a kept cache differs from a plain forward by {worst:.1e} in log-probability"
        except EngineError as error:
            reason = f"{name}: {error}"
        except Exception as error:  # whatever a model does with it, the answer is the same: this way is not for it
            reason = f"{name}: {type(error).__name__}: {error}"
        model.set_attn_implementation(before)
    try:
        worst = _worst(_through_own_cache(model, sequences), plain)
    except Exception as error:
        worst, reason = float("inf"), f"{reason}; its own cache fails too ({type(error).__name__}: {error})"
    if worst <= tolerance:
        return Verdict("turn", f"{reason}; each turn is prefilled anew, within a turn the model's own cache is used")
    return Verdict("none", f"{reason}; its own cache is off by {worst:.1e}: every token is computed anew")


def _log_softmax(logits: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(logits.float(), dim=-1)


def _worst(found: list[torch.Tensor], plain: list[torch.Tensor]) -> float:
    """Largest difference of a log-probability over all positions; infinite if anything is not finite."""
    worst = max(float((a - b).abs().max()) for a, b in zip(found, plain, strict=True))
    return worst if np.isfinite(worst) else float("inf")


def _through_slots(model, sequences, device, keeps_logits) -> list[torch.Tensor]:
    """Log-probabilities [length - split + 1, V] after the first part of every sequence and after each later token, both
    sequences together in one slab: first parts at once, then one by one."""
    cache = SlotCache(device)
    cache.reserve(len(sequences), max(LENGTHS))
    forward = slot_forward(model, keeps_logits)
    found: list[list[torch.Tensor]] = [[] for _ in sequences]
    done = [0] * len(sequences)
    take = list(SPLIT)
    while any(done[i] < LENGTHS[i] for i in range(len(sequences))):
        active = [i for i in range(len(sequences)) if done[i] < LENGTHS[i]]
        # A shorter sequence is done first, so the active ones are always slots 0 .. A-1.
        pieces, first = [], len(active)
        for slot in active:
            if take[slot] > 1:
                pieces.append(Piece(slot, done[slot], take[slot] - 1, first))
                first += take[slot] - 1
        newest = [done[i] + take[i] - 1 for i in active]
        ids = torch.cat([torch.stack([sequences[i][p] for i, p in zip(active, newest)]),
                         *(sequences[p.slot][p.start : p.start + p.count] for p in pieces)])
        slots = torch.tensor(active + [p.slot for p in pieces for _ in range(p.count)], device=device)
        positions = torch.tensor(newest + [q for p in pieces for q in range(p.start, p.start + p.count)], device=device)
        step = Step(cache, slots, positions, len(active), tuple(p + 1 for p in newest), bundle_pieces(pieces))
        logits = forward(step, ids[None], len(active) if pieces else None)
        _check_layers(model, step)
        for index, slot in enumerate(active):
            found[slot].append(_log_softmax(logits[index]))
            done[slot], take[slot] = done[slot] + take[slot], 1
    return [torch.stack(rows) for rows in found]


def _check_layers(model, step: Step) -> None:
    """What small numbers could hide: layers whose memory is no keys and values, windows longer than the probe."""
    config = model.config.get_text_config(decoder=True)
    count = config.num_hidden_layers
    others = sorted(set(range(count)) - set(step.seen_windows))
    if others:
        raise EngineError(f"{len(others)} of its {count} layers (such as layer {others[0]}) are not attention")
    kinds = getattr(config, "layer_types", None)
    for layer, window in step.seen_windows.items():
        kind = kinds[layer] if kinds is not None else None
        if kind == "sliding_attention" and window is None:
            raise EngineError(f"layer {layer} is configured as sliding but asks for no window")
        if kind not in (None, "full_attention", "sliding_attention"):
            raise EngineError(f"layer {layer} has attention of kind {kind!r}")


def _through_own_cache(model, sequences) -> list[torch.Tensor]:
    found = []
    for ids, split in zip(sequences, SPLIT):
        outputs = model(input_ids=ids[None, :split], use_cache=True, return_dict=True)
        rows = [_log_softmax(outputs.logits[0, -1])]
        for position in range(split, len(ids)):
            cache = own_cache(outputs)
            if not cache:
                raise EngineError("the model hands back no cache")
            outputs = model(input_ids=ids[None, position : position + 1], use_cache=True, return_dict=True, **cache)
            rows.append(_log_softmax(outputs.logits[0, -1]))
        found.append(torch.stack(rows))
    return found
