"""Sampling while training (train.staleness = 1): which weights sampled what, that nothing is thrown away, that it depends on
neither side's speed, that a killed run goes on bit for bit, and that the lint still names weights which are older than said."""

from __future__ import annotations

import json
import shutil
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from tests.faults.test_resume import Crash, go_back, same
from workbench.engines.transformers_engine import TransformersEngine
from workbench.learn.learner import Learner
from workbench.linting.in_training import TrainingLint
from workbench.look.cells.lint import lint
from workbench.look.cells.train import resume_here, train_here
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.training.session import Session
from workbench.values.errors import ConfigError, LintError

SETTINGS = {
    "train.steps": 6,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "train.evaluate_every": 3,
    "train.checkpoint_every": 2,
    "evaluation.num_tasks": 4,
    "lint.start": False,
    "train.staleness": 1,
    "algorithm.sampler_cap": 2.0,
}


def small(**settings):
    return load_config(
        "bandit", SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
    )


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("workbench-step")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return train_here(small(), tmp_path_factory.mktemp("runs") / "whole")


def versions(run, step):
    return {
        span.policy_version
        for group in run.groups(step)
        for t in group
        for segment in t.segments
        for span in segment.spans
        if span.sampled
    }


def test_a_step_is_sampled_by_the_weights_of_the_step_before_the_last(whole):
    left = {0: 0, -1: 0} | {
        step: whole.metrics_line(step)["policy_version"] for step in whole.steps()
    }
    for step in whole.steps():
        assert versions(whole, step) == {left[max(step - 2, 0)]}
        lag = left[step - 1] - left[max(step - 2, 0)]
        assert whole.metrics_line(step)["staleness"] == lag
    assert left[6] >= 4, "where nothing moved, nothing could be behind"


def test_nothing_is_thrown_away_and_every_trajectory_is_stored_with_its_version(whole):
    assert all([len(group) for group in whole.groups(step)] == [4, 4] for step in whole.steps())
    assert not threads()


def test_tokens_of_older_weights_are_weighed_for_it(whole):
    """exp(trainer's log-probability - the sampler's), at most 2, and not 1 where weights have moved."""
    moved = [step for step in whole.steps() if whole.metrics_line(step)["staleness"]]
    table = whole.credit(moved[-1], 0)
    used = table["used"]
    weights = np.exp(table["old_logp"][used].astype(np.float64) - table["rollout_logp"][used]).clip(
        max=2
    )
    assert whole.metrics_line(moved[-1])["sampler_weight"] == pytest.approx(
        weights.mean(), rel=1e-5
    )
    assert np.abs(weights - 1).max() > 1e-4


def test_the_lint_finds_nothing_in_such_a_run(whole):
    report = lint(whole).report
    assert report.ok, report
    (answer,) = (answer for answer in report.answers if answer.rule == "R23")
    assert any("train.staleness" in words for words in answer.missing)


@pytest.mark.parametrize("slow", ["sampling", "training"])
def test_it_does_not_depend_on_which_side_is_slower(whole, tmp_path, monkeypatch, slow):
    if slow == "sampling":
        poll = TransformersEngine.poll
        monkeypatch.setattr(
            TransformersEngine, "poll", lambda self: (time.sleep(0.002), poll(self))[1]
        )
    else:
        update = Learner.update
        monkeypatch.setattr(
            Learner, "update", lambda *a, **k: (time.sleep(0.3), update(*a, **k))[1]
        )
    run = train_here(small(), tmp_path / "run", on_note=None)
    assert same(whole.path, run.path)
    assert (run.clock()["sampling_s"] > 0).all()


@pytest.mark.parametrize("step", [1, 2, 3, 4, 6])
def test_a_killed_run_goes_on_bit_for_bit(whole, tmp_path, step):
    """Between checkpoints: what is repeated knows which weights sampled the first new step."""
    shutil.copytree(whole.path, tmp_path / "run")
    go_back(tmp_path / "run", step)
    resume_here(tmp_path / "run", on_note=None)
    assert same(whole.path, tmp_path / "run")


@pytest.mark.full
@pytest.mark.parametrize("step", [2, 4])
def test_a_run_killed_right_after_a_checkpoint_goes_on_bit_for_bit(whole, tmp_path, step):
    """The weights that sampled the next step are in the checkpoint."""

    def stop(outcome):
        if outcome.step == step:
            raise Crash

    with pytest.raises(Crash):
        train_here(small(), tmp_path / "run", on_step=stop)
    assert (tmp_path / f"run/checkpoints/step-{step:08d}/sampler.safetensors").exists()
    resume_here(tmp_path / "run", on_note=None)
    assert same(whole.path, tmp_path / "run")


def test_what_nobody_waits_for_is_abandoned(tmp_path, monkeypatch):
    def stop(outcome):
        raise Crash

    poll = TransformersEngine.poll
    monkeypatch.setattr(
        TransformersEngine, "poll", lambda self: (threads() and time.sleep(0.1), poll(self))[1]
    )
    with pytest.raises(Crash):
        train_here(small(), tmp_path / "run", on_step=stop)
    assert not threads(), "its step would have taken seconds more"


@pytest.mark.full
def test_a_run_that_gets_more_steps_is_the_longer_run(whole, tmp_path):
    short = train_here(small(train__steps=4), tmp_path / "run")
    resume_here(short.path, {"train.steps": 6}, on_note=None)
    for step in whole.steps():
        assert all(
            np.array_equal(a.segments[-1].token_ids, b.segments[-1].token_ids)
            for g, h in zip(whole.groups(step), open_run(short.path).groups(step))
            for a, b in zip(g, h)
        )


def test_an_error_while_sampling_ahead_is_raised_by_the_step_that_needs_it(tmp_path, monkeypatch):
    poll = TransformersEngine.poll

    def broken(engine):
        if engine.policy_version >= 1 and threading.current_thread().name == "workbench-step-3":
            raise RuntimeError("the engine is gone")
        return poll(engine)

    monkeypatch.setattr(TransformersEngine, "poll", broken)
    with pytest.raises(RuntimeError, match="the engine is gone"):
        train_here(small(), tmp_path / "run", on_note=None)
    assert open_run(tmp_path / "run").steps() == [1, 2] and not threads()


def test_weights_that_are_older_than_the_setting_says_are_named(tmp_path, monkeypatch):
    """A sync that never happens: in step 3 the trajectories are one step older than they may be."""
    monkeypatch.setattr(Session, "sync", lambda self: None)
    with pytest.raises(LintError, match="R17") as raised:
        train_here(
            replace(small(), evaluation=small().evaluation),
            tmp_path / "run",
            instruments=[TrainingLint()],
            on_note=None,
        )
    assert "sampled by version 0 of the weights, while the oldest that may is version 1" in str(
        raised.value
    )
    report = lint(tmp_path / "run").report
    assert "R17" in json.dumps(report.as_dict()) or not report.ok


def test_older_weights_that_nothing_weighs_for_are_refused():
    with pytest.raises(
        ConfigError,
        match="train.staleness = 1 learns from trajectories of older weights.*algorithm.sampler_cap",
    ):
        small(algorithm__sampler_cap=0.0)
    with pytest.raises(ConfigError, match="train.staleness"):
        small(train__staleness=2)
