"""Environments in worker processes: killed at their deadline, run again after a crash, and never left behind."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worker_envs import Fickle, Holding, said

from workbench.rollouts.evaluate import evaluate_baselines
from workbench.tools.workers.values import describe, rebuild
from workbench.values import Message, Observation, StepResult, Task, Text
from workbench.values.errors import EnvError
from workbench.worlds import Bandit, FrozenLake
from workbench.worlds import tasks as env_tasks
from workbench.worlds.runners import EnvAnswer, InlineRunner
from workbench.worlds.workers import env_wire
from workbench.worlds.workers.env_runner import ProcessRunner

FOLDER = Path(__file__).parent


@pytest.fixture
def runner():
    runner = ProcessRunner(deadline_s=30, workers=2)
    yield runner
    runner.shutdown()


def answers(runner, count, seconds=40):
    until, got = time.monotonic() + seconds, []
    while len(got) < count and time.monotonic() < until:
        got += runner.poll(0.2)
    assert len(got) == count, f"{len(got)} of {count} calls were answered"
    return {answer.key: answer for answer in got}


def begin(runner, keys, family=Fickle(), task=None):
    for seed, key in enumerate(keys):
        runner.reset(key, family, Task(task or key, "fickle", seed), seed)
    return answers(runner, len(keys))


def do(runner, **actions):
    for key, action in actions.items():
        runner.step(key, action)
    return answers(runner, len(actions))


def text(answer):
    return answer.result.observation.messages[0].content[0].text


def alive(pid):
    """False for one that is gone or a zombie that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(holds, seconds=10.0):
    """Seconds until `holds()`; fails if it never does."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() < began + seconds
        time.sleep(0.005)
    return time.monotonic() - began


# ------------------------------------------------------------------------------------------------ the same answers


@pytest.mark.parametrize(
    "family", [FrozenLake(slip=0.3), FrozenLake(think=False), Bandit()], ids=str
)
def test_answers_are_those_of_the_inline_runner(runner, family):
    inline, rng = InlineRunner(), np.random.default_rng(0)
    for task in env_tasks(family, "train", 3):
        env = family.make()
        env.reset(task, 5)
        actions = [family.random_action(env, rng) for _ in range(2)] + [
            "no format at all \ud800 <|im_end|>"
        ]
        for each in (inline, runner):
            each.reset(task.id, family, task, 5)
            got = [answers(each, 1)[task.id]]
            for action in actions:
                each.step(task.id, action)
                got.append(answers(each, 1)[task.id])
            got = [replace(answer, seconds=0.0) for answer in got]
            if each is inline:
                expected = got
        assert got == expected and any(answer.result for answer in got)


def test_workers_hold_several_environments_and_no_tensor_library(runner):
    begin(runner, "abcdefgh")
    pids = {text(answer) for answer in do(runner, **dict.fromkeys("abcdefgh", "pid")).values()}
    assert len(pids) == 2 and str(os.getpid()) not in pids
    assert text(do(runner, a="modules")["a"]) == ""


def test_what_an_environment_prints_stays_off_the_output_of_the_run(capfd):
    runner = ProcessRunner(workers=1)
    begin(runner, "a")
    do(runner, a="print some words")
    runner.shutdown()
    assert capfd.readouterr() == ("", "some words\n")


# ------------------------------------------------------------------------------------------------ deadlines


@pytest.mark.parametrize("way", ["sleep", "busy", "deaf"])
def test_a_hung_environment_is_killed_and_its_siblings_go_on_where_they_were(way):
    runner = ProcessRunner(deadline_s=1.0, workers=1)
    begin(runner, "abc")
    pid = int(text(do(runner, a="pid")["a"]))
    do(runner, b="go", c="go")
    runner.step("a", f"hang {way}")
    runner.step("b", "go")
    got = answers(runner, 2)
    late = got["a"]
    assert (
        late.timed_out
        and "no answer within 1 s; its worker was killed" in late.error
        and late.result is None
    )
    assert 1.0 <= late.seconds
    assert text(got["b"]) == "go, 2. of seed 1"
    wait_until(lambda: not alive(pid))
    runner.close("a")
    assert text(do(runner, c="go")["c"]) == "go, 2. of seed 2" and runner.poll(0.05) == []
    runner.shutdown()


def test_siblings_do_not_wait_for_the_deadline_of_a_hung_one(runner):
    """Deadlines are far away: with both workers stuck, the others are answered by workers that took their place."""
    begin(runner, "abcdefgh")
    do(runner, **dict.fromkeys("abcdefgh", "go"))
    for key in "ab":
        runner.step(key, "hang")
    got = do(runner, **dict.fromkeys("cdefgh", "go"))
    assert [text(got[key]) for key in "cdefgh"] == [
        f"go, 2. of seed {seed}" for seed in range(2, 8)
    ]


@pytest.mark.parametrize(
    "family, workers", [(Holding(), 1), (Fickle(), 2)], ids=["holds a session", "control"]
)
def test_a_trajectory_that_holds_a_session_is_not_made_twice(family, workers):
    """Who waits behind an unusually slow step moves to another worker, but not with something of which there are few."""
    runner = ProcessRunner(deadline_s=60.0, workers=1)
    begin(runner, "ab", family)
    do(runner, a="go", b="go")
    assert text(do(runner, a="slow 0.6", b="go")["b"]) == "go, 2. of seed 1"
    assert len(runner._slots.workers) == workers
    runner.shutdown()


def test_slow_steps_are_not_taken_for_stuck_ones():
    """More workers would compete for the cores and make every step slower still."""
    runner = ProcessRunner(deadline_s=60.0, workers=1)
    begin(runner, "abcd")
    got = do(runner, **dict.fromkeys("abcd", "slow 0.3"))
    assert all(text(got[key]).startswith("slow 0.3, 1.") for key in "abcd")
    assert [worker.number for worker in runner._slots.workers] == [1]
    runner.shutdown()


def test_answers_that_waited_for_the_trainer_longer_than_the_deadline_are_taken():
    """Long ones: their worker cannot go on before they are read, and what stands behind them has not begun."""
    runner = ProcessRunner(deadline_s=0.5, workers=1)
    begin(runner, "abc")
    for key, action in {"a": "long 600000", "b": "go", "c": "long 900000"}.items():
        runner.step(key, action)
    time.sleep(1.0)
    got = answers(runner, 3)
    assert [len(text(got[key])) for key in "ac"] == [600_000, 900_000] and text(
        got["b"]
    ) == "go, 1. of seed 1"
    runner.step("a", "long 600000")
    runner.step("b", "hang")
    time.sleep(1.0)
    got = answers(runner, 2)
    assert not got["a"].timed_out and got["b"].timed_out, (
        "control: who does not answer is killed all the same"
    )
    runner.shutdown()


def test_half_an_answer_is_not_waited_for_for_ever():
    runner = ProcessRunner(deadline_s=0.5, workers=1)
    begin(runner, "a")
    runner.step("a", "half")
    assert answers(runner, 1)["a"].timed_out
    runner.shutdown()


def hang_some(runner, count, hung):
    """Start `count` trajectories, let every one take a step in which `hung` of them hang; (seconds of the batch, answers)."""
    keys = [f"k{i}" for i in range(count)]
    begin(runner, keys)
    began = time.monotonic()
    got = do(
        runner, **{key: "hang" if i % (count // hung) == 0 else "go" for i, key in enumerate(keys)}
    )
    return time.monotonic() - began, got


def test_twenty_of_twenty_hung_environments_are_freed():
    runner = ProcessRunner(deadline_s=1.0)
    seconds, got = hang_some(runner, 40, 20)
    late = [answer.seconds for answer in got.values() if answer.timed_out]
    print(
        f"20 hung: freed after {min(late):.2f} to {max(late):.2f} s, batch of 40 in {seconds:.2f} s"
    )
    assert len(late) == 20 and sum(answer.result is not None for answer in got.values()) == 20
    assert max(late) < 1.0 + 4  # 0.5 on an idle machine; this one may be busy
    runner.shutdown()


@pytest.mark.full
def test_five_hundred_trajectories_of_which_one_in_ten_hangs():
    runner = ProcessRunner(deadline_s=10.0)
    seconds, got = hang_some(runner, 500, 50)
    late = [answer.seconds for answer in got.values() if answer.timed_out]
    print(
        f"50 of 500 hung: freed after {min(late):.2f} to {max(late):.2f} s, batch in {seconds:.2f} s"
    )
    assert len(late) == 50 and sum(answer.result is not None for answer in got.values()) == 450
    assert seconds < 10.0 * 4  # 11 on an idle machine; one after the other they would be 250
    runner.shutdown()


def test_slow_environments_are_answered_by_more_workers_and_charged_with_nothing(runner):
    begin(runner, "abcdefgh")
    got = do(runner, **dict.fromkeys("abcdefgh", "slow 0.2"))
    assert all(answer.result is not None for answer in got.values())


# ------------------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize("way", ["exit", "segfault", "killed"])
def test_an_environment_whose_worker_dies_is_run_again_with_the_same_result(runner, tmp_path, way):
    begin(runner, "ab", Fickle(str(tmp_path)))
    do(runner, a="go", b="go")
    got = do(runner, a=f"die once {way}", b="go")
    assert text(got["a"]) == f"die once {way}, 2. of seed 0" and got["a"].state_key == "after 2"
    assert text(got["b"]) == "go, 2. of seed 1"
    assert text(do(runner, a="go")["a"]) == "go, 3. of seed 0"


@pytest.mark.parametrize(
    "way, words",
    [("exit", "ending itself with exit code 7"), ("segfault", "SIGSEGV"), ("killed", "SIGKILL")],
    ids=["exit", "segfault", "killed"],
)
def test_an_environment_that_always_kills_its_worker_is_given_up(tmp_path, way, words):
    runner = ProcessRunner(workers=1, retries=1)
    begin(runner, "ab", Fickle(str(tmp_path)))
    do(runner, b="go")
    got = do(runner, a=f"die {way}", b="go")
    assert "died 2 times" in got["a"].error and words in got["a"].error and not got["a"].timed_out
    assert text(got["b"]) == "go, 2. of seed 1"  # lived beside it, charged with nothing
    runner.shutdown()


def test_a_worker_that_is_killed_between_two_calls_loses_nothing(runner):
    begin(runner, "abcd")
    do(runner, a="go", b="go", c="go", d="go")
    for pid in {text(answer) for answer in do(runner, **dict.fromkeys("abcd", "pid")).values()}:
        os.kill(int(pid), signal.SIGKILL)
    # What they answered then, they answer otherwise now: their own number is no function of the seed.
    assert all(
        "not deterministic" in answer.error
        for answer in do(runner, a="go", b="go", c="go", d="go").values()
    )
    for key in "abcd":
        runner.close(key)
    begin(runner, "ef")
    before = do(runner, e="go", f="go")
    for worker in pids_of_workers(runner):
        os.kill(worker, signal.SIGKILL)
    after = do(runner, e="go", f="go")
    assert [text(before[key]) for key in "ef"] == ["go, 1. of seed 0", "go, 1. of seed 1"]
    assert [text(after[key]) for key in "ef"] == ["go, 2. of seed 0", "go, 2. of seed 1"]


def pids_of_workers(runner):
    supervisor = runner.supervisor_pid
    return [
        int(pid)
        for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    ]


def test_an_environment_that_answers_otherwise_when_run_again_is_named(runner, tmp_path):
    begin(runner, "a", Fickle(str(tmp_path)))
    do(runner, a="go")
    do(runner, a="chance")
    error = do(runner, a="die once exit")["a"].error
    assert "not deterministic" in error and "after action 2" in error and "messages was" in error


def test_negative_control_chance_that_is_drawn_from_the_seed_is_run_again(runner, tmp_path):
    begin(runner, "a", Fickle(str(tmp_path)))
    do(runner, a="go")
    assert text(do(runner, a="die once exit")["a"]) == "die once exit, 2. of seed 0"


def test_a_run_goes_on_when_the_supervisor_is_killed(runner):
    begin(runner, "ab")
    do(runner, a="go", b="go")
    workers = pids_of_workers(runner)
    os.kill(runner.supervisor_pid, signal.SIGKILL)
    got = do(runner, a="go", b="go")
    assert [text(got[key]) for key in "ab"] == ["go, 2. of seed 0", "go, 2. of seed 1"]
    wait_until(lambda: not any(map(alive, workers)))


def test_trajectories_that_are_begun_when_the_supervisor_has_just_died_go_on_too(runner):
    begin(runner, "ab")
    workers = pids_of_workers(runner)
    os.kill(runner.supervisor_pid, signal.SIGKILL)
    wait_until(lambda: not any(map(alive, workers)))
    assert len(begin(runner, "c")) == 1
    got = do(runner, a="go", b="go", c="go")
    assert [text(got[key]) for key in "abc"] == [
        "go, 1. of seed 0",
        "go, 1. of seed 1",
        "go, 1. of seed 0",
    ]


def test_where_no_worker_can_be_started_the_run_ends_with_the_reason(runner, monkeypatch):
    monkeypatch.setattr("workbench.tools.workers.supervisor._START", "import sys; sys.exit(3)")
    with pytest.raises(EnvError, match="ended by itself before it could start one"):
        begin(runner, "a")


# ------------------------------------------------------------------------------------------------ whatever comes


@pytest.mark.parametrize(
    "action, words",
    [
        ("raise SystemExit", "SystemExit: bye"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt: bye"),
        ("raise MemoryError", "MemoryError: bye"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("raise Unreadable", "text cannot be read"),
        ("raise RecursionError", "RecursionError"),
        ("answer object", "of type object"),
        ("answer lambda", "of type function"),
        ("answer text", "from step, got str"),
        ("answer odd", "cannot be sent: KeyboardInterrupt"),
        ("answer huge", "at most 1,000,000 are taken"),
        ("unheard of", "AttributeError"),
    ],
    ids=lambda value: (
        value.replace(" ", "-") if value.startswith(("raise", "answer", "unheard")) else ""
    ),
)
def test_whatever_an_environment_does_is_an_answer_of_its_own(runner, action, words):
    begin(runner, "ab")
    pid = text(do(runner, a="pid")["a"])
    got = do(runner, a=action, b="go")
    assert words in got["a"].error and got["a"].result is None and not got["a"].timed_out
    assert (
        text(got["b"]) == "go, 1. of seed 1" and text(do(runner, a="pid")["a"]) == pid
    )  # its worker has survived


@pytest.mark.parametrize(
    "action, words",
    [
        ("scribble long", "4,294,967,295 bytes"),
        ("scribble short", "writing into its connection"),
        ("deafen", "SIGKILL"),
    ],
)
def test_an_environment_that_tampers_with_its_worker_is_given_up_and_the_others_go_on(
    action, words
):
    runner = ProcessRunner(workers=1, retries=0)
    begin(runner, "ab")
    got = do(runner, a=action, b="go")
    assert words in got["a"].error and "died 1 times" in got["a"].error
    assert text(got["b"]) == "go, 1. of seed 1"
    runner.shutdown()


def test_a_missing_reward_and_one_that_is_no_number_come_as_they_are(runner):
    begin(runner, "a")
    assert np.isnan(
        do(runner, a="answer nan")["a"].result.reward
    )  # refused above, with the words for it


# ------------------------------------------------------------------------------------------------ nothing is left


TRAINER = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what it starts in the background
sys.path[:0] = [{folder!r}]
from worker_envs import Fickle
from workbench.worlds.workers.env_runner import ProcessRunner
from workbench.values import Task
runner = ProcessRunner(workers=3)
keys = ["busy", "deaf", "spawn", "spawn loose", "idle"]
for key in keys: runner.reset(key, Fickle(), Task(key, "fickle", 0), 0)
count = 0
while count < 5: count += len(runner.poll(1))
runner.step("spawn", "spawn"); runner.step("spawn loose", "spawn loose")
spawned = []
while len(spawned) < 2: spawned += [a.result.observation.messages[0].content[0].text for a in runner.poll(1)]
runner.step("busy", "hang busy"); runner.step("deaf", "hang deaf")
runner.poll(0.5)
ready = f"{{runner.supervisor_pid}} {{spawned[0]}} {{spawned[1]}}"
while True:
    try:
        if ready: print(ready, flush=True)  # said where an interrupt that follows at once is caught
        ready = ""
        time.sleep(100)
    except KeyboardInterrupt:
        runner.step("idle", "go")
        while not (got := runner.poll(1)): pass
        print("still", got[0].result.observation.messages[0].content[0].text, flush=True)
"""


@pytest.fixture
def trainer():
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINER.format(folder=str(FOLDER))],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=FOLDER.parents[1],
    )
    supervisor, *spawned = map(int, process.stdout.readline().split())
    workers = [
        int(pid)
        for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
    ]
    yield process, supervisor, workers, spawned
    process.kill()
    process.wait()
    process.stdout.close()
    for pid in filter(
        alive, spawned
    ):  # of a supervisor that was killed itself, and could take nobody along
        os.kill(pid, signal.SIGKILL)


def test_nothing_survives_a_trainer_that_is_killed(trainer):
    process, supervisor, workers, spawned = trainer
    everyone = [supervisor, *workers, *spawned]
    assert len(workers) >= 3 and all(map(alive, everyone))
    process.kill()
    took = wait_until(lambda: not any(map(alive, everyone)))
    print(f"{len(everyone)} processes, 0 survivors after {took:.2f} s")


def test_workers_do_not_survive_trainer_and_supervisor_killed_at_once(trainer):
    process, supervisor, workers, _ = trainer
    os.kill(supervisor, signal.SIGKILL)
    process.kill()
    wait_until(lambda: not any(map(alive, workers)))


def test_ctrl_c_is_not_seen_by_workers(trainer):
    process, *_ = trainer
    os.killpg(
        process.pid, signal.SIGINT
    )  # what a terminal does: everyone in the foreground gets it
    assert process.stdout.readline() == "still go, 1. of seed 0\n"


def test_what_a_killed_environment_had_started_goes_with_it():
    runner = ProcessRunner(deadline_s=1.0, workers=1)
    begin(runner, "a")
    child = int(text(do(runner, a="spawn")["a"]))
    assert alive(child)
    assert do(runner, a="hang")["a"].timed_out
    wait_until(lambda: not alive(child))
    runner.shutdown()


def handles():
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("rounds", [30, pytest.param(500, marks=pytest.mark.full)])
def test_many_trajectories_leave_no_handle_no_thread_and_no_zombie(tmp_path, rounds):
    outside = handles()
    runner = ProcessRunner(deadline_s=1.0, workers=2)
    begin(runner, "ab")
    inside, most = handles(), 0
    for number in range(rounds):
        keys = [f"{number}-{i}" for i in range(4)]
        begin(runner, keys, Fickle(str(tmp_path)))
        got = do(
            runner,
            **dict(
                zip(
                    keys,
                    [
                        "go",
                        "die once exit",
                        "raise SystemExit",
                        "hang" if number % 25 == 0 else "go",
                    ],
                )
            ),
        )
        assert sum(answer.result is not None for answer in got.values()) == (
            2 if number % 25 == 0 else 3
        )
        for key in keys:
            runner.close(key)
        most = max(most, handles()[0])
    for key in "ab":
        runner.close(key)
    begin(runner, "c")
    assert most <= inside[0] + 16 and handles()[0] <= inside[0] + 2 and handles()[1] == inside[1]
    children = pids_of_workers(runner)
    assert len(children) <= 3 and not [pid for pid in children if not alive(pid)]
    runner.shutdown()
    assert handles() == outside and not any(map(alive, children))


def test_a_call_that_is_let_go_of_does_not_go_on(runner):
    """What an interrupted collect does: nobody polls any more, and still nothing computes on."""
    begin(runner, "ab")
    pid = int(text(do(runner, a="pid")["a"]))
    runner.step("a", "hang busy")
    runner.poll(0.1)
    runner.close("a")
    wait_until(lambda: not alive(pid))
    assert text(do(runner, b="go")["b"]) == "go, 1. of seed 1"


def test_a_runner_that_was_shut_down_starts_anew(runner):
    begin(runner, "a")
    runner.shutdown()
    begin(runner, "a")
    assert text(do(runner, a="go")["a"]) == "go, 1. of seed 0"


# ------------------------------------------------------------------------------------------------ what crosses


def a_function(x):
    return x


@dataclass(frozen=True)
class Settings:
    number: float = 1.0
    words: tuple = ("a", ("b", 2))
    table: dict = None
    inner: object = FrozenLake()
    kind: type = FrozenLake
    how: object = a_function
    name: str = "settings"


def test_a_family_is_rebuilt_from_class_and_fields():
    family = Settings(table={"x": [1, None, True]}, number=float("inf"))
    described = json.loads(json.dumps(describe(family, "the family", env_wire.OTHERWISE)))
    assert rebuild(described) == family


def test_a_family_that_no_worker_can_have_is_refused_with_what_to_do(runner, monkeypatch):
    @dataclass(frozen=True)
    class Local:
        name: str = "local"

    with pytest.raises(
        EnvError, match="defined inside a function of .*Move it to a file of its own"
    ):
        begin(runner, "a", Local())
    monkeypatch.setattr(Fickle, "__module__", "__main__")
    with pytest.raises(
        EnvError, match="notebook or script.*%%writefile my_code.py.*'threads' or 'inline'"
    ):
        begin(runner, "a", Fickle())
    with pytest.raises(EnvError, match="has the key 1"):
        describe(Settings(table={1: "x"}), "the family", env_wire.OTHERWISE)
    with pytest.raises(
        EnvError, match=r"handed the family.table.x as settings, but .*type generator"
    ):
        describe(Settings(table={"x": (i for i in [])}), "the family", env_wire.OTHERWISE)


def test_a_module_that_only_the_trainer_has_is_an_answer(runner, monkeypatch):
    monkeypatch.setattr(Settings, "__module__", "nowhere_at_all")
    begin_answer = begin(runner, "a", Settings(how=None, table={}))["a"]
    assert (
        "'nowhere_at_all:Settings' cannot be imported" in begin_answer.error
        and "sys.path" in begin_answer.error
    )


def test_a_folder_that_was_added_after_the_workers_began_is_searched(tmp_path, monkeypatch):
    runner = ProcessRunner(deadline_s=30, workers=1)
    (tmp_path / "lake_of_today.py").write_text(
        "from dataclasses import dataclass\nfrom workbench.worlds import FrozenLake\n\n"
        "@dataclass(frozen=True)\nclass LakeOfToday(FrozenLake):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    family = importlib.import_module("lake_of_today").LakeOfToday()
    task = family.task(0)
    monkeypatch.undo()  # the control: without the folder, the worker that stands ready does not find the module
    runner.reset("without", family, task, 0)
    assert "'lake_of_today:LakeOfToday' cannot be imported" in answers(runner, 1)["without"].error
    monkeypatch.syspath_prepend(str(tmp_path))
    runner.reset("with", family, task, 0)
    assert answers(runner, 1)["with"].observation == family.make().reset(task, 0)
    runner.shutdown()


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
MESSAGES = st.builds(
    Message,
    st.text(max_size=5),
    st.lists(st.builds(Text, st.text(), st.booleans()), max_size=3).map(tuple),
    st.none() | st.text(max_size=3),
    st.none() | st.text(max_size=3),
)
OBSERVATIONS = st.builds(
    Observation,
    st.lists(MESSAGES, max_size=3).map(tuple),
    st.lists(st.dictionaries(st.text(), PLAIN, max_size=2), max_size=2).map(tuple),
)
RESULTS = st.builds(
    StepResult,
    OBSERVATIONS,
    st.none() | st.floats(),
    st.dictionaries(st.text(), st.floats(), max_size=2),
    st.booleans(),
    st.booleans(),
    st.dictionaries(st.text(), PLAIN, max_size=3),
)


@settings(max_examples=150)
@given(OBSERVATIONS | RESULTS, st.none() | st.text(max_size=5))
def test_every_answer_arrives_as_it_was_given(value, state_key):
    answer = EnvAnswer(
        "k",
        **{"result" if isinstance(value, StepResult) else "observation": value},
        state_key=state_key,
        seconds=0.25,
    )
    content = env_wire.encode_answer(answer)
    assert repr(env_wire.decode_answer("k", content, 0.25)) == repr(
        answer
    )  # by repr: NaN equals itself there
    assert env_wire.first_difference(content, content) is None


@settings(max_examples=300)
@given(st.binary(max_size=60) | PLAIN.map(lambda value: json.dumps(value).encode()))
def test_what_is_no_answer_is_refused_and_nothing_else_happens(content):
    with pytest.raises(ValueError, match="no answer of this program"):
        env_wire.decode_answer("k", content, 0.0)


def test_differences_are_named_by_the_value_that_differs():
    one, other = (
        env_wire.encode_answer(EnvAnswer("k", result=said("x", reward))) for reward in (1.0, 0.5)
    )
    assert env_wire.first_difference(one, other) == "reward was 1.0 and is 0.5 now"


@pytest.mark.parametrize(
    "wrong", [{"deadline_s": 0}, {"workers": 0}, {"retries": -1}, {"answer_bytes": 0}]
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ValueError, match="positive"):
        ProcessRunner(**wrong)


# ------------------------------------------------------------------------------------------------ baselines


def test_random_play_of_a_hanging_environment_is_a_fault_and_the_rest_is_played():
    runner = ProcessRunner(deadline_s=1.0)
    tasks = [Task(name, "fickle", 0) for name in ("one", "hangs", "two")]
    for score in evaluate_baselines(tasks, family=Fickle(max_turns=3), seed=0, runner=runner):
        assert score.faults == 1 and score.n == 3 and score.turns == 3.0
    runner.shutdown()


def test_baselines_are_the_same_in_workers(runner):
    family = FrozenLake(slip=0.2)
    tasks = env_tasks(family, "held-out", 8)
    assert evaluate_baselines(tasks, family=family, seed=3, runner=runner) == evaluate_baselines(
        tasks, family=family, seed=3
    )
