"""The tree of settings, and its sections that no other part owns: the weights to start from, the loop, the lint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

from workbench.basics.settings import Inert, at_least, check_settings, one_of, probability
from workbench.engines import LayoutConfig, TransformersEngineConfig
from workbench.learn.algorithms import GRPO
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.rollouts.config import CollectConfig, EvaluationConfig
from workbench.training.kinds import kind_of
from workbench.values.view import Shown
from workbench.worlds.base import EnvFamily
from workbench.worlds.interface import InterfaceConfig, interfaced


@dataclass(frozen=True)
class PolicyConfig:
    """Which weights to start from: a policy shipped in data/, or any Hugging Face causal LM by name or path."""

    name: Annotated[str, "of a shipped policy, or of a Hugging Face model (a folder, too)"] = (
        "frozenlake-tiny"
    )
    dtype: Annotated[str, "of the learner's weights"] = "float32"
    device: Annotated[str, "auto: CUDA where there is one"] = "auto"
    template_flags: Annotated[
        Mapping[str, Any], "handed to the chat template (enable_thinking ...)"
    ] = field(default_factory=dict)
    loader: Annotated[
        str | None,
        "package.module:Name of a function of your own that makes model and tokenizer of the name",
    ] = None
    base_bits: Annotated[
        int,
        one_of(0, 4),
        "4: linear layers below adapters are held in four bits (NF4); 0: as policy.dtype says",
    ] = 0


@dataclass(frozen=True)
class TrainConfig:
    """The loop: each step collects `tasks_per_step` x `group_size` trajectories and makes the algorithm's updates."""

    steps: Annotated[
        int, at_least(1, most=99_999_999), "collects of the run, each with its updates"
    ] = 30
    tasks_per_step: Annotated[int, at_least(1, most=100_000), "tasks that a step tries"] = 16
    group_size: Annotated[int, at_least(1, most=10_000), "trajectories of each of them"] = 8
    evaluate_every: Annotated[
        int,
        at_least(0, most=99_999_999),
        "steps between evaluations on the held-out tasks; 0: only before and after",
    ] = 10
    checkpoint_every: Annotated[
        int, at_least(1, most=99_999_999), "steps between checkpoints; the last step always has one"
    ] = 10
    keep_checkpoints: Annotated[
        int,
        at_least(2, most=1_000_000, why="if the newest is damaged, the one before it is used"),
        "newest checkpoints that are kept",
    ] = 2
    checkpoint_moments: Annotated[
        str,
        one_of("float32", "bfloat16", "none"),
        "what a checkpoint holds of AdamW beside the weights, and the run goes on with: float32: its moments as they are (12 bytes "
        "a parameter in all); bfloat16: rounded (8 bytes); none: it begins anew after each checkpoint (4 bytes). Resuming is exact "
        "with each",
    ] = "float32"
    staleness: Annotated[
        int,
        one_of(0, 1),
        "0: a step is sampled by the weights that the one before left; 1: by those of one "
        "step before, while that one is learned from",
    ] = 0
    max_empty_steps: Annotated[
        int,
        at_least(1, most=99_999_999),
        "steps in a row that left the policy as it was before the run ends, with a reason",
    ] = 5
    on_alarm: Annotated[
        str,
        one_of("off", "note", "stop", "slow", "restore"),
        "where its signals look like a collapse: note "
        "says so; stop ends the run after that step, to be resumed; slow goes on with a tenth of the learning "
        "rate; restore goes back to the kept checkpoint that did best on the held-out tasks, and slows",
    ] = "off"
    information_every: Annotated[
        int,
        at_least(0, most=99_999_999),
        "steps between measurements of how much replies say about their prompts, "
        "and how much of the gradient is signal; 0: none",
    ] = 0

    def __post_init__(self) -> None:
        check_settings(self, "train")


@dataclass(frozen=True)
class SamplingConfig:
    """Which tasks a step tries (task_choice.py). Evaluation is always on the plain draw."""

    tasks: Annotated[
        str,
        one_of("fresh", "band", "spread"),
        "fresh: as drawn; band: of kinds whose success so far lies within "
        "[low, high]; spread: in proportion to p (1 - p), which follows the policy",
    ] = "fresh"
    by: Annotated[
        str, "name of the entry of a task's payload, or of its metadata, that says its kind"
    ] = ""
    low: Annotated[float, probability(), "band: success of a kind below it is too little"] = 0.1
    high: Annotated[float, probability(), "band: success of a kind above it is too much"] = 0.9
    candidates: Annotated[
        int,
        at_least(2, most=1_000, why="of one there is nothing to choose"),
        "tasks drawn for each that is tried",
    ] = 4
    window: Annotated[
        int, at_least(1, most=1_000_000), "newest steps whose trajectories say how a kind goes"
    ] = 5

    def __post_init__(self) -> None:
        check_settings(self, "sampling")

    def inert_settings(self) -> Iterator[Inert]:
        """What cannot act, by name (invariant 11)."""
        for name in ("by", "low", "high", "candidates", "window"):
            yield Inert(
                name, self.tasks == "fresh", "tasks are tried as they are drawn; set sampling.tasks"
            )
        for name in ("low", "high"):
            yield Inert(name, self.tasks == "spread", "sampling.tasks = 'spread' has no band")


@dataclass(frozen=True)
class LintConfig:
    """How training is checked before it learns. Rules that perturb settings run once, before the first step."""

    mode: Annotated[
        str,
        one_of("assert", "warn", "off"),
        "assert: an error ends the run before the update that it would "
        "spoil; warn: it is said and stored, and training goes on",
    ] = "assert"
    start: Annotated[
        bool, "settings, gradient and isolated environments, once, before the first step"
    ] = True
    samples: Annotated[
        int,
        at_least(1, most=1_000_000, why="lint.mode = 'off' checks nothing"),
        "trajectories of a step that the slower rules look at (rendering, environments anew)",
    ] = 4

    def __post_init__(self) -> None:
        check_settings(self, "lint")


@dataclass(frozen=True, repr=False)
class Config(Shown):
    """Everything a run depends on, apart from the machine. Stored whole in the run folder."""

    env: EnvFamily
    seed: Annotated[int, "of the whole run; every draw is addressed by it"] = 0
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    engine: Any = field(default_factory=TransformersEngineConfig)
    layout: LayoutConfig = field(default_factory=LayoutConfig)
    interface: InterfaceConfig = field(default_factory=InterfaceConfig)
    collect: CollectConfig = field(default_factory=CollectConfig)
    algorithm: Any = GRPO
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)  # of an algorithm that needs one
    train: TrainConfig = field(default_factory=TrainConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    lint: LintConfig = field(default_factory=LintConfig)

    @cached_property
    def family(self) -> EnvFamily:
        """The environment as the policy meets it: with the interface. Raises ConfigError where the two do not go together."""
        return interfaced(self.env, self.interface)

    def kind_of(self, part: str) -> str:
        """The name that a part of several kinds has in a file: a short one, or "module:Qualname" of a class of one's own.
        Raises ConfigError for what no file can name."""
        return kind_of(part, getattr(self, part))
