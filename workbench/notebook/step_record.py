"""A committed step as the navigator reads it: groups, credit tables, what was kept, and where the findings of its lint lie."""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from workbench.notebook.stored import kept_attempts
from workbench.run.store import Run
from workbench.types import CreditTable, Groups
from workbench.types.address import Address
from workbench.types.findings import Finding
from workbench.views.tokens import credit_of


@dataclass(frozen=True, eq=False)
class StepRecord:
    """A committed step. `tables`: what reads the credit table of each update. `kept`: as `kept_attempts` says. `findings`:
    (rule, finding, where it is) of its lint."""

    step: int
    groups: Groups
    tables: Sequence[Callable[[], CreditTable]]
    kept: Sequence[tuple[bool | None, ...]] | None
    findings: Sequence[tuple[str, Finding, Address | None]]
    _read: dict[int, CreditTable] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Run, step: int) -> StepRecord:
        groups = run.groups(step)
        tables = [partial(run.credit, step, update) for update in run.updates(step)]
        return cls(step, groups, tables, kept_attempts(run, step, groups), _findings(run, step, groups))

    def table(self, update: int) -> CreditTable:
        if update not in self._read:
            self._read[update] = self.tables[update]()
        return self._read[update]

    def number(self, task: int, attempt: int) -> int:
        """Of an attempt, counted over all groups: what the table calls its trajectory."""
        return sum(map(len, self.groups[:task])) + attempt

    def update(self, task: int, attempt: int) -> int:
        """The first update that trained this attempt; 0 where none did."""
        number = self.number(task, attempt)
        if not self.kept or self.kept[task][attempt] is not True:
            return 0
        return next((update for update in range(len(self.tables)) if "used" not in (table := self.table(update)).columns
                     or bool((table["used"] & (table["trajectory"] == number)).any())), 0)

    def credit(self, task: int, attempt: int) -> Mapping[str, np.ndarray] | None:
        """The rows of one attempt in what that update used, None where the step made none."""
        return credit_of(self.table(self.update(task, attempt)), self.number(task, attempt)) if self.tables else None


def _findings(run: Run, step: int, groups: Groups) -> list[tuple[str, Finding, Address | None]]:
    report = run.lint(step)
    if report is None:
        return []
    where = {f"{t.task.id}/{t.attempt}": (task, number) for task, group in enumerate(groups) for number, t in enumerate(group)}
    return [(answer.rule, finding, _place(finding, step, where, groups)) for answer in report.answers for finding in answer.findings]


def _place(finding: Finding, step: int, where: Mapping[str, tuple[int, int]], groups: Groups) -> Address | None:
    """The address of what a finding points at; None where it concerns the whole step."""
    place = finding.place
    if place.trajectory not in where:
        return None
    task, attempt = where[place.trajectory]
    segments = groups[task][attempt].segments
    token = None
    if place.position is not None and place.segment is not None and place.segment < len(segments):
        token = sum(map(len, segments[:place.segment])) + place.position
    return Address(step, task, attempt, place.turn, token)
