"""A run goes to a tracker from another process: all of it, each number once, whatever happens to that process.

The real packages are asked, in their offline modes; those of the extra `track` are skipped where they are not installed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.store_values import ordinary_step
from workbench import cli
from workbench.extensions.track import sending, tracker
from workbench.extensions.track.cursor import cursor_path, open_cursor
from workbench.extensions.track.items import Item, RunItems
from workbench.extensions.track.sending import RunSender, send_run
from workbench.extensions.track.start import start_tracking
from workbench.extensions.track.to_tensorboard import markdown_text
from workbench.run.recording import create_run, reopen_run
from workbench.run.store import open_run
from workbench.values import trajectories_of
from workbench.values.errors import ConfigError, StoreError, WorkbenchError

ROOT = Path(__file__).resolve().parents[1]
SMALL = ["train.steps=2", "train.tasks_per_step=2", "train.group_size=2", "evaluation.num_tasks=2"]


def installed(name: str):
    return pytest.param(
        name,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(name) is None,
            reason=f"needs {name}: pip install -e '.[track]'",
        ),
    )


EVERY_TRACKER = [installed(name) for name in ("tensorboard", "trackio", "mlflow", "wandb")]
ROW = {"policy": "trained", "mode": "sampled", "n": 8, "success": 0.5, "faults": None}


@pytest.fixture
def run(tmp_path):
    """Three steps, two evaluations; the second step has a metric that the others lack."""
    with create_run(tmp_path / "first", {"seed": 3, "learner": {"lr": 2e-4}}) as run:
        run.write_evaluation("step-00000000", {"step": 0, "rows": [ROW], "paired": []})
        for step in (1, 2, 3):
            commit(run, step)
        run.write_evaluation("step-00000003", {"step": 3, "rows": [ROW], "paired": []})
    return open_run(tmp_path / "first")


def commit(run, step: int) -> None:
    run.write_step(step, ordinary_step(step))
    metrics = {"reward_mean": 0.25 * step, "success": None} | ({"kl": 0.5} if step == 2 else {})
    run.commit_step(step, metrics, {"collect_s": 0.5 * step})


def expected(run) -> dict[tuple[str, int], object]:
    rows = {step: len(trajectories_of(run.groups(step))) for step in (1, 3)}
    return {
        ("held_out/trained/sampled/n", 0): 8,
        ("held_out/trained/sampled/success", 0): 0.5,
        ("train/reward_mean", 1): 0.25,
        ("clock/collect_s", 1): 0.5,
        ("trajectories", 1): rows[1],
        ("curves", 1): "picture",
        ("train/reward_mean", 2): 0.5,
        ("train/kl", 2): 0.5,
        ("clock/collect_s", 2): 1.0,
        ("held_out/trained/sampled/n", 3): 8,
        ("held_out/trained/sampled/success", 3): 0.5,
        ("train/reward_mean", 3): 0.75,
        ("clock/collect_s", 3): 1.5,
        ("trajectories", 3): rows[3],
        ("curves", 3): "picture",
    }


def environment() -> dict[str, str]:
    return {**os.environ, "WANDB_MODE": "offline", "PYTHONPATH": str(ROOT), "WANDB_SILENT": "true"}


def python(*words: object, timeout: float = 120) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def send(run, name: str, folder: Path, *fault: object, more: tuple = ()):
    module = ("-m", "tests.track_broken", *fault) if fault else ("-m", "workbench.cli", "track")
    return python(*module, run.path, "--to", name, "--dest", folder, *more)


def held(name: str, folder: Path) -> list[tuple[str, int, object]]:
    done = python("-m", "tests.track_reader", name, folder)
    assert done.returncode == 0, done.stderr
    return [tuple(entry) for entry in json.loads(done.stdout)]


def assert_all_once(run, name: str, folder: Path) -> None:
    entries = held(name, folder)
    counts = Counter((part, step) for part, step, _ in entries)
    assert counts == dict.fromkeys(expected(run), 1)
    assert {(part, step): value for part, step, value in entries} == expected(run)


# ------------------------------------------------------------------------------------------------ all of it, once


@pytest.mark.parametrize("name", EVERY_TRACKER)
def test_all_of_a_run_is_sent_and_a_second_time_nothing(run, tmp_path, name):
    before = run.digest()
    for sent in ("9 items", "0 items"):
        done = send(run, name, tmp_path / "out")
        assert done.returncode == 0 and sent in done.stdout, done.stdout + done.stderr
        assert_all_once(run, name, tmp_path / "out")
    assert open_run(run.path).digest() == before
    assert not [path for path in run.path.rglob("*") if "track" in path.name]


@pytest.mark.parametrize("name", EVERY_TRACKER)
@pytest.mark.parametrize(
    "fault", [pytest.param("before", marks=pytest.mark.full), "within", "after"]
)
def test_a_killed_process_leaves_nothing_out_and_nothing_twice(run, tmp_path, name, fault):
    for call in (1, 2):
        killed = send(run, name, tmp_path / "out", fault, call)
        assert killed.returncode == -9, killed.stdout + killed.stderr
    done = send(run, name, tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_all_once(run, name, tmp_path / "out")


@pytest.mark.parametrize("name", EVERY_TRACKER[:3])
def test_who_does_not_ask_what_is_held_sends_twice(run, tmp_path, name):
    """The negative control of the test above: it can see what arrives twice."""
    assert send(run, name, tmp_path / "out", "double", 2).returncode == -9
    assert send(run, name, tmp_path / "out", "double", 99).returncode == 0
    counts = Counter((part, step) for part, step, _ in held(name, tmp_path / "out"))
    assert max(counts.values()) == 2 or name == "mlflow" and counts["train/reward_mean", 2] == 2


@pytest.mark.parametrize("name", EVERY_TRACKER)
def test_a_run_that_grows_is_sent_as_it_grows(tmp_path, name):
    path = tmp_path / "first"
    with create_run(path, {"seed": 3}) as writer:
        writer.write_evaluation("step-00000000", {"step": 0, "rows": [ROW], "paired": []})
        words = ["-m", "tests.track_broken", "none", "99", path, "--to", name]
        following = subprocess.Popen(
            [sys.executable, *map(str, words), "--dest", str(tmp_path / "out")],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        sent = cursor_path(path, name)
        for step in (1, 2, 3):
            commit(writer, step)
            wait_for(lambda: sent.exists() and f'"numbers {step}"' in sent.read_text(), following)
        assert following.poll() is None, "it follows while the run is being written"
        writer.write_evaluation("step-00000003", {"step": 3, "rows": [ROW], "paired": []})
    output, _ = following.communicate(timeout=120)
    assert following.returncode == 0, output
    assert_all_once(open_run(path), name, tmp_path / "out")


def wait_for(happened, process, seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < until, "it did not happen"
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


def test_an_unknown_tracker_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "frozenlake", "--out", "new", "--track", "mlflo"]) == 2
    assert "did you mean 'mlflow'" in capsys.readouterr().err and not list(tmp_path.iterdir())


@pytest.mark.full
def test_training_is_the_same_with_a_tracker_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = [word for setting in SMALL for word in ("--set", setting)]
    for out, track in (("plain", []), ("tracked", ["--track", "tensorboard"])):
        assert cli.main(["train", "frozenlake", "--out", out, *track, *settings]) == 0
    assert open_run("plain").digest() == open_run("tracked").digest()
    sent = cursor_path(Path("tracked"), "tensorboard")
    until = time.monotonic() + 90
    while not (sent.exists() and '"evaluation step-00000002"' in sent.read_text()):
        assert time.monotonic() < until, Path("tracked.track-tensorboard.log").read_text()
        time.sleep(0.1)
    assert not Path("plain.track-tensorboard.log").exists()


def test_the_process_that_sends_needs_no_torch(run, tmp_path):
    code = (
        "import sys; from workbench.cli import main; status = main(sys.argv[1:]); "
        "print(status, sorted({'torch', 'transformers', 'accelerate'} & set(sys.modules)))"
    )
    done = python("-c", code, "track", run.path, "--to", "tensorboard", "--dest", tmp_path / "out")
    assert done.stdout.endswith("0 []\n"), done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------ what goes wrong


@pytest.mark.parametrize("name", EVERY_TRACKER)
def test_a_tracker_without_room_is_tried_again(run, tmp_path, name):
    done = send(run, name, tmp_path / "out", "no_room", 2)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No space left on device; next try in" in done.stdout
    assert_all_once(run, name, tmp_path / "out")


def test_a_tracker_that_hangs_ends_its_own_process_alone(run, tmp_path):
    began = time.monotonic()
    done = send(run, "tensorboard", tmp_path / "out", "hangs", 2, more=("--timeout", "2"))
    assert done.returncode == 2 and "did not answer for 2 s" in done.stderr
    assert time.monotonic() - began < 60
    assert send(run, "tensorboard", tmp_path / "out").returncode == 0
    assert_all_once(run, "tensorboard", tmp_path / "out")


class Refusing:
    """A tracker that refuses everything, such as one that was given a wrong key."""

    def __init__(self, target):
        raise PermissionError("this key is not known")


def test_a_wrong_key_is_said_and_given_up_once_the_run_has_ended(run, monkeypatch):
    monkeypatch.setitem(sending.TRACKERS, "tensorboard", Refusing)
    monkeypatch.setattr(sending, "FIRST_PAUSE_S", 0.01)
    words: list[str] = []
    with pytest.raises(WorkbenchError, match="this key is not known.*goes on where it was"):
        send_run(run.path, "tensorboard", project="p", say=words.append)
    assert len(words) == sending.MOST_FAILURES - 1 and "The run is not affected" in words[0]


def test_while_a_run_trains_it_is_tried_again_for_ever(run):
    written = [True]
    tries = []

    def open_tracker():
        tries.append(1)
        written[0] = len(tries) < 20
        raise PermissionError("this key is not known")

    with (
        open_cursor(run, "tensorboard") as cursor,
        pytest.raises(WorkbenchError, match="is not known"),
    ):
        RunSender(
            RunItems(run),
            cursor,
            open_tracker,
            is_written=lambda: written[0],
            first_pause_s=0,
            say=lambda words: None,
        ).run()
    assert len(tries) >= 20


def test_what_may_have_arrived_is_left_out_where_the_tracker_cannot_tell(run):
    sent: list[str] = []

    class Blind:
        def pause_s(self, elapsed_s):
            return 0.0

        def held(self, item):
            return None

        def send(self, items):
            sent.extend(item.key for _, item in items)

        def close(self):
            pass

    words: list[str] = []
    with open_cursor(run, "tensorboard") as cursor:
        cursor.begin(["numbers 1", "numbers 2"])
    with open_cursor(run, "tensorboard") as cursor:
        RunSender(RunItems(run), cursor, Blind, is_written=lambda: False, say=words.append).run()
    assert words == [
        f"numbers {step} may be missing: it was on its way when sending broke off"
        for step in (1, 2)
    ]
    assert len(sent) == len(set(sent)) == 7 and not {"numbers 1", "numbers 2"} & set(sent)


def test_one_process_sends_a_run_to_a_tracker(run, tmp_path):
    with open_cursor(run, "tensorboard"):
        done = send(run, "tensorboard", tmp_path / "out")
        assert done.returncode == 2 and "by another process" in done.stderr
    with open_cursor(run, "tensorboard"), open_cursor(run, "trackio"):
        pass


def test_an_earlier_run_of_the_same_name_counts_for_nothing(run):
    with open_cursor(run, "tensorboard") as cursor:
        cursor.begin(["numbers 1"])
        cursor.finish()
    with open_cursor(run, "tensorboard") as again:
        assert again.id == cursor.id and again.sent == {"numbers 1"} and again.has_begun
    os.rename(run.path, f"{run.path}-old")
    with create_run(run.path, {"seed": 4}):
        pass
    with open_cursor(open_run(run.path), "tensorboard") as other:
        assert other.id != cursor.id and not other.has_begun


def test_what_tensorboard_drew_of_another_run_is_not_drawn_over(run, tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "FIRST_PAUSE_S", 0)
    (tmp_path / "out/first").mkdir(parents=True)
    with pytest.raises(StoreError, match="is there already"):
        send_run(run.path, "tensorboard", project="p", dest=str(tmp_path / "out"))


def test_what_is_not_there_is_said_before_anything_is_trained(run, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="did you mean 'mlflow'"):
        start_tracking(tmp_path / "new", "mlflo")
    with pytest.raises(StoreError, match="no run folder"):
        send_run(tmp_path / "new", "tensorboard", project="p")
    monkeypatch.setattr(tracker, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install tensorboard"):
        start_tracking(tmp_path / "new", "tensorboard")
    assert not list(tmp_path.glob("new*"))


def test_a_cursor_that_cannot_be_written_is_said(run):
    cursor_path(run.path, "tensorboard").with_name("first.track-tensorboard.jsonl.lock").mkdir()
    with pytest.raises(StoreError, match="must be writable and have room"):
        send_run(run.path, "tensorboard", project="p")


# ------------------------------------------------------------------------------------------------ what is sent


def test_a_picture_waits_for_the_evaluation_of_its_step(tmp_path):
    with create_run(tmp_path / "first", {"seed": 3}) as writer:
        items = RunItems(open_run(tmp_path / "first"), every=2)
        commit(writer, 1)
        commit(writer, 2)
        keys = [place.key for place in items.places(ended=False)]
        assert keys == ["numbers 1", "table 1", "picture 1", "numbers 2", "table 2"]
        writer.write_evaluation("step-00000002", {"step": 2, "rows": [ROW]})
        commit(writer, 3)
    keys = [place.key for place in items.places(ended=True)]
    assert keys[3:] == [
        "evaluation step-00000002",
        "numbers 2",
        "table 2",
        "picture 2",
        "numbers 3",
        "table 3",
        "picture 3",
    ]


def test_a_run_that_went_on_is_sent_from_where_it_was(run, tmp_path):
    assert send_run(run.path, "tensorboard", project="p", dest=str(tmp_path / "out")) == 9
    with reopen_run(run.path) as writer:
        commit(writer, 4)
    assert send_run(run.path, "tensorboard", project="p", dest=str(tmp_path / "out")) == 3
    steps = [step for part, step, _ in held("tensorboard", tmp_path / "out") if part == "curves"]
    assert steps == [1, 3, 4]


def test_text_of_a_trajectory_is_only_text():
    assert markdown_text("<b>\n# x") == "    <b>\n    # x"
    item = Item("numbers 1", 1, {"a": 1.0, "b": 2.0}, rows=[])
    assert item.without({"a"}) == Item("numbers 1", 1, {"b": 2.0}, rows=[])
    assert item.without({"a", "b", "trajectories"}) is None


def test_the_calls_of_a_notebook(run, tmp_path):
    import workbench as wb

    view = wb.track(run, "tensorboard", dest=tmp_path / "out")
    log = Path(f"{run.path}.track-tensorboard.log")
    assert str(log) in view.text
    done = threading.Event()
    until = time.monotonic() + 90
    while "all of the run is there now" not in log.read_text():
        assert time.monotonic() < until, log.read_text()
        done.wait(0.1)
    assert_all_once(run, "tensorboard", tmp_path / "out")
