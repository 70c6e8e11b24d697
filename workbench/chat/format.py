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
from dataclasses import replace
from typing import Any

from workbench.chat.capabilities import (
    ChatMessage,
    TemplateCapabilities,
    chat_message,
    find_capabilities,
    fit,
)
from workbench.chat.encode import AuthoredText, SafeEncoder
from workbench.chat.manner import Manner, manner_of
from workbench.chat.proof import prove, prove_replies
from workbench.chat.shapes import CACHED_SHAPES, TemplateShapes
from workbench.chat.skeleton import Part, Schema, Template
from workbench.values import Observation, Source, Span
from workbench.values.errors import ChatFormatError
from workbench.values.tokens import GENERATION_STOPS


class ChatFormat:
    """The chat format of one tokenizer. Build it with `from_tokenizer`; it never changes afterwards.

    stop_ids: ids that end a turn (the template's end-of-turn and end of a call, the tokenizer's eos, those of the model's
    generation_config), without those that also stand inside of turns. end_of_turn: the one of an answer. instead: those in
    place of which the template writes another end of turn where the turn is past. manner: how the template has its model write.
    differences: what the template itself would render differently, in words, to be printed once.
    """

    def __init__(
        self,
        template: Template,
        encoder: SafeEncoder,
        capabilities: TemplateCapabilities,
        eos_id: int | None,
    ) -> None:
        self.template = template
        self.encoder = encoder
        self.capabilities = capabilities
        self.differences: tuple[str, ...] = capabilities.notes
        self.shapes = TemplateShapes(template, encoder)
        self._opened: dict[tuple, tuple[Span, ...]] = {}
        self._token_texts: dict[int, str] = {}
        user = ChatMessage("user", (AuthoredText("u", Source.ENV, 0),))
        user_glue = self.shapes.glue([user], later=False)
        self.end_of_turn: int | None = user_glue.stop
        self.stop_ids = frozenset(token for token in (user_glue.stop, eos_id) if token is not None)
        self._learn(manner_of(template, tuple(encoder.controls)))
        if not self.stop_ids:
            raise ChatFormatError(
                "expected an end-of-turn token after the assistant's text or an eos token, found neither, so the "
                "policy could never end its turn; set tokenizer.eos_token"
            )

    @classmethod
    def from_tokenizer(
        cls, tokenizer: Any, *, template_flags: Mapping[str, Any] = {}
    ) -> ChatFormat:
        """Derive the glue and prove it. `template_flags`: variables of the template ({"enable_thinking": False}).

        Raises ChatFormatError, naming the first differing token, if no append-only rendering can be derived.
        """
        template = Template(tokenizer, template_flags)
        encoder = SafeEncoder(tokenizer)
        choices = find_capabilities(template)
        # Some templates know tools only within one way of writing calls; as text they always work.
        try:
            return cls._proven(template, encoder, choices)
        except ChatFormatError as error:
            if not (choices.tool_replies or choices.tool_schemas):
                raise
            refusal = error
        try:
            return cls._proven(template, encoder, choices.without_tools(str(refusal)))
        except ChatFormatError:
            raise refusal from None

    @classmethod
    def _proven(
        cls, template: Template, encoder: SafeEncoder, capabilities: TemplateCapabilities
    ) -> ChatFormat:
        tokenizer = template.tokenizer
        chat = cls(template, encoder, capabilities, getattr(tokenizer, "eos_token_id", None))
        chat.differences += prove(chat)
        chat._try_replies_behind_calls()
        return chat

    def _try_replies_behind_calls(self) -> None:
        """Show tool replies as the template writes them behind its own calls, where it takes them nowhere else and that
        can be proven."""
        plain = self.capabilities
        if plain.tool_replies or not plain.tool_schemas or not self.manner.calls:
            return
        self.capabilities = replace(plain, called_replies=True)
        self.shapes.call_ends = self.manner.ends
        try:
            changed = prove_replies(self)
        except ChatFormatError:
            self.capabilities = plain
            self.shapes = TemplateShapes(self.template, self.encoder)
            return
        others = [words for words in self.differences if words not in plain.notes]
        self.differences = tuple(dict.fromkeys((*self.capabilities.notes, *others, *changed)))

    def _learn(self, manner: Manner) -> None:
        """Which tokens end a turn, and what is said of it, as the template has its model write."""
        named = self.encoder.controls
        self.manner = manner
        if self.capabilities.tool_schemas:
            self.differences += manner.notes
        ends = {named[text] for text in manner.ends if text in named}
        inside = {named[text] for text in manner.inside if text in named}
        ends |= set(getattr(self.template.tokenizer, GENERATION_STOPS, ()))
        self.stop_ids = (self.stop_ids | ends) - inside or self.stop_ids
        instead = [named[text] for text in manner.instead if text in named]
        self.instead = frozenset(instead) - {self.end_of_turn}
        if self.end_of_turn in inside and instead:
            self.end_of_turn = instead[0]

    # -------------------------------------------------------------------------------------------- rendering

    def open(self, observation: Observation) -> tuple[Span, ...]:
        """The first prompt, all turn 0: contents and schemas PROMPT, literals SCAFFOLD; a generation prompt ends it."""
        # All trajectories of a group open with the same observation; spans are frozen and can be shared.
        key = (observation.messages, repr(observation.tools))
        if key not in self._opened:
            if len(self._opened) >= CACHED_SHAPES:
                self._opened.clear()
            items = self.opening_items(observation)
            self._opened[key] = tuple(self.encoder.encode(items, at_start=True))
        return self._opened[key]

    def append(
        self, observation: Observation, *, turn: int, last_id: int | None, later: bool | None = None
    ) -> tuple[Span, ...]:
        """What follows the policy's turn `turn`: contents ENV, literals SCAFFOLD; ends with the generation prompt.

        `last_id` is the last token that the policy sampled (None: it sampled none). Unless that is the template's
        end-of-turn, the end-of-turn is supplied as SCAFFOLD. `later`: whether the sequence holds turns of the policy
        before this one (None: as in the whole trajectory). Tools on offer are fixed at reset: those of a later observation
        are not shown again. Cost: that of the new text.
        """
        if later is None:
            later = turn > 0
        items, after = self.glue_items(observation, turn, last_id, later)
        return tuple(self.encoder.encode(items, after=after))

    def fresh(self, first: Observation, reply: Observation, *, turn: int) -> tuple[Span, ...]:
        """A prompt of the first observation and the newest reply alone, without any turn of the policy."""
        messages = [chat_message(message, Source.PROMPT, 0) for message in first.messages]
        messages += [chat_message(message, Source.ENV, turn) for message in reply.messages]
        items = self._opening_items(messages, first.tools, turn)
        return tuple(self.encoder.encode(items, at_start=True))

    def opening_items(self, observation: Observation) -> list[AuthoredText]:
        """The pieces of `open`, before encoding."""
        messages = [chat_message(message, Source.PROMPT, 0) for message in observation.messages]
        return list(self._opening_items(messages, observation.tools, 0))

    def glue_items(
        self, observation: Observation, turn: int, last_id: int | None, later: bool
    ) -> tuple[Iterator[AuthoredText], int | None]:
        """(pieces of `append` before encoding, the control token that stands right before them if it was left out)."""
        messages = [chat_message(message, Source.ENV, turn) for message in observation.messages]
        called = self.capabilities.called_replies
        fitted = fit(messages, (), self.capabilities, opening=False, called=called)
        try:
            glue = self.shapes.glue(fitted, later)
        except ChatFormatError:
            if not called:
                raise
            fitted = fit(messages, (), self.capabilities, opening=False)
            glue = self.shapes.glue(fitted, later)
        if last_id is not None and (last_id == glue.stop or last_id in self.instead):
            return self._filled(glue.parts_after_stop, fitted, turn, opening=False), last_id
        return self._filled(glue.parts, fitted, turn, opening=False), None

    def _opening_items(
        self, messages: list[ChatMessage], tools: Sequence[Mapping], turn: int
    ) -> Iterator[AuthoredText]:
        messages = fit(messages, tools, self.capabilities, opening=True)
        parts = self.shapes.opening(messages, tools if self.capabilities.tool_schemas else ())
        return self._filled(parts, messages, turn, opening=True)

    def _filled(
        self, parts: Sequence[Part], messages: Sequence[ChatMessage], turn: int, *, opening: bool
    ) -> Iterator[AuthoredText]:
        for part in parts:
            if isinstance(part, str):
                yield AuthoredText(part, Source.SCAFFOLD, turn, True)
            elif isinstance(part, Schema):
                yield AuthoredText(part.text, Source.PROMPT, 0, False)
            else:
                yield from self.shapes.slot_pieces(part, messages, opening)

    # -------------------------------------------------------------------------------------------- reading

    def decode(self, ids: Sequence[int]) -> str:
        """Text for parsers and people. Added tokens such as <think> are spelled out; one stop token at the end is left
        out; bytes that are no UTF-8 (a character cut in half) become U+FFFD. Never encode it again (invariant 2)."""
        ids = [int(token) for token in ids]
        if ids and ids[-1] in self.stop_ids:
            ids.pop()
        return self.encoder.backend.decode(ids, skip_special_tokens=False)

    def action_text(self, ids: Sequence[int]) -> str:
        """The text of a turn as environments read it: `decode`, and a thought in whatever marks closed by </think>."""
        return self.manner.plain(self.decode(ids))

    def foreign_ids(self, text: str) -> list[int]:
        """Ids of text that stands in no message and that anybody may have written: none is a control token (invariant 9)."""
        return self.encoder.run(text, later=True, plain=False)[0]

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """One string per token to show: control tokens spelled out, single bytes as \\xe2, unknown ids as a number."""
        return [self._token_text(int(token)) for token in ids]

    def _token_text(self, token: int) -> str:
        if token not in self._token_texts:
            self._token_texts[token] = _display(self.encoder.backend, token)
        return self._token_texts[token]


# GPT-2's printable stand-ins for bytes: the printable ones stand for themselves, the others follow from U+0100 on.
_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF = {chr(byte): byte for byte in _PRINTABLE}
_BYTE_OF |= {chr(0x100 + index): byte for index, byte in enumerate(_UNPRINTABLE)}


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
