"""Environments whose methods are coroutines: they are awaited by the runner, in an event loop of its own.

loop = EventLoop()          in a thread of its own, so it works under a notebook's loop, too
loop.settle(value)          the value itself, or what the coroutine comes to
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any


@dataclass(eq=False)
class EventLoop:
    """Awaits what it is handed, whoever hands it over, all of it at once. Its thread starts with the first coroutine:
    where none comes, none runs."""

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pending: dict[int, Future] = field(default_factory=dict)  # thread -> what it awaits
    _loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        return self._loop is not None

    def settle(self, value: Any) -> Any:
        """`value`, awaited where it can be; what that raises is raised here. An interrupt cancels it."""
        return self.settle_within(value, None)[0]

    def settle_within(self, value: Any, seconds: float | None) -> tuple[Any, bool]:
        """The same, and whether it came in time: else it is None, and was cancelled. `seconds` None: for ever."""
        if not inspect.isawaitable(value):
            return value, True
        future = self.begin(_outcome_of(value))
        own = threading.get_ident()
        self._pending[own] = future
        try:
            result, error = future.result(seconds)
        except TimeoutError:  # what the coroutine raises comes as `error`
            future.cancel()
            return None, False
        except BaseException:
            future.cancel()
            raise
        finally:
            self._pending.pop(own, None)
        if error is not None:
            raise error
        return result, True

    def begin(self, coroutine: Coroutine) -> Future:
        """Begin a coroutine in the loop; the future is of whoever called, in whatever thread or loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=_run, args=(self._loop,), daemon=True, name="environments' event loop"
                ).start()
            return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def cancel(self, thread: int | None) -> None:
        """Cancel what the thread with this identifier awaits, if it does."""
        if (future := self._pending.get(thread)) is not None:
            future.cancel()

    def close(self) -> None:
        """End the loop and its thread; used again, it starts anew."""
        with self._lock:
            loop = self._loop
            self._loop = None
        if loop is not None:
            asyncio.run_coroutine_threadsafe(_end(), loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run it until it is stopped, and give back its descriptors: a loop that is only collected warns, and may fail at it."""
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end() -> None:
    """Cancel what is still awaited, then stop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    asyncio.get_running_loop().stop()


async def _outcome_of(value: Awaitable) -> tuple[Any, BaseException | None]:
    try:
        return await value, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # SystemExit would end the loop, and all that others await
        return None, error


def is_async(env: Any) -> bool:
    """Whether its `reset` or `step` is a coroutine function."""
    return any(inspect.iscoroutinefunction(getattr(env, name, None)) for name in ("reset", "step"))
