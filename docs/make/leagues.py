"""How the league becomes tables: what each tool noticed, of which class, what it said of runs without a bug, what it costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from docs.make.evidence import Table
from experiments.league.counting import agree, by_chance, counted, false_alarms
from workbench.values.stats import wilson_interval

Result = Mapping[str, Any]
OURS = "workbench"
SHORT = 110  # characters of an alarm in a table


def league_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.league join`: tables of the whole, by class, bug by bug, and of what others see."""
    tools = list(result["versions"])
    return {
        "main": _main(result, tools),
        "seeds": _seeds(result, tools),
        "origin": _origin(result, tools),
        "classes": _classes(result, tools),
        "clean": _clean(result, tools),
        "cost": _cost(result, tools),
        "rows": _rows(result, tools),
        "words": _words(result, tools),
        "theirs": _theirs(result, tools),
        "nobody": _nobody(result, tools),
    }


# ------------------------------------------------------------------------------------------------ counts


def _share(count: float, total: float, seeds: int) -> str:
    """A share with Wilson's interval. A bug is one observation, however many seeds it was run with."""
    if not total:
        return "-"
    low, high = wilson_interval(count / seeds, total / seeds)
    return f"{100 * count / total:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _seeds_of(result: Result) -> list[int]:
    return sorted({run["seed"] for run in result["runs"]})


def _main(result: Result, tools: Sequence[str]) -> Table:
    seeds = len(_seeds_of(result))
    rows = []
    for tool in tools:
        noticed, named, total = counted(result["rows"], tool)
        alarms, clean = false_alarms(result["runs"], result["twins"], tool)
        chance, pairs = by_chance(result["runs"], result["twins"], tool)
        rows.append(
            [
                f"{tool} {result['versions'][tool]}",
                _share(noticed, total, seeds),
                _share(named, total, seeds),
                _share(alarms, clean, seeds),
                f"{100 * chance / pairs:.0f} %" if pairs else "-",
            ]
        )
    return Table(
        [
            "tool",
            "noticed",
            "named",
            "clean runs with an alarm",
            "noticed by chance: clean runs that differ in the seed",
        ],
        rows,
    )


def _seeds(result: Result, tools: Sequence[str]) -> Table:
    """Each seed by itself, and whether two agree."""
    seeds = _seeds_of(result)
    rows = []
    for tool in tools:
        shares = []
        for seed in seeds:
            noticed, named, total = counted(
                [row for row in result["rows"] if row["seed"] == seed], tool
            )
            shares.append((noticed, named, total))
        pairs = [
            agree((one[part], one[2]), (other[part], other[2]))
            for one, other in zip(shares, shares[1:])
            for part in (0, 1)
        ]
        cells = [f"{noticed}, {named} of {total}" for noticed, named, total in shares]
        rows.append([tool, *cells, "yes" if all(pairs) else "no"])
    return Table(
        ["noticed, named", *(f"seed {seed}" for seed in seeds), "within each other's interval"],
        rows,
    )


def _classes(result: Result, tools: Sequence[str]) -> Table:
    seeds = len(_seeds_of(result))
    kinds = list(dict.fromkeys(row["class"] for row in result["rows"]))
    rows = []
    for kind in sorted(kinds):
        _, _, total = counted(result["rows"], tools[0], kind)
        cells = []
        for tool in tools:
            noticed, named, _ = counted(result["rows"], tool, kind)
            cells.append(f"{_share(noticed, total, seeds)}, named {_percent(named, total)}")
        rows.append([f"{kind} ({total // seeds})", *cells])
    return Table(["class (bugs)", *tools], rows)


ORIGINS = {
    "tests/": "planted to test our lint, which was written until each was named",
    "experiments/": "planted for the league",
}


def _origin(result: Result, tools: Sequence[str]) -> Table:
    """The bugs that our rules were made with, and those that were planted after them."""
    seeds = len(_seeds_of(result))
    rows = []
    for start, words in ORIGINS.items():
        own = [row for row in result["rows"] if row["planted_at"].startswith(start)]
        cells = []
        for tool in tools:
            noticed, named, total = counted(own, tool)
            cells.append(f"{_share(noticed, total, seeds)}, named {_percent(named, total)}")
        rows.append([f"{words} ({len({row['bug'] for row in own})})", *cells])
    return Table(["bugs", *tools], rows)


def _percent(count: int, total: int) -> str:
    return f"{100 * count / total:.0f} %" if total else "-"


def _clean(result: Result, tools: Sequence[str]) -> Table:
    """Which alarms come in runs without a bug."""
    rows = []
    for name in result["twins"]:
        runs = [run for run in result["runs"] if run["name"] == name]
        rows.append([name, *(_kinds_in(runs, tool) for tool in tools)])
    return Table(["run without a bug", *tools], rows)


def _kinds_in(runs: Sequence[Result], tool: str) -> str:
    kinds: dict[str, int] = {}
    for run in runs:
        for alarm in run["alarms"].get(tool, ()):
            kinds[alarm["kind"]] = kinds.get(alarm["kind"], 0) + 1
    words = [
        kind if count == len(runs) else f"{kind} ({count} of {len(runs)})"
        for kind, count in kinds.items()
    ]
    return ", ".join(words) or "-"


def _cost(result: Result, tools: Sequence[str]) -> Table:
    names = list(dict.fromkeys(row["run"] for row in result["costs"]))
    by_key = {(row["run"], row["tool"]): row for row in result["costs"]}
    bare = {
        name: median(row["bare_s"] for row in result["costs"] if row["run"] == name)
        for name in names
    }
    rows = []
    for tool in tools:
        cells = []
        for name in names:
            row = by_key[name, tool]
            cells.append(
                f"{1000 * row['extra_s']:.0f} ms [{1000 * min(row['extras']):.0f}, {1000 * max(row['extras']):.0f}]"
            )
        rows.append([tool, *cells])
    # the median of the repeats, and the smallest and largest
    heads = [f"a step of `{name}`, {1000 * bare[name]:.0f} ms without" for name in names]
    return Table(["CPU time beside", *heads], rows)


# ------------------------------------------------------------------------------------------------ bug by bug


def _by_bug(result: Result) -> dict[str, list[Result]]:
    bugs: dict[str, list[Result]] = {}
    for row in result["rows"]:
        bugs.setdefault(row["bug"], []).append(row)
    return bugs


def _rows(result: Result, tools: Sequence[str]) -> Table:
    rows = []
    for name, seeds in _by_bug(result).items():
        first = seeds[0]
        rows.append(
            [
                f"{name}{_thread(first)}",
                first["class"],
                _link(first["planted_at"]),
                first["twin"],
                *(_verdict(seeds, tool) for tool in tools),
            ]
        )
    return Table(["bug", "class", "planted at", "twin", *tools], rows)


def _thread(row: Result) -> str:
    return f" ({row['thread']})" if row["thread"] else ""


def _link(place: str) -> str:
    path, line = place.split(":")
    return f"[{path.rsplit('/', 1)[-1]}:{line}](../../{path}#L{line})"


def _verdict(seeds: Sequence[Result], tool: str) -> str:
    """named or noticed, by which alarm, and in how many of the seeds where not in all."""
    verdicts = [row["verdicts"][tool] for row in seeds]
    heard = [verdict for verdict in verdicts if verdict["verdict"]]
    if not heard:
        return "-"
    named = [verdict for verdict in heard if verdict["verdict"] == "named"]
    best = (named or heard)[0]
    word = f"**named** {best['kind']}" if named else f"noticed {best['kind']}"
    some = len(named or heard)
    return word if some == len(seeds) else f"{word} ({some} of {len(seeds)})"


def _words(result: Result, tools: Sequence[str]) -> Table:
    """What was said, of the first seed in which anything was."""
    rows = []
    for name, seeds in _by_bug(result).items():
        for tool in tools:
            heard = [row["verdicts"][tool] for row in seeds if row["verdicts"][tool]["verdict"]]
            heard.sort(key=lambda verdict: verdict["verdict"] != "named")
            if heard:
                best = heard[0]
                rows.append([name, tool, best["kind"], _plain(best["words"])])
    return Table(["bug", "tool", "alarm", "its words"], rows)


def _plain(words: str) -> str:
    """On one line, short, and of no meaning to Markdown."""
    line = " ".join(words.split())
    line = line if len(line) <= SHORT else line[: SHORT - 3] + "..."
    return re.sub(r"([\\`*_<>\[\]$~])", r"\\\1", line)


def _theirs(result: Result, tools: Sequence[str]) -> Table:
    """Bugs that another tool named or noticed in every seed, and ours in none."""
    rows = []
    for name, seeds in _by_bug(result).items():
        if any(row["verdicts"][OURS]["verdict"] for row in seeds):
            continue
        for tool in tools:
            if all(row["verdicts"][tool]["verdict"] for row in seeds):
                rows.append([name, _link(seeds[0]["planted_at"]), tool, _verdict(seeds, tool)])
    return Table(["bug that ours does not see", "planted at", "tool", "what it did"], rows)


def _nobody(result: Result, tools: Sequence[str]) -> Table:
    """Bugs that no tool named in any seed."""
    rows = []
    for name, seeds in _by_bug(result).items():
        words = [row["verdicts"][tool]["verdict"] for row in seeds for tool in tools]
        if "named" not in words:
            rows.append([name, seeds[0]["class"], _link(seeds[0]["planted_at"])])
    return Table(["bug that no tool names", "class", "planted at"], rows)


KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {"league": league_tables}
