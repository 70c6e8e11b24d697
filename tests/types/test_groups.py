"""Several groups as one value: a tuple wherever a list did, and a table."""

from __future__ import annotations

import pickle

import numpy as np
import pandas
import pytest

import workbench as wb
from tests.exported.trajectories import groups_of_step, stored_run
from tests.store_values import ordinary_step
from workbench.run.equality import groups_equal
from workbench.values import Groups, trajectories_of


def test_a_row_per_trajectory_and_what_is_not_known_is_missing():
    groups = Groups(groups_of_step(1))
    frame = groups.to_frame()
    trajectories = trajectories_of(groups)
    assert len(frame) == len(trajectories) == 6
    assert frame["task_id"].tolist() == [t.task.id for t in trajectories] and frame[
        "group"
    ].tolist() == [0, 0, 0, 0, 1, 1]
    for row, t in zip(frame.itertuples(), trajectories):
        assert (row.reward == t.reward) if t.reward is not None else np.isnan(row.reward), (
            "unscored is missing, not 0"
        )
        assert (
            row.scored == (t.reward is not None)
            and row.sampled_tokens == t.num_sampled
            and row.turns == len(t.turns)
        )
    assert (
        frame["success"].tolist() == [True, False, pandas.NA, pandas.NA, True, True]
        and frame["success"].dtype == "boolean"
    )
    assert (
        frame["stop_reason"].tolist()[2] == "env_error"
        and frame["error"].tolist()[2] == "Boom: it broke"
    )
    assert frame["surprise"].tolist()[0] == pytest.approx((0.5 + 0.25 + 0.125) / 3)
    assert frame["surprise"].tolist()[5] == pytest.approx((0.5 + 0.25 + 0.125 + 1 + 2) / 5), (
        "over all sequences"
    )
    assert frame["reward/process"].tolist()[2] == 0.0 and np.isnan(
        frame["reward/process"].tolist()[0]
    )
    assert frame["task/row"].tolist() == [7] * 6, "the row of a data set"
    assert frame["info/valid_format"].tolist()[0] is True and "info/documents" not in frame, (
        "scalars only"
    )


def test_parts_are_summed_over_turns_and_outcome():
    frame = Groups(ordinary_step(0, num_turns=3)).to_frame()
    assert (
        frame["reward/move"].tolist() == [pytest.approx(-0.3)] * 4
        and frame["reward/goal"].tolist() == [1.0] * 4
    )


def test_it_is_taken_wherever_a_list_is(tmp_path):
    plain = ordinary_step(0)
    groups = Groups(plain)
    assert groups == plain and plain == groups and groups != plain[:1]
    assert (
        isinstance(groups[:1], Groups)
        and groups[:1][0] is plain[0]
        and isinstance(groups + plain, Groups)
    )
    assert isinstance(plain + groups, Groups) and len(groups + plain) == 2 * len(plain)
    assert groups_equal(pickle.loads(pickle.dumps(groups)), groups) and isinstance(
        pickle.loads(pickle.dumps(groups)), Groups
    )
    with pytest.raises(TypeError):
        groups[0] = plain[1]
    wb.show_masks(groups), wb.show_counts(groups)
    assert Groups([]).to_frame().empty


def test_a_stored_step_and_its_representation(tmp_path):
    groups = stored_run(tmp_path / "run", steps=1).groups(1)
    assert isinstance(groups, Groups) and len(groups.to_frame()) == 6
    assert (
        repr(groups)
        == "<2 groups, 6 trajectories, mean reward 0.688; tasks 'q1', 'alike'; .to_frame() makes a table>"
    )
    many = Groups([group for step in range(50) for group in ordinary_step(step)])
    assert len(repr(many)) < 2000 and repr(many).count("lake-") == 5


def test_a_rollout_returns_it():
    session = wb.open_session(wb.load_config("bandit"), quiet=True)
    groups = wb.rollout(session, 2, group_size=2)
    frame = groups.to_frame()
    assert isinstance(groups, Groups) and len(frame) == 4 and frame["surprise"].notna().all()
    for row, t in zip(frame.itertuples(), trajectories_of(groups)):
        logprobs = np.concatenate([s.logprobs[s.eligible] for s in t.segments])
        assert (
            row.surprise == pytest.approx(-logprobs.mean(dtype=np.float64))
            and row.reward == t.reward
        )
