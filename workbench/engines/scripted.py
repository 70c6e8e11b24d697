"""An engine that follows a script: for tests, and for a human at the keyboard. No torch, no weights.

    engine = ScriptedEngine(lambda request: [17, 4, END])

The script sees the whole request and returns the token ids of the turn; everything around it (ticks, versions, limits,
errors) behaves as in an engine with a model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from workbench.engines.base import Completion, Request
from workbench.engines.intake import Intake
from workbench.values import Sampling
from workbench.values.errors import EngineError

if TYPE_CHECKING:
    import torch


@dataclass
class _Pending:
    request: Request
    limit: int
    ticks_left: int
    answer: Completion | None = None  # made, and handed over token by token
    shown: int = 0


class ScriptedEngine:
    """Deterministic engine: `script(request)` returns the ids of the turn.

    The turn is cut after its first stop id (finish "stop") or at the request's limit (finish "length"); a script that
    returns fewer ids without a stop id also ends in "length": the policy did not end its turn. A script that raises
    EngineError, or returns nothing, makes an error completion; any other exception is a bug of the script, and raised.
    `logprob` is given to every token. `delay_ticks` (a number, or a function of the request) is how many polls a
    request waits before the one that hands it over. `trickle`: a turn then takes a poll per token, as in an engine with
    a model, and `partial` tells those so far.
    """

    name = "scripted"
    keeps_cache = False
    cache_reason = "a script has no key/value cache"

    def __init__(
        self,
        script: Callable[[Request], Sequence[int]],
        *,
        context_length: int = 4096,
        logprob: float = -1.0,
        vocab_size: int | None = None,
        delay_ticks: int | Callable[[Request], int] = 0,
        trickle: bool = False,
    ):
        self._script = script
        self._logprob = logprob
        self._delay_ticks = delay_ticks
        self._trickle = trickle
        self.context_length = context_length
        self._intake = Intake(context_length, vocab_size)
        self._pending: dict[int, _Pending] = {}
        self.policy_version = 0
        self._generated_tokens = 0
        self._ticks = 0

    def submit(self, request: Request) -> None:
        _, limit = self._intake.accept(request)
        delay = self._delay_ticks(request) if callable(self._delay_ticks) else self._delay_ticks
        self._pending[request.id] = _Pending(request, limit, delay)

    def poll(self) -> list[Completion]:
        if not self._pending:
            return []
        self._ticks += 1
        in_order = [self._pending[request_id] for request_id in sorted(self._pending)]
        due = [pending for pending in in_order if pending.ticks_left <= 0]
        for pending in self._pending.values():
            pending.ticks_left -= 1
        done = []
        for pending in due:
            pending.answer = pending.answer or self._answer(pending.request, pending.limit)
            pending.shown += 1
            if not self._trickle or pending.shown >= len(pending.answer.token_ids):
                done.append(pending.answer)
        for completion in done:
            del self._pending[completion.request_id]
            self._intake.finish(completion.request_id)
        return done

    def partial(self, request_id: int) -> tuple[int, ...]:
        """The ids handed over so far for a request in flight; () where there are none yet."""
        pending = self._pending.get(request_id)
        if pending is None or pending.answer is None:
            return ()
        return tuple(pending.answer.token_ids[: pending.shown].tolist())

    def release(self, session: str) -> None:
        """Free the session; a request that it still has in flight is dropped and never answered."""
        dropped = self._intake.cancel(session)
        self._pending.pop(dropped, None)

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self._intake.check_sync(version, self.policy_version)
        self.policy_version = version

    def stats(self) -> dict[str, float]:
        return {"ticks": self._ticks, "generated_tokens": self._generated_tokens}

    def _answer(self, request: Request, limit: int) -> Completion:
        error = None
        try:
            ids = [int(token) for token in self._script(request)]
            if not ids:
                error = f"the script returned no token for request {request.id}; a turn has at least one"
        except EngineError as raised:
            ids = []
            error = str(raised)
        stop = next((index for index, token in enumerate(ids) if token in request.stop_ids), None)
        if stop is not None and stop < limit:
            ids = ids[: stop + 1]
            finish = "stop"
        else:
            ids = ids[:limit]
            finish = "length"
        self._generated_tokens += len(ids)
        sampling = Sampling(request.temperature, request.top_p, engine=self.name, dtype="float32")
        logprobs = np.full(len(ids), self._logprob, np.float32)
        return Completion(
            request_id=request.id,
            token_ids=np.array(ids, np.int32),
            logprobs=logprobs,
            finish="error" if error else finish,
            policy_version=self.policy_version,
            sampling=sampling,
            plain_logprobs=logprobs.copy() if sampling.bends else None,
            error=error,
        )
