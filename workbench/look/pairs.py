"""Trajectories of two policies at the same tasks, side by side: who solved what the other did not, and where they diverge.

wb.paired("runs/first")                              untrained vs. trained, on the tasks of its evaluations
wb.paired("runs/first", "runs/second")               both as they were evaluated last
paired = wb.paired(wb.rollout(a, 8), wb.rollout(b, 8))
paired.lost                                          the tasks that the second solved less often
paired.difference                                    second less first, with its interval
wb.show(paired, only="lost"), wb.show(paired[0])     the tasks of one change; one task turn by turn
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import BLUE, BOLD, GREEN, GREY, ORANGE, PLAIN
from workbench.run.store import Run, open_run
from workbench.values import Groups, Trajectory, View
from workbench.values.errors import DataError, nearest
from workbench.values.sequences import first_difference
from workbench.values.stats import Difference, clustered_difference, paired_difference
from workbench.values.trajectories import Group, Task
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

WON = "won"
LOST = "lost"
BOTH = "both"
NEITHER = "neither"
ALIKE = "alike"
UNKNOWN = "not known"
ORDER = (LOST, WON, ALIKE, BOTH, NEITHER, UNKNOWN)  # of changes in a table
COLOURS = {LOST: ORANGE, WON: GREEN, BOTH: BLUE}
LONGEST_TEXT = 600  # characters of one message
MOST_TASKS = 24
OWN = ("trained", "untrained")  # sides of an evaluation that are the run's own policy
MODES = ("sampled", "greedy")


@dataclass(frozen=True, eq=False, repr=False)
class Pair(Shown):
    """One task, and both policies' trajectories of it; `names` of both sides."""

    task: Task
    first: Group
    second: Group
    names: tuple[str, str] = ("first", "second")

    @property
    def success(self) -> tuple[float | None, float | None]:
        """The share of each side's trajectories that succeeded; None where the environment does not say it of all of them."""
        return _mean([t.success for t in self.first]), _mean([t.success for t in self.second])

    @property
    def reward(self) -> tuple[float | None, float | None]:
        """The mean reward of each side; None where one trajectory was not scored."""
        return _mean([t.reward for t in self.first]), _mean([t.reward for t in self.second])

    @property
    def change(self) -> str:
        """How the second did beside the first, by success, by reward where that is not known:

        won, lost       the second did better; the first did
        both, neither   all of their trajectories succeeded; none of them did
        alike           the same otherwise
        not known       neither success nor reward is known
        """
        knows_success = None not in self.success
        a, b = self.success if knows_success else self.reward
        if a is None or b is None:
            return UNKNOWN
        if a != b:
            return WON if b > a else LOST
        if not knows_success:
            return ALIKE
        return {1.0: BOTH, 0.0: NEITHER}.get(a, ALIKE)

    @property
    def first_difference(self) -> int | None:
        """The first turn in which the first trajectories of both sides diverge; None: identical text."""
        texts = ([turn.text for turn in group[0].turns] for group in (self.first, self.second))
        return first_difference(*texts)

    def view(self, *, max_turns: int = 12) -> View:
        """The first trajectory of each side, turn by turn; turns of identical text are counted only. From the turn in
        which they diverge each side stands under its name."""
        trajectories = (self.first[0], self.second[0])
        longest = max(len(trajectory.turns) for trajectory in trajectories)
        part = self.first_difference
        same = len(trajectories[0].turns) if part is None else part
        parts: list[doc.Part] = [doc.Heading(words.name_of(self.task.id))]
        parts += [
            doc.Note(_side_words(name, group))
            for name, group in zip(self.names, (self.first, self.second))
        ]
        if same:
            until = "" if part is None else f", up to turn {part - 1}"
            parts.append(doc.Note(f"identical text in {words.count(same, 'turn')}{until}"))
        for number in range(same, min(longest, same + max_turns)):
            here = ": ◆ diverges here" if number == part else ""
            parts.append(doc.Note(f"turn {number}{here}"))
            for name, trajectory in zip(self.names, trajectories):
                parts += _turn_parts(name, trajectory, number)
        hidden = longest - same - max_turns
        if hidden > 0:
            parts.append(doc.Note(f"… {words.count(hidden, 'turn')} more"))
        return view_from(*parts)


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class PairedGroups(Shown):
    """Pairs in task order. `names` of both sides; `left_out`: tasks that only one of them attempted."""

    names: tuple[str, str]
    pairs: tuple[Pair, ...]
    left_out: int = 0

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> Pair:
        return self.pairs[index]

    def of(self, change: str) -> tuple[Pair, ...]:
        return tuple(pair for pair in self.pairs if pair.change == change)

    @property
    def won(self) -> tuple[Pair, ...]:
        return self.of(WON)

    @property
    def lost(self) -> tuple[Pair, ...]:
        return self.of(LOST)

    @property
    def numbered(self) -> list[tuple[int, Pair]]:
        """(number, pair): those that were lost first, then those that were won."""
        return sorted(enumerate(self.pairs), key=lambda item: ORDER.index(item[1].change))

    @property
    def measure(self) -> str:
        """What `difference` is of: "success", or "reward" where success is not known of any task."""
        return "success" if any(None not in pair.success for pair in self.pairs) else "reward"

    @cached_property
    def difference(self) -> Difference | None:
        """Second minus first over the tasks that both were judged on, with its 95 % interval; None where there are none."""
        values = [getattr(pair, self.measure) for pair in self.pairs]
        judged = [value for value in values if None not in value]
        if not judged:
            return None
        a_N, b_N = (np.array(side, np.float64) for side in zip(*judged))
        is_single = all(len(pair.first) == len(pair.second) == 1 for pair in self.pairs)
        if is_single and self.measure == "success":
            return paired_difference(a_N, b_N)
        return clustered_difference(a_N, b_N, np.arange(len(a_N)))

    def to_frame(self) -> pandas.DataFrame:
        """A row a task: its id, the change, success and reward of both, and the first divergent turn. Needs pandas."""
        import pandas

        rows = []
        for pair in self.pairs:
            row = {"task_id": pair.task.id, "change": pair.change}
            row |= {f"success/{name}": value for name, value in zip(self.names, pair.success)}
            row |= {f"reward/{name}": value for name, value in zip(self.names, pair.reward)}
            rows.append(row | {"first_difference": pair.first_difference})
        return pandas.DataFrame(rows)

    def view(self, *, only: str = "", max_tasks: int = MOST_TASKS) -> View:
        """How many tasks the second won and lost, the difference with its interval, and a row per task: those that were lost
        first, then those that were won. `only`: tasks of one change ("lost", "won", "both", "neither", "alike", "not known").
        """
        if only and only not in ORDER:
            raise DataError(f"only={only!r} is no change; {nearest(only, ORDER)}")
        first, second = self.names
        listed = [row for row in self.numbered if not only or row[1].change == only]
        rows = [_task_row(number, pair, self.measure) for number, pair in listed[:max_tasks]]
        nothing = doc.Note(f"no task was {only}" if only else "no task")
        difference = _difference_words(self)
        left_out = words.count(self.left_out, "group")
        return view_from(
            doc.Heading(f"{second} vs. {first}, {words.count(len(self), 'task')}"),
            doc.Note(_counts_words(self)),
            doc.Note(f"Δ {self.measure} ({second} − {first}): {difference}")
            if difference
            else None,
            doc.Table(_task_columns(self), rows) if rows else nothing,
            doc.first_shown(max_tasks, len(listed), "tasks"),
            doc.Note(f"{left_out} left out: attempted by one side only") if self.left_out else None,
            doc.Note("next: wb.show(paired.lost[0]), wb.show(paired[0]), paired.to_frame()"),
        )

    def __repr__(self) -> str:
        counts = Counter(pair.change for pair in self.pairs)
        changes = ", ".join(f"{count} {change}" for change, count in counts.items())
        return f"<{len(self)} tasks of {self.names[0]!r} and {self.names[1]!r}: {changes}>"[:2000]


def _mean(values: Sequence[float | bool | None]) -> float | None:
    return None if not values or None in values else float(np.mean(values))


# ------------------------------------------------------------------------------------------------ pairing


def paired(
    first: Run | str | os.PathLike | Sequence[Group],
    second: Run | str | os.PathLike | Sequence[Group] | None = None,
    *,
    mode: str = "sampled",
) -> PairedGroups:
    """Pair trajectories by task: of one run its first evaluation with its last, of two runs the last of each, or two lists of
    groups. `mode`: "sampled" or "greedy".

    Raises DataError where an evaluation kept no trajectories (runs of before they were kept), where a run was evaluated only
    once, and where no task is common to both."""
    if mode not in MODES:
        raise DataError(f"mode={mode!r}: evaluations play {' and '.join(MODES)}")
    if isinstance(first, (list, tuple)):
        if not isinstance(second, (list, tuple)) or not _are_groups((*first, *second)):
            raise DataError(
                "two lists of groups are paired, or runs: wb.paired(groups, other_groups)"
            )
        return pair_groups(first, second)
    if second is None:
        return _first_and_last(open_run(first), mode)
    before = open_run(first)
    after = open_run(second)
    return pair_groups(_last(before, mode), _last(after, mode), (before.name, after.name))


def _are_groups(values: Sequence[object]) -> bool:
    return all(isinstance(value, Group) for value in values)


def _first_and_last(run: Run, mode: str) -> PairedGroups:
    evaluated = _evaluated(run, mode)
    if len(evaluated) < 2:
        raise DataError(
            f"run {run.name} kept the trajectories of {len(evaluated)} {mode} evaluation{'s' * (len(evaluated) != 1)} of its "
            "policy; two are needed. Train with train.evaluate_every, or give a second run"
        )
    before, first = evaluated[0]
    after, last = evaluated[-1]
    return pair_groups(first, last, (before, after))


def _evaluated(run: Run, mode: str) -> list[tuple[str, Groups]]:
    """("step 20", its trajectories) of each evaluation that kept some, in the order of steps."""
    steps = {name: report["step"] for name, report in run.evaluations().items() if "step" in report}
    evaluated = []
    for name, step in sorted(steps.items(), key=lambda item: item[1]):
        sides = run.evaluated(name)
        own = [sides[f"{policy}-{mode}"] for policy in OWN if f"{policy}-{mode}" in sides]
        evaluated += [(f"step {step}", groups) for groups in own[:1]]
    return evaluated


def _last(run: Run, mode: str) -> Groups:
    evaluated = _evaluated(run, mode)
    if not evaluated:
        raise DataError(
            f"run {run.name} kept no trajectories of a {mode} evaluation; evaluations of today's runs do"
        )
    return evaluated[-1][1]


def pair_groups(
    first: Sequence[Group], second: Sequence[Group], names: tuple[str, str] = ("first", "second")
) -> PairedGroups:
    """Pair two lists of groups by task: id, seed and payload must be the same. Of tasks that come more than once the n-th
    is paired with the n-th. Raises DataError where no task is common to both."""
    if names[0] == names[1]:
        names = (f"{names[0]} (first)", f"{names[1]} (second)")
    waiting: dict[tuple, list[Group]] = {}
    for group in second:
        waiting.setdefault(_key(group.task), []).append(group)
    pairs = []
    for group in first:
        others = waiting.get(_key(group.task))
        if others:
            pairs.append(Pair(group.task, group, others.pop(0), names))
    if not pairs:
        raise DataError(
            f"{names[0]} and {names[1]} have no task in common, so nothing can be paired: they attempted "
            f"{_some_tasks(first)} and {_some_tasks(second)}"
        )
    return PairedGroups(names, tuple(pairs), len(first) + len(second) - 2 * len(pairs))


def _key(task: Task) -> tuple:
    payload = repr(sorted(task.payload.items(), key=lambda item: item[0]))
    return (task.env, task.id, task.task_seed, payload)


def _some_tasks(groups: Sequence[Group]) -> str:
    names = ", ".join(group.task.id[:40] for group in groups[:3])
    return (names + ", ..." * (len(groups) > 3)) or "nothing"


# ------------------------------------------------------------------------------------------------ parts of the views


def _side_words(name: str, group: Group) -> str:
    trajectory = group[0]
    turns = words.count(len(trajectory.turns), "turn")
    several = f", the first of {len(group)} trajectories" if len(group) > 1 else ""
    reward = words.reward_words(trajectory)
    return f"{name}: {words.success_words(trajectory)}, reward {reward}, {turns}{several}"


def _turn_parts(name: str, trajectory: Trajectory, number: int) -> Iterator[doc.Part]:
    label = f"{name:10}"
    if number < len(trajectory.turns):
        turn = trajectory.turns[number]
        yield doc.Quoted(label, name, capped(turn.text, LONGEST_TEXT))
        reply = "\n".join(message.text for message in turn.reply)
        if reply:
            yield doc.Quoted(f"{'':10}", "reply", capped(reply, LONGEST_TEXT))
    elif number == len(trajectory.turns):
        yield doc.Quoted(label, name, f"({trajectory.stop_reason.value} before)")


def _counts_words(paired: PairedGroups) -> str:
    first, second = paired.names
    better = {LOST: f" ({first} did better)", WON: f" ({second} did better)"}
    facts = []
    for change in ORDER:
        count = len(paired.of(change))
        if count or change in better:
            facts.append(f"{count} {change}{better.get(change, '')}")
    return " · ".join(facts)


def _difference_words(paired: PairedGroups) -> str:
    """The difference with its interval; "" where there is none."""
    difference = paired.difference
    if difference is None:
        return ""
    mean = difference.mean
    low = difference.low
    high = difference.high
    if paired.measure == "success":
        numbers = f"{100 * mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]"
    else:
        numbers = f"{mean:+.3f} [{low:+.3f}, {high:+.3f}]"
    return f"{numbers}, 95 % over tasks".replace("-", "−")


def _task_columns(paired: PairedGroups) -> list[doc.Column]:
    first, second = paired.names
    measured = [f"{paired.measure} {first}", f"{paired.measure} {second}"]
    rewards = [f"reward {first}", f"reward {second}"]
    named = [*doc.numbers("pair"), doc.Column("task"), doc.Column("change")]
    return [
        *named,
        *doc.numbers(*measured, *rewards, "turns", "turns"),
        doc.Column("first divergent turn"),
    ]


def _task_row(number: int, pair: Pair, measure: str) -> list[str | doc.Cell]:
    written = words.percent if measure == "success" else words.signed
    badge = doc.Badge(pair.change, COLOURS.get(pair.change, GREY))
    part = pair.first_difference
    return [
        str(number),
        capped(words.name_of(pair.task.id), 40),
        doc.Cell(pair.change, BOLD if pair.change in COLOURS else PLAIN, (badge,)),
        *map(written, getattr(pair, measure)),
        *map(words.signed, pair.reward),
        *(str(len(group[0].turns)) for group in (pair.first, pair.second)),
        "identical text" if part is None else f"turn {part}",
    ]
