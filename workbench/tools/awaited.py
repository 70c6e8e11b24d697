"""Tools that are async functions: what they give back is awaited, with the call's deadline.

One event loop a process, kept from call to call: what a tool with state opened in one must still be there in the next.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from workbench.tools.awaiting import EventLoop

ALIVE_S = 1.0  # in which a loop that is not blocked does nothing
_LOOPS: dict[int, EventLoop] = {}  # by process: a forked child has none of its parent's threads


class DeadlineError(Exception):
    """What was awaited did not come in time, and was cancelled."""


def settled(value: Any, deadline_s: float | None = None) -> Any:
    """The value, or what comes of it where it is to be awaited. Raises DeadlineError, and whatever the tool raises."""
    loop = _LOOPS.setdefault(os.getpid(), EventLoop())
    came, in_time = loop.settle_within(value, deadline_s)
    if not in_time:
        if not loop.settle_within(asyncio.sleep(0), ALIVE_S)[1]:
            # Blocked by a tool that does not wait for what it waits for.
            _LOOPS.pop(os.getpid(), None)
        raise DeadlineError
    return came
