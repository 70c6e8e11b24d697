"""The embedded engine for many clients at once: one thread submits and polls, whoever asks waits at a queue.

    sampler = Sampler(engine)
    turn = sampler.start(TurnRequest(prompt_ids, ...), events)    events: a queue that gets Sampled ..., then Ended
    sampler.cancel(turn)

A conversation that goes on finds its keys and values: an idle session of the engine whose sequence the new prompt shares.
"""

from __future__ import annotations

import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workbench.engines.base import Completion, Engine, Request
from workbench.values.errors import EngineError

MOST_IDLE = 16  # sessions whose keys and values are kept for a next turn
MOST_TURNS = 256  # in flight or waiting; one more is refused


@dataclass(frozen=True, eq=False)
class TurnRequest:
    """One reply to sample. `top`: how many alternatives of each token are wanted; None: no logprobs at all."""

    prompt_ids: np.ndarray
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    top: int | None = None


@dataclass(frozen=True)
class SampledToken:
    """A token of the reply number `index`. `logp` of the model's own softmax, in nats; `top`: (id, logp), the likeliest first."""

    index: int
    token: int
    logp: float | None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TurnEnd:
    """The reply number `index` is over. `finish`: stop, length or error."""

    index: int
    finish: str
    error: str = ""


@dataclass(eq=False)
class ServedTurn:
    """A reply under way; `index` tells the replies of one request apart."""

    request: TurnRequest
    index: int
    events: queue.SimpleQueue
    stop_ids: frozenset[int]
    id: int = -1
    session: str = ""
    handed_over: int = 0  # tokens that were handed over
    sampled: list[int] = field(default_factory=list)


class SamplerBusyError(EngineError):
    """As many replies are under way as this server takes."""


class Sampler:
    """Owns an engine. `close` ends its thread; after an error of the engine every request is answered with it."""

    def __init__(self, engine: Engine, stop_ids: frozenset[int]) -> None:
        self.engine = engine
        self.stop_ids = stop_ids
        self.failure = ""
        self._inbox: queue.SimpleQueue[tuple[str, ServedTurn | None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._count = 0  # turns that were started and are not over
        self._turns: dict[int, ServedTurn] = {}  # in flight, by request id
        self._idle: OrderedDict[str, np.ndarray] = OrderedDict()
        self._rows: dict[int, torch.Tensor] = {}  # logprobs of the newest token's distribution
        self._next = 0
        if hasattr(engine, "listener"):
            engine.listener = self._hear
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------------------------------ who asks

    def start(self, request: TurnRequest, index: int, events: queue.SimpleQueue) -> ServedTurn:
        """Begin a reply. Raises SamplerBusyError, and EngineError where the engine has failed."""
        with self._lock:
            if self.failure:
                raise EngineError(self.failure)
            if self._count >= MOST_TURNS:
                raise SamplerBusyError(f"{MOST_TURNS} replies are under way; ask again later")
            self._count += 1
        turn = ServedTurn(request, index, events, self.stop_ids)
        self._inbox.put(("start", turn))
        return turn

    def cancel(self, turn: ServedTurn) -> None:
        """Nobody waits for the rest. A turn that is over is left as it is."""
        self._inbox.put(("cancel", turn))

    def close(self) -> None:
        self._inbox.put(("close", None))
        self._thread.join(30)

    # ------------------------------------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while self._take_orders():
                if self._turns:
                    self._poll()
        except Exception as error:  # the thread is the only one: who waits must hear of it
            self._fail(f"the engine failed: {type(error).__name__}: {error}")

    def _take_orders(self) -> bool:
        """Do what was asked meanwhile, waiting for it where nothing is under way. False: to be closed."""
        while True:
            try:
                order, turn = self._inbox.get(block=not self._turns)
            except queue.Empty:
                return True
            if order == "close":
                self._fail("the server is ending")
                return False
            if order == "start":
                self._begin(turn)
            elif turn.id in self._turns:
                self.engine.release(turn.session)
                self._forget(turn)

    def _begin(self, turn: ServedTurn) -> None:
        asked = turn.request
        turn.id = self._next
        self._next += 1
        turn.session = self._session_for(asked.prompt_ids) or f"served#{turn.id}"
        try:
            self.engine.submit(
                Request(
                    turn.id,
                    turn.session,
                    asked.prompt_ids,
                    asked.seed,
                    asked.max_tokens,
                    turn.stop_ids,
                    asked.temperature,
                    asked.top_p,
                )
            )
        except EngineError as error:
            self._turns[turn.id] = turn
            self._end(turn, TurnEnd(turn.index, "error", str(error)))
            return
        self._turns[turn.id] = turn

    def _session_for(self, prompt: np.ndarray) -> str | None:
        """The idle session that this prompt goes on with, taken out: most of what it holds is shared. None: there is none."""
        shared = {name: _shared(held, prompt) for name, held in self._idle.items()}
        best = max(shared, key=shared.get, default=None)
        if best is None or 2 * shared[best] < len(self._idle[best]):
            return None
        del self._idle[best]
        return best

    def _poll(self) -> None:
        done = {completion.request_id: completion for completion in self.engine.poll()}
        for turn in list(self._turns.values()):
            completion = done.get(turn.id)
            if completion is None:
                self._tell(turn, self.engine.partial(turn.id), None)
                continue
            self._tell(turn, completion.token_ids.tolist(), completion)
            self._end(turn, TurnEnd(turn.index, completion.finish, completion.error or ""))

    def _tell(self, turn: ServedTurn, ids: Sequence[int], completion: Completion | None) -> None:
        """Hand over what is new of a reply."""
        row = self._rows.pop(turn.id, None)
        for place in range(turn.handed_over, len(ids)):
            token = int(ids[place])
            logp: float | None = None
            top: tuple[tuple[int, float], ...] = ()
            if row is not None and place == len(ids) - 1:
                logp = float(row[token])
                top = _likeliest(row, turn.request.top or 0)
            turn.sampled.append(token)
            turn.events.put(SampledToken(turn.index, token, logp, top))
        turn.handed_over = len(ids)

    def _end(self, turn: ServedTurn, end: TurnEnd) -> None:
        turn.events.put(end)
        if end.finish == "error":
            self.engine.release(turn.session)
        else:
            sequence = np.concatenate([turn.request.prompt_ids, np.array(turn.sampled, np.int32)])
            self._idle[turn.session] = sequence
            while len(self._idle) > MOST_IDLE:
                name, _ = self._idle.popitem(last=False)
                self.engine.release(name)
        self._forget(turn)

    def _forget(self, turn: ServedTurn) -> None:
        del self._turns[turn.id]
        self._rows.pop(turn.id, None)
        with self._lock:
            self._count -= 1

    def _fail(self, words: str) -> None:
        with self._lock:
            self.failure = words
        waiting = list(self._turns.values())
        while not self._inbox.empty():
            order, turn = self._inbox.get()
            waiting += [turn] if order == "start" else []
        for turn in waiting:
            turn.events.put(TurnEnd(turn.index, "error", words))

    def _hear(self, request_ids: Any, places: Any, logits_RV: torch.Tensor, bent: bool) -> None:
        """The engine's distributions, before a token is drawn: kept of those whose logprobs are wanted."""
        for row, request_id in enumerate(request_ids):
            turn = self._turns.get(request_id)
            if turn is not None and turn.request.top is not None:
                self._rows[request_id] = logits_RV[row].float().log_softmax(-1).cpu()


def _likeliest(row_V: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    values, ids = row_V.topk(min(count, len(row_V)))
    return tuple(zip(ids.tolist(), values.tolist()))


def _shared(held: np.ndarray, prompt: np.ndarray) -> int:
    """How many tokens two sequences begin with alike."""
    length = min(len(held), len(prompt))
    differs = np.flatnonzero(held[:length] != prompt[:length])
    return int(differs[0]) if len(differs) else length
