"""Calls and their results: each is what the policy wrote, and each is answered by its own result (R28).

What tools of this process answered is asked of them once more, one call at a time: a result that stands under another
call, is cut without a word, or depends on who asked, comes out otherwise. Nothing that may not run here is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.envs.leaks import leaves
from workbench.envs.shared import made
from workbench.envs.tool_env import ToolEnv
from workbench.envs.tools.base import ToolResult, refusal_of
from workbench.envs.tools.results import cut_mark
from workbench.linting.evidence import Evidence
from workbench.linting.render import chosen
from workbench.linting.rule import Rule, RuleResult
from workbench.linting.searches import not_of_the_searcher
from workbench.types import Message, Task, ToolCall, Trajectory, Turn
from workbench.types.findings import Checked, Finding, NotChecked, shortened

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def check_results(evidence: Evidence) -> Iterator[RuleResult]:
    calling = [
        n for n, t in enumerate(evidence.trajectories) if any(turn.tool_calls for turn in t.turns)
    ]
    if not calling:
        yield NotChecked("calls of tools")
        return
    strict = isinstance(made(evidence.family), ToolEnv)
    for n in calling:
        trajectory = evidence.trajectories[n]
        yield Checked(sum(len(turn.tool_calls) for turn in trajectory.turns))
        for k, turn in enumerate(trajectory.turns):
            last = k + 1 == len(trajectory.turns)
            if (what := _not_as_written(turn, strict) or _not_answered(turn, last)) is not None:
                yield Finding(what, evidence.place(n, turn=k))
                break
    yield from _asked_again(evidence, calling)
    yield from _who_asks(evidence, calling)
    yield from _recalled(evidence, calling)


# ------------------------------------------------------------------------------------------------ what was written


def _not_as_written(turn: Turn, strict: bool) -> str | None:
    """A call whose name or words do not stand in the action, or one that stands there and was not made. `strict`: what
    stands in a thought is no call, as `ToolEnv` has it."""
    said = turn.text.rpartition("</think>")[2] if strict else turn.text
    for call in (
        () if "\\" in turn.text else turn.tool_calls
    ):  # what is escaped may be written in many ways
        for words in [
            call.name,
            *(each for each in leaves(call.arguments) if isinstance(each, str) and each),
        ]:
            if words not in said:
                return f"the call {_words(call)} was made, and {shortened(words)} " + (
                    "stands in the thought alone"
                    if words in turn.text
                    else "does not stand in the action"
                )
    written = _written(turn.text)
    if turn.info.get("valid_format") is True and written and turn.tool_calls:
        made = [(call.name, dict(call.arguments)) for call in turn.tool_calls]
        if written != made:
            return f"the action writes {len(written)} calls, {shortened(written)}, and made were {shortened(made)}"
    return None


def _written(text: str) -> list[tuple[Any, Any]]:
    """The calls of an action in the common form, behind its thought; [] where one of them cannot be read."""
    try:
        found = [json.loads(inner) for inner in CALL.findall(text.rpartition("</think>")[2])]
        return [(each["name"], _object(each["arguments"])) for each in found]
    except (ValueError, KeyError, TypeError):
        return []


def _object(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _words(call: ToolCall) -> str:
    return shortened(
        f"{call.name} {json.dumps(dict(call.arguments), default=str, ensure_ascii=False)}"
    )


# ------------------------------------------------------------------------------------------------ what was answered


def _not_answered(turn: Turn, last: bool) -> str | None:
    """Each call by one message of its id and name, in the order of the calls."""
    replies, calls = [m for m in turn.reply if m.role == "tool"], turn.tool_calls
    ids = [message.tool_call_id for message in replies if message.tool_call_id is not None]
    twice = [each for each in ids if ids.count(each) > 1]
    if twice:
        return f"{ids.count(twice[0])} results say that they answer the call {twice[0]!r}"
    if not calls or not replies:
        # A reply of another role may well hold the results: an environment of one's own need not use ids.
        return (
            f"{len(calls)} calls were made, and none is answered"
            if calls and not last and not turn.reply
            else None
        )
    asked = [call.call_id for call in calls]
    if None in asked or not ids:
        return None
    if len(set(asked)) < len(asked):
        return f"calls share an id: {asked}"
    order = [each for each in ids if each in asked]
    if order != asked:
        return f"the calls {asked} are answered by results of {ids}, so some call has no result or another place"
    names = {message.tool_call_id: message.name for message in replies}
    wrong = next((call for call in calls if names[call.call_id] not in (None, call.name)), None)
    return (
        None
        if wrong is None
        else f"the call of {wrong.name} is answered by a result of {names[wrong.call_id]}"
    )


def _result_of(turn: Turn, index: int) -> Message | None:
    """The message that is to be the answer to this call."""
    call, replies = turn.tool_calls[index], [m for m in turn.reply if m.role == "tool"]
    own = next(
        (m for m in replies if call.call_id is not None and m.tool_call_id == call.call_id), None
    )
    return own or (replies[index] if len(replies) == len(turn.tool_calls) else None)


def _asked_again(evidence: Evidence, calling: Sequence[int]) -> Iterator[RuleResult]:
    """The tools of this process, each call by itself, in a fresh tool."""
    looked = set(chosen(evidence))
    env = made(evidence.family)
    tools = {
        tool.name: tool
        for tool in getattr(env, "tools", ()) or ()
        if getattr(tool, "trusted", False) and not getattr(tool, "stateful", True)
    }
    limits = getattr(getattr(env, "calls", None), "limits", None)
    if not tools or limits is None:
        yield NotChecked("tools that may be called here once more (trusted, and without state)")
        return
    for n in (
        n
        for n in calling
        if n in looked and evidence.trajectories[n].task.env == evidence.family.name
    ):
        trajectory = evidence.trajectories[n]
        own = {
            name: tool.for_attempt(trajectory.task) for name, tool in tools.items()
        }  # they may take other arguments
        known = {tool.name: tool for tool in env.tools} | own
        for k, turn in enumerate(trajectory.turns):
            for index, call in enumerate(turn.tool_calls):
                message = _result_of(turn, index)
                if message is None:
                    continue
                told = turn.info.get("calls")
                refused = index >= limits.most_calls or refusal_of(call, known)
                if (
                    refused
                    and isinstance(told, list)
                    and index < len(told)
                    and not told[index].get("error")
                ):
                    yield Finding(
                        f"the call {_words(call)} was refused, and counts as one that was made",
                        evidence.place(n, turn=k),
                    )
                    return
                if call.name not in own or refusal_of(call, own):
                    continue
                yield Checked(1)
                if (what := not_of_the_searcher(own[call.name], call.arguments)) is not None:
                    yield Finding(what, evidence.place(n, turn=k))
                    return
                over = index >= limits.most_calls
                expected = (
                    None
                    if over
                    else expected_text(tools[call.name], trajectory.task, call, limits.most_bytes)
                )
                if over != ("not run" in message.text[:40]) or (
                    expected is not None and message.text != expected
                ):
                    yield Finding(
                        f"the call {_words(call)} is answered by {shortened(message.text)}; asked by itself, "
                        f"{call.name} answers {'nothing beyond the limit' if over else shortened(expected)}",
                        evidence.place(n, turn=k),
                    )
                    return


def expected_text(tool: Any, task: Task, call: ToolCall, most_bytes: int) -> str | None:
    """What the tool answers, as long as it may be; None where it refuses or fails, whose words are not the tool's, and
    where it gives back what is no text."""
    try:
        given = tool.for_attempt(task).call(call.arguments)
    except Exception:
        return None
    text = given.text if isinstance(given, ToolResult) else given
    if not isinstance(text, str):
        return None
    data = text.encode("utf-8", "replace")
    if len(data) <= most_bytes:
        return data.decode()
    kept = data[:most_bytes].decode("utf-8", "ignore")
    return kept + cut_mark(len(kept.encode()), len(data))


def _who_asks(evidence: Evidence, calling: Sequence[int]) -> Iterator[RuleResult]:
    """The same call in the same task, by different attempts, of tools that say that they have no state."""
    env = made(evidence.family)
    plain = {
        tool.name
        for tool in getattr(env, "tools", ()) or ()
        if not getattr(tool, "stateful", True) and getattr(tool, "deterministic", True)
    }
    if not plain or getattr(evidence.family, "remote", False):
        return
    known: dict[tuple[str, str, str], tuple[str, int]] = {}
    for n in calling:
        trajectory: Trajectory = evidence.trajectories[n]
        for k, turn in enumerate(trajectory.turns):
            for index, call in enumerate(turn.tool_calls):
                message = _result_of(turn, index)
                if call.name not in plain or message is None or message.text.startswith("Error"):
                    continue
                key = (
                    trajectory.task.id,
                    call.name,
                    json.dumps(dict(call.arguments), sort_keys=True, default=str),
                )
                text, other = known.setdefault(key, (message.text, n))
                if text != message.text:
                    yield Finding(
                        f"{_words(call)} is answered by {shortened(message.text)} here and by "
                        f"{shortened(text)} in "
                        f"attempt {evidence.trajectories[other].attempt}: what a tool without state says "
                        "depends on who asks",
                        evidence.place(n, turn=k),
                    )
                    return


def _recalled(evidence: Evidence, calling: Sequence[int]) -> Iterator[RuleResult]:
    """Where replies begin with the calls before them (`calls.recall`): with all of them, each with its own result."""
    env = made(evidence.family)
    if not getattr(getattr(env, "calls", None), "recall", False):
        return
    for n in (n for n in calling if evidence.trajectories[n].task.env == evidence.family.name):
        past: list[str] = []
        for k, turn in enumerate(evidence.trajectories[n].turns):
            answers = [_result_of(turn, index) for index in range(len(turn.tool_calls))]
            if turn.reply and past:
                yield Checked(len(past))
                said = turn.reply[0].text.partition("\n")[2] if turn.reply[0].role == "user" else ""
                lacks = next((each for each in past if each not in said), None)
                if said != "\n".join(past):
                    yield Finding(
                        "what its reply recalls of earlier calls "
                        + (
                            "is more than they were, or in another order"
                            if lacks is None
                            else f"lacks {shortened(lacks)}"
                        ),
                        evidence.place(n, turn=k),
                    )
                    return
            if None in answers:  # nobody knows what answered it
                break
            past += [
                f"{call.name} {json.dumps(dict(call.arguments), ensure_ascii=False)}\n{message.text}"
                for call, message in zip(turn.tool_calls, answers)
            ]


R28 = Rule(
    "R28",
    "a call is what the policy wrote, and its result answers it",
    "The policy learns from answers to questions that it did not ask: what it found, and what it was paid for, "
    "belongs to another call.",
    "Carry an id with each call from the parser to the message; sort results by it and not by when they came; keep "
    "caches by all that was asked.",
    ("groups",),
    check_results,
)

RULES: tuple[Rule, ...] = (R28,)
