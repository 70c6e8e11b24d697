"""The sections of a configuration that no other part owns: the weights to start from, the loop, the lint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from workbench.types.settings import Inert, at_least, check_settings, one_of, probability


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


@dataclass(frozen=True)
class TrainConfig:
    """The loop: each step collects `tasks_per_step` x `group_size` trajectories and makes the algorithm's updates."""

    steps: Annotated[int, at_least(1), "collects of the run, each with its updates"] = 30
    tasks_per_step: Annotated[int, at_least(1), "tasks that a step tries"] = 16
    group_size: Annotated[int, at_least(1), "attempts at each of them"] = 8
    evaluate_every: Annotated[
        int,
        at_least(0),
        "steps between evaluations on the held-out tasks; 0: only before and after",
    ] = 10
    checkpoint_every: Annotated[
        int, at_least(1), "steps between checkpoints; the last step always has one"
    ] = 10
    keep_checkpoints: Annotated[
        int,
        at_least(2, why="if the newest is damaged, the one before it is used"),
        "newest checkpoints that are kept",
    ] = 2
    staleness: Annotated[
        int,
        one_of(0, 1),
        "0: a step is sampled by the weights that the one before left; 1: by those of one "
        "step before, while that one is learned from",
    ] = 0
    max_empty_steps: Annotated[
        int,
        at_least(1),
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
        at_least(0),
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
        at_least(2, why="of one there is nothing to choose"),
        "tasks drawn for each that is tried",
    ] = 4
    window: Annotated[int, at_least(1), "newest steps whose attempts say how a kind goes"] = 5

    def __post_init__(self) -> None:
        check_settings(self, "sampling")

    def inert_settings(self) -> Iterator[Inert]:
        """What cannot act, by name (law 11)."""
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
        at_least(1, why="lint.mode = 'off' checks nothing"),
        "attempts of a step that the slower rules look at (rendering, environments anew)",
    ] = 4

    def __post_init__(self) -> None:
        check_settings(self, "lint")
