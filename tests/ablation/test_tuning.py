"""Every arm tries the same settings for itself, elsewhere than it is judged, and what it chose is fixed before that."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from tests.ablation import quick
from tests.made_plans import two_arms
from workbench.basics.canonical_json import sealed_json
from workbench.extensions.ablation import door, work
from workbench.extensions.ablation.audited_job import audited_job
from workbench.extensions.ablation.cell import RESULT, result
from workbench.extensions.ablation.declared import declaration
from workbench.extensions.ablation.drive import DONE, JobSettings
from workbench.extensions.ablation.numbers import DIFFERENT, RECOMPUTED
from workbench.extensions.ablation.plan import Job, config_of, jobs, settings_of
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.table import held
from workbench.extensions.ablation.tuning import check_tuning, chosen_in, trials_of, tuned
from workbench.extensions.world_rules.evaluations import held_out
from workbench.run.writer import write_file
from workbench.training.session import open_session
from workbench.values.errors import ConfigError, WorkbenchError
from workbench.worlds.splits import content_of, tasks

BEST = {"low": 0.1, "high": 1.0}  # the step at which each arm does best
PLAN = """
title = "Tuned"
notebook = "tuned.ipynb"
seeds = 5
compare = [["high", "low"]]
[analysis]
margin = 5
[controls]
same = "low"
[tuning]
seeds = 2
grid = { lr = [0.1, 0.5, 1.0] }
[arms.low]
set = { kind = "low" }
[arms.high]
set = { kind = "high" }
"""
PARAMETERS = (
    "kind: str = 'low'  # which\nlr: float = 0.5  # step\ntuning: bool = False  # True: on other tasks\n"
    "seed: int = 0  # of all"
)


def plan_at(folder, old="", new="", parameters=PARAMETERS):
    quick.notebook_at(
        folder / "tuned.ipynb",
        "import workbench as wb\nwb.result(success=lr)",
        parameters=parameters,
    )
    (folder / "tuned.toml").write_text(PLAN.replace(old, new, 1) if old else PLAN)
    return folder / "tuned.toml"


class Doing:
    """Does a job without a kernel. `met`: what every notebook was given, in order; `breaks`: (kind, lr) that fails."""

    def __init__(self, breaks=()):
        self.met, self.breaks = [], breaks

    def __call__(self, job, plan, out, cwd, cell_limit_s=None):
        def pretended(notebook, output, parameters, *, cwd=None, cell_limit_s=None):
            self.met.append(parameters)
            if (parameters["kind"], parameters["lr"]) in self.breaks:
                return work.Failure("failed", "ValueError: no", "1 / 0")
            chance = 0.8 - 0.4 * abs(np.log10(parameters["lr"] / BEST[parameters["kind"]]))
            luck = np.random.default_rng([parameters["seed"], parameters["tuning"]]).random(100)
            found = result(per_task=(luck < chance).astype(float))
            output.parent.mkdir(exist_ok=True)
            output.write_text(
                json.dumps(
                    {
                        "cells": [
                            {"outputs": [{"data": {RESULT: found._repr_mimebundle_()[RESULT]}}]}
                        ]
                    }
                )
            )
            return None

        before, work.run_notebook = work.run_notebook, pretended
        try:
            return work.do(job, plan, out, cwd, cell_limit_s)
        finally:
            work.run_notebook = before


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder, do = tmp_path_factory.mktemp("tuned"), Doing()
    found = door.ablate(plan_at(folder), folder / "out", dry_run=True)
    assert "27 jobs: 27 waiting" in found.text, "12 trials, 10 of two arms, 5 of the control"
    assert "12 of these jobs are trials: every arm tries 3 settings at seeds 100, 101" in found.text
    return found.start(JobSettings(0, do=do)).wait(), do.met


def test_trials_come_first_on_other_seeds_and_other_tasks(made):
    _, met = made
    trials, judged = met[:12], met[12:]
    assert {one["seed"] for one in trials} == {100, 101} and all(one["tuning"] for one in trials)
    assert {one["seed"] for one in judged} == {*range(5), *range(1000, 1005)} and not any(
        one["tuning"] for one in judged
    )
    tried = [(one["kind"], one["lr"]) for one in trials]
    assert all(tried.count((kind, lr)) == 2 for kind in BEST for lr in (0.1, 0.5, 1.0)), (
        "as many for every arm"
    )


def test_every_arm_is_judged_with_its_own_best_and_the_control_with_its_counterparts(made):
    found, met = made
    assert {(one["kind"], one["lr"]) for one in met[12:]} == {("low", 0.1), ("high", 1.0)}
    table = found.table().values
    assert held(table), table["checks"]
    assert (
        "lr chosen of 3 by each arm for itself, on seeds 100, 101 and tasks of its notebook's choice: low lr = 0.1; high "
        "lr = 1" in found.text
    )
    assert (
        "at one learning rate" not in found.text and table["tuned"]["arms"]["low"]["means"][0] > 0.6
    )
    assert {*table["arms"]} == {"low", "high", "low-again"}, "trials are no arms of the table"
    frame = found.frame()
    assert (
        len(frame) == 27
        and frame["arm"].tolist()[0] == "low-try1"
        and frame["lr"].tolist()[:3] == [0.1, 0.5, 1.0]
    )
    assert "CPU-seconds a job, by 27 jobs" in found.show_plan().text


def test_a_choice_that_its_trials_do_not_bear_out_is_said(made, monkeypatch):
    found, _ = made
    path, [first] = (
        found.out / "tuned" / "low.json",
        [one for one in found.table().values["checks"] if "best of its own" in one["words"]],
    )
    assert first["held"] is True
    before, choice = path.read_bytes(), chosen_in(found.plan, found.out)["low"]
    write_file(
        path,
        sealed_json(choice | {"means": [0.1, 0.9, 0.2]}, kind="ablation-tuned", version=1),
        replace=True,
    )
    try:
        table = found.table().values
        assert not held(table) and "its trials now say" in str(table["checks"])
    finally:
        write_file(path, before, replace=True)


def test_the_audit_of_a_judged_job_holds_it_against_the_choice(made):
    found, _ = made
    [judged] = (found.out / "jobs").glob("low-again-seed0-*.json")
    job = work.read_sealed_json(judged, kind=work.KIND, version=work.VERSION) | {
        "out": found.out,
        "name": judged.stem,
    }
    notebook = {
        "cells": [
            {
                "cell_type": "code",
                "metadata": {"tags": ["injected-parameters"]},
                "source": "lr = 0.1\nseed = 1000",
            }
        ]
    }
    for written, mark in (
        ("lr = 0.1", RECOMPUTED),
        ("lr = 0.5", DIFFERENT),
        ("kind = 'low'", DIFFERENT),
    ):
        notebook["cells"][0]["source"] = written
        _, numbers = audited_job(judged, notebook, job, [])
        [one] = [one for one in numbers if one.where == "lr"]
        assert one.mark == mark and one.by == "what its arm chose among its trials"


def test_a_choice_that_was_sealed_stays_whatever_the_code_is_later(made, monkeypatch):
    found, _ = made
    monkeypatch.setattr("workbench.extensions.ablation.work.code_fingerprint", lambda: "another")
    states = found.states()
    assert [one.state for one in states[:12]] == [DONE] * 12 and {
        one.state for one in states[12:]
    } == {"waiting"}
    again = Doing()
    door.carry_out(found.asked, JobSettings(0, do=again), lambda line: None)
    assert len(again.met) == 15 and not any(one["tuning"] for one in again.met)


def test_stopped_among_its_trials_nothing_is_judged(tmp_path):
    asked = door.ask(plan_at(tmp_path), tmp_path / "out")
    do, stop = Doing(), threading.Event()
    door.carry_out(asked, JobSettings(0, do=do, most=3), lambda line: None, stop)
    assert (
        len(do.met) == 3
        and chosen_in(asked.plan, asked.out) == {}
        and settings_of(tuned(asked.plan, asked.out), Job("low", 0)) == {"kind": "low"}
    )
    [check] = [
        one
        for one in door.table_of_asked(asked).values["checks"]
        if "best of its own" in one["words"]
    ]
    assert check["held"] is None and check["why"] == "not chosen yet: low, high"
    door.carry_out(asked, JobSettings(0, do=do), lambda line: None)
    assert len(do.met) == 27 and sum(one["tuning"] for one in do.met) == 12


def test_a_trial_that_was_chosen_by_is_over_in_the_frame_as_in_the_tally(made, monkeypatch):
    """Whatever the code is today: `results.tsv` and what the command says agree."""
    grid, _ = made
    monkeypatch.setattr("workbench.extensions.ablation.work.code_fingerprint", lambda: "a third")
    assert (
        grid.frame()["state"].tolist()
        == [one.state for one in grid.states()]
        == ["done"] * 12 + ["waiting"] * 15
    )


def test_a_trial_that_fails_is_not_chosen_and_an_arm_without_any_is_refused(tmp_path):
    asked = door.ask(plan_at(tmp_path), tmp_path / "out")
    door.carry_out(asked, JobSettings(0, do=Doing(breaks=[("high", 1.0)])), lambda line: None)
    choice = chosen_in(asked.plan, asked.out)["high"]
    assert (
        choice["point"] == {"lr": 0.5}
        and choice["means"][2] is None
        and "high-try3-seed100" in choice["failed"]
    )
    assert "not chosen, since they failed" in str(door.table_of_asked(asked).values["checks"])
    everything = [("high", lr) for lr in (0.1, 0.5, 1.0)]
    with pytest.raises(WorkbenchError, match="none of its trials came to its end"):
        door.carry_out(
            door.ask(plan_at(tmp_path), tmp_path / "other"),
            JobSettings(0, do=Doing(everything)),
            lambda line: None,
        )
    assert (tmp_path / "other" / "results.tsv").is_file(), "what there is is written down"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = 2", "seeds = [4, 9]", "seed 4 is judged, too"),
        ("seeds = 2", "seeds = [1003]", "seed 1003 is judged, too"),
        ("seeds = 2", "seeds = 2\ntasks = 9", "tasks is of training runs"),
        ("seeds = 2", "sedes = 2", "has no 'sedes'"),
        ("[0.1, 0.5, 1.0]", "[0.1]", "expected several to choose from"),
        ("[0.1, 0.5, 1.0]", "[0.1, 0.1]", "every value once"),
        ('kind = "low"', 'kind = "low", lr = 0.1', "sets lr, which its trials set"),
        ('kind = "low"', 'kind = "low", tuning = true', "sets tuning, which its trials set"),
        ("grid = { lr", "grid = { rl", "no parameter 'rl'"),
    ],
)
def test_a_wrong_budget_is_refused_before_anything_runs(tmp_path, old, new, words):
    with pytest.raises(ConfigError, match=words):
        door.ask(plan_at(tmp_path, old, new), tmp_path / "out")


def test_a_notebook_that_cannot_be_told_to_try_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="has no parameter `tuning`"):
        door.ask(
            plan_at(
                tmp_path,
                parameters=PARAMETERS.replace("tuning: bool = False  # True: on other tasks\n", ""),
            ),
            tmp_path / "out",
        )


def test_a_changed_budget_is_refused_and_none_is_declared_where_there_is_none(tmp_path):
    door.carry_out(
        door.ask(plan_at(tmp_path), tmp_path / "out"),
        JobSettings(0, do=Doing(), most=1),
        lambda line: None,
    )
    with pytest.raises(ConfigError, match="tuning.seeds was"):
        door.ask(plan_at(tmp_path, "seeds = 2", "seeds = 3"), tmp_path / "out")
    without = read_plan(
        plan_at(tmp_path, "[tuning]\nseeds = 2\ngrid = { lr = [0.1, 0.5, 1.0] }\n", "\n")
    )
    assert "tuning" not in declaration(without)


# ------------------------------------------------------------------------------------------------ training runs


RUNS = two_arms(
    "Tuned runs",
    """[tuning]
seeds = 2
tasks = 16
grid = { "learner.lr" = [1e-4, 1e-3] }
[all]
"evaluation.num_tasks" = 40
""",
)


def test_trials_of_a_training_run_play_other_held_out_tasks(tmp_path):
    (tmp_path / "runs.toml").write_text(RUNS.replace('"bandit"', '"frozenlake"'))
    plan = read_plan(tmp_path / "runs.toml")
    check_tuning(plan, plan.seeds)
    trials = trials_of(plan)
    assert len(jobs(trials, trials.seeds)) == 8
    judged, tried = config_of(plan, Job("std", 0)), config_of(trials, Job("std-try2", 100))
    assert (tried.learner.lr, tried.evaluation.num_tasks, tried.evaluation.first_task) == (
        1e-3,
        16,
        40,
    )
    first, others = (
        {content_of(task) for task in open_session(each, quiet=True).held_out_tasks()}
        for each in (judged, tried)
    )
    assert len(first) == 40 and len(others) == 16 and not first & others
    assert [task.id for task in held_out(judged.env, 16, 40)] == [
        task.id for task in held_out(judged.env, 56)
    ][40:]
    assert {content_of(task) for task in held_out(judged.env, 16, 40)} == others, (
        "the lint expects them, too"
    )
    assert first | others == {content_of(task) for task in tasks(judged.env, "held-out", 56)}


def test_a_family_with_too_few_problems_is_tuned_on_the_judged_ones_only_by_name(tmp_path):
    (tmp_path / "runs.toml").write_text(RUNS)
    with pytest.raises(ConfigError, match="too few for the 40 tasks that are judged and 16 others"):
        check_tuning(read_plan(tmp_path / "runs.toml"), [0, 1, 2])
    (tmp_path / "runs.toml").write_text(RUNS.replace("tasks = 16", "tasks = 16\nsame_tasks = true"))
    plan = read_plan(tmp_path / "runs.toml")
    check_tuning(plan, plan.seeds)
    assert config_of(trials_of(plan), Job("std-try1", 100)).evaluation.first_task == 0
