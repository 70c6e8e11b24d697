"""The table of `workbench train --profile`, made from the lines of a run's clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PREFIX = "profile/"
# Phase of a step -> the parts of it, and what each is; the last one is what is left of the phase.
PHASES: Mapping[str, Mapping[str, str]] = {
    "collect": {
        "prefill": "passes with prompts or observations",
        "decode": "passes of one new token a row",
        "engine": "sampling and the engine's own work",
        "environment": "environments",
        "collect": "conversations, scheduling",
    },
    "credit": {},
    "update": {
        "logprobs": "logprobs before the first update",
        "forward": "forward",
        "backward": "backward",
        "optimizer": "gradient norm, optimizer",
        "update": "loss, figures, cutting",
    },
    "lint": {},
    "store": {},
    "checkpoint": {},
    "sync": {},
}
SIDE = {"prefill": "engine", "decode": "engine", "forward": "learner", "backward": "learner"}
HEAD = ("", "wall s", "share", "CPU s", "tokens/s", "of the product")


def profile_table(
    clock: Mapping[int, Mapping[str, Any]], metrics: Iterable[Mapping[str, Any]], config: Any
) -> str:
    """Where the time of all steps that were profiled went, in lines of text; says so where none was.

    Share: of the steps' wall seconds. Of the product: of the operations per second that the device was measured to do in one
    large matrix product, those of the linear layers (attention is not counted).
    """
    steps = {
        number: line
        for number, line in clock.items()
        if any(name.startswith(PREFIX) for name in line)
    }
    if not steps:
        return "no step of this run was profiled"
    total = _summed(steps.values())
    wall = sum(total.get(f"{phase}_s", 0.0) for phase in PHASES)
    rows = [HEAD]
    for phase, parts in PHASES.items():
        if f"{phase}_s" in total:
            seconds = total[f"{phase}_s"]
            cpu = total.get(f"{phase}_cpu_s", 0.0)
            rows.append((phase, *_times(seconds, wall, cpu), "", ""))
            rows += [
                _part(total, name, words, wall)
                for name, words in parts.items()
                if PREFIX + name in total
            ]
    cpu = sum(total.get(f"{phase}_cpu_s", 0.0) for phase in PHASES)
    waited = max(0.0, wall - cpu)
    rows.append(("of all, without CPU time: waiting", *_times(waited, wall, 0.0), "", ""))
    rows.append(("all", *_times(wall, wall, cpu), "", ""))
    return "\n".join(
        [f"profile of {len(steps)} steps", *_lines(rows), *_remarks(total, steps, metrics, config)]
    )


def _summed(lines: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for line in lines:
        for name, value in line.items():
            if isinstance(value, (int, float)):
                total[name] = total.get(name, 0.0) + value
    return total


def _times(seconds: float, wall: float, cpu: float) -> tuple[str, str, str]:
    return f"{seconds:.2f}", f"{seconds / wall:.1%}" if wall else "", f"{cpu:.2f}"


def _part(total: Mapping[str, float], name: str, words: str, wall: float) -> tuple[str, ...]:
    seconds = total[PREFIX + name]
    times = _times(seconds, wall, total.get(f"{PREFIX}{name}_cpu", 0.0))
    tokens = total.get(f"{PREFIX}{name}_tokens")
    gflop = total.get(f"{PREFIX}{name}_gflop")
    rate = f"{tokens / seconds:,.0f}" if tokens and seconds else ""
    share = ""
    if gflop and seconds:
        # The sum over steps of what was measured once: as many times as there are steps.
        product = _product(total, SIDE[name])
        share = f"{gflop / seconds / product:.0%}"
    return f"  {words}", *times, rate, share


def _product(total: Mapping[str, float], side: str) -> float:
    """Operations per second of the device's matrix product, in 10^9: the mean over steps."""
    return total[f"{PREFIX}{side}_product_gflops"] / total[f"{PREFIX}steps"]


def _lines(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:])]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return lines


def _remarks(
    total: Mapping[str, float],
    steps: Mapping[int, Any],
    metrics: Iterable[Mapping[str, Any]],
    config: Any,
) -> list[str]:
    train = config.get("train", {})
    trajectories = train.get("tasks_per_step", 0) * train.get("group_size", 0)
    sampled = 0.0
    for row in metrics:
        if row["step"] in steps:
            sampled += row.get("sampled_tokens", 0.0) * trajectories
    lines = []
    seconds = total.get("sampling_s", total.get("collect_s", 0.0))
    if sampled and seconds:
        lines.append(f"sampled tokens per second of rollout: {sampled / seconds:,.0f}")
    for side in ("engine", "learner"):
        lines.append(
            f"this device's matrix product, as the {side} computes: {_product(total, side):,.0f} GFLOP/s"
        )
    return lines
