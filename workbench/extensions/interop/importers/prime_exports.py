"""prime-rl's token exports (May to August 2026; later versions write annotations instead): a row a trained sequence,
with what the trainer really used for every token.

Written after the batch was packed, so trajectories and groups are not known: each row stands alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.importers.values import (
    Damaged,
    Reader,
    has_columns,
    ids,
    name,
    numbers,
)

MISSING = [
    "trajectories and groups: rows are sequences of a packed batch, so R1, R7, R8 and R22 cannot be checked; the "
    "rollouts of the same step (traces.jsonl) tell them"
]


def sequences_of(row: dict[str, Any], where: str) -> list[RawSequence]:
    """The row as one sequence; its prompt ends before the first trained token."""
    token_ids = ids(row["token_ids"], "token_ids")
    mask = numbers(row["loss_mask"], "loss_mask")
    if token_ids is None or mask is None:
        raise Damaged("token_ids or loss_mask is null")
    logprobs = numbers(row["inference_logprobs"], "inference_logprobs")
    advantages = numbers(row.get("advantages"), "advantages")
    rewards = numbers(row.get("rewards"), "rewards")
    known = rewards[np.isfinite(rewards)] if rewards is not None else np.zeros(0)
    trained = np.flatnonzero(mask[: len(token_ids)])
    first = int(trained[0]) if len(trained) else 0
    step = name(row.get("export_step", row.get("step", "?")), 12)
    if advantages is not None:
        advantages = None if np.isnan(advantages).all() else advantages[first:]
    return [
        RawSequence(
            attempt=f"step {step}, {where}",
            group=None,
            number=0,
            prompt_ids=token_ids[:first],
            completion_ids=token_ids[first:],
            mask=mask[first:],
            logprobs=None if logprobs is None else logprobs[first:],
            advantages=advantages,
            reward=float(known[0]) if len(known) else None,
        )
    ]


READER = Reader(
    "prime-rl (token exports)",
    has_columns("token_ids", "loss_mask", "inference_logprobs"),
    sequences_of,
    lambda sequences, rows: list(MISSING),
)
