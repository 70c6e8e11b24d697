"""Measures; what it measures is said in the package's docstring."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import workbench as wb
from workbench.rollouts.evaluate import Score
from workbench.values import trajectories_of
from workbench.values.stats import paired_difference

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/agents.md"
OWN = "our own environment"
SAME = "OpenAI Agents SDK, the task's own tool schema"
# What answers -> (program, settings). The program of None: our environment itself.
ANSWERS: Mapping[str, tuple[str | None, Mapping[str, Any]]] = {
    OWN: (None, {}),
    SAME: ("experiments.agent_packages.programs:same_prompt", {}),
    "OpenAI Agents SDK": ("with_agents_sdk:solve", {}),
    "openai, a script": ("my_agent:solve", {}),
    "LangGraph": ("with_langgraph:solve", {}),
    "pydantic-ai": ("with_pydantic_ai:solve", {}),
    "smolagents": ("with_smolagents:solve", {"env.not_followed": ["tool_choice", "stop"]}),
    "two sub-agents (OpenAI Agents SDK)": ("with_sub_agents:solve", {}),
}
TRAINED = (OWN, SAME, "OpenAI Agents SDK")


def write_programs(folder: Path) -> None:
    """The guide's programs, as files that can be imported."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, source in blocks:
        (folder / f"{name}.py").write_text(f"import json\n{source}")
    sys.path.insert(0, str(folder))


def config_of(name: str, tasks: int, seed: int, steps: int) -> Any:
    program, settings = ANSWERS[name]
    env = {} if program is None else {"env": wb.agents(program, tasks="world_qa"), **settings}
    return wb.load_config(
        "search", {**env, "seed": seed, "train.steps": steps, "evaluation.num_tasks": tasks}
    )


def row_of(
    name: str, policy: str, score: Score, own: Score | None, seconds: float
) -> dict[str, Any]:
    """One line of the result; `own`: of our environment on the same tasks."""
    groups = trajectories_of(score.played)
    calls = [turn.info.get("call", {}) for trajectory in groups for turn in trajectory.turns]
    row = {
        "answers": name,
        "policy": policy,
        "n": score.n,
        "success": score.success,
        "low": score.success_low,
        "high": score.success_high,
        "turns": score.turns,
        "faults": score.faults,
        "forks": sum(call.get("way") == "fork" for call in calls),
        "calls": len(calls),
        "seconds": seconds,
    }
    if own is not None:
        difference = paired_difference(own.by_task, score.by_task)
        row["difference"] = [difference.mean, difference.low, difference.high]
    return row


def measured(tasks: int, seed: int, steps: int, folder: Path, write: Any) -> None:
    """`write` is handed the result anew after each row, so that what is cut off is not lost."""
    rows: list[dict[str, Any]] = []
    own: dict[str, Score] = {}
    for name in ANSWERS:
        began = time.perf_counter()
        [score] = wb.evaluate(
            wb.open_session(config_of(name, tasks, seed, steps)), modes=("sampled",)
        )
        seconds = time.perf_counter() - began
        rows.append(row_of(name, "shipped", score, own.get("shipped"), seconds))
        own.setdefault("shipped", score)
        write({"tasks": tasks, "steps": steps, "rows": rows})
    for name in TRAINED if steps else ():
        began = time.perf_counter()
        run = wb.train_here(config_of(name, tasks, seed, steps), folder / f"run-{len(rows)}")
        seconds = time.perf_counter() - began
        [score] = wb.evaluate(wb.reopen(run), modes=("sampled",))
        rows.append(row_of(name, "trained", score, own.get("trained"), seconds))
        own.setdefault("trained", score)
        write({"tasks": tasks, "steps": steps, "rows": rows})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.agent_packages")
    parser.add_argument("--tasks", type=int, default=256, help="held-out questions (default: 256)")
    parser.add_argument("--steps", type=int, default=20, help="of training; 0: none (default: 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    args = parser.parse_args()
    with TemporaryDirectory() as folder:
        write_programs(Path(folder))
        keep = partial(_keep, args.json)
        measured(args.tasks, args.seed, args.steps, Path(folder), keep)


def _keep(path: Path, result: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(result, indent=1))
    print(result["rows"][-1], flush=True)


if __name__ == "__main__":
    main()
