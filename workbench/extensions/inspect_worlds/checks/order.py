"""What was played before (E22): trajectories in one order in a fresh process, and in the other order in another one.

Here everything is warm: a class that counts, or a cache whose key is too coarse, answers as it did the first time. In a
fresh process the first who asks fills it, and whoever asks next is given what the first one got. Calls of tools are made
up from their schemas, since neither random play nor a solver need call them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked, RuleResult
from workbench.basics.plugins import name_of, not_importable
from workbench.extensions.inspect_worlds.checks.scores import check_score_order
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import (
    CUT_OFF,
    Script,
    Spent,
    parting,
    play,
    played_at_once,
    same,
    text_of,
    unplayable,
)
from workbench.values import Task
from workbench.values.errors import WorkbenchError, shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv
from workbench.worlds.workers.env_runner import ProcessRunner
from workbench.worlds.workers.env_wire import reset_call

SCRIPTS = 16
LONGEST = 12  # actions of each
CALLS = 4  # made up for each tool
ELSEWHERE = 3  # further tasks at which the first tool's calls are made
DRAWN = 200  # tasks among which pairs are looked for
DRAWING_S = 0.5
WORKER_S = 20.0
POLLS = int(2 * WORKER_S / 0.2)  # for an answer that does not come


def check_order(given: CheckInput) -> Iterator[RuleResult]:
    """A trajectory is answered alike, whatever was played before it in the same process."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scored = list(check_score_order(given))
    yield from scored
    if any(isinstance(result, Finding) for result in scored):
        return
    if why := not_importable(name_of(type(family))):
        yield NotChecked(f"a family that a worker process can make ({why})")
        return
    calls = tool_scripts(given)
    # Calls come first both times: what the solver asks at the same task would bring a cache into one state.
    scripts = [*calls, *_played_scripts(given)]
    turned = [*range(len(calls))[::-1], *range(len(calls), len(scripts))[::-1]]
    if given.step_s > SLOW_S:
        yield NotChecked(f"steps that take less than {SLOW_S:g} s, to be played in both orders")
        return
    if len(scripts) < 2:
        yield NotChecked("two trajectories that could be played")
        return
    try:
        reset_call(family, given.tasks[0], 0)
        forward = _played_in_turn(family, scripts)
        in_turn = _played_in_turn(family, [scripts[place] for place in turned])
        backward = [answers for _, answers in sorted(zip(turned, in_turn), key=itemgetter(0))]
    except WorkbenchError as error:
        yield NotChecked(f"worker processes that can run it: {error}")
        return
    yield Checked(len(scripts))
    for script, one, other in zip(scripts, forward, backward):
        if CUT_OFF in (*one[-1:], *other[-1:]):
            continue
        if not same(one, other):
            calls = ", ".join(shortened(text, 120) for text in script.texts[:2])
            yield Finding(
                f"what is answered at {script.task.id!r} (to {calls}) depends on what was played before it in the same "
                f"process: played in another order, {parting(one, other)}; expected the same in every order. Something "
                "outlives its trajectory: state of a class or module, or a cache whose key leaves out what the answer "
                "depends on. Make it in reset (of a tool: in __init__, tool(Class) gives each trajectory its own), or put all "
                "that was asked into the key"
            )
            return


def _played_in_turn(family: Any, scripts: Sequence[Script]) -> list[list[Any]]:
    """The answers to each script, one after the other, in a worker process that begins with the first."""
    runner = ProcessRunner(deadline_s=WORKER_S, workers=1)
    answers = []
    try:
        for number, script in enumerate(scripts):
            played = played_at_once(runner, family, {str(number): script}, patience=POLLS)
            answers.append(played[str(number)])
    finally:
        runner.shutdown()
    return answers


def _played_scripts(given: CheckInput) -> list[Script]:
    """Trajectories of the family's own play: at tasks that agree in part of their payload, and at others."""
    scripts = list(_at_related_tasks(given))
    for trajectories in given.own.values() or [given.played[:SCRIPTS]]:
        for played in trajectories[: SCRIPTS // 4]:
            if played.texts and not played.error:
                scripts.append(played.script._replace(texts=played.texts[:LONGEST]))
    return scripts[:SCRIPTS]


def _at_related_tasks(given: CheckInput) -> Iterator[Script]:
    """The solver's words, or random play's, at pairs of tasks that have one value in common and another one not."""
    family: Any = given.family
    if not given.baselines or hasattr(family, "task_seeds"):
        return
    act = getattr(family, f"{given.baselines[-1]}_action")
    pairs = 0
    first: dict[tuple[str, str], Task] = {}
    spent = Spent()
    for number in range(DRAWN):
        if pairs == SCRIPTS // 4 or spent.seconds > DRAWING_S:
            return
        task = family.task(seed_of("check-env", "related", number))
        for name, value in task.payload.items():
            other = first.setdefault((name, repr(value)), task)
            if other is not task and dict(other.payload) != dict(task.payload):
                pairs += 1
                for one in (other, task):
                    rng = rng_at("check-env", "related", one.id)
                    played = play(family, one, 0, lambda env, rng=rng: act(env, rng), most=LONGEST)
                    if not played.error:
                        yield played.script
                break


# ------------------------------------------------------------------------------------------------ calls made up


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
