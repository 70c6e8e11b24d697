"""Run a table: every arm at every seed is one notebook under papermill, and a last notebook makes the table of them.

    python -m experiments.agent_tables methods              three ways to train, beside what needs no training
    python -m experiments.agent_tables masks                what each mask is worth
    python -m experiments.agent_tables my_table.toml        a plan of your own (docs/guides/ablate.md says how)
    python -m experiments.agent_tables masks --arms ppo no_masks --seeds 0 --set train.steps=5 --out runs/look

`workbench ablate` by the names of these tables, with failed runs tried again. A plan is sealed in its folder before the
first run, so that a quick look at other settings wants a folder of its own.

Exit status 0: every check of the plan holds; 1: one does not, or could not be judged; 2: the plan is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.ending import says_how_it_ended
from workbench.extensions.ablation.command import told
from workbench.extensions.ablation.door import ask, carry_out
from workbench.extensions.ablation.drive import JobSettings
from workbench.extensions.ablation.plan import read_settings
from workbench.extensions.ablation.table import held

HERE = Path(__file__).parent
Say = Callable[[str], None]


@says_how_it_ended
def main(arguments: Sequence[str], say: Say = lambda line: print(line, flush=True)) -> int:
    options = _options(arguments)
    path = (
        HERE / f"{options.table}.toml"
        if not options.table.endswith(".toml")
        else Path(options.table)
    )
    asked = ask(
        path,
        options.out,
        seeds=options.seeds or (),
        arms=options.arms or (),
        settings=read_settings(" ".join(options.set)),
    )
    carry_out(asked, JobSettings(options.workers, retry=True), say)
    return 0 if held(told(asked, say).values) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.agent_tables", description=__doc__.splitlines()[0]
    )
    tables = sorted(path.stem for path in HERE.glob("*.toml"))
    parser.add_argument("table", help=f"{' or '.join(tables)}, or a TOML file of your own")
    parser.add_argument("--arms", nargs="+", metavar="NAME", help="some of its arms (default: all)")
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="of training (default: the plan's, or 0 1 2)"
    )
    parser.add_argument(
        "--set", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="for all arms"
    )
    parser.add_argument(
        "--workers", type=int, default=2, help="processes of one thread each; 0: do it in this one"
    )
    parser.add_argument(
        "--out", type=Path, default=HERE / "results", help="folder of runs, notebooks and tables"
    )
    options = parser.parse_args(arguments)
    if options.workers < 0:
        parser.error(f"--workers is at least 0, got {options.workers}")
    return options


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
