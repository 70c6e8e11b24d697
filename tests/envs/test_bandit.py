"""Bandit: one choice, luck from the dynamics seed, success by the choice and not by the luck."""

import json
import pickle
import re

import numpy as np
import pytest

from workbench.tools.action_format import format_action
from workbench.values.errors import ConfigError
from workbench.worlds import PRESETS, Bandit, tasks
from workbench.worlds import bandit as module


def begin(family, task, dynamics_seed=0):
    env = family.make()
    return env, env.reset(task, dynamics_seed)


def pull(family, task, arm, dynamics_seed):
    return begin(family, task, dynamics_seed)[0].step(format_action([arm], think=family.think))


def arms_of(task):
    risky = task.payload["risky"]
    (safe,) = set(task.payload["arms"]) - {risky}
    return safe, risky


def test_a_scripted_trajectory_as_a_transcript():
    family = PRESETS["bandit-paper"]
    task = next(t for t in tasks(family, "train", 20) if t.payload["arms"][0] == "Teacher")
    env, observation = begin(family, task)
    assert observation.messages[0].text == (
        "Pull one of two arms. Each pays in the manner of its name. Choose the arm that pays more on average. "
        "You have one answer.\nAnswer like this: <think>plan</think><answer>name</answer>\n\nArms: Teacher, Engineer"
    )
    result = env.step("<think>steady</think><answer>teacher</answer>")
    assert result.observation.messages[0].text == "You pulled Teacher."
    assert (
        result.terminated
        and result.reward == 0.15
        and result.reward_parts == {"payout": 0.15, "format": 0.0}
    )
    assert result.info["success"] is False and result.info["moves"] == ["Teacher"]


@pytest.mark.parametrize(
    ("preset", "safe_payout"), [("bandit-paper", 0.15), ("bandit-code", 0.1), ("bandit-rev", 0.15)]
)
def test_payouts_and_success(preset, safe_payout):
    family = PRESETS[preset]
    task = tasks(family, "train", 1)[0]
    safe, risky = arms_of(task)
    safe_results = [pull(family, task, safe, seed) for seed in range(50)]
    risky_results = [pull(family, task, risky, seed) for seed in range(2000)]
    assert {r.reward for r in safe_results} == {safe_payout} and not any(
        r.info["success"] for r in safe_results
    )
    payouts = np.array([r.reward for r in risky_results])
    assert set(payouts) == {0.0, 1.0} and all(
        r.info["success"] for r in risky_results
    )  # success whatever it paid
    assert abs(payouts.mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 2000)


def test_names_and_reversed_names():
    assert {arms_of(t) for t in tasks(PRESETS["bandit-paper"], "train", 20)} == {
        ("Teacher", "Engineer")
    }
    assert {arms_of(t) for t in tasks(PRESETS["bandit-paper"], "held-out", 20)} == {
        ("Librarian", "Trader")
    }
    assert {arms_of(t) for t in tasks(PRESETS["bandit-rev"], "train", 20)} == {
        ("Engineer", "Teacher")
    }
    assert {arms_of(t) for t in tasks(PRESETS["bandit-rev"], "held-out", 20)} == {
        ("Trader", "Librarian")
    }
    assert {arms_of(t) for t in tasks(PRESETS["bandit-test"], "train", 200)} == set(
        module.HELDOUT_NAMES
    )
    orders = [tuple(t.payload["arms"]) for t in tasks(PRESETS["bandit-code"], "train", 400)]
    assert 150 < orders.count(("Phoenix", "Dragon")) < 250 and len(set(orders)) == 2


def assert_a_group_is_one_task(family, task):
    """Invariant 7. The fault that RAGEN had one way (all payouts alike), then the other (all prompts different)."""
    firsts = {begin(family, task, seed)[1] for seed in range(40)}
    payouts = {pull(family, task, task.payload["risky"], seed).reward for seed in range(40)}
    assert len(firsts) == 1, "prompts differ inside a group"
    assert len(payouts) == 2, "payouts are all alike inside a group"


def test_a_group_shares_the_prompt_and_differs_in_luck():
    assert_a_group_is_one_task(PRESETS["bandit"], tasks(PRESETS["bandit"], "train", 1)[0])


def test_control_luck_drawn_from_the_task_is_noticed(monkeypatch):
    task = tasks(PRESETS["bandit"], "train", 1)[0]
    monkeypatch.setattr(module, "rng_at", lambda *address: np.random.default_rng(task.task_seed))
    with pytest.raises(AssertionError, match="payouts are all alike"):
        assert_a_group_is_one_task(PRESETS["bandit"], task)


def test_the_prompt_tells_no_roles_and_no_rewards():
    for preset in ("bandit-paper", "bandit-rev"):
        task = tasks(PRESETS[preset], "train", 1)[0]
        text = begin(PRESETS[preset], task)[1].messages[0].text
        assert not re.search(r"risky|safe|reward|\d", text, re.IGNORECASE)
    one, other = PRESETS["bandit-paper"], PRESETS["bandit-rev"]
    task, reverse = one.task(3), other.task(3)
    assert arms_of(task) == arms_of(reverse)[::-1]
    result = pull(one, task, task.payload["risky"], 1)
    assert not re.search(r"reward|\d", result.observation.messages[0].text, re.IGNORECASE)
    shown = pull(Bandit(show_rewards=True), task, task.payload["risky"], 1)
    assert (
        f"Reward: {shown.reward:g}" in shown.observation.messages[0].text
    )  # the control: a leak would be seen


@pytest.mark.parametrize(
    "text",
    [
        "Engineer",
        "<think></think><answer>Phoenix</answer>",
        "",
        "<think></think><answer>Engineer || Teacher</answer>",
    ],
)
def test_bad_text_is_answered_and_costs_the_penalty(text):
    family = Bandit(names=module.PAPER_NAMES, max_turns=2)
    env, _ = begin(family, tasks(family, "train", 1)[0])
    result = env.step(text)
    assert result.reward == -0.1 and result.reward_parts == {"payout": 0.0, "format": -0.1}
    assert not result.terminated and not result.info["valid_format"] and not result.info["success"]
    words = result.observation.messages[0].text
    assert (
        result.info["complaint"] in words and "Nothing was done. Answer like this: <think>" in words
    )
    assert env.step("<think></think><answer>Engineer</answer>").info[
        "success"
    ]  # the second answer still counts


def test_snapshots_go_on_exactly():
    family = PRESETS["bandit"]
    env, _ = begin(family, family.task(4), 6)
    restored = family.make()
    restored.restore(json.loads(json.dumps(env.snapshot())))
    copies = [restored, pickle.loads(pickle.dumps(env))]
    results = [each.step(family.solver_action(each, None)) for each in (env, *copies)]
    assert (
        all(result == results[0] for result in results) and env.state_key() == restored.state_key()
    )


def test_settings_that_make_no_sense_are_refused():
    for wrong, words in (
        ({"safe_payout": 0.3}, "safe_payout"),
        ({"risky_chance": 2}, "risky_chance"),
        ({"names": ()}, "names"),
        ({"names": (("A", "a"),)}, "different names"),
        ({"names": (("A", "B|C"),)}, "names"),
        ({"heldout_names": module.TRAIN_NAMES[:2]}, "heldout_names other"),
        ({"max_turns": 0}, "max_turns"),
        ({"format_penalty": 1}, "format_penalty"),
    ):
        with pytest.raises(ConfigError, match=words):
            Bandit(**wrong)
