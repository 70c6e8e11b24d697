"""An executed notebook is audited: what a run folder has is recomputed, and a number that was changed is found."""

from __future__ import annotations

import json
import shutil

import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output, writes

import workbench as wb
from tests.golden_runs.runs import OLD
from workbench.basics.canonical_json import sealed_json
from workbench.cli import main
from workbench.extensions.ablation.audited import audit_notebook
from workbench.extensions.ablation.cell import result
from workbench.extensions.ablation.numbers import (
    DIFFERENT,
    NUMBER,
    RECOMPUTED,
    TRUST,
    audited_lines,
    view_of,
)
from workbench.extensions.ablation.recomputed import tasks_of_run
from workbench.run.writer import write_file
from workbench.values.errors import DataError, StoreError


@pytest.fixture
def run(tmp_path):
    shutil.copytree(OLD / "small-frozenlake", tmp_path / "small-frozenlake")
    return wb.open_run(tmp_path / "small-frozenlake")


def executed(path, *shown, parameters="seed: int = 0  # of all"):
    """A notebook as it lies there after it ran: each of `shown` is what a cell ended in."""
    cells = [new_code_cell(parameters, metadata={"tags": ["parameters"]})]
    for value in shown:
        bundle = {
            kind: data for kind, data in value._repr_mimebundle_().items() if kind != "image/png"
        }
        cells.append(
            new_code_cell(
                "value",
                execution_count=1,
                outputs=[new_output("execute_result", bundle, execution_count=1)],
            )
        )
    path.parent.mkdir(exist_ok=True)
    path.write_text(writes(new_notebook(cells=cells)))
    return path


def planted(path, old, new, kind):
    """The notebook with the first `old` in outputs of this kind changed."""
    notebook = json.loads(path.read_text())
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            said = output["data"].get(kind)
            text = "".join(said) if isinstance(said, list) else said
            if isinstance(said, dict):
                text = json.dumps(said)
            if text and old in text:
                text = text.replace(old, new, 1)
                output["data"][kind] = json.loads(text) if isinstance(said, dict) else text
                path.write_text(json.dumps(notebook))
                return path
    raise AssertionError(f"{old} is in no output")


def marks(found, cell=None):
    return {
        mark: sum(one.mark == mark for one in found.numbers if cell in (None, one.cell))
        for mark in (RECOMPUTED, TRUST, DIFFERENT)
    }


@pytest.mark.parametrize("kind", ["text/plain", pytest.param("text/html", marks=pytest.mark.full)])
def test_what_a_published_notebook_printed_of_a_run_is_recomputed_and_a_changed_number_found(
    run, tmp_path, kind, capsys
):
    path = executed(
        tmp_path / "tour.ipynb",
        wb.show(run),
        wb.show(run, evaluation="last"),
        wb.show(wb.presets()),
        parameters='out: str = "small-frozenlake"  # run',
    )
    found = audit_notebook(path)
    assert not found.differ and marks(found, 2)[TRUST] == marks(found, 3)[TRUST] == 0
    assert marks(found, 2)[RECOMPUTED] > 20 and marks(found, 3)[RECOMPUTED] > 20, (
        "text and page, number by number"
    )
    assert "digest" in found.text and "seed" in found.text and "taken on trust" in found.text
    text, curves = wb.show(run, evaluation="last").text, wb.show(run).text
    number = next(
        each
        for each in NUMBER.findall(text)
        if "." in each and text.count(each) == 1 and each not in curves
    )
    planted(path, number, f"9{number}", kind)
    assert (
        main(["audit-notebook", str(path)]) == 1 and "recomputed value" in capsys.readouterr().out
    )
    assert main(["audit-notebook", str(path), "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [
        (one["cell"], one["said"], one["now"])
        for one in told["numbers"]
        if one["mark"] == DIFFERENT
    ] == [(3, f"9{number}", number)]


def test_a_run_that_is_elsewhere_is_named_and_without_one_all_is_trust(run, tmp_path):
    path = executed(tmp_path / "apart" / "tour.ipynb", wb.show(run))
    alone = audit_notebook(path)
    assert {one.mark for one in alone.numbers} == {
        TRUST
    } and "it names none that is here" in alone.text
    assert marks(audit_notebook(path, [run.path]))[TRUST] == 0
    with pytest.raises(DataError, match="expected a run folder"):
        audit_notebook(path, [tmp_path])


def test_numbers_of_another_run_are_trust_and_not_different(run, tmp_path):
    """The negative control: what is not of this run is held against nothing."""
    other = tmp_path / "small-other"
    shutil.copytree(OLD / "small-ppo", other)
    found = audit_notebook(
        executed(
            tmp_path / "two.ipynb",
            wb.show(wb.open_run(other)),
            parameters='out: str = "small-frozenlake"  # run',
        )
    )
    assert {one.mark for one in found.numbers} == {TRUST}


def test_a_result_is_held_against_the_run_that_it_names(run, tmp_path):
    tasks = next(
        values for by, values in tasks_of_run(run).items() if "success of trained-sampled" in by
    )
    metric = run.metrics()["success"].tolist()
    said = {
        "per_task": tasks,
        "curves": {"success": metric, "mine": [1, 2]},
        "run": str(run.path),
        "reward_mean": float(run.metrics()["reward_mean"].iloc[-1]),
    }
    found = audit_notebook(executed(tmp_path / "own.ipynb", result(**said)))
    assert not found.differ and marks(found)[TRUST] == 2, "the curve that no run has"
    by = {one.where.partition(",")[0]: one.by for one in found.numbers}
    assert "from its" in by["per_task"] and "metric reward_mean of run" in by["reward_mean"]
    for change in (
        {"per_task": [1 - tasks[0], *tasks[1:]]},
        {"curves": {"success": [*metric[:-1], 0.123]}},
        {"reward_mean": 0.5},
    ):
        wrong = audit_notebook(executed(tmp_path / "own.ipynb", result(**said | change)))
        assert len(wrong.differ) == 1, change


def test_a_changed_number_in_a_jobs_notebook_differs_from_its_sealed_record(tmp_path):
    ended = result(per_task=[1, 0, 1, 1], loss=0.25)
    path = executed(tmp_path / "notebooks" / "a-seed0-abc.ipynb", ended)
    record = {
        "code": "old",
        "cpu_seconds": 1.0,
        "notebook": "notebooks/a-seed0-abc.ipynb",
        "tries": 1,
        "result": ended.facts,
    }
    (tmp_path / "jobs").mkdir()
    write_file(
        tmp_path / "jobs" / "a-seed0-abc.json", sealed_json(record, kind="ablation-job", version=1)
    )
    found = audit_notebook(path)
    assert [one.where for one in found.differ] == [
        "key of the job: its parameters and the code of its cells"
    ], "abc is no hash"
    assert marks(found, 2)[TRUST] == 5 and "the record of the job says the same" in next(
        one.by for one in found.numbers if one.where == "loss"
    )
    planted(path, "0.25", "0.35", "application/vnd.agent-rl-workbench.result+json")
    differ = [
        (one.where.partition(",")[0], one.now) for one in audit_notebook(path).differ if one.cell
    ]
    assert ("loss", "0.25") in differ and len(differ) >= 2, (
        "the result, and the text that no longer says it"
    )
    text = (tmp_path / "jobs" / "a-seed0-abc.json").read_text()
    (tmp_path / "jobs" / "a-seed0-abc.json").write_text(text.replace("0.25", "0.35"))
    with pytest.raises(StoreError, match="changed after it was written"):
        audit_notebook(path)


def test_lines_are_known_by_their_words():
    view = ["tour", "success 0.5 [0.4, 0.6]", "frozenlake-4x4 7", "0.1 0.2"]
    said = ["running 3 of 8", *view]
    assert view_of(said, {"v": view}) == "v" and view_of(["detour", *view[1:]], {"v": view}) == ""
    same = audited_lines(1, "text", said, view, "v")
    assert [one.mark for one in same] == [TRUST] * 2 + [RECOMPUTED] * 6, (
        "progress above the title is nobody's"
    )
    other = audited_lines(
        1, "text", ["tour", "success 0.5 [0.4, -0.6]", "frozenlake-4x4 7", "0.1 0.2"], view, "v"
    )
    assert [(one.said, one.now) for one in other if one.mark == DIFFERENT] == [("-0.6", "0.6")]
    assert NUMBER.findall("4x4 step-0001 1,024 of -3.5e-05 %, 0.5, a/7") == [
        "1,024",
        "-3.5e-05",
        "0.5",
    ]


def test_what_was_not_executed_is_refused(tmp_path):
    (tmp_path / "a.ipynb").write_text(writes(new_notebook(cells=[new_code_cell("1")])))
    (tmp_path / "b.ipynb").write_text("{")
    for name, words in (("a", "has no outputs"), ("b", "is no notebook"), ("c", "is no notebook")):
        with pytest.raises(DataError, match=words):
            audit_notebook(tmp_path / f"{name}.ipynb")
