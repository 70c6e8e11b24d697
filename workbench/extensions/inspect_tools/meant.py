"""Tools by what they are called (E28): sums that are known, lists that say they are whole, and changes that change nothing."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Spent, replay, text_of
from workbench.values.errors import shortened

LEAST = 3
TRAJECTORIES = 6
FULL = 3  # things in a list that is at its limit, at least
OFTEN = 0.25  # of the lists
WHOLE = re.compile(r"\b(?:all|every|each|complete|whole|full)\b", re.IGNORECASE)
LIMITED = re.compile(
    r"\b(?:pages?|top|at most|up to|limit\w*|more|next|further|of \d+|(?:first|newest|oldest|best|last) (?:\d+|two|three|four|five|ten))\b|"
    r"\.\.\.|…",
    re.IGNORECASE,
)
UPWARDS = re.compile(
    r"\b(?:oldest|cheapest|lowest|smallest|earliest|shortest|nearest|closest|fewest|slowest|youngest) first\b|\bascending\b",
    re.IGNORECASE,
)
DOWNWARDS = re.compile(
    r"\b(?:newest|highest|largest|biggest|latest|most recent|longest|most expensive|dearest|fastest|best(?: rated)?) first\b|"
    r"\bdescending\b",
    re.IGNORECASE,
)
BY_LETTERS = re.compile(r"\balphabetical(?:ly)?\b|\bby (?:the )?alphabet\b", re.IGNORECASE)
PAGE = re.compile(r"page(?:_?(?:number|no))?$", re.IGNORECASE)
CALCULATES = re.compile(
    r"\b(?:calculat\w*|evaluat\w*|arithmetic|expression|compute\w*)\b", re.IGNORECASE
)
ROUNDED = re.compile(r"\b(?:round\w*|whole|integer|floor|decimals?|left to right)\b", re.IGNORECASE)
SUMS = {
    "10 - 4 - 3": 3,
    "2 + 3 * 4": 14,
    "(2 + 3) * 4": 20,
    "7 / 2": 3.5,
    "3 - 8": -5,
    "1.5 * 3": 4.5,
}
# What a function brings, by a word of the description that says in what its argument is.
DEGREES = re.compile(r"\bdegrees?\b|°", re.IGNORECASE)
RADIANS = re.compile(r"\bradians?\b", re.IGNORECASE)
BITS = re.compile(r"\bxor\b|\bbit\w*", re.IGNORECASE)
OF_TWO = {
    "add": lambda a, b: a + b,
    "sum": lambda a, b: a + b,
    "plus": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "minus": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
    "times": lambda a, b: a * b,
    "divide": lambda a, b: a / b,
}
WRITES = re.compile(
    r"^\W*(?:adds?|books?|reserves?|sets?|deletes?|removes?|cancels?|moves?|writes?|saves?|stores?|updates?|creates?|sends?|"
    r"transfers?|puts?|renames?|orders?|buys?|sells?|marks?|assigns?|turns?|opens?|closes?|inserts?)\b",
    re.IGNORECASE,
)
ASKS = re.compile(
    r"^\W*(?:find|get|search|list|look|read|show|query|check|count|see|fetch|browse|wares|tell)",
    re.IGNORECASE,
)
FAILED = re.compile(
    r"\b(?:error|fail\w*|cannot|could not|not found|unknown|no such|invalid|denied|already|not)\b",
    re.IGNORECASE,
)


def _finding(called: Any, what: str, mend: str, severity: str = ERROR) -> Finding:
    return Finding(f"the tool {called.tool.name!r} {what}. {mend}", severity=severity)


# ------------------------------------------------------------------------------------------------ sums


def knows_sums(called: Any) -> Iterator[RuleResult]:
    """A tool that calculates is asked what is known."""
    if ROUNDED.search(called.description):
        return
    for arguments, expected in _known_sums(called):
        came = called.call(arguments)
        numbers = re.findall(r"-?\d+(?:\.\d+)?", came.result.text.split("=")[-1])
        if not came.worked or len(numbers) != 1:
            continue
        if abs(float(numbers[0]) - expected) > 1e-3 * max(1.0, abs(expected)):
            yield _finding(
                called,
                f"brings {numbers[0]} for {shortened(arguments, 60)}, where {expected:g} is right",
                "Look at the order of its arguments and operations, at whole-number division and at signs that are lost",
            )
            return


def _known_sums(called: Any) -> Iterator[tuple[Mapping[str, Any], float]]:
    kinds = {name: part.get("type", "string") for name, part in called.properties.items()}
    if (
        len(kinds) == 1
        and set(kinds.values()) == {"string"}
        and CALCULATES.search(called.description)
    ):
        for expression, value in (SUMS | _functions(called.tool.description)).items():
            yield {next(iter(kinds)): expression}, value
    meant = OF_TWO.get(called.tool.name.lower().split("_")[0])
    if meant and len(kinds) == 2 and set(kinds.values()) <= {"integer", "number"}:
        one, other = kinds
        yield {one: 12, other: 4}, meant(12, 4)


def _functions(description: str) -> dict[str, float]:
    """Functions whose meaning the description leaves no doubt about; a calculator that has none of
    them says so."""
    known = {"sqrt(16)": 4.0}
    if not BITS.search(description):
        known["2^3"] = 8.0
    in_degrees = bool(DEGREES.search(description))
    if in_degrees != bool(RADIANS.search(description)):
        angle, value = ("30", 0.5) if in_degrees else ("1", math.sin(1))
        known[f"sin({angle})"] = value
    return known


# ------------------------------------------------------------------------------------------------ whole lists


def cut_lists(called: Any) -> Iterator[RuleResult]:
    """Lists that say they are whole stop at one number of things, and nothing says so."""
    described = called.tool.description
    if not WHOLE.search(described) or LIMITED.search(described):
        return
    counts = {made_call.result.text: made_call.num_things for made_call in called.worked()}
    most = max(counts.values(), default=0)
    full = [text for text, count in counts.items() if count == most]
    fewer = [text for text, count in counts.items() if count < most]
    if most < FULL or len(full) < max(LEAST, OFTEN * len(counts)) or not fewer:
        return
    if any(LIMITED.search(text.splitlines()[-1]) for text in full):
        return
    yield _finding(
        called,
        f"says {shortened(described, 70)}, and {len(full)} of {len(counts)} different results have {most} things in them, none "
        f"more: {shortened(full[0], 90)}; it looks as if lists are cut there without a word",
        "Bring all, or say in the description how many and in the result how many follow",
        NOTE,
    )


# ------------------------------------------------------------------------------------------------ orders


def keeps_order(called: Any) -> Iterator[RuleResult]:
    """A list that its description puts in an order is in that order, by some of its columns."""
    described = called.tool.description
    up = UPWARDS.search(described)
    down = DOWNWARDS.search(described)
    letters = BY_LETTERS.search(described)
    order = up or down or letters
    lists = [rows for one in called.worked() if len(rows := _rows(one)) >= FULL]
    if order is None or len(lists) < 2 or sum(map(bool, (up, down, letters))) > 1:
        return
    if letters:
        in_order = [rows == sorted(rows, key=str.casefold) for rows in lists]
        turned = [rows == sorted(rows, key=str.casefold)[::-1] for rows in lists]
    else:
        in_order = [_monotone(rows, up=bool(up)) for rows in lists]
        turned = [_monotone(rows, up=bool(down)) for rows in lists]
        known = [_columns(rows) for rows in lists]
        if not all(known):
            return
    wrong = [rows for rows, right in zip(lists, in_order) if not right]
    if 2 * len(wrong) >= len(lists) and len(wrong) >= 2:
        yield _finding(
            called,
            f"says {shortened(order[0])}, and {len(wrong)} of {len(lists)} lists are in another order"
            f"{' (the opposite one)' if all(turned) else ''}: {shortened('; '.join(wrong[0]), 100)}",
            "Sort by what the description names, and in that direction",
            ERROR if all(turned) else NOTE,
        )


def _rows(made_call: Any) -> list[str]:
    lines = [line.strip() for line in made_call.result.text.splitlines() if line.strip()]
    # Without what stands at the head or the foot of a list.
    return [row for row in made_call.items or lines if not LIMITED.search(row)]


def _floats(row: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", row)]


def _columns(rows: Sequence[str]) -> list[list[float]]:
    """Numbers of the rows by their place, of places that all rows have and that are not their count."""
    numbers = [_floats(row) for row in rows]
    columns = [list(column) for column in zip(*numbers)]
    return [
        column
        for column in columns
        if len(set(column)) > 1 and column != [*range(1, len(rows) + 1)]
    ]


def _monotone(rows: Sequence[str], *, up: bool) -> bool:
    return any(column == sorted(column, reverse=not up) for column in _columns(rows))


def turns_pages(called: Any) -> Iterator[RuleResult]:
    """The second page brings nothing that the first one brought."""
    for name in filter(PAGE.match, called.properties):
        if called.properties[name].get("type") != "integer":
            continue
        for base in called.worked()[:LEAST]:
            one, other = (_rows(called.call({**base.arguments, name: page})) for page in (1, 2))
            # Not what is said at the foot of each page.
            both = [row for row in one if row in other and not LIMITED.search(row)]
            if len(one) >= 2 and both and one != other:
                yield _finding(
                    called,
                    f"brings {shortened(both[0])} for {name} = 1 and again for {name} = 2 (of {shortened(repr(dict(base.arguments)))})",
                    "Let a page begin where the one before it ends",
                )
                return


# ------------------------------------------------------------------------------------------------ changes


def _writes(tool: Any) -> bool:
    """Whether it is called a change; what is called a question first is none, whatever follows."""
    name = tool.name.replace("_", " ")
    return not ASKS.search(name) and bool(WRITES.search(name) or WRITES.search(tool.description))


def changes_nothing(given: CheckInput, tools: Sequence[Any]) -> Iterator[RuleResult]:
    """What a tool says it changes is seen in nothing that is answered or paid afterwards."""
    writing = {tool.name for tool in tools if _writes(tool)}
    solver = [one for one in given.solved_once(least_turns=2) if one.results and one.success]
    kept: dict[str, list[PlayedTrajectory]] = defaultdict(list)
    moved: set[str] = set()
    spent = Spent()
    for one in solver[:TRAJECTORIES]:
        for k, name in _single_calls(one):
            if name in writing - moved and spent.seconds <= given.budget_s:
                same = _without_the_call(given, one, k)
                kept[name] += [one] if same else []
                moved |= set() if same else {name}
    yield Checked(sum(map(len, kept.values())), "calls that change something")
    for name, trajectories in kept.items():
        if name not in moved and len(trajectories) >= LEAST:
            one = trajectories[0]
            k = next(k for k, called in _single_calls(one) if called == name)
            reply = text_of(one.results[k].observation)
            yield Finding(
                f"the tool {name!r} says that it has done something ({shortened(reply, 60)}), and nothing "
                f"goes by it: without its call {len(trajectories)} of {len(trajectories)} trajectories of the solver are answered and paid "
                f"alike from there on, {one.task.id!r} for one. Let it change what other tools read and the reward is computed from",
                severity=NOTE,
            )
            return


def _single_calls(one: PlayedTrajectory) -> Iterator[tuple[int, str]]:
    """(turn, tool) of turns before the last that called one tool, which did not fail."""
    for k, result in enumerate(one.results[:-1]):
        names = {call.name for call in result.tool_calls}
        if len(names) == 1 and not FAILED.search(text_of(result.observation)):
            yield k, names.pop()


def _without_the_call(given: CheckInput, one: PlayedTrajectory, k: int) -> bool:
    """Whether all goes on alike where nothing is called in turn k."""
    texts = (*one.texts[:k], NONSENSE, *one.texts[k + 1 :])
    without = replay(given.family, one.script._replace(texts=texts))
    return _rest(one, k) == _rest(without, k) and one.success == without.success


def _rest(played: PlayedTrajectory, k: int) -> list[Any]:
    return [
        (text_of(result.observation), result.info.get("success"), result.terminated)
        for result in played.results[k + 1 :]
    ]
