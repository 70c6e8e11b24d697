"""Tables of causes of a logprob mismatch, planted and named, and of gradients under a policy that has moved on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from docs.make.evidence import Table

Result = Mapping[str, Any]
FOUR = ("staleness", "weights not delivered", "engine mismatch", "re-tokenisation")
UNTOLD = "cannot be told"


def attribution_tables(result: Result) -> dict[str, Table]:
    """`python -m experiments.attribution`: causes planted by causes named; evidence withheld; what was planted."""
    rows = result["rows"]
    return {
        "main": _confusion(rows),
        "draws": _draws(rows),
        "withheld": _withheld(rows),
        "what": _planted(rows),
    }


def _answer(named: list[str]) -> str:
    return " and ".join(named) or UNTOLD


def _confusion(rows: list[Result]) -> Table:
    others = sorted({_answer(row["named"]) for row in rows if row["gap"]} - {*FOUR, UNTOLD})
    columns = [*FOUR, *others, UNTOLD]
    lines = []
    for kind in (*FOUR, "clean"):
        own = [row for row in rows if row["kind"] == kind]
        answers = [_answer(row["named"]) for row in own if row["gap"]]
        counts = [str(answers.count(column)) for column in columns]
        no_gap = sum(not row["gap"] for row in own)
        lines.append([kind if kind != "clean" else "nothing", str(len(own)), *counts, str(no_gap)])
    return Table(["planted", "cases", *columns, "no gap beyond rounding"], lines)


def _draws(rows: list[Result]) -> Table:
    """Each draw of cases by itself."""
    lines = []
    for draw in dict.fromkeys(row.get("draw", "0") for row in rows):
        own = [row for row in rows if row.get("draw", "0") == draw]
        planted = [row for row in own if row["kind"] != "clean"]
        with_gap = [row for row in planted if row["gap"]]
        right = sum(row["named"] == [row["kind"]] for row in with_gap)
        untold = sum(not row["named"] for row in with_gap)
        clean = len(own) - len(planted)
        alarms = sum(row["gap"] for row in own) - len(with_gap)
        counts = (
            len(planted),
            right,
            len(with_gap) - right - untold,
            untold,
            len(planted) - len(with_gap),
        )
        name = "written later" if draw == "further" else f"seed {draw}"
        lines.append([name, *map(str, counts), f"{alarms} of {clean}"])
    head = ["draw", "planted", "named", "named otherwise", UNTOLD, "no gap beyond rounding"]
    return Table([*head, "alarms where nothing was planted"], lines)


def _withheld(rows: list[Result]) -> Table:
    lines = []
    for name, words in (
        ("journal", "the ids that the engine was asked with and answered"),
        ("versions", "the version that each turn was sampled by"),
        ("weights", "older weights"),
        ("held", "what the engine holds"),
    ):
        asked = [row for row in rows if name in row["withheld"]]
        if not asked:
            continue
        answers = [(row["kind"], row["withheld"][name]) for row in asked]
        right = sum(named == [kind] for kind, named in answers)
        untold = sum(not named for _, named in answers)
        wrong = len(answers) - right - untold
        lines.append([words, str(len(answers)), str(right), str(untold), str(wrong)])
    return Table(["not at hand", "cases", "named", UNTOLD, "named otherwise"], lines)


def _planted(rows: list[Result]) -> Table:
    kinds: dict[tuple[str, str], list[Result]] = {}
    for row in rows:
        if row["kind"] != "clean":
            kinds.setdefault((row["kind"], row["what"]), []).append(row)
    lines = []
    for (kind, what), own in kinds.items():
        right = sum(row["named"] == [kind] for row in own)
        lines.append([kind, what, str(len(own)), str(right)])
    return Table(["cause", "planted as", "cases", "named"], lines)


def lag_tables(result: Result) -> dict[str, Table]:
    """`workbench bias --json`, its rows `lagged`: size of the mean estimate by lag."""
    rows = result["lagged"]
    tables = {}
    for kind, task in dict.fromkeys((row["kind"], row["task"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["task"]) == (kind, task)]
        tables[f"{kind}-{task.replace('.', '_')}"] = _by_lag(own, kind)
    tables["claims"] = _lag_claims(rows)
    return tables


def _by_lag(rows: list[Result], kind: str) -> Table:
    lags = list(dict.fromkeys(row["lag"] for row in rows))
    by_label: dict[str, dict[int, Result]] = {}
    for row in rows:
        by_label.setdefault(row["label"], {})[row["lag"]] = row
    lines = []
    for label, by_lag in by_label.items():
        noise = f"{by_lag[lags[0]]['noise']:.2g} / {by_lag[lags[-1]]['noise']:.2g}"
        lines.append([label, *(_bias(by_lag[lag]) for lag in lags), noise])
    what = "correction" if kind == "correction" else "term"
    return Table([what, *(f"{lag}" for lag in lags), "error of 64, first / last"], lines)


def _bias(row: Result) -> str:
    if row["bias"] <= 1e-9:
        return "0"
    percent = 100 * row["bias"]
    words = f"{percent:.0f} %" if percent >= 10 else f"{percent:.2g} %"
    points_back = row["cosine"] is not None and row["scale"] < 0
    return f"**{words}**" if points_back else words


def _lag_claims(rows: list[Result]) -> Table:
    honest = [row for row in rows if row["says"] == "unbiased"]
    head = [
        "rows",
        "claim no bias",
        "largest relative bias of these",
        "largest distance of drawn pairs",
    ]
    largest = max(row["bias"] for row in honest)
    distance = max(row["z"] for row in rows)
    line = [str(len(rows)), str(len(honest)), f"{largest:.1g}", f"{distance:.1f} standard errors"]
    return Table(head, [line])


KINDS: Mapping[str, Callable[[Result], dict[str, Table]]] = {
    "attribution": attribution_tables,
    "bias-lags": lag_tables,
}
