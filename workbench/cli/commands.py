"""What each command does: one function a command, named after it; what it returns is the exit status.

Whatever takes long to import is imported in the function that needs it: `workbench --help` opens no torch.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from contextlib import closing
from pathlib import Path

from workbench.cli.opening import config_of, is_config, is_run, put, recipes, session_of, source_of
from workbench.types.errors import ConfigError


def evaluate_command(args: argparse.Namespace) -> int:
    from workbench.run.store import open_run
    from workbench.training.stored import config_of_run
    from workbench.training.session import evaluate, evaluation_report
    from workbench.training.session import open_session
    from workbench.views.evaluation import show_report

    scores, size = [], {"num_tasks": args.tasks, "attempts": args.attempts}
    with closing(session_of(args.source, args.settings, args.step, trust=args.trust)) as session:
        if is_run(args.source):  # the policy it started from, on the same tasks, beside it (law 12)
            with closing(
                open_session(config_of_run(open_run(args.source, trust=args.trust)))
            ) as untrained:
                scores += evaluate(untrained, name="untrained", **size)
        scores += evaluate(session, name="trained" if scores else "untrained", **size)
        report = evaluation_report(session, scores, **size)
    print(json.dumps(report, indent=1) if args.json else show_report(report).text)
    return 0


def rollout_command(args: argparse.Namespace) -> int:
    from workbench.training.session import rollout
    from workbench.views import show_group, show_tokens, show_trajectory

    with closing(session_of(args.source, args.settings, trust=args.trust)) as session:
        for group in rollout(session, args.tasks, group_size=args.group):
            print(show_group(group).text)
            for trajectory in group:
                print(
                    (
                        show_tokens(trajectory, session.chat.token_texts)
                        if args.tokens
                        else show_trajectory(trajectory)
                    ).text
                )
    return 0


def replay_command(args: argparse.Namespace) -> int:
    from workbench.notebook.replay import replay
    from workbench.run.store import open_run

    report, notes = replay(open_run(args.run_path, trust=args.trust), args.step)
    print("\n".join([*notes, report.text]))
    return 0 if report.equal else 1


def show_command(args: argparse.Namespace) -> int:
    from workbench.importers import looks_like_rollouts
    from workbench.notebook.place import show_place
    from workbench.notebook.stored import show_step
    from workbench.run.store import open_run

    if not (args.run_path / "run.json").exists() and looks_like_rollouts(args.run_path):
        return _show_rollouts(args)
    if args.tokenizer is not None:
        raise ConfigError(
            "--tokenizer is for rollouts of another framework; a run names its own policy"
        )
    run = open_run(args.run_path)
    if args.step is None and (args.task is not None or args.attempt is not None or args.tokens):
        raise ConfigError(
            "--task, --attempt and --tokens look at one step; name it: workbench show RUN STEP"
        )
    if args.at and args.step is not None:
        raise ConfigError(f"--at {args.at!r} says the step, too; leave {args.step} out")
    if args.signals and (args.at or args.step is not None):
        raise ConfigError("--signals are of the whole run; leave the step and --at out")
    if args.signals:
        from workbench.notebook.signals import signals
        from workbench.views.signals import show_signals

        put(show_signals(signals(run)), args.html)
        return 0
    view = (
        show_place(run, args.at)
        if args.step is None
        else show_step(
            run, args.step, task=args.task or 0, attempt=args.attempt, tokens=args.tokens
        )
    )
    put(view, args.html)
    return 0


def _show_rollouts(args: argparse.Namespace) -> int:
    from workbench.importers import read_rollouts
    from workbench.notebook.stored import show_rollouts

    if args.step is not None or args.task is not None:
        raise ConfigError(
            f"{args.run_path} holds rollouts of another framework, which have no steps or tasks to "
            "choose from; name an attempt: workbench show PATH --attempt 0"
        )
    put(
        show_rollouts(read_rollouts(args.run_path), attempt=args.attempt, tokenizer=args.tokenizer),
        args.html,
    )
    return 0


def lint_command(args: argparse.Namespace) -> int:
    from workbench.notebook.lint import lint
    from workbench.training.session import open_session

    if is_config(args.source):
        if args.step is not None or args.start:
            raise ConfigError(
                "--step and --start are for run folders; a preset is sampled from, and tried in full"
            )
        found = lint(open_session(config_of(args.source, args.settings)))
    elif args.settings:
        raise ConfigError(
            "--set changes a preset or a .toml file; what is stored is looked at as it is"
        )
    else:
        found = lint(Path(args.source), step=args.step, start=args.start, trust=args.trust)
    if args.json:
        print(json.dumps(found.report.as_dict(), indent=1))
    else:
        put(found.view(), args.html)
    return 0 if found.ok else 1


def diff_command(args: argparse.Namespace) -> int:
    from workbench.notebook.show import show_run_diff
    from workbench.run.diff import compare_runs
    from workbench.views import show_diff

    diff = compare_runs(args.run_path, args.other_path, exact=args.exact)
    put(show_diff(diff) if args.html is None else show_run_diff(diff), args.html)
    return 0 if diff.equal else 1


def export_command(args: argparse.Namespace) -> int:
    from workbench.notebook.export import TARGETS, export_run

    if args.to is None and args.folder is None:
        raise ConfigError(
            "export makes one thing: a folder of the policy (workbench export RUN DIR), a file of attempts "
            "(... RUN --to trl-sft FILE.jsonl), or a tracker's copy of its numbers (... --to tensorboard)"
        )
    if args.to is not None:
        if args.step is not None or args.dtype is not None or args.adapter:
            raise ConfigError(
                "--step, --dtype and --adapter are for the policy's folder; attempts are chosen by --steps, and a "
                "tracker gets the numbers of all steps"
            )
        if args.out is not None and (args.to not in TARGETS or args.folder is not None):
            raise ConfigError(
                f"name what is made behind the run, once: workbench export RUN --to {args.to} DEST"
            )
        print(
            export_run(
                args.run_path,
                args.out or args.folder,
                to=args.to,
                steps=args.steps,
                min_reward=args.min_reward,
            ).text
        )
        return 0
    if args.out is not None or args.steps is not None or args.min_reward is not None:
        raise ConfigError(
            "--out, --steps, --min-reward go with --to; the policy's folder is named behind the run"
        )
    from workbench.notebook.export_policy import export_policy

    print(
        export_policy(
            args.run_path, args.folder, step=args.step, dtype=args.dtype, merge=not args.adapter
        ).text
    )
    return 0


def new_command(args: argparse.Namespace) -> int:
    from workbench.notebook.skeletons import write_skeleton

    print(write_skeleton(args.command.removeprefix("new-"), args.name, args.folder).text)
    return 0


def chat_command(args: argparse.Namespace) -> int:
    from workbench.cli.talking import chat

    return chat(args)


def play_command(args: argparse.Namespace) -> int:
    from workbench.engines.policy import load_tokenizer
    from workbench.envs import PRESETS
    from workbench.notebook.play import play
    from workbench.types.errors import nearest
    from workbench.views import show_trajectory

    if args.env not in PRESETS:
        raise ConfigError(f"no environment {args.env!r}; {nearest(args.env, PRESETS)}")

    def echoing(question: str) -> str:  # what is piped in is not seen otherwise
        typed = input(question)
        print(typed)
        return typed

    print(
        "You are the policy and see what it sees. Type the answer (Right || Down), or the whole text with its tags; "
        "Ctrl-D ends.\n"
    )
    trajectory = play(
        PRESETS[args.env],
        load_tokenizer(args.tokenizer),
        task_seed=args.seed,
        ask=input if sys.stdin.isatty() else echoing,
    )
    print(f"\n{show_trajectory(trajectory).text}")
    return 0


def settings_command(args: argparse.Namespace) -> int:
    from workbench.training.listing import settings_text

    print(settings_text(args.key))
    return 0


def pretrain_command(args: argparse.Namespace) -> int:
    pretrain = recipes()
    if args.check:
        report = pretrain.check(args.name, quick=args.quick)
        print(report.text)
        return 0 if report.passed else 1
    out = args.out or Path("runs/policies") / args.name
    pretrain.pretrain(args.name, out, seed=args.seed)
    print(out)
    return 0


def doctor_command(args: argparse.Namespace) -> int:
    from workbench.doctor import doctor

    if args.plan is not None:
        from workbench.doctor.plan import plan

        if args.policy is not None:
            raise ConfigError(
                "--plan takes the policy from its config: --set policy.name=...; --policy is for the "
                "trials"
            )
        report = plan(config_of(args.plan, [*_laid_out(args.layout), *args.settings]))
    elif args.settings or args.layout:
        raise ConfigError(
            "--set and --layout change the config of --plan CONFIG; without it doctor looks at the machine alone"
        )
    else:
        report = doctor(args.policy)
    print(json.dumps(report.as_dict(), indent=1) if args.json else report.text)
    return 0 if report.ok else 1


def serve_command(args: argparse.Namespace) -> int:
    from workbench.notebook.serve import serve

    print(f"exporting {args.run_path} and starting vLLM ...", flush=True)
    with serve(args.run_path, step=args.step, port=args.port) as served:
        print(
            f"serving {served.name} at {served.url}; Ctrl-C ends it. Talk to it:\n  workbench chat {args.run_path} --endpoint "
            f"{served.url} --model {served.name} --calls text",
            flush=True,
        )
        try:
            while served.process.lives:
                time.sleep(0.5)
        except KeyboardInterrupt:
            return 0
        print(f"vLLM's server ended: {served.process.last_words}", file=sys.stderr)
        return 2


def _laid_out(kind: str | None) -> list[str]:
    """Settings that a layout stands for, as --set takes them; a plan needs no server, so that any address will do."""
    elsewhere = (
        ["layout.url=http://elsewhere:8000", "layout.folder=/shared"]
        if kind == "many_nodes"
        else []
    )
    return (
        []
        if kind is None
        else [f"layout.kind={kind}", *elsewhere] + ["engine.kind=vllm"] * (kind != "one_device")
    )


def bias_command(args: argparse.Namespace) -> int:
    from workbench.notebook.bias import bias_bench

    report = bias_bench(args.algorithm or None)
    if args.json is not None:
        from workbench.run.writer import make_folder, write_file

        make_folder(args.json.absolute().parent)
        write_file(args.json, replace=True, content=json.dumps(report.as_dict(), indent=1).encode())
    put(report.view, args.html)
    return 0 if report.passed else 1


def audit_command(args: argparse.Namespace) -> int:
    from workbench.notebook.audit import audit

    report = audit(
        source_of(args.source, args.settings, args.step, trust=args.trust),
        step=args.step,
        tasks=args.tasks,
        attempts=args.attempts,
    )
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        put(report.view, args.html)
    return 0 if report.clean else 1
