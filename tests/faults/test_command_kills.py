"""`demo` and `ablate` that are killed. The counts are those of `python -m tests.faults.command_kills`, in the fuller counts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.faults import command_kills, killing
from tests.faults.command_kills import ROOT, Ground, Kills, bytes_of
from workbench.extensions.demo import verdict as demo_cell
from workbench.look.cells import live_run
from workbench.look.cells.processes import Process, process_file
from workbench.run.processes import Identity
from workbench.training.config import load_config
from workbench.values.errors import StoreError


@pytest.mark.parametrize("way", ["demo", "ablate"])
def test_killed_in_the_middle_nothing_is_lost_and_the_next_start_says_what_is_there(tmp_path, way):
    ground, tally = Ground.of(way, tmp_path / way), Kills()
    ground.kill(tally, call=2 * ground.calls // 3)
    assert tally.killed == 1 and not tally.faults and tally.lost == 0
    assert tally.committed and tally.finished and tally.refused == (way == "demo")


@pytest.mark.full
@pytest.mark.parametrize("way", list(command_kills.WAYS))
def test_killed_twenty_times(tmp_path, capfd, way):
    """A program of its own: it forks, and a test worker has threads."""
    kills = 24 if way in ("demo", "ablate") else 20
    words = ["--kills", f"{kills}", "--ways", way, "--json", str(tmp_path / "tally")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.command_kills", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    tally = json.loads((tmp_path / "tally").read_text())[way]
    assert tally["killed"] == kills and tally["committed"] and tally["lost"] == 0
    with capfd.disabled():
        print(f"\n{done.stdout.splitlines()[0]}", file=sys.stderr, flush=True)


@pytest.mark.full
def test_negative_control_what_is_lost_half_written_or_overwritten_is_noticed(
    tmp_path, monkeypatch
):
    demo = Ground.of("demo", tmp_path / "demo")
    run, tally = tmp_path / "demo/whole/seed-0", Kills()
    before = killing.lines_of(run)
    (run / "metrics.jsonl").write_bytes(b"")
    command_kills.resume_to(run, run, before + b"{}\n", tally, "lost")
    assert tally.lost == 3
    ablate, tally = Ground.of("ablate", tmp_path / "ablate"), Kills()
    record = next((ablate.whole / "jobs").glob("*.json"))
    record.write_bytes(record.read_bytes()[:-9])
    assert command_kills.half_written(ablate.whole)[0].startswith(record.name)
    # A demo that begins anew over what is there.
    out = tmp_path / "out"
    out.mkdir()
    (out / "note").write_text("mine")
    monkeypatch.setattr(command_kills, "start_demo", lambda out: (out / "note").unlink())
    command_kills.after_demo(out, demo.whole, tally, "over it")
    assert "was not refused" in tally.faults[-1] and not bytes_of(out)


def started(folder: Path, outlives: bool) -> tuple[int, list[Identity]]:
    """A forked child that starts the rivals of a search and is there until it is killed; and those rivals. They are
    programs that do nothing, in the place of an interpreter."""
    idle = folder / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 60\n")
    idle.chmod(0o755)
    config = load_config("search", {"train.steps": 1})
    pid = os.fork()
    if pid == 0:
        try:
            live_run.sys = SimpleNamespace(
                executable=str(idle), path=[], prefix=sys.prefix, base_prefix=sys.base_prefix
            )
            real = demo_cell.start
            demo_cell.start = lambda *args, **more: real(*args, **more | {"outlives": outlives})
            with demo_cell._rivals(config, folder):
                (folder / "there").touch()
                time.sleep(60)
        finally:
            os._exit(1)
    until = time.monotonic() + 30
    while not (folder / "there").exists() and time.monotonic() < until:
        time.sleep(0.01)
    names = [f"seed-{config.seed}-{name.replace(' ', '-')}" for name in demo_cell.RIVALS]
    files = [process_file(folder / name) for name in names]
    return pid, [Identity(**json.loads(file.read_text())) for file in files]


@pytest.mark.parametrize("outlives", [False, True])
def test_the_rivals_of_a_demo_that_is_killed_end_too(tmp_path, monkeypatch, outlives):
    """Negative control: as a run of a notebook, which goes on whatever happens to the kernel, they would live."""
    monkeypatch.setattr(live_run, "refuse_elsewhere", lambda config: None)  # it opens the policy
    pid, rivals = started(tmp_path, outlives)
    processes = [Process.find(who) for who in rivals]
    assert len(processes) == 3 and None not in processes
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    try:
        within_s = 0.2 if outlives else 10.0
        assert [process.ended(within_s) for process in processes] == [not outlives] * 3
    finally:
        for process in processes:
            process.kill()


def test_a_demo_never_begins_in_a_folder_that_holds_something(tmp_path):
    (tmp_path / "seed-0.log").touch()
    config = load_config("bandit")
    with pytest.raises(StoreError, match="not empty.*workbench resume .*/seed-0`"):
        demo_cell.demo(config, [0], tmp_path, lambda config, path: pytest.fail("it trains"))
