"""What a program asks and what it is answered, whatever form it was sent in; and when two texts count as the same.

A program sends its whole conversation with every call. It may have changed what it was given: other white space around
a text, other line ends, arguments parsed and written again, ids of its own, thoughts left out. So an assistant message
counts as one that was sampled here only where one of these holds, and which one is recorded (`Ground`):

    exact       text and calls are the very ones that were given
    ids         it carries the id of a call, or of a message, that was issued here, and nothing in it contradicts
    equal       it is equal after the normalisation below
    thought     it is equal once the thought is left out

The normalisation: line ends become "\\n"; white space at both ends of a text is left out; arguments are compared as JSON
values, so spaces, the order of keys, and 1 against 1.0 make no difference. Nothing else is: no similarity, no case, no
inner white space.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

END_THINK = "</think>"
MODEL = "policy"  # as which a program knows it


class Ground(StrEnum):
    """By what an assistant message was recognised."""

    EXACT = "exact"
    IDS = "ids"
    EQUAL = "equal"
    THOUGHT = "thought"


@dataclass(frozen=True)
class WireCall:
    """A tool call on the wire. `arguments` is JSON text, as it was sent."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class WireMessage:
    """A message of a request. `text` None: it had no content at all. `mark`: the id of a message that we may have issued.
    `thought`: what stood in a field of its own; None: there was none."""

    role: str  # "system" | "user" | "assistant" | "tool"
    text: str | None
    calls: tuple[WireCall, ...] = ()
    call_id: str | None = None  # of a tool message
    mark: str | None = None
    thought: str | None = None


@dataclass(frozen=True)
class AskedCall:
    """One call of a program, read.

    most_tokens   that it asks for; None: as many as the run allows
    temperature, top_p   None: the run's
    stops         texts that end an answer (`stopping`)
    choices       answers that it asks for: each is sampled by itself, behind the same prompt
    reads_calls   calls are read out of the text; not so with tool_choice "none"
    logprobs      of the sampled tokens are sent
    noted         fields that were sent and are not followed, because the settings say so
    """

    messages: tuple[WireMessage, ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    most_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stops: tuple[str, ...] = ()
    choices: int = 1
    reads_calls: bool = True
    logprobs: bool = False
    stream: bool = False
    wants_usage: bool = False  # in a stream
    model: str = ""
    noted: Mapping[str, Any] = field(default_factory=dict)

    @property
    def characters(self) -> int:
        """Of all that the template shows."""
        texts = [message.text or "" for message in self.messages]
        for message in self.messages:
            texts += [call.arguments for call in message.calls]
        return sum(map(len, [*texts, json.dumps(self.tools)]))


@dataclass(frozen=True)
class SampledText:
    """A sampled token as a client is shown it: its text, its bytes (None: of half a character), its logprob in nats."""

    text: str
    bytes: tuple[int, ...] | None
    logprob: float


@dataclass(frozen=True)
class GivenAnswer:
    """What a call was answered: everything that was sampled, as text and calls.

    text      all that is no call, the thought included unless it was given apart; without the stop text that ended it
    thought   "" where it was not given apart
    finish    "stop", "length" or "calls"
    stopped   the stop text that ended it; "" for none
    logprobs  of every sampled token but the one that ends the turn; None: they were not asked for
    others    the further answers, where several were asked for
    """

    text: str
    calls: tuple[WireCall, ...]
    mark: str
    finish: str
    thought: str = ""
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    stopped: str = ""
    logprobs: tuple[SampledText, ...] | None = None
    others: tuple[GivenAnswer, ...] = ()

    @property
    def choices(self) -> tuple[GivenAnswer, ...]:
        """All answers to the call, this one first."""
        return (self, *self.others)

    @property
    def with_thought(self) -> str:
        """The text with the thought before it, for forms that have no field for one."""
        return f"<think>{self.thought}{END_THINK}{self.text}" if self.thought else self.text


class RefusedCall(Exception):
    """A request that is not answered. `status`: of HTTP. `code`: a short name, stable. `field`: of the request, where
    one is to blame."""

    def __init__(self, status: int, code: str, words: str, field: str | None = None) -> None:
        super().__init__(words)
        self.status = status
        self.code = code
        self.field = field


# ------------------------------------------------------------------------------------------------ normalisation


def normal_text(text: str | None) -> str:
    """Line ends as "\\n", nothing at the ends."""
    return (text or "").replace("\r\n", "\n").replace("\r", "\n").strip()


def normal_arguments(arguments: str) -> str:
    """Arguments as canonical JSON; the text itself, trimmed, where it is none."""
    try:
        value = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return arguments.strip()
    return json.dumps(_whole_numbers(value), sort_keys=True, ensure_ascii=False)


def _whole_numbers(value: Any) -> Any:
    """1.0 as 1: some languages know one kind of number."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return value


def normal_calls(calls: tuple[WireCall, ...]) -> tuple[tuple[str, str], ...]:
    """(name, arguments) of each call; ids are left out."""
    return tuple((call.name, normal_arguments(call.arguments)) for call in calls)


def without_thought(text: str) -> str:
    """What stands behind a thought, where the text begins with one."""
    return text.rpartition(END_THINK)[2]


def ground_of(message: WireMessage, given: GivenAnswer) -> Ground | None:
    """Whether an assistant message is this answer, and by what; None: it is not.

    An id or a mark of ours says which answer is meant, but not that it is unchanged: a program may keep the ids and write
    other words. So words that are there must be the words that were given; only where a message with our ids has no text
    at all is none needed.
    """
    if message.text == given.text and message.calls == given.calls:
        return Ground.EXACT
    marked = message.mark is not None and message.mark == given.mark
    issued = {call.id for call in given.calls}
    identified = marked or any(call.id in issued for call in message.calls)
    if normal_calls(message.calls) != normal_calls(given.calls):
        return None
    text = normal_text(message.text)
    whole = normal_text(given.text)
    if text in (whole, normal_text(given.with_thought)) or (not text and identified):
        return Ground.IDS if identified else Ground.EQUAL
    if text == normal_text(without_thought(given.text)):
        return Ground.THOUGHT
    return None
