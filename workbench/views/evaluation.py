"""Results with their baselines: no success rate without its interval, random play, the untrained policy, the solver.

    show_evaluation(report["rows"], report["paired"])     one evaluation
    show_demo(table)                                      the last evaluation of several seeds, and the verdict
"""
from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.errors import DataError
from workbench.views import markup as m
from workbench.views import words
from workbench.views.curves import NEIGHBOURS
from workbench.views.escape import visible
from workbench.views.markup import Html, tag

NEEDED = ("policy", "mode", "n", "success", "success_low", "success_high")
PASSES = "at least one of k attempts at a task succeeds (pass@k, unbiased, 95 % interval over tasks)"
BAR = 220  # pixels of the scale from 0 to 1
COLOURS = {"random": m.GREY, "untrained": "#8a5fa8", "solver": m.GREEN}
RIVALS = "the same questions without a search of one's own, each trained for its job with as many attempts"
RIVAL_HEADER = ("seed", "who", "untrained sampled", "trained sampled", "untrained greedy", "trained greedy")
HEADER = ("policy", "mode", "success", "95 % interval", "return", "turns", "tokens", "valid format", "tasks")


def show_evaluation(rows: Sequence[Mapping[str, Any]], paired: Sequence[Mapping[str, Any]] = (), *,
                    absent: Mapping[str, str] = {}, title: str = "success on held-out tasks") -> View:
    """Policies on the same tasks, each with its 95 % interval (law 12).

    You will see one row per policy and mode: the rate, its interval as numbers and as a bar on a scale from 0 to 1 (the
    line is the rate), return, turns and tokens per attempt, share of valid answers; where there were several attempts
    at a task, pass@k with its interval; below, paired differences, marked `clear` where the interval excludes zero. A
    neighbour (random, untrained, solver) that is not among the rows stands there as "not measured", or with the reason
    given in `absent` ({"solver": "none known"}).

    `rows`: mappings with policy, mode, n, success, success_low, success_high and, where known, reward, turns, tokens,
    valid_format, faults, attempts, pass_at_K with pass_at_K_low and pass_at_K_high. `paired`: mappings with a, b,
    difference (b - a), low, high. Raises DataError for a rate that comes without its interval.
    """
    for row in rows:
        _check(row)
    gaps = [(name, absent.get(name, "not measured")) for name in NEIGHBOURS
            if not any(row["policy"] == name for row in rows)]
    ordered = sorted(rows, key=_rank)
    lines = [_cells(row) for row in ordered] + [[name, why, *["—"] * 7] for name, why in gaps]
    notices = [f"{name}: {why}; without it the rates above cannot be judged"
               for name, why in gaps if name not in absent]
    notices += [
        f"{row['policy']} {row['mode']}: {words.count(int(row['faults']), 'attempt')} ended by a fault, counted as "
        "no success"
        for row in ordered
        if row.get("faults")
    ]
    text = [visible(title), words.aligned([[visible(c) for c in line] for line in [HEADER, *lines]], right=range(2, 9))]
    passes = _passes(ordered)
    if passes:
        text += ["", PASSES, words.aligned([[visible(c) for c in line] for line in passes], indent="  ")]
    if paired:
        text += ["", "paired differences in success, on the same tasks:",
                 words.aligned([[visible(c) for c in _paired_cells(pair)] for pair in paired], right=(1,), indent="  ")]
    text += [f"! {visible(notice)}" for notice in notices]
    body = [_row_html(row, line) for row, line in zip(ordered, lines)]
    body += [[m.cell(name), m.cell(why, foreground=m.MUTED), *(m.cell("—") for _ in range(8))] for name, why in gaps]
    header = m.head_cells(HEADER, right=HEADER[2:])
    scale = m.cell(*_scale(), header=True, background=m.PANEL, style="white-space:nowrap;vertical-align:bottom")
    header.insert(4, scale)
    html = m.card(m.heading(title), m.table(body, header), _passes_html(passes), _paired_html(paired),
                  *map(m.warning, notices))
    from workbench.views.evaluation_picture import evaluation_png

    return m.finished(html, "\n".join(text), evaluation_png(ordered, title))


def _check(row: Mapping[str, Any]) -> None:
    absent = [key for key in NEEDED if words.missing(row.get(key))]
    if absent:
        raise DataError(
            f"an evaluation row needs {', '.join(NEEDED)}; the row of {row.get('policy', '?')!r} has no "
            f"{', '.join(absent)}. No rate is shown without its interval (law 12): see stats.wilson_interval"
        )


def _rank(row: Mapping[str, Any]) -> tuple[int, str]:
    """From chance to the best known: random, untrained, whatever was trained, solver."""
    return ({"random": 0, "untrained": 1, "solver": 3}.get(row["policy"], 2), {"sampled": "0"}.get(row["mode"], "1"))


def _cells(row: Mapping[str, Any]) -> list[str]:
    def one(key: str) -> str:
        return "—" if words.missing(row.get(key)) else f"{row[key]:.2f}"

    return [str(row["policy"]), str(row["mode"]), words.percent(row["success"]), _interval(row), one("reward"),
            one("turns"), one("tokens"), words.percent(row.get("valid_format")), _tasks(row)]


def _tasks(row: Mapping[str, Any]) -> str:
    several = row.get("attempts", 1)
    return words.number(int(row["n"])) + (f" x {words.number(int(several))}" if several > 1 else "")


def _passes(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Head line and one line per row that tells pass@k; nothing where none does."""
    ks = sorted({int(found[1]) for row in rows for key in row if (found := re.fullmatch(r"pass_at_(\d+)", key))})
    if not ks:
        return []
    lines = [["policy", "mode", *(f"pass@{k}" for k in ks)]]
    for row in rows:
        if row.get("attempts", 1) > 1:
            lines.append([str(row["policy"]), str(row["mode"]), *(_pass_at(row, k) for k in ks)])
    return lines


def _pass_at(row: Mapping[str, Any], k: int) -> str:
    key = f"pass_at_{k}"
    absent = [name for name in (key, f"{key}_low", f"{key}_high") if words.missing(row.get(name))]
    if len(absent) == 3:
        return "—"
    if absent:
        raise DataError(f"pass@{k} of {row['policy']!r} comes without {', '.join(absent)}; no rate is shown without "
                        "its interval (law 12): see stats.share")
    return f"{words.percent(row[key])} [{100 * row[f'{key}_low']:.1f}, {100 * row[f'{key}_high']:.1f}]"


def _interval(row: Mapping[str, Any]) -> str:
    return f"{100 * row['success_low']:.1f} to {100 * row['success_high']:.1f} %"


def _paired_cells(pair: Mapping[str, Any]) -> list[str]:
    clear = "clear" if pair["low"] > 0 or pair["high"] < 0 else "not clear of zero"
    return [f"{pair['b']} - {pair['a']}", f"{100 * pair['difference']:+.1f} points",
            f"[{100 * pair['low']:+.1f}, {100 * pair['high']:+.1f}]", clear]


# ------------------------------------------------------------------------------------------------ html


def _row_html(row: Mapping[str, Any], line: Sequence[str]) -> list[Html]:
    colour = COLOURS.get(row["policy"], m.BLUE)
    bar = m.cell(_bar(row["success"], row["success_low"], row["success_high"], colour), title=f"{line[2]}, {line[3]}",
                 style="white-space:nowrap;vertical-align:middle")
    name = tag("span", line[0], style=f"font-weight:600;color:{colour};background-color:{m.CARD}")
    return [m.cell(name), m.cell(line[1]), *map(m.number_cell, line[2:4]), bar, *map(m.number_cell, line[4:])]


def _bar(value: float, low: float, high: float, colour: str) -> Html:
    """A scale from 0 to 1, the interval on it as a filled stretch, the value as a dark line: boxes side by side."""
    left, begin, middle, end = 0, *(round(float(np.clip(x, 0, 1)) * BAR) for x in (low, value, high))
    middle = min(max(middle, begin + 1), BAR - 2)
    end = max(end, middle + 1)
    widths = ((begin - left, "#e9edf0"), (middle - begin - 1, colour), (3, "#000000"), (end - middle - 2, colour),
              (BAR - max(end, middle + 2), "#e9edf0"))
    boxes = [tag("span", style=f"display:inline-block;height:10px;width:{width}px;background-color:{fill};"
                               f"vertical-align:middle") for width, fill in widths if width > 0]
    return m.join(boxes)


def _scale() -> list[Html]:
    """The ends of the scale, as wide as the bars below it."""
    return [
        tag("span", end, style=f"display:inline-block;width:{BAR // 2}px;text-align:{side};background-color:{m.PANEL}")
        for end, side in (("0", "left"), ("1", "right"))
    ]


def _passes_html(lines: Sequence[Sequence[str]]) -> Html | None:
    if not lines:
        return None
    rows = [[m.cell(line[0]), m.cell(line[1]), *map(m.number_cell, line[2:])] for line in lines[1:]]
    return tag("div", m.note(PASSES), m.table(rows, m.head_cells(lines[0], right=lines[0][2:])))


def _paired_html(paired: Sequence[Mapping[str, Any]]) -> Html | None:
    if not paired:
        return None
    rows = []
    for pair in paired:
        name, points, interval, clear = _paired_cells(pair)
        colour = m.GREY if clear != "clear" else m.BLUE if pair["difference"] > 0 else "#a01626"
        rows.append([m.cell(name), m.number_cell(points), m.number_cell(interval), m.cell(m.badge(clear, colour))])
    return tag(
        "div",
        m.note("paired differences in success, on the same tasks"),
        m.table(rows, m.head_cells(["", "difference", "95 % interval", ""], right=("difference", "95 % interval"))),
    )


# ------------------------------------------------------------------------------------------------ several seeds


def show_demo(table: Mapping[str, Any]) -> View:
    """The demo's table (`cells.demo`): every seed's last evaluation and verdict, and the spread over seeds; where others
    were trained beside the agent, what they came to on the same tasks."""
    seeds = table["seeds"]
    verdict = ("learned: every seed passed every check" if table["learned"] else
               "NOT learned: " + ", ".join(f"seed {s['seed']}" for s in seeds if not s["learned"]))
    header = ("seed", "untrained sampled", "trained sampled", "rise, paired", "untrained greedy", "trained greedy",
              "random", "solver", "CPU s", "verdict")
    lines = [_seed_cells(seed) for seed in seeds]
    spread = _spread(seeds)
    failed = [f"seed {s['seed']} fails: {check}" for s in seeds for check, held in s["checks"].items() if not held]
    rivals = [_rival_cells(seed["seed"], rival) for seed in seeds for rival in seed.get("rivals", ())]
    text = [verdict, words.aligned([[visible(c) for c in line] for line in [header, *lines]]), spread]
    if rivals:
        text += [RIVALS, words.aligned([[visible(c) for c in line] for line in [RIVAL_HEADER, *rivals]])]
    text += [f"! {visible(line)}" for line in failed]
    rows = [[m.cell(line[0]), *map(m.number_cell, line[1:-1]),
             m.cell(m.badge(line[-1], m.GREEN if line[-1].startswith("✓") else m.ORANGE))] for line in lines]
    beside = [m.note(RIVALS), m.table([[m.cell(line[0]), m.cell(line[1]), *map(m.number_cell, line[2:])]
                                       for line in rivals], m.head_cells(RIVAL_HEADER))] if rivals else []
    html = m.card(m.heading(verdict), m.table(rows, m.head_cells(header)), m.note(spread), *beside,
                  *map(m.warning, failed))
    return m.finished(html, "\n".join(line for line in text if line))


def _rival_cells(seed: int, rival: Mapping[str, Any]) -> list[str]:
    rows = {(row["policy"], row["mode"]): row for row in rival["rows"]}
    rates = [rows.get((policy, mode)) for mode in ("sampled", "greedy") for policy in ("untrained", "trained")]
    return [str(seed), rival["name"], *("not measured" if row is None else
                                        f"{words.percent(row['success'])} [{_interval(row)}]" for row in rates)]


def _seed_cells(seed: Mapping[str, Any]) -> list[str]:
    rows = {(row["policy"], row["mode"]): row for row in seed["rows"]}

    def rate(policy: str, mode: str) -> str:
        row = rows.get((policy, mode))
        return "not measured" if row is None else f"{words.percent(row['success'])} [{_interval(row)}]"

    rise = seed["rise"]
    return [
        str(seed["seed"]),
        rate("untrained", "sampled"),
        rate("trained", "sampled"),
        "not measured" if rise is None else " ".join(_paired_cells(rise)[1:3]),
        rate("untrained", "greedy"),
        rate("trained", "greedy"),
        rate("random", "sampled"),
        rate("solver", "greedy"),
        words.number(round(seed["training_cpu_seconds"])),
        "✓ learned" if seed["learned"] else "✗ not",
    ]


def _spread(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Lowest, mean and highest sampled success of the trained policies."""
    rates = [row["success"] for seed in seeds for row in seed["rows"]
             if (row["policy"], row["mode"]) == ("trained", "sampled")]
    if not rates:
        return ""
    return (f"trained, sampled, over {words.count(len(rates), 'seed')}: {words.percent(min(rates))} to "
            f"{words.percent(max(rates))}, mean {words.percent(float(np.mean(rates)))}")
