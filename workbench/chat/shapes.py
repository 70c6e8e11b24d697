"""What a template writes around messages, by the shape of the conversation: derived once, proven with a probe, kept.

A *shape* is the roles, which contents are empty, and which messages have a name or the id of a call. The parts of an
opening are those of a whole conversation; the *glue* is what follows the policy's text. What the template does to a
content inside its slot, a `Transform`, is found by probes, and checked again for every new shape.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import NamedTuple

from workbench.chat.capabilities import ChatMessage
from workbench.chat.encode import AuthoredText, SafeEncoder, stripped
from workbench.chat.skeleton import (
    CALL_ID,
    CONTENT,
    NAME,
    Guard,
    Part,
    Slot,
    Template,
    TemplateRefused,
    cut_at_guards,
    cut_at_slots,
    guard_tool,
    mark_schemas,
    placeholder,
)
from workbench.values import Source
from workbench.values.errors import ChatFormatError

CACHED_SHAPES = 1_024  # kept; more only where every task brings tools of its own
WHITE = "".join(character for character in map(chr, range(0x3001)) if character.isspace())
PROBES = (" \n\t x y\t \n ", "\nq\"\\ \n/é😀<b>&'\n", "x", " \n\nz\n\n ")
# Stands for the policy's text where the glue after it is derived.
POLICY_MARK = placeholder(3_000_000)


# ------------------------------------------------------------------------------------------------ inside a slot


@dataclass(frozen=True)
class Transform:
    """What a template does to one content: strip these characters at its ends, then perhaps quote it as JSON."""

    left: str = ""
    right: str = ""
    quoted: bool = False
    blank_is_empty: bool = False  # white space alone is treated like no content at all

    def on_text(self, text: str) -> str:
        pieces = self.on_pieces([AuthoredText(text, Source.ENV, 0)])
        return "".join(piece.text for piece in pieces)

    def on_pieces(self, pieces: Sequence[AuthoredText]) -> Sequence[AuthoredText]:
        pieces = stripped(pieces, self.left, self.right)
        if self.quoted:
            pieces = [piece._replace(text=_quoted(piece.text)) for piece in pieces]
        return pieces


def _quoted(text: str) -> str:
    """As inside of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


STRIPS = (
    ("", ""),
    (WHITE, WHITE),
    ("\n", "\n"),
    (WHITE, ""),
    ("", WHITE),
    ("\n", ""),
    ("", "\n"),
)
CANDIDATES = (
    *(Transform(left, right) for left, right in STRIPS),
    *(Transform(left, right, quoted=True) for left, right in STRIPS),
)


def find_transform(
    template: Template, before: list[dict], role: str, after: list[dict]
) -> Transform:
    """Find how the template changes the content of a `role` message between `before` and `after`; one that answers a call says
    which."""
    answers = {}
    for call in before[-1].get("tool_calls", ()) if before else ():
        answers = {"name": call["function"]["name"], "tool_call_id": call["id"]}

    def render(content: str) -> str:
        return template.render([*before, {"role": role, "content": content} | answers, *after])

    mark = placeholder(0)
    around = render(mark).split(mark)
    if len(around) != 2:
        raise ChatFormatError(
            f"expected the content of a {role} message once in the template's output, found it {len(around) - 1} "
            "times; this template cannot be followed token by token"
        )
    before_mark, after_mark = around
    results = [render(probe) for probe in PROBES]
    for transform in CANDIDATES:
        if results == [before_mark + transform.on_text(probe) + after_mark for probe in PROBES]:
            blank = " \n "
            is_text = before_mark + transform.on_text(blank) + after_mark == render(blank)
            return transform if is_text else replace(transform, blank_is_empty=True)
    raise ChatFormatError(
        f"the template rewrites the content of a {role} message in a way that cannot be followed token by token: "
        f"{PROBES[1]!r} became {results[1]!r}; expected it unchanged, stripped at its ends or quoted as JSON"
    )


# ------------------------------------------------------------------------------------------------ shapes


class Glue(NamedTuple):
    """The template's text behind a turn of the policy. `stop` is the end-of-turn token that it begins with, if it does."""

    parts: tuple[Part, ...]
    stop: int | None
    parts_after_stop: tuple[Part, ...]


class TemplateShapes:
    """The skeletons of one template, and what it does to the contents in their slots."""

    def __init__(self, template: Template, encoder: SafeEncoder) -> None:
        self.template = template
        self.encoder = encoder
        self.guard = Guard(tuple(encoder.controls))
        # Control tokens that end a turn with calls, where tool replies stand behind calls alone.
        self.call_ends: tuple[str, ...] = ()
        self._transforms: dict[tuple[str, bool], Transform] = {}
        self._openings: dict[tuple, tuple[Part, ...]] = {}
        self._glues: dict[tuple, Glue] = {}

    def opening(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping]
    ) -> tuple[Part, ...]:
        """The skeleton of a whole conversation, from the cache or derived and checked."""
        key = (self._shape(messages, True), repr(tools) if tools else None)
        if key not in self._openings:
            if len(self._openings) >= CACHED_SHAPES:
                self._openings.clear()
            guarded = guard_tool(tools, self.guard)
            shown = self.placeholders(messages, opening=True)
            parts = self._derived(shown, guarded, messages, "", opening=True)
            self._openings[key] = tuple(_unguarded(mark_schemas(parts, guarded)))
        return self._openings[key]

    def glue(self, messages: Sequence[ChatMessage], later: bool) -> Glue:
        """What stands between the policy's text and the next, from the cache or derived. `later`: turns of the policy
        came before that text. Raises ChatFormatError where none can be derived."""
        key = (self._shape(messages, False), later)
        if key not in self._glues:
            try:
                self._glues[key] = self._derive_glue(messages, later)
            except TemplateRefused:
                if not later:
                    raise
                self._glues[key] = self.glue(messages, False)
        return self._glues[key]

    def _derive_glue(self, messages: Sequence[ChatMessage], later: bool) -> Glue:
        """Render a conversation, the policy's mark, and this reply; the glue is what follows the mark."""
        base = [{"role": "user", "content": "u"}]
        if later:
            base.append(self._turn("a", messages))
            base += _dicts(messages, lambda index, message: "r")
        base.append(self._turn(POLICY_MARK, messages))
        shown = base + self.placeholders(messages, opening=False)
        parts = self._derived(shown, (), messages, POLICY_MARK, opening=False)
        parts = tuple(_unguarded(parts))
        lead = None
        if parts and isinstance(parts[0], str):
            lead = self.encoder.leading_control(parts[0])
        if lead is None:
            return Glue(parts, None, parts)
        stop, rest = lead
        after_stop = parts[1:]
        if rest:
            after_stop = (rest, *after_stop)
        return Glue(parts, stop, after_stop)

    def _turn(self, text: str, messages: Sequence[ChatMessage]) -> dict:
        """A turn of the policy that these messages answer: with `text` in its last call where they stand behind calls."""
        calls = []
        for index, message in enumerate(messages):
            if message.role == "tool" and self.call_ends:
                function = {"name": placeholder(index, NAME), "arguments": {}}
                call_id = placeholder(index, CALL_ID)
                calls.append({"id": call_id, "type": "function", "function": function})
        if not calls:
            return {"role": "assistant", "content": text}
        calls[-1]["function"]["arguments"] = {"a": text}
        return {"role": "assistant", "content": "", "tool_calls": calls}

    def _behind_call(self, text: str) -> str:
        """What follows the policy's words where `text` follows something within its last call."""
        places = [text.index(end) for end in self.call_ends if end in text]
        if not places:
            raise ChatFormatError(f"no token ends a call before its reply: {text[:40]!r}")
        return text[min(places) :]

    def _derived(
        self,
        shown: list[dict],
        tools: Sequence,
        messages: Sequence[ChatMessage],
        mark: str,
        *,
        opening: bool,
    ) -> list[str | Slot]:
        """Cut the template's output at its placeholders, and see with a probe that filling in gives the same text."""

        def after_mark(text: str) -> str:
            behind = _behind(text, mark)
            return self._behind_call(behind) if "tool_calls" in asked else behind

        asked = shown[-len(messages) - 1] if mark else {}
        parts = cut_at_slots(after_mark(self.template.render(shown, tools)))
        _check_slots(parts, messages)
        if "tool_calls" in asked:
            _check_names(parts)
        probed = [dict(message) for message in shown]
        offset = len(shown) - len(messages)
        for index, message in enumerate(messages):
            if probed[offset + index]["content"] and message.policy is None:
                probed[offset + index]["content"] = PROBES[index % 2]
        expected = "".join(
            part if isinstance(part, str) else self._probe_in(part, messages, opening)
            for part in parts
        )
        actual = after_mark(self.template.render(probed, tools))
        if actual != expected:
            at = len(commonprefix([actual, expected]))
            around = slice(max(0, at - 20), at + 40)
            roles = [message.role for message in messages]
            raise ChatFormatError(
                f"roles {roles}: the template treats contents in a way that depends on them: expected "
                f"{expected[around]!r}, got {actual[around]!r}"
            )
        return parts

    def _probe_in(self, slot: Slot, messages: Sequence[ChatMessage], opening: bool) -> str:
        """The text expected of a probe in this slot; names and the policy's turns keep their placeholder."""
        message = messages[slot.message]
        if slot.field != CONTENT or message.policy is not None:
            return placeholder(*slot)
        transform = self._transform(message.role, opening and slot.message == 0)
        return transform.on_text(PROBES[slot.message % 2])

    def _shape(self, messages: Sequence[ChatMessage], opening: bool) -> tuple:
        return tuple(
            (
                message.role,
                self._is_empty(message, opening and index == 0),
                message.name is not None,
                message.call_id is not None,
                message.policy is not None,
            )
            for index, message in enumerate(messages)
        )

    def _is_empty(self, message: ChatMessage, first: bool) -> bool:
        if message.policy is not None:
            return False
        if not message.pieces:
            return True
        return self._transform(message.role, first).blank_is_empty and not message.text.strip()

    def placeholders(self, messages: Sequence[ChatMessage], *, opening: bool) -> list[dict]:
        """Messages for the template, with a placeholder for every content, name and call id."""

        def content(index: int, message: ChatMessage) -> str:
            return "" if self._is_empty(message, opening and index == 0) else placeholder(index)

        return _dicts(messages, content)

    def _transform(self, role: str, first: bool) -> Transform:
        """How the template changes contents of this role, as the first message or after a turn of the policy."""
        key = (role, first)
        if key not in self._transforms:
            user = {"role": "user", "content": "u"}
            assistant = self._turn("a", [ChatMessage(role, ())])
            before = []
            if not first:
                before = [user] if role == "assistant" else [user, assistant]
            after = [user] if role in ("system", "assistant") else []
            try:
                self._transforms[key] = find_transform(self.template, before, role, after)
            except TemplateRefused:
                self._transforms[key] = find_transform(self.template, before, role, [])
        return self._transforms[key]

    def slot_pieces(
        self, slot: Slot, messages: Sequence[ChatMessage], opening: bool
    ) -> Sequence[AuthoredText]:
        """The pieces in a slot: the content as the template would change it, or a name."""
        message = messages[slot.message]
        if slot.field == CONTENT:
            transform = self._transform(message.role, opening and slot.message == 0)
            return transform.on_pieces(message.pieces)
        return (message.name,) if slot.field == NAME else (message.call_id,)


def _behind(text: str, mark: str) -> str:
    """What stands behind the mark of the policy's text; without one all of it."""
    if mark and text.count(mark) != 1:
        raise ChatFormatError(
            "expected the assistant's text once in the template's output, found it "
            f"{text.count(mark)} times; no append-only suffix can be derived from this template"
        )
    return text.partition(mark)[2] if mark else text


def _check_slots(parts: Sequence[str | Slot], messages: Sequence[ChatMessage]) -> None:
    shown = [part.message for part in parts if isinstance(part, Slot) and part.field == CONTENT]
    for index, message in enumerate(messages):
        times = shown.count(index)
        if (message.pieces or message.policy is not None) and times != 1:
            roles = [other.role for other in messages]
            raise ChatFormatError(
                f"the template shows the content of message {index} ({message.role}) {times} times "
                f"among roles {roles}; expected once, after what came before it"
            )


def _check_names(parts: Sequence[str | Slot]) -> None:
    """Raise ChatFormatError where the template calls a reply by another one's name."""
    slots = [part for part in parts if isinstance(part, Slot) and part.field != CALL_ID]
    for slot, following in zip(slots, slots[1:]):
        if slot.field == NAME and following.message != slot.message:
            raise ChatFormatError("the template names replies after the first call alone")


def _unguarded(parts: Sequence[Part]) -> Iterator[Part]:
    """Literals as they are to stand, cut where a guard was, so that what it broke up stays broken up."""
    for part in parts:
        if not isinstance(part, str):
            yield part
        elif part:
            yield from cut_at_guards(part)


def _dicts(
    messages: Sequence[ChatMessage], content: Callable[[int, ChatMessage], str]
) -> list[dict]:
    dicts = []
    for index, message in enumerate(messages):
        entry = {"role": message.role, "content": content(index, message)}
        if message.name is not None:
            entry["name"] = placeholder(index, NAME)
        if message.call_id is not None:
            entry["tool_call_id"] = placeholder(index, CALL_ID)
        dicts.append(entry)
    return dicts
