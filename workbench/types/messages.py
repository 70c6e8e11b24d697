"""What environments and policies say to each other: messages, observations, the answer to an action.

Frozen values; the standard library is all they need.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Text:
    """A part of a message. Untrusted text never becomes a control token (law 9).

    `trusted=True` is for instructions that an environment's *author* wrote; never for task data, tool output or
    anything a user or model typed.
    """

    text: str
    trusted: bool = False


@dataclass(frozen=True)
class ToolCall:
    """A call as the policy wrote it: `arguments` is the parsed JSON object."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None


@dataclass(frozen=True)
class Message:
    """One chat message. `content` is a tuple of parts; a bare string is taken as one untrusted part."""

    role: str  # "system" | "user" | "assistant" | "tool"
    content: str | tuple[Text, ...]  # kept as a tuple of parts
    name: str | None = None          # of the tool, in a tool reply
    tool_call_id: str | None = None

    def __post_init__(self) -> None:
        content = (Text(self.content),) if isinstance(self.content, str) else tuple(self.content)
        object.__setattr__(self, "content", content)

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.content)


@dataclass(frozen=True)
class Observation:
    """What an environment hands over: messages to append and, at reset, the JSON schemas of the tools on offer."""

    messages: tuple[Message, ...]
    tools: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages", tuple(self.messages))
        object.__setattr__(self, "tools", tuple(self.tools))


@dataclass(frozen=True)
class StepResult:
    """An environment's answer to one action.

    `reward` is what this turn earned (None: could not be scored); `reward_parts` names what it is made of and sums to
    it. `terminated`: the task is over. `truncated`: a limit of the environment ran out. `info` is for people: JSON
    values such as `success` (bool), `moves` (list), `valid_format` (bool), `state` (text drawn in views). `tool_calls`
    are the calls that the action was read as, in its order. `if_cut`: what the attempt as a whole earns, by named parts,
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
        object.__setattr__(self, "tool_calls", tuple(self.tool_calls))
