"""Warm starts as a factor: what an interval generalises to is what was repeated, and the table says it."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.ablation import quick
from tests.made_plans import two_arms
from workbench.extensions.ablation import door, work
from workbench.extensions.ablation.cell import RESULT, result
from workbench.extensions.ablation.crossed import parts_of
from workbench.extensions.ablation.drive import JobSettings
from workbench.extensions.ablation.plan import Job, check, config_of, jobs, settings_of
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.starts import by_row, speaks_for
from workbench.extensions.ablation.table import table_of
from workbench.extensions.ablation.verdicts import FEW
from workbench.extensions.ablation.views.arms import show_arms
from workbench.extensions.ablation.views.forest import show_forest
from workbench.values.errors import ConfigError

TASKS = 40
PLAN = """
title = "Started"
notebook = "started.ipynb"
seeds = 5
compare = [["b", "a"]]
[analysis]
margin = 5
[starts]
start = {starts}
[arms.a]
set = {{ k = 1 }}
[arms.b]
set = {{ k = 2 }}
"""
THREE, SIX = '["p", "q", "r"]', '["p", "q", "r", "s", "t", "u"]'


def plan_at(folder, starts=THREE, old="", new=""):
    quick.notebook_at(
        folder / "started.ipynb",
        "import workbench as wb\nwb.result(success=0)",
        parameters="k: int = 1  # which\nstart: str = 'p'  # begins with\nseed: int = 0  # of all",
    )
    text = PLAN.format(starts=starts)
    assert old in text
    (folder / "started.toml").write_text(text.replace(old, new, 1) if old else text)
    return folder / "started.toml"


def do(job, plan, out, cwd, cell_limit_s=None):
    """Arm b is better by 30 points from the first three starts, and worse by as much from others."""

    def pretended(notebook, output, parameters, *, cwd=None, cell_limit_s=None):
        gain = 0.3 if parameters["start"] in "pqr" else -0.3
        chance = 0.5 + (gain if parameters["k"] == 2 else 0.0)
        luck = np.random.default_rng([parameters["seed"], ord(parameters["start"]), 1]).random(
            TASKS
        )
        found = result(per_task=(luck < chance).astype(float), curves={"success": [0.5, chance]})
        output.parent.mkdir(exist_ok=True)
        output.write_text(
            json.dumps(
                {"cells": [{"outputs": [{"data": {RESULT: found._repr_mimebundle_()[RESULT]}}]}]}
            )
        )

    before, work.run_notebook = work.run_notebook, pretended
    try:
        return work.do(job, plan, out, cwd, cell_limit_s)
    finally:
        work.run_notebook = before


def test_few_starts_are_held_fixed_and_the_table_says_for_which_it_speaks(tmp_path):
    found = door.ablate(plan_at(tmp_path), tmp_path / "out", dry_run=True)
    assert (
        "30 jobs: 30 waiting" in found.text
        and "Holds for these 3 initial checkpoints (start-p, start-q, start-r) only" in found.text
    )
    table = found.start(JobSettings(0, do=do)).wait().table().values
    [pair] = table["compared"]
    assert pair["sampled"]["verdict"] == "higher" and pair["seeds"] == ["0", "1", "2", "3", "4"]
    assert len(table["arms"]["a"]["seeds"]["0"]["sampled"]) == TASKS and table["arms"]["a"][
        "seeds"
    ]["0"]["curves"]["success"] == [0.5, 0.5]
    said = {
        job.start: np.mean(work.ended(found.plan, job, found.out)["result"]["per_task"])
        for job in jobs(found.plan, [0])
        if job.arm == "b"
    }
    assert np.mean(table["arms"]["b"]["seeds"]["0"]["sampled"]) == pytest.approx(
        np.mean([*said.values()])
    )
    assert "Holds for these 3 initial checkpoints" in found.text and " only: from " in found.text
    assert found.frame()["start"].tolist()[:6] == [
        "start-p",
        "start-p",
        "start-q",
        "start-q",
        "start-r",
        "start-r",
    ]
    assert "notebooks/a-start-q-seed0" in show_forest(table).text


def test_from_five_on_starts_are_what_is_repeated(tmp_path):
    found = door.ablate(plan_at(tmp_path, SIX), tmp_path / "out", dry_run=True)
    assert (
        "looks after 6 starts" in found.text
        and [job.start for job in jobs(found.plan, found.asked.seeds)][:10] == ["start-p"] * 10
    )
    table = found.start(JobSettings(0, do=do)).wait().table().values
    [pair] = table["compared"]
    assert pair["sampled"]["judged_seeds"] == 6 and pair["sampled"]["verdict"] == "undecided", (
        "three starts say yes, three no"
    )
    assert (
        max(pair["sampled"]["each"][str(row)]["mean"] for row in (3, 4, 5))
        < 0
        < pair["sampled"]["each"]["0"]["mean"]
    )
    for words in ("Generalises to other initial checkpoints: these 6", "start-p  start-q  start-r"):
        assert words in show_arms(table).text


def test_a_row_that_lacks_a_job_is_not_there_and_one_that_failed_failed(tmp_path):
    plan = read_plan(plan_at(tmp_path))

    def facts(value):
        return {
            "sampled": [value] * 4,
            "rows": [],
            "curves": {},
            "evaluated": {},
            "tasks": 4,
            "steps": None,
            "lint": None,
            "run": None,
            "code": "c",
            "cpu_seconds": 1.0,
            "training_cpu_seconds": 1.0,
        }

    found = {job: facts(0.1 * number) for number, job in enumerate(jobs(plan, [0, 1, 2]))}
    found[Job("a", 1, "start-q")] = {"failed": "no"}
    del found[Job("b", 2, "start-r")]
    _, rows, made = by_row(plan, [0, 1, 2], found)
    assert rows == [0, 1, 2] and made[Job("a", 0)]["cpu_seconds"] == 3.0
    assert (
        made[Job("a", 1)] == {"failed": "a from start-q, seed 1: no"}
        and Job("b", 2) not in made
        and Job("a", 2) in made
    )
    table = table_of(plan, [0, 1, 2], found)
    assert table["arms"]["b"]["absent"] == [2] and table["arms"]["a"]["failed"]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('start = ["p", "q", "r"]', 'start = ["p", "q"]\nk = [1, 2]', "is one axis, got start, k"),
        ("set = { k = 1 }", "set = { k = 1, start = 'p' }", "a sets start, which every start sets"),
        ("margin = 5", "margin = 5\nlooks = [3]", "after 5 seeds"),
        ('["p", "q", "r"]', '["p", "p"]', "every value once"),
        ("start = [", "begin = [", "no parameter 'begin'"),
    ],
)
def test_wrong_starts_are_refused(tmp_path, old, new, words):
    with pytest.raises(ConfigError, match=words):
        door.ask(plan_at(tmp_path, THREE, old, new), tmp_path / "out")


def test_training_runs_begin_from_each_policy_and_one_start_is_named(tmp_path):
    text = two_arms("Starts", '[starts]\n"policy.name" = ["bandit-tiny", "shop-tiny"]\n')
    (tmp_path / "runs.toml").write_text(text)
    plan = read_plan(tmp_path / "runs.toml")
    check(plan, [0, 1])
    assert {config_of(plan, job).policy.name for job in jobs(plan, [0])} == {
        "bandit-tiny",
        "shop-tiny",
    }
    assert settings_of(plan, Job("std", 0, "name-shop-tiny"))["policy.name"] == "shop-tiny"
    assert (
        "Holds for these 2 initial checkpoints (name-bandit-tiny, name-shop-tiny) only"
        in speaks_for(plan)
    )
    (tmp_path / "runs.toml").write_text(two_arms("Start"))
    assert "One initial checkpoint (bandit-tiny)" in speaks_for(read_plan(tmp_path / "runs.toml"))


def test_coverage_where_starts_are_drawn_at_random_and_what_holding_them_fixed_would_claim():
    """Differences of two arms whose starts matter three times as much as their seeds; truth: zero over all starts."""
    rng, draws, tasks = np.random.default_rng(5), 1000, 100
    for starts, seeds in ((FEW, 2), (8, 3)):
        value = 0.06 * rng.standard_normal((draws, starts, 1, 1)) + 0.02 * rng.standard_normal(
            (draws, starts, seeds, 1)
        )
        value = (
            value
            + 0.2 * rng.standard_normal((draws, 1, 1, tasks))
            + 0.42 * rng.standard_normal((draws, starts, seeds, tasks))
        )
        by_start = parts_of(value.mean(axis=2))
        covered = np.mean(np.abs(by_start.mean_X) <= by_start.half_width(0.05))
        assert 0.93 <= covered <= 0.975, (starts, seeds, covered)
    fixed = parts_of(value.mean(axis=1))  # eight starts, as if no other could have been drawn
    assert np.mean(np.abs(fixed.mean_X) <= fixed.half_width(0.05)) < 0.9, (
        "else starts need be no factor"
    )
    # Two starts that are held fixed, asked about these two alone.
    start = 0.06 * rng.standard_normal((draws, 2, 1, 1))
    few = (
        start
        + 0.02 * rng.standard_normal((draws, 2, 5, 1))
        + 0.2 * rng.standard_normal((draws, 1, 1, tasks))
        + (0.42 * rng.standard_normal((draws, 2, 5, tasks)))
    )
    truth_D = start.mean(axis=(1, 2, 3))
    held = parts_of(few.mean(axis=1))
    assert 0.93 <= np.mean(np.abs(held.mean_X - truth_D) <= held.half_width(0.05)) <= 0.975
