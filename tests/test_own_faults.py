"""A fault in the user's own code is named with the user's file and line; one of the workbench is not blamed on the user."""

from __future__ import annotations

import sys
import textwrap

import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench import cli
from workbench.cli.last_resort import report_crash
from workbench.values import Task
from workbench.values.errors import ConfigError, EnvError, own_line, where_raised
from workbench.values.stats import pass_at_k
from workbench.worlds.tool_rewards import ToolTrajectory, asked

SMALL = [
    "--set=train.steps=1",
    "--set=train.tasks_per_step=2",
    "--set=train.group_size=2",
    "--set=evaluation.num_tasks=2",
]
ENV = """
import json
import random
from dataclasses import dataclass
from typing import ClassVar

from workbench.values import Message, Observation, StepResult, Task


class Env:
    def reset(self, task, dynamics_seed):
        return Observation((Message("user", "Go on."),))

    def step(self, action_text):
        {step}
        return StepResult(Observation((Message("user", "Done."),)), 1.0, terminated=True)


@dataclass(frozen=True)
class Broken:
    max_turns: int = 1
    name: ClassVar[str] = "broken"

    def task(self, task_seed):
        {task}
        return Task(f"broken/{{task_seed}}", "broken", task_seed, {{"number": task_seed}})

    def make(self):
        return Env()
"""
OWN_ALGORITHM = """
from workbench.learn.algorithms import Algorithm
from workbench.learn.algorithms.estimators import Estimator


def wrong(inputs):
    return inputs.no_such_thing


MINE = Algorithm("mine", Estimator(wrong))
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module into an empty folder, which is the current one; gives the number of the line with `marked`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written = []

    def write(name, text, marked):
        (tmp_path / f"{name}.py").write_text(text)
        written.append(name)
        return 1 + next(i for i, line in enumerate(text.splitlines()) if marked in line)

    yield write
    for name in written:
        sys.modules.pop(name, None)


def test_the_line_of_an_environment_is_named_not_that_of_the_library_it_called(module):
    line = module("env_choice", ENV.format(step="random.choice([])", task="pass"), "random.choice")
    [group] = wb.rollout("env_choice:Broken", 1, group_size=1)
    assert group[0].error.endswith(f"(env_choice.py:{line})"), group[0].error


@pytest.mark.parametrize("task", ["{}['no']", "json.loads('')"])
def test_a_task_that_raises_ends_the_command_with_its_own_line(module, capsys, task):
    line = module("env_task", ENV.format(step="pass", task=task), task)
    assert cli.main(["train", "env_task:Broken", "--out", "run", *SMALL]) == 3
    error = capsys.readouterr().err
    assert f"env_task.py, line {line}, in task" in error and "your own code" in error
    assert "fault of the workbench" not in error


def test_an_algorithm_that_raises_is_named_with_its_own_line(module, capsys):
    line = module("alg_wrong", OWN_ALGORITHM, "no_such_thing")
    words = ["--set=algorithm.kind=alg_wrong:MINE", "--set=lint.mode=off"]
    assert cli.main(["train", "frozenlake", "--out", "run", *SMALL, *words]) == 3
    error = capsys.readouterr().err
    assert f"alg_wrong.py, line {line}, in wrong" in error and "fault of the workbench" not in error


def test_a_reward_that_raises_is_named_with_its_line(module):
    line = module(
        "reward_wrong", "def judge(trajectory):\n    return trajectory.no_such_thing\n", "no_such"
    )
    __import__("reward_wrong")
    trajectory = ToolTrajectory(Task("a", "tools", 0, {}), None, (), 1, print)
    with pytest.raises(EnvError, match=rf"\(reward_wrong.py:{line}\)"):
        asked(sys.modules["reward_wrong"].judge, trajectory, "the reward function")


def test_a_module_that_fails_while_it_is_imported_is_named_with_its_line(module):
    module("import_wrong", "x = 1\ny = {}[x]\n", "y")
    with pytest.raises(ConfigError, match=r"KeyError: 1 \(.*import_wrong.py, line 2\)"):
        wb.load_config("import_wrong:Guess")


def test_an_error_of_the_workbench_or_of_a_library_is_not_called_the_users(
    capsys, tmp_path, monkeypatch
):
    """The negative control: no line below the call is the user's."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(TypeError) as raised:
        pass_at_k([1], 2, "one")
    error = raised.value.with_traceback(
        raised.value.__traceback__.tb_next
    )  # without this test's own line
    assert own_line(error) is None and where_raised(error)
    assert report_crash(error, "") == 3
    assert "fault of the workbench" in capsys.readouterr().err


def test_an_error_that_is_its_own_cause_is_read_to_its_end():
    error = ValueError("again")
    error.__cause__ = error
    assert own_line(error) is None and where_raised(error) == ""


# ------------------------------------------------------------------------------------------------ in a notebook


@pytest.fixture
def shell():
    InteractiveShell.clear_instance()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def shown(shell, capsys, *cells):
    """What cells print, the last of which fails."""
    for cell in cells:
        capsys.readouterr()
        shell.run_cell(textwrap.dedent(cell))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "cell, words",
    [
        ("wb.load_config('frozen_lake')", "did you mean 'frozenlake'"),
        ("wb.load_config('frozenlake', {'train.steps': 'many'})", "whole number, got 'many'"),
        ("wb.load_config('search', {'env.tools': [3]})", "env.tools[0] is text, got 3"),
        ("wb.open_run('/nope')", "there is no run folder /nope"),
        ("wb.plot", "wb.explore(run)"),
    ],
)
def test_an_error_of_the_package_is_a_sentence_below_the_users_line(shell, capsys, cell, words):
    text = shown(shell, capsys, "import workbench as wb", f"x = 1\n{cell}")
    assert words in text and f"line 2\n----> 2 {cell}\n" in text and len(text.splitlines()) <= 5
    assert "workbench/" not in text.partition("Error")[0]


def test_the_whole_traceback_is_there_when_it_is_asked_for(shell, capsys):
    failing = "wb.load_config('frozen_lake')"
    text = shown(shell, capsys, "import workbench as wb", failing, "%xmode Verbose", "%tb")
    assert "workbench/training/config.py" in text and len(text.splitlines()) > 20


def test_another_error_is_shown_as_python_shows_it(shell, capsys):
    text = shown(shell, capsys, "import workbench as wb", "wb.types.Task(1 / 0)")
    assert "Traceback" in text and "ZeroDivisionError" in text


def test_a_fault_in_ones_own_file_is_shown_where_it_is(shell, capsys, module):
    line = module("import_bad", "x = 1\ny = {}[x]\n", "y =")
    text = shown(shell, capsys, "import workbench as wb", "wb.load_config('import_bad:Guess')")
    assert f"import_bad.py in <module>, line {line}" in text and f"----> {line} y = {{}}[x]" in text


def test_what_a_library_in_rust_raises_is_no_traceback(monkeypatch, capsys, tmp_path):
    """A panic is no Exception."""
    from workbench import cli

    class PanicError(BaseException):
        pass

    def panics(argv):
        raise PanicError("retry limit")

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(cli, "_parsed", panics)
    assert cli.run(["show", "x"]) == 3
    said = capsys.readouterr().err
    assert "unexpected PanicError: retry limit" in said and "Traceback" not in said
    for stop in (SystemExit(2), KeyboardInterrupt()):
        monkeypatch.setattr(cli, "_parsed", lambda argv, stop=stop: (_ for _ in ()).throw(stop))
        if isinstance(stop, SystemExit):
            with pytest.raises(SystemExit):
                cli.run([])
        else:
            assert cli.run([]) == 130
