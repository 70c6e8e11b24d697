"""The mutable builder of one trajectory: what to sample from next, and in the end the frozen segments.

Four kinds of history, one representation (spans in segments):

    append     everything stays; one segment                                             [o0 a0 r0 a1 r1 ...
    template   the model's own template renders the past anew each turn                  a new segment where ids changed
    window     first observation, the last `window` exchanges (action and reply)         [o0 a3 r3 a4 r4
    fresh      first observation and the newest reply, no past action                    [o0 r4

An edit of the past opens a new segment. A turn of the policy that is shown again in it keeps its sampled ids and its
author, has no logprobs, and is never trained twice (invariants 1 and 2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.chat.rerender import as_past, rerender
from workbench.values import Observation, Sampling, Segment, Source, Span
from workbench.values.errors import ConfigError, DataError
from workbench.values.tokens import HISTORIES

if TYPE_CHECKING:
    from workbench.chat.format import ChatFormat


class Continuation(NamedTuple):
    """The tokens that an observation adds: `spans` to the running segment, or a whole new one; `length`: tokens of the prompt then."""

    spans: Sequence[Span]
    opens_segment: bool
    length: int


class Conversation:
    """One trajectory, from its first observation on; `add_action` and `add_observation` take turns.

    Raises ConfigError for an unknown history, DataError for calls out of turn or sampled ids that cannot be.
    """

    def __init__(
        self,
        chat: ChatFormat,
        observation: Observation,
        *,
        history: str = "append",
        window: int = 2,
    ) -> None:
        if history not in HISTORIES:
            raise ConfigError(f"history must be one of {', '.join(HISTORIES)}, got {history!r}")
        if window < 1:
            raise ConfigError(
                f"window counts the exchanges kept, at least 1, got {window}; for none, history='fresh'"
            )
        self.chat = chat
        self.history = history
        self.window = window
        self._first = observation
        self._exchanges: list[tuple[np.ndarray, Observation]] = []  # (sampled ids, reply)
        self._action: np.ndarray | None = None  # sampled, not answered yet
        self._finished: list[Segment] = []
        self._start(chat.open(observation))

    # -------------------------------------------------------------------------------------------- state

    @property
    def prompt_ids(self) -> np.ndarray:
        """The sequence to sample from next, int32 [tokens so far], read-only; later additions leave it as it is."""
        view = self._buffer[: self._length]
        view.flags.writeable = False
        return view

    @property
    def segment_index(self) -> int:
        """Counted from 0; grows when an edit of the history opened a new segment."""
        return len(self._finished)

    @property
    def turn(self) -> int:
        """Number of the turn that is sampled next, or that waits for its reply."""
        return len(self._exchanges)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """All segments so far. One opened by an observation that no action followed (the context was full) is left out,
        unless it is the only one."""
        running = Segment(tuple(self._spans))
        if self._finished and not any(span.sampled for span in running.spans):
            return tuple(self._finished)
        return (*self._finished, running)

    # -------------------------------------------------------------------------------------------- turns

    def add_action(
        self,
        token_ids: Sequence[int],
        logprobs: Sequence[float],
        *,
        finish: str,
        policy_version: int | None,
        sampling: Sampling | None,
        plain_logprobs: Sequence[float] | None = None,
    ) -> str:
        """Take what was sampled after `prompt_ids`, as it is; returns its text. `finish`: "stop" or "length"."""
        if self._action is not None:
            raise DataError(
                f"turn {self.turn}: a second action without an observation between; call add_observation"
            )
        span = Span(
            Source.POLICY,
            self.turn,
            token_ids,
            logprobs,
            plain_logprobs,
            policy_version,
            sampling,
            sampled=True,
        )
        if span.logprobs is None:
            raise DataError(
                f"turn {self.turn}: sampled tokens without logprobs; an engine returns one per token"
            )
        ended = len(span) > 0 and int(span.token_ids[-1]) in self.chat.stop_ids
        if finish not in ("stop", "length") or (finish == "stop" and not ended):
            stops = self.chat.token_texts(sorted(self.chat.stop_ids))
            raise DataError(
                f"turn {self.turn}: finish={finish!r} with {self.chat.token_texts(span.token_ids[-1:])} as last token; "
                f"expected 'length', or 'stop' with the sampled stop token ({' or '.join(stops)}) kept at the end: it "
                "is an action too"
            )
        self._action = span.token_ids
        self._extend([span])
        return self.chat.decode(span.token_ids)

    def continuation(self, observation: Observation) -> Continuation:
        """Work out what the environment's reply would add, as `history` says; nothing is added yet."""
        if self._action is None:
            raise DataError(
                f"turn {self.turn}: an observation before any action; sample one and call add_action first"
            )
        turn = self.turn
        opens_segment = True
        exchanges = [*self._exchanges, (self._action, observation)]
        if self.history == "fresh":
            spans = self.chat.fresh(self._first, observation, turn=turn)
        elif self.history == "window" and turn >= self.window:
            spans = self._windowed(exchanges[-self.window :])
        elif self.history == "template":
            spans, opens_segment = self._rerendered(exchanges)
        else:
            last_id = int(self._action[-1]) if len(self._action) else None
            spans = self.chat.append(observation, turn=turn, last_id=last_id)
            opens_segment = False
        length = sum(map(len, spans))
        if not opens_segment:
            length += self._length
        return Continuation(spans, opens_segment, length)

    def add_observation(
        self, observation: Observation, continuation: Continuation | None = None
    ) -> None:
        """Show the environment's reply: append it, or open a new segment. `continuation`: as it was worked out for this
        very observation."""
        plan = self.continuation(observation) if continuation is None else continuation
        self._exchanges.append((self._action, observation))
        self._action = None
        if plan.opens_segment:
            self._finished.append(Segment(tuple(self._spans)))
            self._start(plan.spans)
        else:
            self._extend(plan.spans)

    # -------------------------------------------------------------------------------------------- histories

    def _windowed(self, exchanges: Sequence[tuple[np.ndarray, Observation]]) -> list[Span]:
        spans = list(self.chat.open(self._first))
        start = self.turn + 1 - len(exchanges)
        for place, (action, reply) in enumerate(exchanges):
            turn = start + place
            spans.append(Span(Source.POLICY, turn, action))
            last_id = int(action[-1]) if len(action) else None
            spans += self.chat.append(reply, turn=turn, last_id=last_id, later=place > 0)
        return spans

    def _rerendered(
        self, exchanges: Sequence[tuple[np.ndarray, Observation]]
    ) -> tuple[Sequence[Span], bool]:
        """(spans, whether they open a new segment): extend the segment where the template kept every old id."""
        past = [(as_past(self.chat, ids), reply) for ids, reply in exchanges]
        spans = rerender(self.chat, self._first, past)
        ids = np.concatenate([span.token_ids for span in spans])
        if not np.array_equal(ids[: self._length], self._buffer[: self._length]):
            return spans, True
        skip = self._length
        rest = []
        for span in spans:
            if skip < len(span):
                rest.append(Span(span.source, span.turn, span.token_ids[skip:]))
            skip = max(0, skip - len(span))
        return rest, False

    # -------------------------------------------------------------------------------------------- tokens

    def _start(self, spans: Sequence[Span]) -> None:
        self._spans: list[Span] = []
        self._buffer = np.empty(256, np.int32)
        self._length = 0
        self._extend(spans)

    def _extend(self, spans: Sequence[Span]) -> None:
        length = self._length + sum(map(len, spans))
        if length > len(self._buffer):
            # A new buffer, never a resized one: views that were handed out keep what they showed.
            grown = np.empty(max(length, 2 * len(self._buffer)), np.int32)
            grown[: self._length] = self._buffer[: self._length]
            self._buffer = grown
        for span in spans:
            self._buffer[self._length : self._length + len(span)] = span.token_ids
            self._length += len(span)
        self._spans += spans
