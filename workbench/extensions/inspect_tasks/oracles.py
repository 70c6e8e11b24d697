"""Tools that know the right answer (E9): asked with it and with others of its form, as often as one likes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.basics.findings import (
    Checked,
    Finding,
    RuleResult,
)
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.leaks import gold_of
from workbench.extensions.scripted_play.playing import Script, is_over, replay, text_of
from workbench.values import Task
from workbench.values.errors import shortened
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

TASKS = 4
WRONG = 3  # answers of other tasks


def check_oracles(given: CheckInput) -> Iterator[RuleResult]:
    """One answer alone, the gold one, is answered otherwise than all others, after wrong ones too."""
    env = made(given.family)
    if not isinstance(env, ToolEnv) or not env.tools or given.step_s > SLOW_S:
        return
    golds = {task.id: gold for task in given.tasks if (gold := gold_of(task))}
    asked = [task for task in given.tasks if task.id in golds][:TASKS]
    if len(asked) < TASKS or given.family.max_turns < 2:
        return
    for tool in env.tools:
        texts = [
            name
            for name, part in dict(tool.parameters.get("properties", {})).items()
            if part.get("type", "string") in ("string", "integer", "number")
        ]
        if len(texts) != 1:
            continue

        def call(value: str, tool: Any = tool, name: str = texts[0]) -> str:
            return env.format.write_call(tool.name, {name: value})

        verdicts = {_tells(given, task, golds, call) for task in asked}
        yield Checked(len(asked), "tools that know")
        # A verdict is the same at all tasks; what a search brings is each task's own.
        if len(verdicts) == 1 and "" not in verdicts:
            yield Finding(
                f"the tool {tool.name!r} answers the right answer of a task otherwise than all others, at {len(asked)} tasks "
                f"({verdicts.pop()}), as often as it is asked: it is an oracle, and trying all answers solves every task. Let it "
                "read nothing of the gold answer; where a check is a part of the task, let it end the trajectory or cost"
            )
            return


def _tells(given: CheckInput, task: Task, golds: dict[str, str], call: Any) -> str:
    """What the tool answers to the right answer and to wrong ones, in words; "" where it tells nothing."""
    right = golds[task.id]
    wrong = [gold for gold in dict.fromkeys(golds.values()) if gold != right][:WRONG]
    if len(wrong) < 2:
        return ""
    no = {_answer(given, task, (call(value),)) for value in wrong}
    yes = _answer(given, task, (call(right),))
    later = _answer(given, task, (call(wrong[0]), call(right)))
    if len(no) != 1 or None in no or yes is None or yes in no or later != yes:
        return ""
    (other,) = no
    return f"{shortened(repr(yes), 40)} and {shortened(repr(other), 40)}"


def _answer(given: CheckInput, task: Task, texts: tuple[str, ...]) -> str | None:
    played = replay(given.family, Script(task, 0, texts))
    if played.error or any(map(is_over, played.results)):
        return None
    return text_of(played.results[-1].observation)
