"""From tasks to finished trajectories: policy and environment take turns, one trajectory at a time.

reset ─▶ prompt ids ─▶ generate ─▶ text ─▶ step ─▶ reply ─▶ prompt ids ─▶ ...  to a named stop reason
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from workbench.plain.chat import PlainChat, PlainConversation
from workbench.plain.engine import generate
from workbench.values import (
    Group,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StepResult,
    StopReason,
    Task,
    Trajectory,
    Turn,
    sum_of,
)
from workbench.values.seeds import rng_at, seed_of

Address = tuple[int | str, ...]


@dataclass(frozen=True)
class Rollout:
    """How trajectories are made. `make_env()` gives a fresh environment: `reset(task, dynamics_seed)`,
    `step(text)` and, where it can name its states, `state_key()`."""

    make_env: Callable[[], Any]
    max_turns: int
    history: str = "append"  # see chat.PlainConversation
    window: int = 2  # exchanges that history "window" shows
    max_turn_tokens: int = 64
    max_context: int = 2048  # tokens of one sequence, prompt included
    temperature: float = 1.0
    top_p: float = 1.0


def collect(
    tasks: Sequence[Task],
    group_size: int,
    model: nn.Module,
    chat: PlainChat,
    rollout: Rollout,
    address: Address,
    greedy: bool = False,
) -> list[Group]:
    """Roll out each task `group_size` times; `greedy`: beside them once more, by the likeliest
    tokens, which is no member. `address` begins every seed: (run seed, "train", step)."""
    groups = []
    for task in tasks:
        members = [roll_out(task, n, model, chat, rollout, address) for n in range(group_size)]
        # The greedy one is numbered behind the members, so that its environment has its own seed.
        likeliest = None
        if greedy:
            cold = replace(rollout, temperature=0.0, top_p=1.0)
            likeliest = roll_out(task, group_size, model, chat, cold, address)
        groups.append(Group(members, likeliest))
    return groups


def roll_out(
    task: Task, number: int, model: nn.Module, chat: PlainChat, rollout: Rollout, address: Address
) -> Trajectory:
    """Roll out a task once. Every draw is a function of its address, so nothing that happens
    elsewhere can change it."""
    env = rollout.make_env()
    seed = seed_of(*address, "dynamics", task.id, number)
    # Whatever an environment raises is kept with the trajectory: a bad rollout is data, not a crash.
    try:
        first = env.reset(task, seed)
    except Exception as raised:
        return Trajectory(
            task,
            number,
            seed,
            Observation(()),
            (),
            (),
            StopReason.ENV_ERROR,
            scored=False,
            error=repr(raised),
        )
    conversation = PlainConversation(chat, first, rollout.history, rollout.window)
    draws = (*address, "engine", task.id, number)
    turns, stop, outcome, error = play(env, conversation, model, rollout, draws)
    # The conversation has gathered every token with its author, turn by turn.
    segments = [Segment(spans) for spans in conversation.segments]
    return Trajectory(
        task,
        number,
        seed,
        first,
        turns,
        segments,
        stop,
        outcome,
        scored=not stop.is_fault,
        error=error,
    )


def play(
    env: Any, conversation: PlainConversation, model: nn.Module, rollout: Rollout, address: Address
) -> tuple[list[Turn], StopReason, float | None, str | None]:
    """Let policy and environment take turns: (turns, why it stopped, outcome, error)."""
    turns = []
    # A prompt may fill the context by itself: then there is no turn at all.
    stop = StopReason.CONTEXT_FULL if len(conversation.prompt_ids) >= rollout.max_context else None
    while stop is None:
        # The state that a turn begins in is asked for before the environment moves on.
        state_key = env.state_key() if hasattr(env, "state_key") else None
        ids, finish = speak(conversation, model, rollout, (*address, len(turns)))
        turn = Turn(len(turns), conversation.chat.decode(ids), finish, state_key=state_key)
        # What raised has no reply and no reward: the turn stays as the policy left it.
        try:
            result = env.step(turn.text)
        except Exception as raised:
            return [*turns, turn], StopReason.ENV_ERROR, None, repr(raised)
        turns.append(answered(turn, result))
        # The environment's word comes first, then the limits that it does not know. Such a limit may
        # cut off what the environment would have scored at its own end.
        if result.terminated:
            stop = StopReason.TERMINATED
        elif result.truncated:
            stop = StopReason.ENV_TRUNCATED
        else:
            if len(turns) >= rollout.max_turns:
                stop = StopReason.MAX_TURNS
            elif not conversation.answer(ids, result.observation, rollout.max_context):
                stop = StopReason.CONTEXT_FULL
            # None and an empty table alike: nothing was earned by being cut off.
            if stop and result.if_cut:
                return turns, stop, sum_of(result.if_cut.values()), None
    return turns, stop, None, None


def answered(turn: Turn, result: StepResult) -> Turn:
    """Add the environment's answer to a turn."""
    return replace(
        turn,
        reply=result.observation.messages,
        reward=result.reward,
        info=result.info,
        reward_parts=result.reward_parts,
        tool_calls=result.tool_calls,
    )


def speak(
    conversation: PlainConversation, model: nn.Module, rollout: Rollout, address: Address
) -> tuple[list[int], str]:
    """Sample one turn of the policy: its ids, and whether it stopped by itself."""
    prompt_ids = conversation.prompt_ids
    sampling = Sampling(rollout.temperature, rollout.top_p, engine="plain")
    # One number for each token that there is room for.
    room = min(rollout.max_turn_tokens, rollout.max_context - len(prompt_ids))
    noise = rng_at(*address).random(room)
    ids, logps, finish = generate(
        model,
        prompt_ids,
        noise,
        conversation.chat.stop_ids,
        rollout.temperature,
        rollout.top_p,
    )
    # Here and nowhere else tokens are marked as sampled, with the logprobs that they had.
    turn = len(conversation.exchanges)
    span = Span(Source.POLICY, turn, ids, logps, sampled=True, sampling=sampling)
    conversation.segments[-1].append(span)
    return ids, finish
