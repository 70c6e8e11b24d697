"""Settings of the engines. Torch-free, so that a config can be read anywhere."""
from __future__ import annotations

from dataclasses import dataclass

from workbench.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TransformersEngineConfig:
    """The embedded engine: its own decode loop over an unmodified Hugging Face model."""

    dtype: str = "float32"           # of its own copy of the weights: float32 | bfloat16 | float16
    device: str = "cpu"              # "cpu", "cuda", "cuda:1" ...
    max_rows: int = 128              # sequences decoded at once; more of them wait
    prefill_tokens: int = 2048       # tokens of prompts per tick; more would leave the CPU's caches
    cache_tokens: int = 131_072      # positions of keys and values kept; beyond it idle sessions are evicted
    cache: str = "auto"              # "auto": kept if a probe proves it right | "off": prefill each turn anew
    max_context: int | None = None   # tokens of one sequence; None: what the model has positions for

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"engine.dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if self.cache not in ("auto", "off"):
            raise ConfigError(f"engine.cache is 'auto' or 'off', got {self.cache!r}")
        for name in ("max_rows", "prefill_tokens", "cache_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name} is at least 1, got {getattr(self, name)}")
        if self.max_context is not None and self.max_context < 2:
            raise ConfigError(f"engine.max_context holds a prompt and an answer, so at least 2; got {self.max_context}")
