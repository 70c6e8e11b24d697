"""How soon a retriever answers: one client that keeps its connection, 64 at once, and one beside thousands that are slow.

    python -m experiments.bench.retriever [--times 5] [--json FILE]          each figure is the best of so many times

The server is `workbench retriever` in a process of its own, over a corpus of 2,000 made documents; clients are in this one. A
slow connection sends a byte of its request and waits; where it is closed, it comes again after ten to thirty seconds.
Milliseconds are those of the wall clock, so a busy machine shows; the load is written down.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

DOCUMENTS, WORDS = 2_000, 40
SLOW, AGAIN_S = 3_000, (10.0, 30.0)
REQUEST = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
GOALS = {"kept_alive_p50": 3.0, "clients_p99": 100.0, "beside_slow_p99": 50.0}


def write_corpus(path: Path) -> None:
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=6)) for _ in range(3_000)]
    with path.open("w") as file:
        for number in range(DOCUMENTS):
            text = " ".join(rng.choices(words, k=WORDS))
            file.write(
                json.dumps(
                    {"_id": str(number), "title": " ".join(rng.choices(words, k=2)), "text": text}
                )
                + "\n"
            )


def queries(path: Path) -> list[bytes]:
    found = []
    for line in path.read_text().splitlines()[:200]:
        body = json.dumps(
            {"query": " ".join(json.loads(line)["text"].split()[:4]), "k": 3}
        ).encode()
        found.append(REQUEST % (len(body), body))
    return found


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> float:
    """Milliseconds until the whole answer is there."""
    began = time.perf_counter()
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head[:100]
    await reader.readexactly(int(re.search(rb"Content-Length: (\d+)", head)[1]))
    return 1e3 * (time.perf_counter() - began)


async def kept(port: int, asked: list[bytes], count: int) -> list[float]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return [await ask(reader, writer, asked[number % len(asked)]) for number in range(count)]
    finally:
        writer.close()


async def at_once(port: int, asked: list[bytes], clients: int, count: int) -> list[float]:
    found = await asyncio.gather(
        *(kept(port, asked[number:] + asked[:number], count) for number in range(clients))
    )
    return [each for times in found for each in times]


async def beside_slow(port: int, asked: list[bytes], count: int) -> list[float]:
    """A good client that connects anew for every question, while thousands hold on."""
    connected, rng = 0, random.Random(0)

    async def slow() -> None:
        nonlocal connected
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                connected += 1
                with suppress(OSError):
                    writer.write(asked[0][:1])
                    await reader.read(1)  # until the server closes it
                writer.close()
            await asyncio.sleep(rng.uniform(*AGAIN_S))

    tasks = [asyncio.ensure_future(slow()) for _ in range(SLOW)]
    until = time.monotonic() + 30
    while connected < SLOW and time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert connected >= SLOW, f"only {connected} slow connections were made"
    times = []
    for number in range(count):
        began = time.perf_counter()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await ask(reader, writer, asked[number % len(asked)])
        times.append(1e3 * (time.perf_counter() - began))
        writer.close()
        await asyncio.sleep(0.02)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return times


def spread(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    return {
        "n": len(ordered),
        "p50": round(statistics.median(ordered), 2),
        "p99": round(ordered[int(0.99 * (len(ordered) - 1))], 2),
        "most": round(ordered[-1], 2),
    }


def best(
    times: int, work: Callable[[], Coroutine[Any, Any, list[float]]], by: str
) -> dict[str, Any]:
    """The best of so many times, and what the others were."""
    found = [spread(asyncio.run(work())) for _ in range(times)]
    return {**min(found, key=lambda each: each[by]), "of": sorted(each[by] for each in found)}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        corpus = Path(folder) / "corpus.jsonl"
        write_corpus(corpus)
        asked = queries(corpus)
        server = subprocess.Popen(
            [sys.executable, "-m", "workbench.cli", "retriever", "--corpus", str(corpus)],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            port = int(re.search(r":(\d+) ", server.stdout.readline())[1])
            asyncio.run(kept(port, asked, 200))  # warm
            load = [os.getloadavg()[0]]
            found = {
                "kept_alive": best(options.times, lambda: kept(port, asked, 500), "p50"),
                "clients": best(options.times, lambda: at_once(port, asked, 64, 40), "p99"),
                "beside_slow": best(options.times, lambda: beside_slow(port, asked, 100), "p99"),
            }
            with open(f"/proc/{server.pid}/status") as status:
                found["server"] = {
                    "rss_mb": int(re.search(r"VmHWM:\s+(\d+)", status.read())[1]) / 1024
                }
            found |= {
                "load": [round(each, 1) for each in (*load, os.getloadavg()[0])],
                "slow": SLOW,
                "times": options.times,
            }
        finally:
            server.terminate()
            server.wait(10)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    over = [
        name
        for name, goal in GOALS.items()
        if found[name.rpartition("_")[0]][name.rpartition("_")[2]] > goal
    ]
    print(f"over their goals: {', '.join(over) or 'none'}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
