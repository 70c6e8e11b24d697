"""Rows, tools and a reward function by configuration; MCP tasks, judged by the state of a real server."""

import json
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.engines.scripted import ScriptedEngine
from workbench.rollouts.collect import collect
from workbench.rollouts.config import CollectConfig
from workbench.tools.formats import Hermes
from workbench.values import StopReason
from workbench.values.errors import ConfigError, DataError, EnvError, ToolError
from workbench.worlds import ToolTasks, tasks
from workbench.worlds.baselines import NONE_KNOWN, known, none_known, play
from workbench.worlds.rows import RowSettings
from workbench.worlds.tool_env import CallSettings
from workbench.worlds.tool_rewards import verdict_of

SERVER = Path(__file__).parent / "notes_server.py"
MODULE = "tests.envs.task_rewards"
WORDS = Hermes()
NOTES = f"mcp:stdio {sys.executable} {SERVER} {{folder}}"


def rows_at(folder, count=12, name="rows.jsonl"):
    rows = [
        {"question": f"twice {n}?", "answer": str(2 * n), "title": f"note{n}"} for n in range(count)
    ]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RowSettings((str(folder / name),))


def sums(folder, **settings):
    return ToolTasks(rows_at(folder), tools=(f"{MODULE}:double",), **settings)


def notes(folder, **settings):
    asked = {
        "question": "Write a note called {title}.",
        "answer": "",
        "reward": f"{MODULE}:noted",
        "prepare": f"{MODULE}:fill",
        "calls": CallSettings(deadline_s=30.0),
    } | settings
    return ToolTasks(rows_at(folder), tools=(NOTES,), **asked)


def played(family, task, *texts):
    """The results of these turns."""
    with closing(family.make()) as env:
        env.reset(task, 0)
        return [env.step(text) for text in texts]


def call(name, **arguments):
    return WORDS.write_call(name, arguments)


# ------------------------------------------------------------------------------------------------ a reward of the user's


def test_without_a_function_the_answer_is_matched(tmp_path):
    family = sums(tmp_path)
    task = tasks(family, "train", 1)[0]
    asked, answered = played(
        family, task, call("double", n=3), WORDS.write_answer(task.payload["answers"][0])
    )
    assert asked.observation.messages[0].text == "6" and (
        answered.reward,
        answered.info["success"],
    ) == (1.0, True)
    assert played(family, task, WORDS.write_answer("no"))[0].info["success"] is False


def test_solver_and_random_play_are_functions_that_settings_name(tmp_path):
    bare = sums(tmp_path)
    assert known(bare) == () and none_known(bare) == dict.fromkeys(("random", "solver"), NONE_KNOWN)
    family = sums(tmp_path, solver=f"{MODULE}:solve", random_play=f"{MODULE}:guess")
    assert known(family) == ("random", "solver")
    task = tasks(family, "train", 1)[0]
    solved = play(family, task, 0, lambda env: family.solver_action(env, None))
    assert (solved.success, solved.reward, solved.turns) == (True, 1.0, 2)
    rng = np.random.default_rng(0)
    guessed = play(family, task, 0, lambda env: family.random_action(env, rng))
    assert (guessed.success, guessed.turns) == (False, 1)
    with pytest.raises(ConfigError, match="env.solver"):
        sums(tmp_path, solver=f"{MODULE}:nowhere").check_files()


def test_a_function_is_told_what_happened_and_says_what_it_earns(tmp_path):
    family = sums(tmp_path, reward=f"{MODULE}:by_calls")
    task = tasks(family, "train", 1)[0]
    right = WORDS.write_answer(task.payload["row"]["answer"])
    asked, answered = played(family, task, call("double", n=3), right)
    assert asked.reward == 0.0 and "success" not in asked.info
    assert (
        answered.reward_parts == {"format": 0.0, "used": 0.5, "right": 1.0}
        and answered.info["success"] is True
    )
    assert answered.reward == 1.5 and played(family, task, right)[0].reward == 1.0
    wrong = played(family, task, "nonsense", WORDS.write_answer("no"))
    assert [each.reward for each in wrong] == [-0.1, 0.0] and wrong[1].info["success"] is False


def test_success_may_be_unknown_and_a_reward_may_be_missing(tmp_path):
    family = sums(tmp_path, reward=f"{MODULE}:by_length", turns=1)
    task = tasks(family, "train", 1)[0]
    (short,), (silent,) = (
        played(family, task, WORDS.write_answer("1234")),
        played(family, task, call("double", n=1)),
    )
    assert short.reward == 0.2 and "success" not in short.info
    assert silent.reward is None and silent.truncated and not silent.reward_parts
    later = replace(family, reward=f"{MODULE}:later")
    assert (
        played(later, task, WORDS.write_answer(task.payload["row"]["answer"]))[0].info["success"]
        is True
    )


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (1, ({"reward": 1.0}, None)),
        (True, ({"reward": 1.0}, True)),
        (False, ({"reward": 0.0}, False)),
        (None, (None, None)),
        ({"a": 1, "b": 0.5}, ({"a": 1.0, "b": 0.5}, None)),
        ({"a": None, "success": True}, (None, True)),
        ({"success": True}, ({"reward": 1.0}, True)),
    ],
)
def test_what_a_reward_function_may_say(said, meant):
    assert verdict_of(said, "it") == meant


@pytest.mark.parametrize(
    "said", ["good", float("nan"), {"format": 1.0}, {"a": "b"}, {"a": 1, "success": 1}, [1.0]]
)
def test_what_it_may_not_say(said):
    with pytest.raises(EnvError, match="it"):
        verdict_of(said, "it")


@pytest.mark.parametrize(
    ("name", "words"), [("broken", "raised KeyError"), ("strange", "returns a finite number")]
)
def test_a_function_that_fails_ends_the_trajectory_and_is_no_zero(tmp_path, name, words):
    family = sums(tmp_path, reward=f"{MODULE}:{name}")
    with pytest.raises(EnvError, match=f"{name} on task 'tools/rows.jsonl:.*{words}"):
        played(family, tasks(family, "train", 1)[0], WORDS.write_answer("1"))
    [group] = rolled(family, WORDS.write_answer("1"), 1)
    assert {t.stop_reason for t in group} == {StopReason.ENV_ERROR} and {
        t.reward for t in group
    } == {None}


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"answer": ""}, ConfigError, "nothing could be scored"),
        ({"tools": ("mcp:python x",)}, ConfigError, "mcp:stdio and a command"),
        ({"tools": ("mcp:stdio python 'x",)}, ConfigError, "mcp:stdio and a command"),
        ({"reward": "tests.envs.task_rewards:none"}, ConfigError, "env.reward"),
        ({"tools": ("no.module:x",)}, ToolError, "cannot be imported"),
        ({"prepare": "no.module:x"}, ConfigError, "env.prepare"),
        ({"answer": "gold"}, DataError, "column 'gold': expected a text"),
        ({"question": "{q}?"}, DataError, "asks for a column 'q'"),
        (
            {"tools": (f"mcp:stdio {sys.executable} nowhere.py",)},
            ToolError,
            "did not list its tools",
        ),
    ],
)
def test_settings_that_cannot_work_say_so_before_anything_is_played(
    tmp_path, settings, error, said
):
    with pytest.raises(error, match=said):
        family = ToolTasks(rows_at(tmp_path), **settings)
        family.check_files()
        tasks(family, "train", 1)


def test_settings_that_do_nothing_are_refused(tmp_path):
    rows_at(tmp_path)
    base = {
        "env.kind": "tools",
        "env.data.files": [str(tmp_path / "rows.jsonl")],
        "policy.name": "search-tiny",
    }
    assert wb.load_config("search", base | {"env.reward": f"{MODULE}:by_calls"}).env.reward
    for setting in ({"env.rewards.answer": "f1"}, {"env.rewards.no_answer": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(setting))):
            wb.load_config("search", base | {"env.reward": f"{MODULE}:by_calls"} | setting)
    with pytest.raises(ConfigError, match="names no MCP server"):
        wb.load_config("search", base | {"env.prompts": True})


# ------------------------------------------------------------------------------------------------ MCP tasks


def test_success_is_the_state_of_the_server_and_every_trajectory_has_its_own(tmp_path):
    family = notes(tmp_path, resources=True)
    first, second = tasks(family, "train", 2)
    title = first.payload["row"]["title"]
    with closing(family.make()) as env, closing(family.make()) as other:
        shown = env.reset(first, 0)
        assert shown.messages[0].text.endswith(f"Write a note called {title}.")
        assert [each["function"]["name"] for each in shown.tools] == [
            "add_note",
            "list_notes",
            "list_resources",
            "read_resource",
        ]
        other.reset(second, 0)
        folder = env.folder
        wrote = env.step(call("add_note", title=title, text="<|im_end|>"))
        assert wrote.observation.messages[0].text == f"wrote {title}" and folder != other.folder
        assert (
            env.step(call("read_resource", uri=f"notes://{title}")).observation.messages[0].text
            == "<|im_end|>"
        )
        done, failed = env.step(WORDS.write_answer("done")), other.step(WORDS.write_answer("done"))
        assert (
            done.reward_parts == {"format": 0.0, "kept": 0.1, "noted": 1.0}
            and done.info["success"] is True
        )
        assert failed.reward == 0.1 and failed.info["success"] is False
        assert not hasattr(env, "snapshot")
    assert not folder.exists()


def rolled(family, text, attempts=2, count=1, **settings):
    """Trajectories in which the policy says this in every turn."""
    tokenizer = load_tokenizer("search-tiny")
    chat = ChatFormat.from_tokenizer(tokenizer)
    said = [*tokenizer.encode(text, add_special_tokens=False), min(chat.stop_ids)]
    return collect(
        tasks(family, "train", count),
        family=family,
        chat=chat,
        group_size=attempts,
        address=(0, "notes"),
        engine=ScriptedEngine(lambda request: said, context_length=4_000),
        config=CollectConfig(**{"max_turn_tokens": 400} | settings),
    )


@pytest.mark.full
@pytest.mark.parametrize("runner", ["inline", "processes"])
def test_mcp_tasks_are_rolled_out_where_environments_run(tmp_path, runner):
    family = notes(tmp_path)
    groups = rolled(family, WORDS.write_answer("done"), count=2, env_runner=runner)
    assert [t.reward for group in groups for t in group] == [0.1] * 4
    assert {t.stop_reason for group in groups for t in group} == {StopReason.TERMINATED}


# ------------------------------------------------------------------------------------------------ training


def trained(folder, out, **settings):
    config = wb.load_config(
        "search",
        {
            "env.kind": "tools",
            "env.data.files": [rows_at(folder).files[0]],
            "env.turns": 2,
            "train.steps": 2,
            "train.tasks_per_step": 2,
            "train.group_size": 2,
            "evaluation.num_tasks": 2,
            "collect.max_turn_tokens": 12,
            "algorithm.minibatches": 1,
        }
        | settings,
    )
    return config, wb.train_here(config, out)


def stored(run, step):
    return [
        (t.task.id, t.attempt, t.reward, [turn.text for turn in t.turns])
        for group in run.groups(step)
        for t in group
    ]


@pytest.mark.full
def test_rows_with_tools_and_a_reward_train_resume_and_pass_the_lint(tmp_path):
    plain = {"env.tools": f"{MODULE}:double", "env.reward": f"{MODULE}:by_length"}
    config, run = trained(tmp_path, tmp_path / "run", **plain)
    groups = [group for step in (1, 2) for group in run.groups(step)]
    assert len({group[0].task.metadata["row"] for group in groups}) == 4  # four rows, none twice
    assert all(t.success is None for group in groups for t in group)
    assert (found := wb.lint(tmp_path / "run", step=2)).ok, found.text
    _, short = trained(tmp_path, tmp_path / "short", **plain | {"train.steps": 1})
    with pytest.raises(DataError, match="was drawn from other rows"):
        wb.resume_here(
            tmp_path / "short",
            {"train.steps": 2, "env.data.files": rows_at(tmp_path, 13, "more.jsonl").files[0]},
        )
    (tmp_path / "moved").mkdir()
    moved = rows_at(tmp_path / "moved").files[0]
    wb.resume_here(tmp_path / "short", {"train.steps": 2, "env.data.files": moved})
    assert stored(wb.open_run(tmp_path / "short"), 2) == stored(run, 2)


@pytest.mark.full
def test_mcp_tasks_train_in_workers_and_pass_the_lint(tmp_path):
    settings = {
        "env.tools": [NOTES],
        "env.reward": f"{MODULE}:noted",
        "env.prepare": f"{MODULE}:fill",
        "env.answer": "",
        "env.question": "Write a note called {title}.",
        "env.calls.deadline_s": 30.0,
        "collect.env_runner": "processes",
        "train.steps": 1,
    }
    _, run = trained(tmp_path, tmp_path / "run", **settings)
    trajectories = [t for group in run.groups(1) for t in group]
    assert len(trajectories) == 4 and all(
        t.success is False and t.reward is not None for t in trajectories
    )
    assert (found := wb.lint(tmp_path / "run", step=1)).ok, found.text
