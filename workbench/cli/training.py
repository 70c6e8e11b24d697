"""The commands that train: `train`, `resume`, and the summary that they end with."""

from __future__ import annotations

import argparse
import shlex
import time
from pathlib import Path

from workbench.basics.extensions import service
from workbench.cli.opening import config_of, overrides
from workbench.values import trajectories_of
from workbench.values.errors import StoreError


def train_command(args: argparse.Namespace) -> int:
    config = config_of(args.config, args.settings, trust=args.trust)
    name = Path(args.config).stem.replace(":", ".")  # my_env:Guess
    out = args.out or Path("runs") / f"{name}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    train = train_with_progress
    if args.profile:
        train = service("profiled_training", "--profile")(train)
    _print_summary(train(config, out, args.track))
    return 0


def _start_tracking(path: Path, tracker: str | None) -> None:
    """Have another process send the run to a tracker, where that is asked for."""
    if tracker is not None:
        print(service("start_tracking", f"--track {tracker}")(path, tracker))


def _print_summary(run) -> None:
    """Print how the run ended: evaluations, remarks, and how to look at it."""
    from workbench.look.cells.stored import evaluation_of_run_view, lint_words
    from workbench.look.words import count
    from workbench.rollouts.metrics import filter_words

    metrics = run.metrics()
    lines = ["", evaluation_of_run_view(run).text, ""]
    for remark in (
        filter_words(metrics.to_dict("records")),
        _faults(run, metrics),
        lint_words(run),
    ):
        if remark:
            lines += [remark, ""]
    lines.append(
        f"{run.path}: {count(len(run.steps()), 'step')} committed. "
        f"Look at it: workbench show {shlex.quote(str(run.path))}"
    )
    print("\n".join(lines))


def _faults(run, metrics) -> str:
    """How many trajectories were ended by faults, and the first error; "" where none was."""
    from workbench.look.words import count
    from workbench.rollouts.metrics import fault_share

    shares = {step: share for step, row in metrics.iterrows() if (share := fault_share(row))}
    if not shares:
        return ""
    worst = max(shares, key=shares.get)
    errors = [
        trajectory.error
        for trajectory in trajectories_of(run.groups(worst))
        if trajectory.stop_reason.is_fault and trajectory.error
    ]
    first = f"; the first says: {errors[0]}" if errors else ""
    return (
        f"! in {count(len(shares), 'step')} trajectories were ended by a fault and are unscored, {shares[worst]:.0%} of those of "
        f"step {worst}{first}"
    )


def train_with_progress(config, out: Path, tracker: str | None = None):
    """Train into a new folder, with a line of progress in the terminal; returns the run."""
    from workbench.look.cells.train import train_here
    from workbench.look.watch import watch

    if out.exists():  # `create_run` would say so too, but only after everything has been opened
        raise StoreError(
            f"{out} is there already, and a run is never overwritten; choose another name"
        )
    _start_tracking(out, tracker)
    with watch(config.train.steps, label=out.name) as watcher:
        return train_here(
            config,
            out,
            on_step=watcher.on_step,
            on_score=watcher.on_score,
            on_note=watcher.bar.say,
        )


def resume_command(args: argparse.Namespace) -> int:
    from workbench.look.cells.train import resume_here
    from workbench.look.watch import watch
    from workbench.training.resume import resumption

    resumed = resumption(
        args.run_path,
        overrides(args.settings),
        trust=args.trust,
        accept_changed_code=args.accept_changed_code,
    )
    if words := resumed.said():
        print(words)
        return 0
    stored = resumed.stored
    _start_tracking(stored.path, args.track)
    with watch(resumed.config.train.steps, label=stored.name, done=len(stored.steps())) as watcher:
        run = resume_here(
            resumed,
            on_step=watcher.on_step,
            on_score=watcher.on_score,
            on_note=watcher.bar.say,
        )
    _print_summary(run)
    return 0
