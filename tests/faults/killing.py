"""Training in forked children that are killed: at a random instant, before their n-th system call, or by a full disk.

torch is imported and the policy loaded once, in the parent; a child costs a fork. It starts the run, or resumes it if
the folder is there: what a person would type. fsync is switched off in the children: a killed process loses nothing
that the kernel has (what a power cut may take is simulated in tests/test_writer.py, test_store.py, test_checkpoint.py).
"""

from __future__ import annotations

import mmap
import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pandas  # noqa: E402, F401  (so that no child spends most of its life importing it)

from tests.faulty_disk import CALLS  # noqa: E402
from workbench.look.cells import train as calls  # noqa: E402
from workbench.run.store import open_run  # noqa: E402
from workbench.training import (
    resume,
    train,  # noqa: E402
)
from workbench.training.config import Config, load_config  # noqa: E402
from workbench.training.session import Session, open_session  # noqa: E402
from workbench.values.errors import WorkbenchError  # noqa: E402

_WRITE = (
    os.write
)  # the harness's own word is no call of the run: `break_at` neither counts nor breaks it
BROKEN = 9  # exit status of a child that `break_at` ended
TOLD = mmap.mmap(
    -1, 4
)  # shared with the children: the last step that the living child was told is committed
NEED_ROOM = ("open", "write", "mkdir", "link", "symlink")
SMALL = {
    "train.steps": 6,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 2,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 4,
    "lint.start": False,
}
CASES: dict[str, tuple[str, dict]] = {
    "grpo": ("bandit", {}),
    "grpo-minibatches": (
        "bandit",
        {"algorithm.epochs": 2, "algorithm.minibatches": 2, "learner.warmup_updates": 9},
    ),
    "ppo-critic": (
        "bandit",
        {"algorithm.kind": "ppo", "algorithm.epochs": 2, "algorithm.reference.kl_coef": 0.01},
    ),
    "ppo-shared-trunk": ("bandit", {"algorithm.kind": "ppo", "critic.trunk": "policy"}),
    "frozenlake-window": (
        "frozenlake",
        {"collect.history": "window", "collect.max_turn_tokens": 24, "env.max_moves": 4},
    ),
    # sessions are evicted, so what is computed depends on the room that an earlier, larger collect has left
    "frozenlake-tight-cache": (
        "frozenlake",
        {
            "engine.cache_tokens": 1536,
            "evaluation.num_tasks": 24,
            "train.evaluate_every": 1,
            "env.max_moves": 4,
        },
    ),
    "threads": ("bandit", {"collect.env_runner": "threads"}),
    "worker-processes": ("bandit", {"collect.env_runner": "processes"}),
}

# Answers that come by the wall clock change who is decoded beside whom, and with that the last bits: such a run is not
# promised to be bit-identical to another. What it has committed stays all the same, and is repeated exactly.
BY_THE_CLOCK = ("threads", "worker-processes")


@cache
def config_of(case: str, **settings) -> Config:
    preset, changes = CASES[case]
    return load_config(
        preset, SMALL | changes | {key.replace("__", "."): value for key, value in settings.items()}
    )


@cache
def _policy_of(name: str) -> Session:
    return open_session(config_of(name), quiet=True)


def opened(case: str) -> Callable[..., Session]:
    """`open_session` for a child: everything heavy was loaded by the parent, the engine and the learner are fresh."""
    ready = _policy_of(case)

    def open_again(config: Config, *, quiet: bool = False, keeps_first: bool = True) -> Session:
        return Session(config, ready.policy, ready.chat, ready.engine, keeps_first=keeps_first)

    return open_again


def break_at(number: int, *, error: int | None = None, lasting: bool = False) -> Callable[[], int]:
    """Before the `number`-th system call that writes (0: none), this process ends, as if killed; of a write, half is done.
    With `error` (ENOSPC, EIO ...) that one call fails with it instead. `lasting`, as a disk that is full stays full: counted
    are the calls that need room, half of what the `number`-th would write is written, and all after it fail. In a child
    only: `os` is changed. Gives a function that says how many calls were counted."""
    calls = 0

    def is_counted(name: str, args: tuple) -> bool:
        if lasting:
            return name in NEED_ROOM and (name != "open" or bool(args[1] & os.O_CREAT))
        return name != "open" or bool(
            args[1] & (os.O_CREAT | os.O_WRONLY | os.O_RDWR | os.O_DIRECTORY)
        )

    def wrap(name: str, real: Callable) -> Callable:
        def call(*args, **kwargs):
            nonlocal calls
            counted = is_counted(name, args)
            calls += counted
            if not counted or not number or calls < number or calls > number and not lasting:
                return real(*args, **kwargs)
            half = (
                memoryview(args[1]).cast("B")[: max(1, memoryview(args[1]).nbytes // 2)]
                if name == "write"
                else b""
            )
            if lasting and half and calls == number:
                return real(args[0], half)
            if error is not None:
                raise OSError(error, os.strerror(error), str(args[0]))
            if half:
                real(args[0], half)
            os._exit(BROKEN)

        return call

    for name in CALLS:
        setattr(os, name, wrap(name, getattr(os, name)))
    return lambda: calls


@dataclass(frozen=True)
class Ending:
    """How a child ended: exit status (-9: killed), what it said, how long it lived; `told`: the last new step that it
    was told is committed (0: none)."""

    status: int
    words: str
    seconds: float
    told: int


def start_or_resume(case: str, path: Path, config: Config | None = None) -> None:
    """What the child does. In the child only: modules are changed."""
    train.open_session = resume.open_session = opened(case)

    def tell(outcome) -> None:
        TOLD[:4] = outcome.step.to_bytes(4, "little")

    if path.exists():
        calls.resume_here(path, on_step=tell, on_note=None)
    else:
        calls.train_here(config or config_of(case), path, on_step=tell)


def in_child(
    act: Callable[[], None],
    *,
    kill_after_s: float | None = None,
    how: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
) -> Ending:
    """Do `act` in a forked child, SIGKILL it after `kill_after_s` if it still lives then (or do to it what `how` says)."""
    began, (read, write) = time.monotonic(), os.pipe()
    TOLD[:4] = bytes(4)
    pid = os.fork()
    if pid == 0:
        _live(act, write)
    os.close(write)
    end, said = None if kill_after_s is None else began + kill_after_s, b""
    while True:
        ready, _, _ = select.select(
            [read], [], [], None if end is None else max(0.0, end - time.monotonic())
        )
        if ready:
            chunk = os.read(read, 65536)
            said += chunk
            if not chunk:
                break
        elif end is not None:
            how(pid)
            end = None
    os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return Ending(
        status,
        said.decode("utf-8", "replace"),
        time.monotonic() - began,
        int.from_bytes(TOLD[:4], "little"),
    )


def _live(act: Callable[[], None], write: int) -> None:
    status, words = 3, ""
    os.fsync = lambda fd: None
    try:
        act()
        status = 0
    except WorkbenchError as error:
        status, words = 2, f"{type(error).__name__}: {error}"
    except BaseException:
        words = traceback.format_exc()
    finally:
        _WRITE(write, words.encode("utf-8", "replace")[:60_000])
        os._exit(status)


def reference(case: str, folder: Path) -> tuple[Path, float]:
    """The run that nobody interrupts, and how many seconds it takes."""
    path = folder / f"{case}-whole"
    ending = in_child(lambda: start_or_resume(case, path))
    if ending.status:
        raise RuntimeError(f"the run without any fault failed: {ending.words}")
    return path, ending.seconds


def lines_of(path: Path) -> bytes:
    """The whole lines of a run's metrics: what is committed."""
    file = path / "metrics.jsonl"
    data = file.read_bytes() if file.exists() else b""
    return data[: data.rfind(b"\n") + 1]


def where(path: Path) -> str:
    """What a kill hit, as far as the folder shows: so that the report can say what was covered."""
    if not path.exists():
        return "before the folder"
    if list((path / "checkpoints").glob(".t*")):
        return "in a checkpoint"
    if list(path.rglob(".t*")):
        return "in a file"
    run = open_run(path)
    evaluations = run.evaluations()
    if not evaluations:
        return "measuring the baselines"
    if run.uncommitted():
        return "in a step, trajectories stored"
    done = len(run.steps())
    if done and done % 2 == 0 and f"step-{done:08d}" not in evaluations:
        return "between commit and evaluation"
    return "while playing, or between steps"
