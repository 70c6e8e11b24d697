"""How the league is counted. One rule for every tool, ours as well.

    noticed       in the bug's run the tool raised an alarm of a kind that it did not raise in the twin's run of the same seed
    named         ... and the text of such an alarm holds the bug's words (corpus.py)
    false alarm   a run without a bug in which the tool raised any alarm

What is noticed may be chance: two runs without a bug that differ in nothing but the seed are compared in the same way, and the
share in which one has an alarm that the other lacks stands beside the recall.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.values.stats import wilson_interval

Run = Mapping[str, Any]
VERDICTS = ("named", "noticed", "")


def only_here(run: Run, other: Run, tool: str) -> list[Mapping[str, Any]]:
    """Alarms of this run of kinds that the other run does not have."""
    kinds = {alarm["kind"] for alarm in other["alarms"].get(tool, ())}
    return [alarm for alarm in run["alarms"].get(tool, ()) if alarm["kind"] not in kinds]


def verdict(run: Run, twin: Run, tool: str, words: str) -> tuple[str, Mapping[str, Any] | None]:
    """("named", "noticed" or "", the alarm that counts)."""
    alarms = only_here(run, twin, tool)
    for alarm in alarms:
        if re.search(words, f"{alarm['kind']}: {alarm['words']}", re.IGNORECASE):
            return "named", alarm
    if alarms:
        return "noticed", alarms[0]
    return "", None


def judged(runs: Sequence[Run], bugs: Iterable[Any], tools: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each bug and seed that was run with its twin: what each tool did, and in which words."""
    by_key = {(run["name"], run["seed"]): run for run in runs}
    rows = []
    for bug in bugs:
        for seed in sorted({run["seed"] for run in runs}):
            run = by_key.get((bug.name, seed))
            twin = by_key.get((bug.twin, seed))
            if run is None or twin is None:
                continue
            verdicts = {}
            for tool in tools:
                word, alarm = verdict(run, twin, tool, bug.words)
                verdicts[tool] = {"verdict": word} | (
                    {} if alarm is None else {"kind": alarm["kind"], "words": alarm["words"]}
                )
            rows.append(
                {
                    "bug": bug.name,
                    "class": bug.kind,
                    "twin": bug.twin,
                    "planted_at": bug.planted_at,
                    "thread": bug.thread,
                    "seed": seed,
                    "error": run["error"],
                    "verdicts": verdicts,
                }
            )
    return rows


def counted(rows: Sequence[Mapping[str, Any]], tool: str, kind: str | None = None) -> tuple:
    """(noticed or named, named, all) of a tool, of one class of bugs or of all."""
    words = [
        row["verdicts"][tool]["verdict"] for row in rows if kind is None or row["class"] == kind
    ]
    return sum(bool(word) for word in words), words.count("named"), len(words)


def false_alarms(runs: Sequence[Run], twins: Iterable[str], tool: str) -> tuple[int, int]:
    """(runs without a bug that have an alarm, all such runs)."""
    clean = [run for run in runs if run["name"] in set(twins)]
    return sum(bool(run["alarms"].get(tool)) for run in clean), len(clean)


def by_chance(runs: Sequence[Run], twins: Iterable[str], tool: str) -> tuple[int, int]:
    """(ordered pairs of seeds of a run without a bug of which the first has an alarm that the second lacks, all pairs)."""
    pairs = []
    for name in twins:
        seeds = [run for run in runs if run["name"] == name]
        pairs += [(one, other) for one in seeds for other in seeds if one is not other]
    return sum(bool(only_here(one, other, tool)) for one, other in pairs), len(pairs)


def agree(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """The share of one lies in the 95 % interval of the other."""
    low, high = wilson_interval(*first)
    other_low, other_high = wilson_interval(*second)
    return low <= second[0] / second[1] <= high or other_low <= first[0] / first[1] <= other_high
