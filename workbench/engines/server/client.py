"""What a vLLM server is asked, over HTTP: to sample, and to take new weights. Each failure in words, with what to do.

Everything else about a server is decided elsewhere; here it is only spoken to. Requests run in a thread of their own, so
that whoever asks goes on; what came back is fetched with `answers`.
"""
from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from workbench.types.errors import EngineError

HEALTH_S = 5.0           # a server that samples still says that it is there within this
LONGEST_DETAIL = 300     # characters of a server's own words in an error


class ServerError(EngineError):
    """Nobody answered, or the answer broke off: the same may be asked again."""


class ServerDeadlineError(ServerError):
    """A turn took too long. Asked again without its seed it may be a shorter one: that would choose among turns."""


class ServerClient:
    """Speaks to the server at `url`. `answer_s`: how long a turn may take. Thread-safe apart from `close`."""

    def __init__(self, url: str, *, rows: int, answer_s: float) -> None:
        self.url, self._answer_s = url.rstrip("/"), answer_s
        self._http = httpx.Client(base_url=self.url, timeout=HEALTH_S, trust_env=False)
        self._came: queue.Queue[tuple[str, dict[str, Any] | EngineError]] = queue.Queue()
        self._asked: dict[str, asyncio.Task] = {}  # of the loop's thread only
        self._loop = asyncio.new_event_loop()
        self._limits = httpx.Limits(max_connections=rows, max_keepalive_connections=rows)
        self._turns: httpx.AsyncClient | None = None
        self._thread = threading.Thread(target=self._loop.run_forever, name="workbench-server-client", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port)."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)

    # ------------------------------------------------------------------------------------------ one call at a time

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None, *, seconds: float = HEALTH_S,
             query: Mapping[str, str] = {}, plain: bool = False) -> Any:
        """The answer's JSON (None where it is empty, or `plain` text). Raises ServerError, or EngineError for a refusal."""
        try:
            answer = self._http.request(method, path, json=body, params=query, timeout=seconds)
        except httpx.TimeoutException as error:
            raise ServerError(f"{self.url}{path}: no answer within {seconds:g} s") from error
        except httpx.HTTPError as error:
            raise ServerError(f"{self.url} cannot be reached ({_short(error)})") from error
        return _read(self.url + path, answer, plain)

    @property
    def answers_at_all(self) -> bool:
        try:
            self.call("GET", "/health")
        except EngineError:
            return False
        return True

    # ------------------------------------------------------------------------------------------ turns

    def ask(self, name: str, body: Mapping[str, Any]) -> None:
        """Have a turn sampled; its answer comes under `name`."""
        self._loop.call_soon_threadsafe(self._begin, name, dict(body))

    def drop(self, name: str) -> None:
        """Forget what was asked under `name`: the connection is closed, and the server stops sampling for it."""
        self._loop.call_soon_threadsafe(lambda: (task := self._asked.pop(name, None)) and task.cancel())

    def answers(self, wait_s: float) -> list[tuple[str, dict[str, Any] | EngineError]]:
        """What came since the last call; waits so long for a first one."""
        found = []
        try:
            found.append(self._came.get(timeout=wait_s))
            while True:
                found.append(self._came.get_nowait())
        except queue.Empty:
            return found

    def close(self) -> None:
        async def end() -> None:
            tasks = list(self._asked.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if self._turns is not None:
                await self._turns.aclose()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()
        self._http.close()

    def _begin(self, name: str, body: dict[str, Any]) -> None:
        self._asked[name] = self._loop.create_task(self._turn(name, body))

    async def _turn(self, name: str, body: dict[str, Any]) -> None:
        if self._turns is None:
            # As many connections as rows that the server decodes: what waits for one is not late yet.
            self._turns = httpx.AsyncClient(base_url=self.url, limits=self._limits, trust_env=False,
                                            timeout=httpx.Timeout(self._answer_s, connect=HEALTH_S, pool=None))
        path = "/inference/v1/generate"
        try:
            answer: Any = _read(self.url + path, await self._turns.post(path, json=body))
            if not isinstance(answer, dict):
                answer = EngineError(f"{self.url}{path} sent no JSON object")
        except httpx.TimeoutException:
            answer = ServerDeadlineError(f"{self.url}: a turn was not over after {self._answer_s:g} s (layout.answer_deadline_s)")
        except httpx.HTTPError as error:
            answer = ServerError(f"{self.url}: the connection broke in the middle of a turn ({_short(error)})")
        except EngineError as error:
            answer = error
        if self._asked.pop(name, None) is not None:
            self._came.put((name, answer))


def _read(address: str, answer: httpx.Response, plain: bool = False) -> Any:
    if answer.status_code == 503:
        raise ServerError(f"{address}: the server takes nothing at the moment (HTTP status 503)")
    if answer.status_code in (401, 403, 404):
        raise EngineError(f"{address} is not open (HTTP status {answer.status_code}: {_short(answer.text)}); a server of ours is "
                          "started with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out: docs/guides/vllm.md has the command")
    if answer.status_code != 200:
        raise EngineError(f"{address} answered with HTTP status {answer.status_code}: {_told(answer)}")
    if plain or not answer.content:
        return None
    try:
        return answer.json()
    except json.JSONDecodeError as error:
        raise EngineError(f"{address} sent what is no JSON: {_short(answer.text)}") from error


def _told(answer: httpx.Response) -> str:
    """A server's own words about what failed."""
    try:
        said = answer.json()
        error = said.get("error", said) if isinstance(said, dict) else said
        return _short(error.get("message", error) if isinstance(error, dict) else error)
    except json.JSONDecodeError:
        return _short(answer.text)


def _short(value: Any) -> str:
    return " ".join(str(value).split())[:LONGEST_DETAIL] or type(value).__name__
