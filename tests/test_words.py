"""Suggestions by meaning, lists of what there is, and what is said of a value of another kind."""

from __future__ import annotations

import pytest

import workbench as wb
from workbench.cli import main
from workbench.training.config import KINDS, load_config
from workbench.training.listing import settings_parts, settings_text
from workbench.training.words import OTHER_NAMES
from workbench.values.errors import ConfigError


def test_every_name_of_the_field_leads_to_settings_that_there_are():
    known = {each.key for part in settings_parts() for each in part.settings} | {
        f"{part}.kind" for part in KINDS
    }
    assert not {key for keys in OTHER_NAMES.values() for key in keys} - known
    assert not {word for word in OTHER_NAMES if word in known}  # one of ours needs no other name


@pytest.mark.parametrize(
    "written, meant",
    [
        ("lr", "learner.lr"),
        ("learning_rate", "learner.lr"),
        ("train.learning_rate", "learner.lr"),
        ("beta", "algorithm.reference.kl_coef"),
        ("batch_size", "train.tasks_per_step"),
        ("num_generations", "train.group_size"),
        ("clip", "algorithm.objective.clip_low"),
        ("max-new-tokens", "collect.max_turn_tokens"),
        ("train.lr", "learner.lr"),
        ("model", "policy.name"),
        ("algo", "algorithm.kind"),
        ("learner.temperature", "collect.temperature"),
        ("train.stpes", "train.steps"),
    ],
)
def test_suggestions_go_by_meaning_then_by_letters(written, meant):
    with pytest.raises(ConfigError, match=f"no setting '{written}'; did you mean '{meant}'"):
        load_config("frozenlake", {written: 1})


def test_letters_that_changed_places():
    for written, meant in (("gpro", "grpo"), ("psgo", "gspo"), ("ppp", "ppo")):
        with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
            load_config("frozenlake", {"algorithm.kind": written})
    with pytest.raises(ConfigError, match="learner.lr"):
        settings_text("learning_rate")


def test_what_there_is_is_a_table_with_a_line_each():
    assert all(name in wb.presets().text for name in ("frozenlake", "search-ppo", "grpo"))
    assert all(f"\n{name} " in wb.envs().text for name in KINDS["env"])
    assert all(f"\n{name} " in wb.algorithms().text for name in KINDS["algorithm"])


def test_the_command_knows_the_words_of_the_field_too(capsys):
    assert main(["settings", "lr"]) == 0 and "learner.lr" in capsys.readouterr().out
