"""Rows to learn from, one JSON object a line: for TRL's trainers and for OpenAI's fine-tuning.

trl-sft          {"messages", "tools"}                        attempts that succeeded (or earned `min_reward`)
trl-sft-tokens   {"input_ids", "assistant_masks"}             the same, as the very ids that were sampled
trl-dpo          {"prompt", "chosen", "rejected", "tools"}    best and worst of a group
trl-grpo         {"prompt", ...}                              tasks, each once, with the columns of the data
openai           {"messages", "tools"}                        attempts as trl-sft
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from workbench.notebook.exports import conversation
from workbench.notebook.exports.job import Export
from workbench.run.writer import write_file
from workbench.types import Group, Trajectory

Row = dict[str, Any]


def writer_of(rows: Callable[[Export], Iterator[Row]]) -> Callable[[Export], None]:
    """What writes such rows to the job's file, one at a time."""

    def write(job: Export) -> None:
        write_file(job.dest, (f"{job.json_of(row)}\n".encode() for row in rows(job)))

    return write


def _examples(job: Export) -> Iterator[tuple[int, Trajectory]]:
    """Attempts to imitate: scored, good enough, no turn of them cut off."""
    for step, _, attempt in job.attempts():
        reason = job.unusable(attempt) or job.not_good(attempt)
        if reason is None and any(turn.finish != "stop" for turn in attempt.turns):
            reason = "a turn was cut off at its limit, so it does not end as turns should"
        if reason is not None:
            job.leave_out(reason)
            continue
        yield step, attempt


def _address(step: int, attempt: Trajectory) -> Row:
    return {
        "step": step,
        "task_id": attempt.task.id,
        "attempt": attempt.attempt,
        "reward": attempt.reward,
    }


def _remark(job: Export, *attempts: Trajectory) -> None:
    for attempt in attempts:
        for words in conversation.remarks_on(attempt):
            job.remark(words)


def _tools(attempt: Trajectory) -> Row:
    """As JSON text, which TRL reads: schemas of several shapes make no column of a table."""
    tools = [*map(dict, attempt.first_observation.tools)]
    return {"tools": json.dumps(tools, ensure_ascii=False)} if tools else {}


def sft(job: Export) -> Iterator[Row]:
    """TRL's SFTTrainer: whole conversations, of which `assistant_only_loss` trains the assistant's turns."""
    for step, attempt in _examples(job):
        _remark(job, attempt)
        messages = conversation.opening(attempt) + conversation.answers(
            attempt, text_arguments=False
        )
        yield {"messages": messages} | _tools(attempt) | _address(step, attempt)


def sft_tokens(job: Export) -> Iterator[Row]:
    """TRL's SFTTrainer, which takes `input_ids` as they are: a row a sequence that the model saw, trained where it was
    sampled."""
    for step, attempt in _examples(job):
        for number, segment in enumerate(attempt.segments):
            yield {
                "input_ids": segment.token_ids.tolist(),
                "assistant_masks": segment.eligible.astype(int).tolist(),
                "segment": number,
            } | _address(step, attempt)


def dpo(job: Export) -> Iterator[Row]:
    """TRL's DPOTrainer: of each group the attempt that earned most and the one that earned least, from one prompt."""
    for step, groups in job.groups():
        for group in groups:
            pair = _best_and_worst(job, group)
            if pair is None:
                job.leave_out("no two attempts that earned differently", "groups")
                continue
            best, worst = pair
            _remark(job, best, worst)
            chosen, rejected = (
                conversation.answers(attempt, text_arguments=False) for attempt in pair
            )
            yield (
                {"prompt": conversation.opening(best), "chosen": chosen, "rejected": rejected}
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
    for attempt in group:
        if (reason := job.unusable(attempt)) is None:
            scored.append(attempt)
        else:
            job.leave_out(reason)
    if not scored:
        return None
    best, worst = max(scored, key=lambda t: t.reward), min(scored, key=lambda t: t.reward)
    return (best, worst) if best.reward != worst.reward else None


def grpo(job: Export) -> Iterator[Row]:
    """TRL's GRPOTrainer: what was asked, each task once; what its payload holds is handed to reward functions by
    name."""
    known = set()
    for _, groups in job.groups():
        for group in groups:
            task = group.task
            first = next((attempt for attempt in group if attempt.first_observation.messages), None)
            if first is None or (task.env, task.id) in known:
                job.leave_out(
                    "no first prompt" if first is None else "the task was met before", "groups"
                )
                continue
            known.add((task.env, task.id))
            row = {
                "prompt": conversation.opening(first),
                "task_id": task.id,
                "env": task.env,
                "task_seed": task.task_seed,
            } | _tools(first)
            taken = {
                *row,
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
            yield row | {
                f"task_{name}" if name in taken else name: _column(value)
                for name, value in task.payload.items()
            }


def _column(value: Any) -> Any:
    """A value that a table's column holds whatever the other rows have: a scalar, or a list of text; else JSON text."""
    simple = value is None or isinstance(value, (str, bool, int, float))
    texts = isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
    return value if simple else list(value) if texts else json.dumps(value, ensure_ascii=False)


def openai(job: Export) -> Iterator[Row]:
    """OpenAI's chat format for fine-tuning. An assistant's message that the policy did not write has
    weight 0."""
    for _, attempt in _examples(job):
        _remark(job, attempt)
        messages, called = [], set()
        for message, by_policy in conversation.authored(attempt):
            called |= {call["id"] for call in message.get("tool_calls", ())}
            if message["role"] == "tool" and message.get("tool_call_id") not in called:
                message = {
                    "role": "user",
                    "content": message["content"],
                }  # a reply to what was no call
            if message["role"] == "assistant" and not by_policy:
                message |= {"weight": 0}
            messages.append({key: value for key, value in message.items() if key != "name"})
        tools = [*map(dict, attempt.first_observation.tools)]
        yield {"messages": messages} | ({"tools": tools} if tools else {})
