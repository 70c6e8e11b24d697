"""A searcher behind HTTP: one index in one process, asked by many. JSON in, JSON out; standard library only.

    POST /search   {"query": "who built the mill", "k": 3}          k may be missing; Content-Type: application/json
                   {"results": [{"id": "309", "title": "Halcyon mill", "text": "...", "score": 3.88}, ...]}   best first
    GET  /health   {"status": "ok", "searches": 17, ...what the server was told to say of its corpus}
    otherwise      {"error": "what was expected, what came"} with status 400, 401, 404, 405, 411, 413 or 415

Whoever can reach the port can read the corpus: who may ask, and the bounds, are those of `bounded_server`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from workbench.extensions.servers.bounded_server import BoundedHandler, BoundedServer, json_of
from workbench.tools.retrieval.base import MOST_QUERY_CHARACTERS, Hit, Searcher
from workbench.values.errors import ConfigError

MOST_K = 100
MOST_BODY_BYTES = 32_000  # a query of 1,000 characters, however it is escaped


class RetrievalServer(BoundedServer):
    """Serves `searcher`; a thread a connection, one search at a time. Raises ConfigError as `BoundedServer` does."""

    def __init__(
        self,
        searcher: Searcher,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        k: int = 5,
        key: str | None = None,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        if not 1 <= k <= MOST_K:
            raise ConfigError(f"a retriever answers with 1 to {MOST_K} documents, got k = {k}")
        self.searcher = searcher
        self.k = k
        self.about = dict(about or {})
        self.searches = 0
        self.lock = threading.Lock()
        super().__init__(_Handler, host, port, key=key, danger="reads the corpus")


def serve(searcher: Searcher, host: str = "127.0.0.1", port: int = 0, **settings: Any) -> None:
    """Serve until the process is told to stop (see `RetrievalServer`)."""
    with RetrievalServer(searcher, host, port, **settings) as server:
        server.serve_forever(poll_interval=0.1)


class _Handler(BoundedHandler):
    server_version = "workbench-retriever"
    most_body_bytes = MOST_BODY_BYTES
    server: RetrievalServer

    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if not self.may_ask():
            return
        if self.path != "/health":
            status = 405 if self.path == "/search" else 404
            words = f"expected GET /health or POST /search, got GET {self.path[:80]}"
            return self.refuse(status, words)
        health = {"status": "ok", "searches": self.server.searches, **self.server.about}
        self.answer(200, health)

    def do_POST(self) -> None:
        body = self.body()
        self.server.has_asked(self.connection)
        if body is None or not self.may_ask():
            return
        if self.path != "/search":
            return self.refuse(404, f"expected POST /search, got POST {self.path[:80]}")
        if not self.is_json():
            return
        query, k = self._question(body)
        if query is None:
            return
        with self.server.lock:
            hits = self.server.searcher.search(query, k)
            self.server.searches += 1
        self.answer(200, {"results": [_result(hit) for hit in hits]})

    def _question(self, body: bytes) -> tuple[str | None, int]:
        try:
            asked = json_of(body)
        except ValueError:
            asked = None
        if not isinstance(asked, dict):
            asked = {}
        query = asked.get("query")
        k = asked.get("k", self.server.k)
        if not isinstance(query, str) or len(query) > MOST_QUERY_CHARACTERS:
            words = f'expected {{"query": text of at most {MOST_QUERY_CHARACTERS} characters, "k": number}}'
            self.refuse(400, words)
            return None, 0
        if isinstance(k, bool) or not isinstance(k, int) or not 1 <= k <= MOST_K:
            self.refuse(400, f"expected k from 1 to {MOST_K}, a whole number")
            return None, 0
        return query, k


def _result(hit: Hit) -> dict[str, Any]:
    return {
        "id": hit.document.id,
        "title": hit.document.title,
        "text": hit.document.text,
        "score": hit.score,
    }
