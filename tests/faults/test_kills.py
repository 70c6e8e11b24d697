"""A training run that dies, anywhere, and is resumed: to the last byte the run that nobody interrupted.

The fuller counts are in `full` (.ci/run) and in `make soak`.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.faults import killing
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run

ROOT = Path(__file__).resolve().parents[2]
TINY = {
    "train__steps": 2,
    "train__tasks_per_step": 2,
    "train__group_size": 3,
    "train__checkpoint_every": 1,
    "train__evaluate_every": 1,
    "evaluation__num_tasks": 2,
}

# How things stand after an error: before the rename, after it, and while a folder is deleted that is gone already.
STANDING = (
    "What was there before is untouched",
    "It is done, but a power cut may still undo it",
    "It is out of sight already; the next one who writes here removes what is left of it",
)


@pytest.mark.parametrize(
    "kills, damaged, cases",
    [
        (2, 0, ["ppo-critic"]),
        pytest.param(40, 300, ["grpo", "ppo-critic", "grpo-minibatches"], marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_killed_at_random_and_resumed(kills, damaged, cases, tmp_path, capfd):
    """A program of its own: it forks, and a test worker has threads. What it counted is said, for the log of .ci/run."""
    command = [
        sys.executable,
        "-m",
        "tests.faults.soak",
        "--kills",
        str(kills),
        "--damaged",
        str(damaged),
        "--folder",
        str(tmp_path),
        "--case",
        *cases,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    with capfd.disabled():
        print(f"\n{done.stdout.splitlines()[-1]}", file=sys.stderr, flush=True)
    assert (
        "passed: seed 0" in done.stdout
        and f"{kills} kills" in done.stdout
        and " 0 lost" in done.stdout
    )
    assert f"{damaged} damaged checkpoints, 0 not refused; 0 faults" in done.stdout


def break_everywhere(folder: Path, numbers, *, error: int | None = None) -> int:
    """Train with a fault before the n-th system call, for each n of `numbers` until there are no more calls; resume, with
    another fault somewhere in that; resume, and compare. Returns how many first faults there were."""
    config, case = killing.config_of("grpo", **TINY), "grpo"
    killing.opened(case)
    whole = folder / "whole"
    assert killing.in_child(lambda: killing.start_or_resume(case, whole, config)).status == 0
    expected, faults = killing.lines_of(whole), 0
    for number in numbers:
        path = folder / f"broken-{number}"
        first = faulty(case, path, config, number, error)
        before = killing.lines_of(path)
        assert expected.startswith(before)
        faulty(
            case, path, config, 1 + 7 * number % 31, error
        )  # what a resumed run does first: sweep, set aside, prune
        assert killing.lines_of(path).startswith(before) and expected.startswith(
            killing.lines_of(path)
        )
        faults += first.status != 0
        again = killing.in_child(lambda: killing.start_or_resume(case, path, config))  # noqa: B023
        assert again.status == 0, f"call {number}: {again.words}"
        difference = compare_runs(open_run(whole), open_run(path), exact=True)
        assert difference.equal, f"call {number}: {difference.first}"
        assert not list(path.rglob(".t*-*")), "a temporary stayed behind"
        shutil.rmtree(path)
        if not first.status and not first.words:
            break
    return faults


def faulty(case: str, path: Path, config, number: int, error: int | None) -> killing.Ending:
    """Start or resume with a fault before the n-th system call; what it says is as it should be."""

    def broken():
        killing.break_at(number, error=error)
        killing.start_or_resume(case, path, config)

    ending = killing.in_child(broken)
    if error is None:
        assert ending.status in (killing.BROKEN, 0), ending.words
    elif ending.status:
        assert ending.status == 2, ending.words
        assert str(path.parent) in ending.words and "StoreError" in ending.words, ending.words
        assert os.strerror(error) in ending.words, ending.words
        if (
            "cannot be read" not in ending.words
        ):  # a disk that refuses to read says nothing of room and of what stands
            assert "bytes are free" in ending.words, ending.words
            assert any(words in ending.words for words in STANDING), ending.words
    return ending


@pytest.mark.parametrize(
    "first, stride",
    [  # in `full` every fourth; `make soak` kills anywhere, 500 times
        (2, 97),
        pytest.param(1, 8, marks=pytest.mark.full),
        pytest.param(5, 8, marks=pytest.mark.full),
    ],
)
def test_dead_before_the_nth_system_call_of_a_whole_run(tmp_path, first, stride):
    """Not of a file or a step, but of training with evaluations and checkpoints: nothing in between may matter."""
    faults = break_everywhere(tmp_path, range(first, 1000, stride))
    assert faults >= 100 // stride


@pytest.mark.full
@pytest.mark.parametrize(
    "error, first, stride",
    [
        (errno.ENOSPC, 9, 89),
        pytest.param(errno.ENOSPC, 1, 11, marks=pytest.mark.full),
        pytest.param(errno.EIO, 2, 11, marks=pytest.mark.full),
    ],
)
def test_a_full_or_faulty_disk_at_the_nth_system_call_of_a_whole_run(
    tmp_path, error, first, stride
):
    faults = break_everywhere(tmp_path, range(first, 1000, stride), error=error)
    assert faults >= 100 // stride


@pytest.mark.parametrize("past_the_writer", [None, "a line", "a tensor"])
def test_while_it_trains_only_the_writer_writes(tmp_path, past_the_writer):
    """What reading the source for calls cannot see: libraries, and files that are opened by another name. The
    interpreter reports each opening, renaming and removing, and somebody in `workbench.run.writer` must have asked for it;
    what is written below the interpreter is seen by its name, which the writer never opened."""
    case, config = "ppo-critic", killing.config_of("ppo-critic", **TINY)
    killing.opened(case)

    def watched():
        found, written = [], set()
        sys.addaudithook(lambda event, facts: notice(event, facts, found, written))
        if past_the_writer == "a line":
            (tmp_path / "note").write_text("x")
        elif past_the_writer:
            torch.save(torch.zeros(2), tmp_path / "note")
        killing.start_or_resume(case, tmp_path / "run", config)
        there = [path for path in tmp_path.rglob("*") if path.is_file()]
        found += [str(path) for path in there if path.name not in written]
        assert not found, found

    ending = killing.in_child(watched)  # a hook cannot be taken off again
    assert (ending.status, "note" in ending.words) == (
        (3, True) if past_the_writer else (0, False)
    ), ending.words
    assert open_run(tmp_path / "run").steps() == [1, 2]


def notice(event: str, facts: tuple, found: list[str], written: set[str]) -> None:
    """Sort an audit event that changes something on a disk: `written` gets the names of files that the writer opened,
    `found` what somebody else did. What Python compiles and the null device are no one's record."""
    if event == "open":
        name, _, flags = facts
        if isinstance(name, int) or not flags & (
            os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        ):
            return
    elif event not in (
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.truncate",
        "os.link",
        "os.symlink",
    ):
        return
    if "__pycache__" in str(facts[0]) or str(facts[0]) == os.devnull:
        return
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith("workbench/run/writer.py"):
        frame = frame.f_back
    if frame is None:
        found.append(f"{event} {facts}")
    elif event == "open":
        written.add(re.sub(r"^\.tmp-(.*)-[0-9a-f]{8}$", r"\1", Path(name).name))


def test_the_harness_notices_a_run_that_is_not_the_same(tmp_path):
    """Negative control: resumed with another seed's policy noise, that is, another run altogether."""
    config = killing.config_of("grpo", **TINY)
    for name, seed in (("a", 0), ("b", 1)):
        other = killing.config_of("grpo", seed=seed, **TINY)
        assert (
            killing.in_child(lambda: killing.start_or_resume("grpo", tmp_path / name, other)).status
            == 0
        )  # noqa: B023
    assert config.seed == 0
    assert not compare_runs(open_run(tmp_path / "a"), open_run(tmp_path / "b"), exact=True).equal
