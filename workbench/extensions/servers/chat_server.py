"""The embedded engine behind OpenAI's chat protocol: a policy served without vLLM.

    POST /v1/chat/completions    messages, tools, streaming, logprobs, stop, seed, n; see `chat_request`
    GET  /v1/models, /health
    otherwise                    OpenAI's form of an error, with status 400, 401, 404, 405, 411, 413, 415, 429, 500 or 503

Temperature 1 and top-p 1 are the defaults of the protocol; a run's own are taken where a run is served. Logprobs are of the
model's own softmax, whatever temperature bends. The same seed gives the same reply, as long as logits agree (invariant 8).
"""

from __future__ import annotations

import json
import queue
import select
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from workbench.chat import ChatFormat
from workbench.engines.base import Engine
from workbench.extensions.servers.bounded_server import BoundedHandler, BoundedServer
from workbench.extensions.servers.chat_request import (
    ChatRequest,
    PastCall,
    RequestError,
    read_request,
)
from workbench.extensions.servers.history import History
from workbench.extensions.servers.reply import (
    OPENINGS,
    GrowingReply,
    ReadReply,
    logprobs_of,
    read_reply,
)
from workbench.extensions.servers.sampler import (
    MOST_TURNS,
    SampledToken,
    Sampler,
    SamplerBusyError,
    ServedTurn,
    TurnEnd,
    TurnRequest,
)
from workbench.tools.formats import CallFormat, format_for
from workbench.values.errors import EngineError
from workbench.values.seeds import seed_of

MOST_BODY_BYTES = 8 << 20
MOST_TOKENS = 4_096  # of a reply, where a request does not say
WAIT_S = 0.5  # between two looks whether the client is still there


@dataclass(frozen=True, eq=False)
class ServedPolicy:
    """What is served. `style`: how calls are written, by name in `FORMATS`; `think`: replies begin with a thought.
    `temperature`, `top_p`: where a request does not say."""

    name: str
    engine: Engine
    chat: ChatFormat
    style: str = "hermes"
    think: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    about: Mapping[str, Any] = field(default_factory=dict)

    def call_format(self, tools: tuple[Mapping[str, Any], ...]) -> CallFormat:
        """How calls of these tools are written and read."""
        return format_for(self.style, [_as_tool(tool) for tool in tools], think=self.think)


def _as_tool(tool: Mapping[str, Any]) -> Any:
    """As much of a tool as a form of calls reads: its name, and the types of its arguments."""
    function = tool["function"]
    return SimpleNamespace(name=function["name"], parameters=function["parameters"])


class ChatServer(BoundedServer):
    """Serves a policy until `shutdown`. Raises ConfigError as `BoundedServer` does. `seed`: of replies to requests without one."""

    def __init__(
        self,
        policy: ServedPolicy,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        key: str | None = None,
        seed: int = 0,
    ) -> None:
        self.policy = policy
        self.seed = seed
        self.history = History(policy.chat)
        self.created = int(time.time())
        self._numbers = iter(range(1 << 62))
        self._number_lock = threading.Lock()
        super().__init__(
            _Handler,
            host,
            port,
            key=key,
            danger="has the policy compute for them",
            # With replies under way on some, there is one for whoever is told to ask again later.
            most_connections=2 * MOST_TURNS,
        )
        self.sampler = Sampler(policy.engine, policy.chat.stop_ids)

    def number(self) -> int:
        """Of a request; every one has another."""
        with self._number_lock:
            return next(self._numbers)

    def server_close(self) -> None:
        super().server_close()
        if hasattr(self, "sampler"):
            self.sampler.close()


class _Handler(BoundedHandler):
    server_version = "workbench-serve"
    most_body_bytes = MOST_BODY_BYTES
    server: ChatServer

    def refuse(self, status: int, words: str) -> None:
        self.answer(status, RequestError(status, words).as_dict())

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if not self.may_ask():
            return
        policy = self.server.policy
        card = {
            "id": policy.name,
            "object": "model",
            "created": self.server.created,
            "owned_by": "workbench",
        }
        failure = self.server.sampler.failure
        pages = {
            "/health": {"status": failure or "ok", **policy.about},
            "/v1/models": {"object": "list", "data": [card]},
            f"/v1/models/{policy.name}": card,
        }
        if self.path in pages:
            is_ill = bool(failure) and self.path == "/health"
            return self.answer(503 if is_ill else 200, pages[self.path])
        status = 405 if self.path == "/v1/chat/completions" else 404
        self.refuse(
            status,
            "expected GET /v1/models, GET /health or POST /v1/chat/completions, got "
            f"GET {self.path[:80]}",
        )

    def do_POST(self) -> None:
        body = self.body()
        self.server.has_asked(self.connection)
        if body is None or not self.may_ask():
            return
        if self.path != "/v1/chat/completions":
            return self.refuse(
                404, f"expected POST /v1/chat/completions, got POST {self.path[:80]}"
            )
        if not self.is_json():
            return
        completion = None
        try:
            asked = read_request(body, models=(self.server.policy.name,))
            completion = _Completion(self.server, asked)
            completion.start()
            if asked.stream:
                return self._stream(completion)
            self.answer(200, completion.whole(self._client_is_there))
        except RequestError as error:
            self.answer(error.status, error.as_dict())
        except SamplerBusyError as error:
            self.answer(429, RequestError(429, str(error)).as_dict())
        except EngineError as error:
            self.answer(500, RequestError(500, str(error)).as_dict())
        finally:
            if completion is not None:
                completion.cancel()

    def _stream(self, completion: _Completion) -> None:
        """Server-sent events, each in a chunk of its own."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            for event in completion.chunks(self._client_is_there):
                self._send_event(json.dumps(event))
            self._send_event("[DONE]")
        except EngineError as error:  # the head is sent: the error is an event
            self._send_event(json.dumps(RequestError(500, str(error)).as_dict()))
        self.send(b"0\r\n\r\n")

    def _send_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.send(f"{len(event):x}\r\n".encode() + event + b"\r\n")

    def _client_is_there(self) -> None:
        """Raises ConnectionError where the client has closed its side: nobody would read the rest."""
        # Whatever else it has sent meanwhile: what is not read yet hides an end from `recv`.
        looked = select.poll()
        looked.register(self.connection, select.POLLRDHUP)
        if looked.poll(0):
            raise ConnectionError("the client went away")


class _Completion:
    """One request under way, with its `n` replies."""

    def __init__(self, server: ChatServer, asked: ChatRequest) -> None:
        self.asked = asked
        self.policy = server.policy
        self.history = server.history
        self.sampler = server.sampler
        number = server.number()
        self.id = f"chatcmpl-{server.created:x}-{number}"
        self.created = int(time.time())
        style = self.policy.call_format(asked.tools)
        self.style = style if asked.reads_calls else None
        context = self.policy.engine.context_length
        if asked.characters > self.history.most_characters(context):
            raise _too_long(f"{asked.characters:,} characters", context)
        self.prompt = self.history.prompt(asked.messages, asked.tools, style)
        if len(self.prompt) >= context:
            raise _too_long(f"{len(self.prompt)} tokens", context)
        self.replies = [GrowingReply(self.policy.chat, asked.stops) for _ in range(asked.n)]
        self.sampled: list[list[SampledToken]] = [[] for _ in range(asked.n)]
        self.finishes: list[str | None] = [None] * asked.n
        self.events: queue.SimpleQueue = queue.SimpleQueue()
        self.turns: list[ServedTurn] = []
        self.address = (asked.seed, "asked")
        if asked.seed is None:
            self.address = (server.seed, "served", number)

    def start(self) -> None:
        """Begin all replies. Raises what `Sampler.start` does; `cancel` ends those that were begun."""
        asked = self.asked
        room = self.policy.engine.context_length - len(self.prompt)
        for index in range(asked.n):
            request = TurnRequest(
                self.prompt,
                min(asked.max_tokens or MOST_TOKENS, room),
                self.policy.temperature if asked.temperature is None else asked.temperature,
                self.policy.top_p if asked.top_p is None else asked.top_p,
                seed_of(*self.address, index),
                asked.top_logprobs,
            )
            self.turns.append(self.sampler.start(request, index, self.events))

    def cancel(self) -> None:
        for turn, finish in zip(self.turns, self.finishes):
            if finish is None:
                self.sampler.cancel(turn)

    # -------------------------------------------------------------------------------------------- what comes

    def _pieces(self, is_there: Any) -> Iterator[tuple[int, str, list[SampledToken]]]:
        """(number of the reply, text that is new, tokens that made it), until all are over."""
        looked = time.monotonic()
        while None in self.finishes:
            event = None
            with suppress(queue.Empty):
                event = self.events.get(timeout=WAIT_S)
            if time.monotonic() - looked > WAIT_S:  # also while tokens come, one after the other
                is_there()
                looked = time.monotonic()
            if event is None or self.finishes[event.index] is not None:
                continue
            index = event.index
            reply = self.replies[index]
            if isinstance(event, TurnEnd):
                if event.finish == "error":
                    raise EngineError(event.error)
                self.finishes[index] = event.finish
                yield index, reply.finish(), []
                continue
            self.sampled[index].append(event)
            text = reply.take(event.token)
            yield index, text, [event]
            if reply.cut:
                self.finishes[index] = "stop"
                self.sampler.cancel(self.turns[index])

    def _read(self, index: int) -> ReadReply:
        """The finished reply with its calls, remembered for the conversation's next turn."""
        reply = self.replies[index]
        read = read_reply(reply.text, self.style, f"{self.id[9:]}_{index}")
        if not reply.cut:
            self.history.remember(self.prompt, read.content, read.calls, reply.ids)
        return read

    def _finish(self, index: int, read: ReadReply) -> str:
        return "tool_calls" if read.calls else str(self.finishes[index])

    @property
    def _usage(self) -> dict[str, int]:
        sampled = sum(map(len, self.sampled))
        prompt = len(self.prompt)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": sampled,
            "total_tokens": prompt + sampled,
        }

    # -------------------------------------------------------------------------------------------- what is sent

    def _object(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }

    def whole(self, is_there: Any) -> dict[str, Any]:
        """The answer where nothing is streamed."""
        for _ in self._pieces(is_there):
            pass
        choices = []
        for index in range(self.asked.n):
            read = self._read(index)
            message: dict[str, Any] = {
                "role": "assistant",
                "content": read.content or None if read.calls else read.content,
                "refusal": None,
            }
            if read.calls:
                message["tool_calls"] = [_written(call) for call in read.calls]
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "finish_reason": self._finish(index, read),
                    "logprobs": self._logprobs(self.sampled[index]),
                }
            )
        return {**self._object("chat.completion", choices), "usage": self._usage}

    def _logprobs(self, sampled: list[SampledToken]) -> dict[str, Any] | None:
        if self.asked.top_logprobs is None:
            return None
        return logprobs_of(self.policy.chat, sampled)

    def chunks(self, is_there: Any) -> Iterator[dict[str, Any]]:
        """The answer in pieces. Where calls are read, text that a call may begin in is held back to the end."""
        shown = [""] * self.asked.n
        for index in range(self.asked.n):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        for index, text, tokens in self._pieces(is_there):
            if self._is_held(index):
                text = ""
            elif self.style is not None:
                text = self.replies[index].shown[len(shown[index]) :]
            shown[index] += text
            if text or (tokens and self.asked.top_logprobs is not None):
                yield self._chunk(index, {"content": text}, tokens=tokens)
            if self.finishes[index] is not None or self.replies[index].cut:
                self.finishes[index] = self.finishes[index] or "stop"
                yield from self._last_chunks(index, shown[index])
        if self.asked.usage_at_end:
            yield {**self._object("chat.completion.chunk", []), "usage": self._usage}

    def _is_held(self, index: int) -> bool:
        """Whether a call may have begun; or nothing but white space is there, which is left out before calls."""
        text = self.replies[index].text
        return self.style is not None and (
            not text.strip() or any(mark in text for mark in OPENINGS)
        )

    def _last_chunks(self, index: int, shown: str) -> Iterator[dict[str, Any]]:
        """What was held back, as words or as calls, and the reason of the end."""
        read = self._read(index)
        if rest := read.content[len(shown) :]:
            yield self._chunk(index, {"content": rest})
        for number, call in enumerate(read.calls):
            yield self._chunk(index, {"tool_calls": [{"index": number, **_written(call)}]})
        yield self._chunk(index, {}, finish=self._finish(index, read))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        *,
        finish: str | None = None,
        tokens: list[SampledToken] | None = None,
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "delta": delta, "finish_reason": finish}
        if tokens and self.asked.top_logprobs is not None:
            choice["logprobs"] = logprobs_of(self.policy.chat, tokens)
        return self._object("chat.completion.chunk", [choice])


def _too_long(has: str, context: int) -> RequestError:
    return RequestError(
        400,
        f"the conversation has {has}, and the policy has positions for {context} tokens, with at least one for the reply",
        parameter="messages",
        code="context_length_exceeded",
    )


def _written(call: PastCall) -> dict[str, Any]:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }
