"""Messages, observations and tool calls as JSON lists, and back: for files and for worker processes.

Message       [role, [[text, trusted], ...], name, tool call id]
ToolCall      [name, arguments, call id]
Observation   [messages, tool schemas]
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.basics.canonical_json import plain
from workbench.values.trajectories import Message, Observation, Text, ToolCall


def message_to_json(message: Message) -> list:
    content = [[part.text, part.trusted] for part in message.content]
    return [message.role, content, message.name, message.tool_call_id]


def message_from_json(value: list) -> Message:
    role, content, name, call_id = value
    parts = tuple(Text(text, trusted) for text, trusted in content)
    return Message(role, parts, name, call_id)


def call_to_json(call: ToolCall) -> list:
    """Raises StoreError for arguments that JSON would lose."""
    return [call.name, plain(call.arguments, f"the arguments of tool {call.name}"), call.call_id]


def observation_to_json(observation: Observation) -> list:
    """Raises StoreError for schemas that JSON would lose."""
    return [
        list(map(message_to_json, observation.messages)),
        plain(list(observation.tools), "the schemas of tools"),
    ]


def observation_from_json(value: Iterable[Any]) -> Observation:
    messages, tools = value
    return Observation(tuple(map(message_from_json, messages)), tuple(tools))
