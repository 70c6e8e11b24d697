"""A client against real servers: the one that `workbench retriever` starts, and ones that answer wrongly on purpose."""

from __future__ import annotations

import http.client
import json
import pickle
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from served import served as in_a_thread

from tests.command_kit import status_of
from workbench.extensions.servers import bounded_server as server_module
from workbench.extensions.servers.search_client import HOSTS_VARIABLE, KEY_VARIABLE, RemoteSearcher
from workbench.extensions.servers.search_server import RetrievalServer
from workbench.tools.handover import describe_tool
from workbench.tools.retrieval import Bm25, Corpus
from workbench.tools.search import SearchTool
from workbench.values.errors import ConfigError, SearchError
from workbench.worlds.qa.files import read_corpus

ROOT = Path(__file__).resolve().parents[2]
CORPUS_FILE = ROOT / "tests/qa/files/beir/corpus.jsonl"
KEY = "a-key-of-16-char"


@contextmanager
def command(*arguments: str):
    """(`workbench retriever ...` as a process, its url)."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "workbench.cli",
            "retriever",
            "--corpus",
            str(CORPUS_FILE),
            *arguments,
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = process.stdout.readline()
        url = re.search(r"http://\S+", line)
        yield process, url[0] if url else line + process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def served():
    with command("--port", "0", "--k", "4") as (process, url):
        yield process, url


@contextmanager
def here(**settings):
    """A server in a thread of this process."""
    server = RetrievalServer(Bm25(Corpus(tuple(read_corpus(CORPUS_FILE)))), **settings)
    with in_a_thread(server):
        yield server


@contextmanager
def answering(*answers: bytes, pause_s: float = 0.0):
    """The url of a server that sends these bytes to one connection after the other (None of HTTP is made sure), piece by
    piece where there is a pause; and how many connections there were."""
    listening = socket.create_server(("127.0.0.1", 0))
    connections: list[int] = []

    def run() -> None:
        for answer in answers:
            try:
                sock, _ = listening.accept()
            except OSError:
                return
            connections.append(1)
            with sock:
                sock.recv(65536)
                try:
                    for start in range(0, len(answer), 1 if pause_s else len(answer) or 1):
                        sock.sendall(answer[start : start + 1] if pause_s else answer)
                        time.sleep(pause_s)
                    sock.shutdown(socket.SHUT_WR)
                    sock.settimeout(2)
                    while sock.recv(
                        65536
                    ):  # closed with a request unread, the connection would be reset instead
                        pass
                except OSError:
                    pass

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", connections
    finally:
        listening.close()


def http_answer(value: object, status: str = "200 OK") -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def post(url: str, body: bytes | None, path: str = "/search", **headers: str) -> tuple[int, dict]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=10)
    connection.request("POST", path, body, {"Content-Type": "application/json"} | headers)
    response = connection.getresponse()
    value = response.status, json.loads(response.read())
    connection.close()
    return value


# ------------------------------------------------------------------------------------------------ the real process


def test_a_remote_search_is_the_search_in_this_process(served):
    local, remote = Bm25(Corpus(tuple(read_corpus(CORPUS_FILE)))), RemoteSearcher(served[1])
    for query in ("Ysolde Marr", "who built the mill?", 'Tarn — "Osk"', "nobody knows", ""):
        assert remote.search(query, 3) == local.search(query, 3)
    assert remote.health()["documents"] == 7 and remote.health()["status"] == "ok"


def test_a_tool_over_it_is_not_trusted_and_travels(served):
    tool = pickle.loads(pickle.dumps(SearchTool(RemoteSearcher(served[1]), k=1)))
    assert not tool.trusted and tool.call({"query": "wooden cutter"}).value == {"documents": ["39"]}


def test_requests_that_are_not_as_agreed_are_answered_with_what_was_expected(served):
    url = served[1]
    question = json.dumps({"query": "mill"}).encode()
    assert [r["id"] for r in post(url, question)[1]["results"]] == ["309"]
    for wrong in (
        b"",
        b"{",
        b"[]",
        b'{"query": 3}',
        json.dumps({"query": "x" * 1001}).encode(),
        b"[" * 20000,
    ):
        assert post(url, wrong)[0] == 400 and "expected" in post(url, wrong)[1]["error"]
    for k in (0, 101, "3", True, None):
        assert post(url, json.dumps({"query": "x", "k": k}).encode())[0] == 400
    assert post(url, question, "/other")[0] == 404
    assert post(url, b"x" * 40_000)[0] == 413
    assert post(url, question, **{"Content-Type": "text/plain"})[0] == 415
    assert post(url, question)[0] == 200  # and it still serves


def test_sigterm_ends_it_in_peace(tmp_path):
    with command() as (process, url):
        assert RemoteSearcher(url).search("mill", 1)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, err) == (0, "") and "1 search" in out
    with pytest.raises(SearchError, match="cannot be asked .*is it running"):
        RemoteSearcher(url, deadline_s=2).search("mill", 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--host", "0.0.0.0"), "can be reached from other machines"),
        (("--host", "0.0.0.0", "--key", "short"), "at least 12 printable"),
        (("--k", "0"), "a whole number, at least 1"),
        (("--searcher", "dense"), "--encoder"),
        (("--index", "x"), "--searcher dense"),
    ],
)
def test_what_the_command_refuses(arguments, said, monkeypatch, capsys):
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert status_of(["retriever", "--corpus", CORPUS_FILE, *arguments]) == 2
    assert said in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ keys


def test_a_key_is_demanded_where_there_is_one(monkeypatch):
    with here(host="127.0.0.1", key=KEY) as server:
        for said in (
            {},
            {"Authorization": KEY},
            {"Authorization": f"Bearer {KEY}x"},
            {"Authorization": "Bearer \xff"},
        ):
            assert post(server.url, b'{"query": "mill"}', **said)[0] == 401
        monkeypatch.delenv(KEY_VARIABLE, raising=False)
        for ask in (
            lambda: RemoteSearcher(server.url).search("mill", 1),
            lambda: RemoteSearcher(server.url).health(),
        ):
            with pytest.raises(SearchError, match=f"wants another key .*{KEY_VARIABLE}"):
                ask()
        monkeypatch.setenv(KEY_VARIABLE, KEY)
        monkeypatch.setenv(HOSTS_VARIABLE, f"http://10.0.0.7:8080, {server.url}/")
        assert RemoteSearcher(server.url).search("mill", 1)[0].document.id == "309"
        assert KEY not in repr(RemoteSearcher(server.url))


@pytest.mark.parametrize(
    ("named", "is_sent"),
    [
        ("", False),
        ("http://127.0.0.1", False),
        ("http://localhost:{port}", False),
        ("https://127.0.0.1:{port}", False),
        ("http://127.0.0.1:{port}", True),
        ("http://10.0.0.7:8080,http://127.0.0.1:{port}/", True),
    ],
)
def test_the_key_goes_to_the_servers_that_the_user_named_and_to_no_other(
    named, is_sent, monkeypatch
):
    """A url may come out of a stranger's configuration (invariant 16). The tool over it takes the key along to its worker."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with here(host="127.0.0.1", key=KEY) as server:
        monkeypatch.setenv(HOSTS_VARIABLE, named.format(port=server.server_port))
        told = json.dumps(describe_tool(SearchTool(RemoteSearcher(server.url))).content)
        assert (KEY in told) is is_sent
        if is_sent:
            assert RemoteSearcher(server.url).search("mill", 1)
        else:
            with pytest.raises(SearchError, match=f"{HOSTS_VARIABLE}={server.url}"):
                RemoteSearcher(server.url).search("mill", 1)


@pytest.mark.parametrize("named", ["localhost:8000", "http://", "http://u:p@a", "x"])
def test_a_list_of_servers_that_is_none_is_refused(named, monkeypatch):
    monkeypatch.setenv(HOSTS_VARIABLE, named)
    with pytest.raises(ConfigError, match=f"{HOSTS_VARIABLE} names the servers"):
        RemoteSearcher("http://127.0.0.1:1")


def test_only_the_loopback_device_needs_no_key():
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org", ""):
        with pytest.raises(ConfigError, match="reached from other machines"):
            RetrievalServer(None, host)
    with here() as server, pytest.raises(ConfigError, match="cannot listen on 127.0.0.1 port"):
        RetrievalServer(None, port=server.server_port)


def is_closed(sock):
    sock.settimeout(5)
    with suppress(OSError):
        return sock.recv(1) == b""
    return False


def test_slow_connections_keep_nobody_out_and_a_request_has_a_deadline(monkeypatch):
    """Who holds a connection without asking anything is closed for who asks, the one that has waited longest first."""
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(server_module, "IDLE_S", 2.0)
    with here() as server, ExitStack() as held:
        slow = [
            held.enter_context(socket.create_connection(server.server_address)) for _ in range(2)
        ]
        for sock in slow:
            sock.sendall(b"POST /search HTTP/1.1\r\n")
        started = time.monotonic()
        assert RemoteSearcher(server.url, retries=0).search("mill", 1)
        assert is_closed(slow[0])
        while time.monotonic() < started + 10 and not select.select([slow[1]], [], [], 0.1)[0]:
            slow[1].sendall(b"X")  # a byte now and then keeps it no longer
        assert time.monotonic() > started + 1 and is_closed(slow[1])


def test_who_has_asked_is_not_closed_for_another(monkeypatch):
    """Negative control: as many as there may be are being answered, and the next one has to come again."""
    monkeypatch.setattr(server_module, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(server_module, "ROOM_S", 0.2)
    with here() as server:
        found, may_go = [], threading.Event()
        search = server.searcher.search
        monkeypatch.setattr(
            server.searcher,
            "search",
            lambda query, k: may_go.wait(30) and search(query, k),
            raising=False,
        )
        asking = [
            threading.Thread(
                target=lambda: found.append(
                    RemoteSearcher(server.url, deadline_s=30, retries=0).search("mill", 1)
                )
            )
            for _ in range(2)
        ]
        for thread in asking:
            thread.start()
        until = time.monotonic() + 10
        while server._free._value and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(0.2)
        with pytest.raises(SearchError, match="cannot be asked"):
            RemoteSearcher(server.url, retries=0).search("mill", 1)
        may_go.set()
        for thread in asking:
            thread.join()
    assert len(found) == 2


def test_a_kept_connection_is_answered_at_once():
    """Head and body are two writes: with Nagle's algorithm each answer would take 40 ms."""
    with here() as server:
        connection = http.client.HTTPConnection(*server.server_address, timeout=10)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            connection.request(
                "POST", "/search", b'{"query": "mill"}', {"Content-Type": "application/json"}
            )
            assert connection.getresponse().read()
            times.append(time.perf_counter() - started)
        connection.close()
    assert min(times[5:]) < 0.02, sorted(times)


# ------------------------------------------------------------------------------------------------ servers that fail


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (http_answer({"results": [{"title": "T"}]}), "result 0: expected id, title and text"),
        (http_answer({"results": "none"}), "without a list of 'results'"),
        (http_answer([1]), "expected a JSON object"),
        (http_answer(b"<html>"), "expected a JSON object; is it a retriever"),
        (http_answer({"error": "expected k"}, "400 Bad Request"), "status 400: expected k"),
        (http_answer(b"moved", "302 Found"), "status 302; is it a retriever"),
        (http_answer({"results": [], "filler": "x" * 5000}), "more than 4,000 bytes"),
        (b"SSH-2.0-OpenSSH_9.9\r\n", "cannot be asked"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", "cannot be asked"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{}", "received 2 bytes, expected 99"),
        (b"", "cannot be asked"),
    ],
)
def test_a_wrong_answer_is_an_error_with_cause_and_cure(answer, said):
    with (
        answering(answer, answer, answer) as (url, _),
        pytest.raises(SearchError, match=said) as error,
    ):
        RemoteSearcher(url, deadline_s=5, most_bytes=4000).search("x", 2)
    assert url in str(error.value)


def test_what_may_pass_by_itself_is_asked_again_and_nothing_else():
    good = http_answer(
        {
            "results": [
                {"id": 7, "title": "T", "content": "text"},
                {"title": "U", "text": "", "score": 2},
            ]
        }
    )
    busy = http_answer({}, "503 Service Unavailable")
    with answering(busy, b"", good) as (url, connections):
        found = RemoteSearcher(url).search("x", 5)
    assert [(h.document.id, h.document.text, h.score) for h in found] == [
        ("7", "text", 0.0),
        ("U", "", 2.0),
    ]
    assert len(connections) == 3
    for answers, retries, asked in (
        ((busy, busy, busy), 1, 2),
        ((http_answer({}, "404 Not Found"), good), 2, 1),
    ):
        with answering(*answers) as (url, connections), pytest.raises(SearchError):
            RemoteSearcher(url, retries=retries).search("x", 1)
        assert len(connections) == asked


@pytest.mark.parametrize(
    "answer", [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 110, b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 110]
)
def test_an_answer_that_trickles_in_is_cut_at_the_deadline(answer):
    """A byte every 0.1 s: no single wait is long, together they take 13 s."""
    with answering(answer, answer, pause_s=0.1) as (url, _):
        started = time.monotonic()
        with pytest.raises(SearchError, match="no whole answer within 0.4 s"):
            RemoteSearcher(url, deadline_s=0.4).search("x", 1)
        assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://a",
        "http://",
        "http://a:port",
        "http://a/?q=1",
        "http://u:p@a",
        3,
    ],
)
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="http://HOST:PORT"):
        RemoteSearcher(url)
