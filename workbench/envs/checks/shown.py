"""What a policy is shown: text that can be read, in roles that are the environment's, that fits, and that tells no answer
(E6 to E9)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from itertools import islice

from workbench.envs.checks.given import CheckInput, EMPTY, inside
from workbench.envs.checks.playing import PlayedAttempt, text_of
from workbench.envs.leaks import Probe, always_there, golds, holds, leak_of, rare_parts, words_of
from workbench.types import Observation, Task
from workbench.types.errors import WorkbenchError
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, RuleResult, shortened

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b")
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
LONE = re.compile(r"[\ud800-\udfff]")
ROLES = ("system", "user", "tool", "assistant")
TOLD, MET = (
    0.8,
    0.25,
)  # share of tasks whose own answer stands there; share of others' answers that do by accident
LEAST_TASKS = 4
CROWDED = 0.9  # of the context


def _all(given: CheckInput) -> Iterator[tuple[str, Observation, PlayedAttempt, int]]:
    """Every observation, and where it is from: "the first observation of ...", "the reply to action 2 of ..."."""
    for each in given.attempts:
        for k, observation in enumerate(each.shown):
            where = "the first observation" if not k else f"the reply to action {k - 1}"
            yield f"{where} of {each.task.id!r} ({each.policy})", observation, each, k


def check_text(given: CheckInput) -> Iterator[RuleResult]:
    """No sequence that colours a terminal, no control character, nothing that has no UTF-8."""
    named: set[str] = set()
    for where, observation, _, _ in _all(given):
        yield Checked(1)
        text = text_of(observation) + json.dumps(
            [dict(tool) for tool in observation.tools], default=str, ensure_ascii=False
        )
        for name, pattern in (
            ("an ANSI sequence", ANSI),
            ("a control character", CONTROL),
            ("half a surrogate pair", LONE),
        ):
            if (found := pattern.search(text)) and name not in named:
                named.update(
                    (name, "a control character") if name == "an ANSI sequence" else (name,)
                )
                near = text[max(found.start() - 15, 0) : found.end() + 15]
                yield Finding(f"{where} holds {name}, {found[0]!r}: {near!r}")
        if "\ufffd" in text and "\ufffd" not in named:
            named.add("\ufffd")
            yield Finding(
                f"{where} holds U+FFFD, the mark of text that was decoded wrongly", severity=NOTE
            )


def check_messages_said(given: CheckInput) -> Iterator[RuleResult]:
    """Something is said as long as an answer is expected, by the system, the user or a tool."""
    named: set[str] = set()

    def once(kind: str, what: str, severity: str = "error") -> Iterator[RuleResult]:
        if kind not in named:
            named.add(kind)
            yield Finding(what, severity=severity)

    for where, observation, attempt, k in _all(given):
        yield Checked(1)
        over = k > 0 and (attempt.results[k - 1].terminated or attempt.results[k - 1].truncated)
        if not over and not text_of(observation).strip():
            yield from once("empty", f"{where} is empty, and an answer to it is expected")
        for message in observation.messages:
            if message.role not in ROLES:
                yield from once(
                    "role",
                    f"{where} has a message by {message.role!r}: roles are {', '.join(ROLES)}",
                )
            elif message.role == "assistant" and k > 0:
                yield from once(
                    "words",
                    f"{where} has a message in the role of the assistant, which is the policy: its own words "
                    "stand in its sequence already, and these would pass for them",
                )
            elif message.role == "tool" and k == 0:
                yield from once(
                    "tool", f"{where} begins with the answer of a tool that nobody called"
                )
            elif message.role == "system" and k > 0:
                yield from once(
                    "system",
                    f"{where} has a message by the system: most chat templates take one only at the "
                    "beginning",
                    NOTE,
                )
        if (
            observation.messages
            and observation.messages[-1].role in ("assistant", "system")
            and not over
        ):
            yield from once(
                "last",
                f"{where} ends with a message by {observation.messages[-1].role!r}: nobody has asked the "
                "policy anything; end it with one by 'user'",
            )


# ------------------------------------------------------------------------------------------------ context


def check_context(given: CheckInput) -> Iterator[RuleResult]:
    """A first prompt that leaves no room for an answer makes an attempt without a turn."""
    if given.count_tokens is None or given.max_context is None:
        yield NotChecked(
            "a policy, whose tokenizer counts: workbench check-env NAME --policy POLICY"
        )
        return
    sizes = {}
    for name, opening in given.openings.items():
        try:
            sizes[name] = given.count_tokens(opening)
        except WorkbenchError as error:
            yield Finding(f"no prompt can be made of the first observation of {name!r}: {error}")
            return
        yield Checked(1)
    if not sizes:
        return
    longest = max(sizes, key=sizes.get)
    if sizes[longest] >= given.max_context:
        too_long = sum(size >= given.max_context for size in sizes.values())
        yield Finding(
            f"the first prompt of {too_long} of {len(sizes)} tasks does not fit: {sizes[longest]} tokens at "
            f"{longest!r}, and the context is {given.max_context}. Such an attempt has no turn",
            count=too_long,
        )
        return
    if sizes[longest] + given.max_turn_tokens > given.max_context:
        yield Finding(
            f"the first prompt of {longest!r} has {sizes[longest]} tokens; of a context of {given.max_context} that leaves "
            f"less than the {given.max_turn_tokens} of one turn",
            severity=NOTE,
        )
        return
    yield from _whole_attempts(given)


def _whole_attempts(given: CheckInput) -> Iterator[RuleResult]:
    """How long an attempt becomes by the solver, or else by random play."""
    for name in ("solver", "random"):
        for attempt in given.own.get(name, ())[:3]:
            size = sum(map(given.count_tokens, attempt.shown[: len(attempt.results)]))
            size += sum(
                given.count_tokens(Observation(())) if not text else len(text) // 4
                for text in attempt.texts
            )
            if size > CROWDED * given.max_context:
                yield Finding(
                    f"an attempt by {name} at {attempt.task.id!r} has about {size} tokens in {len(attempt.results)} "
                    f"turns, and the context is {given.max_context}: it ends because it is full",
                    severity=NOTE,
                )
                return


# ------------------------------------------------------------------------------------------------ the answer


def check_leaks(given: CheckInput) -> Iterator[RuleResult]:
    """No prompt or reply holds the answer before it was earned: the gold answer, or what the solver says."""
    probes = [
        Probe(task, given.openings[task.id]) for task in given.tasks if task.id in given.openings
    ]
    played = [
        each
        for name, attempts in given.plays.items()
        if name != "solver"
        for each in attempts
        if each.results
    ]
    if any(golds(each.task) for each in probes):
        yield from always_there(probes)
        for each in played:
            rare = rare_parts(each.task, probes)
            yield Checked(len(each.results))
            if rare and (found := leak_of(given.family, each.trajectory, rare)) is not None:
                yield Finding(f"at {each.task.id!r} ({each.policy}), {found[1]}")
                return
    answers = _answers(given)
    if len(answers) < LEAST_TASKS:
        if not any(golds(each.task) for each in probes):
            yield NotChecked(
                "a gold answer in the payload of a task, or a solver whose last action is a value of it"
            )
        return
    yield from _told(given, answers)


def _answers(given: CheckInput) -> dict[str, str]:
    """Task -> the answer that solves it, where it is a value of the task that stands under one name alone."""
    found: dict[str, str] = {}
    for attempt in given.own.get("solver", ()):
        said = inside(attempt.texts[-1]) if attempt.texts and attempt.success is not False else ""
        keys = [name for name, value in attempt.task.payload.items() if said and _is(value, said)]
        if keys and not any(
            holds(str(value), said)
            for name, value in attempt.task.payload.items()
            if name not in keys
        ):
            found[attempt.task.id] = said
    return found if len(set(found.values())) >= LEAST_TASKS else {}


def _is(value: object, said: str) -> bool:
    return (
        str(value).strip().lower() == said.lower()
        or isinstance(value, (list, tuple))
        and len(value) == 1
        and _is(value[0], said)
    )


def _told(given: CheckInput, answers: dict[str, str]) -> Iterator[RuleResult]:
    """Whether tasks' own answers stand in what is shown, and those of others do not. In a prompt, or in the reply to an
    action that earned nothing: an empty one, a wrong one."""
    shown: dict[str, dict[str, str]] = {
        "the first prompt": {name: words_of(opening) for name, opening in given.openings.items()}
    }
    tasks = {task.id: task for task in given.tasks}
    for policy in (EMPTY, *islice((name for name in given.fixed if name != EMPTY), 4)):
        shown[f"the reply to {policy}"] = _replies(given.fixed[policy], answers)
    for where, texts in shown.items():
        asked = [name for name in texts if name in answers]
        yield Checked(len(asked))
        own = [
            name
            for name in asked
            if holds(_beside(tasks[name], texts[name], answers[name]), answers[name])
        ]
        others = [
            holds(texts[name], answers[other])
            for name in asked
            for other in answers
            if answers[other] != answers[name]
        ]
        if (
            len(asked) >= LEAST_TASKS
            and len(own) >= TOLD * len(asked)
            and sum(others) <= MET * len(others)
        ):
            yield Finding(
                f"{where} holds the answer in {len(own)} of {len(asked)} tasks: {answers[own[0]]!r} at {own[0]!r}, in "
                f"{shortened(_near(texts[own[0]], answers[own[0]]), 80)}"
            )
            return


def _replies(attempts: Sequence[PlayedAttempt], answers: dict[str, str]) -> dict[str, str]:
    """What is shown after actions that earned nothing, as long as another may follow."""
    return {
        each.task.id: "\n".join(text_of(result.observation) for result in each.results[:-1])
        for each in attempts
        if len(each.results) > 1 and answers.get(each.task.id) not in map(inside, each.texts)
    }


def _beside(task: Task, text: str, answer: str) -> str:
    """The text without what the task is made of, where that holds the answer."""
    for value in task.payload.values():
        if isinstance(value, str) and value.strip().lower() != answer.lower():
            text = text.replace(value, " ")
    return text


def _near(text: str, words: str) -> str:
    at = text.lower().find(words.lower())
    return text[max(at - 30, 0) : at + len(words) + 30]
