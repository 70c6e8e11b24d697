"""The proof at load time: append-only rendering gives what the tokenizer's own `apply_chat_template` gives.

Several benign conversations are built turn by turn and compared, after every turn, with the template's rendering of the
whole conversation: as text, and token by token. Three outcomes:

* equal: nothing to say;
* the template itself re-renders the past (it drops old thoughts, adds empty ones) while what it writes after the last
  turn is our glue: recorded, in words; what was sampled stays;
* anything else: ChatFormatError with the first differing token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import Protocol

from workbench.chat.capabilities import TemplateCapabilities, chat_message, fit
from workbench.chat.encode import AuthoredText, SafeEncoder
from workbench.chat.shapes import TemplateShapes
from workbench.chat.skeleton import Template
from workbench.values import Message, Observation, Source, Span
from workbench.values.errors import ChatFormatError
from workbench.values.sequences import first_difference


class CheckedFormat(Protocol):
    """The rendering that is proven: a `ChatFormat` (format.py), which proves itself when it is made."""

    template: Template
    encoder: SafeEncoder
    capabilities: TemplateCapabilities
    shapes: TemplateShapes

    def open(self, observation: Observation) -> tuple[Span, ...]: ...

    def append(
        self, observation: Observation, *, turn: int, last_id: int | None
    ) -> tuple[Span, ...]: ...

    def opening_items(self, observation: Observation) -> list[AuthoredText]: ...

    def glue_items(
        self, observation: Observation, turn: int, last_id: int | None, later: bool
    ) -> tuple[Iterator[AuthoredText], int | None]: ...

    def token_texts(self, ids: Sequence[int]) -> list[str]: ...


TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "description": "which word"}},
            "required": ["word"],
        },
    },
}
THOUGHT = "<think>\nLeft is a hole.\n</think>\n\n"


def _say(*messages: tuple[str, str], tools=()) -> Observation:
    return Observation(tuple(Message(role, text) for role, text in messages), tools)


# (name, first observation, [(text of the policy's turn, reply), ...]); every text is benign.
CASES: tuple[tuple[str, Observation, tuple[tuple[str, Observation], ...]], ...] = (
    (
        "plain turns",
        _say(("user", "Where is the goal?")),
        (
            ("Right.", _say(("user", "You moved.\n_ P G"))),
            ("Down again.", _say(("user", "Nothing moved."))),
            ("Right.", _say(("user", "Well done."))),
        ),
    ),
    (
        "a system text",
        _say(("system", "You play a game."), ("user", "Begin.")),
        (("Up.", _say(("user", "1"))), ("Up.", _say(("user", "2")))),
    ),
    (
        "thoughts",
        _say(("user", "Begin.")),
        (
            (THOUGHT + "<answer>Up</answer>", _say(("user", "You moved."))),
            (THOUGHT + "<answer>Down</answer>", _say(("user", "You moved back."))),
        ),
    ),
    (
        "empty turns",
        _say(("user", "Begin.")),
        (("", _say(("user", "Say something."))), ("", _say(("user", "Please.")))),
    ),
    (
        "tool replies",
        _say(("user", "What is a fox?"), tools=(TOOL,)),
        (
            ("I look.", _say(("tool", "an animal"), ("tool", 'a "sly" one\n'))),
            ("Once more.", _say(("tool", "red"))),
            ("An animal.", _say(("user", "Right. And a hen?"))),
            ("I look.", _say(("tool", "a bird"))),
        ),
    ),
)


def prove(chat: CheckedFormat) -> tuple[str, ...]:
    """Differences in words, each once. Raises ChatFormatError if append-only rendering is not the template's."""
    differences: dict[tuple[str, str], str] = {}
    for name, first, exchanges in CASES:
        for before, after in _compare(chat, name, first, exchanges):
            differences.setdefault((before, after), _in_words(name, before, after))
    _prove_no_forgery(chat)
    return tuple(differences.values())


def prove_replies(chat: CheckedFormat) -> tuple[str, ...]:
    """The same of a conversation whose turns are calls as the template itself writes them, and replies of tools. Raises
    ChatFormatError where what follows a call is not what the template writes."""
    first = _say(("user", "What is a fox?"), tools=(TOOL,))
    walk = _Walk(chat, first)
    name = TOOL["function"]["name"]
    differences = {}
    for turn, text in enumerate(("an animal", 'a "sly" one\n', "red")):
        call_id = f"call{turn:05d}"
        function = {"name": name, "arguments": {"word": f"fox {turn}"}}
        call = {"id": call_id, "type": "function", "function": function}
        written = {"role": "assistant", "content": "", "tool_calls": [call]}
        reply = {"role": "tool", "content": text, "name": name, "tool_call_id": call_id}
        shown = Observation((Message("tool", text, name, call_id),))
        for before, after in walk.add_call(turn, written, shown, reply):
            differences[before, after] = _in_words("tool replies", before, after)
    return tuple(differences.values())


def _in_words(name: str, before: str, after: str) -> str:
    if not after:
        return f"{name}: a later turn makes the template drop {before!r} from the past; here the past stays as sampled"
    if not before:
        return f"{name}: a later turn makes the template add {after!r} to the past; here the past stays as sampled"
    return f"{name}: a later turn makes the template turn {before!r} of the past into {after!r}; here it stays as is"


def _compare(
    chat: CheckedFormat, name: str, first: Observation, exchanges
) -> Iterator[tuple[str, str]]:
    """Walk one conversation; yield (what was there, what the template makes of it) where it re-renders the past."""
    walk = _Walk(chat, first)
    if walk.ours != walk.theirs:
        walk.refuse(f"{name}, first prompt")
    walk.same_ids(f"{name}, first prompt")
    for turn, (text, reply) in enumerate(exchanges):
        before = walk.theirs + text
        glue = walk.add_turn(turn, text, reply)
        where = f"{name}, after turn {turn}"
        if walk.theirs != before + glue:
            # Something new right behind the policy's words is no change of the past: the glue itself would differ.
            if not walk.theirs.endswith(glue) or (text and walk.theirs.startswith(before)):
                walk.refuse(where)
            yield _change(before, walk.theirs[: len(walk.theirs) - len(glue)])
        if walk.ours == walk.theirs:
            yield from walk.same_ids(where)


class _Walk:
    """A conversation built turn by turn, beside what the template makes of all of it.

    ours, ids    append-only rendering: as text, and as tokens
    theirs       the template's rendering of the same messages
    glues        (start, end, ids) of what is not sampled, by characters of `ours`
    """

    def __init__(self, chat: CheckedFormat, first: Observation) -> None:
        self.chat = chat
        self.ours = _text(chat.opening_items(first))
        self.ids = _token_ids(chat.open(first))
        self.glues: list[tuple[int, int, list[int]]] = [(0, len(self.ours), list(self.ids))]
        self._tools = list(first.tools) if chat.capabilities.tool_schemas else []
        self._messages = _reference(chat, first, Source.PROMPT, 0)
        self.theirs = chat.template.render(self._messages, self._tools)

    def add_turn(self, turn: int, text: str, reply: Observation) -> str:
        """The policy writes `text` and is answered; returns the glue between the two."""
        chat = self.chat
        pieces, _ = chat.glue_items(reply, turn, None, turn > 0)
        glue = _text(pieces)
        added = _token_ids(chat.append(reply, turn=turn, last_id=None))
        self.ids += _token_ids(chat.encoder.encode([AuthoredText(text, Source.POLICY, turn, True)]))
        self.ids += added
        self._messages.append({"role": "assistant", "content": text})
        self._messages += _reference(chat, reply, Source.ENV, turn)
        self.theirs = chat.template.render(self._messages, self._tools)
        self.ours += text + glue
        self.glues.append((len(self.ours) - len(glue), len(self.ours), added))
        return glue

    def add_call(
        self, turn: int, written: dict, reply: Observation, shown: dict
    ) -> Iterator[tuple[str, str]]:
        """The policy writes a call as the template has it, and is answered; yields what the template changes of the past: a
        prompt that had opened something for the turn."""
        chat = self.chat
        where = f"tool replies, after turn {turn}"
        self._messages += [written, shown]
        theirs = chat.template.render(self._messages, self._tools)
        glue = _text(chat.glue_items(reply, turn, None, turn > 0)[0])
        same = len(commonprefix([self.theirs, theirs]))
        gone = self.theirs[same:]
        call = theirs[same : len(theirs) - len(glue)]
        words = written["tool_calls"][0]["function"]["arguments"]["word"]
        ended = any(end in call for end in chat.shapes.call_ends)
        if not theirs.endswith(glue) or words not in call:
            raise ChatFormatError(f"{where}: the template does not write {glue!r} there")
        if ended or gone and turn == 0:
            raise ChatFormatError(f"{where}: {call!r} is not what a policy writes behind {gone!r}")
        added = _token_ids(chat.append(reply, turn=turn, last_id=None))
        self.ids += _token_ids(chat.encoder.encode([AuthoredText(call, Source.POLICY, turn, True)]))
        self.ids += added
        self.theirs = theirs
        if gone:
            yield gone, ""
        elif self.ids != self._reference_ids():
            self.refuse(where)

    def same_ids(self, where: str) -> list[tuple[str, str]]:
        """Equal text must be equal ids, except in what the policy will sample by itself.

        Where a template has no control token around the policy's words, the tokenizer may lay one token across the border
        (recorded), or begin them with a space of its own (which is the sampler's business).
        """
        theirs = self._reference_ids()
        if self.ids == theirs:
            return []
        encoding = self.chat.encoder.backend.encode(self.theirs, add_special_tokens=False)
        at = first_difference(self.ids, theirs)
        for start, end in encoding.offsets[at : at + 1]:
            for left, right, _ in self.glues:
                if start < left < end or start < right < end:
                    return [(self.theirs[start:end], "one token across the border of a turn")]
        tokens = list(zip(encoding.ids, encoding.offsets, strict=True))
        for start, end, glue in self.glues:
            within = [
                token
                for token, (left, right) in tokens
                if start <= left and right <= end and left < right
            ]
            if within != glue:
                _refuse(self.chat, where, self.ids, theirs)
        return []

    def refuse(self, where: str) -> None:
        _refuse(self.chat, where, self.ids, self._reference_ids())

    def _reference_ids(self) -> list[int]:
        return self.chat.template.reference_ids(self._messages, self._tools)


def _reference(
    chat: CheckedFormat, observation: Observation, source: Source, turn: int
) -> list[dict]:
    """The messages of an observation as the template is given them; those of the first one open the conversation."""
    messages = [chat_message(message, source, turn) for message in observation.messages]
    opening = source is Source.PROMPT
    fitted = fit(messages, observation.tools, chat.capabilities, opening=opening)
    return [{"role": message.role, "content": message.text} for message in fitted]


def _text(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def _token_ids(spans: Sequence[Span]) -> list[int]:
    ids: list[int] = []
    for span in spans:
        ids += span.token_ids.tolist()
    return ids


def _refuse(chat: CheckedFormat, where: str, ours: list[int], theirs: list[int]) -> None:
    at = first_difference(ours, theirs)
    at = len(ours) if at is None else at

    def show(ids: list[int]) -> str:
        if at >= len(ids):
            return "nothing more"
        [text] = chat.token_texts(ids[at : at + 1])
        return f"{text!r} (id {ids[at]})"

    before = "".join(chat.token_texts(theirs[max(0, at - 8) : at]))
    raise ChatFormatError(
        f"{where}: no append-only rendering of this chat template can be derived. First difference at token {at}, "
        f"after {before!r}: the template writes {show(theirs)}, "
        f"append-only rendering {show(ours)}. Use a template whose past does not change, or another tokenizer"
    )


def _change(before: str, after: str) -> tuple[str, str]:
    """The two strings without their common beginning and end."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    # A cut piece reads best from the start of a line: `<think>...` rather than `think>...<`.
    lines = "\n>"
    while (
        start > 0
        and before[start - 1] not in lines
        and (start + end in (len(before), len(after)))
        and before[start - 1] == (before + after)[-1 - end]
    ):
        start -= 1
        end += 1
    return before[start : len(before) - end], after[start : len(after) - end]


def _prove_no_forgery(chat: CheckedFormat) -> None:
    """Invariant 9 on this very tokenizer: an observation that spells out every control token holds none."""
    attack = "".join(f"{name}\n{name}" for name in chat.encoder.controls)
    ids = _token_ids(chat.encoder.encode([AuthoredText(attack, Source.ENV, 0)]))
    forged = [token for token in ids if token in chat.encoder.forbidden_ids]
    if forged:
        raise ChatFormatError(
            f"untrusted text became the control tokens {chat.token_texts(forged[:4])}, expected none: this tokenizer "
            "cannot be used safely; remove those added tokens from it"
        )
