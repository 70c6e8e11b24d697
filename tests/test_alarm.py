"""train.on_alarm: said once for each kind, stops a run only where it was asked to, and changes no number of it."""
from __future__ import annotations

import pytest

import workbench as wb
from workbench.rollouts.alarms import PAIRS, THRESHOLDS, alarms_of
from workbench.training.resume import resume_here
from workbench.training.train import train_here
from workbench.types.errors import ConfigError, LearnerError
from workbench.types.monitored import SIGNALS, StepSignals

TINY = {"train.steps": 3, "train.tasks_per_step": 2, "train.group_size": 4, "lint.mode": "off", "evaluation.num_tasks": 2,
        "train.evaluate_every": 0, "train.checkpoint_every": 1}


def config(how, **more):
    return wb.load_config("bandit", TINY | ({"train.on_alarm": how} if how != "off" else {}) | more)


def ill(monkeypatch, *kinds, step=2):
    """From a step on, the run looks like these kinds; what was looked at comes back."""
    seen = []

    def look(steps):
        seen.append([each.step for each in steps])
        return kinds if steps[-1].step >= step else ()

    monkeypatch.setattr("workbench.training.alarm.alarms_of", look)
    return seen


def alarms(run):
    return [(event["step"], event["named"]) for event in run.events() if event["kind"] == "alarm"]


def test_a_note_is_said_once_and_the_run_is_the_same_to_the_last_bit(monkeypatch, tmp_path):
    seen, said = ill(monkeypatch, "echo"), []
    noted = train_here(config("note"), tmp_path / "noted", on_note=said.append)
    assert alarms(noted) == [(2, "echo")] and seen == [[1], [1, 2], [1, 2, 3]]
    assert [words for words in said if "looks like a collapse (echo)" in words and "wb.signals" in words] == said[-1:]
    seen.clear()
    quiet = train_here(config("off"), tmp_path / "quiet", on_note=said.append)
    assert seen == [] and alarms(quiet) == [], "nobody asked"
    assert (quiet.path / "metrics.jsonl").read_bytes() == (noted.path / "metrics.jsonl").read_bytes()


def test_a_stop_keeps_the_step_and_the_same_kind_stops_nothing_again(monkeypatch, tmp_path):
    seen = ill(monkeypatch, "retreat")
    with pytest.raises(LearnerError, match=r"stopped after step 2 by train.on_alarm = 'stop'.*\(retreat\)"):
        train_here(config("stop"), tmp_path / "run", on_note=None)
    run = wb.open_run(tmp_path / "run")
    assert run.steps() == [1, 2] and alarms(run) == [(2, "retreat")]
    resume_here(tmp_path / "run", on_note=None)
    assert run.steps() == [1, 2, 3] and alarms(run) == [(2, "retreat")] and seen[-1] == [1, 2, 3]


def test_an_alarm_is_of_one_process_and_a_word_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="one process looks at the signals"):
        config("note", **{"learner.num_processes": 2})
    with pytest.raises(ConfigError, match="on_alarm"):
        config("restore")


def steps_of(**series):
    """Twelve steps of a healthy run, but for these signals from the seventh on."""
    usual = dict.fromkeys(SIGNALS, 1.0)
    return [StepSignals(step, **usual | {name: value for name, value in series.items() if step > 6}) for step in range(1, 13)]


@pytest.mark.parametrize("kind, series", [("retreat", {"turns": 0.2, "success": 0.0}),
                                          ("risk-aversion", {"entropy": 0.05, "success": 0.05})])
def test_each_kind_is_named_by_its_two_signs_and_by_no_single_one(kind, series):
    assert kind in alarms_of(steps_of(**series))
    for name, value in series.items():
        assert kind not in alarms_of(steps_of(**{name: value}))
    assert alarms_of(steps_of()) == () == alarms_of(steps_of()[:1]) == alarms_of([])
    assert set(THRESHOLDS) <= set(PAIRS)
