"""What flows through the workbench: frozen values, standard library and numpy only.

Axis letters, used as name suffixes everywhere:
    N trajectories · G trajectories in a group · K turns · S segments · T tokens (flat: segments end to end) · V vocabulary

A finished trajectory, and where its tokens come from:

    Trajectory ── turns     text and rewards, one entry per exchange
               └─ segments  what the model really saw, one entry per sequence
                     └─ spans   tokens by one author: PROMPT | SCAFFOLD | POLICY | ENV

An append-only history is one segment; a rewritten history (window, fresh prompt per turn, a template that drops old
thoughts) is several. Training treats both alike.

Environments and policies talk in messages: an observation is shown, a text is answered, a step result comes back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from itertools import chain
from numbers import Integral
from operator import add
from typing import Any

import numpy as np

from workbench.values.errors import DataError, shortened
from workbench.values.parts import as_parts, expect
from workbench.values.spreads import flat_side
from workbench.values.tokens import Segment, Span
from workbench.values.view import Shown

# ------------------------------------------------------------------------------------------------ messages


@dataclass(frozen=True)
class Text:
    """A part of a message. Untrusted text never becomes a control token (invariant 9).

    `trusted=True` is for instructions that an environment's *author* wrote; never for task data, tool output or
    anything a user or model typed.
    """

    text: str
    trusted: bool = False

    def __post_init__(self) -> None:
        expect(self.text, str, "the text of a Text", "a string")


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it: `arguments` is the parsed JSON object."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None


def _no_text(content: object) -> DataError:
    """Why something cannot be a message's content, and what to do."""
    parts = [*content] if isinstance(content, (tuple, list)) else [content]
    part = next((part for part in parts if not isinstance(part, Text)), None)
    kind = str(part.get("type", "")) if isinstance(part, Mapping) else type(part).__name__
    if any(word in kind.lower() for word in ("image", "audio", "video", "bytes", "ndarray")):
        return DataError(
            f"a message holds text only, got a part of type {kind!r}: policies here read token ids of text, and "
            "a picture or sound would be lost on the way. Put what it shows into words (a grid as "
            "characters, a caption, the text of a page), or leave it out of the observation"
        )
    return DataError(
        f"the content of a Message is a string, or parts that are Texts: Message('user', (Text('words'),)), "
        f"got {part!r:.80}"
    )


@dataclass(frozen=True)
class Message:
    """One chat message. `content` is a tuple of parts; a bare string is taken as one untrusted part."""

    role: str  # "system" | "user" | "assistant" | "tool"
    content: str | tuple[Text, ...]  # kept as a tuple of parts
    name: str | None = None  # of the tool, in a tool reply
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        try:
            content = (Text(self.content),) if isinstance(self.content, str) else self.content
            right = isinstance(content, (tuple, list)) and all(
                isinstance(part, Text) for part in content
            )
            if not right:
                raise _no_text(content)
            content = tuple(content)
        except DataError:
            raise
        except Exception as error:
            words = f"got {shortened(self.content)}, which ended in {type(error).__name__}: {error}"
            raise DataError(
                f"the content of a Message is a string, or parts that are Texts; {words}"
            ) from error
        object.__setattr__(self, "content", content)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


@dataclass(frozen=True, repr=False)
class Observation(Shown):
    """What an environment hands over: messages to append and, at reset, the JSON schemas of the tools on offer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        what = "an Observation holds Messages, as in Observation((Message('user', 'go'),))"
        object.__setattr__(self, "messages", as_parts(self.messages, Message, what))
        what = "the tools of an Observation, as JSON schemas"
        object.__setattr__(self, "tools", as_parts(self.tools, Mapping, what))


@dataclass(frozen=True)
class StepResult:
    """An environment's answer to one action.

    `reward` is what this turn earned (None: could not be scored); `reward_parts` names what it is made of and sums to
    it. `terminated`: the task is over. `truncated`: a limit of the environment ran out. `info` is for people: JSON
    values such as `success` (bool), `moves` (list), `valid_format` (bool), `state` (text drawn in views). `tool_calls`
    are the calls that the action was read as, in its order. `if_cut`: what the trajectory as a whole earns, by named parts,
    should a limit that the environment does not know (turns, context) end it here; it is then the outcome.
    """

    observation: Observation
    reward: float | None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    terminated: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = field(default_factory=dict)
    tool_calls: tuple[ToolCall, ...] = ()
    if_cut: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        what = "the tool_calls of a StepResult"
        object.__setattr__(self, "tool_calls", as_parts(self.tool_calls, ToolCall, what))


# ------------------------------------------------------------------------------------------------ what was done


class StopReason(StrEnum):
    """Why a trajectory ended: the task was over, a limit ran out, or something broke."""

    TERMINATED = "terminated"  # the environment says that the task is over
    ENV_TRUNCATED = "env_truncated"  # the environment's own limit (moves) ran out
    MAX_TURNS = "max_turns"  # the limit on exchanges ran out
    CONTEXT_FULL = "context_full"  # the next observation or action would not fit into the context
    ENV_ERROR = "env_error"  # the environment raised; `Trajectory.error` says what
    ENV_TIMEOUT = "env_timeout"  # the environment missed its deadline
    ENGINE_ERROR = "engine_error"  # the engine gave no answer for this trajectory

    @property
    def is_fault(self) -> bool:
        """True where something broke: such a trajectory is unscored (invariant 5), never "reward 0"."""
        return self in (StopReason.ENV_ERROR, StopReason.ENV_TIMEOUT, StopReason.ENGINE_ERROR)


def _stop_reason(reason: Any) -> StopReason:
    try:
        return StopReason(reason)
    except Exception as error:
        raise DataError(
            f"a trajectory's stop_reason is one of {', '.join(StopReason)}, got {shortened(reason)} ({type(reason).__name__})"
        ) from error


@dataclass(frozen=True, repr=False)
class Task(Shown):
    """One problem to solve. `task_seed` makes the problem; chance inside the environment has its own seed (invariant 7).

    `payload` holds what the environment needs to build it (JSON values: a level, a question, a gold answer).
    """

    id: str
    env: str
    task_seed: int
    payload: Mapping[str, Any] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        expect(self.id, str, "the id of a Task", "a string")
        expect(self.env, str, "the env of a Task", "the name of its environment")
        expect(self.task_seed, Integral, "the task_seed of a Task", "a whole number")
        for name in ("payload", "metadata"):
            expect(getattr(self, name), Mapping, f"the {name} of a Task", "values by name")


@dataclass(frozen=True, repr=False)
class Turn(Shown):
    """One exchange: the whole text the policy wrote (the action) and what came back.

    `text` is decoded for people and parsers; the ids in the segments are the truth (invariant 2).
    `finish` is "stop" (the policy ended its turn) or "length" (it was cut). `reward` None: not scored.
    """

    index: int
    text: str
    finish: str = "stop"
    moves: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    reply: tuple[Message, ...] = ()
    reward: float | None = None
    reward_parts: Mapping[str, float] = field(default_factory=dict)
    # Of the state the action was taken in, where the environment can name it.
    state_key: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    # What the critic could read of that state and the policy could not; None: not asked for.
    privileged: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory(Shown):
    """One finished rollout of a task.

    `outcome` is what was earned by the trajectory as a whole, scored at its end; None where the environment pays by
    turns only, or where scoring failed (`scored` tells which). `reward` is the sum of all turns and the outcome.
    """

    task: Task
    attempt: int
    dynamics_seed: int
    first_observation: Observation
    turns: tuple[Turn, ...]
    segments: tuple[Segment, ...]
    stop_reason: StopReason
    outcome: float | None = None
    outcome_parts: Mapping[str, float] = field(default_factory=dict)
    scored: bool = True
    success: bool | None = None
    error: str | None = None

    def __post_init__(self) -> None:
        expect(self.task, Task, "the task of a Trajectory", "a Task")
        expect(self.first_observation, Observation, "a first_observation", "an Observation")
        turns = as_parts(self.turns, Turn, "the turns of a Trajectory")
        segments = as_parts(self.segments, Segment, "the segments of a Trajectory")
        object.__setattr__(self, "turns", turns)
        object.__setattr__(self, "segments", segments)
        object.__setattr__(self, "stop_reason", _stop_reason(self.stop_reason))

    @property
    def terminated(self) -> bool:
        return self.stop_reason is StopReason.TERMINATED

    @property
    def truncated(self) -> bool:
        """A limit ended it, not the task: a critic would bootstrap here."""
        return not self.terminated and not self.stop_reason.is_fault

    @property
    def reward(self) -> float | None:
        """Undiscounted sum of turn rewards and outcome; None if any of it could not be scored (invariant 5)."""
        if (
            not self.scored
            or self.stop_reason.is_fault
            or any(turn.reward is None for turn in self.turns)
        ):
            return None
        return float(sum_of(turn.reward for turn in self.turns) + (self.outcome or 0.0))

    @property
    def num_sampled(self) -> int:
        return sum(map(len, self._sampled_spans()))

    @property
    def surprise(self) -> float | None:
        """Mean -logprob in nats of what was sampled; None where nothing was."""
        logprobs = [span.logprobs for span in self._sampled_spans() if len(span)]
        return -float(np.mean(np.concatenate(logprobs), dtype=np.float64)) if logprobs else None

    @property
    def json(self) -> str:
        """What was said, by whom and what it earned, as JSON: to copy, or to read with anything."""
        turns = [
            {
                "turn": turn.index,
                "text": turn.text,
                "reward": turn.reward,
                "reward_parts": dict(turn.reward_parts),
                "reply": _as_dicts(turn.reply),
            }
            for turn in self.turns
        ]
        facts = {
            "task": self.task.id,
            "attempt": self.attempt,
            "reward": self.reward,
            "outcome": self.outcome,
            "success": self.success,
            "stop_reason": self.stop_reason.value,
            "error": self.error or "",
            "prompt": _as_dicts(self.first_observation.messages),
            "turns": turns,
        }
        return json.dumps(facts, ensure_ascii=False, indent=1)

    def messages(self) -> Iterator[tuple[str, str]]:
        """(who, what) of each message from the first on: the policy's are "turn 0", what it was answered "turn 0, user"."""
        for message in self.first_observation.messages:
            yield f"prompt, {message.role}", message.text
        for turn in self.turns:
            yield f"turn {turn.index}", turn.text
            for message in turn.reply:
                yield f"turn {turn.index}, {message.role}", message.text

    @property
    def text(self) -> str:
        """The same as text, message by message."""
        head = f"{self.task.id}, attempt {self.attempt}: reward {self.reward}, {self.stop_reason.value}"
        return "\n\n".join([head, *(f"[{who}]\n{words}" for who, words in self.messages())])

    def _sampled_spans(self) -> Iterator[Span]:
        for segment in self.segments:
            yield from (span for span in segment.spans if span.sampled)


def _as_dicts(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "text": message.text} for message in messages]


@dataclass(frozen=True, eq=False, repr=False)
class Group(Shown):
    """Trajectories of the same task, from the same first observation (invariant 7)."""

    trajectories: tuple[Trajectory, ...]
    # One more trajectory, by the likeliest tokens, for algorithms that compare with it (ReMax). It is no member of the
    # group: it is never trained on and enters no statistic. None: not collected.
    greedy: Trajectory | None = None

    def __post_init__(self) -> None:
        what = "the trajectories of a Group"
        object.__setattr__(self, "trajectories", as_parts(self.trajectories, Trajectory, what))
        if self.greedy is not None:
            expect(self.greedy, Trajectory, "the greedy trajectory of a Group", "a Trajectory")
        if not self.trajectories:
            raise DataError("a group holds at least one trajectory")
        first = self.trajectories[0]
        # A fault before the first observation leaves an empty one: nothing to compare.
        seen = next((t for t in self.trajectories if t.first_observation.messages), first)
        for other in (*self.trajectories[1:], *(() if self.greedy is None else (self.greedy,))):
            if other.task.id != first.task.id or other.task.task_seed != first.task.task_seed:
                raise DataError(
                    f"a group is one task, but attempt {other.attempt} is task {other.task.id!r} (seed "
                    f"{other.task.task_seed}) and attempt {first.attempt} is {first.task.id!r} (seed "
                    f"{first.task.task_seed}); baselines over different tasks are meaningless"
                )
            if (
                other.first_observation.messages
                and other.first_observation != seen.first_observation
            ):
                raise DataError(
                    f"task {first.task.id!r}: trajectories {seen.attempt} and {other.attempt} start from different "
                    "observations; the first observation must depend on task_seed only, not on dynamics_seed"
                )
        attempts = [t.attempt for t in self.trajectories]
        if again := {number for number in attempts if attempts.count(number) > 1}:
            raise DataError(f"task {first.task.id!r}: attempt numbers repeat: {sorted(again)[:8]}")

    @property
    def task(self) -> Task:
        return self.trajectories[0].task

    @property
    def flat(self) -> str:
        """On which side the group is flat: see `flat_side`; "" where its rewards differ."""
        return flat_side([(trajectory.reward, trajectory.success) for trajectory in self])

    def __len__(self) -> int:
        return len(self.trajectories)

    def __iter__(self):
        return iter(self.trajectories)

    def __getitem__(self, index: int) -> Trajectory:
        return self.trajectories[index]


def sum_of(numbers: Iterable[float]) -> float:
    """The sum, added from left to right. `sum` of floats rounds otherwise since Python 3.12, and whoever reads a run adds
    up again what was recorded."""
    return reduce(add, numbers, 0)


def trajectories_of(groups: Sequence[Group]) -> list[Trajectory]:
    """All trajectories, in address order: group by group, trajectory by trajectory."""
    return list(chain.from_iterable(groups))
