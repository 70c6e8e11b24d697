"""What a player of the family does in training tasks, as token ids: built by the chat format that rollouts use.

The solver plays, or another player that the family has: `player="careful"` is its `careful_action(env, rng)`.

A named exception of invariant 1: the player wrote these turns and no policy sampled them. They are marked as a policy's
turns are, so that exactly they are trained: their texts and the end of each turn, never a prompt or a reply.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.chat import Conversation
from workbench.rollouts.collect import finished_turn
from workbench.training.session import Session
from workbench.values import Group, Sampling, StopReason, Task, Trajectory, Turn
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds import split_of, tasks
from workbench.worlds.shared import opened

SHOWN_BY = "demonstrated"  # in the place of an engine's name
SOLVER = "solver"
Act = Callable[[Any, np.random.Generator], str]


@dataclass(frozen=True)
class Demonstrations:
    """Groups of one trajectory each. `failed`: tasks that the solver did not solve; `long`: those with a turn that is longer
    than collect.max_turn_tokens, which the policy could not write."""

    groups: tuple[Group, ...]
    failed: int = 0
    long: int = 0

    @property
    def turns(self) -> int:
        return sum(len(group[0].turns) for group in self.groups)


def demonstrate(
    session: Session, count: int, *, first: int = 0, player: str = SOLVER
) -> Demonstrations:
    """What `player` does in training tasks number `first` to `first + count`, other draws than those of the run's own steps.
    Where the solver fails, its trajectory is left out; another player's belong to what is shown.

    Raises ConfigError for a family without this player, and where nothing is left within the limits."""
    act = _player_of(session.family, player)
    limit = session.config.collect.max_turn_tokens
    groups = []
    failed = 0
    long = 0
    for number in range(first, first + count):
        trajectory = _played(session, act, number)
        if player == SOLVER and trajectory.success is False:
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


def _player_of(family: Any, player: str) -> Act:
    name = f"{player}_action"
    if not callable(getattr(family, name, None)):
        raise ConfigError(
            f"{family.name} has no {name}, so that player cannot show how it is done; give the family one, name another "
            "player that it has, or begin by rewards"
        )
    return getattr(family, name)


def _task(session: Session, number: int) -> Task:
    """Training task number `number`: a function of the run's seed and of the number alone."""
    family = session.family
    seed = seed_of(session.config.seed, "warm start", "task")
    # A family that says itself which task comes after which counts steps from 1.
    step = number + hasattr(family, "task_seeds")
    [task] = tasks(family, "train", 1, seed=seed, step=step)
    if split_of(family, task) != "train":
        raise ConfigError(f"task {task.id} is held out; demonstrations are of training tasks")
    return task


def _played(session: Session, act: Act, number: int) -> Trajectory:
    """Task number `number` as the player plays it."""
    seed = session.config.seed
    collect = session.config.collect
    task = _task(session, number)
    rng = rng_at(seed, "warm start", "demonstrator", number)
    dynamics = seed_of(seed, "warm start", "dynamics", number)
    with opened(session.family) as env:
        first = env.reset(task, dynamics)
        conversation = Conversation(
            session.chat, first, history=collect.history, window=collect.window
        )
        turns, stop = _turns(session, env, conversation, lambda: act(env, rng))
    return Trajectory(
        task=task,
        attempt=0,
        dynamics_seed=dynamics,
        first_observation=first,
        turns=tuple(turns),
        segments=conversation.segments,
        stop_reason=stop,
        success=turns[-1].info.get("success"),
    )


def _turns(
    session: Session, env: Any, conversation: Conversation, act: Callable[[], str]
) -> tuple[list[Turn], StopReason]:
    """The player's turns, which are added to the conversation, and how the trajectory ended."""
    most = session.family.max_turns
    turns: list[Turn] = []
    for number in range(most):
        text = act()
        token_ids = _ids(session, text)
        # Zeros stand where a sampler's logprobs would: nobody reads them.
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
        if number + 1 < most:
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
