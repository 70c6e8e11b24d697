"""A past that the model's own template writes anew, with the sampled ids put back wherever the text survived.

A template may drop old thoughts, or move white space, so it must see the policy's text. It is rendered twice: once with
a placeholder for every turn of the policy (which shows where they stand) and once with their text. What the template
left of a turn is then covered with the ids that were sampled, cut at a token; only what is left over is encoded anew,
and nothing of it is ever trained (invariant 2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from workbench.chat.capabilities import ChatMessage, chat_message, fit
from workbench.chat.encode import AuthoredText, Fixed
from workbench.chat.skeleton import (
    Part,
    Schema,
    Slot,
    cut_at_guards,
    cut_at_slots,
    cut_guarded,
    guard_tool,
    mark_schemas,
    unguard,
)
from workbench.values import Observation, Source, Span
from workbench.values.errors import ChatFormatError

if TYPE_CHECKING:
    from workbench.chat.format import ChatFormat

# Sampled ids (stop token included, where one was sampled) and the reply.
Exchange = tuple[np.ndarray, Observation]


def rerender(chat: ChatFormat, first: Observation, exchanges: Sequence[Exchange]) -> list[Span]:
    """The whole conversation as the template renders it, ready for the next turn. Cost: that of the whole history."""
    messages = _messages_of(chat, first, exchanges)
    tools = first.tools if chat.capabilities.tool_schemas else ()
    texts = [_guarded_text(chat, ids) for ids, _ in exchanges]
    parts = _rendered(chat, messages, tools, texts)
    outline = chat.shapes.opening(messages, tools)
    items: list[AuthoredText | Fixed] = []
    skip_stop: int | None = None
    turn = 0
    for part, gap in _aligned(parts, outline, messages):
        if isinstance(part, Slot):
            items += chat.shapes.slot_pieces(part, messages, True)
        elif isinstance(part, Schema):
            items.append(AuthoredText(part.text, Source.PROMPT, 0))
        else:
            for number, text in _turns_in(part, gap, messages, texts):
                if number is None:
                    if skip_stop is not None:
                        text = _without_stop(chat, text, skip_stop)
                    items += _literal_pieces(text, Source.SCAFFOLD, turn)
                    if text:
                        skip_stop = None
                else:
                    ids = exchanges[number][0]
                    turn = number
                    items += _reused(chat, ids, texts[number], text, number)
                    skip_stop = int(ids[-1]) if len(_body(chat, ids)) < len(ids) else None
    return chat.encoder.encode(items, at_start=True)


def _messages_of(
    chat: ChatFormat, first: Observation, exchanges: Sequence[Exchange]
) -> list[ChatMessage]:
    """The conversation fitted to the template, with an empty message for every turn of the policy."""
    opening = [chat_message(message, Source.PROMPT, 0) for message in first.messages]
    messages = fit(opening, first.tools, chat.capabilities, opening=True)
    for turn, (_, reply) in enumerate(exchanges):
        messages.append(ChatMessage("assistant", (), policy=turn, turn=turn))
        replies = [chat_message(message, Source.ENV, turn) for message in reply.messages]
        messages += fit(replies, (), chat.capabilities, opening=False)
    return messages


def _rendered(
    chat: ChatFormat,
    messages: Sequence[ChatMessage],
    tools: Sequence[Mapping],
    texts: Sequence[str],
) -> list[Part]:
    """The template's rendering with the policy's texts in it, cut at the placeholders of all other contents."""
    shown = chat.shapes.placeholders(messages, opening=True)
    for message, entry in zip(messages, shown, strict=True):
        if message.policy is not None:
            entry["content"] = texts[message.policy]
    guarded_tools = guard_tool(tools, chat.shapes.guard)
    return mark_schemas(cut_at_slots(chat.template.render(shown, guarded_tools)), guarded_tools)


def _without_stop(chat: ChatFormat, literal: str, sampled: int) -> str:
    """The literal after a turn whose stop token was sampled, and is already there, if it is the template's own."""
    lead = chat.encoder.leading_control(literal)
    return lead[1] if lead is not None and lead[0] == sampled else literal


# ------------------------------------------------------------------------------------------------ finding the turns


def _aligned(
    parts: Sequence, outline: Sequence, messages: Sequence[ChatMessage]
) -> Iterator[tuple]:
    """Pairs (part of the rendering, what the outline has in its place). Between two slots that are not the policy's,
    both hold one literal; the outline's is a list with the policy's slots in it."""

    def grouped(sequence: Sequence) -> list:
        groups: list = [[]]
        for part in sequence:
            is_slot = isinstance(part, Slot)
            is_policy = is_slot and messages[part.message].policy is not None
            if isinstance(part, str) or is_policy:
                groups[-1].append(part)
            else:
                groups += [part, []]
        return groups

    ours = grouped(parts)
    theirs = grouped(outline)
    fixed_ours = [part for part in ours if not isinstance(part, list)]
    if fixed_ours != [part for part in theirs if not isinstance(part, list)]:
        raise ChatFormatError(
            "the template moves or drops messages of the environment depending on what the policy wrote; a re-rendered "
            "history cannot be followed token by token. Use history='append'"
        )
    for part, gap in zip(ours, theirs, strict=True):
        yield ("".join(part), gap) if isinstance(part, list) else (part, None)


def _turns_in(
    literal: str, gap: Sequence, messages: Sequence[ChatMessage], texts: Sequence[str]
) -> Iterator[tuple[int | None, str]]:
    """Cut one rendered literal into (None, template text) and (turn, what the template shows of that turn)."""
    places = [index for index, part in enumerate(gap) if isinstance(part, Slot)]
    before = "".join(gap[: places[0]]) if places else ""  # of the first turn: nothing was yielded
    position = 0
    for index, following in zip(places, [*places[1:], len(gap)]):
        turn = messages[gap[index].message].policy
        after = "".join(gap[index + 1 : following])
        is_last = following == len(gap)
        if is_last:
            end = len(literal.removesuffix(after))
        elif after:
            end = literal.find(after, position + len(before))
            end = end if end >= 0 else len(literal)
        else:
            end = position
        region = literal[position:end]
        if region.endswith(texts[turn]):
            start = len(region) - len(texts[turn])
        else:
            start = _common_start(region, before)
        yield None, region[:start]
        yield turn, region[start:]
        # Text after a turn of the policy is yielded with the next one, or at the end.
        position = end
        before = ""
        if not is_last:
            yield None, after
            position = min(len(literal), end + len(after))
    yield None, literal[position:]


def _common_start(left: str, right: str) -> int:
    size = 0
    while size < min(len(left), len(right)) and left[size] == right[size]:
        size += 1
    return size


# ------------------------------------------------------------------------------------------------ the policy's own text


def as_past(chat: ChatFormat, ids: np.ndarray) -> np.ndarray:
    """The ids without a stop token that the template writes as another one where the turn is past."""
    return ids[:-1] if len(ids) and int(ids[-1]) in chat.instead else ids


def _body(chat: ChatFormat, ids: np.ndarray) -> np.ndarray:
    return ids[:-1] if len(ids) and int(ids[-1]) in chat.stop_ids else ids


def _guarded_text(chat: ChatFormat, ids: np.ndarray) -> str:
    """The text of a turn for the template to see: control tokens that were sampled as such are spelled out, text that
    merely looks like one is broken up."""
    body = _body(chat, ids)
    decode = chat.encoder.backend.decode
    whole = decode(body.tolist(), skip_special_tokens=False)
    parts: list[str] = []
    plain: list[int] = []
    for token in [*body.tolist(), None]:
        if token is not None and token not in chat.encoder.control_ids:
            plain.append(token)
            continue
        parts.append(chat.shapes.guard(decode(plain, skip_special_tokens=False)))
        plain = []
        if token is not None:
            parts.append(decode([token], skip_special_tokens=False))
    text = "".join(parts)
    # Decoders of the SentencePiece kind treat the beginning of a text specially, so parts may not add up.
    return text if unguard(text) == whole else chat.shapes.guard(whole)


def _reused(
    chat: ChatFormat, ids: np.ndarray, text: str, shown: str, turn: int
) -> list[AuthoredText | Fixed]:
    """Cover `shown`, what the template left of a turn, with as many of the sampled ids as fit; encode the rest anew.

    A template cuts a turn at its start (a dropped thought), trims it at both ends, or adds something in front.
    """
    if shown == text:
        return [Fixed(ids, Source.POLICY, turn)]
    body = _body(chat, ids)
    whole = unguard(text)
    left = unguard(shown)
    place = whole.rfind(left)
    if place < 0:  # something new in front: only the common end can be the policy's own tokens
        place = len(whole) - _common_start(whole[::-1], left[::-1])
    stop = min(len(whole), place + len(left))
    first, last, start, end = _tokens_between(chat, body, whole, place, stop)
    front, rest = cut_guarded(shown, len(left) - (stop - start))
    _, back = cut_guarded(rest, end - start)
    items: list[AuthoredText | Fixed] = []
    for part, fixed in ((front, body[first:last]), (back, ids[len(body) :])):
        written = unguard(part)
        # Words that the policy wrote stay the policy's, though in other tokens; what the template made up is scaffold.
        source = Source.POLICY if written in whole else Source.SCAFFOLD
        items += _literal_pieces(part, source, turn)
        items.append(Fixed(fixed, Source.POLICY, turn))
    return items


def _literal_pieces(text: str, source: Source, turn: int) -> list[AuthoredText]:
    return [AuthoredText(piece, source, turn, True) for piece in cut_at_guards(text)]


def _tokens_between(
    chat: ChatFormat, body: np.ndarray, whole: str, start: int, end: int
) -> tuple[int, int, int, int]:
    """(first token, token after the last, first character, character after the last) of the tokens that lie wholly
    within whole[start:end]; no token at its very end where none does, or where the text cannot be cut there."""

    def text(low: int, high: int) -> str:
        return chat.encoder.backend.decode(body[low:high].tolist(), skip_special_tokens=False)

    first = _first_true(len(body), lambda count: len(text(0, count)) >= start)
    last = len(body)
    if end < len(whole):
        last = _first_true(len(body), lambda count: len(text(0, count + 1)) > end)
    left = text(0, first)
    middle = text(first, last)
    # Half of a character decodes otherwise than the whole: such a place is no place to cut.
    adds_up = left + middle + text(last, len(body)) == whole
    is_within = start <= len(left) and len(left + middle) <= end
    if first >= last or not adds_up or not is_within:
        return len(body), len(body), end, end
    return first, last, len(left), len(left + middle)


def _first_true(count: int, is_true) -> int:
    """The smallest number in [0, count] for which `is_true` holds, `count` if none: the texts only get longer."""
    low = 0
    high = count
    while low < high:
        middle = (low + high) // 2
        if is_true(middle):
            high = middle
        else:
            low = middle + 1
    return low
