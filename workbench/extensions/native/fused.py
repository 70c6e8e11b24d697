"""The forward pass of the embedded engine by the kernel (`engine.decode = "fused"`), and the trial that it must pass.

Axis letters: T tokens of a pass · A sequences · S slots of the slab · V vocabulary.

It takes the place of `slot_forward`: the same slab, the same tokens, all layers in one call. In float32 its numbers are
those of the other way up to rounding; and a token's are the same bits whoever else is in the pass. A model that is of
another kind, and a machine without a compiler, keep the other way, with the reason.

The first prompt of a group is kept once (`prompts`): less memory, and for all but the first that
read it it is still near. The numbers are the same ones in the same order, so no bit changes.

In bfloat16 (`engine.dtype`) weights lie in the memory that the engine has for them, and the factors of a product are rounded
to it; all else, keys and values as well, is float32. So its numbers are nearer to those of float32 than the other way's.
"""

from __future__ import annotations

import copy
import ctypes
import itertools
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from workbench.engines.attention import (
    PIECE,
    THREADS,
    Forward,
    ForwardStep,
    PackedPiece,
    bundle_pieces,
    slot_forward,
)
from workbench.engines.slots import SlotCache
from workbench.extensions.native.kernel import kernel
from workbench.extensions.native.layout import Model, Pass, WeightReader, rotations
from workbench.extensions.native.prompts import SharedSlotTable, addresses
from workbench.values.errors import EngineError

# Tokens of each sequence of the trial, pass by pass: prompts, observations that go on from the cache, single tokens.
TRIAL = ((90, 1, 1, 20, 1, 1, 1), (40, 1, 1, 1, 1), (9, 1, 1), (1, 1, 1))
TOLERANCE = 1e-4  # of a log-probability; rounding is far below it, another architecture far above
# The same where factors of the linear layers are rounded to bfloat16: 0.03 to 0.10 for shipped policies, 0.21 for SmolLM2.
HALF_TOLERANCE = 0.5
ROUND = 1024  # positions whose rotations are made together


def fused_decode(model: nn.Module, plain: Forward) -> tuple[Forward, str | None]:
    """The fused way to pass tokens through an engine's own copy of a model, and None; or `plain`, the way of today, and why
    it stays."""
    try:
        if torch.get_num_threads() > THREADS:
            raise EngineError(f"it works on one thread, and torch has {torch.get_num_threads()}")
        fused = FusedForward(model)
        half = model.dtype == torch.bfloat16
        # The shape of a model is tried in float32, where rounding hides nothing.
        whole = copy.deepcopy(model).float() if half else model
        exact = FusedForward(whole) if half else fused
        right = slot_forward(whole, keeps_logits=False) if half else plain
        _expect_near(exact, right, whole, TOLERANCE)
        if half:
            _expect_near(fused, right, whole, HALF_TOLERANCE)
        return fused, None
    except (AttributeError, EngineError) as error:
        return plain, f"engine.decode = 'fused' is not for {type(model).__name__} here: {error}"


def _expect_near(fused: Forward, plain: Forward, model: nn.Module, tolerance: float) -> None:
    worst = _gap(fused, plain, model)
    if worst > tolerance:
        raise EngineError(f"its log-probabilities would be other ones, by {worst:.1e}")


class FusedForward:
    """(step, ids [1, T], keep) -> logits [keep, V], as `attention.Forward`. Not thread-safe. Raises EngineError for a
    model that the kernel does not know."""

    table_kind = SharedSlotTable

    def __init__(self, model: nn.Module) -> None:
        self._model = model  # its weights are read where they lie, and a sync writes there
        self._layout: Model = WeightReader(model).read()
        self._kernel = kernel()
        self._kernel.room_of.restype = ctypes.c_int64
        self._work = torch.empty(0)
        self._rotations = self._rotations_to(1)

    def __call__(self, step: ForwardStep, ids_1T: Tensor, keep: int | None) -> Tensor:
        if len(step.cache.keys) < self._layout.layers:
            self._make_layers(step.cache)
        cosine, sine = self._rotations_for(step.key_length)
        count = ids_1T.shape[1]
        logits = torch.empty(count if keep is None else keep, self._layout.head.outputs)
        slot_stride, head_stride, *_ = step.cache.keys[0].stride()
        # Kept until the pass is over.
        token_ids = ids_1T[0].contiguous()
        token_slots = step.slot_T.contiguous()
        token_positions = step.position_T.contiguous()
        shared_S3 = addresses(step.cache, self._layout)
        this_pass = Pass(
            tokens=count,
            kept=len(logits),
            longest=step.key_length,
            id=token_ids.data_ptr(),
            slot=token_slots.data_ptr(),
            position=token_positions.data_ptr(),
            shared=shared_S3.ctypes.data,
            cosine=cosine.data_ptr(),
            sine=sine.data_ptr(),
            keys=self._addresses(step.cache.keys),
            values=self._addresses(step.cache.values),
            slot_stride=slot_stride,
            head_stride=head_stride,
            work=self._room(count, step.key_length),
            logits=logits.data_ptr(),
        )
        self._kernel.run_pass(ctypes.byref(self._layout), ctypes.byref(this_pass))
        return logits

    def _addresses(self, slabs: Mapping[int, Tensor]) -> ctypes.Array:
        """Where the slab of each layer begins."""
        layers = self._layout.layers
        return (ctypes.c_void_p * layers)(*(slabs[layer].data_ptr() for layer in range(layers)))

    def _make_layers(self, cache: SlotCache) -> None:
        """Let the slab make its memory, as the first tokens of a layer do."""
        none = torch.empty(0, self._layout.kv_heads, self._layout.size)
        nowhere = torch.empty(0, dtype=torch.long)
        for layer in range(self._layout.layers):
            cache.write(layer, none, none, nowhere, nowhere)

    def _room(self, tokens: int, longest: int) -> int:
        needed = self._kernel.room_of(
            ctypes.byref(self._layout), ctypes.c_int64(tokens), ctypes.c_int64(longest)
        )
        if needed > len(self._work):
            self._work = torch.empty(needed + needed // 2)
        return self._work.data_ptr()

    def _rotations_for(self, longest: int) -> tuple[Tensor, Tensor]:
        if longest > len(self._rotations[0]):
            self._rotations = self._rotations_to(longest)
        return self._rotations

    def _rotations_to(self, longest: int) -> tuple[Tensor, Tensor]:
        count = -(-longest // ROUND) * ROUND
        made = rotations(self._model, count)
        for table in made:
            if table.shape != (count, self._layout.size):
                raise EngineError("it turns only a part of each head by its position")
        return made


# ------------------------------------------------------------------------------------------------ the trial


def _gap(fused: Forward, plain: Forward, model: nn.Module) -> float:
    """Largest difference of a log-probability between both ways over the trial; infinite where one is not finite."""
    ways = ((fused, SlotCache(torch.device("cpu"))), (plain, SlotCache(torch.device("cpu"))))
    rng = np.random.default_rng(0)
    vocabulary = model.get_input_embeddings().weight.shape[0]
    ids = [rng.integers(0, vocabulary, sum(takes)) for takes in TRIAL]
    worst = 0.0
    with torch.inference_mode():
        for number in range(max(map(len, TRIAL))):
            count = sum(number < len(takes) for takes in TRIAL)
            ends = [list(itertools.accumulate(takes))[number] for takes in TRIAL[:count]]
            takes = [takes[number] for takes in TRIAL[:count]]
            own, other = (_try(way, cache, ids, ends, takes) for way, cache in ways)
            worst = max(worst, float((own - other).abs().max()))
            if not np.isfinite(worst):
                return float("inf")
    return worst


def _try(
    way: Forward, cache: SlotCache, ids: list[np.ndarray], ends: list[int], takes: list[int]
) -> Tensor:
    """Log-probabilities [A, V] after one pass of the trial."""
    cache.reserve(len(TRIAL), max(cache.length, *ends))
    slots = list(range(len(ends)))
    positions = [end - 1 for end in ends]
    pieces = []
    for slot, (end, take) in enumerate(zip(ends, takes)):
        for start in range(end - take, end - 1, PIECE):
            count = min(PIECE, end - 1 - start)
            pieces.append(PackedPiece(slot, start, count, len(slots)))
            slots += [slot] * count
            positions += range(start, start + count)
    step = ForwardStep(
        cache,
        torch.tensor(slots),
        torch.tensor(positions),
        len(ends),
        tuple(ends),
        bundle_pieces(pieces),
    )
    ids_1T = torch.tensor([[ids[slot][place] for slot, place in zip(slots, positions)]])
    logits = way(step, ids_1T, len(ends) if pieces else None)
    return torch.log_softmax(logits.float(), dim=-1)
