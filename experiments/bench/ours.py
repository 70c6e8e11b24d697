"""Our side of the benchmark: one step made of the workbench's public pieces, with the time of each phase."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from experiments.bench.lake import Lake, ToolLake
from experiments.bench.work import OurSide, StepWork, Work
from workbench.chat import ChatFormat
from workbench.engines import LayoutConfig, TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy
from workbench.learn.algorithms import GRPO
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.values import trajectories_of


class OurStepper:
    """Holds engine and learner; `step(n)` does the work of one step and says what it was and what it cost."""

    def __init__(
        self,
        model: Path | Any,
        work: Work,
        side: OurSide,
        *,
        engine: Any = None,
        layout: LayoutConfig = LayoutConfig(),
        learner: Mapping[str, Any] = {},
    ) -> None:
        """`model`: a policy's folder, or what has a `model` and a `tokenizer`. `engine`: its settings (None: the embedded
        one's), where `layout` has it; `learner`: settings besides."""
        self.work, self.side = work, side
        policy = load_policy(model, device=side.device) if isinstance(model, Path) else model
        self.chat = ChatFormat.from_tokenizer(policy.tokenizer)
        engine = engine or TransformersEngineConfig(
            dtype=side.engine_dtype,
            device=side.device,
            decode=side.decode,
            drafts=side.drafts,
        )
        self.engine = open_engine(engine, policy.model, layout)
        self.algorithm = GRPO()
        self.learner = Learner(
            policy.model,
            self.algorithm,
            LearnerConfig(
                lr=work.lr,
                precision=side.precision,
                layout=side.layout,
                attention=side.attention,
                layers=side.layers,
                fused_adamw=side.fused_adamw,
                micro_batch_tokens=work.micro_batch_tokens,
                **learner,
            ),
            own_copy=False,
        )
        self.family = ToolLake(work.turns, work.babble)
        self.collect_config = CollectConfig(max_turn_tokens=work.turn_tokens)

    def step(self, step: int) -> StepWork:
        clock, before = Laps(self.side.device), Lake.total_steps
        engine_before = self.engine.stats()["cpu_seconds"]
        tasks = [self.family.task(seed) for seed in self.work.boards(step)]
        groups = collect(
            tasks,
            family=self.family,
            engine=self.engine,
            chat=self.chat,
            config=self.collect_config,
            group_size=self.work.group,
            address=(self.work.seed, "bench", step),
        )
        clock.lap("rollout")
        batch = Batch.from_groups(groups)
        credit = self.algorithm.credit(batch)
        clock.lap("credit")
        (report,) = self.learner.update(batch, credit, step=step)
        clock.lap("update")
        self.sync()
        clock.lap("sync")
        trajectories = trajectories_of(groups)
        phases = dict(clock.laps) | {"engine": self.engine.stats()["cpu_seconds"] - engine_before}
        gap = {
            name: report.metrics[name]
            for name in ("logp_gap_mean", "logp_gap_max")
            if name in report.metrics
        }
        return StepWork(
            env_steps=Lake.total_steps - before,
            generations=sum(len(t.turns) for t in trajectories),
            generated_tokens=int(batch.eligible_T.sum()),
            trajectory_tokens=batch.num_tokens,
            rollout_s=clock.laps["rollout"],
            train_s=sum(clock.laps[n] for n in ("credit", "update", "sync")),
            step_s=sum(clock.laps.values()),
            wall_s=clock.wall_s,
            reward=float(batch.reward_N.mean()),
            phases=phases,
            notes=gap | memory(self.side.device),
        )

    def sync(self) -> None:
        """Hand the weights to the engine, unless the step taught nothing and it has them already."""
        if self.engine.policy_version != self.learner.version:
            self.engine.sync(self.learner.weights(), self.learner.version)


class Laps:
    """Seconds between laps: of this process's CPU, all threads; on a GPU of the wall, once it is done."""

    def __init__(self, device: str = "cpu") -> None:
        self.laps: dict[str, float] = {}
        self._device, self._began = device, time.perf_counter()
        self._last = seconds(device)

    def lap(self, name: str) -> None:
        now = seconds(self._device)
        self.laps[name], self._last = now - self._last, now

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._began


def seconds(device: str) -> float:
    """The clock that this benchmark goes by on a device."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize(device)
    return time.perf_counter()


def memory(device: str) -> dict[str, float]:
    """Most GPU memory that was ever taken, in GiB; nothing on a CPU."""
    return (
        {}
        if device == "cpu"
        else {"gpu_memory_gib": torch.cuda.max_memory_allocated(device) / 2**30}
    )
