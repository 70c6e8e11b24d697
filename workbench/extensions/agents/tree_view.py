"""The conversations of one trajectory as a tree: who called whom, where a history forked and why, and what is trained.

    wb.show(trajectory)              the tree stands above its turns, where there are several segments
    wb.conversations(trajectory)     the tree alone, with a row for each call

Turns are numbered along the segments, calls in the order in which they were asked; both are shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.extensions.agents.call_records import (
    EXTENDS,
    FORK,
    GROUNDS,
    RESAMPLED,
    HistoryDifference,
    RecordedCall,
    SegmentNode,
    calls_of,
    children_of,
    segments_of,
    turn_of,
)
from workbench.extensions.agents.conversations import BEFORE
from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import (
    BLUE,
    GREEN,
    GREY,
    INK,
    LILAC_INK,
    LILAC_PAPER,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    Look,
)
from workbench.values import Trajectory, View
from workbench.values.view import HasView

MOST_SEGMENTS = 40  # that are drawn
MOST_CALLS = 80  # rows of the table of calls
COLOURS = (BLUE, ORANGE, GREEN, RED, GREY)  # of conversations, in their order
LONGEST_BAR = 220  # pixels
FALLS_INTO = 6  # levels of the tree that are set in; deeper ones stand below each other


@dataclass(frozen=True, repr=False)
class ConversationTree(HasView):
    """The calls of one trajectory: `wb.conversations(trajectory)`.

    calls     in the order of asking
    segments  in the order in which they began
    """

    trajectory: Trajectory
    calls: tuple[RecordedCall, ...]
    segments: tuple[SegmentNode, ...]

    @classmethod
    def of(cls, trajectory: Trajectory) -> ConversationTree:
        calls = calls_of(trajectory)
        return cls(trajectory, tuple(calls), tuple(segments_of(trajectory, calls)))

    @property
    def names(self) -> tuple[str, ...]:
        """Of its conversations, in the order in which they began."""
        return tuple(dict.fromkeys(call.conversation for call in self.calls))

    @property
    def drawn(self) -> tuple[SegmentNode, ...]:
        """The first segments: a parent comes before its children, so that it is among them."""
        return self.segments[:MOST_SEGMENTS]

    @property
    def parts(self) -> tuple[doc.Part, ...]:
        """The tree, for a larger view."""
        return (
            doc.Note(_summary(self)),
            doc.TextPart("\n".join(_lines(self))),
            doc.PagePart(tuple(_branches(self, None, 0))),
            *_hidden(self),
        )

    def view(self) -> View:
        """You will see a row a segment: its conversation, its turns, the tokens that were sampled in it, trained (blue) or
        left out (purple). A segment that begins in another one stands below it, with the reason: called from there, or a
        fork, with the first message and character that differ. Below, every call."""
        name = f"{words.name_of(self.trajectory.task.id)} · attempt {self.trajectory.attempt}"
        if not self.calls:
            return view_from(
                doc.Heading(f"{name} · conversations"),
                doc.Note("no program made this trajectory: it has no calls"),
            )
        return view_from(
            doc.Heading(f"{name} · conversations"), *self.parts, doc.BlankLine(), *_table(self)
        )


def trajectory_parts(trajectory: Trajectory) -> tuple[doc.Part, ...]:
    """What stands above the turns of a trajectory: its tree, where it has several segments."""
    tree = ConversationTree.of(trajectory)
    if len(tree.segments) < 2:
        return ()
    return (*tree.parts, doc.BlankLine())


# ------------------------------------------------------------------------------------------------ words


def _summary(tree: ConversationTree) -> str:
    forks = sum(call.forks for call in tree.calls)
    again = sum(call.way == RESAMPLED for call in tree.calls)
    left_out = sum(node.sampled for node in tree.segments if node.untrained)
    sampled = sum(node.sampled for node in tree.segments)
    parts = [
        words.count(len(tree.calls), "call"),
        words.count(len(tree.names), "conversation"),
        words.count(len(tree.segments), "segment"),
        words.count(forks, "fork"),
        *([f"{again} asked again"] if again else []),
        f"{sampled:,} sampled tokens, {left_out:,} of them in conversations that are not trained",
    ]
    return " · ".join(parts)


def _turns(node: SegmentNode) -> str:
    """`turns 0, 1 (calls 0, 3)`."""
    turns = ", ".join(str(call.turn) for call in node.calls)
    calls = ", ".join(str(call.number) for call in node.calls)
    many = "s" if len(node.calls) > 1 else ""
    return f"turn{many} {turns} (call{many} {calls})"


def _tokens(node: SegmentNode) -> str:
    counted = words.count(node.sampled, "sampled token")
    return f"{counted}: {words.name_of(node.untrained or 'trained')}"


def why(call: RecordedCall, calls: Sequence[RecordedCall]) -> str:
    """Why a segment begins with this call."""
    left = turn_of(calls, call.left)
    if call.way == RESAMPLED:
        return f"asked again: the messages of {_place(left)}"
    if call.way == FORK:
        return f"fork from {_place(left)}: {_fork(call, calls)}"
    caller = turn_of(calls, call.during)
    return "begins by itself" if caller is None else f"called during {_place(caller)}"


def _fork(call: RecordedCall, calls: Sequence[RecordedCall]) -> str:
    difference = call.difference
    again = call.facts.get("shown_again")
    if difference is not None:
        stood = turn_of(calls, difference.call)
        instead = "" if stood is None else f", where the policy had said its turn {stood}"
        return f"message {difference.message} ({words.name_of(difference.role)}) differs from character {difference.character} on{instead}"
    if isinstance(again, list) and again:
        return f"turns of the policy are shown behind another past: calls {capped(str(again), 60)}"
    left = next((other for other in calls if other.number == call.left), None)
    if left is not None and left.conversation != call.conversation:
        return "another conversation goes on from there"
    return "it goes on from there once more"


def _place(turn: int | None) -> str:
    return "a call that is not here" if turn is None else f"turn {turn}"


# ------------------------------------------------------------------------------------------------ text


def _lines(tree: ConversationTree) -> Iterator[str]:
    for node in children_of(tree.drawn, None):
        yield from _branch(tree, node, "", "", 0)


def _branch(
    tree: ConversationTree, node: SegmentNode, head: str, below: str, depth: int
) -> Iterator[str]:
    name = words.name_of(node.first.conversation)
    yield f"{head}{name} · segment {node.number + 1} · {_turns(node)} · {_tokens(node)}"
    following = children_of(tree.drawn, node.number)
    mark = "│    " if following else "     "
    yield f"{below}{mark}{why(node.first, tree.calls)}"
    for label, text in _both(node.first.difference, node.first):
        yield f"{below}{mark}  {label} {text!r}"
    for child in following:
        last = child is following[-1]
        branch = "└─ " if last else "├─ "
        deeper = below
        if depth < FALLS_INTO:
            deeper += "   " if last else "│  "
        yield from _branch(tree, child, below + branch, deeper, depth + 1)


def _both(difference: HistoryDifference | None, call: RecordedCall) -> list[tuple[str, str]]:
    """What stood there, and what was sent."""
    if difference is None or call.way != FORK:
        return []
    return [("was", difference.was), ("sent", difference.now)]


# ------------------------------------------------------------------------------------------------ page


def _branches(tree: ConversationTree, parent: int | None, depth: int) -> Iterator[doc.Part]:
    most = max((node.sampled for node in tree.segments), default=1) or 1
    for node in children_of(tree.drawn, parent):
        yield doc.Section(
            (*_segment(tree, node, most), *_branches(tree, node.number, depth + 1)),
            inset=0 < depth <= FALLS_INTO,
        )


def _segment(tree: ConversationTree, node: SegmentNode, most: int) -> Iterator[doc.Part]:
    name = node.first.conversation
    colour = COLOURS[tree.names.index(name) % len(COLOURS)]
    width = max(2, round(LONGEST_BAR * node.sampled / most))
    bar = doc.Bar(((width, PURPLE if node.untrained else BLUE),), margin="0 6px")
    yield doc.Block(
        (
            doc.Badge(words.name_of(name), colour),
            doc.Styled(f"segment {node.number + 1} · {_turns(node)} ", Look(foreground=INK)),
            bar,
            doc.Styled(_tokens(node), Look(foreground=MUTED)),
        )
    )
    yield doc.Note(why(node.first, tree.calls))
    difference = node.first.difference
    for label, text in _both(difference, node.first):
        yield doc.Block(
            (doc.Styled(f"{label:5}", Look(foreground=MUTED)), *_marked(text, difference))
        )


def _marked(text: str, difference: HistoryDifference) -> tuple[doc.Inline, ...]:
    """The text with all from the first character that differs on in bold."""
    at = difference.character
    begin = at if at <= BEFORE else BEFORE + 1  # a mark stands for what is left out
    return (text[:begin], doc.Styled(text[begin:], Look(LILAC_PAPER, LILAC_INK, bold=True)))


def _hidden(tree: ConversationTree) -> Iterator[doc.Part]:
    notice = doc.first_shown(MOST_SEGMENTS, len(tree.segments), "segments")
    if notice is not None:
        yield notice


# ------------------------------------------------------------------------------------------------ calls


def _table(tree: ConversationTree) -> Iterator[doc.Part]:
    columns = [
        *doc.numbers("call", "turn"),
        "conversation",
        "way",
        "sent back",
        *doc.numbers("tokens"),
        "noted",
    ]
    rows = []
    for call in tree.calls[:MOST_CALLS]:
        way = call.way if call.way == EXTENDS else why(call, tree.calls)
        sent_back = [f"{count} {GROUNDS[name]}" for name, count in call.sent_back.items()]
        rows.append(
            [
                str(call.number),
                str(call.turn),
                words.name_of(call.conversation),
                way,
                ", ".join(sent_back),
                f"{call.sampled:,}",
                "; ".join(_noted(call)),
            ]
        )
    yield doc.Table(columns, rows)
    notice = doc.first_shown(MOST_CALLS, len(tree.calls), "calls")
    if notice is not None:
        yield notice


def _noted(call: RecordedCall) -> Iterator[str]:
    if call.untrained:
        yield "not trained"
    for name, meaning in (
        ("unread", "calls not read"),
        ("repeats", "times sent again"),
        ("temperature", "temperature"),
        ("top_p", "top-p"),
        ("most_tokens", "tokens asked for at most"),
    ):
        if isinstance(call.facts.get(name), (int, float)):
            yield f"{meaning} {call.facts[name]:g}"
    if call.facts.get("not_followed"):
        yield f"not followed: {capped(str(call.facts['not_followed']), 80)}"
