"""What happens in a talk between a person, a policy and its tools: events, frozen values, in their order.

QuestionEvent · TextEvent TextEvent ... · TurnEvent · ToolCallEvent ToolResultEvent ... · AnswerEvent · EndEvent
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workbench.values import Trajectory

STOPPED = "stopped"  # as a reason to end: a person asked for it


@dataclass(frozen=True)
class QuestionEvent:
    """A question was put to the policy. `goes_on`: behind what was said before, not in a conversation of its own."""

    question: str
    goes_on: bool = False


@dataclass(frozen=True)
class TextEvent:
    """The policy wrote a little more. These texts of a turn, end to end, are the beginning of its `TurnEvent`'s."""

    turn: int
    text: str


@dataclass(frozen=True)
class TurnEvent:
    """A whole turn. `finish`: "stop", or "length" where it was cut."""

    turn: int
    text: str
    finish: str


@dataclass(frozen=True)
class MovesEvent:
    """The moves that were read in the turn, in an environment that has moves."""

    turn: int
    moves: tuple[str, ...]


@dataclass(frozen=True)
class ToolCallEvent:
    """A tool call that was read in the turn."""

    turn: int
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class ToolResultEvent:
    """What came of a call, as the policy is told it. `error`: the kind of the error, "" where there was none."""

    turn: int
    name: str
    text: str
    error: str = ""


@dataclass(frozen=True)
class MessageEvent:
    """A message of the environment to the policy that is no tool's result."""

    turn: int
    role: str
    text: str


@dataclass(frozen=True)
class FormatErrorEvent:
    """The turn, or a part of it, could not be read."""

    turn: int
    text: str


@dataclass(frozen=True)
class AnswerEvent:
    """The policy's answer."""

    turn: int
    text: str


@dataclass(frozen=True, eq=False)
class EndEvent:
    """It is over. `reason`: a stop reason, or "stopped" by the person; `words` say it. `trajectory`: the trajectory so far
    (None where it was stopped in the middle of it). `tokens`: of the sequence that the policy saw."""

    reason: str
    words: str
    trajectory: Trajectory | None = None
    tokens: int | None = None
    error: str | None = None


TalkEvent = (
    QuestionEvent
    | TextEvent
    | TurnEvent
    | MovesEvent
    | ToolCallEvent
    | ToolResultEvent
    | MessageEvent
    | FormatErrorEvent
    | AnswerEvent
    | EndEvent
)
