"""Tables of what training finds that nobody showed, of what it does in other worlds than its own and takes in a harder one, and
of calls that reward teaches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
MODES = ["greedy %", "rise, paired", "sampled %", "rise, paired"]


def discovery_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.discovery`: every run by its start, share and seed; the starts, with pass@k; what was not trained
    by reward."""
    runs = Table(
        ["start; share of three hops in training; seed", *MODES, "a tenth paid at step", "CPU s"],
        [
            [
                f"{row['start']}; {row['share']:g}; {row['seed']}",
                *_both_modes(row),
                "never" if row["take_off"] is None else str(row["take_off"]),
                f"{row['cpu_seconds']:.0f}",
            ]
            for row in result["runs"]
        ],
    )
    starts = []
    for name, rows in result["starts"].items():
        passes = [key for key in rows["sampled"] if re.fullmatch(r"pass_at_\d+", key)]
        starts += [[f"{name}, greedy", _percent(rows["greedy"], "success")]]
        if not passes:
            starts += [[f"{name}, sampled", _percent(rows["sampled"], "success")]]
        starts += [
            [
                f"{name}, sampled, one of {key.removeprefix('pass_at_')} trajectories",
                _percent(rows["sampled"], key),
            ]
            for key in passes
        ]
    return {
        "runs": runs,
        "starts": Table(
            [f"the start, at the same {result['tasks']} questions", "success %"], starts
        ),
        "beside": Table(
            ["not trained by reward", *MODES],
            [[row["name"], *_both_modes(row)] for row in result["beside"]],
        ),
    }


def transfer_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.transfer`: every world that was trained in beside every world that is played, by mode; every run
    in its own world and in the first one; and how the trajectories went about it."""
    worlds = list(result["worlds"])
    tables = {}
    for mode in ("sampled", "greedy"):
        bounds = [
            [name, *(_percent(result["worlds"][world][key]) for world in worlds)]
            for key, name in (("random", "random play"), ("solver", "solver"))
        ]
        start = [
            f"{result['start']['name']}, the start",
            *(_percent(result["start"]["tested"][world][mode]) for world in worlds),
        ]
        runs = [
            [
                f"{row['trained']}; {row['seed']}",
                *(_risen(row["tested"][world][mode], world == row["trained"]) for world in worlds),
            ]
            for row in result["runs"]
        ]
        tables[mode] = Table(
            [f"trained in; seed. Success %, {mode}", *worlds], [*bounds, start, *runs]
        )
    first = worlds[0]
    tables["own"] = Table(
        [
            "trained in; seed",
            *(f"there, {name}" for name in MODES),
            *(f"{first}, {mode}, rise" for mode in ("greedy", "sampled")),
            "CPU s",
        ],
        [
            [
                f"{row['trained']}; {row['seed']}",
                *_both_modes(row["tested"][row["trained"]]),
                *(
                    _points(row["tested"][first][mode]["difference"])
                    for mode in ("greedy", "sampled")
                ),
                f"{row['cpu_seconds']:.0f}",
            ]
            for row in result["runs"]
        ],
    )
    started = {
        "trained": f"{result['start']['name']}, the start",
        "tested": result["start"]["tested"],
    }
    if (
        "habits" in started["tested"][first]["sampled"]
    ):  # not in what was measured before there were any
        head = "trained in; seed. % of sampled turns: valid format; thoughts that state a fact; of these, all true"
        tables["habits"] = Table(
            [head, *worlds],
            [
                [
                    row["trained"] + (f"; {row['seed']}" if "seed" in row else ""),
                    *(_habits(row["tested"][world]["sampled"]) for world in worlds),
                ]
                for row in [started, *result["runs"]]
            ],
        )
    return tables


def code_tool_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.code_tool`: the start with the tool and with a reply by chance, beside what else could be done; every
    run by its arm and seed."""

    def cells(row: Result) -> list[str]:
        told = [
            f"{_percent(row, key)} of {row[f'{key}_of']}" if row[f"{key}_of"] else "-"
            for key in ("if_called", "if_not")
        ]
        return [_percent(row, "called"), *told, f"{row['tokens']:.0f}"]

    head = [
        "called the tool %",
        "right, of those that called %",
        "of those that did not %",
        "tokens",
    ]
    starts = [
        [f"the start, {arm}, {mode}", _percent(row, "success"), *cells(row)]
        for arm, rows in result["starts"].items()
        for mode, row in rows.items()
    ]
    starts += [["one of the two programs, drawn", _percent(result["chance"]), "", "", "", ""]]
    starts += [
        [row["policy"], _percent(row, "success"), "", "", "", ""] for row in result["baselines"]
    ]
    runs = [
        [
            f"{row['arm']}; {row['seed']}; {mode}",
            _percent(row[mode]),
            _points(row[mode]["difference"]),
            *cells(row[mode]),
            f"{row['cpu_seconds']:.0f}" if mode == "sampled" else "",
        ]
        for row in result["runs"]
        for mode in ("sampled", "greedy")
    ]
    clean = [
        sum(row["lint"] == 0 for row in result["runs"]),
        sum(row["replay"] == "passed" for row in result["runs"]),
    ]
    return {
        "starts": Table([f"the same {result['tasks']} held-out tasks", "success %", *head], starts),
        "runs": Table(["trained; seed; mode", "success %", "rise, paired", *head, "CPU s"], runs),
        "cost": Table(
            ["what", "measured"],
            [
                [
                    "a call, with a sandbox of its own, median",
                    f"{1e3 * result['chance']['call_s']:.0f} ms",
                ],
                [
                    "an answer, judged in two others, median",
                    f"{1e3 * result['chance']['answer_s']:.0f} ms",
                ],
                ["runs without an error of the lint", f"{clean[0]} of {len(result['runs'])}"],
                [
                    "runs whose trajectories, played again, went as they were stored (R20)",
                    f"{clean[1]} of {len(result['runs'])}",
                ],
            ],
        ),
    }


def harder_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.harder_search`: what was shown first, what that start does, and what reward makes of it."""
    most = max(
        int(key.removeprefix("pass_at_"))
        for key in result["runs"][0]["several"]
        if re.fullmatch(r"pass_at_\d+", key)
    )
    rows = [
        [
            "; ".join(
                [
                    f"{row['batches']} batches",
                    f"seed {row['seed']}",
                    *(f"{key} = {value}" for key, value in row["given"].items()),
                ]
            ),
            _percent(row["start"]["greedy"]),
            _percent(row["several"], f"pass_at_{most}"),
            *_both_modes(row["trained"]),
            f"{row['turns']:.1f}",
            f"{row['shown_cpu_seconds']:.0f} + {row['cpu_seconds']:.0f}",
        ]
        for row in result["runs"]
    ]
    bounds = [
        [row["policy"], _percent(row, "success"), "", "", "", "", "", "", ""]
        for row in result["baselines"]
    ]
    return {
        "runs": Table(
            [
                "shown; seed; settings of the run",
                "before, greedy %",
                f"before, one of {most} trajectories %",
                *(f"after, {name}" for name in MODES),
                "turns at the end",
                "CPU s",
            ],
            [*bounds, *rows],
        )
    }


def _both_modes(row: Result) -> list[str]:
    return [
        text
        for mode in ("greedy", "sampled")
        for text in (_percent(row[mode]), _points(row[mode]["difference"]))
    ]


def _habits(row: Result) -> str:
    return "; ".join(f"{100 * share:.0f}" for share in row["habits"].values())


def _risen(row: Result, home: bool) -> str:
    """Success and its paired rise; in its own world in bold."""
    success = f"{100 * row['success']:.0f}"
    low_to_high = "{:+.0f} [{:+.0f}, {:+.0f}]".format(*(100 * each for each in row["difference"]))
    return f"**{success}**, {low_to_high}" if home else f"{success}, {low_to_high}"


def _percent(row: Result, key: str = "") -> str:
    """A share with its interval, in percent."""
    names = (key, f"{key}_low", f"{key}_high") if key else ("success", "low", "high")
    mean, low, high = (100 * row[name] for name in names)
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _points(difference: list[float]) -> str:
    mean, low, high = (100 * each for each in difference)
    return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


KINDS = {
    "discovery": discovery_tables,
    "transfer": transfer_tables,
    "code-tool": code_tool_tables,
    "harder": harder_tables,
}
