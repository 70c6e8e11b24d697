"""Every job is done once, whoever is killed: the next driver goes on with what is missing."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.ablation import quick
from tests.faults.server_soak import processes
from workbench.extensions.ablation import door, work
from workbench.extensions.ablation.drive import (
    DONE,
    RUNNING,
    WAITING,
    JobSettings,
    drive,
    states,
    tally,
)
from workbench.extensions.ablation.jobs import Lost
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.schedulers import each
from workbench.run.writer import FolderLock
from workbench.values.errors import StoreError

ROOT = Path(__file__).resolve().parents[2]
HERE = JobSettings(workers=0, do=quick.do)


def said_by(run, *args, **options):
    lines: list[str] = []
    run(*args, say=lines.append, **options)
    return "\n".join(lines)


def records(out: Path) -> dict[str, bytes]:
    """What every job found; the time that it took is left out."""
    found = {
        path.name: json.loads(path.read_text()) for path in sorted((out / "jobs").glob("*.json"))
    }
    return {
        name: json.dumps(
            {key: value for key, value in one["content"].items() if key != "cpu_seconds"}
            if "content" in one
            else one.get("result", one),
            sort_keys=True,
        )
        for name, one in found.items()
    }


def ends(out: Path) -> list[str]:
    return [json.loads(line)["job"] for line in (out / "ended.jsonl").read_text().splitlines()]


def test_what_is_done_stays_done_and_every_state_is_told(tmp_path):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    assert [one.state for one in states(plan, plan.seeds, out)] == [WAITING] * 6
    said = said_by(drive, plan, plan.seeds, out, tmp_path, HERE)
    assert "6 runs, 0 done before" in said and "[6/6] lr-0.2, seed 2" in said
    found = states(plan, plan.seeds, out)
    assert tally(found) == "6 jobs: 6 done" and len(ends(out)) == 6
    assert not list((out / work.LOCKS).glob(f"*/{work.BUSY}"))
    assert (
        "6 runs, 6 done before" in said_by(drive, plan, plan.seeds, out, tmp_path, HERE)
        and len(ends(out)) == 6
    )


def test_jobs_of_other_code_are_counted_by_that_reason(tmp_path, monkeypatch):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    drive(plan, plan.seeds, out, tmp_path, HERE, lambda line: None)
    monkeypatch.setattr(quick.work, "code_fingerprint", lambda: "another")
    assert tally(states(plan, plan.seeds, out)) == (
        "6 jobs: 6 waiting; 6 of those waiting were done by other code of the package "
        "and will be done again"
    )


def test_a_failure_waits_for_retry_and_may_end_all(tmp_path):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    (tmp_path / "fail").write_text("0.1")
    said = said_by(
        drive,
        plan,
        plan.seeds,
        out,
        tmp_path,
        JobSettings(workers=0, do=quick.do, stop_at_first_failure=True),
    )
    assert (
        "[1/6] lr-0.1, seed 0: FAILED: ValueError: no (in the cell `1 / 0`)" in said
        and "stopped at the first" in said
    )
    assert tally(states(plan, plan.seeds, out)) == "6 jobs: 5 waiting, 1 failed"
    drive(plan, plan.seeds, out, tmp_path, HERE, lambda line: None)
    assert tally(states(plan, plan.seeds, out)) == "6 jobs: 3 done, 3 failed"
    (tmp_path / "fail").unlink()
    assert "3 failed before (--retry" in said_by(drive, plan, plan.seeds, out, tmp_path, HERE)
    assert "3 failed before and are tried again" in said_by(
        drive, plan, plan.seeds, out, tmp_path, JobSettings(workers=0, do=quick.do, retry=True)
    )
    found = states(plan, plan.seeds, out)
    assert tally(found) == "6 jobs: 6 done" and sorted(one.tries for one in found) == [
        1,
        1,
        1,
        2,
        2,
        2,
    ]


def test_a_job_is_one_processs_and_who_comes_after_a_killed_one_waits_for_what_that_started(
    tmp_path, monkeypatch
):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    first = states(plan, plan.seeds, out)[0]
    where = work.JobPlace(plan, out, tmp_path, None, quick.do)
    folder = out / work.LOCKS / first.name
    waited: list[float] = []
    other = threading.Thread(target=work.do_alone, args=(work.SentJob(first.job), where))
    with work._held(folder):
        assert states(plan, plan.seeds, out)[0].state == RUNNING
        assert states(plan, plan.seeds, out)[0].why.startswith(f"process {os.getpid()} on ")
        other.start()
        time.sleep(0.5)
        assert not (out / "begun.jsonl").exists(), "a job that is held was begun"
    other.join()
    assert [one.state for one in states(plan, plan.seeds, out)] == [DONE, *[WAITING] * 5]
    monkeypatch.setattr(work.time, "sleep", waited.append)
    with work._held(folder):
        assert not waited
    (folder / work.BUSY).touch()  # as a killed holder leaves it
    with work._held(folder):
        assert waited == [work.AFTERLIFE_S]


def test_a_job_that_was_done_before_it_was_begun_here_is_not_done_again(tmp_path):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    where = work.JobPlace(plan, out, tmp_path, None, quick.do)
    first, second = (work.SentJob(one.job) for one in states(plan, plan.seeds, out)[:2])
    done = work.do_alone(first, where)
    assert work.do_alone(first, where) == done and len(ends(out)) == 1
    (tmp_path / "fail").write_text("0.1")
    failed = work.do_alone(second, where)
    assert failed["tries"] == 1 and work.do_alone(second, where) == failed
    (tmp_path / "fail").unlink()
    retried = work.do_alone(work.SentJob(second.job, tries=1), where)
    assert retried["tries"] == 2 and "failed" not in retried, "a retry is a try of its own"


def test_one_driver_has_a_grid_and_the_next_one_is_refused_until_its_end(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = door.ask(quick.plan_at(tmp_path), tmp_path / "out")
    (tmp_path / "out").mkdir()
    lock = FolderLock(asked.out)
    with pytest.raises(StoreError, match=f"written by process {os.getpid()} on"):
        door.carry_out(asked, HERE, lambda line: None)
    assert not ([*asked.out.glob("jobs/*")] + [*asked.out.glob("*.tsv")])
    lock.release()
    door.carry_out(asked, HERE, lambda line: None)
    assert len(ends(asked.out)) == 6


class Losing:
    """A scheduler that loses every call so many times; each ends when it is looked at."""

    def __init__(self, losses):
        self.left = losses
        self.cancelled: list[object] = []

    def submit(self, do, *arguments):
        return (object(), do, arguments)

    def ended(self, handles):
        return [*handles][:1]

    def outcome(self, handle):
        self.left -= 1
        return Lost("gone") if self.left >= 0 else handle[1](*handle[2])

    def cancel(self, handles):
        self.cancelled += handles


def test_what_was_lost_is_sent_again_and_not_for_ever():
    assert [*each("a", str.upper, (), Losing(2), 2)] == [
        ("a", Lost("gone", True)),
        ("a", Lost("gone", True)),
        ("a", "A"),
    ]
    assert [*each("a", str.upper, (), Losing(9), 2)][-1] == ("a", Lost("gone", False))
    assert len([*each("a", str.upper, (), Losing(9), 2)]) == 3
    assert [*each("a", str.upper, (), Losing(1), 2, lambda: True)] == [("a", Lost("gone"))]


def test_what_is_under_way_is_cancelled_where_its_driver_stops():
    scheduler = Losing(0)
    outcomes = each("abcd", str.upper, (), scheduler, 3)
    assert next(outcomes) == ("a", "A")
    outcomes.close()
    assert [handle[2] for handle in scheduler.cancelled] == [("b",), ("c",)]


def test_results_that_a_killed_driver_did_not_write_are_written_by_the_next(tmp_path, monkeypatch):
    out = tmp_path / "out"
    asked = door.ask(quick.plan_at(tmp_path), out)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fail").write_text("0.1")
    door.carry_out(asked, HERE, lambda line: None)
    (tmp_path / "fail").unlink()
    drive(
        asked.plan,
        asked.seeds,
        out,
        tmp_path,
        JobSettings(workers=0, do=quick.do, retry=True),
        lambda line: None,
    )
    assert (out / "results.tsv").read_text().count("\tfailed\t") == 3, (
        "as a driver leaves it that is killed here"
    )
    door.carry_out(asked, HERE, lambda line: None)
    assert (out / "results.tsv").read_text().count("\tdone\t") == 6
    before = (out / "results.tsv").stat().st_mtime_ns
    door.carry_out(asked, HERE, lambda line: None)
    assert (out / "results.tsv").stat().st_mtime_ns == before, (
        "what is told already is not read again from every run"
    )


def driver(path: str, out: str, workers: int) -> None:
    os.setpgid(0, 0)
    plan = read_plan(Path(path))
    drive(
        plan,
        plan.seeds,
        Path(out),
        Path(path).parent,
        JobSettings(workers=workers, do=quick.do),
        lambda line: None,
    )


def children(pid: int) -> list[int]:
    try:
        found = [
            int(one)
            for task in Path(f"/proc/{pid}/task").iterdir()
            for one in (task / "children").read_text().split()
        ]
    except OSError:
        return []
    return found + [one for child in found for one in children(child)]


def wait_for_work(out: Path, deadline_s: float) -> None:
    """Until another job has begun: on a busy machine a process takes seconds to start, and killing it then proves nothing."""

    def begun() -> int:
        return (
            (out / "begun.jsonl").read_bytes().count(b"\n")
            if (out / "begun.jsonl").is_file()
            else 0
        )

    before, until = begun(), time.monotonic() + deadline_s
    while (
        begun() == before
        and time.monotonic() < until
        and any(one.is_alive() for one in multiprocessing.active_children())
    ):
        time.sleep(0.05)


@pytest.mark.full
@pytest.mark.parametrize(("seeds", "kills"), [(2, 2), (30, 20)])
def test_no_job_is_lost_or_done_twice_whoever_is_killed(tmp_path, monkeypatch, seeds, kills):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    path = quick.plan_at(tmp_path, quick.PLAN.replace("seeds = 3", f"seeds = {seeds}"))
    plan, calm, out = read_plan(path), tmp_path / "calm", tmp_path / "out"
    drive(plan, plan.seeds, calm, tmp_path, HERE, lambda line: None)
    spawn, random = multiprocessing.get_context("spawn"), np.random.default_rng(seeds)
    workers = 1 if seeds < 10 else 2
    for left in range(kills, -1, -1):
        one = spawn.Process(target=driver, args=(str(path), str(out), workers))
        one.start()
        if left:
            wait_for_work(out, deadline_s=30)
            time.sleep(float(random.uniform(0, 0.3)))
            victims = [one.pid] if random.random() < 0.5 else children(one.pid)
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                os.kill(int(random.choice(victims or [one.pid])), signal.SIGKILL)
        one.join(600)
        if one.exitcode == 0 and not left:
            break
    assert tally(states(plan, plan.seeds, out)) == f"{2 * seeds} jobs: {2 * seeds} done"
    assert records(out) == records(calm), "killing changed a result"
    assert len(ends(out)) == len({*ends(out)}), "a job was done twice"


def workers_of(folder: Path) -> list[str]:
    return [words for _, _, words in processes() if "submitit" in words and f"{folder}" in words]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_driver_that_is_ended_leaves_no_process(tmp_path, number):
    path, out = quick.plan_at(tmp_path), tmp_path / "out"
    code = (
        "import signal, sys; from tests.ablation.test_drive import driver\n"
        # What a shell begins in the background ignores this signal, and so does whatever it begins.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "driver(*sys.argv[1:3], 2)"
    )
    (tmp_path / "temporary").mkdir()
    one = subprocess.Popen(
        [sys.executable, "-c", code, str(path), str(out)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "temporary")},
    )
    until = time.monotonic() + 120
    while not (out / "begun.jsonl").is_file() and time.monotonic() < until:
        time.sleep(0.05)
    assert workers_of(tmp_path)
    one.send_signal(number)
    until = time.monotonic() + 30
    assert one.wait(30) != 0
    while workers_of(tmp_path) and time.monotonic() < until:
        time.sleep(0.2)
    assert not workers_of(tmp_path)


def test_a_driver_can_be_told_to_begin_no_other_job(tmp_path):
    plan, out, stop = read_plan(quick.plan_at(tmp_path)), tmp_path / "out", threading.Event()
    drive(
        plan,
        plan.seeds,
        out,
        tmp_path,
        HERE,
        lambda line: stop.set() if line.startswith("[2/") else None,
        stop,
    )
    assert tally(states(plan, plan.seeds, out)) == "6 jobs: 2 done, 4 waiting"
    drive(
        plan,
        plan.seeds,
        out,
        tmp_path,
        JobSettings(workers=0, do=quick.do, most=1),
        lambda line: None,
    )
    assert tally(states(plan, plan.seeds, out)) == "6 jobs: 3 done, 3 waiting"
