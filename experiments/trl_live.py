"""The lint live in TRL, as figures: which planted bugs it names, which legitimate settings it complains about, what it costs.

    python -m experiments.trl_live --json FILE --model FOLDER

Bugs and twins are those of `tests/extensions/trl_live`; a step of each. Costs are CPU seconds of one thread: of the shipped
policies, 8 completions a step, and of the pretrained model in FOLDER.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.extensions.trl_live.trl_bugs import BUGS, GAME, TOOLS, TWINS, Planted
from tests.extensions.trl_live.trl_trainers import trainer_of
from workbench.extensions.trl_live import attach_trl

STEPS = 12


def tried(planted: Planted, folder: Path) -> dict[str, Any]:
    """A run with it: the rules that found an error, and whether one that must did so in the words that it must."""
    trainer = trainer_of(folder, **({"max_steps": 1} | dict(planted.options)))
    if planted.after is not None:
        planted.after(trainer)
    lint = attach_trl(trainer, say=lambda text: None)
    trainer.train()
    errors = lint.report.errors
    wanted = [
        rule for rule, found in errors if rule in planted.rules and planted.says in found.what
    ]
    return {
        "name": planted.name,
        "thread": planted.thread,
        "rules": list(planted.rules),
        "named": list(lint.named),
        "right": bool(wanted),
        "failed": len(lint.failures),
    }


def cost(what: str, folder: Path, steps: int, **options: Any) -> dict[str, Any]:
    """CPU seconds of steps and of looking, the first step apart; and of the same steps without the lint."""
    trainer = trainer_of(folder, learning_rate=1e-6, max_steps=steps, **options)
    lint = attach_trl(trainer, say=lambda text: None)
    lint.clock = time.process_time
    marks = _marks(trainer, lint)
    trainer.train()
    bare = trainer_of(folder, learning_rate=1e-6, max_steps=steps, **options)
    bare_marks = _marks(bare, None)
    bare.train()
    steps_s = [b[0] - a[0] for a, b in zip(marks, marks[1:])]
    looks_s = [b[1] - a[1] for a, b in zip(marks, marks[1:])]
    shares = [look / (step - look) for look, step in zip(looks_s, steps_s)]
    rows = trainer.args.per_device_train_batch_size * trainer.args.gradient_accumulation_steps
    return {
        "what": what,
        "rows": rows,
        "steps": steps,
        "errors": list(lint.named),
        "step_s": statistics.median(steps_s),
        "look_s": statistics.median(looks_s),
        "share": sum(looks_s) / (sum(steps_s) - sum(looks_s)),
        "largest": max(shares),
        "bare_s": statistics.median(b[0] - a[0] for a, b in zip(bare_marks, bare_marks[1:])),
        "first_look_s": marks[0][1],
        "first_step_s": lint.step_seconds - sum(steps_s),
    }


def _marks(trainer: Any, lint: Any) -> list[tuple[float, float]]:
    """CPU time, and the lint's, at the end of each step."""
    from transformers import TrainerCallback

    marks: list[tuple[float, float]] = []

    class Marks(TrainerCallback):
        def on_step_end(self, args, state, control, **named):
            marks.append((time.process_time(), 0.0 if lint is None else lint.seconds))

    trainer.add_callback(Marks())
    return marks


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the figures, and say how many there are."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.trl_live", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--model", type=Path, metavar="FOLDER", help="a pretrained model")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        costs = [
            cost("a game, plain generation, 0.6 million parameters", folder, STEPS, policy=GAME),
            cost("search with a tool, 0.6 million parameters", folder, STEPS, **TOOLS),
            cost(
                "search with a tool, 32 completions, 0.6 million parameters",
                folder,
                STEPS,
                **TOOLS,
                per_device_train_batch_size=32,
                num_generations=8,
            ),
        ]
        if options.model is not None:
            costs.append(
                cost("SmolLM2-135M-Instruct, plain generation", folder, 4, path=options.model)
            )
        for row in costs:
            print(row, flush=True)
        bugs = [tried(planted, folder) for planted in BUGS]
        twins = [tried(planted, folder) for planted in TWINS]
    result = {"bugs": bugs, "twins": twins, "costs": costs}
    options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    named = sum(bug["right"] for bug in bugs)
    clean = sum(not twin["named"] for twin in twins)
    print(f"{named} of {len(bugs)} bugs named, {clean} of {len(twins)} twins clean")
    return 0


if __name__ == "__main__":
    sys.exit(main())
