"""How the JSON that a command wrote becomes the tables of a page: one function for each kind of result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from docs.make import (
    agent_programs,
    agents,
    collapses,
    gpus,
    leagues,
    measured,
    mismatches,
    real_models,
    speeds,
    template_rows,
    transfers,
    trusted,
)
from docs.make.evidence import Table
from docs.make.real_worlds import real_worlds_tables

Result = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------ bias bench

TASKS = {
    "stop_continue": "stop or continue",
    "bandit-0.1": "bandit, safe 0.1",
    "bandit-0.15": "bandit, safe 0.15",
    "three_turns": "three turns",
    "lengths": "lengths",
}


def bias_tables(result: Result) -> dict[str, Table]:
    """`workbench bias --json`: size of the estimate in units of the true gradient, by credit and task."""
    units: dict[tuple[str, str, str], dict[str, str]] = {}
    for row in result["rows"]:
        units.setdefault((row["label"], row["says"], row["unit"]), {})[row["task"]] = _size(row)
    rows = [
        [label, says, unit, *(cells.get(task, "") for task in TASKS)]
        for (label, says, unit), cells in units.items()
    ]
    credit = [row for row in rows if "whole loss" not in row[0]]
    head = ["credit", "claims", "unit", *TASKS.values()]
    return {
        "credit": Table(head, _alike(credit)),
        "distance": _distance(result),
        "whole": _whole_loss(result),
        "claims": _claims(result),
        "traps": _traps(result),
        "noise": _noise(result),
    }


def _noise(result: Result) -> Table:
    """Of the estimators with a critic and lambda 1: the deviation of an estimate from 64 trajectories, over the true gradient."""
    found: dict[str, dict[str, str]] = {}
    for row in result["rows"]:
        if row["label"].startswith("GAE(1, 1), "):
            found.setdefault(row["label"].removeprefix("GAE(1, 1), "), {})[row["task"]] = (
                f"{row['noise'] if row['noise'] > 1e-12 else 0:.3g}"
            )
    return Table(
        ["critic, gamma = lambda = 1", *TASKS.values()],
        [[label, *(cells.get(task, "") for task in TASKS)] for label, cells in found.items()],
    )


def _size(row: Result) -> str:
    """The projection on the true gradient, with the cosine where the direction is off by more than rounding."""
    size = f"{row['scale']:.3g}"
    size = f"**{size}**" if row["scale"] < 0 else size
    return (
        size
        if row["cosine"] is None or abs(row["cosine"]) > 0.995
        else f"{size}, cosine {row['cosine']:.2f}"
    )


def _alike(rows: Iterable[list[str]]) -> list[list[str]]:
    """Rows with the same claim, unit and figures in one, their labels side by side."""
    found: dict[tuple[str, ...], list[str]] = {}
    for label, *rest in rows:
        found.setdefault(tuple(rest), []).append(label)
    return [["; ".join(labels), *rest] for rest, labels in found.items()]


def _distance(result: Result) -> Table:
    """How far the mean estimate lies from the true gradient, relative to its length, where a bias is claimed."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in result["rows"]:
        if row["says"] == "biased" and "whole loss" not in row["label"]:
            found.setdefault((row["label"], row["unit"]), {})[row["task"]] = (
                f"{100 * row['bias']:.0f} %"
            )
    return Table(
        ["credit", "unit", *TASKS.values()],
        _alike(
            [
                [label, unit, *(cells.get(task, "") for task in TASKS)]
                for (label, unit), cells in found.items()
            ]
        ),
    )


def _whole_loss(result: Result) -> Table:
    """The gradient of the loss as a whole, on answers of one or four tokens: each parameter's share of the true one."""
    rows = [
        row for row in result["rows"] if "whole loss" in row["label"] and row["task"] == "lengths"
    ]
    names = rows[0]["parameters"] if rows else []
    return Table(
        ["loss", "claims", "unit", *names],
        [
            [
                row["label"],
                row["says"],
                row["unit"],
                *(
                    f"{estimate / true:.3g}"
                    for estimate, true in zip(row["estimate"], row["true"], strict=True)
                ),
            ]
            for row in rows
        ],
    )


def _claims(result: Result) -> Table:
    unbiased = [row for row in result["rows"] if row["says"] == "unbiased"]
    sampled = [abs(row["z"]) for row in unbiased if row["z"] is not None]
    largest = max(row["bias"] for row in unbiased if row["exact"])
    return Table(
        [
            "measurements",
            "claim no bias",
            "largest relative bias where enumerated",
            "largest distance where sampled",
            "samples",
            "faults",
        ],
        [
            [
                str(len(result["rows"])),
                str(len(unbiased)),
                f"{largest:.0e}",
                f"{max(sampled):.1f} standard errors",
                str(len(sampled)),
                str(len(result["faults"])),
            ]
        ],
    )


def _traps(result: Result) -> Table:
    return Table(
        ["trap", "shown", "figures"],
        [
            [trap["title"], "yes" if trap["shown"] else "**no**", "; ".join(trap["lines"])]
            for trap in result["traps"]
        ],
    )


# ------------------------------------------------------------------------------------------------ experiments


def algorithm_tables(result: Result) -> dict[str, Table]:
    """`table.json` of `python -m experiments.algorithms`: every algorithm with its baselines, and the conditions."""
    from experiments.algorithms.words import table_lines

    head, *rows = table_lines(result["environments"])
    cost = Table(
        ["what", "cost"],
        [["all of it, training and measuring", f"{result['cpu_seconds'] / 60:.0f} CPU-minutes"]],
    )
    return {"main": Table(head, rows), "checks": _checks(result), "cost": cost}


def ablation_tables(result: Result) -> dict[str, Table]:
    """`table.json` of an ablation: baselines and arms, the comparisons, what the plan expected."""
    from workbench.extensions.ablation.views.arms import arm_lines, comparison_lines

    head, *rows = arm_lines(result)
    ran = [arm for arm in result["arms"].values() if arm["seeds"]]
    tables = {
        "arms": Table(head, rows),
        "checks": _checks(result),
        "cost": Table(
            ["a run", "CPU-seconds"],
            [[arm["label"], _spread(arm, "cpu_seconds", "{:.0f}")] for arm in ran],
        ),
        "gradient": Table(
            ["gradient norm, mean of the last five steps", "by seed"],
            [[arm["label"], _spread(arm, "grad_norm", "{:.2f}")] for arm in ran],
        ),
        "format": Table(
            ["turns in the asked form, sampled, before training", "share"],
            [
                [name, f"{100 * row['valid_format']:.0f} %"]
                for name, start in result["starts"].items()
                for row in start["rows"]
                if (row["policy"], row["mode"]) == ("untrained", "sampled")
                and row["valid_format"] is not None
            ],
        ),
    }
    if compared := comparison_lines(result):
        tables["compared"] = Table(compared[0], compared[1:])
    return tables


def _spread(arm: Result, name: str, form: str) -> str:
    """The lowest and the highest seed of an arm: of one number, or of a curve's last five points."""
    found = sorted(
        float(seed[name]) if name in seed else _end(seed["curves"].get(name, ()))
        for seed in arm["seeds"].values()
    )
    low, high = form.format(found[0]), form.format(found[-1])
    return low if low == high else f"{low} to {high}"


def _end(curve: Sequence[float | None]) -> float:
    last = [point for point in list(curve)[-5:] if point is not None]
    return sum(last) / len(last) if last else float("nan")


def _checks(result: Result) -> Table:
    held = {True: "holds", False: "**does not hold**", None: "not judged"}
    return Table(
        ["condition", "", "figures"],
        [[check["words"], held[check["held"]], check["why"] or ""] for check in result["checks"]],
    )


# ------------------------------------------------------------------------------------------------ demo


def demo_tables(result: Result) -> dict[str, Table]:
    """`table.json` of `workbench demo`: one row for each policy (baselines, trained, its rivals), one column for each
    seed; and what the seeds cost."""
    seeds = result["seeds"]
    cells: dict[str, list[str]] = {}
    for seed in seeds:
        for owner in (seed, *seed.get("rivals", ())):
            of = f"{owner['name']}: " if "name" in owner else ""
            for row in owner["rows"]:
                cells.setdefault(f"{of}{row['policy']}, {row['mode']}", []).append(_share(row))
    rows = [[label, *found] for label, found in cells.items()]
    rows.append(
        [
            "rise over untrained, sampled, points",
            *(_rise(seed["rise"]) if seed["rise"] else "" for seed in seeds),
        ]
    )
    cost = Table(
        ["seed", "CPU-seconds of training", "wall seconds of everything"],
        [
            [
                str(seed["seed"]),
                f"{seed['training_cpu_seconds']:.0f}",
                f"{seed['wall_seconds']:.0f}",
            ]
            for seed in seeds
        ],
    )
    return {
        "main": Table(["success %", *(f"seed {seed['seed']}" for seed in seeds)], rows),
        "cost": cost,
    }


def _share(row: Result) -> str:
    return f"{100 * row['success']:.1f} [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]"


def _rise(pair: Result) -> str:
    return f"{100 * pair['difference']:+.1f} [{100 * pair['low']:.1f}, {100 * pair['high']:.1f}]"


# ------------------------------------------------------------------------------------------------ baselines


def baseline_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.baselines --json`: random play, by trajectories of each task, and the solver, by preset."""
    first = result["presets"][0]["rows"]
    head = [
        "preset",
        *(f"random play, {row['tasks']} tasks x {row['attempts']}" for row in first[:-1]),
        "its exact value",
        f"solver, {first[-1]['tasks']} tasks",
        "its exact value",
        "the solver is",
    ]
    rows = []
    for preset in result["presets"]:
        *random, solver = preset["rows"]
        rows.append(
            [
                f"`{preset['preset']}`",
                *map(_share, random),
                _exact(random[0]),
                _share(solver),
                _exact(solver),
                preset["solver"],
            ]
        )
    cost = Table(["what", "cost"], [["all of it", f"{result['cpu_seconds']:.0f} CPU-seconds"]])
    return {"main": Table(head, rows), "cost": cost}


def _exact(row: Result) -> str:
    """ "" where the family does not know it."""
    return f"{100 * row['exact_success']:.1f}" if "exact_success" in row else ""


KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {
    "bias": bias_tables,
    "algorithms": algorithm_tables,
    "ablation": ablation_tables,
    "demo": demo_tables,
    "baselines": baseline_tables,
    "real-worlds": real_worlds_tables,
    **agent_programs.KINDS,
    **agents.KINDS,
    **collapses.KINDS,
    **gpus.KINDS,
    **leagues.KINDS,
    **measured.KINDS,
    **mismatches.KINDS,
    **real_models.KINDS,
    **speeds.KINDS,
    **template_rows.KINDS,
    **transfers.KINDS,
    **trusted.KINDS,
}
