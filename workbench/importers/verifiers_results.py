"""verifiers up to 0.3 (its environments of the first kind), and prime-rl of that time: `results.jsonl`, a row an
attempt.

Token ids are in `trajectory`, one step a turn, where that state column was asked for: prompt and completion of each
turn with masks and logprobs, the prompt being the whole history as the model saw it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.importers.values import (
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
from workbench.types.dumps import RawSequence
from workbench.types.regular_files import parse_json, read_regular

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
    error = row.get("error")
    common: dict[str, Any] = {
        "attempt": f"example {example}, {where}",
        "group": example,
        "reward": number(row.get("reward"), "reward"),
        "failed": None
        if error is None
        else name(error.get("error", "error") if isinstance(error, dict) else error),
    }
    truncated = bool(row.get("is_truncated", False))
    steps = [
        mapping(step, "a step of the trajectory")
        for step in rows_of(row.get("trajectory"), "trajectory")
    ]
    read = [
        _step(step, k, common, _rewritten(steps[k - 1], step) if k else None)
        for k, step in enumerate(steps)
    ]
    if not has_ids(read):
        return [
            RawSequence(
                number=0,
                prompt_ids=None,
                completion_ids=None,
                truncated=truncated,
                prompt_text=text_of(row.get("prompt")),
                completion_text=text_of(row.get("completion")),
                advantage=number(row.get("advantage"), "advantage"),
                **common,
            )
        ]
    return read


def _rewritten(before: Mapping[str, Any], step: Mapping[str, Any]) -> bool | None:
    """True where the messages of a step do not go on from those of the step before: then its history was rewritten on
    purpose, as the file itself says. Other tokens for the same messages are another matter."""
    messages_of = [before.get("prompt"), before.get("completion"), step.get("prompt")]
    if not all(isinstance(messages, list) for messages in messages_of):
        return None
    history = [text_of(message) for message in (*messages_of[0], *messages_of[1])]
    return (
        True
        if [text_of(message) for message in messages_of[2][: len(history)]] != history
        else None
    )


def _step(
    step: dict[str, Any], k: int, common: Mapping[str, Any], fork: bool | None
) -> RawSequence:
    tokens = mapping(step.get("tokens"), f"tokens of step {k}")
    what = f"step {k}: "
    prompt, completion = (
        ids(tokens.get(f"{part}_ids"), f"{what}{part}_ids") for part in ("prompt", "completion")
    )
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
    """What these files do not tell. `rows` are those of the first attempts."""
    said = []
    if not has_ids(sequences):
        said.append(NO_TOKENS if any(row.get("trajectory") for row in rows) else NO_TRAJECTORY)
    if all(sequence.advantage is None for sequence in sequences):
        said.append(
            "advantages: verifiers computes none; prime-rl keeps them elsewhere, so R6 cannot be checked"
        )
    return said


def version(rows: Sequence[Row], file: Path) -> str | None:
    """The version of verifiers, as the metadata.json beside the file has it."""
    beside = file.with_name("metadata.json")
    try:
        info = mapping(
            mapping(parse_json(read_regular(beside, most=LONGEST_LINE)), "metadata").get(
                "version_info"
            ),
            "version_info",
        )
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
