"""Every client is back within its deadline, whatever a server does, and keeps little of it in memory (invariant 16).

python -m tests.hostile.test_misbehaving_servers [out.json]    every client and server, timed: `make hostile`
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.counts import reduced
from tests.hostile.servers import MISBEHAVING, sends_on, serving, sound_mcp_server
from workbench.engines.endpoint import Endpoint
from workbench.extensions.servers.mcp import mount
from workbench.extensions.servers.search_client import HOSTS_VARIABLE, KEY_VARIABLE, RemoteSearcher
from workbench.extensions.vllm_server.client import ServerClient
from workbench.tools.executor import ToolLimits
from workbench.tools.shared_workers import shared_workers
from workbench.values.errors import EngineError, SearchError, ToolError

DEADLINE_S = 1.0
LATE_S = 5.0  # servers are threads of this process, and other work goes on beside: a hang is 30 s and more
PROMISED_S = 0.5  # what the sweep holds a client to, the best of TRIES
TRIES = 3
MOST_MB = 64
KEY = "sk-canary-0123456789"


def ask_endpoint(address: str) -> None:
    with pytest.raises(EngineError):
        for _ in Endpoint(f"{address}/v1", "m", deadline_s=DEADLINE_S).stream(
            [{"role": "user", "content": "hi"}], temperature=1.0, top_p=1.0, max_tokens=5
        ):
            pass


def ask_retriever(address: str) -> None:
    with pytest.raises(SearchError):
        RemoteSearcher(address, deadline_s=DEADLINE_S).search("x", 1)


def ask_for_a_turn(address: str) -> None:
    with closing(ServerClient(address, rows=4, answer_s=DEADLINE_S)) as client:
        client.ask("t", {"token_ids": [1, 2], "sampling_params": {"max_tokens": 5, "logprobs": 0}})
        [(name, answer)] = client.answers(30.0)
    assert name == "t" and isinstance(answer, EngineError), answer


def control_a_server(address: str) -> None:
    with (
        closing(ServerClient(address, rows=4, answer_s=DEADLINE_S)) as client,
        pytest.raises(EngineError),
    ):
        client.call("POST", "/pause", seconds=DEADLINE_S)


def mount_tools(address: str) -> None:
    with pytest.raises(ToolError):
        mount(
            url=f"{address}/mcp",
            limits=ToolLimits(deadline_s=DEADLINE_S, open_s=DEADLINE_S, workers=1),
        )


CLIENTS = {
    "endpoint": ask_endpoint,
    "retriever": ask_retriever,
    "turn": ask_for_a_turn,
    "control": control_a_server,
    "mcp": mount_tools,
}
QUICK = {
    ("endpoint", "sends one line without end"),
    ("endpoint", "packs a bomb by gzip"),
    ("endpoint", "drips a body"),
    ("retriever", "drips a header"),
    ("turn", "drips a body"),
    ("turn", "packs a bomb by gzip"),
    ("control", "drips a long announced body"),
    ("control", "sends white space without end"),
    ("mcp", "drips a body"),
}


def ready(client: str) -> None:
    """What a client imports and keeps is none of the measured: one call of each before. Of MCP it is kept by a worker, which
    ends with a server that cannot be mounted."""
    if client == "mcp":
        with sound_mcp_server() as address:
            mount(url=f"{address}/mcp", limits=ToolLimits(open_s=60.0, workers=1))
    else:
        with serving(MISBEHAVING["speaks another language"]) as (address, _):
            CLIENTS[client](address)


@dataclass
class Taken:
    """What a call took: seconds, and megabytes on top of what was taken before, here or in a worker."""

    seconds: float = 0.0
    megabytes: float = 0.0


def taken(client: str, server: str) -> Taken:
    ready(client)
    _forget_own_peak()
    with serving(MISBEHAVING[server]) as (address, _):
        own, workers, over = _own_peak_mb(), _workers_peak_mb(), threading.Event()
        seen = [workers]

        def watch() -> None:
            while not over.wait(0.02):
                seen.append(_workers_peak_mb())

        watching = threading.Thread(target=watch, daemon=True)
        watching.start()
        started = time.monotonic()
        CLIENTS[client](address)
        seconds = time.monotonic() - started
        over.set()
        watching.join()
    return Taken(seconds, _own_peak_mb() - own + max(seen) - workers)


def _forget_own_peak() -> None:
    """Lets this process's peak begin anew: one that an earlier test reached would hide whatever a client takes."""
    Path("/proc/self/clear_refs").write_text("5")


def _own_peak_mb() -> float:
    [peak] = re.findall(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(peak) / 1024


def _workers_peak_mb() -> float:
    """The most that a worker of tools ever took, of those that live."""
    peaks = [0.0]
    with suppress(OSError):
        pid = shared_workers().pool.supervisor_pid
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            [line] = re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{child}/status").read_text()) or [
                "0"
            ]
            peaks.append(int(line) / 1024)
    return max(peaks)


@pytest.fixture(scope="module", autouse=True)
def no_worker_is_left():
    yield
    shared_workers().shutdown()


@pytest.mark.parametrize(
    "which", reduced([(c, s) for c in CLIENTS for s in MISBEHAVING], QUICK), ids=": ".join
)
def test_a_client_is_back_in_time_and_small(which):
    found = taken(*which)
    assert found.seconds < DEADLINE_S + LATE_S and found.megabytes < MOST_MB, found


@pytest.mark.parametrize("client", ["endpoint", "retriever"])
def test_a_key_does_not_go_to_where_a_server_sends_on(client, monkeypatch):
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with (
        serving(MISBEHAVING["hangs up"]) as (elsewhere, stolen),
        serving(sends_on(elsewhere)) as (address, asked),
    ):
        monkeypatch.setenv(HOSTS_VARIABLE, address)
        if client == "endpoint":
            with pytest.raises(EngineError, match="307"):
                list(
                    Endpoint(f"{address}/v1", "m", "ENDPOINT_KEY").stream(
                        [], temperature=1.0, top_p=1.0, max_tokens=1
                    )
                )
        else:
            with pytest.raises(SearchError, match="307"):
                RemoteSearcher(address).search("x", 1)
    assert KEY.encode() in b"".join(asked), "the server that was named gets it"
    assert not stolen


def test_headers_of_an_mcp_server_do_not_go_to_where_it_sends_on():
    with (
        serving(MISBEHAVING["hangs up"]) as (elsewhere, stolen),
        serving(sends_on(elsewhere)) as (address, asked),
    ):
        with pytest.raises(ToolError):
            mount(url=f"{address}/mcp", headers={"X-Key": KEY}, limits=ToolLimits(workers=1))
    assert KEY.encode() in b"".join(asked) and not stolen


def test_negative_control_a_client_without_a_bound_is_seen(monkeypatch):
    """Without the count of bytes a bomb of this size is taken in whole, which shows also after a larger peak."""
    assert len(b"x" * 512_000_000)
    monkeypatch.setattr("workbench.basics.bounded_http._Count._count", lambda self, piece: piece)
    assert taken("control", "announces 200 MB").megabytes > MOST_MB


def main(words: list[str]) -> int:
    """Each client with each server, the best of TRIES: other work goes on beside. Writes what was measured as JSON."""
    found = {}
    for client, server in [(client, server) for client in CLIENTS for server in MISBEHAVING]:
        tries = []
        while len(tries) < TRIES and (not tries or tries[-1].seconds > DEADLINE_S + PROMISED_S):
            tries.append(taken(client, server))
        best = min(tries, key=lambda each: each.seconds)
        found[f"{client}: {server}"] = {
            "seconds": round(best.seconds, 3),
            "megabytes": round(best.megabytes, 1),
            "tries": len(tries),
        }
    shared_workers().shutdown()
    wrong = [
        name
        for name, each in found.items()
        if each["seconds"] > DEADLINE_S + PROMISED_S or each["megabytes"] > MOST_MB
    ]
    said = {
        "deadline_s": DEADLINE_S,
        "clients": len(CLIENTS),
        "servers": len(MISBEHAVING),
        "calls": len(found),
        "wrong": wrong,
        "latest_s": max(each["seconds"] for each in found.values()),
        "most_mb": max(each["megabytes"] for each in found.values()),
        "second_tries": sum(each["tries"] > 1 for each in found.values()),
        "cases": found,
    }
    if words:
        Path(words[0]).write_text(json.dumps(said, indent=1) + "\n")
    print(
        "\n".join(
            [f"{name}: {found[name]}" for name in wrong]
            + [
                f"{said['servers']} misbehaving servers, {said['clients']} clients, {len(wrong)} of {said['calls']} wrong; the latest was back "
                f"{said['latest_s'] - DEADLINE_S:+.2f} s after its deadline, the largest took {said['most_mb']:.0f} MB"
            ]
        )
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
