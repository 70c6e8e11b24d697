"""Calls of tools that are made up, from their schemas and from the calls that the family's own play made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import Script, text_of
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

SCRIPTS = 16
CALLS = 4  # made up for each tool
ELSEWHERE = 3  # further tasks at which the first tool's calls are made


def tool_scripts(given: CheckInput) -> list[Script]:
    """Calls of each tool of a ToolEnv that are made up, one trajectory a call."""
    env = made(given.family)
    if not isinstance(env, ToolEnv) or not env.tools:
        return []
    words = words_of_tasks(given)
    texts: list[str] = []
    changed: list[str] = []
    written = written_calls(given)
    for tool in env.tools:
        for arguments in arguments_for(tool.parameters, words):
            texts.append(env.format.write_call(tool.name, arguments))
        for arguments in _one_value_changed(written.get(tool.name, ())):
            changed.append(env.format.write_call(tool.name, arguments))
    texts = [*texts[:SCRIPTS], *changed[:SCRIPTS]]
    scripts = [Script(given.tasks[0], 0, (text,)) for text in texts]
    # The same call at other tasks: what a tool knows may be the task's.
    for task in given.tasks[1 : 1 + ELSEWHERE]:
        scripts += [script._replace(task=task) for script in scripts[:CALLS]]
    return scripts


def written_calls(given: CheckInput) -> dict[str, list[dict[str, Any]]]:
    """By tool: the arguments of the calls that the family's own play made."""
    written: dict[str, list[dict[str, Any]]] = {}
    for trajectories in given.own.values():
        for played in trajectories:
            for result in played.results:
                for call in result.tool_calls:
                    written.setdefault(call.name, []).append(dict(call.arguments))
    return written


def _one_value_changed(written: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """A call that was made, then the same with one value, of each argument in turn, that another call had there: what a cache
    keeps under a key that leaves this argument out."""
    if not written:
        return
    base = written[0]
    yield base
    for name, value in base.items():
        others = [call[name] for call in written if name in call and call[name] != value]
        if others:
            yield {**base, name: others[0]}


def words_of_tasks(given: CheckInput) -> list[str]:
    """Names, words and numbers of the tasks, what a tool is likely to be asked about."""
    shown = " ".join(
        f"{task.payload.get('question', '')} {json.dumps(task.payload.get('row', {}), default=str)}"
        for task in given.tasks[:6]
    )
    shown = shown.strip() or " ".join(map(text_of, given.openings.values()))[:4000]
    words = re.findall(r"\b(?:[A-Z]\w+|\d+|\w{5,})\b", shown)
    return list(dict.fromkeys(words)) or ["one", "two", "three", "four"]


def arguments_for(schema: Mapping[str, Any], words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Some arguments that fit a schema, of which each differs from the one before in a single value."""
    properties = dict(schema.get("properties", {}))
    base = {name: value_for(part, words, 0) for name, part in properties.items()}
    made_up = [base]
    for step in range(1, CALLS):
        name = list(properties)[(step - 1) % len(properties)] if properties else ""
        changed = {name: value_for(properties[name], words, step)} if name else {}
        made_up.append({**base, **changed})
    known: list[dict[str, Any]] = []
    for arguments in made_up:
        if arguments not in known:
            known.append(arguments)
            yield arguments


def value_for(schema: Mapping[str, Any], words: Sequence[str], number: int) -> Any:
    if "enum" in schema:
        return schema["enum"][number % len(schema["enum"])]
    if "anyOf" in schema:
        return value_for(schema["anyOf"][0], words, number)
    kind = schema.get("type", "string")
    if kind == "integer":
        return int(schema.get("minimum", 2)) + 3 * number
    if kind == "number":
        return float(schema.get("minimum", 2)) + 1.5 * number
    if kind == "boolean":
        return number % 2 == 0
    if kind == "array":
        return [value_for(schema.get("items", {}), words, number)]
    if kind == "object":
        inner = schema.get("properties", {})
        return {name: value_for(part, words, number) for name, part in inner.items()}
    return words[number % len(words)]
