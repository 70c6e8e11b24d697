"""The same plan through SLURM and Ray, the real ones: same folder, same results, every job once, no GPU shared."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from itertools import combinations

import pytest

from tests.ablation import quick
from tests.ablation.clusters import NotHere, do_and_say, do_when_let, ray_cluster, slurm
from tests.ablation.test_drive import HERE, ends, records
from workbench.ablation import door, gpus
from workbench.ablation.door import way_of
from workbench.ablation.drive import DONE, JobSettings, drive, states, tally
from workbench.ablation.leases import Leases, has_ended, holder_of
from workbench.ablation.reading import read_plan
from workbench.ablation.sent import RemoteJob, JobPlace, do_sent
from workbench.cli import main
from workbench.types.errors import ConfigError, WorkbenchError

FOUR = quick.PLAN.replace("seeds = 3", "seeds = 2")  # jobs


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


def test_two_drivers_send_one_grid_and_every_job_is_done_once_on_gpus_of_its_own(cluster, tmp_path):
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
        while not (held := list((out / "jobs").glob("*.lease-*"))):
            time.sleep(0.2)
        subprocess.run(["scancel", "--signal=KILL", "--user=root"], check=True)
        until = (
            time.monotonic() + 30
        )  # scancel returns before its signal arrives: what is let go on now might still win
        while not has_ended(holder_of(held[0])) and time.monotonic() < until:
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
        while len(list((out / "jobs").glob("*.lease-*"))) < 4:
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
        "workbench.cli.ablating.told", lambda asked, say: door.table_of_asked(asked)
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


# ------------------------------------------------------------------------------------------------ without a scheduler


def test_a_sent_job_claims_itself_and_is_done_once(tmp_path):
    plan, out = read_plan(quick.plan_at(tmp_path)), tmp_path / "out"
    one = states(plan, plan.seeds, out)[0]
    where = JobPlace(plan, out, tmp_path, None, 0, "slurm", quick.do)
    with Leases(out / "jobs") as leases:
        leases.take(one.name)
        assert do_sent(RemoteJob(one.job), where) == {"elsewhere": "another driver does it"}
        assert leases.free(one.name) is None
    assert "result" in do_sent(RemoteJob(one.job), where) and ends(out) == [one.name]
    assert do_sent(RemoteJob(one.job), where) == {"elsewhere": "it was done meanwhile"} and ends(
        out
    ) == [one.name]
    silent = {"process": 1, "host": "elsewhere", "started": "then", "beat": 3}
    other = states(plan, plan.seeds, out)[1]
    (out / "jobs" / f"{other.name}.lease-4").write_text(json.dumps(silent))
    assert do_sent(RemoteJob(other.job), where) == {"elsewhere": "another driver does it"}, (
        "only who watched it knows that it is silent"
    )
    assert "result" in do_sent(RemoteJob(other.job, over=4), where)


def test_gpus_are_chosen_for_one_job_alone():
    assert (
        gpus.free_gpus("abc", {"a"}, 2) == ("b", "c")
        and gpus.free_gpus("abc", {"a", "b"}, 2) is None
    )
    assert gpus.free_gpus("abc", (), 1) == ("a",) and gpus.free_gpus("", (), 1) is None
    assert gpus.most_at_once("abcde", 2) == 2
    with pytest.raises(ConfigError, match="has 1 GPUs that this process may use; take at most 1"):
        gpus.most_at_once("a", 2)


def test_a_gpu_that_is_held_is_waited_for_and_one_of_a_killed_job_is_given_time(
    tmp_path, monkeypatch
):
    monkeypatch.setenv(gpus.VISIBLE, "as before")
    monkeypatch.setattr(gpus, "POLL_S", 0.01)
    began, order = threading.Event(), []

    def second():
        began.set()
        taken = gpus._wait_for(2, "ab", tmp_path)
        order.append("second")
        for lock in taken.values():
            lock.release()

    other = threading.Thread(target=second)
    with gpus.held_gpus(1, "ab", tmp_path) as held:
        assert held == ("a",) and gpus.os.environ[gpus.VISIBLE] == "a"
        assert gpus._take(1, "ab", tmp_path).keys() == {"b"}, (
            "the lock is dropped with its last reference"
        )
        other.start()
        began.wait()
        time.sleep(0.1)
        order.append("first")
    other.join(10)
    assert order == ["first", "second"] and gpus.os.environ[gpus.VISIBLE] == "as before"
    waited: list[float] = []
    monkeypatch.setattr(
        gpus.time, "sleep", waited.append
    )  # "second" let go without a word, as a killed one does
    with gpus.held_gpus(1, "a", tmp_path):
        assert waited == [gpus.AFTERLIFE_S]
    with gpus.held_gpus(0, "ab", tmp_path):
        assert gpus.os.environ[gpus.VISIBLE] == "", "who asked for none sees none"


def test_what_a_scheduler_gave_is_held_against_what_was_asked(monkeypatch):
    monkeypatch.setenv(gpus.VISIBLE, "0,1")
    gpus.check_assigned(2, "slurm")
    with pytest.raises(WorkbenchError, match="asked for 1 GPUs a job and made 2 visible"):
        gpus.check_assigned(1, "slurm")
    monkeypatch.delenv(gpus.VISIBLE)
    with pytest.raises(WorkbenchError, match="made 0 visible"):
        gpus.check_assigned(1, "ray")


def test_a_launcher_that_is_not_here_is_said(monkeypatch):
    with pytest.raises(ConfigError, match="jobs run on local, slurm or ray, got 'moon'"):
        way_of(None, on="moon")
    for on, package in (("slurm", "submitit"), ("ray", "ray")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(sys.modules, f"workbench.ablation.on_{on}", raising=False)
        with pytest.raises(ConfigError, match=rf"pip install 'agent-rl-workbench\[{on}\]'"):
            way_of(None, on=on)
