"""A run in its own process: started, found again, waited for, stopped, failed. Only its own process is ever touched."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from tests.store_values import ordinary_step
from tests.test_train import tiny
from workbench.look.cells import live_run as running_module
from workbench.look.cells.live_run import RunningRun, attach, fresh_path, resume, train
from workbench.look.cells.processes import Identity, Process, identity, writer_of
from workbench.look.cells.train import train_here
from workbench.run.recording import create_run
from workbench.run.writer import FolderLock
from workbench.training.config import to_dict
from workbench.values.errors import ConfigError, LearnerError, StoreError

ROOT = Path(__file__).resolve().parents[1]
SLEEP = "import time; time.sleep(60)"
IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"


@pytest.fixture
def child():
    """Starts Python processes; ends what is left of them, by their own handles."""
    started = []

    def start(code: str, **options) -> subprocess.Popen:
        started.append(
            subprocess.Popen([sys.executable, "-c", code], start_new_session=True, **options)
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def two_steps(tmp_path):
    """A run of five steps of which two are committed."""
    with create_run(tmp_path / "run", to_dict(tiny(train__steps=5))) as run:
        run.write_evaluation("step-00000000", {"step": 0, "rows": []})
        for step in (1, 2):
            run.write_step(step, ordinary_step(step))
            run.commit_step(step, {"reward_mean": 0.5})
    return tmp_path / "run"


def noted(path: Path, who: Identity) -> None:
    path.with_name(f"{path.name}.process.json").write_text(json.dumps(asdict(who)))


# ------------------------------------------------------------------------------------------------ processes


def test_a_process_is_told_from_another_that_has_its_id(child):
    process = child(SLEEP)
    who = identity(process.pid)
    assert who == identity(process.pid) and Process.find(who) is not None
    assert Process.find(replace(who, started="another time")) is None, (
        "its id alone does not make it the same"
    )
    process.kill()
    for _ in range(100):
        if identity(process.pid) is None:
            break
        time.sleep(0.05)
    assert identity(process.pid) is None, (
        "what is left of it is not reaped yet, and is no process any more"
    )
    assert Process.find(who) is None


def test_the_end_of_a_process_that_is_no_child_is_noticed():
    code = (
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'],"
        "start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL); print(p.pid)"
    )
    pid = int(
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
    )
    process = Process.find(identity(pid))
    assert not process.ended(0.2) and process.status is None
    process.ask()
    assert process.ended(30) and process.status is None and identity(pid) is None
    process.ask(), process.kill()  # nothing is sent to whoever has this id next


def test_the_writer_of_a_folder_is_who_holds_its_lock_now(two_steps, child):
    hold = "import sys, time; from workbench.run.writer import FolderLock; l = FolderLock(sys.argv[1]); print('held', flush=True); time.sleep(60)"
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(two_steps)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        assert writer_of(two_steps) == identity(holder.pid)
    finally:
        holder.kill()
        holder.communicate()
    assert (two_steps / ".lock").read_text() and writer_of(two_steps) is None, (
        "the file stays, the lock does not"
    )


def test_an_id_that_was_given_away_after_the_lock_was_taken_is_not_its_holder(two_steps, child):
    """The holder is gone, a child that it forked keeps the lock, and its id went to somebody who came later."""
    lock = FolderLock(two_steps)
    later = child(SLEEP)
    text = (two_steps / ".lock").read_text()
    (two_steps / ".lock").write_text(
        text.replace(f"process {os.getpid()} ", f"process {later.pid} ")
    )
    assert writer_of(two_steps) is None
    lock.release()


def test_the_writer_is_found_whatever_the_wall_clock_was_when_it_took_the_lock(two_steps):
    lock = FolderLock(two_steps)
    text = (two_steps / ".lock").read_text()
    (two_steps / ".lock").write_text(re.sub(r"since \S+", "since 1999-01-01T00:00:00+00:00", text))
    assert writer_of(two_steps) == identity(os.getpid())
    lock.release()


# ------------------------------------------------------------------------------------------------ attach


def test_attach_finds_the_process_that_was_noted_and_no_other(two_steps, child):
    process = child(SLEEP)
    who = identity(process.pid)
    noted(two_steps, who)
    assert attach(two_steps).process.who == who and attach(two_steps).status.state == "running"
    for other in (replace(who, started=who.started + "1"), replace(who, machine="elsewhere")):
        noted(two_steps, other)
        found = attach(two_steps)
        assert found.process is None and found.status.state == "ended"
        found.stop()
        assert process.poll() is None, "a process that only has the same id is left in peace"


def test_attach_to_a_run_that_is_over_gives_it_back_to_look_at(two_steps):
    found = attach(two_steps)
    assert (found.status.step, found.status.steps, found.status.state) == (2, 5, "ended")
    assert (
        "gone before the last step" in found.status.problems[-1]
        and "goes on after step 2" in found.status.problems[-1]
    )
    with pytest.raises(LearnerError, match="at step 2 of 5"):
        found.wait()
    Path(f"{two_steps}.log").write_text(
        "workbench: stopped after 2 committed steps; `workbench resume run` goes on with step 3\n"
    )
    assert attach(two_steps).status.state == "stopped" and attach(two_steps).wait().steps() == [
        1,
        2,
    ]
    with pytest.raises(StoreError, match="no run folder"):
        attach(two_steps.with_name("never"))


def test_attach_refuses_this_very_process_and_another_machine(two_steps):
    lock = FolderLock(two_steps)
    with pytest.raises(StoreError, match="by this very process"):
        attach(two_steps)
    text = (two_steps / ".lock").read_text()
    (two_steps / ".lock").write_text(text.replace(f" on {text.split()[3]} ", " on far-away "))
    with pytest.raises(StoreError, match="on machine far-away; attach there"):
        attach(two_steps)
    lock.release()


# ------------------------------------------------------------------------------------------------ ends


def running(path, process) -> RunningRun:
    return RunningRun(path, Process.of_child(process))


def test_a_run_that_was_stopped_is_returned_as_far_as_it_came(two_steps, child):
    run = running(two_steps, child(SLEEP))
    run.stop()
    assert (
        run.wait().steps() == [1, 2]
        and run.status.state == "stopped"
        and run.process.status == -signal.SIGTERM
    )


def test_one_that_does_not_listen_is_killed_by_the_second_call_or_after_a_while(two_steps, child):
    for patience in (None, 0.3):
        deaf = child(IGNORES, stdout=subprocess.PIPE)
        assert deaf.stdout.readline() == b"deaf\n"
        run = running(two_steps, deaf)
        run.stop(kill_after_s=patience)
        if patience is None:
            assert not run.process.ended(0.3) and run.status.state == "stopping"
            run.stop()
        assert run.process.ended(30) and run.process.status == -signal.SIGKILL
        assert run.status.state == "stopped" and run.wait().steps() == [1, 2]


LAST_WORDS = [  # what its process did, what it printed, and what is said of it
    (
        "import os; os.kill(os.getpid(), 9)",
        "loading\nstep 2\n",
        r"ended from outside, by SIGKILL; if nobody did that, the machine ran out of memory .* resume\('.*/run'\) goes on after "
        "step 2. The last it said: step 2",
    ),
    (
        "import os; os.kill(os.getpid(), 11)",
        "$ workbench train x\n",
        r"by SIGSEGV\. resume.*It said nothing",
    ),
    (
        "import no_such_package",
        "Traceback\nModuleNotFoundError: No module named 'no_such_package'\n",
        "ended with status 1. resume.* The last it said: ModuleNotFoundError: No module named 'no_such_package'",
    ),
]


@pytest.mark.parametrize(
    ("code", "printed", "words"), LAST_WORDS, ids=["killed", "crashed", "cannot import"]
)
def test_one_that_died_is_told_with_its_cause_its_last_words_and_the_cure(
    code, printed, words, two_steps, child
):
    Path(f"{two_steps}.log").write_text(printed)
    run = running(two_steps, child(code, stderr=subprocess.DEVNULL))
    with pytest.raises(
        LearnerError,
        match=f"(?s)run ended at step 2 of 5: .*{words}.*The end of run.log:\n.*{printed.split()[0][1:]}",
    ):
        run.wait()
    assert re.search(words, run.status.problems[-1]) and "[failed]" in repr(run)
    assert printed.split()[-1] in run.log.text


def test_what_went_wrong_is_told_while_it_goes_on(tmp_path, child):
    with create_run(tmp_path / "run", to_dict(tiny())) as run:
        run.write_step(1, ordinary_step(1))
        run.event({"kind": "skipped_update", "step": 1, "update": 0, "reason": "loss is nan"})
        run.commit_step(
            1, {"stop_env_error": 0.25, "stop_env_timeout": None, "stop_terminated": 0.75}
        )
    status = running(tmp_path / "run", child(SLEEP)).status
    assert status.state == "running" and status.elapsed_s >= 0
    assert status.problems == (
        "step 1: 25% of the trajectories were ended by a fault",
        "1 updates were skipped, the last in step 1: loss is nan",
    )


START = """
import sys
from tests.test_train import tiny
from workbench.look.cells.live_run import train
train(tiny(train__steps=1), sys.argv[1])
print("returned", flush=True)
sys.stdin.read()
"""


def test_a_run_outlives_who_started_it_and_is_never_overwritten(tmp_path):
    """Whoever started it (a kernel) is killed with its whole group, as a restart does, before the first step is made."""
    path = tmp_path / "own"
    kernel = subprocess.Popen(
        [sys.executable, "-c", START, str(path)],
        cwd=ROOT,
        text=True,
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert kernel.stdout.readline() == "returned\n" and not (path / "metrics.jsonl").exists(), (
        "at once"
    )
    os.killpg(kernel.pid, signal.SIGKILL)
    kernel.communicate()
    run = attach(path)
    assert run.status.state == "running", "also before its folder is there"
    stored = run.wait()
    assert stored.steps() == [1] and np.isfinite(stored.metrics()["reward_mean"]).all()
    assert run.status.state == "done" == attach(path).status.state and run.status.problems == ()
    assert attach(path).wait().digest() == stored.digest()
    with pytest.raises(StoreError, match="never overwritten"):
        train(tiny(), path)
    assert fresh_path(path).name == "own-2"


@pytest.mark.full
def test_a_run_that_fails_in_its_process_shows_the_end_of_its_log(tmp_path):
    failed = train(tiny(policy__name="./no-such-policy"), tmp_path / "bad")
    assert failed.status.state == "running" and failed.status.steps == tiny().train.steps
    with pytest.raises(
        LearnerError, match="ended with status 2. The last it said: workbench: .*no-such-policy"
    ):
        failed.wait()
    assert attach(tmp_path / "bad").status.state == "ended", (
        "whoever asks later does not know its exit status"
    )
    again = train(
        tiny(), tmp_path / "bad"
    )  # what the failed try left beside the folder is in nobody's way
    again.stop()
    assert again.process.ended(60) and not (tmp_path / "bad").exists()


@pytest.mark.full
def test_a_run_goes_on_in_a_process_of_its_own_and_may_be_longer(tmp_path):
    path = tmp_path / "run"
    train_here(tiny(train__steps=1), path)
    again = resume(path, {"train.steps": 2})
    with pytest.raises(StoreError, match=rf"trained by process {again.process.who.pid}; attach"):
        resume(path)
    assert attach(path).process.who == again.process.who
    assert again.wait().steps() == [1, 2] and again.status.state == "done"
    with pytest.raises(ConfigError, match="cannot be changed"):
        resume(path, {"learner.lr": 1.0})
    with pytest.raises(StoreError, match="no run folder"):
        resume(tmp_path / "never")


# ------------------------------------------------------------------------------------------------ one process per run


@pytest.fixture
def sleepers(monkeypatch):
    """What `train` starts sleeps instead of training, and never makes a folder."""
    started, popen = [], subprocess.Popen

    def start(command, **options):
        started.append(popen(["sleep", "60"], **options))
        started[-1].options = options
        return started[-1]

    monkeypatch.setattr("workbench.look.cells.live_run.subprocess.Popen", start)
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_second_train_is_refused_before_the_first_has_made_its_folder(tmp_path, sleepers):
    path = tmp_path / "run"
    first = train(tiny(train__steps=3), path)
    written = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(
        StoreError, match=rf"being trained by process {first.process.who.pid}; attach"
    ):
        train(tiny(train__steps=4), path)
    assert (
        len(sleepers) == 1
        and {file.name: file.read_bytes() for file in tmp_path.iterdir()} == written
    )
    assert attach(path).process.who == first.process.who
    first.process.kill()
    assert first.process.ended(30)
    assert train(tiny(), path).process.who != first.process.who, "a failed try is in nobody's way"


def test_of_two_that_start_one_run_at_the_same_moment_one_is_refused(
    tmp_path, sleepers, monkeypatch
):
    """While the first is about to start its process, which nothing tells of yet, the second comes."""
    path, refused = tmp_path / "run", []
    start = running_module._start

    def slow(*arguments):
        with pytest.raises(StoreError, match="being started by somebody else just now"):
            train(tiny(), path)
        refused.append(True)
        return start(*arguments)

    monkeypatch.setattr("workbench.look.cells.live_run._start", slow)
    train(tiny(), path)
    assert refused and len(sleepers) == 1


def test_a_process_that_cannot_be_noted_is_ended_again(tmp_path, sleepers, monkeypatch):
    """The disk is full once it has been started: nobody could ever find it."""
    write = running_module.write_file

    def full(file, content, **how):
        if file.name.endswith(".process.json"):
            raise StoreError("No space left on device")
        return write(file, content, **how)

    monkeypatch.setattr("workbench.look.cells.live_run.write_file", full)
    with pytest.raises(StoreError, match="No space left"):
        train(tiny(), tmp_path / "run")
    assert [process.poll() for process in sleepers] == [-signal.SIGKILL]


def test_a_place_where_nothing_can_be_written_is_said_as_such(tmp_path, sleepers):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="was not started: .*/file.*choose a place"):
        train(tiny(), tmp_path / "file" / "run")
    (tmp_path / "taken.log").mkdir()
    with pytest.raises(StoreError, match="was not started: .*taken.log"):
        train(tiny(), tmp_path / "taken")
    assert not sleepers


def test_the_progress_of_a_process_goes_into_its_log_whatever_the_notebook_shows(
    tmp_path, sleepers, monkeypatch
):
    for asked, given in (
        (None, "terminal"),
        ("batch", "terminal"),
        ("notebook", "terminal"),
        ("quiet", "quiet"),
    ):
        monkeypatch.delenv("WORKBENCH_PROGRESS", raising=False)
        if asked:
            monkeypatch.setenv("WORKBENCH_PROGRESS", asked)
        train(tiny(), tmp_path / f"run-{asked}")
        assert sleepers[-1].options["env"]["WORKBENCH_PROGRESS"] == given
