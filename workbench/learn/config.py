"""Settings of the learner and of the critic. Torch-free, so that a config can be read anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from workbench.basics.settings import Inert, above, at_least, check_settings, one_of

SLOWER = 0.1  # an alarm multiplies the learning rate by this, where it is asked to


@dataclass(frozen=True)
class LearnerConfig:
    """How weights are moved; what the loss is belongs to the algorithm."""

    lr: Annotated[float, at_least(0), "learning rate of AdamW"] = 2e-4
    betas: Annotated[tuple[float, float], "of AdamW: decay of its mean and of its mean square"] = (
        0.9,
        0.95,
    )
    eps: Annotated[float, at_least(0), "of AdamW: added to the root of its mean square"] = 1e-8
    weight_decay: Annotated[float, at_least(0), "of AdamW, apart from the gradient"] = 0.0
    fused_adamw: Annotated[
        bool, "AdamW by torch's fused kernel: less time and memory, equal up to rounding"
    ] = False
    warmup_updates: Annotated[
        int,
        at_least(0, most=1_000_000_000),
        "the learning rate rises linearly over these, then stays",
    ] = 0
    max_grad_norm: Annotated[
        float, at_least(0), "gradients are scaled down to this norm; 0: never"
    ] = 1.0
    micro_batch_tokens: Annotated[
        int,
        at_least(1, most=1_000_000_000),
        "tokens that go through the model at once, padding included: memory and speed only",
    ] = 4096
    layout: Annotated[
        str,
        one_of("auto", "padded"),
        "auto: packed end to end where a probe proves it right (on a GPU: "
        "with precision bf16); padded: rows",
    ] = "auto"
    attention: Annotated[
        str,
        one_of("torch", "native"),
        "of packed segments on a CPU; native: by a kernel that is compiled when first used, equal up to rounding",
    ] = "torch"
    layers: Annotated[
        str,
        one_of("torch", "native"),
        "their norms, rotations, gated activations and the output head's logprobs on a CPU; native: by a kernel, as with "
        "attention, and the last one only where a trained token is predicted",
    ] = "torch"
    activation_checkpointing: Annotated[
        bool,
        "decoder layers keep their inputs only and are computed once more in the backward "
        "pass: less memory, a third more time",
    ] = False
    lora_rank: Annotated[
        int,
        at_least(0, most=100_000),
        "0: all weights are trained; else adapters of this rank are, and nothing else",
    ] = 0
    lora_alpha: Annotated[float, above(0), "what an adapter adds counts alpha / rank"] = 32.0
    lora_targets: Annotated[
        tuple[str, ...],
        "ends of the names of layers that get adapters; none: every linear layer but the "
        "output head",
    ] = ()
    precision: Annotated[
        str,
        one_of("fp32", "bf16"),
        "bf16: forward pass under autocast; weights and optimizer stay float32",
    ] = "fp32"
    sharding: Annotated[
        str,
        one_of("none", "full"),
        "none: every process holds all weights (DDP); full: weights, gradients and "
        "moments are dealt out over them (FSDP2)",
    ] = "none"
    offload: Annotated[
        bool,
        "with sharding, on a GPU: what is dealt out lies in the host's memory, the reference too, and comes "
        "to the device a layer at a time; AdamW moves it there, slower",
    ] = False
    num_processes: Annotated[
        int,
        at_least(1, most=1_000_000),
        "asserted, because several ways of starting many quietly give one",
    ] = 1
    max_bad_updates: Annotated[
        int,
        at_least(1, most=1_000_000_000),
        "updates in a row with non-finite numbers before training ends",
    ] = 3
    seed: Annotated[int, "of the shuffle into minibatches"] = 0

    def __post_init__(self) -> None:
        check_settings(self, "learner")

    def inert_settings(self) -> Iterator[Inert]:
        """What cannot act, by name (invariant 11)."""
        for name in ("lora_alpha", "lora_targets"):
            yield Inert(
                name,
                not self.lora_rank,
                "without adapters all weights are trained; set learner.lora_rank",
            )
        yield Inert(
            "attention",
            self.attention == "native" and self.layout == "padded",
            "padded rows attend by torch; set learner.layout = 'auto'",
        )
        yield Inert(
            "sharding",
            self.sharding == "full" and self.num_processes == 1,
            "one process holds everything; set learner.num_processes",
        )
        yield Inert(
            "offload",
            self.offload and self.sharding == "none",
            "only what is dealt out is moved to the host; set learner.sharding = 'full'",
        )


@dataclass(frozen=True)
class CriticConfig:
    """How a critic is built and moved. Everything else (betas, weight decay, gradient norm) is the learner's."""

    trunk: Annotated[
        str,
        one_of("own", "policy"),
        "policy: a head on the policy's trunk; half the memory and time, shared features",
    ] = "own"
    lr: Annotated[
        float,
        above(0),
        "of the critic's own weights: it starts knowing nothing, so it moves faster than a policy",
    ] = 1e-3
    sees: Annotated[
        str,
        one_of("policy", "state"),
        "policy: the tokens that the policy saw; state: also what the environment "
        "tells of the state before each action, which no prompt holds",
    ] = "policy"
    value_coef: Annotated[
        float, above(0), "trunk policy only: what the value loss counts in the shared weights"
    ] = 0.5

    def __post_init__(self) -> None:
        check_settings(self, "critic")
