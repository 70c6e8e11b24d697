"""Tools asked what the questions of many tasks ask (E28): lists that stop at one number, names that are not found as they are
written, defaults that are other ones than the description says."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, permutations
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.values.errors import shortened
from workbench.values.seeds import seed_of

DRAWN = 48  # tasks whose questions are read
ASKED = 64  # calls that are made of them
EACH = 6  # ... of one question
LEAST = 3
FULL = 4  # things in a list that is cut, at least
PILE = 2.0  # times as many results at the largest number as at the one below it
SHARE = 0.2  # of the results
SAID = re.compile(
    r"\b(?:pages?|more|next|further|of \d+|total|limit\w*|truncat\w*|first \d+|top|at most|up to|shown|showing)\b|\.\.\.|…",
    re.IGNORECASE,
)
COUNTED = re.compile(r"limit|count|max|top|page|number|size|^k$|^n$", re.IGNORECASE)
DEFAULT = re.compile(
    r"\b(?:defaults? (?:to|is|of|value:?)|default[:=])[:= (]*[`'\"]?(-?\d+(?:\.\d+)?|[\w-]+)|(-?\d+(?:\.\d+)?)[`'\"]? (?:\w+ )?by default|"
    r"\bby default[:,]? (-?\d+(?:\.\d+)?)",
    re.IGNORECASE,
)


def _finding(called: Any, what: str, mend: str, severity: str = ERROR) -> Finding:
    return Finding(f"the tool {called.tool.name!r} {what}. {mend}", severity=severity)


def arguments_of_questions(
    given: CheckInput, properties: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Arguments of a tool that takes texts: names and numbers of one question each, in every order. What is asked about stands
    together in a question."""
    texts = [
        name
        for name, part in properties.items()
        if part.get("type", "string") == "string" and "enum" not in part
    ]
    if not texts or len(texts) != len([n for n, p in properties.items() if "default" not in p]):
        return
    made: dict[str, dict[str, Any]] = {}
    for number in range(DRAWN):
        task = given.family.task(seed_of("check-env", "questions", number))
        question = str(task.payload.get("question", ""))
        names = (
            list(dict.fromkeys(re.findall(r"(?<=[a-z,] )[A-Z][\w-]+", question)))
            or re.findall(r"\b\w{4,}\b", question)[-3:]
        )
        for words in islice(permutations(names, len(texts)), EACH):
            made.setdefault(repr(words), dict(zip(texts, words)))
    yield from islice(made.values(), ASKED)


def cut_at_a_number(called: Any) -> Iterator[RuleResult]:
    """Many results have just as many things as the longest, and few have nearly as many: lists that are cut."""
    if SAID.search(called.description) or any(map(COUNTED.search, called.properties)):
        return
    counts = {made_call.result.text: made_call.num_things for made_call in called.worked()}
    times = Counter(counts.values())
    most = max(times, default=0)
    full = [text for text, count in counts.items() if count == most]
    enough = len(full) >= max(LEAST, SHARE * len(counts)) and len(times) >= LEAST
    if most < FULL or not enough or len(full) < PILE * max(times[most - 1], 1):
        return
    if any(SAID.search(text) for text in full):
        return
    yield _finding(
        called,
        f"brings {most} things at most, and just as many in {len(full)} of {len(counts)} different results (one less in {times[most - 1]}): "
        f"{shortened(full[0], 90)}; neither the description nor a result says that there is more. It looks as if lists are cut there",
        "Bring all, or say in the result how many there are and how to have the rest",
        NOTE,
    )


def reads_names(called: Any) -> Iterator[RuleResult]:
    """A name as the questions write it brings nothing, and in small letters it does."""
    missed: list[tuple[Mapping[str, Any], Any]] = []
    asked = 0
    nothing = Counter(one.result.text for one in called.known.values()).most_common(1)
    for arguments in called.of_questions[: 4 * LEAST]:
        small = {name: value.lower() for name, value in arguments.items()}
        if small == arguments or called.over:
            continue
        plain = called.call(arguments)
        other = called.call(small)
        asked += 1
        is_nothing = not plain.worked or bool(nothing) and plain.result.text == nothing[0][0]
        missed += (
            [(arguments, other)]
            if is_nothing and other.worked and other.result.text != plain.result.text
            else []
        )
    if asked >= LEAST and len(missed) >= LEAST and 3 * len(missed) >= asked:
        arguments, other = missed[0]
        yield _finding(
            called,
            f"finds nothing for names as the questions write them, and does in small letters, at {len(missed)} of {asked} calls: {shortened(dict(arguments), 60)} in small "
            f"letters brings {shortened(other.result.text, 60)}",
            "Compare without case",
        )


def keeps_its_default(called: Any) -> Iterator[RuleResult]:
    """A default that the description states is the one that is taken."""
    for name, part in called.properties.items():
        stated = DEFAULT.search(str(part.get("description", "")))
        if stated is None or name in called.required:
            continue
        value: Any = stated[1] or stated[2] or stated[3]
        if part.get("type") in ("integer", "number"):
            if not re.fullmatch(r"-?\d+(?:\.\d+)?", value):
                continue
            value = int(value) if part["type"] == "integer" and "." not in value else float(value)
        elif part.get("type") == "boolean":
            value = value.lower() == "true"
        differ = []
        bases = called.worked()[:LEAST]
        for base in bases:
            rest = {key: argument for key, argument in base.arguments.items() if key != name}
            without = called.call(rest)
            stated_one = called.call({**rest, name: value})
            if (
                without.worked
                and stated_one.worked
                and without.result.text != stated_one.result.text
            ):
                differ.append((rest, without, stated_one))
        if differ and not called.tool.stateful:
            rest, without, stated_one = differ[0]
            yield _finding(
                called,
                f"says that {name!r} is {value!r} by default, and a call without it brings something else: {shortened(rest, 50)} brings "
                f"{shortened(without.result.text, 60)}, and with {value!r} {shortened(stated_one.result.text, 60)}",
                "State the default that is taken",
            )
            return
