"""The folder of a grid, as a stranger hands it over: a record that no job wrote is refused in words, and nothing is written
through a link."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from shutil import copytree

import pytest

from tests.ablation import quick
from workbench.extensions.ablation import work
from workbench.extensions.ablation.drive import JobSettings, drive, states
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.table import tabled
from workbench.values.errors import WorkbenchError

HERE = JobSettings(workers=0, do=quick.do)


def quiet(line: str) -> None:
    pass


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("grid")
    plan = read_plan(quick.plan_at(folder))
    drive(plan, plan.seeds, folder / "out", folder, HERE, quiet)
    return plan, folder


def looked_at(plan, out: Path, folder: Path) -> None:
    """All that reads the records of a grid."""
    states(plan, plan.seeds, out)
    drive(plan, plan.seeds, out, folder, HERE, quiet)
    tabled(plan, plan.seeds, out)


def forge(out: Path, keys: tuple[str, ...], value) -> None:
    """Change one value of the first record, and seal it anew. `value` "@gone": it is taken out."""
    path = sorted((out / "jobs").iterdir())[0]
    document = json.loads(path.read_bytes())
    *parents, last = ("content", *keys)
    node = document
    for key in parents:
        node = node[key]
    node[last] = value
    if value == "@gone":
        del node[last]
    body = json.dumps(document["content"], separators=(",", ":")).encode()
    document["sha256"] = sha256(body).hexdigest()
    path.write_text(json.dumps(document))


FORGED = {
    "no code": (("code",), "@gone"),
    "no seconds": (("cpu_seconds",), "@gone"),
    "seconds that are a text": (("cpu_seconds",), "1"),
    "seconds that are no number": (("cpu_seconds",), float("nan")),
    "no notebook": (("notebook",), "@gone"),
    "tries that are a text": (("tries",), "x"),
    "no end": (("result",), "@gone"),
    "a result that is a number": (("result",), 0),
    "a result without a measure": (("result", "measure"), "@gone"),
    "a result without tasks": (("result", "per_task"), "@gone"),
    "tasks that are a text": (("result", "per_task"), "\ud800"),
    "a task that is a list": (("result", "per_task"), [[1.0]]),
    "a task that is no number": (("result", "per_task"), [float("inf")]),
    "other tasks than the others": (("result", "per_task"), [0.5, 0.5, 0.5]),
    "numbers that are a list": (("result", "numbers"), [1]),
    "a number that is an argument": (("result", "numbers"), {"per_task": 1.0}),
    "curves of 10^400": (("result", "curves"), {"a": [10**400]}),
    "a run elsewhere": (("run",), "../../elsewhere"),
    "a field that no job writes": (("x",), 1),
}


@pytest.mark.parametrize("name", FORGED, ids=lambda name: name.replace(" ", "-"))
def test_a_forged_record_is_refused_in_words(grid, tmp_path, name):
    plan, folder = grid
    out = copytree(folder / "out", tmp_path / "out")
    forge(out, *FORGED[name])
    with pytest.raises(WorkbenchError, match="."):
        looked_at(plan, out, tmp_path)


def test_negative_control_a_sound_record_is_taken_and_without_the_check_it_breaks(
    grid, tmp_path, monkeypatch
):
    plan, folder = grid
    out = copytree(folder / "out", tmp_path / "out")
    looked_at(plan, out, tmp_path)
    forge(out, ("code",), "@gone")
    monkeypatch.setattr(work, "checked_record", lambda facts, path: facts)
    with pytest.raises(KeyError):
        looked_at(plan, out, tmp_path)


@pytest.mark.parametrize("name", [*work.FOLDERS, "locks/*"])
def test_nothing_is_written_through_a_link(grid, tmp_path, name):
    plan, folder = grid
    out = copytree(folder / "out", tmp_path / "out")
    sorted((out / "jobs").iterdir())[0].unlink()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    record = work.name_of(plan, states(plan, plan.seeds, out)[0].job)
    link = out / name.replace("*", record)
    if link.exists():
        link.rename(tmp_path / "before")
    link.symlink_to(elsewhere)
    with pytest.raises(WorkbenchError, match="symbolic link"):
        looked_at(plan, out, tmp_path)
    assert list(elsewhere.iterdir()) == []
