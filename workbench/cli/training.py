"""The commands that train: `train`, `resume`, `demo`, and what is said at their end."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from pathlib import Path
from typing import Any

from workbench.cli.opening import config_of, overrides
from workbench.types.errors import ConfigError


def train_command(args: argparse.Namespace) -> int:
    config = config_of(args.config, args.settings, trust=args.trust)
    name = Path(args.config).stem.replace(":", ".")  # my_env:Guess
    out = args.out or Path("runs") / f"{name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    _tell_the_end(train_with_progress(config, out))
    return 0


def _tell_the_end(run) -> None:
    from workbench.notebook.stored import show_evaluations
    from workbench.rollouts.metrics import filter_words
    from workbench.views.words import count

    metrics = run.metrics()
    notes = (filter_words(metrics.to_dict("records")), _faults(run, metrics))
    print(
        "\n".join(
            [
                "",
                show_evaluations(run).text,
                "",
                *(line for words in notes if words for line in (words, "")),
                f"{run.path}: {count(len(run.steps()), 'step')} committed. "
                f"Look at it: workbench show {shlex.quote(str(run.path))}",
            ]
        )
    )


def _faults(run, metrics) -> str:
    """What ended attempts of training, in words; "" where nothing did."""
    from workbench.rollouts.metrics import fault_share
    from workbench.views.words import count

    shares = {step: share for step, row in metrics.iterrows() if (share := fault_share(row))}
    if not shares:
        return ""
    worst = max(shares, key=shares.get)
    errors = [
        t.error for group in run.groups(worst) for t in group if t.stop_reason.is_fault and t.error
    ]
    first = f"; the first says: {errors[0]}" if errors else ""
    return (
        f"! in {count(len(shares), 'step')} attempts were ended by a fault and are unscored, {shares[worst]:.0%} of those of "
        f"step {worst}{first}"
    )


def train_with_progress(config, out: Path):
    from workbench.notebook.train import train_here
    from workbench.notebook.watch import watch

    if out.exists():  # `create_run` would say so too, but only after everything has been opened
        from workbench.types.errors import StoreError

        raise StoreError(
            f"{out} is there already, and a run is never overwritten; choose another name"
        )
    with watch(config.train.steps, label=out.name) as eyes:
        return train_here(
            config, out, on_step=eyes.on_step, on_score=eyes.on_score, on_note=eyes.bar.say
        )


def resume_command(args: argparse.Namespace) -> int:
    from workbench.notebook.train import resume_here
    from workbench.notebook.watch import watch
    from workbench.training.resume import resumption

    found = resumption(
        args.run_path,
        overrides(args.settings),
        trust=args.trust,
        accept_changed_code=args.accept_changed_code,
    )
    if words := found.said():
        print(words)
        return 0
    with watch(
        found.config.train.steps, label=found.stored.name, done=len(found.stored.steps())
    ) as eyes:
        run = resume_here(found, on_step=eyes.on_step, on_score=eyes.on_score, on_note=eyes.bar.say)
    _tell_the_end(run)
    return 0


def demo_command(args: argparse.Namespace) -> int:
    from workbench.notebook.demo import demo
    from workbench.views import show_demo

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError(
            "the demo runs in one process; for several, torchrun ... -m workbench.cli train"
        )
    config = config_of(args.task, args.settings)
    out = args.out or Path("runs") / f"demo-{Path(args.task).stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    table: dict[str, Any] = demo(config, args.seeds, out, train_with_progress)
    print(show_demo(table).text)
    print(
        f"\ntable: {out / 'table.json'}\nlook at a run: workbench show {shlex.quote(f'{out}/seed-{args.seeds[0]}')}"
    )
    return 0 if table["learned"] else 1
