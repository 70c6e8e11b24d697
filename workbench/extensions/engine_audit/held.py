"""What an engine holds, beside what learns: weights that arrived otherwise are no matter of the engine's arithmetic.

An engine that can be read hands its tensors over, one that cannot the digests of what arrived (`held` in engines/base.py). Both are
compared bit for bit, after rounding to the dtype that the engine keeps them in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from workbench.engines.digests import digests
from workbench.engines.gap import head_name
from workbench.engines.intake import WeightNames
from workbench.extensions.engine_audit.forward import HELD, NOW, Weights
from workbench.extensions.engine_audit.toggles import HEAD, STALE, kind_of_parts

ROUNDED = (torch.bfloat16, torch.float16)  # that weights may be rounded to on their way


@dataclass(frozen=True, eq=False)
class HeldWeights:
    """What an engine says of the weights that it has. `version`: as it calls them; `name`: of the known set that they are, `HELD`
    where they are none; `words`: how they differ from the learner's, or in what dtype they are its own; `weights`: themselves, where
    they can be read and are not known under another name; `kind`: what that fault is called (toggles.py); empty: they are the learner's, or
    cannot be read."""

    version: int
    name: str
    words: str
    kind: str = ""
    weights: Weights | None = None


def held_by(
    engine: Any, known: Mapping[str, Weights], model: torch.nn.Module
) -> HeldWeights | None:
    """What `engine` holds, by the sets that are `known` (`NOW` among them, names as of `model`). None: it does not say."""
    held = getattr(engine, "held", None)
    if held is None:
        return None
    names = WeightNames.of(model)
    own = names.choose(known[NOW])
    if any(name not in held for name in own):  # an adapter that went alone, names of its own
        return None
    version = engine.policy_version
    if any(isinstance(value, str) for value in held.values()):
        return _by_digests(held, known, names, version)
    own = _under_all_names(own, names)
    for name in sorted(known, key=lambda other: other != NOW):
        sent = _under_all_names(names.choose(known[name]), names)
        rounded = _rounded_to(held, sent)
        if rounded is not None and name == NOW:
            return HeldWeights(version, name, _dtype_words(rounded))
        if rounded is not None:
            words = _other_words(held, own, _other_tensors(held, own))
            return HeldWeights(version, name, words, STALE)
    copied = {name: tensor.detach().clone() for name, tensor in held.items()}
    return HeldWeights(version, HELD, *_words_and_kind(held, own, names, model), copied)


def _words_and_kind(
    held: Weights, own: Weights, names: WeightNames, model: torch.nn.Module
) -> tuple[str, str]:
    """How weights that no version has differ from the learner's, and what that fault is called."""
    head = head_name(model)
    other = _other_tensors(held, own)
    kind = kind_of_parts(other, list(own), head)
    words = _other_words(held, own, other)
    if kind == HEAD and any(head in tied and len(tied) > 1 for tied in names.tied):
        words += " (the head is tied to the embedding)"
    return words, kind


def _under_all_names(chosen: Weights, names: WeightNames) -> dict[str, torch.Tensor]:
    """Each tensor under every name of its tie: an engine may have two tensors where the model has one."""
    full: dict[str, torch.Tensor] = {}
    for tied in names.tied:
        full |= dict.fromkeys(tied, chosen[tied[0]])
    return full


def _by_digests(
    held: Mapping[str, str], known: Mapping[str, Weights], names: WeightNames, version: int
) -> HeldWeights:
    for name, weights in known.items():
        sent = digests(names.choose(weights))
        if all(held[own] == sent[own] for own in sent):
            words = "" if name == NOW else "digests of what arrived are not those of its tensors"
            return HeldWeights(version, name, words)
    own = digests(names.choose(known[NOW]))
    other = [name for name in own if held[name] != own[name]]
    words = f"digests of {len(other)} of {len(own)} tensors that arrived are not those of the learner's, the first {other[0]}"
    return HeldWeights(version, HELD, words)


def _rounded_to(held: Weights, weights: Weights) -> set[torch.dtype] | None:
    """What these weights were rounded to where the engine holds them, by tensor; None: it holds others."""
    dtypes = set()
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            continue
        there = held[name].to(tensor.device)
        dtype = _dtype_between(there, tensor)
        if dtype is None:
            return None
        dtypes.add(dtype)
    return dtypes


def _dtype_between(there: torch.Tensor, sent: torch.Tensor) -> torch.dtype | None:
    """The dtype by which `sent` came to be `there`; None: it is another tensor."""
    for dtype in dict.fromkeys((there.dtype, *ROUNDED)):
        if torch.equal(sent.to(dtype).to(there.dtype), there):
            return dtype
    return None


def _dtype_words(dtypes: set[torch.dtype]) -> str:
    short = sorted(str(dtype).removeprefix("torch.") for dtype in dtypes if dtype.itemsize < 4)
    return f"some of them rounded to {' and '.join(short)}" if short else ""


def _other_tensors(held: Weights, own: Weights) -> tuple[str, ...]:
    """Those of the engine's tensors that are not the learner's, rounded or not."""
    return tuple(
        name for name in own if _dtype_between(held[name].to(own[name].device), own[name]) is None
    )


def _other_words(held: Weights, own: Weights, other: tuple[str, ...]) -> str:
    far = 0.0
    for name in other:
        apart = held[name].to(own[name].device).double() - own[name].double()
        far = max(far, float(apart.abs().max()))
    return f"{len(other)} of {len(own)} tensors are not the learner's, the first {other[0]}, by {far:.2g} at most"
