"""Record the golden runs: train each and write `recorded/NAME.json`.

    python -m tests.golden_runs.make                  those that are not recorded yet
    python -m tests.golden_runs.make bandit search    these
    python -m tests.golden_runs.make --replace NAME   also where a record is there: its numbers are given up

The records in the repository were made with the code of commit bca8911. One that is replaced protects no longer what
came before it: say in the commit which numbers changed, and why they should.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import workbench as wb
from tests.golden_runs.record import record_of
from tests.golden_runs.runs import ALL, RECORDED


def trained(name: str, path: str | Path) -> Any:
    """The run that this name stands for, trained anew into the folder `path`."""
    return wb.train_here(wb.load_config(*ALL[name]), path)


def read_record(name: str) -> dict[str, Any]:
    return json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))


def write_record(name: str, record: dict[str, Any]) -> Path:
    """One line for each array or list, so that a diff of two records names what changed."""
    path = RECORDED / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(_lines(record, 0) + "\n", encoding="utf-8")
    return path


def _lines(value: Any, depth: int) -> str:
    if not isinstance(value, dict) or "sha256" in value or not value:
        return json.dumps(value)
    margin = " " * (depth + 1)
    inner = ",\n".join(
        f"{margin}{json.dumps(key)}: {_lines(item, depth + 1)}" for key, item in value.items()
    )
    return f"{{\n{inner}\n{' ' * depth}}}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden_runs.make", description=__doc__.split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all ({', '.join(ALL)})")
    parser.add_argument("--replace", action="store_true", help="write over a record that is there")
    chosen = parser.parse_args(arguments)
    if unknown := sorted(set(chosen.names) - set(ALL)):
        parser.error(f"no golden run {unknown[0]!r}; known: {', '.join(ALL)}")
    for name in chosen.names or ALL:
        if (RECORDED / f"{name}.json").exists() and not chosen.replace:
            print(f"{name}: recorded already; --replace gives its numbers up")
            continue
        began = time.process_time()
        with tempfile.TemporaryDirectory() as scratch:
            path = write_record(name, record_of(trained(name, Path(scratch) / name)))
        print(
            f"{name}: {path.stat().st_size:,} bytes, {time.process_time() - began:.1f} CPU-seconds"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
