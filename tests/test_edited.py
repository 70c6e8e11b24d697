"""The credit editor of the navigator: its numbers are those of training, and its line of code shows the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.batch import Batch
from workbench.look.cells.credit import credited, facts_of, step_facts, with_facts, with_rewards
from workbench.look.cells.edited import EditedStep
from workbench.look.cells.edits import Edit
from workbench.look.cells.explored import Answers
from workbench.values import Group, trajectories_of
from workbench.values.errors import DataError

OLD = Path(__file__).resolve().parent / "golden_runs" / "old"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edited")
    for name in ("small-ppo", "window"):
        shutil.copytree(OLD / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def steps(runs):
    return {
        name: EditedStep(run := wb.open_run(runs / name), 1, run.groups(1))
        for name in ("small-ppo", "window")
    }


@pytest.mark.parametrize("name", ["small-ppo", "window"])
def test_without_an_edit_it_is_what_training_used_bit_for_bit(steps, name):
    edited, table = steps[name], wb.open_run(steps[name].run.path).credit(1, 0)
    content, arrays = edited.after("{}", 3)
    at = table["trajectory"] == 3
    trained = np.where(table["weight"] != 0, table["advantage"], np.nan)
    assert np.array_equal(arrays["before"], trained[at], equal_nan=True) and np.array_equal(
        arrays["after 0"], arrays["before"], equal_nan=True
    )
    assert content["columns"][0] == {
        "name": edited.own,
        "trained": content["trained"],
        "changed": 0,
        "by": 0.0,
    }
    means = [
        float(np.mean(trained[(table["trajectory"] == n) & (table["weight"] != 0)]))
        for n in range(len(content["rows"]))
    ]
    assert [row["before"] for row in content["rows"]] == pytest.approx(means, rel=1e-12)
    assert [(row["task"], row["attempt"], row["reward"]) for row in content["rows"]] == [
        (task, attempt, t.reward)
        for task, group in enumerate(edited.groups)
        for attempt, t in enumerate(group)
    ]
    assert content["code"] == f"wb.edit_step({str(edited.run.path)!r}, 1)"


@given(data=st.data())
@settings(max_examples=10, deadline=None)
def test_an_edit_is_the_credit_of_groups_that_earned_otherwise(steps, data):
    """Every column is what its algorithm gives for the edited groups, in every bit."""
    edited = steps["window"]
    number = data.draw(st.integers(0, len(edited.trajectories) - 1))
    rewards = data.draw(
        st.lists(
            st.tuples(
                st.just(number),
                st.integers(0, len(edited.trajectories[number].turns) - 1),
                st.floats(-2, 2, width=32),
            ),
            max_size=2,
            unique_by=lambda each: each[:2],
        )
    )
    dropped = data.draw(
        st.lists(st.integers(0, len(edited.trajectories) - 1), max_size=2, unique=True)
    )
    columns = data.draw(
        st.lists(
            st.sampled_from(["grpo", "rloo", "reinforce", "reinforce_pp", "dr_grpo"]),
            min_size=1,
            max_size=3,
            unique=True,
        )
    )
    given_settings = (
        data.draw(st.sampled_from([{}, {"estimator.gamma": 0.5}]))
        if columns[0].startswith("reinforce") and columns[0] != "dr_grpo"
        else {}
    )
    content, arrays = edited.after(
        json.dumps(
            {"columns": columns, "settings": given_settings, "rewards": rewards, "dropped": dropped}
        ),
        number,
    )
    groups = with_rewards(edited.groups, {(n, turn): value for n, turn, value in rewards}, dropped)
    assert all(
        trajectory.reward is None
        for n, trajectory in enumerate(trajectories_of(groups))
        if n in dropped
    )
    batch = with_facts(
        Batch.from_groups(groups), facts_of(edited.groups, step_facts(edited.run, 1))
    )
    for index, name in enumerate(columns):
        base = edited.bases[name]
        known = {key: value for key, value in given_settings.items() if key in base.settings}
        expected = credited(batch, base(**known) if known else base)
        at = edited.tokens[number]
        weighs = np.where(expected.weight_T[at] != 0, expected.advantage_T[at], np.nan)
        assert np.array_equal(arrays[f"after {index}"], weighs, equal_nan=True)
        assert content["columns"][index]["trained"] == int((expected.weight_T != 0).sum())
    means = [[t.reward for t in group if t.reward is not None] for group in groups]
    assert [row["mean"] for row in content["rows"]] == [
        float(np.mean(means[row["task"]])) if means[row["task"]] else None
        for row in content["rows"]
    ]


def test_its_line_of_code_shows_the_same(steps):
    edited = steps["window"]
    asked = {
        "columns": ["reinforce"],
        "settings": {"estimator.gamma": 0.5},
        "rewards": [[1, 0, 0.5]],
        "dropped": [3],
    }
    content, _ = edited.after(json.dumps(asked), 1)
    picture = eval(content["code"], {"wb": wb})
    editor = wb.edit_step(edited.run, 1, attempt=0)
    assert (
        picture.text
        == editor.view(Edit("reinforce", {"estimator.gamma": 0.5}, {(1, 0): 0.5}, (3,))).text
    )
    assert "attempt 3 excluded" in picture.text and "gamma = 0.5" in picture.text


def test_settings_that_cannot_act_say_why(steps):
    knobs = {knob["name"]: knob for knob in steps["window"].after("{}")[0]["knobs"]}
    assert knobs["estimator.normalize_std"]["inert"] == "" and knobs["masks.gae_over"]["inert"]
    json.dumps(steps["window"].after("{}")[0], allow_nan=False)


def test_a_column_that_cannot_be_computed_says_why_and_the_others_stand(steps):
    content, arrays = steps["window"].after(json.dumps({"columns": ["ppo", "grpo"]}), 0)
    assert (
        "ppo needs value_T" in content["columns"][0]["error"]
        and content["columns"][1]["changed"] == 0
    )
    assert set(arrays) == {"before", "after 1"} and [
        row["after"][0] for row in content["rows"]
    ] == [None] * len(content["rows"])


@pytest.mark.parametrize(
    "asked",
    [
        "{",
        "[]",
        '{"columns": ["nothing"]}',
        '{"rewards": [[1]]}',
        '{"rewards": [["x", 0, 1]]}',
        '{"dropped": 3}',
        '{"settings": 7}',
    ],
)
def test_what_is_no_edit_is_refused(steps, asked):
    with pytest.raises(DataError, match="an edit is JSON|no algorithm 'nothing'; there are grpo"):
        steps["window"].after(asked)
    answer = Answers([steps["window"].run]).of(
        {"ask": "credit", "run": 0, "step": 1, "edit": asked}
    )
    assert set(answer.content) == {"error"}


@pytest.mark.parametrize(
    "asked", [{"dropped": [99]}, {"rewards": [[0, 77, 1.0]]}, {"settings": {"gama": 1}}]
)
def test_an_edit_of_what_is_not_there_says_so_in_every_column(steps, asked):
    content, _ = steps["window"].after(json.dumps({"columns": ["grpo"], **asked}))
    assert any(
        words in content["columns"][0]["error"]
        for words in ("there are 32", "there is no turn 77", "no setting 'gama'")
    )


def test_dropping_is_not_scoring(steps):
    edited = steps["window"]
    trajectories = [
        replace(t, turns=tuple(replace(turn, reward=None, reward_parts={}) for turn in t.turns))
        if n == 3
        else t
        for n, t in enumerate(edited.trajectories)
    ]
    groups = [Group(tuple(trajectories[8 * task : 8 * task + 8])) for task in range(4)]
    content, arrays = edited.after(json.dumps({"columns": ["grpo"], "dropped": [3]}), 2)
    expected = ALGORITHMS["grpo"].credit(Batch.from_groups(groups))
    at = edited.tokens[2]
    assert np.array_equal(np.nan_to_num(arrays["after 0"]), expected.advantage_T.numpy()[at])
    assert (
        content["rows"][3]["dropped"]
        and content["rows"][3]["after"] == [None]
        and content["rows"][3]["reward"] is None
    )
