"""Packed attention on NVIDIA GPUs, by torch's variable-length flash attention. Not run on a GPU here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature

import torch
from torch import Tensor

from workbench.values.errors import LearnerError


def varlen_attention(
    query_HTD: Tensor,
    key_KTD: Tensor,
    value_KTE: Tensor,
    parts: Sequence[tuple[int, int, int, int]],
    scale: float | None = None,
) -> Tensor:
    """`packing.packed_attention` by `torch.nn.attention.varlen`: one kernel for all parts (start, stop, prefix_start,
    prefix_stop; see `packing.Part`), on NVIDIA GPUs, in half precision.

    Each part's keys are its prefix and itself, end to end, so a shared prompt's keys are copied (its queries are not);
    causality is counted from the last query and the last key of a part, as flash attention does where there are more keys
    than queries. All tokens stand in a part. Raises LearnerError where the kernel cannot be asked.
    """
    from torch.nn.attention.varlen import varlen_attn

    # Autocast casts what goes into torch's own attention, but not this.
    if torch.is_autocast_enabled(query_HTD.device.type):
        half = torch.get_autocast_dtype(query_HTD.device.type)
        query_HTD = query_HTD.to(half)
        key_KTD = key_KTD.to(half)
        value_KTE = value_KTE.to(half)
    if (
        query_HTD.dtype not in (torch.bfloat16, torch.float16)
        or value_KTE.shape[2] != query_HTD.shape[2]
    ):
        raise LearnerError(
            f"variable-length attention takes half precision and one head size, got {query_HTD.dtype}, "
            f"{query_HTD.shape[2]} and {value_KTE.shape[2]}"
        )
    # torch 2.11 asks its kernel without this word, and whether that shares keys, the probe of `make_packable` finds out.
    known = signature(varlen_attn).parameters
    grouped = {"enable_gqa": len(query_HTD) != len(key_KTD)} if "enable_gqa" in known else {}
    query_T, ends_q, longest_q, key_L, ends_k, longest_k = _ends_to_ends(
        tuple(parts), query_HTD.device
    )
    out_THE = varlen_attn(
        query_HTD.transpose(0, 1)[query_T],
        key_KTD.transpose(0, 1)[key_L],
        value_KTE.transpose(0, 1)[key_L],
        ends_q,
        ends_k,
        longest_q,
        longest_k,
        scale=scale,
        window_size=(-1, 0),
        **grouped,
    )
    return torch.zeros_like(out_THE).index_copy(0, query_T, out_THE).transpose(0, 1)


@lru_cache(maxsize=2)  # the layers of a pass ask for the same
def _ends_to_ends(
    parts: tuple[tuple[int, int, int, int], ...], device: torch.device
) -> tuple[Tensor, Tensor, int, Tensor, Tensor, int]:
    """Of the queries, and then of the keys: their places, part by part; where each part ends among them; the longest."""
    queries = [torch.arange(start, stop) for start, stop, _, _ in parts]
    keys = [torch.cat([torch.arange(*prefix), own]) for (_, _, *prefix), own in zip(parts, queries)]
    return *_end_to_end(queries, device), *_end_to_end(keys, device)


def _end_to_end(stretches: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor, int]:
    """The places of all stretches, where each stretch ends among them (from 0 on), and the longest."""
    lengths = [len(stretch) for stretch in stretches]
    ends = torch.tensor([0, *lengths]).cumsum(0)
    return torch.cat(stretches).to(device), ends.to(device, torch.int32), max(lengths)
