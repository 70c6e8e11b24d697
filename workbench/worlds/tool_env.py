"""The environment between a policy and its tools: a question, calls and their results, an answer.

    turn   <tool_call>...</tool_call> ...   the calls are run side by side; one tool message answers each
           <answer>...</answer>             the trajectory is over (terminated)
           neither                          what was wrong, in words; the turn is spent

Every part of the reward lands on the turn that earned it: the answer on the turn that answers or, where the turns ran
out, on the last one, so it is there whatever stands last in the sequence; a format penalty on the turn that earned it;
a process reward on the turn whose call brought a supporting document for the first time (a document pays once, however
often it is found again). The answer is scored once, when the trajectory ends.

One environment is one trajectory: no state is shared, and tools with state are made anew by `for_trajectory`. Families say
which tools, which words and which settings; nothing here knows where questions come from. A task's payload holds
`question` (text), `answers` (the gold answer and its aliases; [] where it is not known: then there is no `success` and
the answer is unscored, invariant 5) and `support` (ids of the documents that the answer rests on).

Everything a tool, a schema, a task or the policy brought is untrusted text (invariant 9).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any

from workbench.basics.settings import Range, above, at_least, check_settings
from workbench.tools.base import Tool, ToolResult, check_name, schema_of
from workbench.tools.executor import ToolExecutor, ToolLimits
from workbench.tools.formats import CallFormat, format_for, format_names
from workbench.tools.turns import ParsedTurn
from workbench.values import Message, Observation, StepResult, Task, Text, ToolCall, sum_of
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.answer_rewards import AnswerRewards
from workbench.worlds.qa.answers import exact_match, f1
from workbench.worlds.tool_replies import placed, remembered, replies_to
from workbench.worlds.tool_rewards import CallRecord, ToolTrajectory, judged

MOST_JUDGED_BYTES = 100_000  # of a tool's text that a reward function reads


def _is_form(name: str) -> bool:
    return name in format_names()


@dataclass(frozen=True)
class CallSettings:
    """How tools are called, and what a call may take."""

    format: Annotated[
        str,
        Range("hermes or tags, template, or a form that an extension adds", _is_form),
        "hermes (<tool_call>{json}</tool_call>), tags (<search>...</search>), or template: as the "
        "policy's own chat template asks for",
    ] = "hermes"
    think: Annotated[bool, "every turn begins with <think>...</think>"] = False
    most_calls: Annotated[int, at_least(1, most=10_000), "calls that are run in one turn"] = 4
    deadline_s: Annotated[float, above(0), "seconds of the wall clock for each call"] = 5.0
    most_bytes: Annotated[
        int,
        at_least(1, most=100_000_000),
        "bytes of text that one call brings; the rest is cut, with a mark",
    ] = 2000
    workers: Annotated[
        int, at_least(1, most=10_000), "worker processes for tools that are not trusted"
    ] = 2
    show_schemas: Annotated[
        bool,
        "false: the prompt holds no schemas (hermes) or lines (tags) of the tools, for policies "
        "that know them",
    ] = True
    recall: Annotated[
        bool,
        "every reply begins with the calls and results before it: for histories that show the newest "
        "reply alone (fresh, window)",
    ] = False

    def __post_init__(self) -> None:
        check_settings(self, "calls")

    @property
    def limits(self) -> ToolLimits:
        return ToolLimits(self.deadline_s, self.most_bytes, self.most_calls, self.workers)


@dataclass(frozen=True)
class _OpenTrajectory:
    """Where a trajectory stands."""

    task: Task
    turn: int = 0
    in_order: bool = True  # every turn so far
    finished: bool = False
    paid: tuple[str, ...] = ()  # supporting documents that were found
    past: tuple[str, ...] = ()  # calls and results, in words, where they are recalled
    history: str = ""  # digest of all replies
    made: tuple[dict[str, Any], ...] = ()  # calls, as a reward function is told of them


class ToolEnv:
    """One trajectory of a question with tools.

    tools         what may be called; () for a trajectory that answers from what it is shown or knows
    max_turns     turns, the answering one included
    instructions  the author's words before the question; "" for none, None for ours. They take the place of ours, which
                  say how an answer is written: yours have to say it (`env.example`), and the limit of turns
    opening       text for the first prompt, by the task: documents that were fetched beforehand (untrusted)
    reward        what a trajectory earns as a whole, in place of the answer's match with the gold one (`tool_rewards`)
    """

    folder: Path | None = None  # of this trajectory alone, in families that give it one

    def __init__(
        self,
        tools: Sequence[Tool],
        *,
        max_turns: int,
        calls: CallSettings = CallSettings(),
        rewards: AnswerRewards = AnswerRewards(),
        instructions: str | None = None,
        opening: Callable[[Task], str] | None = None,
        reward: Callable[[ToolTrajectory], Any] | None = None,
    ) -> None:
        if max_turns < 1:
            raise ConfigError(f"max_turns is at least 1, got {max_turns!r}")
        for tool in tools:
            check_name(tool.name)
        self.tools = tuple(tools)
        self.max_turns = max_turns
        self.calls = calls
        self.rewards = rewards
        self.format: CallFormat = format_for(calls.format, self.tools, think=calls.think)
        self.instructions = self.own_instructions if instructions is None else instructions
        self.opening = opening
        self.reward = reward
        self.executor: ToolExecutor | None = None
        self._trajectory: _OpenTrajectory | None = None

    # -------------------------------------------------------------------------------------------- the contract

    def reset(self, task: Task, dynamics_seed: int) -> Observation:
        _check(task)
        self._begin(_OpenTrajectory(task))
        before = self.opening(task) if self.opening else ""
        shown = [
            Text(self.instructions, trusted=True),
            *self._tool_lines(),
            Text(f"{before}\n\n" if before else ""),
            Text("Question: ", trusted=True),
            Text(task.payload["question"]),
        ]
        schemas = tuple(map(schema_of, self.tools)) if self._shows(tags=False) else ()
        return Observation((Message("user", tuple(part for part in shown if part.text)),), schemas)

    def step(self, action_text: str) -> StepResult:
        trajectory = self._trajectory
        if trajectory is None or trajectory.finished:
            raise EnvError(
                "this trajectory is over or was never begun; call reset(task, dynamics_seed) first"
            )
        parsed = self.format.parse(action_text)
        calls = tuple(
            replace(call, call_id=f"t{trajectory.turn}c{index}") for index, call in placed(parsed)
        )
        results = self.executor.run(calls) if calls else []
        documents = _documents(results)
        answered = parsed.answer is not None
        messages = ()
        if not answered:
            messages = replies_to(
                parsed,
                calls,
                results,
                turn=trajectory.turn,
                past=trajectory.past,
                example=self.example,
            )
        shown = [message.text for message in messages] or [action_text]
        history = _digest(trajectory.history, shown)
        after = self._after(trajectory, parsed, calls, results, documents, history)
        info = self._info(parsed, calls, results, documents, trajectory, after)
        parts = self._reward_parts(parsed, results, trajectory, after, info)
        self._trajectory = after
        if_cut = {}
        if self.golds and not self.reward and not after.finished:
            if_cut = self.rewards.if_cut(after.in_order)
        return StepResult(
            Observation(messages),
            None if parts is None else sum_of(parts.values()),
            parts or {},
            terminated=answered,
            truncated=after.finished and not answered,
            info=info,
            tool_calls=calls,
            if_cut=if_cut,
        )

    def _after(
        self,
        trajectory: _OpenTrajectory,
        parsed: ParsedTurn,
        calls: Sequence[ToolCall],
        results: Sequence[ToolResult],
        documents: Sequence[str],
        history: str,
    ) -> _OpenTrajectory:
        """Where the trajectory stands after this turn."""
        made = _records(trajectory.turn, calls, results) if self.reward else ()
        past = remembered(calls, results) if self.calls.recall else ()
        turn = trajectory.turn + 1
        return replace(
            trajectory,
            turn=turn,
            made=trajectory.made + made,
            in_order=trajectory.in_order and parsed.valid,
            finished=parsed.answer is not None or turn >= self.max_turns,
            paid=(*trajectory.paid, *_newly_found(documents, trajectory)),
            past=trajectory.past + past,
            history=history,
        )

    def _reward_parts(
        self,
        parsed: ParsedTurn,
        results: Sequence[ToolResult],
        before: _OpenTrajectory,
        after: _OpenTrajectory,
        info: dict[str, Any],
    ) -> dict[str, float] | None:
        """The parts of the turn's reward, None where it is unscored. A reward function's success goes into `info`."""
        parts = self.rewards.parts(
            parsed,
            results,
            self.golds,
            new_documents=len(after.paid) - len(before.paid),
            in_order=before.in_order,
            finished=after.finished and not self.reward,
        )
        if not self.reward:
            return parts
        seen = self.as_seen(after, parsed.answer) if after.finished else None
        return judged(self.reward, seen, parts, info)

    def close(self) -> None:
        """Give back what tools hold: worker processes and connections."""
        if self.executor is not None:
            self.executor.close()
            self.executor = None

    def state_key(self) -> str:
        """The question, and all that was replied so far: nothing else out there decides what a call brings."""
        return f"{self._trajectory.task.id} {self._trajectory.history}"

    @property
    def snapshot(self) -> Callable[[], dict[str, Any]]:
        """As a JSON value; not there where a tool has state of its own, which cannot be copied."""
        if any(tool.stateful for tool in self.tools):
            raise AttributeError("an environment whose tools have state has no snapshot")
        return self.trajectory_values

    def trajectory_values(self) -> dict[str, Any]:
        """Where the trajectory stands, as a JSON value."""
        trajectory = self._trajectory
        values = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in vars(trajectory).items()
        }
        values["task"] = {
            field.name: getattr(trajectory.task, field.name) for field in fields(Task)
        }
        return values

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        values = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in snapshot.items()
        }
        self._begin(_OpenTrajectory(**values | {"task": Task(**snapshot["task"])}))

    def _begin(self, trajectory: _OpenTrajectory) -> None:
        self.close()
        self.tools = self.own_tools()
        self.executor = ToolExecutor(self.tools, self.calls.limits, trajectory.task)
        self._trajectory = trajectory

    def own_tools(self) -> tuple[Tool, ...]:
        """The tools of the trajectory that begins: the same for all, or made for it by a family that gives it a folder."""
        return self.tools

    # -------------------------------------------------------------------------------------------- what is said

    @property
    def task(self) -> Task:
        """The task of the trajectory that goes on; EnvError before the first one."""
        if self._trajectory is None:
            raise EnvError("this trajectory was never begun; call reset(task, dynamics_seed) first")
        return self._trajectory.task

    @property
    def golds(self) -> tuple[str, ...]:
        return tuple(self._trajectory.task.payload.get("answers", ()))

    def _info(
        self,
        parsed: ParsedTurn,
        calls: Sequence[ToolCall],
        results: Sequence[ToolResult],
        documents: list[str],
        before: _OpenTrajectory,
        after: _OpenTrajectory,
    ) -> dict[str, Any]:
        golds = self.golds
        answer = parsed.answer
        info: dict[str, Any] = {"valid_format": parsed.valid, "complaint": parsed.complaint}
        info["calls"] = [
            {"name": call.name, "error": result.error} for call, result in zip(calls, results)
        ]
        info["calls"] += [{"name": "", "error": "bad_call"} for _ in parsed.bad_calls]
        if documents:
            info["documents"] = documents
            info["support_found"] = list(after.paid[len(before.paid) :])
        if golds and not self.reward:
            info["success"] = answer is not None and exact_match(answer, golds)
        if answer is not None:
            info["answer"] = answer
            if golds:
                info["f1"] = f1(answer, golds)
        if after.finished:
            info["ended"] = "turns" if answer is None else "answered"
            if golds:
                info["gold"] = list(golds)
        return info

    def as_seen(self, trajectory: _OpenTrajectory, answer: str | None = None) -> ToolTrajectory:
        """A trajectory as functions of the user's see it."""
        return ToolTrajectory(
            trajectory.task,
            answer,
            tuple(CallRecord(**call) for call in trajectory.made),
            trajectory.turn,
            partial(_call, self.executor),
            self.folder,
        )

    @property
    def example(self) -> str:
        """How a turn looks."""
        return self.format.write_answer("the answer", "why" if self.calls.think else "")

    @property
    def own_instructions(self) -> str:
        """Our own words before a question."""
        if not self.tools:
            return f"Answer the question. Answer like this: {self.example}\n\n"
        return (
            "Answer the question. You may call tools first; several calls in one turn are run side by side. When "
            f"you know the answer, write it like this: {self.example}\n\n"
        )

    def _shows(self, *, tags: bool) -> bool:
        """Whether the tools are shown as tags, or else as the chat template shows them."""
        shown = bool(self.tools) and self.calls.show_schemas
        return shown and (self.format.name == "tags") == tags

    def _tool_lines(self) -> list[Text]:
        """The tools as lines, where calls are tags: schemas would have the template ask for calls in JSON."""
        if not self._shows(tags=True):
            return []
        lines = [Text("The tools, and how each is called:\n", trusted=True)]
        for tool, (name, argument) in zip(self.tools, self.format.arguments, strict=True):
            inside = argument or "the arguments as a JSON object"
            schema = "" if argument else f" {json.dumps(dict(tool.parameters), ensure_ascii=False)}"
            lines.append(Text(f"<{name}>{inside}</{name}> {tool.description}{schema}\n"))
        return [*lines, Text("\n", trusted=True)]


# ------------------------------------------------------------------------------------------------ small parts


def _check(task: Task) -> None:
    payload = task.payload
    lists = (payload.get("answers", []), payload.get("support", []))
    if not isinstance(payload.get("question"), str) or not all(map(_are_texts, lists)):
        raise EnvError(
            "the payload of a task with tools holds a question (text), answers and support (lists of text); "
            f"task {task.id!r} has {dict(payload)}"
        )


def _are_texts(values: Any) -> bool:
    return isinstance(values, (list, tuple)) and all(isinstance(value, str) for value in values)


def _documents(results: Sequence[ToolResult]) -> list[str]:
    """Ids of the documents that the calls brought, as their values say."""
    documents: list[str] = []
    for result in results:
        if result.error or not isinstance(result.value, Mapping):
            continue
        named = result.value.get("documents")
        if isinstance(named, (list, tuple)):
            documents += [name for name in named if isinstance(name, str)]
    return documents


def _newly_found(documents: Sequence[str], trajectory: _OpenTrajectory) -> list[str]:
    """Supporting documents that no turn before this one brought, each once."""
    support = trajectory.task.payload.get("support", ())
    return [
        name for name in dict.fromkeys(documents) if name in support and name not in trajectory.paid
    ]


def _call(executor: ToolExecutor, name: str, /, **arguments: Any) -> ToolResult:
    """A call by a reward function, with room for a long answer."""
    limits = executor.limits
    executor.limits = replace(limits, most_bytes=MOST_JUDGED_BYTES)
    try:
        return executor.run([ToolCall(name, arguments)])[0]
    finally:
        executor.limits = limits


def _records(
    turn: int, calls: Sequence[ToolCall], results: Sequence[ToolResult]
) -> tuple[dict[str, Any], ...]:
    return tuple(
        {
            "turn": turn,
            "name": call.name,
            "arguments": dict(call.arguments),
            "text": result.text,
            "value": result.value,
            "error": result.error,
        }
        for call, result in zip(calls, results, strict=True)
    )


def _digest(before: str, texts: Sequence[str]) -> str:
    digest = blake2b(before.encode(), digest_size=8)
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()
