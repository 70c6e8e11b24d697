"""A client of an OpenAI-compatible chat endpoint: messages in, a streamed reply out, every failure in words.

Spoken by the official `openai` package (extra `endpoint`), which is imported when the first request is made. What comes
over the wire is somebody else's: it is checked piece by piece, and whatever is wrong with it is an EngineError.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.basics.deadlines import Deadline
from workbench.values.errors import ConfigError, EngineError, shortened
from workbench.values.parts import is_of

MOST_CHARACTERS = 1_000_000  # of one reply


@dataclass(frozen=True)
class NativeCall:
    """A tool call as the server parsed it. `arguments` is the JSON text that came."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class Reply:
    """A finished reply. `finish`: "stop" or "length"."""

    text: str
    calls: tuple[NativeCall, ...]
    finish: str


@dataclass(frozen=True)
class Endpoint:
    """Where to ask. `url` ends in /v1 as a rule; `key_env` names the environment variable that holds the key ("": the
    server asks for none). `deadline_s` is for one reply, by the wall clock. `calls`: "native" offers the tools to the
    server, which reads the calls; "text" has the server show them without reading anything (tool_choice "none"), and
    calls are read from the text as in training."""

    url: str
    model: str
    key_env: str = ""
    deadline_s: float = 120.0
    calls: str = "native"

    def __post_init__(self) -> None:
        for name in ("url", "model", "key_env", "calls"):
            value = getattr(self, name)
            if not is_of(value, str):
                raise ConfigError(f"an endpoint's {name} is text, got {shortened(value)}")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError(
                f"an endpoint's url begins with http:// or https://, got {shortened(self.url)}; for example "
                "http://127.0.0.1:8000/v1"
            )
        if not self.model:
            raise ConfigError("an endpoint needs the name of a model, as its server knows it")
        if not is_of(self.deadline_s, (int, float)) or not self.deadline_s > 0:
            raise ConfigError(
                f"an endpoint's deadline_s is a positive number of seconds, got {shortened(self.deadline_s)}"
            )
        if self.calls not in ("native", "text"):
            raise ConfigError(f"an endpoint's calls are 'native' or 'text', got {self.calls!r}")
        if self.key_env and not os.environ.get(self.key_env):
            raise ConfigError(
                f"the environment variable {self.key_env} should hold the endpoint's key, and is not set "
                "(in a worker process it is only where WORKBENCH_WORKER_ENV names it)"
            )

    def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        temperature: float,
        top_p: float,
        max_tokens: int,
    ) -> Iterator[str | Reply]:
        """Ask for one reply: pieces of its text as they come, at last the whole. Raises EngineError."""
        choice = "auto" if self.calls == "native" else "none"
        offered = {"tools": list(tools), "tool_choice": choice} if tools else {}
        gathered = _Gathered()
        chunks = self._chunks(
            messages=list(messages),
            temperature=temperature,
            top_p=top_p,
            max_tokens=max_tokens,
            **offered,
        )
        try:
            for chunk in chunks:
                piece = gathered.take(chunk, self.url)
                if piece:
                    yield piece
        finally:
            chunks.close()
        yield gathered.reply(self.url)

    def _chunks(self, **request: Any) -> Iterator[Any]:
        try:
            import openai
        except ImportError as error:
            raise EngineError(
                "an endpoint is asked by the package openai, which is not installed here: "
                "pip install 'agent-rl-workbench[endpoint]'"
            ) from error
        import httpx

        from workbench.basics.bounded_http import MOST_VALUES, hooks

        with Deadline(self.deadline_s) as deadline:
            late = f"{self.url}: no answer within {self.deadline_s:g} s"
            bounded = httpx.Client(
                event_hooks=hooks(self.url, deadline=deadline, most_values=MOST_VALUES),
                follow_redirects=False,
                timeout=self.deadline_s,
            )
            try:
                with (
                    bounded,
                    openai.OpenAI(
                        base_url=self.url,
                        api_key=os.environ.get(self.key_env, "") or "none",
                        timeout=self.deadline_s,
                        max_retries=0,
                        http_client=bounded,
                    ) as client,
                ):
                    with client.chat.completions.create(
                        model=self.model, stream=True, **request
                    ) as stream:
                        for chunk in stream:
                            late = f"{self.url}: the reply was not over after {self.deadline_s:g} s"
                            if deadline.passed:
                                break
                            yield chunk
            except Exception as error:  # whatever its layers raise: of openai, of httpx, of json
                raise EngineError(late if deadline.passed else self._failure(error)) from error
            if deadline.passed:  # and what broke was taken for the end
                raise EngineError(late)

    def _failure(self, error: Exception) -> str:
        """Says what failed, with a remedy."""
        import openai

        from workbench.basics.bounded_http import in_short

        detail = in_short(error)
        if type(cause := error.__cause__ or error).__name__ == "AnswerError":
            return str(cause)
        if isinstance(error, openai.APITimeoutError) or "Timeout" in type(error).__name__:
            return f"{self.url}: no answer within {self.deadline_s:g} s"
        if isinstance(error, openai.APIConnectionError):
            cause = in_short(error.__cause__ or error)
            return f"{self.url} cannot be reached ({cause}); is the server running, and is the address right?"
        status = getattr(error, "status_code", None)
        if status in (401, 403):
            key = "no key (name the variable that holds it: --key-env)"
            if self.key_env:
                key = f"the key in {self.key_env}"
            return f"{self.url} refused {key}: {detail}"
        if status == 404:
            return f"{self.url} knows no model {self.model!r} or no such address (most end in /v1): {detail}"
        if status == 400 and "tool" in detail.lower():
            return (
                f"{self.url} does not take the request: {detail}. If it cannot read tool calls itself, have them "
                "read here: --calls text"
            )
        if status is not None:
            return f"{self.url} answered with HTTP status {status}: {detail}"
        if type(error).__module__.startswith("http"):
            return f"{self.url}: the connection broke in the middle of a reply ({type(error).__name__}: {detail})"
        return (
            f"{self.url} sent what is no OpenAI-compatible reply ({type(error).__name__}: {detail})"
        )


class _Gathered:
    """A reply as far as it has come; everything is checked before it is used."""

    def __init__(self) -> None:
        self.text = ""
        self.finish = ""
        self.size = 0
        self.calls: dict[int, dict[str, str]] = {}

    def take(self, chunk: Any, url: str) -> str:
        """One chunk; returns the text that it adds."""
        choices = getattr(chunk, "choices", None)
        if not isinstance(choices, list):
            raise EngineError(f"{url} sent a chunk without choices: {_short(chunk)}")
        if not choices:
            return ""  # of the numbers at the end
        delta = getattr(choices[0], "delta", None)
        finish = getattr(choices[0], "finish_reason", None)
        content = getattr(delta, "content", None) or ""
        calls = getattr(delta, "tool_calls", None) or []
        if not isinstance(content, str) or not isinstance(calls, list):
            raise EngineError(
                f"{url} sent a chunk whose delta holds neither text nor tool calls: {_short(chunk)}"
            )
        for call in calls:
            self._take_call(call, url)
        if isinstance(finish, str):
            self.finish = finish
        self.text += content
        self.size += len(content)
        if self.size > MOST_CHARACTERS:
            raise EngineError(f"{url} sent more than {MOST_CHARACTERS:,} characters in one reply")
        return content

    def _take_call(self, call: Any, url: str) -> None:
        place = getattr(call, "index", None)
        function = getattr(call, "function", None)
        place = len(self.calls) if place is None else place
        parts = {
            "id": getattr(call, "id", None),
            "name": getattr(function, "name", None),
            "arguments": getattr(function, "arguments", None),
        }
        are_texts = all(part is None or isinstance(part, str) for part in parts.values())
        if not isinstance(place, int) or not are_texts:
            raise EngineError(f"{url} sent an invalid tool call: {_short(call)}")
        kept = self.calls.setdefault(place, {"id": "", "name": "", "arguments": ""})
        kept["id"] = parts["id"] or kept["id"]
        kept["name"] += parts["name"] or ""
        kept["arguments"] += parts["arguments"] or ""
        self.size += len(parts["arguments"] or "")

    def reply(self, url: str) -> Reply:
        if not self.finish:
            raise EngineError(f"{url} ended its reply in the middle (no finish_reason came)")
        calls = tuple(
            NativeCall(call["id"] or f"call_{place}", call["name"], call["arguments"])
            for place, call in sorted(self.calls.items())
        )
        return Reply(self.text, calls, "length" if self.finish == "length" else "stop")


def _short(value: Any) -> str:
    from workbench.basics.bounded_http import in_short

    return in_short(repr(value))
