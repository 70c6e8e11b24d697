"""The proof at load time: append-only rendering gives what the tokenizer's own `apply_chat_template` gives.

Several benign conversations are built turn by turn and compared, after every turn, with the template's rendering of the
whole conversation: as text, and token by token. Three outcomes:

* equal: nothing to say;
* the template itself re-renders the past (it drops old thoughts, adds empty ones) while what it writes after the last
  turn is our glue: recorded, in words; what was sampled stays;
* anything else: ChatFormatError with the first differing token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.chat.capabilities import chat_message, fit
from workbench.chat.encode import AuthoredText
from workbench.types import Message, Observation, Source
from workbench.types.errors import ChatFormatError

if TYPE_CHECKING:
    from workbench.chat.format import ChatFormat

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


def prove(chat: "ChatFormat") -> tuple[str, ...]:
    """Differences in words, each once. Raises ChatFormatError if append-only rendering is not the template's."""
    differences: dict[tuple[str, str], str] = {}
    for name, first, exchanges in CASES:
        for before, after in _compare(chat, name, first, exchanges):
            differences.setdefault((before, after), _in_words(name, before, after))
    _prove_no_forgery(chat)
    return tuple(differences.values())


def _in_words(name: str, before: str, after: str) -> str:
    if not after:
        return f"{name}: a later turn makes the template drop {before!r} from the past; here the past stays as sampled"
    if not before:
        return f"{name}: a later turn makes the template add {after!r} to the past; here the past stays as sampled"
    return f"{name}: a later turn makes the template turn {before!r} of the past into {after!r}; here it stays as is"


def _compare(
    chat: "ChatFormat", name: str, first: Observation, exchanges
) -> Iterator[tuple[str, str]]:
    """Walk one conversation; yield (what was there, what the template makes of it) where it re-renders the past."""
    reference = _reference(
        chat, [chat_message(message, Source.PROMPT, 0) for message in first.messages], first, True
    )
    tools = list(first.tools) if chat.capabilities.tool_schemas else []
    items: list[AuthoredText] = chat.opening_items(first)
    ours = _text(items)
    ids = [token for span in chat.open(first) for token in span.token_ids.tolist()]
    theirs = chat.template.render(reference, tools)
    glues: list[tuple[int, int, list[int]]] = [
        (0, len(ours), list(ids))
    ]  # (start, end, ids) of what is not sampled
    if ours != theirs:
        _refuse(chat, f"{name}, first prompt", ids, chat.template.reference_ids(reference, tools))
    _same_ids(chat, f"{name}, first prompt", ids, reference, tools, theirs, glues)
    for turn, (text, reply) in enumerate(exchanges):
        action = [AuthoredText(text, Source.POLICY, turn, True)]
        pieces, _ = chat.glue_items(reply, turn, None, turn > 0)
        glue = _text(pieces)
        ids += [token for span in chat.encoder.encode(action) for token in span.token_ids.tolist()]
        added = [
            t
            for span in chat.append(reply, turn=turn, last_id=None)
            for t in span.token_ids.tolist()
        ]
        ids += added
        reference.append({"role": "assistant", "content": text})
        reference += _reference(
            chat, [chat_message(m, Source.ENV, turn) for m in reply.messages], reply, False
        )
        before, theirs = theirs + text, chat.template.render(reference, tools)
        ours += text + glue
        glues.append((len(ours) - len(glue), len(ours), added))
        where = f"{name}, after turn {turn}"
        if theirs != before + glue:
            # Something new right behind the policy's words is no change of the past: the glue itself would differ.
            if not theirs.endswith(glue) or (text and theirs.startswith(before)):
                _refuse(chat, where, ids, chat.template.reference_ids(reference, tools))
            yield _change(before, theirs[: len(theirs) - len(glue)])
        if ours == theirs:
            yield from _same_ids(chat, where, ids, reference, tools, theirs, glues)


def _reference(
    chat: "ChatFormat", messages: list, observation: Observation, opening: bool
) -> list[dict]:
    fitted = fit(messages, observation.tools, chat.capabilities, opening=opening)
    return [{"role": message.role, "content": message.text} for message in fitted]


def _text(pieces) -> str:
    return "".join(piece.text for piece in pieces)


def _same_ids(
    chat: "ChatFormat",
    where: str,
    ids: list[int],
    reference: list[dict],
    tools: list,
    text: str,
    glues: list[tuple[int, int, list[int]]],
) -> list[tuple[str, str]]:
    """Equal text must be equal ids, except in what the policy will sample by itself.

    Where a template has no control token around the policy's words, the tokenizer may lay one token across the border
    (recorded), or begin them with a space of its own (which is the sampler's business).
    """
    theirs = chat.template.reference_ids(reference, tools)
    if ids == theirs:
        return []
    encoding = chat.encoder.backend.encode(text, add_special_tokens=False)
    at = _first_difference(ids, theirs)
    for start, end in encoding.offsets[at : at + 1]:
        if any(start < border < end for glue in glues for border in glue[:2]):
            return [(text[start:end], "one token across the border of a turn")]
    tokens = list(zip(encoding.ids, encoding.offsets, strict=True))
    for start, end, glue in glues:
        if [
            token
            for token, (left, right) in tokens
            if start <= left and right <= end and left < right
        ] != glue:
            _refuse(chat, where, ids, theirs)
    return []


def _first_difference(ours: list[int], theirs: list[int]) -> int:
    pairs = zip(ours, theirs, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))


def _refuse(chat: "ChatFormat", where: str, ours: list[int], theirs: list[int]) -> None:
    at = _first_difference(ours, theirs)

    def show(ids: list[int]) -> str:
        return (
            f"{chat.token_texts(ids[at : at + 1])[0]!r} (id {ids[at]})"
            if at < len(ids)
            else "nothing more"
        )

    raise ChatFormatError(
        f"{where}: no append-only rendering of this chat template can be derived. First difference at token {at}, "
        f"after {''.join(chat.token_texts(theirs[max(0, at - 8) : at]))!r}: the template writes {show(theirs)}, "
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
        start, end = start - 1, end + 1
    return before[start : len(before) - end], after[start : len(after) - end]


def _prove_no_forgery(chat: "ChatFormat") -> None:
    """Law 9 on this very tokenizer: an observation that spells out every control token holds none."""
    attack = "".join(f"{name}\n{name}" for name in chat.encoder.controls)
    spans = chat.encoder.encode([AuthoredText(attack, Source.ENV, 0)])
    forged = [
        token
        for span in spans
        for token in span.token_ids.tolist()
        if token in chat.encoder.forbidden_ids
    ]
    if forged:
        raise ChatFormatError(
            f"untrusted text became the control tokens {chat.token_texts(forged[:4])}, expected none: this tokenizer "
            "cannot be used safely; remove those added tokens from it"
        )
