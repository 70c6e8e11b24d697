"""Branching: the stored turns are played again to the token, what comes after is measured, and what cannot be restored says so."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.extensions.branching.branch import Branch, BranchedTrajectory, value_of
from workbench.extensions.branching.continuations import (
    ReplayedFamily,
    continuations,
    stored_actions,
)
from workbench.look.cells.step_record import StepRecord
from workbench.values import Message, StopReason
from workbench.values.errors import DataError
from workbench.values.stats import Estimate, mean_interval


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = wb.load_config(
        "frozenlake",
        {
            "train.steps": 2,
            "train.tasks_per_step": 2,
            "train.group_size": 4,
            "train.evaluate_every": 0,
            "train.checkpoint_every": 1,
            "evaluation.num_tasks": 2,
            "lint.start": False,
            "seed": 3,
        },
    )
    return wb.open_run(wb.train_here(config, tmp_path_factory.mktemp("branch") / "run").path)


@pytest.fixture(scope="module")
def session(run):
    return wb.open_session(wb.load_config("frozenlake", {"seed": 3}), quiet=True)


@pytest.fixture(scope="module")
def place(run):
    """Address and trajectory of the trajectory with the most turns of the first step."""
    groups = run.groups(1)
    task, number = max(
        ((t, n) for t in range(2) for n in range(4)),
        key=lambda each: len(groups[each[0]][each[1]].turns),
    )
    assert len(groups[task][number].turns) >= 3
    return f"step 1 / task {task} / attempt {number}", groups[task][number]


def collecting(session, **other):
    return {
        "family": session.config.env,
        "engine": session.engine,
        "chat": session.chat,
        "config": session.config.collect,
        "address": (3, "branch", 1, 0),
        **other,
    }


def ids(trajectory):
    return [segment.token_ids.tolist() for segment in trajectory.segments]


# ------------------------------------------------------------------------------------------------ playing again


def test_a_trajectory_played_again_to_its_end_is_the_stored_one(session, place):
    _, trajectory = place
    [again] = continuations(trajectory, len(trajectory.turns), 1, **collecting(session))
    assert (
        ids(again) == ids(trajectory)
        and again.turns == trajectory.turns
        and again.reward == trajectory.reward
    )
    assert (
        again.stop_reason == trajectory.stop_reason
        and again.dynamics_seed != trajectory.dynamics_seed
    ), "the environment had the stored one"


@pytest.mark.parametrize("turn", [0, 1, 2])
def test_continuations_share_the_prefix_to_the_token_and_then_go_their_own_way(
    session, place, turn
):
    _, trajectory = place
    group = continuations(trajectory, turn, 8, **collecting(session))
    prompt = stored_actions(trajectory)[turn][0].tolist()
    for made in group:
        assert made.turns[:turn] == trajectory.turns[:turn]
        assert stored_actions(made)[turn][0].tolist() == prompt, (
            "asked with the very ids that the trajectory was"
        )
        for (_, span), (_, stored) in zip(
            stored_actions(made)[:turn], stored_actions(trajectory)[:turn]
        ):
            assert (
                np.array_equal(span.logprobs, stored.logprobs)
                and span.policy_version == stored.policy_version
            )
    assert (
        len({tuple(made.turns[turn].text for made in group)}) == 1
        and len({made.turns[turn].text for made in group}) > 1
    )


def test_the_same_call_samples_the_same(session, place):
    _, trajectory = place
    assert wb.groups_equal(
        [continuations(trajectory, 1, 4, **collecting(session))],
        [continuations(trajectory, 1, 4, **collecting(session))],
    )
    assert not wb.groups_equal(
        [continuations(trajectory, 1, 4, **collecting(session))],
        [continuations(trajectory, 1, 4, **collecting(session, address=(4, "branch", 1, 0)))],
    )


# ------------------------------------------------------------------------------------------------ what it is worth


@pytest.mark.full
def test_values_are_means_of_what_is_still_earned(run, place):
    at, trajectory = place
    branched = wb.branch(run, at=at, k=6)
    assert [branch.turn for branch in branched.turns] == list(range(len(trajectory.turns)))
    for branch, following in itertools.pairwise(branched.turns):
        rest = [
            made.reward - sum(turn.reward for turn in made.turns[: branch.turn])
            for made in branch.continuations
        ]
        assert branch.value == mean_interval(rest) and branch.after == following.value
        assert branch.advantage.mean == branch.earned + following.value.mean - branch.value.mean
    last = branched.turns[-1]
    assert last.after.mean == (trajectory.outcome or 0.0) == last.after.low == last.after.high
    one = wb.branch(run, at=f"{at} / turn 1", k=6)
    assert [branch.turn for branch in one.turns] == [1] and one.turns[0].value == branched.turns[
        1
    ].value
    assert one.turns[0].advantage == branched.turns[1].advantage
    assert (
        branched.to_frame().shape[0] == len(trajectory.turns)
        and "measured advantage" in wb.show(branched).text
    )


@pytest.mark.full
def test_the_value_of_the_beginning_is_that_of_fresh_trajectories(run, place):
    """Two estimates of one number by two ways: branching before the first turn, and playing the task anew."""
    at, trajectory = place
    session = wb.open_session(wb.load_config("frozenlake", {"seed": 3}), quiet=True)
    branched = wb.branch(run, at=f"{at} / turn 0", k=48, session=session).turns[0].value
    [fresh] = wb.rollout(session, [trajectory.task], group_size=48, purpose="fresh")
    anew = mean_interval([t.reward for t in fresh])
    assert abs(branched.mean - anew.mean) < math.hypot(
        branched.high - branched.mean, anew.high - anew.mean
    )


def test_what_was_credited_is_what_was_stored(run, place):
    at, trajectory = place
    branched, facts = wb.branch(run, at=at, k=2), StepRecord.of(run, 1)
    task, number = (int(part.split()[1]) for part in at.split(" / ")[1:])
    rows = facts.credit(task, number)
    for branch in branched.turns:
        chosen = (rows["turn"] == branch.turn) & (rows["weight"] != 0)
        assert branch.credited["as trained"] == pytest.approx(
            rows["advantage"][chosen].mean(), rel=1e-12
        )
        assert branch.credited["grpo"] == pytest.approx(branch.credited["as trained"], rel=1e-12), (
            "the run's own estimator is grpo"
        )
    assert branched.estimators[:2] == ["as trained", "grpo"] and "rloo" in branched.estimators


def test_credit_against_a_measured_sign_is_marked():
    sure = {"value": Estimate(0.2, 0.1, 0.3, 8), "after": Estimate(1.0, 0.9, 1.1, 8), "earned": 0.0}
    good, bad = (
        Branch(turn, "x", continuations=None, credited={"a": credit}, **sure)
        for turn, credit in ((0, 0.5), (1, -0.5))
    )
    unsure = Branch(
        2, "x", 0.0, Estimate(0.2, -1.0, 1.4, 8), Estimate(0.3, -1.0, 1.6, 8), {"a": -0.5}, None
    )
    assert (
        good.contradicts("a"),
        bad.contradicts("a"),
        unsure.contradicts("a"),
        bad.contradicts("b"),
    ) == (False, True, False, False)
    assert good.advantage.mean == pytest.approx(0.8) and good.advantage.low == pytest.approx(
        0.8 - math.hypot(0.1, 0.1)
    )
    trajectory = BranchedTrajectory("at", None, (good, bad, unsure), "", 8)
    apart = trajectory.disagreement("a")
    assert (
        apart[1] == max(apart)
        and apart[0] < apart[1]
        and all(math.isnan(each) for each in trajectory.disagreement("b"))
    )


def test_an_unscored_continuation_is_left_out():
    class Played:
        def __init__(self, reward):
            self.reward, self.turns = reward, ()

    assert (
        value_of([Played(1.0), Played(None), Played(0.0)], 0) == mean_interval([1.0, 0.0])
        and value_of([Played(None)], 0) is None
    )


# ------------------------------------------------------------------------------------------------ what cannot be restored


class Forgetful(ReplayedFamily):
    """An environment that answers otherwise each time that it is made."""

    made = itertools.count()

    def __init__(self, family, seed, what):
        super().__init__(family, seed)
        self.what = what

    def make(self):
        env, number = super().make(), next(Forgetful.made)
        step = env.step

        def other(action):
            result = step(action)
            if self.what == "reward":
                return replace(result, reward=result.reward + number + 1)
            message = Message(
                "user", result.observation.messages[-1].text + f" It is day {number}."
            )
            return replace(result, observation=replace(result.observation, messages=(message,)))

        env.step = other
        return env


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("reward", "the reward of turn 0 is"),
        ("reply", "the reply of turn 0 is .*It is day \\d+.*, stored is"),
    ],
)
def test_an_environment_that_answers_otherwise_is_refused_with_the_first_difference(
    session, place, what, said
):
    _, trajectory = place
    family = Forgetful(session.config.env, trajectory.dynamics_seed, what)
    with pytest.raises(
        DataError,
        match=f"cannot be restored to turn {len(trajectory.turns)}: .*{said}.*wb.check_env",
    ):
        continuations(trajectory, len(trajectory.turns), 1, **collecting(session, family=family))


def test_what_says_that_it_cannot_be_restored_is_not_asked(run, place, session, monkeypatch):
    at, trajectory = place

    def asked(*_):
        raise AssertionError("nothing may be sampled")

    monkeypatch.setattr(type(session.engine), "submit", asked)
    family = type(session.config.env)
    for name, value, said in (
        ("deterministic", False, "not the same twice"),
        ("remote", True, "keeps its state on a server"),
    ):
        with monkeypatch.context() as only:
            only.setattr(family, name, value, raising=False)
            with pytest.raises(DataError, match=said):
                wb.branch(run, at=at, session=session)
    broken = replace(trajectory, stop_reason=StopReason.ENV_ERROR, error="it broke")
    monkeypatch.setattr("workbench.extensions.branching.branch._trajectory_at", lambda *_: broken)
    with pytest.raises(
        DataError, match=r"ended with env_error \(it broke\): there is nothing to branch from"
    ):
        wb.branch(run, at=at, session=session)


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"at": "step 1"}, "branch from a trajectory or one of its turns"),
        ({"at": "step 1 / task 0 / attempt 0 / token 3"}, "branch from a trajectory"),
        ({"at": "step 1 / task 9 / attempt 0"}, "there is no task 9"),
        ({"at": "step 1 / task 0 / attempt 9"}, "there is no attempt 9"),
        ({"at": "step 1 / task 0 / attempt 0 / turn 99"}, "there is no turn 99"),
        ({"at": "step 1 / task 0 / attempt 0", "k": 1}, "k at least 2"),
        ({"at": "step 1 / task 0 / attempt 0", "weights": "later"}, "'then' or 'now'"),
    ],
)
def test_what_is_asked_wrongly_is_said(run, how, said):
    with pytest.raises(DataError, match=said):
        wb.branch(run, **how)


@pytest.mark.full
def test_the_weights_are_those_that_are_asked_for(run, place, tmp_path):
    import shutil

    at = "step 2 / task 0 / attempt 0"
    assert (
        wb.branch(run, at=at, k=2).weights == "those that step 2 sampled with"
        and wb.branch(run, at=place[0], k=2).weights == "those that the run began with"
    )
    assert wb.branch(run, at=at, k=2, weights="now").weights == "the newest of the run"
    shutil.copytree(run.path, tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/step-00000001")
    again = wb.branch(tmp_path / "run", at=at, k=2)
    assert again.weights == "those that step 2 sampled with", (
        "learned again where they were not kept"
    )
