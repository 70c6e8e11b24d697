"""What small parts cost: search by words, the live picture, environments in worker processes, adapters on their way.

    python -m experiments.bench.small search --json FILE      building a BM25 index, a query, a server, reading HotpotQA
    python -m experiments.bench.small watch --json FILE       a picture of the live view, by number of steps
    python -m experiments.bench.small workers --json FILE     trajectories that hang, and what a worker process adds to a step
    python -m experiments.bench.small adapters --json FILE    a sync of adapters to a vLLM server, merged and alone

CPU seconds where this process computes, wall seconds where another one is waited for: those want a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Result = dict[str, Any]


def timed(
    work: Callable[[], Any], clock: Callable[[], float] = time.process_time
) -> tuple[float, Any]:
    began = clock()
    result = work()
    return clock() - began, result


# ------------------------------------------------------------------------------------------------ search


def corpus(documents: int, words: int) -> Any:
    """Documents of made-up words, drawn as unevenly as words are (Zipf)."""
    from workbench.tools.retrieval import Corpus
    from workbench.tools.retrieval.base import Document

    drawn = np.random.default_rng(0).zipf(1.2, (documents, words)) % 50_000
    return Corpus(
        tuple(
            Document(f"d{number}", "", " ".join(f"w{word}" for word in row))
            for number, row in enumerate(drawn)
        )
    )


def search(most: int = 100_000) -> Result:
    """CPU seconds of building an index and of a query of six words; wall seconds of one over a server; MB/s of reading."""
    from workbench.tools.retrieval import Bm25

    rows = []
    for documents, words, times in ((1000, 8, 5), (most, 60, 1)):
        made = corpus(documents, words)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        built = [timed(lambda: Bm25(made)) for _ in range(times)]  # noqa: B023  (called at once)
        index = built[-1][1]
        rng = np.random.default_rng(1)
        queries = [" ".join(f"w{word}" for word in rng.zipf(1.2, 6) % 50_000) for _ in range(300)]
        rows.append(
            {
                "documents": documents,
                "words": words,
                "build_cpu_s": [seconds for seconds, _ in built],
                "peak_mb": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024,
                "query_cpu_s": [
                    timed(lambda query=query: index.search(query, 5))[0] for query in queries
                ],
            }
        )  # noqa: B023
    return {"indexes": rows, "server_wall_s": _served(index, queries), **_reading()}


def _served(index: Any, queries: Sequence[str]) -> list[float]:
    """Wall seconds of each query, asked of a server in a thread of this process."""
    from workbench.extensions.servers.search_client import RemoteSearcher
    from workbench.extensions.servers.search_server import RetrievalServer

    server = RetrievalServer(index)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        client = RemoteSearcher(server.url)
        return [
            timed(lambda query=query: client.search(query, 5), time.monotonic)[0]
            for query in queries
        ]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _reading(records: int = 5000) -> Result:
    """Bytes of a file in HotpotQA's format, and the CPU seconds of reading it record by record."""
    from workbench.worlds.qa.files import read_hotpotqa

    paragraph = [f"Title {{}} {number}" for number in range(10)]
    record = {
        "question": "Who was it?",
        "answer": "Nobody",
        "type": "bridge",
        "level": "hard",
        "supporting_facts": [["Title 0 0", 0], ["Title 0 1", 1]],
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hotpot.json"
        path.write_text(
            json.dumps(
                [
                    record
                    | {
                        "_id": f"{n}",
                        "supporting_facts": [[f"Title {n} 0", 0], [f"Title {n} 1", 1]],
                        "context": [
                            [title.format(n), ["A sentence of some length. "] * 4]
                            for title in paragraph
                        ],
                    }
                    for n in range(records)
                ]
            )
        )
        seconds, count = timed(lambda: sum(1 for _ in read_hotpotqa(path)))
        if count != records:
            raise SystemExit(f"wrote {records} records and read {count}")
        return {"read_bytes": path.stat().st_size, "read_cpu_s": seconds}


# ------------------------------------------------------------------------------------------------ the live view


def watch(times: int = 15) -> Result:
    """CPU seconds and bytes of the curves that a live view sends, after each of `times` new steps."""
    from workbench.look.live import live_panels

    rows = []
    for steps in (30, 1000):
        drawn = []
        for more in range(times):
            rng = np.random.default_rng(more)
            metrics = [
                {
                    "step": step,
                    **{
                        name: float(rng.random())
                        for name in (
                            "success",
                            "reward_mean",
                            "reward_std_within",
                            "grad_norm",
                            "entropy",
                            "turns",
                            "kl_ref",
                        )
                    },
                }
                for step in range(1, steps + more + 1)
            ]
            drawn.append(timed(lambda: json.dumps(live_panels(metrics, {}))))  # noqa: B023
        rows.append(
            {"steps": steps, "cpu_s": [seconds for seconds, _ in drawn], "bytes": len(drawn[0][1])}
        )
    return {"rows": rows}


# ------------------------------------------------------------------------------------------------ worker processes


def workers(
    attempts: int = 500, hanging: int = 50, deadline_s: float = 10.0, steps: int = 500
) -> Result:
    """Wall seconds from the step of each trajectory that hangs until it is freed, and of the whole batch; and of a step in
    a worker process beside the same step in this one, in turns."""
    from tests.workers.worker_envs import Fickle
    from workbench.values import Task
    from workbench.worlds.runners import InlineRunner
    from workbench.worlds.workers.env_runner import ProcessRunner

    runner = ProcessRunner(deadline_s=deadline_s, workers=hanging + 2)
    keys = [f"a{number}" for number in range(attempts)]
    try:
        for seed, key in enumerate(keys):
            runner.reset(key, Fickle(), Task(key, "fickle", seed), seed)
        _answers(runner, attempts)
        began = time.monotonic()
        asked = {
            key: (
                time.monotonic(),
                runner.step(key, "hang" if number % (attempts // hanging) == 0 else "go"),
            )[0]
            for number, key in enumerate(keys)
        }
        ended = _answers(runner, attempts)
        freed = [
            ended[key] - asked[key]
            for number, key in enumerate(keys)
            if number % (attempts // hanging) == 0
        ]
        batch = time.monotonic() - began
    finally:
        runner.shutdown()
    sides = {"worker": ProcessRunner(deadline_s=30, workers=1), "inline": InlineRunner()}
    took: dict[str, list[float]] = {name: [] for name in sides}
    try:
        for side in sides.values():
            side.reset("one", Fickle(max_turns=10**9), Task("one", "fickle", 0), 0)
            _answers(side, 1)
        for _ in range(steps):
            for name, side in sides.items():
                began = time.monotonic()
                side.step("one", "go")
                _answers(side, 1)
                took[name].append(time.monotonic() - began)
    finally:
        for side in sides.values():
            side.shutdown()
    return {
        "attempts": attempts,
        "hanging": hanging,
        "deadline_s": deadline_s,
        "freed_wall_s": freed,
        "batch_wall_s": batch,
        "step_wall_s": took,
    }


def _answers(runner: Any, count: int) -> dict[str, float]:
    """When each of `count` calls was answered."""
    ended: dict[str, float] = {}
    while len(ended) < count:
        ended |= {answer.key: time.monotonic() for answer in runner.poll(0.2)}
    return ended


# ------------------------------------------------------------------------------------------------ adapters to a server


def adapters(shapes: Sequence[str] = ("frozenlake-tiny", "30m"), syncs: int = 10) -> Result:
    """Bytes and wall seconds of syncs to a vLLM server (it must be installed), as whole weights and alone: `bring_s` until
    the digests are right, `sync_s` with the probe. In two turns of blocks, because a change of ways brings the base again."""
    return {
        "rank": ADAPTER_RANK,
        "syncs": syncs,
        "shapes": [_adapters_of(shape, syncs) for shape in shapes],
    }


ADAPTER_RANK = 8


def _adapters_of(shape: str, syncs: int) -> Result:
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from workbench.engines import LayoutConfig, VllmEngineConfig
    from workbench.engines.policy import load_policy
    from workbench.extensions.vllm_server.opening import open_server_engine
    from workbench.learn.adapters import adapted, alone, merged
    from workbench.learn.config import LearnerConfig

    torch.manual_seed(0)
    model = (
        load_policy(shape).model
        if shape != "30m"
        else Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=8192,
                hidden_size=512,
                intermediate_size=1536,
                num_hidden_layers=8,
                num_attention_heads=8,
                num_key_value_heads=4,
                head_dim=64,
                max_position_embeddings=512,
                tie_word_embeddings=True,
            )
        ).eval()
    )
    settings = LearnerConfig(lora_rank=ADAPTER_RANK)
    engine = open_server_engine(
        model,
        VllmEngineConfig(max_context=256, cache_tokens=8192),
        LayoutConfig(kind="one_node", adapters="routes"),
        ADAPTER_RANK,
    )
    took = {
        way: {"bring_s": [], "sync_s": [], "bytes": 0, "gap_max": 0.0}
        for way in ("merged", "alone")
    }
    core, load, way = engine._core, engine._core.load, ""

    def timed_load(*arguments: Any) -> Any:
        seconds, arrived = timed(lambda: load(*arguments), time.monotonic)
        took[way]["bring_s"].append(seconds)
        return arrived

    core.load = timed_load
    try:
        version = 0
        for _ in range(2):
            for way, said in took.items():
                for number in range(syncs // 2 + 1):
                    version += 1
                    adapted_model = adapted(
                        model, LearnerConfig(lora_rank=ADAPTER_RANK, seed=version), spread=0.01
                    )
                    adapter, whole = (
                        alone(adapted_model, settings),
                        merged(adapted_model, adapted_model.state_dict()),
                    )
                    began = time.monotonic()
                    if way == "merged":
                        engine.sync(whole, version)
                    else:
                        engine.sync_adapter(adapter, whole, version)
                    seconds = time.monotonic() - began
                    said["bytes"] = (
                        core._transfer._way.size
                        if way == "merged"
                        else sum(file.stat().st_size for file in core._adapters._path.iterdir())
                    )
                    said["gap_max"] = max(said["gap_max"], engine.stats()["gap_max"])
                    if number:  # the first of a block is of another way, and warms up
                        said["sync_s"].append(seconds)
                    else:
                        said["bring_s"].pop()
    finally:
        engine.close()
    return {"shape": shape, "parameters": sum(p.numel() for p in model.parameters()), **took}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.small", description=__doc__.split("\n")[0]
    )
    parts = {"search": search, "watch": watch, "workers": workers, "adapters": adapters}
    parser.add_argument("what", choices=tuple(parts))
    parser.add_argument(
        "--json", type=Path, required=True, metavar="FILE", help="where the figures are written"
    )
    parser.add_argument("--quick", action="store_true", help="a tenth of it, to see that it works")
    options = parser.parse_args(arguments)
    quick = {
        "search": lambda: search(2000),
        "watch": lambda: watch(3),
        "workers": lambda: workers(20, 2, 2.0, 50),
        "adapters": lambda: adapters(("frozenlake-tiny",), 2),
    }
    result = quick[options.what]() if options.quick else parts[options.what]()
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
