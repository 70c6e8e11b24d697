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
# What answers -> its program. None: our environment itself.
ANSWERS: Mapping[str, str | None] = {
    OWN: None,
    SAME: "experiments.agent_packages.programs:same_prompt",
    "OpenAI Agents SDK": "with_agents_sdk:solve",
    "openai, a script": "my_agent:solve",
    "LangGraph": "with_langgraph:solve",
    "pydantic-ai": "with_pydantic_ai:solve",
    "two sub-agents (OpenAI Agents SDK)": "with_sub_agents:solve",
    "smolagents": "with_smolagents:solve",
}
TRAINED = (OWN, SAME, "OpenAI Agents SDK")
NOT_FOLLOWED = ("strict", "tool_choice", "stop")  # what these programs ask for beside


def write_programs(folder: Path) -> None:
    """The guide's programs, as files that can be imported."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    for name, source in blocks:
        (folder / f"{name}.py").write_text(f"import json\n{source}")
    sys.path.insert(0, str(folder))


def config_of(name: str, tasks: int, seed: int, steps: int) -> Any:
    program = ANSWERS[name]
    settings = {"seed": seed, "train.steps": steps, "evaluation.num_tasks": tasks}
    if program is not None:
        settings["env"] = wb.agents(program, tasks="world_qa", not_followed=NOT_FOLLOWED)
    return wb.load_config("search", settings)


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


def shipped(name: str, tasks: int, seed: int, own: Score | None) -> tuple[dict[str, Any], Score]:
    began = time.perf_counter()
    session = wb.open_session(config_of(name, tasks, seed, 1))
    [score] = wb.evaluate(session, modes=("sampled",))
    return row_of(name, "shipped", score, own, time.perf_counter() - began), score


def trained(
    name: str, tasks: int, seed: int, steps: int, own: Score | None, path: Path
) -> tuple[dict[str, Any], Score]:
    began = time.perf_counter()
    run = wb.train_here(config_of(name, tasks, seed, steps), path)
    seconds = time.perf_counter() - began
    [score] = wb.evaluate(wb.reopen(run), modes=("sampled",))
    return row_of(name, "trained", score, own, seconds), score


def measured(tasks: int, seed: int, steps: int, folder: Path, write: Any) -> None:
    """`write` is handed the result anew after each row, so that what is cut off is not lost."""
    rows: list[dict[str, Any]] = []
    own: Score | None = None
    for name in ANSWERS:
        row, score = shipped(name, tasks, seed, own)
        own = own or score
        rows.append(row)
        write({"tasks": tasks, "steps": steps, "rows": rows})
    own = None
    for name in TRAINED if steps else ():
        row, score = trained(name, tasks, seed, steps, own, folder / f"run-{len(rows)}")
        own = own or score
        rows.append(row)
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
