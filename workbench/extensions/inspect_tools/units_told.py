"""Numbers in another unit than the one that is described (E28): the right answer is what a tool or reply brings, times a factor that
takes one unit to another, at every task."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, text_of
from workbench.extensions.scripted_play.words import framed
from workbench.extensions.scripted_play.written_numbers import number_of
from workbench.values import Task
from workbench.values.errors import shortened

TASKS = 30
FEWEST = 3
NUMBERS = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w]|\.\d)")
ROUNDED = 0.006  # of the gold number, or half a unit of its last place


class UnitPair(NamedTuple):
    """A gold number in the unit `gold` is `times` the number in the unit `other`."""

    gold: str
    other: str
    of: Callable[[float], float]
    factor: float | None = None


def _times(factor: float) -> Callable[[float], float]:
    return lambda number: number * factor


WORDS = {
    "km": r"km\b|kilomet(?:er|re)s?",
    "miles": r"miles?\b|\bmi\b",
    "m": r"(?<![a-z])m\b|(?<!kilo)(?<!centi)(?<!milli)\bmet(?:er|re)s?",
    "ft": r"\bft\b|\bfeet\b|\bfoot\b",
    "cm": r"\bcm\b|centimet(?:er|re)s?",
    "inches": r"\binch(?:es)?\b",
    "kg": r"\bkg\b|kilo(?:gram(?:me)?)?s?\b",
    "lb": r"\blbs?\b|\bpounds?\b",
    "g": r"(?<!\w)g\b|(?<!kilo)\bgram(?:me)?s?\b",
    "celsius": r"celsius|°\s?C\b|centigrade",
    "fahrenheit": r"fahrenheit|°\s?F\b",
    "minutes": r"\bmin(?:ute)?s?\b",
    "seconds": r"\bsec(?:ond)?s?\b",
    "hours": r"\bhours?\b|\bhrs?\b",
    "euros": r"\beuros?\b|€|\bdollars?\b|\$|\bpounds?\b|£|\bEUR\b|\bUSD\b",
    "cents": r"\bcents?\b|\bpence\b|\bct\b",
    "percent": r"per ?cent\b|%|percentage",
    "a fraction": r"fraction|share|between 0 and 1|probability",
    "single ones": r"(?!)",
    "thousands": r"thousand|\b000s?\b|\bk\b",
    "millions": r"million",
}
LINEAR = (
    ("km", "miles", 1.609344),
    ("m", "ft", 0.3048),
    ("cm", "inches", 2.54),
    ("kg", "lb", 0.45359237),
    ("kg", "g", 0.001),
    ("km", "m", 0.001),
    ("m", "cm", 0.01),
    ("minutes", "seconds", 1 / 60),
    ("hours", "minutes", 1 / 60),
    ("euros", "cents", 0.01),
    ("percent", "a fraction", 100.0),
    ("single ones", "thousands", 1000.0),
    ("single ones", "millions", 1e6),
)
PAIRS = (
    *(UnitPair(gold, other, _times(by), by) for gold, other, by in LINEAR),
    *(UnitPair(other, gold, _times(1 / by), 1 / by) for gold, other, by in LINEAR[:-2]),
    UnitPair("celsius", "fahrenheit", lambda number: (number - 32) * 5 / 9),
    UnitPair("fahrenheit", "celsius", lambda number: number * 9 / 5 + 32),
)


class ToolReading(NamedTuple):
    """A task that was solved by one look: what was asked, what it is described to bring, what it brought, and the answer."""

    task: Task
    question: str
    described_as: str
    reply: str
    numbers: tuple[float, ...]
    gold: float
    written: str

    def is_gold(self, number: float) -> bool:
        places = len(self.written.partition(".")[2])
        return abs(number - self.gold) <= max(0.51 * 10**-places, ROUNDED * abs(self.gold) * 0.2)


def check_units_told(given: CheckInput) -> Iterator[RuleResult]:
    """What is brought is in the unit that is named."""
    if given.family.max_turns < 2 or given.why_not_played(baselines=True) is not None:
        return
    looks: dict[str, list[ToolReading]] = defaultdict(list)
    for kind, one in _looked_up(given):
        looks[kind].append(one)
    for kind, ones in looks.items():
        yield Checked(len(ones), "numbers that are looked up")
        if len({one.gold for one in ones}) < FEWEST:
            continue
        if any(one.is_gold(number) for one in ones for number in one.numbers):
            continue
        for pair in PAIRS:
            if all(_goes_by(pair, one) for one in ones):
                finding = _finding(kind, ones, pair)
                if finding is not None:
                    yield finding
                    return


def _goes_by(pair: UnitPair, one: ToolReading) -> bool:
    return any(one.is_gold(pair.of(number)) for number in one.numbers)


def _names(unit: str, text: str) -> bool:
    return re.search(WORDS[unit], text, re.IGNORECASE) is not None


def _finding(kind: str, ones: Sequence[ToolReading], pair: UnitPair) -> Finding | None:
    """None where somebody says the other unit, or where the question itself asks for the factor."""
    if any(_names(pair.other, f"{one.described_as} {one.reply} {one.question}") for one in ones):
        return None
    factors = {pair.factor, 1 / pair.factor} if pair.factor else set()
    asked = {float(n.replace(",", "")) for one in ones for n in NUMBERS.findall(one.question)}
    if factors & asked:
        return None
    one = ones[0]
    named = all(
        _names(pair.gold, one.question) or _names(pair.gold, one.described_as) for one in ones
    )
    if not named and pair.gold != "single ones":
        return None
    brought = next(number for number in one.numbers if one.is_gold(pair.of(number)))
    return Finding(
        f"{kind} brings numbers in {pair.other}, and nothing says so: the right answers "
        f"at {len(ones)} of {len(ones)} tasks are those of "
        f"{pair.gold}, {brought:g} for {one.written} at {one.task.id!r} "
        f"({shortened(one.question, 80)}), and none is as it is brought"
        f"{f'; {pair.gold} is what is named' if named else ''}. Bring the unit that is named, or "
        f"name the unit that is brought",
        severity=ERROR if named else NOTE,
    )


def _looked_up(given: CheckInput) -> Iterator[tuple[str, ToolReading]]:
    """(what was called, the look) of new tasks that the solver solved by one look and an answer that is a number."""
    if "solver" not in given.own:
        return
    solved = _solved_by_one_look(given)
    if len(solved) < FEWEST:
        return
    frames = framed([one.texts[-1] for one in solved])
    for one, (_, words, _) in zip(solved, frames):
        number = number_of(words.strip())
        if number is not None and abs(float(number.value)) >= 1e-9:
            yield _as_looked_up(one, words, float(number.value))


def _solved_by_one_look(given: CheckInput) -> list[PlayedTrajectory]:
    """The solver's trajectories of two turns that succeed, within a third of the budget."""
    solved = given.solved_anew("units", TASKS, 1 / 3)
    return [one for one in solved if len(one.texts) == 2]


def _as_looked_up(one: PlayedTrajectory, words: str, gold: float) -> tuple[str, ToolReading]:
    """(what was called, the look) of one trajectory whose answer is `words`, the number `gold`."""
    reply = text_of(one.results[0].observation)
    numbers = tuple(float(text.replace(",", "")) for text in NUMBERS.findall(reply))
    kind, described_as = _called(one)
    written = re.sub(r"[^\d.-]", "", words)
    question = str(one.task.payload.get("question", "")) or text_of(one.opening)
    return kind, ToolReading(one.task, question, described_as, reply, numbers, gold, written)


def _called(one: PlayedTrajectory) -> tuple[str, str]:
    """The tool's name and description; else the first word of the look, and the prompt. Of looks that are not tools the question's
    words tell kinds of numbers apart."""
    calls = one.results[0].tool_calls
    tools = {
        tool.get("function", tool).get("name"): tool.get("function", tool)
        for tool in _tools_of(one)
    }
    if calls and calls[0].name in tools:
        tool = tools[calls[0].name]
        described = [
            part.get("description", "")
            for part in tool.get("parameters", {}).get("properties", {}).values()
        ]
        return f"the tool {calls[0].name!r}", " ".join([tool.get("description", ""), *described])
    asked = str(one.task.payload.get("question", "")).split()[:4]
    word = one.texts[0].split()[0] if one.texts[0].split() else ""
    return f"{word!r} ({' '.join(asked)} ...)" if asked else repr(word), text_of(one.opening)


def _tools_of(one: PlayedTrajectory) -> list[dict]:
    return [dict(tool) for tool in (one.opening.tools if one.opening else ())]
