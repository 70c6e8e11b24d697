"""Trajectories and credit tables as columns: exact both ways, byte for byte the same file for the same content.

    groups  ── encode_groups ──▶ parquet bytes ── decode_groups ──▶ groups        (groups_equal to what went in)
    table   ── encode_credit ──▶ parquet bytes ── decode_credit ──▶ table

Legend: N trajectories · K turns · S segments · T tokens. A trajectory file has one row per trajectory. Scalars are
plain columns; `turn_*` are lists [K] (of the structured ones: a JSON list); `segment_spans` [S] counts the spans of
each segment; `span_*` are lists over all spans of the trajectory; `token_ids`, `logprobs`, `plain_logprobs` are lists
[T], segments end to end, and a logprob is *null* where the token was not sampled there (law 5: never zero). `greedy`, where a group has such an
attempt beside its members, says which row it is; `turn_privileged` is there where a critic was told something. What people
and environments said (messages, parsed calls, info) is JSON text. No time stamp, no machine name: equal content makes
an equal file, so that runs compare by hash. The files open in any tool that reads parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from workbench.run.parquet import read_parquet, parquet_bytes
from workbench.run.shapes import mapping, numbers_by_name
from workbench.types import (
    CreditTable,
    Group,
    Sampling,
    Segment,
    Source,
    Span,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from workbench.types.canonical_json import plain
from workbench.types.errors import StoreError
from workbench.types.message_json import (
    call_to_json,
    message_from_json,
    message_to_json,
    observation_from_json,
    observation_to_json,
)
from workbench.types.regular_files import parse_json

TRAJECTORIES = ("trajectories", 1)  # kind and format version
CREDIT = ("credit", 1)
_NUMBERS = "biuf"  # kinds of numpy's types: what a credit table holds
# Columns in which few values repeat; floats that differ from token to token only make a dictionary slow.
_FEW_VALUES = [
    "trajectory",
    "segment",
    "turn",
    "token_id",
    "source",
    "eligible",
    "advantage",
    "weight",
    "clip_state",
]


# ------------------------------------------------------------------------------------------------ codecs


@dataclass(frozen=True)
class _Codec:
    """How the values of a column become an arrow array, and how they come back."""

    write: Callable[[Sequence[Any]], pa.Array]
    read: Callable[[pa.Array], list]


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _write_text(values: Sequence[str | None]) -> pa.Array:
    """Text as utf-8. Where a lone surrogate makes that impossible (a policy may write half a character), the whole
    column is bytes instead, and reads back the same."""
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array(
            [None if v is None else v.encode("utf-8", "surrogatepass") for v in values], pa.binary()
        )


def _read_text(column: pa.Array) -> list[str | None]:
    values = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [
            None if value is None else value.decode("utf-8", "surrogatepass") for value in values
        ]
    return values


def _parsed(column: pa.Array, make: Callable[[Any], Any] = lambda value: value) -> list:
    """JSON values of a text column; equal texts are parsed once (attempts at one task share it)."""
    known: dict[str, Any] = {}
    return [
        known[text] if text in known else known.setdefault(text, make(parse_json(text)))
        for text in _read_text(column)
    ]


def _write_observations(observations: Sequence[Any]) -> pa.Array:
    """Attempts at one task begin with the same messages: each distinct observation is encoded once."""
    known, texts = {}, []
    for observation in observations:
        key = (
            observation.messages,
            _ENCODER.encode(plain(observation.tools, "the schemas of tools")),
        )
        if key not in known:
            known[key] = _ENCODER.encode(observation_to_json(observation))
        texts.append(known[key])
    return _write_text(texts)


def _of_type(kind: pa.DataType) -> _Codec:
    return _Codec(lambda values: pa.array(values, kind), lambda column: column.to_pylist())


def _json(encode: Callable[[Any], Any], make: Callable[[Any], Any] = lambda value: value) -> _Codec:
    """A column of JSON texts. `make`: what becomes of the JSON that is read."""
    return _Codec(
        lambda values: _write_text([_ENCODER.encode(encode(value)) for value in values]),
        lambda column: _parsed(column, make),
    )


def _free(what: str, make: Callable[[Any], Any] = lambda value: value) -> _Codec:
    """What environments fill in freely: it is checked, and `what` names it in errors."""
    return _json(lambda value: plain(value, what), make)


def _each(make: Callable[[Any], Any]) -> Callable[[list], list]:
    return lambda values: [make(value) for value in values]


_TEXT = _Codec(_write_text, _read_text)
_INT32, _INT64, _FLOAT64, _BOOL = map(_of_type, (pa.int32(), pa.int64(), pa.float64(), pa.bool_()))

# Column -> (what it holds of a trajectory, codec), in the order of the file.
_TRAJECTORY: dict[str, tuple[Callable[[Trajectory], Any], _Codec]] = {
    "attempt": (attrgetter("attempt"), _INT64),
    "task_id": (attrgetter("task.id"), _TEXT),
    "task_env": (attrgetter("task.env"), _TEXT),
    "task_seed": (attrgetter("task.task_seed"), _INT64),
    "task_payload": (attrgetter("task.payload"), _free("payload of a task", mapping)),
    "task_metadata": (attrgetter("task.metadata"), _free("metadata of a task", mapping)),
    "dynamics_seed": (attrgetter("dynamics_seed"), _INT64),
    "first_observation": (
        attrgetter("first_observation"),
        _Codec(_write_observations, lambda column: _parsed(column, observation_from_json)),
    ),
    "stop_reason": (attrgetter("stop_reason.value"), _TEXT),
    "outcome": (attrgetter("outcome"), _FLOAT64),
    "outcome_parts": (attrgetter("outcome_parts"), _free("outcome_parts", numbers_by_name)),
    "scored": (lambda t: bool(t.scored), _BOOL),
    "success": (lambda t: None if t.success is None else bool(t.success), _BOOL),
    "error": (attrgetter("error"), _TEXT),
}
# Fields of a turn, as lists over the turns; of structured ones one JSON text holds the whole list. Moves and messages
# hold texts by their types.
_TURN = {"index": _INT32, "text": _TEXT, "finish": _TEXT, "reward": _FLOAT64, "state_key": _TEXT}
_TURN_JSON = {
    "moves": _json(list, _each(tuple)),
    "tool_calls": _json(
        _each(lambda calls: [call_to_json(call) for call in calls]),
        _each(lambda calls: tuple(ToolCall(*call) for call in calls)),
    ),
    "reply": _json(
        _each(lambda messages: [message_to_json(message) for message in messages]),
        _each(lambda messages: tuple(map(message_from_json, messages))),
    ),
    "reward_parts": _free("reward_parts of a turn", _each(numbers_by_name)),
    "info": _free("info of a turn", _each(mapping)),
}


# ------------------------------------------------------------------------------------------------ writing


def encode_groups(groups: Sequence[Group], *, step: int) -> memoryview:
    """All trajectories of a step as the bytes of one parquet file; raises StoreError for values that cannot be kept."""
    members = [
        (g, t)
        for g, group in enumerate(groups)
        for t in (*group, *([group.greedy] if group.greedy else ()))
    ]
    trajectories = [t for _, t in members]
    samplings: list[Sampling] = []
    try:
        columns = {
            "group": pa.array([g for g, _ in members], pa.int32()),
            **(
                {"greedy": pa.array([t is groups[g].greedy for g, t in members])}
                if len(members) > sum(map(len, groups))
                else {}
            ),
            **{
                name: codec.write([get(t) for t in trajectories])
                for name, (get, codec) in _TRAJECTORY.items()
            },
            **_turn_columns(trajectories),
            **_token_columns(trajectories, samplings),
        }
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise StoreError(
            f"step {step}: a trajectory holds a value that its column cannot keep ({error}); seeds must "
            "fit into 63 bits, rewards must be numbers or None, texts must be text"
        ) from error
    facts = {
        "step": step,
        "samplings": [
            [s.temperature, s.top_p, s.engine, s.dtype, *(() if s.addressed else (False,))]
            for s in samplings
        ],
    }
    return parquet_bytes(columns, TRAJECTORIES, facts, use_dictionary=False)


def _lists(values: pa.Array, lengths: Sequence[int]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _turn_columns(trajectories: list[Trajectory]) -> dict[str, pa.Array]:
    turns = [turn for t in trajectories for turn in t.turns]
    counts_N = [len(t.turns) for t in trajectories]
    flat = {
        f"turn_{name}": _lists(codec.write([getattr(turn, name) for turn in turns]), counts_N)
        for name, codec in _TURN.items()
    }
    if any(turn.privileged is not None for turn in turns):
        flat["turn_privileged"] = _lists(_TEXT.write([turn.privileged for turn in turns]), counts_N)
    return flat | {
        f"turn_{name}": codec.write(
            [[getattr(turn, name) for turn in t.turns] for t in trajectories]
        )
        for name, codec in _TURN_JSON.items()
    }


def _token_columns(
    trajectories: list[Trajectory], samplings: list[Sampling]
) -> dict[str, pa.Array]:
    """Segments, spans and tokens. `samplings` is filled with the distinct ones, which spans name by their index."""
    segments = [segment for t in trajectories for segment in t.segments]
    spans = [span for segment in segments for span in segment.spans]
    index: dict[Sampling | None, int | None] = {None: None}
    for span in spans:
        if span.sampling not in index:
            index[span.sampling] = len(samplings)
            samplings.append(span.sampling)
    lengths = np.fromiter((len(span.token_ids) for span in spans), np.int32, len(spans))
    span_columns = {
        "span_length": pa.array(lengths),
        "span_source": pa.array([int(span.source) for span in spans], pa.int8()),
        "span_turn": pa.array([span.turn for span in spans], pa.int32()),
        "span_sampled": pa.array([span.sampled for span in spans], pa.bool_()),
        "span_plain": pa.array([span.plain_logprobs is not None for span in spans], pa.bool_()),
        "span_version": pa.array([span.policy_version for span in spans], pa.int64()),
        "span_sampling": pa.array([index[span.sampling] for span in spans], pa.int32()),
    }
    token_columns = {
        "token_ids": pa.array(
            np.concatenate([np.zeros(0, np.int32), *(span.token_ids for span in spans)])
        ),
        "logprobs": _token_floats([span.logprobs for span in spans], lengths),
        "plain_logprobs": _token_floats([span.plain_logprobs for span in spans], lengths),
    }
    spans_N = [sum(len(segment.spans) for segment in t.segments) for t in trajectories]
    ends = np.concatenate([[0], np.cumsum(lengths)])[
        np.concatenate([[0], np.cumsum(spans_N, dtype=np.int64)])
    ]
    return {
        "segment_spans": _lists(
            pa.array([len(segment.spans) for segment in segments], pa.int32()),
            [len(t.segments) for t in trajectories],
        ),
        **{name: _lists(column, spans_N) for name, column in span_columns.items()},
        **{name: _lists(column, np.diff(ends)) for name, column in token_columns.items()},
    }


def _token_floats(values_of_spans: list[np.ndarray | None], lengths: np.ndarray) -> pa.Array:
    """float32 [T]: null exactly where the span has no such numbers."""
    present_T = np.repeat(
        np.array([values is not None for values in values_of_spans], bool), lengths
    )
    values_T = np.zeros(len(present_T), np.float32)
    values_T[present_T] = np.concatenate(
        [np.zeros(0, np.float32), *(v for v in values_of_spans if v is not None)]
    )
    return pa.array(values_T, mask=~present_T)


# ------------------------------------------------------------------------------------------------ reading


def decode_groups(data: bytes, path: Path) -> list[Group]:
    """The groups of a step, exactly as they were written. `path` is for messages. Raises StoreError."""
    columns, facts = read_parquet(data, path, TRAJECTORIES)
    try:
        return _read_groups(columns, [Sampling(*one) for one in facts["samplings"]])
    except (
        KeyError,
        ValueError,
        TypeError,
        IndexError,
        AttributeError,
        OverflowError,
        pa.ArrowException,
    ) as error:
        raise StoreError(
            f"{path} is damaged: its columns do not make trajectories ({error!r}); restore it from a copy"
        ) from error


def _read_groups(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> list[Group]:
    turns_N = _cut(_read_turns(columns), columns["turn_index"])
    segments_N = _cut(_read_segments(columns, samplings), columns["segment_spans"])
    rows = zip(
        columns["group"].to_pylist(),
        turns_N,
        segments_N,
        *(codec.read(columns[name]) for name, (_, codec) in _TRAJECTORY.items()),
        strict=True,
    )
    groups: dict[int, list[Trajectory]] = {}
    aside: dict[int, Trajectory] = {}
    greedy_N = columns["greedy"].to_pylist() if "greedy" in columns else [False] * len(turns_N)
    for greedy, (group, turns, segments, attempt, *row) in zip(
        greedy_N, rows, strict=True
    ):  # rest: in the order of the fields
        task, (seed, first_observation, *rest) = Task(*row[:5]), row[5:]
        made = Trajectory(task, attempt, seed, first_observation, turns, segments, *rest)
        if greedy:
            aside[group] = made
        else:
            groups.setdefault(group, []).append(made)
    return [Group(tuple(members), aside.get(number)) for number, members in groups.items()]


def _cut(values: Sequence[Any], lists: pa.Array) -> list[tuple]:
    """`values`, which lie end to end, by trajectory: as long as the entries of a list column."""
    starts = lists.offsets.to_pylist()
    return [tuple(values[start:end]) for start, end in zip(starts, starts[1:])]


def _read_turns(columns: Mapping[str, pa.Array]) -> list[Turn]:
    """Of all trajectories, end to end."""
    plain_ones = _TURN | ({"privileged": _TEXT} if "turn_privileged" in columns else {})
    fields = {
        name: codec.read(columns[f"turn_{name}"].values) for name, codec in plain_ones.items()
    }
    for name, codec in _TURN_JSON.items():
        fields[name] = [value for values in codec.read(columns[f"turn_{name}"]) for value in values]
    return [Turn(**dict(zip(fields, row))) for row in zip(*fields.values(), strict=True)]


def _read_segments(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> list[Segment]:
    """Of all trajectories, end to end."""
    ids_T, logprobs_T, plain_T = (
        columns[name].values.to_numpy(zero_copy_only=False)
        for name in ("token_ids", "logprobs", "plain_logprobs")
    )
    names = ("length", "source", "turn", "sampled", "plain", "version", "sampling")
    spans, start = [], 0
    for length, source, turn, sampled, bent, version, sampling in zip(
        *(columns[f"span_{name}"].values.to_pylist() for name in names), strict=True
    ):
        part = slice(start, start + length)
        spans.append(
            Span(
                Source(source),
                int(turn),
                ids_T[part],
                logprobs_T[part] if sampled else None,
                plain_T[part] if bent else None,
                version,
                None if sampling is None else samplings[sampling],
                sampled,
            )
        )
        start += length
    ends = np.cumsum(columns["segment_spans"].values.to_numpy()).tolist()
    return [Segment(tuple(spans[start:end])) for start, end in zip([0, *ends], ends)]


# ------------------------------------------------------------------------------------------------ credit tables


def encode_credit(table: CreditTable, *, skipped: str | None = None) -> memoryview:
    """A credit table as the bytes of one parquet file. `skipped`: why this update did not touch the weights, if so."""
    columns = {}
    for name, column in table.columns.items():
        column = np.asarray(column)
        if column.ndim != 1 or column.dtype.kind not in _NUMBERS:
            raise StoreError(
                f"credit column {name!r} has shape {column.shape} and type {column.dtype}; expected one "
                "number or flag per token"
            )
        columns[name] = pa.array(column)  # NaN stays NaN, bit for bit; null is never written
    facts = {"step": table.step, "update": table.update, "skipped": skipped}
    return parquet_bytes(columns, CREDIT, facts, use_dictionary=_FEW_VALUES)


def decode_credit(data: bytes, path: Path) -> tuple[CreditTable, str | None]:
    """A credit table and why its update was skipped (None: it was not). Columns that were absent are absent."""
    columns, facts = read_parquet(data, path, CREDIT)
    try:
        arrays = {name: column.to_numpy(zero_copy_only=False) for name, column in columns.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in _NUMBERS:
                raise TypeError(f"{name} holds no numbers but {array.dtype}")
            array.flags.writeable = False
        return CreditTable(facts["step"], facts["update"], arrays), facts["skipped"]
    except (KeyError, ValueError, TypeError, pa.ArrowException) as error:
        raise StoreError(
            f"{path} is damaged: its columns make no credit table ({error!r}); restore it from a copy"
        ) from error
