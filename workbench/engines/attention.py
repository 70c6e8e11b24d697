"""One forward pass over tokens of many sequences, packed end to end, through an unmodified Hugging Face model.

Axis letters: T tokens of this pass (packed, batch size 1) · A sequences (slots 0 .. A-1) · H heads · K key/value heads ·
G query heads that share one · D head size of queries and keys · E head size of values (another one in latent attention)
· L key positions · B pieces of prompt handled together · n tokens of a piece.

Everything in such a model treats tokens one by one, except attention. transformers lets a model's attention be
replaced by name (its AttentionInterface), and builds no mask for a name it does not know; so `slot_attention` gets the
new queries, keys and values of all T tokens, files keys and values in the slab, and lets every token see its own
sequence and nothing else. The first A tokens are the newest token of each sequence, in slot order: they attend
through a plain view of the slab. Tokens of prompts before the newest one follow, in pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface

from workbench.engines.slots import SlotCache
from workbench.values.errors import EngineError

ATTENTION_NAME = "workbench_slots"
# Tensors that models hand down to attention although they are spent before it (rotation was already applied).
SPENT = frozenset({"position_ids", "cache_position", "input_ids", "attention_mask"})
PIECE = 256  # tokens of one piece: what bounds the size of a mask
PIECES_AREA = 4_000_000  # queries x keys handled in one call
THIN = 65_536  # multiplications in one product: above 80,000 numpy's library leaves its fast path (measured)
LONG = 8_192  # numbers in a sequence's keys, on average, from where its own calls pay (measured)
THREADS = 2  # with more of them, one call that is spread over all is faster than this loop


@dataclass(frozen=True)
class PackedPiece:
    """Tokens first .. first+count-1 of the packed pass: positions start .. of the sequence in `slot`."""

    slot: int
    start: int
    count: int
    first: int


@dataclass
class ForwardStep:
    """The state of one forward pass; masks are made once and shared by all layers."""

    cache: SlotCache
    slot_T: Tensor
    position_T: Tensor
    active: int
    ends: tuple[int, ...]  # of each active sequence: positions it has, new token included
    pieces: list[list[PackedPiece]] = field(default_factory=list)
    # Newest tokens sequence by sequence; None: where that is faster (probe: each).
    by_rows: bool | None = None
    thin: int | None = None  # how much of a row in one product, see `attend_by_rows`
    # Layer -> its sliding window, for the probe.
    seen_windows: dict[int, int | None] = field(default_factory=dict)
    _decode_masks: dict[int | None, Tensor] = field(default_factory=dict)
    _bundles: list[_Bundle] | None = None

    @property
    def key_length(self) -> int:
        return max(self.ends)

    def decode_mask(self, window: int | None) -> Tensor:
        """[A, 1, 1, L] True where the newest token of a sequence may look: its own past, inside the window."""
        if window not in self._decode_masks:
            mask_AL = _visible(self.key_length, self.position_T[: self.active, None], window)
            self._decode_masks[window] = mask_AL[:, None, None, :]
        return self._decode_masks[window]

    def bundles(self) -> list[_Bundle]:
        if self._bundles is None:
            self._bundles = [_Bundle(pieces, self.position_T.device) for pieces in self.pieces]
        return self._bundles


class _Bundle:
    """Pieces that are padded to one shape and attended together."""

    def __init__(self, pieces: list[PackedPiece], device: torch.device):
        self.longest = max(piece.count for piece in pieces)
        self.key_length = max(piece.start + piece.count for piece in pieces)
        self.first = pieces[0].first
        self.total = sum(piece.count for piece in pieces)
        self.slot_B = torch.tensor([piece.slot for piece in pieces], device=device)
        offset_n = torch.arange(self.longest, device=device)
        count_B1 = torch.tensor([[piece.count] for piece in pieces], device=device)
        start_B1 = torch.tensor([[piece.start] for piece in pieces], device=device)
        first_B1 = torch.tensor([[piece.first] for piece in pieces], device=device)
        # Padding repeats the last token of its piece: a real query, so that no row of the softmax is empty.
        inside_Bn = torch.minimum(offset_n, count_B1 - 1)
        self.token_Bn = first_B1 + inside_Bn
        self.position_Bn = start_B1 + inside_Bn
        self.valid_flat = (offset_n < count_B1).flatten().nonzero()[:, 0]
        self._masks: dict[int | None, Tensor] = {}

    def mask(self, window: int | None) -> Tensor:
        """[B, 1, n, L]"""
        if window not in self._masks:
            mask_BnL = _visible(self.key_length, self.position_Bn[:, :, None], window)
            self._masks[window] = mask_BnL[:, None]
        return self._masks[window]


def _visible(key_length: int, position: Tensor, window: int | None) -> Tensor:
    """Bool [..., L]: whether a query at `position` [..., 1] may look at a key: its own past, inside the window."""
    key_L = torch.arange(key_length, device=position.device)
    mask = key_L <= position
    if window is not None:
        mask &= key_L > position - window
    return mask


def bundle_pieces(pieces: list[PackedPiece]) -> list[list[PackedPiece]]:
    """Group neighbouring pieces as long as padding them to one shape wastes less than it saves in calls."""
    bundles: list[list[PackedPiece]] = []
    area = 0
    longest = 0
    reach = 0
    for piece in pieces:
        own = piece.count * (piece.start + piece.count)
        new_longest = max(longest, piece.count)
        new_reach = max(reach, piece.start + piece.count)
        padded = (len(bundles[-1]) + 1) * new_longest * new_reach if bundles else 0
        if bundles and padded <= 2 * (area + own) + 4096 and padded <= PIECES_AREA:
            bundles[-1].append(piece)
            area += own
            longest = new_longest
            reach = new_reach
        else:
            bundles.append([piece])
            area = own
            longest = piece.count
            reach = piece.start + piece.count
    return bundles


_STEP: ContextVar[ForwardStep] = ContextVar("workbench_step")


def slot_attention(
    module,
    query,
    key,
    value,
    attention_mask,
    scaling=None,
    sliding_window=None,
    softcap=None,
    is_causal=None,
    **others,
):
    """The attention that a model calls: query [1, H, T, D], key [1, kv heads, T, D] and value [1, kv heads, T, E] of the
    new tokens only.

    Returns ([1, T, H, E], None). Raises EngineError where a model asks for something that it does not understand;
    the probe turns that into the reason why such a model is served without a kept cache.
    """
    for name, other in others.items():
        if isinstance(other, Tensor) and name not in SPENT:
            raise EngineError(
                f"its attention wants {name!r}, which the slot attention does not know"
            )
    if attention_mask is not None or is_causal is False:
        raise EngineError("its attention brings a mask of its own")
    step = _STEP.get()
    layer = module.layer_idx
    step.seen_windows[layer] = sliding_window
    query_T = query[0].transpose(0, 1)
    key_T = key[0].transpose(0, 1)
    value_T = value[0].transpose(0, 1)
    keys, values = step.cache.write(layer, key_T, value_T, step.slot_T, step.position_T)
    active = step.active
    length = step.key_length
    if sliding_window is None and softcap is None and _by_rows(step, keys):
        decoded_A = attend_by_rows(query_T[:active], keys, values, step.ends, scaling, step.thin)
    else:
        decoded_A = _attend(
            query_T[:active, :, None],
            keys[:active, :, :length],
            values[:active, :, :length],
            step.decode_mask(sliding_window),
            scaling,
            softcap,
        )[:, 0]
    if not step.pieces:
        return decoded_A[None], None
    parts = [decoded_A]
    for bundle in step.bundles():
        attended = _attend(
            query_T[bundle.token_Bn].transpose(1, 2),
            keys[:, :, : bundle.key_length].index_select(0, bundle.slot_B),
            values[:, :, : bundle.key_length].index_select(0, bundle.slot_B),
            bundle.mask(sliding_window),
            scaling,
            softcap,
        )
        parts.append(attended.flatten(0, 1)[bundle.valid_flat])
    return torch.cat(parts)[None], None


def _by_rows(step: ForwardStep, keys: Tensor) -> bool:
    """Where both ways are right: the faster one, or the one that was asked for."""
    if step.by_rows is None:
        return reads_long_rows(step.ends, keys)
    return step.by_rows and can_read_rows(keys)


def _attend(query, keys, values, mask, scaling, softcap):
    """query [B, H, n, D] over keys [B, kv heads, L, D] and values [B, kv heads, L, E], mask [B, 1, n, L]; returns
    [B, n, H, E].

    Grouped queries: the heads that share a key are laid out as further queries of it, so keys are never repeated.
    """
    batch, heads, count, size = query.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    grouped = query.reshape(batch, kv_heads, shared * count, size)
    if shared > 1 and count > 1:
        mask = mask.repeat(1, 1, shared, 1)
    if softcap is None:
        mask = mask.expand(batch, 1, grouped.shape[2], keys.shape[2])
        out = torch.nn.functional.scaled_dot_product_attention(
            grouped, keys, values, attn_mask=mask, scale=scaling
        )
    else:
        scale = size**-0.5 if scaling is None else scaling
        scores = torch.matmul(grouped, keys.transpose(2, 3)) * scale
        capped = torch.tanh(scores / softcap) * softcap
        weights = torch.softmax(capped.float().masked_fill(~mask, -torch.inf), dim=-1)
        out = torch.matmul(weights.to(values.dtype), values)
    return out.reshape(batch, heads, count, -1).transpose(1, 2)


# ------------------------------------------------------------------------------------------------ sequence by sequence

# On a CPU each sequence is attended over exactly its own keys. One call over the slab makes every sequence read as many
# keys as the longest one has. And the few queries of a sequence (one for each head that shares a key) make a product too
# thin for torch's matrix library, which spends most of its time on arranging the keys; numpy's has a fast path for thin
# products. Both together halve the time, where sequences are long enough to outweigh two calls for each of them.


def can_read_rows(keys: Tensor) -> bool:
    """False off the CPU and in half precision, which numpy does not have."""
    return keys.device.type == "cpu" and keys.dtype == torch.float32


def reads_long_rows(ends_A: Sequence[int], keys: Tensor) -> bool:
    """True where sequences of these lengths are attended faster one by one."""
    if not can_read_rows(keys) or torch.get_num_threads() > THREADS:
        return False
    return sum(ends_A) * keys.shape[1] * keys.shape[3] >= LONG * len(ends_A)


def attend_by_rows(
    query_AHD: Tensor,
    keys: Tensor,
    values: Tensor,
    ends_A: Sequence[int],
    scaling: float | None,
    thin: int | None = None,
) -> Tensor:
    """softmax(scaling * q k^T) v for the newest token of every sequence [A, H, E], in float32 on the CPU, without
    gradient.

    Sequence a looks at positions 0 .. ends[a]-1 of its slot; `keys` [slots >= A, K, length, D] and `values` [slots >= A,
    K, length, E] are slabs. `thin`: multiplications in one product (None: `THIN`). The same numbers as one call over the
    slab, up to rounding.
    """
    active, heads, size = query_AHD.shape
    kv_heads = keys.shape[1]
    shared = heads // kv_heads
    value_size = values.shape[3]
    scale = 1 / math.sqrt(size) if scaling is None else scaling
    query_AKGD = (query_AHD * scale).reshape(active, kv_heads, shared, size)
    step = max(1, (thin or THIN) // (shared * max(size, value_size)))
    scores_AKGL = _scores_by_rows(query_AKGD, keys, ends_A, step)
    weights = torch.softmax(scores_AKGL, dim=-1).numpy()
    value = values.numpy()
    out_AKGE = np.zeros((active, kv_heads, shared, value_size), weights.dtype)
    for row, first, last in _row_pieces(ends_A, step):
        out_AKGE[row] += np.matmul(weights[row, :, :, first:last], value[row, :, first:last])
    return torch.from_numpy(out_AKGE).view(active, heads, value_size)


def _scores_by_rows(query_AKGD: Tensor, keys: Tensor, ends_A: Sequence[int], step: int) -> Tensor:
    """q k^T over each sequence's own keys [A, K, G, L], -inf beyond them; `step` keys in one product."""
    scores_AKGL = query_AKGD.new_full((*query_AKGD.shape[:3], max(ends_A)), -math.inf)
    query = query_AKGD.numpy()
    key = keys.numpy()
    scores = scores_AKGL.numpy()
    for row, first, last in _row_pieces(ends_A, step):
        key_KDL = key[row, :, first:last].transpose(0, 2, 1)
        np.matmul(query[row], key_KDL, out=scores[row, :, :, first:last])
    return scores_AKGL


def _row_pieces(ends_A: Sequence[int], step: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, first key, last key + 1), at most `step` keys at once."""
    for row, end in enumerate(ends_A):
        for first in range(0, end, step):
            yield row, first, min(first + step, end)


# ------------------------------------------------------------------------------------------------ the model

# (step, ids [1, T], keep: logits of the first `keep` positions only, or None for all) -> logits [positions, V]
Forward = Callable[[ForwardStep, Tensor, int | None], Tensor]


def slot_forward(model: torch.nn.Module, keeps_logits: bool) -> Forward:
    """The forward pass of a model whose attention is `slot_attention`: (step, ids [1, T], keep) -> logits [keep, V].

    `keeps_logits`: the model can be asked for the logits of chosen positions only.
    """

    def forward(step: ForwardStep, ids_1T: Tensor, keep: int | None) -> Tensor:
        chosen = {}
        if keep is not None and keeps_logits:
            chosen["logits_to_keep"] = torch.arange(keep, device=ids_1T.device)
        token = _STEP.set(step)
        try:
            logits = model(
                input_ids=ids_1T, position_ids=step.position_T[None], use_cache=False, **chosen
            ).logits[0]
        finally:
            _STEP.reset(token)
        return logits if keep is None else logits[:keep]

    return forward


# The name is global in transformers; a model uses it only if its own config names it, and only the engine's copy does.
AttentionInterface.register(ATTENTION_NAME, slot_attention)
