"""Trajectories as a log of Inspect (`.eval`): `inspect view` shows them, `inspect_ai.log.read_eval_log` reads them.

A sample is a group, an epoch per trajectory at it; a score `reward`, and `success` where the environment says. What was not
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
from workbench.extensions.interop.exports import conversation
from workbench.extensions.interop.exports.job import Export
from workbench.run.writer import write_file
from workbench.values import Trajectory

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
        taken = b"".join(self.pieces)
        self.pieces = []
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
    out = _Pieces()
    totals = _Totals()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as file:
        for step, number, trajectory in job.trajectories():
            sample = _sample(job, step, number, trajectory)
            file.writestr(
                f"samples/{sample['id']}_epoch_{sample['epoch']}.json", job.json_of(sample)
            )
            _add(totals, job, sample)
            yield out.take()
        file.writestr("summaries.json", f"[{','.join(totals.summaries)}]")
        file.writestr("header.json", json.dumps(_header(job, totals)))
    yield out.take()


def _add(totals: _Totals, job: Export, sample: dict[str, Any]) -> None:
    prompts = [message["content"] for message in sample["input"] if message["role"] == "user"]
    summary = {key: sample[key] for key in ("id", "epoch", "target", "scores", "metadata")}
    summary |= {"input": prompts[0][:SHOWN] if prompts else "", "completed": True}
    if sample["error"]:
        summary["error"] = sample["error"]["message"]
        totals.faults += 1
    totals.summaries.append(job.clean(json.dumps(summary, ensure_ascii=False)))
    totals.ids[sample["id"]] = None
    for name, score in sample["scores"].items():
        totals.scores.setdefault(name, []).append(float(score["value"]))


def _sample(job: Export, step: int, number: int, trajectory: Trajectory) -> dict[str, Any]:
    for words in conversation.remarks_on(trajectory):
        if words != conversation.LOOKS_LIKE_CONTROL:  # it is looked at, not learned from
            job.remark(words)
    task = trajectory.task
    answers = task.payload.get("answers", ())
    authored = conversation.authored(trajectory)
    messages = [_message(message, by_policy) for message, by_policy in authored]
    target = [*map(str, answers)] if isinstance(answers, (list, tuple)) else str(answers)
    metadata = {
        "step": step,
        "task_id": task.id,
        "env": task.env,
        "task_seed": task.task_seed,
        "stop_reason": trajectory.stop_reason.value,
        "turns": len(trajectory.turns),
        "sampled_tokens": trajectory.num_sampled,
        "scored": trajectory.reward is not None,
    }
    return {
        "id": f"step-{step}-group-{number}",
        "epoch": trajectory.attempt + 1,
        "messages": messages,
        "input": messages[: len(trajectory.first_observation.messages)],
        "target": target,
        "output": _output(job, trajectory),
        "scores": _scores(trajectory),
        "metadata": metadata,
        "error": _error(trajectory),
    }


def _scores(trajectory: Trajectory) -> dict[str, Any]:
    if trajectory.reward is None:
        return {}
    scores = {"reward": {"value": trajectory.reward}}
    if trajectory.success is not None:
        scores["success"] = {"value": float(trajectory.success)}
    return scores


def _error(trajectory: Trajectory) -> dict[str, str] | None:
    if not trajectory.stop_reason.is_fault:
        return None
    message = f"{trajectory.stop_reason.value}: {trajectory.error or ''}"
    return {"message": message, "traceback": "", "traceback_ansi": ""}


def _message(message: dict[str, Any], by_policy: bool) -> dict[str, Any]:
    kept = {key: message[key] for key in ("role", "content", "tool_call_id") if key in message}
    if message["role"] == "tool" and "name" in message:
        kept["function"] = message["name"]
    calls = [*map(_call, message.get("tool_calls", ()))]
    if calls:
        kept["tool_calls"] = calls
    if by_policy:
        kept["source"] = "generate"
    return kept


def _call(call: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": call["id"],
        "type": "function",
        "function": call["function"]["name"],
        "arguments": json.loads(call["function"]["arguments"]),
    }


def _output(job: Export, trajectory: Trajectory) -> dict[str, Any]:
    model = job.run.setting("policy.name", str)
    if not trajectory.turns:
        return {"model": model, "choices": []}
    last = trajectory.turns[-1]
    message = {"role": "assistant", "content": last.text, "source": "generate"}
    stop_reason = "max_tokens" if last.finish == "length" else "stop"
    choice = {"message": message, "stop_reason": stop_reason}
    return {"model": model, "completion": last.text, "choices": [choice]}


def _header(job: Export, totals: _Totals) -> dict[str, Any]:
    run = job.run
    samples = len(totals.summaries)
    when = [str(at) for at in run.clock()["at"]]
    return {
        "version": VERSION,
        "status": "success",
        "eval": _evaluation(job, totals, when[0]),
        "plan": {"name": "plan", "steps": [{"solver": "policy"}]},
        "results": {
            "total_samples": samples,
            "completed_samples": samples - totals.faults,
            "scores": [
                _mean_score(name, values, samples) for name, values in totals.scores.items()
            ],
        },
        "stats": {"started_at": when[0], "completed_at": when[-1]},
    }


def _evaluation(job: Export, totals: _Totals, created: str) -> dict[str, Any]:
    """What was evaluated, on which tasks."""
    run = job.run
    env = run.setting("env.kind", str)
    ids = list(totals.ids)
    epochs = -(-len(totals.summaries) // max(1, len(ids)))
    metadata = {
        "run": run.name,
        "run_digest": run.digest(),
        "steps": list(job.steps),
        "seed": run.setting("seed", int),
    }
    return {
        "run_id": run.digest()[:22],
        "created": created,
        "task": env,
        "task_id": run.name,
        "model": run.setting("policy.name", str),
        "dataset": {"name": env, "samples": len(ids), "sample_ids": ids},
        "config": {"epochs": epochs},
        "packages": {"agent-rl-workbench": __version__},
        "metadata": metadata,
    }


def _mean_score(name: str, values: list[float], samples: int) -> dict[str, Any]:
    return {
        "name": name,
        "scorer": name,
        "scored_samples": len(values),
        "unscored_samples": samples - len(values),
        "metrics": {"mean": {"name": "mean", "value": sum(values) / len(values)}},
    }
