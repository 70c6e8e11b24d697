"""Open everything that a config names, and ask it for trajectories and scores. The doors all come through here.

session = open_session(load_config("frozenlake"))    # .policy, .chat, .engine, .family, .learner
groups = rollout(session, 4)
scores = [*baselines(session), *evaluate(session)]
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from workbench.basics.extensions import has_service, service
from workbench.chat import ChatFormat
from workbench.engines import open_engine
from workbench.engines.base import Engine
from workbench.engines.policy import Policy, load_policy, num_parameters
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
from workbench.run.store import Run, step_name
from workbench.training.config import Config
from workbench.training.kinds import check_tasks
from workbench.training.prompts import refuse_without_room
from workbench.training.starting import device_of
from workbench.training.task_choice import TaskChooser
from workbench.values import Group, Groups, Task, Trajectory
from workbench.values.errors import ConfigError
from workbench.values.parts import whole
from workbench.values.seeds import seed_of
from workbench.values.tokens import sampling_words
from workbench.values.view import Shown
from workbench.worlds import tasks as env_tasks
from workbench.worlds.base import EnvFamily
from workbench.worlds.baselines import none_known
from workbench.worlds.privileged import PrivilegedFamily
from workbench.worlds.runners import EnvRunner

UNSEEDED = (
    "turns are sampled without seeds (engine.seeded), so their noise has no address (invariant 8): the same run gives other "
    "trajectories each time, evaluations share no noise, and the lint cannot check seeds (R22). Every trajectory is stored with it; "
    "learning, resuming and replaying from what is stored are as exact as ever"
)
SMALL = 20_000_000  # parameters of a model whose copy costs nothing
MOST_ASKED = 1_000_000  # tasks, or trajectories of each, of one call
LARGE = 1_000_000_000  # parameters of a model that the embedded engine is too slow for on a GPU
_printed: set[str] = set()  # notes that were already printed in this process


@dataclass(frozen=True, repr=False)
class Session(Shown):
    """What a config names, opened. Frozen: the engine and the learner hold state of their own, nothing here is
    replaced.
    """

    config: Config
    policy: Policy
    chat: ChatFormat
    engine: Engine
    run: Run | None = None  # whose weights it has; none: it was opened from a config
    keeps_first: bool = True  # False: a large policy's own model may be trained

    @property
    def family(self) -> EnvFamily:
        return self.config.family

    @cached_property
    def learner(self) -> Learner:
        """Made on first use: rolling out and looking need no optimizer."""
        config = self.config.learner
        # Runs with other seeds shuffle otherwise (invariant 8).
        address = seed_of(self.config.seed, "learner", config.seed)
        # The learner trains a copy, so the policy's own model stays what it was: the reference. Who shards, or trains and
        # no more, has no room for one that nobody uses; a small one costs nothing.
        reference = self.policy.model if "ref_logp_T" in self.config.algorithm.requires else None
        keeps = self.keeps_first or num_parameters(self.policy.model) <= SMALL
        return Learner(
            self.policy.model,
            self.config.algorithm,
            replace(config, seed=address),
            own_copy=reference is not None or (keeps and config.sharding == "none"),
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
        """What chooses the tasks of a step, and remembers how trajectories went; None: they are tried as they are drawn."""
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
        """The tasks of a step: a function of (run seed, step), and with sampling.tasks of the trajectories before it; drawn plainly, a
        longer list begins with the shorter one. No held-out problem is among them, whatever the seeds."""
        own = self.config.train.tasks_per_step
        whole("step", step)
        count = own if count is None else _counted("count", count)
        if self.chooser is not None:
            return self.chooser.choose(step, count).tasks
        return env_tasks(
            self.family, "train", count, seed=self.config.seed, step=step, per_step=own
        )

    def held_out_tasks(self, count: int | None = None) -> list[Task]:
        """The fixed tasks that every evaluation uses, whatever the run's seed."""
        first = self.config.evaluation.first_task
        own = self.config.evaluation.num_tasks
        if count is not None:
            _counted("num_tasks", count)
        return env_tasks(self.family, "held-out", first + (own if count is None else count))[first:]

    def sync(self) -> None:
        """Hand the learner's weights to the engine, which then knows their version."""
        learner = self.learner
        weights = learner.weights()
        if learner.handed is not None:
            learner.handed.look(learner.models.policy.module, weights)
        if self.config.layout.adapters == "routes":
            adapter = alone(learner.models.policy.module, self.config.learner)
            self.engine.sync_adapter(adapter, weights, learner.version)
        else:
            self.engine.sync(weights, learner.version)


def open_session(config: Config, *, quiet: bool = False, keeps_first: bool = True) -> Session:
    """Load the policy, prove its chat template, open the engine. `keeps_first` False: a policy of more than 20 million parameters
    is trained in place where no reference needs it, so `session.policy.model` does not stay untrained.

    Raises ConfigError for a device that is not there, PolicyError, ChatFormatError, EngineError.
    """
    _one_thread_unless_asked()
    if hasattr(config.env, "check_files"):  # said now, not after minutes of loading a policy
        config.env.check_files()
    check_tasks(config.env)
    device = device_of(config.policy.device)
    policy = load_policy(
        config.policy.name,
        dtype=config.policy.dtype,
        device=device,
        loader=config.policy.loader,
        base_bits=config.policy.base_bits,
    )
    chat = ChatFormat.from_tokenizer(
        policy.tokenizer, template_flags=dict(config.policy.template_flags)
    )
    config, notes = _with_form_of_calls(config, chat)
    if not quiet:
        _print_once((*chat.differences, *notes), of=f"{policy.name}: ")
    settings = config.engine
    if hasattr(settings, "device"):
        settings = replace(settings, device=device)
    rank = config.learner.lora_rank if config.layout.adapters == "routes" else 0
    engine = open_engine(settings, policy.model, config.layout, adapter_rank=rank)
    if not quiet:
        _print_once(notes_of(engine, policy, config))
    return Session(config, policy, chat, engine, keeps_first=keeps_first)


def _with_form_of_calls(config: Config, chat: ChatFormat) -> tuple[Config, Sequence[str]]:
    """The config with the form of calls that the template asks for where it says so, and what should be known of it. Raises
    ConfigError where tools are shown in one form and calls are read in another."""
    if not hasattr(config.env, "calls") or not has_service("fit_calls"):
        return config, ()
    family, notes = service("fit_calls", "reading calls as a chat template asks for them")(
        config.env, chat
    )
    return config if family is config.env else replace(config, env=family), notes


def _print_once(notes: Sequence[str], *, of: str = "") -> None:
    """Print notes that this process has not printed yet, in the one process that speaks."""
    for note in notes:
        if note not in _printed and first_process():
            _printed.add(note)
            print(f"note: {of}{note}", file=sys.stderr)


def notes_of(engine: Engine, policy: Policy, config: Config | None = None) -> list[str]:
    """What should be known of an engine before it samples, and of settings that do not fit the policy's size; a run writes
    it down when it begins."""
    notes = [] if getattr(engine, "addressed", True) else [UNSEEDED]
    notes += getattr(engine, "notes", ())
    size = num_parameters(policy.model)
    if engine.name == "transformers" and policy.model.device.type != "cpu" and size > LARGE:
        notes.append(
            f"engine.kind = 'transformers' decodes by Hugging Face's own forward passes, without graphs: it is for small "
            f"models, and this one has {size / 1e9:.1f} billion parameters; engine.kind = 'vllm' is for those"
        )
    if config is not None and has_service("toy_settings"):
        toy_settings = service("toy_settings", "notes")
        notes += toy_settings(config, size, policy.model.device.type == "cpu")
    return notes


def check_prompts(
    session: Session, tasks: Sequence[Task] | None = None, config: CollectConfig | None = None
) -> None:
    """Raise ConfigError where no first prompt of `tasks` (of its first step) leaves room for an answer: every trajectory would
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
    """Sample `group_size` trajectories of each task with the session's engine; one group per task, in task order.

    `tasks` may be a number: so many training tasks of the step. With several processes each one samples its share of the tasks
    and all of them return all groups (with `own_share` each its own, and none waits for another). The same (seed, purpose,
    step) gives the same groups, bit for bit, for environments that are stepped in the tick (invariant 8). `on_done` sees the
    trajectories of this process as they end. `greedy`: one trajectory more of each task, aside (`Group.greedy`); None: for an
    algorithm that needs it, without `group_size`; so it is with what a critic is told (critic.sees). `engine`: one to ask
    instead of the session's own, such as a `Journal` around it. Raises ConfigError for no tasks, and where first prompts leave no
    room for an answer.
    """
    if isinstance(tasks, int):
        tasks = session.train_tasks(step, _counted("tasks", tasks))
    if not tasks:
        raise ConfigError("a rollout needs at least one task")
    rank, world = session.place
    own = session.config.collect
    if not session.looked_at:
        check_prompts(session, tasks, config or own)
    family = session.family
    if group_size is None:
        group_size = session.config.train.group_size
        if session.config.critic.sees == "state":
            family = PrivilegedFamily(family)
        if greedy is None:
            greedy = needs_greedy(session.config.algorithm)
    groups = collect(
        tasks[rank::world],
        family=family,
        engine=session.engine if engine is None else engine,
        chat=session.chat,
        config=config or own,
        group_size=_counted("group_size", group_size),
        address=address or (session.config.seed, purpose, step),
        on_done=on_done,
        runner=session.runner if config is None or config.runs_like(own) else None,
        greedy=bool(greedy),
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
    name: str = "",
    num_tasks: int | None = None,
    modes: Sequence[str] = MODES,
    attempts: int | None = None,
    on_done: Callable[[Trajectory], None] | None = None,
) -> Scores:
    """Scores of the session's policy on its held-out tasks, one per mode (sampled as the run samples, and greedy). Those of a run are
    shown beside the baselines that its folder has of the same tasks.

    `name`: of the policy ("": "trained" where it is a run's). `num_tasks`, `attempts` (at each task, where it samples): as
    the config says, unless given here."""
    attempts = _attempts(session, attempts)
    tasks = session.held_out_tasks(num_tasks)

    def play(tasks, count, config, address):
        return rollout(
            session, tasks, group_size=count, config=config, address=address, on_done=on_done
        )

    scores = evaluate_policy(
        name or ("trained" if session.run else "policy"),
        tasks,
        play,
        config=session.config.collect,
        seed=session.config.evaluation.seed,
        modes=modes,
        attempts=attempts,
    )
    return scores.beside(_stored_baselines(session, len(tasks), attempts))


def _stored_baselines(session: Session, num_tasks: int, attempts: int) -> Mapping[str, Any]:
    """What the session's run measured before its first step, where that was on as many tasks, as often; else what it has
    instead, as reasons why a baseline is absent."""
    evaluations = session.run.evaluations() if session.run else {}
    first = evaluations.get(step_name(0), {"rows": ()})
    other = {}
    for row in first["rows"]:
        score = Score.of_row(row)
        asked = (num_tasks, attempts if score.mode == "sampled" else 1)
        own = sampling_words({**vars(session.config.collect), "mode": "sampled"})
        if score.policy == "untrained" and score.mode == "sampled" and sampling_words(row) != own:
            other[score.policy] = f"the run has it {sampling_words(row)}"
        if (score.n, score.attempts) != asked:
            other[score.policy] = f"the run has it of {score.n} tasks x {score.attempts}"
    return {"rows": (), "absent": other} if other else first


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
    """The JSON-able table of `scores` with their baselines and paired intervals (invariant 12)."""
    return report(
        [*baselines(session, num_tasks=num_tasks, attempts=attempts), *scores],
        none_known(session.family),
    )


def _attempts(session: Session, attempts: int | None) -> int:
    own = session.config.evaluation.attempts
    return own if attempts is None else _counted("attempts", attempts)


def _counted(name: str, count: int) -> int:
    """`count`, where a call can be asked for so many. Raises ConfigError."""
    if not 1 <= whole(name, count) <= MOST_ASKED:
        raise ConfigError(f"{name} is from 1 to {MOST_ASKED:,}, got {count}")
    return count
