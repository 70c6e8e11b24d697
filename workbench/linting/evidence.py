"""What is at hand to check rollouts and credit with. Every field may be missing; a rule says which it wanted.

Axis letters as in `workbench.learn.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, NamedTuple

from workbench.basics.findings import Place
from workbench.linting.flat import Flat, flatten
from workbench.rollouts.config import GREEDY
from workbench.values import CreditTable, Trajectory
from workbench.values.tokens import PLAIN

if TYPE_CHECKING:
    from workbench.chat import ChatFormat
    from workbench.engines.recorder import Exchange
    from workbench.engines.vllm_check import Delivery
    from workbench.learn.algorithms.algorithm import Algorithm
    from workbench.learn.algorithms.base import Credit
    from workbench.learn.algorithms.plain_recipe import PlainRecipe
    from workbench.learn.batch import Batch
    from workbench.learn.handed import HandedWeights
    from workbench.linting.plain_trajectories import TrajectoryTable
    from workbench.linting.probe import LearnerProbe
    from workbench.rollouts.config import CollectConfig
    from workbench.worlds.base import EnvFamily


class Update(NamedTuple):
    """One update: the table of what it used, and what it reported."""

    table: CreditTable
    metrics: Mapping[str, float]
    skipped: str | None = None  # why it was left out


class Rounded(NamedTuple):
    """A step's change of some weights, as the engine sees it in its dtype."""

    dtype: str
    changed: int  # weights that the step changed
    moved: int  # of these, those that are another number in the engine's dtype
    cosine: float  # between both changes


class StepFacts(NamedTuple):
    """A committed step, as rules over a whole run need it."""

    step: int
    fingerprint: str  # of the sampled token ids of all its trajectories
    versions: tuple[int, ...]  # policy versions that sampled it, ascending, each once
    metrics: Mapping[str, Any]
    attempts: tuple[str, ...] = ()  # a fingerprint of each
    recomputed: Mapping[str, float] | None = (
        None  # numbers of the metrics, anew from the trajectories
    )
    lr: float | None = None  # the settings in force: of the learner
    warmup: int = 0
    staleness: int = 0  # steps that sampling was ahead
    slowed: int = 0  # alarms before it that lowered the learning rate
    restored: bool = False  # it began with the state of an earlier checkpoint
    seeds: tuple[str, ...] = ()  # task and dynamics seed of each trajectory
    problems: tuple[str, ...] = ()  # each different problem, by content
    paid: tuple[
        tuple[bool, str, float], ...
    ] = ()  # of trajectories: success, what it looks like, reward (`facts.payment`)


class RunClaims(NamedTuple):
    """Numbers that a run states beside its steps."""

    asked: int  # steps
    evaluated: tuple[int, ...] = ()  # steps
    saved: tuple[int, ...] = ()  # steps with a checkpoint


class EvaluationFacts(NamedTuple):
    """One stored evaluation: its table, and the trajectories that it counts by side ("trained-sampled"), where stored."""

    name: str
    step: int
    report: Mapping[str, Any]  # rows, paired
    sides: Mapping[str, tuple[tuple[Trajectory, ...], ...]]  # one group a task
    version: int | None = None  # of the weights that the step left
    seed: int | None = None  # the settings in force
    num_tasks: int | None = None
    attempts: int | None = None  # at each task, where sampled
    first_task: int = 0  # held-out tasks before the first

    def sampling_of(self, side: str) -> dict[str, float]:
        """Temperature and top-p that a side's turns were sampled with, as its row says; where it says none, at 1."""
        policy, _, mode = side.rpartition("-")
        if mode == "greedy":
            return GREEDY
        rows = self.report["rows"]
        row = next((row for row in rows if (row["policy"], row["mode"]) == (policy, mode)), {})
        return {name: row.get(name, usual) for name, usual in PLAIN.items()}


@dataclass(frozen=True, eq=False)
class Evidence:
    """`groups` are plain tuples, so that data can be looked at that a `Group` would refuse to hold."""

    groups: tuple[tuple[Trajectory, ...], ...] = ()
    greedy: tuple[
        Trajectory | None, ...
    ] = ()  # of each group: the trajectory aside that it is compared with (ReMax)
    raw: tuple[Any, ...] = ()  # of other frameworks: arrays as they were found, fit or not
    batch: Batch | None = None  # with the facts that credit was computed from
    credit: Credit | None = None
    algorithm: Algorithm | None = None  # its settings, declared mask switches among them
    updates: tuple[Update, ...] = ()  # of this step, where they were made already
    means: Mapping[str, Any] | None = (
        None  # of the metrics of these updates, where each one's own are not kept
    )
    collect: CollectConfig | None = None  # history, sampling settings, limits
    chat: ChatFormat | None = None  # tokenizer and template
    journal: tuple[Exchange, ...] | None = None  # what the engine was asked and what it answered
    context_length: int | None = None  # tokens of one sequence that the engine can hold
    family: EnvFamily | None = None  # makes environments anew
    environments: Mapping[str, Any] | None = (
        None  # live ones, by "task id#trajectory", while trajectories run in parallel
    )
    policy_version: int | None = None  # of the weights that were to sample this step
    staleness: int = 0  # steps that these are older than those that learned, from step 2 on
    replicas: tuple[str, ...] = ()  # of several processes: a digest of the weights that each holds
    delivery: Delivery | None = (
        None  # what became of the newest weights in an engine with a copy of its own
    )
    handed: HandedWeights | None = None  # the newest weights that were put together for an engine
    rounded: Rounded | None = (
        None  # of a step's updates, where the engine samples in half precision
    )
    drawn: tuple[
        str, ...
    ] = ()  # the trajectories that the step was to have, as "task id#trajectory"
    probe: LearnerProbe | None = None
    session: Any = None  # the open one whose step this is
    steps: tuple[StepFacts, ...] = ()  # the run so far, in the order in which steps were committed
    claims: RunClaims | None = None  # what the run says of itself beside them
    evaluations: tuple[EvaluationFacts, ...] = ()  # of the run
    step: int | None = None
    precision: str | None = None  # of the learner's forward pass: "fp32" | "bf16"
    samples: int | None = None  # trajectories that the slower rules look at; None: all of them
    about: str = ""

    @cached_property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return tuple(chain.from_iterable(self.groups))

    @property
    def aside(self) -> tuple[Trajectory, ...]:
        """Trajectories that were made for the step and are no members of a group."""
        return tuple(trajectory for trajectory in self.greedy if trajectory is not None)

    @cached_property
    def numbered_groups(self) -> list[tuple[int, tuple[Trajectory, ...]]]:
        """Each group with the number of its first trajectory."""
        return list(zip(accumulate(map(len, self.groups), initial=0), self.groups))

    @cached_property
    def flat(self) -> Flat:
        """All tokens of `groups` end to end, from the spans by themselves."""
        return flatten(self.trajectories, self.step)

    @cached_property
    def plain_trajectories(self) -> TrajectoryTable | None:
        """The trajectories as `workbench.plain` takes them, end to end; of the batch where there are no trajectories."""
        from workbench.linting.plain_trajectories import (
            trajectory_tokens_of,
            trajectory_tokens_of_batch,
        )

        if self.groups:
            return trajectory_tokens_of(self.groups, self.flat, self.greedy)
        return None if self.batch is None else trajectory_tokens_of_batch(self.batch, self.step)

    @cached_property
    def plain_recipe(self) -> PlainRecipe:
        """The reference implementation that the algorithm brings, and which of its parts bring none."""
        from workbench.learn.algorithms.plain_recipe import plain_recipe

        return plain_recipe(self.algorithm)

    @property
    def by_program(self) -> bool:
        """Whether programs wrote the prompts: then they are no rendering of the environment's messages."""
        return getattr(self.family, "by_program", False)

    def has(self, name: str) -> bool:
        value = getattr(self, name)
        return value is not None and value != ()

    def place(self, index: int, **where: int) -> Place:
        """A place in trajectory number `index`."""
        trajectory = self.trajectories[index]
        return Place(f"{trajectory.task.id}/{trajectory.attempt}", index, step=self.step, **where)

    def place_of_token(self, token: int) -> Place:
        """The place of flat token `token` of the batch [T]."""
        batch = self.batch
        n = int(batch.trajectory_of_token_T[token])
        segment = int(batch.segment_of_token_T[token])
        first = int(
            (batch.trajectory_of_segment_S < n).sum()
        )  # segments lie in the order of their trajectories
        return Place(
            batch.names_N[n],
            n,
            segment - first,
            int(batch.turn_T[token]),
            int(batch.position_T[token]),
            step=self.step,
        )
