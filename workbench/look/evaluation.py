"""Results with their baselines: no success rate without its interval, random play, the untrained policy, the solver.
Where an environment does not say who succeeded, it is the return that is shown, with its interval.

    report_view(report)                                   one evaluation, as it is stored
    evaluation_view(report["rows"], report["paired"])     the same, from its parts
    demo_view(table)                                      the last evaluation of several seeds, and the verdict
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from workbench.look import doc, words
from workbench.look.curves import BASELINES
from workbench.look.html import view_from
from workbench.look.looks import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PURPLE, RED, TRACK, Look
from workbench.look.png import RowMark, draw_rows, figure, tidy
from workbench.values import View
from workbench.values.errors import DataError
from workbench.values.tokens import sampling_words

NEEDED = ("policy", "mode", "n", "success", "success_low", "success_high")
NEEDED_OF_RETURNS = ("policy", "mode", "n", "reward")
PASSES = (
    "at least one of k trajectories of a task succeeds (pass@k, unbiased, 95 % interval over tasks)"
)
BAR = 220  # pixels of the scale from 0 to 1
COLOURS = {"random": GREY, "untrained": PURPLE, "solver": GREEN}
RIVALS = "baselines without the search: the same questions, each trained with as many trajectories"
RIVAL_HEADER = (
    "seed",
    "who",
    "untrained sampled",
    "trained sampled",
    "untrained greedy",
    "trained greedy",
)
HEADER = (
    "policy",
    "mode",
    "success",
    "95 % interval",
    "return",
    "turns",
    "tokens",
    "valid format",
    "tasks",
)
BY_RETURN = (
    "success: none known (the environment does not say); policies are compared by return, the undiscounted sum "
    "of a trajectory's rewards"
)
SEED_HEADER = (
    "seed",
    "untrained sampled",
    "trained sampled",
    "rise, paired",
    "untrained greedy",
    "trained greedy",
    "random",
    "solver",
    "CPU s",
    "verdict",
)


@dataclass(frozen=True)
class _Measure:
    """What rows are compared by: success, or return where nobody says who succeeded. `bounds`: of the scale."""

    key: str
    bounds: tuple[float, float] = (0.0, 1.0)

    def values(self, row: Mapping[str, Any]) -> tuple[float, float, float] | None:
        """Mean, low, high; None where the row has no such figure, or no interval of it."""
        known = [row.get(name) for name in (self.key, f"{self.key}_low", f"{self.key}_high")]
        return None if any(map(words.missing, known)) else tuple(map(float, known))

    def words(self, row: Mapping[str, Any]) -> tuple[str, str]:
        """The figure and its interval."""
        if self.key == "success":
            return (
                ("none known", "—")
                if row["success"] is None
                else (words.percent(row["success"]), _interval(row))
            )
        known = self.values(row)
        return words.fixed(
            row["reward"], 3
        ), f"{known[1]:.3f} to {known[2]:.3f}" if known else "not known"

    def place(self, value: float) -> float:
        """Where it is on the scale, from 0 to 1."""
        low, high = self.bounds
        return (value - low) / (high - low)


def _measure_of(rows: Sequence[Mapping[str, Any]]) -> _Measure:
    if not rows or any(row["success"] is not None for row in rows):
        return _Measure("success")
    ends: list[float] = []
    for row in rows:
        values = _Measure("reward").values(row) or (float(row["reward"]),)
        ends += [value for value in values if np.isfinite(value)]
    low = min(ends, default=0.0)
    high = max(ends, default=1.0)
    return _Measure("reward", (low, high) if high > low else (low - 0.5, low + 0.5))


def report_view(report: Mapping[str, Any], title: str | None = None) -> View:
    """`evaluation_view` of a report (`rollouts.evaluate.report`, or one evaluation of a run): rows, paired differences
    and what is not known."""
    return evaluation_view(
        report["rows"], report.get("paired", ()), absent=report.get("absent", {}), title=title
    )


def evaluation_view(
    rows: Sequence[Mapping[str, Any]],
    paired: Sequence[Mapping[str, Any]] = (),
    *,
    absent: Mapping[str, str] = {},
    title: str | None = None,
) -> View:
    """Policies on the same tasks, each with its 95 % interval (invariant 12).

    You will see one row per policy and mode: the rate, its interval as numbers and as a bar on a scale from 0 to 1 (the
    line is the rate), return, turns and tokens per trajectory, share of valid answers; where there were several trajectories
    of a task, pass@k with its interval; below, paired differences, marked `clear` where the interval excludes zero. A
    baseline (random, untrained, solver) that is not among the rows stands there as "not measured", or with the reason
    given in `absent` ({"solver": "none known"}). Rows whose success is None show their return instead.

    `rows`: mappings with policy, mode, n, success, success_low, success_high and, where known, reward, turns, tokens,
    valid_format, faults, trajectories, pass_at_K with pass_at_K_low and pass_at_K_high, reward_low and reward_high.
    `paired`: mappings with a, b, difference (b - a), low, high. Raises DataError for a rate that comes without its
    interval.
    """
    for row in rows:
        _check(row)
    measure = _measure_of(rows)
    by_return = measure.key == "reward"
    title = title or f"{'return' if by_return else 'success'} on held-out tasks"
    policies = {row["policy"] for row in rows}
    gaps = [name for name in BASELINES if name not in policies]
    ordered = sorted(rows, key=_rank)
    columns = _columns_of(measure)
    table_rows = [_row(row, measure) for row in ordered]
    for name in gaps:
        why = doc.Cell(absent.get(name, "not measured"), Look(foreground=MUTED))
        table_rows.append([name, why, *["—"] * (len(columns) - 2)])
    notices = [
        f"{name}: not measured; without it the rates above cannot be judged"
        for name in gaps
        if name not in absent
    ]
    notices += [_fault_notice(row) for row in ordered if row.get("faults")]
    return view_from(
        doc.Heading(title),
        doc.Note(BY_RETURN) if by_return else None,
        doc.Table(columns, table_rows),
        *_passes(ordered),
        *_paired(paired),
        *map(doc.WarningLine, notices),
        png=partial(_drawing, ordered, title, measure),
    )


def _columns_of(measure: _Measure) -> tuple[str | doc.Column, ...]:
    header = HEADER
    scale = "from 0 to 1"
    if measure.key == "reward":
        header = (*HEADER[:2], "return", *HEADER[3:4], *HEADER[5:])
        low, high = map(words.number, measure.bounds)
        scale = f"from {low} to {high}"
    bar = doc.Column(scale, on_page=True)
    return (*header[:2], *doc.numbers(*header[2:4]), bar, *doc.numbers(*header[4:]))


def _fault_notice(row: Mapping[str, Any]) -> str:
    attempts = words.count(int(row["faults"]), "trajectory", "trajectories")
    counted = "in no figure" if row["success"] is None else "counted as no success"
    return f"{row['policy']} {row['mode']}: {attempts} ended by a fault, {counted}"


def _check(row: Mapping[str, Any]) -> None:
    needed = (
        NEEDED_OF_RETURNS if row.get("success", 0.0) is None and "reward_by_task" in row else NEEDED
    )
    absent = [
        key for key in needed if key not in row or key != "reward" and words.missing(row[key])
    ]
    if absent:
        raise DataError(
            f"an evaluation row needs {', '.join(NEEDED)}; the row of {row.get('policy', '?')!r} has no "
            f"{', '.join(absent)}. No rate is shown without its interval (invariant 12): see stats.wilson_interval"
        )


def _rank(row: Mapping[str, Any]) -> tuple[int, str]:
    """From chance to the best known: random, untrained, whatever was trained, solver."""
    return (
        {"random": 0, "untrained": 1, "solver": 3}.get(row["policy"], 2),
        {"sampled": "0"}.get(row["mode"], "1"),
    )


def _tasks(row: Mapping[str, Any]) -> str:
    several = row.get("attempts", 1)
    return words.number(int(row["n"])) + (f" x {words.number(int(several))}" if several > 1 else "")


def _passes(rows: Sequence[Mapping[str, Any]]) -> Iterator[doc.Part]:
    """A table with one line per row that tells pass@k; nothing where none does."""
    ks = sorted(
        {
            int(found[1])
            for row in rows
            for key in row
            if (found := re.fullmatch(r"pass_at_(\d+)", key))
        }
    )
    if not ks:
        return
    lines = [
        [str(row["policy"]), str(row["mode"]), *(_pass_at(row, k) for k in ks)]
        for row in rows
        if row.get("attempts", 1) > 1
    ]
    columns = ["policy", "mode", *(doc.Column(f"pass@{k}", look=Look(mono=True)) for k in ks)]
    yield from (doc.BlankLine(), doc.Note(PASSES), doc.Table(columns, lines, indent="  "))


def _paired(pairs: Sequence[Mapping[str, Any]]) -> Iterator[doc.Part]:
    if not pairs:
        return
    rows = []
    for pair in pairs:
        name, points, interval, clear = _paired_cells(pair)
        colour = GREY
        if clear == "clear":
            colour = BLUE if pair["difference"] > 0 else RED
        rows.append([name, points, interval, doc.Cell(clear, parts=(doc.Badge(clear, colour),))])
    columns = (
        "",
        doc.Column("difference", number=True),
        doc.Column("95 % interval", look=Look(mono=True)),
        "",
    )
    of = "return" if all(pair.get("of") == "return" for pair in pairs) else "success"
    yield from (
        doc.BlankLine(),
        doc.Note(f"paired differences in {of}, on the same tasks:"),
        doc.Table(columns, rows, header=False, indent="  "),
    )


def _pass_at(row: Mapping[str, Any], k: int) -> str:
    key = f"pass_at_{k}"
    absent = [name for name in (key, f"{key}_low", f"{key}_high") if words.missing(row.get(name))]
    if len(absent) == 3:
        return "—"
    if absent:
        raise DataError(
            f"pass@{k} of {row['policy']!r} comes without {', '.join(absent)}; no rate is shown without "
            "its interval (invariant 12): see stats.share"
        )
    return (
        f"{words.percent(row[key])} [{100 * row[f'{key}_low']:.1f}, {100 * row[f'{key}_high']:.1f}]"
    )


def _interval(row: Mapping[str, Any]) -> str:
    return f"{100 * row['success_low']:.1f} to {100 * row['success_high']:.1f} %"


def _paired_cells(pair: Mapping[str, Any]) -> list[str]:
    clear = "CI excludes 0" if pair["low"] > 0 or pair["high"] < 0 else "CI includes 0"
    if pair.get("of") == "return":
        spread = pair["high"] > pair["low"]
        return [
            f"{pair['b']} - {pair['a']}",
            f"{pair['difference']:+.3f} of return",
            f"[{pair['low']:+.3f}, {pair['high']:+.3f}]" if spread else "[not known]",
            clear if spread else "the same at every task",
        ]
    return [
        f"{pair['b']} - {pair['a']}",
        f"{100 * pair['difference']:+.1f} points",
        f"[{100 * pair['low']:+.1f}, {100 * pair['high']:+.1f}]",
        clear,
    ]


def _row(row: Mapping[str, Any], measure: _Measure) -> list[str | doc.Cell]:
    """One policy in one mode; its bar is behind the interval."""
    (rate, interval) = measure.words(row)
    colour = COLOURS.get(row["policy"], BLUE)
    known = measure.values(row)
    parts = (interval_bar(*map(measure.place, known), colour),) if known else ()
    bar = doc.Cell("", title=f"{rate}, {interval}", look=Look(nowrap=True), parts=parts)
    others = ("reward", "turns", "tokens") if measure.key == "success" else ("turns", "tokens")
    return [
        doc.Cell(str(row["policy"]), Look(foreground=colour, bold=True)),
        sampling_words(row),
        rate,
        interval,
        bar,
        *(words.fixed(row.get(key)) for key in others),
        words.percent(row.get("valid_format")),
        _tasks(row),
    ]


def interval_bar(value: float, low: float, high: float, colour: str) -> doc.Bar:
    """A scale from 0 to 1, the interval on it as a filled stretch, the value as a dark line: boxes side by side."""
    begin, middle, end = (round(float(np.clip(x, 0, 1)) * BAR) for x in (low, value, high))
    begin = min(begin, BAR - 3)  # the value's line takes three, and stands within the interval
    middle = min(max(middle, begin + 1), BAR - 2)
    end = max(end, middle + 1)
    return doc.Bar(
        (
            (begin, TRACK),
            (middle - begin - 1, colour),
            (3, INK),
            (end - middle - 2, colour),
            (BAR - max(end, middle + 2), TRACK),
        )
    )


def _drawing(
    rows: Sequence[Mapping[str, Any]], title: str, measure: _Measure, width: float = 7.2
) -> Any:
    """One line per policy: the interval as a bar, the rate as a dot (greedy: a square), its figures beside it."""
    rows = [row for row in rows if measure.values(row) is not None]
    drawing = figure(width, 0.9 + 0.36 * max(1, len(rows)))
    axes = drawing.add_subplot()
    tidy(axes, f"{title}, with 95 % intervals")
    draw_rows(
        axes,
        [f"{row['policy']}, {row['mode']}" for row in rows],
        [
            RowMark(
                place,
                *measure.values(row),
                COLOURS.get(row["policy"], BLUE),
                "s" if row["mode"] == "greedy" else "o",
            )
            for place, row in enumerate(rows)
        ],
    )
    low, high = measure.bounds
    beside = (high - low) / 50
    for place, row in enumerate(rows):
        axes.annotate(measure.words(row)[0], (high + beside, place), fontsize=8.5, va="center")
    axes.set_xlim(low, high + 6.5 * beside)
    if measure.key == "success":
        axes.xaxis.set_major_formatter("{x:.0%}")
    return drawing


# ------------------------------------------------------------------------------------------------ several seeds


def demo_view(table: Mapping[str, Any]) -> View:
    """The demo's table (`notebook.demo`): every seed's last evaluation and verdict, and the spread over seeds; where
    others were trained beside the agent, what they came to on the same tasks."""
    seeds = table["seeds"]
    verdict = (
        "learned: every seed passed every check"
        if table["learned"]
        else "NOT learned: " + ", ".join(f"seed {s['seed']}" for s in seeds if not s["learned"])
    )
    spread = _spread(seeds)
    failed = []
    rivals = []
    for seed in seeds:
        checks = seed["checks"].items()
        failed += [f"seed {seed['seed']} fails: {check}" for check, held in checks if not held]
        rivals += [_rival_cells(seed["seed"], rival) for rival in seed.get("rivals", ())]
    mono = Look(mono=True)
    beside = (
        (
            doc.Note(RIVALS),
            doc.Table(
                [*RIVAL_HEADER[:2], *(doc.Column(name, look=mono) for name in RIVAL_HEADER[2:])],
                rivals,
            ),
        )
        if rivals
        else ()
    )
    return view_from(
        doc.Heading(verdict),
        doc.Table(
            [SEED_HEADER[0], *(doc.Column(name, look=mono) for name in SEED_HEADER[1:])],
            list(map(_seed_cells, seeds)),
        ),
        doc.Note(spread) if spread else None,
        *beside,
        *map(doc.WarningLine, failed),
    )


def _rates(rows: Sequence[Mapping[str, Any]], mode: str, *policies: str) -> list[str]:
    """Success of each of these policies in this mode, with its interval."""
    by_policy = {
        row["policy"]: f"{words.percent(row['success'])} [{_interval(row)}]"
        for row in rows
        if row["mode"] == mode
    }
    return [by_policy.get(policy, "not measured") for policy in policies]


def _rival_cells(seed: int, rival: Mapping[str, Any]) -> list[str]:
    return [
        str(seed),
        rival["name"],
        *_rates(rival["rows"], "sampled", "untrained", "trained"),
        *_rates(rival["rows"], "greedy", "untrained", "trained"),
    ]


def _seed_cells(seed: Mapping[str, Any]) -> list[str | doc.Cell]:
    rows = seed["rows"]
    rise = seed["rise"]
    word = "✓ learned" if seed["learned"] else "✗ not"
    return [
        str(seed["seed"]),
        *_rates(rows, "sampled", "untrained", "trained"),
        "not measured" if rise is None else " ".join(_paired_cells(rise)[1:3]),
        *_rates(rows, "greedy", "untrained", "trained"),
        *_rates(rows, "sampled", "random"),
        *_rates(rows, "greedy", "solver"),
        words.number(round(seed["training_cpu_seconds"])),
        doc.Cell(word, parts=(doc.Badge(word, GREEN if seed["learned"] else ORANGE),)),
    ]


def _spread(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Lowest, mean and highest sampled success of the trained policies."""
    rates = []
    for seed in seeds:
        for row in seed["rows"]:
            if (row["policy"], row["mode"]) == ("trained", "sampled"):
                rates.append(row["success"])
    if not rates:
        return ""
    return (
        f"trained, sampled, over {words.count(len(rates), 'seed')}: {words.percent(min(rates))} to "
        f"{words.percent(max(rates))}, mean {words.percent(float(np.mean(rates)))}"
    )
