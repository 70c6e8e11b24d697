"""Run folders that commit bca8911 wrote open, show, lint, replay, resume and export for good.

What is in them: `make_old.py`. A later format needs a reader of this one; the folders stay as they are.
"""

from __future__ import annotations

import builtins
import math
import operator
import re
import shutil
import sys
from functools import reduce

import numpy as np
import pytest
from safetensors.numpy import load_file

import workbench as wb
from tests.counts import reduced
from tests.golden_runs.compare import differences, expect
from tests.golden_runs.make import read_record
from tests.golden_runs.make_old import ROOT, old_runs, shown, sums
from tests.golden_runs.record import record_of, this_machine, weights_of
from tests.golden_runs.runs import OLD

STEPS = {"search": 2, "small-frozenlake": 3, "small-ppo": 2, "window": 2}
WITH_CHECKPOINT = ("small-frozenlake", "small-ppo")

pytestmark = pytest.mark.usefixtures("root", "untouched")


@pytest.fixture
def root(monkeypatch):
    """The policy of two of the runs is named relative to the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.fixture(scope="module")
def untouched():
    """Nothing that looks at a stored run changes it: before and after, every file is the one that was written."""
    assert sums() == (OLD / "SHA256SUMS").read_text(), (
        "a stored run is not the one that bca8911 wrote; restore it"
    )
    yield
    assert sums() == (OLD / "SHA256SUMS").read_text(), "looking at a stored run changed it"


@pytest.fixture(params=STEPS)
def name(request):
    return request.param


def test_every_stored_run_is_tried():
    assert [path.name for path in old_runs()] == sorted(STEPS)


def test_it_opens_with_every_number_that_was_recorded(name):
    """Nothing is computed here, so this holds on every machine."""
    run, recorded = wb.open_run(OLD / name), read_record(name)
    assert run.steps() == list(range(1, STEPS[name] + 1)) and run.warnings() == []
    now = record_of(run, weights={})
    past = {
        "steps": {step: recorded["steps"][step] for step in now["steps"]},
        "weights": {},
        "evaluations": {step: recorded["evaluations"][step] for step in now["evaluations"]},
    }
    assert [str(difference) for difference in differences(past, now)] == []
    assert run.config["train"]["steps"] == len(recorded["steps"]), (
        "what was changed in a resumed run is in force"
    )


def added_otherwise(numbers, start=0):
    """`sum` as another Python adds floats: compensated since 3.12, from left to right before."""
    numbers = list(numbers)
    made = reduce(operator.add, numbers, start)
    if type(made) is not float or sys.version_info >= (3, 12):
        return made
    return math.fsum([start, *numbers])


@pytest.fixture
def another_python(monkeypatch):
    assert sum([0.1] * 10) != added_otherwise([0.1] * 10)
    monkeypatch.setattr(builtins, "sum", added_otherwise)


@pytest.mark.parametrize("name", ["small-ppo"])
def test_what_was_earned_is_the_same_however_python_adds(name, another_python, monkeypatch):
    def faults():
        past, now = read_record(name)["steps"], record_of(wb.open_run(OLD / name), weights={})
        past = {"steps": past, "weights": {}, "evaluations": {}}
        found = map(str, differences(past, now | {"evaluations": {}}))
        return [fault for fault in found if "reward" in fault]

    assert faults() == []
    monkeypatch.setattr("workbench.values.trajectories.sum_of", math.fsum)
    assert any("-0.6" in fault for fault in faults())  # negative control


PAID = re.compile(r"\bsum\((?!.* is )[^()]*(?:reward|parts|owed|if_cut|paid_by)")


def added_by_python(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if PAID.search(line)]


def test_nothing_that_is_paid_is_added_by_a_python_of_its_own():
    folders = ("values", "worlds", "rollouts", "plain", "extensions/agents", "extensions/shop")
    paths = [path for name in folders for path in (ROOT / "workbench" / name).rglob("*.py")]
    assert [line for path in paths for line in added_by_python(path.read_text())] == []
    assert added_by_python("    reward = sum(parts.values())")  # negative control


def test_it_shows_what_it_showed(name):
    run = wb.open_run(OLD / name)
    assert shown(run) == (OLD / f"{name}.txt").read_text(encoding="utf-8"), (
        "another text; where that is meant: python -m tests.golden_runs.make_old --texts"
    )
    for view in (wb.show(run), wb.show(run, evaluation="last"), wb.show_masks(run.groups(1))):
        assert view.html.startswith("<") and view.png.startswith(b"\x89PNG")


def test_the_lint_finds_no_error_and_has_looked(name):
    found = wb.lint(OLD / name)
    assert found.ok, found.text
    assert sum(answer.looked > 0 for answer in found.report.answers) >= 18, (
        found.text
    )  # 21 rules when it was made


def test_every_step_is_replayed_and_equal(name):
    run, same_machine = wb.open_run(OLD / name), read_record(name)["machine"] == this_machine()
    for step in run.steps():
        text = wb.show_replay(run, step).text
        assert "recomputed trajectory" in text and "advantage" in text
        if same_machine:
            assert text.rstrip().splitlines()[-1].startswith("equal: every recomputed number"), text
        else:  # an exponential or a root may be rounded otherwise
            columns = set(re.findall(r"column (\w+): \d+ of", text))
            assert columns <= {"ratio", "clip_state", "advantage"}, text
            pairs = re.findall(r"stored ([-+.e0-9]+), recomputed ([-+.e0-9]+)", text)
            assert all(math.isclose(*map(float, pair), rel_tol=1e-6) for pair in pairs), text
            assert bool(pairs) == bool(columns)


@pytest.mark.parametrize("name", reduced(STEPS, ("small-ppo",)))
def test_it_goes_on_and_ends_as_if_it_had_never_been_stopped(name, tmp_path):
    path, notes = tmp_path / name, []
    shutil.copytree(OLD / name, path)
    run = wb.resume_here(path, on_note=notes.append)
    begin = "the checkpoint of step 2" if name in WITH_CHECKPOINT else "the untrained policy"
    assert (
        f"{STEPS[name]} of {STEPS[name] + 1} steps are committed; going on from {begin}" in notes[0]
    )
    assert run.steps() == list(range(1, STEPS[name] + 2))
    expect(read_record(name), record_of(run), name)
    if read_record(name)["machine"] == this_machine():
        assert not [event for event in run.events() if event["kind"] == "rounding"], (
            "repeated steps are equal too"
        )
        assert wb.show(wb.compare_runs(OLD / name, path)).text.startswith(
            f"different: step {STEPS[name] + 1}, "
        )


@pytest.mark.parametrize("name", WITH_CHECKPOINT)
def test_its_checkpoint_opens_as_a_policy(name, tmp_path):
    run = wb.open_run(OLD / name)
    session = wb.reopen(run, quiet=True)
    assert (
        session.learner.version
        == run.metrics_line(2)["policy_version"]
        == session.engine.policy_version
    )
    wb.export_policy(run, tmp_path / "policy")
    exported, stored = (
        load_file(tmp_path / "policy" / "model.safetensors"),
        weights_of(OLD / name)["model"],
    )
    assert set(exported) == set(stored) and all(
        np.array_equal(exported[key], stored[key]) for key in stored
    )


def test_it_is_exported(name, tmp_path):
    run = wb.open_run(OLD / name)
    text = wb.export_run(run, "tensorboard", tmp_path / "out").text
    number = int(re.search(r"([\d,]+) numbers of", text)[1].replace(",", ""))
    assert number > 40 * STEPS[name] and list((tmp_path / "out").rglob("events.out.tfevents.*"))


def test_no_stored_run_names_the_machine_that_made_it():
    for path in OLD.rglob("*"):
        content = path.read_bytes() if path.is_file() else b""
        assert not re.search(rb"/(home|root|tmp|work|Users)/", content), path
    hosts = {line["machine"] for path in old_runs() for line in wb.open_run(path).processes()}
    assert hosts == {"a-machine"}
