"""verl's generations (`trainer.rollout_data_dir`, `trainer.validation_data_dir`): a JSONL file a step, a row a
response.

Prompt and response are decoded without special tokens, so no token of them is known. The older trainer also writes
what a reward manager returned beside the score, which can carry ids; columns by the names in `EXTRAS` are read.
"""

from __future__ import annotations

from typing import Any

from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.importers.values import (
    Reader,
    arrays_of,
    has_columns,
    has_ids,
    name,
    number,
    prompt_name,
    text_of,
)

EXTRAS = {
    "prompt_ids": ("prompt_ids", "prompts"),
    "completion_ids": ("response_ids", "responses", "completion_ids"),
    "mask": ("response_mask", "loss_mask"),
    "logprobs": ("rollout_log_probs", "response_logprobs"),
}
NO_IDS = (
    "token ids: verl writes the texts of prompt and response, decoded without special tokens, so R1, R3, R4, "
    "R5, R12 and R22 cannot be checked. The trainer of `trainer.use_v1=True` (the default of 0.9) writes "
    "nothing else; the one of "
    "`trainer.use_v1=False` also writes what a reward manager puts into `reward_extra_info`: ids as JSON text "
    "under prompt_ids, response_ids, response_mask, rollout_log_probs are read here"
)
NO_ADVANTAGES = "advantages: verl writes the score alone, so R6 cannot be checked"
NO_GROUPS = (
    "group ids: this trainer of verl writes none; equal prompts of a step are taken as a group, so R7 cannot "
    "be checked"
)


def sequences_of(row: dict[str, Any], where: str) -> list[RawSequence]:
    """The row as one sequence, of texts alone where no ids were added."""
    prompt_text = text_of(row["input"])
    step = name(row["step"], 12)
    # "{sample}_{rollout}_{output}" is the key that the newer trainer writes as uid
    uid = str(row["uid"]).rsplit("_", 2) if row.get("uid") is not None else []
    group = uid[0] if len(uid) == 3 else prompt_name(prompt_text)
    return [
        RawSequence(
            attempt=f"step {step}, {where}",
            group=f"step {step}: {name(group)}",
            number=0,
            grouped=len(uid) == 3,
            **arrays_of(row, EXTRAS),
            reward=number(row["score"], "score"),
            prompt_text=prompt_text,
            completion_text=text_of(row["output"]),
        )
    ]


def missing(sequences: list[RawSequence], rows: list[dict[str, Any]]) -> list[str]:
    """What these files do not tell."""
    lacking = [] if has_ids(sequences) else [NO_IDS]
    lacking.append(NO_ADVANTAGES)
    if not any(sequence.grouped for sequence in sequences):
        lacking.append(NO_GROUPS)
    return lacking


READER = Reader(
    "verl (generations)",
    has_columns("input", "output", "gts", "score", "step"),
    sequences_of,
    missing,
)
