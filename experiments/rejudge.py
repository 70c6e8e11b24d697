"""What earlier sentences are worth by today's procedure (docs/guides/ablate.md), as far as their results were kept.

    python -m experiments.rejudge [--json FILE]

Of most tables that were made before verdicts were declared only figures by seed were kept: they are judged by seeds
alone, as a family each. Where not even those were kept, the number of seeds already says what a verdict could be.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.extensions.ablation.verdicts import Analysis, judged
from workbench.look.words import points

DATA = Path(__file__).resolve().parents[1] / "docs/evidence/data"
MARGIN = 0.02


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.rejudge", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--json", type=Path, help="keep the rows in this file")
    options = parser.parse_args(arguments)
    for row in rejudged():
        print("; ".join(row))
    if options.json:
        options.json.write_text(json.dumps({"rows": rejudged()}, indent=1) + "\n", encoding="utf-8")
    return 0


def rejudged() -> list[list[str]]:
    """Every earlier sentence: what was kept of it, the interval that holds for its family, the verdict."""
    return [*methods(), *masks(), *filters(), *deviation()]


def methods() -> list[list[str]]:
    """Three seeds, and neither tasks nor seeds of their differences were kept."""
    rows = dict(_table("methods", "compared"))
    return [
        [
            name.replace("minus", "-"),
            "mean and an interval of three seeds",
            said.split(" [")[0] + " [—]",
            "undecided: three seeds cannot decide",
            "cannot be computed: no seed's difference was kept",
        ]
        for name, said in rows.items()
    ]


def masks() -> list[list[str]]:
    by_seed = {
        row[0]: [float(value) for value in row[3].split(", ")]
        for row in _table("masks", "arms")
        if "," in row[3]
    }
    family = {f"{name} - full masks": values for name, values in by_seed.items()}
    both, one = (
        by_seed[name] for name in ("without advantage and loss mask", "without the advantage mask")
    )
    family["without both masks - without the advantage mask"] = [a - b for a, b in zip(both, one)]
    return judged_rows(
        {name: np.array(values)[:, None] for name, values in family.items()},
        "differences of three seeds",
    )


def filters() -> list[list[str]]:
    found = []
    head, rows = json.loads((DATA / "starpo.json").read_text())["tables"]["main"].values()
    for column, place in ((2, "lake"), (3, "bandit")):
        each = {
            row[0]: np.array([float(value) for value in row[column].removesuffix(" %").split(", ")])
            for row in rows
            if row[column].count(",") == 2
        }
        found += judged_rows(
            {
                f"{place}: {name} - `starpo`": (values - each["`starpo`"])[:, None]
                for name, values in each.items()
                if name != "`starpo`"
            },
            "success of three seeds",
        )
    return found


def deviation() -> list[list[str]]:
    arms = json.loads((DATA / "demo-bandit-std.json").read_text())["result"]["arms"]
    divided, plain = (
        np.array([run["sampled"] for run in arms[name]["seeds"].values()])
        for name in ("divided", "plain")
    )
    return judged_rows(
        {"bandit: divided by the deviation - not divided": 100 * (divided - plain)},
        "three seeds, task by task",
    )


def judged_rows(family: Mapping[str, np.ndarray], kept: str) -> list[list[str]]:
    tables, seeds = [values / 100 for values in family.values()], len(next(iter(family.values())))
    found, normal = (
        judged(tables, Analysis(MARGIN, (seeds,), normal=accepted)) for accepted in (False, True)
    )
    return [
        [
            name,
            kept,
            points(one),
            f"{one['verdict']}: {one['why'].split(':')[0]}" if one["why"] else one["verdict"],
            other["verdict"],
        ]
        for name, one, other in zip(family, found, normal)
    ]


def _table(name: str, table: str) -> Sequence[Any]:
    return json.loads((DATA / f"{name}.json").read_text())["tables"][table]["rows"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
