"""The solver's trajectories in training tasks, as token ids: built by the chat format that rollouts use.

A named exception of invariant 1: the solver wrote these turns and no policy sampled them. They are marked as a policy's
turns are, so that exactly they are trained: their texts and the end of each turn, never a prompt or a reply. Every
trajectory earns 1 on its last turn; without a baseline each of its tokens then weighs the same, which is the gradient of
the likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from workbench.chat import Conversation
from workbench.rollouts.collect import finished_turn
from workbench.training.session import Session
from workbench.values import Group, Sampling, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds import split_of
from workbench.worlds import tasks as env_tasks
from workbench.worlds.shared import opened

SHOWN_BY = "demonstrated"  # in the place of an engine's name


@dataclass(frozen=True)
class Demonstrations:
    """Groups of one trajectory each. `failed`: tasks that the solver did not solve; `long`: those with a turn that is longer
    than collect.max_turn_tokens, which the policy could not write."""

    groups: tuple[Group, ...]
    failed: int = 0
    long: int = 0


def demonstrate(session: Session, count: int) -> Demonstrations:
    """Solve `count` training tasks, each another draw than those of the run's own steps. Raises ConfigError for a family
    without a solver, and where nothing was solved within the limits."""
    family = session.family
    if not callable(getattr(family, "solver_action", None)):
        raise ConfigError(
            f"{family.name} has no solver_action, so nobody can show how it is done; give the family one, or begin by rewards"
        )
    seed = seed_of(session.config.seed, "warm-start")
    limit = session.config.collect.max_turn_tokens
    groups = []
    failed = 0
    long = 0
    for task in _tasks(family, count, seed):
        trajectory = _solved(session, task, seed)
        if trajectory.success is False:
            failed += 1
        elif max(_turn_lengths(trajectory)) > limit:
            long += 1
        else:
            groups.append(Group((trajectory,)))
    if not groups:
        raise ConfigError(
            f"of {count} tasks none was solved in turns of at most {limit} tokens ({failed} were not solved, {long} had "
            "longer turns); raise collect.max_turn_tokens"
        )
    return Demonstrations(tuple(groups), failed, long)


def _tasks(family: Any, count: int, seed: int) -> Iterator[Task]:
    for task in env_tasks(family, "train", count, seed=seed, step=1):
        if split_of(family, task) != "train":
            raise ConfigError(f"task {task.id} is held out; demonstrations are of training tasks")
        yield task


def _solved(session: Session, task: Task, seed: int) -> Trajectory:
    """What the solver does in a task, as a trajectory that earned 1."""
    collect = session.config.collect
    rng = rng_at(seed, "solver", task.id)
    dynamics = seed_of(seed, "dynamics", task.id)
    with opened(session.family) as env:
        first = env.reset(task, dynamics)
        conversation = Conversation(
            session.chat, first, history=collect.history, window=collect.window
        )
        turns, stop = _played(session, env, conversation, rng)
    paid = [replace(turn, reward=0.0, reward_parts={}) for turn in turns]
    paid[-1] = replace(paid[-1], reward=1.0)
    return Trajectory(
        task=task,
        attempt=0,
        dynamics_seed=dynamics,
        first_observation=first,
        turns=tuple(paid),
        segments=conversation.segments,
        stop_reason=stop,
        success=turns[-1].info.get("success"),
    )


def _played(
    session: Session, env: Any, conversation: Conversation, rng: np.random.Generator
) -> tuple[list[Turn], StopReason]:
    """The solver's turns, which are added to the conversation, and how the trajectory ended."""
    family = session.family
    turns: list[Turn] = []
    for number in range(family.max_turns):
        text = family.solver_action(env, rng)
        token_ids = _ids(session, text)
        conversation.add_action(
            token_ids,
            np.zeros(len(token_ids), np.float32),
            finish="stop",
            policy_version=0,
            sampling=Sampling(engine=SHOWN_BY),
        )
        result = env.step(text)
        turns.append(finished_turn(Turn(number, text, "stop"), result))
        if result.terminated or result.truncated:
            stop = StopReason.TERMINATED if result.terminated else StopReason.ENV_TRUNCATED
            return turns, stop
        if number + 1 < family.max_turns:
            conversation.add_observation(result.observation)
    return turns, StopReason.MAX_TURNS


def _ids(session: Session, text: str) -> np.ndarray:
    """The tokens of a turn, the one that ends it included."""
    tokenizer = session.policy.tokenizer
    end = session.chat.end_of_turn
    end = min(session.chat.stop_ids) if end is None else end
    return np.array([*tokenizer.encode(text, add_special_tokens=False), end], np.int32)


def _turn_lengths(trajectory: Trajectory) -> Sequence[int]:
    return [
        len(span.token_ids)
        for segment in trajectory.segments
        for span in segment.spans
        if span.logprobs is not None
    ]
