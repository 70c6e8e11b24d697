"""From the steps of all sides to what is printed and kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any

from experiments.bench.match import Record
from experiments.bench.ratios import FIGURES, GOALS, compare, totals, unequal_work
from experiments.bench.work import StepWork

END_TO_END = "environment steps per second, end to end"


def tried(record: Record) -> dict[str, float]:
    """Environment steps per second of every side's first step: what TRL's best was chosen by."""
    return {name: steps[0].env_steps_per_s for name, steps in record.steps.items()}


def results(record: Record, count: int) -> dict[str, Any]:
    """JSON values: of each pair the ratios over its last `count` steps and the work of both; every step of everybody."""
    pairs = []
    for ours, theirs in record.pairs:
        own, other = record.measured(ours, count), record.measured(theirs, count)
        pairs.append(
            {
                "ours": ours,
                "theirs": theirs,
                "steps": count,
                "ratios": {name: asdict(ratio) for name, ratio in compare(own, other).items()},
                "figures": {
                    name: [mean(map(figure, own)), mean(map(figure, other))]
                    for name, figure in FIGURES.items()
                },
                "work": [totals(own), totals(other)],
                "unequal": unequal_work(own, other),
                "notes": [notes(own), notes(other)],
                "wall_s": [mean(s.wall_s for s in own), mean(s.wall_s for s in other)],
            }
        )
    return {
        "pairs": pairs,
        "tried": tried(record),
        "steps": {name: [asdict(step) for step in steps] for name, steps in record.steps.items()},
    }


def notes(steps: Sequence[StepWork]) -> dict[str, float]:
    """Means of what the steps noted beside (logprob gap, memory)."""
    names = dict.fromkeys(name for step in steps for name in step.notes)
    return {name: mean(step.notes[name] for step in steps if name in step.notes) for name in names}


def in_words(found: Mapping[str, Any], *, idle: bool) -> list[str]:
    lines = []
    for index, pair in enumerate(found["pairs"]):
        # All figures are held against the goals at equal dtype, and end to end against every other pair.
        judged = set(FIGURES) if index == 0 else {END_TO_END}
        lines += ["", f"{pair['ours']}  against  {pair['theirs']}, {pair['steps']} steps in turns"]
        for name, (own, other) in pair["figures"].items():
            ratio = pair["ratios"][name]
            lines.append(
                f"  {name:42s} {own:8.1f} {other:8.1f}   {ratio['mean']:5.2f} times "
                f"[{ratio['low']:.2f}, {ratio['high']:.2f}]{_verdict(name, ratio) if name in judged else ''}"
            )
        work = ", ".join(
            f"{name} {own:,} and {other:,}"
            for (name, own), other in zip(pair["work"][0].items(), pair["work"][1].values())
        )
        lines.append(f"  work: {work}")
        lines += [f"  WARNING: not the same work: {words}" for words in pair["unequal"]]
        for name, said in zip((pair["ours"], pair["theirs"]), pair["notes"]):
            if said:
                lines.append(
                    f"  {name}: " + ", ".join(f"{key} {value:.2g}" for key, value in said.items())
                )
        if idle:
            lines.append(
                f"  wall seconds a step: {pair['wall_s'][0]:.1f} and {pair['wall_s'][1]:.1f}"
            )
    lines += [
        "",
        "environment steps per second, end to end, at the first step of everything that was tried",
    ]
    lines += [
        f"  {name:32s} {figure:6.2f}"
        for name, figure in sorted(found["tried"].items(), key=lambda kv: kv[1])
    ]
    theirs = {pair["theirs"] for pair in found["pairs"]}
    lines.append(f"  measured further: {' and '.join(sorted(theirs))}")
    return lines


def _verdict(name: str, ratio: Mapping[str, float]) -> str:
    least, aim = GOALS[name]
    met = "reached" if ratio["low"] >= least else "NOT REACHED"
    aimed = "reached" if ratio["low"] >= aim else "not reached"
    return f"   asked for {least:g}: {met}; aimed at {aim:g}: {aimed}"
