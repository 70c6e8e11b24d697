"""What a finished run was, as a small JSON tree: every array by a hash of its values and a few of them in clear.

    {"code": "c53affcb2eb5",                                          hash over the source that made it
     "machine": {"threads": 1, "cpu": ..., "torch": ...},
     "steps": {"1": {"attempts": {"sampled_ids": {"dtype": "int32", "shape": [1090], "sha256": "c1be18400c3266f3...",
                                                  "mean": 213.4, "norm": 8071.9, "values": [17, 4, 88, 482]}, ...},
                     "updates": {"0": {"skipped": None, "rows": [31, ...], "columns": {"advantage": {...}, ...}}},
                     "metrics": {"loss": 0.094, ...}}},
     "evaluations": {"0": {"untrained, sampled": {"success": 0.25, "by_task": [...], ...}}},
     "weights": {"model": {"lm_head.weight": {...}}, "optimizer": {...}, "critic": {...}}}

Values are hashed, not files: a run folder may change its formats, and its numbers stay. The hash is SHA-256 (its
first half) over dtype, shape and the little-endian bytes in C order, with every NaN made the same one; -0.0 is not 0.0.
`mean` and `norm` are over what is not NaN, six digits of them; `values` are four entries spread over the array (of a
credit table: at the rows `rows`, which the update trained).

Left out: the scores of random play and of the solver, which are no part of training, and everything on the clock.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from hashlib import sha256
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import torch
from safetensors.numpy import load_file

BASELINES = ("random", "solver")
SHOWN = 4  # entries of an array in clear


def record_of(
    run: Any, weights: Mapping[str, Mapping[str, np.ndarray]] | None = None
) -> dict[str, Any]:
    """Everything that is compared of a run that this process trained. `weights` None: of its newest checkpoint."""
    weights = weights_of(run.path) if weights is None else weights
    return {
        "code": run.machines()[-1][1]["code"],
        "machine": this_machine(),
        "steps": {str(step): _step(run, step) for step in run.steps()},
        "evaluations": {
            str(report["step"]): _scores(report["rows"]) for report in run.evaluations().values()
        },
        "weights": {
            part: {name: array(tensor) for name, tensor in sorted(tensors.items())}
            for part, tensors in weights.items()
        },
    }


# ------------------------------------------------------------------------------------------------ machine


def this_machine() -> dict[str, Any]:
    """What the last bit of a number depends on, apart from configuration and code: what a run notes of its machine
    (under the same names), and the processor, since a capability does not tell all kernels apart."""
    return {
        "threads": torch.get_num_threads(),
        "cpu": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "processor": _processor(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "transformers", "accelerate", "numpy")},
    }


def _processor() -> str:
    """Vendor, family and model, where the system says them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return "unknown"
    known = dict(
        tuple(part.strip() for part in line.split(":", 1)) for line in lines if ":" in line
    )
    return " ".join(known.get(name, "?") for name in ("vendor_id", "cpu family", "model"))


# ------------------------------------------------------------------------------------------------ one array


def array(values: np.ndarray, at: Sequence[int] | None = None) -> dict[str, Any]:
    """One array: its hash, and what a mismatch is told by. `at`: flat places of the entries in clear."""
    values = np.ascontiguousarray(values)
    at = spread(np.arange(values.size)) if at is None else at
    known = values[~np.isnan(values)] if values.dtype.kind == "f" else values
    numbers = known.astype(np.float64).reshape(-1)
    return {
        "dtype": values.dtype.name,
        "shape": list(values.shape),
        "sha256": digest(values),
        "mean": float(f"{numbers.mean():.6g}") if numbers.size else 0.0,
        "norm": float(f"{np.sqrt((numbers**2).sum()):.6g}"),
        "values": [_clear(values.reshape(-1)[index]) for index in at],
    }


def _clear(value: np.generic) -> float | int | bool:
    """The number with as few digits as name it: a float32 does not need the seventeen of a float64."""
    return float(str(value)) if value.dtype.kind == "f" else value.item()


def digest(values: np.ndarray) -> str:
    """Half of the SHA-256 of dtype, shape and values."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    little = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"), copy=False))
    return sha256(
        f"{values.dtype.name} {list(values.shape)} ".encode() + little.tobytes()
    ).hexdigest()[:32]


def spread(places: np.ndarray) -> list[int]:
    """At most SHOWN of these places, the first and the last among them."""
    chosen = np.linspace(0, len(places) - 1, min(SHOWN, len(places))).astype(int)
    return [int(places[index]) for index in chosen]


# ------------------------------------------------------------------------------------------------ steps


def _step(run: Any, step: int) -> dict[str, Any]:
    skipped = run.skipped(step)
    return {
        "attempts": _trajectories(list(chain.from_iterable(run.groups(step)))),
        "updates": {
            str(update): {"skipped": skipped.get(update)} | _table(run.credit(step, update).columns)
            for update in run.updates(step)
        },
        "metrics": dict(run.metrics_line(step)),
    }


def _trajectories(trajectories: Sequence[Any]) -> dict[str, Any]:
    """What was collected, in address order. `sampled_ids_each`: a checksum per trajectory, to find the one that differs."""
    segments = [segment for trajectory in trajectories for segment in trajectory.segments]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    sampled = [
        _joined(segment.token_ids[segment.eligible] for segment in trajectory.segments)
        for trajectory in trajectories
    ]
    return {
        "task": list(dict.fromkeys(trajectory.task.id for trajectory in trajectories)),
        "sampled_ids_each": [f"{crc32(ids.astype('<i4').tobytes()):08x}" for ids in sampled],
        "sampled_ids": array(_joined(sampled)),
        "token_ids": array(_joined(segment.token_ids for segment in segments)),
        "source": array(_joined(segment.sources for segment in segments)),
        "eligible": array(_joined(segment.eligible for segment in segments)),
        "segment_length": array(np.array([len(segment) for segment in segments], np.int64)),
        "logprob": array(_joined(segment.logprobs[segment.eligible] for segment in segments)),
        "reward": [trajectory.reward for trajectory in trajectories],
        "outcome": [trajectory.outcome for trajectory in trajectories],
        "success": [trajectory.success for trajectory in trajectories],
        "stop_reason": [trajectory.stop_reason.value for trajectory in trajectories],
        "turn_reward": array(
            np.array([np.nan if turn.reward is None else turn.reward for turn in turns], np.float64)
        ),
    }


def _joined(parts: Any) -> np.ndarray:
    return np.concatenate([np.asarray(part) for part in parts])


def _table(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Every column of the credit table of one update."""
    trained = np.flatnonzero(columns["used"])
    rows = spread(trained if len(trained) else np.arange(len(columns["used"])))
    return {
        "rows": rows,
        "columns": {name: array(column, rows) for name, column in columns.items()},
    }


# ------------------------------------------------------------------------------------------------ scores, weights


def _scores(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{row['policy']}, {row['mode']}": {
            name: value for name, value in row.items() if name not in ("policy", "mode")
        }
        for row in rows
        if row["policy"] not in BASELINES
    }


def weights_of(folder: Path) -> dict[str, dict[str, np.ndarray]]:
    """Part -> name -> tensor of the newest checkpoint: "model", "optimizer" and, of a run with a critic, its own.

    Where the format of checkpoints changes, this is the place that learns to read it; the names stay those of the
    record.
    """
    newest = max((Path(folder) / "checkpoints").glob("step-*"))
    return {path.stem: load_file(path) for path in sorted(newest.glob("*.safetensors"))}
