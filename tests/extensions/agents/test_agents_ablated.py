"""Ablations over programs: an arm is a program, or a setting of one, as with any other environment."""

from __future__ import annotations

import pytest

from tests.extensions.agents import programs
from workbench.extensions.ablation.plan import config_of, jobs
from workbench.extensions.ablation.reading import read_plan
from workbench.values.errors import ConfigError

AGENT = f"""
base = "search"
[env]
kind = "agent"
program = "{programs.__name__}:solve"
tasks = "world_qa"
"""
PLAN = """
title = "Which of these programs"
base = "agent.toml"
baseline = "appends"
seeds = [0]
[all]
"train.steps" = 1
[arms.appends]
[arms.helpers]
start = "untrained, with helpers"
set = {{ "env.program" = "{program}" }}
[arms.few]
start = "untrained, two calls"
set = {{ "env.most_calls" = {most_calls} }}
"""


def plan_in(folder, most_calls=2):
    program = f"{programs.__name__}:with_helpers"
    (folder / "agent.toml").write_text(AGENT)
    (folder / "plan.toml").write_text(PLAN.format(program=program, most_calls=most_calls))
    return read_plan(folder / "plan.toml")


def test_arms_are_programs_or_settings_of_one(tmp_path):
    plan = plan_in(tmp_path)
    tried = {job.arm: config_of(plan, job).env for job in jobs(plan, [0])}
    assert {arm: (env.program.partition(":")[2], env.most_calls) for arm, env in tried.items()} == {
        "appends": ("solve", 32),
        "helpers": ("with_helpers", 32),
        "few": ("solve", 2),
    }


def test_an_arm_that_cannot_be_is_refused_by_its_name(tmp_path):
    """Negative control: the settings of arms are read as those of any run."""
    plan = plan_in(tmp_path, most_calls=0)
    few = next(job for job in jobs(plan, [0]) if job.arm == "few")
    with pytest.raises(ConfigError, match="arm 'few'.*most_calls"):
        config_of(plan, few)
