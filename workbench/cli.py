"""`workbench ...`: the terminal door. Every command is one call into the cells that notebooks use.

Exit status: 0 done, 1 the answer is no (a replay differs, a demo did not learn, a check failed), 2 a usage or input
error, 130 stopped by Ctrl-C, 143 stopped by SIGTERM (a run then keeps its committed steps, and `resume` goes on).
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Any

# Tiny models lose most of their speed to thread barriers; more threads are a choice, not an accident.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(argv: list[str] | None = None) -> int:
    from workbench.errors import WorkbenchError
    from workbench.stopping import heeding

    args = _parser().parse_args(argv)
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    try:
        with contextlib.ExitStack() as stack:
            if rank != "0":  # under torchrun the first process speaks; the others only of what went wrong
                os.environ["WORKBENCH_PROGRESS"] = "quiet"
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            stack.enter_context(heeding(signal.SIGTERM, signal.SIGINT))
            return args.run(args)
    except WorkbenchError as error:
        where = f" (process {rank} of {world})" if world != "1" else ""
        print(f"workbench{where}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:  # torch's way of saying that another process is gone: that one has said why
        if world == "1" or "peer" not in str(error):
            raise
        print(f"workbench (process {rank} of {world}): another process ended, so this one does too", file=sys.stderr)
        return 2
    except KeyboardInterrupt as asked:
        if rank == "0":
            print(f"workbench: {str(asked) or 'interrupted; committed steps are kept'}", file=sys.stderr)
        return 128 + getattr(asked, "signal", signal.SIGINT)
    except BrokenPipeError:  # `workbench show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench",
        description="Train LLM agents with reinforcement learning, and see what the training does.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run, words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words)
        sub.set_defaults(run=run)
        return sub

    sub = command("train", _train, "train in this process; under torchrun, one rank per process")
    sub.add_argument("config", help="a preset (frozenlake, bandit), a .toml file, or the config.json of a run")
    sub.add_argument("--out", type=Path, help="run folder to make (default: runs/<config>-<seed>-<time>)")
    _add_set(sub)

    sub = command("resume", _resume, "go on with a run that was killed or stopped; a complete one is left as it is")
    sub.add_argument("run_path", type=Path, metavar="RUN")
    _add_set(sub)

    sub = command("evaluate", _evaluate,
                  "success of a run's or preset's policy on the held-out tasks, beside its neighbours")
    sub.add_argument("source", help="a run folder, or a preset (its untrained policy)")
    sub.add_argument("--tasks", type=_count, help="number of held-out tasks (default: the config's)")
    sub.add_argument("--attempts", type=_count, help="sampled attempts at each task; several give pass@k (default: the "
                     "config's)")
    sub.add_argument("--step", type=_count, help="checkpoint of the run to load (default: the newest)")
    sub.add_argument("--json", action="store_true", help="print the table as JSON")
    _add_set(sub)

    sub = command("rollout", _rollout, "sample attempts at a few tasks and show them turn by turn")
    sub.add_argument("source", help="a run folder, or a preset")
    sub.add_argument("--tasks", type=_count, default=1)
    sub.add_argument("--group", type=_count, default=2, help="attempts at each task")
    sub.add_argument("--tokens", action="store_true", help="show tokens by author instead of turns")
    _add_set(sub)

    sub = command("replay", _replay,
                  "recompute a step's credit from its stored ids and rewards; exit 1 if a number differs")
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=int, metavar="STEP")

    sub = command("lint", _lint, "is what is trained what it is taken for? Rules over a run's steps, over rollouts that "
                  "another framework wrote, or over a few freshly sampled ones of a preset; exit 1 on errors")
    sub.add_argument("source", metavar="PATH", help="a run folder, a file or folder of rollouts, a preset or .toml file")
    sub.add_argument("--step", type=int, help="only this step of the run")
    sub.add_argument("--start", action="store_true", help="of a run: also try environments anew, as at its start")
    sub.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_html(sub)
    _add_set(sub)

    sub = command("diff", _diff, "where two runs part: the first setting, step, file, column, token; exit 1 if they do")
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("other_path", type=Path, metavar="RUN")
    sub.add_argument("--exact", action="store_true",
                     help="read every byte, checkpoints too: equal is then to the last bit (default: by checksums)")
    _add_html(sub)

    sub = command("export", _export, "copy a run to TensorBoard, trackio or Weights & Biases; nothing is sent anywhere")
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("--to", required=True, choices=("tensorboard", "trackio", "wandb"))
    sub.add_argument("--out", type=Path, help="folder the tracker writes in (default: named after it, beside the run)")

    sub = command("show", _show, "a run, or one step of it: curves, trajectories, tokens, credit; or rollouts that another "
                  "framework wrote")
    sub.add_argument("run_path", type=Path, metavar="RUN")
    sub.add_argument("step", type=int, nargs="?", metavar="STEP")
    sub.add_argument("--task", type=int, help="which group of the step (default: the first)")
    sub.add_argument("--attempt", type=int, help="which attempt of the group (default: the whole group)")
    sub.add_argument("--tokens", action="store_true", help="tokens coloured by author and credit")
    sub.add_argument("--tokenizer", help="of rollouts of another framework: the policy whose tokens they are (else ids)")
    _add_html(sub)

    sub = command("play", _play, "play an environment yourself: you are the policy")
    sub.add_argument("env", help="an environment preset, such as frozenlake-4x4 or bandit-code")
    sub.add_argument("--seed", type=int, default=0, help="task seed")
    sub.add_argument("--tokenizer", default="frozenlake-tiny", help="policy whose tokens you type in")

    sub = command("pretrain", _pretrain,
                  "make a shipped tiny policy again, or check that the shipped one does what it says")
    sub.add_argument("name")
    sub.add_argument("--out", type=Path, help="folder to write (default: runs/policies/NAME)")
    sub.add_argument("--seed", type=int, default=None)
    sub.add_argument("--check", action="store_true",
                     help="reproduce the shipped policy's success within its interval; exit 1 if not")
    sub.add_argument("--quick", action="store_true",
                     help="with --check: evaluate the shipped weights only, do not train anew")

    sub = command("doctor", _doctor, "what is installed, what works here, and what to do about the rest")
    sub.add_argument("--policy", help="also try the embedded engine on this model (shipped name, folder, hub name)")
    sub.add_argument("--plan", metavar="CONFIG", help="instead, estimate the memory that a preset or .toml file needs; "
                     "exit 1 if this machine has less")
    sub.add_argument("--json", action="store_true")
    _add_set(sub)

    sub = command("bias", _bias, "every estimator against the true gradient, on exactly solvable tasks; exit 1 if one "
                  "that claims no bias has some, or a known trap is not shown")
    sub.add_argument("--algorithm", action="append", default=[], metavar="NAME",
                     help="only this algorithm; may be repeated")
    sub.add_argument("--json", type=Path, metavar="FILE", help="also write every number to this file")
    _add_html(sub)

    sub = command("audit", _audit, "engine against trainer on the same ids, why they differ, and whether syncs arrive; "
                  "exit 1 if a fault is named")
    sub.add_argument("source", help="a run folder (its newest checkpoint), a preset or a .toml file")
    sub.add_argument("--step", type=_count, help="checkpoint of the run to load (default: the newest)")
    sub.add_argument("--tasks", type=_count, default=4)
    sub.add_argument("--attempts", type=_count, default=4, help="sampled at each task")
    sub.add_argument("--json", action="store_true", help="print every number as JSON")
    _add_html(sub)
    _add_set(sub)

    sub = command("demo", _demo, "train the embedded agent and say whether it learned; exit 1 if a seed did not")
    sub.add_argument("--task", default="frozenlake", help="a preset")
    sub.add_argument("--seeds", type=int, nargs="+", default=[0])
    sub.add_argument("--out", type=Path)
    _add_set(sub)
    return parser


def _count(text: str) -> int:
    """A number of things, for argparse."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"a whole number, at least 1, is expected; got {text!r}")
    return number


def _add_set(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE",
                     help="change one setting, such as algorithm.normalize_std=false; may be repeated")


def _add_html(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--html", type=Path, help="write the picture to this HTML file instead")


def _overrides(settings: list[str]) -> dict[str, Any]:
    from workbench.errors import ConfigError

    pairs = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise ConfigError(f"--set takes KEY=VALUE, got {setting!r}; for example --set train.steps=10")
        key, value = key.strip(), value.strip()
        if key.startswith("policy.template_flags."):  # these have no type to be read as: "false" would be true
            with contextlib.suppress(ValueError):
                value = json.loads(value)
        pairs[key] = value
    return pairs


def _config(source: str, settings: list[str]):
    from workbench.config import from_dict, load_config_with_warnings
    from workbench.errors import ConfigError
    from workbench.session import first_process

    if source.endswith(".json"):
        if settings:
            raise ConfigError("a stored config is taken as it is; --set goes with a preset or a .toml file")
        try:
            tree = json.loads(Path(source).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {source}: {error}") from error
        if isinstance(tree, dict) and tree.get("kind") == "config":  # of a run folder: inside its seal
            from workbench.store import open_run

            tree = open_run(Path(source).resolve().parent).config
        return from_dict(tree)
    config, warnings = load_config_with_warnings(source, _overrides(settings))
    for warning in warnings if first_process() else ():
        print(f"note: {warning}", file=sys.stderr)
    return config


def _session(source: str, settings: list[str], step: int | None = None):
    """A run folder's policy, or a preset's untrained one."""
    from workbench.errors import ConfigError
    from workbench.session import open_session, reopen
    from workbench.store import open_run

    if _is_run(source):
        if settings:
            raise ConfigError("a run's config is fixed; --set goes with a preset or a .toml file")
        return reopen(open_run(source), step=step)
    if step is not None:
        raise ConfigError(f"--step names a checkpoint of a run, but {source!r} is no run folder")
    return open_session(_config(source, settings))


def _is_run(source: str) -> bool:
    """A preset's name is a preset, whatever folders there are; `./frozenlake` is a folder."""
    from workbench.config import PRESETS

    return source not in PRESETS and Path(source).is_dir()


# ------------------------------------------------------------------------------------------------ commands


def _train(args: argparse.Namespace) -> int:
    config = _config(args.config, args.settings)
    out = args.out or Path("runs") / f"{Path(args.config).stem}-seed{config.seed}-{time.strftime('%Y%m%d-%H%M%S')}"
    run = _train_with_progress(config, out)
    _tell_the_end(run)
    return 0


def _tell_the_end(run) -> None:
    from workbench.cells.show import show_evaluations
    from workbench.metrics import filter_words
    from workbench.views.words import count

    filtered = filter_words(run.metrics().to_dict("records"))
    print("\n".join(["", show_evaluations(run).text, "", *([filtered, ""] if filtered else []),
                     f"{run.path}: {count(len(run.steps()), 'step')} committed. "
                     f"Look at it: workbench show {shlex.quote(str(run.path))}"]))


def _train_with_progress(config, out: Path):
    from workbench.cells.train import train_here
    from workbench.cells.watch import watch

    if out.exists():  # `create_run` would say so too, but only after everything has been opened
        from workbench.errors import StoreError

        raise StoreError(f"{out} is there already, and a run is never overwritten; choose another name")
    with watch(config.train.steps, label=out.name) as eyes:
        return train_here(config, out, on_step=eyes.on_step, on_score=eyes.on_score)


def _resume(args: argparse.Namespace) -> int:
    from workbench.cells.resume import is_complete, resume_here, resumed_config
    from workbench.cells.watch import watch
    from workbench.store import open_run

    run, settings = open_run(args.run_path), _overrides(args.settings)
    config, _ = resumed_config(run, settings)
    if is_complete(run, config):
        print(f"{run.path} is already complete: {len(run.steps())} steps; nothing was changed")
        return 0
    with watch(config.train.steps, label=run.name, done=len(run.steps())) as eyes:
        run = resume_here(run.path, settings, on_step=eyes.on_step, on_score=eyes.on_score, on_note=eyes.bar.say)
    _tell_the_end(run)
    return 0


def _evaluate(args: argparse.Namespace) -> int:
    from workbench.cells.evaluate import evaluate, evaluation_report
    from workbench.config import from_dict
    from workbench.session import open_session
    from workbench.store import open_run
    from workbench.views import show_evaluation

    session, scores = _session(args.source, args.settings, args.step), []
    size = {"num_tasks": args.tasks, "attempts": args.attempts}
    if _is_run(args.source):  # the policy it started from, on the same tasks, beside it (law 12)
        untrained = open_session(from_dict(open_run(args.source).config))
        scores += evaluate(untrained, name="untrained", **size)
    scores += evaluate(session, name="trained" if scores else "untrained", **size)
    report = evaluation_report(session, scores, **size)
    print(json.dumps(report, indent=1) if args.json else show_evaluation(report["rows"], report["paired"]).text)
    return 0


def _rollout(args: argparse.Namespace) -> int:
    from workbench.cells.rollout import rollout
    from workbench.views import show_group, show_tokens, show_trajectory

    session = _session(args.source, args.settings)
    for group in rollout(session, args.tasks, group_size=args.group):
        print(show_group(group).text)
        for trajectory in group:
            print((show_tokens(trajectory, session.chat.token_texts) if args.tokens
                   else show_trajectory(trajectory)).text)
    return 0


def _replay(args: argparse.Namespace) -> int:
    from workbench.config import from_dict
    from workbench.replay import replay_step
    from workbench.store import open_run

    run = open_run(args.run_path)
    report = replay_step(run, args.step, from_dict(run.config).algorithm)
    print(report.text)
    return 0 if report.equal else 1


def _show(args: argparse.Namespace) -> int:
    from workbench.cells.show import show_run, show_step
    from workbench.errors import ConfigError
    from workbench.imported import looks_like_rollouts
    from workbench.store import open_run

    if not (args.run_path / "run.json").exists() and looks_like_rollouts(args.run_path):
        return _show_rollouts(args)
    if args.tokenizer is not None:
        raise ConfigError("--tokenizer is for rollouts of another framework; a run names its own policy")
    run = open_run(args.run_path)
    if args.step is None and (args.task is not None or args.attempt is not None or args.tokens):
        raise ConfigError("--task, --attempt and --tokens look at one step; name it: workbench show RUN STEP")
    view = show_run(run) if args.step is None else show_step(
        run, args.step, task=args.task or 0, attempt=args.attempt, tokens=args.tokens)
    _put(view, args.html)
    return 0


def _show_rollouts(args: argparse.Namespace) -> int:
    from workbench.cells.show import show_rollouts
    from workbench.errors import ConfigError

    if args.step is not None or args.task is not None:
        raise ConfigError(f"{args.run_path} holds rollouts of another framework, which have no steps or tasks to choose from; "
                          "name an attempt: workbench show PATH --attempt 0")
    _put(show_rollouts(args.run_path, attempt=args.attempt, tokenizer=args.tokenizer), args.html)
    return 0


def _put(view, html: Path | None) -> None:
    """Print a view, or write it as a page of its own."""
    if html is None:
        return print(view.text)
    from workbench.writer import make_folder, write_file

    make_folder(html.absolute().parent)
    page = f'<!doctype html><meta charset="utf-8">{view.html}\n'
    write_file(html, replace=True, content=page.encode("utf-8", "replace"))
    print(html)


def _lint(args: argparse.Namespace) -> int:
    from workbench.cells.lint import lint
    from workbench.errors import ConfigError
    from workbench.session import open_session

    if _is_config(args.source):
        if args.step is not None or args.start:
            raise ConfigError("--step and --start are for run folders; a preset is sampled from, and tried in full")
        found = lint(open_session(_config(args.source, args.settings)))
    elif args.settings:
        raise ConfigError("--set changes a preset or a .toml file; what is stored is looked at as it is")
    else:
        found = lint(Path(args.source), step=args.step, start=args.start)
    if args.json:
        print(json.dumps(found.report.as_dict(), indent=1))
    else:
        _put(found.view(), args.html)
    return 0 if found.ok else 1


def _is_config(source: str) -> bool:
    from workbench.config import PRESETS

    return source in PRESETS or source.endswith(".toml")


def _diff(args: argparse.Namespace) -> int:
    from workbench.cells.show import diff_runs
    from workbench.run_diff import compare_runs
    from workbench.store import open_run
    from workbench.views import show_diff

    a, b = open_run(args.run_path), open_run(args.other_path)
    diff = compare_runs(a, b, exact=args.exact)
    _put(show_diff(diff) if args.html is None else diff_runs(a, b, exact=args.exact), args.html)
    return 0 if diff.equal else 1


def _export(args: argparse.Namespace) -> int:
    from workbench.cells.export import export_run

    print(export_run(args.run_path, args.to, args.out).text)
    return 0


def _play(args: argparse.Namespace) -> int:
    from workbench.cells.play import play
    from workbench.config import nearest
    from workbench.envs import PRESETS
    from workbench.errors import ConfigError
    from workbench.policy import load_tokenizer
    from workbench.views import show_trajectory

    if args.env not in PRESETS:
        raise ConfigError(f"no environment {args.env!r}; {nearest(args.env, PRESETS)}")
    def echoing(question: str) -> str:  # what is piped in is not seen otherwise
        typed = input(question)
        print(typed)
        return typed

    print("You are the policy and see what it sees. Type the answer (Right || Down), or the whole text with its tags; "
          "Ctrl-D ends.\n")
    trajectory = play(PRESETS[args.env], load_tokenizer(args.tokenizer), task_seed=args.seed,
                      ask=input if sys.stdin.isatty() else echoing)
    print(f"\n{show_trajectory(trajectory).text}")
    return 0


def _pretrain(args: argparse.Namespace) -> int:
    from workbench import pretrain

    if args.check:
        report = pretrain.check(args.name, quick=args.quick)
        print(report.text)
        return 0 if report.passed else 1
    out = args.out or Path("runs/policies") / args.name
    pretrain.pretrain(args.name, out, seed=args.seed)
    print(out)
    return 0


def _doctor(args: argparse.Namespace) -> int:
    from workbench.doctor import doctor
    from workbench.errors import ConfigError

    if args.plan is not None:
        from workbench.doctor.plan import plan

        if args.policy is not None:
            raise ConfigError("--plan takes the policy from its config: --set policy.name=...; --policy is for the trials")
        report = plan(_config(args.plan, args.settings))
    elif args.settings:
        raise ConfigError("--set changes the config of --plan CONFIG; without it doctor looks at the machine alone")
    else:
        report = doctor(args.policy)
    print(json.dumps(report.as_dict(), indent=1) if args.json else report.text)
    return 0 if report.ok else 1


def _bias(args: argparse.Namespace) -> int:
    from workbench.cells.bias import bias_bench

    report = bias_bench(args.algorithm or None)
    if args.json is not None:
        from workbench.writer import make_folder, write_file

        make_folder(args.json.absolute().parent)
        write_file(args.json, replace=True, content=json.dumps(report.as_dict(), indent=1).encode())
    _put(report.view, args.html)
    return 0 if report.passed else 1


def _audit(args: argparse.Namespace) -> int:
    from workbench.cells.audit import audit_opened
    from workbench.store import open_run

    session = _session(args.source, args.settings, args.step)
    run = open_run(args.source) if _is_run(args.source) else None
    report = audit_opened(session, run, tasks=args.tasks, attempts=args.attempts)
    if args.json:
        print(json.dumps(report.as_dict(), indent=1))
    else:
        _put(report.view, args.html)
    return 0 if report.clean else 1


def _demo(args: argparse.Namespace) -> int:
    from workbench.cells.demo import demo
    from workbench.errors import ConfigError
    from workbench.views import show_demo

    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ConfigError("the demo runs in one process; for several, torchrun ... -m workbench.cli train")
    config = _config(args.task, args.settings)
    out = args.out or Path("runs") / f"demo-{args.task}-{time.strftime('%Y%m%d-%H%M%S')}"
    table: dict[str, Any] = demo(config, args.seeds, out, _train_with_progress)
    print(show_demo(table).text)
    print(f"\ntable: {out / 'table.json'}\nlook at a run: workbench show {shlex.quote(f'{out}/seed-{args.seeds[0]}')}")
    return 0 if table["learned"] else 1


if __name__ == "__main__":
    sys.exit(main())
