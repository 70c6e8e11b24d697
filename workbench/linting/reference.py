"""The tokenizer's own rendering of a conversation, cut into pieces that can be compared.

Nothing here renders: `apply_chat_template` does. Messages are handed to it as the environment said them, but for two
things: text from outside that looks like a control token is broken up by a private character (taken out again when
pieces are compared), and marks of private characters may stand for the policy's turns.

A template without a system role, tools or repeated user messages is given the conversation in the way that the chat
format declares (`chat.capabilities`); that fitting is written here once more, on plain text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from os.path import commonprefix
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from workbench.chat.capabilities import REPLY_AFTER, REPLY_BEFORE, TOOLS_AFTER, TOOLS_BEFORE
from workbench.values import Message, Trajectory, Turn
from workbench.values.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.chat import ChatFormat

# Of the private use area: no text of an environment has them.
GUARD = "\ue000"
OPEN = "\ue001"
CLOSE = "\ue002"
MARK = re.compile(f"{OPEN}([0-9]+){CLOSE}")


class Refused(WorkbenchError):
    """The template does not take this conversation, or it cannot be shown to it."""


class Piece(NamedTuple):
    """ "control": one added token · "text": what stands between two of them · "mark": a turn of the policy (`text` is
    its number). `ids` None: only the text is known. `position`: of its first token in the segment."""

    kind: str
    text: str
    ids: list[int] | None
    position: int = 0


def pieces_text(pieces: Sequence[Piece]) -> str:
    return "".join(
        f"[turn {piece.text}]" if piece.kind == "mark" else piece.text for piece in pieces
    )


class Reference:
    """Asks the tokenizer of a chat format. Raises Refused where it gives no answer."""

    def __init__(self, chat: ChatFormat) -> None:
        self.tokenizer = chat.template.tokenizer
        self.flags = chat.template.flags
        self.capabilities = chat.capabilities
        self.source = chat.template.source
        self.stops = chat.stop_ids
        self.instead = chat.instead
        self.inside = {chat.encoder.controls.get(token) for token in chat.manner.inside}
        self.backend = self.tokenizer.backend_tokenizer

    # -------------------------------------------------------------------------------------------- tokens

    @cached_property
    def controls(self) -> dict[int, str]:
        """Added tokens by id: those that are more than white space, and not the unknown token."""
        unknown = self.tokenizer.unk_token_id
        return {
            token_id: token.content
            for token_id, token in self.tokenizer.added_tokens_decoder.items()
            if token.content.replace("▁", "").strip() and token_id != unknown
        }

    @cached_property
    def swallows(self) -> bool:
        """Whether some control token takes the white space beside it."""
        added = self.tokenizer.added_tokens_decoder.values()
        return any(token.lstrip or token.rstrip for token in added)

    @cached_property
    def _names(self) -> re.Pattern[str] | None:
        names = sorted(self.controls.values(), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {name: token for token, name in self.controls.items()}

    def is_control(self, size: int) -> np.ndarray:
        """bool [V]"""
        is_control_V = np.zeros(max(size, max(self.controls, default=0) + 1), bool)
        is_control_V[list(self.controls)] = True
        return is_control_V

    def name(self, token_id: int) -> str:
        return self.controls.get(token_id, str(token_id))

    def decode(self, ids: Sequence[int]) -> str:
        return self.backend.decode(list(ids), skip_special_tokens=False)

    def controls_in(self, text: str) -> list[int]:
        """The control tokens that a text spells out, as a tokenizer looks for them: from the left, the longest."""
        return (
            [self._ids[name] for name in self._names.findall(text)]
            if self._names is not None
            else []
        )

    def normalized(self, text: str) -> str:
        """A text as it comes out of the tokenizer again."""
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)
        normalizer = self.backend.normalizer
        text = normalizer.normalize_str(text) if normalizer is not None else text
        return text.replace("▁", " ") if self._spaces_are_marked else text

    @cached_property
    def _spaces_are_marked(self) -> bool:
        """Whether U+2581 stands for a space, as it does in vocabularies made by SentencePiece: then a text that has one
        comes out with a space. Elsewhere it is a sign like any other."""
        return (
            self.decode(self.backend.encode("a▁b", add_special_tokens=False).ids).strip() == "a b"
        )

    def cut(self, ids: Sequence[int], start: int = 0) -> list[Piece]:
        """Ids as pieces, cut at control tokens and marks; guards taken out."""
        pieces: list[Piece] = []
        run: list[int] = []
        for place, token in enumerate([*ids, None]):
            if token is not None and token not in self.controls:
                run.append(token)
                continue
            if run:
                pieces += self._text(run, start + place - len(run))
            run = []
            if token is not None:
                pieces.append(Piece("control", self.controls[token], [token], start + place))
        return pieces

    def _text(self, ids: list[int], position: int) -> list[Piece]:
        text = self.decode(ids)
        if GUARD not in text and OPEN not in text:
            return [Piece("text", text, ids, position)]
        parts = MARK.split(text.replace(GUARD, ""))
        kinds = ("text", "mark")
        return [Piece(kinds[k % 2], part, None, position) for k, part in enumerate(parts) if part]

    # -------------------------------------------------------------------------------------------- conversations

    @staticmethod
    def mark(turn: int) -> str:
        return f"{OPEN}{turn}{CLOSE}"

    def pieces(
        self, trajectory: Trajectory, turns: Sequence[int], said: Mapping[int, str]
    ) -> list[Piece]:
        """First observation, then these exchanges with what the policy `said` in them, ready for the next turn. A turn that is a
        mark and is answered behind its calls is shown as calls."""
        first = trajectory.first_observation
        messages = self._fitted(first.messages, first.tools, opening=True)
        prompts: dict[int, str] = {}  # before each turn that is shown as calls
        for turn in turns:
            reply = trajectory.turns[turn].reply
            if self._behind_calls(reply) and said[turn] == self.mark(turn):
                prompts[turn] = self._without_calls(self._text_of(messages, first.tools), prompts)
                messages.append(_call_turn(reply, self.mark(turn)))
                messages += self._as_they_are(reply)
            else:
                messages.append({"role": "assistant", "content": said[turn]})
                messages += self._fitted(reply, (), opening=False)
        if not prompts:
            return self._rendered(messages, first.tools)
        text = self._without_calls(self._text_of(messages, first.tools), prompts)
        return self.cut(self.tokenizer.encode(text, add_special_tokens=False))

    def _behind_calls(self, reply: Sequence[Message]) -> bool:
        """Whether the chat format declares that these messages stand behind calls."""
        tools = [message for message in reply if message.role == "tool"]
        named = bool(tools) and all(message.name for message in tools)
        return self.capabilities.called_replies and named and reply[0].role == "tool"

    def _without_calls(self, text: str, prompts: Mapping[int, str]) -> str:
        """The text with the mark of each turn alone between the prompt of the turn and the token that ends its call."""
        for turn, prompt in prompts.items():
            mark = self.mark(turn)
            behind = text.partition(mark)[2]
            ends = [behind.find(self.name(stop)) for stop in self.stops]
            places = [place for place in ends if place >= 0]
            # A prompt may open a thought, which the template leaves out of the past.
            opened = prompt[len(commonprefix([prompt, text])) :]
            if not places or MARK.search(opened):
                raise Refused("the template does not write a call where the turn stands")
            text = prompt + mark + behind[min(places) :]
        return text

    def fresh(self, trajectory: Trajectory, newest: Turn) -> list[Piece]:
        """First observation and one reply, without any turn of the policy."""
        first = trajectory.first_observation
        return self._rendered(
            self._fitted((*first.messages, *newest.reply), first.tools, opening=True), first.tools
        )

    def _rendered(self, messages: list[dict], tools: Sequence[Mapping]) -> list[Piece]:
        return self.cut(self._asked(messages, tools, True))

    def _text_of(self, messages: list[dict], tools: Sequence[Mapping]) -> str:
        return self._asked(messages, tools, False)

    def _asked(self, messages: list[dict], tools: Sequence[Mapping], tokenize: bool) -> Any:
        tools = (
            [self._guarded_tool(tool) for tool in tools] if self.capabilities.tool_schemas else None
        )
        template = (
            {}
            if isinstance(self.tokenizer.chat_template, Mapping)
            else {"chat_template": self.source}
        )
        try:
            return self.tokenizer.apply_chat_template(
                messages,
                tools=tools or None,
                tokenize=tokenize,
                return_dict=False,
                add_generation_prompt=True,
                **{**self.flags, **template},
            )
        except Exception as error:  # a template may raise anything at all; jinja's own errors have no common base here
            roles = [message["role"] for message in messages]
            raise Refused(f"the template refuses the roles {roles}: {error}") from error

    def spelled(self, ids: Sequence[int]) -> str:
        """A sampled turn as text, without its stop token: control tokens spelled out, their look-alikes guarded."""
        ids = list(ids[:-1]) if ids and ids[-1] in self.stops else list(ids)
        text = "".join(
            piece.text if piece.kind == "control" else self._guarded(piece.text)
            for piece in self.cut(ids)
        )
        return (
            text if text.replace(GUARD, "") == self.decode(ids) else self._guarded(self.decode(ids))
        )

    # -------------------------------------------------------------------------------------------- text from outside

    def _guarded(self, text: str) -> str:
        """The text with every look-alike of a control token broken up."""
        text = re.sub("[\ud800-\udfff]", "\ufffd", text)
        if GUARD in text or OPEN in text or CLOSE in text:
            raise Refused(
                "the environment itself writes U+E000..U+E002, which stand for other things here"
            )
        if self._names is None:
            return text
        while match := self._names.search(text):
            text = text[: match.start() + 1] + GUARD + text[match.start() + 1 :]
        return text

    def _guarded_tool(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._guarded(value)
        if isinstance(value, Mapping):
            return {
                self._guarded_tool(key): self._guarded_tool(item) for key, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self._guarded_tool(item) for item in value]
        return value

    def _content(self, message: Message) -> str:
        """Trusted parts as they are, others guarded, their borders too where they make a control token together."""
        parts = [
            part.text if part.trusted else self._guarded(part.text) for part in message.content
        ]
        whole = "".join(parts)
        if self._names is not None and len(self._names.findall(whole)) != sum(
            len(self._names.findall(part)) for part in parts
        ):
            return GUARD.join(parts)
        return whole

    def _fitted(
        self, messages: Sequence[Message], tools: Sequence[Mapping], *, opening: bool
    ) -> list[dict]:
        """Messages for the template, in the way that `chat.capabilities` declares."""
        capabilities = self.capabilities
        out = self._as_they_are(messages)
        if capabilities.is_native:
            return out
        if tools and not capabilities.tool_schemas:
            out = self._with_tool_text(out, tools)
        if not capabilities.tool_replies:
            out = _as_user_text(out)
        out = _system_in_front(out, capabilities, opening)
        if not capabilities.repeated_users:
            out = _alternating(out) or ([] if opening else [{"role": "user", "content": ""}])
        return out

    def _as_they_are(self, messages: Sequence[Message]) -> list[dict]:
        out = []
        for message in messages:
            entry = {"role": message.role, "content": self._content(message)}
            if message.name:
                entry["name"] = self._guarded(message.name)
            if message.tool_call_id:
                entry["tool_call_id"] = self._guarded(message.tool_call_id)
            out.append(entry)
        return out

    def _with_tool_text(self, messages: list[dict], tools: Sequence[Mapping]) -> list[dict]:
        lines = "\n".join(json.dumps(tool, ensure_ascii=False, default=dict) for tool in tools)
        text = TOOLS_BEFORE + self._guarded(lines) + TOOLS_AFTER
        if messages and messages[0]["role"] == "system":
            before = messages[0]["content"]
            return [
                {**messages[0], "content": before + "\n\n" + text if before else text},
                *messages[1:],
            ]
        return [{"role": "system", "content": text}, *messages]


def _call_turn(reply: Sequence[Message], mark: str) -> dict:
    """A turn of calls that these messages answer, with the mark in the last one."""
    calls = []
    for message in reply:
        if message.role == "tool":
            function = {"name": message.name, "arguments": {}}
            calls.append({"id": message.tool_call_id, "type": "function", "function": function})
    calls[-1]["function"]["arguments"] = {"a": mark}
    return {"role": "assistant", "content": "", "tool_calls": calls}


def _as_user_text(messages: list[dict]) -> list[dict]:
    """Tool replies in a row become one user message."""
    out: list[dict] = []
    running = False
    for message in messages:
        is_reply = message["role"] == "tool"
        if is_reply:
            text = REPLY_BEFORE + message["content"] + REPLY_AFTER
            if running:
                out[-1]["content"] += "\n" + text
            else:
                out.append({"role": "user", "content": text})
        else:
            out.append(message)
        running = is_reply
    return out


def _system_in_front(messages: list[dict], capabilities: Any, opening: bool) -> list[dict]:
    out: list[dict] = []
    waiting = ""
    for index, message in enumerate(messages):
        native = capabilities.system_first if opening and index == 0 else capabilities.system_later
        if message["role"] == "system" and not native:
            waiting = _joined(waiting, message["content"])
        elif waiting and message["role"] == "user":
            out.append({**message, "content": _joined(waiting, message["content"])})
            waiting = ""
        else:
            if waiting:
                out.append({"role": "user", "content": waiting})
                waiting = ""
            out.append(message)
    return [*out, {"role": "user", "content": waiting}] if waiting else out


def _alternating(messages: list[dict]) -> list[dict]:
    out: list[dict] = []
    for message in messages:
        if message["role"] == "user" and out and out[-1]["role"] == "user":
            out[-1] = {**out[-1], "content": _joined(out[-1]["content"], message["content"])}
        else:
            out.append(message)
    return out


def _joined(first: str, second: str) -> str:
    return f"{first}\n\n{second}" if first and second else first + second
