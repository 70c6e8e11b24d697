"""Tables of a check of one GPU (`experiments/gpu_check.sh`), or of its rehearsal on a CPU, which has no figures to show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]


def gpu_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.gpu_check`. A rehearsal gives the table of parts alone: it says that the code runs, not how fast."""
    tables = {"parts": _parts(result)}
    if result["kind"] == "rehearsal":
        return tables
    for name, table in FIGURES.items():
        figures = result["parts"].get(name, {}).get("figures")
        if figures:
            tables[name] = table(figures)
    return tables


def described(machine: Mapping[str, Any]) -> str:
    """The machine of a result, for the line under a table."""
    versions = (
        f"{name} {machine[name]}"
        for name in ("python", "torch", "transformers", "accelerate", "numpy")
    )
    card = machine["device"]
    if "memory_gb" in machine:
        card = f"one {card} ({machine['memory_gb']:.0f} GB)"
    return f"{card}; {', '.join(versions)}"


def _parts(result: Result) -> Table:
    rows = []
    for name, part in result["parts"].items():
        why = (part.get("error") or "").strip().splitlines()[-1:]
        status = " ".join([part["status"], *(f"({line[:160]})" for line in why)])
        rows.append([name, part["question"], status])
    for name, why in result.get("not run", {}).items():
        rows.append([name, "", f"not run ({why})"])
    what = "rehearsed on a CPU" if result["kind"] == "rehearsal" else "on the GPU"
    return Table(["part", "asks", what], rows)


def _number(value: float | None, form: str = ".3g") -> str:
    return "" if value is None else format(value, form)


def _agreement(figures: Result) -> Table:
    found, limits = figures["differences"], figures["limits"]
    rows = [[name, _number(found.get(name)), _number(limits[name])] for name in limits]
    return Table(["largest difference from the CPU", "found", "limit"], rows)


def _determinism(figures: Result) -> Table:
    rows = [[name, "equal" if same else "not equal"] for name, same in figures["equal"].items()]
    return Table(["done twice", "bits"], rows)


def _decode(figures: Result) -> Table:
    rows = []
    for row in figures["rows"]:
        rows.append(
            [
                f"{row['shape']}, {row['rows']} rows",
                _number(row["tokens_per_s"], ",.0f"),
                f"{100 * row['of_bandwidth']:.1f} %",
                f"{row['over_generate']:.2f}",
                _number(row["peak_gb"], ".1f"),
            ]
        )
    head = [
        "embedded engine",
        "tokens/s",
        "of the copy bandwidth",
        "over plain generate",
        "peak, GB",
    ]
    return Table(head, rows)


def _update(figures: Result) -> Table:
    rows = []
    for row in figures["rows"]:
        if "error" in row:
            rows.append([row["shape"], row["error"], "", ""])
            continue
        how = "adapters" if row["adapters"] else "whole"
        rows.append(
            [
                f"{row['shape']}, {how}",
                _number(row["tokens_per_s"], ",.0f"),
                f"{100 * row['mfu']:.1f} %",
                _number(row["peak_gb"], ".1f"),
            ]
        )
    peak = figures["peak_tflops"]
    return Table(
        ["update", "tokens/s", f"of the matrix product ({peak:.0f} TFLOP/s)", "peak, GB"], rows
    )


def _loss(figures: Result) -> Table:
    rows = []
    for name in ("whole", "in pieces"):
        one = figures.get(name, {})
        rows.append([name, _number(one.get("peak_gb"), ".2f"), _number(one.get("seconds"))])
    return Table(
        [
            f"logits of {figures['vocabulary']:,} words, {figures['tokens']:,} tokens",
            "peak, GB",
            "seconds",
        ],
        rows,
    )


def _states(figures: Result) -> Table:
    rows = []
    for row in figures["rows"]:
        rows.append([f"{row['shape']}: sync", f"{row['sync_s']:.2f} s"])
        rows.append(
            [
                f"{row['shape']}: checkpoint of {row['checkpoint_gb']:.1f} GB",
                f"{row['checkpoint_s']:.2f} s",
            ]
        )
    resume = figures.get("resume")
    if resume:
        rows.append(
            [
                "the same run again",
                "equal" if resume["repeats"] else resume["first difference of the repeat"],
            ]
        )
        rows.append(
            [
                "left and resumed",
                "equal" if resume["resume is equal"] else resume["first difference of the resume"],
            ]
        )
    return Table(["state", ""], rows)


def _share(row: Result) -> str:
    return f"{100 * row['success']:.1f} [{100 * row['success_low']:.1f}, {100 * row['success_high']:.1f}]"


def _learned(name: str, figures: Result) -> list[list[str]]:
    """Rows of one run: the baselines, and its policy before and after."""
    rows = []
    for when in ("baselines", "before", "after"):
        for row in figures.get(when, ()):
            policy = row["policy"] if when == "baselines" else when
            rows.append([name, f"{policy}, {row['mode']}", _share(row), str(row["n"])])
    return rows


def _shipped(figures: Result) -> Table:
    rows: list[list[str]] = []
    for run in figures["rows"]:
        rows += _learned(run["preset"], run)
    return Table(["run", "policy", "success, %", "tasks"], rows)


def _real(figures: Result) -> Table:
    return Table(["run", "policy", "success, %", "tasks"], _learned("guess a number", figures))


def _lint(figures: Result) -> Table:
    rows = [
        [str(number + 1), f"{ratio:.3f}"] for number, ratio in enumerate(figures["on_over_off"])
    ]
    return Table(["pair of runs", "step with the lint over one without"], rows)


FIGURES: Mapping[str, Callable[[Result], Table]] = {
    "agreement": _agreement,
    "determinism": _determinism,
    "decode": _decode,
    "update": _update,
    "loss": _loss,
    "states": _states,
    "shipped": _shipped,
    "real": _real,
    "lint": _lint,
}
KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {"gpu": gpu_tables}
