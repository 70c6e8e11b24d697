"""Tables of what the instruments notice, of what small parts cost, and of how hard tasks are: more kinds of results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
NUMBERS = {2: "two", 3: "three"}


# ------------------------------------------------------------------------------------------------ instruments


def imported_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.instruments imported`: planted faults, and files as they were written."""
    alone = [row for row in result["planted"] if row["named"] == [row["rule"]]]
    return {
        "main": Table(
            ["what", "measured"],
            [
                [
                    "faults planted into copies of files that verifiers, TRL, verl, NeMo Gym, agentcore and Inspect wrote",
                    str(len(result["planted"])),
                ],
                ["named by their rule and by no other", str(len(alone))],
                ["files as they were written", str(len(result["clean"]))],
                ["errors in these", str(sum(len(row["named"]) for row in result["clean"]))],
            ],
        )
    }


def audit_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.instruments audit`: size of each fault at its first seed, how many were named, clean states."""
    faults, clean = result["faults"], result["clean"]
    seeds = sorted({row["seed"] for row in faults})
    first = [row for row in faults if row["seed"] == seeds[0]]
    named = [row for row in faults if row["named"] == [row["kind"]]]
    half = [row for row in clean if row["settings"]]
    limits = result["limits"]
    return {
        "faults": Table(
            [
                f"fault injected into the embedded engine (FrozenLake, seed {seeds[0]})",
                "named as",
                "nats per token",
                "once accounted for",
            ],
            [
                [
                    row["fault"],
                    ", ".join(row["named"]) or "**nothing**",
                    _nats(row["gap"]),
                    _nats(row["left"]),
                ]
                for row in first
            ],
        ),
        "named": Table(
            ["what", "measured"],
            [
                [
                    f"{_count(len(first))} faults, {_count(len(seeds))} seeds each: named",
                    f"{len(named)} of {len(faults)}",
                ],
                [
                    f"clean states in bfloat16, {len({row['preset'] for row in clean})} policies: anything named",
                    f"{sum(bool(row['named']) for row in half)} of {len(half)}",
                ],
                [
                    "clean states in float32, the same policies: anything named",
                    f"{sum(bool(row['named']) for row in clean if not row['settings'])} of {len(clean) - len(half)}",
                ],
            ],
        ),
        "alarm": Table(
            [
                "gap at which the lint stops training (R23), mean",
                "limit",
                "largest of these clean states",
            ],
            [
                [
                    "float32",
                    f"{_nats(limits['float32'][0])} nats",
                    _nats(max(r["gap"] for r in clean if not r["settings"])),
                ],
                [
                    "half precision",
                    f"{_nats(limits['bfloat16'][0])} nats",
                    _nats(max(r["gap"] for r in half)),
                ],
            ],
        ),
    }


def credit_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.instruments credit`."""
    rows = []
    for attempts, seconds in result["redraw_cpu_s"].items():
        name = f"a group of {attempts}" if attempts == "8" else f"{attempts} trajectories"
        rows.append([name, f"{1e3 * median(seconds):.0f} ms", f"{1e3 * max(seconds):.0f} ms"])
    edits = len(next(iter(result["redraw_cpu_s"].values())))
    changed = result["gae_over"]["largest_change"]
    return {
        "time": Table(
            ["drawing anew after an edit", "CPU time, median", f"largest of {edits} edits"], rows
        ),
        "gae_over": Table(
            [
                f"`gae_over` switched, gamma = 1, before whitening, {result['gae_over']['action_tokens']:,} action "
                "tokens",
                "largest change of an action token's advantage",
            ],
            [[f"lambda = {float(lam):g}", f"{size:.1g}"] for lam, size in changed.items()],
        ),
        "retokenize": Table(
            [
                "answers tokenized again",
                "come back with other ids",
                "tokens marked as trained that the policy did not write",
            ],
            [
                [
                    f"{row['turns']}, sampled at temperature {float(temperature):g}",
                    str(row["changed"]),
                    str(row["others"]),
                ]
                for temperature, row in result["again"].items()
            ],
        ),
    }


def clean_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.instruments clean`: the lint on rollouts without a fault."""
    return {
        "clean": Table(
            ["what", "measured"],
            [
                [
                    f"clean rollouts ({result['templates']} template families, {result['presets']} environments, "
                    f"{result['algorithms']} algorithms, every history, faults, declared ablations, hostile text)",
                    f"{result['attempts']:,}",
                ],
                [f"errors in them, by {result['rules']} rules", str(len(result["errors"]))],
            ],
        )
    }


def lint_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.instruments lint`: the lint's part of a step, by kind of run."""
    kinds: dict[tuple[str, str], list[Result]] = {}
    for row in result["runs"]:
        kinds.setdefault((row["env"], row["algorithm"]), []).append(row)
    rows = []
    for (env, algorithm), runs in kinds.items():
        steps, lints = [run["step_cpu_ms"] for run in runs], [run["lint_cpu_ms"] for run in runs]
        shares = [100 * lint / step for lint, step in zip(lints, steps, strict=True)]
        rows.append(
            [
                f"{env}, {algorithm}",
                f"{len(runs)} x {runs[0]['steps']}",
                str(runs[0]["attempts"]),
                _range(steps),
                _range(lints),
                f"{_range(shares, 1)} %",
            ]
        )
    errors = sum(len(row["errors"]) for row in result["runs"])
    return {
        "main": Table(
            [
                "environment, algorithm",
                "runs x steps",
                "trajectories a step",
                "CPU ms a step",
                "of them the lint",
                "share",
            ],
            rows,
        ),
        "errors": Table(
            ["steps that it looked at", "rules that found an error"],
            [[f"{sum(row['looked'] for row in result['runs']):,}", str(errors)]],
        ),
    }


def silent_bug_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.silent_bugs.run --json` of bugs/, further/ and worlds/, as {"bugs": ..., "further": ..., "worlds":
    ...}; bugs/ must be there."""
    rows = []
    for name, words in (
        (
            "bugs",
            "with a counterpart: one per rule, and those from the trackers of other frameworks",
        ),
        ("further", "further ones, made after the rules and tried blind"),
        ("worlds", "in tools, environments, histories and evaluations"),
    ):
        if name not in result:
            continue
        verdicts = [bug["verdict"] for bug in result[name]["bugs"]]
        named = (
            sum(bool(b["named_by"]) for b in result[name]["bugs"])
            if name == "further"
            else verdicts.count("named")
        )
        missed = sum(verdict in ("missed", "crashed", "stale") for verdict in verdicts)
        rows.append(
            [
                f"{len(verdicts)} {words}",
                str(named),
                str(len(verdicts) - named - missed),
                str(missed),
            ]
        )
    known = result["bugs"]["summary"]
    wrong = len(known["counterparts called an error"]) + (known["untouched code"] != "clean")
    seconds = [
        bug["said"]["cpu_seconds"]
        for part in result.values()
        for bug in part["bugs"]
        if bug["said"]["cpu_seconds"]
    ]
    return {
        "main": Table(
            ["bugs", "named by an expected rule", "caught otherwise", "not noticed"], rows
        ),
        "false": Table(
            ["what", "errors"],
            [
                [
                    f"{known['counterparts']} legitimate counterparts, and the untouched code",
                    str(wrong),
                ]
            ],
        ),
        "cost": Table(
            ["what", "CPU time"],
            [["until a bug is named, mean", f"{sum(seconds) / len(seconds):.1f} s"]],
        ),
    }


def several_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.silent_bugs.run ranks- server- ... --json`: which rules named a bug in which of its trainings, and in how
    many one of its own did."""
    tables, right, other, tried = {}, 0, 0, 0
    for where in ("server", "ranks"):
        bugs = [bug for bug in result["bugs"] if bug["where"] == where]
        names = list(dict.fromkeys(name for bug in bugs for name in bug["said"]["tried"]))
        rows = []
        for bug in bugs:
            said, rules = bug["said"]["scenes"], set(bug["rules"])
            rows.append([bug["breaks"], *(", ".join(said.get(name, ())) or "-" for name in names)])
            right += sum(bool(rules & set(found)) for found in said.values())
            other += sum(not rules >= set(found) for found in said.values())
            tried += len(bug["said"]["tried"])
        tables[where] = Table(
            ["rules that named it", *(name.partition(": ")[2] for name in names)], rows
        )
    wrong = [
        said for said in result["untouched"] if said["errors"] or said["guards"] or said["crashes"]
    ]
    trainings = sum(len(said["tried"]) for said in result["untouched"])
    return tables | {
        "sum": Table(
            ["trainings", "count"],
            [
                ["with a bug, named by a rule of its own", f"{right} of {tried}"],
                ["with a bug, called by another rule's name as well", f"{other} of {tried}"],
                [
                    "without a bug, in which anything was named",
                    f"{'some' if wrong else '0'} of {trainings}",
                ],
            ],
        )
    }


# ------------------------------------------------------------------------------------------------ tools, faults, memory


def tool_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.bench.tools --json`: seconds until a misbehaving tool's slot is free."""
    late = {"timeout": "after the deadline"}
    rows = [
        [
            f"{row['how']}",
            late.get(row["error"], "after the call began"),
            f"{row['soon']} of {row['times']}",
            _ms(median(row["seconds"])),
            _ms(max(row["seconds"])),
        ]
        for row in result["rows"]
    ]
    call = result["warm_call"]
    return {
        "main": Table(
            [
                "a tool that",
                "its slot is free",
                f"within {result['goal_s']:g} s",
                "median",
                "slowest",
            ],
            rows,
        ),
        "call": Table(
            ["a call of a warm tool", "median", "99 of 100 within"],
            [[f"{call['calls']} calls", f"{call['median_ms']:.2f} ms", f"{call['p99_ms']:.2f} ms"]],
        ),
    }


def soak_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.faults.soak --json`, the tallies of all its pieces."""
    pieces = result["pieces"]

    def sum_of(name: str) -> int:
        return sum(piece[name] for piece in pieces)

    cases = ", ".join(dict.fromkeys(case for piece in pieces for case in piece["cases"]))
    faults = [fault for piece in pieces for fault in piece["faults"]]
    return {
        "main": Table(
            ["what", "tried", "went wrong"],
            [
                [
                    f"committed steps in runs killed by {sum_of('kills'):,} SIGKILLs at random instants ({cases})",
                    f"{sum_of('there'):,}",
                    f"{sum_of('lost')} lost",
                ],
                [
                    "killed runs that were resumed to their end and must be bit-identical to the run that was never interrupted",
                    str(sum_of("resumed") - sum_of("by_the_clock")),
                    str(sum_of("resumed") - sum_of("by_the_clock") - sum_of("identical")),
                ],
                [
                    "killed runs whose environments answer by the wall clock, resumed to their end",
                    str(sum_of("by_the_clock")),
                    "nothing committed was lost"
                    if not sum_of("lost")
                    else f"{sum_of('lost')} lost",
                ],
                [
                    "checkpoints with a bit flipped, cut, zeroed, swapped, missing or linked",
                    f"{sum_of('damaged'):,}",
                    f"{sum_of('damaged') - sum_of('refused')} accepted",
                ],
                ["all faults that were found", "", str(len(faults))],
            ],
        )
    }


def sandbox_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.sandbox.measure --json` of several moments, as {"runs": [...]}: costs of each, counts of the last."""
    last, costs = result["runs"][-1], []
    held = [
        [
            row["tier"],
            row["user"],
            f"not tried: {row['not']}"
            if "not" in row
            else f"{row['tried'] - len(row['out'])} of {row['tried']}",
        ]
        for row in last["escapes"]
    ]
    held += [
        ["none: the control", row["user"], f"{row['tried'] - row['out']} of {row['tried']}"]
        for row in last["without"]
    ]
    for run in result["runs"]:
        busy = " to ".join(f"{each:g}" for each in run["load"])
        costs += [
            [
                row["tier"],
                busy,
                *(_both(row[what]) for what in ("warm", "begun", "forks")),
                f"{row['same']['runs'] - row['same']['different']} of {row['same']['runs']}",
            ]
            for row in run["costs"]
        ]
    left = [
        [
            row["tier"],
            f"{row['calls']:,}",
            *(str(row[what]) for what in ("processes", "descriptors", "secrets")),
        ]
        for row in last["left"]
    ]
    return {
        "escapes": Table(["tier", "user", "ways out that are shut"], held),
        "costs": Table(
            [
                "tier",
                "busy threads on two cores",
                "a warm call",
                "a sandbox begun anew",
                "a fork with 10 MB",
                "runs with the same bytes",
            ],
            costs,
            "Wall time, p50 and p99.",
        ),
        "left": Table(
            ["tier", "mixed calls", "processes left", "descriptors left", "answers with a secret"],
            left,
        ),
        "attacks": Table(
            ["tier", "attacks on the reward", "paid", "named in the verdict"],
            [
                [row["tier"], str(row["tried"]), str(len(row["paid"])), str(row["named"])]
                for row in last["attacks"]
            ],
        ),
    }


def _both(spread: Result | None) -> str:
    return "none" if spread is None else f"{spread['p50']:g} and {spread['p99']:g} ms"


def server_soak_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.faults.server_soak --json`, the tallies of all its pieces."""
    pieces = result["pieces"]
    hit = Counter(
        {
            what: sum(piece["hit"].get(what, 0) for piece in pieces)
            for what in ("learner", "server", "keeper")
        }
    )
    faults = [fault for piece in pieces for fault in piece["faults"]]
    return {
        "main": Table(
            ["what", "count"],
            [
                [
                    "SIGKILLs at random instants",
                    f"{sum(hit.values())}: "
                    + ", ".join(f"{count} of a {what}" for what, count in hit.items()),
                ],
                ["runs that went on to their end", str(sum(piece["runs"] for piece in pieces))],
                [
                    "steps in them, all committed and each sampled by one version",
                    str(sum(piece["steps"] for piece in pieces)),
                ],
                [
                    "steps lost, processes, ports or files of weights left behind, runs that did not go on",
                    str(len(faults)),
                ],
            ],
        )
    }


def grid_soak_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.faults.grid_soak --json`, the tallies of all its pieces: a row for each launcher, and one for all."""
    rows = []
    for name in (*dict.fromkeys(piece["on"] for piece in result["pieces"]), ""):
        pieces = [piece for piece in result["pieces"] if name in ("", piece["on"])]
        hit = {
            what: sum(piece["hit"].get(what, 0) for piece in pieces)
            for what in ("worker", "driver", "kernel")
        }
        faults = [fault for piece in pieces for fault in piece["faults"]]
        rows.append(
            [
                name or "all",
                f"{sum(hit.values())}: "
                + ", ".join(f"{count} of a {what}" for what, count in hit.items()),
                *(str(sum(piece[what] for piece in pieces)) for what in ("jobs", "begun")),
                str(len(faults)),
            ]
        )
    return {
        "main": Table(
            [
                "launcher",
                "SIGKILLs at random instants",
                "jobs, each done once at the end",
                "trajectories that began",
                "jobs lost or done twice, notebooks unreadable, results that differ, processes left",
            ],
            rows,
        )
    }


def memory_tables(result: Result) -> dict[str, Table]:
    """`python -m tests.memory_run --json`: one measured step, and the peaks of whole runs."""
    return {
        "main": Table(
            ["one process on CPU, one run each", "by one step, MB", "peak of the run, MB"],
            [
                [row["run"], f"{row['planned'] / 1e6:,.0f}", f"{row['measured'] / 1e6:,.0f}"]
                for row in result["rows"]
            ],
        )
    }


# ------------------------------------------------------------------------------------------------ tasks by size


def hop_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.task_sizes` of questions: success by the documents that an answer takes."""
    trained = [shares for name, shares in result["sampled"].items() if name != "untrained"]
    rows = [
        [
            NUMBERS.get(int(size), size),
            str(count),
            f"{100 * result['sampled']['untrained'][size]:.1f} %",
            f"{_range([100 * shares[size] for shares in trained], 1)} %",
        ]
        for size, count in result["counts"].items()
    ]
    return {
        "hops": Table(
            [
                "documents that the answer takes",
                "held-out questions",
                "untrained, sampled",
                "trained, sampled, lowest to highest seed",
            ],
            rows,
        )
    }


def level_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.task_sizes` of Sokoban: moves of the shortest solutions."""
    counts = {int(size): count for size, count in result["counts"].items()}
    long = sum(count for size, count in counts.items() if size >= 3)
    return {
        "levels": Table(
            ["what", "measured"],
            [
                [
                    f"shortest solution of the {result['tasks']} held-out levels, mean",
                    f"{result['mean']:.1f} moves",
                ],
                [
                    "held-out levels that need three moves or more",
                    f"{100 * long / result['tasks']:.0f} %",
                ],
            ],
        )
    }


# ------------------------------------------------------------------------------------------------ words


def _range(values: Iterable[float], digits: int = 0) -> str:
    found = sorted(values)
    low, high = f"{found[0]:.{digits}f}", f"{found[-1]:.{digits}f}"
    return low if low == high else f"{low} to {high}"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


def _nats(value: float) -> str:
    return f"{value:.2g}" if value >= 1e-3 else f"{value:.0e}".replace("e-0", "e-")


def _count(number: int) -> str:
    return {**NUMBERS, 10: "ten"}.get(number, str(number))


def statistics_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.statistics --json`: coverage, false verdicts, power, detectable effects of made-up arms."""
    times = sorted({row["times"] for row in result["coverage"]})
    cells: dict[tuple[int, int], list[str]] = {}
    for row in result["coverage"]:
        cells.setdefault((row["seeds"], row["tasks"]), []).append(f"{100 * row['coverage']:.1f}")
    words = {0: "none", 1: "equal", 4: "four times"}
    false: dict[tuple[int, ...], list[str]] = {}
    for row in result["false"]:
        false.setdefault(tuple(row["looks"]), []).append(f"{100 * row['false']:.1f}")
    head = [f"{words[number]}, %" for number in times]
    return {
        "coverage": Table(
            ["seeds x tasks; seed variance", *head],
            [[f"{seeds} x {tasks:,}", *shares] for (seeds, tasks), shares in cells.items()],
        ),
        "false": Table(
            ["looks after so many seeds; seed variance", *head],
            [
                [
                    ", ".join(map(str, looks)) + (" (normality accepted)" if looks[0] < 5 else ""),
                    *shares,
                ]
                for looks, shares in false.items()
            ],
        ),
        "bimodal": Table(
            ["seeds, each of which rises or stays", "covered, %", "equal arms told apart, %"],
            [
                [
                    f"{row['seeds']}" + ("" if row["judged"] else " (not judged)"),
                    f"{100 * row['coverage']:.1f}",
                    f"{100 * row['false']:.1f}",
                ]
                for row in result["bimodal"]
            ],
        ),
        "power": Table(
            ["5 points, seed deviation 1.5 points, 512 tasks", "found, %"],
            [
                [
                    f"{row['seeds']} seeds, "
                    + ("alone" if row["family"] == 1 else f"one true of {row['family']}"),
                    f"{100 * row['found']:.1f}",
                ]
                for row in result["power"]
            ],
        ),
        "detectable": Table(
            ["seeds; seed variance, times that of tasks", "stated, points", "simulated, points"],
            [
                [
                    f"{row['seeds']}; {row['times']:g}",
                    f"{100 * row['stated']:.1f}",
                    f"{100 * row['simulated']:.1f}",
                ]
                for row in result["detectable"]
            ],
        ),
    }


def starts_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.statistics --only starts --json`: what intervals cover where starts are a factor."""
    return {
        "main": Table(
            ["starts x seeds", "what is repeated", "covered, %", "of the mean over all starts, %"],
            [
                [
                    f"{row['starts']} x {row['seeds']}",
                    "seeds; starts held fixed" if row["fixed"] else "starts",
                    f"{100 * row['coverage']:.1f}",
                    "" if row["of_all"] is None else f"{100 * row['of_all']:.1f}",
                ]
                for row in result["starts"]
            ],
        )
    }


def rejudged_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.rejudge --json`: earlier sentences by the declared procedure."""
    return {
        "main": Table(
            [
                "earlier sentence",
                "kept of it",
                "points [95 %], together",
                "verdict",
                "if seeds are taken as normal",
            ],
            result["rows"],
        )
    }


def plans_tables(result: Result) -> dict[str, Table]:
    """The plans of both papers: what `--plan` counts, what a job cost where one was done, and what came of it."""
    return {
        "main": Table(
            ["question", "workbench ablate ...", "jobs", "CPU-seconds a job", "verdict"],
            result["plans"],
        )
    }


def grid_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.grid_overhead --json`: what a grid costs besides its jobs."""
    steps = [*next(iter(result.values()))["cpu_seconds"]]
    return {
        "main": Table(
            ["jobs", *(f"{step}, CPU s" for step in steps)],
            [
                [
                    f"{kind}, {found['jobs']:,} jobs",
                    *(f"{found['cpu_seconds'][step]:.1f}" for step in steps),
                ]
                for kind, found in result.items()
            ],
        )
    }


def trl_live_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.trl_live`: bugs planted into TRL runs, legitimate settings, and the cost of looking."""
    bugs, twins = result["bugs"], result["twins"]
    threads = {bug["thread"] for bug in bugs if bug["thread"]}
    missed = [bug["name"] for bug in bugs if not bug["right"]]
    return {
        "main": Table(
            ["what", "measured"],
            [
                [f"silent bugs planted into runs of TRL ({len(threads)} threads)", str(len(bugs))],
                [
                    "named live by a rule that must, in the words that it must",
                    str(len(bugs) - len(missed)) + (f" (not {', '.join(missed)})" * bool(missed)),
                ],
                ["legitimate runs and settings", str(len(twins))],
                ["errors in these", str(sum(len(twin["named"]) for twin in twins))],
            ],
        ),
        "cost": Table(
            ["a step of", "completions", "CPU time", "without", "of it looking", "share"],
            [
                [
                    row["what"],
                    str(row["rows"]),
                    _ms(row["step_s"]),
                    _ms(row["bare_s"]),
                    _ms(row["look_s"]),
                    f"{100 * row['share']:.1f} %",
                ]
                for row in result["costs"]
            ],
        ),
    }


KINDS = {
    "imported": imported_tables,
    "trl-live": trl_live_tables,
    "audit": audit_tables,
    "credit-editor": credit_tables,
    "clean": clean_tables,
    "lint": lint_tables,
    "silent-bugs": silent_bug_tables,
    "several": several_tables,
    "tools": tool_tables,
    "soak": soak_tables,
    "server-soak": server_soak_tables,
    "grid-soak": grid_soak_tables,
    "memory": memory_tables,
    "hops": hop_tables,
    "levels": level_tables,
    "statistics": statistics_tables,
    "starts": starts_tables,
    "rejudged": rejudged_tables,
    "plans": plans_tables,
    "grid": grid_tables,
    "sandbox": sandbox_tables,
}
