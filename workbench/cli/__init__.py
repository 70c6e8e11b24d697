"""`workbench ...` in a terminal. Every command is one call of a function that notebooks call, too.

Exit status: 0 done, 1 the answer is no (a replay differs, a demo did not learn, a check failed), 2
a usage or input error, 3 an unexpected error (`last_resort`), 130 stopped by Ctrl-C, 143 by
SIGTERM, 129 by SIGHUP, 131 by SIGQUIT (a run then keeps its committed steps, and `resume` continues
it).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Iterator

from workbench.basics.beside import leave_working_folder, look_here
from workbench.cli.terminal import spell_controls

# Tiny models lose most of their speed to thread barriers; more threads are a choice, not an accident.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(argv: list[str] | None = None) -> int:
    """The exit status. Called for a process of its own (no `argv`), also make sure that the process ends."""
    status = 3
    if argv is None:
        leave_working_folder()
        for stream in (sys.stdout, sys.stderr):
            spell_controls(stream)
    try:
        status = run(argv)
    except ImportError as error:  # of what everything needs, numpy say; else `run` has said it
        mended = "pip install --force-reinstall agent-rl-workbench"
        print(f"workbench: {error}: {mended}", file=sys.stderr)
        status = 2
    finally:
        if argv is None:
            from workbench.cli.ending import end_in_spite_of_threads

            end_in_spite_of_threads(status)
    return status


def run(argv: list[str] | None) -> int:
    """Parse, call the command, and say what went wrong; returns the exit status."""
    from workbench.look.escape import visible
    from workbench.training.signals import stop_on_signals
    from workbench.values.errors import WorkbenchError, shortened

    rank = os.environ.get("RANK", "0")
    world = os.environ.get("WORLD_SIZE", "1")
    where = f" (process {rank} of {world})" if world != "1" else ""
    args = None
    try:
        args = _parsed(argv)
        with contextlib.ExitStack() as stack:
            if rank != "0":
                stack.enter_context(_quiet())
            stack.enter_context(stop_on_signals(*_stopping()))
            look_here()  # for my_env.py
            return args.run(args)
    except WorkbenchError as error:
        print(f"workbench{where}: {type(error).__name__}: {visible(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        if rank == "0":
            reason = str(stop) or "interrupted; committed steps are kept"
            print(f"workbench: {reason}", file=sys.stderr)
        return 128 + getattr(stop, "signal", signal.SIGINT)
    except BrokenPipeError:  # `workbench show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except SystemExit as asked:
        if args is None:  # of the parser, which has said why
            raise
        # Code of the user's, which the command calls: no status of its own may pass for the
        # command's answer.
        print(
            f"workbench{where}: code that the command called asked the process to end "
            f"(SystemExit: {shortened(asked.code)}); an environment, a tool or an algorithm says "
            "what is wrong by an error, not by sys.exit()",
            file=sys.stderr,
        )
        return 2
    except BaseException as error:  # also what a library in Rust raises that breaks down
        if world != "1" and _is_of_a_lost_process(error):
            print(f"workbench{where}: another process ended, so this one does too", file=sys.stderr)
            return 2
        from workbench.cli.last_resort import report_crash

        return report_crash(error, where)


def _stopping() -> list[int]:
    """The signals that ask a command to stop. Those of a terminal (it is closed; Ctrl-\\) too,
    unless whoever started the process has it go on without one (`nohup`)."""
    numbers = [signal.SIGTERM, signal.SIGINT]
    for name in ("SIGHUP", "SIGQUIT"):
        number = getattr(signal, name, None)  # not on Windows
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            numbers.append(number)
    return numbers


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Print nothing but errors: under torchrun the first process alone speaks."""
    os.environ["WORKBENCH_PROGRESS"] = "quiet"
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def _parsed(argv: list[str] | None) -> argparse.Namespace:
    """The arguments. Exits with status 2 for those that no command takes."""
    from workbench.cli.parser import make_parser

    parser = make_parser()
    args, unread = parser.parse_known_args(argv)
    if unread:
        hint = ""
        if all("=" in word and not word.startswith("-") for word in unread):
            hint = (
                "; each setting has a --set of its own: --set train.steps=5 --set learner.lr=1e-4"
            )
        parser.error(f"unrecognized arguments: {' '.join(unread)}{hint}")
    return args


def _is_of_a_lost_process(error: BaseException) -> bool:
    """Whether torch says that another process is gone, which has printed why."""
    return isinstance(error, RuntimeError) and "peer" in str(error)
