"""Success by kind of task, over a run: which kind training learned, when it first did, and what it cost the others.

found = wb.by_kind(run, "hops")     questions by the documents that an answer takes: a picture, as the last line of a cell
found.first["3"]                    the first training trajectory of a task of this kind that succeeded
found.difference("3", "greedy")     trained minus untrained on the held-out tasks of this kind, in pairs
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from workbench.basics.annotated import checked_methods
from workbench.basics.digits import whole_in
from workbench.basics.evenly import evenly
from workbench.look import doc, words
from workbench.look.escape import visible
from workbench.look.figures import Plot, Trace
from workbench.look.html import view_from
from workbench.look.looks import BLUE, GREEN, GREY, ORANGE, PURPLE
from workbench.look.png import curves_picture
from workbench.look.spread import MOST_STEPS
from workbench.run.store import Run, open_run
from workbench.values import Group, Task, View
from workbench.values.address import Address
from workbench.values.errors import DataError
from workbench.values.stats import (
    Difference,
    Estimate,
    clustered_difference,
    paired_difference,
    share,
)
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
ORDER = ("random", "untrained", "trained", "solver")  # of policies; others come after them
Side = tuple[str, str]  # (policy, mode) of an evaluation


class KindRecord(NamedTuple):
    """The trajectories of a training step at tasks of one kind: how many, and how many of them succeeded."""

    step: int
    kind: str
    attempts: int
    won: int


@checked_methods
@dataclass(frozen=True, repr=False)
class ByKind(Shown):
    """Success by kind of task.

    name      of the run
    key       entry of a task's payload that says its kind
    training  steps in order, kinds in order of their names
    held_out  (policy, mode) -> kind -> share of each held-out task's trajectories that succeeded, in task order; the same tasks
              for all of them
    attempts  (policy, mode) -> trajectories of each held-out task
    first     kind -> where the first success in training is stored; a kind without one is not there
    """

    name: str
    key: str
    training: tuple[KindRecord, ...]
    held_out: Mapping[Side, Mapping[str, tuple[float, ...]]]
    attempts: Mapping[Side, int]
    first: Mapping[str, Address]

    @property
    def kinds(self) -> list[str]:
        """Every kind that was met, in order of their names; numbers by size."""
        met = {record.kind for record in self.training}
        for shares in self.held_out.values():
            met |= shares.keys()
        return sorted(met, key=_kind_order)

    def success(self, kind: str, policy: str = "trained", mode: str = "sampled") -> Estimate:
        """The share of the held-out tasks of a kind at which this policy succeeds, with its 95 % interval. Raises DataError
        for a side or a kind that was not evaluated."""
        return share(self._shares(kind, policy, mode), self.attempts[policy, mode])

    def difference(self, kind: str, mode: str = "sampled") -> Difference:
        """Trained minus untrained at the same held-out tasks of a kind, with its paired 95 % interval. Raises DataError."""
        before = self._shares(kind, "untrained", mode)
        after = self._shares(kind, "trained", mode)
        if self.attempts["untrained", mode] == self.attempts["trained", mode] == 1:
            return paired_difference(before, after)
        return clustered_difference(before, after, range(len(before)))

    def _shares(self, kind: str, policy: str, mode: str) -> tuple[float, ...]:
        shares = self.held_out.get((policy, mode), {})
        if kind not in shares:
            known = ", ".join(
                f"{policy} {mode} ({', '.join(kinds)})"
                for (policy, mode), kinds in self.held_out.items()
            )
            raise DataError(
                f"{self.name} was not evaluated {mode}, {policy}, at tasks of {self.key} {kind!r}; it was: "
                f"{known or 'not at all, or its attempts were not kept'}"
            )
        return shares[kind]

    def to_frame(self) -> pandas.DataFrame:
        """A row a training step and kind: step, kind, trajectories, won. Needs pandas."""
        import pandas

        return pandas.DataFrame(self.training, columns=KindRecord._fields)

    def view(self) -> View:
        """You will see the share of trajectories of each kind of task that succeeded, over training; where each kind succeeded
        first; and a table of the held-out tasks by kind, policy and mode, with 95 % intervals, and what training changed in
        pairs."""
        title = f"{self.name}: success by {self.key}"
        if not self.kinds:
            return view_from(
                doc.Heading(title), doc.Note("no committed step and no evaluation yet")
            )
        lines = tuple(_line(self, kind, number) for number, kind in enumerate(self.kinds))
        plots = (Plot("share of training trajectories that succeed", lines),)
        firsts = [_first_success(self, kind) for kind in self.kinds]
        picture = curves_picture(plots, title, f"{title}. {'; '.join(firsts)}")
        numbers = doc.numbers("success %", "95 % interval", "tasks", "Δ vs. untrained, paired")
        table = doc.Table((self.key, "policy", "mode", *numbers), list(_rows(self)))
        return view_from(
            doc.TextPart(title),
            picture if self.training else None,
            *map(doc.Note, firsts),
            doc.BlankLine(),
            table if self.held_out else doc.Note("no evaluation kept its trajectories"),
        )


def _kind_order(kind: str) -> tuple[bool, int, str]:
    number = whole_in(kind)
    return (number is None, number or 0, kind)


# ------------------------------------------------------------------------------------------------ from a run


def by_kind(run: Run | str | os.PathLike, key: str, *, most: int = MOST_STEPS) -> ByKind:
    """Success in training and on the held-out tasks, by the kind of task: what the entry `key` of its payload says
    (`run.groups(1)[0].task.payload`). Of a run with more than `most` committed steps, so many are read, evenly chosen.

    Held-out tasks: the last evaluation's policies, and the untrained one of the first where the last has none. Raises
    DataError where tasks have no such entry, StoreError for what is no run and for a damaged step."""
    run = open_run(run)
    training: list[KindRecord] = []
    first: dict[str, Address] = {}
    for step in evenly(run.steps(), most):
        trajectories: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for task, group in enumerate(run.groups(step)):
            kind = _kind(group.task, key)
            winners = [number for number, trajectory in enumerate(group) if trajectory.success]
            trajectories[kind] += len(group)
            won[kind] += len(winners)
            if winners:
                first.setdefault(kind, Address(step, task, winners[0]))
        training += [
            KindRecord(step, kind, trajectories[kind], won[kind]) for kind in sorted(trajectories)
        ]
    evaluated = _evaluated(run)
    held_out = {side: _shares_by_kind(groups, key) for side, groups in evaluated.items()}
    per_task = {side: len(groups[0]) for side, groups in evaluated.items()}
    return ByKind(run.name, key, tuple(training), held_out, per_task, first)


def _kind(task: Task, key: str) -> str:
    if key not in task.payload:
        has = ", ".join(map(repr, task.payload)) or "nothing"
        raise DataError(f"task {task.id} says no {key!r}; its payload says {has}")
    # As it is shown: a kind may be a stranger's text, and it is asked for by its name.
    return visible(task.payload[key])


def _evaluated(run: Run) -> dict[Side, Sequence[Group]]:
    """(policy, mode) -> trajectories, of the evaluations that kept some: the last one's, the untrained ones of the first."""
    reports = sorted(run.evaluations().items(), key=lambda item: item[1].get("step", 0))
    evaluated: dict[Side, Sequence[Group]] = {}
    for name, _ in reports:
        for stored_name, groups in run.evaluated(name).items():
            policy, _, mode = stored_name.rpartition("-")
            is_new = policy != "untrained" or (policy, mode) not in evaluated
            if is_new and len(groups) and all(map(_is_judged, groups)):
                evaluated[policy, mode] = groups
    return evaluated


def _is_judged(group: Group) -> bool:
    return all(trajectory.success is not None for trajectory in group)


def _shares_by_kind(groups: Sequence[Group], key: str) -> Mapping[str, tuple[float, ...]]:
    shares: dict[str, list[float]] = {}
    for group in groups:
        success = float(np.mean([bool(trajectory.success) for trajectory in group]))
        shares.setdefault(_kind(group.task, key), []).append(success)
    return {kind: tuple(values) for kind, values in sorted(shares.items())}


# ------------------------------------------------------------------------------------------------ parts of the view


def _first_success(by_kind: ByKind, kind: str) -> str:
    if kind not in by_kind.first:
        return f"{by_kind.key} {kind}: no success in training"
    return f"{by_kind.key} {kind}: first success in training at {by_kind.first[kind]}"


def _line(by_kind: ByKind, kind: str, number: int) -> Trace:
    records = [record for record in by_kind.training if record.kind == kind]
    steps = np.array([record.step for record in records], float)
    shares = np.array([record.won / record.attempts for record in records], float)
    colour = COLOURS[number % len(COLOURS)]
    dash = DASHES[number % len(DASHES)]
    return Trace(f"{by_kind.key} {kind}", steps, shares, colour, dash, marker=".")


def _side_order(side: Side) -> tuple[int, str, str]:
    policy, mode = side
    return (ORDER.index(policy) if policy in ORDER else len(ORDER), policy, mode)


def _rows(by_kind: ByKind) -> Iterator[list[str]]:
    for kind in by_kind.kinds:
        for policy, mode in sorted(by_kind.held_out, key=_side_order):
            if kind in by_kind.held_out[policy, mode]:
                rate = by_kind.success(kind, policy, mode)
                mean = f"{100 * rate.mean:.1f}"
                interval = f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"
                change = _change(by_kind, kind, policy, mode)
                yield [kind, policy, mode, mean, interval, words.number(rate.n), change]


def _change(by_kind: ByKind, kind: str, policy: str, mode: str) -> str:
    """What training changed, where the untrained policy was evaluated at the same tasks."""
    if policy != "trained" or kind not in by_kind.held_out.get(("untrained", mode), {}):
        return "—"
    change = by_kind.difference(kind, mode)
    return f"{100 * change.mean:+.1f} [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"
