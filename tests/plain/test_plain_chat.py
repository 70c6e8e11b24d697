"""Conversations by `plain` and by the chat format that is proven at load time: the same ids, authors, turns and
segments, in every history, whatever was sampled and observed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.chat.chat_families import tokenizer_of
from workbench.chat import ChatFormat, Conversation
from workbench.engines.policy import load_policy
from workbench.plain.chat import PlainChat, PlainConversation
from workbench.values import Message, Observation, Segment, Source, Span, Text
from workbench.values.errors import ChatFormatError

HISTORIES = ("append", "template", "window", "fresh")
WORD = {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Says <|im_end|> and <tool_call>.",
        "parameters": WORD,
    },
}


@pytest.fixture(scope="module", params=["search-tiny", "qwen2.5", "qwen3"])
def both(request) -> tuple[PlainChat, ChatFormat]:
    """Of one tokenizer. The last one's template drops old thoughts."""
    tokenizer = (
        load_policy("search-tiny").tokenizer
        if request.param == "search-tiny"
        else tokenizer_of(request.param)
    )
    return PlainChat(tokenizer), ChatFormat.from_tokenizer(tokenizer)


def same(mine, theirs) -> None:
    mine, theirs = Segment(tuple(mine)), Segment(tuple(theirs))
    for name in ("token_ids", "sources", "turns", "eligible"):
        assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name


texts = st.lists(
    st.sampled_from(
        [
            "Up",
            "Down || Left",
            "\n",
            "\n\n",
            " ",
            "hm",
            "<|im_end|>",
            "<think>",
            "</think>",
            "<tool_call>",
            "é🦊",
            "<|im_start|>user\n",
        ]
    ),
    max_size=5,
).map("".join)
said = st.lists(
    st.sampled_from(
        ["<think>\nhm\n</think>\n\nUp", "Up", "Down || Left", "\n\n", "<answer>x</answer>"]
    ),
    min_size=1,
    max_size=3,
).map("".join)


def sampled(chat: PlainChat, text: str, ends: bool) -> list[int]:
    """What a policy may have written: its tokens, with the end of the turn or cut."""
    end = max(chat.stop_ids, key=lambda stop: chat.tokenizer.decode([stop]) == "<|im_end|>")
    return chat.tokenizer.encode(text, add_special_tokens=False) + ([end] if ends else [])


def test_the_same_tokens_end_a_turn(both):
    assert both[0].stop_ids == both[1].stop_ids


@pytest.mark.parametrize("history", HISTORIES)
@settings(max_examples=12)
@given(data=st.data())
def test_the_same_conversation(both, history, data):
    mine, theirs = both
    messages = [Message("system", "You play.")] if data.draw(st.booleans()) else []
    opening = (Text(data.draw(texts)), Text("<answer>", trusted=True), Text(data.draw(texts)))
    first = Observation(
        (*messages, Message("user", opening)), (TOOL,) if data.draw(st.booleans()) else ()
    )
    plain, proven = (
        PlainConversation(mine, first, history, 2),
        Conversation(theirs, first, history=history, window=2),
    )
    for turn in range(data.draw(st.integers(1, 4))):
        ids = sampled(mine, data.draw(said), data.draw(st.booleans()))
        assert plain.prompt_ids == proven.prompt_ids.tolist()
        plain.segments[-1].append(Span(Source.POLICY, turn, ids, [-1.0] * len(ids), sampled=True))
        ended = ids[-1] in mine.stop_ids
        text = proven.add_action(
            ids,
            [-1.0] * len(ids),
            finish="stop" if ended else "length",
            policy_version=0,
            sampling=None,
        )
        assert text == mine.decode(ids)
        reply = Observation(
            (Message(data.draw(st.sampled_from(["user", "tool"])), data.draw(texts)),)
        )
        length = proven.continuation(reply).length
        assert not plain.answer(ids, reply, length) and plain.answer(ids, reply, length + 1)
        proven.add_observation(reply)
    assert len(plain.segments) == proven.segment_index + 1
    same(plain.segments[-1], proven._spans)
    for one, other in zip(plain.segments, proven.segments):
        same(one, other.spans)


def test_a_dropped_thought_opens_a_segment_with_the_ids_that_were_sampled():
    """Letter by letter, as no tokenizer would write it, so that anything encoded anew would be seen."""
    chat = PlainChat(tokenizer_of("qwen3"))
    letters = [
        token
        for letter in "Up"
        for token in chat.tokenizer.encode(letter, add_special_tokens=False)
    ]
    thought = chat.tokenizer.encode("<think>\nhm\n</think>\n\n", add_special_tokens=False)
    conversation = PlainConversation(chat, Observation((Message("user", "Begin."),)), "template")
    end = sampled(chat, "", True)
    ids = thought + letters + end
    conversation.segments[-1].append(Span(Source.POLICY, 0, ids, [-1.0] * len(ids), sampled=True))
    assert conversation.answer(ids, Observation((Message("user", "Moved."),)), 10_000)
    (again,) = [span for span in conversation.segments[-1] if span.source is Source.POLICY]
    assert (
        len(conversation.segments) == 2
        and again.token_ids.tolist() == letters + end
        and not again.sampled
    )


def test_untrusted_text_never_becomes_a_control_token(both):
    chat, _ = both
    forgery = "".join(f"{name}\n{name}" for name in chat.controls)
    before = list(chat.open(Observation((Message("user", "x"),))))
    spans = chat.open(Observation((Message("user", "x" + forgery),)))
    controls = set(chat.controls.values())
    count = sum(token in controls for span in spans for token in span.token_ids.tolist())
    assert (
        count == sum(token in controls for span in before for token in span.token_ids.tolist()) > 0
    )
    # Negative control: a careless encoder lets it through.
    assert sum(token in controls for token in chat.tokenizer.encode(forgery)) == 2 * len(
        chat.controls
    )


def test_a_template_that_changes_contents_is_refused():
    with pytest.raises(ChatFormatError, match="changes contents"):
        PlainChat(tokenizer_of("llama3.1")).open(Observation((Message("user", " trimmed "),)))
