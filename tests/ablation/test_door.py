"""From a plan and a notebook that nobody here wrote to a frame, verdicts and pictures; with controls that come out wrong."""

from __future__ import annotations

import inspect
import json
import threading

import nbformat
import numpy as np
import pytest

import workbench as wb
from tests.ablation import quick
from workbench.cli import main
from workbench.extensions.ablation import door
from workbench.extensions.ablation.cell import RESULT, parameters_in, result, result_in, source_hash
from workbench.extensions.ablation.controls import control_pairs
from workbench.extensions.ablation.door import WatchedGrid
from workbench.extensions.ablation.drive import JobSettings
from workbench.extensions.ablation.plan import Arm, Controls, Job, Plan
from workbench.extensions.ablation.table import held, table_of
from workbench.extensions.ablation.verdicts import Analysis
from workbench.values.errors import ConfigError, DataError

TASKS, SEEDS = 100, 5
OWN = """
title = "Mine"
notebook = "mine.ipynb"
seeds = 5
baseline = "lr-0.1_k-1"
[analysis]
margin = 5
[controls]
same = "lr-0.1_k-1"
planted = {planted}
[grid]
lr = {{ from = 0.1, to = 10.0, steps = 3, scale = "log" }}
k = [1, 2]
"""


def own_at(folder, planted=40, name="mine"):
    quick.notebook_at(
        folder / "mine.ipynb",
        "import workbench as wb\nwb.result(success=lr)",
        parameters="lr: float = 0.1  # step\nk: int = 1  # width\nseed: int = 0  # of all",
    )
    (folder / f"{name}.toml").write_text(OWN.format(planted=planted))
    return folder / f"{name}.toml"


def do(job, plan, out, cwd, cell_limit_s=None):
    """The result of a made-up notebook: better with lr, and by more than noise."""

    def pretended(notebook, output, parameters, *, cwd=None, cell_limit_s=None):
        given = np.random.default_rng(parameters["seed"])
        p = 0.3 + 0.2 * np.log10(10 * parameters["lr"])
        found = result(
            per_task=(given.random(TASKS) < p).astype(float),
            curves={"success": [0.2, p], "loss": [2, 1]},
            width=parameters["k"],
        )
        output.parent.mkdir(exist_ok=True)
        output.write_text(
            json.dumps(
                {"cells": [{"outputs": [{"data": {RESULT: found._repr_mimebundle_()[RESULT]}}]}]}
            )
        )

    before, quick.work.run_notebook = quick.work.run_notebook, pretended
    try:
        return quick.work.do(job, plan, out, cwd, cell_limit_s)
    finally:
        quick.work.run_notebook = before


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A grid of 3 x 2 with an A/A arm, done."""
    folder = tmp_path_factory.mktemp("own")
    found = door.ablate(own_at(folder), folder / "out", dry_run=True)
    assert "35 jobs: 35 waiting" in found.text and "5 comparisons judged together" in found.text
    return found.start(JobSettings(0, do=do)).wait()


def test_one_frame_and_one_file_of_everything(made):
    frame = made.frame()
    assert (
        len(frame) == 35 and {*frame["state"]} == {"done"} and frame["success"].between(0, 1).all()
    )
    assert {"lr", "k", "width", "cpu_seconds", "notebook"} <= {*frame} and frame["tasks"].eq(
        TASKS
    ).all()
    assert frame[frame["arm"] == "lr-0.1_k-1-again"]["seed"].tolist() == [
        1000,
        1001,
        1002,
        1003,
        1004,
    ]
    lines = (made.out / "results.tsv").read_text().splitlines()
    assert len(lines) == 36 and lines[0].split("\t") == [*frame]
    assert all((made.out / path).is_file() for path in frame["notebook"])
    for arm, words in (("lr-0.1_k-1", "named no run"), ("none", "none of this name")):
        with pytest.raises(DataError, match=words):
            made.run(arm, 0)


def test_the_table_judges_and_its_controls_come_out_right(made):
    table = made.table().values
    assert held(table), table["checks"]
    verdicts = {pair["first"]: pair["sampled"]["verdict"] for pair in table["compared"]}
    assert verdicts["lr-10_k-1"] == "higher" and [
        control["check"]["held"] for control in table["controls"]
    ] == [True, True]
    assert (
        "No arm was tuned for itself: each has what the plan sets (learning rates 0.1, 1, 10)"
        in made.text
    )
    assert "lint" not in str(table["checks"]) and table["steps"] is None
    assert "35 jobs: 35 done" in made.show_jobs().text
    forecast = made.show_plan().text
    assert (
        "CPU-seconds a job, by 35 jobs" in forecast and "variances as measured so far" in forecast
    )


def test_pictures_show_every_seed_in_the_order_of_the_plan(made):
    table = made.table()
    forest = table.forest()
    assert (
        forest.text.index("lr = 0.1, k = 2 -")
        < forest.text.index("lr = 1, k = 1 -")
        < forest.text.index("lr = 10, k = 1 -")
    )
    assert (
        "control, A/A" in forest.text
        and "notebooks/lr-10_k-1-seed0" in forest.text
        and forest.png[:4] == b"\x89PNG"
    )
    dose = table.dose("lr")
    assert "k = 1" in dose.text and "0.1" in dose.text and dose.png[:4] == b"\x89PNG"
    assert (
        "k below, lr to the right"
        in table.heat("lr", "k").text
        == table.heat().text
        == table.heat(y="k").text
    )
    assert "lr below, k to the right" in table.heat("k").text
    assert (
        "loss" in table.curves().text
        and "ok: control: lr = 0.1, k = 1, run again" in table.checks().text
    )
    with pytest.raises(ConfigError, match="two different axes, got lr twice"):
        table.heat("lr", "lr")
    with pytest.raises(ConfigError, match="name one of the numeric axes lr, k; did you mean"):
        table.dose("l")


def test_a_changed_plan_is_refused_with_the_first_difference(made, tmp_path):
    changed = own_at(made.out.parent, planted=41)
    try:
        with pytest.raises(ConfigError, match="controls.planted was 40, and is 41"):
            door.ablate(changed, made.out, dry_run=True)
    finally:
        own_at(made.out.parent)
    assert door.ablate(changed, made.out, dry_run=True).view().text


def arms(plan, means, again):
    def facts(mean, seed):
        given = np.random.default_rng(seed)
        return {"sampled": (given.random(TASKS) < mean).astype(float).tolist()}

    return {
        arm.name: {
            "label": arm.label,
            "seeds": {
                str(seed): facts(
                    means, seed + 50 * (arm.name == "a-again") + (0 if arm.name == "a" else again)
                )
                for seed in plan.seeds
            },
        }
        for arm in plan.arms
    }


@pytest.mark.parametrize(
    ("planted", "shifted", "held_AA", "held_planted"),
    [
        (80, 0.0, True, True),
        (0.5, 0.0, True, False),
        (80, 0.4, False, True),
        (-80, 0.0, True, True),
        (-40, 0.4, False, False),
    ],
)
def test_a_control_that_comes_out_wrong_is_said(planted, shifted, held_AA, held_planted):
    plan = Plan(
        "p",
        "p",
        (Arm("a", "a"), Arm("a-again", "a, other seeds", seeds_from=1000)),
        seeds=tuple(range(SEEDS)),
        analysis=Analysis(2, (SEEDS,)),
        controls=Controls("a", "a-again", planted),
    )
    found = arms(plan, 0.3, 0)
    for seed, one in found["a-again"]["seeds"].items():
        one["sampled"] = (
            (np.random.default_rng(int(seed) + 70).random(TASKS) < 0.3 + shifted)
            .astype(float)
            .tolist()
        )
    first, second = (control["check"] for control in control_pairs(plan, found, 3, by_return=False))
    assert (first["held"], second["held"]) == (held_AA, held_planted), (first, second)
    assert ("trust no verdict" in first["why"]) == (not held_AA)


def test_three_seeds_judge_no_control():
    plan = Plan(
        "p",
        "p",
        (Arm("a", "a"), Arm("a-again", "a, other seeds")),
        seeds=(0, 1, 2),
        analysis=Analysis(2, (3,)),
        controls=Controls("a", "a-again", 30),
    )
    for control in control_pairs(plan, arms(plan, 0.3, 7), 1, by_return=False):
        assert (
            control["check"]["held"] is None and "3 seeds cannot decide" in control["check"]["why"]
        )


# ------------------------------------------------------------------------------------------------ results


def test_a_result_is_read_from_the_notebook_that_ended_in_it(tmp_path):
    found = result(per_task=[1, 0, 1, 1], steps_done=3, curves={"success": [0.5, 0.75]})
    assert (
        "success: 0.75, of 4 tasks" in found.text
        and found._repr_mimebundle_()["text/plain"] == found.text
    )

    def notebook(*bundles):
        path = tmp_path / "ran.ipynb"
        kept = [
            {kind: value for kind, value in bundle.items() if kind != "image/png"}
            for bundle in bundles
        ]
        path.write_text(json.dumps({"cells": [{"outputs": [{"data": bundle}]} for bundle in kept]}))
        return path

    assert result_in(notebook(found._repr_mimebundle_())) == found.facts
    for bundles in ([], [found._repr_mimebundle_()] * 2, [{"text/plain": "1"}]):
        with pytest.raises(DataError, match="results, expected one: `wb.result"):
            result_in(notebook(*bundles))
    assert inspect.unwrap(wb.result) is result


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "needs success"),
        ({"success": 0.5, "returns": 1}, "one measure"),
        ({"success": 1.5}, "share from 0 to 1"),
        ({"success": float("nan")}, "finite"),
        ({"success": 0.5, "per_task": [1, 1]}, "is the mean of per_task"),
        ({"returns": 1, "loss": "x"}, "loss: expected a finite number"),
        ({"per_task": [[1]]}, "finite numbers"),
        ({"per_task": []}, "1 to"),
    ],
)
def test_a_result_that_is_none_is_refused(given, words):
    with pytest.raises(DataError, match=words):
        result(**given)


def test_an_own_notebook_takes_what_its_arms_set(tmp_path):
    path = own_at(tmp_path)
    assert parameters_in(tmp_path / "mine.ipynb") == ("lr", "k", "seed")
    before = source_hash(tmp_path / "mine.ipynb")
    looked = nbformat.read(tmp_path / "mine.ipynb", as_version=4)
    looked.cells.append(nbformat.v4.new_markdown_cell("prose"))
    nbformat.write(looked, tmp_path / "mine.ipynb")
    assert source_hash(tmp_path / "mine.ipynb") == before
    for old, new, words in (
        ("k = [1, 2]", "kk = [1, 2]", "has no parameter 'kk' that an arm may set; did you mean"),
        ("k = [1, 2]", "seed = [1, 2]", "'seed' that an arm may set"),
        ("mine.ipynb", "none.ipynb", "no notebook"),
    ):
        path.write_text(
            OWN.format(planted=3)
            .replace(old, new)
            .replace("_k-1", "_kk-1" if "kk" in new else "_k-1" if "seed" not in new else "_seed-1")
        )
        with pytest.raises(ConfigError, match=words):
            door.ablate(path, tmp_path / "out", dry_run=True)
    assert not (tmp_path / "out").exists()


def test_one_number_a_run_is_judged_by_its_seeds():
    plan = Plan(
        "p",
        "p",
        (Arm("a", "a"), Arm("b", "b")),
        compare=(("b", "a"),),
        seeds=tuple(range(5)),
        notebook="x.ipynb",
        analysis=Analysis(1, (5,)),
    )

    def facts(value):
        return {
            "sampled": [value],
            "rows": [],
            "curves": {},
            "evaluated": {},
            "tasks": 1,
            "steps": None,
            "lint": None,
            "run": None,
            "code": "c",
            "cpu_seconds": 1.0,
            "measure": "return",
        }

    noise = [0.1, -0.2, 0.05, 0.15, -0.1]
    found = {
        Job(name, seed): facts(mean + noise[(seed * k) % 5])
        for name, mean, k in (("a", 3.0, 1), ("b", 9.0, 2))
        for seed in range(5)
    }
    declared = {"compare": [["b", "a"]]}
    [pair] = table_of(plan, plan.seeds, found, declared)["compared"]
    assert (
        pair["sampled"]["verdict"] == "higher"
        and 5.5 < pair["sampled"]["low"] < pair["sampled"]["high"] < 6.5
    )


# ------------------------------------------------------------------------------------------------ with a kernel


def test_a_plan_and_a_notebook_run_by_one_command(tmp_path, capsys, monkeypatch):
    """The only test of the quick suite here that starts kernels: one job that ends, one that fails, by the command."""
    monkeypatch.chdir(tmp_path)
    quick.notebook_at(
        tmp_path / "mine.ipynb",
        "assert ok, 'not this one'",
        "import workbench as wb\nwb.result(per_task=[1, 0], seed=seed)",
        parameters="ok: bool = True  # whether it ends\nseed: int = 0  # of all",
    )
    (tmp_path / "mine.toml").write_text(
        'title = "Mine"\nnotebook = "mine.ipynb"\nseeds = 1\n[grid]\nok = [true, false]\n'
    )
    assert (
        main(["ablate", "mine.toml", "--launch", "address=x"]) == 2
        and "local processes have no options" in capsys.readouterr().err
    )
    assert (
        main(["ablate", "mine.toml", "--gpus-per-job", "99"]) == 2
        and "take at most" in capsys.readouterr().err
    )
    assert main(["ablate", "mine.toml", "--plan"]) == 0 and not (tmp_path / "runs").exists()
    said = capsys.readouterr().out
    assert "2 jobs: 2 waiting" in said and "no verdicts: no [analysis] was declared" in said
    assert main(["ablate", "mine.toml", "--pilot", "--workers", "1"]) == 0
    said = capsys.readouterr().out
    assert (
        "2 jobs: 1 done, 1 waiting" in said and "CPU-seconds a job, by 1 job that is done" in said
    )
    monkeypatch.setattr(
        "workbench.extensions.ablation.door.run_notebook", lambda *_, **__: None
    )  # the report is tested with the tables
    monkeypatch.setattr(
        "workbench.extensions.ablation.command.told", lambda asked, say: door.table_of_asked(asked)
    )
    assert main(["ablate", "mine.toml", "--workers", "1"]) == 1
    said = capsys.readouterr().out
    assert "FAILED: AssertionError: not this one (in the cell `assert ok, 'not this one'`)" in said
    frame = wb.ablate("mine.toml", dry_run=True).frame()
    assert (
        frame["state"].tolist() == ["done", "failed"]
        and frame["success"].tolist()[0] == 0.5
        and frame["seed_found"].tolist()[0] == 0
    )
    [ran] = list((tmp_path / "runs/mine/notebooks").glob("ok-true-*.ipynb"))
    assert main(["audit-notebook", str(ran)]) == 0
    said = capsys.readouterr().out
    assert (
        "key of the job: its parameters and the code of its cells           1               0          0"
        in said
        and "made by: code" in said
    )
    ran.write_text(ran.read_text().replace("ok = True", "ok = False"))
    assert main(["audit-notebook", str(ran)]) == 1, "a parameter that was changed afterwards"


# ------------------------------------------------------------------------------------------------ while it runs


def test_a_grid_as_a_last_line_is_followed_live_until_its_table_stands_there(tmp_path, monkeypatch):
    """It showed its plan, "35 waiting", and never moved."""
    import IPython.display

    gate = threading.Event()
    shown = []

    def slowly(*job, **options):
        gate.wait(30)
        return do(*job, **options)

    class Handle:
        def update(self, bundle, raw):
            shown.append(bundle["text/plain"])

    def display(bundle, raw, display_id):
        Handle().update(bundle, raw)
        return Handle()

    monkeypatch.setattr(IPython.display, "display", display)
    grid = door.ablate(
        own_at(tmp_path), tmp_path / "out", seeds=[0], arms=["lr-0.1_k-1", "lr-1_k-1"], dry_run=True
    )
    grid.start(JobSettings(0, do=slowly))._ipython_display_()
    assert "2 waiting" in shown[0] or "1 running" in shown[0]
    assert "wb.ablate(...) of the same plan goes on" in shown[0]
    gate.set()
    grid.wait()
    assert "lr = 1, k = 1" in shown[-1] and "verdict" in shown[-1], shown[-1]


def test_the_page_of_a_grid_has_its_counts_and_what_runs_or_failed(made):
    moment = WatchedGrid(made).moment()
    assert moment.status.state == "done" and not moment.status.running
    assert moment.status.text.startswith("Mine  [done]  jobs 35 of 35")
    assert moment.body()["rows"] == [] and "35 done" in moment.version[1]
    assert moment.view("", False).text == made.text
