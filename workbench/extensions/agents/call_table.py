"""The calls of a run in numbers: forks, tokens trained and left out, and by what assistant messages were recognised.

wb.conversations(run)                 a row a step, as a view; of a trajectory: its tree (`tree_view.py`)
wb.conversations(run).to_frame()      the same as a frame of pandas
workbench conversations RUN
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from workbench.basics.evenly import evenly
from workbench.extensions.agents.call_records import GROUNDS, RESAMPLED, RecordedCall, calls_of
from workbench.extensions.agents.tree_view import ConversationTree
from workbench.look import doc, words
from workbench.look.html import view_from
from workbench.look.looks import BOLD
from workbench.look.spread import MOST_STEPS
from workbench.run.store import Run, open_run
from workbench.values import Group, Trajectory, View, trajectories_of
from workbench.values.errors import DataError
from workbench.values.view import HasView

if TYPE_CHECKING:
    import pandas

MOST_ROWS = 24  # of the view; `to_frame` has them all
MOST_NAMES = 12  # conversations in the view


@dataclass(frozen=True)
class CallFigures:
    """Of one step, or of any trajectories.

    trajectories   that programs made
    silent         of these, without one call that was answered
    calls          that were answered
    conversations  names, counted once a trajectory
    forks, asked_again  calls that left a known history; that asked what was asked before
    sampled        tokens of all answers
    trained        of these, in conversations that are trained and trajectories that are scored
    left_out       in conversations that are not trained
    unscored       in the others, in trajectories that are not scored
    unread         calls of tools that could not be read
    repeats        times that a call was delivered once more
    sent_back      assistant messages, by what they were recognised (keys of GROUNDS)
    by_name        conversation -> (calls, sampled tokens)
    """

    trajectories: int = 0
    silent: int = 0
    calls: int = 0
    conversations: int = 0
    forks: int = 0
    asked_again: int = 0
    sampled: int = 0
    trained: int = 0
    left_out: int = 0
    unscored: int = 0
    unread: int = 0
    repeats: int = 0
    sent_back: Counter[str] = field(default_factory=Counter)
    by_name: dict[str, tuple[int, int]] = field(default_factory=dict)

    def share(self, ground: str) -> float | None:
        """Of the assistant messages that were sent back; None: none was."""
        total = self.sent_back.total()
        return self.sent_back[ground] / total if total else None

    def row(self) -> dict[str, Any]:
        """Every number by its name, shares among them."""
        numbers = {
            member.name: getattr(self, member.name)
            for member in fields(self)
            if member.name not in ("sent_back", "by_name")
        }
        numbers["sent_back"] = self.sent_back.total()
        shares = {name.replace(" ", "_"): self.share(key) for key, name in GROUNDS.items()}
        return numbers | shares


def counts_of(trajectories: Sequence[Trajectory]) -> CallFigures:
    """Count over the trajectories that programs made."""
    totals: Counter[str] = Counter()
    sent_back: Counter[str] = Counter()
    by_name: dict[str, tuple[int, int]] = {}
    for trajectory in trajectories:
        calls = calls_of(trajectory)
        if not calls and trajectory.turns:
            continue  # stepped by us, not by a program
        totals.update(_numbers(trajectory, calls))
        for call in calls:
            sent_back.update(call.sent_back)
            number, tokens = by_name.get(call.conversation, (0, 0))
            by_name[call.conversation] = (number + 1, tokens + call.sampled)
    return CallFigures(**totals, sent_back=sent_back, by_name=by_name)


def _numbers(trajectory: Trajectory, calls: Sequence[RecordedCall]) -> dict[str, int]:
    eligible = sum(int(segment.eligible.sum()) for segment in trajectory.segments)
    sampled = trajectory.num_sampled
    scored = trajectory.reward is not None
    return {
        "trajectories": 1,
        "silent": int(not calls),
        "calls": len(calls),
        "conversations": len({call.conversation for call in calls}),
        "forks": sum(call.forks for call in calls),
        "asked_again": sum(call.way == RESAMPLED for call in calls),
        "sampled": sampled,
        "trained": eligible if scored else 0,
        "left_out": sampled - eligible,
        "unscored": 0 if scored else eligible,
        "unread": sum(_number(call, "unread") for call in calls),
        "repeats": sum(_number(call, "repeats") for call in calls),
    }


def _number(call: RecordedCall, name: str) -> int:
    value = call.facts.get(name, 0)
    return value if type(value) is int else 0


# ------------------------------------------------------------------------------------------------ of a run


@dataclass(frozen=True, repr=False)
class RunCalls(HasView):
    """The calls of a run: `wb.conversations(run)`.

    name       of the run, or what else was counted
    steps      (step, its counts), in order; step 0: of trajectories that are no run's
    committed  how many steps there are in all
    """

    name: str
    steps: tuple[tuple[int, CallFigures], ...]
    committed: int

    def to_frame(self) -> pandas.DataFrame:
        """A row a step, a column a number. Needs pandas."""
        import pandas

        rows = [{"step": step, **counts.row()} for step, counts in self.steps]
        return pandas.DataFrame(rows, columns=("step", *CallFigures().row()))

    @property
    def total(self) -> CallFigures:
        """Over all steps that were read."""
        totals: Counter[str] = Counter()
        sent_back: Counter[str] = Counter()
        by_name: dict[str, tuple[int, int]] = {}
        for _, counts in self.steps:
            sent_back.update(counts.sent_back)
            for member in fields(CallFigures):
                if member.name not in ("sent_back", "by_name"):
                    totals[member.name] += getattr(counts, member.name)
            for name, (number, tokens) in counts.by_name.items():
                calls, sampled = by_name.get(name, (0, 0))
                by_name[name] = (calls + number, sampled + tokens)
        return CallFigures(**totals, sent_back=sent_back, by_name=by_name)

    def view(self) -> View:
        """You will see a row a step: calls and forks, what was sampled, trained and left out, and by what assistant messages
        were recognised that the program sent back. Many forks, or messages that are not recognised, are worth a look at a
        trajectory."""
        title = f"{self.name}: calls of programs"
        total = self.total
        if not total.trajectories:
            return view_from(doc.Heading(title), doc.Note("no program made a trajectory here"))
        rows = []
        for number in evenly(range(len(self.steps)), MOST_ROWS):
            step, counts = self.steps[number]
            rows.append(_row(str(step), counts))
        rows.append([doc.Cell(cell, BOLD) for cell in _row("all", total)])
        columns = doc.numbers("step", *(name for name, _ in _COLUMNS))
        return view_from(
            doc.Heading(title),
            doc.Table(columns, rows),
            doc.Note(
                "verbatim to not recognised: shares of the assistant messages that programs sent back"
            ),
            doc.BlankLine(),
            *_by_name(total),
            doc.first_shown(len(self.steps), self.committed, "steps"),
        )


def _share(ground: str) -> Any:
    return lambda counts: words.percent(counts.share(ground))


def _plain(name: str) -> Any:
    return lambda counts: f"{getattr(counts, name):,}"


_COLUMNS = (
    ("trajectories", _plain("trajectories")),
    ("calls", _plain("calls")),
    ("forks", _plain("forks")),
    ("asked again", _plain("asked_again")),
    ("sampled tokens", _plain("sampled")),
    ("trained", _plain("trained")),
    ("left out", _plain("left_out")),
    ("unscored", _plain("unscored")),
    ("calls not read", _plain("unread")),
    *((name, _share(ground)) for ground, name in GROUNDS.items()),
)


def _row(step: str, counts: CallFigures) -> list[str]:
    return [step, *(cell(counts) for _, cell in _COLUMNS)]


def _by_name(total: CallFigures) -> Iterator[doc.Part]:
    rows = [
        [words.name_of(name), f"{calls:,}", f"{tokens:,}"]
        for name, (calls, tokens) in list(total.by_name.items())[:MOST_NAMES]
    ]
    yield doc.Table(["conversation", *doc.numbers("calls", "sampled tokens")], rows)
    notice = doc.first_shown(MOST_NAMES, len(total.by_name), "conversations")
    if notice is not None:
        yield notice


def conversations(
    what: Run | str | os.PathLike | Trajectory | Sequence[Group], *, most: int = MOST_STEPS
) -> RunCalls | ConversationTree:
    """Of a trajectory, the tree of its conversations; of a run or of groups, a table of their calls.

    Of a run with more than `most` committed steps, so many evenly chosen ones are read. Raises StoreError for what is no run,
    and DataError for what is none of these."""
    if isinstance(what, Trajectory):
        return ConversationTree.of(what)
    if isinstance(what, Group):
        what = [what]
    if isinstance(what, (list, tuple)):
        if not all(isinstance(group, Group) for group in what):
            raise DataError(
                "conversations are of a run, a trajectory, or groups of trajectories (what `rollout` and `run.groups` give)"
            )
        return RunCalls("groups", ((0, counts_of(trajectories_of(what))),), 1)
    run = open_run(what)
    steps = run.steps()
    read = tuple((step, _counts_of_step(run, step)) for step in evenly(steps, most))
    return RunCalls(run.name, read, len(steps))


@lru_cache(maxsize=4096)
def _counts_of_step(run: Run, step: int) -> CallFigures:
    return counts_of(trajectories_of(run.groups(step)))
