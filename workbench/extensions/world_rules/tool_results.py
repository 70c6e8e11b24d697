"""Calls and their results: each is what the policy wrote, and each is answered by its own result (R28).

What tools of this process answered is asked of them once more, one call at a time: a result that stands under another
call, is cut without a word, or depends on who asked, comes out otherwise. Nothing that may not run here is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.extensions.scripted_play.leaks import leaves
from workbench.extensions.world_rules.searches import not_of_the_searcher
from workbench.linting.evidence import Evidence
from workbench.linting.render import chosen
from workbench.linting.rule import Rule, RuleResult
from workbench.tools.base import ToolResult, refusal_of
from workbench.tools.results import cut_mark
from workbench.values import Message, Task, ToolCall, Trajectory, Turn
from workbench.values.errors import shortened
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

OF_THE_CLOCK = ("timeout", "died")  # errors of calls that another time need not have
AGAIN = "calls asked once more"
CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def check_results(evidence: Evidence) -> Iterator[RuleResult]:
    calling = [n for n, t in enumerate(evidence.trajectories) if _has_calls(t)]
    if not calling:
        yield NotChecked("calls of tools")
        return
    strict = isinstance(made(evidence.family), ToolEnv)
    for n in calling:
        trajectory = evidence.trajectories[n]
        yield Checked(
            sum(len(turn.tool_calls) for turn in trajectory.turns),
            "calls against what was written, and whose answer is whose",
        )
        for k, turn in enumerate(trajectory.turns):
            last = k + 1 == len(trajectory.turns)
            if (what := _not_as_written(turn, strict) or _not_answered(turn, last)) is not None:
                yield Finding(what, evidence.place(n, turn=k))
                break
    yield from _asked_again(evidence, calling)
    yield from _who_asks(evidence, calling)
    yield from _recalled(evidence, calling)


# ------------------------------------------------------------------------------------------------ what was written


def _has_calls(trajectory: Trajectory) -> bool:
    return any(turn.tool_calls for turn in trajectory.turns)


def _not_as_written(turn: Turn, strict: bool) -> str | None:
    """A call whose name or words do not stand in the action, or one that stands there and was not made. `strict`: what
    stands in a thought is no call, as `ToolEnv` has it."""
    action_text = turn.text.rpartition("</think>")[2] if strict else turn.text
    # What is escaped may be written in many ways.
    calls = () if "\\" in turn.text else turn.tool_calls
    for call in calls:
        texts = [leaf for leaf in leaves(call.arguments) if isinstance(leaf, str) and leaf]
        missing = next((text for text in (call.name, *texts) if text not in action_text), None)
        if missing is not None:
            where = "is not in the action"
            if missing in turn.text:
                where = "is in the thought alone"
            return f"the call {_words(call)} was made, and {shortened(missing)} {where}"
    written = _calls_in_text(turn.text)
    if turn.info.get("valid_format") is True and written and turn.tool_calls:
        made = [(call.name, dict(call.arguments)) for call in turn.tool_calls]
        if written != made:
            return f"the action writes {len(written)} calls, {shortened(written)}, and made were {shortened(made)}"
    return None


def _calls_in_text(text: str) -> list[tuple[Any, Any]]:
    """The calls of an action in the common form, behind its thought; [] where one of them cannot be read."""
    try:
        calls = [json.loads(inner) for inner in CALL.findall(text.rpartition("</think>")[2])]
        return [(call["name"], _parsed(call["arguments"])) for call in calls]
    except (ValueError, KeyError, TypeError):
        return []


def _parsed(arguments: Any) -> Any:
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def _words(call: ToolCall) -> str:
    return shortened(
        f"{call.name} {json.dumps(dict(call.arguments), default=str, ensure_ascii=False)}"
    )


# ------------------------------------------------------------------------------------------------ what was answered


def _not_answered(turn: Turn, last: bool) -> str | None:
    """Each call by one message of its id and name, in the order of the calls."""
    replies = [m for m in turn.reply if m.role == "tool"]
    calls = turn.tool_calls
    ids = [message.tool_call_id for message in replies if message.tool_call_id is not None]
    twice = [call_id for call_id in ids if ids.count(call_id) > 1]
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
    order = [call_id for call_id in ids if call_id in asked]
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
    call = turn.tool_calls[index]
    replies = [m for m in turn.reply if m.role == "tool"]
    own = next(
        (m for m in replies if call.call_id is not None and m.tool_call_id == call.call_id), None
    )
    return own or (replies[index] if len(replies) == len(turn.tool_calls) else None)


class Asked(NamedTuple):
    """A call of a stored trajectory, and the message that is to be the answer to it."""

    n: int  # the trajectory
    k: int  # its turn
    index: int  # the place of the call in its turn
    call: ToolCall
    message: Message
    trajectory: Trajectory

    @property
    def error(self) -> str | None:
        """What was wrong with it, as the environment says; "" for nothing, None where it says nothing."""
        records = self.trajectory.turns[self.k].info.get("calls")
        if not isinstance(records, list) or self.index >= len(records):
            return None
        return records[self.index].get("error") or ""


def _answered_calls(evidence: Evidence, chosen_n: Iterable[int]) -> Iterator[Asked]:
    """The calls of these trajectories that have an answer, in order."""
    for n in chosen_n:
        trajectory = evidence.trajectories[n]
        for k, turn in enumerate(trajectory.turns):
            for index, call in enumerate(turn.tool_calls):
                message = _result_of(turn, index)
                if message is not None:
                    yield Asked(n, k, index, call, message, trajectory)


def _of_this_family(evidence: Evidence, calling: Sequence[int]) -> list[int]:
    return [n for n in calling if evidence.trajectories[n].task.env == evidence.family.name]


def _without_state(env: Any) -> dict[str, Any]:
    tools = getattr(env, "tools", ()) or ()
    return {tool.name: tool for tool in tools if not getattr(tool, "stateful", True)}


def _asked_again(evidence: Evidence, calling: Sequence[int]) -> Iterator[RuleResult]:
    """The tools of this process, each call by itself, in a fresh tool."""
    env = made(evidence.family)
    stateless = _without_state(env).items()
    tools = {name: tool for name, tool in stateless if getattr(tool, "trusted", False)}
    limits = getattr(getattr(env, "calls", None), "limits", None)
    if not tools or limits is None:
        yield NotChecked("tools that are trusted and have no state", AGAIN)
        return
    cut = 0
    for asked, own in _with_their_tools(evidence, calling, tools):
        name = asked.call.name
        over = asked.index >= limits.most_calls
        known = {tool.name: tool for tool in env.tools} | own
        what = None
        if (over or refusal_of(asked.call, known)) and asked.error == "":
            what = f"the call {_words(asked.call)} was refused, and counts as one that was made"
        elif name in own and asked.error in OF_THE_CLOCK:
            cut += 1  # asked alone, with all the time it wants, a tool may well answer
        elif name in own and not refusal_of(asked.call, own):
            yield Checked(1, AGAIN)
            searched = not_of_the_searcher(own[name], asked.call.arguments)
            what = searched or _answers_otherwise(asked, tools[name], over, limits.most_bytes)
        if what is not None:
            yield Finding(what, evidence.place(asked.n, turn=asked.k))
            return
    if cut:
        yield NotChecked(f"an answer: the clock, or a worker's end, cut off {cut} calls", AGAIN)


def _with_their_tools(
    evidence: Evidence, calling: Sequence[int], tools: Mapping[str, Any]
) -> Iterator[tuple[Asked, dict[str, Any]]]:
    """Each call that is looked at, and the tools as its task has them: at another one they may take other arguments."""
    looked = set(chosen(evidence))
    for n in _of_this_family(evidence, calling):
        if n in looked:
            task = evidence.trajectories[n].task
            own = {name: tool.for_trajectory(task) for name, tool in tools.items()}
            for asked in _answered_calls(evidence, [n]):
                yield asked, own


def _answers_otherwise(asked: Asked, tool: Any, over: bool, most_bytes: int) -> str | None:
    """Say what the tool answers by itself, where that is not what was answered. `over`: beyond the number of calls."""
    expected = None if over else expected_text(tool, asked.trajectory.task, asked.call, most_bytes)
    text = asked.message.text
    if over == ("not run" in text[:40]) and expected in (None, text):
        return None
    by_itself = "nothing beyond the limit" if over else shortened(expected)
    return (
        f"the call {_words(asked.call)} is answered by {shortened(text)}; asked by itself, {asked.call.name} answers "
        f"{by_itself}"
    )


def expected_text(tool: Any, task: Task, call: ToolCall, most_bytes: int) -> str | None:
    """The answer of the tool, as long as it may be; None where it refuses or fails, whose words are not the tool's, and
    where it gives back what is no text."""
    try:
        given = tool.for_trajectory(task).call(call.arguments)
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
    """The same call in the same task, by different trajectories, of tools that say that they have no state."""
    stateless = _without_state(made(evidence.family)).items()
    same_each_time = {name for name, tool in stateless if getattr(tool, "deterministic", True)}
    if not same_each_time or getattr(evidence.family, "remote", False):
        return
    known: dict[tuple[str, str, str], Asked] = {}
    for asked in _answered_calls(evidence, calling):
        call = asked.call
        text = asked.message.text
        if call.name not in same_each_time or text.startswith("Error"):
            continue
        written = json.dumps(dict(call.arguments), sort_keys=True, default=str)
        first = known.setdefault((asked.trajectory.task.id, call.name, written), asked)
        if first.message.text != text:
            yield Finding(
                f"{_words(call)} is answered by {shortened(text)} here and by {shortened(first.message.text)} in "
                f"attempt {first.trajectory.attempt}: what a tool without state says depends on who asks",
                evidence.place(asked.n, turn=asked.k),
            )
            return


def _recalled(evidence: Evidence, calling: Sequence[int]) -> Iterator[RuleResult]:
    """Where replies begin with the calls before them (`calls.recall`): with all of them, each with its own result."""
    env = made(evidence.family)
    if not getattr(getattr(env, "calls", None), "recall", False):
        return
    for n in _of_this_family(evidence, calling):
        past: list[str] = []
        for k, turn in enumerate(evidence.trajectories[n].turns):
            answers = [_result_of(turn, index) for index in range(len(turn.tool_calls))]
            if turn.reply and past:
                yield Checked(len(past))
                recalled = (
                    turn.reply[0].text.partition("\n")[2] if turn.reply[0].role == "user" else ""
                )
                lacks = next((entry for entry in past if entry not in recalled), None)
                if recalled != "\n".join(past):
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
