"""HTTP of the gateway, with a bound on what clients hold: connections, and the time in which a request is there.

A connection whose request is not there in time is cut, and so is the one that has waited longest when there are too many.
One whose call is being answered is never cut.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

IDLE_S = 30.0  # for a request as a whole, and without one
LOOK_S = 1.0  # between two looks at a connection
MOST_CONNECTIONS = 512  # at a time, besides those whose calls are being answered


class BoundedLine(H11Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.waits_since = self.loop.time()
        self._looks: asyncio.TimerHandle = self.loop.call_later(LOOK_S, self._look)
        if len(self.connections) > MOST_CONNECTIONS:
            waiting = [other for other in self.connections if not other.is_answering]
            if len(waiting) > MOST_CONNECTIONS:
                min(waiting, key=lambda other: other.waits_since).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looks.cancel()
        super().connection_lost(exc)

    @property
    def is_answering(self) -> bool:
        """Whether a whole request came that is not answered yet."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body and not cycle.response_complete

    def _look(self) -> None:
        now = self.loop.time()
        if self.is_answering:
            self.waits_since = now
        elif now - self.waits_since > IDLE_S:
            self.transport.abort()
            return
        self._looks = self.loop.call_later(LOOK_S, self._look)
