"""Every client is back within its deadline, whatever a server does, and keeps little of it in memory (law 16)."""
from __future__ import annotations

import resource
import time

import pytest

from tests.counts import reduced
from tests.hostile.servers import MISBEHAVING, sends_on, serving
from workbench.engines.endpoint import Endpoint
from workbench.envs.search.remote import HOSTS_VARIABLE, KEY_VARIABLE, RemoteSearcher
from workbench.types.errors import EngineError, SearchError

DEADLINE_S = 1.0
LATE_S = 5.0  # servers are threads of this process, and other work goes on beside: a hang is 30 s and more
MOST_MB = 64
KEY = "sk-canary-0123456789"


def ask_endpoint(address: str) -> None:
    with pytest.raises(EngineError):
        for _ in Endpoint(f"{address}/v1", "m", deadline_s=DEADLINE_S).stream(
                [{"role": "user", "content": "hi"}], temperature=1.0, top_p=1.0, max_tokens=5):
            pass


def ask_retriever(address: str) -> None:
    with pytest.raises(SearchError):
        RemoteSearcher(address, deadline_s=DEADLINE_S).search("x", 1)


CLIENTS = {"endpoint": ask_endpoint, "retriever": ask_retriever}
QUICK = {("endpoint", "sends one line without end"), ("endpoint", "packs a bomb by gzip"), ("endpoint", "drips a body"),
         ("retriever", "drips a header")}


@pytest.fixture(scope="module", autouse=True)
def warm():
    """What a client imports and keeps is none of the measured: one call of each before."""
    with serving(MISBEHAVING["speaks another language"]) as (address, _):
        for ask in CLIENTS.values():
            ask(address)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.parametrize("which", reduced([(c, s) for c in CLIENTS for s in MISBEHAVING], QUICK), ids=": ".join)
def test_a_client_is_back_in_time_and_small(which):
    client, server = which
    with serving(MISBEHAVING[server]) as (address, _):
        before, started = peak_mb(), time.monotonic()
        CLIENTS[client](address)
        took, grew = time.monotonic() - started, peak_mb() - before
    assert took < DEADLINE_S + LATE_S, took
    assert grew < MOST_MB, grew


@pytest.mark.parametrize("client", CLIENTS)
def test_a_key_does_not_go_to_where_a_server_sends_on(client, monkeypatch):
    monkeypatch.setenv("ENDPOINT_KEY", KEY)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with serving(MISBEHAVING["hangs up"]) as (elsewhere, stolen), serving(sends_on(elsewhere)) as (address, asked):
        monkeypatch.setenv(HOSTS_VARIABLE, address)
        if client == "endpoint":
            with pytest.raises(EngineError, match="307"):
                list(Endpoint(f"{address}/v1", "m", "ENDPOINT_KEY").stream([], temperature=1.0, top_p=1.0, max_tokens=1))
        else:
            with pytest.raises(SearchError, match="307"):
                RemoteSearcher(address).search("x", 1)
    assert KEY.encode() in b"".join(asked), "the server that was named gets it"
    assert not stolen
