"""Runs where verifiers 0.4.0 is installed: its own graph of messages and its own writer, fed with recorded turns.

python write_verifiers_traces.py RECORDED.json OUT_FOLDER
"""

import json
import sys
from pathlib import Path

import verifiers
from verifiers.v1 import graph
from verifiers.v1.configs.agent import WireAgentConfig
from verifiers.v1.episode import EnvInfo, Episode, GroupInfo
from verifiers.v1.state import State
from verifiers.v1.task import TaskData
from verifiers.v1.trace import AgentInfo, ModelCall, Trace, TraceTask
from verifiers.v1.types import AssistantMessage, Response, TurnTokens, Usage, UserMessage
from verifiers.v1.utils.trace_store import TRACES_FILE, write_episode


def spans_of(prompt_ids, start):
    """Each message begins at the token that begins a message; the last one of them opens the answer."""
    edges = [i for i, token in enumerate(prompt_ids) if token == start]
    return list(zip(edges[:-1], edges[1:]))


def episode_of(number, rollout, start, *, with_tokens=True, credit=None):
    trace = Trace[TaskData, State, WireAgentConfig](
        id=f"{number:032x}",
        agent=AgentInfo(config=WireAgentConfig()),
        task=TraceTask(
            type="LakeTask", data=TaskData(idx=rollout["task"]), key=f"lake-{rollout['task']}"
        ),
    )
    for k, turn in enumerate(rollout["turns"]):
        prompt = [
            (AssistantMessage if m["role"] == "assistant" else UserMessage)(content=m["content"])
            for m in turn["messages"]
        ]
        tokens = TurnTokens(
            prompt_ids=turn["prompt_ids"],
            completion_ids=turn["completion_ids"],
            completion_logprobs=turn["logprobs"],
            message_spans=spans_of(turn["prompt_ids"], start),
        )
        usage = Usage(
            prompt_tokens=len(turn["prompt_ids"]), completion_tokens=len(turn["completion_ids"])
        )
        response = Response(
            id=f"{number}-{k}",
            created=0,
            model="frozenlake-tiny",
            message=AssistantMessage(content=turn["text"]),
            finish_reason="stop",
            usage=usage,
            tokens=tokens if with_tokens else None,
        )
        node = graph.prepare_turn(trace, prompt).commit(response)
        trace.nodes[node].advantages = (
            None if credit is None else [credit] * len(turn["completion_ids"])
        )
        trace.calls.append(
            ModelCall(node=node, model="frozenlake-tiny", finish_reason="stop", usage=usage)
        )
    trace.record_reward("solved", rollout["reward"])
    trace.ok = trace.is_completed = True
    trace.stop("agent_completed")
    for node in trace.nodes:
        node.timestamp = 0.0
    trace.timing.start = 0.0
    return Episode(
        id=f"{number:032x}",
        env=EnvInfo(id="lake"),
        task=trace.task,
        traces=[trace],
        ok=True,
        group=GroupInfo(id=f"group-{rollout['task']}") if with_tokens else None,
    )


def main(recorded, out):
    data = json.loads(Path(recorded).read_text())
    start = data["rollouts"][0]["turns"][0]["prompt_ids"][0]
    for name, with_tokens in (("verifiers_traces", True), ("verifiers_traces_text", False)):
        (Path(out) / TRACES_FILE).unlink(missing_ok=True)
        for number, rollout in enumerate(data["rollouts"]):
            siblings = [r["reward"] for r in data["rollouts"] if r["task"] == rollout["task"]]
            credit = rollout["reward"] - sum(siblings) / len(siblings)
            write_episode(
                Path(out),
                episode_of(
                    number,
                    rollout,
                    start,
                    with_tokens=with_tokens,
                    credit=credit if with_tokens else None,
                ),
            )
            if not with_tokens and number == 1:
                break
        (Path(out) / TRACES_FILE).rename(Path(out) / f"{name}.jsonl")
    print(f"verifiers {verifiers.__version__}")


main(*sys.argv[1:])
