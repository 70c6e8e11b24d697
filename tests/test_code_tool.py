"""A tiny policy that begins to write programs without trying them: what training does with it, and how it is judged."""
from __future__ import annotations

import time

import pytest

from experiments import code_tool
from tests.sandbox.test_boxes import children_of
from workbench.envs import split_of, tasks
from workbench.envs.sandbox.supply import shared_supply
from workbench.notebook.lint import lint
from workbench.training.config import load_config
from workbench.training.train import train_here
from workbench.types import trajectories_of


@pytest.fixture(autouse=True)
def a_tier_works():
    reasons = [shared_supply().why_not(tier) for tier in ("namespaces", "landlock")]
    if all(reasons):
        pytest.skip(f"no tier works: {reasons}")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    config = load_config("code-vague", {"train.steps": 2, "train.tasks_per_step": 4, "evaluation.num_tasks": 16})
    return train_here(config, tmp_path_factory.mktemp("runs") / "code", on_note=None)


def test_a_short_run_of_the_shipped_policy_calls_the_tool_and_is_clean(run):
    played = trajectories_of(run.groups(0)) + trajectories_of(run.groups(1))
    called = [any(turn.info.get("calls") for turn in one.turns) for one in played]
    assert 0 < sum(called) < len(called) / 2                    # it may, and mostly does not
    said = [message.text for one in played for turn in one.turns for message in turn.reply if message.role == "tool"]
    assert {"True\n", "False\n"} <= set(said)
    report = lint(run).report
    assert report.counts()["errors"] == 0 and report["R20"].status == "passed", report.text


def test_no_box_is_left_when_training_is_over(run):
    shared_supply().drop_ready()                                # those that wait for the next attempt
    until = time.monotonic() + 10
    while (left := children_of(shared_supply().process_id)) and time.monotonic() < until:
        time.sleep(0.05)
    assert left == []


def test_a_call_is_not_paid_and_success_is(run):
    won = {True: set(), False: set()}
    for one in trajectories_of(run.groups(0)):
        if all(turn.info["valid_format"] for turn in one.turns):
            won[bool(one.success)].add(one.reward)
    assert won == {True: {1.0}, False: {0.0}}


def test_the_test_asks_held_out_wordings_with_examples_of_their_own():
    family = load_config("code-vague").env
    chosen = code_tool.test_tasks(family, 32)
    evaluated = {task.payload["question"] for task in tasks(family, "held-out", 256)}
    assert all(split_of(family, task) == "held-out" for task in chosen)
    assert not evaluated & {task.payload["question"] for task in chosen}


def test_the_policy_begins_by_not_calling_and_chance_is_one_in_two():
    config = load_config("code-vague")
    chosen = code_tool.test_tasks(config.env, 24)
    rows = code_tool.judged(config.policy.name, {}, chosen)
    assert rows["greedy"]["called"] < 0.2 and rows["sampled"]["called"] < 0.5
    chance = code_tool.by_chance(config.env, chosen)
    assert chance["low"] < 1 / 2 < chance["high"] and chance["call_s"] > 0
    assert code_tool.judged(config.policy.name, {"env.tool": False}, chosen[:4])["sampled"]["called"] == 0
