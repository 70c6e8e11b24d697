"""The environment between a policy and its tools: a question, calls and their results, an answer.

    turn   <tool_call>...</tool_call> ...   the calls are run side by side; one tool message answers each
           <answer>...</answer>             the attempt is over (terminated)
           neither                          what was wrong, in words; the turn is spent

Every part of the reward lands on the turn that earned it: the answer on the turn that answers or, where the turns ran
out, on the last one, so it is there whatever stands last in the sequence; a format penalty on the turn that earned it;
a process reward on the turn whose call brought a supporting document for the first time (a document pays once, however
often it is found again). The answer is scored once, when the attempt ends.

One environment is one attempt: no state is shared, and tools with state are made anew by `for_attempt`. Families say
which tools, which words and which settings; nothing here knows where questions come from. A task's payload holds
`question` (text), `answers` (the gold answer and its aliases; [] where it is not known: then there is no `success` and
the answer is unscored, law 5) and `support` (ids of the documents that the answer rests on).

Everything a tool, a schema, a task or the policy brought is untrusted text (law 9).
"""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import Annotated, Any

from workbench.envs.answer_rewards import AnswerRewards
from workbench.envs.format import refusal
from workbench.envs.qa.answers import exact_match, f1
from workbench.envs.tools.base import Tool, ToolResult, check_name, schema_of
from workbench.envs.tools.executor import ToolExecutor, ToolLimits
from workbench.envs.tools.formats import FORMATS, CallFormat, format_for
from workbench.envs.tools.turns import BadCall, ParsedTurn
from workbench.types import Message, Observation, StepResult, Task, Text, ToolCall
from workbench.types.errors import ConfigError, EnvError
from workbench.types.settings import above, at_least, check_settings, one_of


@dataclass(frozen=True)
class CallSettings:
    """How tools are called, and what a call may take."""

    format: Annotated[str, one_of(*FORMATS), "hermes (<tool_call>{json}</tool_call>) or tags "
                      "(<search>...</search>)"] = "hermes"
    think: Annotated[bool, "every turn begins with <think>...</think>"] = False
    most_calls: Annotated[int, at_least(1), "calls that are run in one turn"] = 4
    deadline_s: Annotated[float, above(0), "seconds of the wall clock for each call"] = 5.0
    most_bytes: Annotated[int, at_least(1), "bytes of text that one call brings; the rest is cut, with a mark"] = 2000
    workers: Annotated[int, at_least(1), "worker processes for tools that are not trusted"] = 2
    show_schemas: Annotated[bool, "false: the prompt holds no schemas (hermes) or lines (tags) of the tools, for policies "
                            "that know them"] = True
    recall: Annotated[bool, "every reply begins with the calls and results before it: for histories that show the newest "
                      "reply alone (fresh, window)"] = False

    def __post_init__(self) -> None:
        check_settings(self, "calls")

    @property
    def limits(self) -> ToolLimits:
        return ToolLimits(self.deadline_s, self.most_bytes, self.most_calls, self.workers)


@dataclass(frozen=True)
class _Attempt:
    """Where an attempt stands."""

    task: Task
    turn: int = 0
    in_order: bool = True          # every turn so far
    finished: bool = False
    paid: tuple[str, ...] = ()     # supporting documents that were found
    past: tuple[str, ...] = ()     # calls and results, in words, where they are recalled
    history: str = ""              # digest of all replies


class ToolEnv:
    """One attempt at a question with tools.

    tools         what may be called; () for an attempt that answers from what it is shown or knows
    max_turns     turns, the answering one included
    instructions  the author's words before the question; "" for none, None for ours
    opening       text for the first prompt, by the task: documents that were fetched beforehand (untrusted)
    """

    def __init__(self, tools: Sequence[Tool], *, max_turns: int, calls: CallSettings = CallSettings(),
                 rewards: AnswerRewards = AnswerRewards(), instructions: str | None = None,
                 opening: Callable[[Task], str] | None = None) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns is at least 1, got {max_turns!r}")
        for tool in tools:
            check_name(tool.name)
        self.tools, self.max_turns, self.calls, self.rewards = tuple(tools), max_turns, calls, rewards
        self.format: CallFormat = format_for(calls.format, self.tools, think=calls.think)
        self.instructions = self.own_instructions if instructions is None else instructions
        self.opening = opening
        self.executor: ToolExecutor | None = None
        self._attempt: _Attempt | None = None

    # -------------------------------------------------------------------------------------------- the contract

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        _check(task)
        self._begin(_Attempt(task))
        before = self.opening(task) if self.opening else ""
        shown = [Text(self.instructions, trusted=True), *self._tool_lines(), Text(f"{before}\n\n" if before else ""),
                 Text("Question: ", trusted=True), Text(task.payload["question"])]
        schemas = tuple(map(schema_of, self.tools)) if self._shows("hermes") else ()
        return Observation((Message("user", tuple(part for part in shown if part.text)),), schemas)

    def step(self, action_text: str) -> StepResult:
        attempt = self._attempt
        if attempt is None or attempt.finished:
            raise EnvError("this attempt is over or was never begun; call reset(task, dynamics_seed) first")
        parsed = self.format.parse(action_text)
        calls = tuple(replace(call, call_id=f"t{attempt.turn}c{index}") for index, call in placed(parsed))
        results = self.executor.run(calls) if calls else []
        found = [each for result in results for each in _documents(result)]
        support = attempt.task.payload.get("support", ())
        new = [each for each in dict.fromkeys(found) if each in support and each not in attempt.paid]
        answered, turn = parsed.answer is not None, attempt.turn + 1
        finished = answered or turn >= self.max_turns
        messages = () if answered else replies_to(parsed, calls, results, turn=attempt.turn, past=attempt.past,
                                                  example=self.example)
        parts = self.rewards.parts(parsed, results, self.golds, new_documents=len(new), in_order=attempt.in_order,
                                   finished=finished)
        info = self._info(parsed, calls, results, found, new, finished)
        self._attempt = replace(
            attempt, turn=turn, in_order=attempt.in_order and parsed.valid, finished=finished,
            paid=(*attempt.paid, *new), past=attempt.past + (remembered(calls, results) if self.calls.recall else ()),
            history=_digest(attempt.history, [message.text for message in messages] or [action_text]))
        return StepResult(Observation(messages), None if parts is None else sum(parts.values()), parts or {},
                          terminated=answered, truncated=finished and not answered, info=info, tool_calls=calls,
                          if_cut={} if finished or not self.golds else self.rewards.if_cut(self._attempt.in_order))

    def close(self) -> None:
        """Give back what tools hold: worker processes and connections."""
        if self.executor is not None:
            self.executor.close()
            self.executor = None

    def state_key(self) -> str:
        """The question, and all that was replied so far: nothing else out there decides what a call brings."""
        return f"{self._attempt.task.id} {self._attempt.history}"

    @property
    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """As a JSON value; not there where a tool has state of its own, which cannot be copied."""
        if any(tool.stateful for tool in self.tools):
            raise AttributeError("an environment whose tools have state has no snapshot")
        return lambda: {name: list(value) if isinstance(value, tuple) else value
                        for name, value in vars(self._attempt).items() if name != "task"} | {
                            "task": {field.name: getattr(self._attempt.task, field.name) for field in fields(Task)}}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in snapshot.items()}
        self._begin(_Attempt(**values | {"task": Task(**snapshot["task"])}))

    def _begin(self, attempt: _Attempt) -> None:
        self.close()
        self.executor = ToolExecutor(self.tools, self.calls.limits, attempt.task)
        self._attempt = attempt

    # -------------------------------------------------------------------------------------------- what is said

    @property
    def golds(self) -> tuple[str, ...]:
        return tuple(self._attempt.task.payload.get("answers", ()))

    def _info(self, parsed: ParsedTurn, calls: Sequence[ToolCall], results: Sequence[ToolResult], found: list[str],
              new: list[str], finished: bool) -> dict[str, Any]:
        golds, answer = self.golds, parsed.answer
        info: dict[str, Any] = {"valid_format": parsed.valid, "complaint": parsed.complaint}
        info["calls"] = [{"name": call.name, "error": result.error} for call, result in zip(calls, results)] + [
            {"name": "", "error": "bad_call"} for _ in parsed.bad_calls]
        if found:
            info |= {"documents": found, "support_found": new}
        if golds:
            info["success"] = answer is not None and exact_match(answer, golds)
        if answer is not None:
            info |= {"answer": answer} | ({"f1": f1(answer, golds)} if golds else {})
        if finished:
            info |= {"ended": "turns" if answer is None else "answered"} | ({"gold": list(golds)} if golds else {})
        return info

    @property
    def example(self) -> str:
        """How a turn looks."""
        return self.format.write_answer("the answer", "why" if self.calls.think else "")

    @property
    def own_instructions(self) -> str:
        """Our own words before a question."""
        if not self.tools:
            return f"Answer the question. Answer like this: {self.example}\n\n"
        return ("Answer the question. You may call tools first; several calls in one turn are run side by side. When "
                f"you know the answer, write it like this: {self.example}\n\n")

    def _shows(self, format_name: str) -> bool:
        return bool(self.tools) and self.calls.show_schemas and self.format.name == format_name

    def _tool_lines(self) -> list[Text]:
        """The tools as lines, where calls are tags: schemas would have the template ask for calls in JSON."""
        if not self._shows("tags"):
            return []
        lines = [Text("The tools, and how each is called:\n", trusted=True)]
        for tool, (name, argument) in zip(self.tools, self.format.arguments, strict=True):
            inside = argument or "the arguments as a JSON object"
            schema = "" if argument else f" {json.dumps(dict(tool.parameters), ensure_ascii=False)}"
            lines.append(Text(f"<{name}>{inside}</{name}> {tool.description}{schema}\n"))
        return [*lines, Text("\n", trusted=True)]


# ------------------------------------------------------------------------------------------------ replies


def replies_to(parsed: ParsedTurn, calls: Sequence[ToolCall], results: Sequence[ToolResult], *, turn: int,
               past: Sequence[str], example: str) -> tuple[Message, ...]:
    """One tool message for each call, in the order of the text; a user message for what else was wrong.

    `turn`: its number; `past`: earlier calls and results, where they are recalled; `example`: how a turn looks.
    """
    replies: dict[int, Message] = {}
    for (index, _), call, result in zip(placed(parsed), calls, results, strict=True):
        replies[index] = Message("tool", (Text(result.text),), call.name, call.call_id)
    for bad in parsed.bad_calls:
        replies[bad.index] = _reply_to_bad_call(bad, turn)
    messages = [replies[index] for index in sorted(replies)]
    if past:
        shown = (Text("Before this you called:\n", trusted=True), Text("\n".join(past)))
        messages.insert(0, Message("user", shown))
    if not replies:
        return (*messages, Message("user", tuple(refusal(parsed.complaint, parsed.quote, example))))
    if parsed.complaint and parsed.complaint not in {bad.complaint for bad in parsed.bad_calls}:
        said = [Text(" It says: ", trusted=True), Text(parsed.quote)] if parsed.quote else []
        messages.append(Message("user", (Text(parsed.complaint, trusted=True), *said)))
    return tuple(messages)


def _reply_to_bad_call(bad: BadCall, turn: int) -> Message:
    """It names tags, which some tokenizers have tokens for, in the place of a tool's output: untrusted like it."""
    said = f" It says: {bad.quote}" if bad.quote else ""
    return Message("tool", (Text(f"Error: {bad.complaint}{said}"),), None, f"t{turn}c{bad.index}")


def remembered(calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> tuple[str, ...]:
    """Calls and their results in words, for histories that show the newest reply alone."""
    return tuple(f"{call.name} {json.dumps(call.arguments, ensure_ascii=False)}\n{result.text}"
                 for call, result in zip(calls, results, strict=True))


def placed(parsed: ParsedTurn) -> list[tuple[int, ToolCall]]:
    """The calls with their places among all calls of the turn, the bad ones counted."""
    bad = {each.index for each in parsed.bad_calls}
    places = [index for index in range(len(parsed.calls) + len(bad)) if index not in bad]
    return list(zip(places, parsed.calls, strict=True))


# ------------------------------------------------------------------------------------------------ small parts


def _check(task: Task) -> None:
    payload = task.payload
    texts = {name: payload.get(name, []) for name in ("answers", "support")}
    if not isinstance(payload.get("question"), str) or not all(
            isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)
            for value in texts.values()):
        raise EnvError("the payload of a task with tools holds a question (text), answers and support (lists of text); "
                       f"task {task.id!r} has {dict(payload)}")


def _documents(result: ToolResult) -> list[str]:
    """The documents that a call brought, as its value says."""
    named = result.value.get("documents") if isinstance(result.value, Mapping) and not result.error else None
    return [each for each in named if isinstance(each, str)] if isinstance(named, (list, tuple)) else []


def _digest(before: str, texts: Sequence[str]) -> str:
    digest = blake2b(before.encode(), digest_size=8)
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()
