"""StarPO-S through the whole loop on a shipped policy: replayable, with the filter's figures, and ended by it."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from workbench.learn.algorithms import StarPO
from workbench.learn.replay import replay_step
from workbench.look.cells.train import resume_here, train_here
from workbench.look.run_diff import compare_runs
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.values.errors import LearnerError

SETTINGS = {
    "train.steps": 2,
    "train.tasks_per_step": 4,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "lint.start": False,
    "train.checkpoint_every": 1,
    "evaluation.num_tasks": 2,
    "algorithm.kind": "starpo_s",
    "algorithm.minibatch_size": 4,
}


def small(**settings):
    return load_config(
        "frozenlake", SETTINGS | {key.replace("__", "."): value for key, value in settings.items()}
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A quarter of 4 x 4 trajectories: one update of 4 a step instead of four."""
    return train_here(small(), tmp_path_factory.mktemp("runs") / "whole")


def test_the_metrics_line_says_what_the_filter_did(whole):
    metrics = whole.metrics()
    assert list(metrics["updates"]) == [1, 1] and list(
        metrics["credit_updates_removed_by_filter"]
    ) == [3.0, 3.0]
    assert list(metrics["credit_filter_groups_kept"]) == [1.0, 1.0] and list(
        metrics["ratio_max"]
    ) == [1.0, 1.0]
    assert (metrics["credit_filter_std_kept"] >= metrics["credit_filter_std_all"]).all()
    assert (metrics["trained_tokens"] > 0).all() and "explained_variance" in metrics.columns


def test_only_the_chosen_groups_were_trained_and_every_step_replays_from_the_algorithm_alone(whole):
    for step in whole.steps():
        table, groups = whole.credit(step), whole.groups(step)
        trained = set(np.unique(table["trajectory"][table["used"]]))
        std = [np.std([t.reward for t in group], ddof=1) for group in groups]
        first = 4 * int(np.argmax(np.round(std, 9)))
        assert trained <= set(range(first, first + 4)) and trained
        report = replay_step(whole, step, small().algorithm)
        assert report.equal, report.text
        assert not replay_step(
            whole, step, StarPO(reference={"kl_coef": 0.0}, objective={"clip_high": 0.28})
        ).equal  # negative control


@pytest.mark.full
def test_normalised_rewards_leave_the_stored_trajectories_as_they_are(whole, tmp_path):
    """The first step of a run that normalises: the same trajectories, stored with the same bytes; another credit."""
    other = train_here(
        small(
            algorithm__rewards__normalize="mean_std",
            algorithm__rewards__over="batch",
            train__steps=1,
        ),
        tmp_path / "normalised",
    )
    stored = [
        hashlib.sha256(
            next(run.path.glob("steps/step-00000001/trajectories*")).read_bytes()
        ).hexdigest()
        for run in (whole, other)
    ]
    assert stored[0] == stored[1]
    assert not np.array_equal(
        whole.credit(1)["advantage"], other.credit(1)["advantage"], equal_nan=True
    )
    assert np.array_equal(
        whole.credit(1)["used"], other.credit(1)["used"]
    )  # the filter chose by the raw rewards


def test_equal_updates_makes_as_many_as_there_would_be(tmp_path):
    run = train_here(
        small(algorithm__filter__equal_updates=True, train__steps=1), tmp_path / "equal"
    )
    assert list(run.metrics()["updates"]) == [4] and list(
        run.metrics()["credit_updates_removed_by_filter"]
    ) == [0.0]
    assert (
        float(run.metrics()["ratio_max"].iloc[0]) != 1.0
    )  # later updates stand elsewhere: now a clip can bind


EMPTY = {
    "collect__max_turn_tokens": 2,
    "env__max_turns": 2,
    "algorithm__filter__zero_variance": "drop",
    "train__max_empty_steps": 2,
    "train__steps": 4,
}


def test_a_filter_that_keeps_nothing_skips_steps_and_ends_the_run_by_name(tmp_path):
    """Two tokens a turn: no answer is readable, so that all rewards of a group are the same."""
    with pytest.raises(LearnerError) as ended:
        train_here(small(**EMPTY), tmp_path / "empty")
    words = str(ended.value)
    assert "2 steps in a row taught nothing" in words
    assert (
        "the filter (top_share, share 0.25, zero-variance groups dropped) left out every trajectory"
        in words
    )
    stored = open_run(tmp_path / "empty")
    assert stored.steps() == [1, 2] and list(stored.metrics()["updates"]) == [0, 0]
    assert list(stored.metrics()["empty_updates"]) == [1, 2] and list(
        stored.metrics()["policy_version"]
    ) == [0, 0]
    assert list(stored.metrics()["credit_filter_kept"]) == [0.0, 0.0]
    assert list(stored.metrics()["credit_updates_removed_by_filter"]) == [4.0, 4.0]
    with pytest.raises(LearnerError, match="2 steps in a row taught nothing.*the filter"):
        resume_here(
            tmp_path / "empty", on_note=None
        )  # it ends for the same reason again, without a new step
    assert open_run(tmp_path / "empty").steps() == [1, 2]


def test_a_run_that_ends_without_a_filter_does_not_blame_one(tmp_path):
    plain = {key: value for key, value in SETTINGS.items() if "algorithm" not in key}
    config = load_config(
        "frozenlake",
        plain | {"collect.max_turn_tokens": 2, "env.max_turns": 2, "train.max_empty_steps": 1},
    )
    with pytest.raises(LearnerError) as ended:
        train_here(config, tmp_path / "flat")
    assert "taught nothing" in str(ended.value) and "filter" not in str(ended.value)


@pytest.mark.full
def test_an_interrupted_run_goes_on_to_the_same_bytes(whole, tmp_path):
    def stop(outcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_here(small(), tmp_path / "run", on_step=stop)
    resume_here(tmp_path / "run", on_note=None)
    assert compare_runs(whole, open_run(tmp_path / "run"), exact=True).equal
