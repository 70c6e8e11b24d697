"""Clock and memory of the device that is checked, and the shapes that are put on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from experiments.bench.gpu import TOKENIZER, timed
from experiments.bench.policy import SHAPES, new_model
from experiments.gpu_check.plan import Setting

Figures = dict[str, Any]
Keep = Callable[[Figures], None]  # writes down what was measured so far


def start_memory(setting: Setting) -> None:
    """Begin to count the device's peak anew."""
    if setting.on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gb(setting: Setting) -> float | None:
    """Most memory since `start_memory`, GB (10^9 bytes); None on a CPU, where nothing counts it."""
    return torch.cuda.max_memory_allocated() / 1e9 if setting.on_gpu else None


def seconds_of(setting: Setting, work: Callable[[], Any]) -> float:
    """Wall seconds of some work; a GPU is waited for."""
    return timed(work, setting.device)[0]


def copy_bytes_per_s(setting: Setting, tries: int = 5) -> float:
    """The device's own bandwidth: bytes read and written per second by a copy from memory to memory, the best of a few."""
    size = 1 << (31 if setting.on_gpu else 24)
    source = torch.zeros(size, dtype=torch.uint8, device=setting.device)
    target = torch.empty_like(source)
    times = [seconds_of(setting, lambda: target.copy_(source)) for _ in range(tries)]
    return 2 * size / min(times)


def random_policy(setting: Setting, shape: str, dtype: torch.dtype = torch.float32) -> Any:
    """Model of a shape with random weights, and a shipped tokenizer. Made on the device itself: billions of numbers would take
    minutes on one thread."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    with torch.device(setting.device):
        model = new_model(SHAPES[shape], tokenizer).to(dtype).eval()
    return SimpleNamespace(model=model, tokenizer=tokenizer)


def until(seconds: float) -> Callable[[], float]:
    """How many seconds are left, as a function."""
    end = time.monotonic() + seconds
    return lambda: end - time.monotonic()
