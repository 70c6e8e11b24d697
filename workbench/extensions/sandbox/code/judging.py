"""A program against tests that it never sees.

Two sandboxes that know nothing of each other: in one the program defines its functions, in the other the tests run,
with functions of the same names that hand plain arguments over and get plain values back. So a program cannot read a
test or an expected value, cannot change what compares, and cannot end the tests: when it leaves, what is left of them
has failed. An object whose `==` says yes to everything does not cross at all; it is `Other`, which equals nothing.

What it cannot judge: tests of a program that changes its arguments in place, and tests of which exception is raised.
Both count as failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from workbench.extensions.sandbox.limits import SandboxSettings
from workbench.extensions.sandbox.sandboxes import CallOutcome, Sandbox, open_sandbox
from workbench.extensions.sandbox.values import Other

# In the program's sandbox: what to call comes by the first question, and what came of it goes by the second.
_CALL = "(lambda wanted: ask('value', eval(wanted[0], globals())(*wanted[1], **wanted[2])))(ask('call'))"
_STAND_IN = "def {name}(*arguments, **named): return ask({name!r}, list(arguments), named)\n"
MOST_WORDS = 200


@dataclass(frozen=True)
class CodeVerdict:
    """How many tests passed.

    why: the first thing that went wrong, in words, "" where nothing did.
    """

    passed: int
    of: int
    why: str = ""

    @property
    def success(self) -> bool:
        return self.passed == self.of


def judge(
    program: str,
    names: Sequence[str],
    tests: Sequence[str],
    setup: str = "",
    settings: SandboxSettings = SandboxSettings(),
) -> CodeVerdict:
    """Run a program against hidden tests.

    names: the functions of the program that the tests call.
    tests: programs, each passed where it raises nothing.
    setup: run before them.

    Raises ToolError where no sandbox can be had, which is no failure of the program's."""
    settings = replace(settings, warm=max(settings.warm, 2))
    with open_sandbox(settings) as theirs:
        ran = theirs.run(program)
        why = _why_not_begun(ran)
        if why:
            return CodeVerdict(0, len(tests), why)
        with open_sandbox(settings) as ours:
            ours.run("".join(_STAND_IN.format(name=name) for name in names))
            ours.run(setup)
            for name in names[:1]:
                ours.run(f"candidate = {name}")
            return _verdict(theirs, ours, tests)


def _verdict(theirs: Sandbox, ours: Sandbox, tests: Sequence[str]) -> CodeVerdict:
    passed = 0
    first = ""
    for number, test in enumerate(tests, 1):
        caller = _Caller(theirs)
        if theirs.alive and ours.alive:
            ran = ours.run(test, seconds=2 * ours.settings.seconds, answer=caller.call)
            good = ran.error == "" and not caller.lost
        else:
            ran = CallOutcome("")
            good = False
        passed += good
        if not good and not first:
            why = caller.why or ran.said or "not run: its process had ended"
            first = f"test {number}: {why}"[:MOST_WORDS]
    return CodeVerdict(passed, len(tests), first)


def _why_not_begun(ran: CallOutcome) -> str:
    if ran.error == "exit":
        return f"the program ended itself by {ran.said} before it was called"
    return f"the program: {ran.said}"[:MOST_WORDS] if ran.error else ""


class _Caller:
    """Calls the program's functions for one test. `why`: what went wrong in the last call that did."""

    def __init__(self, theirs: Sandbox) -> None:
        self.theirs = theirs
        self.why = ""
        self.lost = False

    def call(self, name: str, arguments: list[Any], named: dict[str, Any]) -> Any:
        came: list[Any] = []

        def answer(what: str, *value: Any) -> Any:
            if what == "call":
                return [name, arguments, named]
            came.append(value[0])
            return None

        ran = self.theirs.run(_CALL, answer=answer)
        self.lost |= ran.lost
        if ran.error or not came:
            self.why = ran.said or "it gave nothing back"
            if ran.error == "exit":
                self.why = f"ended itself by {ran.said}"
            raise ValueError(self.why)
        if isinstance(came[-1], Other):
            self.why = f"gave back {came[-1]!r}, which is no plain value"
        return came[-1]
