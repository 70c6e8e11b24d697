"""Every trajectory as a row of a Hugging Face dataset: a folder of parquet files, one a step, with a card.

    datasets.load_dataset("DEST", split="train")

`COLUMNS` is the schema, and the table in docs/guides/export.md is made of the same words. Nothing is left out: what was
not scored has no reward (null, never 0), and the tokens are those that were sampled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.extensions.interop.exports import conversation
from workbench.extensions.interop.exports.job import Export
from workbench.run.writer import create_folder
from workbench.values import Segment, Trajectory, Turn

_FUNCTION = pa.struct({"name": pa.string(), "arguments": pa.string()})
_CALL = pa.struct({"id": pa.string(), "type": pa.string(), "function": _FUNCTION})
_MESSAGE = pa.struct(
    {
        "role": pa.string(),
        "content": pa.string(),
        "name": pa.string(),
        "tool_call_id": pa.string(),
        "tool_calls": pa.list_(_CALL),
        "by_policy": pa.bool_(),
    }
)
_TURN = pa.struct(
    {
        "text": pa.string(),
        "finish": pa.string(),
        "reward": pa.float64(),
        "reward_parts": pa.string(),
        "moves": pa.list_(pa.string()),
        "state_key": pa.string(),
        "info": pa.string(),
    }
)
_SEGMENT = pa.struct(
    {
        "token_ids": pa.list_(pa.int32()),
        "sources": pa.list_(pa.int8()),
        "turns": pa.list_(pa.int32()),
        "sampled": pa.list_(pa.bool_()),
        "logprobs": pa.list_(pa.float32()),
    }
)

# column -> (type, meaning)
COLUMNS: dict[str, tuple[pa.DataType, str]] = {
    "step": (pa.int32(), "step of the run"),
    "group": (pa.int32(), "number of the group in its step: trajectories of one task"),
    "attempt": (pa.int64(), "number of the trajectory in its group"),
    "task_id": (pa.string(), "name of the task"),
    "env": (pa.string(), "environment of the task"),
    "task_seed": (pa.int64(), "what made the problem"),
    "payload": (pa.string(), "JSON: what the task holds (question, answers, level ...)"),
    "metadata": (pa.string(), "JSON: what is known of the task besides"),
    "messages": (
        pa.list_(_MESSAGE),
        "the conversation: role, content, name, tool_call_id, tool_calls (id, type, "
        "function: name and arguments, JSON text); by_policy: the policy wrote it",
    ),
    "tools": (pa.string(), "JSON: schemas of the tools on offer"),
    "reward": (pa.float64(), "sum over turns and outcome; null: not scored"),
    "outcome": (pa.float64(), "earned by the trajectory as a whole; null: none"),
    "outcome_parts": (pa.string(), "JSON: what the outcome is made of"),
    "success": (pa.bool_(), "null: the environment does not say"),
    "stop_reason": (
        pa.string(),
        "terminated, env_truncated, max_turns, context_full, env_error, env_timeout, engine_error",
    ),
    "error": (pa.string(), "of a fault: what happened"),
    "dynamics_seed": (pa.int64(), "what drove the environment's chance"),
    "turns": (
        pa.list_(_TURN),
        "each turn: text as the policy wrote it, finish (stop or length), reward, reward_parts "
        "(JSON), moves, state_key, info (JSON)",
    ),
    "segments": (
        pa.list_(_SEGMENT),
        "each sequence that the model saw, by token: token_ids, sources (0 prompt, 1 "
        "chat template, 2 policy, 3 environment), turns, sampled (trainable here), logprobs (null "
        "where not sampled)",
    ),
}
SCHEMA = pa.schema([(name, kind) for name, (kind, _) in COLUMNS.items()])


def write(job: Export) -> None:
    """The folder, whole or not at all; a file is made when its turn comes."""
    files = {
        f"train-{number:05d}-of-{len(job.steps):05d}.parquet": _file(job, step)
        for number, step in enumerate(job.steps)
    }
    create_folder(job.dest, files | {"README.md": _card(job)})


def _file(job: Export, step: int) -> Iterator[memoryview]:
    rows = []
    for number, group in enumerate(job.groups_of(step)):
        for trajectory in group:
            row = job.json_of(_row(job, step, number, trajectory))
            rows.append(json.loads(row))
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), sink, compression="zstd")
    yield memoryview(sink.getvalue())


def _row(job: Export, step: int, number: int, trajectory: Trajectory) -> dict[str, Any]:
    for words in conversation.remarks_on(trajectory):
        if words != conversation.LOOKS_LIKE_CONTROL:  # the ids are here
            job.remark(words)
    task = trajectory.task
    messages = [
        message | {"by_policy": by_policy}
        for message, by_policy in conversation.authored(trajectory)
    ]
    return {
        "step": step,
        "group": number,
        "attempt": trajectory.attempt,
        "task_id": task.id,
        "env": task.env,
        "task_seed": task.task_seed,
        "payload": _json(task.payload),
        "metadata": _json(task.metadata),
        "messages": messages,
        "tools": _json(list(trajectory.first_observation.tools)),
        "reward": trajectory.reward,
        "outcome": trajectory.outcome,
        "outcome_parts": _json(trajectory.outcome_parts),
        "success": trajectory.success,
        "stop_reason": trajectory.stop_reason.value,
        "error": trajectory.error,
        "dynamics_seed": trajectory.dynamics_seed,
        "turns": [*map(_turn, trajectory.turns)],
        "segments": [*map(_segment, trajectory.segments)],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    return {
        "text": turn.text,
        "finish": turn.finish,
        "reward": turn.reward,
        "reward_parts": _json(turn.reward_parts),
        "moves": list(turn.moves),
        "state_key": turn.state_key,
        "info": _json(turn.info),
    }


def _segment(segment: Segment) -> dict[str, Any]:
    return {
        "token_ids": segment.token_ids.tolist(),
        "sources": segment.sources.tolist(),
        "turns": segment.turns.tolist(),
        "sampled": segment.eligible.tolist(),
        "logprobs": [None if value != value else value for value in segment.logprobs.tolist()],
    }


def _json(value: Any) -> str:
    return json.dumps(value if isinstance(value, list) else dict(value), ensure_ascii=False)


def _card(job: Export) -> bytes:
    lines = [
        "---",
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        '    path: "train-*.parquet"',
        "---",
        "",
        f"# Trajectories of {job.run.name}",
        "",
        f"Steps {job.steps[0]} to {job.steps[-1]} of a run of the Agent RL Workbench, a row per trajectory.",
        "",
        "| column | type | meaning |",
        "|---|---|---|",
    ]
    for name, (kind, meaning) in COLUMNS.items():
        shown_kind = "list of structs" if pa.types.is_list(kind) else kind
        lines.append(f"| `{name}` | {shown_kind} | {meaning} |")
    return ("\n".join(lines) + "\n").encode("utf-8", "replace")
