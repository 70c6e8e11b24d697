"""What an ablation is: arms that differ in what they set, each loaded as a user's configuration would be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_plans import plan_in, two_arms
from workbench.extensions.ablation import plan as plans
from workbench.extensions.ablation.declared import declaration
from workbench.extensions.ablation.plan import (
    Job,
    check,
    config_of,
    jobs,
    key_of,
    read_settings,
    settings_of,
    written,
)
from workbench.training.config import load_config
from workbench.values.errors import ConfigError

PLAN = two_arms(
    "Bandit",
    """[all]
"train.steps" = 1
""",
    """[arms.inert]
label = "no reference"
base = "frozenlake-ppo"
inert = true
set = { "algorithm.masks.kl_reward_over" = "response" }
[[expect]]
arm = "std"
below = "plain"
points = 15
""",
)


def plan_of(folder: Path, old: str = "", new: str = "") -> plans.Plan:
    return plan_in(folder, PLAN, old, new)


def test_arms_differ_in_what_they_set_and_in_nothing_else(tmp_path):
    plan = plan_of(tmp_path)
    assert plan.name == "bandit" and [arm.name for arm in plan.arms] == ["plain", "std", "inert"]
    assert jobs(plan, [0, 4]) == [Job("plain", 0), Job("std", 0), Job("plain", 4), Job("std", 4)]
    check(plan, [0, 4])
    assert config_of(plan, Job("std", 4)) == load_config(
        "bandit", {"train.steps": 1, "algorithm.estimator.normalize_std": True, "seed": 4}
    )
    keys = {key_of(plan, job) for job in jobs(plan, [0, 4])}
    assert len(keys) == 4 and key_of(plan.with_arms(["std"]), Job("std", 4)) in keys
    assert key_of(plan.with_settings({"train.steps": 2}), Job("std", 4)) not in keys


def test_settings_survive_the_way_through_a_notebooks_parameter(tmp_path):
    plan = plan_of(tmp_path).with_settings({"learner.lr": 2.5e-4, "evaluation.num_tasks": 8})
    said = written(settings_of(plan, Job("std", 0)))
    assert (
        said
        == "train.steps=1 learner.lr=0.00025 evaluation.num_tasks=8 algorithm.estimator.normalize_std=true"
    )
    assert load_config("bandit", read_settings(said)) == config_of(plan, Job("std", 0))
    with pytest.raises(ConfigError, match="a blank in it"):
        written({"policy.name": "my policies/a"})
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_settings("train.steps 3")


@pytest.mark.parametrize(
    "settings",
    [
        {"evaluation.num_tasks": 8},
        {"learner.lr": 2.5e-4},
        {"train.on_alarm": "note"},
        {"algorithm.estimator.normalize_std": True},
        {"env.names": ["Ant", "Bee"]},
    ],
    ids=str,
)
def test_settings_of_python_declare_what_the_same_ones_of_a_command_line_do(tmp_path, settings):
    """A report reads them as a notebook's parameter: what `wb.ablate` declared would be refused as another plan."""
    plan = plan_of(tmp_path)
    assert declaration(plan.with_settings(settings)) == declaration(
        plan.with_settings(read_settings(written(settings)))
    )


def test_what_is_left_out_is_not_compared(tmp_path):
    plan = plan_of(tmp_path)
    assert plan.compare == (("std", "plain"),) and plan.with_arms(["plain"]).compare == ()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('base = "bandit"\nset', 'bse = "bandit"\nset', "has no 'bse'; did you mean 'base'"),
        ('base = "bandit"\n[arms.std]', "[arms.std]", "arms.plain needs base"),
        (
            "normalize_std",
            "normalise_std",
            "arm 'std' of bandit: no setting 'algorithm.estimator.normalise_std'",
        ),
        ('"plain"]]', '"plan"]]', "has no arm 'plan'; did you mean 'plain'"),
        ('"plain"]]', '"inert"]]', "'inert' is inert, so nothing can be compared"),
        ("inert = true", "inert = false", "kl_reward_over has no effect"),
        (
            '"algorithm.masks.kl_reward_over"',
            '"algorithm.masks.loss_over"',
            "its settings act; remove `inert`",
        ),
        ("points = 15", 'points = "much"', "points is of another type"),
        ('title = "Bandit"', "", "needs title"),
        ("[all]", "[all", "cannot read an ablation"),
    ],
)
def test_a_wrong_plan_is_refused_before_anything_is_trained(tmp_path, old, new, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        check(plan_of(tmp_path, old, new), [0])


def test_a_seed_stands_once(tmp_path):
    for seeds in ([], [1, 1]):
        with pytest.raises(ConfigError, match="give each once"):
            check(plan_of(tmp_path), seeds)
