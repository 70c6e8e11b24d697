"""Numbers of a command line, and code that ends the process in place of the command."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from workbench.cli import run
from workbench.cli.numbers import decimal, decimal_above_zero, decimal_from_zero, number_from_zero
from workbench.cli.parser import make_parser

ODD = ["nan", "inf", "-inf", "1e400", "١", "²", "0x10", "1_000", "", " 1", "1" * 5000, "\ud800"]
OWN = Path(__file__).resolve().parents[2]


def options() -> list[tuple[str, argparse.Action]]:
    [commands] = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    for sub in commands.choices.values():
        sub.complete()
    return [(name, action) for name, sub in commands.choices.items() for action in sub._actions]


def test_no_option_of_any_command_takes_a_number_as_python_does():
    """`int` and `float` take nan, ١ and 1_000, and what a command does with them nobody has thought
    of."""
    assert not [(name, action.dest) for name, action in options() if action.type in (int, float)]
    assert len(options()) > 150  # the negative control: they were looked at


@pytest.mark.parametrize("kind", [decimal, decimal_above_zero, decimal_from_zero, number_from_zero])
def test_what_is_no_number_is_refused(kind):
    for text in ODD:
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            kind(text)


def test_negative_control_numbers_are_read_as_they_are_written():
    assert [decimal(text) for text in ("-1.5", "1e-3", ".5", "3.")] == [-1.5, 1e-3, 0.5, 3.0]
    assert decimal_above_zero("1E2") == 100 and decimal_from_zero("0") == 0
    assert (
        number_from_zero("0") == 0 and number_from_zero("123456789012345678") == 123456789012345678
    )
    for kind, text in (
        (decimal_above_zero, "0"),
        (decimal_from_zero, "-1"),
        (number_from_zero, "-1"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match="expected"):
            kind(text)


@pytest.mark.parametrize("seconds", ["nan", "-1", "0", "inf"])
def test_check_env_is_not_played_for_no_time(seconds, capsys):
    with pytest.raises(SystemExit) as ended:
        run(["check-env", "frozenlake-4x4", "--seconds", seconds])
    assert ended.value.code == 2 and "--seconds" in capsys.readouterr().err


ENDING = """
from dataclasses import dataclass
import os, sys
{above}
class Own:
    def reset(self, task, dynamics_seed): {ends}
    def step(self, action_text): pass
@dataclass(frozen=True)
class Family:
    max_turns: int = 2
    name = "own"
    def task(self, task_seed):
        from workbench.values import Task
        {drawn}
        return Task(f"own/{{task_seed}}", "own", task_seed, {{}})
    def make(self): return Own()
    def random_action(self, env, rng): return "x"
"""
PLACES = {
    "os._exit while it is played": {"ends": "os._exit(0)"},
    "os._exit while it is imported": {"above": "os._exit(0)"},
    "sys.exit while tasks are made": {"drawn": "sys.exit(0)"},
}


@pytest.mark.parametrize("what", PLACES)
def test_an_environment_that_ends_the_process_has_not_passed(what, tmp_path):
    """With status 0 of its own it would pass for one without errors."""
    parts = {"above": "", "ends": "pass", "drawn": "pass"} | PLACES[what]
    (tmp_path / "ends.py").write_text(ENDING.format(**parts))
    words = [
        sys.executable,
        "-P",
        "-m",
        "workbench.cli",
        "check-env",
        "ends:Family",
        "--tasks",
        "2",
    ]
    done = subprocess.run(
        [*words, "--seconds", "0.1"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(OWN)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode in (1, 2), (done.returncode, done.stdout, done.stderr)
    assert "exit" in (done.stdout + done.stderr).lower() and "Traceback" not in done.stderr


WAITING = """
import signal, sys, time
from workbench import cli
# A test run in the background ignores them.
signal.signal(signal.SIGHUP, signal.SIG_IGN if sys.argv[2] == "ignored" else signal.SIG_DFL)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
def wait(args):
    print("waits", flush=True)
    time.sleep(float(sys.argv[1]))
    return 0
class Args: run = staticmethod(wait)
cli._parsed = lambda argv: Args
sys.exit(cli.run([]))
"""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ends_a_command_is_told(number):
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "60", ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout.readline() == "waits\n"
        command.send_signal(number)
        said = command.communicate(timeout=60)[1]
    assert command.returncode == 128 + number and "committed steps are kept" in said


def test_negative_control_who_is_started_without_a_terminal_goes_on():
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, "1", "ignored"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        assert command.stdout.readline() == "waits\n"
        command.send_signal(signal.SIGHUP)
        command.communicate(timeout=60)
    assert command.returncode == 0
