"""Run a table: every arm at every seed is one notebook under papermill, and a last notebook makes the table of them.

    python -m experiments.agent_tables methods              three ways to train, beside what needs no training
    python -m experiments.agent_tables masks                what each mask is worth
    python -m experiments.agent_tables my_table.toml        a plan of your own (workbench/ablation/plan.py says how)
    python -m experiments.agent_tables masks --arms ppo no_masks --seeds 0 --set train.steps=5 --out runs/look

A plan is sealed in its folder before the first run, so that a quick look at other settings wants a folder of its own.

What is done stays done; a run that was cut off goes on. An arm that fails is shown as failed, and the others go on.
Exit status 0: every check of the plan holds; 1: one does not, or could not be judged; 2: the plan is wrong.
"""
from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.ablation import work
from workbench.ablation.cells import read_table
from workbench.ablation.declared import declare
from workbench.ablation.notebooks import run_notebook
from workbench.ablation.plan import Plan, check, jobs, read_plan, read_settings, written
from workbench.ablation.pool import each
from workbench.ablation.table import held
from workbench.run.writer import make_folder
from workbench.types.errors import WorkbenchError
from workbench.views.words import count

HERE = Path(__file__).parent
ONE_RUN, REPORT = HERE / "one_run.ipynb", HERE / "report.ipynb"
Say = Callable[[str], None]


def run(plan: Plan, seeds: Sequence[int], out: Path, workers: int, say: Say) -> None:
    """Do all jobs of the plan that are not done yet, `workers` at a time."""
    todo = jobs(plan, seeds)
    left = [job for job in todo if work.finished(plan, job, out) is None]
    done = len(todo) - len(left)
    say(f"{count(len(todo), 'run')}, {done} done before; {count(workers, 'worker process', 'worker processes')}, one "
        f"thread each; kept in {out}")
    for job, result in each(left, work.do, (plan, out, ONE_RUN, Path.cwd()), workers):
        done += 1
        how = f"FAILED: {result['failed']}" if "failed" in result else f"{result['cpu_seconds']:.0f} CPU s"
        say(f"[{done}/{len(todo)}] {job}: {how}")


def main(arguments: Sequence[str], say: Say = lambda line: print(line, flush=True)) -> int:
    options = _options(arguments)
    path = HERE / f"{options.table}.toml" if not options.table.endswith(".toml") else Path(options.table)
    out = options.out.resolve()
    try:
        settings = read_settings(" ".join(options.set))
        whole = read_plan(path).with_settings(settings)
        plan, seeds = whole.with_arms(options.arms) if options.arms else whole, options.seeds or list(whole.seeds)
        check(plan, seeds)  # what is wrong with any arm is said before the first is trained
        make_folder(out)
        declare(whole, out)
        run(plan, seeds, out, options.workers, say)
        asked = {"plan": str(path.resolve()), "out": str(out), "seeds": " ".join(map(str, seeds)),
                 "arms": " ".join(options.arms or ()), "settings": written(settings)}
        failed = run_notebook(REPORT, out / f"{plan.name}.ipynb", asked, cwd=Path.cwd())
        if failed is not None:
            raise WorkbenchError(f"the report could not be made: {failed}. The runs are there; call again")
        table = read_table(asked["plan"], **{name: asked[name] for name in ("out", "seeds", "arms", "settings")})
    except WorkbenchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command goes on with what is left", file=sys.stderr)
        return 130
    say((out / f"{plan.name}.md").read_text(encoding="utf-8"))
    say(f"{plan.name}.ipynb, .html, .md, .png and .json are in {options.out}")
    return 0 if held(table.values) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m experiments.agent_tables", description=__doc__.splitlines()[0])
    tables = sorted(path.stem for path in HERE.glob("*.toml"))
    parser.add_argument("table", help=f"{' or '.join(tables)}, or a TOML file of your own")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="some of its arms (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, help="of training (default: the plan's, or 0 1 2)")
    parser.add_argument("--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="for all arms")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each; 0: do it in this one")
    parser.add_argument("--out", type=Path, default=HERE / "results", help="folder of runs, notebooks and tables")
    options = parser.parse_args(arguments)
    if options.workers < 0:
        parser.error(f"--workers is at least 0, got {options.workers}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
