"""Conversations as token ids: what stands between two turns of the policy, and who wrote it.

    chat.open(observation)                          <|im_start|>user ... <|im_end|> <|im_start|>assistant
    (the policy samples)                                ... <|im_end|>
    chat.append(reply, turn, last_id)               (newline) <|im_start|>user ... <|im_end|> <|im_start|>assistant

The tokenizer's own template writes it, with a placeholder for each content. So what the policy
sampled is never decoded and encoded again, and no content is ever searched for control tokens.
Templates that change contents are refused."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

from workbench.values import Observation, Source, Span
from workbench.values.errors import ChatFormatError

# Content number 7 is the digit 7 between two characters that no ordinary text holds.
PLACEHOLDER = re.compile("\ufdd0(\\d+)\ufdd1")
Token = tuple[int, Source, int]  # id, who wrote it, in which turn


class AuthoredPart(NamedTuple):
    """Text by one author."""

    text: str
    source: Source
    turn: int
    literal: bool = False  # by the template, or trusted: only such text may become control tokens


class Entry(NamedTuple):
    """A message, or the schema of a tool."""

    role: str  # "" for the schema of a tool
    text: str
    parts: list[AuthoredPart | Span]  # what the text is made of; a Span is what was sampled


# Templates write a reply only behind a turn of the policy. Where there is none, this one is.
EXCHANGE = [
    Entry("user", "u", [AuthoredPart("u", Source.PROMPT, 0)]),
    Entry("assistant", "a", [Span(Source.POLICY, 0, [0])]),
]


def entries(observation: Observation, source: Source, turn: int) -> list[Entry]:
    """List the messages of an environment; at reset the tools on offer, too."""
    listed = []
    for message in observation.messages:
        content = message.content
        parts = [AuthoredPart(part.text, source, turn, part.trusted) for part in content]
        listed.append(Entry(message.role, message.text, parts))
    # Tools are offered once: the template shows them at the top of the first prompt.
    if source is Source.PROMPT:
        for tool in observation.tools:
            schema = json.dumps(tool, ensure_ascii=False, default=dict)
            listed.append(Entry("", schema, [AuthoredPart(schema, source, turn)]))
    return listed


class PlainChat:
    """The chat format of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        backend = tokenizer.backend_tokenizer
        spec = json.loads(backend.to_str())
        self.controls = {token["content"]: token["id"] for token in spec["added_tokens"]}
        # Where one control token begins like another, the longer one is meant.
        longest_first = sorted(self.controls, key=len, reverse=True)
        self.control = re.compile(f"({'|'.join(map(re.escape, longest_first))})")
        # The same tokenizer without its added tokens: whatever it is shown, it cannot write one.
        spec["added_tokens"] = []
        spec["post_processor"] = None
        self.bare = type(backend).from_str(json.dumps(spec))
        # A turn ends by the tokenizer's end token, or by what the template writes behind a turn.
        self.stop_ids = {tokenizer.eos_token_id}
        behind = self.template(EXCHANGE).partition("\ufdd01\ufdd1")[2]
        end_of_turn = self.control.match(behind.lstrip())
        if end_of_turn:
            self.stop_ids.add(self.controls[end_of_turn[0]])

    def decode(self, ids: list[int]) -> str:
        """Write ids as text for parsers and people, without the stop token. Never encoded again."""
        ended = len(ids) and ids[-1] in self.stop_ids
        shown = list(ids[:-1] if ended else ids)
        return self.tokenizer.backend_tokenizer.decode(shown, skip_special_tokens=False)

    def open(self, first: Observation) -> list[Span]:
        """Write the first prompt, up to where the policy speaks."""
        return self.encode(self.pieces(entries(first, Source.PROMPT, 0), 0))

    def append(self, reply: Observation, turn: int, last_id: int) -> list[Span]:
        """Write what follows turn `turn` of the policy, whose last id was `last_id`: the end of the
        turn, where it did not sample that itself, and the reply of the environment."""
        pieces = self.pieces(EXCHANGE + entries(reply, Source.ENV, turn), turn)
        # The first four pieces are the exchange: each content, and the template's text before it.
        opening, *rest = pieces[4:]
        text = self.after_end(opening.text, last_id)
        return self.encode([opening._replace(text=text), *rest])

    def fresh(self, first: Observation, reply: Observation, turn: int) -> list[Span]:
        """Write a new prompt of the first observation and the newest reply alone."""
        shown = entries(first, Source.PROMPT, 0) + entries(reply, Source.ENV, turn)
        return self.encode(self.pieces(shown, turn))

    def rerendered(
        self, first: Observation, exchanges: list[tuple[list[int], Observation]]
    ) -> list[Span]:
        """Write the whole conversation as the template writes it now. What it shows of the policy's
        turns is covered with the ids that were sampled."""
        listed = entries(first, Source.PROMPT, 0)
        for turn, (ids, reply) in enumerate(exchanges):
            listed.append(Entry("assistant", self.decode(ids), [Span(Source.POLICY, turn, ids)]))
            listed += entries(reply, Source.ENV, turn)
        pieces = self.pieces(listed, 0)
        # What the template left of a turn of the policy stands between the pieces around it.
        pattern = ""
        for piece in pieces:
            pattern += "(.*?)" if isinstance(piece, Span) else re.escape(piece.text)
        text = self.rendered(listed, [entry.text for entry in listed])
        left = re.fullmatch(pattern, text, re.DOTALL)
        if not left:
            raise ChatFormatError(
                "the template moves what stands around the policy's turns; use history 'append'"
            )
        # What follows a turn belongs to it, and begins with its end where that was not sampled.
        turn = 0
        last_id = None
        for n, piece in enumerate(pieces):
            if isinstance(piece, Span):
                turn = piece.turn
                ids = piece.token_ids.tolist()
                last_id = ids[-1]
                # Its ids stay those that were sampled; the group of the pattern says how many are left.
                pieces[n] = Span(Source.POLICY, turn, self.covering(ids, left[turn + 1]))
            elif piece.source is Source.SCAFFOLD:
                text = self.after_end(piece.text, last_id)
                pieces[n] = piece._replace(text=text, turn=turn)
                last_id = None
        return self.encode(pieces)

    def covering(self, ids: list[int], left: str) -> list[int]:
        """Find the sampled ids that spell what the template left of a turn: it may have dropped a
        thought, or white space at an end. Ids at the end go last, so the longest match is taken."""
        end = len(ids) - 1 if ids[-1] in self.stop_ids else len(ids)
        for start in reversed(range(end + 1)):
            for stop in reversed(range(start, end + 1)):
                if self.decode(ids[start:stop]) == left:
                    return ids[start:stop] + ids[end:]
        raise ChatFormatError(
            f"the template made {left!r} of {self.decode(ids)!r}, which no sampled tokens spell"
        )

    def after_end(self, literal: str, last_id: int | None) -> str:
        """Cut off the end of the turn, if that is what the policy sampled last."""
        stripped = literal.lstrip()
        end = self.control.match(stripped)
        if end and self.controls[end[0]] == last_id:
            return stripped[len(end[0]) :]
        return literal

    def rendered(self, listed: list[Entry], contents: list[str]) -> str:
        """Let the tokenizer's template write, with these contents."""
        messages = []
        tools = []
        for entry, text in zip(listed, contents):
            if entry.role:
                messages.append({"role": entry.role, "content": text})
            else:  # a schema is data to the template: it takes no placeholder
                tools.append(json.loads(entry.text))
        return self.tokenizer.apply_chat_template(
            messages, tools=tools or None, tokenize=False, add_generation_prompt=True
        )

    def template(self, listed: list[Entry]) -> str:
        """Let it write placeholders. Raises ChatFormatError where a content would not be shown as it is."""
        places = []
        shown = []
        for n, entry in enumerate(listed):
            # What was sampled has no text of its own here: its ids are put in its place.
            sampled = any(isinstance(part, Span) for part in entry.parts)
            place = f"\ufdd0{n}\ufdd1" if entry.text or sampled else ""
            places.append(place)
            shown.append(place if sampled else entry.text)
        text = self.rendered(listed, places)
        for place, entry in zip(places, listed):
            if not entry.role:  # a schema was written out, and is replaced afterwards
                text = text.replace(entry.text, place, 1)
        # With the contents back in their places, it must be what the template makes of them.
        restored = PLACEHOLDER.sub(lambda place: shown[int(place[1])], text)
        if restored != self.rendered(listed, shown):
            raise ChatFormatError(
                "this template changes contents; workbench.chat follows some that do"
            )
        return text

    def pieces(self, listed: list[Entry], turn: int) -> list[AuthoredPart | Span]:
        """Cut the template's text at the placeholders and put the contents there, by author."""
        pieces = []
        for n, part in enumerate(PLACEHOLDER.split(self.template(listed))):
            if n % 2:  # text and numbers of contents take turns
                pieces += listed[int(part)].parts
            else:
                pieces.append(AuthoredPart(part, Source.SCAFFOLD, turn, True))
        return pieces

    def encode(self, pieces: list[AuthoredPart | Span]) -> list[Span]:
        """Turn pieces into ids with their authors. Text between two control tokens is encoded at
        once, as the tokenizer does it."""
        tokens = []
        run = []  # text since the last control token
        for piece in pieces:
            # What was sampled has its ids already.
            if isinstance(piece, Span):
                tokens += self.encode_run(run) + tokens_of([piece])
                run = []
            elif piece.literal:
                for text in self.control.split(piece.text):
                    # A control token ends the run before it, and is looked up by its name.
                    if text in self.controls:
                        tokens += self.encode_run(run)
                        tokens.append((self.controls[text], piece.source, piece.turn))
                        run = []
                    else:
                        run.append(piece._replace(text=text))
            else:  # foreign text is never searched for control tokens
                run.append(piece)
        return spans_of(tokens + self.encode_run(run))

    def encode_run(self, run: list[AuthoredPart]) -> list[Token]:
        """Encode text without control tokens. A token of two authors is the content's, not the
        template's; of two contents, the later one's."""
        text = ""
        author = []  # of each character
        for piece in run:
            text += piece.text
            author += [piece] * len(piece.text)
        encoding = self.bare.encode(text, add_special_tokens=False)
        tokens = []
        for token, (start, stop) in zip(encoding.ids, encoding.offsets):
            # Tokens that share the bytes of one character may have no width.
            authors = author[start : max(stop, start + 1)]
            contents = [piece for piece in authors if piece.source is not Source.SCAFFOLD]
            owner = (contents or authors)[-1]
            tokens.append((token, owner.source, owner.turn))
        return tokens


def tokens_of(spans: list[Span]) -> list[Token]:
    """Lay spans end to end."""
    tokens = []
    for span in spans:
        for token in span.token_ids.tolist():
            tokens.append((token, span.source, span.turn))
    return tokens


def spans_of(tokens: list[Token]) -> list[Span]:
    """Put neighbours by the same author in the same turn together."""
    spans = []
    for (source, turn), together in groupby(tokens, key=lambda token: token[1:]):
        spans.append(Span(source, turn, [token[0] for token in together]))
    return spans


@dataclass
class PlainConversation:
    """The history of one trajectory: "append" (everything stays), "template" (the template writes
    the past anew), "window" (the first observation and the last exchanges) or "fresh" (the first
    observation and the newest reply). An edit of the past opens a new segment; what the policy
    wrote is shown there again, and never trained twice."""

    chat: PlainChat
    first: Observation
    history: str = "append"
    window: int = 2  # exchanges that history "window" shows

    def __post_init__(self) -> None:
        self.exchanges = []  # of each turn what the policy sampled, and the reply
        self.segments = [self.chat.open(self.first)]

    @property
    def prompt_ids(self) -> list[int]:
        """What is sampled from next."""
        return [token[0] for token in tokens_of(self.segments[-1])]

    def after(self, ids: list[int], reply: Observation) -> tuple[list[Span], bool]:
        """(what is shown next, whether it opens a new segment), if this turn is answered so."""
        turn = len(self.exchanges)
        exchanges = [*self.exchanges, (ids, reply)]
        if self.history == "fresh":
            return self.chat.fresh(self.first, reply, turn), True
        # A window opens segments only once there is something to leave out.
        if self.history == "window" and turn >= self.window:
            spans = self.chat.open(self.first)
            for k in range(turn + 1 - self.window, turn + 1):
                past_ids, past_reply = exchanges[k]
                spans.append(Span(Source.POLICY, k, past_ids))
                spans += self.chat.append(past_reply, k, past_ids[-1])
            return spans, True
        # The template may have left the past as it was: then the segment goes on.
        if self.history == "template":
            tokens = tokens_of(self.chat.rerendered(self.first, exchanges))
            length = len(self.prompt_ids)
            start = [token[0] for token in tokens[:length]]
            if start == self.prompt_ids:
                return spans_of(tokens[length:]), False
            return spans_of(tokens), True
        return self.chat.append(reply, turn, ids[-1]), False

    def answer(self, ids: list[int], reply: Observation, max_context: int) -> bool:
        """Show a reply, the whole of it. False, and nothing is shown, where it leaves no room for
        another turn."""
        spans, opens_segment = self.after(ids, reply)
        if not opens_segment:
            spans = self.segments[-1] + spans
        if sum(len(span) for span in spans) >= max_context:
            return False
        # A segment that goes on takes the place of its beginning.
        if not opens_segment:
            self.segments.pop()
        self.segments.append(spans)
        self.exchanges.append((ids, reply))
        return True
