"""What an engine was asked and what it answered, written down beside the trajectories: independent evidence.

Trajectories say which tokens were sampled after what. The journal is the other witness: it stands between collecting
and the engine, touches nothing, and keeps references (no copies). `linting` holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from workbench.engines.base import Completion, Engine, Request

if TYPE_CHECKING:
    import torch


class Exchange(NamedTuple):
    """One turn as the engine saw it. `completion` None: it was never answered."""

    request: Request
    completion: Completion | None

    @property
    def addressed(self) -> bool:
        """Whether the turn drew by its seed; one that was never answered drew nothing."""
        return self.completion is None or self.completion.sampling.addressed


class Journal:
    """An engine that hands everything on to another one, and remembers it until `exchanges` is read."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.name = engine.name
        self._requests: dict[int, Request] = {}
        self._completions: dict[int, Completion] = {}

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """Everything so far, in the order of requests."""
        return tuple(
            Exchange(request, self._completions.get(key)) for key, request in self._requests.items()
        )

    @property
    def policy_version(self) -> int:
        return self.engine.policy_version

    @property
    def context_length(self) -> int:
        return self.engine.context_length

    def submit(self, request: Request) -> None:
        self.engine.submit(request)
        self._requests[request.id] = request

    def poll(self) -> list[Completion]:
        completions = self.engine.poll()
        self._completions.update((completion.request_id, completion) for completion in completions)
        return completions

    def note(self, request: Request, completion: Completion) -> None:
        """A turn that was sampled before, by this engine's weights, and is not asked again."""
        self._requests[request.id] = request
        self._completions[request.id] = completion

    def release(self, session: str) -> None:
        self.engine.release(session)

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        self.engine.sync(weights, version)
