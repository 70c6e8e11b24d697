"""Coroutines, trajectories that one object serves, and `close`: the same in this thread, in threads and in processes."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.envs.served import Awaited, LeavesThreads, Noting, Served
from workbench.linting import Evidence, lint_evidence
from workbench.look.cells.live_run import train
from workbench.rollouts.evaluate import evaluate_baselines
from workbench.tools.awaiting import EventLoop
from workbench.training.config import load_config
from workbench.worlds.runners import InlineRunner, ThreadRunner
from workbench.worlds.workers.env_runner import ProcessRunner
from workbench.worlds.workers.env_slots import WorkerSlots

ROOT = Path(__file__).resolve().parents[2]
RUNNERS = {
    "inline": InlineRunner,
    "threads": lambda: ThreadRunner(deadline_s=20),
    "processes": lambda: ProcessRunner(deadline_s=20, workers=2),
}


@pytest.fixture(params=RUNNERS)
def runner(request):
    made = RUNNERS[request.param]()
    made.kind = request.param
    yield made
    made.shutdown()


def answers(runner, count):
    got = []
    while len(got) < count:
        got += runner.poll(5.0)
    return {answer.key: answer for answer in got}


def played(runner, family, attempts=4, turns=3, texts=None):
    """Rewards by trajectory: all trajectories at once, in turns."""
    for k in range(attempts):
        runner.reset(f"a{k}", family, family.task(k), 100 + k)
    first = answers(runner, attempts)
    assert [first[f"a{k}"].error for k in range(attempts)] == [None] * attempts
    rewards = {key: [] for key in first}
    for _ in range(turns):
        for key in rewards:
            runner.step(key, (texts or {}).get(key, "go"))
        for key, answer in answers(runner, attempts).items():
            rewards[key].append(answer.error or answer.result.reward)
    for key in rewards:
        runner.close(key)
    return rewards


ALONE = {
    f"a{k}": [100 + k + step for step in (1, 2, 3)] for k in range(4)
}  # each of its own seed and steps


def test_coroutines_are_awaited_wherever_they_are_stepped(runner, tmp_path):
    family = Awaited(str(tmp_path))
    assert played(runner, family) == ALONE
    runner.shutdown()
    assert family.notes() == [f"closed noting/{k} after 3" for k in range(4)]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("waits", [False, True])
def test_trajectories_that_one_object_serves_do_not_mix(
    runner, tmp_path, batched, waits, monkeypatch
):
    monkeypatch.setattr(
        WorkerSlots, "patience", lambda *_: 10.0
    )  # no trajectory moves to another worker
    family = Served(str(tmp_path), batched=batched, waits=waits)
    assert played(runner, family) == ALONE
    assert (
        played(runner, family) == ALONE
    )  # the same object again, with the same names of trajectories
    runner.shutdown()
    notes = family.notes()
    objects = notes.count("made")
    assert (
        objects == 1 or runner.kind == "processes" and objects == 2
    )  # a worker has one of its own
    assert notes.count("shut down with 0") == objects
    assert [note for note in notes if note.startswith("closed")] == sorted(
        f"closed noting/{k} after 3" for k in range(4) for _ in range(2)
    )


def test_a_worker_that_stood_in_gives_back_what_it_held(tmp_path, monkeypatch):
    monkeypatch.setattr(
        WorkerSlots, "patience", lambda *_: 0.01
    )  # a batch takes 0.05 s: whoever waits behind it moves
    family, runner = Served(str(tmp_path), batched=True), ProcessRunner(deadline_s=20, workers=1)
    assert played(runner, family) == ALONE
    held = family.notes().count("made")
    assert (
        held > 1 and len(runner._slots.workers) == 1
    )  # others stood in, and are gone with the last trajectory
    runner.shutdown()
    assert family.notes().count("shut down with 0") == held


def test_an_object_that_mixes_trajectories_is_seen_to_mix_them(tmp_path):
    assert played(InlineRunner(), Served(str(tmp_path), wrong="mixed")) != ALONE


def test_what_waits_goes_in_one_batch_and_one_failure_is_one_trajectories(tmp_path):
    family, runner = Served(str(tmp_path), batched=True), ThreadRunner(deadline_s=20)
    rewards = played(runner, family, turns=1, texts={"a1": "raise", "a2": "forget"})
    assert rewards["a0"] == [101] and rewards["a3"] == [104]
    assert "broken" in rewards["a1"][0] and "there is none for 'a2~" in rewards["a2"][0]
    runner.shutdown()
    assert max(int(note.split()[-1]) for note in family.notes() if note.startswith("batch")) > 1


@pytest.mark.parametrize("family", [Awaited, lambda folder: Served(folder, waits=True)])
def test_coroutines_of_several_trajectories_go_on_at_once(family, tmp_path):
    runner = ThreadRunner(deadline_s=20)
    began = time.monotonic()
    played(runner, family(str(tmp_path)), turns=1, texts={f"a{k}": "slow" for k in range(4)})
    assert time.monotonic() - began < 4 * 0.3
    runner.shutdown()


@pytest.mark.parametrize("family", [Awaited, Noting, lambda folder: Served(folder, waits=True)])
def test_a_trajectory_cut_off_at_its_deadline_is_closed_and_the_others_go_on(family, tmp_path):
    family, runner = family(str(tmp_path)), ThreadRunner(deadline_s=0.4)
    runner.reset("a", family, family.task(1), 1)
    runner.reset("b", family, family.task(2), 2)
    answers(runner, 2)
    runner.step("a", "hang")
    assert answers(runner, 1)["a"].timed_out
    runner.step("b", "go")
    assert answers(runner, 1)["b"].result.reward == 3
    runner.shutdown()
    assert (
        "closed noting/1 after 0" in family.notes() and "closed noting/2 after 1" in family.notes()
    )


def test_after_a_call_that_hangs_new_trajectories_get_another_object(tmp_path):
    family, runner = Served(str(tmp_path)), ThreadRunner(deadline_s=0.3)
    runner.reset("a", family, family.task(1), 1)
    answers(runner, 1)
    runner.step("a", "hang")
    assert answers(runner, 1)["a"].timed_out
    time.sleep(1.2)  # its own thread has not come back
    runner.reset("a", family, family.task(1), 1)
    assert answers(runner, 1)["a"].error is None and family.notes().count("made") == 2


@pytest.mark.parametrize(
    "why", ["reset raised", "step raised", "left in the middle", "begun again"]
)
def test_every_way_out_closes_the_environment(runner, tmp_path, why):
    family = Noting(str(tmp_path))
    task = family.task(13 if why == "reset raised" else 1)
    runner.reset("a", family, task, 1)
    first = answers(runner, 1)["a"]
    assert (first.error is not None) == (why == "reset raised")
    if why == "step raised":
        runner.step("a", "raise")
        assert "broken" in answers(runner, 1)["a"].error
    if why == "begun again":
        runner.reset("a", family, task, 1)
        answers(runner, 1)
    if why != "left in the middle":
        runner.close("a")
    runner.shutdown()
    assert family.notes() == [f"closed {task.id} after 0"] * (2 if why == "begun again" else 1)


@pytest.mark.parametrize("make", [Noting, Awaited, lambda folder: Served(folder, waits=True)])
def test_random_play_closes_what_it_opened(make, tmp_path):
    family = make(str(tmp_path))
    [random] = evaluate_baselines([family.task(k) for k in range(3)], family=family, seed=0)
    assert random.turns == 4 and sum(note.startswith("closed") for note in family.notes()) == 3
    assert family.notes().count("made") == family.notes().count("shut down with 0")


def test_a_loop_runs_only_where_something_is_awaited(tmp_path):
    def loops():
        return {
            thread for thread in threading.enumerate() if thread.name == "environments' event loop"
        }

    before, runner = loops(), InlineRunner()
    played(runner, Noting(str(tmp_path)))
    assert not loops() - before
    played(runner, Awaited(str(tmp_path)))
    assert len(loops() - before) == 1
    runner.shutdown()


async def current_thread():
    return threading.current_thread()


def test_a_loop_that_is_closed_gives_back_its_descriptors():
    loop = EventLoop()
    thread = loop.settle(current_thread())
    running = loop._loop
    loop.close()
    thread.join(5.0)
    assert running.is_closed() and not loop.running
    assert loop.settle(asyncio.sleep(0, "anew")) == "anew"
    loop.close()


# ------------------------------------------------------------------------------------------------ the end of a process

SMALL = {
    "train.steps": "1",
    "train.tasks_per_step": "1",
    "train.group_size": "2",
    "evaluation.num_tasks": "2",
    "collect.max_turn_tokens": "4",
    "env.max_turns": "1",
    "lint.mode": "off",
    "env.kind": "tests.envs.served:LeavesThreads",
}


def arguments(folder):
    return [f"--set={key}={value}" for key, value in (SMALL | {"env.folder": str(folder)}).items()]


@pytest.mark.full
@pytest.mark.parametrize(
    "through", [pytest.param("the command", marks=pytest.mark.full), "a handle"]
)
def test_threads_that_are_left_do_not_keep_a_committed_run_from_ending(
    tmp_path, through, monkeypatch
):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    (tmp_path / "notes").mkdir()
    if through == "the command":
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "workbench.cli",
                "train",
                "bandit",
                "--out",
                str(tmp_path / "run"),
                *arguments(tmp_path / "notes"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            cwd=ROOT,
            env=os.environ | {"WORKBENCH_PROGRESS": "quiet"},
        )
        assert ended.returncode == 0, ended.stderr
        said = ended.stderr
    else:
        config = load_config("bandit", SMALL | {"env.folder": str(tmp_path / "notes")})
        running = train(config, tmp_path / "run")
        ended = running.process.ended(40)
        if not ended:
            running.process.kill()
        assert ended and running.wait().steps() == [1], running.log.text
        said = (tmp_path / "run.log").read_text()
    assert "threads that it did not start would not end: waits for ever" in said
    assert LeavesThreads(str(tmp_path / "notes")).notes()  # and each environment was closed


@pytest.mark.filterwarnings(
    "error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning"
)
@pytest.mark.parametrize(
    "family",
    [
        Awaited,
        pytest.param(
            lambda folder: Served(folder, batched=True, waits=True), marks=pytest.mark.full
        ),
    ],
)
def test_the_lint_plays_what_has_to_be_awaited_or_serves_many(tmp_path, family):
    """A coroutine that nobody awaits would be a warning, and its environment unknown."""
    report = lint_evidence(Evidence(family=family(str(tmp_path)), about="at the start"), ("start",))
    assert report["R30"].looked > 0 and not report["R30"].errors
    gc.collect()
