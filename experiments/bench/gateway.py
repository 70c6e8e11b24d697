"""What a call of a program costs beside the engine: 64 conversations at once, CPU of this process over calls.

    python -m experiments.bench.gateway [--conversations 64] [--calls 16] [--times 3] [--json FILE]

Clients are in a process of their own. Counted is all CPU time of this one (HTTP, JSON, the tree of calls, templates and
tokenization, what is kept on the disk, starting 64 programs, opening their environments), less what the engine takes. What the
environment keeps of a task once and for all, its index, is made before. Beside it stands the same for that environment played
by us, by turns. The engine is a script, then the embedded one. Best of so many times.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from experiments.bench.gateway_clients import CLIENTS, ClientProcess
from workbench.chat import ChatFormat
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.policy import load_policy
from workbench.engines.scripted import ScriptedEngine
from workbench.extensions.agents.family import ProgramTasks
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.values import trajectories_of
from workbench.worlds import tasks as env_tasks
from workbench.worlds.shared import opened
from workbench.worlds.world_qa import WorldQA

GOAL_MS = 3.0
POLICY = "search-tiny"
MOST_TOKENS = 32  # of a turn
CONTEXT = 8192


class TimedEngine:
    """An engine, and the CPU seconds that it took of the thread that asks it."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.engine, name)
        if name not in ("submit", "poll", "release"):
            return value

        def timed(*asked: Any) -> Any:
            began = time.thread_time()
            try:
                return value(*asked)
            finally:
                self.seconds += time.thread_time() - began

        return timed


def scripted(chat: ChatFormat) -> Callable[[], Any]:
    """A policy that searches, always."""
    call = WorldQA().make().format.write_call("search", {"query": "where does Zumi live"})
    ids = [*chat.foreign_ids(call)[: MOST_TOKENS - 1], chat.end_of_turn]
    return lambda: ScriptedEngine(lambda request: ids, context_length=CONTEXT)


def measured(family: Any, engine: Any, chat: ChatFormat, conversations: int) -> dict[str, float]:
    """One collect: calls or turns, CPU milliseconds of each beside the engine's, tokens of a prompt."""
    timed = TimedEngine(engine)
    tasks = env_tasks(WorldQA(), "train", conversations)
    for task in tasks:
        with opened(WorldQA()) as env:
            env.reset(task, 0)
    began = time.process_time()
    groups = collect(
        tasks,
        family=family,
        engine=timed,
        chat=chat,
        config=CollectConfig(max_turn_tokens=MOST_TOKENS),
        group_size=1,
        address=(0, "train", 1),
    )
    seconds = time.process_time() - began
    trajectories = trajectories_of(groups)
    faults = [t.error for t in trajectories if t.stop_reason.is_fault]
    if faults:
        raise RuntimeError(f"{len(faults)} of {len(trajectories)} trajectories failed: {faults[0]}")
    calls = sum(len(trajectory.turns) for trajectory in trajectories)
    lengths = [len(segment) for t in trajectories for segment in t.segments]
    return {
        "calls": calls,
        "beside_ms": 1e3 * (seconds - timed.seconds) / calls,
        "engine_ms": 1e3 * timed.seconds / calls,
        "tokens": sum(lengths) / len(lengths),
    }


def by_program(
    make: Callable[[], Any], chat: ChatFormat, conversations: int, calls: int
) -> dict[str, float]:
    family = ProgramTasks(
        program="experiments.bench.gateway_clients:hand_over",
        tasks="world_qa",
        most_calls=calls + 1,
    )
    CLIENTS.append(ClientProcess(calls))
    with tempfile.TemporaryDirectory() as folder:
        family.keep_in(folder)
        try:
            row = measured(family, make(), chat, conversations)
        finally:
            CLIENTS.pop().close()
        kept = sum(
            len(path.read_bytes().splitlines()) for path in Path(folder).rglob("train-*.jsonl")
        )
    if row["calls"] != conversations * calls or kept != row["calls"]:
        raise RuntimeError(f"{row['calls']} calls and {kept} kept, of {conversations * calls}")
    return row


def best(make: Callable[[], dict[str, float]], times: int) -> dict[str, float]:
    return min((make() for _ in range(times)), key=lambda row: row["beside_ms"])


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--calls", type=int, default=16, help="of each conversation")
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--stub-only", action="store_true", help="without the embedded engine")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    policy = load_policy(POLICY)
    chat = ChatFormat.from_tokenizer(policy.tokenizer)
    engines = {"script": scripted(chat)}
    if not options.stub_only:
        engines["embedded"] = lambda: open_engine(TransformersEngineConfig(), policy.model)
    rows = {}
    for name, make in engines.items():
        conversations = options.conversations
        times = options.times
        rows[name] = best(lambda: by_program(make, chat, conversations, options.calls), times)
        rows[f"{name}, own"] = best(lambda: measured(WorldQA(), make(), chat, conversations), times)
        for row in (name, f"{name}, own"):
            print(f"{row}: {rows[row]}", flush=True)
    result = {
        "rows": rows,
        "conversations": options.conversations,
        "calls": options.calls,
        "times": options.times,
        "goal_ms": GOAL_MS,
        "load": list(os.getloadavg()[:2]),
    }
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(rows["script"]["beside_ms"] > GOAL_MS)


if __name__ == "__main__":
    raise SystemExit(main())
