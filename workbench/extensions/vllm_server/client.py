"""What a vLLM server is asked, over HTTP: to sample, and to take new weights. Each failure in words, with what to do.

Requests run in a thread of their own, so that whoever asks for a turn goes on; what came back is fetched with `answers`.
Each has a deadline and a bound on its bytes.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import httpx

from workbench.basics.bounded_http import MOST_BYTES, AnswerError, async_hooks, in_short
from workbench.extensions.vllm_server.guard import KEY
from workbench.values.errors import EngineError

HEALTH_S = 5.0  # a server that samples still says that it is there within this
TOKEN_BYTES = 1_000  # of a turn's answer, at most: a token with its logprobs
WHOLE_BYTES = 64 << 20  # ... where the logprobs of the whole vocabulary were asked for
GENERATE = "/inference/v1/generate"
DEAD = "EngineCore encountered an issue"  # the words of vLLM's front end where the process behind it has ended


class ServerError(EngineError):
    """Nobody answered, or the answer broke off: the same may be asked again."""


class ServerDeadlineError(ServerError):
    """An answer took too long. A turn asked again without its seed may be a shorter one: that would choose among turns."""


class ServerClient:
    """Speaks to the server at `url`. `answer_s`: how long a turn may take. `key`: that every request carries, "": none.
    Thread-safe apart from `close`."""

    def __init__(self, url: str, *, rows: int, answer_s: float, key: str = "") -> None:
        self.url = url.rstrip("/")
        self._answer_s = answer_s
        self._came: queue.Queue[tuple[str, dict[str, Any] | EngineError]] = queue.Queue()
        self._asked: dict[str, asyncio.Task] = {}  # of the loop's thread only
        self._loop = asyncio.new_event_loop()
        # Rows that the server decodes at once: who waits for one is not late yet.
        self._rows = asyncio.Semaphore(rows)
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            trust_env=False,
            timeout=httpx.Timeout(None, connect=HEALTH_S),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=rows),
            event_hooks=async_hooks(self.url),
        )
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="workbench-server-client", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """(host, port)."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or {"https": 443}.get(parts.scheme, 80)

    # ------------------------------------------------------------------------------------------ one call at a time

    def call(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        seconds: float = HEALTH_S,
        query: Mapping[str, str] = {},
        plain: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> Any:
        """The answer's JSON (None where it is empty, or `plain` text). Raises ServerError, or EngineError for a refusal."""
        late = f"{path}: no answer within {seconds:g} s"
        asked = self._exchange(
            method, path, body, seconds, late, query, plain=plain, most_bytes=most_bytes
        )
        coming = asyncio.run_coroutine_threadsafe(asked, self._loop)
        try:
            return coming.result()
        finally:
            coming.cancel()  # whoever waited was interrupted

    async def _exchange(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        seconds: float,
        late: str,
        query: Mapping[str, str] = {},
        plain: bool = False,
        most_bytes: int = MOST_BYTES,
    ) -> Any:
        bound = {"most_bytes": most_bytes}
        try:
            # By the wall clock, whatever trickles in; the connection is closed.
            async with asyncio.timeout(seconds):
                answer = await self._http.request(
                    method, path, json=body, params=query, extensions=bound
                )
        except TimeoutError as error:
            raise ServerDeadlineError(f"{self.url}{late}") from error
        except AnswerError as error:
            raise EngineError(str(error)) from error
        except httpx.HTTPError as error:
            how = "broke off in the middle of its answer"
            if isinstance(error, httpx.ConnectError):
                how = "cannot be reached"
            raise ServerError(f"{self.url} {how} ({in_short(error)})") from error
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
        turn = self._turn(name, dict(body))

        def begin() -> None:
            self._asked[name] = self._loop.create_task(turn)

        self._loop.call_soon_threadsafe(begin)

    def drop(self, name: str) -> None:
        """Forget what was asked under `name`: the connection is closed, and the server stops sampling for it."""

        def cancel() -> None:
            task = self._asked.pop(name, None)
            if task is not None:
                task.cancel()

        self._loop.call_soon_threadsafe(cancel)

    def answers(self, wait_s: float) -> list[tuple[str, dict[str, Any] | EngineError]]:
        """Answers since the last call; waits so long for a first one."""
        answers = []
        try:
            answers.append(self._came.get(timeout=wait_s))
            while True:
                answers.append(self._came.get_nowait())
        except queue.Empty:
            return answers

    def close(self) -> None:
        async def end() -> None:
            tasks = list(self._asked.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._http.aclose()

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=10)
        self._loop.close()

    async def _turn(self, name: str, body: dict[str, Any]) -> None:
        late = f": a turn was not over after {self._answer_s:g} s (layout.answer_deadline_s)"
        try:
            async with self._rows:
                answer = await self._exchange(
                    "POST", GENERATE, body, self._answer_s, late, most_bytes=_most_bytes(body)
                )
            if not isinstance(answer, dict):
                answer = EngineError(f"{self.url}{GENERATE} sent no JSON object")
        except EngineError as error:
            answer = error
        if self._asked.pop(name, None) is not None:
            self._came.put((name, answer))


def _most_bytes(body: Mapping[str, Any]) -> int:
    """The bytes that the answer to a turn may have, by what was asked for."""
    params = body["sampling_params"]
    per_token = WHOLE_BYTES if params.get("logprobs") == -1 else TOKEN_BYTES
    prompt_bytes = TOKEN_BYTES * len(body["token_ids"])
    return MOST_BYTES + prompt_bytes + per_token * params.get("max_tokens", 0)


def _read(address: str, answer: httpx.Response, plain: bool = False) -> Any:
    if answer.status_code == 503 or answer.status_code == 500 and DEAD in answer.text:
        raise ServerError(
            f"{address}: the server takes nothing at the moment (HTTP status {answer.status_code})"
        )
    if answer.status_code in (401, 403, 404):
        raise EngineError(
            f"{address} is not open (HTTP status {answer.status_code}: {in_short(answer.text)}); a server of ours is "
            f"started with VLLM_SERVER_DEV_MODE=1 and --enable-scale-out, and with the same {KEY} as the learner: "
            "docs/guides/vllm.md has the command"
        )
    if answer.status_code != 200:
        raise EngineError(
            f"{address} answered with HTTP status {answer.status_code}: {_own_words(answer)}"
        )
    if plain or not answer.content:
        return None
    try:
        return answer.json()
    except (ValueError, RecursionError) as error:
        raise EngineError(f"{address} sent what is no JSON: {in_short(answer.text)}") from error


def _own_words(answer: httpx.Response) -> str:
    """The error message of the server's answer, in one line."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return in_short(answer.text)
    error = body.get("error", body) if isinstance(body, dict) else body
    return in_short(error.get("message", error) if isinstance(error, dict) else error)
