"""Half an hour on a GPU is planned, started, limited and written down by code that a CPU runs too (`experiments/gpu_check.sh`)."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest

from docs.make.gpus import gpu_tables
from experiments.gpu_check import __main__ as driver
from experiments.gpu_check import carry
from experiments.gpu_check.learning import NoModel, guessing
from experiments.gpu_check.plan import MODULES, NAMES, PARTS, Part, Setting
from workbench.extensions.real_model.higher_lower import HigherLower

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "experiments/gpu_check.sh"
CALL_S = 600  # that one call to a lent machine may take
DEVICE_S = 1800  # of device time, all calls together
CALL_BYTES = 64 << 20

# In the place of Python: does as the part's name says, and leaves figures first.
PRETENDS = """#!/bin/sh
while [ "$1" != --part ]; do shift; done
part=$2; out=$4
echo '{"measured": 1}' > "$out"
case $part in
    agreement) echo "out of memory, it says"; exit 3 ;;
    tests) sleep 60 & echo $! > "{folder}/child"; wait ;;
    determinism) kill -9 $$ ;;
esac
"""


# ------------------------------------------------------------------------------------------------ the plan


def test_the_plan_fits_a_lent_machine():
    assert len(set(NAMES)) == len(PARTS) and sum(part.limit_s for part in PARTS) <= DEVICE_S
    calls = [part.call for part in PARTS]
    assert calls == sorted(calls) and len({part.call for part in PARTS}) == 4
    for call in set(calls):
        assert sum(part.limit_s for part in PARTS if part.call == call) <= CALL_S


@pytest.mark.parametrize("part", PARTS, ids=NAMES)
def test_every_part_is_a_function_that_is_there(part):
    module, function = part.work.split(":")
    assert part.question and callable(
        getattr(importlib.import_module(f"{MODULES}.{module}"), function)
    )


def script(*words, **environment):
    return subprocess.run(
        ["bash", str(SCRIPT), *words],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHON": sys.executable} | environment,
    )


def test_the_script_says_its_plan_and_runs_nothing(tmp_path):
    done = script("--dry-run", "--call", "1", "--out", str(tmp_path / "gpu.json"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[2] for line in lines[:-1]] == [p.name for p in PARTS if p.call == 1]
    assert lines[-1].startswith("call 1: at most") and not list(tmp_path.iterdir())


def test_the_script_says_that_it_was_not_run_and_bash_can_read_it():
    assert "NOT RUN ON A GPU YET" in SCRIPT.read_text()
    assert subprocess.run(["bash", "-n", str(SCRIPT)], capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--device", "cuda"], "no GPU here"),
        (["--device", "cpu"], "would take hours"),
    ],
)
def test_what_would_not_work_is_refused_with_what_to_do(monkeypatch, capsys, words, told):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert driver.main(words) == 2
    error = capsys.readouterr().err
    assert told in error and "--device cpu --shapes tiny rehearses it" in error


# ------------------------------------------------------------------------------------------------ parts that end badly


@pytest.fixture
def pretending(tmp_path, monkeypatch):
    """Parts that do nothing but end as their name says; options of a run of the first four."""
    python = tmp_path / "python"
    python.write_text(PRETENDS.replace("{folder}", str(tmp_path)))
    python.chmod(0o755)
    monkeypatch.setattr(driver.sys, "executable", str(python))
    monkeypatch.setattr(driver, "CPU_LIMIT_S", 1)
    return Namespace(
        device="cpu",
        shapes="tiny",
        model="",
        out=tmp_path / "gpu.json",
        seconds=3600.0,
        parts=["doctor", "agreement", "tests", "determinism"],
        call=None,
    )


def test_a_part_that_fails_hangs_or_dies_does_not_stop_the_next(pretending, tmp_path):
    found = driver.check(pretending)["parts"]
    assert {name: part["status"] for name, part in found.items()} == {
        "doctor": "passed",
        "agreement": "failed (3)",
        "tests": "took too long",
        "determinism": "failed (-9)",
    }
    assert all(part["figures"] == {"measured": 1} for part in found.values()), "what it had stays"
    assert (
        found["agreement"]["error"] == "out of memory, it says" and "error" not in found["doctor"]
    )
    child = int((tmp_path / "child").read_text())
    for _ in range(50):  # what a part started ends with it
        if (
            not Path(f"/proc/{child}").exists()
            or "Z" in Path(f"/proc/{child}/stat").read_text().split()[2]
        ):
            break
        time.sleep(0.1)
    else:
        pytest.fail("a part that was ended left a process behind")


def test_the_file_is_written_after_every_part(pretending, monkeypatch):
    written = []

    def run(part: Part, setting, limit):
        known = json.loads(pretending.out.read_text())["parts"] if pretending.out.exists() else {}
        written.append(list(known))
        return {"question": part.question, "status": "passed", "seconds": 0.0, "figures": {}}

    monkeypatch.setattr(driver, "run", run)
    driver.check(pretending)
    assert written == [pretending.parts[:count] for count in range(4)]


def test_what_has_no_time_left_is_not_run_and_gets_no_figure(pretending):
    pretending.seconds = 0.0
    found = driver.check(pretending)["parts"]
    assert {part["status"] for part in found.values()} == {"not run"}
    assert all("figures" not in part for part in found.values())


def made(device, kind, **parts):
    return {"machine": {"device": device}, "kind": kind, "shapes": "real", "parts": parts}


def test_calls_become_one_file_in_the_plans_order_and_other_cards_are_refused(tmp_path):
    files = [tmp_path / f"{number}.json" for number in range(3)]
    files[0].write_text(json.dumps(made("H100", "check", update={"status": "failed"}, doctor={})))
    files[1].write_text(json.dumps(made("H100", "check", update={"status": "passed"}, decode={})))
    files[2].write_text(json.dumps(made("H200", "check", loss={})))
    parts = driver.merged(files[:2])["parts"]
    assert list(parts) == ["doctor", "decode", "update"] and parts["update"]["status"] == "passed"
    with pytest.raises(SystemExit, match="H100.*H200"):
        driver.merged(files)


def test_a_rehearsal_gives_no_figure_to_a_page():
    figures = {"differences": {"engine float32": 1e-6}, "limits": {"engine float32": 1e-3}}
    parts = {"agreement": {"question": "?", "status": "passed", "figures": figures}}
    result = {"kind": "rehearsal", "parts": parts, "not run": {"vllm": "too large"}}
    assert list(gpu_tables(result)) == ["parts"]
    assert list(gpu_tables(result | {"kind": "check"})) == ["parts", "agreement"]


# ------------------------------------------------------------------------------------------------ what travels


def test_a_file_travels_in_pieces_and_is_whole_again(tmp_path):
    file = tmp_path / "model.whl"
    file.write_bytes(os.urandom(1000))
    there = tmp_path / "there"
    there.mkdir()
    pieces = carry.split(file, tmp_path / "pieces", size=300)
    assert [piece.parent.name for piece in pieces] == ["0", "1", "2", "3"]
    for number, piece in enumerate(pieces):
        if number == 3:
            with pytest.raises(carry.CarryError, match="3.piece is not in"):
                carry.join(there)
        for part in piece.parent.iterdir():
            (there / part.name).write_bytes(part.read_bytes())
    assert carry.join(there).read_bytes() == file.read_bytes()
    (there / "1.piece").write_bytes(b"x" * 300)
    with pytest.raises(carry.CarryError, match="1.piece is not what was split"):
        carry.join(there)


def test_a_piece_and_the_checkout_fit_one_call():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    size = sum(file.stat().st_size for file in files if file.is_file())
    wheels = 4 << 20  # measured: 3.3 MB
    assert size + wheels + carry.PIECE_BYTES < CALL_BYTES


def test_without_wheels_or_pieces_it_says_how_to_get_them(tmp_path):
    with pytest.raises(carry.CarryError, match="gpu_check.sh --wheels"):
        carry.install(tmp_path, tmp_path / "site")
    with pytest.raises(carry.CarryError, match="no pieces.json"):
        carry.join(tmp_path)


# ------------------------------------------------------------------------------------------------ the game


def test_the_model_plays_the_game_of_the_package_as_it_comes():
    """A part of a command that it is asked of is far too long for a test: its configuration is looked at."""
    setting = Setting(device="cpu", tiny=True, seconds=1.0, model="smollm2")
    config = guessing(setting)
    assert config.env == HigherLower(max_turns=5, pay="found") and not config.learner.lora_rank
    assert (config.train.steps, config.evaluation.num_tasks) == (2, 4)
    assert guessing(replace(setting, tiny=False)).train.group_size == 8
    with pytest.raises(NoModel, match="--model FOLDER"):
        guessing(replace(setting, model=""))


# ------------------------------------------------------------------------------------------------ all of it


@pytest.mark.full
def test_the_parts_run_on_a_cpu_with_tiny_shapes(tmp_path):
    """All but those that train for minutes, and those whose answer is another test's (doctor, tests)."""
    names = ["agreement", "determinism", "decode", "update", "loss", "states"]
    out = tmp_path / "cpu.json"
    done = script("--device", "cpu", "--shapes", "tiny", "--out", str(out), "--parts", *names)
    found = json.loads(out.read_text())
    assert done.returncode == 0, {name: part.get("error") for name, part in found["parts"].items()}
    assert list(found["parts"]) == names and found["kind"] == "rehearsal"
    figures = {name: part["figures"] for name, part in found["parts"].items()}
    assert figures["agreement"]["not synced, for comparison"] > 0.1, "stale weights would be seen"
    assert figures["update"]["rows"][0]["trained_tokens"] > 0
    assert figures["states"]["resume"]["resume is equal"]
    assert not figures["states"]["resume"]["another seed is equal"]
    assert gpu_tables(found | {"kind": "check"}).keys() == {"parts", *names}
