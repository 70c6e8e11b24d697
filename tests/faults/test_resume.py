"""Resuming a run: where it goes on, what is checked, what may be changed, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.counts import reduced
from workbench import cli
from workbench.basics import canonical_json
from workbench.learn import learner, rounding
from workbench.learn.algorithms import Algorithm
from workbench.look.cells.train import resume_here, train_here
from workbench.look.run_diff import compare_runs
from workbench.run import recording, store, writer
from workbench.run.equality import groups_equal
from workbench.run.recording import create_run, reopen_run
from workbench.run.store import open_run
from workbench.training import checkpoint, loop, resume, train
from workbench.training import step as step_cell
from workbench.training.config import load_config, to_dict
from workbench.training.loop import check_policy
from workbench.training.session import evaluate, open_session, rollout
from workbench.values.errors import ConfigError, LearnerError, PolicyError, StoreError

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = {
    "train.steps": 4,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 2,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 4,
    "lint.start": False,
}


def small(**settings):
    return load_config(
        "bandit", SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The run that nobody interrupts."""
    return train_here(small(), tmp_path_factory.mktemp("runs") / "whole")


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it to maltreat."""
    shutil.copytree(whole.path, tmp_path / "run")
    return tmp_path / "run"


def same(a, b) -> bool:
    return compare_runs(open_run(a), open_run(b), exact=True).equal


def go_back(path: Path, step: int) -> None:
    """As if the process had been killed right after it committed `step`."""
    for name in ("metrics.jsonl", "events.jsonl"):
        lines = (path / name).read_bytes().splitlines(keepends=True)
        kept = [line for line in lines if (json.loads(line).get("step") or 0) <= step]
        (path / name).write_bytes(b"".join(kept))
    for folder in ("steps", "evaluations", "checkpoints"):
        for entry in (path / folder).glob("step-*"):
            if (
                int(entry.name[5:13]) > step
                or folder != "steps"
                and int(entry.name[5:13]) == step > 0
            ):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


class Crash(BaseException):
    pass


# ------------------------------------------------------------------------------------------------ where it goes on


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4])
def test_from_any_step_it_ends_as_the_run_that_was_never_interrupted(whole, copied, step):
    """Before the first step, at a checkpoint's border (before it was written), between two, after the last commit."""
    go_back(copied, step)
    said = []
    resume_here(copied, on_note=said.append)
    assert same(whole.path, copied)
    assert f"{step} of 4 steps are committed; going on from" in said[0]
    start = 2 if step in (3, 4) else 0
    assert ("the untrained policy" if start == 0 else "the checkpoint of step 2") in said[0]
    repeated = {0: "", 1: ", 1 step is repeated", 2: ", 2 steps are repeated"}[step - start]
    assert repeated in said[0] and ("repeated" in said[0]) == bool(repeated)


@pytest.mark.full
def test_killed_while_measuring_the_baselines(whole, copied):
    go_back(copied, 0)
    shutil.rmtree(copied / "evaluations")
    (copied / "evaluations").mkdir()
    (copied / "events.jsonl").write_bytes(b"")
    resume_here(copied, on_note=None)
    assert same(whole.path, copied)


def test_killed_before_the_folder_is_complete(tmp_path):
    half = tmp_path / ".tmp-run-0011aabb"
    half.mkdir()
    with pytest.raises(
        StoreError, match="its process died before the folder was complete.*Start it again"
    ):
        resume_here(tmp_path / "run")
    create_run(tmp_path / "run", {}).close()
    assert not half.exists(), "what the earlier try left is swept by the next"


def test_a_complete_run_is_left_exactly_as_it_is(whole, copied):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    for _ in range(2):
        said = []
        resume_here(copied, on_note=said.append)
        assert "already complete: 4 steps; nothing was changed" in said[0]
    assert before == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}


@pytest.mark.full
def test_interrupted_twice_and_resumed_twice(whole, tmp_path):
    def stop_in(step):
        def on_step(outcome):
            if outcome.step == step:
                raise Crash

        return on_step

    with pytest.raises(Crash):
        train_here(small(), tmp_path / "run", on_step=stop_in(1))
    with pytest.raises(Crash):
        resume_here(tmp_path / "run", on_step=stop_in(3), on_note=None)
    resume_here(tmp_path / "run", on_note=None)
    assert same(whole.path, tmp_path / "run")


@pytest.mark.full
def test_a_lost_evaluation_is_measured_again_from_the_weights_of_its_step(whole, copied):
    (copied / "evaluations/step-00000002.json").unlink()
    resume_here(copied, on_note=None)
    assert same(whole.path, copied)
    (copied / "evaluations/step-00000004.json").write_bytes(b"{}")
    with pytest.raises(
        StoreError,
        match="step-00000004.json is damaged.* Or move that file out of the folder: whoever",
    ):
        resume_here(copied, on_note=None)
    (copied / "evaluations/step-00000004.json").unlink()
    resume_here(copied, on_note=None)
    assert same(whole.path, copied)


@pytest.mark.parametrize("damaged", [[4], [2, 4]])
def test_a_damaged_checkpoint_is_passed_over_with_the_reason_and_made_again(whole, copied, damaged):
    """All of them: then from the untrained policy, since every step's trajectories are there."""
    for step in damaged:
        path = copied / f"checkpoints/step-0000000{step}/optimizer.safetensors"
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    said = []
    resume_here(copied, on_note=said.append)
    assert "optimizer.safetensors is damaged" in said[0] and len(
        [s for s in said if "passed over" in s]
    ) == len(damaged)
    assert same(whole.path, copied)
    assert (copied / "orphans/step-00000004-1").is_dir(), (
        "the bad one is kept for people to look at"
    )


@pytest.mark.full
def test_the_last_sound_checkpoint_is_not_taken_away_for_damaged_ones(tmp_path, monkeypatch):
    """Fewer are to be kept from now on: the newest two are damaged, the next one is what the run goes on from."""
    path = tmp_path / "run"
    train_here(small(train__checkpoint_every=1, train__keep_checkpoints=4), path)
    for step in (3, 4):
        (path / f"checkpoints/step-0000000{step}/state.json").write_bytes(b"{}")
    with monkeypatch.context() as now:
        now.setattr(loop, "_repeat", lambda *_: 1 / 0)  # it dies again before anything is made
        with pytest.raises(ZeroDivisionError):
            resume_here(path, {"train.keep_checkpoints": 2}, on_note=None)
    assert checkpoint.steps(path) == [2, 3, 4] and checkpoint.damage(path, 2) is None
    resume_here(path, on_note=None)
    assert checkpoint.steps(path) == [3, 4] and checkpoint.damage(
        path, 3
    ) is None is checkpoint.damage(path, 4)


@pytest.mark.full
def test_steps_that_taught_nothing_are_counted_across_a_kill(tmp_path):
    config = small(
        collect__max_turn_tokens=2,
        train__max_empty_steps=3,
        train__steps=6,
        train__checkpoint_every=1,
    )
    with pytest.raises(LearnerError, match="3 steps in a row taught nothing") as whole:
        train_here(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    for name in (
        "metrics.jsonl",
        "events.jsonl",
    ):  # as if killed right after the checkpoint of step 2
        lines = (tmp_path / "run" / name).read_bytes().splitlines(keepends=True)
        (tmp_path / "run" / name).write_bytes(
            b"".join(line for line in lines if json.loads(line).get("step", 0) <= 2)
        )
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000003")
    shutil.rmtree(tmp_path / "run/steps/step-00000003")
    for _ in range(2):  # the second time nothing is left to do but to say so again
        with pytest.raises(LearnerError) as resumed:
            resume_here(tmp_path / "run", on_note=None)
        assert str(resumed.value) == str(whole.value).replace("whole", "run")
    assert same(tmp_path / "whole", tmp_path / "run")
    assert open_run(tmp_path / "run").steps() == [1, 2, 3]
    resume_here(
        tmp_path / "run", {"train.max_empty_steps": 9}, on_note=None
    )  # and this is how it goes on
    assert open_run(tmp_path / "run").steps() == [1, 2, 3, 4, 5, 6]


@pytest.mark.full
def test_bad_updates_in_a_row_are_counted_across_a_kill(tmp_path, monkeypatch):
    """The counter is in the checkpoint; without it a resumed run would try again for ever."""
    credit = Algorithm.credit

    def poisoned(self, batch):
        whole = credit(self, batch)
        advantage_T = whole.advantage_T.clone()
        advantage_T[batch.eligible_T.nonzero()[0]] = float("nan")
        return replace(whole, advantage_T=advantage_T)

    monkeypatch.setattr(Algorithm, "credit", poisoned)
    config = small(learner__max_bad_updates=2, train__checkpoint_every=1, lint__mode="off")
    with pytest.raises(LearnerError, match="2 updates in a row were not finite"):
        train_here(config, tmp_path / "run")
    assert open_run(tmp_path / "run").steps() == [1]
    with pytest.raises(
        LearnerError, match="2 updates in a row were not finite, the last in step 2"
    ):
        resume_here(tmp_path / "run", on_note=None)
    monkeypatch.setattr(Algorithm, "credit", credit)  # mended; step 1 need not be repeated
    resume_here(tmp_path / "run", on_note=None)
    assert open_run(tmp_path / "run").metrics()["bad_updates"].tolist() == [1, 1, 1, 1]


@pytest.mark.full
@pytest.mark.parametrize("trunk", ["own", pytest.param("policy", marks=pytest.mark.full)])
def test_a_critic_goes_on_too(tmp_path, trunk):
    config = small(algorithm__kind="ppo", critic__trunk=trunk, algorithm__epochs=2, train__steps=4)
    train_here(config, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "run")
    go_back(tmp_path / "run", 3)
    resume_here(tmp_path / "run", on_note=None)
    assert same(tmp_path / "whole", tmp_path / "run")


def test_an_earlier_collect_leaves_no_trace_in_the_engine():
    """Else a resumed run, which did not make it, samples with other roundings: who is evicted depends on the room."""
    config = load_config(
        "frozenlake",
        {
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "env.max_moves": 4,
            "engine.cache_tokens": 1536,
            "evaluation.num_tasks": 24,
        },
    )
    fresh, used = (open_session(config, quiet=True) for _ in range(2))
    evaluate(used)
    assert used.engine.stats()["evictions"] > 0
    assert groups_equal(
        *(rollout(session, 2, step=1, purpose="train") for session in (fresh, used))
    )


@pytest.mark.full
def test_a_dead_worker_costs_nothing_but_its_time(tmp_path):
    """Environment workers are killed while they are asked: the trajectories are made again from their seeds, no trajectory
    is lost or blamed, the run ends by itself; and what it stored can be repeated from any checkpoint."""
    killed = []

    def kill_workers(*_):
        for supervisor in children_of(os.getpid()):
            for worker in children_of(supervisor) if len(killed) < 3 else ():
                os.kill(worker, signal.SIGKILL)
                killed.append(worker)

    config = small(collect__env_runner="processes", train__steps=3)
    run = train_here(config, tmp_path / "run", on_rollout=lambda step: kill_workers)
    assert killed and run.steps() == [1, 2, 3]
    assert all(
        trajectory.scored and not trajectory.error
        for step in run.steps()
        for group in run.groups(step)
        for trajectory in group
    )
    metrics = (run.path / "metrics.jsonl").read_bytes()
    go_back(run.path, 3)
    resume_here(run.path, on_note=None)  # step 3 is repeated, and must come out again
    assert (run.path / "metrics.jsonl").read_bytes() == metrics and run.evaluations().keys() >= {
        "step-00000003"
    }


def children_of(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


# ------------------------------------------------------------------------------------------------ the self-check


def test_a_step_that_does_not_come_out_again_is_refused_naming_step_and_column(copied, monkeypatch):
    """Here: the weights of the checkpoint are loaded a little wrong."""
    go_back(copied, 4)
    load_state = learner.Learner.load_state
    monkeypatch.setattr(
        learner.Learner,
        "load_state",
        lambda self, tensors, state: load_state(
            self,
            tensors | {"model": {name: t + 1e-3 for name, t in tensors["model"].items()}},
            state,
        ),
    )
    before = (copied / "metrics.jsonl").read_bytes()
    with pytest.raises(LearnerError) as refused:
        resume_here(copied, on_note=None)
    said = str(refused.value)
    assert "step 3 of" in said and "update 0, column " in said and "new_logp" in said
    assert (
        "Machine, threads, versions and code are as they were" in said
        and "committed steps are untouched" in said
    )
    assert (copied / "metrics.jsonl").read_bytes() == before


def test_another_machine_is_written_down_and_said(copied, monkeypatch):
    go_back(copied, 4)
    facts = rounding.machine_facts
    monkeypatch.setattr(
        loop, "machine_facts", lambda *a: facts(*a) | {"threads": 2, "torch": "9.9"}
    )
    said = []
    resume_here(copied, on_note=said.append)
    drift = next(words for words in said if "other than when it began" in words)
    assert (
        "threads (1, now 2)" in drift and "torch (" in drift and "need not be, bit for bit" in drift
    )
    run = open_run(copied)
    assert [after for after, _ in run.machines()] == [0, 4] and "threads (1, now 2)" in " ".join(
        run.warnings()
    )
    assert not [event for event in run.events() if event["kind"] == "rounding"], (
        "it came out again all the same"
    )


@pytest.mark.parametrize("change, within", [(1e-7, True), (0.5, False)])
def test_on_another_machine_another_rounding_is_let_pass_and_no_more(
    copied, monkeypatch, change, within
):
    go_back(copied, 4)
    facts, repeat = rounding.machine_facts, step_cell.repeat_step
    monkeypatch.setattr(loop, "machine_facts", lambda *a: facts(*a) | {"threads": 2})

    def otherwise(session, step, groups):
        outcome = repeat(session, step, groups)
        report = outcome.reports[0]
        columns = dict(report.table.columns) | {
            "new_logp": report.table["new_logp"] + torch.tensor(change).numpy()
        }
        return replace(
            outcome, reports=(replace(report, table=replace(report.table, columns=columns)),)
        )

    monkeypatch.setattr(loop, "repeat_step", otherwise)
    said = []
    if not within:
        with pytest.raises(
            LearnerError, match=r"threads \(1, now 2\); but that is more than rounding"
        ):
            resume_here(copied, on_note=said.append)
        return
    resume_here(copied, on_note=said.append)
    assert any("within rounding only (new_logp)" in words for words in said)
    event = next(e for e in open_run(copied).events() if e["kind"] == "rounding")
    assert event["step"] == 3 and event["differs"] == ["new_logp"] and "threads" in event["because"]


def test_another_policy_on_disk_is_refused(copied, monkeypatch):
    go_back(copied, 3)
    opened = resume.open_session

    def other(config, **options):
        session = opened(config, **options)
        return replace(session, policy=replace(session.policy, fingerprint="0" * 12))

    monkeypatch.setattr(resume, "open_session", other)
    with pytest.raises(
        PolicyError,
        match="is not the one that .* began with.*now 000000000000. Put the former files",
    ):
        resume_here(copied, {"train.steps": 9}, on_note=None)
    assert open_run(copied).config["train"]["steps"] == 4, "what was to be changed was not"


def test_a_policy_with_the_same_weights_and_another_config_is_refused(tmp_path):
    policy = tmp_path / "policy"
    shutil.copytree(ROOT / "data/policies/bandit-tiny", policy)
    path = train_here(
        small(policy__name=str(policy), train__steps=1, train__evaluate_every=0), tmp_path / "run"
    ).path
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    (policy / "merges.txt").touch()
    with pytest.raises(
        PolicyError,
        match="began with: changed, new or gone since: config.json, merges.txt. Put the",
    ):
        resume_here(path, {"train.steps": 2}, on_note=None)
    lines = (path / "events.jsonl").read_bytes().splitlines(keepends=True)
    event = json.loads(lines[0])
    assert event["kind"] == "policy" and set(event) == {
        "kind",
        "name",
        "fingerprint",
        "files",
        "crc32",
    }
    old = canonical_json.line_bytes({key: event[key] for key in ("kind", "name", "fingerprint")})
    (path / "events.jsonl").write_bytes(
        old + b"".join(lines[1:])
    )  # as an earlier version wrote it: it is still read
    check_policy(
        open_session(load_config("bandit", {"policy.name": str(policy)}), quiet=True),
        open_run(path),
    )


def test_a_policy_that_was_moved_is_told_where_it_lies_now(tmp_path, monkeypatch):
    here, other = tmp_path / "here and there", tmp_path / "other"
    shutil.copytree(ROOT / "data/policies/bandit-tiny", here / "mine")
    other.mkdir()
    monkeypatch.chdir(here)
    short = small(policy__name="./mine", train__steps=1, train__evaluate_every=0)
    path = train_here(short, here / "run").path
    monkeypatch.chdir(other)
    with pytest.raises(
        PolicyError,
        match=r"no folder './mine'\. Give .*elsewhere now.* the setting policy.name=FOLDER",
    ):
        resume_here(path, {"train.steps": 2}, on_note=None)
    shutil.move(here / "mine", other / "moved")
    run = resume_here(path, {"train.steps": 2, "policy.name": "./moved"}, on_note=None)
    assert run.steps() == [1, 2] and run.config["policy"]["name"] == "./moved"
    with pytest.raises(PolicyError, match="is not the one that .* began with"):
        resume_here(path, {"train.steps": 3, "policy.name": "frozenlake-tiny"}, on_note=None)
    with pytest.raises(
        KeyboardInterrupt, match="`workbench resume '.*here and there/run'` goes on with step 3"
    ):
        with train.explain_interruption(path):
            raise KeyboardInterrupt


# ------------------------------------------------------------------------------------------------ settings


def test_steps_may_be_added_and_the_run_knows(whole, copied):
    said = []
    run = resume_here(
        copied, {"train.steps": "6", "train.checkpoint_every": 3}, on_note=said.append
    )
    assert "train.steps: 4 -> 6" in said and run.steps() == [1, 2, 3, 4, 5, 6]
    assert run.config["train"]["steps"] == 6 and run.first_config["train"]["steps"] == 4
    (event,) = [event for event in run.events() if event["kind"] == "settings"]
    assert event == {
        "kind": "settings",
        "after": 4,
        "changed": {"train.steps": [4, 6], "train.checkpoint_every": [2, 3]},
    }
    assert checkpoint.steps(copied) == [4, 6] and sorted(run.evaluations()) == [
        f"step-0000000{n}" for n in (0, 2, 4, 6)
    ]
    resume_here(copied, on_note=said.append)
    assert "already complete: 6 steps" in said[-1]
    longer = train_here(small(train__steps=6, train__checkpoint_every=3), copied.parent / "longer")
    assert all(groups_equal(longer.groups(step), run.groups(step)) for step in run.steps())


def test_a_change_is_no_reason_to_make_the_past_again(copied):
    """Evaluations that were not asked for then are not missing now."""
    go_back(copied, 4)
    run = resume_here(copied, {"train.evaluate_every": 1, "train.steps": 5}, on_note=None)
    assert sorted(run.evaluations()) == [f"step-0000000{n}" for n in (0, 2, 4, 5)]


@pytest.mark.parametrize(
    "settings, said",
    [
        (
            {"learner.lr": "1e-3"},
            r"learner.lr \(0.0003, now 0.001\) cannot be changed in a run that has begun: 4 steps",
        ),
        (
            {"seed": "7"},
            r"seed \(0, now 7\) cannot be changed.*Start a new run with it; what can be changed: .*train.steps",
        ),
        ({"train.steps": "2"}, "train.steps = 2, but 4 steps are committed and stay"),
        ({"train.stepps": "9"}, "no setting 'train.stepps'; did you mean 'train.steps'"),
        ({"algorithm.kind": "ppo"}, "algorithm.kind .* cannot be changed"),
    ],
)
def test_what_would_make_it_another_run_is_refused(copied, settings, said):
    before = {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=said):
        resume_here(copied, settings, on_note=None)
    assert before == {path: path.read_bytes() for path in copied.rglob("*") if path.is_file()}


def test_what_changes_only_the_rounding_is_let_pass_and_said(copied):
    go_back(copied, 3)
    said = []
    resume_here(copied, {"learner.micro_batch_tokens": 64}, on_note=said.append)
    assert any(
        "learner.micro_batch_tokens (4096, now 64)" in words and "bit for bit" in words
        for words in said
    )


def test_an_edited_config_a_newer_format_and_a_second_process_are_refused(copied, monkeypatch):
    go_back(copied, 3)
    text = (copied / "config.json").read_text()
    (copied / "config.json").write_text(text.replace('"steps": 4', '"steps": 5'))
    with pytest.raises(StoreError, match="config.json was changed after it was written"):
        resume_here(copied)
    (copied / "config.json").write_text(text)
    with (
        reopen_run(copied),
        pytest.raises(StoreError, match=f"being written by process {os.getpid()} on .* since 20"),
    ):
        resume_here(copied)
    with monkeypatch.context() as future:
        for module in (store, recording):
            future.setattr(module, "FORMAT", 2)
        future.setattr(recording, "__version__", "9.1")
        create_run(copied.parent / "future", to_dict(small())).close()
    with pytest.raises(
        StoreError, match="has format 2 of 'run'; this version reads formats 1 to 1.*workbench 9.1"
    ):
        resume_here(copied.parent / "future")


def test_steps_that_are_gone_are_said(copied):
    lines = (copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_bytes(lines[0] + lines[2] + lines[3])
    with pytest.raises(StoreError, match="step 2 of .* is gone although later ones are committed"):
        resume_here(copied)


# ------------------------------------------------------------------------------------------------ signals


def test_steps_in_another_order_are_said(copied):
    """No step is missing, and yet they are not those that training counts."""
    lines = (copied / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (copied / "metrics.jsonl").write_bytes(b"".join([lines[1], lines[0], *lines[2:]]))
    with pytest.raises(StoreError, match=r"lists steps \[2, 1, 3, 4\]; expected each once, from 1"):
        resume_here(copied)


def start(path: Path, *words: str) -> subprocess.Popen:
    command = [
        sys.executable,
        "-m",
        "workbench.cli",
        "train",
        "bandit",
        "--out",
        str(path),
        "--set",
        "train.steps=400",
        "--set",
        "train.tasks_per_step=2",
        "--set",
        "train.group_size=4",
        "--set",
        "evaluation.num_tasks=4",
        *words,
    ]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"OMP_NUM_THREADS": "1", "WORKBENCH_PROGRESS": "quiet"},
    )


def wait_for(path: Path, what: str) -> None:
    end = time.monotonic() + 120
    while not list(path.glob(what)) and time.monotonic() < end:
        time.sleep(0.02)
    assert list(path.glob(what))


@pytest.mark.full
@pytest.mark.parametrize(
    "number, status",
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.full)],
)
def test_a_signal_ends_the_command_with_what_is_committed_and_says_how_it_goes_on(
    tmp_path, number, status
):
    process = start(tmp_path / "run")
    wait_for(tmp_path / "run", "steps/step-00000002")
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert process.returncode == status
    assert (
        "stopped after" in said and f"`workbench resume {tmp_path}/run` goes on with step" in said
    )
    assert "Traceback" not in said
    run = open_run(tmp_path / "run")
    assert run.steps() and not list(run.path.rglob(".tmp-*"))
    reopen_run(run.path).close()  # nobody holds it any more


@pytest.mark.parametrize(
    "phase", reduced(["rollout", "update", "evaluation", "commit"], ("update", "commit"))
)
def test_wherever_it_is_interrupted_the_run_goes_on_to_the_same_end(
    whole, tmp_path, monkeypatch, phase
):
    """As the kernel's stop button does it: an exception out of nowhere, and the process lives on."""

    def interrupted(*_args, **_kwargs):
        raise KeyboardInterrupt

    path = tmp_path / "run"
    with monkeypatch.context() as now:
        if phase == "rollout":
            now.setattr(step_cell, "rollout", interrupted)
        elif phase == "update":
            now.setattr(learner.Learner, "update", interrupted)
        elif phase == "evaluation":
            now.setattr(loop, "evaluate", interrupted)
        else:
            now.setattr(writer, "append_line", interrupted)
        with pytest.raises(KeyboardInterrupt) as stopped:
            train_here(small(), path)
    assert f"`workbench resume {path}` goes on" in str(stopped.value)
    resume_here(path, on_note=None)
    assert same(whole.path, path)


HANGING = """
import os, signal, sys, threading, time
from workbench.training.signals import stop_on_signals
threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
if sys.argv[1] == "twice":
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
grace = 60.0 if sys.argv[1] == "twice" else 0.5
with stop_on_signals(signal.SIGTERM, signal.SIGINT, grace_s=grace):
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            pass  # code that does not come back
"""


@pytest.mark.parametrize("times, status", [("twice", -signal.SIGTERM), ("once", 143)])
def test_a_second_signal_or_the_end_of_the_grace_ends_it_at_once(times, status):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANGING, times], cwd=ROOT, capture_output=True, text=True, timeout=25
    )
    assert done.returncode == status and time.monotonic() - began < 20
    assert ("ended" in done.stderr) == (times == "once")


def test_a_script_that_trains_heeds_sigterm_too(tmp_path):
    def ask(_outcome):
        os.kill(os.getpid(), signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(
        KeyboardInterrupt, match="stopped after 1 committed steps; `workbench resume .*` goes on"
    ):
        train_here(small(), tmp_path / "run", on_step=ask)
    assert signal.getsignal(signal.SIGTERM) == before


# ------------------------------------------------------------------------------------------------ the command


def test_the_command_resumes_prints_what_changes_and_says_when_nothing_is_left(
    whole, copied, capsys
):
    go_back(copied, 3)
    assert cli.main(["resume", str(copied), "--set", "train.steps=5"]) == 0
    said = capsys.readouterr()
    assert "train.steps: 4 -> 5" in said.out + said.err and "5 steps committed" in said.out
    assert cli.main(["resume", str(copied)]) == 0
    assert "already complete: 5 steps; nothing was changed" in capsys.readouterr().out
    assert cli.main(["resume", str(copied), "--set", "learner.lr=1"]) == 2
    assert "cannot be changed in a run that has begun" in capsys.readouterr().err
    assert cli.main(["resume", str(copied.parent / "nothing")]) == 2
    assert "there is no run folder" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("sharding", ["none", "full"])
def test_two_processes_resume_a_run_of_two_processes_of_which_one_was_killed(tmp_path, sharding):
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
    }
    settings = [word for key, value in SETTINGS.items() for word in ("--set", f"{key}={value}")]
    settings += [
        "--set",
        "train.steps=6",
        "--set",
        "learner.num_processes=2",
        "--set",
        f"learner.sharding={sharding}",
    ]

    def torchrun(*words):
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            "2",
            "-m",
            "workbench.cli",
            *words,
        ]
        return subprocess.Popen(
            command,
            env=environment,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    whole = torchrun("train", "bandit", "--out", "whole", *settings)
    said, _ = whole.communicate(timeout=240)
    assert whole.returncode == 0, said[-3000:]
    broken = torchrun("train", "bandit", "--out", "run", *settings)
    wait_for(tmp_path / "run", "steps/step-00000003")
    second = [
        pid
        for pid in children_of(broken.pid)
        if b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()
    ]
    os.kill(*second, signal.SIGKILL)
    broken.communicate(timeout=120)
    assert broken.returncode != 0 and len(open_run(tmp_path / "run").steps()) < 6
    again = torchrun("resume", "run")
    said, _ = again.communicate(timeout=240)
    assert again.returncode == 0 and "of 6 steps are committed; going on from" in said, said[-3000:]
    assert same(tmp_path / "whole", tmp_path / "run")
    assert open_run(tmp_path / "run").machines()[0][1]["processes"] == 2
    if sharding == "full":  # a checkpoint is whole: any number of processes goes on with it
        alone = [
            sys.executable,
            "-m",
            "workbench.cli",
            "resume",
            "run",
            "--set",
            "train.steps=7",
            "--set",
            "learner.num_processes=1",
            "--set",
            "learner.sharding=none",
        ]
        done = subprocess.run(
            alone, env=environment, cwd=tmp_path, text=True, capture_output=True, timeout=240
        )
        assert done.returncode == 0 and "7 steps committed" in done.stdout, done.stderr[-3000:]


def test_the_clock_tells_what_durability_costs(whole):
    """Trajectories, credit tables and commit are one number, checkpoints another; the update is apart from both."""
    clock = whole.clock()
    assert {"collect_s", "store_s", "credit_s", "update_s", "sync_s", "checkpoint_s"} <= set(clock)
    assert (clock["store_s"] > 0).all() and list(clock.index) == [1, 2, 3, 4]
