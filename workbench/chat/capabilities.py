"""What a chat template can do, and how messages are fitted to it.

Not every template has a system role or tools, or takes two user messages in a row. Such conversations are fitted,
always in the same way, and the session says so once: system text goes in front of the user's, repeated user messages
become one, tool schemas become instructions (in the style of the Hermes models), tool replies become user text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.chat.encode import AuthoredText
from workbench.chat.skeleton import Template, TemplateRefused, placeholder
from workbench.values import Message, Source
from workbench.values.errors import ChatFormatError

TOOLS_BEFORE = (
    "# Tools\n\nYou may call the functions below. Their signatures, one JSON object a line, stand within "
    "<tools></tools>:\n<tools>\n"
)
TOOLS_AFTER = (
    "\n</tools>\n\nTo call one, write a JSON object with its name and arguments within <tool_call></tool_call>:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)
REPLY_BEFORE = "<tool_response>\n"
REPLY_AFTER = "\n</tool_response>"


@dataclass(frozen=True)
class ChatMessage:
    """A message in pieces by author. `policy`: number of the policy's turn that it stands for, else None."""

    role: str
    pieces: tuple[AuthoredText, ...]
    name: AuthoredText | None = None
    call_id: AuthoredText | None = None
    policy: int | None = None
    is_tool_text: bool = False
    turn: int = 0

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True)
class TemplateCapabilities:
    """The kinds of messages that a template takes as they are. False: the message is fitted."""

    system_first: bool = True
    system_later: bool = True
    repeated_users: bool = True
    tool_replies: bool = True
    tool_schemas: bool = True
    # Where it takes tool replies behind calls that are handed to it as such, and nowhere else.
    called_replies: bool = False
    refused: str = (
        ""  # why the template's own tools and tool replies are not used although it has some
    )

    @property
    def is_native(self) -> bool:
        return self == TemplateCapabilities()

    @property
    def notes(self) -> tuple[str, ...]:
        missing = {
            "the template has no system role: system text is put in front of the user's": self.system_first,
            "the template insists on alternating roles: user messages in a row are joined": self.repeated_users,
            "the template has no tool schemas: they are put into the prompt as text": self.tool_schemas
            or self.refused,
            "the template has no tool replies: they are shown as user text": self.tool_replies
            or self.called_replies
            or self.refused,
            "replies of tools stand behind calls, as the template writes them; where a call could not be read, its reply is "
            "user text": not self.called_replies,
            "the template's own tools are not used, they are put into the prompt as text, and replies are user text: "
            + self.refused: not self.refused,
        }
        return tuple(note for note, is_there in missing.items() if not is_there)

    def without_tools(self, why: str) -> TemplateCapabilities:
        return replace(self, tool_replies=False, tool_schemas=False, refused=why)


def find_capabilities(template: Template) -> TemplateCapabilities:
    """Try each ability on the template: it has it if it takes the conversation and shows every content once."""
    user = ("user", "u")
    assistant = ("assistant", "a")
    reply = ("tool", None)
    # A template that writes any role into its header has not thereby heard of tools.
    tools_mentioned = "tool" in template.source
    replies = (user, assistant, reply, reply, assistant, user, assistant, reply)
    return TemplateCapabilities(
        system_first=_shows(template, ("system", None), user),
        system_later=_shows(template, user, assistant, ("system", None), user, in_order=True),
        repeated_users=_shows(template, ("user", None), ("user", None), in_order=True),
        tool_replies=tools_mentioned and _shows(template, *replies, in_order=True),
        tool_schemas=tools_mentioned and _shows_tools(template),
    )


def _shows(template: Template, *messages: tuple[str, str | None], in_order: bool = False) -> bool:
    """Content None: a placeholder, which must appear exactly once; `in_order`: after what came before it."""
    dicts = []
    wanted = []
    for index, (role, text) in enumerate(messages):
        if text is None:
            text = placeholder(index)
            wanted.append(text)
        dicts.append({"role": role, "content": text})
    try:
        shown = template.render(dicts)
    except TemplateRefused:
        return False
    if any(shown.count(mark) != 1 for mark in wanted):
        return False
    places = [shown.index(mark) for mark in wanted]
    return not in_order or places == sorted(places)


def _shows_tools(template: Template) -> bool:
    tool = {
        "type": "function",
        "function": {
            "name": "probe_name",
            "description": "probe_text",
            "parameters": {
                "type": "object",
                "properties": {"probe_argument": {"type": "string", "description": "probe_more"}},
                "required": ["probe_argument"],
            },
        },
    }
    try:
        shown = template.render([{"role": "user", "content": "u"}], [tool])
    except TemplateRefused:
        return False
    return all(word in shown for word in ("probe_name", "probe_text", "probe_argument"))


# ------------------------------------------------------------------------------------------------ fitting messages


def chat_message(message: Message, source: Source, turn: int) -> ChatMessage:
    """A message as pieces by `source`. Only parts that the environment's author marked as trusted are literal.

    Raises ChatFormatError for a role that is no plain word: templates write it between their control tokens."""
    if not message.role.isidentifier():
        raise ChatFormatError(
            f"the role of a message is a word such as system, user, assistant or tool, got "
            f"{message.role!r}; text belongs into the content"
        )
    pieces = tuple(
        AuthoredText(part.text, source, turn, part.trusted) for part in message.content if part.text
    )
    name = AuthoredText(message.name, source, turn) if message.name else None
    call_id = AuthoredText(message.tool_call_id, source, turn) if message.tool_call_id else None
    return ChatMessage(message.role, pieces, name, call_id, turn=turn)


def fit(
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping[str, Any]],
    capabilities: TemplateCapabilities,
    *,
    opening: bool,
    called: bool = False,
) -> list[ChatMessage]:
    """The same conversation as the template takes it. `opening`: the first message is the first of the sequence; `called`:
    named tool replies stand behind calls, and stay what they are."""
    messages = list(messages)
    if capabilities.is_native:
        return messages
    if tools and not capabilities.tool_schemas:
        messages = _with_tool_text(messages, tools)
    if not (capabilities.tool_replies or called and answer_calls(messages)):
        messages = _fold_tool_replies(messages)
    messages = _fold_system(messages, capabilities, opening)
    if not capabilities.repeated_users:
        messages = _join_users(messages)
        if not messages and not opening:
            # Two turns of the policy in a row would break the alternation too.
            messages = [ChatMessage("user", ())]
    return messages


def answer_calls(messages: Sequence[ChatMessage]) -> bool:
    """Whether these messages begin with replies of tools, and each of them says of which tool."""
    replies = [message for message in messages if message.role == "tool"]
    return bool(replies) and messages[0] is replies[0] and all(reply.name for reply in replies)


def _literal(text: str, turn: int) -> AuthoredText:
    return AuthoredText(text, Source.SCAFFOLD, turn, True)


def _with_tool_text(
    messages: list[ChatMessage], tools: Sequence[Mapping[str, Any]]
) -> list[ChatMessage]:
    lines = "\n".join(json.dumps(tool, ensure_ascii=False, default=dict) for tool in tools)
    pieces = (
        _literal(TOOLS_BEFORE, 0),
        AuthoredText(lines, Source.PROMPT, 0),
        _literal(TOOLS_AFTER, 0),
    )
    if messages and messages[0].role == "system":
        gap = (_literal("\n\n", 0),) if messages[0].pieces else ()
        return [replace(messages[0], pieces=messages[0].pieces + gap + pieces), *messages[1:]]
    return [ChatMessage("system", pieces), *messages]


def _fold_tool_replies(messages: list[ChatMessage]) -> list[ChatMessage]:
    """Tool replies in a row become one user message."""
    out: list[ChatMessage] = []
    for message in messages:
        if message.role != "tool":
            out.append(message)
            continue
        turn = message.turn
        pieces = (_literal(REPLY_BEFORE, turn), *message.pieces, _literal(REPLY_AFTER, turn))
        if out and out[-1].is_tool_text:
            out[-1] = replace(out[-1], pieces=(*out[-1].pieces, _literal("\n", turn), *pieces))
        else:
            out.append(ChatMessage("user", pieces, is_tool_text=True, turn=turn))
    return out


def _fold_system(
    messages: list[ChatMessage], capabilities: TemplateCapabilities, opening: bool
) -> list[ChatMessage]:
    """System text that the template does not take goes in front of the next user message."""
    out: list[ChatMessage] = []
    waiting: tuple[AuthoredText, ...] = ()
    for index, message in enumerate(messages):
        native = capabilities.system_first if opening and index == 0 else capabilities.system_later
        if message.role == "system" and not native:
            waiting = _joined(waiting, message.pieces)
        elif waiting and message.role == "user":
            out.append(replace(message, pieces=_joined(waiting, message.pieces)))
            waiting = ()
        else:
            if waiting:
                out.append(ChatMessage("user", waiting))
                waiting = ()
            out.append(message)
    return [*out, ChatMessage("user", waiting)] if waiting else out


def _join_users(messages: list[ChatMessage]) -> list[ChatMessage]:
    out: list[ChatMessage] = []
    for message in messages:
        if message.role == "user" and out and out[-1].role == "user":
            out[-1] = replace(out[-1], pieces=_joined(out[-1].pieces, message.pieces))
        else:
            out.append(message)
    return out


def _joined(
    first: tuple[AuthoredText, ...], second: tuple[AuthoredText, ...]
) -> tuple[AuthoredText, ...]:
    if not first or not second:
        return first + second
    return (*first, _literal("\n\n", second[0].turn), *second)
