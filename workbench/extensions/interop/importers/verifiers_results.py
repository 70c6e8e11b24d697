"""verifiers up to 0.3 (its environments of the first kind), and prime-rl of that time: `results.jsonl`, a row a
trajectory.

Token ids are in `trajectory`, one step a turn, where that state column was asked for: prompt and completion of each
turn with masks and logprobs, the prompt being the whole history as the model saw it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.basics.regular_files import parse_json, read_regular
from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.importers.values import (
    LONGEST_LINE,
    Damaged,
    Reader,
    Row,
    has_columns,
    has_ids,
    ids,
    mapping,
    name,
    number,
    numbers,
    rows_of,
    text_of,
)

NO_TRAJECTORY = (
    "token ids, masks and logprobs: verifiers writes the texts of prompt and completion unless asked for "
    "more, so R1, R3, R4, R5, R12 and R22 cannot be checked; ask with state_columns=['trajectory'] "
    "(vf-eval -C trajectory) and a client that keeps token ids"
)
NO_TOKENS = (
    "token ids: the trajectories have no `tokens`, since the client returned none; use a client that keeps "
    "token ids (an inference server that returns them)"
)


def sequences_of(row: dict[str, Any], where: str) -> list[RawSequence]:
    """One sequence for each turn; one of texts alone where no token ids were written."""
    example = name(row.get("example_id"), 24)
    common: dict[str, Any] = {
        "attempt": f"example {example}, {where}",
        "group": example,
        "reward": number(row.get("reward"), "reward"),
        "failed": _failure(row.get("error")),
    }
    steps = rows_of(row.get("trajectory"), "trajectory")
    steps = [mapping(step, "a step of the trajectory") for step in steps]
    sequences = []
    for k, step in enumerate(steps):
        fork = _rewritten(steps[k - 1], step) if k else None
        sequences.append(_step(step, k, common, fork))
    if has_ids(sequences):
        return sequences
    return [
        RawSequence(
            number=0,
            prompt_ids=None,
            completion_ids=None,
            truncated=bool(row.get("is_truncated", False)),
            prompt_text=text_of(row.get("prompt")),
            completion_text=text_of(row.get("completion")),
            advantage=number(row.get("advantage"), "advantage"),
            **common,
        )
    ]


def _failure(error: Any) -> str | None:
    if error is None:
        return None
    return name(error.get("error", "error") if isinstance(error, dict) else error)


def _rewritten(before: Mapping[str, Any], step: Mapping[str, Any]) -> bool | None:
    """True where the messages of a step do not go on from those of the step before: then its history was rewritten on
    purpose, as the file itself says. Other tokens for the same messages are another matter."""
    prompt_before = before.get("prompt")
    completion_before = before.get("completion")
    prompt = step.get("prompt")
    parts = (prompt_before, completion_before, prompt)
    if not all(isinstance(messages, list) for messages in parts):
        return None
    history = [text_of(message) for message in (*prompt_before, *completion_before)]
    repeated = [text_of(message) for message in prompt[: len(history)]]
    return True if repeated != history else None


def _step(
    step: dict[str, Any], k: int, common: Mapping[str, Any], fork: bool | None
) -> RawSequence:
    tokens = mapping(step.get("tokens"), f"tokens of step {k}")
    what = f"step {k}: "
    prompt = ids(tokens.get("prompt_ids"), f"{what}prompt_ids")
    completion = ids(tokens.get("completion_ids"), f"{what}completion_ids")
    if tokens and (prompt is None or completion is None):
        raise Damaged(f"{what}tokens without prompt_ids or completion_ids")
    return RawSequence(
        number=k,
        prompt_ids=prompt,
        completion_ids=completion,
        fork=fork,
        mask=numbers(tokens.get("completion_mask"), f"{what}completion_mask"),
        prompt_mask=numbers(tokens.get("prompt_mask"), f"{what}prompt_mask"),
        logprobs=numbers(tokens.get("completion_logprobs"), f"{what}completion_logprobs"),
        advantage=number(step.get("advantage"), f"{what}advantage"),
        truncated=bool(step.get("is_truncated") or tokens.get("is_truncated")),
        prompt_text=text_of(step.get("prompt")),
        completion_text=text_of(step.get("completion")),
        **common,
    )


def missing(sequences: list[RawSequence], rows: list[dict[str, Any]]) -> list[str]:
    """What these files do not tell. `rows` are those of the first trajectories."""
    lacking = []
    if not has_ids(sequences):
        lacking.append(NO_TOKENS if any(row.get("trajectory") for row in rows) else NO_TRAJECTORY)
    if all(sequence.advantage is None for sequence in sequences):
        lacking.append(
            "advantages: verifiers computes none; prime-rl keeps them elsewhere, so R6 cannot be checked"
        )
    return lacking


def version(rows: Sequence[Row], file: Path) -> str | None:
    """The version of verifiers, as the metadata.json beside the file has it."""
    beside = file.with_name("metadata.json")
    try:
        metadata = mapping(parse_json(read_regular(beside, most=LONGEST_LINE)), "metadata")
        info = mapping(metadata.get("version_info"), "version_info")
    except (OSError, ValueError, Damaged):
        return None
    return name(info["vf_version"], 24) if isinstance(info.get("vf_version"), str) else None


READER = Reader(
    "verifiers (results)",
    has_columns("example_id", "completion", "reward"),
    sequences_of,
    missing,
    version,
)
