"""Decode attention on a CPU, sequence by sequence, each over exactly its own keys.

One call over the slab makes every sequence read as many keys as the longest one has. And the few queries of a sequence
(one for each head that shares a key) make a product too thin for torch's matrix library, which spends most of its time
on arranging the keys; numpy's has a fast path for thin products. Both together halve the time, where sequences are long
enough to outweigh two calls for each of them.

Axis letters: A active sequences · K key/value heads · G query heads that share one · D head size of queries and keys ·
E head size of values (another one in latent attention) · L key positions.
"""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

THIN = 65_536   # multiplications in one product: above 80,000 numpy's library leaves its fast path (measured)
LONG = 8_192    # numbers in the keys of a sequence, on average, from where its own calls pay (measured)
THREADS = 2     # with more of them, one call that is spread over all is faster than this loop


def can_read_rows(keys: Tensor) -> bool:
    """False off the CPU and in half precision, which numpy does not have."""
    return keys.device.type == "cpu" and keys.dtype == torch.float32


def reads_long_rows(ends_A: Sequence[int], keys: Tensor) -> bool:
    """True where sequences of these lengths are attended faster one by one."""
    return (can_read_rows(keys) and torch.get_num_threads() <= THREADS
            and sum(ends_A) * keys.shape[1] * keys.shape[3] >= LONG * len(ends_A))


def attend_by_rows(query_AHD: Tensor, keys: Tensor, values: Tensor, ends_A: Sequence[int],
                   scaling: float | None, thin: int | None = None) -> Tensor:
    """softmax(scaling * q k^T) v for the newest token of every sequence [A, H, E], in float32 on the CPU, without
    gradient.

    Sequence a looks at positions 0 .. ends[a]-1 of its slot; `keys` [slots >= A, K, length, D] and `values` [slots >= A,
    K, length, E] are slabs. `thin`: multiplications in one product (None: `THIN`). The same numbers as one call over the
    slab, up to rounding.
    """
    active, heads, size = query_AHD.shape
    kv_heads, value_size = keys.shape[1], values.shape[3]
    scale = 1 / math.sqrt(size) if scaling is None else scaling
    query_AKGD = (query_AHD * scale).reshape(active, kv_heads, heads // kv_heads, size)
    scores_AKGL = query_AKGD.new_full((*query_AKGD.shape[:3], max(ends_A)), -math.inf)
    query, key, value, scores = (states.numpy() for states in (query_AKGD, keys, values, scores_AKGL))
    step = max(1, (thin or THIN) // (query.shape[2] * max(size, value_size)))
    for row, first, last in _pieces(ends_A, step):
        np.matmul(query[row], key[row, :, first:last].transpose(0, 2, 1), out=scores[row, :, :, first:last])
    weights = torch.softmax(scores_AKGL, dim=-1).numpy()
    out_AKGE = np.zeros((*query.shape[:3], value_size), query.dtype)
    for row, first, last in _pieces(ends_A, step):
        out_AKGE[row] += np.matmul(weights[row, :, :, first:last], value[row, :, first:last])
    return torch.from_numpy(out_AKGE).view(active, heads, value_size)


def _pieces(ends_A: Sequence[int], step: int) -> Iterator[tuple[int, int, int]]:
    """(sequence, first key, last key + 1), at most `step` keys at once."""
    for row, end in enumerate(ends_A):
        for first in range(0, end, step):
            yield row, first, min(first + step, end)
