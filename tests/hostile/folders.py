"""Hostile run folders: each is a sound run that a stranger bent in one way, resealed where a seal would tell.

`HOSTILE`: name -> function(run, outside), which bends the copy `run`; `outside` is a folder that must stay as it is.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from workbench.basics.canonical_json import MANIFEST, Seal, line_bytes, read_lines, sealed_json
from workbench.basics.canonical_json import sha256 as _sha256

COMMAND = "os:system(touch {mark})"  # what runs as soon as the name is imported and called


def config_of(run: Path) -> dict[str, Any]:
    return json.loads((run / "config.json").read_bytes())["content"]


def put_config(run: Path, config: dict[str, Any]) -> None:
    (run / "config.json").write_bytes(sealed_json(config, kind="config", version=1))


def name_code(key: str, value: Any, run: Path, outside: Path) -> None:
    """A setting that would import code, and call what it finds."""
    config = config_of(run)
    *parents, leaf = key.split(".")
    node = config
    for parent in parents:
        node = node.setdefault(parent, {})
    filled = json.loads(json.dumps(value).replace("{mark}", str(outside.parent / "mark")))
    node[leaf] = filled
    put_config(run, config)


def file_qa(run: Path, outside: Path) -> None:
    """The reproduction: a dense search whose encoder is a shell command."""
    (run.parent / "q.jsonl").write_text('{"question": "who?", "answers": ["me"]}\n')
    config = config_of(run)
    config["env"] = {
        "kind": "file_qa",
        "format": "jsonl",
        "questions": str(run.parent / "q.jsonl"),
        "searcher": "dense",
        "encoder": COMMAND.format(mark=outside.parent / "mark"),
    }
    put_config(run, config)


def named_in_events(run: Path, outside: Path) -> None:
    """Code that was not there when the run began, by an event that changes a setting."""
    event = {"kind": "settings", "after": 0, "changed": {"env.kind": ["frozen_lake", "os:system"]}}
    with (run / "events.jsonl").open("ab") as file:
        file.write(line_bytes(event))


def link_folder(name: str, run: Path, outside: Path) -> None:
    """A folder of the run lies elsewhere: another run's, which somebody still needs."""
    elsewhere = outside / Path(name).name
    (run / name).rename(elsewhere) if (run / name).exists() else elsewhere.mkdir()
    (run / name).symlink_to(elsewhere)


def link_file(name: str, run: Path, outside: Path) -> None:
    (run / name).rename(outside / Path(name).name)
    (run / name).symlink_to(outside / Path(name).name)


def pipe(name: str, run: Path, outside: Path) -> None:
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)


def device(name: str, run: Path, outside: Path) -> None:
    """A file without end."""
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to("/dev/zero")


def socket_file(name: str, run: Path, outside: Path) -> None:
    (run / name).unlink()
    here = os.getcwd()
    os.chdir(run)  # a socket's path is at most 108 characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(name)
    finally:
        os.chdir(here)


def folder_for_file(name: str, run: Path, outside: Path) -> None:
    (run / name).unlink()
    (run / name).mkdir()


def sparse(name: str, run: Path, outside: Path) -> None:
    """A terabyte that takes no room on the disk."""
    os.truncate(run / name, 1 << 40)


def deep(name: str, run: Path, outside: Path) -> None:
    (run / name).write_bytes(
        b'{"kind":"config","format":1,"sha256":"","content":'
        + b"[" * 100_000
        + b"]" * 100_000
        + b"}"
    )


def lines(name: str, change: Callable[[list[dict]], list[Any]], run: Path, outside: Path) -> None:
    records = change([dict(record) for record in read_lines(run / name).records])
    (run / name).write_bytes(
        b"".join(record if isinstance(record, bytes) else line_bytes(record) for record in records)
    )


def deep_line() -> bytes:
    body = b'{"kind":"x","deep":' + b"[" * 5_000 + b"]" * 5_000 + b","
    from zlib import crc32

    return body + b'"crc32":"%08x"}\n' % crc32(body)


def resealed(run: Path, step: int, name: str, data: bytes) -> None:
    """A file of a step in the place of another, with its seal in the metrics line made anew."""
    path = run / "steps" / f"step-{step:08d}" / name
    path.write_bytes(data)
    seal = vars(Seal(len(data), _sha256(data).hexdigest()))
    lines(
        "metrics.jsonl",
        lambda all: [
            {**line, "files": {**line["files"], name: seal}} if line["step"] == step else line
            for line in all
        ],
        run,
        run,
    )


def bent_table(
    bend: Callable[[pa.Table], pa.Table], run: Path, outside: Path, **options: Any
) -> None:
    path = run / "steps" / "step-00000001" / "trajectories.parquet"
    table = bend(pq.read_table(path))
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        **{"compression": "zstd", "write_page_checksum": True, "use_dictionary": False} | options,
    )
    resealed(run, 1, "trajectories.parquet", sink.getvalue().to_pybytes())


def replaced(column: str, make: Callable[[pa.ChunkedArray], Any]) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.set_column(
        table.schema.get_field_index(column), column, make(table[column])
    )


def checkpoint_manifest(change: Callable[[dict], Any], run: Path, outside: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        manifest = json.loads((folder / MANIFEST).read_bytes())["content"]
        (folder / MANIFEST).write_bytes(sealed_json(change(manifest), kind="checkpoint", version=1))


def replace_config(value: Any, run: Path, outside: Path) -> None:
    put_config(run, value)


STEP = "steps/step-00000001"
HOSTILE: dict[str, Callable[[Path, Path], None]] = {
    "an encoder that is a shell command": file_qa,
    "code in the events": named_in_events,
    **{
        f"code in {key}": partial(name_code, key, value)
        for key, value in {
            "env.kind": "os:system",
            "env.tools": ["os:system"],
            "algorithm.kind": "os:system",
            "engine.kind": "os:system",
            "policy.loader": "os:system",
            "algorithm.estimator": "os:system",
            "algorithm.objective.kind": COMMAND,
            "env.opponent": COMMAND,
            "env.score": COMMAND,
            "collect.parser": COMMAND,
            "train.hook": COMMAND,
        }.items()
    },
    **{
        f"{name} is a link to a folder outside": partial(link_folder, name)
        for name in ("checkpoints", "steps", "evaluations", STEP, "orphans", "evaluations/attempts")
    },
    **{
        f"{name} is a link to a file outside": partial(link_file, name)
        for name in (
            "config.json",
            "metrics.jsonl",
            "events.jsonl",
            "clock.jsonl",
            "run.json",
            f"{STEP}/trajectories.parquet",
        )
    },
    **{
        f"{name} is a pipe": partial(pipe, name)
        for name in (
            "config.json",
            "metrics.jsonl",
            "events.jsonl",
            "clock.jsonl",
            "run.json",
            "code.json",
            ".lock",
            f"{STEP}/trajectories.parquet",
            f"{STEP}/lint.json",
        )
    },
    **{
        f"{name} is a device": partial(device, name)
        for name in ("config.json", "events.jsonl", f"{STEP}/lint.json")
    },
    **{
        f"{name} is a socket": partial(socket_file, name)
        for name in ("metrics.jsonl", "config.json")
    },
    **{
        f"{name} is a folder": partial(folder_for_file, name)
        for name in ("metrics.jsonl", "config.json")
    },
    **{
        f"{name} is a terabyte of nothing": partial(sparse, name)
        for name in ("config.json", "events.jsonl", f"{STEP}/trajectories.parquet")
    },
    **{
        f"{name} is nested 100,000 deep": partial(deep, name)
        for name in ("config.json", "run.json", f"{STEP}/lint.json")
    },
    "a line nested 5,000 deep": partial(
        lines, "events.jsonl", lambda records: [*records, deep_line()]
    ),
    "a step without files": partial(
        lines, "metrics.jsonl", lambda records: [{"step": r["step"]} for r in records]
    ),
    "a step that is a text": partial(
        lines, "metrics.jsonl", lambda records: [{**r, "step": "1"} for r in records]
    ),
    "seals that are numbers": partial(
        lines,
        "metrics.jsonl",
        lambda records: [{**r, "files": dict.fromkeys(r["files"], 3)} for r in records],
    ),
    "files that lead out": partial(
        lines,
        "metrics.jsonl",
        lambda records: [
            {**r, "files": {"../../../outside/precious": {"bytes": 1, "sha256": ""}}}
            for r in records
        ],
    ),
    "settings changed to nothing": partial(
        lines,
        "events.jsonl",
        lambda records: [
            *records,
            {"kind": "settings", "after": 0, "changed": {"train": 3, "no.such.thing": [1, 2]}},
        ],
    ),
    "a clock of other things": partial(
        lines, "clock.jsonl", lambda records: [{"what": "step"}, {"what": 3}, {}]
    ),
    "a text of 400 MB": partial(
        bent_table,
        replaced("task_id", lambda c: pa.array(["x" * 400_000_000] + ["y"] * (len(c) - 1))),
    ),
    "a text of 400 MB in a dictionary": partial(
        bent_table,
        replaced("task_id", lambda c: pa.array(["x" * 100_000_000] * len(c))),
        use_dictionary=True,
    ),
    "a hundred million absent values": partial(
        bent_table,
        replaced(
            "logprobs",
            lambda c: pa.array([[None] * 30_000_000] + [[]] * (len(c) - 1), pa.list_(pa.float32())),
        ),
    ),
    "a payload nested deep": partial(
        bent_table, replaced("task_payload", lambda c: pa.array(["[" * 900 + "]" * 900] * len(c)))
    ),
    "a payload that is a number": partial(
        bent_table, replaced("task_payload", lambda c: pa.array([3] * len(c)))
    ),
    "turns that are no lists": partial(
        bent_table, replaced("turn_text", lambda c: pa.array(["x"] * len(c)))
    ),
    "a config that is a list": partial(replace_config, []),
    "a config of numbers": partial(replace_config, {"env": 3, "train": [], "policy": None}),
    "a config with nothing in it": partial(replace_config, {}),
    "a manifest of numbers": partial(
        checkpoint_manifest, lambda manifest: {**manifest, "files": {"a": 3}}
    ),
    "a manifest that leads out": partial(
        checkpoint_manifest,
        lambda manifest: {
            **manifest,
            "files": {"../../../outside/precious": {"bytes": 3, "sha256": ""}},
        },
    ),
}
