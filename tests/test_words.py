"""Suggestions by meaning, lists of what there is, and what is said of a value of another kind."""
from __future__ import annotations

from pathlib import Path

import pytest
import workbench as wb
from learning_data import make_groups

from workbench.cli import main
from workbench.training.config import KINDS, load_config
from workbench.training.listing import settings_parts, settings_text
from workbench.training.words import OTHER_NAMES
from workbench.types import doors
from workbench.types.errors import ConfigError, DataError


def test_every_name_of_the_field_leads_to_settings_that_there_are():
    known = {each.key for part in settings_parts() for each in part.settings} | {f"{part}.kind" for part in KINDS}
    assert not {key for keys in OTHER_NAMES.values() for key in keys} - known
    assert not {word for word in OTHER_NAMES if word in known}  # one of ours needs no other name


@pytest.mark.parametrize("written, meant", [
    ("lr", "learner.lr"), ("learning_rate", "learner.lr"), ("train.learning_rate", "learner.lr"), ("beta", "algorithm.kl_coef"),
    ("batch_size", "train.tasks_per_step"), ("num_generations", "train.group_size"), ("clip", "algorithm.clip_low"),
    ("max-new-tokens", "collect.max_turn_tokens"), ("train.lr", "learner.lr"), ("model", "policy.name"), ("algo", "algorithm.kind"),
    ("learner.temperature", "collect.temperature"), ("train.stpes", "train.steps")])
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


def test_another_kind_of_value_is_named_with_the_call_that_fits(tmp_path, capsys):
    config, [group, *_] = load_config("frozenlake"), make_groups(0, tasks=1, attempts=2, turns=1)
    for call, said in (
            (lambda: wb.train("frozenlake", "x"), "wb.train takes a Config, got a text \\('frozenlake'\\).*wb.load_config"),
            (lambda: wb.load_config(config), "takes a text or a path, got a Config.*wb.open_session"),
            (lambda: wb.show_group(group[0]), "takes a Group, got a Trajectory.*wb.show_trajectory"),
            (lambda: wb.show_trajectory(group), "takes a Trajectory, got a Group.*wb.show_group"),
            (lambda: wb.rollout(config), "takes a Session, got a Config.*wb.open_session"),
            (lambda: wb.open_session(Path("x.toml")), "takes a Config, got a path.*wb.load_config"),
            (lambda: wb.reopen(config), "takes a Run or a text or a path, got a Config")):
        with pytest.raises(DataError, match=said):
            call()
    assert main(["settings", "lr"]) == 0 and "learner.lr" in capsys.readouterr().out


def test_every_guarded_door_is_public_and_each_kind_is_there():
    assert set(doors.TAKES) <= set(wb.PUBLIC)
    assert {kind for kinds in doors.TAKES.values() for kind in kinds} <= set(doors.KINDS)
    from workbench.types.plugins import load_named

    for name, _ in doors.KINDS.values():
        assert isinstance(load_named(name, "kind"), type)
    assert doors.kind_of(object()) == "" and wb.show_group.__wrapped__.__name__ == "show_group"
