"""Rows to learn from, one JSON object a line: for TRL's trainers and for OpenAI's fine-tuning.

trl-sft          {"messages", "tools"}                        trajectories that succeeded (or earned `min_reward`)
trl-sft-tokens   {"input_ids", "assistant_masks"}             the same, as the very ids that were sampled
trl-dpo          {"prompt", "chosen", "rejected", "tools"}    best and worst of a group
trl-grpo         {"prompt", ...}                              tasks, each once, with the columns of the data
openai           {"messages", "tools"}                        trajectories as trl-sft
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from workbench.extensions.interop.exports import conversation
from workbench.extensions.interop.exports.job import Export
from workbench.run.writer import write_file
from workbench.values import Group, Trajectory

Row = dict[str, Any]
TAKEN = {  # names that GRPOTrainer hands to reward functions, or reads from a row, itself
    "completion",
    "completions",
    "completion_ids",
    "trainer_state",
    "log_extra",
    "log_metric",
    "environments",
    "images",
    "image",
}


def writer_of(rows: Callable[[Export], Iterator[Row]]) -> Callable[[Export], None]:
    """What writes such rows to the job's file, one at a time."""

    def write(job: Export) -> None:
        write_file(job.dest, (f"{job.json_of(row)}\n".encode() for row in rows(job)))

    return write


def _examples(job: Export) -> Iterator[tuple[int, Trajectory]]:
    """Trajectories to imitate: scored, good enough, no turn of them cut off."""
    for step, _, trajectory in job.trajectories():
        reason = job.unusable(trajectory) or job.not_good(trajectory)
        if reason is None and any(turn.finish != "stop" for turn in trajectory.turns):
            reason = "a turn was cut off at its limit, so it does not end as turns should"
        if reason is not None:
            job.leave_out(reason)
            continue
        yield step, trajectory


def _address(step: int, trajectory: Trajectory) -> Row:
    return {
        "step": step,
        "task_id": trajectory.task.id,
        "attempt": trajectory.attempt,
        "reward": trajectory.reward,
    }


def _remark(job: Export, *trajectories: Trajectory) -> None:
    for trajectory in trajectories:
        for words in conversation.remarks_on(trajectory):
            job.remark(words)


def _tools(trajectory: Trajectory) -> Row:
    """As JSON text, which TRL reads: schemas of several shapes make no column of a table."""
    tools = [*map(dict, trajectory.first_observation.tools)]
    return {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}


def sft(job: Export) -> Iterator[Row]:
    """TRL's SFTTrainer: whole conversations, of which `assistant_only_loss` trains the assistant's turns."""
    for step, trajectory in _examples(job):
        _remark(job, trajectory)
        answers = conversation.answers(trajectory, text_arguments=False)
        messages = conversation.opening(trajectory) + answers
        yield {"messages": messages} | _tools(trajectory) | _address(step, trajectory)


def sft_tokens(job: Export) -> Iterator[Row]:
    """TRL's SFTTrainer, which takes `input_ids` as they are: a row a sequence that the model saw, trained where it was
    sampled."""
    for step, trajectory in _examples(job):
        for number, segment in enumerate(trajectory.segments):
            yield {
                "input_ids": segment.token_ids.tolist(),
                "assistant_masks": segment.eligible.astype(int).tolist(),
                "segment": number,
            } | _address(step, trajectory)


def dpo(job: Export) -> Iterator[Row]:
    """TRL's DPOTrainer: of each group the trajectory that earned most and the one that earned least, from one prompt."""
    for step, groups in job.groups():
        for group in groups:
            pair = _best_and_worst(job, group)
            if pair is None:
                job.leave_out("no two trajectories that earned differently", "groups")
                continue
            best, worst = pair
            _remark(job, best, worst)
            row = {
                "prompt": conversation.opening(best),
                "chosen": conversation.answers(best, text_arguments=False),
                "rejected": conversation.answers(worst, text_arguments=False),
            }
            yield (
                row
                | _tools(best)
                | {
                    "step": step,
                    "task_id": group.task.id,
                    "score_chosen": best.reward,
                    "score_rejected": worst.reward,
                }
            )


def _best_and_worst(job: Export, group: Group) -> tuple[Trajectory, Trajectory] | None:
    scored = []
    for trajectory in group:
        reason = job.unusable(trajectory)
        if reason is None:
            scored.append(trajectory)
        else:
            job.leave_out(reason)
    if not scored:
        return None
    best = max(scored, key=lambda trajectory: trajectory.reward)
    worst = min(scored, key=lambda trajectory: trajectory.reward)
    return (best, worst) if best.reward != worst.reward else None


def grpo(job: Export) -> Iterator[Row]:
    """TRL's GRPOTrainer: what was asked, each task once; what its payload holds is handed to reward functions by
    name."""
    known = set()
    for _, groups in job.groups():
        for group in groups:
            key = (group.task.env, group.task.id)
            first = next(
                (trajectory for trajectory in group if trajectory.first_observation.messages), None
            )
            if first is None:
                job.leave_out("no first prompt", "groups")
            elif key in known:
                job.leave_out("the task was met before", "groups")
            else:
                known.add(key)
                yield _task_row(first)


def _task_row(trajectory: Trajectory) -> Row:
    """The task of a trajectory. What its payload calls as TRL has it gets a name of its own."""
    task = trajectory.task
    row = {
        "prompt": conversation.opening(trajectory),
        "task_id": task.id,
        "env": task.env,
        "task_seed": task.task_seed,
    } | _tools(trajectory)
    payload = {}
    for name, value in task.payload.items():
        is_taken = name in row or name in TAKEN
        payload[f"task_{name}" if is_taken else name] = _column(value)
    return row | payload


def _column(value: Any) -> Any:
    """A value that a table's column holds whatever the other rows have: a scalar, or a list of text; else JSON text."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return list(value)
    return json.dumps(value, ensure_ascii=False)


def openai(job: Export) -> Iterator[Row]:
    """OpenAI's chat format for fine-tuning. An assistant's message that the policy did not write has
    weight 0."""
    for _, trajectory in _examples(job):
        _remark(job, trajectory)
        messages = []
        called = set()
        for message, by_policy in conversation.authored(trajectory):
            called |= {call["id"] for call in message.get("tool_calls", ())}
            if message["role"] == "tool" and message.get("tool_call_id") not in called:
                # A reply to what was no call.
                message = {"role": "user", "content": message["content"]}
            if message["role"] == "assistant" and not by_policy:
                message |= {"weight": 0}
            messages.append({key: value for key, value in message.items() if key != "name"})
        tools = [*map(dict, trajectory.first_observation.tools)]
        yield {"messages": messages} | ({"tools": tools} if tools else {})
