"""What a finished trajectory says of its calls (`turn.info["call"]`), as records; and its segments as a tree.

It is read as data: a run folder may come from anywhere, so whatever does not fit counts as not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.values import Trajectory

LONGEST_TEXT = 200  # characters of what a call says of itself
ROOT = "root"
EXTENDS = "extends"
FORK = "fork"
RESAMPLED = "resampled"
# By what an assistant message that was sent back was recognised (`messages.Ground`) -> what a table calls it.
GROUNDS = {
    "exact": "verbatim",
    "ids": "ids",
    "equal": "normalised",
    "thought": "without thought",
    "foreign": "not recognised",
}


@dataclass(frozen=True)
class HistoryDifference:
    """Where a request leaves what is known.

    message    number of the first message that differs, from 0
    role       of that message
    character  the first that differs
    was, now   both texts around it
    call       whose answer stood there; None: it was no answer
    """

    message: int
    role: str
    character: int
    was: str
    now: str
    call: int | None


@dataclass(frozen=True)
class RecordedCall:
    """One call of a program.

    number        in the order of asking, from 0
    turn          its turn in the trajectory
    segment       in which it was sampled; None: nothing of it was
    conversation  its name
    way           "root", "extends", "fork" or "resampled"
    left          the call that a new segment leaves; None: it leaves none
    during        the call that is taken to have begun this conversation
    untrained     why what was sampled is not trained; "" where it is
    answered      tokens of the answer, as they were counted when it was given; None: not known
    sampled       tokens of the answer that stand in the segment
    sent_back     assistant messages that this call is the first to send, by what they were recognised (names of GROUNDS)
    facts         all that was kept
    """

    number: int
    turn: int
    segment: int | None
    conversation: str
    way: str
    left: int | None
    during: int | None
    untrained: str
    answered: int | None
    sampled: int
    sent_back: Mapping[str, int]
    difference: HistoryDifference | None
    facts: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def forks(self) -> bool:
        return self.way == FORK

    @property
    def replaced(self) -> bool:
        """The program sent other words in the place of an answer that it was given."""
        return self.difference is not None and self.difference.call is not None


def calls_of(trajectory: Trajectory) -> list[RecordedCall]:
    """Its calls in the order of asking; none where no program made it."""
    sampled: dict[int, tuple[int, int]] = {}
    for number, segment in enumerate(trajectory.segments):
        for span in segment.spans:
            if span.sampled:
                sampled[span.turn] = (number, len(span))
    calls = []
    for turn in trajectory.turns:
        facts = turn.info.get("call")
        if isinstance(facts, Mapping):
            segment, tokens = sampled.get(turn.index, (None, 0))
            calls.append(_record(turn.index, segment, tokens, facts))
    return sorted(calls, key=lambda call: call.number)


def _record(turn: int, segment: int | None, tokens: int, facts: Mapping[str, Any]) -> RecordedCall:
    number = _whole(facts, "number")
    return RecordedCall(
        turn if number is None else number,
        turn,
        segment,
        _text(facts, "conversation"),
        _text(facts, "way"),
        _whole(facts, "from"),
        _whole(facts, "during"),
        _text(facts, "untrained"),
        _whole(facts, "tokens"),
        tokens,
        _counts(facts.get("sent_back")),
        _difference(facts.get("differs")),
        facts,
    )


def _difference(value: Any) -> HistoryDifference | None:
    if not isinstance(value, Mapping) or _whole(value, "message") is None:
        return None
    return HistoryDifference(
        _whole(value, "message") or 0,
        _text(value, "role"),
        _whole(value, "character") or 0,
        _text(value, "was"),
        _text(value, "is"),
        _whole(value, "call"),
    )


def _counts(value: Any) -> dict[str, int]:
    counts = value if isinstance(value, Mapping) else {}
    return {name: counts[name] for name in GROUNDS if _whole(counts, name) is not None}


def _whole(facts: Mapping[str, Any], name: str) -> int | None:
    value = facts.get(name)
    return value if type(value) is int and value >= 0 else None


def _text(facts: Mapping[str, Any], name: str) -> str:
    value = facts.get(name)
    return value[:LONGEST_TEXT] if isinstance(value, str) else ""


# ------------------------------------------------------------------------------------------------ the tree


@dataclass(frozen=True)
class SegmentNode:
    """One segment: the calls that were sampled in it, and the segments that begin at one of them.

    parent  its number; None: it begins by itself
    length, context  tokens of the segment, and those that stand before the first answer
    """

    number: int
    calls: tuple[RecordedCall, ...]
    parent: int | None
    untrained: str
    length: int
    sampled: int

    @property
    def first(self) -> RecordedCall:
        return self.calls[0]


def segments_of(trajectory: Trajectory, calls: Sequence[RecordedCall]) -> list[SegmentNode]:
    """Every segment in which something was sampled, in their order. A parent comes before its children."""
    by_number = {call.number: call for call in calls}
    nodes = []
    for number, segment in enumerate(trajectory.segments):
        own = tuple(call for call in calls if call.segment == number)
        if not own:
            continue
        origin = own[0].during if own[0].left is None else own[0].left
        parent = by_number[origin].segment if origin in by_number else None
        if parent is not None and parent >= number:
            parent = None
        sampled = sum(call.sampled for call in own)
        nodes.append(SegmentNode(number, own, parent, segment.untrained, len(segment), sampled))
    return nodes


def children_of(nodes: Sequence[SegmentNode], parent: int | None) -> list[SegmentNode]:
    """The segments that begin in one (None: that begin by themselves)."""
    there = {node.number for node in nodes}
    return [node for node in nodes if (node.parent if node.parent in there else None) == parent]


def turn_of(calls: Sequence[RecordedCall], number: int | None) -> int | None:
    """The turn of a call by its number; None: it is not there."""
    return next((call.turn for call in calls if call.number == number), None)
