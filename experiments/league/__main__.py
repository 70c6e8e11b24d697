"""The commands of `python -m experiments.league`; what they do is said in experiments/league/__init__.py."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from experiments.league.corpus import BUGS, TWINS
from experiments.league.counting import counted, false_alarms, judged
from experiments.league.tools import TOOLS
from experiments.league.work import STEPS, Job, done


def jobs_of(names: Sequence[str], seed: int, steps: int, tools: Sequence[str]) -> list[Job]:
    """The runs of these bugs and of their twins, or of all; slow ones first."""
    if unknown := set(names) - {bug.name for bug in BUGS}:
        raise SystemExit(f"no bug is called {', '.join(sorted(unknown))}")
    wanted = [bug for bug in BUGS if not names or bug.name in names]
    twins = TWINS if not names else dict.fromkeys(bug.twin for bug in wanted)
    order = sorted(
        [*(bug.name for bug in wanted), *twins],
        key=lambda name: (not _is_slow(name), name),
    )
    return [Job(name, seed, steps, tuple(tools)) for name in order]


def _is_slow(name: str) -> bool:
    options = {bug.name: bug.options for bug in BUGS}.get(name) or TWINS.get(name) or {}
    return "tools" in options or "rollout" in options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Every tool on every run, and the verdicts."""
    jobs = jobs_of(options.only, options.seed, options.steps, options.tools)
    result = {
        "versions": {name: TOOLS[name].version() for name in options.tools},
        "steps": options.steps,
        "runs": [],
    }
    runs = result["runs"]
    if options.json.exists():  # it was cut off: what is done stays done
        before = json.loads(options.json.read_text(encoding="utf-8"))
        if {**before, "runs": []} == result:
            runs += before["runs"]
    already = {(entry["name"], entry["seed"]) for entry in runs}
    jobs = [job for job in jobs if (job.name, job.seed) not in already]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        waiting = [pool.submit(done, job) for job in jobs]
        for number, ready in enumerate(as_completed(waiting), start=1):
            runs.append(ready.result())
            last = runs[-1]
            written(options.json, result)
            alarms = {tool: [a["kind"] for a in said] for tool, said in last["alarms"].items()}
            print(
                f"{number}/{len(jobs)} {last['name']}: {last['error'] or alarms} {last['failed'] or ''}"
                f" ({last['seconds']:.0f} s)",
                flush=True,
            )
    return result


def written(path: Path, result: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def joined(files: Sequence[Path]) -> dict[str, Any]:
    """The league: runs of several seeds, the verdicts on them, and the cost."""
    league: dict[str, Any] = {"versions": {}, "costs": []}
    by_key: dict[tuple[str, int], Any] = {}  # a run made again takes the place of the first
    for path in files:
        data = json.loads(path.read_text(encoding="utf-8"))
        data = data.get("result", data)  # of docs/evidence/data as well
        league["versions"] |= data.get("versions", {})
        by_key |= {(entry["name"], entry["seed"]): entry for entry in data.get("runs", [])}
        league["costs"] += data.get("costs", [])
        league["steps"] = data.get("steps", league.get("steps"))
    league["runs"] = [by_key[key] for key in sorted(by_key)]
    tools = [name for name in TOOLS if name in league["versions"]]
    league["twins"] = sorted({run["name"] for run in league["runs"]} & set(TWINS))
    league["rows"] = judged(league["runs"], BUGS, tools)
    return league


def told(league: dict[str, Any]) -> str:
    """A line for each tool."""
    lines = []
    for tool in league["versions"]:
        noticed, named, total = counted(league["rows"], tool)
        false, clean = false_alarms(league["runs"], league["twins"], tool)
        lines.append(
            f"{tool}: {noticed} of {total} noticed, {named} named; alarms in {false} of {clean} clean runs"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.action == "run":
        result = run(options)
    elif options.action == "cost":
        from experiments.league.cost import costs

        result = {"costs": costs(options.tools)}
    else:
        result = joined(options.files)
        print(told(result))
    written(options.json, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.league", description=__doc__.split("\n")[0]
    )
    actions = parser.add_subparsers(dest="action", required=True)
    sub = actions.add_parser("run", help="every tool on every run")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--steps", type=int, default=STEPS)
    sub.add_argument("--workers", type=int, default=2)
    sub.add_argument("--only", nargs="*", default=[], metavar="BUG")
    _common(sub)
    _common(actions.add_parser("cost", help="what each tool costs"))
    sub = actions.add_parser("join", help="the league of several results")
    sub.add_argument("files", nargs="+", type=Path)
    sub.add_argument("--json", type=Path, required=True, metavar="FILE")
    return parser


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tools", nargs="*", default=list(TOOLS), choices=list(TOOLS))
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")


if __name__ == "__main__":
    sys.exit(main())
