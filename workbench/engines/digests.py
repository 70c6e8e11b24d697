"""Did the weights arrive? A digest of each tensor, the same wherever it is taken: on the CPU or a GPU, here or in a server.

Integers are summed with a weight for their place, modulo 2^64. A single changed bit changes the sum, so do two values that
changed places; nobody who wants to deceive is kept out.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

PIECE = 1 << 22  # numbers at a time: eight times as many bytes are needed for them
STRIDE = 0x1E3779B97F4A7C15  # odd and without a pattern: what the places are weighted by
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def digest(tensor: torch.Tensor) -> str:
    """Type, shape and 16 hexadecimal digits of the bits of a tensor."""
    with torch.no_grad():
        words = tensor.detach().contiguous().reshape(-1).view(_WORDS[tensor.element_size()])
        total = torch.zeros((), dtype=torch.int64, device=words.device)
        for start in range(0, len(words), PIECE):
            piece = words[start : start + PIECE].to(torch.int64)
            places = torch.arange(start, start + len(piece), dtype=torch.int64, device=words.device)
            total += (piece * (places * STRIDE | 1)).sum()
    shape = "x".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')} {shape} {int(total) % 2**64:016x}"


def digests(weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """By name."""
    return {name: digest(tensor) for name, tensor in weights.items()}


def unequal(sent: Mapping[str, str], arrived: Mapping[str, str]) -> str | None:
    """In words, which tensors did not arrive as they were sent; None where all did."""
    wrong = sorted(name for name in {*sent, *arrived} if sent.get(name) != arrived.get(name))
    if not wrong:
        return None
    name = wrong[0]
    return (
        f"{len(wrong)} of {len(sent)} tensors are not those that were sent, the first {name} (sent "
        f"{sent.get(name, 'nothing')}, arrived {arrived.get(name, 'nothing')})"
    )
