"""A run as data frames: every value is the one of the stored objects, and a changed one is not."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pandas
import pytest

from tests.store_values import ordinary_step
from workbench.run.recording import create_run
from workbench.run.store import Run, open_run

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"
RUNS = ("small-frozenlake", "small-ppo", "window", "search")
ADDRESS = ["step", "task", "attempt"]


def members(run: Run):
    """(address, trajectory) of every trajectory of a run, in order."""
    for step in run.steps():
        for task, group in enumerate(run.groups(step)):
            for attempt, trajectory in enumerate(group):
                yield (step, task, attempt), trajectory


def trajectories_by_hand(run: Run) -> pandas.DataFrame:
    rows = []
    for address, t in members(run):
        row = dict(zip(ADDRESS, address))
        row |= {"task_id": t.task.id, "task_env": t.task.env, "task_seed": t.task.task_seed}
        row |= {"dynamics_seed": t.dynamics_seed, "stop_reason": t.stop_reason.value}
        row |= {"scored": t.scored, "error": t.error, "outcome": t.outcome, "success": t.success}
        row |= {"reward": t.reward, "turns": len(t.turns), "segments": len(t.segments)}
        rows.append(row | {"tokens": sum(map(len, t.segments)), "sampled": t.num_sampled})
    return pandas.DataFrame(rows)


def turns_by_hand(run: Run) -> pandas.DataFrame:
    rows = []
    for address, trajectory in members(run):
        for turn in trajectory.turns:
            row = dict(zip(ADDRESS, address))
            row |= {"turn": turn.index, "text": turn.text, "finish": turn.finish}
            rows.append(row | {"reward": turn.reward, "state_key": turn.state_key})
    return pandas.DataFrame(rows)


def tokens_by_hand(run: Run) -> pandas.DataFrame:
    rows = []
    for address, trajectory in members(run):
        token = 0
        for number, segment in enumerate(trajectory.segments):
            for span in segment.spans:
                for place, token_id in enumerate(span.token_ids.tolist()):
                    row = dict(zip(ADDRESS, address))
                    row |= {"token": token, "segment": number, "turn": span.turn}
                    row |= {"token_id": token_id, "author": span.source.name.lower()}
                    logprob = float(span.logprobs[place]) if span.sampled else np.nan
                    row |= {"sampled": span.sampled, "logprob": logprob}
                    rows.append(row | {"version": span.policy_version})
                    token += 1
    return pandas.DataFrame(rows)


def assert_same(frame: pandas.DataFrame, by_hand: pandas.DataFrame) -> None:
    pandas.testing.assert_frame_equal(
        frame[list(by_hand)], by_hand, check_dtype=False, check_exact=True
    )


@pytest.fixture(scope="module", params=RUNS)
def run(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("frames") / request.param
    shutil.copytree(OLD / request.param, folder)
    return open_run(folder)


def test_trajectories_are_the_stored_ones(run):
    frame = run.trajectories()
    assert_same(frame, trajectories_by_hand(run))
    assert frame.groupby("step").size().to_dict() == {
        step: sum(map(len, run.groups(step))) for step in run.steps()
    }


def test_turns_are_the_stored_ones(run):
    assert_same(run.turns(), turns_by_hand(run))


def test_tokens_are_the_stored_ones_with_the_credit_of_the_first_update(run):
    frame = run.tokens()
    assert_same(frame, tokens_by_hand(run))
    for step in run.steps():
        table = run.credit(step, 0)
        own = frame[frame["step"] == step]
        for name in ("advantage", "weight"):
            assert np.array_equal(own[name].to_numpy(), table[name], equal_nan=True)
        assert np.array_equal(own["token_id"].to_numpy(), table["token_id"])


def test_a_frame_of_other_values_is_not_the_same(run):
    """The comparison above can fail."""
    for frame, column in ((run.trajectories(), "tokens"), (run.turns(), "turn")):
        changed = frame.copy()
        changed.loc[len(changed) - 1, column] += 1
        with pytest.raises(AssertionError):
            assert_same(changed, frame)


def test_only_the_steps_that_are_asked_for(run):
    last = run.steps()[-1]
    frame = run.trajectories([last])
    assert set(frame["step"]) == {last} and len(run.turns([])) == 0
    whole = run.trajectories()
    assert_same(frame, whole[whole["step"] == last].reset_index(drop=True))


def test_unscored_trajectories_and_half_characters_are_kept_as_they_are(tmp_path):
    """Every kind of value that a store holds: trajectories ended by a fault, texts that are no UTF-8, steps without an update."""
    with create_run(tmp_path / "run", {"policy": {"name": "none"}}) as writer:
        for step in (1, 2):
            writer.write_step(step, ordinary_step(step))
            writer.commit_step(step, {"reward_mean": 0.5})
    run = open_run(tmp_path / "run")
    assert_same(run.trajectories(), trajectories_by_hand(run))
    assert_same(run.turns(), turns_by_hand(run))
    assert_same(run.tokens(), tokens_by_hand(run))
    assert "advantage" not in run.tokens()
