"""An untrusted run folder is data (invariant 16): nothing in it runs, leads out, hangs, or takes all memory."""

from __future__ import annotations

import os
import shutil
import time

import pytest
from store_values import stored_run

from tests.hostile.bad_calls import NOT_CALLED, commands
from tests.hostile.folders import HOSTILE
from tests.hostile.sweep import COMMANDS, OWN_FILES, bend_own_files, waited_for_a_core
from workbench.cli import run as command
from workbench.run.recording import reopen_run
from workbench.run.store import open_run
from workbench.training import checkpoint
from workbench.values.errors import StoreError

QUICK = (
    "an encoder that is a shell command",
    "steps is a link to a folder outside",
    "config.json is a pipe",
    "metrics.jsonl is a pipe",
    "events.jsonl is a device",
    "run.json is nested 100,000 deep",
    "a line nested 5,000 deep",
    "seals that are numbers",
    "files that lead out",
    "a config that is a list",
    "a payload nested deep",
    "config.json is a terabyte of nothing",
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """A run of one step, as it lies on the disk; nothing was computed."""
    return stored_run(tmp_path_factory.mktemp("sound") / "run")


@pytest.fixture
def bent(sound, tmp_path):
    """(run, outside): a copy to bend, beside a folder that must stay as it is."""
    shutil.copytree(sound, tmp_path / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    return tmp_path / "run", tmp_path / "outside"


@pytest.mark.parametrize("name", QUICK)
def test_a_hostile_folder_is_refused_or_shown_without_harm(bent, name, capfd):
    run, outside = bent
    HOSTILE[name](run, outside)
    before = sorted(outside.rglob("*"))
    for words in (["show", str(run)], ["show", str(run), "1"], ["diff", str(run), str(run)]):
        started = time.monotonic()
        assert command(words) in (0, 1, 2), capfd.readouterr().err
        assert time.monotonic() - started < 20
    assert "Traceback" not in capfd.readouterr().err
    assert sorted(outside.rglob("*")) == before and not (outside.parent / "mark").exists()


@pytest.mark.parametrize("name", ["checkpoints", "steps", "evaluations"])
def test_a_run_with_a_linked_folder_is_not_written(bent, name):
    """Going on with it would prune the checkpoints of another run, without a word."""
    run, outside = bent
    HOSTILE[f"{name} is a link to a folder outside"](run, outside)
    with pytest.raises(
        StoreError,
        match=f"{name} is a symbolic link, and a run is written below its own folder only",
    ):
        reopen_run(run)
    if name == "checkpoints":
        for use in (checkpoint.steps, lambda path: checkpoint.prune(path, 2, spared=())):
            with pytest.raises(StoreError, match="symbolic link"):
                use(run)


def test_the_sound_run_is_gone_on_with(bent):
    """Negative control."""
    reopen_run(bent[0]).close()
    assert open_run(bent[0]).groups(1) and checkpoint.steps(bent[0]) == []


def test_what_escapes_is_one_line_a_file_and_a_status_of_its_own(
    bent, monkeypatch, tmp_path, capsys
):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def broken(args):
        raise IndexError("first\nsecond \x1b[31m")

    monkeypatch.setattr("workbench.cli.commands.show_command", broken)
    assert command(["show", str(bent[0])]) == 3
    [said] = capsys.readouterr().err.splitlines()
    assert said.startswith("workbench: unexpected IndexError: first second  [31m. ")
    [log] = (tmp_path / "state" / "agent-rl-workbench" / "errors").iterdir()
    assert str(log) in said and "def broken" not in said and "raise IndexError" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lint", "/"], "more than 20,000 files and folders"),
        (["lint", "x" * 300], "there is no run folder xxx"),
        (["train", "x" * 300 + ".toml"], "File name too long"),
        (["train", "deep.toml"], "nested more than 100"),
        (["train", "long.toml"], "not valid TOML"),
        (["train", "deep.json"], "nested more than 100"),
        (["train", "pipe.toml"], "not a regular file"),
    ],
)
def test_bad_words_are_refused_in_words(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep.toml").write_text(f"x = {'[' * 5000}{']' * 5000}\n")
    (tmp_path / "long.toml").write_text(f"x = {'1' * 5000}\n")
    (tmp_path / "deep.json").write_text("[" * 100_000 + "]" * 100_000)
    os.mkfifo(tmp_path / "pipe.toml")
    assert command(words) == 2
    assert said in capsys.readouterr().err


def test_every_command_is_tried_by_the_sweep():
    assert {words[0] for words in COMMANDS.values()} == commands().keys() | NOT_CALLED


def test_seconds_in_which_others_had_the_core_are_known():
    """Two that compute on one core wait for it in turns; one that sleeps does not."""
    core = {min(os.sched_getaffinity(0))}

    def child(act):
        if not (pid := os.fork()):
            os.sched_setaffinity(0, core)
            act()
        return pid

    pids = [*(child(_spin) for _ in range(2)), child(lambda: time.sleep(60))]
    time.sleep(0.5)
    waited = [waited_for_a_core(pid) for pid in pids]
    for pid in pids:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    assert min(waited[:2]) > 0.05 and waited[2] < min(waited[:2])


def _spin():
    while True:
        pass


def test_where_the_runs_settings_are_bent_so_is_the_file_of_settings(bent):
    run, outside = bent
    sound = outside.parent / "sound"
    for name in OWN_FILES:
        (run / name).write_text("x = 1\n")
    shutil.copytree(run, sound)
    bend_own_files(run, sound)
    assert (run / OWN_FILES[0]).read_text() == "x = 1\n"
    HOSTILE["config.json is a pipe"](run, outside)
    bend_own_files(run, sound)
    assert all((run / name).is_symlink() and (run / name).is_fifo() for name in OWN_FILES)
