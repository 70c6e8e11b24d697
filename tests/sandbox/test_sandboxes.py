"""What a sandbox keeps, bounds and leaves behind."""

from __future__ import annotations

import os
import random
import signal
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest

from tests.sandbox.grounds import CANARY, need_tier
from workbench.extensions.sandbox.calls import SIGNALS_SINCE, landlock_version
from workbench.extensions.sandbox.limits import BY_COMMAND, TIERS
from workbench.extensions.sandbox.pool import SandboxPool, SandboxWarning, shared_pool
from workbench.extensions.sandbox.sandboxes import SandboxSettings, open_sandbox
from workbench.extensions.sandbox.values import decoded
from workbench.values.errors import ConfigError, ToolError


def works(tier):
    return not shared_pool().why_not(tier)


@pytest.fixture(params=(*TIERS, *BY_COMMAND))
def tier(request):
    need_tier(request.param)
    return request.param


@pytest.fixture
def roomy():
    need_tier("namespaces")
    return SandboxSettings(tier="namespaces")


@pytest.fixture
def sandbox(tier):
    with open_sandbox(SandboxSettings(tier=tier)) as opened:
        yield opened


def test_names_are_kept_and_the_last_value_is_shown(sandbox):
    assert sandbox.run("x = 6").text == ""
    assert sandbox.run("print(7 * x)\nx + 1").text == "42\n7\n"


def test_what_goes_wrong_is_said_by_the_programs_own_lines(sandbox):
    ran = sandbox.run("import json\ndef f(): return 1 / 0\nf()")
    assert ran.error == "raised" and ran.said == "ZeroDivisionError: division by zero"
    assert "in f" in ran.text and "guest" not in ran.text and str(Path.home()) not in ran.text
    assert sandbox.run("def").said.startswith("SyntaxError")
    assert sandbox.run("import sys; sys.exit(3)").said == "exit(3)"
    assert sandbox.run("1 + 1").text == "2\n"


def test_a_call_that_is_late_is_stopped_and_its_state_is_lost(sandbox):
    began = time.monotonic()
    ran = sandbox.run("while True: pass", seconds=0.3)
    assert ran.error == "timeout" and ran.lost and time.monotonic() - began < 2
    assert sandbox.run("1").error == "died"


def test_a_process_that_ends_itself_is_named(sandbox):
    assert sandbox.run("import os; os._exit(0)").error == "died"


def test_output_is_bounded_and_what_is_left_out_is_counted(sandbox):
    ran = sandbox.run("for _ in range(100): print('x' * 10_000)")
    assert len(ran.text) == 16_000 and ran.cut == 100 * 10_001 - 16_000


def test_lies_in_its_answer_are_no_answer(sandbox):
    """What a program writes into its connection is no more than its own, wrong answer; and no code."""
    forged = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\0\\0\\0\\x0b[\"done\", {}]')\n    except OSError: pass"
    assert sandbox.run(forged).error == "died"


def test_a_message_without_end_is_refused(sandbox):
    endless = "import os\nfor fd in range(3, 64):\n    try: os.write(fd, b'\\xff\\xff\\xff\\xff' + bytes(100))\n    except OSError: pass"
    assert "at most" in sandbox.run(endless).said


def test_twice_the_same(tier):
    """Clock, chance, hashes and listings: what the lint's replay compares (rule R20)."""
    program = (
        "import time, datetime, random, uuid, secrets, os\n"
        "print(time.time(), time.monotonic(), datetime.datetime.now(), datetime.date.today(), time.strftime('%c'))\n"
        "time.sleep(3600)\nprint(time.time(), time.localtime())\n"
        "print(random.random(), random.Random().random(), random.SystemRandom().random(), uuid.uuid4(), uuid.uuid1())\n"
        "print(secrets.token_hex(), os.urandom(8), hash('x'), {'a', 'b', 'c', 'd'}, os.getpid())\n"
    )
    if tier == "namespaces":
        program += "for name in 'dacb': open(name, 'w').close()\nprint(os.listdir(), [entry.name for entry in os.scandir()])\n"
    said = []
    for _ in range(2):
        with open_sandbox(SandboxSettings(tier=tier)) as sandbox:
            ran = sandbox.run(program)
            assert ran.error == "", ran
            said.append(ran.text)
    assert said[0] == said[1]


def test_negative_control_undone_it_differs(tier):
    said = []
    for _ in range(2):
        with open_sandbox(SandboxSettings(tier=tier, deterministic=False)) as sandbox:
            said.append(
                sandbox.run("import time, random; print(time.time(), random.random())").text
            )
    assert said[0] != said[1]


def test_a_fork_has_the_state_and_goes_on_alone(roomy):
    with open_sandbox(roomy) as first:
        first.run("import random; x = [1]; open('a', 'w').write('one'); random.random()")
        second = first.fork()
        assert first.run("x.append(2); open('a', 'w').write('first'); x").text == "[1, 2]\n"
        assert (
            second.run("x.append(3); open('b', 'w').close(); x, open('/work/a').read()").text
            == "([1, 3], 'one')\n"
        )
        assert (
            first.run("import os; x, os.listdir('/work'), os.getcwd()").text
            == "([1, 2], ['a'], '/work')\n"
        )
        assert first.run("random.random()").text == second.run("random.random()").text


def test_a_fork_of_ten_megabytes_is_quick_and_no_states_reach_each_other(roomy):
    with open_sandbox(roomy) as first:
        first.run("held = bytearray(range(256)) * 40_960")
        began = time.monotonic()
        second = first.fork()
        assert (
            time.monotonic() - began < 2
        )  # 30 ms where nothing else runs: docs/evidence/sandbox.md
        assert second.run("len(held)").text == "10485760\n"
        for way in (
            "os.listdir('/kept')",
            "os.chmod('/kept', 0o777)",
            "os.listdir('/kept/disk/0')",
        ):
            assert second.run(f"import os; {way}").error == "raised"


def test_forks_are_bounded_and_a_tier_without_them_says_so(roomy):
    with open_sandbox(SandboxSettings(tier="namespaces", processes=3)) as first:
        first.fork()
        with pytest.raises(ToolError, match="sandbox.processes = 3"):
            for _ in range(4):
                first.fork()
    if works("landlock"):
        with (
            open_sandbox(SandboxSettings(tier="landlock")) as alone,
            pytest.raises(ToolError, match="cannot be forked"),
        ):
            alone.fork()


SIGNALS = {
    "everybody": "os.kill(-1, 9)",
    "group": "os.kill(0, 9)",
    "numbers": "for pid in range(1, 200):\n    if pid != os.getpid():\n        try: os.kill(pid, 9)\n        except OSError: pass",
}


@pytest.mark.parametrize("who", ["fork", "origin"])
@pytest.mark.parametrize("whom", SIGNALS)
def test_forks_cannot_end_each_other(roomy, who, whom):
    if whom != "everybody" and landlock_version() < SIGNALS_SINCE:
        pytest.skip("this kernel has no means for it")
    with open_sandbox(roomy) as origin:
        origin.run("import os; x = 1")
        fork = origin.fork()
        one, other = (fork, origin) if who == "fork" else (origin, fork)
        one.run(SIGNALS[whom])
        assert other.run("x").text == "1\n" and not other.run("x = 2").error


def test_negative_control_without_the_guard_a_fork_ends_its_origin(roomy):
    """A child that was begun by the program itself is in the same space of signals."""
    with open_sandbox(roomy) as origin:
        ran = origin.run(
            "import os, time\nif not os.fork():\n    os.kill(os.getppid(), 9)\n    os._exit(0)\nos.wait()"
        )
        assert ran.error == "died"


def test_its_own_children_are_signalled_all_the_same(roomy):
    with open_sandbox(roomy) as origin:
        origin.fork()
        ran = origin.run(
            "import os, time\npid = os.fork()\nif not pid:\n    time.sleep = None\n    while True: pass\n"
            "os.kill(pid, 9)\nos.waitpid(pid, 0)[1]"
        )
        assert ran.text == "9\n"


@pytest.mark.parametrize(("deep", "is_copied"), [(700, True), (1_500, False), (3_000, False)])
def test_a_deep_folder_does_not_end_the_sandbox(roomy, deep, is_copied):
    """Twice 1,500 folders are more than the disk has room for: that fork is refused, and the sandbox goes on."""
    with open_sandbox(roomy) as first:
        ran = first.run(
            "import os\nx = 1\ntry:\n"
            f"    for _ in range({deep}): os.mkdir('d'); os.chdir('d')\nexcept OSError: pass\nos.chdir('/work')"
        )
        assert not ran.error
        if is_copied:
            second = first.fork()
            counted = "n = 0\nwhile os.path.exists('d'): os.chdir('d'); n += 1\nn"
            assert second.run(counted).text == f"{deep}\n"
        else:
            for _ in range(2):
                with pytest.raises(ToolError, match="do not fit twice into sandbox.disk_mb"):
                    first.fork()
        assert first.run("os.chdir('/work'); x, os.listdir()").text == "(1, ['d'])\n"


LIES = {
    "a number": b"5",
    "none": b"null",
    "a mapping": b"{}",
    "one part": b'["done"]',
    "three parts": b'["done", {}, 1]',
    "a negative cut": b'["done", {"text": "", "cut": -5, "error": "", "said": ""}]',
    "a huge cut": b'["done", {"text": "", "cut": 1' + b"0" * 400 + b', "error": "", "said": ""}]',
    "a cut that is true": b'["done", {"text": "", "cut": true, "error": "", "said": ""}]',
    "deep": b"[" * 20_000 + b"]" * 20_000,
    "no text": b"\xff\xfe",
    "an unknown verb": b'["do", {}]',
    "a question that is none": b'["ask", 5]',
}


@pytest.mark.parametrize("lie", LIES)
def test_whatever_it_answers_is_data(sandbox, lie):
    forged = (
        "import struct\nc = ask.__self__.connection\n"
        f"m = bytes.fromhex({LIES[lie].hex()!r})\nc.sendall(struct.pack('>I', len(m)) + m)"
    )
    ran = sandbox.run(forged)
    # A question that is none is answered in words, which the program did not wait for.
    assert ran.cut >= 0 and (ran.error == "died" or lie == "a question that is none")


def test_a_lying_sandbox_fills_no_memory_of_ours(roomy):
    """What a program gives is bounded by whoever reads it, however often and much it is sent."""
    lie = (
        "import workbench.extensions.sandbox.worker as worker\n"
        "def lied(*part): return told('out', bytes(1_000_000)) if part[0] == 'status' else told(*part)\n"
        "told = ask\nask = lied"
    )
    with open_sandbox(SandboxSettings(programs=True)) as sandbox:
        sandbox.run(lie)
        ran = sandbox.start(["echo", "x"], most=100)
        assert len(ran.out) <= 100 and ran.error == "died"
    with open_sandbox(roomy) as sandbox:
        sandbox.run("ask.__self__.most_output = 1_000_000_000")
        assert len(sandbox.run("print('x' * 1_000_000)").text) <= roomy.output_bytes


def test_the_second_tier_is_not_taken_without_a_word(monkeypatch):
    if not works("landlock"):
        pytest.skip("no second tier here")
    pool = SandboxPool()
    monkeypatch.setitem(pool._works, "namespaces", "unshare: Operation not permitted")
    with pytest.warns(SandboxWarning, match="not permitted.*names, sizes and times"):
        open_sandbox(SandboxSettings(), pool).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_sandbox(SandboxSettings(tier="landlock"), pool).close()  # it was named
    pool.shutdown()


def code_of_the_guide(mark):
    text = Path(__file__).parents[2].joinpath("docs/guides/code.md").read_text()
    return text.split(f"<!-- {mark} -->\n```python\n")[1].split("```")[0]


def test_what_the_guide_promises_to_be_the_same_twice_is(tier):
    imports, *promises = code_of_the_guide("the same twice").splitlines()
    said = []
    for _ in range(2):
        with open_sandbox(SandboxSettings(tier=tier)) as sandbox:
            sandbox.run(imports)
            said.append({line: sandbox.run(line.partition("  #")[0]) for line in promises})
    assert len(promises) >= 8
    for line in promises:
        first, second = (each[line] for each in said)
        assert (first.error, first.text) == ("", second.text), line


def test_what_the_guide_excepts_can_be_asked_for(tier):
    """Each line is a true exception: it runs, and it is not among the promises."""
    imports, *exceptions = code_of_the_guide("not the same twice").splitlines()
    with open_sandbox(SandboxSettings(tier=tier)) as sandbox:
        sandbox.run(imports)
        for line in exceptions:
            assert sandbox.run(line.partition("  #")[0]).error == "", line
    assert not {*exceptions} & {*code_of_the_guide("the same twice").splitlines()[1:]}


def test_files_in_and_out(roomy):
    with open_sandbox(roomy) as sandbox:
        assert not sandbox.write_file("data.bin", bytes(range(256))).error
        assert sandbox.run("len(open('data.bin', 'rb').read())").text == "256\n"
        assert (
            sandbox.read_file("data.bin") == bytes(range(256)) and sandbox.read_file("none") is None
        )


def test_between_calls_nothing_runs(roomy):
    with open_sandbox(roomy) as sandbox:
        sandbox.run(
            "import os, time\nopen('tick', 'w').close()\nif not os.fork():\n    while True: open('tick', 'a').write('x')"
        )
        sandbox.run("time.sleep(0.05)")  # the child's turn, on a busy machine too
        before = sandbox.run("os.path.getsize('tick')").text
        time.sleep(0.3)
        again = sandbox.run("os.path.getsize('tick')").text
        assert (
            int(again) - int(before) < 200_000
        )  # a loop without a pause writes as much in a fraction of 0.3 s


def test_it_asks_and_is_told_plain_values_alone(sandbox):
    class_of_mine = "class Yes:\n    def __eq__(self, other): return True\n"
    came = []
    ran = sandbox.run(
        class_of_mine + "ask(1, 2.5, 'x', b'y', [None], (True,), {3: {4}}, Yes())",
        answer=lambda *each: came.append(each),
    )
    assert ran.error == "" and came[0][:-1] == (1, 2.5, "x", b"y", [None], (True,), {3: {4}})
    assert came[0][-1] != 1 and repr(came[0][-1]) == "<a Yes>"
    assert sandbox.run("ask(1)").said == "QuestionError: nobody answers here"


@pytest.mark.parametrize(
    "content",
    [
        ["l", *[None] * 10_001],
        [[[]]],
        ["z"],
        ["i", "x"],
        ["d", ["a"]],
        3,
        ["s", ["l"]],
        "deep",
        ["n", "one"],
        ["b", "0"],
    ],
)
def test_values_that_are_none_are_refused(content):
    if content == "deep":
        content = None
        for _ in range(60):
            content = ["l", content]
    with pytest.raises(ValueError):
        decoded(content)


def test_settings_out_of_their_range_are_refused():
    for wrong in ({"tier": "podman"}, {"seconds": 0}, {"memory_mb": 1}, {"processes": 0}):
        with pytest.raises(ConfigError, match=f"sandbox.{next(iter(wrong))}"):
            SandboxSettings(**wrong)


def test_where_no_tier_works_it_refuses_in_words(monkeypatch):
    pool = SandboxPool()
    monkeypatch.setattr(pool, "_try", lambda tier: "unshare: Operation not permitted")
    with pytest.raises(
        ToolError,
        match="'namespaces' does not work here: unshare.*'landlock'.*in a sandbox or not at all",
    ):
        open_sandbox(SandboxSettings(), pool)


# ------------------------------------------------------------------------------------------------ what is left behind


def children_of(pid):
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


CALLS = (
    "x = 1",
    "print(x)",
    "1 / 0",
    "import os; os._exit(1)",
    "import sys; sys.exit()",
    "print('y' * 100_000)",
    "[1] * 10**9",
    "import os; os.fork()",
    "import threading; threading.Thread(target=print).start()",
    "open('/work/f', 'w').write('z' * 9999)",
    "import os; print(dict(os.environ))",
    "import os\nfor fd in range(3, 64):\n    try: os.close(fd)\n    except OSError: pass",
    "raise BaseException",
    "import os; os.kill(os.getpid(), 9)",
    "class A: __repr__ = None\nA()",
    "exec('def')",
)


def mixed_calls(tier, count, pool):
    """The texts of many calls of all sorts, in sandboxes that are closed at random."""
    os.environ["OPENAI_API_KEY"] = CANARY
    chance, texts, sandbox = random.Random(0), [], None
    settings = SandboxSettings(tier=tier, seconds=5.0, memory_mb=128)
    for _ in range(count):
        if sandbox is None or not sandbox.alive:
            sandbox = open_sandbox(settings, pool)
        ran = sandbox.run(chance.choice(CALLS), seconds=0.2 if chance.random() < 0.02 else None)
        texts.append(ran.text + ran.said)
        if chance.random() < 0.1:
            sandbox.close()
    sandbox.close()
    return texts


@pytest.mark.parametrize("count", [80, pytest.param(2000, marks=pytest.mark.full)])
def test_after_many_calls_nothing_is_left(tier, count):
    pool = SandboxPool()
    before = len(os.listdir("/proc/self/fd"))
    texts = mixed_calls(tier, count, pool)
    forkserver = pool.process_id
    pool.drop_ready()
    until = time.monotonic() + 10
    while children_of(forkserver) and time.monotonic() < until:
        time.sleep(0.05)
    assert children_of(forkserver) == []  # neither sandboxes nor zombies
    pool.shutdown()
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not [text for text in texts if CANARY in text] and len(texts) == count


def test_sandboxes_end_with_a_trainer_that_is_killed(tier):
    program = (
        "import time\nfrom workbench.extensions.sandbox.sandboxes import *\nfrom workbench.extensions.sandbox.pool import shared_pool\n"
        f"sandbox = open_sandbox(SandboxSettings(tier={tier!r}, deterministic=False))\nsandbox.run('x = 1')\n"
        "print(shared_pool().process_id, flush=True)\ntime.sleep(60)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    forkserver = int(trainer.stdout.readline())
    sandboxes = children_of(forkserver)
    assert sandboxes
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    until = time.monotonic() + 5
    while (
        any(Path(f"/proc/{pid}").exists() for pid in (forkserver, *sandboxes))
        and time.monotonic() < until
    ):
        time.sleep(0.05)
    assert not any(Path(f"/proc/{pid}").exists() for pid in (forkserver, *sandboxes))


def test_a_warm_call_takes_milliseconds(sandbox):
    """Bounds of a busy machine; docs/evidence/sandbox.md has those of this one."""
    sandbox.run("x = 1")
    seconds = [sandbox.run("x + 1").seconds for _ in range(50)]
    assert statistics.median(seconds) < 0.1
