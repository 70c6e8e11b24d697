"""The same plan through SLURM and Ray, the real ones: same folder, same results, every job once, no GPU shared."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from itertools import combinations
from pathlib import Path

import pytest

from tests.ablation import quick
from tests.ablation.clusters import (
    NotHere,
    do_and_say,
    do_when_let,
    fails,
    ray_cluster,
    seen,
    slurm,
)
from tests.ablation.test_drive import HERE, ends, records
from workbench.cli import main
from workbench.extensions.ablation import door, gpus, jobs, on_submitit, schedulers, work
from workbench.extensions.ablation.door import way_of
from workbench.extensions.ablation.drive import DONE, JobSettings, drive, states, tally
from workbench.extensions.ablation.on_submitit import LocalProcesses
from workbench.extensions.ablation.reading import read_plan
from workbench.run.writer import lock_holder
from workbench.values.errors import ConfigError, WorkbenchError

FOUR = quick.PLAN.replace("seeds = 3", "seeds = 2")  # jobs
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=["slurm", "ray"])
def cluster(request, tmp_path_factory):
    made = slurm(tmp_path_factory.mktemp("slurm")) if request.param == "slurm" else ray_cluster()
    try:
        context = made.__enter__()
    except NotHere as error:
        pytest.skip(f"no {request.param} here: {error}")
    request.addfinalizer(lambda: made.__exit__(None, None, None))
    return request.param, context


def overlapping(out) -> list[tuple[dict, dict]]:
    said = [json.loads(line) for line in (out / "gpus.jsonl").read_text().splitlines()]
    return [
        (a, b)
        for a, b in combinations(said, 2)
        if a["gpus"] == b["gpus"]
        and a["begun"] < b["ended"]
        and b["begun"] < a["ended"]
        and (a["node"] == b["node"] or not a["node"])
    ]


def test_a_grid_that_is_sent_twice_is_done_once_on_gpus_of_its_own(cluster, tmp_path):
    on, _ = cluster
    plan, out, calm = read_plan(quick.plan_at(tmp_path, FOUR)), tmp_path / "out", tmp_path / "calm"
    drive(plan, plan.seeds, calm, tmp_path, HERE, lambda line: None)
    way = JobSettings(workers=8, do=do_and_say, on=on, gpus_per_job=1)
    other = threading.Thread(
        target=drive, args=(plan, plan.seeds, out, tmp_path, way, lambda line: None)
    )
    if on == "slurm":  # a process is one client of Ray
        other.start()
    said: list[str] = []
    drive(plan, plan.seeds, out, tmp_path, way, said.append)
    other.join() if on == "slurm" else None
    assert tally(states(plan, plan.seeds, out)) == "4 jobs: 4 done", said
    assert records(out) == records(calm) and len(ends(out)) == len({*ends(out)}) == 4
    told = [json.loads(line) for line in (out / "gpus.jsonl").read_text().splitlines()]
    assert {one["gpus"] for one in told} <= {"0", "1"} and not overlapping(out), told
    assert f"on {on}, 1 GPU each" in said[0]


def test_a_job_that_is_taken_away_is_sent_again_and_not_for_ever(cluster, tmp_path):
    on, context = cluster
    if on == "ray":
        pytest.skip("a node of Ray is removed in the test below")
    plan, out = (
        read_plan(quick.plan_at(tmp_path, quick.PLAN.replace("seeds = 3", "seeds = 1"))),
        tmp_path / "out",
    )
    (tmp_path / "slow").touch()
    said: list[str] = []

    def cancel():
        while not (held := list((out / work.LOCKS).glob(f"*/{work.BUSY}"))):
            time.sleep(0.2)
        subprocess.run(["scancel", "--signal=KILL", "--user=root"], check=True)
        until = (
            time.monotonic() + 30
        )  # scancel returns before its signal arrives: what is let go on now might still win
        while lock_holder(held[0].parent) and time.monotonic() < until:
            time.sleep(0.2)
        (tmp_path / "slow").unlink()

    killer = threading.Thread(target=cancel)
    killer.start()
    drive(
        plan, plan.seeds, out, tmp_path, JobSettings(workers=8, do=do_when_let, on=on), said.append
    )
    killer.join()
    assert tally(states(plan, plan.seeds, out)) == "2 jobs: 2 done" and any(
        "ended without a word" in line for line in said
    ), said


def test_a_node_that_goes_down_loses_no_job(cluster, tmp_path):
    on, context = cluster
    if on == "slurm":
        pytest.skip("there is one node")
    plan, out, said = read_plan(quick.plan_at(tmp_path, FOUR)), tmp_path / "out", []
    (tmp_path / "slow").touch()
    node = context.add_node(num_cpus=2, object_store_memory=80_000_000)

    def remove():
        while len(list((out / work.LOCKS).glob(f"*/{work.BUSY}"))) < 4:
            time.sleep(0.2)
        context.remove_node(node, allow_graceful=False)
        (tmp_path / "slow").unlink()

    remover = threading.Thread(target=remove)
    remover.start()
    drive(
        plan, plan.seeds, out, tmp_path, JobSettings(workers=8, do=do_when_let, on=on), said.append
    )
    remover.join()
    assert (
        tally(states(plan, plan.seeds, out)) == "4 jobs: 4 done"
        and len(ends(out)) == len({*ends(out)}) == 4
    )
    assert any("Error" in line or "died" in line for line in said), said


def test_a_notebook_runs_there_by_one_command(cluster, tmp_path, monkeypatch, capsys):
    on, _ = cluster
    monkeypatch.chdir(tmp_path)
    quick.notebook_at(
        tmp_path / "mine.ipynb",
        "import os, workbench as wb\nwb.result(success=0.5, hidden=os.environ['CUDA_VISIBLE_DEVICES'] == '')",
        parameters="seed: int = 0  # of all",
    )
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nnotebook = "mine.ipynb"\nseeds = 1\n[arms.a]\n'
    )
    monkeypatch.setattr(
        "workbench.extensions.ablation.command.told", lambda asked, say: door.table_of_asked(asked)
    )
    main(["ablate", "mine.toml", "--on", on])
    plan = read_plan(tmp_path / "mine.toml")
    found = states(plan, plan.seeds, tmp_path / "runs/mine")
    assert [one.state for one in found] == [DONE], capsys.readouterr().out
    assert found[0].facts["result"]["numbers"] == {"hidden": 1.0}
    with pytest.raises(ConfigError, match="--launch"):
        drive(
            plan,
            plan.seeds,
            tmp_path / "other",
            tmp_path,
            JobSettings(workers=1, on=on, options={"no_such": 1}),
            lambda line: None,
        )


# ------------------------------------------------------------------------------------------------ without a cluster


def test_a_gpu_is_one_jobs_and_goes_to_the_next(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(on_submitit, "gpus_here", lambda: ("a", "b", "c"))
    with LocalProcesses(tmp_path, "job", 1, {}) as local:
        outcomes = dict(schedulers.each("uvw", seen, (), local, 2))
        assert {gpus for gpus, _ in outcomes.values()} <= {"a", "b", "c"}
        assert len({pid for _, pid in outcomes.values()}) == 3 and len(local._free_gpus) == 3
        assert not [*local.folder.iterdir()], "an id that is used again would find old files"
        first, second = (local.submit(seen, "x") for _ in range(2))
        assert {*local._given} == {first.job_id, second.job_id}
        assert len({gpu for gpus in local._given.values() for gpu in gpus}) == 2
        local.cancel([first, second])
        assert first.done() and second.done()
    with LocalProcesses(tmp_path, "job", 0, {}) as local:
        assert [gpus for _, (gpus, _) in schedulers.each("u", seen, (), local, 2)] == [""]
        with pytest.raises(WorkbenchError, match="ValueError: no"):
            [*schedulers.each(["no"], fails, (), local, 1)]


def test_gpus_that_there_are_not_are_refused(monkeypatch):
    assert gpus.most_at_once("abcde", 2) == 2
    with pytest.raises(ConfigError, match="has 1 GPUs that this process may use; take at most 1"):
        gpus.most_at_once("a", 2)
    answer = subprocess.CompletedProcess([], 0, "GPU-a\nGPU-b\n")
    monkeypatch.setattr(gpus.subprocess, "run", lambda *_, **__: answer)
    monkeypatch.delenv(jobs.VISIBLE, raising=False)
    assert gpus.gpus_here() == ("GPU-a", "GPU-b")
    monkeypatch.setenv(jobs.VISIBLE, "1")
    assert gpus.gpus_here() == ("1",)


def test_what_a_scheduler_gave_is_held_against_what_was_asked(monkeypatch):
    monkeypatch.setenv(jobs.VISIBLE, "0,1")
    jobs.check_assigned(2, "slurm")
    with pytest.raises(WorkbenchError, match="asked for 1 GPUs a job and made 2 visible"):
        jobs.check_assigned(1, "slurm")
    monkeypatch.delenv(jobs.VISIBLE)
    with pytest.raises(WorkbenchError, match="made 0 visible"):
        jobs.check_assigned(1, "ray")


def test_a_scheduler_that_is_not_here_is_named(monkeypatch):
    with pytest.raises(ConfigError, match="jobs run on local, slurm or ray, got 'moon'"):
        way_of(None, on="moon")
    for on, package in (("slurm", "submitit"), ("local", "submitit"), ("ray", "ray")):
        module = f"workbench.extensions.ablation.on_{package}"
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, module, raising=False)
        with pytest.raises(
            ConfigError, match=rf"pip install 'agent-rl-workbench\[{schedulers.EXTRA[on]}\]'"
        ):
            way_of(None, on=on)
