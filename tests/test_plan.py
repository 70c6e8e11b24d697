"""`workbench doctor --plan`: one step, measured in a process of its own, its verdict, and the peaks of whole runs beside it."""

import json

import pytest

from tests.memory_run import SMALL, larger_model, step_and_run
from workbench import cli
from workbench.extensions.doctor import plan as plans
from workbench.extensions.doctor.plan import MemoryPlan, plan
from workbench.training.config import load_config
from workbench.values.errors import ConfigError

MB = 10**6
PEAKS = {phase: {"host": size * MB} for phase, size in zip(plans.ADVICE, (500, 400, 440, 600))}


def made(limit=1000, sampled=64, reason="", peaks=PEAKS):
    whole = {"sampling": 512, "update": 128}
    return MemoryPlan("tiny", sampled, whole, peaks, {"host": limit * MB}, reason)


def ended(monkeypatch, code):
    """The child is a Python that does this instead."""
    monkeypatch.setattr(plans.sys, "executable", "/bin/sh")
    monkeypatch.setattr(plans.os, "environ", {**plans.os.environ})
    run = plans.subprocess.run
    monkeypatch.setattr(
        plans.subprocess, "run", lambda command, **named: run(["sh", "-c", code], **named)
    )
    return plan(load_config("frozenlake", SMALL))


@pytest.fixture(scope="module")
def measured():
    return plan(load_config("frozenlake", SMALL))


def test_every_phase_of_a_step_is_measured_and_fits(measured):
    assert measured.ok and measured.verdict == "fits" and list(measured.peaks) == list(plans.ADVICE)
    sizes = {phase: peak["host"] for phase, peak in measured.peaks.items()}
    assert all(100 * MB < size < 4000 * MB for size in sizes.values())
    assert sizes["sampling"] >= sizes["open"] and sizes["update"] >= sizes["open"]
    assert measured.sampled == 8 and measured.whole == {"sampling": 8, "update": 8}
    assert "not measured: worker processes" in measured.text


def test_a_step_that_needs_more_than_there_is_does_not_fit(monkeypatch, measured):
    """The negative control: the same step on a machine that has less."""
    less = {"host": measured.peaks["sampling"]["host"] - 1}
    found = plan(load_config("frozenlake", SMALL), limits=less)
    assert not found.ok and found.verdict.startswith("does not fit: ")
    assert any(advice in found.verdict for advice in plans.ADVICE.values())


def test_what_more_trajectories_add_is_a_straight_line_from_the_open_session():
    found = made()
    assert found.need("opening", "host") == 500 * MB and found.need("open", "host") == 400 * MB
    assert found.need("sampling", "host") == (400 + 40 * 512 // 64) * MB
    assert found.need("update", "host") == (400 + 200 * 128 // 64) * MB
    assert made(sampled=1024).need("sampling", "host") == 440 * MB, "never less than was measured"
    assert made(800).ok and not made(799).ok
    assert "lower learner.micro_batch_tokens" in made(799).verdict
    assert "lower engine.cache_tokens" in made(700).verdict


def test_what_did_not_come_to_its_end_is_not_called_fitting():
    reached = {phase: PEAKS[phase] for phase in ("opening", "open", "sampling")}
    found = made(reason="a step took longer than 600 s", peaks=reached)
    assert not found.ok and found.verdict == "not measured: a step took longer than 600 s"
    found = made(reason="torch.OutOfMemoryError: CUDA out of memory", peaks=reached)
    assert found.verdict.startswith("does not fit: update takes more than there is")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("kill -9 $$", "does not fit: opening takes more"),
        ("echo boom >&2; exit 3", "not measured: boom"),
        ("true", "not measured: no trajectory had anything to learn from"),
    ],
)
def test_a_child_that_ends_early_says_why(monkeypatch, code, words):
    assert ended(monkeypatch, code).verdict.startswith(words)


@pytest.mark.parametrize("between", ["\\n", "", "\\n\\n"])
def test_reports_of_two_processes_may_stand_in_one_line(monkeypatch, between):
    """Both write to one pipe, and a line's end may come after the other's line."""
    sizes = (3 * MB, 5 * MB)
    reports = (plans.MARK + json.dumps({"opening": {"host": size}}) for size in sizes)
    found = ended(monkeypatch, f"printf '%b' '{between.join(reports)}'; echo boom >&2; exit 3")
    assert found.peaks == {"opening": {"host": 5 * MB}} and found.verdict == "not measured: boom"


def test_processes_that_cannot_be_started_here_are_not_measured():
    settings = {"learner.num_processes": 2, "policy.device": "cuda"}
    found = plan(load_config("frozenlake", SMALL | settings))
    assert not found.ok and found.verdict.startswith("not measured: 2 processes need a GPU each")


def test_a_policy_that_is_not_on_this_machine_is_refused_with_what_to_do():
    with pytest.raises(ConfigError, match="no shipped policy and not in the local cache"):
        plan(load_config("frozenlake", SMALL | {"policy.name": "nobody/no-such-model"}))


def test_the_terminal_measures_and_refuses_what_does_not_go_together(capsys, monkeypatch):
    settings = [word for name, value in SMALL.items() for word in ("--set", f"{name}={value}")]
    assert cli.main(["doctor", "--plan", "frozenlake", *settings, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] and list(printed["peaks"]) == list(plans.ADVICE)
    monkeypatch.setattr(plans, "_limits", lambda config: {"host": 1})
    assert cli.main(["doctor", "--plan", "frozenlake", *settings]) == 1
    assert "does not fit" in capsys.readouterr().out
    assert cli.main(["doctor", "--set", "train.steps=2"]) == 2
    assert "--set changes the config of --plan" in capsys.readouterr().err
    assert cli.main(["doctor", "--plan", "frozenlake", "--policy", "x"]) == 2
    assert cli.main(["doctor", "--plan", "frozenlak"]) == 2
    assert "did you mean 'frozenlake'" in capsys.readouterr().err


@pytest.mark.full
@pytest.mark.parametrize("preset", ["frozenlake", "frozenlake-ppo"])
def test_a_step_is_within_a_fifth_of_a_run_of_a_preset(preset):
    step, run = step_and_run({"train.steps": 1}, preset)
    assert abs(step / run - 1) <= 0.2


@pytest.mark.full
@pytest.mark.parametrize(
    "settings",
    [{}, {"learner.num_processes": 2, "learner.sharding": "full"}, {"learner.lora_rank": 8}],
    ids=["one process", "sharded", "adapters"],
)
def test_a_step_is_within_a_fifth_of_26_million_parameters(tmp_path, settings):
    step, run = step_and_run(larger_model(tmp_path / "larger") | settings)
    assert abs(step / run - 1) <= 0.2
