"""TRL's completion tables (`log_completions=True`): parquet, a row per trajectory, as GRPOTrainer and RLOOTrainer write it.

Text only, unless a reward function adds columns: it is handed `completion_ids` and `log_extra(column, values)`, and
what a `rollout_func` returns besides comes with it. Columns by the names in `EXTRAS` are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from workbench.basics.parquet_footer import check_footer
from workbench.basics.regular_files import open_stream
from workbench.extensions.interop.dumps import RawSequence
from workbench.extensions.interop.importers.values import (
    Reader,
    arrays_of,
    has_ids,
    name,
    number,
    prompt_name,
    text_of,
)
from workbench.run.arrow import pq
from workbench.run.parquet import too_much
from workbench.values.errors import DataError

ROWS = 64  # read at a time
EXTRAS = {
    "prompt_ids": ("prompt_ids", "prompt_token_ids"),
    "completion_ids": ("completion_ids", "completion_token_ids"),
    "mask": ("completion_mask", "env_mask", "tool_mask", "mask"),
    "logprobs": ("logprobs", "sampling_logprobs", "completion_logprobs"),
}
TRUNCATED = ("is_truncated", "truncated")
NO_IDS = (
    "token ids: TRL's table holds texts, so R1, R3, R4, R5, R12 and R22 cannot be checked; a reward function "
    "that calls log_extra('completion_ids', completion_ids) adds them, and what a rollout_func returns besides "
    "its three keys (prompt ids, a mask, logprobs under names of your own) can be added likewise"
)
NO_MASK = (
    "a mask beside the token ids: which of them are trained is not known, so R3 and R5 cannot be checked; a "
    "reward function can add it by log_extra('completion_mask', mask)"
)
GROUPS = "group ids: TRL writes none; equal prompts of a step are taken as a group, so R7 cannot be checked"
WEIGHTS = "the weights of several reward functions: their sum is not known, so R6, R8 and R16 cannot be checked"


def is_table(path: Path) -> bool:
    """Whether a parquet file has the columns of one of these."""
    return {"step", "prompt", "completion", "advantage"} <= set(columns_of(path) or ())


def columns_of(path: Path) -> list[str] | None:
    """The names of a parquet file's columns; None where it cannot be read."""
    try:
        with open_stream(path) as stream:
            check_footer(stream)
            return pq.read_schema(stream).names
    except (OSError, ValueError):  # pyarrow's errors are ValueErrors
        return None


def rows_of(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table, a few at a time. DataError where the file is cut or damaged."""
    try:
        with open_stream(path) as stream:
            check_footer(stream)
            yield from _rows_in(stream, path)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"{path.name} cannot be read as parquet ({name(error, 120)}): it is cut off or damaged; have "
            "it written again"
        ) from error


def _rows_in(stream: BinaryIO, path: Path) -> Iterator[dict[str, Any]]:
    with pq.ParquetFile(stream) as file:
        size = path.stat().st_size
        reason = too_much(file.metadata, size, rows=ROWS, file=stream)
        if reason:
            raise DataError(f"{path.name} is not read: {reason}")
        for batch in file.iter_batches(ROWS):
            yield from batch.to_pylist()


def sequences_of(row: dict[str, Any], where: str) -> list[RawSequence]:
    """The row as one sequence."""
    prompt_text = text_of(row.get("prompt"))
    step = name(row.get("step"), 12)
    rewards = reward_columns(row)
    reward = number(row[rewards[0]], rewards[0]) if len(rewards) == 1 else None
    if reward is not None and math.isnan(reward):  # every reward function returned None
        reward = None
    truncated = [row[column] for column in TRUNCATED if row.get(column) is not None]
    return [
        RawSequence(
            attempt=f"step {step}, {where}",
            group=f"step {step}: {prompt_name(prompt_text)}",
            number=0,
            grouped=False,
            **arrays_of(row, EXTRAS),
            advantage=number(row.get("advantage"), "advantage"),
            reward=reward,
            truncated=bool(truncated[0]) if truncated else None,
            prompt_text=prompt_text,
            completion_text=text_of(row.get("completion")),
        )
    ]


def reward_columns(row: Mapping[str, Any]) -> list[str]:
    """The columns of the reward functions: they stand between completion and advantage and hold a number."""
    extras = {*TRUNCATED, *chain.from_iterable(EXTRAS.values())}
    names = list(row)
    between = names[names.index("completion") + 1 : names.index("advantage")]
    return [
        column
        for column in between
        if column not in extras and (row[column] is None or isinstance(row[column], float))
    ]


def missing(sequences: list[RawSequence], rows: list[dict[str, Any]]) -> list[str]:
    """What these tables do not tell. `rows` are the first ones."""
    lacking = [] if has_ids(sequences) else [NO_IDS]
    if any(sequence.completion_ids is not None and sequence.mask is None for sequence in sequences):
        lacking.append(NO_MASK)
    if rows and len(reward_columns(rows[0])) > 1:
        lacking.append(WEIGHTS)
    return [*lacking, GROUPS]


READER = Reader("TRL (completion tables)", lambda row: False, sequences_of, missing, unit="row")
