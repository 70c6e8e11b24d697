"""How trajectories are sampled and how policies are scored: settings that any machine can read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from workbench.basics.annotated import checked_methods
from workbench.basics.settings import Inert, above, at_least, check_settings, one_of
from workbench.values.tokens import HISTORIES
from workbench.worlds.runners import EnvRunner, InlineRunner, ThreadRunner

GREEDY = {"temperature": 0.0, "top_p": 1.0}  # sampling of the likeliest tokens


@checked_methods
@dataclass(frozen=True)
class CollectConfig:
    """How trajectories are sampled. Limits on moves belong to the environment, limits on tokens and exchanges live here."""

    history: Annotated[str, one_of(*HISTORIES), "what the policy sees of the past"] = "append"
    window: Annotated[
        int,
        at_least(1, most=1_000_000, why="for no exchange at all: history = 'fresh'"),
        "exchanges kept by history window",
    ] = 2
    max_turn_tokens: Annotated[
        int, at_least(1, most=1_000_000), "tokens that the policy may sample in one turn"
    ] = 64
    max_context: Annotated[
        int | None,
        at_least(1, most=100_000_000),
        "tokens of one sequence, prompt included; none: what the engine can hold",
    ] = None
    temperature: Annotated[float, at_least(0), "of sampling; training needs one above 0"] = 1.0
    top_p: Annotated[
        float, above(0, most=1), "nucleus sampling: of the most likely tokens that hold this share"
    ] = 1.0
    env_runner: Annotated[
        str,
        one_of("inline", "threads", "processes"),
        "inline: deterministic, in the tick; threads: "
        "for slow ones; processes: for slow ones, killed at their deadline",
    ] = "inline"
    env_deadline_s: Annotated[
        float, above(0), "seconds of the wall clock for one reset or step (not inline)"
    ] = 30.0
    env_workers: Annotated[
        int,
        at_least(1, most=10_000),
        "processes that answer; one that is stuck is replaced until its deadline",
    ] = 4
    env_retries: Annotated[
        int,
        at_least(0, most=1_000),
        "times a trajectory is run again from its seed after its worker process died",
    ] = 2
    env_answer_bytes: Annotated[
        int, at_least(1, most=1_000_000_000), "longest answer that is taken from a worker process"
    ] = 1_000_000

    def __post_init__(self) -> None:
        check_settings(self, "collect")

    def runner(self) -> EnvRunner:
        """A new runner of this kind; whoever asks for it shuts it down."""
        if self.env_runner == "processes":
            from workbench.worlds.workers.env_runner import (
                ProcessRunner,  # sockets, multiprocessing: not for whoever reads settings
            )

            return ProcessRunner(
                self.env_deadline_s, self.env_workers, self.env_retries, self.env_answer_bytes
            )
        return InlineRunner() if self.env_runner == "inline" else ThreadRunner(self.env_deadline_s)

    def runs_like(self, other: CollectConfig) -> bool:
        """True where a runner made for `other` will do."""
        names = ("env_runner", "env_deadline_s", "env_workers", "env_retries", "env_answer_bytes")
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def inert_settings(self) -> list[Inert]:
        """What cannot act beside the other settings of this part."""
        return [
            Inert(
                "window",
                self.history != "window",
                f"collect.history is {self.history!r}, not 'window'",
            ),
            Inert(
                "env_deadline_s",
                self.env_runner == "inline",
                "an inline environment cannot be cut off; set "
                "collect.env_runner='processes' (or 'threads')",
            ),
            *(
                Inert(
                    name,
                    self.env_runner != "processes",
                    "there are no worker processes; set collect.env_runner='processes'",
                )
                for name in ("env_workers", "env_retries", "env_answer_bytes")
            ),
        ]


@dataclass(frozen=True)
class EvaluationConfig:
    """How a policy is scored on the held-out tasks."""

    num_tasks: Annotated[
        int,
        at_least(2, most=1_000_000),
        "held-out tasks; 512 give a 95 % interval of about +-4 points",
    ] = 512
    first_task: Annotated[
        int,
        at_least(0, most=1_000_000_000_000),
        "held-out tasks that are passed over before the first: settings are chosen "
        "on others than those that are reported",
    ] = 0
    seed: Annotated[int, "of the noise, never of the tasks: those are fixed"] = 0
    attempts: Annotated[
        int,
        at_least(1, most=10_000),
        "at each task where a policy samples; several give pass@k. Greedy play has one",
    ] = 1

    def __post_init__(self) -> None:
        check_settings(self, "evaluation")
