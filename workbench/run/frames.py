"""A run as data frames: a row a trajectory, a turn or a token, from the columns of its files. Needs pandas.

    run.metrics()                   a row a step
    run.trajectories()              a row a trajectory, of every committed step
    run.turns(steps=[3])            a row a turn, of some steps
    run.tokens(steps=[3])           a row a token, with the credit that the step's first update used

Rows of one thing are found by their address: `step`, `task` (counted in the step), `attempt` (counted in its group), as in
"step 3 / task 2 / attempt 5". The greedy trajectories beside groups, which some algorithms compare with, have no rows. What was
not computed is missing, never zero (invariant 5).

Legend: N trajectories, K turns, T tokens of a step, each end to end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.run.arrow import pa
from workbench.run.columns import TRAJECTORIES, read_text
from workbench.run.outcomes import COLUMNS, StoredRun, is_greedy_N, outcomes_N
from workbench.run.parquet import read_parquet
from workbench.values import Source
from workbench.values.errors import StoreError

if TYPE_CHECKING:
    import pandas

SOURCES = np.array([source.name.lower() for source in Source])
# Columns that a trajectory's row has as they are stored.
STORED = ("task_id", "task_env", "task_seed", "dynamics_seed", "stop_reason", "scored", "error")
TURN = ("index", "text", "finish", "reward", "state_key")
SPAN = ("length", "source", "turn", "sampled", "version")
# What a credit table says of a token besides who wrote it, which stands in the trajectories.
NO_CREDIT = (
    "trajectory",
    "segment",
    "turn",
    "position",
    "token_id",
    "source",
    "eligible",
    "rollout_logp",
)


def trajectories_frame(run: StoredRun, steps: Sequence[int] | None = None) -> pandas.DataFrame:
    """A row a trajectory.

    step, task, attempt     its address
    task_id, task_env       what was played
    task_seed               makes the problem
    dynamics_seed           drives chance inside the environment
    reward                  of all turns and the outcome; missing where it was not scored
    outcome                 the part of the reward that came after the last turn; missing where there is none
    success                 True or False; missing where the environment does not say
    scored                  whether scoring worked
    stop_reason             why it ended
    error                   what broke, where something did
    turns, segments         how many
    tokens                  of all its segments, those of prompts and replies included
    sampled                 tokens that the policy sampled
    """
    return _all_steps(run, steps, _trajectories_of_step)


def turns_frame(run: StoredRun, steps: Sequence[int] | None = None) -> pandas.DataFrame:
    """A row a turn.

    step, task, attempt     address of its trajectory
    turn                    its index there
    text                    what the policy wrote
    finish                  "stop", or "length" where it was cut
    reward                  that it earned; missing where it was not scored
    state_key               of the state it was taken in, where the environment names it
    """
    return _all_steps(run, steps, _turns_of_step)


def tokens_frame(run: StoredRun, steps: Sequence[int] | None = None) -> pandas.DataFrame:
    """A row a token of what the policy saw and wrote.

    step, task, attempt     address of its trajectory
    token                   its number there, over all segments
    segment, turn           which ones it belongs to
    token_id                as it was sampled or encoded
    author                  prompt, scaffold, policy or env: who wrote it
    sampled                 whether the policy sampled it in this very segment
    logprob                 of the distribution that was sampled from; missing for a token that was not sampled
    version                 of the weights that sampled it; missing likewise

    Then the columns of the credit table of the step's first update, such as `advantage`, `weight`, `entropy` and `ratio`;
    missing in steps without an update.
    """
    return _all_steps(run, steps, _tokens_of_step)


def _all_steps(run: StoredRun, steps: Sequence[int] | None, frame_of: Any) -> pandas.DataFrame:
    import pandas

    frames = [frame_of(run, step) for step in (run.steps() if steps is None else steps)]
    return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()


def _read(run: StoredRun, step: int, names: Sequence[str]) -> Mapping[str, pa.Array]:
    data, path = run.trajectory_bytes(step)
    columns, _ = read_parquet(data, path, TRAJECTORIES, ("group", "greedy", *names))
    missing = [name for name in ("group", *names) if name not in columns]
    if missing:
        raise StoreError(
            f"{path} is damaged: it has no column {missing[0]}; restore it from a copy"
        )
    return columns


def _addresses(columns: Mapping[str, pa.Array], step: int) -> dict[str, np.ndarray]:
    """[N] step, task and trajectory of each trajectory; trajectory -1: it is no member of its group."""
    group_N = columns["group"].to_numpy()
    attempt_N = np.full(len(group_N), -1)
    seen: dict[int, int] = {}
    for row, is_greedy in enumerate(is_greedy_N(columns)):
        if not is_greedy:
            group = int(group_N[row])
            attempt_N[row] = seen.get(group, 0)
            seen[group] = attempt_N[row] + 1
    return {"step": np.full(len(group_N), step), "task": group_N, "attempt": attempt_N}


def _members(columns: Mapping[str, Any]) -> pandas.DataFrame:
    """The rows that belong to members of groups."""
    import pandas

    frame = pandas.DataFrame(columns)
    return frame[frame["attempt"] >= 0]


def _lengths(lists: pa.Array) -> np.ndarray:
    """How many entries each list of a column has."""
    return np.diff(lists.offsets.to_numpy())


def _trajectories_of_step(run: StoredRun, step: int) -> pandas.DataFrame:
    lists = ("segment_spans", "token_ids", "span_length", "span_sampled")
    columns = _read(run, step, (*STORED, *COLUMNS, *lists))
    outcomes = outcomes_N(columns)
    sampled_S = columns["span_length"].values.to_numpy() * _flags(columns["span_sampled"].values)
    row_S = np.repeat(np.arange(len(outcomes)), _lengths(columns["span_length"]))
    texts = {name: read_text(columns[name]) for name in ("task_id", "task_env", "error")}
    return _members(
        {
            **_addresses(columns, step),
            **{name: columns[name].to_pylist() for name in STORED},
            **texts,
            "outcome": columns["outcome"].to_numpy(zero_copy_only=False),
            "success": [success for _, success in outcomes],
            "reward": np.array([reward for reward, _ in outcomes], float),
            "turns": _lengths(columns["turn_reward"]),
            "segments": _lengths(columns["segment_spans"]),
            "tokens": _lengths(columns["token_ids"]),
            "sampled": np.bincount(row_S, sampled_S, len(outcomes)).astype(int),
        }
    )


def _flags(column: pa.Array) -> np.ndarray:
    return column.to_numpy(zero_copy_only=False).astype(bool)


def _turns_of_step(run: StoredRun, step: int) -> pandas.DataFrame:
    columns = _read(run, step, [f"turn_{name}" for name in TURN])
    count_N = _lengths(columns["turn_index"])
    rows = {
        name: np.repeat(column_N, count_N) for name, column_N in _addresses(columns, step).items()
    }
    flat = {name: columns[f"turn_{name}"].values for name in TURN}
    return _members(
        {
            **rows,
            "turn": flat["index"].to_numpy(),
            "text": read_text(flat["text"]),
            "finish": read_text(flat["finish"]),
            "reward": flat["reward"].to_numpy(zero_copy_only=False),
            "state_key": read_text(flat["state_key"]),
        }
    )


def _tokens_of_step(run: StoredRun, step: int) -> pandas.DataFrame:
    lists = ("segment_spans", "token_ids", "logprobs", *(f"span_{name}" for name in SPAN))
    columns = _read(run, step, lists)
    length_N = _lengths(columns["token_ids"])
    rows = {
        name: np.repeat(column_N, length_N) for name, column_N in _addresses(columns, step).items()
    }
    span = {name: columns[f"span_{name}"].values for name in SPAN}
    length_S = span["length"].to_numpy()

    def per_token(column_S: np.ndarray) -> np.ndarray:
        return np.repeat(column_S, length_S)

    starts_N = np.cumsum(length_N) - length_N
    token_T = np.arange(length_N.sum()) - np.repeat(starts_N, length_N)
    frame = _members(
        {
            **rows,
            "token": token_T,
            "segment": per_token(_segment_of_span(columns)),
            "turn": per_token(span["turn"].to_numpy()),
            "token_id": columns["token_ids"].values.to_numpy(),
            "author": per_token(SOURCES[span["source"].to_numpy()]),
            "sampled": per_token(_flags(span["sampled"])),
            "logprob": columns["logprobs"].values.to_numpy(zero_copy_only=False),
            "version": per_token(span["version"].to_numpy(zero_copy_only=False)),
        }
    )
    return frame.assign(**_credit_columns(run, step, len(frame)))


def _segment_of_span(columns: Mapping[str, pa.Array]) -> np.ndarray:
    """The number of the segment that each span belongs to, counted in its trajectory."""
    count_N = _lengths(columns["segment_spans"])
    starts_N = np.cumsum(count_N) - count_N
    number = np.arange(count_N.sum()) - np.repeat(starts_N, count_N)
    return np.repeat(number, columns["segment_spans"].values.to_numpy())


def _credit_columns(run: StoredRun, step: int, tokens: int) -> dict[str, np.ndarray]:
    """What the first update of a step used, a number per token of the members."""
    if not run.updates(step):
        return {}
    table = run.credit(step, run.updates(step)[0])
    credit = {name: column for name, column in table.columns.items() if name not in NO_CREDIT}
    if any(len(column) != tokens for column in credit.values()):
        raise StoreError(
            f"step {step} of run {run.name}: its credit table has not one row for each of {tokens} tokens; restore the "
            "run from a copy"
        )
    return credit
