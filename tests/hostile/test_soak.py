"""A few of the changed runs and bad calls that `make hostile` tries by the thousand."""

from __future__ import annotations

import json
import os
import shutil

import pyarrow as pa
import pytest

from tests.hostile.bad_calls import bad_call, commands, lay_out
from tests.hostile.folders import bent_table, replaced
from tests.hostile.mutations import mutate
from tests.hostile.soak import called, run_cases
from tests.hostile.test_hostile_folders import sound  # noqa: F401  (a fixture)
from workbench.run.store import open_run
from workbench.values.errors import StoreError

MUTATIONS, CALLS = 20, 48
SHOWN = (
    ["show", "RUN"],
    ["show", "RUN", "1"],
    ["diff", "RUN", "SOUND"],
    ["show", "RUN", "--at", "step 1 / task 1 / attempt 1 / token 1"],
)


@pytest.fixture(autouse=True)
def quiet(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("WORKBENCH_PROGRESS", "quiet")


def test_a_changed_run_is_read_or_refused_in_words(sound, tmp_path):  # noqa: F811
    for number in range(MUTATIONS):
        run = tmp_path / f"run-{number}"
        shutil.copytree(sound, run)
        what = mutate(run, number)
        words = SHOWN[number % len(SHOWN)]
        status, said = called(
            [{"RUN": str(run), "SOUND": str(sound)}.get(word, word) for word in words]
        )
        assert status in (0, 1, 2) and "Traceback" not in said, f"{what}: {words}: {said}"


def test_a_change_is_none_that_a_seal_tells(sound, tmp_path):  # noqa: F811
    """Else nothing behind the seals would be tried."""
    kinds = set()
    for number in range(60):
        run = tmp_path / f"run-{number}"
        shutil.copytree(sound, run)
        path, _, words = mutate(run, number).partition(": ")
        if path.endswith(".parquet"):
            kinds.add(path.split("/")[-1])
            try:
                opened = open_run(run)
                opened.groups(1)
                [opened.credit(1, update) for update in opened.updates(1)]
            except StoreError as error:
                assert "its sha256 is not" not in str(error) and "bytes were written" not in str(
                    error
                ), f"{path}: {words}: {error}"
    assert kinds


@pytest.mark.parametrize("column", ["span_turn", "span_length", "span_source"])
def test_a_span_that_lacks_a_number_is_refused(sound, tmp_path, column):  # noqa: F811
    def lacking(values):
        first, *others = values.to_pylist()
        return pa.array([[*first[:-1], None], *others], values.type)

    run = tmp_path / "run"
    shutil.copytree(sound, run)
    assert open_run(run).groups(1)
    bent_table(replaced(column, lacking), run, tmp_path)
    with pytest.raises(StoreError, match="do not make trajectories"):
        open_run(run).groups(1)


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda content: content["answers"][0].pop("title"),
            "not what a lint looks like, at answers.0.title",
        ),
        (lambda content: content.update(answers=7), "not what a lint looks like, at answers"),
    ],
)
def test_what_has_another_shape_is_named_by_its_place(sound, tmp_path, change, words):  # noqa: F811
    from workbench.basics.findings import Answer, LintReport

    report = LintReport((Answer("R1", "title"),)).as_dict()
    change(report)
    from workbench.run.shapes import LINT, shaped

    with pytest.raises(StoreError, match=words):
        shaped(report, LINT, tmp_path / "lint.json", "a lint")


def test_bad_calls_are_answered_in_words(tmp_path, monkeypatch):
    lay_out(tmp_path)
    monkeypatch.chdir(tmp_path)
    tried = set()
    for number in range(CALLS):
        words = bad_call(number)
        if words[0] in (
            "doctor",
            "ablate",
            "play",
        ):  # imports take a while: `make hostile` has them
            continue
        tried.add(words[0])
        status, said = called(words)
        assert status in (0, 1, 2) and "Traceback" not in said, f"{words}: {said}"
    assert tried == commands().keys() - {"doctor", "ablate", "play"}


def test_negative_control_what_breaks_or_ends_the_process_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "workbench.cli.commands.show_command", lambda args: os._exit(7) if args.step == 2 else 1 / 0
    )
    cases = lambda numbers: ((str(number), ["show", "x", str(number)]) for number in numbers)  # noqa: E731
    found = run_cases(cases, range(4), tmp_path / "log")
    assert [line["case"] for line in found["wrong"]] == ["0", "1", "2", "3"] and found["calls"] == 4
    assert "ZeroDivisionError" in json.dumps(found["wrong"][0]) and found["statuses"] == {
        "3": 3,
        "7": 1,
    }
