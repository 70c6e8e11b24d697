"""Open everything that a config names, and ask it for attempts and scores. The doors all come through here.

session = open_session(load_config("frozenlake"))    # .policy, .chat, .engine, .family, .learner
groups = rollout(session, 4)
scores = [*baselines(session), *evaluate(session)]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from workbench.chat import ChatFormat
from workbench.engines import open_engine
from workbench.engines.base import Engine
from workbench.engines.policy import Policy, load_policy
from workbench.envs import tasks as env_tasks
from workbench.envs.base import EnvFamily
from workbench.envs.baselines import none_known
from workbench.envs.privileged import PrivilegedFamily
from workbench.envs.runners import EnvRunner
from workbench.learn.adapters import alone
from workbench.learn.algorithms.base import needs_greedy
from workbench.learn.learner import Learner
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.rollouts.evaluate import (
    MODES,
    Score,
    Scores,
    evaluate_baselines,
    evaluate_policy,
    report,
)
from workbench.run.store import open_run
from workbench.training.config import Config
from workbench.training.kinds import check_tasks
from workbench.training.prompts import refuse_without_room
from workbench.training.starting import device_of
from workbench.training.task_choice import TaskChooser
from workbench.types import Group, Groups, Task, Trajectory
from workbench.types.errors import ConfigError, StoreError
from workbench.types.seeds import seed_of
from workbench.types.view import Shown

UNSEEDED = (
    "turns are sampled without seeds (engine.seeded), so their noise has no address (law 8): the same run gives other "
    "attempts each time, evaluations share no noise, and the lint cannot check seeds (R22). Every attempt is stored with it; "
    "learning, resuming and replaying from what is stored are as exact as ever"
)
LARGE = 1_000_000_000  # parameters of a model that the embedded engine is too slow for on a GPU
_told: set[str] = set()  # differences that were already printed in this process


@dataclass(frozen=True, repr=False)
class Session(Shown):
    """What a config names, opened. Frozen: the engine and the learner hold state of their own, nothing here is
    replaced.
    """

    config: Config
    policy: Policy
    chat: ChatFormat
    engine: Engine

    @property
    def family(self) -> EnvFamily:
        return self.config.env

    @cached_property
    def learner(self) -> Learner:
        """Made on first use: rolling out and looking need no optimizer."""
        config = self.config.learner
        address = seed_of(
            self.config.seed, "learner", config.seed
        )  # runs with other seeds shuffle otherwise (law 8)
        # The learner trains a copy, so the policy's own model stays what it was: the reference. Who shards has no room
        # for one that nobody uses.
        reference = self.policy.model if "ref_logp_T" in self.config.algorithm.requires else None
        return Learner(
            self.policy.model,
            self.config.algorithm,
            replace(config, seed=address),
            own_copy=config.sharding == "none" or reference is not None,
            critic=self.config.critic,
            reference=reference,
            read=self.chat.foreign_ids if self.config.critic.sees == "state" else None,
        )

    @cached_property
    def runner(self) -> EnvRunner:
        """What steps the environments, kept from step to step: worker processes need not start anew. They go with the
        session."""
        return self.config.collect.runner()

    def close(self) -> None:
        """Give back threads, processes and environments that are still open: used again, it starts them anew. And a server
        that was started for the engine: that is over then."""
        if "runner" in self.__dict__:
            self.runner.shutdown()
        if hasattr(self.engine, "close"):
            self.engine.close()

    @cached_property
    def chooser(self) -> TaskChooser | None:
        """What chooses the tasks of a step, and remembers how attempts went; None: they are tried as they are drawn."""
        return None if self.config.sampling.tasks == "fresh" else TaskChooser(self.config)

    @cached_property
    def looked_at(self) -> list[str]:
        """What is looked at once a session, and has been."""
        return []

    @cached_property
    def place(self) -> tuple[int, int]:
        """(rank, number of processes): what torchrun or accelerate started, else (0, 1)."""
        from accelerate import PartialState

        # Whoever asks first fixes accelerate's device for the whole process: it must be the policy's.
        state = PartialState(cpu=self.policy.model.device.type == "cpu")
        return state.process_index, state.num_processes

    def train_tasks(self, step: int, count: int | None = None) -> list[Task]:
        """The tasks of a step: a function of (run seed, step), and with sampling.tasks of the attempts before it; drawn plainly, a
        longer list begins with the shorter one. No held-out problem is among them, whatever the seeds."""
        own = self.config.train.tasks_per_step
        count = own if count is None else count
        if self.chooser is not None:
            return self.chooser.choose(step, count).tasks
        return env_tasks(
            self.family, "train", count, seed=self.config.seed, step=step, per_step=own
        )

    def held_out_tasks(self, count: int | None = None) -> list[Task]:
        """The fixed tasks that every evaluation uses, whatever the run's seed."""
        first, own = self.config.evaluation.first_task, self.config.evaluation.num_tasks
        return env_tasks(self.family, "held-out", first + (own if count is None else count))[first:]

    def sync(self) -> None:
        """Hand the learner's weights to the engine, which then knows their version."""
        weights = self.learner.weights()
        if self.learner.handed is not None:
            self.learner.handed.look(self.learner.models.policy.module, weights)
        if self.config.layout.adapters == "routes":
            adapter = alone(self.learner.models.policy.module, self.config.learner)
            self.engine.sync_adapter(adapter, weights, self.learner.version)
        else:
            self.engine.sync(weights, self.learner.version)


def open_session(config: Config, *, quiet: bool = False) -> Session:
    """Load the policy, prove its chat template, open the engine.

    Raises ConfigError for a device that is not there, PolicyError, ChatFormatError, EngineError.
    """
    _one_thread_unless_asked()
    if hasattr(config.env, "check_files"):  # said now, not after minutes of loading a policy
        config.env.check_files()
    check_tasks(config.env)
    device = device_of(config.policy.device)
    policy = load_policy(
        config.policy.name, dtype=config.policy.dtype, device=device, loader=config.policy.loader
    )
    chat = ChatFormat.from_tokenizer(
        policy.tokenizer, template_flags=dict(config.policy.template_flags)
    )
    for difference in chat.differences:
        if not quiet and difference not in _told and first_process():
            _told.add(difference)
            print(f"note: {policy.name}: {difference}", file=sys.stderr)
    settings = (
        config.engine
        if not hasattr(config.engine, "device")
        else replace(config.engine, device=device)
    )
    rank = config.learner.lora_rank if config.layout.adapters == "routes" else 0
    engine = open_engine(settings, policy.model, config.layout, adapter_rank=rank)
    for said in notes_of(engine, policy):
        if not quiet and said not in _told and first_process():
            _told.add(said)
            print(f"note: {said}", file=sys.stderr)
    return Session(config, policy, chat, engine)


def notes_of(engine: Engine, policy: Policy) -> list[str]:
    """What should be known of an engine before it samples; a run writes it down when it begins."""
    found = [] if getattr(engine, "addressed", True) else [UNSEEDED]
    size = sum(parameter.numel() for parameter in policy.model.parameters())
    if engine.name == "transformers" and policy.model.device.type != "cpu" and size > LARGE:
        found.append(
            f"engine.kind = 'transformers' decodes by Hugging Face's own forward passes, without graphs: it is for small "
            f"models, and this one has {size / 1e9:.1f} billion parameters; engine.kind = 'vllm' is for those"
        )
    return found


def check_prompts(
    session: Session, tasks: Sequence[Task] | None = None, config: CollectConfig | None = None
) -> None:
    """Raise ConfigError where no first prompt of `tasks` (of its first step) leaves room for an answer: every attempt would
    end without a turn. A session is asked once, by whoever samples first."""
    refuse_without_room(
        session.train_tasks(1) if tasks is None else tasks,
        family=session.family,
        chat=session.chat,
        config=config or session.config.collect,
        runner=session.runner,
        holds=session.engine.context_length,
    )
    session.looked_at.append("prompts")


def reopen(
    run: Any, *, step: int | None = None, quiet: bool = False, trust: bool = False
) -> Session:
    """The session of a stored run with the weights of its newest checkpoint (or the one of `step`), synchronised.

    `run`: what `store.open_run` returned, or its folder; `trust` as there. Raises StoreError where the run has no readable
    checkpoint, ConfigError where code that it names cannot be had here.
    """
    from workbench.training import checkpoint
    from workbench.training.stored import config_of_run

    run = open_run(run, trust=trust)
    session = open_session(config_of_run(run), quiet=quiet)
    if step is None:
        found = checkpoint.load_newest(run.path)
        if found is None:
            raise StoreError(
                f"{run.path} has no checkpoint yet; train at least one step, or evaluate the policy it "
                f"started from: {session.policy.name}"
            )
    else:
        found = checkpoint.load(Path(run.path), step)
    _, tensors, state = found
    session.learner.load_state(tensors, state["learner"])
    if (
        session.learner.version
    ):  # version 0 is what the engine holds: a run in which nothing was updated yet
        session.sync()
    return session


def first_process() -> bool:
    """True in the one process that speaks, before anything is opened: what torchrun put into the environment."""
    return os.environ.get("RANK", "0") == "0"


def _one_thread_unless_asked() -> None:
    """Compute on one CPU thread, or on as many as OMP_NUM_THREADS says.

    Every door comes through here, so a notebook's kernel, which nobody starts with that variable, rounds like the
    command line does, bit for bit. And it is as fast: a tiny model on two busy cores was measured 25 times slower with
    two threads, which wait for each other all the time.
    """
    if not os.environ.get("OMP_NUM_THREADS"):
        import torch

        torch.set_num_threads(1)


# ------------------------------------------------------------------------------------------------ cells that sample and measure


def rollout(
    session: Session,
    tasks: Sequence[Task] | int = 4,
    *,
    group_size: int | None = None,
    step: int = 0,
    purpose: str = "look",
    config: CollectConfig | None = None,
    address: tuple[int | str, ...] | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
    engine: Engine | None = None,
    own_share: bool = False,
    greedy: bool | None = None,
) -> Groups:
    """Sample `group_size` attempts at each task with the session's engine; one group per task, in task order.

    `tasks` may be a number: so many training tasks of the step. With several processes each one samples its share of the tasks
    and all of them return all groups (with `own_share` each its own, and none waits for another). The same (seed, purpose,
    step) gives the same groups, bit for bit, for environments that are stepped in the tick (law 8). `on_done` sees the
    trajectories of this process as they end. `greedy`: one attempt more at each task, aside (`Group.greedy`); None: for an
    algorithm that needs it, without `group_size`; so it is with what a critic is told (critic.sees). `engine`: one to ask
    instead of the session's own, such as a `Journal` around it. Raises ConfigError for no tasks, and where first prompts leave no
    room for an answer.
    """
    if isinstance(tasks, int):
        tasks = session.train_tasks(step, tasks)
    if not tasks:
        raise ConfigError("a rollout needs at least one task")
    rank, world = session.place
    like_training = config is None or config.runs_like(session.config.collect)
    config = config or session.config.collect
    if not session.looked_at:
        check_prompts(session, tasks, config)
    told = group_size is None and session.config.critic.sees == "state"
    greedy = (
        (group_size is None and needs_greedy(session.config.algorithm))
        if greedy is None
        else greedy
    )
    groups = collect(
        tasks[rank::world],
        family=PrivilegedFamily(session.family) if told else session.family,
        engine=session.engine if engine is None else engine,
        chat=session.chat,
        config=config,
        group_size=session.config.train.group_size if group_size is None else group_size,
        address=address or (session.config.seed, purpose, step),
        on_done=on_done,
        runner=session.runner if like_training else None,
        greedy=greedy,
    )
    return Groups(groups) if world == 1 or own_share else everybodys(tasks, groups)


def everybodys(tasks: Sequence[Task], groups: Sequence[Group]) -> Groups:
    """The groups of all processes in task order; every process calls it with its own."""
    from accelerate.utils import gather_object

    gathered = {group.task.id: group for group in gather_object(groups)}
    return Groups([gathered[task.id] for task in tasks])


def evaluate(
    session: Session,
    *,
    name: str = "policy",
    num_tasks: int | None = None,
    modes: Sequence[str] = MODES,
    attempts: int | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> Scores:
    """Scores of the session's policy on its held-out tasks, one per mode (sampled at temperature 1, greedy).

    `num_tasks`, `attempts` (at each task, where it samples): as the config says, unless given here."""

    def play(tasks, count, config, address):
        return rollout(
            session, tasks, group_size=count, config=config, address=address, on_done=on_done
        )

    return evaluate_policy(
        name,
        session.held_out_tasks(num_tasks),
        play,
        config=session.config.collect,
        seed=session.config.evaluation.seed,
        modes=modes,
        attempts=_attempts(session, attempts),
    )


def baselines(
    session: Session, *, num_tasks: int | None = None, attempts: int | None = None
) -> Scores:
    """Random play and the best-known solver on the same tasks, random play as often as a policy that samples; what the
    family does not have is left out."""
    return evaluate_baselines(
        session.held_out_tasks(num_tasks),
        family=session.family,
        runner=session.runner,
        seed=session.config.evaluation.seed,
        attempts=_attempts(session, attempts),
    )


def evaluation_report(
    session: Session,
    scores: Sequence[Score],
    *,
    num_tasks: int | None = None,
    attempts: int | None = None,
) -> dict[str, Any]:
    """The JSON-able table of `scores` with their baselines and paired intervals (law 12)."""
    return report(
        [*baselines(session, num_tasks=num_tasks, attempts=attempts), *scores],
        none_known(session.family),
    )


def _attempts(session: Session, attempts: int | None) -> int:
    return session.config.evaluation.attempts if attempts is None else attempts
