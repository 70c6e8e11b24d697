"""One symptom, four causes: planted one by one into trainings, and which cause the finding of R23 names.

    python -m experiments.attribution --json FILE [--count 25] [--seed 0]

`count` cases of each cause and as many clean runs, kinds in turn; presets, algorithms, strengths and seeds are drawn
(`tests/mismatch/attribution_kit.py`). The file is written after each case, and a file that is there is gone on with. Every twelfth case
is asked again with evidence withheld.
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


def in_turn(count: int, seed: int) -> list[kit.Case]:
    """The cases of all kinds, one of each in turn."""
    by_kind: dict[str, list[kit.Case]] = {}
    for case in kit.cases(count, seed):
        by_kind.setdefault(case.kind, []).append(case)
    return list(chain.from_iterable(zip(*by_kind.values(), strict=True)))


def row_of(case: kit.Case, number: int, kinds: int) -> dict[str, Any]:
    """What one case came to."""
    asked = (number // kinds) % WITHHELD_EVERY == 0 and case.kind != kit.CLEAN
    began = time.process_time()
    outcome = kit.tried(case, kit.WITHHELD if asked else ())
    return {
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
    parser.add_argument("--seed", type=int, default=0, help="of the draw of cases (0)")
    options = parser.parse_args(arguments)
    rows = []
    if options.json.exists():
        rows = json.loads(options.json.read_text(encoding="utf-8"))["rows"]
    done = {row["number"] for row in rows}
    cases = in_turn(options.count, options.seed)
    for number, case in enumerate(cases):
        if number in done:
            continue
        rows.append(row_of(case, number, len(cases) // options.count))
        content = {"seed": options.seed, "count": options.count, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        print(
            case.kind,
            case.what,
            case.strength,
            "->",
            ", ".join(rows[-1]["named"]) or "-",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
