"""A tiny policy that mostly answers without trying: what its calls are worth, what training does with it, and the control."""

from __future__ import annotations

import time

import pytest

from experiments import code_tool
from tests.sandbox.grounds import a_tier_works  # noqa: F401  (a fixture)
from tests.sandbox.test_sandboxes import children_of
from workbench.extensions.sandbox.pool import shared_pool
from workbench.look.cells.lint import lint
from workbench.training.config import load_config
from workbench.training.session import open_session, rollout
from workbench.training.train import train_here
from workbench.values import trajectories_of
from workbench.worlds import split_of, tasks


def tried(one):
    """Whether a trajectory called the tool."""
    return any(turn.info.get("calls") for turn in one.turns)


@pytest.fixture(scope="module", params=code_tool.ARMS)
def run(request, tmp_path_factory):
    short = {"train.steps": 2, "train.tasks_per_step": 4, "evaluation.num_tasks": 8}
    config = load_config(code_tool.PRESET, {**code_tool.ARMS[request.param], **short})
    return train_here(config, tmp_path_factory.mktemp("runs") / "code", on_note=None)


def test_a_short_run_calls_the_tool_now_and_then_and_is_clean(run):
    played = [one for step in run.steps() for one in trajectories_of(run.groups(step))]
    called = [tried(one) for one in played]
    assert 0 < sum(called) < len(called) / 2  # it may, and mostly does not
    said = [
        message.text
        for one in played
        for turn in one.turns
        for message in turn.reply
        if message.role == "tool"
    ]
    assert {"True\n", "False\n"} <= set(said)
    report = lint(run).report
    assert report.counts()["errors"] == 0 and report["R20"].status == "passed", report.text


def test_no_sandbox_is_left_when_training_is_over(run):
    shared_pool().drop_ready()  # those that wait for the next trajectory
    until = time.monotonic() + 10
    while (left := children_of(shared_pool().process_id)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def test_a_call_is_not_paid_and_success_is(run):
    won = {True: set(), False: set()}
    for one in trajectories_of(run.groups(1)):
        if all(turn.info["valid_format"] for turn in one.turns):
            won[bool(one.success)].add(one.reward)
    assert won == {True: {1.0}, False: {0.0}}


def played(arm, count=24, attempts=8):
    """What the shipped policy does on held-out tasks: for each trajectory, did it call, and was it right."""
    session = open_session(load_config(code_tool.PRESET, code_tool.ARMS[arm]), quiet=True)
    chosen = code_tool.test_tasks(session.family, count)
    with code_tool.judged_once():
        groups = rollout(
            session, chosen, group_size=attempts, config=session.config.collect, address=("test", 0)
        )
    session.close()
    return [(tried(one), bool(one.success)) for one in trajectories_of(groups)]


def right(trajectories, called):
    """The share of those that called, or did not, that were right."""
    won = [success for it_called, success in trajectories if it_called is called]
    assert len(won) > 20
    return sum(won) / len(won)


def test_calls_of_the_shipped_policy_are_right_more_often_than_its_guesses_because_of_what_the_tool_replies():
    informed, drawn = (played(arm) for arm in code_tool.ARMS)
    assert sum(called for called, _ in informed) < 0.3 * len(informed)
    assert right(informed, True) > 0.85 and abs(right(informed, False) - 0.5) < 0.15
    assert right(drawn, True) < 0.7  # the control: the same calls, replies by chance
    assert right(drawn, False) == right(informed, False)  # nobody asked the tool there


def test_the_test_asks_held_out_wordings_with_examples_of_their_own():
    family = load_config(code_tool.PRESET).env
    chosen = code_tool.test_tasks(family, 32)
    evaluated = {task.payload["question"] for task in tasks(family, "held-out", 256)}
    assert all(split_of(family, task) == "held-out" for task in chosen)
    assert not evaluated & {task.payload["question"] for task in chosen}
    control = load_config(code_tool.PRESET, code_tool.ARMS["replies by chance"]).env
    assert [task.payload for task in code_tool.test_tasks(control, 4)] == [
        task.payload for task in chosen[:4]
    ]


def test_chance_is_one_in_two():
    family = load_config(code_tool.PRESET).env
    chance = code_tool.by_chance(family, code_tool.test_tasks(family, 40))
    assert chance["low"] < 1 / 2 < chance["high"] and chance["call_s"] > 0


@pytest.mark.full
@pytest.mark.parametrize("arm", code_tool.ARMS)
def test_reward_teaches_to_call_where_the_reply_tells_something_and_not_where_it_is_drawn(
    arm, tmp_path
):
    """A third of a run; docs/evidence/code.md has whole ones, on held-out tasks."""
    config = load_config(
        code_tool.PRESET, {**code_tool.ARMS[arm], "train.steps": 8, "evaluation.num_tasks": 8}
    )
    trained = train_here(config, tmp_path / arm.replace(" ", "-"), on_note=None)
    calls = [
        sum(tried(one) for one in trajectories_of(trained.groups(step)))
        for step in trained.steps()
        if step
    ]
    assert (
        sum(calls[-2:]) > 2 * sum(calls[:2])
        if arm == "the tool"
        else sum(calls[-2:]) < 1.5 * sum(calls[:2])
    ), calls
