"""Trajectories and credit tables as columns: exact both ways, byte for byte the same file for the same content.

    groups  ── encode_groups ──▶ parquet bytes ── decode_groups ──▶ groups        (groups_equal to what went in)
    table   ── encode_credit ──▶ parquet bytes ── decode_credit ──▶ table

Legend: N trajectories · K turns · S segments · T tokens. A trajectory file has one row per trajectory. Scalars are
plain columns; `turn_*` are lists [K] (of the structured ones: a JSON list); `segment_spans` [S] counts the spans of
each segment, and `segment_untrained` [S] is there where any of them is not trained; `span_*` are lists over all spans of the trajectory; `token_ids`, `logprobs`, `plain_logprobs` are lists
[T], segments end to end, and a logprob is *null* where the token was not sampled there (invariant 5: never zero).
`greedy`, where a group has a greedy trajectory beside its members, marks its row; `turn_privileged` is there where a critic
read more than the policy. Messages, parsed calls and info are JSON text. No time stamp, no machine name: equal content
makes an equal file, so that runs compare by hash. The files open in any tool that reads parquet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.canonical_json import plain
from workbench.basics.message_json import (
    call_to_json,
    message_from_json,
    message_to_json,
    observation_from_json,
    observation_to_json,
)
from workbench.basics.regular_files import parse_json
from workbench.run.arrow import pa
from workbench.run.parquet import parquet_bytes, read_parquet
from workbench.run.shapes import mapping, numbers_by_name
from workbench.values import (
    CreditTable,
    Group,
    Message,
    Sampling,
    Segment,
    Source,
    Span,
    Task,
    ToolCall,
    Trajectory,
    Turn,
)
from workbench.values.errors import StoreError

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
    """Writes the values of a column as an arrow array, and reads them back."""

    write: Callable[[Sequence[Any]], pa.Array]
    read: Callable[[pa.Array], list]


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _write_text(values: Sequence[str | None]) -> pa.Array:
    """Text as utf-8. Where a lone surrogate makes that impossible (a policy may write half a character), the whole
    column is bytes instead, and reads back the same."""
    try:
        return pa.array(values, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        encoded = [
            None if text is None else text.encode("utf-8", "surrogatepass") for text in values
        ]
        return pa.array(encoded, pa.binary())


def read_text(column: pa.Array) -> list[str | None]:
    values = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [
            None if value is None else value.decode("utf-8", "surrogatepass") for value in values
        ]
    return values


def _parsed(column: pa.Array, make: Callable[[Any], Any] = lambda value: value) -> list:
    """JSON values of a text column; equal texts are parsed once (trajectories of one task share it)."""
    texts = read_text(column)
    known = {text: make(parse_json(text)) for text in dict.fromkeys(texts)}
    return [known[text] for text in texts]


def _write_observations(observations: Sequence[Any]) -> pa.Array:
    """Trajectories of one task begin with the same messages: each distinct observation is encoded once."""
    known: dict[Any, str] = {}
    texts = []
    for observation in observations:
        tools = _ENCODER.encode(plain(observation.tools, "the schemas of tools"))
        key = (observation.messages, tools)
        if key not in known:
            known[key] = _ENCODER.encode(observation_to_json(observation))
        texts.append(known[key])
    return _write_text(texts)


def _of_type(kind: pa.DataType) -> _Codec:
    return _Codec(lambda values: pa.array(values, kind), lambda column: column.to_pylist())


def _json(encode: Callable[[Any], Any], make: Callable[[Any], Any] = lambda value: value) -> _Codec:
    """A column of JSON texts. `make`: turns the JSON that is read into the value."""
    return _Codec(
        lambda values: _write_text([_ENCODER.encode(encode(value)) for value in values]),
        lambda column: _parsed(column, make),
    )


def _free(what: str, make: Callable[[Any], Any] = lambda value: value) -> _Codec:
    """A column of JSON values of the environment's own: they are checked, and `what` names them in errors."""
    return _json(lambda value: plain(value, what), make)


def _each(make: Callable[[Any], Any]) -> Callable[[list], list]:
    return lambda values: [make(value) for value in values]


_TEXT = _Codec(_write_text, read_text)
_INT32 = _of_type(pa.int32())
_INT64 = _of_type(pa.int64())
_FLOAT64 = _of_type(pa.float64())
_BOOL = _of_type(pa.bool_())
_OBSERVATION = _Codec(_write_observations, lambda column: _parsed(column, observation_from_json))


def _success(trajectory: Trajectory) -> bool | None:
    return None if trajectory.success is None else bool(trajectory.success)


# Column -> (what it holds of a trajectory, codec), in the order of the file.
_TRAJECTORY: dict[str, tuple[Callable[[Trajectory], Any], _Codec]] = {
    "attempt": (attrgetter("attempt"), _INT64),
    "task_id": (attrgetter("task.id"), _TEXT),
    "task_env": (attrgetter("task.env"), _TEXT),
    "task_seed": (attrgetter("task.task_seed"), _INT64),
    "task_payload": (attrgetter("task.payload"), _free("payload of a task", mapping)),
    "task_metadata": (attrgetter("task.metadata"), _free("metadata of a task", mapping)),
    "dynamics_seed": (attrgetter("dynamics_seed"), _INT64),
    "first_observation": (attrgetter("first_observation"), _OBSERVATION),
    "stop_reason": (attrgetter("stop_reason.value"), _TEXT),
    "outcome": (attrgetter("outcome"), _FLOAT64),
    "outcome_parts": (attrgetter("outcome_parts"), _free("outcome_parts", numbers_by_name)),
    "scored": (lambda t: bool(t.scored), _BOOL),
    "success": (_success, _BOOL),
    "error": (attrgetter("error"), _TEXT),
}


def _calls_from_json(values: list) -> tuple[ToolCall, ...]:
    return tuple(ToolCall(*value) for value in values)


def _messages_from_json(values: list) -> tuple[Message, ...]:
    return tuple(map(message_from_json, values))


# Fields of a turn, as lists over the turns; of structured ones one JSON text holds the whole list. Moves and messages
# hold texts by their types.
_TURN = {"index": _INT32, "text": _TEXT, "finish": _TEXT, "reward": _FLOAT64, "state_key": _TEXT}
_TURN_JSON = {
    "moves": _json(list, _each(tuple)),
    "tool_calls": _json(_each(_each(call_to_json)), _each(_calls_from_json)),
    "reply": _json(_each(_each(message_to_json)), _each(_messages_from_json)),
    "reward_parts": _free("reward_parts of a turn", _each(numbers_by_name)),
    "info": _free("info of a turn", _each(mapping)),
}


# ------------------------------------------------------------------------------------------------ writing


def encode_groups(groups: Sequence[Group], *, step: int) -> memoryview:
    """All trajectories of a step as the bytes of one parquet file; raises StoreError for values that cannot be kept."""
    number_N: list[int] = []  # of the group that each trajectory belongs to
    greedy_N: list[bool] = []
    trajectories: list[Trajectory] = []
    for number, group in enumerate(groups):
        beside = [group.greedy] if group.greedy else []
        number_N += [number] * (len(group) + len(beside))
        greedy_N += [False] * len(group) + [True] * len(beside)
        trajectories += [*group, *beside]
    samplings: list[Sampling] = []
    try:
        columns = {"group": pa.array(number_N, pa.int32())}
        if any(greedy_N):
            columns["greedy"] = pa.array(greedy_N)
        for name, (get, codec) in _TRAJECTORY.items():
            columns[name] = codec.write([get(trajectory) for trajectory in trajectories])
        columns |= _turn_columns(trajectories)
        columns |= _token_columns(trajectories, samplings)
    except (pa.ArrowException, OverflowError, TypeError) as error:
        raise StoreError(
            f"step {step}: a trajectory holds a value that its column cannot keep ({error}); seeds must "
            "fit into 63 bits, rewards must be numbers or None, texts must be text"
        ) from error
    facts = {"step": step, "samplings": [_sampling_to_json(sampling) for sampling in samplings]}
    return parquet_bytes(columns, TRAJECTORIES, facts, use_dictionary=False)


def _sampling_to_json(sampling: Sampling) -> list:
    values = [sampling.temperature, sampling.top_p, sampling.engine, sampling.dtype]
    return values if sampling.addressed else [*values, False]


def _lists(values: pa.Array, lengths: Sequence[int]) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values)


def _turn_columns(trajectories: list[Trajectory]) -> dict[str, pa.Array]:
    turns_N = [trajectory.turns for trajectory in trajectories]
    counts_N = [len(turns) for turns in turns_N]
    turns = list(chain.from_iterable(turns_N))
    fields = _TURN
    if any(turn.privileged is not None for turn in turns):
        fields = _TURN | {"privileged": _TEXT}
    columns = {}
    for name, codec in fields.items():
        values = codec.write([getattr(turn, name) for turn in turns])
        columns[f"turn_{name}"] = _lists(values, counts_N)
    for name, codec in _TURN_JSON.items():
        get = attrgetter(name)
        columns[f"turn_{name}"] = codec.write([list(map(get, turns)) for turns in turns_N])
    return columns


def _token_columns(
    trajectories: list[Trajectory], samplings: list[Sampling]
) -> dict[str, pa.Array]:
    """Segments, spans and tokens. `samplings` is filled with the distinct ones, which spans name by their index."""
    segments = list(chain.from_iterable(trajectory.segments for trajectory in trajectories))
    segments_N = [len(trajectory.segments) for trajectory in trajectories]
    counts = pa.array([len(segment.spans) for segment in segments], pa.int32())
    columns = {"segment_spans": _lists(counts, segments_N)}
    untrained = [segment.untrained for segment in segments]
    if any(untrained):
        columns["segment_untrained"] = _lists(_write_text(untrained), segments_N)
    spans = list(chain.from_iterable(segment.spans for segment in segments))
    lengths = np.fromiter((len(span.token_ids) for span in spans), np.int32, len(spans))
    spans_N = [_num_spans(trajectory) for trajectory in trajectories]
    for name, column in _columns_of_spans(spans, lengths, samplings).items():
        columns[name] = _lists(column, spans_N)
    first_span_N = np.concatenate([[0], np.cumsum(spans_N, dtype=np.int64)])
    tokens_N = np.diff(np.concatenate([[0], np.cumsum(lengths)])[first_span_N])
    for name, column in _columns_of_tokens(spans, lengths).items():
        columns[name] = _lists(column, tokens_N)
    return columns


def _num_spans(trajectory: Trajectory) -> int:
    return sum(len(segment.spans) for segment in trajectory.segments)


def _columns_of_spans(
    spans: list[Span], lengths: np.ndarray, samplings: list[Sampling]
) -> dict[str, pa.Array]:
    """Column -> its values of all spans, end to end."""
    index: dict[Sampling | None, int | None] = {None: None}
    for span in spans:
        if span.sampling not in index:
            index[span.sampling] = len(samplings)
            samplings.append(span.sampling)
    has_plain = [span.plain_logprobs is not None for span in spans]
    return {
        "span_length": pa.array(lengths),
        "span_source": pa.array([int(span.source) for span in spans], pa.int8()),
        "span_turn": pa.array([span.turn for span in spans], pa.int32()),
        "span_sampled": pa.array([span.sampled for span in spans], pa.bool_()),
        "span_plain": pa.array(has_plain, pa.bool_()),
        "span_version": pa.array([span.policy_version for span in spans], pa.int64()),
        "span_sampling": pa.array([index[span.sampling] for span in spans], pa.int32()),
    }


def _columns_of_tokens(spans: list[Span], lengths: np.ndarray) -> dict[str, pa.Array]:
    """Column -> its values of all tokens, spans end to end."""
    ids_T = np.concatenate([np.zeros(0, np.int32), *(span.token_ids for span in spans)])
    return {
        "token_ids": pa.array(ids_T),
        "logprobs": _token_floats([span.logprobs for span in spans], lengths),
        "plain_logprobs": _token_floats([span.plain_logprobs for span in spans], lengths),
    }


def _token_floats(values_of_spans: list[np.ndarray | None], lengths: np.ndarray) -> pa.Array:
    """float32 [T]: null exactly where the span has no such numbers."""
    has_values = [values is not None for values in values_of_spans]
    present_T = np.repeat(np.array(has_values, bool), lengths)
    known = [values for values in values_of_spans if values is not None]
    values_T = np.zeros(len(present_T), np.float32)
    values_T[present_T] = np.concatenate([np.zeros(0, np.float32), *known])
    return pa.array(values_T, mask=~present_T)


# ------------------------------------------------------------------------------------------------ reading


def decode_groups(data: bytes, path: Path) -> list[Group]:
    """The groups of a step, exactly as they were written. `path` is for messages. Raises StoreError."""
    columns, facts = read_parquet(data, path, TRAJECTORIES)
    try:
        samplings = [Sampling(*values) for values in facts["samplings"]]
        return _read_groups(columns, samplings)
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
    fields = [codec.read(columns[name]) for name, (_, codec) in _TRAJECTORY.items()]
    number_N = columns["group"].to_pylist()
    greedy_N = columns["greedy"].to_pylist() if "greedy" in columns else [False] * len(turns_N)
    members: dict[int, list[Trajectory]] = {}
    greedy: dict[int, Trajectory] = {}
    rows = zip(number_N, greedy_N, turns_N, segments_N, *fields, strict=True)
    for number, is_greedy, turns, segments, attempt, *row in rows:
        task = Task(*row[:5])
        seed, first_observation, *rest = row[5:]  # the rest in the order of the fields
        trajectory = Trajectory(task, attempt, seed, first_observation, turns, segments, *rest)
        if is_greedy:
            greedy[number] = trajectory
        else:
            members.setdefault(number, []).append(trajectory)
    return [Group(tuple(group), greedy.get(number)) for number, group in members.items()]


def _cut(values: Sequence[Any], lists: pa.Array) -> list[tuple]:
    """`values`, which lie end to end, by trajectory: as long as the entries of a list column."""
    starts = lists.offsets.to_pylist()
    return [tuple(values[start:end]) for start, end in zip(starts, starts[1:])]


def _read_turns(columns: Mapping[str, pa.Array]) -> list[Turn]:
    """The turns of all trajectories, end to end."""
    fields = {}
    for name, codec in (_TURN | {"privileged": _TEXT}).items():
        if name != "privileged" or "turn_privileged" in columns:
            fields[name] = codec.read(columns[f"turn_{name}"].values)
    for name, codec in _TURN_JSON.items():
        values_N = codec.read(columns[f"turn_{name}"])
        fields[name] = list(chain.from_iterable(values_N))
    return [Turn(**dict(zip(fields, row))) for row in zip(*fields.values(), strict=True)]


def _read_segments(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> list[Segment]:
    """The segments of all trajectories, end to end."""
    spans = _read_spans(columns, samplings)
    ends = np.cumsum(columns["segment_spans"].values.to_numpy()).tolist()
    untrained = [""] * len(ends)
    if "segment_untrained" in columns:
        untrained = read_text(columns["segment_untrained"].values)
    rows = zip([0, *ends], ends, untrained)
    return [Segment(tuple(spans[start:end]), reason) for start, end, reason in rows]


def _read_spans(columns: Mapping[str, pa.Array], samplings: list[Sampling]) -> list[Span]:
    """The spans of all trajectories, end to end."""
    ids_T, logprobs_T, plain_T = (
        columns[name].values.to_numpy(zero_copy_only=False)
        for name in ("token_ids", "logprobs", "plain_logprobs")
    )
    names = ("length", "source", "turn", "sampled", "plain", "version", "sampling")
    rows = zip(*(columns[f"span_{name}"].values.to_pylist() for name in names), strict=True)
    spans = []
    start = 0
    for length, source, turn, sampled, has_plain, version, sampling in rows:
        part = slice(start, start + length)
        span = Span(
            source=Source(source),
            turn=int(turn),
            token_ids=ids_T[part],
            logprobs=logprobs_T[part] if sampled else None,
            plain_logprobs=plain_T[part] if has_plain else None,
            policy_version=version,
            sampling=None if sampling is None else samplings[sampling],
            sampled=sampled,
        )
        spans.append(span)
        start += length
    return spans


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
