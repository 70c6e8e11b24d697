"""What a chat template writes around contents: found by rendering placeholders, never by showing it untrusted text.

A template is a program; it may trim a content, quote it as JSON, drop it, or join messages. So it is run once per
*shape* of a conversation (the roles, and which contents are empty) with a placeholder for each content. Its output, cut
at the placeholders, is the *skeleton*: literals and slots. What the template does to a content inside its slot is found
by probes (`shapes`). Rendering then is filling in, whatever the length of the history.

Placeholders are made of Unicode non-characters (U+FDD0..U+FDEF), which no ordinary text holds. The two texts that a
template must really see, tool schemas and the policy's own turns in a re-rendered history, are *guarded*: what looks
like a control token in them is broken up by a non-character, which is taken out again afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from workbench.values.errors import ChatFormatError

OPEN = "\ufdd0"
CLOSE = "\ufdd1"
ESCAPE = "\ufdde"
GUARD = "\ufddf"
PLACEHOLDER = re.compile("\ufdd0([\ufdd2-\ufddb]+)\ufdd1")
# What stands in a slot.
CONTENT = 0
NAME = 1
CALL_ID = 2


def placeholder(message: int, field: int = CONTENT) -> str:
    """Nine characters always: some templates insist on that length for the id of a tool call."""
    digits = f"{3 * message + field:07d}"
    return OPEN + "".join(chr(0xFDD2 + int(digit)) for digit in digits) + CLOSE


class Slot(NamedTuple):
    message: int
    field: int


class Schema(NamedTuple):
    """Text of tool schemas inside a skeleton: content, although it never changes."""

    text: str


Part = str | Schema | Slot


def cut_at_slots(text: str) -> list[str | Slot]:
    """[literal, slot, literal, slot, ..., literal]"""
    pieces = PLACEHOLDER.split(text)
    parts: list[str | Slot] = [pieces[0]]
    for digits, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        number = int("".join(str(ord(digit) - 0xFDD2) for digit in digits))
        parts += [Slot(*divmod(number, 3)), literal]
    return parts


# ------------------------------------------------------------------------------------------------ guarded text


class Guard:
    """`guard(text)` holds no string of `names`, nor do its ends make one with what stands beside it; `unguard` gives
    the text back."""

    def __init__(self, names: Sequence[str]) -> None:
        lookaheads = "|".join(f"(?={re.escape(name)})" for name in names)
        self._inside = re.compile(lookaheads) if names else None
        self._starts: set[str] = set()  # of names, the whole names left out
        self._ends: set[str] = set()
        self._parts: set[str] = set()  # anywhere within a name
        for name in names:
            for size in range(1, len(name)):
                self._starts.add(name[:size])
                self._ends.add(name[-size:])
                self._parts.update(name[at : at + size] for at in range(len(name)))
        self._longest = max(map(len, names), default=1)

    def __call__(self, text: str) -> str:
        text = re.sub("[\ufdd0-\ufdef]", lambda match: ESCAPE + _letter(match.group()), text)
        if self._inside is None or not text:
            return text
        borders = [0, *(match.start() + 1 for match in self._inside.finditer(text)), len(text)]
        text = GUARD.join(text[left:right] for left, right in pairwise(borders))
        sizes = range(1, min(self._longest, len(text) + 1))
        if text in self._parts or any(text[-size:] in self._starts for size in sizes):
            text += GUARD
        return GUARD + text if any(text[:size] in self._ends for size in sizes) else text


def unguard(text: str) -> str:
    text = text.replace(GUARD, "")
    return re.sub(ESCAPE + "([0-9A-V])", lambda match: chr(0xFDD0 + int(match[1], 32)), text)


def cut_guarded(text: str, count: int) -> tuple[str, str]:
    """Guarded text cut after `count` characters of what `unguard` gives."""
    units = re.findall(f"{ESCAPE}.|{GUARD}|.", text, re.DOTALL)
    place = 0
    while count > 0:
        count -= units[place] != GUARD
        place += 1
    return "".join(units[:place]), "".join(units[place:])


def _letter(character: str) -> str:
    return "0123456789ABCDEFGHIJKLMNOPQRSTUV"[ord(character) - 0xFDD0]


# ------------------------------------------------------------------------------------------------ the template itself


class TemplateRefused(ChatFormatError):
    """The template raised: it does not take this conversation."""


class Template:
    """A tokenizer's chat template with fixed flags, as a function from messages to text."""

    def __init__(self, tokenizer: Any, flags: Mapping[str, Any]) -> None:
        self._tokenizer = tokenizer
        self._flags = dict(flags)
        source = getattr(tokenizer, "chat_template", None)
        if not source:
            raise ChatFormatError(
                f"expected a tokenizer with a chat template, got {type(tokenizer).__name__} without one; set "
                "tokenizer.chat_template to the template that the model was trained with"
            )
        self.source = "\n".join(source.values()) if isinstance(source, Mapping) else str(source)
        # The template of this moment: a tokenizer is mutable, and skeletons are derived later too.
        fixed = {} if isinstance(source, Mapping) else {"chat_template": self.source}
        self._arguments = dict(self._flags, add_generation_prompt=True, **fixed)
        for name in self._flags:
            if not re.search(rf"\b{re.escape(str(name))}\b", self.source):
                raise ChatFormatError(
                    f"template flag {name!r} does nothing: the template never mentions it; remove it"
                )

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer itself, for whoever wants to ask it instead of us."""
        return self._tokenizer

    @property
    def flags(self) -> dict[str, Any]:
        """Variables of the template, a copy."""
        return dict(self._flags)

    def render(self, messages: list[dict], tools: list | None = None) -> str:
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools or None, tokenize=False, **self._arguments
            )
        except Exception as error:  # a template may raise anything at all; jinja's own errors have no common base here
            roles = [message["role"] for message in messages]
            raise TemplateRefused(
                f"the chat template refuses the roles {roles}: {error}"
            ) from error

    def reference_ids(self, messages: list[dict], tools: list | None = None) -> list[int]:
        """The tokenizer's own ids, which everybody else would train on."""
        return self._tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=True, return_dict=False, **self._arguments
        )


def mark_schemas(parts: list[str | Slot], tools: Sequence[Any]) -> list[Part]:
    """Tell the text of tool schemas from literals, where the template writes them as JSON."""
    needles: set[str] = set()
    for tool in tools:
        needles |= {json.dumps(tool, ensure_ascii=False, indent=indent) for indent in (None, 4, 2)}
    if not needles:
        return list(parts)
    longest_first = sorted(needles, key=len, reverse=True)
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    out: list[Part] = []
    for part in parts:
        if isinstance(part, Slot):
            out.append(part)
            continue
        position = 0
        for match in pattern.finditer(part):
            out += [part[position : match.start()], Schema(unguard(match.group()))]
            position = match.end()
        out.append(part[position:])
    return [part for part in out if part != ""]


def cut_at_guards(text: str) -> list[str]:
    """Literal text that may hold guards: cut there, so that what was broken up stays broken up."""
    return [unguard(part) for part in text.split(GUARD) if part]


# What OpenAI's form of a tool and JSON Schema prescribe, letter by letter: templates look these up.
PRESCRIBED = frozenset(
    "type function name description parameters return strict properties required items enum default title format anyOf "
    "oneOf allOf not $ref $defs definitions additionalProperties const examples nullable minimum maximum minLength "
    "maxLength minItems maxItems uniqueItems pattern patternProperties prefixItems".split()
)
TYPES = frozenset("function object array string number integer boolean null".split())
OF_NAMES = frozenset(("properties", "patternProperties", "$defs", "definitions"))  # name -> schema


def guard_tool(value: Any, guard: Guard, *, named: bool = False) -> Any:
    """A tool schema as plain JSON values, every string and key in it guarded but for those that are prescribed.

    `named`: the keys of this mapping are names of its author."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, (list, tuple)):
        return [guard_tool(item, guard) for item in value]
    if not isinstance(value, Mapping):
        return value
    guarded = {}
    for key, item in value.items():
        if named or key not in PRESCRIBED:
            guarded[guard_tool(key, guard)] = guard_tool(item, guard)
        elif key == "type" and isinstance(item, str) and item in TYPES:
            guarded[key] = item
        else:
            guarded[key] = guard_tool(item, guard, named=key in OF_NAMES)
    return guarded
