"""`workbench ...`: the terminal door. Every command is one call into the cells that notebooks use.

Exit status: 0 done, 1 the answer is no (a replay differs, a demo did not learn, a check failed), 2 a usage or input
error, 3 something that nobody expected (`last_resort`), 130 stopped by Ctrl-C, 143 stopped by SIGTERM (a run then keeps
its committed steps, and `resume` goes on).
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from workbench.cli.parser import make_parser

# Tiny models lose most of their speed to thread barriers; more threads are a choice, not an accident.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def main(argv: list[str] | None = None) -> int:
    """The exit status. As a process's own door (no `argv`) it also sees to it that the process ends."""
    status = 3
    try:
        status = run(argv)
    finally:
        if argv is None:
            from workbench.cli.ending import end_in_spite_of_threads

            end_in_spite_of_threads(status)
    return status


def run(argv: list[str] | None) -> int:
    """Parse, call the command, and say what went wrong."""
    from workbench.training.signals import stop_on_signals
    from workbench.types.errors import WorkbenchError

    parser = make_parser()
    args, unread = parser.parse_known_args(argv)
    if unread:
        several = all("=" in each and not each.startswith("-") for each in unread)
        parser.error(
            f"unrecognized arguments: {' '.join(unread)}"
            + (
                "; each setting has a --set of its own: --set train.steps=5 --set learner.lr=1e-4"
                if several
                else ""
            )
        )
    rank, world = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    where = f" (process {rank} of {world})" if world != "1" else ""
    try:
        with contextlib.ExitStack() as stack:
            if (
                rank != "0"
            ):  # under torchrun the first process speaks; the others only of what went wrong
                os.environ["WORKBENCH_PROGRESS"] = "quiet"
                stack.enter_context(
                    contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w")))
                )
            stack.enter_context(stop_on_signals(signal.SIGTERM, signal.SIGINT))
            if not {"", os.getcwd()} & set(
                sys.path
            ):  # `workbench` finds my_env.py where `python -m workbench.cli` does
                sys.path.append(os.getcwd())
            return args.run(args)
    except WorkbenchError as error:
        print(f"workbench{where}: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as asked:
        if rank == "0":
            print(
                f"workbench: {str(asked) or 'interrupted; committed steps are kept'}",
                file=sys.stderr,
            )
        return 128 + getattr(asked, "signal", signal.SIGINT)
    except BrokenPipeError:  # `workbench show ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if (
            world != "1" and isinstance(error, RuntimeError) and "peer" in str(error)
        ):  # torch's way of saying that another
            print(
                f"workbench{where}: another process ended, so this one does too", file=sys.stderr
            )  # one has said why
            return 2
        from workbench.cli.last_resort import told

        return told(error, where)
