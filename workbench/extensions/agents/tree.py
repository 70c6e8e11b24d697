"""Which call continues what: the calls of one trajectory as a tree of messages over segments of tokens.

    ask(call)            the longest prefix that is known is looked up, message by message
      it ends a segment    the segment goes on: its tokens, the sampled ones included, stay as they are
      it ends elsewhere    a new segment begins with the tokens up to there, shown again (a fork)
      nothing is known     a new segment begins with the call's own opening (a root)
    answer(call)         what was sampled is written behind it, and given back

A token is marked as sampled in the one segment in which it was, and stands in every other one as context. Sampled ids are
never encoded again: where an assistant message is recognised as a turn of the policy (`messages.ground_of`), its ids are
used; where it is not, it is somebody's text. Nothing is realigned: a history that differs is a fork, and both are kept.

Several conversations may be open at once: each call extends a segment only while nobody else has, and only where it belongs
to the same conversation (`conversations.py`). A segment is of one conversation, and trained or left out with it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from workbench.chat import ChatFormat
from workbench.engines.base import Completion
from workbench.extensions.agents.conversations import ConversationRules, excerpt
from workbench.extensions.agents.logprobs import sampled_texts
from workbench.extensions.agents.messages import (
    END_THINK,
    AskedCall,
    GivenAnswer,
    Ground,
    RefusedCall,
    WireCall,
    WireMessage,
    ground_of,
    normal_calls,
    normal_text,
)
from workbench.extensions.agents.reading import form_for, read_action
from workbench.extensions.agents.stopping import first_stop
from workbench.tools.formats import CallFormat
from workbench.tools.turns import THINK, BadCall
from workbench.values import Message, Observation, Segment, Source, Span, Turn
from workbench.values.errors import ChatFormatError, DataError
from workbench.values.sequences import first_difference

LEAST_BOUND = 100_000  # characters of a call that are made into tokens whatever the vocabulary is
RANKS = (Ground.EXACT, Ground.IDS, Ground.EQUAL, Ground.THOUGHT)


@dataclass(eq=False)
class _Node:
    """A conversation up to one message: what leads on by what it is compared by, calls that asked here, and their answers."""

    children: dict[Hashable, _Node] = field(default_factory=dict)
    messages: dict[Hashable, WireMessage] = field(default_factory=dict)
    asked: list[TreeCall] = field(default_factory=list)
    sampled: list[TreeCall] = field(default_factory=list)


@dataclass(eq=False)
class _Row:
    """A segment in progress: spans, and of each the call that it belongs to (None: the opening)."""

    spans: list[tuple[Span, TreeCall | None]] = field(default_factory=list)
    length: int = 0
    conversation: str = ""
    untrained: str = ""  # why what is sampled in it is not trained

    def extend(self, spans: Sequence[tuple[Span, TreeCall | None]]) -> None:
        self.spans += spans
        self.length += sum(len(span) for span, _ in spans)

    def ids(self) -> np.ndarray:
        return np.concatenate([span.token_ids for span, _ in self.spans])

    @property
    def facts(self) -> dict[str, str]:
        """What is kept of it with each of its calls."""
        left_out = {"untrained": self.untrained} if self.untrained else {}
        return {"conversation": self.conversation} | left_out


@dataclass(eq=False)
class TreeCall:
    """A call of the trajectory, from its prompt to its answer.

    number      in the order of asking, from 0
    segment     in which it was sampled
    prompt_ids  what it was sampled after
    way         "root", "extends", "fork" or "resampled"
    facts       JSON values to be kept: its conversation, where it forked and why, by what turns were recognised
    """

    number: int
    segment: int
    prompt_ids: np.ndarray
    way: str
    asked: AskedCall
    node: _Node
    facts: dict[str, Any]
    shown: tuple[Message, ...] = ()  # the messages that this call added
    continues: TreeCall | None = None
    later: bool = False  # turns of the policy stand before it in its segment
    given: GivenAnswer | None = None
    text: str = ""
    ids: np.ndarray | None = None
    end: int = 0  # tokens of the segment up to the end of the answer
    finish: str = "stop"
    after: _Node = field(default_factory=_Node)


@dataclass(frozen=True)
class _Known:
    """How far a request is known."""

    reached: _Node  # the last that is known
    node: _Node | None  # the same where the request leaves what is known; None: it does not
    index: int  # of the first message that is not known
    last: TreeCall | None  # the newest turn of the policy on the way
    last_index: int  # of its message
    ground: Ground | None
    near: TreeCall | None  # a call of the same conversation


@lru_cache(maxsize=4)
def _longest_token(encoder: Any) -> int:
    """Characters of the longest token of a vocabulary."""
    return max(map(len, encoder.backend.get_vocab()), default=1)


class CallTree:
    """All calls of one trajectory.

    issued   messages of the environment's author that the program was handed: shown word for word in an opening, they keep
             what is trusted in them
    context  most tokens of a sequence
    rules    names of conversations, and which of them are trained
    id_of    (call, place) -> an id, the same whenever the trajectory is sampled again
    """

    def __init__(
        self,
        chat: ChatFormat,
        format: CallFormat,
        *,
        context: int,
        id_of: Callable[[int, str], str],
        issued: Sequence[Message] = (),
        thoughts_apart: bool = False,
        rules: ConversationRules = ConversationRules(),
    ) -> None:
        self.chat = chat
        self.rules = rules
        self.format = format
        self.context = context
        # More cannot fit, and takes minutes to be made into tokens.
        self._most_characters = max(LEAST_BOUND, context * _longest_token(chat.encoder))
        self.id_of = id_of
        self.thoughts_apart = thoughts_apart
        self.calls: list[TreeCall] = []
        self._issued = {(message.role, message.text): message for message in issued}
        self._rows: list[_Row] = []
        self._roots: dict[str, _Node] = {}
        self._conversations = 0
        self._sent_back: set[TreeCall] = set()
        self._by_id: dict[str, TreeCall] = {}
        self._by_words: dict[Hashable, list[TreeCall]] = {}

    # -------------------------------------------------------------------------------------------- asking

    def ask(self, asked: AskedCall) -> TreeCall:
        """Find what the call continues and write its prompt. Raises RefusedCall, and then nothing has changed."""
        if asked.messages[-1].role == "assistant":
            raise RefusedCall(
                400,
                "unsupported_prefill",
                "the last message is the assistant's: to go on within a message is not offered; end with a message of "
                "another role",
                "messages",
            )
        self._refuse_what_cannot_fit(asked)
        root = self._roots.get(repr(asked.tools)) or _Node()
        known = self._walk(root, asked.messages)
        rest = asked.messages[known.last_index + 1 :]
        again = self._shown_again(rest, known)
        if (
            known.near is None and again
        ):  # its first message differs, and the policy's turns are there
            known = replace(known, near=list(again.values())[-1])
        base = known.last
        name = self.rules.name_of(asked)
        extends = base is not None and not again and self._goes_on(base, name)
        try:
            spans, shown = self._rendered(asked, rest, again, base)
        except ChatFormatError as error:
            raise RefusedCall(
                400,
                "unsupported_conversation",
                f"the chat template refuses it: {error}",
                "messages",
            ) from error
        before = [] if base is None or extends else self._up_to(base)
        length = sum(len(span) for span, _ in (*before, *spans))
        if extends:
            length += base.end
        if length >= self.context:
            raise RefusedCall(
                400,
                "context_length_exceeded",
                f"the messages have {length} tokens, and a sequence may have {self.context}, the answer included",
                "messages",
            )
        return self._begin(asked, root, known, again, extends, before, spans, shown, name)

    def _refuse_what_cannot_fit(self, asked: AskedCall) -> None:
        characters = asked.characters
        if characters > self._most_characters:
            raise RefusedCall(
                400,
                "context_length_exceeded",
                f"the messages have {characters:,} characters, and a sequence may have {self.context} tokens",
                "messages",
            )

    def _goes_on(self, base: TreeCall, name: str | None) -> bool:
        """Whether a segment may go on behind an answer: nobody has gone on there, and it is of the same conversation."""
        row = self._rows[base.segment]
        return row.length == base.end and name in (None, row.conversation)

    def _begin(
        self,
        asked: AskedCall,
        root: _Node,
        known: _Known,
        again: Mapping[int, TreeCall],
        extends: bool,
        before: Sequence[tuple[Span, TreeCall | None]],
        spans: Sequence[tuple[Span, TreeCall | None]],
        shown: tuple[Message, ...],
        name: str | None,
    ) -> TreeCall:
        facts = self._facts(known, asked.messages, again)
        if extends:
            way = "extends"
            segment = known.last.segment
        else:
            way = _way(known)
            segment = len(self._rows)
            self._rows.append(self._row(name or self._name(known)))
            facts |= self._origin(known, self._rows[segment].conversation)
        row = self._rows[segment]
        row.extend([*before, *spans])
        self._roots.setdefault(repr(asked.tools), root)
        node = self._grow(known, asked.messages)
        call = TreeCall(
            len(self.calls), segment, row.ids(), way, asked, node, facts, shown, known.last
        )
        call.later = known.last is not None or bool(again)
        node.asked.append(call)
        facts |= row.facts | {"way": way}
        if way == "root":
            facts.pop("differs", None)  # from other conversations
        self.calls.append(call)
        return call

    def _row(self, conversation: str) -> _Row:
        first = self._rows[0].conversation if self._rows else conversation
        return _Row(conversation=conversation, untrained=self.rules.left_out(conversation, first))

    def _origin(self, known: _Known, conversation: str) -> dict[str, int]:
        """The call that a new segment leaves; of one that leaves none, the call during which it began."""
        left = known.last or known.near
        if left is not None:
            return {"from": left.number}
        caller = self._caller(conversation)
        return {} if caller is None else {"during": caller.number}

    def _caller(self, conversation: str) -> TreeCall | None:
        """Who is taken to have begun a conversation: the newest answer of another one that nobody has gone on from yet, and
        that called tools; else the newest of the first conversation."""
        gone_on = {call.continues for call in self.calls}
        others = [
            call
            for call in self.calls
            if call.given is not None and self._rows[call.segment].conversation != conversation
        ]
        open_calls = [call for call in others if call.given.calls and call not in gone_on]
        first = [
            call for call in others if call.facts["conversation"] == self._rows[0].conversation
        ]
        candidates = open_calls or first
        return candidates[-1] if candidates else None

    def _name(self, known: _Known) -> str:
        """Of a conversation: that of the call nearby, or a new one."""
        if known.near is not None:
            return self._rows[known.near.segment].conversation
        self._conversations += 1
        return "main" if self._conversations == 1 else f"conversation {self._conversations}"

    def _walk(self, root: _Node, messages: Sequence[WireMessage]) -> _Known:
        node = root
        last = near = ground = None
        last_index = -1
        for index, message in enumerate(messages):
            if node.asked:
                near = node.asked[0]
            recognised = self._at(node, message)
            if recognised is not None:
                last, ground = recognised
                last_index = index
                node = last.after
                continue
            following = node.children.get(self._key(messages, index))
            if following is None:
                return _Known(node, node, index, last, last_index, ground, near)
            node = following
        if node.asked:
            return _Known(node, None, len(messages), last, last_index, ground, node.asked[0])
        return _Known(node, node, len(messages), last, last_index, ground, near)

    def _grow(self, known: _Known, messages: Sequence[WireMessage]) -> _Node:
        """The node of a conversation, made from where it is not known any more."""
        node = known.reached
        for index in range(known.index, len(messages)):
            key = self._key(messages, index)
            node.messages.setdefault(key, messages[index])
            node = node.children.setdefault(key, _Node())
        return node

    # -------------------------------------------------------------------------------------------- recognising

    def _at(self, node: _Node, message: WireMessage) -> tuple[TreeCall, Ground] | None:
        """Which of the answers given at this very place a message is. Of several, the one that it names; else the newest."""
        if message.role != "assistant":
            return None
        named = self._named(message)
        return _best(message, [call for call in node.sampled if not named or call in named])

    def _anywhere(self, message: WireMessage) -> TreeCall | None:
        """Which answer of the trajectory a message is, wherever that was given. One without words is known by its ids alone."""
        candidates = self._named(message)
        if not candidates and (message.calls or normal_text(message.text)):
            candidates = self._by_words.get(normal_calls(message.calls), [])
        best = _best(message, candidates)
        return None if best is None else best[0]

    def _named(self, message: WireMessage) -> list[TreeCall]:
        """The calls whose ids a message carries: it is one of their answers, or somebody's text."""
        ids = [message.mark, *(call.id for call in message.calls)]
        return [self._by_id[name] for name in ids if name in self._by_id]

    def _shown_again(self, rest: Sequence[WireMessage], known: _Known) -> dict[int, TreeCall]:
        """Place in `rest` -> the turn of the policy that stands there, sampled at another place of the tree. In order only:
        a turn that comes before an earlier one is taken as text."""
        again: dict[int, TreeCall] = {}
        newest = (-1, -1) if known.last is None else (known.last.segment, known.last.end)
        for index, message in enumerate(rest):
            call = self._anywhere(message) if message.role == "assistant" else None
            opens = known.last is None and index == 0  # nothing stands before it
            if call is not None and not opens and (call.segment, call.end) > newest:
                again[index] = call
                newest = (call.segment, call.end)
        return again

    def _key(self, messages: Sequence[WireMessage], index: int) -> Hashable:
        """What a message that is no turn of the policy is compared by: all of it, ids of calls by their place."""
        message = messages[index]
        place: Hashable = None
        if message.role == "tool":
            place = _answered_call(messages, index) or message.call_id
        return message.role, message.text, normal_calls(message.calls), place

    def _facts(
        self, known: _Known, messages: Sequence[WireMessage], again: Mapping[int, TreeCall]
    ) -> dict[str, Any]:
        """What is kept of how the call was placed."""
        facts: dict[str, Any] = {}
        if known.last is not None:
            facts["continues"] = known.last.number
            facts["recognised"] = str(known.ground)
        rest = messages[known.last_index + 1 :]
        foreign = sum(message.role == "assistant" for message in rest) - len(again)
        if foreign:
            facts["foreign"] = foreign
        if again:
            facts["shown_again"] = [call.number for call in again.values()]
        sent_back = Counter(self._first_sent_back(known, rest, again))
        if foreign:
            sent_back["foreign"] = foreign
        if sent_back:
            facts["sent_back"] = dict(sent_back)
        if known.node is not None and known.index < len(messages):
            facts |= _divergence(known.node, known.index, messages[known.index])
        return facts

    def _first_sent_back(
        self, known: _Known, rest: Sequence[WireMessage], again: Mapping[int, TreeCall]
    ) -> Iterator[str]:
        """By what answers were recognised that this call is the first to send back."""
        there = {call: str(ground_of(rest[place], call.given)) for place, call in again.items()}
        if known.last is not None:
            there[known.last] = str(known.ground)
        for call, ground in there.items():
            if call not in self._sent_back:
                self._sent_back.add(call)
                yield ground

    # -------------------------------------------------------------------------------------------- tokens

    def _up_to(self, call: TreeCall) -> list[tuple[Span, TreeCall | None]]:
        """The tokens of a segment up to the end of an answer, as context: none of them is sampled there."""
        spans = []
        length = 0
        for span, owner in self._rows[call.segment].spans:
            if length >= call.end:
                break
            spans.append((Span(span.source, span.turn, span.token_ids), owner))
            length += len(span)
        return spans

    def _rendered(
        self,
        asked: AskedCall,
        rest: Sequence[WireMessage],
        again: Mapping[int, TreeCall],
        base: TreeCall | None,
    ) -> tuple[list[tuple[Span, TreeCall | None]], tuple[Message, ...]]:
        """The tokens behind `base` (None: from the beginning), and the messages that they show."""
        messages = self._messages(asked, rest, base, again)
        cuts = [*sorted(again), len(rest)]
        first = messages[: cuts[0]]
        if base is None:
            opening = [self._issued.get((m.role, m.text), m) for m in first]
            shown = Observation(tuple(opening), asked.tools)
            spans: list[tuple[Span, TreeCall | None]] = [
                (span, None) for span in self.chat.open(shown)
            ]
        else:
            spans = self._appended(first, base, later=base.later)
        for place, following in zip(cuts, cuts[1:]):
            call = again[place]
            spans.append((Span(Source.POLICY, 0, call.ids), call))
            later = base is not None or place != cuts[0]
            spans += self._appended(messages[place + 1 : following], call, later=later)
        return spans, tuple(messages)

    def _messages(
        self,
        asked: AskedCall,
        rest: Sequence[WireMessage],
        base: TreeCall | None,
        again: Mapping[int, TreeCall],
    ) -> list[Message]:
        """What `rest` says, as templates take it."""
        names = _names_of(asked.messages)
        ids = self._issued_ids(asked.messages, rest, base, again)
        form = form_for(self.format, asked.tools)
        return [_message(message, names, ids, form) for message in rest]

    def _appended(
        self, messages: Sequence[Message], call: TreeCall, later: bool
    ) -> list[tuple[Span, TreeCall | None]]:
        last_id = int(call.ids[-1]) if len(call.ids) else None
        spans = self.chat.append(Observation(tuple(messages)), turn=0, last_id=last_id, later=later)
        return [(span, call) for span in spans]

    def _issued_ids(
        self,
        messages: Sequence[WireMessage],
        rest: Sequence[WireMessage],
        base: TreeCall | None,
        again: Mapping[int, TreeCall],
    ) -> dict[str, str]:
        """A program's own id of a call -> ours, for the turns that are recognised and the calls that `rest` answers."""
        ours = [call for call in (base, *again.values()) if call is not None]
        wanted = {message.call_id for message in rest if message.role == "tool"}
        issued: dict[str, str] = {}
        for message in messages:
            if wanted.isdisjoint(call.id for call in message.calls):
                continue
            best = _best(message, ours)
            if best is not None:
                pairs = zip(message.calls, best[0].given.calls)
                issued |= {own.id: call.id for own, call in pairs}
        return issued

    # -------------------------------------------------------------------------------------------- answers

    def answer(self, call: TreeCall, completion: Completion) -> GivenAnswer:
        """Write what was sampled behind the prompt, and make of it what the program is given."""
        span = Span(
            Source.POLICY,
            0,
            completion.token_ids,
            completion.logprobs,
            completion.plain_logprobs,
            completion.policy_version,
            completion.sampling,
            sampled=True,
        )
        ended = len(span) > 0 and int(span.token_ids[-1]) in self.chat.stop_ids
        if completion.finish == "stop" and not ended:
            raise DataError(
                f"call {call.number}: the engine says that the turn was ended, and its last token is no stop token"
            )
        row = self._rows[call.segment]
        row.extend([(span, call)])
        call.ids = span.token_ids
        call.end = row.length
        call.finish = completion.finish
        call.text = self.chat.action_text(span.token_ids)
        call.given = self._given(call)
        if call.asked.logprobs:
            call.given = replace(call.given, logprobs=sampled_texts(self.chat, completion))
        call.facts["tokens"] = len(call.ids)
        call.node.sampled.append(call)
        self._by_id[call.given.mark] = call
        for wire_call in call.given.calls:
            self._by_id[wire_call.id] = call
        self._by_words.setdefault(normal_calls(call.given.calls), []).append(call)
        return call.given

    def _given(self, call: TreeCall) -> GivenAnswer:
        text = call.text
        calls = ()
        stop = first_stop(text, call.asked.stops)
        if stop is not None:
            text = text[: stop[0]]
        if call.asked.tools and call.asked.reads_calls:
            form = form_for(self.format, call.asked.tools)
            text, calls, bad = read_action(
                text, form, lambda index: f"call_{self.id_of(call.number, str(index))}"
            )
            _note_calls(call, len(calls), bad)
        thought = ""
        if self.thoughts_apart:
            thought, text = _thought_apart(text)
        finish = "calls" if calls else "stop"
        return GivenAnswer(
            text,
            calls,
            f"msg_{self.id_of(call.number, 'message')}",
            "length" if call.finish == "length" and stop is None else finish,
            thought,
            len(call.prompt_ids),
            len(call.ids),
            "" if stop is None else stop[1],
        )

    # -------------------------------------------------------------------------------------------- the end

    @property
    def answered(self) -> list[TreeCall]:
        """Answered calls in the order of the trajectory's tokens: by segment, and within it as they were sampled."""
        there = [call for call in self.calls if call.given is not None]
        return sorted(there, key=lambda call: (call.segment, call.end))

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Turns are numbered in the order of tokens. Segments at the end in which nothing was sampled are left out."""
        numbers = {call: number for number, call in enumerate(self.answered)}
        rows = list(self._rows)
        while len(rows) > 1 and not any(span.sampled for span, _ in rows[-1].spans):
            rows.pop()
        segments = []
        for row in rows:
            spans = tuple(_numbered(span, numbers.get(owner, 0)) for span, owner in row.spans)
            segments.append(Segment(spans, row.untrained))
        return tuple(segments)

    @property
    def segment_index(self) -> int:
        """Of the newest segment."""
        return max(0, len(self._rows) - 1)

    @property
    def num_segments(self) -> int:
        return len(self._rows)

    def turns(self) -> list[Turn]:
        """One for each answered call; `reply` is what the call that went on from it added."""
        replies: dict[TreeCall, tuple[Message, ...]] = {}
        for call in self.calls:
            if call.way == "extends":
                replies.setdefault(call.continues, call.shown)
        return [
            Turn(
                number,
                call.text,
                call.finish,
                reply=replies.get(call, ()),
                reward=0.0,
                info={"call": call.facts | {"number": call.number}},
            )
            for number, call in enumerate(self.answered)
        ]


# ------------------------------------------------------------------------------------------------ small parts


def _note_calls(call: TreeCall, read: int, bad: Sequence[BadCall]) -> None:
    """How many calls of tools were read in an answer, and how many could not be, with what is wrong with the first."""
    if read:
        call.facts["calls"] = read
    if bad:
        call.facts["unread"] = len(bad)
        call.facts["complaint"] = bad[0].complaint


def _message(
    message: WireMessage, names: Mapping[str, str], ids: Mapping[str, str], form: CallFormat
) -> Message:
    """A message as plain text: calls of an assistant that is not ours are written as the policy writes them."""
    text = message.text or ""
    if message.role == "assistant":
        written = [_written(call.name, call.arguments, form) for call in message.calls]
        text = "\n".join(filter(None, (text, *written)))
    call_id = message.call_id
    return Message(
        message.role,
        text,
        names.get(call_id or ""),
        ids.get(call_id or "", call_id) if message.role == "tool" else None,
    )


def _written(name: str, arguments: str, form: CallFormat) -> str:
    try:
        return form.write_call(name, json.loads(arguments or "{}"))
    except Exception:  # no call of ours: whatever it says is shown
        return f"{name} {arguments}"


def _best(message: WireMessage, calls: Sequence[TreeCall]) -> tuple[TreeCall, Ground] | None:
    """The call whose answer a message is, and by what: one that it names first, then by how much is equal, then the newest."""
    if len(calls) == 1:
        ground = ground_of(message, calls[0].given)
        return None if ground is None else (calls[0], ground)
    ids = {call.id for call in message.calls} | {message.mark}
    candidates = []
    for call in calls:
        ground = ground_of(message, call.given)
        if ground is not None:
            named = not ids.isdisjoint({call.given.mark, *(own.id for own in call.given.calls)})
            as_it_was = message.text == call.given.text
            rank = (named, -RANKS.index(ground), as_it_was, call.number)
            candidates.append((rank, call, ground))
    if not candidates:
        return None
    _, call, ground = max(candidates, key=lambda candidate: candidate[0])
    return call, ground


def _way(known: _Known) -> str:
    """Of a call that begins a segment."""
    if known.near is None:
        return "root"
    return "resampled" if known.node is None else "fork"


def _numbered(span: Span, turn: int) -> Span:
    return span if span.turn == turn else replace(span, turn=turn)


def _thought_apart(text: str) -> tuple[str, str]:
    thought, end, rest = text.rpartition(END_THINK)
    return (thought.strip().removeprefix(THINK), rest) if end else ("", text)


def _answered_call(messages: Sequence[WireMessage], index: int) -> tuple[int, int] | None:
    """Which call a tool message answers: (messages back to it, place); None: none before it has that id."""
    wanted = messages[index].call_id
    for back in range(index - 1, -1, -1):
        ids = [call.id for call in messages[back].calls]
        if wanted in ids:
            return index - back, ids.index(wanted)
    return None


def _names_of(messages: Sequence[WireMessage]) -> dict[str, str]:
    """Id of a call -> the name of its tool."""
    names: dict[str, str] = {}
    for message in messages:
        names |= {call.id: call.name for call in message.calls}
    return names


def _divergence(node: _Node, index: int, message: WireMessage) -> dict[str, Any]:
    """Where a conversation leaves what is known: the message, the first character that differs from what stood there, both
    texts around it, and the call whose answer stood there, where it was one."""
    answers: list[tuple[str, TreeCall | None]] = []
    if message.role == "assistant":
        answers = [(_words(call.given.text, call.given.calls), call) for call in node.sampled]
    others = [other for other in node.messages.values() if other.role == message.role]
    known = answers or [(_words(other.text, other.calls), None) for other in others]
    if not known:
        return {}
    words = _words(message.text, message.calls)
    places = [(_first_different(text, words), text, call) for text, call in known]
    at, text, call = max(places, key=lambda place: place[0])
    differs: dict[str, Any] = {"message": index, "role": message.role, "character": at}
    differs |= {"was": excerpt(text, at), "is": excerpt(words, at)}
    if call is not None:
        differs["call"] = call.number
    return {"differs": differs}


def _words(text: str | None, calls: Sequence[WireCall]) -> str:
    """All that a message says, its calls by name and arguments."""
    written = [f"{name} {arguments}" for name, arguments in normal_calls(tuple(calls))]
    return "\n".join([text or "", *written])


def _first_different(text: str, other: str) -> int:
    """Their first character that differs; the length where they are equal."""
    at = first_difference(text, other)
    return len(text) if at is None else at
