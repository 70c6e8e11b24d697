"""Trajectories and credit tables as columns: exact both ways, byte for byte the same file for the same content.

    groups  ── encode_groups ──▶ parquet bytes ── decode_groups ──▶ groups        (groups_equal to what went in)
    table   ── encode_credit ──▶ parquet bytes ── decode_credit ──▶ table

Legend: N trajectories · K turns · S segments · T tokens. A trajectory file has one row per trajectory. Scalars are
plain columns; `turn_*` are lists [K] (of the structured ones: a JSON list); `segment_spans` [S] counts the spans of
each segment; `span_*` are lists over all spans of the trajectory; `token_ids`, `logprobs`, `plain_logprobs` are lists
[T], segments end to end, and a logprob is *null* where the token was not sampled there (law 5: never zero). What people
and environments said (messages, parsed calls, info) is JSON text. No time stamp, no machine name: equal content makes
an equal file, so that runs compare by hash. The files open in any tool that reads parquet.
"""
from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from workbench.types import (
    CreditTable, Group, Message, Observation, Sampling, Segment, Source, Span, StopReason, Task, Text, ToolCall,
    Trajectory, Turn,
)
from workbench.types.canonical_json import check_format, plain
from workbench.types.errors import StoreError

TRAJECTORIES = ("trajectories", 1)  # kind and format version
CREDIT = ("credit", 1)

# Measured on a step of 128 trajectories (25 600 tokens): zstd at level 1 costs 1 ms and saves 60 % of the bytes to
# sync. Page checksums let a damaged file be told from a good one even before its step is committed and sealed.
_PARQUET = {"compression": "zstd", "compression_level": 1, "write_statistics": False, "write_page_checksum": True}


# ------------------------------------------------------------------------------------------------ JSON of the types


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _json(value: Any, what: str) -> str:
    return _ENCODER.encode(plain(value, what))


def _message(message: Message) -> list:
    return [message.role, [[part.text, part.trusted] for part in message.content], message.name, message.tool_call_id]


def _to_message(value: list) -> Message:
    role, content, name, call_id = value
    return Message(role, tuple(Text(text, trusted) for text, trusted in content), name, call_id)


def _call(call: ToolCall) -> list:
    return [call.name, plain(call.arguments, f"the arguments of tool {call.name}"), call.call_id]


def _first_observations(trajectories: list[Trajectory]) -> list[str]:
    """Attempts at one task begin with the same messages: each distinct one is encoded once."""
    known: dict[Any, str] = {}
    texts = []
    for observation in (t.first_observation for t in trajectories):
        key = (observation.messages, _json(observation.tools, "the schemas of tools"))
        if key not in known:
            known[key] = _ENCODER.encode([list(map(_message, observation.messages)), observation.tools])
        texts.append(known[key])
    return texts


def _to_observation(value: list) -> Observation:
    messages, tools = value
    return Observation(tuple(map(_to_message, messages)), tuple(tools))


# ------------------------------------------------------------------------------------------------ arrow columns


def _text(values: Sequence[str | None]) -> pa.Array:
    """Text as utf-8. Where a lone surrogate makes that impossible (a policy may write half a character), the whole
    column is bytes instead, and reads back the same."""
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        return pa.array([None if v is None else v.encode("utf-8", "surrogatepass") for v in values], pa.binary())


def _lists(values: pa.Array, lengths: Sequence[int]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _joined(arrays: list[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def _token_floats(values_of_spans: list[np.ndarray | None], lengths: np.ndarray) -> pa.Array:
    """float32 [T]: null exactly where the span has no such numbers."""
    present_T = np.repeat(np.array([values is not None for values in values_of_spans], bool), lengths)
    values_T = np.zeros(len(present_T), np.float32)
    values_T[present_T] = _joined([values for values in values_of_spans if values is not None], np.float32)
    return pa.array(values_T, mask=~present_T)


def _turn_columns(trajectories: list[Trajectory]) -> dict[str, pa.Array]:
    """Numbers and texts as lists over the turns; structured values as one JSON list over the turns."""
    turns = [turn for t in trajectories for turn in t.turns]
    turns_N = [t.turns for t in trajectories]
    flat = {
        "turn_index": pa.array([t.index for t in turns], pa.int32()),
        "turn_text": _text([t.text for t in turns]),
        "turn_finish": _text([t.finish for t in turns]),
        "turn_reward": pa.array([t.reward for t in turns], pa.float64()),
        "turn_state_key": _text([t.state_key for t in turns]),
    }
    # Moves and messages hold texts by their types; what environments fill in freely is checked by `_json`.
    structured = {
        "turn_moves": [_ENCODER.encode([turn.moves for turn in turns]) for turns in turns_N],
        "turn_tool_calls": [_ENCODER.encode([list(map(_call, t.tool_calls)) for t in turns]) for turns in turns_N],
        "turn_reply": [_ENCODER.encode([list(map(_message, turn.reply)) for turn in turns]) for turns in turns_N],
        "turn_reward_parts": [_json([t.reward_parts for t in turns], "reward_parts of a turn") for turns in turns_N],
        "turn_info": [_json([turn.info for turn in turns], "info of a turn") for turns in turns_N],
    }
    counts_N = [len(turns) for turns in turns_N]
    return {
        **{name: _lists(column, counts_N) for name, column in flat.items()},
        **{name: _text(column) for name, column in structured.items()},
    }


def _token_columns(trajectories: list[Trajectory], samplings: list[Sampling]) -> dict[str, pa.Array]:
    """Segments, spans and tokens. `samplings` is filled with the distinct ones, which spans name by their index."""
    segments = [segment for t in trajectories for segment in t.segments]
    spans = [span for segment in segments for span in segment.spans]
    counts_S = [len(segment.spans) for segment in segments]
    segments_N = [len(t.segments) for t in trajectories]
    spans_N = [sum(len(segment.spans) for segment in t.segments) for t in trajectories]
    index: dict[Sampling | None, int | None] = {None: None}
    for span in spans:
        if span.sampling not in index:
            index[span.sampling] = len(samplings)
            samplings.append(span.sampling)
    ids, logprobs, plain_logprobs = (
        [getattr(span, name) for span in spans] for name in ("token_ids", "logprobs", "plain_logprobs"))
    lengths = np.fromiter(map(len, ids), np.int32, len(ids))
    span_columns = {
        "span_length": pa.array(lengths),
        "span_source": pa.array([int(s.source) for s in spans], pa.int8()),
        "span_turn": pa.array([s.turn for s in spans], pa.int32()),
        "span_sampled": pa.array([s.sampled for s in spans], pa.bool_()),
        "span_plain": pa.array([values is not None for values in plain_logprobs], pa.bool_()),
        "span_version": pa.array([s.policy_version for s in spans], pa.int64()),
        "span_sampling": pa.array([index[s.sampling] for s in spans], pa.int32()),
    }
    token_columns = {
        "token_ids": pa.array(_joined(ids, np.int32)),
        "logprobs": _token_floats(logprobs, lengths),
        "plain_logprobs": _token_floats(plain_logprobs, lengths),
    }
    ends = np.concatenate([[0], np.cumsum(lengths)])[np.concatenate([[0], np.cumsum(spans_N, dtype=np.int64)])]
    return {
        "segment_spans": _lists(pa.array(counts_S, pa.int32()), segments_N),
        **{name: _lists(column, spans_N) for name, column in span_columns.items()},
        **{name: _lists(column, np.diff(ends)) for name, column in token_columns.items()},
    }


def encode_groups(groups: Sequence[Group], *, step: int) -> memoryview:
    """All trajectories of a step as the bytes of one parquet file; raises StoreError for values that cannot be kept."""
    trajectories = [t for group in groups for t in group]
    samplings: list[Sampling] = []
    try:
        columns = {
            "group": pa.array([g for g, group in enumerate(groups) for _ in group], pa.int32()),
            "attempt": pa.array([t.attempt for t in trajectories], pa.int64()),
            "task_id": _text([t.task.id for t in trajectories]),
            "task_env": _text([t.task.env for t in trajectories]),
            "task_seed": pa.array([t.task.task_seed for t in trajectories], pa.int64()),
            "task_payload": _text([_json(t.task.payload, f"payload of task {t.task.id}") for t in trajectories]),
            "task_metadata": _text([_json(t.task.metadata, f"metadata of task {t.task.id}") for t in trajectories]),
            "dynamics_seed": pa.array([t.dynamics_seed for t in trajectories], pa.int64()),
            "first_observation": _text(_first_observations(trajectories)),
            "stop_reason": _text([t.stop_reason.value for t in trajectories]),
            "outcome": pa.array([t.outcome for t in trajectories], pa.float64()),
            "outcome_parts": _text([_json(t.outcome_parts, "outcome_parts") for t in trajectories]),
            "scored": pa.array([bool(t.scored) for t in trajectories], pa.bool_()),
            "success": pa.array([None if t.success is None else bool(t.success) for t in trajectories], pa.bool_()),
            "error": _text([t.error for t in trajectories]),
            **_turn_columns(trajectories),
            **_token_columns(trajectories, samplings),
        }
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise StoreError(f"step {step}: a trajectory holds a value that its column cannot keep ({error}); seeds must "
                         "fit into 63 bits, rewards must be numbers or None, texts must be text") from error
    facts = {"step": step, "samplings": [[s.temperature, s.top_p, s.engine, s.dtype] for s in samplings]}
    return _to_parquet(columns, TRAJECTORIES, facts, use_dictionary=False)


def _to_parquet(columns: Mapping[str, pa.Array], kind: tuple[str, int], facts: dict, **options: Any) -> memoryview:
    facts = {"kind": kind[0], "format": kind[1], **plain(facts, "the facts of a file")}
    table = pa.table(dict(columns)).replace_schema_metadata({"workbench": json.dumps(facts)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **_PARQUET, **options)
    return memoryview(sink.getvalue())


def _from_parquet(data: bytes, path: Path, kind: tuple[str, int]) -> tuple[dict[str, pa.Array], dict]:
    """Columns and facts of a file; StoreError names the file and what is wrong with it."""
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            facts = json.loads(file.schema_arrow.metadata[b"workbench"])
            check_format(path, found=(facts["kind"], facts["format"]), expected=kind)
            table = file.read(use_threads=False)
    except StoreError:
        raise
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"{path} is damaged or not a parquet file of this program: {error}; restore it from a copy "
                         "of the run") from error
    return {name: table[name].combine_chunks() for name in table.column_names}, facts


# ------------------------------------------------------------------------------------------------ reading


def _strings(column: pa.Array) -> list[str | None]:
    values = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else value.decode("utf-8", "surrogatepass") for value in values]
    return values


def _parsed(column: pa.Array, make: Callable[[Any], Any] = lambda value: value) -> list:
    """JSON values of a text column; equal texts are parsed once (attempts at one task share it)."""
    known: dict[str, Any] = {}
    return [known[text] if text in known else known.setdefault(text, make(json.loads(text)))
            for text in _strings(column)]


def _flat(column: pa.Array) -> tuple[pa.Array, list[int]]:
    """All entries of a list column, end to end, and where each row begins."""
    return column.values, column.offsets.to_pylist()


def _read_turns(columns: Mapping[str, pa.Array]) -> tuple[list[Turn], list[int]]:
    index, starts = _flat(columns["turn_index"])
    text, finish, reward, state_key = (
        _flat(columns[f"turn_{name}"])[0] for name in ("text", "finish", "reward", "state_key"))

    def structured(name: str, make: Callable[[Any], Any] = lambda value: value) -> list:
        return [make(value) for values in _parsed(columns[f"turn_{name}"]) for value in values]

    rows = zip(
        index.to_pylist(), _strings(text), _strings(finish), structured("moves", tuple),
        structured("tool_calls", lambda calls: tuple(ToolCall(*call) for call in calls)),
        structured("reply", lambda messages: tuple(map(_to_message, messages))),
        reward.to_pylist(), structured("reward_parts"), _strings(state_key), structured("info"), strict=True,
    )
    return [Turn(*row) for row in rows], starts


def _read_segments(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> tuple[list[Segment], list[int]]:
    flat = {name: _flat(column)[0] for name, column in columns.items()
            if name.startswith(("span_", "token_ids", "logprobs", "plain_"))}
    ids_T = flat["token_ids"].to_numpy()
    logprobs_T = flat["logprobs"].to_numpy(zero_copy_only=False)
    plain_T = flat["plain_logprobs"].to_numpy(zero_copy_only=False)
    spans, start = [], 0
    names = ("length", "source", "turn", "sampled", "plain", "version", "sampling")
    for length, source, turn, sampled, bent, version, sampling in zip(
            *(flat[f"span_{name}"].to_pylist() for name in names), strict=True):
        part = slice(start, start + length)
        spans.append(Span(Source(source), turn, ids_T[part], logprobs_T[part] if sampled else None,
                          plain_T[part] if bent else None, version, None if sampling is None else samplings[sampling],
                          sampled))
        start += length
    counts, starts = _flat(columns["segment_spans"])
    segments, first = [], 0
    for count in counts.to_pylist():
        segments.append(Segment(tuple(spans[first:first + count])))
        first += count
    return segments, starts


def decode_groups(data: bytes, path: Path) -> list[Group]:
    """The groups of a step, exactly as they were written. `path` is for messages. Raises StoreError."""
    columns, facts = _from_parquet(data, path, TRAJECTORIES)
    try:
        return _read_groups(columns, [Sampling(*one) for one in facts["samplings"]])
    except (KeyError, ValueError, TypeError, IndexError, pa.ArrowException) as error:
        raise StoreError(f"{path} is damaged: its columns do not make trajectories ({error!r}); restore it from a copy "
                         "of the run") from error


def _read_groups(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> list[Group]:
    turns, turn_starts = _read_turns(columns)
    segments, segment_starts = _read_segments(columns, samplings)
    tasks = [Task(*row) for row in zip(
        _strings(columns["task_id"]), _strings(columns["task_env"]), columns["task_seed"].to_pylist(),
        _parsed(columns["task_payload"]), _parsed(columns["task_metadata"]), strict=True)]
    rows = zip(
        columns["group"].to_pylist(), tasks, columns["attempt"].to_pylist(), columns["dynamics_seed"].to_pylist(),
        _parsed(columns["first_observation"], _to_observation), _strings(columns["stop_reason"]),
        columns["outcome"].to_pylist(), _parsed(columns["outcome_parts"]), columns["scored"].to_pylist(),
        columns["success"].to_pylist(), _strings(columns["error"]), strict=True,
    )
    groups: dict[int, list[Trajectory]] = {}
    for n, (group, task, attempt, seed, first, stop, *rest) in enumerate(rows):
        trajectory = Trajectory(task, attempt, seed, first, tuple(turns[turn_starts[n]:turn_starts[n + 1]]),
                                tuple(segments[segment_starts[n]:segment_starts[n + 1]]), StopReason(stop), *rest)
        groups.setdefault(group, []).append(trajectory)
    return [Group(tuple(members)) for members in groups.values()]


# ------------------------------------------------------------------------------------------------ credit tables


def encode_credit(table: CreditTable, *, skipped: str | None = None) -> memoryview:
    """A credit table as the bytes of one parquet file. `skipped`: why this update did not touch the weights, if so."""
    columns = {}
    for name, column in table.columns.items():
        column = np.asarray(column)
        if column.ndim != 1 or column.dtype.kind not in "biuf":
            raise StoreError(f"credit column {name!r} has shape {column.shape} and type {column.dtype}; expected one "
                             "number or flag per token")
        columns[name] = pa.array(column)  # NaN stays NaN, bit for bit; null is never written
    facts = {"step": table.step, "update": table.update, "skipped": skipped}
    return _to_parquet(columns, CREDIT, facts, use_dictionary=_FEW_VALUES)


# Columns in which few values repeat; floats that differ from token to token only make a dictionary slow.
_FEW_VALUES = ["trajectory", "segment", "turn", "token_id", "source", "eligible", "advantage", "weight", "clip_state"]


def decode_credit(data: bytes, path: Path) -> tuple[CreditTable, str | None]:
    """A credit table and why its update was skipped (None: it was not). Columns that were absent are absent."""
    columns, facts = _from_parquet(data, path, CREDIT)
    arrays = {}
    for name, column in columns.items():
        arrays[name] = column.to_numpy(zero_copy_only=False)
        arrays[name].flags.writeable = False
    return CreditTable(facts["step"], facts["update"], arrays), facts["skipped"]


# ------------------------------------------------------------------------------------------------ equality


def first_difference(a: Any, b: Any, where: str = "groups") -> str | None:
    """Where two values of the types of this package first differ, as a path; None where they are exactly equal.

    Arrays must agree in type, length and every bit; floats in every bit (0.0 is not -0.0, NaN is NaN); None is not
    zero; True is not 1. A tuple and a list of the same entries are equal (JSON has only one), and so are 1 and 1.0.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return _array_difference(a, b, where)
    a, b = (value.item() if isinstance(value, np.generic) else value for value in (a, b))
    if is_dataclass(a) or is_dataclass(b):
        if type(a) is not type(b):
            return f"{where}: {type(a).__name__} is not {type(b).__name__}"
        parts = ((getattr(a, f.name), getattr(b, f.name), f"{where}.{f.name}") for f in fields(a))
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        if set(a) != set(b):
            return f"{where}: keys {sorted(map(str, a))} are not {sorted(map(str, b))}"
        parts = ((a[key], b[key], f"{where}[{key!r}]") for key in a)
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            return f"{where}: {len(a)} entries are not {len(b)}"
        parts = ((x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b)))
    else:
        return None if _same_scalar(a, b) else f"{where}: {a!r} is not {b!r}"
    return _first(parts)


def _array_difference(a: Any, b: Any, where: str) -> str | None:
    """The first entry of which a bit differs, and how many do; or in what the arrays as such are not alike."""
    if type(a) is not type(b) or a.dtype != b.dtype or a.shape != b.shape:
        kinds = (f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__ for x in (a, b))
        return f"{where}: " + " is not ".join(kinds)
    differs = np.flatnonzero(differing_bits(a, b))
    if not len(differs):
        return None
    index = np.unravel_index(differs[0], a.shape)
    x, y = a[index].item(), b[index].item()
    return f"{where}{[int(i) for i in index]}: {x!r} is not {y!r} ({len(differs)} of {a.size} entries differ)"


def differing_bits(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """For each entry of two arrays of one type and shape, flat: does any bit differ? NaN equals the same NaN, 0.0 is
    not -0.0."""
    a, b = (np.ascontiguousarray(x).reshape(-1).view(np.uint8).reshape(x.size, x.itemsize) for x in (a, b))
    return (a != b).any(axis=1)


def _first(parts: Iterable[tuple[Any, Any, str]]) -> str | None:
    return next((found for a, b, where in parts if (found := first_difference(a, b, where)) is not None), None)


def _same_scalar(a: Any, b: Any) -> bool:
    if isinstance(a, bool) != isinstance(b, bool) or (a is None) != (b is None):
        return False
    if isinstance(a, float) or isinstance(b, float):
        if not (isinstance(a, (int, float)) and isinstance(b, (int, float))):
            return False
        return np.float64(a).tobytes() == np.float64(b).tobytes() or (a != a and b != b)
    return a == b


def groups_equal(a: Sequence[Group], b: Sequence[Group]) -> bool:
    """True where two lists of groups hold exactly the same; `first_difference` says where they do not."""
    return first_difference(list(a), list(b)) is None


def tables_equal(a: CreditTable, b: CreditTable) -> bool:
    """True where two credit tables have the same columns, bit for bit."""
    return first_difference(a, b) is None
