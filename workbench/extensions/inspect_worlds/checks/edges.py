"""Numbers at their edges: a bound that a prompt names and that is refused (E14), and random play that draws beside what may be said
(E25).

Both put other numbers into an action that the family's own play has at that state, and compare what is answered: an edge is
refused where it is answered as a number far outside is, while its neighbour is not.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import NONSENSE, CheckInput
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    Spent,
    play,
    replay,
    text_of,
)
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at

NUMBER = re.compile(r"(?<![\w.,-])(\d{1,4})(?::00)?(?![\w]|[.,:]\d)")
RANGE = re.compile(
    r"\b(?P<how>between|from)\s+(?P<low>\d{1,4})(?::00)?\s+(?:and|(?:up )?to|until"
    r"|through)\s+(?P<high>\d{1,4})(?::00)?(?!\d|[.:,]\d|\s?%)",
    re.IGNORECASE,
)
MOST = re.compile(
    r"\b(?P<how>at most|up to|no more than|not more than|no later than|not later than|a maximum "
    r"of)\s+(?P<high>\d{1,4})(?::00)?(?!\d|[.:,]\d|\s?%)",
    re.IGNORECASE,
)
STRICTLY = re.compile(r"strict|exclu|not includ|less than|below|under|before|fewer", re.IGNORECASE)
STATES = 8  # at which an edge is tried
FEWEST = 5  # of them that must refuse it
VALUES = 3  # different ones that are drawn, for a range
DRAWS = 60  # of random play
FAR = 9000


class ActionSlot(NamedTuple):
    """Where a number stands in an action: the text with all numbers left out, and which of them it is."""

    shape: str
    place: int


class PromptLimit(NamedTuple):
    """An edge that a prompt names as allowed, and its neighbour inside."""

    edge: int
    inner: int
    words: str
    sure: bool


@dataclass
class SlotRecord:
    """What family play put into a slot."""

    drawn: list[int] = field(default_factory=list)  # by random play
    solved: list[int] = field(default_factory=list)  # by the solver
    states: list[tuple[PlayedTrajectory, int]] = field(default_factory=list)  # (trajectory, turn)

    @property
    def values(self) -> set[int]:
        return {*self.drawn, *self.solved}


def slots_of(text: str) -> Iterator[tuple[ActionSlot, int, tuple[int, int]]]:
    """(slot, value, where the digits stand) of every number of an action."""
    shape = NUMBER.sub(lambda match: match[0].replace(match[1], "{}"), text)
    for place, match in enumerate(NUMBER.finditer(text)):
        yield ActionSlot(shape, place), int(match[1]), match.span(1)


def _written(value: int, like: str) -> str:
    """Times keep two digits where the text has them."""
    return f"{value:0{len(like)}d}" if like.startswith("0") and len(like) > 1 else str(value)


def _records(given: CheckInput) -> dict[ActionSlot, SlotRecord]:
    return given.once("slots", lambda: _slots_played(given))


def _slots_played(given: CheckInput) -> dict[ActionSlot, SlotRecord]:
    records: dict[ActionSlot, SlotRecord] = defaultdict(SlotRecord)
    for name, trajectories in given.own.items():
        for played in trajectories:
            for k, text in enumerate(played.texts[: len(played.results)]):
                for slot, value, _ in slots_of(text):
                    record = records[slot]
                    (record.drawn if name == "random" else record.solved).append(value)
                    record.states.append((played, k))
    return records


def _spread(states: Sequence[tuple[PlayedTrajectory, int]]) -> list[tuple[PlayedTrajectory, int]]:
    """States of different tasks, early ones first."""
    by_task: dict[str, list[tuple[PlayedTrajectory, int]]] = defaultdict(list)
    for played, k in sorted(states, key=lambda state: state[1]):
        by_task[played.task.id].append((played, k))
    turns = chain.from_iterable(
        (them[number] for them in by_task.values() if number < len(them)) for number in range(2)
    )
    return list(turns)[:STATES]


class ActionProbe:
    """Another number in the place of one that was said at a state."""

    def __init__(
        self, given: CheckInput, slot: ActionSlot, played: PlayedTrajectory, k: int
    ) -> None:
        self.given, self.played, self.k = given, played, k
        places = {one.place: where for one, _, where in slots_of(played.texts[k])}
        self.start, self.end = places[slot.place]

    def text_with(self, value: int) -> str:
        text = self.played.texts[self.k]
        return text[: self.start] + _written(value, text[self.start : self.end]) + text[self.end :]

    def answers(self, text: str, literal: str) -> set[Any]:
        """What is answered: as it is (a refusal may state the bounds), without the words that were said, and without `literal`."""
        texts = (*self.played.texts[: self.k], text)
        again = replay(self.given.family, self.played.script._replace(texts=texts))
        if again.error or len(again.results) <= self.k:
            return {("an error", again.error.partition(":")[0])}
        result = again.results[self.k]
        shown = text_of(result.observation)
        quoted = re.sub(rf"(?<!\d){re.escape(literal)}(?!\d)", "#", shown) if literal else shown
        return {
            (words, result.reward, result.terminated, result.truncated)
            for words in (shown, shown.replace(text, ""), quoted)
        }

    def of(self, value: int) -> set[Any]:
        return self.answers(self.text_with(value), str(value))

    def refuses(self, value: int, others: Sequence[int], beyond: int) -> bool:
        """Whether it is answered as what is far outside, and `others` are not."""
        outside = self.of(beyond) | self.of(FAR) | self.answers(NONSENSE, "")
        taken = set().union(*map(self.of, others))
        return bool(self.of(value) & outside) and not taken & outside


def _refusals(
    given: CheckInput,
    slot: ActionSlot,
    states: Sequence[tuple[PlayedTrajectory, int]],
    value: int,
    others: Sequence[int],
    beyond: int,
) -> tuple[int, int]:
    """(states that refuse it, states that were asked)."""
    refused = asked = 0
    spent = Spent()
    for played, k in states:
        if spent.seconds > given.budget_s / 2:
            break
        asked += 1
        if not ActionProbe(given, slot, played, k).refuses(value, others, beyond):
            return refused, asked
        refused += 1
    return refused, asked


# ------------------------------------------------------------------------------------------------ bounds that a prompt names


def bounds_in(prompt: str) -> Iterator[PromptLimit]:
    """Edges that a prompt says may be used."""
    for match in RANGE.finditer(prompt):
        low, high = int(match["low"]), int(match["high"])
        near = prompt[max(match.start() - 25, 0) : match.end() + 25]
        if high - low < 2 or STRICTLY.search(near):
            continue
        sure = match["how"].lower() == "from" or "whole" in near
        yield PromptLimit(low, low + 1, match[0], sure)
        yield PromptLimit(high, high - 1, match[0], sure)
    for match in MOST.finditer(prompt):
        high = int(match["high"])
        if high >= 3 and not STRICTLY.search(prompt[match.end() : match.end() + 15]):
            yield PromptLimit(high, high - 1, match[0], True)


def check_named_bounds(given: CheckInput) -> Iterator[RuleResult]:
    """Who says the number that a prompt names as the last allowed one is not refused."""
    if given.why_not_played(baselines=True) is not None:
        return
    for slot, record in _records(given).items():
        if len(record.values) < VALUES or slot.shape.count("{}") > 1:
            continue  # a number among others is a part of an answer, of which a prompt may say something else
        tried: dict[str, list[tuple[PlayedTrajectory, int, PromptLimit]]] = defaultdict(list)
        for played, k in _spread(record.states):
            for number, bound in enumerate(bounds_in(text_of(played.opening))):
                if not {bound.edge, bound.inner} & record.values:
                    continue  # no number of this slot is said to go so far
                side = "low" if bound.inner > bound.edge else "high"
                tried[f"{number} {side}"].append((played, k, bound))
        for where in tried.values():
            yield Checked(len(where), "bounds that a prompt names")
            refused = [one for one in where if _refuses_bound(given, slot, *one)]
            if len(where) >= FEWEST and len(refused) == len(where):
                played, _, bound = where[0]
                yield Finding(
                    f"the prompt says {bound.words!r}, and {bound.edge} is refused "
                    f"where {bound.inner} is taken, at {len(where)} of "
                    f"{len(where)} states ({slot.shape!r}, at {played.task.id!r} for one): the "
                    f"comparison leaves its own bound out "
                    "(< in place of <=, range(a, b) in place of range(a, b + 1)). Take what the "
                    "prompt allows, or name the last "
                    "number that is taken",
                    severity=ERROR if bound.sure or "between" in bound.words.lower() else NOTE,
                )
                return


def _refuses_bound(
    given: CheckInput, slot: ActionSlot, played: PlayedTrajectory, k: int, bound: PromptLimit
) -> bool:
    beyond = (
        bound.edge + 7 * (bound.edge - bound.inner)
        if bound.edge > 7 or bound.edge > bound.inner
        else FAR
    )
    return ActionProbe(given, slot, played, k).refuses(bound.edge, [bound.inner], beyond)


# ------------------------------------------------------------------------------------------------ what random play draws


def check_random_range(given: CheckInput) -> Iterator[RuleResult]:
    """The numbers that random play draws are those that may be used."""
    if given.why_not_played(baselines=True) is not None or "random" not in given.own:
        return
    draws = _draws(given)
    for slot, record in _records(given).items():
        drawn = sorted({*record.drawn, *draws.get(slot, ())})
        times = len(record.drawn) + len(draws.get(slot, ()))
        if len(drawn) < VALUES or drawn[-1] - drawn[0] + 1 != len(drawn) or times < 8 * len(drawn):
            continue
        yield Checked(times, "numbers that random play draws")
        finding = _refused_edge(given, slot, record, drawn, times) or _undrawn_neighbour(
            given, slot, record, drawn, times
        )
        if finding is not None:
            yield finding
            return


def _refused_edge(
    given: CheckInput, slot: ActionSlot, record: SlotRecord, drawn: Sequence[int], times: int
) -> Finding | None:
    """An end of the drawn range that is refused, while the number past its other end is taken."""
    by_random = [one for one in record.states if one[0].policy == "random"]
    states = _spread(by_random or record.states)
    low, high = drawn[0], drawn[-1]
    for edge, missed in ((low, high + 1), (high, low - 1)):
        if missed < 0:
            continue
        others = [drawn[len(drawn) // 2], missed]
        refused, asked = _refusals(given, slot, states, edge, others, high + 7)
        if refused == asked >= FEWEST:
            return Finding(
                f"random play draws {low} to {high} for {slot.shape!r}, and {edge} is refused at "
                f"{refused} of {asked} states, while {missed}, which it never draws in {times} "
                "turns, is taken: its range is off by one. Random play is weaker than chance, and "
                f"what needs {missed} is never seen by it. "
                f"Draw from {sorted((low, high, missed))[1]} to "
                f"{max(high, missed) if edge == low else high - 1}"
            )
    return None


def _undrawn_neighbour(
    given: CheckInput, slot: ActionSlot, record: SlotRecord, drawn: Sequence[int], times: int
) -> Finding | None:
    """A number beside the drawn range that the solver says often."""
    low, high = drawn[0], drawn[-1]
    beyond = sorted({value for value in record.solved if value > high or value < low})
    often = sum(value in beyond for value in record.solved)
    if not beyond or often < 4 or beyond[0] not in (low - 1, high + 1):
        return None
    if not _one_form(given, slot):
        return None
    return Finding(
        f"random play draws {low} to {high} for {slot.shape!r} in {times} turns, and never "
        f"{beyond[0]}, which the solver says {often} times: the end of its range is off by one "
        "(integers(a, b) leaves b out), and a part of the tasks cannot be solved by chance. "
        "Draw among all that may be used",
        severity=NOTE,
    )


def _draws(given: CheckInput) -> dict[ActionSlot, list[int]]:
    """More draws of random play, at beginnings."""
    family: Any = given.family
    drawn: dict[ActionSlot, list[int]] = defaultdict(list)
    spent = Spent()
    for task in given.tasks[:4]:
        rng = rng_at("check-env", "range", task.id)
        texts: list[str] = []

        def act(env: Any, texts: list[str] = texts, rng: Any = rng) -> str:
            texts.extend(family.random_action(env, rng) for _ in range(DRAWS))
            return texts[-1]

        if spent.seconds < given.budget_s / 4:
            play(family, task, 0, act, most=1)
        for text in texts:
            for slot, value, _ in slots_of(text):
                drawn[slot].append(value)
    return drawn


def _one_form(given: CheckInput, slot: ActionSlot) -> bool:
    """Whether the range is the same at all tasks: then what is never drawn is not what the state forbids."""
    ranges = set()
    for task in given.tasks[:4]:
        record = [
            value
            for played in given.own["random"]
            if played.task.id == task.id
            for text in played.texts
            for other, value, _ in slots_of(text)
            if other == slot
        ]
        ranges.add(max(record, default=0))
    return max(ranges) - min(ranges) <= 2


# ------------------------------------------------------------------------------------------------ what the other side says


EACH = re.compile(
    r"\b(?:each(?: of us| player| side)?|both|we take turns|taking turns|in "
    r"turn)\b[^.]{0,40}?\b(?:takes?|picks?|adds?|says?|removes?|places?|draws?|bids?|names?"
    r"|counts?)\s+"
    r"(?:(?P<list>\d+(?:, \d+)*,? (?:or|and) \d+)|(?P<low>\d+) to (?P<high>\d+)|between "
    r"(?P<low2>\d+) and (?P<high2>\d+)|(?:up to|at most) (?P<most>\d+))",
    re.IGNORECASE,
)
THEY = re.compile(
    r"(?<!\w)(?:I|(?:the |my |your )?(?:opponent|computer|other player|rival|bot"
    r"|machine))\s+(?:take|takes|took|pick|picks|picked|add|adds|added|say|says|said|remove"
    r"|removes|removed|place|places|draw|draws|bid|bids|name|names|count|counts)\s+(\d+)\b",
    re.IGNORECASE,
)


def check_other_side(given: CheckInput) -> Iterator[RuleResult]:
    """The other side keeps to what the prompt says that each side may say."""
    stated = EACH.search(given.first_prompt)
    if stated is None or given.why_not_played(baselines=True) is not None:
        return
    if stated["list"]:
        allowed = {int(number) for number in re.findall(r"\d+", stated["list"])}
    elif stated["most"]:
        allowed = {*range(int(stated["most"]) + 1)}
    else:
        low, high = stated["low"] or stated["low2"], stated["high"] or stated["high2"]
        allowed = {*range(int(low), int(high) + 1)}
    spoken: list[tuple[int, PlayedTrajectory, str]] = []
    for played in given.played:
        for result in played.results:
            text = text_of(result.observation)
            spoken += [(int(number), played, text) for number in THEY.findall(text)]
    yield Checked(len(spoken), "what the other side says")
    beyond = [one for one in spoken if one[0] not in allowed]
    if len(beyond) >= FEWEST:
        number, played, text = beyond[0]
        yield Finding(
            f"the prompt says {shortened(stated[0], 60)!r}, and the other side says {number} "
            f"at {played.task.id!r} ({shortened(text, 60)}), so in {len(beyond)} of "
            f"{len(spoken)} of its turns: it plays by other rules than the policy, and what is "
            f"learned is learned against them. Draw its number from the same range",
            severity=ERROR,
        )
