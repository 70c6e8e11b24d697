"""A searcher somewhere else: one that `workbench retriever` serves, or any server that speaks the same JSON.

What is asked and answered is on top of `server.py`; a result needs `text` (or `content`), the rest may be missing: without
an `id` a document is known by its title. Everything about the other side is bounded: one deadline for the whole call
(connecting, retries and a body that trickles in), and the bytes that are read. Whatever goes wrong is a SearchError with
cause and cure, which the tool executor turns into words that an agent can act on.

Nothing here is cached, and answers come by the wall clock: trajectories that search remotely are addressed, not bit-exact.
"""

from __future__ import annotations

import json
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpx

from workbench.basics.bounded_http import AnswerError, hooks
from workbench.basics.deadlines import Deadline
from workbench.basics.settings import above, at_least, check_settings
from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS, Document, Hit
from workbench.values.errors import ConfigError, SearchError

KEY_VARIABLE = "WORKBENCH_RETRIEVER_KEY"  # a key in a config would be stored with every run
HOSTS_VARIABLE = "WORKBENCH_RETRIEVER_HOSTS"  # whom it is for: a url comes from a config, which may be a stranger's
_RETRIED = (502, 503, 504)
_PORTS = {"http": 80, "https": 443}
_PAUSE_S = 0.05


@dataclass(frozen=True)
class RemoteSearcher:
    """Asks the server at `url`. The key, if it wants one, is read from the environment, WORKBENCH_RETRIEVER_KEY, and sent
    only to the servers that WORKBENCH_RETRIEVER_HOSTS names: http://HOST:PORT, separated by commas."""

    url: str
    deadline_s: Annotated[float, above(0), "of a whole search, in seconds of the wall clock"] = 5.0
    retries: Annotated[
        int,
        at_least(0, most=1_000),
        "of a connection that fails or breaks, and of an answer 502, 503 or 504, as "
        "long as there is time",
    ] = 2
    most_bytes: Annotated[int, at_least(1, most=1_000_000_000), "of an answer"] = 2_000_000
    key: str = field(default="", repr=False)  # taken along to the process that asks

    remote = True

    def __post_init__(self) -> None:
        parts = _split(self.url)
        if _origin(self.url) is None or parts.query or parts.fragment:
            raise ConfigError(
                f"a retriever is named by http://HOST:PORT (or https, and a path in front of /search), got "
                f"{self.url!r}"
            )
        check_settings(self)
        if not self.key:
            object.__setattr__(self, "key", key_for(self.url))

    def search(self, query: str, k: int) -> list[Hit]:
        """As in `Searcher`. Raises SearchError where there is no usable answer in time."""
        asked = json.dumps({"query": query[:MOST_QUERY_CHARACTERS], "k": k}).encode()
        return self._hits(self._ask("POST", "/search", asked), k)

    def health(self) -> Mapping[str, Any]:
        """The server's own description. Raises SearchError where it does not answer."""
        return self._ask("GET", "/health", None)

    def _ask(self, method: str, path: str, body: bytes | None) -> Mapping[str, Any]:
        with Deadline(self.deadline_s) as deadline:
            return self._ask_until(deadline, method, path, body)

    def _ask_until(
        self, deadline: Deadline, method: str, path: str, body: bytes | None
    ) -> Mapping[str, Any]:
        until = deadline.until
        last = ""
        for attempt in range(self.retries + 1):
            try:
                status, data = self._once(method, path, body, deadline)
            except AnswerError as error:
                raise SearchError(
                    f"{error}; is it a retriever? One is asked for fewer or shorter documents"
                ) from error
            except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
                last = str(error) or type(error).__name__
            else:
                if status not in _RETRIED:
                    return self._value(status, data)
                last = f"status {status}"
            pause = _PAUSE_S * 2**attempt
            if attempt == self.retries or time.monotonic() + pause >= until:
                break
            time.sleep(pause)
        if time.monotonic() >= until - _PAUSE_S:
            raise SearchError(
                f"{self.url} gave no whole answer within {self.deadline_s:g} s ({last}); is it overloaded?"
            )
        raise SearchError(
            f"{self.url} cannot be asked ({last}); is it running? workbench retriever --corpus FILE starts one"
        )

    def _once(
        self, method: str, path: str, body: bytes | None, deadline: Deadline
    ) -> tuple[int, bytes]:
        """Status and body of one answer. Raises httpx's errors, of which AnswerError is one."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json",
            "Connection": "close",
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        # The system's certificates, not the package's; without TLS there is nothing to check, and none are read.
        secure = self.url.startswith("https:")
        client = httpx.Client(
            event_hooks=hooks(self.url, deadline=deadline, most=self.most_bytes),
            follow_redirects=False,
            timeout=deadline.left,
            trust_env=False,
            verify=ssl.create_default_context() if secure else False,
        )
        with client:
            address = self.url.rstrip("/") + path
            response = client.request(method, address, content=body, headers=headers)
        if deadline.passed:  # what broke was taken for the end
            raise httpx.ReadTimeout("the connection ended in the middle of the answer")
        return response.status_code, response.content

    def _value(self, status: int, data: bytes) -> Mapping[str, Any]:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            value = None
        if status in (401, 403):
            raise SearchError(
                f"{self.url} wants another key (status {status}); put the one that it was started with into "
                f"the environment, {KEY_VARIABLE}, and whom it is for: {HOSTS_VARIABLE}={_origin(self.url)}"
            )
        if status != 200:
            error = value.get("error") if isinstance(value, dict) else None
            reason = f": {error[:200]}" if isinstance(error, str) else "; is it a retriever?"
            raise SearchError(f"{self.url} answered with status {status}{reason}")
        if not isinstance(value, dict):
            raise SearchError(
                f"{self.url} answered with {data[:60]!r}, expected a JSON object; is it a retriever?"
            )
        return value

    def _hits(self, answer: Mapping[str, Any], k: int) -> list[Hit]:
        results = answer.get("results")
        if not isinstance(results, list):
            raise SearchError(
                f"{self.url} answered without a list of 'results', but with {', '.join(map(str, answer))!r:.100}"
            )
        return [self._hit(number, entry) for number, entry in enumerate(results[:k])]

    def _hit(self, number: int, entry: Any) -> Hit:
        entry = entry if isinstance(entry, dict) else {}
        title = entry.get("title", "")
        text = entry.get("text", entry.get("content"))
        name = entry.get("id", title)
        score = entry.get("score", -float(number))
        are_texts = isinstance(title, str) and isinstance(text, str)
        is_number = isinstance(score, (int, float)) and not isinstance(score, bool)
        if not are_texts or not isinstance(name, (str, int)) or not is_number:
            raise SearchError(
                f"{self.url}, result {number}: expected id, title and text (texts) and score (a number), got "
                f"{str(entry)[:100]}"
            )
        return Hit(Document(str(name), title, text), float(score))


def key_for(url: str) -> str:
    """The user's key for the server at `url`; "" where the user named no key for it. Raises ConfigError for a list of
    servers that is none."""
    hosts = [host.strip() for host in os.environ.get(HOSTS_VARIABLE, "").split(",")]
    origins = set()
    for host in filter(None, hosts):
        origin = _origin(host)
        if origin is None:
            raise ConfigError(
                f"{HOSTS_VARIABLE} names the servers that {KEY_VARIABLE} is for, as http://HOST:PORT, separated by "
                f"commas; got {host!r} in it"
            )
        origins.add(origin)
    return os.environ.get(KEY_VARIABLE, "") if _origin(url) in origins else ""


def _origin(url: str) -> str | None:
    """Scheme, host and port of an address: what a key belongs to."""
    parts = _split(url)
    if parts is None or parts.scheme not in _PORTS:
        return None
    if not parts.hostname or parts.username is not None:
        return None
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORTS[parts.scheme]}"


def _split(url: Any) -> Any:
    try:
        parts = urlsplit(url)
        parts.port  # raises for what is no number
    except (ValueError, AttributeError, TypeError):
        return None
    return parts
