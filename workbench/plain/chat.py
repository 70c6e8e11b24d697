"""Conversations as token ids: what stands between two turns of the policy, and who wrote it.

    chat.open(observation)                          <|im_start|>user ... <|im_end|> <|im_start|>assistant
    (the policy samples)                                ... <|im_end|>
    chat.append(reply, turn, last_id)               (newline) <|im_start|>user ... <|im_end|> <|im_start|>assistant

The tokenizer's own template writes it, with a placeholder for each content. So what the policy sampled is never decoded
and encoded again, and no content is ever searched for control tokens. Templates that change contents are refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from workbench.types.errors import ChatFormatError
from workbench.types import Observation, Source, Span

PLACEHOLDER = re.compile(
    "\ufdd0(\\d+)\ufdd1"
)  # of a content, by number; no ordinary text holds these characters
Token = tuple[int, Source, int]  # id, who wrote it, in which turn


class AuthoredPart(NamedTuple):
    """Text by one author. `literal`: by the template, or trusted; only such text may become control tokens."""

    text: str
    source: Source
    turn: int
    literal: bool = False


class Entry(NamedTuple):
    """A message: its text, and what it is made of (a turn of the policy: what it sampled). No role: a tool's schema."""

    role: str
    text: str
    words: Sequence[AuthoredPart | Span]


SAID = (
    Entry(
        "user", "u", [AuthoredPart("u", Source.PROMPT, 0)]
    ),  # something that a reply can stand behind
    Entry("assistant", "a", [Span(Source.POLICY, 0, [0])]),
)


def entries(observation: Observation, source: Source, turn: int) -> list[Entry]:
    """The messages of an environment; at reset the tools on offer, too."""
    found = [
        Entry(
            message.role,
            message.text,
            [AuthoredPart(part.text, source, turn, part.trusted) for part in message.content],
        )
        for message in observation.messages
    ]
    schemas = [json.dumps(tool, ensure_ascii=False, default=dict) for tool in observation.tools]
    return found + [
        Entry("", text, [AuthoredPart(text, source, turn)])
        for text in schemas
        if source is Source.PROMPT
    ]


class PlainChat:
    """The chat format of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.stop_ids = tokenizer, {tokenizer.eos_token_id}
        spec = json.loads(tokenizer.backend_tokenizer.to_str())
        self.controls = {token["content"]: token["id"] for token in spec["added_tokens"]}
        self.control = re.compile(
            f"({'|'.join(map(re.escape, sorted(self.controls, key=len, reverse=True)))})"
        )
        # The same tokenizer without its added tokens: whatever it is shown, it cannot write one.
        bare = json.dumps(spec | {"added_tokens": [], "post_processor": None})
        self.bare = type(tokenizer.backend_tokenizer).from_str(bare)
        end_of_turn = self.control.match(self.template(SAID).partition("\ufdd01\ufdd1")[2].lstrip())
        self.stop_ids |= {self.controls[end_of_turn[0]]} if end_of_turn else set()

    def decode(self, ids: Sequence[int]) -> str:
        """For parsers and people, without the stop token. Never encoded again."""
        ended = len(ids) and ids[-1] in self.stop_ids
        return self.tokenizer.backend_tokenizer.decode(
            list(ids[:-1] if ended else ids), skip_special_tokens=False
        )

    def open(self, first: Observation) -> list[Span]:
        """The first prompt, up to where the policy speaks."""
        return self.encode(self.pieces(entries(first, Source.PROMPT, 0), 0))

    def append(self, reply: Observation, turn: int, last_id: int) -> list[Span]:
        """What follows turn `turn` of the policy, whose last id was `last_id`: the end of the turn, where it did not
        sample that itself, and the reply of the environment."""
        opening, *rest = self.pieces([*SAID, *entries(reply, Source.ENV, turn)], turn)[
            4:
        ]  # behind SAID's four
        return self.encode([opening._replace(text=self.after_end(opening.text, last_id)), *rest])

    def fresh(self, first: Observation, reply: Observation, turn: int) -> list[Span]:
        """A new prompt of the first observation and the newest reply alone."""
        return self.encode(
            self.pieces(entries(first, Source.PROMPT, 0) + entries(reply, Source.ENV, turn), turn)
        )

    def rerendered(
        self, first: Observation, exchanges: Sequence[tuple[list[int], Observation]]
    ) -> list[Span]:
        """The whole conversation as the template writes it now. What it shows of the policy's turns is covered with the
        ids that were sampled."""
        both = entries(first, Source.PROMPT, 0)
        for turn, (ids, reply) in enumerate(exchanges):
            both.append(Entry("assistant", self.decode(ids), [Span(Source.POLICY, turn, ids)]))
            both += entries(reply, Source.ENV, turn)
        pieces = self.pieces(both, 0)
        wanted = "".join(
            "(.*?)" if isinstance(piece, Span) else re.escape(piece.text) for piece in pieces
        )
        left = re.fullmatch(wanted, self.rendered(both, [entry.text for entry in both]), re.DOTALL)
        if not left:
            raise ChatFormatError(
                "the template moves what stands around the policy's turns; use history 'append'"
            )
        turn, last_id = 0, None
        for n, piece in enumerate(pieces):
            if isinstance(piece, Span):
                turn, last_id = piece.turn, int(piece.token_ids[-1])
                pieces[n] = Span(
                    Source.POLICY, turn, self.covering(piece.token_ids.tolist(), left[turn + 1])
                )
            elif piece.source is Source.SCAFFOLD:
                pieces[n], last_id = (
                    piece._replace(text=self.after_end(piece.text, last_id), turn=turn),
                    None,
                )
        return self.encode(pieces)

    def covering(self, ids: list[int], left: str) -> list[int]:
        """The sampled ids that spell what the template left of a turn: no dropped thought, no white space at an end."""
        end = len(ids) - 1 if ids[-1] in self.stop_ids else len(ids)
        for start in reversed(range(end + 1)):
            for stop in reversed(range(start, end + 1)):
                if self.decode(ids[start:stop]) == left:
                    return ids[start:stop] + ids[end:]
        raise ChatFormatError(
            f"the template made {left!r} of {self.decode(ids)!r}, which no sampled tokens spell"
        )

    def after_end(self, literal: str, last_id: int | None) -> str:
        """Without the end of the turn that it begins with, if that is what the policy sampled last."""
        end = self.control.match(literal.lstrip())
        return (
            literal.lstrip()[len(end[0]) :] if end and self.controls[end[0]] == last_id else literal
        )

    def rendered(self, both: Sequence[Entry], contents: Sequence[str]) -> str:
        """What the tokenizer's template writes, with these contents."""
        said = [
            {"role": entry.role, "content": text}
            for entry, text in zip(both, contents)
            if entry.role
        ]
        tools = [json.loads(entry.text) for entry in both if not entry.role] or None
        return self.tokenizer.apply_chat_template(
            said, tools=tools, tokenize=False, add_generation_prompt=True
        )

    def template(self, both: Sequence[Entry]) -> str:
        """The same with placeholders. Raises ChatFormatError where a content would not be shown as it is."""
        sampled = [any(isinstance(part, Span) for part in entry.words) for entry in both]
        places = [
            f"\ufdd0{n}\ufdd1" if entry.text or sampled[n] else "" for n, entry in enumerate(both)
        ]
        shown = [places[n] if sampled[n] else entry.text for n, entry in enumerate(both)]
        found = self.rendered(both, places)
        for place, entry in zip(places, both):
            found = found if entry.role else found.replace(entry.text, place, 1)
        if PLACEHOLDER.sub(lambda place: shown[int(place[1])], found) != self.rendered(both, shown):
            raise ChatFormatError(
                "this template changes contents; workbench.chat follows some that do"
            )
        return found

    def pieces(self, both: Sequence[Entry], turn: int) -> list[AuthoredPart | Span]:
        """The template's text with the contents in their places, by author."""
        found: list[AuthoredPart | Span] = []
        for n, part in enumerate(PLACEHOLDER.split(self.template(both))):
            found += (
                both[int(part)].words
                if n % 2
                else [AuthoredPart(part, Source.SCAFFOLD, turn, True)]
            )
        return found

    def encode(self, pieces: Iterable[AuthoredPart | Span]) -> list[Span]:
        """Ids with their authors. Text between two control tokens is encoded at once, as the tokenizer does it."""
        tokens: list[Token] = []
        run: list[AuthoredPart] = []
        for piece in pieces:
            if isinstance(piece, Span):
                tokens, run = tokens + self.encode_run(run) + tokens_of([piece]), []
                continue
            for part in self.control.split(piece.text) if piece.literal else [piece.text]:
                if piece.literal and part in self.controls:
                    tokens += [
                        *self.encode_run(run),
                        (self.controls[part], piece.source, piece.turn),
                    ]
                    run = []
                else:
                    run.append(piece._replace(text=part))
        return spans_of(tokens + self.encode_run(run))

    def encode_run(self, run: Sequence[AuthoredPart]) -> list[Token]:
        """A token of two authors is the content's, not the template's; of two contents, the later one's."""
        tokens, author = [], [piece for piece in run for _ in piece.text]
        encoding = self.bare.encode("".join(piece.text for piece in run), add_special_tokens=False)
        for token, (start, stop) in zip(encoding.ids, encoding.offsets):
            theirs = author[start : max(stop, start + 1)]
            owner = ([piece for piece in theirs if piece.source is not Source.SCAFFOLD] or theirs)[
                -1
            ]
            tokens.append((token, owner.source, owner.turn))
        return tokens


def tokens_of(spans: Iterable[Span]) -> list[Token]:
    return [(token, span.source, span.turn) for span in spans for token in span.token_ids.tolist()]


def spans_of(tokens: Iterable[Token]) -> list[Span]:
    """Neighbours by the same author in the same turn together."""
    together = groupby(tokens, key=lambda token: token[1:])
    return [Span(source, turn, [token for token, *_ in own]) for (source, turn), own in together]


class PlainConversation:
    """One attempt's history: "append" (everything stays), "template" (the template writes the past anew), "window" (the
    first observation and the last exchanges) or "fresh" (the first observation and the newest reply). An edit of the
    past opens a new segment; what the policy wrote is shown there again, and never trained twice."""

    def __init__(
        self, chat: PlainChat, first: Observation, history: str = "append", window: int = 2
    ) -> None:
        self.chat, self.first, self.history, self.window = chat, first, history, window
        self.exchanges: list[
            tuple[list[int], Observation]
        ] = []  # what the policy sampled, and the reply
        self.segments = [chat.open(first)]

    @property
    def prompt_ids(self) -> list[int]:
        """What is sampled from next."""
        return [token for token, *_ in tokens_of(self.segments[-1])]

    def after(self, ids: list[int], reply: Observation) -> tuple[list[Span], bool]:
        """(what is shown next, whether it opens a new segment), if this turn is answered so."""
        turn, exchanges = len(self.exchanges), [*self.exchanges, (ids, reply)]
        if self.history == "fresh":
            return self.chat.fresh(self.first, reply, turn), True
        if self.history == "window" and turn >= self.window:
            spans = self.chat.open(self.first)
            for k in range(turn + 1 - self.window, turn + 1):
                ids, reply = exchanges[k]
                spans += [Span(Source.POLICY, k, ids), *self.chat.append(reply, k, ids[-1])]
            return spans, True
        if self.history == "template":
            spans, seen = self.chat.rerendered(self.first, exchanges), self.prompt_ids
            goes_on = [token for token, *_ in tokens_of(spans)[: len(seen)]] == seen
            return (spans_of(tokens_of(spans)[len(seen) :]), False) if goes_on else (spans, True)
        return self.chat.append(reply, turn, ids[-1]), False

    def answer(self, ids: list[int], reply: Observation, max_context: int) -> bool:
        """Show a reply, the whole of it. False, and nothing is shown, where it leaves no room for another turn."""
        spans, opens_segment = self.after(ids, reply)
        before = [] if opens_segment else self.segments[-1]
        if sum(len(span) for span in (*before, *spans)) >= max_context:
            return False
        self.segments = [
            *(self.segments if opens_segment else self.segments[:-1]),
            [*before, *spans],
        ]
        self.exchanges.append((ids, reply))
        return True
