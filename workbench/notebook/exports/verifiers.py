"""Attempts as verifiers writes them, so that its viewers, its statistics and prime-rl read them.

verifiers      traces.jsonl                     verifiers from 0.2 on: a graph of messages, each with its tokens
verifiers-v0   results.jsonl, metadata.json     verifiers up to 0.3: a row an attempt, with its `trajectory`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from workbench import __version__
from workbench.notebook.exports import conversation
from workbench.notebook.exports.job import Export
from workbench.run.writer import create_folder
from workbench.types import Trajectory

NO_TOKENS = "its tokens cannot be told by message (a rewritten history), so there are texts alone"


class _Sampled(NamedTuple):
    """A turn's tokens in the sequence that the model saw: `context` stood before `ids`, from the end of the turn before
    it on (or, of `prompt`, from the beginning)."""

    prompt: list[int]
    context: list[int]
    ids: list[int]
    logprobs: list[float]


def _sampled(attempt: Trajectory) -> list[_Sampled] | None:
    """Of every turn; None where a turn is not one stretch of sampled tokens."""
    found, turns = [], []
    for segment in attempt.segments:
        eligible, at = segment.eligible, 0
        edges = np.flatnonzero(np.diff(np.concatenate([[False], eligible, [False]])))
        for start, end in edges.reshape(-1, 2).tolist():
            ids = segment.token_ids
            found.append(
                _Sampled(
                    ids[:start].tolist(),
                    ids[at:start].tolist(),
                    ids[start:end].tolist(),
                    segment.logprobs[start:end].tolist(),
                )
            )
            turns.append(int(segment.turns[start]))
            at = end
    return found if turns == [turn.index for turn in attempt.turns] else None


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """As verifiers has it: a call's name and arguments are not nested."""
    if message["role"] == "tool" and "tool_call_id" not in message:
        return {"role": "user", "content": message["content"]}
    calls = [{"id": call["id"], **call["function"]} for call in message.get("tool_calls", ())]
    return message | ({"tool_calls": calls} if calls else {})


# ------------------------------------------------------------------------------------------------ today's


def write_traces(job: Export) -> None:
    """A folder with traces.jsonl."""
    create_folder(
        job.dest,
        {
            "traces.jsonl": (
                f"{job.json_of(_episode(job, *each))}\n".encode() for each in job.attempts()
            )
        },
    )


def _episode(job: Export, step: int, number: int, attempt: Trajectory) -> dict[str, Any]:
    task, reason = attempt.task, attempt.stop_reason
    error = {"type": reason.value, "message": attempt.error or ""} if reason.is_fault else None
    name = f"{job.run.digest()[:12]}-{step}-{number}-{attempt.attempt}"
    data = {"idx": task.task_seed, "name": task.id, "payload": dict(task.payload)}
    said = {"type": task.env, "key": task.id, "data": data}
    done = {"ok": error is None, "errors": [] if error is None else [error]}
    nodes, calls = _graph(job, attempt)
    trace = {
        "version": 1,
        "id": name,
        "verifiers": {"version": "0.4.0"},
        "task": said,
        "agent": {"config": {}, "name": "policy", "trainable": True},
        "nodes": nodes,
        "calls": calls,
        "rewards": {
            "reward": None if attempt.reward is None else {"score": attempt.reward, "weight": 1.0}
        },
        "metrics": {} if attempt.success is None else {"success": float(attempt.success)},
        "info": {"stop_reason": attempt.stop_reason.value, "step": step, "workbench": __version__},
        "is_completed": error is None,
        "stop_condition": _stop(attempt),
        **done,
        "timing": {"start": 0.0},
    }
    return {
        "id": name,
        "env": {"id": task.env},
        "task": said,
        "traces": [trace],
        "group": {"id": f"{step}-{number}"},
        **done,
    }


def _stop(attempt: Trajectory) -> str:
    """In verifiers' words where they have one."""
    words = {
        "terminated": "agent_completed",
        "context_full": "max_total_tokens",
        "env_truncated": "max_turns",
    }
    return words.get(attempt.stop_reason.value, attempt.stop_reason.value)


def _graph(job: Export, attempt: Trajectory) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The messages, each with the tokens that it adds, and a call of the model for each turn. What stood before an
    answer belongs to the message before it; the files say no more exactly."""
    sampled = _sampled(attempt) if len(attempt.segments) == 1 else None
    if sampled is None and attempt.turns:
        job.remark(NO_TOKENS)
    nodes: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for message, by_policy in conversation.authored(attempt):
        node = {
            "message": _message(message),
            "sampled": by_policy,
            "timestamp": 0.0,
            "token_ids": [],
            "mask": [],
            "logprobs": [],
        } | ({"parent": len(nodes) - 1} if nodes else {})
        if by_policy:
            turn = attempt.turns[len(calls)]
            calls.append(
                {
                    "node": len(nodes),
                    "finish_reason": "length" if turn.finish == "length" else "stop",
                }
            )
        if by_policy and sampled:
            one = sampled[len(calls) - 1]
            before = nodes[-1] if nodes and not nodes[-1]["sampled"] else node
            for place, ids, mine in ((before, one.context, False), (node, one.ids, True)):
                place["token_ids"] += ids
                place["mask"] += [mine] * len(ids)
            node["logprobs"] = one.logprobs
            calls[-1]["usage"] = {
                "prompt_tokens": len(one.prompt),
                "completion_tokens": len(one.ids),
            }
        nodes.append(node)
    return nodes, calls


# ------------------------------------------------------------------------------------------------ up to 0.3


def write_results(job: Export) -> None:
    """A folder with results.jsonl and metadata.json."""
    seen: list[tuple[int, float]] = []  # of each row: example and reward
    create_folder(
        job.dest, {"results.jsonl": _results(job, seen), "metadata.json": _metadata(job, seen)}
    )


def _results(job: Export, seen: list[tuple[int, float]]) -> Iterator[bytes]:
    examples: dict[tuple[int, int], int] = {}
    for step, number, attempt in job.attempts():
        if reason := job.unusable(attempt):
            job.leave_out(reason)
            continue
        example = examples.setdefault((step, number), len(examples))
        seen.append((example, attempt.reward))
        yield f"{job.json_of(_result(job, step, example, attempt))}\n".encode()


def _result(job: Export, step: int, example: int, attempt: Trajectory) -> dict[str, Any]:
    said = [(_message(message), by_policy) for message, by_policy in conversation.authored(attempt)]
    messages = [message for message, _ in said]
    starts = [place for place, (_, by_policy) in enumerate(said) if by_policy]
    sampled = _sampled(attempt)
    if sampled is None:
        job.remark(NO_TOKENS)
    whole = len(attempt.segments) == 1  # else what a turn was shown is not what was said before it
    parts = {"success": float(attempt.success)} if attempt.success is not None else {}
    return {
        "example_id": example,
        "prompt": messages[: starts[0]],
        "completion": messages[starts[0] :],
        "reward": attempt.reward,
        "error": None,
        "metrics": parts,
        **parts,
        "is_completed": True,
        "is_truncated": attempt.truncated,
        "stop_condition": attempt.stop_reason.value,
        "timing": {"generation_ms": 0.0, "scoring_ms": 0.0, "total_ms": 0.0},
        "info": {"task_id": attempt.task.id, "step": step, "attempt": attempt.attempt},
        "trajectory": [
            {
                "prompt": messages[:start] if whole else [],
                "completion": [messages[start]],
                "reward": turn.reward,
                "advantage": None,
                "is_truncated": turn.finish == "length",
                "trajectory_id": f"{example}-{attempt.attempt}",
                "extras": {},
                "tokens": None if sampled is None else _tokens(sampled[k], turn.finish == "length"),
            }
            for k, (start, turn) in enumerate(zip(starts, attempt.turns, strict=True))
        ],
    }


def _tokens(one: _Sampled, cut: bool) -> dict[str, Any]:
    return {
        "prompt_ids": one.prompt,
        "prompt_mask": [0] * len(one.prompt),
        "completion_ids": one.ids,
        "completion_mask": [1] * len(one.ids),
        "completion_logprobs": one.logprobs,
        "overlong_prompt": False,
        "is_truncated": cut,
    }


def _metadata(job: Export, seen: list[tuple[int, float]]) -> Iterator[bytes]:
    examples = len({example for example, _ in seen})
    rewards = [reward for _, reward in seen]
    facts = {
        "env_id": job.run.setting("env.kind", str),
        "env_args": {},
        "model": job.run.setting("policy.name", str),
        "base_url": "",
        "num_examples": examples,
        "rollouts_per_example": job.run.setting("train.group_size", int),
        "sampling_args": {"temperature": job.run.setting("collect.temperature", float, int)},
        "time": 0.0,
        "avg_reward": float(np.mean(rewards)) if rewards else 0.0,
        "avg_metrics": {},
        "avg_error": 0.0,
        "pass_at_k": {},
        "pass_all_k": {},
        "pass_threshold": 0.5,
        "usage": None,
        "state_columns": ["trajectory"],
        "version_info": {
            "vf_version": "0.1.14",
            "vf_commit": None,
            "env_version": None,
            "env_commit": None,
        },
        "tools": None,
    }
    yield (json.dumps(facts) + "\n").encode("utf-8", "replace")
