"""Trajectories as verifiers writes them from 0.2 on, so that its viewers, its statistics and prime-rl read them: a file
`traces.jsonl`, a graph of messages, each with its tokens.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from workbench import __version__
from workbench.extensions.interop.exports import conversation
from workbench.extensions.interop.exports.job import Export
from workbench.run.writer import create_folder
from workbench.values import Trajectory

NO_TOKENS = "its tokens cannot be told by message (a rewritten history), so there are texts alone"


class _Sampled(NamedTuple):
    """A turn's tokens in the sequence that the model saw.

    prompt_tokens: how many stood before.
    context: those of them from the end of the turn before on.
    ids: that were sampled.
    """

    prompt_tokens: int
    context: list[int]
    ids: list[int]
    logprobs: list[float]


def _sampled(trajectory: Trajectory) -> list[_Sampled] | None:
    """Of every turn; None where a turn is not one stretch of sampled tokens."""
    stretches = []
    turns = []
    for segment in trajectory.segments:
        ids = segment.token_ids
        at = 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], segment.eligible, [False]])))
        for start, end in edges.reshape(-1, 2).tolist():
            context = ids[at:start].tolist()
            logprobs = segment.logprobs[start:end].tolist()
            stretches.append(_Sampled(start, context, ids[start:end].tolist(), logprobs))
            turns.append(int(segment.turns[start]))
            at = end
    return stretches if turns == [turn.index for turn in trajectory.turns] else None


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As verifiers has it: a call's name and arguments are not nested."""
    if message["role"] == "tool" and "tool_call_id" not in message:
        return {"role": "user", "content": message["content"]}
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
    return message | ({"tool_calls": calls} if calls else {})


def write_traces(job: Export) -> None:
    """A folder with traces.jsonl."""
    lines = (f"{job.json_of(_episode(job, *place))}\n".encode() for place in job.trajectories())
    create_folder(job.dest, {"traces.jsonl": lines})


def _episode(job: Export, step: int, number: int, trajectory: Trajectory) -> dict[str, Any]:
    task = trajectory.task
    name = f"{job.run.digest()[:12]}-{step}-{number}-{trajectory.attempt}"
    data = {"idx": task.task_seed, "name": task.id, "payload": dict(task.payload)}
    task_values = {"type": task.env, "key": task.id, "data": data}
    errors = []
    if trajectory.stop_reason.is_fault:
        errors.append({"type": trajectory.stop_reason.value, "message": trajectory.error or ""})
    ending = {"ok": not errors, "errors": errors}
    reward = None if trajectory.reward is None else {"score": trajectory.reward, "weight": 1.0}
    nodes, calls = _graph(job, trajectory)
    trace = {
        "version": 1,
        "id": name,
        "verifiers": {"version": "0.4.0"},
        "task": task_values,
        "agent": {"config": {}, "name": "policy", "trainable": True},
        "nodes": nodes,
        "calls": calls,
        "rewards": {"reward": reward},
        "metrics": {} if trajectory.success is None else {"success": float(trajectory.success)},
        "info": {
            "stop_reason": trajectory.stop_reason.value,
            "step": step,
            "workbench": __version__,
        },
        "is_completed": not errors,
        "stop_condition": _stop(trajectory),
        **ending,
        "timing": {"start": 0.0},
    }
    return {
        "id": name,
        "env": {"id": task.env},
        "task": task_values,
        "traces": [trace],
        "group": {"id": f"{step}-{number}"},
        **ending,
    }


def _stop(trajectory: Trajectory) -> str:
    """In verifiers' words where they have one."""
    words = {
        "terminated": "agent_completed",
        "context_full": "max_total_tokens",
        "env_truncated": "max_turns",
    }
    return words.get(trajectory.stop_reason.value, trajectory.stop_reason.value)


def _graph(
    job: Export, trajectory: Trajectory
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages, each with the tokens that it adds, and a call of the model for each turn. What stood before an
    answer belongs to the message before it; the files say no more exactly."""
    sampled = _sampled(trajectory) if len(trajectory.segments) == 1 else None
    if sampled is None and trajectory.turns:
        job.remark(NO_TOKENS)
    nodes: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for message, by_policy in conversation.authored(trajectory):
        node = _node(message, by_policy)
        if nodes:
            node["parent"] = len(nodes) - 1
        if by_policy:
            turn = len(calls)
            finish = "length" if trajectory.turns[turn].finish == "length" else "stop"
            calls.append({"node": len(nodes), "finish_reason": finish})
            if sampled:
                before = nodes[-1] if nodes and not nodes[-1]["sampled"] else node
                calls[turn]["usage"] = _add_tokens(before, node, sampled[turn])
        nodes.append(node)
    return nodes, calls


def _node(message: dict[str, Any], by_policy: bool) -> dict[str, Any]:
    return {
        "message": _message(message),
        "sampled": by_policy,
        "timestamp": 0.0,
        "token_ids": [],
        "mask": [],
        "logprobs": [],
    }


def _add_tokens(before: dict[str, Any], node: dict[str, Any], stretch: _Sampled) -> dict[str, int]:
    """Write a turn's tokens into its node, those before them into the node before; returns how many there were."""
    for place, ids, by_policy in ((before, stretch.context, False), (node, stretch.ids, True)):
        place["token_ids"] += ids
        place["mask"] += [by_policy] * len(ids)
    node["logprobs"] = stretch.logprobs
    return {"prompt_tokens": stretch.prompt_tokens, "completion_tokens": len(stretch.ids)}
