"""A client's messages as the token ids that the policy continues.

The history comes as text, though the policy wrote ids. What this server said itself is remembered with the ids that were
sampled, so a conversation that goes on here goes on with them (invariant 2). Any other assistant's message is text from
outside: it is encoded without control tokens (invariant 9).
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from workbench.chat import ChatFormat
from workbench.extensions.servers.chat_request import PastCall, PastMessage, RequestError
from workbench.tools.formats import CallFormat
from workbench.values import Message, Observation
from workbench.values.errors import WorkbenchError

MOST_REMEMBERED = 1_024  # replies
LEAST_BOUND = 100_000  # characters that are made into tokens whatever the vocabulary is


class History:
    """Makes prompts, and remembers replies. Thread-safe."""

    def __init__(self, chat: ChatFormat) -> None:
        self.chat = chat
        self._longest = max(map(len, chat.encoder.backend.get_vocab()), default=1)
        self._said: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._lock = threading.Lock()

    def most_characters(self, context: int) -> int:
        """Of a conversation that fits into `context` tokens: more are refused before they are made into tokens, which may
        take minutes."""
        return max(LEAST_BOUND, context * self._longest)

    def prompt(
        self,
        messages: Sequence[PastMessage],
        tools: Sequence[Mapping[str, Any]],
        style: CallFormat,
    ) -> np.ndarray:
        """Ids of the whole conversation, ending where the reply begins, int32. Raises RequestError for a history that the
        template cannot show."""
        try:
            with self._lock:
                return self._prompt(messages, tools, style)
        except WorkbenchError as error:
            if isinstance(error, RequestError):
                raise
            raise RequestError(
                400, f"the policy's template cannot show this: {error}", parameter="messages"
            ) from error

    def remember(
        self,
        prompt: np.ndarray,
        text: str,
        calls: Sequence[PastCall],
        sampled: Sequence[int],
    ) -> None:
        """A reply that was given after this prompt, and the ids that were sampled for it."""
        with self._lock:
            self._said[_key(prompt, text, calls)] = np.array(sampled, np.int32)
            while len(self._said) > MOST_REMEMBERED:
                self._said.popitem(last=False)

    def _prompt(
        self,
        messages: Sequence[PastMessage],
        tools: Sequence[Mapping[str, Any]],
        style: CallFormat,
    ) -> np.ndarray:
        blocks = _blocks(messages)
        _, first = next(blocks)
        pieces = [span.token_ids for span in self.chat.open(Observation(first, tuple(tools)))]
        for turn, (reply, observed) in enumerate(blocks):
            ids = np.concatenate(pieces)
            reply_ids = self._reply_ids(ids, reply, style)
            last = int(reply_ids[-1]) if len(reply_ids) else None
            spans = self.chat.append(Observation(observed), turn=turn, last_id=last)
            pieces = [ids, reply_ids, *(span.token_ids for span in spans)]
        return np.concatenate(pieces).astype(np.int32)

    def _reply_ids(self, prompt: np.ndarray, reply: PastMessage, style: CallFormat) -> np.ndarray:
        key = _key(prompt, reply.text, reply.calls)
        if key in self._said:
            self._said.move_to_end(key)
            return self._said[key]
        texts = [reply.text] if reply.text else []
        for call in reply.calls:
            try:
                texts.append(style.write_call(call.name, call.arguments))
            except KeyError as error:
                words = f"the call of {call.name!r} in the history cannot be written: {error}"
                raise RequestError(400, words, parameter="messages") from error
        return np.array(self.chat.foreign_ids("\n".join(texts)), np.int32)


def _blocks(
    messages: Sequence[PastMessage],
) -> Iterator[tuple[PastMessage | None, tuple[Message, ...]]]:
    """(an assistant's message, what stands after it up to the next one); the first has none before it."""
    reply = None
    block: list[Message] = []
    for message in messages:
        if message.role == "assistant":
            yield reply, tuple(block)
            reply = message
            block = []
        else:
            block.append(Message(message.role, message.text, message.name, message.call_id))
    yield reply, tuple(block)


def _key(prompt: np.ndarray, text: str, calls: Sequence[PastCall]) -> bytes:
    digest = blake2b(np.ascontiguousarray(prompt, np.int32).tobytes(), digest_size=16)
    written = [[call.name, call.arguments] for call in calls]
    digest.update(json.dumps([text, written], sort_keys=True).encode())
    return digest.digest()
