"""StopRequested to stop: while Python runs, while it is somewhere in C, and after the block is left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BUSY = {
    "holding": "sum(range(10**11))",  # the interpreter's lock is never let go
    "letting-go": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
}
IN_C = """
import hashlib, signal, sys
from workbench.training.signals import stop_on_signals
with stop_on_signals(signal.SIGTERM, signal.SIGINT, grace_s=float(sys.argv[1])):
    print("in C", flush=True)
    {busy}
"""


def started(code: str, *words: str) -> subprocess.Popen:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline()
    time.sleep(0.2)
    return process


def ending(process: subprocess.Popen, within_s: float = 5) -> tuple[int, str]:
    try:
        return process.wait(within_s), process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("busy", BUSY)
def test_a_second_signal_ends_it_in_the_middle_of_c(busy):
    process = started(IN_C.format(busy=BUSY[busy]), "60")
    process.terminate()
    time.sleep(0.2)
    assert process.poll() is None, "the first one is heeded, not obeyed"
    process.terminate()
    assert ending(process) == (-signal.SIGTERM, "")


def test_the_end_of_the_grace_ends_it_in_the_middle_of_c():
    process = started(IN_C.format(busy=BUSY["letting-go"]), "0.5")
    process.terminate()
    assert ending(process) == (
        143,
        "workbench: ended 0.5 s after it was asked to; committed steps are kept\n",
    )


def test_another_signal_is_a_second_one_too():
    process = started(IN_C.format(busy=BUSY["letting-go"]), "60")
    process.send_signal(signal.SIGINT)
    time.sleep(0.2)
    process.terminate()
    assert ending(process) == (
        143,
        "workbench: ended when it was asked to again; committed steps are kept\n",
    )


def test_without_one_shot_handlers_the_thread_ends_it():
    code = (
        "from workbench.training import signals; signals._once = lambda number: None"
        + IN_C.format(busy=BUSY["letting-go"])
    )
    process = started(code, "60")
    process.terminate()
    time.sleep(0.2)
    process.terminate()
    assert ending(process)[0] == 143


def test_words_that_nobody_reads_do_not_keep_it():
    code = "import fcntl, os\nfilled = 'x' * fcntl.fcntl(2, 1032)\nprint('full', flush=True)\nos.write(2, filled.encode())"
    code += IN_C.format(busy=BUSY["letting-go"])
    process = started(code, "0.3")
    assert process.stdout.readline() == "in C\n"
    process.terminate()
    assert process.wait(15) == 143
    process.communicate()


LEFT = """
import os, signal, sys, time
from workbench.training.signals import StopRequested, stop_on_signals
before = signal.set_wakeup_fd(-1)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
    try:
        with stop_on_signals(signal.SIGTERM, signal.SIGINT, grace_s=0.3):
            os.kill(os.getpid(), number)
            time.sleep(30)
    except StopRequested as asked:
        assert asked.signal == number
time.sleep(1.0)
assert signal.set_wakeup_fd(-1) == before
print("alive")
"""


def test_who_has_left_the_block_lives_on():
    """A notebook's kernel that called the command in a cell is not ended one grace later."""
    done = subprocess.run(
        [sys.executable, "-c", LEFT], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


FORKED = """
import os, signal, time
from workbench.training.signals import stop_on_signals
with stop_on_signals(signal.SIGTERM, grace_s=0.3):
    if not (child := os.fork()):
        try:
            time.sleep(30)
        finally:
            os._exit(0)
    time.sleep(0.2)
    os.kill(child, signal.SIGTERM)
    os.waitpid(child, 0)
    time.sleep(0.8)
print("alive")
"""


def test_a_signal_to_a_forked_child_is_none_to_its_parent():
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done.stderr


def test_handlers_and_wakeup_are_put_back():
    from workbench.training.signals import stop_on_signals

    def other(*_):
        pass

    before = signal.signal(signal.SIGTERM, other)
    try:
        with stop_on_signals(signal.SIGTERM, grace_s=60.0):
            assert signal.getsignal(signal.SIGTERM) is not other
        assert signal.getsignal(signal.SIGTERM) is other
        os.kill(os.getpid(), signal.SIGTERM)  # and twice, since it is no one-shot handler any more
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
