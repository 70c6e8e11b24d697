"""No rule says a word against clean rollouts: every template family, environment, history, algorithm, and faults."""

from __future__ import annotations

import pytest

from tests.linting.clean_rollouts import HISTORIES, QUICK, TEMPLATES, Recipe, collected, recipes
from workbench.learn.algorithms import ALGORITHMS
from workbench.linting import all_rules, check
from workbench.worlds import PRESETS

RULES = all_rules()

STEP_RULES = [rule for rule in RULES.values() if rule.when in ("step", "update")]


def lint_clean(recipe: Recipe) -> int:
    """Trajectories that were looked at; an error of any rule fails."""
    evidence = collected(recipe)
    report = check(evidence, STEP_RULES)
    assert not report.errors, f"{recipe}\n{report.text}"
    return len(evidence.trajectories)


@pytest.mark.parametrize("recipe", recipes(10), ids=lambda recipe: recipe.about)
def test_nothing_is_said_against_clean_rollouts(recipe):
    assert lint_clean(recipe) == recipe.tasks * recipe.group_size


def test_the_reduced_corpus_has_one_of_each():
    made = recipes(len(PRESETS))
    assert {recipe.template for recipe in made} == set(QUICK) and {
        recipe.history for recipe in made
    } == set(HISTORIES)
    assert {recipe.preset for recipe in made} == set(PRESETS) and {
        r.algorithm for r in made
    } == set(ALGORITHMS)


def test_the_corpus_has_what_may_happen():
    """Negative control: a corpus without faults, cuts and several segments would prove little."""
    trajectories = [t for recipe in recipes(len(PRESETS)) for t in collected(recipe).trajectories]
    reasons = {trajectory.stop_reason.value for trajectory in trajectories}
    assert {
        "terminated",
        "max_turns",
        "context_full",
        "env_error",
        "engine_error",
        "env_truncated",
    } <= reasons
    assert any(not trajectory.segments for trajectory in trajectories) and any(
        len(a.segments) > 1 for a in trajectories
    )
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    assert {turn.finish for turn in turns} == {"stop", "length"} and any(
        turn.reward is None for turn in turns
    )
    assert sum(bool(turn.info.get("valid_format")) for turn in turns) > len(turns) / 3
    assert len({trajectory.reward for trajectory in trajectories}) > 5


@pytest.mark.full
def test_nothing_is_said_against_many_clean_rollouts():
    """Every family x history x preset, each with another algorithm."""
    made = recipes(len(TEMPLATES) * len(PRESETS) * 2, TEMPLATES, seed=1000)
    combinations = {(recipe.template, recipe.history) for recipe in made}
    assert len(combinations) == len(TEMPLATES) * len(HISTORIES)
    assert {(recipe.algorithm, recipe.history) for recipe in made} == {
        (a, h) for a in ALGORITHMS for h in HISTORIES
    }
    assert sum(map(lint_clean, made)) >= 2000
