"""Programs against hidden tests: what passes, and attacks on the reward, each named in the verdict."""

from __future__ import annotations

import pytest

from workbench.extensions.sandbox.code.judging import judge
from workbench.extensions.sandbox.limits import TIERS, SandboxSettings
from workbench.extensions.sandbox.pool import shared_pool

TESTS = ("assert double([1, 2]) == [2, 4]", "assert double([]) == []", "assert double([7]) == [14]")
RIGHT = "def double(numbers):\n    return [2 * n for n in numbers]\n"
WRONG = "def double(numbers):\n    return numbers\n"

ATTACKS = {  # name: (program, how it is named)
    "leaves with status 0 before it is called": ("import sys\nsys.exit(0)", "ended itself by exit"),
    "leaves when it is called": (
        "import sys\ndef double(numbers): sys.exit(0)",
        "ended itself by exit",
    ),
    "ends its process when it is called": (
        "import os\ndef double(numbers): os._exit(0)",
        "process ended",
    ),
    "ends its process at once": ("import os\nos._exit(0)", "process ended"),
    "raises what is no Exception": (
        "def double(numbers): raise KeyboardInterrupt",
        "KeyboardInterrupt",
    ),
    "an object that equals everything": (
        "class Yes:\n    def __eq__(self, other): return True\ndef double(numbers): return Yes()",
        "a Yes>, which is no plain value",
    ),
    "a list that equals everything": (
        "class Yes(list):\n    def __eq__(self, other): return True\ndef double(numbers): return Yes()",
        "a Yes>, which is no plain value",
    ),
    "a number that equals everything": (
        "class Yes(int):\n    __eq__ = lambda self, other: True\ndef double(numbers): return Yes()",
        "a Yes>, which is no plain value",
    ),
    "builtins changed": (
        "import builtins\nbuiltins.all = builtins.any = lambda each: True\nbuiltins.AssertionError = ValueError\n"
        "def double(numbers): return numbers",
        "AssertionError",
    ),
    "the comparison changed": (
        "import operator\noperator.eq = lambda a, b: True\ndef double(numbers): return numbers",
        "AssertionError",
    ),
    "assert turned off": (
        "import sys, builtins\nbuiltins.__debug__ if True else 0\nsys.flags = None\ndef double(numbers): return numbers",
        "AssertionError",
    ),
    "prints what is expected": (
        "def double(numbers):\n    print('[2, 4]', 'passed', 'OK', '3 of 3')",
        "AssertionError",
    ),
    "says it has passed where answers are sent": (
        "import os, json, struct\ndef double(numbers):\n    content = json.dumps(['done', {'text': 'passed', 'cut': 0, 'error': '', "
        "'said': ''}]).encode()\n    for fd in range(3, 64):\n        try: os.write(fd, struct.pack('>I', len(content)) + content)\n"
        "        except OSError: pass",
        "gave nothing back",
    ),
    "garbage where answers are sent": (
        "import os\ndef double(numbers):\n    for fd in range(3, 64):\n        try: os.write(fd, b'xxxxxxxxxx')\n        except OSError: pass",
        "bytes",
    ),
    "its own function for asking": (
        "def ask(*what):\n    return ['double', [[1]], {}]\ndef double(numbers): return [2, 4]",
        "gave nothing back",
    ),
    "looks for the tests in the frames": (
        "import sys, gc\ndef double(numbers):\n    frame, seen = sys._getframe(), ''\n    while frame:\n        seen += str(frame.f_locals)\n"
        "        frame = frame.f_back\n    seen += str([each for each in gc.get_objects() if isinstance(each, str)])\n"
        "    return [2, 4] if 'assert double(' in seen else numbers",
        "AssertionError",
    ),
    "looks for the tests in files": (
        "import os\ndef double(numbers):\n    for folder in ('/work', '/tmp', '/', '.', '/proc/1'):\n        try:\n"
        "            for name in os.listdir(folder):\n                if 'assert' in open(os.path.join(folder, name)).read(): return [2, 4]\n"
        "        except OSError: pass\n    return numbers",
        "AssertionError",
    ),
    "waits": ("def double(numbers):\n    while True: pass", "no answer within"),
    "a value without end": (
        "def double(numbers):\n    a = []\n    a.append(a)\n    return a",
        "in one another",
    ),
    "a very large value": ("def double(numbers): return [0] * 10**6", "parts"),
    "too much memory": ("def double(numbers): return [0] * 10**10", "MemoryError"),
    "no such function": ("def other(numbers): return [2, 4]", "NameError"),
    "no program": ("this is no program", "SyntaxError"),
}


@pytest.fixture(params=TIERS)
def settings(request):
    if reason := shared_pool().why_not(request.param):
        pytest.skip(f"tier {request.param}: {reason}")
    return SandboxSettings(tier=request.param, seconds=2.0)


def test_a_right_program_passes_and_a_wrong_one_does_where_it_is_right(settings):
    assert judge(RIGHT, ["double"], TESTS, settings=settings).success
    verdict = judge(WRONG, ["double"], TESTS, settings=settings)
    assert (verdict.passed, verdict.of, verdict.success) == (
        1,
        3,
        False,
    ) and verdict.why.startswith("test 1: AssertionError")


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_on_the_reward_earns_nothing_and_is_named(name):
    tier = next((tier for tier in TIERS if not shared_pool().why_not(tier)), None)
    if tier is None:
        pytest.skip("no tier works here")
    program, named = ATTACKS[name]
    verdict = judge(
        program, ["double"], TESTS[:1] + TESTS[2:], settings=SandboxSettings(tier=tier, seconds=0.5)
    )
    assert verdict.passed == 0 and named in verdict.why, verdict


def in_one_process(program):
    """What a judge without a fence says: program and tests in one process, success by its exit status."""
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-c", program + "\n" + "\n".join(TESTS[:1] + TESTS[2:])],
        capture_output=True,
        timeout=30,
    )
    return done.returncode == 0


@pytest.mark.parametrize(
    "name",
    [
        "leaves with status 0 before it is called",
        "leaves when it is called",
        "ends its process at once",
        "an object that equals everything",
        "a number that equals everything",
    ],
)
def test_negative_control_in_one_process_it_would_have_passed(name):
    assert in_one_process(ATTACKS[name][0])


def test_tests_of_a_file_run_where_the_program_is_not(settings):
    """A HumanEval check: its own code, with the function as `candidate`; a tolerance needs more than ==."""
    check = "def check(candidate):\n    assert abs(candidate(2.0) - 1.41421356) < 1e-6\n    assert candidate(4) == 2\ncheck(root)"
    assert judge("def root(x): return x ** 0.5", ["root"], [check], settings=settings).success
    assert not judge("def root(x): return x", ["root"], [check], settings=settings).success


def test_a_program_of_several_functions_and_a_setup(settings):
    program = "def first(x): return x[0]\ndef last(x): return x[-1]"
    tests = [
        "assert first(FACTS) == 'a'",
        "assert last(FACTS) == ('b', {1: 2})",
        "assert first(x=FACTS) == 'a'",
    ]
    assert judge(
        program, ["first", "last"], tests, "FACTS = ['a', ('b', {1: 2})]", settings
    ).success
