"""Clients that change what they were given, and say how: what a tree of calls makes of them can be held against the truth.

A client keeps conversations as JSON, sends them as a program would, and changes the past between calls. Of every assistant
message it knows which answer it was, or that it is somebody's text by now (`origin` None).
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from workbench.engines.base import Completion
from workbench.extensions.agents.messages import RefusedCall, normal_calls, normal_text
from workbench.extensions.agents.tree import CallTree, TreeCall
from workbench.extensions.agents.wires import openai_chat
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.values import Sampling, Source

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "Find.",
            "parameters": {"type": "object", "properties": {"query": {"type": "string"}}},
        },
    }
    for name in ("search", "look")
]
WORDS = ("Pisane", "lives", "in", "Zumi", "naïve", "日本", "\n", "  ", "<b>", '"', "0.5", "é")


@dataclass
class SentMessage:
    """A message of a client, and the number of the answer that it is (None: somebody's words)."""

    wire: dict[str, Any]
    origin: int | None = None


@dataclass
class SampledTruth:
    """What the engine answered to a call, kept beside the tree."""

    call: TreeCall
    ids: np.ndarray
    logprobs: np.ndarray


@dataclass
class WildClient:
    """Plays one trajectory against a tree, with all mistakes that clients make."""

    tree: CallTree
    rng: random.Random
    conversations: list[list[SentMessage]] = field(default_factory=list)
    truths: list[SampledTruth] = field(default_factory=list)
    waiting: list[tuple[TreeCall, list[SentMessage], bool]] = field(default_factory=list)
    refused: int = 0
    models: Sequence[str] = ("policy",)  # names that it calls the model by
    wrong: list[str] = field(default_factory=list)

    # -------------------------------------------------------------------------------------------- what it does

    def act(self) -> None:
        """One call, or the answer to one that is under way."""
        if self.waiting and (len(self.waiting) > 3 or self.rng.random() < 0.6):
            self.answer(self.waiting.pop(self.rng.randrange(len(self.waiting))))
            return
        if not self.conversations or self.rng.random() < 0.15:
            self.conversations.append(self.opening())
        self.ask(self.rng.choice(self.conversations))

    def finish(self) -> None:
        while self.waiting:
            self.answer(self.waiting.pop())

    def opening(self) -> list[SentMessage]:
        system = [
            SentMessage({"role": "system", "content": self.rng.choice(["Help.", "Be brief."])})
        ]
        user = SentMessage({"role": "user", "content": self.words()})
        return (system if self.rng.random() < 0.5 else []) + [user]

    def ask(self, conversation: list[SentMessage]) -> None:
        sent = [copy.deepcopy(message) for message in conversation]
        if self.rng.random() < 0.6:
            sent = self.changed(sent)
        offered = self.rng.random() < 0.9
        model = self.models[0] if len(self.models) == 1 else self.rng.choice(self.models)
        body = {"model": model, "messages": [message.wire for message in sent]}
        if offered:
            body["tools"] = TOOLS
        asked = openai_chat.read(json.loads(json.dumps(body)), FieldRules())
        try:
            call = self.tree.ask(asked)
        except RefusedCall:
            self.refused += 1
            return
        self.wrong += self.misread(call, sent)
        self.waiting.append((call, conversation, offered))

    def answer(self, waiting: tuple[TreeCall, list[SentMessage], bool]) -> None:
        call, conversation, _ = waiting
        ids, logprobs, finish = self.sample()
        self.truths.append(SampledTruth(call, ids, logprobs))
        completion = Completion(0, ids, logprobs, finish, 0, Sampling(engine="scripted"))
        given = self.tree.answer(call, completion)
        message = openai_chat.answer(given, call.asked)["choices"][0]["message"]
        conversation.append(SentMessage(copy.deepcopy(message), call.number))
        for wire_call in message.get("tool_calls", ()):
            reply = {"role": "tool", "tool_call_id": wire_call["id"], "content": self.words()}
            conversation.append(SentMessage(reply))
        if not message.get("tool_calls") or self.rng.random() < 0.2:
            conversation.append(SentMessage({"role": "user", "content": self.words()}))

    def sample(self) -> tuple[np.ndarray, np.ndarray, str]:
        encode = self.tree.chat.foreign_ids
        ids: list[int] = []
        if self.rng.random() < 0.5:
            ids += encode(f"<think>{self.words()}</think>")
        if self.rng.random() < 0.7:
            ids += encode(self.words())
        for _ in range(self.rng.choice([0, 0, 1, 1, 2])):
            arguments = {"query": self.words(), "n": self.rng.choice([1, 2.5])}
            name = self.rng.choice(["search", "look"])
            written = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
            ids += encode(f"<tool_call>\n{written}\n</tool_call>")
        if self.rng.random() < 0.1:
            ids += encode('<tool_call>{"name": "search"')
        finish = self.rng.choice(["stop", "stop", "stop", "length"])
        if finish == "stop" or not ids:
            finish = "stop"
            ids.append(self.tree.chat.end_of_turn)
        logprobs = -np.array([self.rng.random() for _ in ids], np.float32)
        return np.array(ids, np.int32), logprobs, finish

    def words(self) -> str:
        return " ".join(self.rng.choice(WORDS) for _ in range(self.rng.randint(1, 5)))

    # -------------------------------------------------------------------------------------------- what it changes

    def changed(self, sent: list[SentMessage]) -> list[SentMessage]:
        for message in sent:
            if message.origin is not None and self.rng.random() < 0.6:
                self.rng.choice(CHANGES)(message, self.rng)
        if self.rng.random() < 0.15 and len(sent) > 3:  # forgets the middle
            at = self.rng.randrange(1, len(sent) - 1)
            del sent[at]
        if self.rng.random() < 0.1:  # adds an example of its own
            own = {"role": "assistant", "content": f"Example {self.words()}"}
            sent.insert(self.rng.randrange(len(sent)), SentMessage(own))
        return sent

    def misread(self, call: TreeCall, sent: Sequence[SentMessage]) -> list[str]:
        """What the tree took for a turn of the policy and is none, by the client's own knowledge."""
        known = {truth.call.number: truth.call for truth in self.truths}
        here = [message.origin for message in sent if message.origin is not None]
        words = {number: _words_of(call) for number, call in known.items()}
        shown = [
            owner
            for span, owner in self.tree._rows[call.segment].spans
            if span.source is Source.POLICY and owner is not None and owner is not call
        ]
        wrong = []
        at = 0
        for owner in shown:
            # Two answers of the same words are told apart by ids alone; where these are gone, either is right.
            while at < len(here) and words[here[at]] != words[owner.number]:
                at += 1
            if at == len(here):
                wrong.append(
                    f"call {call.number} shows the turn {owner.number}, and was sent {here}"
                )
                break
            at += 1
        return wrong


def _words_of(call: TreeCall) -> tuple:
    """What is left of an answer without its ids, after the declared normalisation."""
    return normal_text(call.given.text), normal_calls(call.given.calls)


# ------------------------------------------------------------------------------------------------ single changes

Change = Callable[[SentMessage, random.Random], None]


def _trim(message: SentMessage, rng: random.Random) -> None:
    if isinstance(message.wire.get("content"), str):
        message.wire["content"] = message.wire["content"].strip()


def _line_ends(message: SentMessage, rng: random.Random) -> None:
    if isinstance(message.wire.get("content"), str):
        message.wire["content"] = message.wire["content"].replace("\n", "\r\n")


def _parts(message: SentMessage, rng: random.Random) -> None:
    text = message.wire.get("content")
    if isinstance(text, str):
        at = rng.randrange(len(text) + 1)
        message.wire["content"] = [
            {"type": "text", "text": part} for part in (text[:at], text[at:])
        ]


def _arguments(message: SentMessage, rng: random.Random) -> None:
    for call in message.wire.get("tool_calls", ()):
        value = json.loads(call["function"]["arguments"])
        shuffled = list(value.items())
        rng.shuffle(shuffled)
        again = json.dumps(dict(shuffled), indent=rng.choice([None, 2]))
        call["function"]["arguments"] = again.replace(": 1,", ": 1.0,").replace(": 1}", ": 1.0}")


def _parsed_arguments(message: SentMessage, rng: random.Random) -> None:
    for call in message.wire.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])


def _own_ids(message: SentMessage, rng: random.Random) -> None:
    message.wire.pop("id", None)
    for call in message.wire.get("tool_calls", ()):
        call["id"] = f"own_{rng.randrange(10**6)}"


def _no_mark(message: SentMessage, rng: random.Random) -> None:
    message.wire.pop("id", None)


def _no_content(message: SentMessage, rng: random.Random) -> None:
    """Frameworks leave the text beside calls out; ids say what it was."""
    if message.wire.get("tool_calls"):
        message.wire["content"] = None


def _more_fields(message: SentMessage, rng: random.Random) -> None:
    message.wire |= {"refusal": None, "annotations": [], "audio": None}


def _without_thought(message: SentMessage, rng: random.Random) -> None:
    text = message.wire.get("content")
    if isinstance(text, str) and "</think>" in text:
        message.wire["content"] = text.rpartition("</think>")[2]


def _edited(message: SentMessage, rng: random.Random) -> None:
    """Other words under the same ids: no longer what was sampled."""
    text = message.wire.get("content")
    message.wire["content"] = f"{text if isinstance(text, str) else ''} and more"
    message.origin = None


def _edited_arguments(message: SentMessage, rng: random.Random) -> None:
    calls = message.wire.get("tool_calls", ())
    if calls and isinstance(calls[0]["function"]["arguments"], str):
        value = json.loads(calls[0]["function"]["arguments"])
        value["query"] = f"{value.get('query')}!"
        calls[0]["function"]["arguments"] = json.dumps(value)
        message.origin = None


def _fewer_calls(message: SentMessage, rng: random.Random) -> None:
    if message.wire.get("tool_calls"):
        message.wire["tool_calls"] = message.wire["tool_calls"][1:] or None
        message.origin = None


CHANGES: tuple[Change, ...] = (
    _trim,
    _line_ends,
    _parts,
    _arguments,
    _parsed_arguments,
    _own_ids,
    _no_mark,
    _no_content,
    _more_fields,
    *3 * (_without_thought,),  # only where there is one
    _edited,
    _edited_arguments,
    _fewer_calls,
)


def faults(client: WildClient) -> list[str]:
    """Whatever is wrong with the tokens of a finished trajectory: sampled ones that are lost, doubled or changed, and
    prompts that are not what stands before them. Counted from what the engine answered."""
    segments = client.tree.segments
    turns = {call.number: place for place, call in enumerate(client.tree.answered)}
    wrong = list(client.wrong)
    spans: Mapping[int, list[tuple[int, int, Any]]] = {}
    for number, segment in enumerate(segments):
        at = 0
        for span in segment.spans:
            if span.sampled:
                spans.setdefault(span.turn, []).append((number, at, span))
            at += len(span)
    for truth in client.truths:
        there = spans.pop(turns[truth.call.number], [])
        if len(there) != 1:
            wrong.append(
                f"call {truth.call.number} was sampled once and stands in {len(there)} spans"
            )
            continue
        number, at, span = there[0]
        same = np.array_equal(span.token_ids, truth.ids)
        if not same or not np.array_equal(span.logprobs, truth.logprobs):
            wrong.append(f"call {truth.call.number} has other tokens than were sampled")
        if not np.array_equal(segments[number].token_ids[:at], truth.call.prompt_ids):
            wrong.append(f"call {truth.call.number} stands behind other tokens than its prompt")
    return wrong + [f"turn {turn} was never sampled" for turn in spans]
