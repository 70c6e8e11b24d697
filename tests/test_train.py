"""The loop as a whole, on the shipped policy: exact, replayable, durable in the right order, and honest about nothing learned."""

from dataclasses import replace

import pytest
import torch

from workbench.engines.policy import load_policy
from workbench.learn.replay import replay_step
from workbench.look.cells.train import train_here, train_step
from workbench.run.recording import create_run
from workbench.run.store import open_run
from workbench.training.config import load_config
from workbench.training.reopening import reopen
from workbench.training.session import baselines, evaluate, open_session, rollout
from workbench.training.step import over_updates
from workbench.values import Source
from workbench.values.errors import ConfigError, LearnerError
from workbench.worlds import baselines as env_baselines
from workbench.worlds.frozen_lake import FrozenLakeEnv

TINY = {
    "train.steps": 2,
    "train.tasks_per_step": 3,
    "train.group_size": 4,
    "train.evaluate_every": 0,
    "lint.start": False,
    "evaluation.num_tasks": 8,
}


def tiny(**settings):
    return load_config(
        "frozenlake", TINY | {key.replace("__", "."): value for key, value in settings.items()}
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return train_here(tiny(), tmp_path_factory.mktemp("runs") / "a")


@pytest.mark.full
def test_two_runs_are_equal_bit_for_bit_and_another_seed_is_another_run(finished, tmp_path):
    again = train_here(tiny(), tmp_path / "again")
    assert again.digest() == finished.digest()
    other = train_here(tiny(seed=1), tmp_path / "other")
    assert other.digest() != finished.digest()


def test_every_stored_step_replays_bit_for_bit(finished):
    assert finished.steps() == [1, 2]
    for step in finished.steps():
        report = replay_step(finished, step, tiny().algorithm)
        assert report.equal, report.text


def test_a_replay_with_another_algorithm_is_not_equal(finished):
    """Negative control of the test above."""
    assert not replay_step(finished, 1, tiny().algorithm(estimator={"normalize_std": False})).equal


def test_the_last_evaluation_is_that_of_the_stored_weights(finished):
    session = reopen(finished, quiet=True)
    stored = {
        (row["policy"], row["mode"]): row for row in finished.evaluations()["step-00000002"]["rows"]
    }
    for score in evaluate(session, name="trained"):
        assert list(score.by_task) == list(stored["trained", score.mode]["by_task"])
    assert session.engine.policy_version == 2
    assert {policy for policy, _ in stored} == {
        "random",
        "solver",
        "untrained",
        "trained",
    }  # invariant 12


def test_everyone_is_measured_on_the_same_held_out_tasks_and_fates(monkeypatch):
    """Whatever the run's seed: only so are runs, and a policy and its baselines, paired task by task (invariant 12)."""
    session, other = open_session(tiny(), quiet=True), open_session(tiny(seed=1), quiet=True)
    tasks = session.held_out_tasks()
    assert tasks == other.held_out_tasks()
    assert session.train_tasks(1) != other.train_tasks(1) and session.train_tasks(
        1
    ) != session.train_tasks(2)
    fates = []
    play = env_baselines.play
    monkeypatch.setattr(
        env_baselines,
        "play",
        lambda family, task, seed, policy: fates.append(seed) or play(family, task, seed, policy),
    )
    baselines(session)
    played = rollout(
        session, tasks, group_size=1, address=(session.config.evaluation.seed, "evaluation")
    )
    assert fates == 2 * [group[0].dynamics_seed for group in played]


def test_what_the_engine_sampled_from_is_what_the_learner_holds(finished):
    """Weights and versions after sync: the gap between engine and trainer stays at rounding, step after step."""
    metrics = finished.metrics()
    assert (metrics["logp_gap_max"] < 1e-3).all() and list(metrics["policy_version"]) == [1, 2]
    versions = {
        int(span.policy_version)
        for group in finished.groups(2)
        for t in group
        for s in t.segments
        for span in s.spans
        if span.sampled
    }
    assert versions == {1}


def test_a_steps_line_says_what_all_its_updates_did_together():
    rows = [
        {
            "bad_updates": 0,
            "trained_tokens": 24,
            "ratio_max": 1.0,
            "loss": 1.0,
            "logp_gap_max": 0.5,
        },
        {"bad_updates": 1, "trained_tokens": 30, "ratio_max": 1.5, "loss": 3.0},
    ]
    assert over_updates(rows) == {
        "bad_updates": 1,
        "trained_tokens": 54,
        "ratio_max": 1.5,
        "loss": 2.0,
        "logp_gap_max": 0.5,
    }


@pytest.mark.parametrize("history", ["append", "template", "window", "fresh"])
def test_every_history_goes_through_collect_credit_and_learner(history):
    session = open_session(tiny(collect__history=history), quiet=True)
    before = {name: tensor.clone() for name, tensor in session.learner.weights().items()}
    outcome = train_step(session, step=1)
    assert outcome.updates == 1
    assert any(
        not torch.equal(before[name], tensor) for name, tensor in session.learner.weights().items()
    )
    segments = [segment for group in outcome.groups for t in group for segment in t.segments]
    assert (outcome.metrics["segments"] > 1) == (history in ("window", "fresh"))
    assert outcome.metrics["trained_tokens"] == sum(int(s.eligible.sum()) for s in segments)
    shown_again = sum(int(((s.sources == Source.POLICY) & ~s.eligible).sum()) for s in segments)
    assert (shown_again > 0) == (history == "window")


def test_another_run_seed_shuffles_otherwise():
    seeds = {open_session(tiny(seed=seed), quiet=True).learner.config.seed for seed in (0, 1)}
    assert len(seeds) == 2


def test_trajectories_are_durable_before_the_first_update(tmp_path, monkeypatch):
    session = open_session(tiny(), quiet=True)

    def update(*_args, **_kwargs):
        assert (tmp_path / "run" / "steps" / "step-00000001" / "trajectories.parquet").is_file()
        raise KeyboardInterrupt

    monkeypatch.setattr(session.learner, "update", update)
    with create_run(tmp_path / "run", {}) as run, pytest.raises(KeyboardInterrupt):
        train_step(session, 1, run)
    stored = open_run(tmp_path / "run")
    assert stored.steps() == [] and stored.uncommitted() == [
        1
    ]  # there, and not taken for a finished step


def test_an_engine_may_rest_once_trajectories_are_stored_and_before_anything_is_learned(
    tmp_path, monkeypatch
):
    session, seen = open_session(tiny(), quiet=True), []

    def rest():
        stored = (tmp_path / "run" / "steps" / "step-00000001" / "trajectories.parquet").is_file()
        seen.append((stored, session.learner.version, session.engine.policy_version))

    monkeypatch.setattr(session.engine, "rest", rest, raising=False)
    with create_run(tmp_path / "run", {}) as run:
        train_step(session, 1, run)
    assert seen == [(True, 0, 0)] and session.engine.policy_version == session.learner.version == 1


def test_a_run_that_cannot_learn_ends_with_the_reason(tmp_path):
    """Two tokens a turn: no answer is ever readable, all rewards of a group are equal, nothing can be compared."""
    config = tiny(
        collect__max_turn_tokens=2, train__max_empty_steps=2, train__steps=5, env__max_turns=2
    )
    with pytest.raises(
        LearnerError, match="2 steps in a row taught nothing.*100% of the groups have zero variance"
    ):
        train_here(config, tmp_path / "stuck")
    stored = open_run(tmp_path / "stuck")
    assert stored.steps() == [1, 2] and list(stored.metrics()["flat_groups"]) == [1.0, 1.0]


def test_a_run_that_learned_nothing_can_still_be_opened(tmp_path):
    """Its checkpoint holds the weights of version 0, which the engine has already."""
    run = train_here(
        tiny(collect__max_turn_tokens=2, train__steps=1, env__max_turns=2), tmp_path / "flat"
    )
    session = reopen(run, quiet=True)
    assert session.learner.version == session.engine.policy_version == 0
    assert all(
        torch.equal(tensor, session.policy.model.state_dict()[name])
        for name, tensor in session.learner.weights().items()
    )


def test_a_run_in_which_everything_breaks_is_kept_and_names_the_fault(tmp_path, monkeypatch):
    step = FrozenLakeEnv.step

    def broken(env, action_text):
        if (
            "<think></think>" not in action_text
        ):  # random play and the solver think nothing; the policy always does
            raise OSError("no lake today")
        return step(env, action_text)

    monkeypatch.setattr(FrozenLakeEnv, "step", broken)
    with pytest.raises(
        LearnerError, match="12 trajectories unscored; the first fault: OSError: no lake today"
    ):
        train_here(tiny(train__max_empty_steps=1), tmp_path / "broken")
    stored = open_run(tmp_path / "broken")
    assert stored.steps() == [1] and stored.metrics()["stop_env_error"][1] == 1.0
    assert all(
        t.reward is None for group in stored.groups(1) for t in group
    )  # unscored, not zero (invariant 5)
    (score,) = [
        r
        for r in stored.evaluations()["step-00000000"]["rows"]
        if (r["policy"], r["mode"]) == ("untrained", "greedy")
    ]
    assert score["faults"] == 8


def test_a_contradiction_made_in_python_is_refused_too(tmp_path):
    config = tiny()
    with pytest.raises(ConfigError, match="group_size >= 2"):
        train_here(replace(config, train=replace(config.train, group_size=1)), tmp_path / "never")


def test_a_run_remembers_which_weights_it_started_from(finished):
    (event,) = [event for event in finished.events() if event["kind"] == "policy"]
    policy = load_policy("frozenlake-tiny")
    assert event["fingerprint"] == policy.fingerprint and event["files"] == policy.files
