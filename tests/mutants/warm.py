"""pytest (or another program) in a child that has the heavy libraries imported already: most of a mutant's time would
be importing torch.

One server process imports what the package builds on (never the package itself) and forks a child for each run of
tests. What a child must not share with the server is set right in it: folder, environment, import path, and the modules
of the tree that the server came from.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from multiprocessing import connection
from multiprocessing.context import ForkServerContext
from pathlib import Path

HEAVY = (
    "torch",
    "transformers",
    "accelerate",
    "pandas",
    "pyarrow.parquet",
    "hypothesis",
    "pytest",
    "safetensors.torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.qwen3.modeling_qwen3",
)
OURS = ("workbench", "tests")  # modules that must come from the copy
# Starting a child also polls those of other threads, and a child's status can be read only once: whoever comes second
# is told 255 (CPython's popen_forkserver). So one thread at a time.
ONE_AT_A_TIME = threading.Lock()


def server() -> ForkServerContext:
    """A context whose processes are forked from one that has imported HEAVY. What is imported reads the environment
    once, so threads are limited here."""
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(HEAVY))
    return context


def run_pytest(
    context: ForkServerContext,
    copy: Path,
    env: dict[str, str],
    arguments: list[str],
    timeout: float,
) -> tuple[int | None, str]:
    """(exit status, output) of pytest in the folder `copy`; see `run_module`."""
    return run_module(context, copy, env, "pytest", arguments, timeout)


def run_module(
    context: ForkServerContext,
    copy: Path,
    env: dict[str, str],
    module: str,
    arguments: list[str],
    timeout: float,
) -> tuple[int | None, str]:
    """(exit status, output) of `main(arguments)` of a module, in the folder `copy`; status None: no answer within
    `timeout` seconds, and the child with all that it started was killed."""
    with tempfile.NamedTemporaryFile(
        "r", prefix="pytest-", suffix=".out", errors="replace"
    ) as output:
        child = context.Process(
            target=_child, args=(str(copy), env, module, arguments, output.name)
        )
        with ONE_AT_A_TIME:
            child.start()
        if late := not connection.wait([child.sentinel], timeout):
            _kill_group(child.pid)
            connection.wait([child.sentinel])
        with ONE_AT_A_TIME:
            child.join()
        return None if late else child.exitcode, output.read()


def kill_those_in(folder: Path) -> int:
    """Kill the processes that work in `folder`, and say how many: broken code may leave some, and a spinning one would
    slow down whatever is tried after it. Linux; elsewhere nothing is found."""
    killed = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder.resolve()):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it has ended, or is somebody else's
            continue
    return killed


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:  # it had not become a leader yet, or has ended by itself
        os.kill(pid, signal.SIGKILL)


def _child(copy: str, env: dict[str, str], module: str, arguments: list[str], output: str) -> None:
    os.setsid()
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.chdir(copy)
    os.environ.clear()
    os.environ.update(env)
    tree = str(Path(__file__).resolve().parents[2])
    sys.dont_write_bytecode = True
    sys.path[:] = [copy] + [
        path for path in sys.path if path not in ("", tree, os.path.join(tree, "tests"))
    ]
    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    import workbench

    if not Path(workbench.__file__).resolve().is_relative_to(Path(copy).resolve()):
        raise RuntimeError(f"expected `import workbench` to mean {copy}, got {workbench.__file__}")
    status = int(importlib.import_module(module).main(arguments))
    sys.stdout.flush()
    os._exit(status)  # like a fresh process: no clean-up that belongs to the server
