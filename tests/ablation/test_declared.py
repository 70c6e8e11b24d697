"""What was declared before the first run stays: a margin that was chosen after looking is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.made_plans import plan_in, two_arms
from workbench.extensions.ablation.declared import declaration, declare, declared_in, hash_of
from workbench.extensions.ablation.reading import read_plan
from workbench.extensions.ablation.verdicts import Analysis
from workbench.values.errors import ConfigError

PLAN = two_arms(
    "Bandit",
    """[analysis]
margin = 2
seeds = [0, 1, 2, 3, 4, 5, 6, 7]
looks = [5, 8]
""",
)


def plan_of(folder: Path, old: str = "", new: str = ""):
    return plan_in(folder, PLAN, old, new)


def test_a_plan_says_how_it_will_be_judged(tmp_path):
    plan = plan_of(tmp_path)
    assert plan.seeds == tuple(range(8)) and plan.analysis == Analysis(2.0, (5, 8))
    assert plan_of(tmp_path, "looks = [5, 8]\n").analysis == Analysis(2.0, (8,))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("margin = 2\n", "", "analysis needs margin"),
        ("margin = 2", "margin = -1", "margin: expected a difference above 0"),
        ("looks = [5, 8]", "looks = [5, 7]", "the last look is at the end, after 8 seeds"),
        ("looks = [5, 8]", "looks = [8, 5, 8]", "rising numbers of seeds"),
        ("[0, 1,", "[0, 0,", "each once"),
        ("margin", "margni", "has no 'margni'; did you mean 'margin'"),
    ],
)
def test_a_wrong_analysis_is_refused(tmp_path, old, new, words):
    with pytest.raises(ConfigError, match=words.replace("[", r"\[")):
        plan_of(tmp_path, old, new)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("margin = 2", "margin = 4", "analysis.margin was 2.0, and is 4.0"),
        ("looks = [5, 8]", "looks = [6, 8]", "analysis.looks was"),
        ("normalize_std", "whiten", "set.algorithm.estimator.normalize_std was there then"),
        ('compare = [["std", "plain"]]', "compare = []", "compare was"),
    ],
)
def test_a_plan_that_changed_is_refused_with_the_first_difference(tmp_path, old, new, words):
    declare(plan_of(tmp_path), tmp_path / "out")
    with pytest.raises(ConfigError, match=words):
        declare(plan_of(tmp_path, old, new), tmp_path / "out")


def test_what_is_added_later_is_known_as_that(tmp_path):
    first = plan_of(tmp_path)
    assert declared_in("bandit", tmp_path / "out") is None
    sealed = declare(first, tmp_path / "out")
    assert sealed == declaration(first) == declare(first, tmp_path / "out")
    more = plan_of(tmp_path, '[["std", "plain"]]', '[["std", "plain"], ["plain", "std"]]')
    assert declare(more, tmp_path / "out")["compare"] == [["std", "plain"]]
    assert hash_of(declaration(more)) != hash_of(sealed)


def test_a_file_of_settings_is_declared_by_what_it_sets_wherever_it_lies(tmp_path):
    def declared_from(folder, rate="3e-4", comment=""):
        folder.mkdir(exist_ok=True)
        (folder / "mine.toml").write_text(f'base = "bandit"\n[learner]\nlr = {rate}{comment}\n')
        (folder / "plan.toml").write_text(
            'title = "two"\nseeds = 2\nbase = "mine.toml"\n[arms.plain]\n[arms.std]\n'
            'set = { "algorithm.estimator.normalize_std" = true }\n'
        )
        return declaration(read_plan(folder / "plan.toml"))

    first = declared_from(tmp_path / "here")
    assert first == declared_from(tmp_path / "there", comment="  # as it was") and str(
        tmp_path
    ) not in str(first)
    assert first["arms"]["std"]["base"].startswith("mine.toml, settings ")
    assert first != declared_from(tmp_path / "here", rate="6e-4")
