"""tune-in: turns counted as the environment counts them, failures by complaint, and what to change."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

import workbench as wb
from workbench.cli import main
from workbench.extensions.tune_in.advice import advice_on
from workbench.extensions.tune_in.sizes import toy_settings
from workbench.extensions.tune_in.trial import AS_IT_IS, TrialRow, TuneIn, counted, tune_in
from workbench.training.config import load_config
from workbench.training.session import notes_of, open_session
from workbench.values import (
    Group,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)
from workbench.values.errors import ConfigError


def a_turn(number: int, text: str, *, finish: str = "stop", **info) -> Turn:
    return Turn(number, text, finish, reward=0.0, info=info)


def a_trajectory(
    attempt: int, turns, *, lengths, reward=0.0, stop=StopReason.MAX_TURNS, success=False
):
    spans = []
    for number, length in enumerate(lengths):
        spans.append(Span(Source.PROMPT, number, np.arange(5, dtype=np.int32)))
        logprobs = np.zeros(length, np.float32)
        ids = np.arange(length, dtype=np.int32)
        spans.append(
            Span(
                Source.POLICY,
                number,
                ids,
                logprobs,
                policy_version=0,
                sampling=Sampling(),
                sampled=True,
            )
        )
    turns = [*turns[:-1], Turn(**{**vars(turns[-1]), "reward": reward})]
    return Trajectory(
        Task("t", "fake", 0),
        attempt,
        attempt,
        Observation(()),
        tuple(turns),
        (Segment(tuple(spans)),),
        stop,
        success=success,
    )


def test_turns_are_counted_by_how_they_were_read():
    turns = [
        a_turn(0, "<answer>A</answer>", valid_format=True, complaint=""),
        a_turn(1, "I say A", valid_format=True, complaint="", forgiven=["no answer tags"]),
        a_turn(
            2,
            "hm hm",
            finish="length",
            valid_format=False,
            complaint="The tag <answer> is missing.",
        ),
        a_turn(3, "A and B", valid_format=False, complaint="x", doubt="two different answers"),
    ]
    one = a_trajectory(0, turns, lengths=[3, 4, 9, 2])
    other = a_trajectory(
        1, turns[:1], lengths=[3], reward=1.0, stop=StopReason.TERMINATED, success=True
    )
    row = counted([Group((one, other))], max_turns=10)
    assert (row.turns, row.strict, row.valid, row.cut) == (5, 2, 3, 1)
    assert row.forgiven == {"no answer tags": 1}
    assert {failure.complaint: failure.example for failure in row.failures} == {
        "The tag <answer> is missing.": "hm hm",
        "two different answers": "A and B",
    }
    assert (row.longest, row.tokens, row.prompt) == (9, 21 / 5, 5)
    assert row.success == 1.0, "a trajectory that this trial cut says nothing of success"
    assert (
        counted([Group((one, other))], max_turns=4).success == 0.5
    )  # the control: the environment's own limit
    assert row.flat == 0.0 and counted([Group((one,))], max_turns=4).flat == 1.0
    assert row.stops == {"max_turns": 1, "terminated": 1}


@pytest.fixture(scope="module")
def tuned():
    return tune_in(
        "frozenlake-tiny",
        "frozenlake",
        tasks=2,
        attempts=2,
        turns=2,
        trials={"odd": {"interface.format": "lenient"}, "wrong": {"env.size": 1}},
    )


def test_a_policy_that_knows_the_format_needs_no_change(tuned):
    first, odd, wrong = tuned.rows
    assert (first.name, first.settings) == (AS_IT_IS, {})
    assert first.valid >= 0.7 * first.turns and first.turns >= 4
    assert odd.valid >= first.valid
    assert "size" in wrong.refused and wrong.turns == 0
    assert tuned.best is (odd if odd.valid * first.turns > first.valid * odd.turns else first)
    assert {score.policy for score in tuned.baselines} == {"random", "solver"}
    text = tuned.view.text
    assert "frozenlake-tiny in frozenlake" in text and "strictly valid" in text and "solver" in text
    assert "What to change" in tuned.view.html
    assert json.loads(json.dumps(tuned.as_dict()))["rows"][0]["turns"] == first.turns


def test_only_training_tasks_are_played(tuned, monkeypatch):
    config = load_config("frozenlake")
    session = open_session(config, quiet=True)
    seen = []
    monkeypatch.setattr(
        "workbench.extensions.tune_in.trial.collect",
        lambda tasks, **settings: seen.extend(tasks) or [],
    )
    tune_in(session, "frozenlake", tasks=3, trials={})
    assert len(seen) == 3
    assert all(config.env.split_of(task) == "train" for task in seen)


def test_the_command_prints_the_table(capsys, monkeypatch):
    monkeypatch.setattr("workbench.extensions.tune_in.trial.TRIALS", {})
    assert (
        main(
            ["tune-in", "bandit-tiny", "bandit", "--tasks", "2", "--attempts", "1", "--turns", "1"]
        )
        == 0
    )
    out = capsys.readouterr().out
    assert "as it is" in out and "2 of 2" in out
    with pytest.raises(ConfigError, match="at least one task"):
        wb.tune_in("bandit-tiny", "bandit", tasks=0)
    with pytest.raises(
        ConfigError, match="at most 10,000 of each; got 4 tasks, 2 attempts, 10000000"
    ):
        wb.tune_in("bandit-tiny", "bandit", turns=10**12)


# ------------------------------------------------------------------------------------------------ advice


def advised(*rows: TrialRow, **changed) -> str:
    tuned = TuneIn("p", "frozenlake", rows, (), {"tasks": 4, "attempts": 2, "turns": 4, "seed": 0})
    model = SimpleNamespace(parameters=lambda: [np.zeros(3)], device=SimpleNamespace(type="cpu"))
    parameter = SimpleNamespace(numel=lambda: 3)
    model.parameters = lambda: [parameter]
    session = SimpleNamespace(policy=SimpleNamespace(model=model))
    return "\n".join(advice_on(tuned, load_config("frozenlake", changed), session))


def a_row(name: str, valid: int, **more) -> TrialRow:
    facts = {
        "turns": 20,
        "strict": valid,
        "valid": valid,
        "longest": 60,
        "forgiven": {},
        "stops": {},
    }
    return TrialRow(name, more.pop("settings", {}), **{**facts, **more})


def test_advice_takes_the_better_settings_and_only_those():
    better = a_row("full", 15, settings={"interface.prompt": "full"})
    assert "--set interface.prompt=full" in advised(a_row(AS_IT_IS, 2), better)
    assert "--set" not in advised(
        a_row(AS_IT_IS, 15), a_row("full", 15, settings={"interface.prompt": "full"})
    )


def test_advice_on_turns_that_are_cut_flat_or_unreadable():
    assert "max_turn_tokens=128" in advised(a_row(AS_IT_IS, 15, cut=8, longest=64))
    assert "does not end its turns" in advised(a_row(AS_IT_IS, 15, cut=20, longest=64))
    assert "is enough" in advised(a_row(AS_IT_IS, 15, longest=9))
    assert "warm-start" in advised(a_row(AS_IT_IS, 2))
    assert "teaches nothing" in advised(a_row(AS_IT_IS, 15, flat=0.9))
    assert advised(a_row(AS_IT_IS, 20)) == ""  # the control


# ------------------------------------------------------------------------------------------------ sizes


def test_settings_of_small_policies_are_named_for_a_pretrained_model():
    said = "\n".join(toy_settings(load_config("bandit"), 135_000_000, True))
    for name in (
        "learner.lr = 0.0003",
        "max_turn_tokens = 32",
        "temperature = 1",
        "interface.prompt",
        "num_tasks = 512",
    ):
        assert name in said
    assert toy_settings(load_config("bandit"), 1_000_000, True) == []
    fitting = toy_settings(load_config("bandit-real"), 135_000_000, True)
    assert [sentence for sentence in fitting if "tune-in" not in sentence] == []
    adapters = load_config("bandit-real", {"learner.lora_rank": 16})
    assert any(
        "low for adapters" in sentence for sentence in toy_settings(adapters, 135_000_000, True)
    )
    assert not any(
        "adapters" in s for s in toy_settings(load_config("bandit-real-lora"), 135_000_000, True)
    )


def test_a_world_that_has_one_prompt_is_told_nothing_of_another(tmp_path):
    """It says everything in it, and no preset ends in -real for it; what else is a small policy's is named as ever."""
    file = tmp_path / "guesses.toml"
    file.write_text('[env]\nkind = "higher_lower"\n')
    for source in (file, load_config("tests.envs.guessing:Guessing")):
        said = " ".join(toy_settings(load_config(source), 135_000_000, True))
        assert "interface.prompt" not in said and "-real" not in said
        assert "learner.lr" in said
    # Controls: worlds with a full prompt, of their own or as all with tools have it.
    for source in ("bandit", "search"):
        said = " ".join(toy_settings(load_config(source), 135_000_000, True))
        assert "interface.prompt" in said and "-real" in said


def test_a_session_says_so_when_it_opens():
    parameter = SimpleNamespace(numel=lambda: 135_000_000)
    model = SimpleNamespace(parameters=lambda: [parameter], device=SimpleNamespace(type="cpu"))
    engine = SimpleNamespace(name="transformers")
    policy = SimpleNamespace(model=model)
    assert "learner.lr" in " ".join(notes_of(engine, policy, load_config("bandit")))
    parameter.numel = lambda: 600_000
    assert notes_of(engine, policy, load_config("bandit")) == []
