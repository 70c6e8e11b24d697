"""What may have gone wrong between engine and trainer, each as a change of one hypothesis: the toggles to be tried.

Axis letters: M sampled tokens that are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from workbench.extensions.engine_audit.claims import Claims
from workbench.extensions.engine_audit.forward import (
    LARGEST,
    NOW,
    POSITIONS,
    Forward,
    Hypothesis,
    bent,
)

TEMPERATURE = "temperature"
TOP_P = "top-p"
STALE = "stale weights"
HEAD = "output head"
PART = "part of the weights"
DTYPE = "dtype"
POSITION = "positions"
IDS = "different ids"
ADAPTER = "adapter"
TRAINER = "trainer's own pass"
SYNC = "sync"
SHARED = "shared weights"
UNEXPLAINED = "unexplained"
FITTED = 0.02  # a temperature nearer than this to the one that was declared is no finding: rounding bends a little too
SUBSET = 192  # tokens that temperature and top-p are fitted on


@dataclass(frozen=True)
class Toggle:
    """A hypothesis and what it means if it closes the gap. `declared`: the settings say so, it is no fault."""

    kind: str
    words: str
    change: Mapping[str, object]
    of_weights: bool = False
    declared: bool = False


def weight_toggles(
    known: Mapping[str, str], adapters: Sequence[str] = (), kinds: Mapping[str, str] | None = None
) -> list[Toggle]:
    """Other sets of weights as a whole. `known`: name -> words; those in `adapters` differ from now by an adapter; `kinds`: what a set
    is called of which it is known that only a part of it is another."""
    kinds = dict.fromkeys(adapters, ADAPTER) | dict(kinds or {})
    return [
        Toggle(
            kinds.get(name, STALE),
            f"the adapter is not merged: the engine has {words}"
            if name in adapters
            else f"the engine samples from {words}",
            {"weights": name},
            of_weights=True,
        )
        for name, words in known.items()
        if name != NOW
    ]


def part_toggles(forward: Forward, known: Mapping[str, str], tied: bool) -> list[Toggle]:
    """Parts that stayed behind in one of these sets: the output head, the embedding, a layer, a tensor."""
    parts = parts_of(list(forward.known[NOW]), forward.plain.head)
    made = []
    for name, words in known.items():
        for part, names in parts.items() if name != NOW else ():
            if all(torch.equal(forward.known[NOW][n], forward.known[name][n]) for n in names):
                continue
            is_head = part == "output head"
            tie = " (tied to the embedding)" if is_head and tied else ""
            made.append(
                Toggle(
                    HEAD if is_head else PART,
                    f"the {part}{tie} was not refreshed: it is still that of {words}",
                    {"weights": name, "part": names},
                    of_weights=True,
                )
            )
    return made


def kind_of_parts(other: Sequence[str], names: Sequence[str], head: str | None) -> str:
    """What a fault is called by which of the tensors `names` are not the learner's: the output head alone, some parts, or every one."""
    parts = parts_of(names, head)
    behind = [part for part, tensors in parts.items() if not set(tensors).isdisjoint(other)]
    if behind == ["output head"]:
        return HEAD
    return STALE if len(behind) == len(parts) else PART


def parts_of(names: Sequence[str], head: str | None) -> dict[str, tuple[str, ...]]:
    """Tensors by part: each layer is one, the output head is one, any other tensor is one by itself."""
    parts: dict[str, list[str]] = {}
    for name in names:
        layer = re.match(r"(.*?\.\d+)\.", name)
        part = layer.group(1) if layer else name
        if name == head:
            part = "output head"
        parts.setdefault(part, []).append(name)
    ordered = sorted(parts, key=lambda part: part != "output head")
    return {part: tuple(parts[part]) for part in ordered}


def setting_toggles(
    claims: Claims,
    temperature: float | None,
    top_p: float | None,
    *,
    bf16: bool,
    other_ids: str | None,
) -> list[Toggle]:
    """Hypotheses about settings that are known: what was asked for, dtypes that were declared. `other_ids`: how the
    trained ids differ from the journal's, None where they do not."""
    made: list[Toggle] = []
    if other_ids is not None:
        words = f"other ids are trained than were sampled: {other_ids}"
        made.append(Toggle(IDS, words, {"journal": True}))
    for dtype in claims.dtypes:
        if dtype in ("bfloat16", "float16"):
            words = f"the engine computes in {dtype}, as declared"
            made.append(Toggle(DTYPE, words, {"dtype": dtype}, declared=True))
    if bf16 and "float32" in claims.dtypes:
        words = "the trainer's pass is in bfloat16, as declared"
        made.append(Toggle(DTYPE, words, {"dtype": "float32"}, declared=True))
    declared = set(zip(claims.temperature_M.tolist(), claims.top_p_M.tolist()))
    asked = {(1.0, 1.0)} | ({(temperature, top_p)} if temperature and top_p else set())
    return made + _bent_toggles(declared, asked)


def _bent_toggles(
    declared: set[tuple[float, float]], asked: set[tuple[float, float]]
) -> list[Toggle]:
    """The temperatures and top-ps that were declared or asked for, and the model's own distribution where it was not."""
    made: list[Toggle] = []
    for heat, nucleus in sorted(asked | declared):
        if heat == 0 or declared == {(1.0, 1.0)} == {(heat, nucleus)}:
            continue
        change = {"temperature": heat, "top_p": min(nucleus, 1.0)}
        if heat != 1 or nucleus < 1:
            kind = TEMPERATURE if heat != 1 else TOP_P
            made.append(Toggle(kind, _bent_words(heat, nucleus), change))
        elif (1.0, 1.0) not in declared:
            kind = TEMPERATURE if any(t != 1 for t, _ in declared) else TOP_P
            words = (
                f"{kind} was declared and not applied: the numbers are of the model's own softmax"
            )
            made.append(Toggle(kind, words, change))
    return made


def further_toggles(engine_dtypes: Sequence[str]) -> list[Toggle]:
    """Hypotheses that nothing declares, tried where there is a gap to explain."""
    dtypes = [dtype for dtype in ("bfloat16", "float16") if dtype not in engine_dtypes]
    made: list[Toggle] = []
    for key, words in (
        ("dtype", "the engine computes"),
        ("head_dtype", "the engine's output head is"),
    ):
        for dtype in dtypes:
            made.append(Toggle(DTYPE, f"{words} in {dtype}, which nothing declares", {key: dtype}))
    made += [
        Toggle(POSITION, words, {"positions": name}) for name, (words, _, _) in POSITIONS.items()
    ]
    made += [
        Toggle(POSITION, f"the logprobs stand one token {words}", {"places": places})
        for places, words in ((1, "too early"), (-1, "too late"))
    ]
    return made


def fitted_toggles(forward: Forward, claims: Claims, now: Hypothesis) -> Iterator[Toggle]:
    """The temperature, and the top-p, that explain most, whether or not they were declared."""
    use_bent_M = np.isnan(claims.plain_M) | (~np.isnan(claims.said_M)).all()
    said_M = np.where(use_bent_M, claims.said_M, claims.plain_M)
    some = np.flatnonzero(~np.isnan(said_M))[:SUBSET]
    logits_MV = forward.logits(now)
    token_M = torch.from_numpy(forward.sequences(now).token_M).to(logits_MV.device)
    logits = logits_MV[torch.from_numpy(some)]
    token = token_M[torch.from_numpy(some)]

    def left(temperature: float, top_p: float) -> float:
        """The gap that is left under these settings, in nats per token."""
        logp_MV = bent(logits, temperature, top_p)
        logp = logp_MV.gather(1, token[:, None])[:, 0].double().cpu().numpy()
        return float(np.clip(np.abs(said_M[some] - logp), 0, LARGEST).mean())

    heat = _fitted_temperature(lambda temperature: left(temperature, 1.0))
    if abs(heat - 1.0) > FITTED and now.temperature is None:
        change = {"temperature": heat, "top_p": 1.0}
        yield Toggle(TEMPERATURE, _bent_words(heat, 1.0, "about "), change)
    declared = now.temperature or 1.0
    grid = np.arange(0.5, 1.0, 0.01 if logits.shape[1] <= 8192 else 0.05)
    nucleus = float(grid[np.argmin([left(declared, float(top_p)) for top_p in grid])])
    if now.top_p is None or now.top_p == 1.0:
        change = {"temperature": declared, "top_p": nucleus}
        yield Toggle(TOP_P, _bent_words(declared, nucleus, "about "), change)


def _fitted_temperature(left: Callable[[float], float]) -> float:
    """The temperature from 1/5 to 5 that leaves least, by a grid that is refined."""
    center = 0.0
    width = np.log(5.0)
    for _ in range(5):
        grid = np.linspace(center - width, center + width, 21)
        center = float(grid[np.argmin([left(float(np.exp(x))) for x in grid])])
        width = width / 8
    return float(np.exp(center))


def _bent_words(heat: float, nucleus: float, about: str = "") -> str:
    parts = [f"temperature {about}{heat:.3g}"] * (heat != 1) + [f"top-p {about}{nucleus:.2f}"] * (
        nucleus < 1
    )
    return f"{' and '.join(parts)} not accounted for: the engine's numbers are of that distribution"


def is_adapter(now: Mapping[str, torch.Tensor], base: Mapping[str, torch.Tensor]) -> bool:
    """Do they differ as an adapter makes them differ: in some matrices only, and there by few directions?"""
    changed = [name for name in now if name in base and not torch.equal(now[name], base[name])]
    if not changed or any(now[name].ndim != 2 for name in changed):
        return False
    for name in changed:
        delta = (now[name].double() - base[name].double()).cpu()
        sizes = torch.linalg.svdvals(delta)
        rank = int((sizes > 1e-3 * sizes[0]).sum())
        if rank > min(64, min(delta.shape) // 3):
            return False
    return True
