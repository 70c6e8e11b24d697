"""Tools that do not do what their description says (E28): called with one argument after the other changed.

Calls are the solver's and those made up from a schema. What a description promises and is looked at: that a parameter has an
effect, that a default is the one that is stated, that declared values are taken, a number of results at most, an order, a
number of decimals, the kind of what is returned; and beside it results that are cut without a word and failures that are
answered with nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.given import SLOW_S, CheckInput
from workbench.extensions.inspect_worlds.checks.order import (
    arguments_for,
    value_for,
    words_of_tasks,
)
from workbench.extensions.inspect_worlds.playing import Spent, is_number, unplayable
from workbench.tools.base import Tool, ToolResult
from workbench.values import ToolCall
from workbench.values.errors import shortened
from workbench.worlds.shared import made, opened
from workbench.worlds.tool_env import ToolEnv

CALLS = 16  # of each tool, by which its parameters are varied
VARIED = 5  # calls at which one parameter is varied
VALUES = 6  # of it
LEAST = 3  # calls by which a tool is judged
MOST_BYTES = 100_000  # of a result, so that the world's own limit cuts nothing
CUT = 60  # characters from where a length is no accident
ARGUMENTS_OF_NOBODY = re.compile(
    r"reason|thought|comment|note|explan|session|time_?out|retries|lang|locale|user|verbos|format|style|message|trace|debug",
    re.IGNORECASE,
)
COUNTS = re.compile(
    r"^(?:k|n|top|top_?[kn]|limit|count|(?:max|num|most)(?:imum)?_?\w*)$", re.IGNORECASE
)
SORTING = re.compile(r"sort|order", re.IGNORECASE)
READS = re.compile(
    r"^\W*(?:gets?|search\w*|finds?|looks? up|lookup|returns?|computes?|lists?|reads?|fetch\w*|converts?|calculates?|quer\w+|counts?|tells?|the )\b",
    re.IGNORECASE,
)
NOUNS = "results?|items?|lines?|entries|documents?|rows?|hits|matches|passages?|names?|records?|words|characters"
PROMISED = re.compile(
    rf"\b(?:at most|up to|no more than|a maximum of|maximum|limited to|the (?:first|top|best)|returns?) (\d+|one|two|three|four|five|ten) (?:\w+ )?({NOUNS})\b",
    re.IGNORECASE,
)
IN_WORDS = {"one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "ten": 10}
DEFAULT = re.compile(r"\bdefaults?(?: value)?(?: to|:| is|=)? ?[`'\"]?([\w.-]*\w)", re.IGNORECASE)
DECIMALS = re.compile(
    r"\b(\d|one|two|three|four) (?:decimals?|decimal places?|digits after)\b", re.IGNORECASE
)
ASCENDING = re.compile(
    r"\b(?:alphabetical\w*|ascending|smallest first|lowest first|cheapest first|oldest first)\b",
    re.IGNORECASE,
)
DESCENDING = re.compile(
    r"\b(?:descending|largest first|highest first|biggest first)\b", re.IGNORECASE
)
BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.):]|\[\d+\])\s*(.*)$", re.MULTILINE)
NUMBER = re.compile(r"-?\d+\.\d+")


class MadeCall(NamedTuple):
    """A call, and what came of it."""

    arguments: Mapping[str, Any]
    result: ToolResult

    @property
    def worked(self) -> bool:
        return not self.result.error

    @property
    def items(self) -> list[str] | None:
        """The things that the result lists, as texts; None where it is no list."""
        return items_of(self.result.text)


class CalledTool:
    """One tool in an open trajectory, with the calls that were made of it."""

    def __init__(self, env: ToolEnv, tool: Tool, given: CheckInput) -> None:
        self.tool = tool
        self.env = env
        self.properties = dict(tool.parameters.get("properties", {}))
        self.required = list(tool.parameters.get("required", ()))
        self.words = words_of_tasks(given)
        self.known: dict[str, MadeCall] = {}
        self.spent = Spent()
        self.budget_s = given.budget_s

    @property
    def description(self) -> str:
        texts = [
            self.tool.description,
            *(str(p.get("description", "")) for p in self.properties.values()),
        ]
        return " ".join(texts)

    @property
    def over(self) -> bool:
        return self.spent.seconds > self.budget_s

    def call(self, arguments: Mapping[str, Any]) -> MadeCall:
        key = json.dumps(arguments, sort_keys=True, default=str)
        if key not in self.known:
            result = self.env.executor.run([ToolCall(self.tool.name, dict(arguments))])[0]
            self.known[key] = MadeCall(dict(arguments), result)
        return self.known[key]

    def worked(self) -> list[MadeCall]:
        """Calls of which something came, each another result."""
        different: dict[str, MadeCall] = {}
        for made_call in list(self.known.values()):
            if made_call.worked and made_call.result.text.strip():
                different.setdefault(made_call.result.text, made_call)
        return list(different.values())


def check_described(given: CheckInput) -> Iterator[RuleResult]:
    """Each tool of a ToolEnv, in a trajectory of its own."""
    family = given.family
    env = made(family)
    if not isinstance(env, ToolEnv) or not env.tools:
        yield NotChecked("tools of a ToolEnv")
        return
    if (why := unplayable(family)) is not None or given.step_s > SLOW_S:
        yield NotChecked(why or f"calls that take less than {SLOW_S:g} s")
        return
    written = _written_calls(given)
    with opened(family) as env:
        env.reset(given.tasks[0], 0)
        env.executor.limits = replace(env.executor.limits, most_bytes=MOST_BYTES)
        for tool in env.tools:
            called = CalledTool(env, tool, given)
            _make_calls(called, written.get(tool.name, ()))
            yield Checked(len(called.known), "calls of tools")
            for look in LOOKS:
                results = list(look(called))
                yield from results
                if any(isinstance(result, Finding) for result in results):
                    break


def _written_calls(given: CheckInput) -> dict[str, list[dict[str, Any]]]:
    """By tool: the arguments of the calls that the family's own play made at the first task."""
    written: dict[str, list[dict[str, Any]]] = {}
    for trajectories in given.own.values():
        for played in trajectories:
            for result in played.results:
                for call in result.tool_calls:
                    written.setdefault(call.name, []).append(dict(call.arguments))
    return written


def _make_calls(called: CalledTool, written: Sequence[dict[str, Any]]) -> None:
    made_up = list(arguments_for(called.tool.parameters, called.words))
    for number in range(1, CALLS):
        base = {
            name: value_for(part, called.words, number) for name, part in called.properties.items()
        }
        made_up.append(base)
    for arguments in [*written[:CALLS], *made_up][: 2 * CALLS]:
        if not called.over:
            called.call(arguments)


def _finding(called: CalledTool, what: str, mend: str, severity: str = ERROR) -> Finding:
    return Finding(f"the tool {called.tool.name!r} {what}. {mend}", severity=severity)


def _shown(made_call: MadeCall) -> str:
    return f"{shortened(json.dumps(made_call.arguments, default=str), 80)} -> {shortened(repr(made_call.result.text), 80)}"


# ------------------------------------------------------------------------------------------------ parameters


def _values_of(called: CalledTool, name: str) -> list[Any]:
    """Values that a parameter may have, by its schema; texts are those of the other calls, too."""
    part = called.properties[name]
    kind = part.get("type", "string")
    if "enum" in part:
        return list(part["enum"])[:VALUES]
    if kind in ("integer", "number"):
        low = part.get("minimum", 1)
        high = part.get("maximum", 50)
        wanted = (low, 1, 2, 3, 5, 10, high)
        return list(dict.fromkeys(value for value in wanted if low <= value <= high))
    if kind == "boolean":
        return [True, False]
    known = [
        made_call.arguments[name] for made_call in called.worked() if name in made_call.arguments
    ]
    values = [*known, *(value_for(part, called.words, number) for number in range(VALUES))]
    return list({json.dumps(value, default=str): value for value in values}.values())[:VALUES]


def _without_effect(called: CalledTool) -> Iterator[RuleResult]:
    """Whatever the value of a declared parameter, the same comes of a call."""
    if called.tool.stateful or not READS.search(called.tool.description):
        return  # what it does need not show in its reply
    for name, part in called.properties.items():
        if ARGUMENTS_OF_NOBODY.search(name):
            continue
        bases = called.worked()[:VARIED]
        values = _values_of(called, name)
        same = 0
        for base in bases:
            came = {_text(called.call({**base.arguments, name: value})) for value in values}
            same += len(came) == 1
            if len(came) > 1 or called.over:
                break
        several = any(len(base.items or ()) > 1 for base in bases)
        judged = len(values) > 1 and bases and same == len(bases)
        if not judged or COUNTS.search(name) and not several or called.over:
            continue
        reads = READS.search(called.tool.description) is not None
        sure = reads and (name in called.required or "enum" in part or bool(COUNTS.search(name)))
        sure = sure and not SORTING.search(name) and len(values) >= 2
        yield _finding(
            called,
            f"declares {name!r}, and it has no effect: {len(values)} values of it ({shortened(', '.join(map(repr, values)), 60)}) "
            f"at {len(bases)} calls bring the same, {_shown(bases[0])}",
            "Use it, or take it out of the schema: a policy spends tokens on it and learns nothing of it",
            ERROR if sure else NOTE,
        )
        return


def _text(made_call: MadeCall) -> str:
    return f"{made_call.result.error} {made_call.result.text}"


def _refused(called: CalledTool) -> Iterator[RuleResult]:
    """A value that the schema declares, or a call without what it says is optional, raises."""
    bases = called.worked()[:LEAST]
    for base in bases:
        for name, part in called.properties.items():
            declared = [
                *part.get("enum", ()),
                *(part[end] for end in ("minimum", "maximum") if end in part),
            ]
            raising = [
                value
                for value in declared
                if called.call({**base.arguments, name: value}).result.error == "raised"
            ]
            if raising:
                came = called.call({**base.arguments, name: raising[0]})
                yield _finding(
                    called,
                    f"declares {raising[0]!r} as a value of {name!r}, and raises on it: {_shown(came)}",
                    "Take it, or take it out of the schema",
                )
                return
        optional = [name for name in base.arguments if name not in called.required]
        for name in optional:
            rest = {key: value for key, value in base.arguments.items() if key != name}
            came = called.call(rest)
            if came.result.error == "raised":
                yield _finding(
                    called,
                    f"says that {name!r} is optional, and raises without it: {_shown(came)}",
                    "Give it a default, or say that it is required",
                )
                return


def _other_default(called: CalledTool) -> Iterator[RuleResult]:
    """What a description calls the default against the schema's, and against what a call without it brings."""
    for name, part in called.properties.items():
        match = DEFAULT.search(str(part.get("description", "")))
        if match is None or name in called.required:
            continue
        stated = _as_kind(match[1], part)
        if stated is None:
            continue
        if (
            "default" in part
            and part["default"] != stated
            and is_number(stated) == is_number(part["default"])
        ):
            yield _finding(
                called,
                f"says that the default of {name!r} is {stated!r}, and its schema has {part['default']!r}",
                "State the one that is used",
            )
            return
        for base in called.worked()[:VARIED]:
            rest = {key: value for key, value in base.arguments.items() if key != name}
            plain, given = called.call(rest), called.call({**rest, name: stated})
            if plain.worked and given.worked and _text(plain) != _text(given):
                yield _finding(
                    called,
                    f"says that the default of {name!r} is {stated!r}, and a call without it is answered otherwise than one "
                    f"with it: {_shown(plain)}, and {_shown(given)}",
                    "State the one that is used",
                )
                return


def _as_kind(word: str, part: Mapping[str, Any]) -> Any:
    kind = part.get("type")
    try:
        if kind == "integer":
            return int(word)
        if kind == "number":
            return float(word)
    except ValueError:
        return None
    if kind == "boolean":
        return {"true": True, "false": False}.get(word.lower())
    return word if word in part.get("enum", ()) else None


# ------------------------------------------------------------------------------------------------ results


def items_of(text: str) -> list[str] | None:
    """What a result lists: a JSON list, one in a JSON object, or lines that begin with a bullet or a number."""
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    if isinstance(value, dict):
        lists = [part for part in value.values() if isinstance(part, list)]
        value = lists[0] if len(lists) == 1 else None
    if isinstance(value, list):
        return [item if isinstance(item, str) else json.dumps(item) for item in value]
    bullets = BULLET.findall(text)
    return bullets if len(bullets) > 1 else None


def _too_many(called: CalledTool) -> Iterator[RuleResult]:
    """More things than the description, or the argument that counts them, allows."""
    for match in PROMISED.finditer(called.description):
        stated = IN_WORDS.get(match[1].lower()) or int(match[1])
        noun = match[2].lower()
        for made_call in called.worked():
            counted = _count(made_call, noun)
            if counted is not None and counted > stated:
                yield _finding(
                    called,
                    f"says {match[0]!r}, and brings {counted}: {_shown(made_call)}",
                    "Keep to what is stated, or state what is kept",
                )
                return
    for name in filter(COUNTS.search, called.properties):
        if called.properties[name].get("type") != "integer":
            continue
        for base in called.worked()[:VARIED]:
            for asked in (1, 2, 3):
                made_call = called.call({**base.arguments, name: asked})
                counted = len(made_call.items or ())
                if made_call.worked and counted > asked:
                    yield _finding(
                        called,
                        f"is asked for {asked} by {name!r}, and brings {counted}: {_shown(made_call)}",
                        "Bring as many as are asked for (an off-by-one, or a limit that is not used)",
                    )
                    return


def _count(made_call: MadeCall, noun: str) -> int | None:
    text = made_call.result.text
    if noun == "characters":
        return len(text)
    if noun == "words":
        return len(text.split())
    if made_call.items is not None:
        return len(made_call.items)
    return len(text.strip().splitlines()) if noun.startswith("line") else None


def _not_in_order(called: CalledTool) -> Iterator[RuleResult]:
    for pattern, turned in ((ASCENDING, False), (DESCENDING, True)):
        match = pattern.search(called.tool.description)
        lists = [made_call for made_call in called.worked() if len(made_call.items or ()) > 2]
        if match is None or not lists:
            continue
        unsorted = [one for one in lists if not _is_sorted(one.items, turned)]
        if unsorted:
            yield _finding(
                called,
                f"says {match[0]!r}, and {len(unsorted)} of {len(lists)} results are in another order: {_shown(unsorted[0])}",
                "Sort them, or do not say so",
                ERROR if all(_has_one_number(one.items) for one in unsorted) else NOTE,
            )
            return


def _has_one_number(items: Sequence[str]) -> bool:
    """Whether there is no doubt by what they could be sorted."""
    return all(len(re.findall(r"\d+(?:\.\d+)?", item)) == 1 for item in items)


def _is_sorted(items: Sequence[str], turned: bool) -> bool:
    """By the words at one place, or by the numbers at one."""
    orders: list[list[Any]] = [[item.casefold() for item in items]]
    for pattern, kind in ((r"\w+", str.casefold), (r"-?\d+(?:\.\d+)?", float)):
        parts = [re.findall(pattern, item) for item in items]
        for place in range(min(map(len, parts))):
            orders.append([kind(of_one[place]) for of_one in parts])
    varied = [order for order in orders if len(set(order)) > 1]
    return not varied or any(order == sorted(order, reverse=turned) for order in varied)


def _other_decimals(called: CalledTool) -> Iterator[RuleResult]:
    match = DECIMALS.search(called.tool.description)
    if match is None:
        return
    stated = IN_WORDS.get(match[1].lower()) or int(match[1])
    for made_call in called.worked():
        numbers = NUMBER.findall(made_call.result.text)
        longest = max((len(number.partition(".")[2]) for number in numbers), default=0)
        if longest > stated:
            yield _finding(
                called,
                f"says {match[0]!r}, and brings {longest}: {_shown(made_call)}",
                "Round the result",
            )
            return


def _cut(called: CalledTool) -> Iterator[RuleResult]:
    """Several results end at the same length, in the middle of a word or of a sentence."""
    texts = [made_call.result.text for made_call in called.worked()]
    longest = max(map(len, texts), default=0)
    at_it = [text for text in texts if len(text) == longest]
    shorter = [text for text in texts if len(text) < longest]
    known = Counter(word for text in texts for word in re.findall(r"\w+", text))
    broken = [text for text in at_it if _in_a_word(text, known)]
    ended = bool(shorter) and all(text.rstrip().endswith((".", "!", "?")) for text in shorter)
    unended = ended and not any(text.endswith((".", "!", "?")) for text in at_it)
    said = r"character|truncat|\bcut|shorten|snippet|preview"
    unsaid = not re.search(said, called.description, re.IGNORECASE)
    if longest >= CUT and len(at_it) >= LEAST and (len(broken) >= 2 or unended) and unsaid:
        yield _finding(
            called,
            f"ends {len(at_it)} of {len(texts)} different results at {longest} characters, without a word: "
            f"{shortened(repr(at_it[0][-50:]), 70)}",
            "Say in the result that it is cut, and in the description at which length",
        )


def _in_a_word(text: str, known: Counter[str]) -> bool:
    """Whether its last word stands in no other place, and longer ones that begin so do."""
    match = re.search(r"[A-Za-z]+$", text)
    if match is None or known[match[0]] > 1:
        return False
    return any(len(word) > len(match[0]) and word.startswith(match[0]) for word in known)


def _nothing_said(called: CalledTool) -> Iterator[RuleResult]:
    """A call that succeeds with an empty text."""
    empty = [one for one in called.known.values() if one.worked and not one.result.text.strip()]
    if empty and called.worked():
        yield _finding(
            called,
            f"answers {len(empty)} of {len(called.known)} calls with an empty text, as if they had succeeded: {_shown(empty[0])}",
            "Say that nothing was found, or what was wrong: a policy cannot tell a failure from an empty result",
            NOTE,
        )


LOOKS = (
    _refused,
    _other_default,
    _too_many,
    _without_effect,
    _cut,
    _not_in_order,
    _other_decimals,
    _nothing_said,
)
