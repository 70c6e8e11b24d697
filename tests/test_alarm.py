"""train.on_alarm: said once for each kind, stops a run only where it was asked to, and changes no number of it."""

from __future__ import annotations

import pytest

import workbench as wb
from workbench.extensions.collapse.alarm import Alarms
from workbench.extensions.collapse.alarms import PAIRS, THRESHOLDS, alarms_of
from workbench.extensions.collapse.probes import ProbeRecord
from workbench.extensions.collapse.signals import SIGNALS
from workbench.extensions.collapse.step_signals import StepSignals
from workbench.learn.learner import go_back
from workbench.training import checkpoint
from workbench.training.resume import resume_here
from workbench.training.train import train_here
from workbench.values.errors import ConfigError, LearnerError

TINY = {
    "train.steps": 3,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "lint.mode": "off",
    "evaluation.num_tasks": 2,
    "train.evaluate_every": 0,
    "train.checkpoint_every": 1,
}


def config(how, **more):
    return wb.load_config("bandit", TINY | ({"train.on_alarm": how} if how != "off" else {}) | more)


def ill(monkeypatch, *kinds, step=2):
    """From a step on, the run looks like these kinds; what was looked at comes back."""
    seen = []

    def look(steps):
        seen.append([each.step for each in steps])
        return kinds if steps[-1].step >= step else ()

    monkeypatch.setattr("workbench.extensions.collapse.alarm.alarms_of", look)
    return seen


def alarms(run):
    return [(event["step"], event["named"]) for event in run.events() if event["kind"] == "alarm"]


def test_a_note_is_said_once_and_the_run_is_the_same_to_the_last_bit(monkeypatch, tmp_path):
    seen, said = ill(monkeypatch, "echo"), []
    noted = train_here(config("note"), tmp_path / "noted", on_note=said.append)
    assert alarms(noted) == [(2, "echo")] and seen == [[1], [1, 2], [1, 2, 3]]
    assert [
        words for words in said if "looks like a collapse (echo)" in words and "wb.signals" in words
    ] == said[-1:]
    seen.clear()
    quiet = train_here(config("off"), tmp_path / "quiet", on_note=said.append)
    assert seen == [] and alarms(quiet) == [], "nobody asked"
    assert (quiet.path / "metrics.jsonl").read_bytes() == (
        noted.path / "metrics.jsonl"
    ).read_bytes()


def test_a_stop_keeps_the_step_and_the_same_kind_stops_nothing_again(monkeypatch, tmp_path):
    seen = ill(monkeypatch, "retreat")
    with pytest.raises(
        LearnerError, match=r"stopped after step 2 by train.on_alarm = 'stop'.*\(retreat\)"
    ):
        train_here(config("stop"), tmp_path / "run", on_note=None)
    run = wb.open_run(tmp_path / "run")
    assert run.steps() == [1, 2] and alarms(run) == [(2, "retreat")]
    resume_here(tmp_path / "run", on_note=None)
    assert run.steps() == [1, 2, 3] and alarms(run) == [(2, "retreat")] and seen[-1] == [1, 2, 3]


def test_an_alarm_is_of_one_process_and_a_word_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="one process looks at the signals"):
        config("note", **{"learner.num_processes": 2})
    with pytest.raises(ConfigError, match="on_alarm"):
        config("rescue")
    with pytest.raises(ConfigError, match="train.on_alarm = 'restore' with train.staleness = 1"):
        config("restore", **{"train.staleness": 1, "algorithm.sampler_cap": 2.0})


class Killed(Exception):
    """Stands for a kill: nothing after it is run."""


def digests(run):
    """Every byte of what a run holds about its steps, by file."""
    return {
        str(path.relative_to(run.path)): path.read_bytes()
        for path in sorted(run.path.rglob("*"))
        if path.is_file()
        and path.name
        in ("metrics.jsonl", "trajectories.parquet", "credit.parquet", "model.safetensors")
    }


ACTS = {
    "train.steps": 5,
    "train.evaluate_every": 1,
    "lint.mode": "assert",
    "lint.start": False,
    "learner.warmup_updates": 40,
}


@pytest.mark.parametrize("how", ["slow", "restore"])
def test_what_an_alarm_does_is_the_same_wherever_the_run_was_killed(monkeypatch, tmp_path, how):
    ill(monkeypatch, "echo", step=3)
    whole = train_here(config(how, **ACTS), tmp_path / "whole", on_note=None)
    event = next(event for event in whole.events() if event["kind"] == "alarm")
    assert event["slower"] and (event["restored"] is None) == (how == "slow")
    rates = [whole.metrics_line(step)["lr"] for step in whole.steps()]
    assert rates[3] < rates[2] < 4 * rates[1], "a tenth from the step after the alarm on"
    assert wb.lint(whole).ok, "versions and rates are told from the events"
    quiet = train_here(config("off", **ACTS), tmp_path / "quiet", on_note=None)
    assert digests(quiet) != digests(whole)
    real = Alarms.look

    for when in ("before the alarm is written", "after it"):

        def killed(self, step, *rest, when=when):
            if step == 3 and when == "after it":
                real(self, step, *rest)
            if step == 3:
                raise Killed
            real(self, step, *rest)

        path = tmp_path / when.replace(" ", "-")
        with monkeypatch.context() as patch, pytest.raises(Killed):
            patch.setattr(Alarms, "look", killed)
            train_here(config(how, **ACTS), path, on_note=None)
        again = resume_here(path, on_note=None)
        assert digests(again) == digests(whole), when
    with monkeypatch.context() as patch:  # the control: whoever does not act comes to another end
        patch.setattr(Alarms, "act", lambda self, step, learner: None)
        other = train_here(config(how, **ACTS), tmp_path / "other", on_note=None)
    assert digests(other) != digests(whole)
    assert not wb.lint(other).ok, "and the lint says so"


def test_going_back_takes_the_best_kept_checkpoint_and_keeps_it(monkeypatch, tmp_path):
    """Weights, moments and the step counter of AdamW are those of then; the version is a new one."""
    ill(monkeypatch, "retreat", step=4)
    monkeypatch.setattr(
        "workbench.extensions.collapse.alarm.probes_of",
        lambda reports: [
            ProbeRecord(step, mode, success, 0.0, 0.0, 0.0)
            for step, success in ((1, 0.2), (3, 0.5), (4, 0.1))
            for mode in ("sampled", "greedy")
        ],
    )
    seen = []

    def back(learner, tensors, state):
        before = learner.version
        go_back(learner, tensors, state)
        seen.append((before, learner.version, learner.state()[0]["model"], tensors["model"]))

    monkeypatch.setattr("workbench.extensions.collapse.alarm.go_back", back)
    run = train_here(config("restore", **ACTS | {"train.steps": 8}), tmp_path / "run", on_note=None)
    [(before, after, now, then)] = seen
    assert after == before + 1 and all((now[name] == then[name]).all() for name in then)
    assert next(event for event in run.events() if event["kind"] == "alarm")["restored"] == 3
    assert 3 in checkpoint.steps(run.path), "two are kept, and this one for whoever resumes"
    versions = [line["policy_version"] for line in map(run.metrics_line, run.steps())]
    assert versions == sorted(set(versions)), "no number names two weights"


def steps_of(**series):
    """Twelve steps of a healthy run, but for these signals from the seventh on."""
    usual = dict.fromkeys(SIGNALS, 1.0)
    return [
        StepSignals(step, **usual | {name: value for name, value in series.items() if step > 6})
        for step in range(1, 13)
    ]


@pytest.mark.parametrize(
    "kind, series",
    [
        ("retreat", {"turns": 0.2, "success": 0.0}),
        ("risk-aversion", {"entropy": 0.05, "success": 0.05}),
    ],
)
def test_each_kind_is_named_by_its_two_signs_and_by_no_single_one(kind, series):
    assert kind in alarms_of(steps_of(**series))
    for name, value in series.items():
        assert kind not in alarms_of(steps_of(**{name: value}))
    assert alarms_of(steps_of()) == () == alarms_of(steps_of()[:1]) == alarms_of([])
    assert set(THRESHOLDS) <= set(PAIRS)
