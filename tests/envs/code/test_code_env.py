"""Programs to write: tasks that are made here, files in two forms, and what a trajectory may do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from tests.sandbox.grounds import a_tier_works  # noqa: F401  (a fixture)
from workbench.extensions.sandbox.code.problems import read_problems
from workbench.extensions.sandbox.code.programs import (
    END_NUMBERS,
    END_TEXT,
    ON_NUMBERS,
    ON_TEXT,
    CodePlan,
)
from workbench.extensions.sandbox.code.tasks import Code
from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.tools import tools_named
from workbench.training.config import load_config
from workbench.values import Task
from workbench.values.errors import ConfigError, DataError
from workbench.worlds import PRESETS, split_of, tasks

FAMILY = PRESETS["code-small"]
NUMBERS, TEXTS = [[3, -4, 4, 9, 9, 0, 12, 15], [-1], []], ["red Apple moon", "Ice", ""]


def call(code):
    return f"<tool_call>{json.dumps({'name': 'python', 'arguments': {'code': code}})}</tool_call>"


# ------------------------------------------------------------------------------------------------ made here


@pytest.mark.parametrize(
    "step", [*ON_NUMBERS, *END_NUMBERS, *ON_TEXT, *END_TEXT], ids=lambda step: step.words
)
def test_words_python_and_function_of_a_step_say_the_same(step):
    on_text = step in (*ON_TEXT, *END_TEXT)
    for number in step.numbers:
        plan = CodePlan(on_text, ((step, number),))
        world = {}
        exec(plan.source, world)
        for x in TEXTS if on_text else NUMBERS:
            assert world["solve"](x) == plan.value(x)
        assert "{k}" not in plan.source and "{k}" not in plan.words


def test_tasks_are_functions_of_their_seed_and_held_out_ones_are_others():
    assert FAMILY.task(7) == FAMILY.task(7)
    held_out, train = tasks(FAMILY, "held-out", 40), tasks(FAMILY, "train", 40)
    said = {each.payload["question"].split(" For example")[0] for each in train}
    assert all(split_of(FAMILY, each) == "held-out" for each in held_out)
    assert not {each.payload["question"].split(" For example")[0] for each in held_out} & said
    assert len({json.dumps(dict(each.payload)) for each in held_out}) == 40


def test_vague_words_leave_two_programs_and_the_example_tells_which_is_meant():
    family, meant = PRESETS["code-vague"], []
    for task in (*tasks(family, "train", 20), *tasks(family, "held-out", 20)):
        env, rivals = family.make(), task.payload["rivals"]
        asked, gives = re.search(
            r"For example, (solve\(.*\)) gives (.*)\.$", task.payload["question"]
        ).groups()
        said = []
        for program in rivals:
            world = {}
            exec(program, world)
            said.append(repr(eval(asked, world)))
        assert len(rivals) == len(set(said)) == 2 and said.count(gives) == 1
        assert rivals[said.index(gives)] == task.payload["reference"]
        env.reset(task, 0)
        meant.append(env.step(f"<answer>{rivals[0]}</answer>").info["success"])
        assert meant[-1] == (
            rivals[0] == task.payload["reference"]
        )  # a rival passes all tests only where it is meant
    assert 10 < sum(meant) < 30
    with pytest.raises(ConfigError, match="least_steps has no effect"):
        load_config("code", {"env.words": "vague", "env.least_steps": 2})


def test_to_know_the_example_by_heart_earns_nothing():
    family = PRESETS["code-vague"]
    env, task = family.make(), family.task(3)
    asked, gives = re.search(
        r"For example, solve\((.*)\) gives (.*)\.$", task.payload["question"]
    ).groups()
    env.reset(task, 0)
    result = env.step(f"<answer>def solve(x): return {gives} if x == {asked} else None</answer>")
    assert (
        result.reward == 0
        and not result.info["success"]
        and result.info["tests"]["why"].startswith("test 1: AssertionError")
    )


def test_what_is_shown_holds_no_test_and_no_program():
    task = FAMILY.task(3)
    observation = FAMILY.make().reset(task, 0)
    shown = "".join(part.text for message in observation.messages for part in message.content)
    assert task.payload["question"] in shown and task.payload["reference"] not in shown
    assert not [
        test
        for test in task.payload["tests"]
        if test in shown or test.removeprefix("assert ").split(" == ")[0] in shown
    ]


def test_a_solver_passes_and_the_share_of_tests_can_be_paid():
    task, rng = FAMILY.task(1), np.random.default_rng(0)
    env = FAMILY.make()
    env.reset(task, 0)
    won = env.step(FAMILY.solver_action(env, rng))
    assert (
        won.reward == 1.0
        and won.info["success"]
        and won.info["tests"] == {"passed": 6, "of": 6, "why": ""}
    )
    shared = Code(pay="share").make()
    shared.reset(task, 0)
    nothing = task.payload["tests"][-1].split(" == ")[1]
    part = shared.step(f"<answer>def solve(x): return {nothing}</answer>")
    assert (
        0 < part.reward < 1
        and not part.info["success"]
        and part.info["tests"]["why"].startswith("test 1: AssertionError")
    )


def test_programs_are_tried_and_what_they_define_is_kept():
    env = FAMILY.make()
    env.reset(FAMILY.task(1), 0)
    env.step(call("def twice(x): return 2 * x"))
    result = env.step(call("print(twice(21)); 1 / 0"))
    text = result.observation.messages[0].content[0].text
    assert text.startswith("42\nTraceback") and result.info["calls"] == [
        {"name": "python", "error": "raised"}
    ]
    lost = env.step(call("import os; os._exit(0)"))
    assert "is lost" in lost.observation.messages[0].content[0].text
    sandbox = env.executor.tools["python"].state.sandbox
    env.close()
    assert not sandbox.alive


def test_a_snapshot_is_the_programs_that_made_the_state():
    env, other = FAMILY.make(), FAMILY.make()
    env.reset(FAMILY.task(1), 0)
    env.step(call("import random; x = random.random()"))
    taken = json.loads(json.dumps(env.snapshot()))
    other.restore(taken)
    said = [
        each.step(call("x, random.random()")).observation.messages[0].content[0].text
        for each in (env, other)
    ]
    assert said[0] == said[1] and other.state_key() == env.state_key()
    chance = Code(sandbox=SandboxSettings(deterministic=False)).make()
    chance.reset(FAMILY.task(1), 0)
    assert not hasattr(chance, "snapshot")
    for each in (env, other, chance):
        each.close()


def test_an_answer_in_a_code_block_is_a_program_too():
    task = FAMILY.task(1)
    env = FAMILY.make()
    env.reset(task, 0)
    assert env.step(f"<answer>```python\n{task.payload['reference']}```</answer>").info["success"]


def test_the_tool_is_there_by_name_for_any_environment():
    [tool] = tools_named(["python"])
    assert tool.call({"code": "1 + 1"}).text == "2\n"
    mine = tool.for_trajectory(Task("t", "t", 0, {}))
    mine.call({"code": "x = 1"})
    assert (
        mine.call({"code": "x"}).text == "1\n"
        and "NameError" in tool.for_trajectory(Task("u", "u", 0, {})).call({"code": "x"}).text
    )
    mine.close()


def test_the_examples_of_the_guide_run(capsys):
    page = (Path(__file__).parents[3] / "docs/guides/code.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, {})
    assert "True" in capsys.readouterr().out


# ------------------------------------------------------------------------------------------------ files

HUMANEVAL = {
    "task_id": "Made/0",
    "prompt": 'def add_up(numbers):\n    """The sum of all numbers.\n    >>> add_up([1, 2])\n    3\n'
    '    """\n',
    "entry_point": "add_up",
    "canonical_solution": "    return sum(numbers)\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate([1, 2]) == 3\n    assert abs(candidate([0.5]) - 0.5) < 1e-6\n",
}
MBPP = {
    "task_id": 601,
    "text": "Write a function to find the larger of two numbers.",
    "code": "def larger(a, b):\r\n  return max(a, b)",
    "test_list": ["assert larger(1, 2) == 2", "assert larger(-1, -2) == -1"],
    "test_setup_code": "",
    "challenge_test_list": [],
}
SANITIZED = {
    "task_id": 602,
    "prompt": "Write a function that gives back the square root.",
    "code": "def root(x):\n  return x ** 0.5",
    "test_imports": ["import math"],
    "test_list": ["assert math.isclose(root(2.0), 1.41421356, rel_tol=1e-6)"],
    "source_file": "x",
}


def written(path, *rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return str(path)


@pytest.mark.parametrize(
    ("form", "rows"), [("humaneval", [HUMANEVAL]), ("mbpp", [MBPP, SANITIZED])]
)
def test_problems_of_a_file_are_solved_by_their_own_programs(tmp_path, form, rows):
    family = Code(file=written(tmp_path / "problems.jsonl", *rows), format=form)
    family.check_files()
    found = {}
    for seed in range(12):
        task = family.task(seed)
        found[task.payload["question"]] = task
    assert len(found) == len(rows)
    for task in found.values():
        env = family.make()
        env.reset(task, 0)
        assert env.step(family.solver_action(env, np.random.default_rng(0))).info["success"]
        env.reset(task, 0)
        assert not env.step("<answer>def wrong(): pass</answer>").info["success"]


def test_the_rest_of_a_function_is_an_answer(tmp_path):
    [problem] = read_problems(written(tmp_path / "problems.jsonl", HUMANEVAL), "humaneval")
    assert (
        problem.program("    return sum(numbers)")
        == HUMANEVAL["prompt"] + "    return sum(numbers)"
    )
    assert problem.program("def add_up(n): return 1") == "def add_up(n): return 1"


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("[1, 2]", "JSON object"),
        ("{", "Expecting|JSON"),
        ('{"prompt": "x"}', "test_list"),
        (
            '{"text": "x", "code": "def f(): pass", "test_list": ["assert g() == 1"]}',
            "no test calls",
        ),
        ('{"text": "x", "code": "def f(", "test_list": ["assert f() == 1"]}', "was never closed"),
        ("[" * 100_000, "deep|nested|recursion"),
    ],
)
def test_a_line_that_holds_no_problem_is_named(tmp_path, line, what):
    (tmp_path / "bad.jsonl").write_text(line)
    with pytest.raises(DataError, match=rf"line 1: no problem in the form 'mbpp'.*({what})"):
        read_problems(str(tmp_path / "bad.jsonl"), "mbpp")


def test_files_that_are_not_there_and_settings_that_clash_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        Code(file=str(tmp_path / "none")).check_files()
    with pytest.raises(ConfigError, match="env.heldout"):
        Code(heldout="x")
    with pytest.raises(ConfigError, match="least_steps"):
        Code(least_steps=3, most_steps=2)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="holds no problems"):
        read_problems(str(tmp_path / "empty"), "mbpp")
