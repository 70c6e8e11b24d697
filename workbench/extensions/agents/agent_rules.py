"""What is asked of trajectories that programs made (R40 to R46), by what was kept of their calls.

    R40  the program's history goes on: it does not fork in every call
    R41  every token that was sampled for it is in its segment, and trained or left out by name
    R42  the model's words come back as they were
    R43  no call is asked twice
    R44  it calls the model at all
    R45  its model's calls of tools can be read
    R46  it samples as the run says

A program may do any of it on purpose, and training stays right: most findings are notes. Errors are tokens that are gone or
are marked otherwise than was said, a step in which no program called, and a temperature that nobody declared.

Runs without programs are not asked (`applies`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, Place
from workbench.extensions.agents.call_records import (
    EXTENDS,
    FORK,
    RESAMPLED,
    ROOT,
    RecordedCall,
    calls_of,
    turn_of,
)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Span, Trajectory

SILENT = "agent_silent"  # begins the error of a trajectory without a call (collecting.py)
# A history is rewritten in every call where so many of at least MANY calls fork.
REWRITES = 0.8
MANY = 4
UNREAD = (
    0.2  # of the calls of tools that were begun: from here on a model does not speak its format
)
EXCERPT = 48  # characters of a text in a finding


class _Call(NamedTuple):
    """A call, the trajectory that it is of, and that trajectory's other calls."""

    n: int
    call: RecordedCall
    others: list[RecordedCall]

    def place(self, evidence: Evidence) -> Place:
        segment = self.call.segment
        where = {} if segment is None else {"segment": segment}
        return evidence.place(self.n, turn=self.call.turn, **where)


def _calls(evidence: Evidence) -> list[_Call]:
    calls = []
    for n, trajectory in enumerate(evidence.trajectories):
        own = calls_of(trajectory)
        calls += [_Call(n, call, own) for call in own]
    return calls


def by_programs(evidence: Evidence) -> bool:
    """Whether a program made any of the trajectories."""
    return evidence.by_program or any(_is_of_program(t) for t in evidence.trajectories)


def _is_of_program(trajectory: Trajectory) -> bool:
    silent = (trajectory.error or "").startswith(SILENT)
    return silent or any("call" in turn.info for turn in trajectory.turns)


def _others(found: int) -> str:
    return f"; so do {found} more" if found else ""


# ------------------------------------------------------------------------------------------------ R40


def check_histories(evidence: Evidence) -> Iterator[RuleResult]:
    """By conversation: of the calls that follow another one, how many could go on in its segment."""
    later = [entry for entry in _calls(evidence) if entry.call.way in (EXTENDS, FORK)]
    yield Checked(len(later))
    for name in dict.fromkeys(entry.call.conversation for entry in later):
        own = [entry for entry in later if entry.call.conversation == name]
        forks = [entry for entry in own if entry.call.forks]
        if len(own) >= MANY and len(forks) >= REWRITES * len(own):
            first = forks[0]
            yield Finding(
                f"{len(forks)} of {len(own)} calls of the conversation {name!r} that follow another one fork: the program "
                f"rewrites its history in every call; the first: {_difference_words(first)}",
                first.place(evidence),
                NOTE,
                len(forks),
            )


def _difference_words(entry: _Call) -> str:
    difference = entry.call.difference
    if difference is None:
        return f"it goes on from turn {turn_of(entry.others, entry.call.left)} once more"
    return (
        f"message {difference.message} ({difference.role}) differs from character {difference.character} on, "
        f"{difference.was[:EXCERPT]!r} became {difference.now[:EXCERPT]!r}"
    )


# ------------------------------------------------------------------------------------------------ R41


def check_tokens(evidence: Evidence) -> Iterator[RuleResult]:
    """Every answer stands whole in one segment, which is trained unless its conversation is left out."""
    calls = _calls(evidence)
    counted = [entry for entry in calls if entry.call.answered is not None]
    if len(counted) < len(calls):
        yield NotChecked("what was counted when calls were answered", "lost tokens")
    yield Checked(len(counted), "lost tokens")
    for entry in counted:
        call = entry.call
        if call.answered != call.sampled:
            yield Finding(
                f"{call.answered} tokens were sampled for call {call.number} of the program, and {call.sampled} of them stand in "
                "its segments as sampled: the others are lost for training",
                entry.place(evidence),
                count=abs(call.answered - call.sampled),
            )
    yield Checked(len(calls), "what is left out")
    for entry in calls:
        yield from _left_out(evidence, entry)
    yield from _names(evidence, calls)


def _left_out(evidence: Evidence, entry: _Call) -> Iterator[Finding]:
    """A segment says the same as its calls do."""
    call = entry.call
    if call.segment is None:
        return
    marked = evidence.trajectories[entry.n].segments[call.segment].untrained
    if marked != call.untrained:
        yield Finding(
            f"call {call.number} was answered with {call.untrained or 'its tokens trained'!r}, and its segment says "
            f"{marked or 'trained'!r}",
            entry.place(evidence),
            count=max(1, call.sampled),
        )


def _names(evidence: Evidence, calls: list[_Call]) -> Iterator[Finding]:
    """Names in env.trains that no conversation has; and a step of which nothing is trained."""
    trains = getattr(evidence.family, "trains", ())
    names = list(dict.fromkeys(entry.call.conversation for entry in calls))
    unknown = [name for name in trains if name not in ("all", "first", *names)]
    if not calls or not unknown:
        return
    nothing = all(entry.call.untrained for entry in calls)
    yield Finding(
        f"env.trains names {unknown[0]!r}, and no conversation here has that name; there are {', '.join(names[:12])}"
        + ("; so nothing of this step is trained" if nothing else ""),
        calls[0].place(evidence),
        ERROR if nothing else NOTE,
    )


# ------------------------------------------------------------------------------------------------ R42 R43


def check_words(evidence: Evidence) -> Iterator[RuleResult]:
    """Where an answer stood in a history, the same answer stands there in the next call."""
    calls = [entry for entry in _calls(evidence) if entry.call.way != ROOT]
    yield Checked(len(calls))
    replaced = [entry for entry in calls if entry.call.replaced]
    if replaced:
        first = replaced[0]
        turn = turn_of(first.others, first.call.difference.call)
        yield Finding(
            f"the program sends other words than the policy sampled in turn {turn}: {_difference_words(first)}"
            f"{_others(len(replaced) - 1)}",
            first.place(evidence),
            NOTE,
            len(replaced),
        )


def check_resampled(evidence: Evidence) -> Iterator[RuleResult]:
    """No call has the very messages of an earlier one of its trajectory."""
    calls = _calls(evidence)
    yield Checked(len(calls))
    again = [entry for entry in calls if entry.call.way == RESAMPLED]
    if again:
        first = again[0]
        yield Finding(
            f"call {first.call.number} has the very messages of turn {turn_of(first.others, first.call.left)} and was sampled "
            f"anew: both answers are trained with the same outcome{_others(len(again) - 1)}",
            first.place(evidence),
            NOTE,
            len(again),
        )


# ------------------------------------------------------------------------------------------------ R44


def check_calls(evidence: Evidence) -> Iterator[RuleResult]:
    """Every program that ended by itself had called the model."""
    of_programs = [n for n, t in enumerate(evidence.trajectories) if _is_of_program(t)]
    yield Checked(len(of_programs))
    silent = [n for n in of_programs if (evidence.trajectories[n].error or "").startswith(SILENT)]
    if silent:
        every = len(silent) == len(of_programs)
        yield Finding(
            f"{len(silent)} of {len(of_programs)} programs ended without one call that was answered: "
            + ("they ask another model, or none" if every else "nothing of theirs is trained"),
            evidence.place(silent[0]),
            ERROR if every else NOTE,
            len(silent),
        )


# ------------------------------------------------------------------------------------------------ R45


def check_unread(evidence: Evidence) -> Iterator[RuleResult]:
    """Calls of tools that the policy began, in calls that offered tools."""
    counts: Counter[str] = Counter()
    first: _Call | None = None
    for entry in _calls(evidence):
        for name in ("calls", "unread"):
            value = entry.call.facts.get(name, 0)
            counts[name] += value if type(value) is int else 0
        if first is None and entry.call.facts.get("unread"):
            first = entry
    total = counts.total()
    yield Checked(total)
    if first is not None and counts["unread"] >= max(MANY, UNREAD * total):
        complaint = str(first.call.facts.get("complaint", ""))[:160]
        yield Finding(
            f"{counts['unread']} of {total} calls of tools that the policy wrote could not be read, so the program saw them as "
            f"text; the first: {complaint}",
            first.place(evidence),
            NOTE,
            counts["unread"],
        )


# ------------------------------------------------------------------------------------------------ R46


def check_sampling(evidence: Evidence) -> Iterator[RuleResult]:
    """Temperature and top-p of every sampled span against the run's."""
    asked = (evidence.collect.temperature, evidence.collect.top_p)
    decides = getattr(evidence.family, "decides", ())
    other: list[tuple[int, int, Span]] = []
    looked = 0
    for n, trajectory in enumerate(evidence.trajectories):
        for number, segment in enumerate(trajectory.segments):
            spans = [span for span in segment.spans if span.sampled and span.sampling is not None]
            looked += len(spans)
            other += [(n, number, span) for span in spans if _sampling(span) != asked]
    yield Checked(looked)
    if other:
        n, number, span = other[0]
        changed = [
            name
            for name, value in zip(DECIDED, _sampling(span))
            if value != getattr(evidence.collect, name)
        ]
        declared = all(name in decides for name in changed)
        yield Finding(
            f"{len(other)} of {looked} calls were sampled otherwise than the run says, the first at temperature "
            f"{span.sampling.temperature:g} and top-p {span.sampling.top_p:g} (the run's are {asked[0]:g} and {asked[1]:g}): "
            + (
                "the program decides (env.decides)"
                if declared
                else "and env.decides does not leave it to the program"
            ),
            evidence.place(n, segment=number, turn=span.turn),
            NOTE if declared else ERROR,
            len(other),
        )


DECIDED = ("temperature", "top_p")


def _sampling(span: Span) -> tuple[float, float]:
    return span.sampling.temperature, span.sampling.top_p


# ------------------------------------------------------------------------------------------------ the table

RULES: tuple[Rule, ...] = (
    Rule(
        "R40",
        "the history of a program goes on from call to call",
        "Every call begins a new sequence: the past is computed again in each, and no sampled turn stands before the one "
        "that it led to.",
        "Append to the list of messages and send it as it is: no clock in the system prompt, no list that is sorted or "
        "written anew, no message taken out of the middle.",
        ("groups",),
        check_histories,
        applies=by_programs,
    ),
    Rule(
        "R41",
        "what was sampled for a program is trained, or left out by name",
        "Tokens that the policy sampled vanish from training, or train though their conversation was left out.",
        "Fork where a history differs and keep both; mark what is left out when its segment begins; spell names in "
        "env.trains as the program does.",
        ("groups",),
        check_tokens,
        applies=by_programs,
    ),
    Rule(
        "R42",
        "a program sends the model's words back as they were",
        "What follows answers other words than those that are trained: they get the credit of a text that the policy did "
        "not write.",
        "Send the message of an answer back as it came, or call what was rewritten a message of the user.",
        ("groups",),
        check_words,
        applies=by_programs,
    ),
    Rule(
        "R43",
        "no call of a program is sampled twice",
        "Several answers to the same messages are trained with one outcome, though at most one of them led to it.",
        "Let the client say that it retries (its idempotency key, or the header of its own retries), or leave the "
        "conversation that draws several answers out (env.trains).",
        ("groups",),
        check_resampled,
        applies=by_programs,
    ),
    Rule(
        "R44",
        "a program calls the model",
        "The program asks a model somewhere else, or gives up before it asks: nothing of it is trained.",
        "Build its client with the address and the key that it is handed (base_url, OPENAI_BASE_URL), and look at what it "
        "returns without asking.",
        ("groups",),
        check_calls,
        applies=by_programs,
    ),
    Rule(
        "R45",
        "calls of tools are read as the policy writes them",
        "The program sees calls as text and runs none of them: the policy is paid as if it had not called.",
        "Compare the form of calls that the prompt asks for with the one that is read (the environment's calls.format), and "
        "the tools that are offered with those that are called.",
        ("groups",),
        check_unread,
        applies=by_programs,
    ),
    Rule(
        "R46",
        "a program samples as the run says",
        "What is trained was sampled from another distribution than the run declares.",
        "Leave temperature and top_p out of the program's calls, or name them in env.decides.",
        ("groups", "collect"),
        check_sampling,
        applies=by_programs,
    ),
)
