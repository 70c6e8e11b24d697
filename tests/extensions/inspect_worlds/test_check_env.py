"""`workbench check-env`: every planted mistake is named by the check meant for it, correct ones and shipped environments are clean."""

from __future__ import annotations

import dataclasses
import json

import pytest

import workbench as wb
from tests.counts import reduced
from tests.envs.served import Awaited
from tests.envs.test_opponents import Nim, NimFamily, takes_later
from tests.extensions.inspect_worlds import mistakes
from tests.extensions.inspect_worlds import test_kinds_by_playing as by_playing
from tests.extensions.inspect_worlds import test_kinds_of_the_fairground as of_the_fairground
from tests.extensions.inspect_worlds import test_kinds_of_words as of_words
from tests.extensions.inspect_worlds import test_users_own_bugs as users
from tests.extensions.inspect_worlds.test_kinds_planted_blind import KINDS
from workbench import cli
from workbench.extensions.inspect_worlds import checks
from workbench.extensions.inspect_worlds.checks import CHECKS, check_family
from workbench.extensions.inspect_worlds.checks.ends import stated_limits
from workbench.values.errors import ConfigError
from workbench.worlds import ENVS, PRESETS
from workbench.worlds.opponents import OpponentEnv

# One for each check, or nearly.
QUICK = (
    "NotStored",
    "SplitBySeed",
    "GlobalDice",
    "DiceOfTheTask",
    "StateOfTheClass",
    "Coloured",
    "Mute",
    "TooLong",
    "TellsInThePrompt",
    "SuccessByParity",
    "NotANumber",
    "PaysForTags",
    "NeverOver",
    "WrongLimit",
    "Raises",
    "LeavesThreads",
    "HoldsAFunction",
    "PaysForComingNearer",
    "PaysForWaiting",
    "TellsInRefusals",
    "RunningNumber",
    "SuccessNearby",
    "PaysForHaste",
    "SwallowsFailures",
)
# What is noted of shipped environments, and is true: one text solves a bandit whose arms are always the same two.
NOTED = {
    "bandit-code": {"E2", "E12"},
    "bandit-paper": {"E2", "E12"},  # held out are other names of the arms, on purpose
    "bandit-rev": {"E2", "E12"},
    "bandit-test": {"E2"},
}


# Found by chance play: a busy machine gets as many trajectories done in this time as an idle one in a second.
PATIENCE = {"SuccessNearby": 4.0}


def found_in(family, **options):
    report = check_family(family, **{"budget_s": 1.0} | options).findings
    return [
        (answer.rule, each.severity, each.what) for answer in report for each in answer.findings
    ]


def count_tokens(observation):
    return sum(len(message.text) for message in observation.messages) // 4


@pytest.mark.parametrize("name", reduced([cls.__name__ for cls in mistakes.MISTAKES], QUICK))
def test_a_planted_mistake_is_named_by_the_check_meant_for_it(name):
    cls = getattr(mistakes, name)
    check, words, severity = mistakes.MISTAKES[cls]
    fits = (
        {"count_tokens": count_tokens, "max_context": 2048, "max_turn_tokens": 64}
        if check == "E8"
        else {}
    )
    try:
        found = found_in(cls(), only=(check,), budget_s=PATIENCE.get(name, 1.0), **fits)
    finally:
        mistakes.clear()
    assert any(words in what and how == severity for _, how, what in found), found


@pytest.mark.parametrize(
    "cls",
    reduced(mistakes.TWINS, [mistakes.PotentialShaping, mistakes.Places]),
    ids=lambda cls: cls.__name__,
)
def test_a_legitimate_twin_is_passed_by(cls):
    assert found_in(cls(), only=(mistakes.TWINS[cls],)) == []


def test_no_check_is_without_a_mistake():
    planted = {check for check, _, _ in mistakes.MISTAKES.values()}
    planted |= {check for check, _ in KINDS.values()}
    planted |= {check for check, _, _ in users.KINDS.values()}
    planted |= {check for check, _, _ in by_playing.KINDS.values()}
    planted |= {check for check, _, _ in of_words.KINDS.values()}
    planted |= {check for check, _, _ in of_the_fairground.KINDS.values()}
    planted.add(of_the_fairground.OF_PITFALLS)
    assert {each.id for each in CHECKS} == planted


@pytest.mark.full
@pytest.mark.parametrize(
    "family",
    reduced(mistakes.CORRECT, [mistakes.Numbers, mistakes.Timed]),
    ids=lambda family: family.__name__,
)
def test_correct_ones_are_clean(family):
    fits = {"count_tokens": count_tokens, "max_context": 2048, "max_turn_tokens": 64}
    assert found_in(family(), **fits) == []


@pytest.mark.parametrize("name", reduced(PRESETS, ["frozenlake-4x4-slip"]))
def test_shipped_environments_have_no_error_and_only_the_notes_that_are_known(name):
    found = found_in(PRESETS[name])
    assert not [each for each in found if each[1] == "error"], found
    assert {check for check, _, _ in found} <= NOTED.get(name, set()), found


ADAPTED = {
    "lake": ("gymnasium", "gymnasium", {"success_reward": 1.0, "max_turns": 20}, {"E2"}),
    "blackjack": ("gymnasium", "gymnasium", {"id": "Blackjack-v1"}, {"E2", "E10"}),
    "chain_sum": ("reasoning_gym", "reasoning_gym", {}, set()),
    "crosses": ("textarena", "textarena", {"id": "TicTacToe-v0", "players": 2, "seat": 1}, {"E2"}),
    "guess": ("textarena", "textarena", {"id": "GuessTheNumber-v0"}, set()),
}


@pytest.mark.full
@pytest.mark.parametrize("name", reduced(ADAPTED, ["blackjack"]))
def test_other_peoples_environments_have_no_error(name):
    package, kind, settings, notes = ADAPTED[name]
    pytest.importorskip(package, reason="needs the extra worlds")
    found = found_in(ENVS[kind](**settings))
    assert {check for check, severity, _ in found if severity == "error"} == set(), found
    assert {check for check, _, _ in found} <= notes, found


class PoliteNim(Nim):
    def step(self, action_text):
        return super().step(action_text if action_text in ("1", "2", "3") else "1")


@dataclasses.dataclass(frozen=True)
class PoliteNimFamily(NimFamily):
    def make(self):
        return OpponentEnv(PoliteNim(), self.opponent)


def test_an_environment_of_coroutines_and_one_with_an_opponent_are_played(tmp_path):
    for family in (PoliteNimFamily(takes_later), Awaited(str(tmp_path))):
        report = check_family(
            family, tasks=6, budget_s=0.1, only=("E3", "E4", "E5", "E10", "E12", "E13", "E15")
        ).findings
        assert not [each for _, each in report.notes if "itself failed" in each.what], report
        assert {report[check].status for check in ("E3", "E4", "E5", "E15")} == {"passed"}, report
    rude = check_family(NimFamily(), tasks=6, budget_s=0.1, only=("E15",)).findings
    assert "ValueError" in rude["E15"].errors[0].what


@pytest.mark.full
def test_one_object_for_many_trajectories_is_played(tmp_path):
    from tests.envs import served

    report = check_family(
        served.Served(str(tmp_path), max_turns=4), tasks=6, budget_s=0.1, only=("E3", "E5", "E17")
    ).findings
    assert not [each for _, each in report.notes if "itself failed" in each.what], report
    assert report["E5"].status == "passed"
    mixed = check_family(
        served.Served(str(tmp_path), wrong="mixed", max_turns=4),
        tasks=6,
        budget_s=0.1,
        only=("E5",),
    ).findings
    assert "stepped in turns" in mixed["E5"].errors[0].what


def test_what_is_not_the_same_twice_says_so_and_is_not_compared():
    class Wild(mistakes.GlobalDice):
        deterministic = False

    report = check_family(Wild(), only=("E3", "E4", "E5"), budget_s=0.5).findings
    assert report.ok and "says that it is not" in report["E5"].missing[0]


def test_checks_of_an_extension_that_is_not_there_are_not_checked(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(checks, "has_service", lambda name: False)
        without = check_family(mistakes.Numbers(), only=("E1",), budget_s=0.1).findings
    report = check_family(mistakes.Numbers(), only=("E1",), budget_s=0.1).findings
    assert "inspect_tasks" in without["E1"].missing[0] and not report["E1"].missing


def test_a_task_that_cannot_be_made_is_the_only_finding():
    class NoTask(mistakes.Numbers):
        def task(self, task_seed):
            raise RuntimeError("no level")

    report = check_family(NoTask())
    assert not report.ok and [each.what for _, each in report.findings.errors] == [
        "task(task_seed) raises: RuntimeError: no level"
    ]


@pytest.mark.parametrize(
    ("prompt", "limits"),
    [
        ("You have 6 guesses.", [(6, "answers")]),
        ("You have three turns left.", [(3, "answers")]),
        ("Limits: 5 moves in all, 3 per answer, 4 answers.", [(5, "moves"), (4, "answers")]),
        ("One action an answer, 50 answers.", [(50, "answers")]),
        ("Up to 2 moves per answer.", []),
        ("The 3 answers of your friends were wrong.", []),
        ("Guess a number from 1 to 20.", []),
    ],
)
def test_which_limits_a_prompt_states(prompt, limits):
    assert list(stated_limits(prompt)) == limits


# ------------------------------------------------------------------------------------------------ doors


@pytest.mark.full
def test_the_door_takes_names_values_and_configs_and_shows_itself():
    named = wb.check_env("tests.extensions.inspect_worlds.mistakes:SuccessNever", budget_s=0.3)
    assert (
        not named.ok and {check for check, _ in named.errors} == {"E10"} and "fix: " in named.text
    )
    assert (
        "<table" in named._repr_mimebundle_()["text/html"] and "every answer at once" in named.text
    )
    bare = wb.check_env(mistakes.AnyNumbers(), budget_s=0.1)
    assert bare.ok and bare.findings["E8"].status == "not checked"
    assert bare.text.count("none known") >= 2 and bare.as_dict()["baselines"] == {
        "random": "none known",
        "solver": "none known",
    }
    with pytest.raises(ConfigError, match="did you mean 'bandit-code'"):
        wb.check_env("bandit-cod")
    with pytest.raises(ConfigError, match="dataclasses.replace"):
        wb.check_env(mistakes.Numbers(), {"env.max_turns": 2})


@pytest.mark.full
def test_prompts_are_measured_by_the_policy_that_is_named():
    config = wb.load_config("tests.extensions.inspect_worlds.mistakes:Numbers")
    tight = dataclasses.replace(config, collect=dataclasses.replace(config.collect, max_context=30))
    assert wb.check_env(config, budget_s=0.1).findings["E8"].status == "passed"
    found = wb.check_env(tight, budget_s=0.1).findings["E8"]
    assert found.errors and "the context is 30" in found.errors[0].what


@pytest.mark.full
def test_the_command_exits_1_on_an_error_and_0_on_notes(capsys, tmp_path):
    short = ["--seconds", "0.1", "--tasks", "9"]
    assert cli.main(["check-env", "tests.extensions.inspect_worlds.mistakes:WrongSum", *short]) == 1
    assert "E11  FOUND" in capsys.readouterr().out
    assert (
        cli.main(
            ["check-env", "tests.extensions.inspect_worlds.mistakes:PaysTwice", "--json", *short]
        )
        == 0
    )
    said = json.loads(capsys.readouterr().out)
    assert said["counts"]["errors"] == 0 and said["counts"]["notes"] == 1
    assert {"random", "solver"} <= {each["policy"] for each in said["earned"]} and said["cost"][
        "step_s"
    ] > 0
    assert not (tmp_path / "seen.html").exists()
    assert (
        cli.main(
            [
                "check-env",
                "countdown",
                "--set",
                "env.max_turns=2",
                "--html",
                str(tmp_path / "seen.html"),
                *short,
            ]
        )
        == 0
    )
    assert "Countdown" in (tmp_path / "seen.html").read_text()
    assert cli.main(["check-env", "no_such_env", *short]) == 2


@pytest.mark.full
def test_the_cost_of_a_step_is_measured():
    cost = check_family(mistakes.Numbers(), budget_s=0.3, only=("E16",)).cost
    assert 0 < cost.step_s <= cost.longest_s < 1 and 0 < cost.peak_bytes < 10_000_000


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"env": None}, "got None .NoneType., which has no name and no task and no make"),
        ({"env": 5}, "its name or a config; got 5"),
        ({"env": mistakes.Numbers}, "got its class: make one of it, Numbers"),
        ({"env": Nim}, "got its class"),
        ({"env": mistakes.Numbers().make()}, "which has no name"),
        ({"env": mistakes.Numbers(), "tasks": 0}, "tasks is 0: expected how many"),
        ({"env": "bandit", "tasks": -1}, "tasks is -1"),
    ],
)
def test_what_is_no_environment_is_refused_in_words(wrong, words):
    with pytest.raises(ConfigError, match=words):
        wb.check_env(**wrong)
