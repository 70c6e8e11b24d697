"""Who is answered by an HTTP server of ours: whoever has the key or is on this machine, and no page of a browser."""

from __future__ import annotations

import asyncio
import http.client
import json
from contextlib import contextmanager

import pytest
from served import served

from workbench.extensions.servers.bounded_server import (
    BoundedHandler,
    BoundedServer,
    is_plain_host,
)
from workbench.extensions.servers.search_server import RetrievalServer
from workbench.extensions.servers.serve_command import _of_clients
from workbench.extensions.vllm_server.client import ServerClient
from workbench.extensions.vllm_server.guard import KEY, PLACE, ServerGuard
from workbench.extensions.vllm_server.process import HOST, ServerProcess
from workbench.tools.retrieval.base import Document, Hit

SECRET = "correct-horse-battery"


class Handler(BoundedHandler):
    def do_GET(self) -> None:
        if self.may_ask():
            self.answer(200, {"secret": 1})

    def do_POST(self) -> None:
        if self.body() is not None and self.may_ask() and self.is_json():
            self.answer(200, {"secret": 1})


@contextmanager
def serving(key=None):
    with served(BoundedServer(Handler, "127.0.0.1", 0, key=key, danger="reads it")) as server:
        yield server


def asked(server, headers, method="GET", path="/", body=None):
    """The status of a request with exactly these headers."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=5)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    return answer.status, text


HERE = ("Host", "127.0.0.1:8000")
JSON = ("Content-Type", "application/json")
PAGES = {
    "a rebound name": [("Host", "evil.example")],
    "a rebound name with a port": [("Host", "evil.example:8000")],
    "an address as a part of a name": [("Host", "127.0.0.1.evil.example")],
    "a name that looks like localhost": [("Host", "localhost.evil.example")],
    "somebody and an address": [("Host", "127.0.0.1@evil.example")],
    "two hosts": [HERE, ("Host", "evil.example")],
    "a page of another origin": [HERE, ("Origin", "http://evil.example")],
    "a page from a file": [HERE, ("Origin", "null")],
    "a page of this machine": [HERE, ("Origin", "http://127.0.0.1:3000")],
    "no host that can be read": [("Host", "[::1")],
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.replace(" ", "-"))
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_page_is_not_answered(page, method):
    with serving() as server:
        headers = [*PAGES[page], JSON, ("Content-Length", "2")]
        status, text = asked(server, headers, method, body=b"{}")
    assert status == 403 and b"secret" not in text and b"Access-Control" not in text


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "localhost:1", "[::1]:80", "10.0.0.7"]
)
def test_negative_control_whoever_means_this_server_is_answered(host):
    with serving() as server:
        assert asked(server, [("Host", host)])[0] == 200
        assert asked(server, [])[0] == 200  # HTTP/1.0 has none
    assert is_plain_host(host)


def test_with_a_key_the_key_counts_whatever_the_machine_is_called():
    with serving(SECRET) as server:
        key = ("Authorization", f"Bearer {SECRET}")
        assert asked(server, [("Host", "gpu-box:8000"), key])[0] == 200
        assert asked(server, [("Host", "evil.example")])[0] == 401
        assert asked(server, [HERE, key, ("Origin", "http://evil.example")])[0] == 403


@pytest.mark.parametrize(
    "headers",
    [
        [("Content-Length", "2"), ("Content-Length", "2")],
        [("Content-Length", "2"), ("Transfer-Encoding", "chunked")],
        [("Content-Length", "\u0662")],
        [],
    ],
)
def test_a_body_of_two_lengths_is_refused(headers):
    with serving() as server:
        encoded = [(name, value.encode("utf-8")) for name, value in headers]
        assert asked(server, [HERE, JSON, *encoded], "POST", body=b"{}")[0] == 411


def test_the_corpus_of_a_retriever_without_a_key_is_not_read_by_a_page():
    class Searcher:
        def search(self, query, k):
            return [Hit(Document("1", "title", "secret text"), 1.0)]

    with served(RetrievalServer(Searcher())) as server:
        body = json.dumps({"query": "x"}).encode()
        length = ("Content-Length", str(len(body)))
        for page in PAGES.values():
            assert asked(server, [*page, JSON, length], "POST", "/search", body)[0] == 403
        status, text = asked(server, [HERE, JSON, length], "POST", "/search", body)
        assert status == 200 and b"secret text" in text


# ------------------------------------------------------------------------------------------------ vLLM's server


def through(guard, headers, kind="http"):
    """(what was sent, whether the application was reached)."""
    sent, reached = [], []

    async def send(message):
        sent.append(message)

    async def app(scope, receive, send):
        reached.append(scope["type"])

    guard.app = app
    scope = {"type": kind, "path": "/update_weights", "headers": headers}
    asyncio.run(guard(scope, None, send))
    return sent, bool(reached)


@pytest.fixture
def guard(monkeypatch):
    monkeypatch.setenv(KEY, SECRET)
    return ServerGuard(None)


RIGHT = (b"authorization", f"Bearer {SECRET}".encode())


@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([], 401),
        ([(b"authorization", b"Bearer wrong")], 401),
        ([(b"authorization", b"")], 401),
        ([RIGHT, RIGHT], 401),
        ([RIGHT, (b"Origin", b"http://evil.example")], 403),
        ([(b"origin", b"null")], 403),
    ],
)
def test_no_route_of_vllm_is_reached_without_the_key(guard, headers, status, kind):
    sent, reached = through(guard, headers, kind)
    assert not reached
    assert sent[0] == {"type": "websocket.close", "code": 1008} or sent[0]["status"] == status


def test_negative_control_with_the_key_it_is_reached(guard):
    assert through(guard, [RIGHT]) == ([], True)
    assert through(guard, [], "lifespan") == ([], True)  # the server's own beginning and end


def test_a_guard_without_a_key_does_not_begin(monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with pytest.raises(ValueError, match=KEY):
        ServerGuard(None)


def test_a_server_of_ours_is_started_with_the_guard_and_a_key_of_its_own(monkeypatch):
    commands = []

    def started(command, env, **_):
        commands.append((command, env))
        raise OSError("not here")

    monkeypatch.setattr("workbench.extensions.vllm_server.process.subprocess.Popen", started)
    keys = set()
    for _ in range(2):
        process = ServerProcess(lambda folder: None, {})
        with pytest.raises(OSError):
            process.start()
        command, env = commands[-1]
        words = " ".join(command)
        assert f"--middleware {PLACE}" in words and "--allowed-origins []" in words
        assert env[KEY] == process.key and process.key not in words  # others see a command line
        assert process.url.startswith(f"http://{HOST}:")
        keys.add(process.key)
        process.close()
    assert len(keys) == 2


def test_the_client_carries_the_key_and_says_where_it_is_refused():
    with serving(SECRET) as server:
        for key, good in ((SECRET, True), ("", False)):
            client = ServerClient(server.url, rows=1, answer_s=5.0, key=key)
            try:
                assert client.answers_at_all == good
            finally:
                client.close()


def test_serve_says_how_a_client_gets_the_key():
    assert _of_clients("abc") == "  export WORKBENCH_SERVE_KEY=abc\n"
