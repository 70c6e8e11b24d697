"""Sandboxes that start programs of the machine, and the shell tool on them."""

from __future__ import annotations

import os
import subprocess
import time
from contextlib import closing

import pytest

from tests.sandbox.grounds import CANARY, grounds, need_tier
from workbench.extensions.sandbox.pool import shared_pool
from workbench.extensions.sandbox.sandboxes import SandboxSettings, open_sandbox
from workbench.extensions.sandbox.shell_tool import ShellTool
from workbench.tools import tools_named
from workbench.tools.executor import ToolExecutor
from workbench.values import Task, ToolCall
from workbench.values.errors import ConfigError, ToolError

PROGRAMS = SandboxSettings(programs=True, warm=0)
# What somebody tries who has a shell; each prints ESCAPED where it gets out.
BY_SHELL = {
    "a secret of the machine": "grep -q canary {secret} && echo ESCAPED",
    "its users": "grep -q ^root: /etc/passwd && echo ESCAPED",
    "a folder of the machine": "touch {folder}/x && echo ESCAPED",
    "a program of the machine is written over": "touch -c /usr/bin/env && test -w /usr/bin/env && echo ESCAPED",
    "the network, by bash": "exec 3<>/dev/tcp/127.0.0.1/{port} && echo ESCAPED",
    "another process": "kill -0 {victim} && echo ESCAPED",
    "what other processes were given": "cat /proc/{victim}/environ | grep -q canary && echo ESCAPED",
    "a file of another owner": "touch /usr/local/x && rm /usr/local/x && echo ESCAPED",
}
ROOT_ONLY = (
    "a folder of the machine",
    "a program of the machine is written over",
    "a file of another owner",
)


@pytest.fixture(autouse=True, scope="module")
def there():
    need_tier("namespaces")


@pytest.fixture
def sandbox():
    with open_sandbox(PROGRAMS) as opened:
        yield opened


@pytest.fixture
def shell():
    with closing(ToolExecutor(tools_named(["shell"]), task=Task("t", "", 0))) as executor:
        yield lambda command: executor.run([ToolCall("shell", {"command": command})])[0]


def test_a_program_is_run_and_what_it_says_is_told_apart(sandbox):
    ran = sandbox.start(["sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (ran.status, ran.out, ran.err, ran.error) == (7, b"out\n", b"err\n", "")
    assert sandbox.start(["sh", "-c", "kill -TERM $$"]).status == -15
    assert (
        sandbox.start(["env"], environment={"ONE": "two"})
        .out.decode()
        .splitlines()
        .count("ONE=two")
        == 1
    )
    sandbox.write_file("given", b"abc")
    assert sandbox.start(["wc", "-c"], given="/work/given").out.split() == [b"3"]
    assert sandbox.start(["no-such-program"]).said.startswith("FileNotFoundError")


def test_output_of_a_program_is_bounded_and_counted(sandbox):
    ran = sandbox.start(["head", "-c", "3000000", "/usr/bin/bash"], most=1000)
    size = min(3_000_000, os.path.getsize("/usr/bin/bash"))
    assert len(ran.out) == 1000 and ran.cut == size - 1000
    assert len(
        sandbox.start(["head", "-c", "1200000", "/usr/bin/bash"], most=2_000_000).out
    ) == min(size, 1_200_000)


def test_a_program_that_is_late_is_killed_with_its_children_and_the_sandbox_goes_on(sandbox):
    sandbox.write_file("kept", b"x")
    began = time.monotonic()
    ran = sandbox.start(
        ["sh", "-c", "while true; do echo >> ticks; sleep 0.01; done & sleep 60"], seconds=0.5
    )
    assert ran.error == "late" and not ran.lost and time.monotonic() - began < 10
    before = sandbox.start(["wc", "-l", "ticks"]).out
    assert int(before.split()[0]) > 0
    sandbox.start(["sleep", "0.3"])
    assert sandbox.start(["wc", "-l", "ticks"]).out == before and sandbox.read_file("kept") == b"x"


def test_without_programs_none_is_started_and_landlock_has_none():
    with open_sandbox(SandboxSettings(tier="namespaces")) as plain:
        assert plain.run("import subprocess; subprocess.run(['/usr/bin/env'])").error == "raised"
        assert plain.start(["/usr/bin/env"]).error == "raised"
    with pytest.raises(ConfigError, match="sandbox.programs = true needs"):
        SandboxSettings(tier="landlock", programs=True)


def test_processes_are_bounded(sandbox):
    ran = sandbox.start(["bash", "-c", "for n in $(seq 30); do sleep 5 & done"], seconds=1.0)
    assert b"Resource temporarily unavailable" in ran.err or b"fork" in ran.err, ran


@pytest.mark.parametrize("name", BY_SHELL)
def test_nothing_outside_is_reached_by_a_shell(name):
    with grounds("root" if os.geteuid() == 0 else "nobody") as values:
        command = BY_SHELL[name].format(**values)
        with open_sandbox(PROGRAMS) as sandbox:
            ran = sandbox.start(["bash", "-c", command], seconds=5.0)
        assert b"ESCAPED" not in ran.out and CANARY.encode() not in ran.out + ran.err
        without = subprocess.run(["bash", "-c", command], capture_output=True, timeout=30)
        assert b"ESCAPED" in without.stdout or os.geteuid() and name in ROOT_ONLY, (
            "negative control"
        )


# ------------------------------------------------------------------------------------------------ the tool


def test_files_and_the_folder_are_kept_and_variables_are_not(shell):
    assert shell("mkdir a && cd a && echo one > f && x=1").text == "(nothing was printed)"
    assert shell("pwd; cat f; echo $x").text == "/work/a\none\n\n"
    assert shell("cd / && exit 3").text == "[exit status 3]\n"
    assert shell("pwd").text == "/\n"
    shell("cd /work/a && rm -r /work/a")
    assert shell("pwd").text == "/work\n"


def test_what_goes_wrong_is_said(shell):
    assert "command not found" in shell("no_such_command").text
    assert shell("echo x >&2").text == "x\n"
    assert "[cut: " in shell("seq 100000").text
    assert shell("echo $$ > /tmp/.folder; trap - EXIT; echo").error == ""


def test_a_command_that_is_late_leaves_the_files():
    tool = ShellTool(SandboxSettings(programs=True, seconds=0.5)).for_trajectory(Task("t", "", 0))
    tool.call({"command": "echo kept > f"})
    late = tool.call({"command": "sleep 60"})
    assert late.error == "timeout" and "Its files are kept" in late.text
    assert tool.call({"command": "cat f"}).text == "kept\n"
    tool.close()


def test_a_state_is_made_again_by_its_commands():
    """As a branch does: the commands that made it, run again."""
    first, second = (ShellTool().for_trajectory(Task("t", "", 0)) for _ in range(2))
    first.call({"command": "mkdir d; cd d; echo 1 > n"})
    second.replay(first.cells)
    first.call({"command": "echo 2 > n"})
    assert (
        second.call({"command": "pwd; cat n"}).text == "/work/d\n1\n"
        and first.call({"command": "cat n"}).text == "2\n"
    )
    first.close()
    second.close()


def test_where_no_sandbox_can_be_had_it_refuses(monkeypatch):
    monkeypatch.setattr(
        shared_pool(), "_works", {"namespaces": "no user namespaces", "landlock": ""}
    )
    with pytest.raises(
        ToolError, match="sandbox.tier = 'namespaces' does not work here: no user namespaces"
    ):
        ShellTool(SandboxSettings(programs=True, disk_mb=3)).call({"command": "echo"})
