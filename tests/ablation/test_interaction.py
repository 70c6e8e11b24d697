"""Interactions and power: a difference of differences is judged like any other, and promised chances are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.counts import reduced
from workbench.extensions.ablation.contrasts import axes_in, interaction_weights
from workbench.extensions.ablation.crossed import chance_equal, chance_found, detectable, parts_of
from workbench.extensions.ablation.declared import declaration
from workbench.extensions.ablation.plan import Arm, Job, Plan
from workbench.extensions.ablation.power import family_size, power_facts
from workbench.extensions.ablation.reading import plan_of
from workbench.extensions.ablation.table import table_of
from workbench.extensions.ablation.verdicts import Analysis, found_at, looked
from workbench.extensions.ablation.views.arms import show_arms
from workbench.extensions.ablation.views.forest import show_forest
from workbench.extensions.ablation.views.interactions import interaction_view
from workbench.extensions.ablation.views.power import show_power
from workbench.values.errors import ConfigError

SEEDS, TASKS = tuple(range(6)), 80
PLACES = {
    f"{norm}-{lr}": {"algorithm.norm": norm, "lr": lr}
    for norm in (False, True)
    for lr in (0.1, 1.0, 10.0)
}
PLAN = Plan(
    "grid",
    "Grid",
    tuple(Arm(name, name, "bandit", set=at, at=at) for name, at in PLACES.items()),
    seeds=SEEDS,
    compare=(("True-0.1", "False-0.1"),),
    interactions=(("lr", "algorithm.norm"),),
    analysis=Analysis(8, (6,)),
)


def facts(mean, seed, number):
    luck = np.random.default_rng([seed, number]).normal(size=TASKS)
    hard = np.random.default_rng(9).normal(size=TASKS)
    return {
        "sampled": np.clip(mean + 0.03 * luck + 0.04 * hard, 0, 1).tolist(),
        "rows": [],
        "curves": {},
        "evaluated": {},
        "tasks": TASKS,
        "steps": 2,
        "lint": None,
        "run": "r",
        "code": "c",
        "cpu_seconds": 1.0,
        "training_cpu_seconds": 1.0,
        "notebook": "n.ipynb",
    }


def table(together=0.3, plan=PLAN, without=(), declared=None):
    """Success rises with lr by 10 points a decade, and by `together` more at norm = true."""
    found = {
        Job(name, seed): facts(
            0.5 + (0.1 + together / 2 * at["algorithm.norm"]) * np.log10(at["lr"]), seed, number
        )
        for number, (name, at) in enumerate(PLACES.items())
        for seed in SEEDS
        if (name, seed) not in without
    }
    return table_of(plan, SEEDS, found, declared)


def test_the_interaction_is_a_difference_of_differences_between_first_and_last_values():
    weights = interaction_weights(PLACES, "lr", "norm")
    assert weights == {"True-10.0": 1, "True-0.1": -1, "False-10.0": -1, "False-0.1": 1}
    assert axes_in({"a": {"k": 1, "one": 2}, "b": {"k": True, "one": 2}}) == ["k"], "true is not 1"
    with pytest.raises(ConfigError, match="two axes, got lr twice"):
        interaction_weights(PLACES, "lr", "lr")
    with pytest.raises(ConfigError, match="name one of the axes"):
        interaction_weights(PLACES, "lr", "normm")
    linked = {"a": {"x": 1, "y": 2}, "b": {"x": 2, "y": 3}}
    with pytest.raises(ConfigError, match="settings that are linked are one axis"):
        interaction_weights(linked, "x", "y")


@pytest.mark.parametrize(
    ("together", "verdict"), [(0.3, "higher"), (-0.3, "lower"), (0.0, "equal within the margin")]
)
def test_a_declared_interaction_is_judged_with_the_family(together, verdict):
    made = table(together)
    [pair] = made["interactions"]
    assert pair["sampled"]["verdict"] == verdict, pair["sampled"]
    assert pair["sampled"]["mean"] == pytest.approx(together, abs=0.03) and len(
        pair["sampled"]["each"]
    ) == len(SEEDS)
    assert family_size(made["declared"]) == 2 and made["power"]["family"] == 2
    alone = table(together, replace(PLAN, interactions=()))
    [both], [one] = made["compared"], alone["compared"]
    assert both["sampled"]["high"] - both["sampled"]["low"] > 1.05 * (
        one["sampled"]["high"] - one["sampled"]["low"]
    )
    for view in (show_arms(made), show_forest(made)):
        assert "interaction of lr and algorithm.norm" in view.text


def test_an_interaction_lacks_what_a_run_lacks_and_is_exploratory_where_it_was_not_declared():
    made = table(without={("True-10.0", 2)})
    assert [*made["interactions"][0]["sampled"]["each"]] == ["0", "1", "3", "4", "5"]
    assert (
        made["interactions"][0]["sampled"]["judged_seeds"] == 2
        and "verdict" in made["interactions"][0]["sampled"]
    )
    text = interaction_view(table(plan=replace(PLAN, interactions=())), "lr", "norm").text
    assert "exploratory, it was not declared" in text and "than at false: +" in text
    assert "interactions" not in declaration(replace(PLAN, interactions=()))
    half = PLAN.with_arms([name for name in PLACES if name != "True-10.0"])
    assert half.interactions == () and "arms of some were left out" in str(
        table(plan=half, declared=declaration(PLAN))["compared"]
    )


def test_the_plot_has_a_line_for_each_value_with_its_interval():
    made = table()
    view = interaction_view(made)
    assert (
        "From lr = 0.1 to 10: how much more at algorithm.norm = true than at false: +" in view.text
        and "higher" in view.text
    )
    assert view.png[:4] == b"\x89PNG" and "norm = true" in view.text and "norm = false" in view.text
    other = interaction_view(made, "norm", "lr")
    assert "lr = 10" in other.text and other.png[:4] == b"\x89PNG"
    with pytest.raises(ConfigError, match="name both of"):
        interaction_view(made, "lr")
    flat = table(
        plan=replace(PLAN, interactions=(), arms=tuple(replace(arm, at={}) for arm in PLAN.arms))
    )
    assert "this plan has none" in interaction_view(flat).text


def test_a_plan_names_its_interactions_by_axes(tmp_path):
    tree = {
        "title": "x",
        "base": "bandit",
        "grid": {"learner.lr": [1e-4, 1e-3], "algorithm.estimator.normalize_std": [True, False]},
        "interactions": [["lr", "normalize_std"]],
    }
    assert plan_of(tree, "x", tmp_path, "x").interactions == (
        ("learner.lr", "algorithm.estimator.normalize_std"),
    )
    for pairs, words in (
        ([["lr", "k"]], "name one of the axes"),
        ([["lr"]], "pairs of two axes of the grid"),
    ):
        with pytest.raises(ConfigError, match=words):
            plan_of(tree | {"interactions": pairs}, "x", tmp_path, "x")


# ------------------------------------------------------------------------------------------------ power


SIZES = [(0.015, 5, 128, 0.08), (0.05, 8, 64, 0.08), (0.03, 12, 256, 0.03)]


@pytest.mark.parametrize(
    ("seed", "runs", "tasks", "effect"), reduced(SIZES, SIZES[:2], several=True)
)
def test_the_promised_chance_is_what_a_simulation_finds(seed, runs, tasks, effect):
    rng, draws, analysis = np.random.default_rng(3), 1500, Analysis(0.05, (runs,))
    noise = (
        seed * rng.standard_normal((draws, runs, 1))
        + 0.2 * rng.standard_normal((draws, 1, tasks))
        + 0.42 * rng.standard_normal((draws, runs, tasks))
    )[:, None]
    found = (
        found_at(np.stack([one.p_value() for one in looked(noise + effect, analysis)]), analysis)
        >= 0
    )
    promised = chance_found(effect, seed**2, 0.2**2, 0.42**2, runs, tasks)
    assert 0.2 < promised < 0.99 and abs(np.mean(found) - promised) < 0.05, (
        np.mean(found),
        promised,
    )
    parts, margin = parts_of(noise[:, 0]), 1.6 * effect
    equal = np.mean(np.abs(parts.mean_X) + parts.half_width(0.05) < margin)
    assert abs(equal - chance_equal(margin, seed**2, 0.2**2, 0.42**2, runs, tasks)) < 0.08, equal
    assert chance_found(
        detectable(seed**2, 0.04, 0.1764, runs, tasks), seed**2, 0.04, 0.1764, runs, tasks
    ) == pytest.approx(0.8, abs=1e-3)


def test_where_nothing_varies_every_difference_is_found():
    """Two seeds that came out alike, as those of a game that is always lost."""
    made = table()
    still = made | {"power": made["power"] | {"seed": 0.0, "task": 0.0, "rest": 0.0, "few": 2}}
    row = next(
        line
        for line in show_power(still).text.splitlines()
        if line.startswith("8 points, detected")
    )
    assert set(row.split("detected")[1].split()) == {"100"}
    assert chance_found(0.0, 0.0, 0.0, 0.0, 3, 8) == 0.0 == detectable(0.0, 0.0, 0.0, 3, 8)
    assert chance_equal(0.1, 0.0, 0.0, 0.0, 3, 8) == 1.0 == chance_found(0.1, 0.0, 0.0, 0.0, 3, 8)
    assert chance_found(0.1, 0.0, 0.0, 0.0, 1, 8) == 0.0


def test_power_rises_with_seeds_tasks_and_effect_and_few_seeds_have_none():
    made = table()
    known = made["power"]
    assert (
        known["runs"] == 6
        and known["few"] == 5
        and known["margin"] == 0.08
        and known["task"] < 0.02
    )
    view = show_power(made)
    assert (
        "below 5 seeds nothing is decided" in view.text
        and view.png[:4] == b"\x89PNG"
        and "2 differences judged together" in view.text
    )
    row = next(line for line in view.text.splitlines() if line.startswith("8 points, detected"))
    assert row.split("detected")[1].split()[0] == "0", row
    assert power_facts(PLAN, made["arms"], [], 1, False) is None
    assert "measured variances" in show_power(made | {"power": None}).text
    chances = [
        chance_found(0.05, 0.001, 0.04, 0.18, runs, tasks)
        for runs, tasks in ((5, 64), (8, 64), (8, 512))
    ]
    assert (
        chances == sorted(chances)
        and chances[0] < chances[2]
        and chance_found(0.05, 0.001, 0.04, 0.18, 1, 64) == 0
    )
