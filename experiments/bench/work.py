"""What both sides are asked to do, how each may be set, and how it says what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Work:
    """One step: `trajectories` trajectories in groups of `group` on one board each, then one AdamW update over all of them.

    `turn_tokens` caps one answer, on both sides; `completion_tokens` caps all that follows the first prompt (TRL).
    """

    trajectories: int = 64
    group: int = 8
    turns: int = 5
    turn_tokens: int = 160
    completion_tokens: int = 1600
    lr: float = 1e-6
    micro_rows: int = 8  # TRL counts rows in a micro-batch
    micro_batch_tokens: int = 4096  # ours counts tokens
    babble: bool = False  # for random weights, which write no calls: every answer counts as a move
    seed: int = 0

    def boards(self, step: int) -> list[int]:
        """The seeds of a step's boards, one for each group: the same on both sides."""
        groups = self.trajectories // self.group
        return [self.seed * 1_000_000 + step * groups + index for index in range(groups)]


@dataclass(frozen=True)
class OurSide:
    """One configuration of ours. `engine_dtype`: of the sampler's copy, `decode`: its way, `drafts`: tokens proposed at
    once (0: none); `precision`: of training ("bf16": autocast), `attention`: its way."""

    name: str
    engine_dtype: str = "float32"
    precision: str = "fp32"
    layout: str = "auto"  # of micro-batches: LearnerConfig.layout
    device: str = "cpu"
    decode: str = "plain"
    drafts: int = 0
    attention: str = "torch"
    layers: str = "torch"
    fused_adamw: bool = False


@dataclass(frozen=True)
class PeerSide:
    """One configuration of TRL; `route`: see `peer`. `bf16`: autocast, as its `bf16=True` does. `micro_rows` None: the
    work's."""

    name: str
    route: str = "environments"
    bf16: bool = False
    micro_rows: int | None = None
    device: str = "cpu"


@dataclass(frozen=True)
class StepWork:
    """What one step did and what it cost. Seconds are CPU seconds of the whole process, all threads; with a GPU, where
    they say nothing, wall seconds.

    `train_s` leaves out what is neither sampling nor training on the peer's side (rewards, advantages); `step_s` is
    everything.
    """

    env_steps: int
    generations: int
    generated_tokens: int
    trajectory_tokens: int
    rollout_s: float
    train_s: float
    step_s: float
    wall_s: float
    reward: float
    phases: Mapping[str, float] = field(default_factory=dict)
    notes: Mapping[str, float] = field(default_factory=dict)

    @property
    def generated_per_rollout_s(self) -> float:
        return self.generated_tokens / self.rollout_s

    @property
    def trained_per_train_s(self) -> float:
        return self.trajectory_tokens / self.train_s

    @property
    def env_steps_per_s(self) -> float:
        return self.env_steps / self.step_s
