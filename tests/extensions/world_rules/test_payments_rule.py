"""R29: what was done is paid for, once, to the turn that did it. An answer with chatter beside it is an answer."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from workbench.linting import Evidence, all_rules, check
from workbench.values import Group, StopReason, Task, Trajectory, Turn
from workbench.worlds.tool_env import ToolEnv

RULES = all_rules()

TASK = Task("asked/1", "asked", 1, {"question": "Who?", "answers": ["Zumi"], "support": []})
JUDGED = SimpleNamespace(reward="mine:reward")


def played(text: str, finish: str = "stop", reward=None, attempt: int = 0) -> Trajectory:
    """One trajectory of one turn, as `ToolEnv` answers it."""
    env = ToolEnv((), max_turns=1, reward=reward)
    first = env.reset(TASK, 0)
    done = env.step(text)
    turn = Turn(0, text, finish, reward=done.reward, reward_parts=done.reward_parts, info=done.info)
    return Trajectory(
        TASK,
        attempt,
        0,
        first,
        (turn,),
        (),
        StopReason.TERMINATED,
        success=done.info.get("success"),
    )


def said(*trajectories: Trajectory, family=None) -> list[str]:
    groups = (
        Group(tuple(replace(each, attempt=number) for number, each in enumerate(trajectories))),
    )
    return [
        finding.what
        for finding in check(Evidence(groups, family=family), [RULES["R29"]])["R29"].findings
    ]


def with_info(trajectory: Trajectory, **info) -> Trajectory:
    turn = trajectory.turns[-1]
    return replace(
        trajectory, turns=(replace(turn, info={**turn.info, **info}),), success=info.get("success")
    )


WHOLE = played("<answer>Zumi</answer>")


@pytest.mark.parametrize(
    "text",
    ["<answer>Zumi</answer>", "It is <answer>Zumi</answer>", "<answer>Kolo</answer>", "Zumi"],
)
def test_what_the_environment_pays_is_in_order(text):
    assert not said(played(text))


def test_negative_control_a_wrong_answer_that_counts_as_right():
    assert "counts as right" in said(with_info(played("<answer>Kolo</answer>"), success=True))[0]


def test_negative_control_a_success_that_nobody_could_read():
    unread = with_info(played("Zumi"), success=True)
    assert said(unread)


def test_a_turn_that_was_cut_behind_its_answer_is_whole_and_one_that_was_cut_within_is_not():
    many = [WHOLE] * 12
    assert not said(*many, played("<answer>Zumi</answer> and so", finish="length"))
    lenient = with_info(played("<answer>Zumi", finish="length"), success=True, answer="Zumi")
    assert "cut before </answer>" in " ".join(said(*many, replace(lenient)))


def test_a_cut_answer_among_calls_is_whole_where_it_is_closed():
    """Every other turn that is whole ends a call: that is no reason to think that answers do."""
    call = replace(
        WHOLE.turns[0],
        text='<tool_call>{"name": "search", "arguments": {"query": "Zumi"}}</tool_call>',
        info={"valid_format": True},
        reward=0.0,
    )
    many = [replace(WHOLE, turns=(call,), success=None)] * 12
    assert not said(*many, played("<answer>Zumi</answer> and so", finish="length"))
    lenient = with_info(
        played("<think>Zumi?</think><answer>Zumi", finish="length"), success=True, answer="Zumi"
    )
    assert "cut before </tool_call>" in " ".join(said(*many, lenient))


def test_what_a_function_of_the_users_calls_a_success_is_its_matter():
    kind = played("<answer>Kolo</answer>", reward=lambda trajectory: {"kind": 1.0, "success": True})
    assert kind.success and not said(kind, family=JUDGED)
    assert said(kind), "negative control: without one the gold answer decides"
