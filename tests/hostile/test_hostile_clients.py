"""Servers of this package under clients that send anything, slowly, or do not take what they asked for: each call is answered
in words, nothing is said on stderr, and a healthy client is answered beside them."""

from __future__ import annotations

import json
import queue
import socket
import threading
import time
from contextlib import contextmanager, suppress

import pytest
from served import served

from tests.counts import reduced
from tests.hostile.clients import ASK, REQUESTS, bodies, request, said_to
from workbench.chat import ChatFormat
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy
from workbench.extensions.agents import bounded_protocol
from workbench.extensions.agents import gateway as gateway_module
from workbench.extensions.agents.gateway import HttpCall, OpenAttempt, gateway
from workbench.extensions.agents.messages import GivenAnswer
from workbench.extensions.agents.wires.fields import FieldRules
from workbench.extensions.servers import bounded_server, chat_server
from workbench.extensions.servers.bounded_server import BoundedHandler, BoundedServer
from workbench.extensions.servers.chat_server import ChatServer, ServedPolicy
from workbench.extensions.servers.search_server import RetrievalServer
from workbench.tools.retrieval import Bm25, Corpus
from workbench.tools.retrieval.base import Document

KEY = "correct-horse-battery"
SOON_S = 5.0
BODIES = bodies()
ROUTES = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
# Each was an error of Python's own, or minutes of work, until it was tried.
ONCE_WRONG = {
    "a message's role is an empty list",
    "a message's role is an object",
    "a role nests 300 deep",
    "parameters nest 300 deep",
    "parameters nest 900 deep",
    "arguments nest 995 deep",
    "a text of 7 MB",
    "a text of 7 MB without a blank",
    "stops of 7 MB",
    "model is half a surrogate",
    "tools is zero",
    "tool_choice is a list of objects",
    "a trillion tokens of a million replies",
}
ONCE_SENT = {"a length and chunks", "two lengths", "no key", "a key of half characters", "a page"}


@pytest.fixture(scope="module")
def chat_at():
    policy = load_policy("search-tiny")
    engine = open_engine(TransformersEngineConfig(), policy.model)
    chat = ChatFormat.from_tokenizer(policy.tokenizer)
    with ChatServer(ServedPolicy("policy", engine, chat), key=KEY) as server, served(server):
        yield server


@pytest.fixture(scope="module")
def gateway_at():
    inbox: queue.SimpleQueue[HttpCall | None] = queue.SimpleQueue()
    attempt = OpenAttempt("task#0", inbox, FieldRules())
    url = gateway().open(attempt)

    def answer() -> None:
        while (call := inbox.get()) is not None:
            call.answer.set_result(GivenAnswer("yes", (), "msg_1", "stop"))

    threading.Thread(target=answer, daemon=True).start()
    yield attempt, url.rpartition("/")[2]
    gateway().close(attempt)
    inbox.put(None)


def wrong_with(address: tuple[str, int], data: bytes) -> list[str]:
    """What is wrong with the answer to a request."""
    answer, seconds = said_to(address, data)
    head, _, body = answer.partition(b"\r\n\r\n")
    wrong = [] if answer else ["no answer"]
    wrong += ["status 500"] if b" 500 " in head[:20] else []
    wrong += [f"{seconds:.1f} s"] if seconds > SOON_S else []
    wrong += ["no JSON"] if b" 400 " in head[:20] and b'"error"' not in body else []
    return wrong


@pytest.mark.parametrize("name", reduced(BODIES, ONCE_WRONG))
def test_the_chat_server_answers_any_body(chat_at, name, capfd):
    data = request(ROUTES[0], KEY, BODIES[name])
    assert wrong_with(chat_at.server_address[:2], data) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", reduced(BODIES, ONCE_WRONG))
def test_the_gateway_answers_any_body(gateway_at, name):
    attempt, id = gateway_at
    for route in ROUTES:
        data = request(f"/{id}{route}", attempt.secret, BODIES[name])
        assert wrong_with(("127.0.0.1", gateway().port), data) == []


@pytest.mark.parametrize("name", reduced(BODIES, set()))
def test_the_retriever_answers_any_body(name, capfd):
    corpus = Corpus((Document("1", "Mill", "the mill stands"),))
    with served(RetrievalServer(Bm25(corpus))) as server:
        data = request("/search", "", BODIES[name].replace(b'"model"', b'"query"', 1))
        assert wrong_with(server.server_address[:2], data) == []
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", reduced(REQUESTS, ONCE_SENT))
def test_any_request_leaves_the_chat_server_well(chat_at, name, capfd):
    """Some wait for a rest that does not come: they are given up later."""
    said_to(chat_at.server_address[:2], REQUESTS[name](ROUTES[0], KEY), wait_s=1.0)
    is_well(chat_at)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", reduced(REQUESTS, ONCE_SENT))
def test_any_request_leaves_the_gateway_well(gateway_at, name):
    attempt, id = gateway_at
    address = ("127.0.0.1", gateway().port)
    said_to(address, REQUESTS[name](f"/{id}{ROUTES[0]}", attempt.secret), wait_s=1.0)
    models = request(f"/{id}/v1/models", attempt.secret, b"", "GET")
    assert said_to(address, models)[0].startswith(b"HTTP/1.1 200")


def is_well(server: BoundedServer) -> None:
    models = request("/v1/models", KEY, b"", "GET")
    answer, seconds = said_to(server.server_address[:2], models)
    assert answer.startswith(b"HTTP/1.1 200") and seconds < SOON_S


def test_negative_control_what_nobody_foresaw_is_seen(chat_at, monkeypatch, capfd):
    def broken(*_, **__):
        raise TypeError("unhashable type: 'list'")

    monkeypatch.setattr(chat_server, "read_request", broken)
    data = request(ROUTES[0], KEY, BODIES["seed is zero"])
    assert "status 500" in wrong_with(chat_at.server_address[:2], data)
    said = capfd.readouterr().err
    assert "TypeError" in said and "Traceback" not in said and said.count("\n") == 1


# ------------------------------------------------------------------------------------------------ slow ones


class _Large(BoundedHandler):
    def do_GET(self) -> None:
        self.server.has_asked(self.connection)
        if self.path == "/small":
            return self.answer(200, {})
        self.answer(200, {"text": "x" * 30_000_000})

    def do_POST(self) -> None:
        if self.body() is not None:
            self.answer(200, {})


@contextmanager
def full_of_clients_that_take_nothing():
    """A server of three connections, each of a client that asked for much and does not read it."""
    server = BoundedServer(_Large, "127.0.0.1", 0, key=None, danger="x", most_connections=3)
    with served(server):
        lines = [socket.create_connection(server.server_address[:2]) for _ in range(3)]
        for line in lines:
            line.sendall(request("/", "", b"", "GET"))
        until = time.monotonic() + 10
        while len(server._sending) < 3 and time.monotonic() < until:
            time.sleep(0.01)
        try:
            yield server
        finally:
            for line in lines:
                line.close()


def small(server: BoundedServer) -> bytes:
    with suppress(ConnectionError):
        answer = said_to(server.server_address[:2], request("/small", "", b"", "GET"), wait_s=4.0)
        return answer[0]
    return b""


def test_clients_that_take_nothing_give_way(monkeypatch):
    monkeypatch.setattr(bounded_server, "TAKEN_S", 0.1)
    with full_of_clients_that_take_nothing() as server:
        assert small(server).startswith(b"HTTP/1.1 200")


def test_negative_control_without_that_nobody_else_is_answered(monkeypatch):
    monkeypatch.setattr(bounded_server, "TAKEN_S", 1e9)
    monkeypatch.setattr(bounded_server, "ROOM_S", 0.3)
    with full_of_clients_that_take_nothing() as server:
        assert small(server) == b""


@pytest.mark.parametrize("key, status", [("x" * 20, b"401"), (KEY, b"503")])
def test_bodies_that_are_held_have_a_bound_and_a_strangers_is_not_waited_for(key, status):
    """Six bodies of 32,000,000 bytes, of which the first was sent: of strangers none is kept, else four."""

    class Wide(_Large):
        most_body_bytes = 32_000_000

        def do_POST(self) -> None:
            if self.body() is not None and self.may_ask():
                self.answer(200, {})

    server = BoundedServer(Wide, "127.0.0.1", 0, key=KEY, danger="x")
    with served(server):
        lines = [socket.create_connection(server.server_address[:2], timeout=5) for _ in range(6)]
        for line in lines:
            line.sendall(request("/", key, b"x", length=32_000_000))
        lines[-1].settimeout(5)
        assert status in lines[-1].recv(100)
        assert server._held == (4 * 32_000_000 if key == KEY else 0)
        for line in lines:
            line.close()
        until = time.monotonic() + 5
        while server._held and time.monotonic() < until:
            time.sleep(0.01)
        assert server._held == 0


def test_a_client_that_leaves_is_noticed_while_tokens_come(chat_at, monkeypatch):
    """Also where none of them is waited for, and where it had sent more than one request."""
    monkeypatch.setattr(chat_server, "WAIT_S", 0.2)
    poll = chat_at.policy.engine.poll
    monkeypatch.setattr(chat_at.policy.engine, "poll", lambda: (time.sleep(0.02), poll())[1])
    body = json.dumps(
        {"model": "policy", "messages": [ASK], "temperature": 2, "max_tokens": 2000, "n": 8}
    ).encode()
    line = socket.create_connection(chat_at.server_address[:2])
    line.sendall(request(ROUTES[0], KEY, body) * 2)
    until = time.monotonic() + 5
    while not chat_at.sampler._turns and time.monotonic() < until:
        time.sleep(0.01)
    assert chat_at.sampler._turns
    line.close()
    until = time.monotonic() + 2
    while chat_at.sampler._turns and time.monotonic() < until:
        time.sleep(0.01)
    assert not chat_at.sampler._turns and chat_at.sampler._count == 0


@pytest.fixture
def quick_gateway(monkeypatch):
    monkeypatch.setattr(bounded_protocol, "LOOK_S", 0.05)
    monkeypatch.setattr(bounded_protocol, "IDLE_S", 0.3)


def has_ended(line: socket.socket, seconds: float = 5.0) -> bool:
    line.settimeout(seconds)
    try:
        return line.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


@pytest.mark.parametrize("first", [b"", b"POST /x HTTP/1.1\r\nX: ", b"SSH-2.0\r\n"])
def test_the_gateway_does_not_wait_for_ever(quick_gateway, first):
    with socket.create_connection(("127.0.0.1", gateway().port)) as line:
        line.sendall(first)
        assert has_ended(line)


def test_negative_control_a_call_that_is_answered_late_is_waited_for(quick_gateway):
    inbox: queue.SimpleQueue[HttpCall] = queue.SimpleQueue()
    attempt = OpenAttempt("task#1", inbox, FieldRules())
    route = f"/{gateway().open(attempt).rpartition('/')[2]}{ROUTES[0]}"
    body = json.dumps({"messages": [ASK]}).encode()
    with socket.create_connection(("127.0.0.1", gateway().port), timeout=5) as line:
        line.sendall(request(route, attempt.secret, body))
        call = inbox.get(timeout=5)
        time.sleep(0.8)
        call.answer.set_result(GivenAnswer("yes", (), "msg_1", "stop"))
        assert line.recv(100).startswith(b"HTTP/1.1 200")
    gateway().close(attempt)


@pytest.mark.parametrize("most, status", [(2_000, b"413"), (1 << 30, b"200")])
def test_all_calls_of_an_attempt_have_a_bound_together(gateway_at, monkeypatch, most, status):
    """The second value is the negative control. A call that is delivered again takes no more room."""
    attempt, id = gateway_at
    monkeypatch.setattr(gateway_module, "MOST_KEPT_BYTES", attempt.kept + most)
    address = ("127.0.0.1", gateway().port)
    for text in ("a" * 1_500, "b" * 1_500):
        body = json.dumps({"messages": [{**ASK, "content": text}]}).encode()
        answer, _ = said_to(address, request(f"/{id}{ROUTES[0]}", attempt.secret, body))
    assert status in answer[:20]


def test_too_many_connections_to_the_gateway_close_each_other(monkeypatch):
    monkeypatch.setattr(bounded_protocol, "MOST_CONNECTIONS", 4)
    address = ("127.0.0.1", gateway().port)
    lines = [socket.create_connection(address) for _ in range(12)]
    assert has_ended(lines[0]) and not has_ended(lines[-1], 0.05)
    nothing = request("/x", "", b"", "GET")
    assert said_to(address, nothing)[0].startswith(b"HTTP/1.1 404")
    for line in lines:
        line.close()


def test_a_text_that_cannot_fit_is_no_tokens_first(chat_at, monkeypatch):
    def never(*_, **__):
        raise AssertionError("it was made into tokens")

    monkeypatch.setattr(chat_at.history, "prompt", never)
    data = request(ROUTES[0], KEY, BODIES["a text of 7 MB"])
    answer, _ = said_to(chat_at.server_address[:2], data)
    assert b"context_length_exceeded" in answer
