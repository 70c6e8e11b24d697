"""Attempts as a log of Inspect (`.eval`): `inspect view` shows them, `inspect_ai.log.read_eval_log` reads them.

A sample is a group, an epoch an attempt at it; a score `reward`, and `success` where the environment says. What was not
scored has no score. The file is a zip, written as it grows:

    samples/ID_epoch_N.json · summaries.json · header.json
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from workbench import __version__
from workbench.notebook.exports import conversation
from workbench.notebook.exports.job import Export
from workbench.run.writer import write_file
from workbench.types import Trajectory

VERSION = 2  # of the log's schema
SHOWN = 400  # characters of a prompt in the list of samples


class _Pieces:
    """What a zip has written so far and nobody has taken: a file that can only be appended to."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self.pieces.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        pass

    def take(self) -> bytes:
        taken, self.pieces = b"".join(self.pieces), []
        return taken


@dataclass
class _Totals:
    """Sums over the samples, for the header."""

    summaries: list[str] = field(default_factory=list)
    scores: dict[str, list[float]] = field(default_factory=dict)
    faults: int = 0
    ids: dict[str, None] = field(default_factory=dict)


def write(job: Export) -> None:
    """The log, whole or not at all."""
    write_file(job.dest, _zipped(job))


def _zipped(job: Export) -> Iterator[bytes]:
    out, totals = _Pieces(), _Totals()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for step, number, attempt in job.attempts():
            sample = _sample(job, step, number, attempt)
            file.writestr(
                f"samples/{sample['id']}_epoch_{sample['epoch']}.json", job.json_of(sample)
            )
            _add(totals, job, sample)
            yield out.take()
        file.writestr("summaries.json", f"[{','.join(totals.summaries)}]")
        file.writestr("header.json", json.dumps(_header(job, totals)))
    yield out.take()


def _add(totals: _Totals, job: Export, sample: dict[str, Any]) -> None:
    first = next(
        (message["content"] for message in sample["input"] if message["role"] == "user"), ""
    )
    short = {key: sample[key] for key in ("id", "epoch", "target", "scores", "metadata")} | {
        "input": first[:SHOWN],
        "completed": True,
    }
    if sample["error"]:
        short["error"] = sample["error"]["message"]
        totals.faults += 1
    totals.summaries.append(job.clean(json.dumps(short, ensure_ascii=False)))
    totals.ids[sample["id"]] = None
    for name, score in sample["scores"].items():
        totals.scores.setdefault(name, []).append(float(score["value"]))


def _sample(job: Export, step: int, number: int, attempt: Trajectory) -> dict[str, Any]:
    for words in conversation.remarks_on(attempt):
        if words != conversation.LOOKS_LIKE_CONTROL:  # it is looked at, not learned from
            job.remark(words)
    task, golds = attempt.task, attempt.task.payload.get("answers", ())
    said = conversation.authored(attempt)
    messages = [_message(message, by_policy) for message, by_policy in said]
    scores = {} if attempt.reward is None else {"reward": {"value": attempt.reward}}
    if attempt.success is not None and scores:
        scores["success"] = {"value": float(attempt.success)}
    fault = attempt.stop_reason.is_fault
    return {
        "id": f"step-{step}-group-{number}",
        "epoch": attempt.attempt + 1,
        "messages": messages,
        "input": messages[: len(attempt.first_observation.messages)],
        "target": [str(gold) for gold in golds] if isinstance(golds, (list, tuple)) else str(golds),
        "output": _output(job, attempt),
        "scores": scores,
        "metadata": {
            "step": step,
            "task_id": task.id,
            "env": task.env,
            "task_seed": task.task_seed,
            "stop_reason": attempt.stop_reason.value,
            "turns": len(attempt.turns),
            "sampled_tokens": attempt.num_sampled,
            "scored": attempt.reward is not None,
        },
        "error": {
            "message": f"{attempt.stop_reason.value}: {attempt.error or ''}",
            "traceback": "",
            "traceback_ansi": "",
        }
        if fault
        else None,
    }


def _message(message: dict[str, Any], by_policy: bool) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": call["function"]["name"],
            "arguments": json.loads(call["function"]["arguments"]),
        }
        for call in message.get("tool_calls", ())
    ]
    kept = {key: message[key] for key in ("role", "content", "tool_call_id") if key in message}
    if message["role"] == "tool" and "name" in message:
        kept["function"] = message["name"]
    return (
        kept
        | ({"tool_calls": calls} if calls else {})
        | ({"source": "generate"} if by_policy else {})
    )


def _output(job: Export, attempt: Trajectory) -> dict[str, Any]:
    model = job.run.setting("policy.name", str)
    if not attempt.turns:
        return {"model": model, "choices": []}
    last = attempt.turns[-1]
    return {
        "model": model,
        "completion": last.text,
        "choices": [
            {
                "message": {"role": "assistant", "content": last.text, "source": "generate"},
                "stop_reason": "max_tokens" if last.finish == "length" else "stop",
            }
        ],
    }


def _header(job: Export, totals: _Totals) -> dict[str, Any]:
    run, samples = job.run, len(totals.summaries)
    when = [str(at) for at in run.clock()["at"]]
    epochs = -(-samples // max(1, len(totals.ids)))
    scores = [
        {
            "name": name,
            "scorer": name,
            "scored_samples": len(values),
            "unscored_samples": samples - len(values),
            "metrics": {"mean": {"name": "mean", "value": sum(values) / len(values)}},
        }
        for name, values in totals.scores.items()
    ]
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "run_id": run.digest()[:22],
            "created": when[0],
            "task": run.setting("env.kind", str),
            "task_id": run.name,
            "model": run.setting("policy.name", str),
            "dataset": {
                "name": run.setting("env.kind", str),
                "samples": len(totals.ids),
                "sample_ids": list(totals.ids),
            },
            "config": {"epochs": epochs},
            "packages": {"agent-rl-workbench": __version__},
            "metadata": {
                "run": run.name,
                "run_digest": run.digest(),
                "steps": list(job.steps),
                "seed": run.setting("seed", int),
            },
        },
        "plan": {"name": "plan", "steps": [{"solver": "policy"}]},
        "results": {
            "total_samples": samples,
            "completed_samples": samples - totals.faults,
            "scores": scores,
        },
        "stats": {"started_at": when[0], "completed_at": when[-1]},
    }
