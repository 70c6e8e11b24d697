"""From tasks to finished trajectories: policy and environment take turns, one attempt at a time.

reset ─▶ prompt ids ─▶ generate ─▶ text ─▶ step ─▶ reply ─▶ prompt ids ─▶ ...  to a named stop reason
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from workbench.plain.chat import PlainChat, PlainConversation
from workbench.plain.engine import generate
from workbench.types.seeds import rng_at, seed_of
from workbench.types import (
    Group,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

Address = tuple[int | str, ...]


@dataclass(frozen=True)
class Rollout:
    """How attempts are made. `make_env()` gives a fresh environment: `reset(task, dynamics_seed)`, `step(text)` and,
    where it can name its states, `state_key()`."""

    make_env: Callable[[], Any]
    max_turns: int
    history: str = "append"  # see chat.PlainConversation
    window: int = 2
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
    """`group_size` attempts at each task; `greedy`: beside them one more, by the likeliest tokens, which is no member.
    `address` begins every seed: (run seed, "train", step)."""
    return [
        Group(
            [attempt(task, number, model, chat, rollout, address) for number in range(group_size)],
            attempt(
                task, group_size, model, chat, replace(rollout, temperature=0.0, top_p=1.0), address
            )
            if greedy
            else None,
        )
        for task in tasks
    ]


def attempt(
    task: Task, number: int, model: nn.Module, chat: PlainChat, rollout: Rollout, address: Address
) -> Trajectory:
    """One attempt. Every draw is a function of its address, so nothing that happens elsewhere can change it."""
    env, turns, error, parts = rollout.make_env(), [], None, {}
    made = Trajectory(
        task,
        number,
        seed_of(*address, "dynamics", task.id, number),
        Observation(()),
        (),
        (),
        StopReason.ENV_ERROR,
        scored=False,
    )
    try:
        first = env.reset(task, made.dynamics_seed)
    except (
        Exception
    ) as raised:  # whatever an environment raises: a bad rollout is data, not a crash
        return replace(made, error=repr(raised))
    conversation = PlainConversation(chat, first, rollout.history, rollout.window)
    stop = StopReason.CONTEXT_FULL if len(conversation.prompt_ids) >= rollout.max_context else None
    while stop is None:
        state_key = env.state_key() if hasattr(env, "state_key") else None
        ids, finish = speak(
            conversation, model, rollout, (*address, "engine", task.id, number, len(turns))
        )
        turns.append(Turn(len(turns), chat.decode(ids), finish, state_key=state_key))
        try:
            result = env.step(turns[-1].text)
        except Exception as raised:
            stop, error = StopReason.ENV_ERROR, repr(raised)
            break
        turns[-1] = replace(
            turns[-1],
            reply=result.observation.messages,
            reward=result.reward,
            info=result.info,
            reward_parts=result.reward_parts,
            tool_calls=result.tool_calls,
        )
        parts = {}  # of the outcome, should a limit that the environment does not know end it here
        if result.terminated or result.truncated:
            stop = StopReason.TERMINATED if result.terminated else StopReason.ENV_TRUNCATED
        elif len(turns) >= rollout.max_turns:
            stop, parts = StopReason.MAX_TURNS, result.if_cut
        elif not conversation.answer(ids, result.observation, rollout.max_context):
            stop, parts = StopReason.CONTEXT_FULL, result.if_cut
    segments = [Segment(spans) for spans in conversation.segments]
    return replace(
        made,
        first_observation=first,
        turns=turns,
        segments=segments,
        stop_reason=stop,
        error=error,
        outcome=sum(parts.values()) if parts else None,
        scored=not stop.is_fault,
    )


def speak(
    conversation: PlainConversation, model: nn.Module, rollout: Rollout, address: Address
) -> tuple[list[int], str]:
    """One turn of the policy: its ids, and whether it stopped by itself."""
    prompt_ids, bent = conversation.prompt_ids, (rollout.temperature, rollout.top_p)
    noise = rng_at(*address).random(
        min(rollout.max_turn_tokens, rollout.max_context - len(prompt_ids))
    )
    ids, logps, finish = generate(model, prompt_ids, noise, conversation.chat.stop_ids, *bent)
    conversation.segments[-1].append(
        Span(
            Source.POLICY,
            len(conversation.exchanges),
            ids,
            logps,
            sampled=True,
            sampling=Sampling(*bent, engine="plain"),
        )
    )
    return ids, finish
