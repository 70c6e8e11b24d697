"""The contract between collecting and sampling: token ids in, token ids and logprobs out, by submit and poll.

An engine holds its *own* copy of the weights and is told of new ones; every completion names the version it was
sampled from. Engines know no tasks and no text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from workbench.values import Sampling

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class Request:
    """One turn to sample.

    `prompt_ids` is the whole sequence so far. `session` names a trajectory's segment: an engine may keep its key/value
    cache under that name from turn to turn, and must notice by itself when the new prompt does not extend what it
    holds. `seed` addresses the noise of this turn: position t of the turn uses the t-th draw of `rng_at(seed)`-like
    counter-based noise, whatever else is in the batch (invariant 8).
    """

    id: int
    session: str
    prompt_ids: np.ndarray
    seed: int
    max_new_tokens: int
    stop_ids: frozenset[int]
    temperature: float = 1.0  # 0 = greedy
    top_p: float = 1.0


@dataclass(frozen=True, eq=False)
class Completion:
    """The sampled tokens of a request. The stop token is part of `token_ids`: it was sampled, so it is an action.

    `logprobs` [len] are of the distribution sampled from (greedy: of the model's own softmax). `plain_logprobs` are of
    the unbent softmax where temperature or top-p bend it, else None. `error` set: nothing was sampled, and why.
    """

    request_id: int
    token_ids: np.ndarray
    logprobs: np.ndarray
    finish: str  # "stop" | "length" | "error"
    policy_version: int
    sampling: Sampling
    plain_logprobs: np.ndarray | None = None
    error: str | None = None


class Listener(Protocol):
    """Hears the whole distributions that an engine draws from: set as its `listener` by an audit, None in training."""

    def __call__(
        self,
        request_ids: Sequence[int],
        places: Sequence[int],
        logits_RV: torch.Tensor,
        bent: bool,
    ) -> None:
        """Row r is of token `places[r]` of the turn that `request_ids[r]` asked for: logits, up to a constant per row.

        `bent`: after temperature and top-p (what is cut has -inf); else the model's own. To be copied, not kept.
        """


class Engine(Protocol):
    """Sampler of token ids. See `scripted` (tests, a human at the keyboard) and `transformers_engine` (embedded)."""

    name: str

    @property
    def policy_version(self) -> int: ...

    @property
    def context_length(self) -> int: ...

    def submit(self, request: Request) -> None:
        """Queue a turn. Never blocks. Raises EngineError for a request that can never be served."""

    def poll(self) -> list[Completion]:
        """Advance by one tick (one decode step of everything that is running, after admitting what waits) and hand
        over what finished, in the order of request ids. Returns [] at once when nothing is queued or running."""

    def release(self, session: str) -> None:
        """The trajectory is over: free what is cached for it. Unknown sessions are ignored."""

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy new weights in (by state-dict name), drop every cache. Refused while requests are running."""

    # Optional, found by hasattr: partial(request_id: int) -> tuple[int, ...], the ids sampled so far for a request in
    # flight, for whoever watches; () where there are none yet, or no such request. rest() -> None: nothing is asked for
    # while weights are learned. work() -> dict[str, float]: counts since it was asked last, for the clock of a step.
    # held: Mapping[str, Tensor | str], what it samples from by state-dict name, to be read and not kept, or digests
    # (engines/digests) of what arrived with the newest version: tells a mismatch of weights from one of arithmetic.
