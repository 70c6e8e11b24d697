"""The benchmark: our step and TRL's on the same work, in turns, and what our own parts cost. `make bench` runs it.

    python -m experiments.bench                         the 3 million parameter policy on the CPU, one thread a side
    python -m experiments.bench --device cuda --shape 0.5b     random weights of Qwen2.5-0.5B's shape in bf16, on a GPU

Seconds are CPU seconds on the CPU (a busy machine stretches those of both sides alike), wall seconds on a GPU. Wall
seconds on a CPU are printed only where nothing else ran. Everything is kept as JSON in experiments/bench/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.bench import machine, match, report
from experiments.bench.parts import RESULTS
from experiments.bench.parts import in_words as parts_in_words
from experiments.bench.policy import SHAPES, make_policy
from experiments.bench.work import OurSide, PeerSide, Work
from experiments.bench.worker import OFFLINE, ONE_THREAD, ROOT

# The kernels compute in float32 what torch's own modules compute, up to rounding; drafts change no token.
OURS = OurSide(
    "ours, float32", decode="fused", drafts=8, attention="native", layers="native", fused_adamw=True
)
OURS_BF16 = replace(OURS, name="ours, bf16 training", precision="bf16")
OURS_ALL_BF16 = replace(OURS_BF16, name="ours, bf16", engine_dtype="bfloat16")
DEFAULTS = OurSide("ours, float32, defaults")  # no kernel of our own, no compiler needed
OUR_SIDES = (OURS, OURS_BF16, OURS_ALL_BF16, DEFAULTS)
TRL = PeerSide("TRL environments, float32")
TRL_ROLLOUT = PeerSide("TRL rollout, float32", route="rollout")
TRL_OTHERS = (
    PeerSide("TRL environments, bf16", bf16=True),
    PeerSide("TRL environments, bf16, rows 16", bf16=True, micro_rows=16),
    PeerSide("TRL rollout, bf16", route="rollout", bf16=True),
    TRL_ROLLOUT,
)


def on_cpu(
    record: match.Record,
    model: Path,
    work: Work,
    steps: int,
    parts: bool,
    ours: OurSide,
    one_lane: bool = False,
) -> dict[str, Any]:
    """Both lanes at once where there are two cores; the parts after the shorter one. `ours`: our float32 side; `one_lane`:
    only at equal dtype, on TRL's own route."""
    found: dict[str, Any] = {}
    kernels = ours != DEFAULTS
    # Only the rollout route can play with weights that write no calls.
    peer = TRL_ROLLOUT if work.babble else TRL

    def first() -> None:
        match.equal_dtype(record, model, work, steps, ours, peer)
        if parts:
            found.update(run_parts(model))

    def second() -> None:
        also = replace(ours, name=f"{ours.name} (lane 2)")
        others = OUR_SIDES[1:] if kernels else ()
        match.best_of(record, model, work, steps, (also, *others), TRL_OTHERS)

    if one_lane:
        first()
    elif cores() > 1:
        match.at_once([first, second])
    else:
        first()
        second()
    record.pairs.sort(key=lambda pair: pair[0] != ours.name)  # the equal dtypes first
    return found


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_gpu(record: match.Record, model: Path, work: Work, steps: int) -> None:
    """One after the other on one device. Only the rollout route can play with weights that write no calls."""
    ours = OurSide("ours, bf16", engine_dtype="bfloat16", precision="bf16", device="cuda")
    match.equal_dtype(
        record,
        model,
        work,
        steps,
        ours,
        PeerSide("TRL rollout, bf16", route="rollout", bf16=True, device="cuda"),
    )


def run_parts(model: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "experiments.bench.parts", "--json", "--model", str(model)],
        cwd=ROOT,
        env=os.environ | ONE_THREAD | OFFLINE,
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(done.stdout)


def main(arguments: Sequence[str]) -> int:
    options = _options(arguments)
    began, before = time.monotonic(), machine.cpu_times()
    model = make_policy(RESULTS, SHAPES[options.shape], say=print)
    work = Work(
        trajectories=options.trajectories,
        turns=options.turns,
        babble=SHAPES[options.shape].steps == 0,
    )
    record = match.Record()
    if options.device == "cpu":
        ours = DEFAULTS if options.defaults else OURS
        parts = on_cpu(
            record, model, work, options.steps, not options.no_parts, ours, options.one_lane
        )
    else:
        parts = {}
        on_gpu(record, model, work, options.steps)
    others = machine.others_took(before, machine.cpu_times())
    idle = options.device != "cpu" or (others is not None and others < machine.IDLE)
    found = report.results(record, options.steps) | {
        "parts": parts,
        "machine": machine.facts(),
        "others_took_cores": others,
        "work": vars(work),
        "sides": {side.name: vars(side) for side in OUR_SIDES},
        "minutes": (time.monotonic() - began) / 60,
    }
    print(*_heading(found), *report.in_words(found, idle=idle), sep="\n")
    if parts:
        print("", *parts_in_words(parts), sep="\n")
    if not idle:
        print(
            "\nNo wall figures: "
            + (
                "nobody here can say whether the machine was idle"
                if others is None
                else f"others took {others:.2f} of a core meanwhile"
            )
        )
    RESULTS.mkdir(exist_ok=True)
    out = RESULTS / f"bench-{time.strftime('%Y%m%d-%H%M%S')}.json"
    out.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    print(f"\n{found['minutes']:.1f} minutes; every step is in {os.path.relpath(out)}")
    return 0


def _heading(found: dict[str, Any]) -> list[str]:
    where, work = found["machine"], found["work"]
    return [
        "",
        f"{where['cpu']}, {where['cores']} cores; Python {where['python']}, torch {where['torch']}, "
        f"transformers {where['transformers']}, TRL {where['trl']}",
        f"one step: {work['trajectories']} trajectories in groups of {work['group']}, up to {work['turns']} moves, one "
        "AdamW update over all of them; figures are means over the steps, ratios geometric means of the steps' "
        "ratios with Student's 95 % limits of their logarithms",
    ]


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--steps", type=int, default=8, help="measured steps of each side, after the warm-up"
    )
    parser.add_argument(
        "--trajectories", type=int, default=32, help="trajectories in a step, in groups of 8"
    )
    parser.add_argument("--turns", type=int, default=5, help="moves of a trajectory")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="3m", help="of the policy")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument(
        "--defaults",
        action="store_true",
        help="our defaults alone, on a CPU, without the kernels that are compiled at their first use",
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="where the figures are written besides"
    )
    parser.add_argument(
        "--one-lane",
        action="store_true",
        help="on a CPU, only against one route of TRL, in float32",
    )
    parser.add_argument("--no-parts", action="store_true", help="leave out what our own parts cost")
    options = parser.parse_args(arguments)
    if options.steps < 2 or options.trajectories % 16:
        parser.error(
            "at least 2 measured steps, for there is no interval from one; trajectories in multiples of 16, for "
            "TRL's micro-batches of 8 and 16 rows"
        )
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
