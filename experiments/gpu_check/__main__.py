"""Run the parts of a check one after another, each in a process of its own, and write JSON after every one.

    python -m experiments.gpu_check --device cuda --out gpu.json
    python -m experiments.gpu_check --device cpu --shapes tiny --out cpu.json    the same code on the CPU: a rehearsal
    python -m experiments.gpu_check --dry-run                                    the plan, nothing run
    python -m experiments.gpu_check --merge gpu.json gpu-1.json gpu-2.json       the parts of several calls in one file

A part that fails, hangs or runs out of memory is a result: it is written with its error and with what it had measured, and
the next one runs. What was written to --out before stays, so that calls that follow each other fill one file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.bench.worker import OFFLINE, ONE_THREAD, ROOT
from experiments.gpu_check.plan import MODULES, NAMES, PARTS, Part, Setting, chosen

VERSION = 1
PACKAGES = ("torch", "transformers", "accelerate", "peft", "numpy", "triton", "vllm")
CPU_LIMIT_S = 900  # of a part of a rehearsal, which says nothing about time
LAST_WORDS = 12  # lines of what a failed part said last
PATHS = re.compile(
    r"(?<![\w.~])/(?:tmp|home|root|work|var)/\S*"
)  # of one machine: they are kept in no data
# Its wheel is larger than what one call to a lent machine may carry.
NOT_ASKED = {
    "vllm: decoding, a sync": "no part of this check; where vLLM is installed: python -m experiments.bench.gpu "
    "--parts vllm server bare",
    "vllm: sleep": "no part of this check",
}


def machine(device: str) -> dict[str, Any]:
    """What ran: the card by its name, and the versions."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    facts = {"python": platform.python_version(), "cores": os.cpu_count(), **versions}
    if device == "cpu":
        return {"device": "CPU, one thread", **facts}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "memory_gb": properties.total_memory / 1e9,
        "cuda": torch.version.cuda,
        **facts,
    }


# ------------------------------------------------------------------------------------------------ one part


def work(part: Part, setting: Setting, out: Path) -> None:
    """In the part's own process: do it, and write what it found, also on the way."""
    module, function = part.work.split(":")

    def keep(figures: Mapping[str, Any]) -> None:
        write(out, figures)

    keep(getattr(importlib.import_module(f"{MODULES}.{module}"), function)(setting, keep))


def write(path: Path, value: Any) -> None:
    """Whole or not at all: whoever is ended while it writes leaves what was there."""
    half = path.with_name(path.name + ".half")
    half.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    half.replace(path)


def run(part: Part, setting: Setting, limit_s: float) -> dict[str, Any]:
    """Start a part, wait for it no longer than `limit_s`, and say how it ended."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        log = Path(folder) / "log"
        command = [sys.executable, "-m", MODULES, "--part", part.name, "--out", str(out)]
        command += ["--device", setting.device, "--shapes", "tiny" if setting.tiny else "real"]
        command += ["--seconds", str(limit_s), "--model", setting.model]
        began = time.monotonic()
        with log.open("wb") as said:
            child = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | ONE_THREAD | OFFLINE,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        status = _ended(child, limit_s)
        found: dict[str, Any] = {
            "question": part.question,
            "status": status,
            "seconds": time.monotonic() - began,
            "limit_s": limit_s,
            "figures": json.loads(out.read_text(encoding="utf-8")) if out.exists() else {},
        }
        if status != "passed":
            lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            words = "\n".join(lines[-LAST_WORDS:])[-2000:].replace(str(ROOT), ".")
            found["error"] = PATHS.sub("(a path)", words)
        return found


def _ended(child: subprocess.Popen, limit_s: float) -> str:
    try:
        code = child.wait(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # its session: whatever it started ends with it
        child.wait()
        return "took too long"
    return "passed" if code == 0 else f"failed ({code})"


# ------------------------------------------------------------------------------------------------ all of them


def check(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts that were asked for, as far as the seconds last."""
    setting = Setting(options.device, options.shapes == "tiny", model=options.model)
    found: dict[str, Any] = {
        "version": VERSION,
        "kind": "check" if setting.on_gpu else "rehearsal",
        "shapes": options.shapes,
        "at": time.strftime("%Y-%m-%d"),
        "machine": machine(options.device),
        "parts": _done_before(options.out),
        "not run": NOT_ASKED,
    }
    ends = time.monotonic() + options.seconds
    for part in chosen(options.parts, options.call):
        limit = part.limit_s if setting.on_gpu else CPU_LIMIT_S
        left = ends - time.monotonic()
        if left < 5:
            entry = {"question": part.question, "status": "not run", "error": "no time was left"}
        else:
            entry = run(part, setting, min(limit, left))
        found["parts"][part.name] = entry
        write(options.out, found)
        print(in_words(part, entry), flush=True)
    return found


def _done_before(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))["parts"] if path.exists() else {}


def in_words(part: Part, entry: Mapping[str, Any]) -> str:
    seconds = f", {entry['seconds']:.0f} s" if "seconds" in entry else ""
    why = f": {entry['error'].splitlines()[-1][:160]}" if entry.get("error") else ""
    return f"{part.name}: {entry['status']}{seconds}{why}"


def merged(files: Sequence[Path]) -> dict[str, Any]:
    """The parts of several calls in the plan's order. A part that ran twice counts as the later file has it."""
    read = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    if len({(one["machine"]["device"], one["kind"], one["shapes"]) for one in read}) > 1:
        cards = ", ".join(
            f"{one['machine']['device']} ({one['kind']}, {one['shapes']})" for one in read
        )
        raise SystemExit(
            f"these were not made by one kind of card with one kind of shapes: {cards}"
        )
    parts: dict[str, Any] = {}
    for one in read:
        parts |= one["parts"]
    return read[-1] | {"parts": {name: parts[name] for name in NAMES if name in parts}}


def plan_in_words(parts: Sequence[Part]) -> list[str]:
    lines = [
        f"call {part.call}  {part.name:12s} at most {part.limit_s:3d} s  {part.question}"
        for part in parts
    ]
    for call in sorted({part.call for part in parts}):
        total = sum(part.limit_s for part in parts if part.call == call)
        lines.append(f"call {call}: at most {total} s")
    return lines


def main(arguments: Sequence[str]) -> int:
    options = _parser().parse_args(arguments)
    if options.part:
        setting = Setting(options.device, options.shapes == "tiny", options.seconds, options.model)
        (part,) = chosen([options.part], None)
        work(part, setting, options.out)
        return 0
    if options.dry_run:
        print(*plan_in_words(chosen(options.parts, options.call)), sep="\n")
        return 0
    if options.merge:
        write(options.merge[0], merged(options.merge[1:]))
        return 0
    import torch

    if options.device != "cpu" and not torch.cuda.is_available():
        print(
            f"no GPU here (torch {torch.__version__} sees none); --device cpu --shapes tiny rehearses it",
            file=sys.stderr,
        )
        return 2
    if options.device == "cpu" and options.shapes != "tiny":
        print(
            "real shapes on a CPU would take hours; --device cpu --shapes tiny rehearses it",
            file=sys.stderr,
        )
        return 2
    found = check(options)
    return int(any(entry["status"] != "passed" for entry in found["parts"].values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="experiments/gpu_check.sh", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--device", default="cuda", help="cuda, or cpu to rehearse it")
    parser.add_argument("--shapes", choices=("real", "tiny"), default="real")
    parser.add_argument("--parts", nargs="+", choices=NAMES, help="only these")
    parser.add_argument(
        "--call",
        type=int,
        choices=sorted({part.call for part in PARTS}),
        help="only the parts of this call to a lent machine",
    )
    parser.add_argument("--model", default="", help="folder of the pretrained model")
    parser.add_argument("--out", type=Path, default=ROOT / "experiments/gpu_check/results/gpu.json")
    parser.add_argument(
        "--seconds",
        type=float,
        default=3600.0,
        help="of all parts together; what has no time left is not run",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and run nothing")
    parser.add_argument(
        "--merge", nargs="+", type=Path, metavar="FILE", help="write the first file from the others"
    )
    parser.add_argument("--part", choices=NAMES, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
