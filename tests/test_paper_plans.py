"""Every plan that ships loads, prints, and is listed with its command; those of the papers declare how they are judged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from experiments import rejudge
from workbench.extensions.ablation.door import ask
from workbench.extensions.ablation.forecast import forecast
from workbench.extensions.ablation.plan import Job, config_of, jobs
from workbench.extensions.ablation.views.plans import show_forecast

ROOT = Path(__file__).parents[1]
PLANS = sorted((ROOT / "experiments" / "ablations").glob("*.toml")) + sorted(
    (ROOT / "experiments" / "agent_tables").glob("*.toml")
)
LISTED = (ROOT / "docs" / "evidence" / "papers.md").read_text(encoding="utf-8")
UNJUDGED = {"reasoning", "search", "search-hard"}  # one arm, or three seeds of an earlier table


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_a_shipped_plan_loads_and_prints(path, tmp_path):
    asked = ask(path, tmp_path / "out")
    said = show_forecast(forecast(asked.plan, asked.seeds, asked.out)).text
    assert re.search(r"\d+ jobs: \d+ waiting", said) and not asked.out.exists()
    if path.stem in UNJUDGED:
        return
    plan = asked.plan
    assert (
        plan.seeds == tuple(range(8))
        and plan.analysis.margin == 2
        and plan.compare
        and "at 80 % power" in said
    )
    assert {config_of(plan, job).evaluation.num_tasks for job in jobs(plan, [0])} == {512}
    assert f"{path.relative_to(ROOT)}" in LISTED, (
        "docs/evidence/papers.md lists every plan of the papers with its command"
    )


def test_earlier_sentences_are_judged_as_the_page_says():
    kept = json.loads((ROOT / "docs/evidence/data/rejudged.json").read_text(encoding="utf-8"))[
        "result"
    ]["rows"]
    assert rejudge.rejudged() == kept, "run experiments.rejudge and record it"
    assert all(row[3].startswith("undecided") for row in kept) and len(kept) == 14
    family = {"clear": np.full((5, 1), -30.0) + np.arange(5)[:, None]}
    assert rejudge.judged_rows(family, "five seeds")[0][3] == "lower", (
        "else nothing could have been decided"
    )


def config(name: str, arm: str):
    path = next(path for path in PLANS if path.stem == name)
    return config_of(ask(path, ROOT / "none").plan, Job(arm, 0))


def test_what_is_held_fixed_is_fixed():
    """Trajectories of a step, updates and their size, as the plans' remarks say."""
    plan = ask(next(path for path in PLANS if path.stem == "prompts-attempts"), ROOT / "none").plan
    assert {
        config_of(plan, job).train.tasks_per_step * config_of(plan, job).train.group_size
        for job in jobs(plan, [0])
    } == {128}
    plan = ask(
        next(path for path in PLANS if path.stem == "updates-fixed-updates"), ROOT / "none"
    ).plan
    for job in jobs(plan, [0]):
        one = config_of(plan, job)
        assert one.train.steps * one.algorithm.minibatches == 32
        assert one.train.tasks_per_step * one.train.group_size == 32 * one.algorithm.minibatches
    plan = ask(
        next(path for path in PLANS if path.stem == "updates-fixed-rollouts"), ROOT / "none"
    ).plan
    assert (
        len(
            {
                (config_of(plan, job).train.steps, config_of(plan, job).train.tasks_per_step)
                for job in jobs(plan, [0])
            }
        )
        == 1
    )
    assert (
        config("starpo-lake", "equal_updates").algorithm.filter.equal_updates
        and not config("thinking", "none").env.think
    )
