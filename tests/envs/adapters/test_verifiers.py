"""Tasksets of verifiers, by the real package.

It wants other versions than ours of some packages that tests use, so this file runs in an environment of its own:
`make test-readers`.
"""

from pathlib import Path

import pytest

import workbench as wb
from tests.counts import reduced
from tests.envs.adapters.trajectories import COUNTS, all_well, some_trajectories
from workbench.extensions.adapters.verifiers import Verifiers
from workbench.tools.awaiting import EventLoop
from workbench.values import StopReason
from workbench.values.errors import ConfigError, EnvError
from workbench.values.seeds import rng_at
from workbench.worlds.baselines import known, play
from workbench.worlds.scoring import scored
from workbench.worlds.shared import opened
from workbench.worlds.splits import tasks

pytest.importorskip(
    "verifiers", reason="needs verifiers, in an environment of its own: make test-readers"
)
WORLDS = "tests.envs.adapters.verifiers_worlds.v1"
CALL = '<tool_call>{"name": "%s", "arguments": {"a": 1, "b": %d}}</tool_call>'
NUMBERS = [str(number) for number in range(0, 40, 3)]
CALLS = [CALL % ("add", 1), CALL % ("add", 2), CALL % ("mul", 2), CALL % ("add", 1) * 2]


def world(name, **settings):
    return Verifiers(f"{WORLDS}:{name}", **{"turns": 4} | settings)


QUESTIONS = world(
    "Sums",
    success="correct",
    solver=f"{WORLDS}:solve",
    random_play=f"{WORLDS}:any_number",
)
TOOLS = world("ToolSums")
FAMILIES = {"questions": (QUESTIONS, NUMBERS), "tools": (TOOLS, [*NUMBERS, *CALLS])}


@pytest.mark.parametrize("count", reduced(COUNTS, ("quick",)))
@pytest.mark.parametrize("name", FAMILIES)
def test_many_trajectories_inline_and_in_workers_replay(name, count):
    family, texts = FAMILIES[name]
    groups = all_well(family, texts, COUNTS[count], workers=name == "questions", at_once=100)
    if count == "full":
        rewards = {t.reward for group in groups for t in group}
        assert rewards > {0.0} and {1.25} <= rewards


def told(env, task, *texts):
    """The first observation and the results of some texts."""
    return env.reset(task, 0), [env.step(text) for text in texts]


def test_a_question_with_its_rubric():
    task = tasks(QUESTIONS, "train", 1)[0]
    with opened(QUESTIONS) as env:
        seen, [result] = told(env, task, f" {task.payload['answer']} ")
    assert [(m.role, m.text) for m in seen.messages] == [
        ("system", "Be short."),
        ("user", seen.messages[1].text),
    ]
    assert seen.messages[1].text.startswith("What is ") and seen.tools == ()
    assert (
        result.reward == 1.25
        and result.reward_parts == {"correct": 1.0, "short": 0.25}
        and result.terminated
    )
    assert result.info["success"] is True
    assert result.info["metrics"]["length"] == len(
        f" {task.payload['answer']} ".strip()
    ) + task.payload.get("info", {}).get("even", 0), "a metric has no weight"
    with opened(QUESTIONS) as env, pytest.raises(EnvError, match="over or was never begun"):
        env.step("4")


def test_tools_have_their_schemas_and_the_environment_answers_what_they_cannot_do():
    with opened(TOOLS) as env:
        seen, (added, unknown, over) = told(
            env,
            tasks(TOOLS, "train", 1)[0],
            f"Let me see.\n{CALL % ('add', 4)}",
            CALL % ("mul", 1),
            '<tool_call>{"name"</tool_call>',
        )
    [tool] = seen.tools
    assert tool["function"]["name"] == "add" and set(
        tool["function"]["parameters"]["properties"]
    ) == {"a", "b"}
    [reply] = added.observation.messages
    assert (reply.role, reply.text, reply.name, reply.tool_call_id) == ("tool", "5", "add", "t0c0")
    assert (
        added.tool_calls[0].arguments == {"a": 1, "b": 4}
        and added.reward == 0.0
        and not added.terminated
    )
    assert "mul" in unknown.observation.messages[0].text and not unknown.terminated
    assert (
        over.terminated
        and not over.info["valid_format"]
        and over.info["complaint"].startswith("The call is no JSON")
    )


def test_limits_of_turns():
    assert QUESTIONS.max_turns == 4 and TOOLS.max_turns == 4
    with opened(TOOLS) as env:
        _, results = told(env, tasks(TOOLS, "train", 1)[0], *[CALL % ("add", 1)] * 4)
    assert [result.truncated for result in results] == [False, False, False, True] and results[
        -1
    ].info["stop"] == "max_turns"
    fewer = world("ToolSums", turns=2)
    with opened(fewer) as env:
        _, results = told(env, tasks(fewer, "train", 1)[0], *[CALL % ("add", 1)] * 2)
    assert fewer.max_turns == 2 and results[-1].truncated and results[-1].reward is not None, (
        "the rubric is asked"
    )
    with pytest.raises(ConfigError, match="say one: env.turns"):
        world("Sums", turns=0).max_turns


def test_rows_have_ids_and_splits():
    table = QUESTIONS.data.open()
    assert len({row.id for row in table.rows}) == len(table.rows) == 40
    train, held_out = (
        tasks(QUESTIONS, split, 38 if split == "train" else 5) for split in ("train", "held-out")
    )
    assert not {t.payload["answer"] + str(t.payload["prompt"]) for t in train} & {
        t.payload["answer"] + str(t.payload["prompt"]) for t in held_out
    }
    assert tasks(QUESTIONS, "train", 5, seed=1) != train[:5] == tasks(QUESTIONS, "train", 5)


def test_what_is_known_and_what_is_not():
    assert known(QUESTIONS) == ("random", "solver") and known(TOOLS) == ()
    task, act = tasks(QUESTIONS, "held-out", 1)[0], QUESTIONS.solver_action
    assert play(QUESTIONS, task, 0, lambda env: act(env, rng_at("x"))).success is True
    assert all("success" not in result.info for result in told_of(TOOLS, "4"))


def told_of(family, *texts):
    with opened(family) as env:
        return told(env, tasks(family, "train", 1)[0], *texts)[1]


def test_a_trajectory_that_our_own_limit_cuts_is_scored_by_the_rubric():
    [group] = some_trajectories(TOOLS, [CALL % ("add", 1)], 4)
    whole = next(t for t in group if len(t.turns) == 4)
    from dataclasses import replace

    cut = replace(whole, turns=whole.turns[:2], stop_reason=StopReason.CONTEXT_FULL)
    loop = EventLoop()
    try:
        assert scored(TOOLS, whole, loop).reward == whole.reward
        again = scored(TOOLS, cut, loop)
        assert again.scored and again.outcome_parts.keys() == {"correct", "short"}
        other = replace(cut, turns=(replace(cut.turns[0], text="no call"), cut.turns[1]))
        assert not scored(TOOLS, other, loop, pause=lambda s: None).scored
        unsure = scored(replace(TOOLS, deterministic=False), cut, loop, pause=lambda s: None)
        assert not unsure.scored and "deterministic" in unsure.error
    finally:
        loop.close()


def test_a_tiny_policy_trains(tmp_path):
    policy = Path(__file__).parents[3] / "data" / "policies" / "search-tiny"
    config = wb.load_config(
        "frozenlake",
        {
            "env.kind": "verifiers",
            "env.load": QUESTIONS.load,
            "env.turns": 1,
            "env.success": "correct",
            "policy.name": str(policy),
            "train.steps": 1,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "collect.max_turn_tokens": 8,
        },
    )
    run = wb.train_here(config, tmp_path / "run")
    groups = run.groups(1)
    assert len(groups) == 2 and all(t.reward is not None for group in groups for t in group)


def test_what_cannot_be():
    with pytest.raises(ConfigError, match="env.load names no taskset"):
        Verifiers().check_files()
    with pytest.raises(ConfigError, match="env.load 'no.such:thing' cannot be imported"):
        Verifiers("no.such:thing").check_files()
    with pytest.raises(ConfigError, match="with the arguments {'colour': 3} fails"):
        world("Sums", args={"colour": 3}).loaded
    with pytest.raises(ConfigError, match="is no Taskset of verifiers.v1"):
        world("solve").check_files()
    with pytest.raises(EnvError, match="env.success names no reward or metric"):
        told_of(world("Sums", success="beauty"), "4")


def test_stops_faults_and_endless_tasksets():
    family = world("SulkySums")
    [result] = told_of(family, "that is enough")
    assert result.terminated and result.reward == 1.0 and result.info["stop"] == "enough"
    [result] = told_of(family, "raise")
    assert result.reward is None and "the judge is away" in result.info["scorer_error"]
    assert len(world("EndlessSums", most_rows=30).data.open().rows) == 30
    with pytest.raises(ConfigError, match="need a container"):
        world("ContainedSums").loaded
