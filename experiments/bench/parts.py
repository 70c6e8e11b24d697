"""What our own parts cost, one by one: `python -m experiments.bench.parts [--model FOLDER]`.

    phases       the share of each phase of a step, and how far sampling, forward and backward pass are from the fastest
                 matrix product of this machine
    packing      the same update with segments packed end to end and with rows padded, sorted by length
    turns        the cost of a trajectory of 2 to 20 turns, against its tokens
    durability   what storing, syncing and checkpoints cost per step of a real, short training run

CPU seconds on one thread throughout; wall seconds only where a disk is waited for, and named so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.bench.flops import Cost, forward_operations
from experiments.bench.lake import ToolLake
from experiments.bench.machine import matrix_peak
from experiments.bench.ours import OurStepper, seconds
from experiments.bench.policy import SHAPES, make_policy
from experiments.bench.ratios import paired_ratio
from experiments.bench.work import OurSide, Work
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.learner import Learner
from workbench.rollouts.collect import collect

RESULTS = Path(__file__).parent / "results"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIDES = {
    "float32": OurSide("float32"),
    "float32, fused": OurSide("float32, fused", decode="fused"),
    "bfloat16": OurSide("bfloat16", engine_dtype="bfloat16", precision="bf16"),
}
DURABLE = (
    "store",
    "checkpoint",
)  # phases of a run's clock: everything that is done so that nothing is lost


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    began = seconds("cpu")
    result = work()
    return seconds("cpu") - began, result


def collected(stepper: OurStepper, work: Work, step: int) -> Batch:
    """The batch of one step's trajectories, without learning from it."""
    family = ToolLake(work.turns, work.babble)
    groups = collect(
        [family.task(seed) for seed in work.boards(step)],
        family=family,
        engine=stepper.engine,
        chat=stepper.chat,
        config=stepper.collect_config,
        group_size=work.group,
        address=(work.seed, "parts", work.turns, step),
    )
    return Batch.from_groups(groups)


# ------------------------------------------------------------------------------------------------ phases


def phases(model: Path, work: Work, steps: int) -> dict[str, Any]:
    """By side: CPU seconds of each phase over `steps` steps, its share, and the operations per second of the three
    that are matrix products in the main, beside those of a plain matrix product."""
    found = {}
    for name, side in SIDES.items():
        stepper = OurStepper(model, work, side)
        stepper.step(0)
        spent, operations = (
            dict.fromkeys(
                (
                    "sampling",
                    "environments and chat",
                    "credit",
                    "forward",
                    "backward and optimizer",
                    "sync",
                ),
                0.0,
            ),
            0.0,
        )
        cost = Cost.of(stepper.learner.models.policy.module)
        for step in range(1, steps + 1):
            lap = _step_by_phase(stepper, step)
            operations += forward_operations(cost, lap.pop("batch"))
            spent = {phase: spent[phase] + lap[phase] for phase in spent}
        peak, total = matrix_peak(DTYPES[side.engine_dtype]), sum(spent.values())
        rates = {
            "sampling": operations / spent["sampling"],
            "forward": operations / spent["forward"],
            "backward and optimizer": 2 * operations / spent["backward and optimizer"],
        }
        found[name] = {
            "seconds": spent,
            "share": {phase: spent[phase] / total for phase in spent},
            "peak_gflops": peak / 1e9,
            "gflops": {phase: rate / 1e9 for phase, rate in rates.items()},
            "of_peak": {phase: rate / peak for phase, rate in rates.items()},
        }
    return found


def _step_by_phase(stepper: OurStepper, step: int) -> dict[str, Any]:
    """One step taken apart. The forward pass is timed by itself (as logprobs, without gradient) and taken off the
    update, which contains another one."""
    before = stepper.engine.stats()["cpu_seconds"]
    rollout, batch = timed(lambda: collected(stepper, stepper.work, step))
    sampling = stepper.engine.stats()["cpu_seconds"] - before
    credit_s, credit = timed(lambda: stepper.algorithm.credit(batch))
    forward, _ = timed(lambda: stepper.learner.logprobs(batch, batch.eligible_T))
    update, _ = timed(lambda: stepper.learner.update(batch, credit, step=step))
    sync, _ = timed(stepper.sync)
    return {
        "batch": batch,
        "sampling": sampling,
        "environments and chat": rollout - sampling,
        "credit": credit_s,
        "forward": forward,
        "backward and optimizer": update - forward,
        "sync": sync,
    }


# ------------------------------------------------------------------------------------------------ packing


def packing(model: Path, work: Work, repeats: int) -> dict[str, Any]:
    """Trajectory tokens per CPU second of an update, packed and padded, in turns on the same batch."""
    steppers = {
        layout: OurStepper(model, work, OurSide(layout, layout=layout))
        for layout in ("auto", "padded")
    }
    packed = steppers["auto"]
    batch = collected(packed, work, 0)
    credit = packed.algorithm.credit(batch)
    rates: dict[str, list[float]] = {layout: [] for layout in steppers}
    for repeat in range(repeats + 1):
        order = list(steppers.items())
        for layout, stepper in order if repeat % 2 == 0 else order[::-1]:
            spent = _update(stepper.learner, batch, credit, repeat)
            if repeat:  # the first one is a warm-up
                rates[layout].append(batch.num_tokens / spent)
    ratio = paired_ratio(rates["auto"], rates["padded"])
    return {
        "packed": float(np.mean(rates["auto"])),
        "padded, sorted by length": float(np.mean(rates["padded"])),
        "ratio": asdict(ratio),
    }


def _update(learner: Learner, batch: Batch, credit: Credit, step: int) -> float:
    return timed(lambda: learner.update(batch, credit, step=step))[0]


# ------------------------------------------------------------------------------------------------ turns


def turns(model: Path, work: Work, counts: Sequence[int]) -> dict[str, Any]:
    """Trajectories of exactly these numbers of turns: CPU seconds and tokens per trajectory, sampled and trained, and the
    straight line through them (least squares on relative residuals). A prompt that is shared counts once."""
    rows = []
    for count in counts:
        longer = replace(
            work, turns=count, babble=True
        )  # whatever is answered is a move, so that nobody stops early
        stepper = OurStepper(model, longer, SIDES["float32"])
        rollout, batch = timed(lambda: collected(stepper, longer, 0))
        credit = stepper.algorithm.credit(batch)
        train = _update(stepper.learner, batch, credit, 0)
        number, shared = batch.num_trajectories, stepper.engine.stats()["shared_prompt_tokens"]
        rows.append(
            {
                "turns": count,
                "tokens": (batch.num_tokens - shared) / number,
                "rollout_s": rollout / number,
                "train_s": train / number,
                "s": (rollout + train) / number,
            }
        )
    tokens_N, cost_N = (np.array([row[key] for row in rows]) for key in ("tokens", "s"))
    return {"rows": rows, **line_through(tokens_N, cost_N)}


def line_through(tokens_N: np.ndarray, cost_N: np.ndarray) -> dict[str, float]:
    """cost = fixed + tokens * per_token, by least squares of relative residuals; `worst` is the largest of them, and
    `power` the exponent of the power law through the same points (1: linear)."""
    weights_N = 1 / cost_N
    design_N2 = np.stack([np.ones_like(tokens_N), tokens_N], axis=1)
    (fixed, per_token), *_ = np.linalg.lstsq(
        design_N2 * weights_N[:, None], cost_N * weights_N, rcond=None
    )
    worst = float(np.abs((design_N2 @ [fixed, per_token] - cost_N) / cost_N).max())
    power = float(np.polyfit(np.log(tokens_N), np.log(cost_N), 1)[0])
    return {
        "fixed_s": float(fixed),
        "s_per_token": float(per_token),
        "worst": worst,
        "power": power,
    }


# ------------------------------------------------------------------------------------------------ durability


def durability(steps: int, preset: str = "frozenlake") -> dict[str, float]:
    """What a real run of the preset says of itself: milliseconds per step of storing and of checkpoints (one every ten
    steps, spread over them), CPU and wall, beside the step's whole CPU time. The run is made on the disk that the
    results lie on, and thrown away."""
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    config = load_config(
        preset, {"train.steps": steps, "train.evaluate_every": 0, "evaluation.num_tasks": 8}
    )
    RESULTS.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=RESULTS) as folder:
        clock = train_here(config, Path(folder) / "run").clock().drop(columns="at").astype(float)
    mean = clock.iloc[1:].mean()  # the first step is a warm-up
    cpu = sum(mean[f"{name}_cpu_s"] for name in DURABLE)
    whole = sum(mean[name] for name in mean.index if name.endswith("_cpu_s"))
    return {
        "steps": len(clock) - 1,
        "step_cpu_ms": 1e3 * whole,
        "durable_cpu_ms": 1e3 * cpu,
        "share": cpu / whole,
        "durable_wall_ms": 1e3 * sum(mean[f"{name}_s"] for name in DURABLE),
        "checkpoint_wall_ms": 1e3 * float(clock["checkpoint_s"].max()),
    }


# ------------------------------------------------------------------------------------------------ in words


def in_words(found: Mapping[str, Any]) -> list[str]:
    lines = []
    for dtype, each in found["phases"].items():
        lines.append(
            f"phases of a step in {dtype}; this machine's matrix product: {each['peak_gflops']:.0f} GFLOP/s"
        )
        for phase, share in each["share"].items():
            speed = (
                f"   {each['gflops'][phase]:5.1f} GFLOP/s, {each['of_peak'][phase]:.0%} of the peak"
                if phase in each["gflops"]
                else ""
            )
            lines.append(f"  {phase:24s} {share:6.1%}{speed}")
    packed, ratio = found["packing"], found["packing"]["ratio"]
    lines.append(
        f"trajectory tokens per CPU second of an update: packed {packed['packed']:.0f}, padded and sorted by "
        f"length {packed['padded, sorted by length']:.0f}; {ratio['mean']:.2f} times "
        f"[{ratio['low']:.2f}, {ratio['high']:.2f}]"
    )
    lines.append("cost of a trajectory: turns, tokens, CPU seconds (sampled + trained)")
    for row in found["turns"]["rows"]:
        lines.append(
            f"  {row['turns']:3d} {row['tokens']:6.0f} {row['s']:6.2f} ({row['rollout_s']:.2f} + "
            f"{row['train_s']:.2f})   {1e3 * row['s'] / row['tokens']:.2f} ms a token"
        )
    line = found["turns"]
    lines.append(
        f"  on a line: {1e3 * line['fixed_s']:.0f} ms + {1e3 * line['s_per_token']:.3f} ms a token, all "
        f"within {line['worst']:.0%}; as a power of the tokens: {line['power']:.2f}"
    )
    cost = found["durability"]
    lines.append(
        f"durability, over {cost['steps']:.0f} steps: {cost['durable_cpu_ms']:.1f} ms CPU of "
        f"{cost['step_cpu_ms']:.0f} a step ({cost['share']:.1%}), {cost['durable_wall_ms']:.1f} ms wall; a "
        f"checkpoint takes {cost['checkpoint_wall_ms']:.0f} ms wall"
    )
    return lines


def measure(model: Path, work: Work = Work(trajectories=16)) -> dict[str, Any]:
    """All parts; about two CPU minutes."""
    torch.set_num_threads(1)
    small = replace(work, trajectories=work.group)
    return {
        "phases": phases(model, work, steps=2),
        "packing": packing(model, work, repeats=5),
        "turns": turns(model, small, (2, 4, 8, 14, 20)),
        "durability": durability(steps=10),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.bench.parts", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--model", type=Path, help="policy folder; without it the benchmark's own is made or found"
    )
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    options = parser.parse_args(arguments)
    found = measure(
        options.model
        or make_policy(RESULTS, SHAPES["3m"], say=lambda line: print(line, file=sys.stderr))
    )
    print(json.dumps(found) if options.json else "\n".join(in_words(found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
