"""The commands of `python -m docs.make`; what each does is said in docs/make/__init__.py."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docs.make.evidence import filled, read, tables_of
from docs.make.gpus import described
from docs.make.results import KINDS

ROOT = Path(__file__).resolve().parents[2]
PAGES, DATA = ROOT / "docs/evidence", ROOT / "docs/evidence/data"


def write_pages(*, check: bool = False) -> list[str]:
    """Make the tables of every page of evidence anew; returns the names of the pages that were different. With `check`
    nothing is written."""
    changed = []
    for path in sorted(PAGES.glob("*.md")):
        before = path.read_text(encoding="utf-8")
        after = filled(before, DATA)
        if after != before:
            changed.append(path.name)
            if not check:
                path.write_text(after, encoding="utf-8")
    return changed


def record(options: argparse.Namespace) -> Path:
    """Keep what a command wrote as data, with what must be known to read it."""
    result = json.loads(options.result.read_text(encoding="utf-8"))
    written = datetime.date.fromtimestamp(options.result.stat().st_mtime).isoformat()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    data = {
        "version": 1,
        "title": options.title,
        "command": options.command,
        "date": written,
        "machine": _machine_of(result, options.note),
        "seeds": options.seeds,
        "commit": options.commit or commit.stdout.strip(),
        "source": "measured",
        "kind": options.kind,
        "result": result,
    }
    tables_of(data)  # a result that makes no table is refused before it is kept
    path = DATA / f"{options.name}.json"
    path.write_text(compact(data) + "\n", encoding="utf-8")
    read(path)
    return path


def _machine_of(result: Any, note: str) -> str:
    """Of a result that says where it was made, that; else this machine."""
    own = result.get("machine") if isinstance(result, dict) else None
    if not isinstance(own, dict) or "device" not in own:
        return machine(note)
    return described(own) + (f"; {note}" if note else "")


def machine(note: str = "") -> str:
    threads = os.environ.get("OMP_NUM_THREADS")
    threads = (
        ""
        if threads is None
        else ", one thread a process"
        if threads == "1"
        else f", {threads} threads a process"
    )
    return (
        f"{os.cpu_count()} CPU cores ({platform.machine()}), Python {platform.python_version()}, no GPU{threads}"
        + (f"; {note}" if note else "")
    )


LONG = 100  # entries of a list of plain values that nobody reads: a result for each task


def compact(value: Any, indent: int = 0) -> str:
    """JSON with one entry a line, but lists of plain values on one line: small, and a change shows where it is."""
    pad = " " * (indent + 1)
    if isinstance(value, dict) and value:
        inside = [
            f"{pad}{json.dumps(key)}: {compact(entry, indent + 1)}" for key, entry in value.items()
        ]
        return "{\n" + ",\n".join(inside) + "\n" + " " * indent + "}"
    if isinstance(value, list) and any(isinstance(entry, (dict, list)) for entry in value):
        inside = [pad + compact(entry, indent + 1) for entry in value]
        return "[\n" + ",\n".join(inside) + "\n" + " " * indent + "]"
    if isinstance(value, list):
        return f"[{(',' if len(value) > LONG else ', ').join(map(compact, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e9:
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def site() -> int:
    """Build the site with warnings as errors."""
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "sphinx",
            "-b",
            "html",
            "-q",
            "-W",
            "--keep-going",
            str(ROOT / "docs"),
            str(ROOT / "build/docs"),
        ],
        cwd=ROOT,
    ).returncode


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.action == "record":
        print(f"wrote {record(options).relative_to(ROOT)}")
    elif options.action == "site":
        if status := site():
            return status
        print(f"the site: {ROOT / 'build/docs/index.html'}")
    elif options.action == "pictures":
        from docs.make.pictures import make_pictures

        for path in make_pictures(ROOT / "docs/pictures", options.run):
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
    elif options.action == "plots":
        from docs.make.plots import draw

        for path in draw(ROOT / "docs/pictures", DATA):
            print(f"wrote {path.relative_to(ROOT)}, {path.stat().st_size:,} bytes")
    else:
        changed = write_pages(check=options.check)
        became = "differ from" if options.check else "made anew from"
        print("\n".join([*changed, f"{len(changed)} pages {became} their data"]))
        return int(options.check and bool(changed))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m docs.make", description="Make what is made in the documentation."
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit 1 if a page is not what its data gives",
    )
    actions = parser.add_subparsers(dest="action")
    sub = actions.add_parser(
        "record", help="keep the JSON that a command wrote in docs/evidence/data"
    )
    sub.add_argument("name", help="of the data file, without .json")
    sub.add_argument("result", type=Path, help="the JSON")
    sub.add_argument(
        "--kind", required=True, choices=list(KINDS), help="which tables it makes: %(choices)s"
    )
    sub.add_argument("--title", required=True)
    sub.add_argument("--command", required=True, help="what wrote it, as one would type it")
    sub.add_argument("--seeds", type=int, nargs="*", default=[])
    sub.add_argument("--commit", help="of the code that ran (default: the one checked out)")
    sub.add_argument(
        "--note",
        default="",
        help="what else one must know of the machine, such as other work on it",
    )
    actions.add_parser("site", help="build the site into build/docs")
    actions.add_parser("plots", help="draw the pictures of docs/evidence anew from its data")
    sub = actions.add_parser("pictures", help="make the README's pictures")
    sub.add_argument(
        "--run",
        type=Path,
        default=ROOT / "runs/pictures",
        help="trained into this folder, or read from it",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
