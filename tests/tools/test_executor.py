"""Calls run side by side with a deadline each; whatever a tool does, its slot is free again and the agent is told."""

import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import tool_zoo as zoo
from tool_envs import ZooFamily
from tool_envs import task as zoo_task

from workbench.tools import tool
from workbench.tools.base import ToolResult
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.shared_workers import shared_workers
from workbench.tools.workers.frames import TIMES, frame
from workbench.tools.workers.worker import READ, Worker
from workbench.values import Task, ToolCall
from workbench.values.errors import ConfigError, ToolError
from workbench.worlds.runners import InlineRunner, ThreadRunner
from workbench.worlds.workers.env_runner import ProcessRunner

TASK = Task("t1", "zoo", 0, {"question": "who?"})
ZOO = (zoo.misbehave, zoo.add, zoo.slowly, zoo.asks, zoo.Counter, zoo.Unmakeable)
FOLDER = Path(__file__).parent


@pytest.fixture(scope="module", autouse=True)
def pool():
    yield shared_workers().pool
    shared_workers().shutdown()


@pytest.fixture
def executor():
    made = []

    def make(*tools, task=TASK, **limits):
        made.append(
            ToolExecutor(
                tools or ZOO, ToolLimits(**{"deadline_s": 0.4, "most_calls": 8} | limits), task
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


def call(executor, name, **arguments):
    [result] = executor.run([ToolCall(name, arguments)])
    return result


def misbehave(executor, how, what=""):
    return call(executor, "misbehave", how=how, what=what)


def gone(pid, within_s=10.0):
    """Whether a process ends; a zombie has ended, and somebody has yet to look."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def written(path):
    while not Path(path).exists():
        time.sleep(0.01)
    return int(Path(path).read_text())


# ------------------------------------------------------------------------------------------------ side by side


def test_results_come_in_the_order_of_the_calls(executor):
    calls = [
        ToolCall("slowly", {"seconds": 0.2, "text": "first"}),
        ToolCall("slowly", {"seconds": 0.0, "text": "second"}),
        ToolCall("add", {"a": 1, "b": 2}),
        ToolCall("nothing", {}),
        ToolCall("add", {"a": "1", "b": 2}),
    ]
    results = executor(deadline_s=20.0).run(calls)
    assert [result.text for result in results[:3]] == ["first", "second", "3"]
    assert [result.error for result in results] == ["", "", "", "unknown_tool", "bad_arguments"]
    assert (
        "There are: misbehave, add" in results[3].text
        and 'whole number for "a", got 1' in results[4].text
    )


@pytest.mark.parametrize("workers", [2, 1])
def test_calls_run_at_the_same_time(executor, tmp_path, workers, monkeypatch):
    """With one worker too: the first call is stuck by then, and what is stuck keeps nobody waiting."""
    monkeypatch.setattr("workbench.tools.shared_workers.PATIENCE_S", 0.1)
    calls = [
        ToolCall("misbehave", {"how": "meet", "what": f"{tmp_path}/{a} {tmp_path}/{b}"})
        for a, b in ("ab", "ba")
    ]
    assert [result.text for result in executor(deadline_s=20.0, workers=workers).run(calls)] == [
        "met",
        "met",
    ]


def test_more_calls_than_may_be_are_not_run(executor, tmp_path):
    results = executor(most_calls=1, deadline_s=20.0).run([ToolCall("add", {"a": 1, "b": 2})] * 3)
    assert [result.error for result in results] == ["", "too_many", "too_many"]
    assert "3 calls in one turn, and at most 1 are taken" in results[1].text


def test_trusted_tools_run_in_the_callers_thread_one_after_the_other(executor):
    seen = []

    @tool(trusted=True)
    def here(text: str) -> str:
        """Here."""
        seen.append((text, threading.get_ident()))
        if text == "b":
            raise SystemExit("c")
        return text * 9

    results = executor(here, most_bytes=4).run([ToolCall("here", {"text": text}) for text in "abc"])
    assert seen == [(text, threading.get_ident()) for text in "abc"]
    assert [result.text for result in results] == [
        "aaaa\n[cut: 4 of 9 bytes]",
        "Erro\n[cut: 4 of 32 bytes]",
        "cccc\n[cut: 4 of 9 bytes]",
    ]


def test_executors_of_several_threads_share_the_pool(executor):
    executors, found = [executor(workers=1, deadline_s=30.0) for _ in range(3)], {}

    def work(index):
        found[index] = [call(executors[index], "add", a=index, b=turn).text for turn in range(10)]

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert found == {index: [str(index + turn) for turn in range(10)] for index in range(3)}


# ------------------------------------------------------------------------------------------------ whatever a tool does

ENDS = {
    "sleep": ("timeout", "gave no answer within 0.4 s and was stopped"),
    "deaf": ("timeout", "gave no answer within 0.4 s"),
    "busy": ("timeout", "gave no answer within 0.4 s"),
    "endless": ("", "of many more bytes]"),
    "descriptors": ("died", "wrote into its worker's connection"),
    "exit": ("raised", "raised SystemExit: 3"),
    "_exit": ("died", "died during the call by ending itself with exit code 3"),
    "segfault": ("died", "SIGSEGV"),
    "killed": ("died", "SIGKILL"),
    **{kind: ("raised", f"raised {kind}") for kind in zoo.RAISED},
}


@pytest.mark.parametrize("how", ENDS)
def test_a_tool_that_misbehaves_is_a_result_and_the_next_call_is_answered(executor, how):
    kind, words = ENDS[how]
    with_it = executor(deadline_s=0.4 if kind == "timeout" else 20.0)
    result = misbehave(with_it, how)
    assert result.error == kind and words in result.text
    assert call(executor(deadline_s=20.0), "add", a=1, b=2) == ToolResult("3")


def test_a_hundred_megabytes_are_cut_where_they_are_made(executor):
    result = misbehave(executor(deadline_s=60.0), "100 MB")
    assert (
        result.cut_bytes == 99_998_000
        and result.text == "é" * 1000 + "\n[cut: 2,000 of 100,000,000 bytes]"
    )


def test_what_a_tool_prints_is_no_answer(executor, capfd):
    assert misbehave(executor(deadline_s=60.0), "prints").text == "printed"
    assert capfd.readouterr() == ("", "")


def test_memory_is_bounded(executor):
    result = misbehave(executor(deadline_s=60.0, most_memory=1 << 29), "memory")
    assert (result.error, result.text) == ("raised", "Error: misbehave raised MemoryError: ")


def test_a_tool_that_forks_answers_once(executor):
    with_it = executor(deadline_s=20.0)
    assert misbehave(with_it, "forks").text == "parent"
    assert call(with_it, "add", a=1, b=2).text == "3"


def test_a_giant_frame_is_refused_by_its_first_bytes():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        worker = Worker(1, ours)
        theirs.sendall(frame(TIMES.pack(0.0, 0.0)) + (1 << 30).to_bytes(4, "big") + b"x" * 50_000)
        assert worker.take_in(1000) == [] and worker.garbled == "1,073,741,824 bytes in one answer"
        assert len(worker.incoming) <= READ


def test_who_misses_the_deadline_is_killed_with_all_that_it_started(executor, tmp_path):
    assert (
        misbehave(executor(deadline_s=2.0), "say and sleep", f"{tmp_path}/pid").error == "timeout"
    )
    assert gone(written(tmp_path / "pid"))
    assert misbehave(executor(deadline_s=3.0), "let loose", f"{tmp_path}/loose").error == "timeout"
    assert gone(written(tmp_path / "loose"))


def test_an_interrupt_ends_what_is_going_on(executor, tmp_path):
    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a suite in the background ignores it

    def interrupt():
        written(tmp_path / "pid")
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        misbehave(executor(deadline_s=60.0), "say and sleep", f"{tmp_path}/pid")
    signal.signal(signal.SIGINT, before)
    thread.join()
    assert gone(written(tmp_path / "pid"))
    assert call(executor(deadline_s=20.0), "add", a=1, b=2).text == "3"


def test_a_supervisor_that_was_killed_is_replaced(executor, pool):
    with_it = executor(deadline_s=20.0)
    before = int(misbehave(with_it, "pid").text)
    os.kill(pool.supervisor_pid, signal.SIGKILL)
    assert gone(before)
    after = [misbehave(with_it, "pid") for _ in range(2)][-1]
    assert not after.error and int(after.text) != before


# ------------------------------------------------------------------------------------------------ state


def test_state_belongs_to_a_trajectory_and_its_calls_keep_their_order(executor, pool):
    one, other = executor(deadline_s=20.0), executor(task=Task("t2", "zoo", 0), deadline_s=20.0)
    calls = [ToolCall("Counter", {"wait": wait}) for wait in (0.1, 0.0, 0.0)]
    assert [result.text for result in one.run(calls)] == ["1 for t1", "2 for t1", "3 for t1"]
    assert call(other, "Counter").text == "1 for t2" and call(one, "Counter").text == "4 for t1"
    before = pool.alive
    one.close(), other.close(), one.close()
    assert pool.alive == before - 2


def test_state_that_was_lost_is_told(executor):
    with_it = executor(deadline_s=0.5)
    texts = [
        result.text
        for result in with_it.run([ToolCall("Counter", {"wait": wait}) for wait in (0.0, 9.0, 0.0)])
    ]
    assert texts[0] == "1 for t1" and texts[2] == "1 for t1"
    assert texts[1].endswith("was stopped. Its state is lost: the next call begins anew.")


def test_a_tool_that_asks_for_the_task_is_made_for_it(executor, pool):
    assert call(executor(deadline_s=20.0), "asks", word="hi").text == "hi for t1: who?"
    other = Task("t9", "zoo", 0, {"question": "where?"})
    assert (
        call(executor(task=other, deadline_s=20.0), "asks", word="hi").text == "hi for t9: where?"
    )


def test_a_tool_that_cannot_be_made_is_a_result(executor):
    assert (
        call(executor(), "Unmakeable").text
        == "Error: Unmakeable could not be started: LookupError: no such thing"
    )


# ------------------------------------------------------------------------------------------------ what cannot be run


def in_a_notebook(text: str) -> str:
    """Text."""
    return text


def test_a_tool_that_no_worker_can_import_is_refused_with_what_to_do(executor, monkeypatch):
    with pytest.raises(ToolError, match="defined inside a function of .*or mark it trusted=True"):
        executor(tool(lambda text: text, name="f", parameters={"type": "object"}))
    monkeypatch.setattr(in_a_notebook, "__module__", "__main__")
    with pytest.raises(
        ToolError,
        match="notebook or script.*%%writefile my_code.py, then `from my_code import in_a_note",
    ):
        executor(tool(in_a_notebook))
    assert call(executor(tool(in_a_notebook, trusted=True)), "in_a_notebook", text="x").text == "x"
    with pytest.raises(
        ToolError, match="'plain' is a Plain, which worker processes cannot be handed: .*by @tool"
    ):
        executor(zoo.Plain())
    with pytest.raises(ToolError, match="a name of its own"):
        executor(zoo.add, zoo.add)


@dataclass(frozen=True)
class Missing:
    name: str = "missing"
    description: str = ""
    parameters: object = None
    trusted: bool = False
    stateful: bool = False


def test_a_module_that_only_the_trainer_has_is_a_result(executor, monkeypatch):
    monkeypatch.setattr(Missing, "__module__", "nowhere_at_all")
    assert (
        "could not be started: EnvError: in a worker process, which sees the same sys.path and folder as the run, code "
        in call(executor(Missing()), "missing").text
    )


def test_a_folder_that_was_added_after_the_workers_began_is_searched(
    executor, tmp_path, monkeypatch
):
    assert call(executor(), "add", a=1, b=2).text == "3"  # so a worker stands ready
    (tmp_path / "added_later.py").write_text(
        'def greet(whom: str) -> str:\n    """Greets."""\n    return f"Hello {whom}"\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    added_later = importlib.import_module("added_later")
    assert (
        call(executor(tool(added_later.greet, trusted=False)), "greet", whom="Ada").text
        == "Hello Ada"
    )


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"deadline_s": 0}, "deadline_s is above 0; got 0"),
        ({"workers": 0}, "workers is at least 1 and at most 10,000; got 0"),
    ],
)
def test_limits_that_cannot_be_are_refused(limits, words):
    with pytest.raises(ConfigError, match=words):
        ToolLimits(**limits)


# ------------------------------------------------------------------------------------------------ nothing is left


def open_files():
    return len(os.listdir("/proc/self/fd"))


def children_of(pid):
    return [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]


@pytest.mark.parametrize("rounds", [20, pytest.param(500, marks=pytest.mark.full)])
def test_many_calls_leave_nothing_behind(executor, pool, rounds):
    with_it = executor(deadline_s=20.0)
    call(with_it, "add", a=1, b=2)
    before = open_files()
    for index in range(rounds):
        assert call(with_it, "add", a=index, b=1).text == str(index + 1)
        if index % 10 == 0:
            assert misbehave(with_it, "killed").error == "died"
        elif index % 10 == 5:
            of_one_trajectory = executor(deadline_s=20.0)
            assert call(of_one_trajectory, "Counter").text == "1 for t1"
            of_one_trajectory.close()
        else:
            assert misbehave(with_it, "ValueError").error == "raised"
    assert open_files() <= before + 1  # a second worker may be warm by now
    until = time.monotonic() + 10
    while len(children_of(pool.supervisor_pid)) != pool.alive and time.monotonic() < until:
        time.sleep(0.02)
    assert len(children_of(pool.supervisor_pid)) == pool.alive


ORPHANS = """
import sys; sys.path[:0] = [{folder!r}]
import tool_zoo as zoo
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.values import ToolCall
calls = [ToolCall("misbehave", {{"how": "say and sleep", "what": {pid!r} + name}}) for name in "ab"]
ToolExecutor([zoo.misbehave], ToolLimits(deadline_s=60.0)).run(calls)
"""


def test_workers_die_with_the_trainer(tmp_path):
    script = ORPHANS.format(folder=str(FOLDER), pid=str(tmp_path / "pid"))
    trainer = subprocess.Popen([sys.executable, "-c", script])
    pids = [written(tmp_path / f"pid{name}") for name in "ab"]
    supervisor = children_of(trainer.pid)
    assert set(children_of(supervisor[0])) == set(pids)
    trainer.kill()
    trainer.wait()
    assert all(gone(pid) for pid in [*pids, *supervisor])


# ------------------------------------------------------------------------------------------------ in an environment


def answers(runner, keys):
    found = {}
    while len(found) < keys:
        found |= {answer.key: answer for answer in runner.poll(0.1)}
    return found


@pytest.mark.parametrize(
    "make",
    [InlineRunner, ThreadRunner, lambda: ProcessRunner(workers=1)],
    ids=["inline", "threads", "processes"],
)
def test_an_environment_may_hold_tools_wherever_it_lives(make):
    runner, family = make(), ZooFamily(deadline_s=3.0)
    write = family.make().format.write_call
    for key in "ab":
        runner.reset(key, family, zoo_task(key), 0)
    assert not any(answer.error for answer in answers(runner, 2).values())
    pids = []
    for turn in range(2):
        for key in "ab":
            runner.step(
                key,
                write("Counter", {})
                + write("misbehave", {"how": "pid"})
                + write("misbehave", {"how": "exit"}),
            )
        for key, answer in answers(runner, 2).items():
            assert not answer.error
            texts = [message.text for message in answer.result.observation.messages]
            assert (
                texts[0] == f"{turn + 1} for {key}"
                and texts[2] == "Error: misbehave raised SystemExit: 3"
            )
            pids.append(int(texts[1]))
    for key in "ab":
        runner.close(key)
    runner.shutdown()
    if isinstance(runner, ProcessRunner):
        assert all(gone(pid) for pid in pids)
