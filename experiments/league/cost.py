"""What a tool costs: CPU seconds of a run without a bug, with this tool alone and without any."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.league.tools import TOOLS
from experiments.league.work import _quiet, made

RUNS = ("game", "tools")
REPEATS = 3
STEPS = 12


def seconds(name: str, tool: str | None, seed: int, steps: int) -> float:
    """CPU seconds of a step, training and the tool's report together, without what making the trainer takes."""
    with tempfile.TemporaryDirectory() as place, _quiet():
        tools = [] if tool is None else [TOOLS[tool](Path(place))]
        trainer = made(name, seed, steps, tools, Path(place))
        began = time.process_time()
        trainer.train()
        for one in tools:
            one.alarms()
        return (time.process_time() - began) / steps


def costs(tools: Sequence[str], repeats: int = REPEATS, steps: int = STEPS) -> list[dict[str, Any]]:
    """A row for each kind of run and tool: the median over repeats, in turns, so that a busy machine hits all alike."""
    rows = []
    for name in RUNS:
        taken: dict[str | None, list[float]] = {tool: [] for tool in (None, *tools)}
        for repeat in range(repeats):
            for tool, times in taken.items():
                times.append(seconds(name, tool, repeat, steps))
        bare = median(taken[None])
        for tool in tools:
            extra = [with_it - without for with_it, without in zip(taken[tool], taken[None])]
            rows.append(
                {
                    "run": name,
                    "tool": tool,
                    "bare_s": bare,
                    "extra_s": median(extra),
                    "extras": extra,
                }
            )
    return rows
