"""Tools that do not do what their description says (E28): called with one argument after the other changed.

Calls are the solver's and those made up from a schema. What a description promises and is looked at: that a parameter has an
effect, that declared values are taken, a number of results at most; and beside it results that are cut without a word and
failures that are answered with nothing.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_tools.bounds import keeps_its_bounds, keeps_its_days
from workbench.extensions.inspect_tools.meant import (
    changes_nothing,
    cut_lists,
    keeps_order,
    knows_sums,
    turns_pages,
)
from workbench.extensions.inspect_tools.questions import (
    arguments_of_questions,
    cut_at_a_number,
    keeps_its_default,
    reads_names,
)
from workbench.extensions.inspect_tools.units_told import check_units_told
from workbench.extensions.scripted_play.given import SLOW_S, CheckInput, until_a_finding
from workbench.extensions.scripted_play.playing import Spent, unplayable
from workbench.extensions.scripted_play.tool_calls import (
    value_for,
    words_of_tasks,
    written_calls,
)
from workbench.extensions.scripted_play.written_numbers import counted
from workbench.tools.base import Tool, ToolResult
from workbench.values import ToolCall
from workbench.values.errors import shortened
from workbench.worlds.shared import made, opened
from workbench.worlds.tool_env import ToolEnv

CALLS = 16  # of each tool, by which its parameters are varied
VARIED = 5  # calls at which one parameter is varied
VALUES = 6  # of it, made up
LEAST = 3  # calls by which a tool is judged
MOST_BYTES = 100_000  # of a result, so that the world's own limit cuts nothing
CUT = 60  # characters from where a length is no accident
ARGUMENTS_OF_NOBODY = re.compile(
    r"sort|order|reason|thought|comment|note|explan|session|time_?out|retries|lang|locale|user|verbos|format|style|message|trace|debug",
    re.IGNORECASE,
)
COUNTS = re.compile(
    r"^(?:k|n|top|top_?[kn]|limit|count|(?:max|num|most)(?:imum)?_?\w*)$", re.IGNORECASE
)
READS = re.compile(
    r"^\W*(?:gets?|search\w*|finds?|looks? up|lookup|returns?|computes?|lists?|reads?|fetch\w*|converts?|calculates?|quer\w+|counts?|tells?|the )\b",
    re.IGNORECASE,
)
NOUNS = "results?|items?|lines?|entries|documents?|rows?|hits|matches|passages?|names?|records?|words|characters"
PROMISED = re.compile(
    rf"\b(?:at most|up to|no more than|a maximum of|maximum|limited to|the (?:first|top|best)|returns?) (\d+|one|two|three|four|five|ten) (?:\w+ )?({NOUNS})\b",
    re.IGNORECASE,
)
BULLET = re.compile(r"^\s*(?:[-*•]|\d+[.):]|\[\d+\])\s*(.*)$", re.MULTILINE)


class CallResult(NamedTuple):
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

    @property
    def num_things(self) -> int:
        """Of a list its items, else lines that are not empty."""
        lines = [line for line in self.result.text.splitlines() if line.strip()]
        return len(lines) if self.items is None else len(self.items)


class ToolCalls:
    """One tool in an open trajectory, with the calls that were made of it."""

    def __init__(
        self, env: ToolEnv, tool: Tool, given: CheckInput, written: Sequence[dict[str, Any]]
    ) -> None:
        self.tool = tool
        self.written = written  # arguments of the family's own calls
        self.env = env
        self.properties = dict(tool.parameters.get("properties", {}))
        self.required = list(tool.parameters.get("required", ()))
        self.words = words_of_tasks(given)
        self.of_questions = list(arguments_of_questions(given, self.properties))
        self.known: dict[str, CallResult] = {}
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

    def made_up(self, number: int) -> dict[str, Any]:
        return {name: value_for(part, self.words, number) for name, part in self.properties.items()}

    def call(self, arguments: Mapping[str, Any]) -> CallResult:
        key = json.dumps(arguments, sort_keys=True, default=str)
        if key not in self.known:
            result = self.env.executor.run([ToolCall(self.tool.name, dict(arguments))])[0]
            self.known[key] = CallResult(dict(arguments), result)
        return self.known[key]

    def worked(self) -> list[CallResult]:
        """Calls of which something came, each another result."""
        different: dict[str, CallResult] = {}
        for made_call in list(self.known.values()):
            if made_call.worked and made_call.result.text.strip():
                different.setdefault(made_call.result.text, made_call)
        return list(different.values())


def check_described(given: CheckInput) -> Iterator[RuleResult]:
    """Each tool of a ToolEnv, in a trajectory of its own."""
    family = given.family
    env = made(family)
    yield from check_units_told(given)
    if not isinstance(env, ToolEnv) or not env.tools:
        yield NotChecked("tools of a ToolEnv")
        return
    if (why := unplayable(family)) is not None or given.step_s > SLOW_S:
        yield NotChecked(why or f"calls that take less than {SLOW_S:g} s")
        return
    yield from changes_nothing(given, env.tools)
    written = written_calls(given)
    with opened(family) as env:
        env.reset(given.tasks[0], 0)
        env.executor.limits = replace(env.executor.limits, most_bytes=MOST_BYTES)
        for tool in env.tools:
            called = ToolCalls(env, tool, given, written.get(tool.name, ()))
            _make_calls(called)
            yield Checked(len(called.known), "calls of tools")
            yield from until_a_finding(LOOKS, called)


def _make_calls(called: ToolCalls) -> None:
    made_up = [called.made_up(number) for number in range(CALLS)]
    for arguments in (*called.written[:CALLS], *made_up, *called.of_questions):
        if not called.over:
            called.call(arguments)


def _finding(called: ToolCalls, what: str, mend: str, severity: str = ERROR) -> Finding:
    return Finding(f"the tool {called.tool.name!r} {what}. {mend}", severity=severity)


def _shown(made_call: CallResult) -> str:
    return f"{shortened(json.dumps(made_call.arguments, default=str), 80)} -> {shortened(repr(made_call.result.text), 80)}"


# ------------------------------------------------------------------------------------------------ parameters


def _values_of(called: ToolCalls, name: str, base: CallResult) -> list[Any]:
    """Values that a parameter may have, by its schema and by the calls that were made; of those that are taken."""
    known = [one.arguments[name] for one in called.worked() if name in one.arguments]
    made_up = [value_for(called.properties[name], called.words, number) for number in range(VALUES)]
    values = list({repr(value): value for value in (*made_up, *known)}.values())[: 2 * VALUES]
    calls = [(value, called.call({**base.arguments, name: value})) for value in values]
    return [value for value, came in calls if came.result.error != "bad_arguments"]


def _without_effect(called: ToolCalls) -> Iterator[RuleResult]:
    """Whatever the value of a declared parameter, the same comes of a call."""
    bases = called.worked()[:VARIED]
    # What a tool does need not show in its reply; and names that are made up may all be unknown.
    known = called.written or len(bases) >= LEAST
    if called.tool.stateful or not READS.search(called.tool.description) or not known:
        return
    several = any(len(base.items or ()) > 1 for base in bases)
    for name, part in called.properties.items():
        if ARGUMENTS_OF_NOBODY.search(name) or COUNTS.search(name) and not several:
            continue
        values: list[Any] = []
        came: set[str] = set()
        for base in bases:
            values = _values_of(called, name, base)
            came = {_text(called.call({**base.arguments, name: value})) for value in values}
            if len(came) != 1:
                break
        if len(came) != 1 or len(values) < 2 or called.over:
            continue
        sure = name in called.required or "enum" in part or bool(COUNTS.search(name))
        yield _finding(
            called,
            f"declares {name!r}, and it has no effect: {len(values)} values of it ({shortened(', '.join(map(repr, values)), 60)}) "
            f"at {len(bases)} calls bring the same, {_shown(bases[0])}",
            "Use it, or take it out of the schema: a policy spends tokens on it and learns nothing of it",
            ERROR if sure else NOTE,
        )
        return


def _text(made_call: CallResult) -> str:
    return f"{made_call.result.error} {made_call.result.text}"


def _refused(called: ToolCalls) -> Iterator[RuleResult]:
    """A value that the schema declares, or a call without what it says is optional, raises."""
    for base in called.worked()[:LEAST]:
        changed: list[tuple[str, dict[str, Any]]] = []
        for name, part in called.properties.items():
            for value in part.get("enum", ()):
                what = f"declares {value!r} as a value of {name!r}, and raises on it"
                changed.append((what, {**base.arguments, name: value}))
            if name not in called.required:
                rest = {key: value for key, value in base.arguments.items() if key != name}
                changed.append((f"says that {name!r} is optional, and raises without it", rest))
        for what, arguments in changed:
            came = called.call(arguments)
            if came.result.error == "raised":
                mend = "Take what the schema declares, or declare what is taken"
                yield _finding(called, f"{what}: {_shown(came)}", mend)
                return


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


def _too_many(called: ToolCalls) -> Iterator[RuleResult]:
    """More things than the description, or the argument that counts them, allows."""
    for match in PROMISED.finditer(called.description):
        stated = counted(match[1])
        noun = match[2].lower()
        for made_call in called.worked():
            number = _count(made_call, noun)
            if number is not None and number > stated:
                yield _finding(
                    called,
                    f"says {match[0]!r}, and brings {number}: {_shown(made_call)}",
                    "Keep to what is stated, or state what is kept",
                )
                return
    for name in filter(COUNTS.search, called.properties):
        if called.properties[name].get("type") != "integer":
            continue
        for base in called.worked()[:VARIED]:
            for asked in (1, 2, 3):
                made_call = called.call({**base.arguments, name: asked})
                number = len(made_call.items or ())
                if made_call.worked and number > asked:
                    yield _finding(
                        called,
                        f"is asked for {asked} by {name!r}, and brings {number}: {_shown(made_call)}",
                        "Bring as many as are asked for (an off-by-one, or a limit that is not used)",
                    )
                    return


def _count(made_call: CallResult, noun: str) -> int | None:
    text = made_call.result.text
    if noun == "characters":
        return len(text)
    if noun == "words":
        return len(text.split())
    if made_call.items is not None:
        return len(made_call.items)
    return len(text.strip().splitlines()) if noun.startswith("line") else None


def _cut(called: ToolCalls) -> Iterator[RuleResult]:
    """Several results end at the same length, in the middle of a word or of a sentence."""
    texts = [made_call.result.text for made_call in called.worked()]
    longest = max(map(len, texts), default=0)
    at_it = [text for text in texts if len(text) == longest]
    shorter = [text for text in texts if len(text) < longest]
    known = Counter(re.findall(r"\w+", " ".join(texts)))
    broken = [text for text in at_it if _in_a_word(text, known)]
    ended = bool(shorter) and all(text.rstrip().endswith((".", "!", "?")) for text in shorter)
    unended = ended and not any(text.endswith((".", "!", "?")) for text in at_it)
    announced = r"character|truncat|\bcut|shorten|snippet|preview"
    unsaid = not re.search(announced, called.description, re.IGNORECASE)
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


def _nothing_said(called: ToolCalls) -> Iterator[RuleResult]:
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
    knows_sums,
    _too_many,
    _without_effect,
    turns_pages,
    keeps_order,
    keeps_its_bounds,
    keeps_its_days,
    keeps_its_default,
    reads_names,
    _cut,
    cut_lists,
    cut_at_a_number,
    _nothing_said,
)
TOOL_CHECKS = {"E28": check_described}
