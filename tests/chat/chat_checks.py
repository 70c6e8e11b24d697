"""Check functions for the laws of tokens and chats. Tests run them on what we build, and, as negative controls, on what
a careless builder would build: the same function must then fail.

Axis letters: T tokens of one segment.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from chat_families import tokenizer_of

from workbench.chat import ChatFormat, Conversation
from workbench.values import Message, Observation, Sampling, Segment, Source, Text

SAMPLING = Sampling(engine="test", dtype="float32")


@lru_cache
def chat_of(family: str, pad_is_eos: bool = False, **flags) -> ChatFormat:
    return ChatFormat.from_tokenizer(
        tokenizer_of(family, pad_is_eos=pad_is_eos), template_flags=flags
    )


def say(text: str, role: str = "user", trusted: bool = False) -> Observation:
    return Observation((Message(role, (Text(text, trusted),)),))


def ids_of(spans) -> list[int]:
    return [int(token) for span in spans for token in span.token_ids]


def text_of(chat: ChatFormat, spans, *sources: Source) -> str:
    """The exact text of the spans by these authors (all, if none is named)."""
    ids = [
        int(t) for span in spans if not sources or span.source in sources for t in span.token_ids
    ]
    return chat.encoder.backend.decode(ids, skip_special_tokens=False)


# ------------------------------------------------------------------------------------------------ invariants 1, 2 and 3


@dataclass(frozen=True)
class Call:
    """What the engine saw and answered in one turn."""

    segment: int
    prompt_T: np.ndarray
    action_T: np.ndarray
    logprobs_T: np.ndarray


@dataclass(frozen=True)
class Row:
    """A segment as training sees it; all arrays [T]."""

    ids_T: np.ndarray
    eligible_T: np.ndarray
    logprobs_T: np.ndarray  # NaN where not sampled here
    sources_T: np.ndarray


def row_of(segment: Segment) -> Row:
    return Row(segment.token_ids, segment.eligible, segment.logprobs, segment.sources)


@dataclass
class Recorder:
    """Drives a conversation like an engine would, and writes down what it saw."""

    conversation: Conversation
    calls: list[Call] = field(default_factory=list)

    def act(self, ids: list[int], finish: str) -> str:
        prompt_T = self.conversation.prompt_ids.copy()
        logprobs_T = np.array(
            [-0.25 - 0.5 * place - 100 * len(self.calls) for place in range(len(ids))], np.float32
        )
        self.calls.append(
            Call(self.conversation.segment_index, prompt_T, np.array(ids, np.int32), logprobs_T)
        )
        return self.conversation.add_action(
            ids, logprobs_T, finish=finish, policy_version=3, sampling=SAMPLING
        )

    def rows(self) -> list[Row]:
        return [row_of(segment) for segment in self.conversation.segments]


def check_rows(rows: list[Row], calls: list[Call]) -> None:
    """Invariants 1 to 3: rows hold what the engine saw and answered, bit for bit; exactly what it answered is eligible."""
    expected = [np.zeros(len(row.ids_T), bool) for row in rows]
    for turn, call in enumerate(calls):
        assert call.segment < len(rows), f"turn {turn} was sampled in a segment that is missing"
        row = rows[call.segment]
        start, end = len(call.prompt_T), len(call.prompt_T) + len(call.action_T)
        assert np.array_equal(row.ids_T[:start], call.prompt_T), (
            f"turn {turn}: not the prompt that the engine saw"
        )
        assert np.array_equal(row.ids_T[start:end], call.action_T), (
            f"turn {turn}: not the ids that were sampled"
        )
        assert np.array_equal(row.logprobs_T[start:end], call.logprobs_T), (
            f"turn {turn}: logprobs moved"
        )
        assert (row.sources_T[start:end] == Source.POLICY).all(), (
            f"turn {turn}: sampled, but not by the policy"
        )
        expected[call.segment][start:end] = True
    for index, (row, expected_T) in enumerate(zip(rows, expected, strict=True)):
        assert len(row.ids_T) == len(row.eligible_T) == len(row.logprobs_T) == len(row.sources_T)
        assert np.array_equal(row.eligible_T, expected_T), (
            f"segment {index}: eligible is not what was sampled there"
        )
        assert np.array_equal(~np.isnan(row.logprobs_T), expected_T), (
            f"segment {index}: logprobs are not where sampled"
        )


def check_shown_again(conversation: Conversation, calls: list[Call]) -> None:
    """Invariant 2: a turn of the policy shown again is made of the ids that were sampled; where a template shows only a part
    of the text, at least every word of it is the policy's."""
    decode = conversation.chat.encoder.backend.decode
    for segment in conversation.segments:
        for span in segment.spans:
            if span.source is not Source.POLICY or span.sampled or not len(span):
                continue
            sampled = calls[span.turn].action_T.tolist()
            again = span.token_ids.tolist()
            if again == sampled:
                continue
            assert conversation.history == "template", f"turn {span.turn}: encoded anew"
            said, now = (
                decode(sampled, skip_special_tokens=False),
                chat_text(conversation.chat, again),
            )
            assert now in said and now != said, f"turn {span.turn}: encoded anew"


def chat_text(chat: ChatFormat, ids: list[int]) -> str:
    """Text without a stop token at the end."""
    return chat.encoder.backend.decode(
        ids[:-1] if ids[-1] in chat.stop_ids else ids, skip_special_tokens=False
    )


# ------------------------------------------------------------------------------------------------ invariant 9


def check_no_forgery(chat: ChatFormat, spans, sent: str) -> None:
    """Invariant 9: text from outside holds no control token, and every character of it is there."""
    outside = [span for span in spans if span.source in (Source.ENV, Source.PROMPT)]
    ids = ids_of(outside)
    forged = [chat.token_texts([token])[0] for token in ids if token in chat.encoder.control_ids]
    assert not forged, f"control tokens from untrusted text: {forged}"
    came = text_of(chat, outside)
    assert sent in came, f"text changed: sent {sent!r}, shown {came!r}"
