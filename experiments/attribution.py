"""One symptom, four causes: planted one by one into trainings, and which cause the finding of R23 names.

    python -m experiments.attribution --json FILE [--count 25] [--seeds 0 1] [--further 3]

`count` cases of each cause and as many clean runs, kinds in turn, once with each seed; presets, algorithms, strengths and seeds of
trainings are drawn (`tests/mismatch/attribution_kit.py`). `further`: so many of each way of planting that was written after what is judged. The
file is written after each case, and a file that is there is gone on with. Every twelfth case is asked again with evidence withheld.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "mismatch"))

import attribution_kit as kit

WITHHELD_EVERY = 12
KINDS = 5  # that take turns


def in_turn(count: int, seed: int) -> list[kit.Case]:
    """The cases of all kinds, one of each in turn."""
    by_kind: dict[str, list[kit.Case]] = {}
    for case in kit.cases(count, seed):
        by_kind.setdefault(case.kind, []).append(case)
    return list(chain.from_iterable(zip(*by_kind.values(), strict=True)))


def all_cases(count: int, seeds: Sequence[int], further: int) -> list[tuple[str, int, kit.Case]]:
    """(draw, number in it, case): each seed is a draw, what was written later is one more."""
    draws = {str(seed): in_turn(count, seed) for seed in seeds}
    draws["further"] = list(kit.further_cases(further))
    numbered = []
    for draw, cases in draws.items():
        numbered += [(draw, number, case) for number, case in enumerate(cases)]
    return numbered


def row_of(draw: str, number: int, case: kit.Case) -> dict[str, Any]:
    """What one case came to."""
    asked = (number // KINDS) % WITHHELD_EVERY == 0 and case.kind != kit.CLEAN
    began = time.process_time()
    outcome = kit.tried(case, kit.WITHHELD if asked else ())
    return {
        "draw": draw,
        "number": number,
        "kind": case.kind,
        "what": case.what,
        "strength": case.strength,
        "preset": case.preset,
        "algorithm": case.settings.get("algorithm.kind", "ppo"),
        "lr": case.settings["learner.lr"],
        "seed": case.seed,
        "gap": outcome.gap,
        "named": list(outcome.named),
        "withheld": {name: list(causes) for name, causes in outcome.withheld.items()},
        "words": outcome.words,
        "cpu_s": time.process_time() - began,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--count", type=int, default=25, help="cases of each kind (25)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="of draws (0 1)")
    parser.add_argument("--further", type=int, default=3, help="of each way written later (3)")
    options = parser.parse_args(arguments)
    rows = []
    if options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    done = {(row["draw"], row["number"]) for row in rows}
    for draw, number, case in all_cases(options.count, options.seeds, options.further):
        if (draw, number) in done:
            continue
        rows.append(row_of(draw, number, case))
        content = {"seeds": options.seeds, "count": options.count, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        named = ", ".join(rows[-1]["named"]) or "-"
        print(draw, case.kind, case.what, case.strength, "->", named, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
