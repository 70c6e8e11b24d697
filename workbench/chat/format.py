"""One tokenizer and its chat template, made append-only: what stands between two turns of the policy, as token ids.

    chat = ChatFormat.from_tokenizer(tokenizer)
    chat.open(observation)                          <|im_start|>user ... <|im_end|> <|im_start|>assistant
    (the policy samples)                                ... <|im_end|>
    chat.append(observation, turn=0, last_id=...)   (newline) <|im_start|>user ... <|im_end|> <|im_start|>assistant

The glue is never written by hand. It is derived from the template (a conversation is rendered with a placeholder for
the policy's text, and what follows the placeholder is the glue) and proven at load time against the tokenizer's own
`apply_chat_template` on several conversations (`proof`). Where the template itself would re-render the past, as Qwen3
does when it drops old thoughts, the difference is kept in `differences` and what was sampled stays.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.chat.dialect import ChatMessage, Dialect, chat_message, find_dialect, fit
from workbench.chat.encode import AuthoredText, SafeEncoder
from workbench.chat.skeleton import (
    CALL_ID, CONTENT, NAME, PROBES, Guard, Part, Schema, Slot, Template, TemplateRefused, Transform, cut_at_slots,
    guard_tool, literal_pieces, mark_schemas, placeholder,
)
from workbench.types import Observation, Source, Span
from workbench.types.errors import ChatFormatError

CACHED_SHAPES = 1_024  # skeletons kept; more only where every task brings tools of its own
POLICY_MARK = placeholder(3_000_000)  # stands for the policy's text where the glue after it is derived


class Glue(NamedTuple):
    """What follows the policy's text. `stop` is the end-of-turn token that it begins with, if it does."""

    parts: tuple[Part, ...]
    stop: int | None
    parts_after_stop: tuple[Part, ...]


class ChatFormat:
    """The chat format of one tokenizer. Build it with `from_tokenizer`; it never changes afterwards.

    stop_ids: ids that end a turn (the template's end-of-turn, the tokenizer's eos). differences: what the template
    itself would render differently, in words, to be printed once.
    """

    def __init__(self, template: Template, encoder: SafeEncoder, dialect: Dialect, eos_id: int | None) -> None:
        self.template, self.encoder, self.dialect = template, encoder, dialect
        self.differences: tuple[str, ...] = dialect.notes
        self.guard = Guard(tuple(encoder.controls))
        self._transforms: dict[tuple[str, bool], Transform] = {}
        self._openings: dict[tuple, tuple[Part, ...]] = {}
        self._opened: dict[tuple, tuple[Span, ...]] = {}
        self._glues: dict[tuple, Glue] = {}
        self._token_texts: dict[int, str] = {}
        self._native = dialect.is_native
        user_glue = self._glue([ChatMessage("user", (AuthoredText("u", Source.ENV, 0),))], later=False)
        self.end_of_turn: int | None = user_glue.stop
        self.stop_ids = frozenset(token for token in (user_glue.stop, eos_id) if token is not None)
        if not self.stop_ids:
            raise ChatFormatError(
                "expected an end-of-turn token after the assistant's text or an eos token, found neither, so the "
                "policy could never end its turn; set tokenizer.eos_token"
            )

    @classmethod
    def from_tokenizer(cls, tokenizer: Any, *, template_flags: Mapping[str, Any] = {}) -> "ChatFormat":
        """Derive the glue and prove it. `template_flags`: variables of the template ({"enable_thinking": False}).

        Raises ChatFormatError, naming the first differing token, if no append-only rendering can be derived.
        """
        from workbench.chat.proof import prove  # it checks what is defined here

        template, encoder = Template(tokenizer, template_flags), SafeEncoder(tokenizer)
        dialect = find_dialect(template)
        # Some templates know tools only within one way of writing calls; as text they always work.
        choices = [dialect, dialect.without_tools()] if dialect.tool_replies or dialect.tool_schemas else [dialect]
        refusal: ChatFormatError | None = None
        for choice in choices:
            try:
                chat = cls(template, encoder, choice, getattr(tokenizer, "eos_token_id", None))
                chat.differences = chat.dialect.notes + prove(chat)
                return chat
            except ChatFormatError as error:
                refusal = refusal or error
        raise refusal

    # -------------------------------------------------------------------------------------------- rendering

    def open(self, observation: Observation) -> tuple[Span, ...]:
        """The first prompt, all turn 0: contents and schemas PROMPT, literals SCAFFOLD; a generation prompt ends it."""
        # All attempts of a group open with the same observation; spans are frozen and can be shared.
        key = (observation.messages, repr(observation.tools))
        if key not in self._opened:
            if len(self._opened) >= CACHED_SHAPES:
                self._opened.clear()
            self._opened[key] = tuple(self.encoder.encode(self.opening_items(observation), at_start=True))
        return self._opened[key]

    def append(self, observation: Observation, *, turn: int, last_id: int | None) -> tuple[Span, ...]:
        """What follows the policy's turn `turn`: contents ENV, literals SCAFFOLD; ends with the generation prompt.

        `last_id` is the last token that the policy sampled (None: it sampled none). Unless that is the template's
        end-of-turn, the end-of-turn is supplied as SCAFFOLD. Tools on offer are fixed at reset: those of a later
        observation are not shown again. Cost: that of the new text.
        """
        return self.append_at(observation, turn=turn, last_id=last_id, later=turn > 0)

    def append_at(self, observation: Observation, *, turn: int, last_id: int | None, later: bool) -> tuple[Span, ...]:
        """`append`, where `later` says whether the sequence holds turns of the policy before this one."""
        items, after = self.glue_items(observation, turn, last_id, later)
        return tuple(self.encoder.encode(items, after=after))

    def fresh(self, first: Observation, reply: Observation, *, turn: int) -> tuple[Span, ...]:
        """A prompt of the first observation and the newest reply alone, without any turn of the policy."""
        messages = [chat_message(message, Source.PROMPT, 0) for message in first.messages]
        messages += [chat_message(message, Source.ENV, turn) for message in reply.messages]
        return tuple(self.encoder.encode(self._opening_items(messages, first.tools, turn), at_start=True))

    def opening_items(self, observation: Observation) -> list[AuthoredText]:
        """The pieces of `open`, before encoding."""
        messages = [chat_message(message, Source.PROMPT, 0) for message in observation.messages]
        return list(self._opening_items(messages, observation.tools, 0))

    def glue_items(self, observation: Observation, turn: int, last_id: int | None, later: bool
                   ) -> tuple[Iterator[AuthoredText], int | None]:
        """(pieces of `append` before encoding, the control token that stands right before them if it was left out)."""
        messages = [chat_message(message, Source.ENV, turn) for message in observation.messages]
        if not self._native:
            messages = fit(messages, (), self.dialect, opening=False)
        glue = self._glue(messages, later)
        if last_id is not None and last_id == glue.stop:
            return self._filled(glue.parts_after_stop, messages, turn, opening=False), last_id
        return self._filled(glue.parts, messages, turn, opening=False), None

    def _opening_items(self, messages: list[ChatMessage], tools: Sequence[Mapping], turn: int) -> Iterator[AuthoredText]:
        messages = fit(messages, tools, self.dialect, opening=True)
        parts = self.opening_parts(messages, tools if self.dialect.tool_schemas else ())
        return self._filled(parts, messages, turn, opening=True)

    def _filled(self, parts: Sequence[Part], messages: Sequence[ChatMessage], turn: int, *, opening: bool
                ) -> Iterator[AuthoredText]:
        for part in parts:
            if isinstance(part, str):
                yield AuthoredText(part, Source.SCAFFOLD, turn, True)
            elif isinstance(part, Schema):
                yield AuthoredText(part.text, Source.PROMPT, 0, False)
            else:
                yield from self.slot_pieces(part, messages, opening)

    def slot_pieces(self, slot: Slot, messages: Sequence[ChatMessage], opening: bool) -> Sequence[AuthoredText]:
        """What stands in a slot: the content as the template would change it, or a name."""
        message = messages[slot.message]
        if slot.field == CONTENT:
            return self._transform(message.role, opening and slot.message == 0).on_pieces(message.pieces)
        return (message.name,) if slot.field == NAME else (message.call_id,)

    # -------------------------------------------------------------------------------------------- skeletons

    def opening_parts(self, messages: Sequence[ChatMessage], tools: Sequence[Mapping]) -> tuple[Part, ...]:
        """The skeleton of a whole conversation, from the cache or derived and checked."""
        key = (self._shape(messages, True), repr(tools) if tools else None)
        if key not in self._openings:
            if len(self._openings) >= CACHED_SHAPES:
                self._openings.clear()
            guarded = guard_tool(tools, self.guard)
            shown = self.placeholders(messages, opening=True)
            parts = self._derived(shown, guarded, messages, "", opening=True)
            self._openings[key] = tuple(self._plain(mark_schemas(parts, guarded)))
        return self._openings[key]

    def _glue(self, messages: Sequence[ChatMessage], later: bool) -> Glue:
        key = (self._shape(messages, False), later)
        if key not in self._glues:
            try:
                self._glues[key] = self._derive_glue(messages, later)
            except TemplateRefused:
                if not later:
                    raise
                self._glues[key] = self._glue(messages, False)
        return self._glues[key]

    def _derive_glue(self, messages: Sequence[ChatMessage], later: bool) -> Glue:
        """Render a conversation, the policy's mark, and this reply; the glue is what follows the mark."""
        base = [{"role": "user", "content": "u"}]
        if later:
            base += [{"role": "assistant", "content": "a"}, *self._dicts(messages, lambda index, message: "r")]
        base.append({"role": "assistant", "content": POLICY_MARK})
        shown = base + self.placeholders(messages, opening=False)
        parts = self._derived(shown, (), messages, POLICY_MARK, opening=False)
        parts = tuple(self._plain(parts))
        lead = self.encoder.leading_control(parts[0]) if parts and isinstance(parts[0], str) else None
        if lead is None:
            return Glue(parts, None, parts)
        return Glue(parts, lead[0], (*((lead[1],) if lead[1] else ()), *parts[1:]))

    def _derived(self, shown: list[dict], tools: Sequence, messages: Sequence[ChatMessage], mark: str, *, opening: bool
                 ) -> list[str | Slot]:
        """Cut the template's output at its placeholders, and see with a probe that filling in gives the same text."""
        def after_mark(text: str) -> str:
            before, found, rest = text.partition(mark) if mark else ("", "", text)
            if mark and (not found or mark in rest):
                raise ChatFormatError(
                    "expected the assistant's text once in the template's output, found it "
                    f"{text.count(mark)} times; no append-only suffix can be derived from this template"
                )
            return rest

        parts = cut_at_slots(after_mark(self.template.render(shown, tools)))
        self._check_slots(parts, messages)
        probed = [dict(message) for message in shown]
        offset = len(shown) - len(messages)
        for index, message in enumerate(messages):
            if probed[offset + index]["content"] and message.policy is None:
                probed[offset + index]["content"] = PROBES[index % 2]
        expected = "".join(part if isinstance(part, str) else self._probe_in(part, messages, opening) for part in parts)
        came = after_mark(self.template.render(probed, tools))
        if came != expected:
            at = next((i for i, (a, b) in enumerate(zip(came, expected)) if a != b), min(len(came), len(expected)))
            roles = [message.role for message in messages]
            raise ChatFormatError(
                f"roles {roles}: the template treats contents in a way that depends on them: expected "
                f"{expected[at - 20 if at > 20 else 0 : at + 40]!r}, got {came[at - 20 if at > 20 else 0 : at + 40]!r}"
            )
        return parts

    def _probe_in(self, slot: Slot, messages: Sequence[ChatMessage], opening: bool) -> str:
        """What a probe should look like in this slot; names and the policy's turns keep their placeholder."""
        message = messages[slot.message]
        if slot.field != CONTENT or message.policy is not None:
            return placeholder(*slot)
        return self._transform(message.role, opening and slot.message == 0).on_text(PROBES[slot.message % 2])

    @staticmethod
    def _check_slots(parts: Sequence[str | Slot], messages: Sequence[ChatMessage]) -> None:
        found = [part.message for part in parts if isinstance(part, Slot) and part.field == CONTENT]
        for index, message in enumerate(messages):
            if (message.pieces or message.policy is not None) and found.count(index) != 1:
                raise ChatFormatError(
                    f"the template shows the content of message {index} ({message.role}) {found.count(index)} times "
                    f"among roles {[m.role for m in messages]}; expected once, after what came before it"
                )

    def _plain(self, parts: Sequence[Part]) -> Iterator[Part]:
        for part in parts:
            if not isinstance(part, str):
                yield part
            elif part:
                yield from (piece.text for piece in literal_pieces(part, lambda text: AuthoredText(text, Source.SCAFFOLD, 0)))

    def _shape(self, messages: Sequence[ChatMessage], opening: bool) -> tuple:
        return tuple(
            (m.role, self._is_empty(m, opening and index == 0), m.name is not None, m.call_id is not None,
             m.policy is not None)
            for index, m in enumerate(messages)
        )

    def _is_empty(self, message: ChatMessage, first: bool) -> bool:
        if message.policy is not None:
            return False
        if not message.pieces:
            return True
        return self._transform(message.role, first).blank_is_empty and not message.text.strip()

    def placeholders(self, messages: Sequence[ChatMessage], *, opening: bool) -> list[dict]:
        """Messages for the template, with a placeholder for every content, name and call id."""
        return self._dicts(messages, lambda index, message: (
            "" if self._is_empty(message, opening and index == 0) else placeholder(index)))

    @staticmethod
    def _dicts(messages: Sequence[ChatMessage], content) -> list[dict]:
        dicts = []
        for index, message in enumerate(messages):
            entry = {"role": message.role, "content": content(index, message)}
            if message.name is not None:
                entry["name"] = placeholder(index, NAME)
            if message.call_id is not None:
                entry["tool_call_id"] = placeholder(index, CALL_ID)
            dicts.append(entry)
        return dicts

    def _transform(self, role: str, first: bool) -> Transform:
        """What the template does to contents of this role, as the first message or after a turn of the policy."""
        key = (role, first)
        if key not in self._transforms:
            user, assistant = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
            before = [] if first else [user] if role == "assistant" else [user, assistant]
            after = [user] if role in ("system", "assistant") else []
            try:
                self._transforms[key] = self.template.find_transform(before, role, after)
            except TemplateRefused:
                self._transforms[key] = self.template.find_transform(before, role, [])
        return self._transforms[key]

    # -------------------------------------------------------------------------------------------- reading

    def decode(self, ids: Sequence[int]) -> str:
        """Text for parsers and people. Added tokens such as <think> are spelled out; one stop token at the end is left
        out; bytes that are no UTF-8 (a character cut in half) become U+FFFD. Never encode it again (law 2)."""
        ids = [int(token) for token in ids]
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.encoder.backend.decode(ids, skip_special_tokens=False)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """One string per token to show: control tokens spelled out, single bytes as \\xe2, unknown ids as a number."""
        return [self._token_text(int(token)) for token in ids]

    def _token_text(self, token: int) -> str:
        if token not in self._token_texts:
            self._token_texts[token] = _display(self.encoder.backend, token)
        return self._token_texts[token]


# GPT-2's printable stand-ins for bytes: the printable ones stand for themselves, the others follow from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {
    chr(0x100 + index): byte for index, byte in enumerate(byte for byte in range(256) if byte not in _PRINTABLE)
}


def _display(backend: Any, token: int) -> str:
    name = backend.id_to_token(token)
    if name is None:
        return f"<id {token}>"
    text = backend.decode([token], skip_special_tokens=False)
    if "\ufffd" in text and name != text and all(character in _BYTE_OF for character in name):
        raw = bytes(_BYTE_OF[character] for character in name)
        return raw.decode("utf-8", errors="backslashreplace")
    # Decoders of the SentencePiece kind drop the space before a word; people want to see it.
    return " " + text if name.startswith("▁") and not text.startswith(" ") else text
