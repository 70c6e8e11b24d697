"""Calls as messages within one turn: gpt-oss (the harmony format).

<|channel|>analysis<|message|>a thought<|end|><|start|>assistant<|channel|>commentary to=functions.search
<|constrain|>json<|message|>{"query": "..."}<|call|>
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.extensions.families.dialect import Dialect, checked_name, json_object
from workbench.tools.formats import after_space
from workbench.tools.strict_json import CallError
from workbench.tools.turns import CallReader
from workbench.values import ToolCall

_KIND = r"\s*(?:(?:<\|constrain\|>)?\s*json)?\s*<\|message\|>"
_BY_CHANNEL = re.compile(r"(?:commentary|analysis)\s+to=functions\.([^\s<]{1,200})" + _KIND)
_BY_ADDRESS = re.compile(r"([^\s<]{1,200})<\|channel\|>(?:commentary|analysis)" + _KIND)


@dataclass(frozen=True)
class Harmony(Dialect):
    """A message on the channel commentary to `functions.NAME`, which is a JSON object. The recipient may stand before the
    channel or behind it."""

    name: ClassVar[str] = "harmony"
    form: ClassVar[str] = (
        "A call is a message on the channel commentary to functions.NAME: one JSON object of its arguments."
    )

    def plain(self, text: str) -> str:
        """Without the header of a message to the user: it is text beside the call."""
        return text.replace("<|channel|>commentary<|message|>", "")

    def readers(self) -> Mapping[str, CallReader]:
        return {"<|channel|>": _by(_BY_CHANNEL), "to=functions.": _by(_BY_ADDRESS)}

    def call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        body = json.dumps(dict(arguments), ensure_ascii=False)
        return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{body}"


def _by(header: re.Pattern[str]) -> CallReader:
    """The reader of a message whose header goes on like this."""

    def reader(text: str, start: int) -> tuple[ToolCall | CallError, int]:
        try:
            match = header.match(text, start)
            if match is None:
                raise CallError("The message is not addressed to functions.NAME.", text[start:])
            arguments, end = json_object(text, match.end(), "<")
            call = ToolCall(checked_name(match[1]), arguments)
            at = after_space(text, end)
            if at < len(text) and not text.startswith(_NEXT, at):
                raise CallError("There is something behind the JSON object of the call.", text[at:])
            return call, _behind_end(text, at)
        except CallError as wrong:
            following = text.find("<|start|>", start)
            return wrong, len(text) if following < 0 else _behind_end(text, following)

    return reader


_NEXT = ("<|call|>", "<|end|>", "<|start|>assistant", "<|channel|>", "to=functions.")


def _behind_end(text: str, at: int) -> int:
    for mark in _NEXT[:3]:
        if text.startswith(mark, at):
            at += len(mark)
    return at
