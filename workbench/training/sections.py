"""The sections of a configuration that no other part owns: the weights to start from, the loop, the lint."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from workbench.types.settings import at_least, check_settings, one_of


@dataclass(frozen=True)
class PolicyConfig:
    """Which weights to start from: a policy shipped in data/, or any Hugging Face causal LM by name or path."""

    name: Annotated[str, "of a shipped policy, or of a Hugging Face model (a folder, too)"] = "frozenlake-tiny"
    dtype: Annotated[str, "of the learner's weights"] = "float32"
    device: Annotated[str, "auto: CUDA where there is one"] = "auto"
    template_flags: Annotated[Mapping[str, Any], "handed to the chat template (enable_thinking ...)"] = field(
        default_factory=dict)
    loader: Annotated[str | None, "package.module:Name of a function of your own that makes model and tokenizer of the name"] = None


@dataclass(frozen=True)
class TrainConfig:
    """The loop: each step collects `tasks_per_step` x `group_size` trajectories and makes the algorithm's updates."""

    steps: Annotated[int, at_least(1), "collects of the run, each with its updates"] = 30
    tasks_per_step: Annotated[int, at_least(1), "tasks that a step tries"] = 16
    group_size: Annotated[int, at_least(1), "attempts at each of them"] = 8
    evaluate_every: Annotated[int, at_least(0), "steps between evaluations on the held-out tasks; 0: only before and "
                              "after"] = 10
    checkpoint_every: Annotated[int, at_least(1), "steps between checkpoints; the last step always has one"] = 10
    keep_checkpoints: Annotated[int, at_least(2, why="if the newest is damaged, the one before it is used"),
                                "newest checkpoints that are kept"] = 2
    staleness: Annotated[int, one_of(0, 1), "0: a step is sampled by the weights that the one before left; 1: by those of one "
                         "step before, while that one is learned from"] = 0
    max_empty_steps: Annotated[int, at_least(1), "steps in a row that left the policy as it was before the run ends, "
                               "with a reason"] = 5
    on_alarm: Annotated[str, one_of("off", "note", "stop", "slow", "restore"), "where its signals look like a collapse: note "
                        "says so; stop ends the run after that step, to be resumed; slow goes on with a tenth of the learning "
                        "rate; restore goes back to the kept checkpoint that did best on the held-out tasks, and slows"] = "off"
    information_every: Annotated[int, at_least(0), "steps between measurements of how much replies say about their prompts, "
                                 "and how much of the gradient is signal; 0: none"] = 0

    def __post_init__(self) -> None:
        check_settings(self, "train")


@dataclass(frozen=True)
class LintConfig:
    """How training is checked before it learns. Rules that perturb settings run once, before the first step."""

    mode: Annotated[str, one_of("assert", "warn", "off"), "assert: an error ends the run before the update that it would "
                    "spoil; warn: it is said and stored, and training goes on"] = "assert"
    start: Annotated[bool, "settings, gradient and isolated environments, once, before the first step"] = True
    samples: Annotated[int, at_least(1, why="lint.mode = 'off' checks nothing"),
                       "attempts of a step that the slower rules look at (rendering, environments anew)"] = 4

    def __post_init__(self) -> None:
        check_settings(self, "lint")
