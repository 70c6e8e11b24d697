"""A program, tried without a policy: does it start, does it call, and is each of its calls answered?

`workbench check-env` asks it beside its own questions. In the policy's place random play answers, by way of an environment of
its own, and after a few calls an answer to the task. So what is looked at is the program and the fields of its requests, not how
well it does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.extensions.agents.gateway import HttpCall
from workbench.extensions.agents.messages import AskedCall, GivenAnswer, RefusedCall, SampledText
from workbench.extensions.agents.reading import form_for, read_action
from workbench.extensions.agents.runner import BegunAttempt, EndedAttempt, ProgramRunner
from workbench.extensions.agents.stopping import first_stop
from workbench.tools.formats import Hermes
from workbench.values import Task
from workbench.values.seeds import rng_at
from workbench.worlds.shared import opened

TRIED = 3  # tasks
CALLS = 3  # that random play answers; then the task is answered
LONGEST_S = 30.0  # of one attempt


@dataclass(eq=False)
class ProgramTrial:
    """What came of one attempt. `ended` None: it was given up."""

    task: str
    calls: int = 0
    refused: list[RefusedCall] = field(default_factory=list)
    ended: EndedAttempt | None = None


class ProgramCheck(NamedTuple):
    """A check as `check-env` asks it: what a finding means, and how to fix it."""

    id: str
    title: str
    means: str
    mend: str
    check: Callable[[Any], Iterator[RuleResult]]


def check_program_runs(given: Any) -> Iterator[RuleResult]:
    """`given` has the family and its tasks."""
    tried = [try_program(given.family, task) for task in given.tasks[:TRIED]]
    yield Checked(len(tried))
    complaints: set[str] = set()
    for attempt in tried:
        complaints |= {f"a call was refused ({call.code}): {call}" for call in attempt.refused}
    yield from map(Finding, sorted(complaints))
    silent = [attempt for attempt in tried if not attempt.calls]
    if silent and not complaints:
        yield Finding(f"no call came in {len(silent)} of {len(tried)} attempts")
    ends = {attempt.ended.error for attempt in tried if attempt.ended and attempt.ended.error}
    if not complaints:
        yield from map(Finding, sorted(ends))
    late = sum(attempt.ended is None for attempt in tried)
    if late:
        yield Finding(f"{late} of {len(tried)} attempts were not over after {LONGEST_S:g} s")
    if max(attempt.calls for attempt in tried) >= given.family.max_turns:
        most = given.family.max_turns
        yield Finding(f"a program asked until it was stopped at {most} calls", severity=NOTE)


PROGRAM_CHECK = ProgramCheck(
    "P1",
    "the program starts, calls its model and is answered",
    "every trajectory is a fault, and nothing is learned",
    "Ask the model at the address that solve(task, model) is handed. Name fields that the run does not follow in "
    "env.not_followed, or leave them out.",
    check_program_runs,
)


def try_program(family: Any, task: Task) -> ProgramTrial:
    """Run the program once on a task. Nothing it does raises here."""
    tried = ProgramTrial(task.id)
    runner = ProgramRunner(family.rules(1.0, 1.0), family.idle_s, judged=family.judge() is not None)
    runner.reset(task.id, family, task, 0)
    attempt = runner.attempt(task.id)
    until = time.monotonic() + LONGEST_S
    style: Any = Hermes()
    try:
        with opened(family.inside) as env:
            env.reset(task, 0)
            while tried.ended is None and time.monotonic() < until:
                for happened in runner.poll(0.1):
                    if isinstance(happened, BegunAttempt):
                        style = happened.format or style
                    elif isinstance(happened, HttpCall):
                        _answer(happened, family, env, style, tried)
                    else:
                        tried.ended = happened
    finally:
        tried.refused = list(attempt.refused)
        runner.shutdown()
    return tried


def _answer(call: HttpCall, family: Any, env: Any, style: Any, tried: ProgramTrial) -> None:
    number = tried.calls
    if number + call.asked.choices > family.max_turns:
        words = f"a trajectory has at most {family.max_turns} calls (env.most_calls)"
        call.answer.set_exception(RefusedCall(400, "most_calls", words))
        return
    tried.calls += call.asked.choices
    numbers = range(number, tried.calls)
    first, *others = [
        _given(call.asked, family, env, style, tried.task, number) for number in numbers
    ]
    call.answer.set_result(replace(first, others=tuple(others)))


def _given(
    asked: AskedCall, family: Any, env: Any, style: Any, task: str, number: int
) -> GivenAnswer:
    """One answer, as the fields of the request want it. What it says is no policy's, so its logprobs are nobody's: one, of 0."""
    text = style.write_answer("nothing") if hasattr(style, "write_answer") else "nothing"
    if number < CALLS and hasattr(family, "random_action"):
        text = family.random_action(env, rng_at("try a program", task, number))
    stop = first_stop(text, asked.stops)
    if stop is not None:
        text = text[: stop[0]]
    logprobs = (SampledText(text, tuple(text.encode()), 0.0),) if asked.logprobs else None
    calls = ()
    if asked.tools and asked.reads_calls:
        form = form_for(style, asked.tools)
        text, calls, _ = read_action(text, form, lambda index: f"call_{number}_{index}")
    finish = "calls" if calls else "stop"
    return GivenAnswer(text, calls, f"msg_{number}", finish, logprobs=logprobs)
