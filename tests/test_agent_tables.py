"""The two tables of methods and masks: their plans act, their notebooks keep the manner, what is done stays done."""

from __future__ import annotations

import json
from pathlib import Path

import nbformat
import pytest

from experiments.agent_tables import __main__ as door
from tests.made_plans import two_arms
from tests.notebook_kit import faults_of_form
from workbench.basics.fingerprint import code_fingerprint
from workbench.extensions.ablation import table as tables
from workbench.extensions.ablation import work
from workbench.extensions.ablation.cells import read_table, train_or_go_on
from workbench.extensions.ablation.notebooks import Failure
from workbench.extensions.ablation.plan import ONE_RUN, REPORT, Job, check, config_of, jobs, key_of
from workbench.extensions.ablation.reading import read_plan
from workbench.learn.algorithms.parts import ADVANTAGE_MASK, Masks
from workbench.training.config import load_config
from workbench.values.errors import StoreError

TINY = two_arms(
    "Tiny",
    """[all]
"train.steps" = 1
"train.tasks_per_step" = 2
"train.group_size" = 4
"evaluation.num_tasks" = 8
""",
)


@pytest.fixture
def tiny(tmp_path) -> Path:
    (tmp_path / "tiny.toml").write_text(TINY)
    return tmp_path / "tiny.toml"


# ------------------------------------------------------------------------------------------------ the plans


def plan_of(name: str):
    return read_plan(door.HERE / f"{name}.toml")


@pytest.mark.parametrize("name", ["methods", "masks"])
def test_every_arm_of_a_table_acts_and_has_the_same_budget(name):
    plan = plan_of(name)
    check(plan, [0, 1, 2])
    configs = {job.arm: config_of(plan, job) for job in jobs(plan, [0])}
    for part in (
        lambda c: c.train,
        lambda c: c.evaluation,
        lambda c: c.collect,
        lambda c: c.policy,
        lambda c: c.lint,
    ):
        assert len({str(part(config)) for config in configs.values()}) == 1
    assert all(config.lint.mode == "assert" for config in configs.values()), (
        "the lint must be clean on every run"
    )
    assert all(config.evaluation.num_tasks == 512 for config in configs.values())


def test_the_masks_are_switched_off_as_the_paper_does_and_one_by_one():
    plan = plan_of("masks")
    arms = {job.arm: config_of(plan, job).algorithm for job in jobs(plan, [0])}
    widened = {
        name: {switch for switch in ADVANTAGE_MASK if algorithm.masks.over(switch) == "response"}
        for name, algorithm in arms.items()
    }
    assert widened == {
        "ppo": set(),
        "no_advantage_mask": {*ADVANTAGE_MASK},
        "no_masks": {*ADVANTAGE_MASK},
        "gae_over": {"gae_over"},
        "whiten_over": {"whiten_over"},
        "critic_over": {"critic_over"},
    }
    assert [name for name, algorithm in arms.items() if not algorithm.masks.loss_mask] == [
        "no_masks"
    ]
    assert arms["ppo"].masks == Masks() and arms["ppo"].estimator.lam < 1, (
        "with lambda = 1 gae_over could do nothing"
    )
    assert [arm.name for arm in plan.arms if arm.inert] == ["kl_reward_over"]
    assert [(one.arm, one.below, one.points) for one in plan.expect] == [("no_masks", "ppo", 15)]


def test_ppo_is_the_same_run_in_both_tables():
    assert key_of(plan_of("masks"), Job("ppo", 1)) == key_of(
        plan_of("methods").with_arms(["ppo"]), Job("ppo", 1)
    )


# ------------------------------------------------------------------------------------------------ notebooks and doors


@pytest.mark.parametrize("path", [ONE_RUN, REPORT], ids=lambda path: path.stem)
def test_the_notebooks_keep_the_manner_of_the_house(path):
    from papermill import inspect_notebook

    assert not (faults := faults_of_form(nbformat.read(path, as_version=4))), "\n".join(faults)
    parameters = inspect_notebook(str(path))
    assert len(parameters) >= 4 and all(
        found["inferred_type_name"] in ("str", "int") and len(found["help"]) > 5
        for found in parameters.values()
    )


def test_an_arm_that_fails_is_written_down_and_tried_again(tiny, tmp_path, monkeypatch):
    plan, job, out = read_plan(tiny), Job("std", 0), tmp_path / "out"
    ends = iter([Failure("failed", "LintError: R3", "run = train()"), None])
    monkeypatch.setattr(work, "run_notebook", lambda *_, **__: next(ends))
    for words in ("LintError: R3", "is not a complete run"):
        assert words in work.do(job, plan, out, tmp_path)["failed"]
        assert (
            words in work.ended(plan, job, out)["failed"] and work.finished(plan, job, out) is None
        )
    told = tables.tabled(plan, [0], out)["checks"][0]
    assert told["held"] is False
    assert "std, seed 0: the notebook ended" in told["why"] and "not run: plain" in told["why"]


def test_only_todays_code_counts_as_done(tiny, tmp_path, monkeypatch):
    plan, job = read_plan(tiny), Job("std", 0)
    (tmp_path / "runs" / "there").mkdir(parents=True)
    monkeypatch.setattr(
        work, "ended", lambda *_: {"code": code_fingerprint(), "run": "there", "cpu_seconds": 1.0}
    )
    assert work.finished(plan, job, tmp_path) is not None
    monkeypatch.setattr(
        work, "ended", lambda *_: {"code": "other", "run": "there", "cpu_seconds": 1.0}
    )
    assert work.finished(plan, job, tmp_path) is None
    monkeypatch.setattr(
        work, "ended", lambda *_: {"code": code_fingerprint(), "run": "gone", "cpu_seconds": 1.0}
    )
    assert work.finished(plan, job, tmp_path) is None


def test_a_wrong_plan_or_option_is_said_before_anything_is_run(tiny, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    for arguments, words in (
        ([str(tmp_path / "none.toml")], "cannot read an ablation"),
        ([str(tiny), "--arms", "sdt"], "has no arm 'sdt'; did you mean 'std'"),
        ([str(tiny), "--set", "train.stps=3"], "no setting 'train.stps'"),
        ([str(tiny), "--seeds", "1", "1"], "give each once"),
    ):
        assert door.main([*arguments, *out]) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.full
def test_a_table_is_made_by_one_command_and_what_is_done_stays_done(tiny, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [str(tiny), "--seeds", "0", "--out", str(out), "--set", "learner.lr=1e-4"]
    assert door.main([*arguments, "--workers", "2"]) == 0
    said = capsys.readouterr().out
    assert "[2/2]" in said and "not judged: no margin was declared" in said
    assert {path.suffix for path in out.glob("tiny.*")} == {
        ".ipynb",
        ".json",
        ".md",
        ".html",
        ".png",
    }
    assert (out / "tiny.declared.json").is_file()
    table = json.loads((out / "tiny.json").read_text())
    assert table["tasks"] == 8 and {check["held"] for check in table["checks"]} == {True}
    runs = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")}
    assert len(runs) == 2 and not list(out.rglob(".tmp-*"))
    assert door.main([*arguments, "--workers", "0"]) == 0
    assert "2 runs, 2 done before" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in out.glob("runs/*/metrics.jsonl")} == runs
    again = read_table(tiny, out, seeds="0", settings="learner.lr=1e-4").values
    assert again == table | {"checks": again["checks"]}, (
        "the table is a function of the run folders"
    )
    with pytest.raises(StoreError, match="another configuration"):
        train_or_go_on(load_config("bandit"), next(iter(runs)).parent)
