"""Every job is done once, whoever is killed: drivers share a folder, and take over what a killed one held."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.ablation import quick
from workbench.ablation import door, pool, work
from workbench.ablation import drive as driving
from workbench.ablation import leases as leasing
from workbench.ablation.drive import DONE, RUNNING, WAITING, JobSettings, drive, states, tally
from workbench.ablation.leases import Lease, Leases, held_in
from workbench.ablation.notebooks import Failure
from workbench.ablation.reading import read_plan
from workbench.types.errors import WorkbenchError

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
    assert tally(found) == "6 jobs: 6 done" and not held_in(out / "jobs") and len(ends(out)) == 6
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


def test_a_lease_is_one_drivers_and_a_silent_or_ended_one_is_taken_over(tmp_path, monkeypatch):
    monkeypatch.setattr(leasing, "AFTERLIFE_S", 0)
    with Leases(tmp_path) as first, Leases(tmp_path) as second:
        lease = first.take("a")
        assert lease.is_held() and second.take("a") is None and second.take("b") is not None
        first.give_back("a")
        assert not lease.is_held() and second.take("a") is not None
        monkeypatch.setattr(leasing, "STALE_S", 0.05)
        assert first.take("a") is None, "a beat is looked at twice before it is called silent"
        time.sleep(0.1)
        taken, late = first.take("a"), Lease(tmp_path / "a.lease-1")
        assert taken.path.name == "a.lease-2" and taken.is_held() and not late.is_held()
        second.give_back("a")
        assert taken.is_held(), "who lost a lease takes nothing away"
    assert not held_in(tmp_path)
    ended = {
        "process": 2**22 + 1,
        "host": leasing.socket.gethostname(),
        "started": "then",
        "beat": 3,
    }
    (tmp_path / "c.lease-1").write_text(json.dumps(ended))
    with Leases(tmp_path) as third:
        assert third.take("c").path.name == "c.lease-2"
    (tmp_path / "c.lease-1").write_text(json.dumps(ended | {"host": "another"}))
    with Leases(tmp_path) as third:
        assert third.take("c") is None, (
            "nobody knows what runs on another machine; its beat will tell"
        )


def test_a_job_that_was_taken_over_is_kept_to_oneself(tmp_path, monkeypatch):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    one = states(plan, plan.seeds, out)[0]
    with Leases(out / "jobs") as leases:
        leases.take(one.name)
        assert states(plan, plan.seeds, out)[0].state == RUNNING

        def late(*_, **__):
            (out / "jobs" / f"{one.name}.lease-2").write_text(
                "{}"
            )  # somebody took it for abandoned meanwhile
            return Failure("failed", "late")

        monkeypatch.setattr(work, "run_notebook", late)
        assert "elsewhere" in work.do(one.job, plan, out, tmp_path, None, True)
    assert not list((out / "jobs").glob("*.json"))


def test_a_job_whose_worker_was_killed_behind_its_record_is_not_done_again(tmp_path, monkeypatch):
    plan, out, told = read_plan(quick.plan_at(tmp_path)), tmp_path / "out", []
    monkeypatch.setattr(
        driving,
        "each",
        lambda items, do, given, workers: (
            (item, [do(item, *given), do(item, *given)][1]) for item in items
        ),
    )  # a killed pool gives what was under way again
    drive(plan, plan.seeds, out, tmp_path, HERE, told.append)
    assert len(ends(out)) == 6 and "[6/6]" in told[-1], "a job was done twice"
    assert [one.tries for one in states(plan, plan.seeds, out)] == [1] * 6
    (tmp_path / "fail").write_text("0.1")
    for path in (out / "jobs").glob("lr-0.1*.json"):
        path.unlink()
    drive(plan, plan.seeds, out, tmp_path, HERE, told.append)
    (tmp_path / "fail").unlink()
    drive(
        plan,
        plan.seeds,
        out,
        tmp_path,
        JobSettings(workers=0, do=quick.do, retry=True),
        told.append,
    )
    assert sorted(one.tries for one in states(plan, plan.seeds, out)) == [1, 1, 1, 2, 2, 2], (
        "a retry is its own attempt"
    )


def test_workers_that_end_each_time_are_not_begun_for_ever(monkeypatch):
    monkeypatch.setattr(pool, "AFTERLIFE_S", 0)
    begun = []

    def broken(queue, do, arguments, workers, killed):
        begun.append(1)
        killed.append(next(queue))
        if len(begun) == 5:
            yield killed.pop(), "done"

    monkeypatch.setattr(pool, "_portion", broken)
    with pytest.raises(
        WorkbenchError,
        match="10 times before anything was done, last with b: .* needs `if __name__",
    ):
        [*pool.each(["a", "b"], print, (), 2)]
    assert len(begun) == 5 + 10


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


@pytest.mark.parametrize(("seeds", "kills"), [(3, 2), pytest.param(30, 20, marks=pytest.mark.full)])
def test_no_job_is_lost_or_done_twice_whoever_is_killed(tmp_path, seeds, kills):
    path, out = (
        quick.plan_at(tmp_path, quick.PLAN.replace("seeds = 3", f"seeds = {seeds}")),
        tmp_path / "out",
    )
    plan, calm = read_plan(path), tmp_path / "calm"
    drive(plan, plan.seeds, calm, tmp_path, HERE, lambda line: None)
    spawn, random = multiprocessing.get_context("spawn"), np.random.default_rng(seeds)
    drivers, left = [], kills
    while left or any(one.is_alive() for one in drivers):
        drivers = [one for one in drivers if one.is_alive()]
        while len(drivers) < 2 and any(one.state != DONE for one in states(plan, plan.seeds, out)):
            drivers.append(
                spawn.Process(target=driver, args=(str(path), str(out), 1 if seeds < 10 else 2))
            )
            drivers[-1].start()
        if not drivers:
            break
        wait_for_work(out, deadline_s=30)
        time.sleep(float(random.uniform(0, 0.3)))
        victims = (
            [one.pid for one in drivers]
            if random.random() < 0.5
            else [pid for one in drivers for pid in children(one.pid)]
        )
        if left and victims:
            left -= 1
            try:
                os.kill(int(random.choice(victims)), signal.SIGKILL)
            except ProcessLookupError:
                continue
    for one in drivers:
        one.join(60)
    assert tally(states(plan, plan.seeds, out)) == f"{2 * seeds} jobs: {2 * seeds} done"
    assert records(out) == records(calm), "killing changed a result"
    assert len(ends(out)) == len({*ends(out)}), "a job was done twice"
    assert not held_in(out / "jobs") or all(
        leasing.has_ended(leasing.holder_of(one)) for one in held_in(out / "jobs").values()
    )


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
