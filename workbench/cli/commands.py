"""The commands: one function each, named after it, which returns the exit status.

Imports that take long stand in the function that needs them: `workbench --help` imports no torch.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

from workbench.basics.extensions import service
from workbench.cli.opening import (
    config_of,
    is_config,
    is_run,
    print_or_save,
    session_of,
)
from workbench.values import View
from workbench.values.errors import ConfigError


def evaluate_command(args: argparse.Namespace) -> int:
    from workbench.look.evaluation import report_view
    from workbench.run.store import open_run
    from workbench.training.session import evaluate, evaluation_report, open_session
    from workbench.training.stored import config_of_run

    size = {"num_tasks": args.tasks, "attempts": args.attempts}
    scores = []
    with closing(session_of(args.source, args.settings, args.step, trust=args.trust)) as session:
        if is_run(args.source):
            # Beside it the policy that it started from, on the same tasks (invariant 12).
            config = config_of_run(open_run(args.source, trust=args.trust))
            with closing(open_session(config)) as untrained:
                scores += evaluate(untrained, name="untrained", **size)
        scores += evaluate(session, name="trained" if scores else "untrained", **size)
        report = evaluation_report(session, scores, **size)
    print(json.dumps(report, indent=1) if args.json else report_view(report).text)
    return 0


def rollout_command(args: argparse.Namespace) -> int:
    from workbench.look import group_view, show_tokens, trajectory_view
    from workbench.training.session import rollout

    with closing(session_of(args.source, args.settings, trust=args.trust)) as session:
        for group in rollout(session, args.tasks, group_size=args.group):
            print(group_view(group).text)
            for trajectory in group:
                if args.tokens:
                    view = show_tokens(trajectory, session.chat.token_texts)
                else:
                    view = trajectory_view(trajectory)
                print(view.text)
    return 0


def replay_command(args: argparse.Namespace) -> int:
    from workbench.look.cells.replay import replay
    from workbench.run.store import open_run

    report, notes = replay(open_run(args.run_path, trust=args.trust), args.step)
    print("\n".join([*notes, report.text]))
    return 0 if report.equal else 1


def show_command(args: argparse.Namespace) -> int:
    from workbench.look.cells.stored import is_of_another_framework

    is_foreign = is_of_another_framework(args.run_path)
    view = _view_of_rollouts(args) if is_foreign else _view_of_run(args)
    print_or_save(view, args.html)
    return 0


def _view_of_run(args: argparse.Namespace) -> View:
    from workbench.look.cells.place import place_view
    from workbench.look.cells.show import show
    from workbench.look.cells.stored import step_view
    from workbench.run.store import open_run

    if args.tokenizer is not None:
        raise ConfigError(
            "--tokenizer is for rollouts of another framework; a run names its own policy"
        )
    run = open_run(args.run_path)
    _check_step_options(args)
    if args.signals:
        return show(service("run_signals", "--signals")(run))
    if args.step is None:
        return place_view(run, args.at)
    return step_view(run, args.step, task=args.task or 0, attempt=args.attempt, tokens=args.tokens)


def _check_step_options(args: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not go with a step, or with none."""
    has_step = args.step is not None
    if not has_step and (args.task is not None or args.attempt is not None or args.tokens):
        raise ConfigError(
            "--task, --attempt and --tokens look at one step; name it: workbench show RUN STEP"
        )
    if args.at and has_step:
        raise ConfigError(f"--at {args.at!r} names the step, too; leave {args.step} out")
    if args.signals and (args.at or has_step):
        raise ConfigError("--signals are of the whole run; leave the step and --at out")


def _view_of_rollouts(args: argparse.Namespace) -> View:
    from workbench.look.cells.show import show

    if args.step is not None or args.task is not None:
        raise ConfigError(
            f"{args.run_path} holds rollouts of another framework, which have no steps or tasks to "
            "choose from; name a trajectory: workbench show PATH --attempt 0"
        )
    rollouts = service("read_rollouts", "show")(args.run_path)
    return show(rollouts, attempt=args.attempt, tokenizer=args.tokenizer)


def lint_command(args: argparse.Namespace) -> int:
    from workbench.look.cells.lint import lint

    if is_config(args.source):
        from workbench.training.session import open_session

        if args.step is not None or args.start:
            raise ConfigError(
                "--step and --start are for run folders; a preset is sampled from, and tried in full"
            )
        linted = lint(open_session(config_of(args.source, args.settings)))
    elif args.settings:
        raise ConfigError(
            "--set changes a preset or a .toml file; what is stored is looked at as it is"
        )
    else:
        linted = lint(Path(args.source), step=args.step, start=args.start, trust=args.trust)
    if args.json:
        print(json.dumps(linted.report.as_dict(), indent=1))
    else:
        print_or_save(linted.view(), args.html)
    return 0 if linted.ok else 1


def diff_command(args: argparse.Namespace) -> int:
    from workbench.look.run_diff import compare_runs, diff_view

    diff = compare_runs(args.run_path, args.other_path, exact=args.exact)
    print_or_save(diff_view(diff) if args.html is None else diff.view(), args.html)
    return 0 if diff.equal else 1


def settings_command(args: argparse.Namespace) -> int:
    from workbench.training.listing import settings_text

    print(settings_text(args.key))
    return 0
