"""Sound runs with one thing changed and every seal made anew: what a stranger, or a bug, may hand over.

    words = mutate(run, 17)         the same number is the same mutation; `run` is a copy that may be changed

A value somewhere in a JSON document, in a line, in a table of a step or in a tensor's header is replaced, removed, doubled or
given another type. Files are replaced, never written into, so that a copy may be made of links.
"""

from __future__ import annotations

import copy
import json
import random
import struct
from hashlib import sha256
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.basics.canonical_json import MANIFEST, read_lines

DEEP: Any = None
for _ in range(90):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    1,
    7,
    1 << 31,
    1 << 63,
    10**30,
    -(10**30),
    0.5,
    -0.0,
    1e308,
    5e-324,
    float("nan"),
    float("inf"),
    "",
    "x",
    "1",
    "x" * 10_000,
    "\x1b[31m\u202e",
    "../../..",
    "/etc/passwd",
    "os:system",
    "\ud800",
    "<script>",
    [],
    {},
    [[]],
    [None] * 50,
    ["x", 1],
    {"": None},
    {"a": {"b": []}},
    [1e308, "nan"],
    DEEP,
)
TENSORS = 2  # of twenty mutations, this many are of a checkpoint


def mutate(run: Path, number: int) -> str:
    """Change one thing; in words, what."""
    rng = random.Random(f"mutation {number}")
    kind = rng.random() * 20
    if kind < TENSORS and any(run.glob("checkpoints/*")):
        return _mutate_checkpoint(run, rng)
    files = sorted(
        path
        for path in run.rglob("*")
        if path.suffix in (".json", ".jsonl", ".parquet") and "checkpoints" not in path.parts
    )
    path = rng.choice(files)
    change = {".json": _mutate_document, ".jsonl": _mutate_lines, ".parquet": _mutate_table}[
        path.suffix
    ]
    words = change(path, rng)
    reseal(run, path)
    return f"{path.relative_to(run)}: {words}"


def replace_file(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


# ------------------------------------------------------------------------------------------------ JSON


def _mutate_document(path: Path, rng: random.Random) -> str:
    document = json.loads(path.read_bytes())
    if "content" not in document:  # it has its seal elsewhere
        document, words = _mutated(document, rng)
        replace_file(path, json.dumps(document).encode())
        return words
    if rng.random() < 0.1:  # of the envelope
        key = rng.choice(list(document))
        document[key] = rng.choice(VALUES)
        replace_file(path, json.dumps(document).encode())
        return f"its {key} is {document[key]!r:.60}"
    document["content"], words = _mutated(document["content"], rng)
    document["sha256"] = sha256(
        json.dumps(document["content"], separators=(",", ":")).encode()
    ).hexdigest()
    replace_file(path, (json.dumps(document, indent=1) + "\n").encode())
    return words


def _mutate_lines(path: Path, rng: random.Random) -> str:
    records = [dict(record) for record in read_lines(path).records]
    if not records:
        replace_file(path, sealed_line({"kind": rng.choice(VALUES)}))
        return "a line of another kind"
    at = rng.randrange(len(records))
    kind = rng.random()
    if kind < 0.1:
        records.insert(rng.randrange(len(records) + 1), copy.deepcopy(records[at]))
        words = f"line {at + 1} twice"
    elif kind < 0.2:
        del records[at]
        words = f"line {at + 1} removed"
    elif kind < 0.3:
        rng.shuffle(records)
        words = "lines in another order"
    else:
        records[at], words = _mutated(records[at], rng)
    replace_file(path, b"".join(map(sealed_line, records)))
    return words


def sealed_line(record: Any) -> bytes:
    body = json.dumps(record, separators=(",", ":")).encode()
    if isinstance(record, dict):
        body = body.removesuffix(b"}") + (b"," if record else b"")
    return body + b'"crc32":"%08x"}\n' % crc32(body)


def _mutated(value: Any, rng: random.Random) -> tuple[Any, str]:
    """A copy with one node changed, any node alike."""
    value = copy.deepcopy(value)
    nodes: list[tuple[Any, Any, str]] = []
    _collect(value, "", nodes)
    if not nodes:
        new = rng.choice(VALUES)
        return new, f"it is {new!r:.60}"
    parent, key, where = rng.choice(nodes)
    how = rng.random()
    if how < 0.6:
        parent[key] = copy.deepcopy(rng.choice(VALUES))
    elif how < 0.75:
        del parent[key]
        return value, f"{where} is gone"
    elif how < 0.85:
        other, its_key, _ = rng.choice(nodes)
        parent[key] = copy.deepcopy(other[its_key])
    elif how < 0.95:
        parent[key] = [parent[key]] if rng.random() < 0.5 else str(parent[key])
    elif isinstance(parent, dict):
        parent[rng.choice(("", "x", "step", "__class__", "kind"))] = copy.deepcopy(
            rng.choice(VALUES)
        )
    else:
        parent.extend(copy.deepcopy(parent[:20]))
    return value, f"{where} is {(parent[key] if how < 0.95 else 'beside another')!r:.60}"


def _collect(value: Any, where: str, nodes: list[tuple[Any, Any, str]]) -> None:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, below in list(inside):
        nodes.append((value, key, f"{where}.{key}"))
        _collect(below, f"{where}.{key}", nodes)


# ------------------------------------------------------------------------------------------------ tables and tensors


def _mutate_table(path: Path, rng: random.Random) -> str:
    table = pq.read_table(path)
    name = rng.choice(table.column_names)
    column, how = table[name], rng.random()
    values, words = column.to_pylist(), name
    if how < 0.1:
        table, words = table.drop_columns([name]), f"{name} is gone"
    elif how < 0.2:
        table, words = table.slice(0, rng.choice((0, 1))), "fewer rows"
    elif how < 0.3:
        table, words = pa.concat_tables([table, table]), "its rows twice"
    elif how < 0.35:
        table, words = (
            table.replace_schema_metadata({b"kind": b"x"} if rng.random() < 0.5 else None),
            "other metadata",
        )
    elif how < 0.5:
        other = rng.choice(
            (
                [3] * len(values),
                ["x"] * len(values),
                [None] * len(values),
                [[1.5]] * len(values),
                [{"a": 1}] * len(values),
            )
        )
        table, words = (
            table.set_column(table.schema.get_field_index(name), name, pa.array(other)),
            f"{name} is {other[0]!r}",
        )
    else:
        at = rng.randrange(len(values))
        values[at], words = _like(values[at], column.type, rng)
        try:
            made = pa.array(values, column.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            made = pa.nulls(len(values), column.type)
        table = table.set_column(table.schema.get_field_index(name), name, made)
        words = f"{name}[{at}] {words}"
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_page_checksum=True)
    replace_file(path, sink.getvalue().to_pybytes())
    return words


def _like(value: Any, kind: pa.DataType, rng: random.Random) -> tuple[Any, str]:
    """Another value of the same type."""
    if isinstance(value, list):
        how = rng.random()
        if how < 0.2 or not value:
            return None, "is absent"
        if how < 0.4:
            return value[:-1], "is shorter"
        if how < 0.5:
            return value * 3, "is longer"
        at = rng.randrange(len(value))
        below, words = _like(value[at], kind.value_type, rng)
        return [*value[:at], below, *value[at + 1 :]], f"[{at}] {words}"
    fit = [each for each in VALUES if type(each) is type(value)] or [None]
    new = rng.choice([*fit, None])
    if isinstance(value, str) and value[:1] in "[{" and rng.random() < 0.7:  # JSON inside
        new = json.dumps(_mutated(json.loads(value), rng)[0])
    return new, f"is {new!r:.60}"


def _mutate_checkpoint(run: Path, rng: random.Random) -> str:
    """A header, a state or a manifest of the newest checkpoint."""
    folder = max((run / "checkpoints").iterdir())
    path = folder / rng.choice(
        (MANIFEST, "state.json", "model.safetensors", "model.safetensors", "optimizer.safetensors")
    )
    if path.suffix == ".json":
        words = _mutate_document(path, rng)
    else:
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        header, words = _mutated(json.loads(data[8 : 8 + size]), rng)
        text = json.dumps(header).encode()
        claimed = len(text) if rng.random() < 0.9 else rng.choice((0, 1, 1 << 40, (1 << 64) - 1))
        replace_file(path, struct.pack("<Q", claimed) + text + data[8 + size :])
    if path.name != MANIFEST:
        _reseal_checkpoint(folder, path)
    return f"{path.relative_to(run)}: {words}"


# ------------------------------------------------------------------------------------------------ seals


def _seal(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": sha256(data).hexdigest()}


def reseal(run: Path, path: Path) -> None:
    """A file of a step or of an evaluation has its seal elsewhere: in the metrics line, in the evaluation's document."""
    inside, data = path.relative_to(run).as_posix(), path.read_bytes()
    for holder in (run / "metrics.jsonl", *sorted((run / "evaluations").glob("*.json"))):
        if holder == path or not holder.exists():
            continue
        documents = holder.suffix == ".json"
        try:
            records = (
                [json.loads(holder.read_bytes())]
                if documents
                else [dict(each) for each in read_lines(holder).records]
            )
        except (ValueError, TypeError):
            continue
        if not any(_put_seal(record, path.name, inside, _seal(data)) for record in records):
            continue
        if documents:
            body = json.dumps(records[0]["content"], separators=(",", ":")).encode()
            replace_file(
                holder,
                json.dumps({**records[0], "sha256": sha256(body).hexdigest()}, indent=1).encode()
                + b"\n",
            )
        else:
            replace_file(holder, b"".join(map(sealed_line, records)))


def _put_seal(node: Any, name: str, inside: str, seal: dict[str, Any]) -> bool:
    """Wherever a mapping has the file's name, or its path, over a seal. A step's line is told by its number."""
    found = False
    if isinstance(node, dict):
        step = node.get("step")
        if isinstance(step, int) and "steps/" in inside and f"step-{step:08d}/" not in inside:
            return False
        for key, below in node.items():
            if isinstance(below, dict) and below.keys() == {"bytes", "sha256"}:
                if key == name or inside.endswith(key):
                    below.update(seal)
                    found = True
            else:
                found |= _put_seal(below, name, inside, seal)
    elif isinstance(node, list):
        found = any(_put_seal(below, name, inside, seal) for below in node)
    return found


def _reseal_checkpoint(folder: Path, path: Path) -> None:
    document = json.loads((folder / MANIFEST).read_bytes())
    document["content"]["files"][path.name] = _seal(path.read_bytes())
    body = json.dumps(document["content"], separators=(",", ":")).encode()
    replace_file(
        folder / MANIFEST,
        json.dumps({**document, "sha256": sha256(body).hexdigest()}, indent=1).encode() + b"\n",
    )
