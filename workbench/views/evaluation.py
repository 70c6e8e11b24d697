"""Results with their baselines: no success rate without its interval, random play, the untrained policy, the solver.

    show_evaluation(report["rows"], report["paired"])     one evaluation
    show_demo(table)                                      the last evaluation of several seeds, and the verdict
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.types import View
from workbench.types.errors import DataError
from workbench.views import doc, words
from workbench.views.curves import NEIGHBOURS
from workbench.views.html import shown
from workbench.views.looks import BLUE, GREEN, GREY, MUTED, ORANGE, RED, Look
from workbench.views.png import RowMark, draw_rows, figure, png_of, tidy

NEEDED = ("policy", "mode", "n", "success", "success_low", "success_high")
PASSES = "at least one of k attempts at a task succeeds (pass@k, unbiased, 95 % interval over tasks)"
BAR = 220  # pixels of the scale from 0 to 1
COLOURS = {"random": GREY, "untrained": "#8a5fa8", "solver": GREEN}
RIVALS = "the same questions without a search of one's own, each trained for its job with as many attempts"
RIVAL_HEADER = ("seed", "who", "untrained sampled", "trained sampled", "untrained greedy", "trained greedy")
HEADER = ("policy", "mode", "success", "95 % interval", "return", "turns", "tokens", "valid format", "tasks")
SEED_HEADER = ("seed", "untrained sampled", "trained sampled", "rise, paired", "untrained greedy", "trained greedy",
               "random", "solver", "CPU s", "verdict")


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
    notices = [f"{name}: {why}; without it the rates above cannot be judged"
               for name, why in gaps if name not in absent]
    notices += [f"{row['policy']} {row['mode']}: {words.count(int(row['faults']), 'attempt')} ended by a fault, "
                "counted as no success" for row in ordered if row.get("faults")]
    columns = (*HEADER[:2], *doc.numbers(*HEADER[2:4]), doc.Column("from 0 to 1", on_page=True),
               *doc.numbers(*HEADER[4:]))
    return shown(doc.ViewDocument((
        doc.Heading(title),
        doc.Table(columns, [*map(_row, ordered), *([name, doc.Cell(why, Look(foreground=MUTED)), *["—"] * 8]
                                                   for name, why in gaps)]),
        *_passes(ordered), *_paired(paired), *map(doc.WarningLine, notices)), _png(ordered, title)))


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


def _tasks(row: Mapping[str, Any]) -> str:
    several = row.get("attempts", 1)
    return words.number(int(row["n"])) + (f" x {words.number(int(several))}" if several > 1 else "")


def _passes(rows: Sequence[Mapping[str, Any]]) -> Iterator[doc.Part]:
    """A table with one line per row that tells pass@k; nothing where none does."""
    ks = sorted({int(found[1]) for row in rows for key in row if (found := re.fullmatch(r"pass_at_(\d+)", key))})
    if not ks:
        return
    lines = [[str(row["policy"]), str(row["mode"]), *(_pass_at(row, k) for k in ks)]
             for row in rows if row.get("attempts", 1) > 1]
    columns = ["policy", "mode", *(doc.Column(f"pass@{k}", look=Look(mono=True)) for k in ks)]
    yield from (doc.BlankLine(), doc.Note(PASSES), doc.Table(columns, lines, indent="  "))


def _paired(pairs: Sequence[Mapping[str, Any]]) -> Iterator[doc.Part]:
    if not pairs:
        return
    rows = []
    for pair in pairs:
        name, points, interval, clear = _paired_cells(pair)
        colour = GREY if clear != "clear" else BLUE if pair["difference"] > 0 else RED
        rows.append([name, points, interval, doc.Cell(clear, parts=(doc.Badge(clear, colour),))])
    columns = ("", doc.Column("difference", number=True), doc.Column("95 % interval", look=Look(mono=True)), "")
    yield from (doc.BlankLine(), doc.Note("paired differences in success, on the same tasks:"),
                doc.Table(columns, rows, header=False, indent="  "))


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


def _row(row: Mapping[str, Any]) -> list[str | doc.Cell]:
    """One policy in one mode; its bar is behind the interval."""
    rate, interval, colour = words.percent(row["success"]), _interval(row), COLOURS.get(row["policy"], BLUE)
    bar = doc.Cell("", title=f"{rate}, {interval}", look=Look(nowrap=True),
                   parts=(interval_bar(row["success"], row["success_low"], row["success_high"], colour),))
    return [doc.Cell(str(row["policy"]), Look(foreground=colour, bold=True)), str(row["mode"]), rate, interval, bar,
            *(words.fixed(row.get(key)) for key in ("reward", "turns", "tokens")),
            words.percent(row.get("valid_format")), _tasks(row)]


def interval_bar(value: float, low: float, high: float, colour: str) -> doc.Bar:
    """A scale from 0 to 1, the interval on it as a filled stretch, the value as a dark line: boxes side by side."""
    begin, middle, end = (round(float(np.clip(x, 0, 1)) * BAR) for x in (low, value, high))
    middle = min(max(middle, begin + 1), BAR - 2)
    end = max(end, middle + 1)
    return doc.Bar(((begin, "#e9edf0"), (middle - begin - 1, colour), (3, "#000000"), (end - middle - 2, colour),
                    (BAR - max(end, middle + 2), "#e9edf0")))


def _png(rows: Sequence[Mapping[str, Any]], title: str) -> bytes:
    """One line per policy: the interval as a bar, the rate as a dot (greedy: a square), its figures beside it."""
    drawing = figure(7.2, 0.9 + 0.36 * max(1, len(rows)))
    axes = drawing.add_subplot()
    tidy(axes, f"{title}, with 95 % intervals")
    draw_rows(axes, [f"{row['policy']}, {row['mode']}" for row in rows], [
        RowMark(place, row["success"], row["success_low"], row["success_high"], COLOURS.get(row["policy"], BLUE),
                "s" if row["mode"] == "greedy" else "o") for place, row in enumerate(rows)])
    for place, row in enumerate(rows):
        axes.annotate(words.percent(row["success"]), (1.02, place), fontsize=8.5, va="center")
    axes.set_xlim(0, 1.13)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25 %", "50 %", "75 %", "100 %"])
    return png_of(drawing)


# ------------------------------------------------------------------------------------------------ several seeds


def show_demo(table: Mapping[str, Any]) -> View:
    """The demo's table (`notebook.demo`): every seed's last evaluation and verdict, and the spread over seeds; where
    others were trained beside the agent, what they came to on the same tasks."""
    seeds = table["seeds"]
    verdict = ("learned: every seed passed every check" if table["learned"] else
               "NOT learned: " + ", ".join(f"seed {s['seed']}" for s in seeds if not s["learned"]))
    spread = _spread(seeds)
    failed = [f"seed {s['seed']} fails: {check}" for s in seeds for check, held in s["checks"].items() if not held]
    rivals = [_rival_cells(seed["seed"], rival) for seed in seeds for rival in seed.get("rivals", ())]
    mono = Look(mono=True)
    beside = (doc.Note(RIVALS), doc.Table(
        [*RIVAL_HEADER[:2], *(doc.Column(name, look=mono) for name in RIVAL_HEADER[2:])], rivals)) if rivals else ()
    return shown(doc.ViewDocument((
        doc.Heading(verdict),
        doc.Table([SEED_HEADER[0], *(doc.Column(name, look=mono) for name in SEED_HEADER[1:])],
                  list(map(_seed_cells, seeds))),
        doc.Note(spread) if spread else None, *beside, *map(doc.WarningLine, failed))))


def _rates(rows: Sequence[Mapping[str, Any]], mode: str, *policies: str) -> list[str]:
    """Success of each of these policies in this mode, with its interval."""
    found = {row["policy"]: f"{words.percent(row['success'])} [{_interval(row)}]" for row in rows
             if row["mode"] == mode}
    return [found.get(policy, "not measured") for policy in policies]


def _rival_cells(seed: int, rival: Mapping[str, Any]) -> list[str]:
    return [str(seed), rival["name"], *_rates(rival["rows"], "sampled", "untrained", "trained"),
            *_rates(rival["rows"], "greedy", "untrained", "trained")]


def _seed_cells(seed: Mapping[str, Any]) -> list[str | doc.Cell]:
    rows, rise, word = seed["rows"], seed["rise"], "✓ learned" if seed["learned"] else "✗ not"
    return [
        str(seed["seed"]), *_rates(rows, "sampled", "untrained", "trained"),
        "not measured" if rise is None else " ".join(_paired_cells(rise)[1:3]),
        *_rates(rows, "greedy", "untrained", "trained"), *_rates(rows, "sampled", "random"),
        *_rates(rows, "greedy", "solver"), words.number(round(seed["training_cpu_seconds"])),
        doc.Cell(word, parts=(doc.Badge(word, GREEN if seed["learned"] else ORANGE),)),
    ]


def _spread(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Lowest, mean and highest sampled success of the trained policies."""
    rates = [row["success"] for seed in seeds for row in seed["rows"]
             if (row["policy"], row["mode"]) == ("trained", "sampled")]
    if not rates:
        return ""
    return (f"trained, sampled, over {words.count(len(rates), 'seed')}: {words.percent(min(rates))} to "
            f"{words.percent(max(rates))}, mean {words.percent(float(np.mean(rates)))}")
