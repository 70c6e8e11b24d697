"""Kinds of the user's own by name: what is accepted, what is refused and how that is said, and objects from Python."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from learning_data import make_groups

import workbench as wb
from workbench.engines.scripted import ScriptedEngine
from workbench.learn.algorithms import Algorithm, Estimator
from workbench.learn.algorithms.base import Advantages
from workbench.learn.algorithms.own import kind_of as kind_of_algorithm
from workbench.look.cells.credit import edited_groups
from workbench.training.config import from_dict, load_config, to_dict
from workbench.training.kinds import KINDS, check_tasks, kind_of
from workbench.training.listing import settings_text
from workbench.values.errors import ConfigError
from workbench.worlds import FrozenLake
from workbench.worlds.runners import InlineRunner

HERE = __name__


def by_length(inputs, *, scale: float = 1.0) -> Advantages:
    return Advantages(inputs.of_rows(scale * inputs.reward_N.nan_to_num()))


BY_LENGTH = Algorithm("by_length", Estimator(by_length))


@dataclass(frozen=True)
class Quiz:
    """Nothing but its settings is looked at here."""

    level: int
    hints: tuple[str, ...] = ()
    max_turns: int = 3
    name: ClassVar[str] = "quiz"

    def task(self, task_seed): ...
    def make(self): ...


@dataclass(frozen=True)
class OpensScript:
    """Settings of an engine."""

    answer: str = "yes"

    def open(self, model):
        return ScriptedEngine(lambda request: [1])


@dataclass(frozen=True)
class Half:
    max_turns: int = 3


@dataclass(frozen=True)
class Unknown(Half):
    level: NotImportedHere = 3  # noqa: F821


class NoDataclass:
    name, max_turns = "none", 3

    def task(self, task_seed): ...
    def make(self): ...


def wants_an_argument(what): ...


def test_its_fields_are_settings_and_come_back_from_what_is_stored():
    config = load_config(f"{HERE}:Quiz", {"env.level": "4", "env.hints": "a,b"})
    assert config.env == Quiz(4, ("a", "b")) and config.kind_of("env") == f"{HERE}:Quiz"
    assert to_dict(config)["env"] == {
        "kind": f"{HERE}:Quiz",
        "level": 4,
        "hints": ("a", "b"),
        "max_turns": 3,
    }
    assert from_dict(to_dict(config)) == config
    assert load_config("frozenlake", {"env.kind": f"{HERE}:Quiz", "env.level": 4}).env == Quiz(4)
    assert load_config(
        "frozenlake", {"engine.kind": f"{HERE}:OpensScript", "engine.answer": "no"}
    ).engine == OpensScript("no")


@pytest.mark.parametrize(
    "settings, said",
    [
        ({}, "env needs level"),
        ({"env.level": 4, "env.hint": "a"}, "no setting 'env.hint'; did you mean 'env.hints'"),
        ({"env.kind": f"{HERE}:Quizz"}, "has no 'Quizz'; did you mean 'Quiz'"),
        (
            {"env.kind": f"{HERE}:Half"},
            "lacks a short name.*; task.task_seed. -> Task; make.*docs/extend/environment.md",
        ),
        ({"env.kind": f"{HERE}:NoDataclass"}, "is no dataclass: put @dataclass.frozen=True."),
        ({"env.kind": f"{HERE}:Unknown"}, "type cannot be looked up: name 'NotImportedHere'"),
        ({"env.kind": f"{HERE}:BY_LENGTH"}, "not a class"),
        ({"env.kind": "guess"}, "env.kind: no env 'guess'.*package.module:Name"),
        ({"engine.kind": f"{HERE}:Half"}, r"lacks open\(model\)"),
        (
            {"algorithm.kind": f"{HERE}:wants_an_argument"},
            "gives no algorithm without arguments.*give each.*a default",
        ),
        ({"algorithm.kind": f"{HERE}:Half"}, "expected an Algorithm"),
        (
            {"algorithm.kind": f"{HERE}:BY_LENGTH", "algorithm.estimator.scall": 2},
            "did you mean 'algorithm.estimator.scale'",
        ),
    ],
)
def test_what_is_refused_names_what_lacks(settings, said):
    with pytest.raises(ConfigError, match=said):
        load_config(f"{HERE}:Quiz", settings)


def test_a_file_without_base_begins_with_the_defaults_and_names_its_environment(tmp_path):
    (tmp_path / "mine.toml").write_text(f'[env]\nkind = "{HERE}:Quiz"\nlevel = 2\n')
    assert load_config(tmp_path / "mine.toml") == load_config(f"{HERE}:Quiz", {"env.level": 2})
    (tmp_path / "none.toml").write_text("seed = 1")
    with pytest.raises(ConfigError, match="names neither base"):
        load_config(tmp_path / "none.toml")


def test_settings_lists_those_of_ones_own():
    assert "env.level needed" in settings_text(f"{HERE}:Quiz") and "engine.answer" in settings_text(
        f"{HERE}:OpensScript"
    )
    assert "algorithm.estimator.scale = 1.0" in settings_text(f"{HERE}:BY_LENGTH")
    assert "or package.module:Name" in settings_text("env.kind")


def test_objects_of_python_have_a_name_or_are_refused_in_words():
    config = load_config("frozenlake")
    assert replace(config, env=Quiz(1)).kind_of("env") == f"{HERE}:Quiz"
    for algorithm in (BY_LENGTH, BY_LENGTH(estimator={"scale": 3.0})):
        stored = to_dict(replace(config, algorithm=algorithm))
        assert stored["algorithm"]["kind"] == f"{HERE}:BY_LENGTH"
        assert from_dict(stored).algorithm.settings == algorithm.settings

    @dataclass(frozen=True)
    class Local(Quiz):
        level: int = 1

    with pytest.raises(ConfigError, match="defined inside a function"):
        replace(config, env=Local()).kind_of("env")
    with pytest.raises(ConfigError, match="is no dataclass"):
        kind_of("env", NoDataclass())
    with pytest.raises(ConfigError, match="is not a module-level name"):
        kind_of_algorithm(replace(BY_LENGTH, name="another"))
    with pytest.raises(
        ConfigError, match="is not a module-level name"
    ):  # another's name does not make it that one
        kind_of_algorithm(replace(BY_LENGTH, name="grpo"))


def test_the_credit_cells_take_an_algorithm_of_ones_own():
    groups = make_groups(3, tasks=2, attempts=3, turns=2)
    edited = edited_groups(
        groups, BY_LENGTH(estimator={"scale": 2.0}), token_texts=lambda ids: [str(i) for i in ids]
    )
    assert "by_length" in edited.view().text
    assert "estimator.scale = 3.0" in edited.after(settings={"estimator.scale": 3.0}).text
    text = wb.show_estimators(groups, [BY_LENGTH, "grpo", f"{HERE}:BY_LENGTH"]).text
    assert "by_length" in text and f"{HERE}:BY_LENGTH" in text and "grpo" in text


def test_tables_list_the_packages_own_kinds_only():
    assert (
        "frozenlake" in KINDS["env"]
        and f"{HERE}:Quiz" in KINDS["env"]
        and "nothing" not in KINDS["env"]
    )
    assert not any(":" in kind for table in KINDS.values() for kind in table)
    assert sys.modules[HERE]


class Gym:
    def reset(self, seed=None): ...


class NoEnv:
    pass


@pytest.mark.parametrize(
    "env, said",
    [
        (Gym(), r"Gym has reset\(seed=None\), no step"),
        (NoEnv(), "NoEnv has no reset, no step"),
        (None, "NoneType has no reset"),
    ],
)
def test_an_environment_without_the_protocol_is_told_what_it_owes(env, said):
    class Family:
        def make(self):
            return env

    runner = InlineRunner()
    runner.reset("a", Family(), None, 0)
    assert re.search(
        f"An environment has reset.task, dynamics_seed. and step.action_text., and {said}",
        runner.poll()[0].error,
    )
    runner.reset("b", FrozenLake(), None, 0)
    assert (
        "An environment has" not in runner.poll()[0].error
    )  # negative control: it has them, and failed otherwise


@dataclass(frozen=True)
class NoTask(Half):
    def task(self, task_seed):
        return "problem 1"


@dataclass(frozen=True)
class OtherTask(Half):
    def task(self): ...


@dataclass(frozen=True)
class Picky(Half):
    def task(self, task_seed):
        raise KeyError(task_seed)


def test_a_family_whose_tasks_are_none_is_refused_when_it_is_opened():
    with pytest.raises(
        ConfigError, match="NoTask returns a Task.*task.0. gave 'problem 1'.*environment.md"
    ):
        check_tasks(NoTask())
    with pytest.raises(ConfigError, match=r"this one is task\(\)"):
        check_tasks(OtherTask())
    check_tasks(Picky())
    check_tasks(FrozenLake())
