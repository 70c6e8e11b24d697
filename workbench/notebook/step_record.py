"""A committed step as the navigator reads it: groups, credit tables, what was kept, and where the findings of its lint lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from workbench.notebook.stored import kept_attempts
from workbench.run.store import Run
from workbench.types import CreditTable, Group, Groups
from workbench.types.address import Address
from workbench.types.errors import StoreError
from workbench.types.findings import ERROR, Finding, LintReport
from workbench.views.escape import visible
from workbench.views.tokens import credit_of

PREVIEW = 160  # characters of an attempt's last turn in the table


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
        first = tables[0]() if tables else None
        return cls(
            step,
            groups,
            tables,
            kept_attempts(first, groups),
            _findings(run, step, groups),
            {} if first is None else {0: first},
        )

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
        return next(
            (
                update
                for update in range(len(self.tables))
                if "used" not in (table := self.table(update)).columns
                or bool((table["used"] & (table["trajectory"] == number)).any())
            ),
            0,
        )

    def credit(self, task: int, attempt: int) -> Mapping[str, np.ndarray] | None:
        """The rows of one attempt in what that update used, None where the step made none. Raises StoreError where it has
        not one for each token."""
        if not self.tables:
            return None
        rows = credit_of(self.table(self.update(task, attempt)), self.number(task, attempt))
        have, tokens = (
            len(next(iter(rows.values()), ())),
            sum(map(len, self.groups[task][attempt].segments)),
        )
        if have != tokens:
            raise StoreError(
                f"step {self.step}: a credit table has {have} rows for an attempt of {tokens} tokens; restore the "
                "run from a copy"
            )
        return rows


def _findings(run: Run, step: int, groups: Groups) -> list[tuple[str, Finding, Address | None]]:
    report = run.lint(step)
    if report is None:
        return []
    where = _numbers(groups)
    return [
        (answer.rule, finding, _place(finding, step, where, groups))
        for answer in report.answers
        for finding in answer.findings
    ]


def addressed(report: LintReport, step: int, groups: Groups) -> LintReport:
    """The same report, each finding with its address in the run."""
    where = _numbers(groups)

    def of(finding: Finding) -> Finding:
        at = _place(finding, step, where, groups)
        return (
            finding
            if at is None
            else replace(finding, place=replace(finding.place, address=str(at)))
        )

    return LintReport(
        tuple(replace(answer, findings=tuple(map(of, answer.findings))) for answer in report),
        report.about,
    )


def _numbers(groups: Groups) -> dict[str, tuple[int, int]]:
    """What a finding calls a trajectory -> (task, attempt)."""
    return {
        f"{t.task.id}/{t.attempt}": (task, number)
        for task, group in enumerate(groups)
        for number, t in enumerate(group)
    }


def _place(
    finding: Finding, step: int, where: Mapping[str, tuple[int, int]], groups: Groups
) -> Address | None:
    """The address of what a finding points at; None where it concerns the whole step."""
    place = finding.place
    if place.trajectory not in where:
        return None
    task, attempt = where[place.trajectory]
    segments = groups[task][attempt].segments
    token = None
    if place.position is not None and place.segment is not None and place.segment < len(segments):
        token = sum(map(len, segments[: place.segment])) + place.position
    return Address(step, task, attempt, place.turn, token)


# ------------------------------------------------------------------------------------------------ as JSON values


def group_row(facts: StepRecord, task: int) -> dict[str, Any]:
    group = facts.groups[task]
    known = [t.success for t in group if t.success is not None]
    marks = () if facts.kept is None else facts.kept[task]
    return {
        "task": task,
        "name": visible(group.task.id),
        "attempts": len(group),
        **spread_of(group),
        "succeeded": sum(known) if known else None,
        "flat": group.flat,
        "kept": None if not marks or set(marks) == {None} else True in marks,
        "rewards": [t.reward for t in group],
    }


def trained_by_author(facts: StepRecord) -> list[int] | None:
    """[tokens with a weight, those of them that the policy did not sample there]; None where no update was made."""
    if not facts.tables:
        return None
    weighs = facts.table(0)["weight"] != 0
    return [int(weighs.sum()), int((weighs & ~facts.table(0)["eligible"]).sum())]


def removed_by_filter(facts: StepRecord) -> dict[str, Any] | None:
    """What the filter left out of the update: None where it left nothing out, or there was none."""
    out = [
        (attempt, task)
        for task, (group, marks) in enumerate(zip(facts.groups, facts.kept or ()))
        for attempt, kept in zip(group, marks)
        if kept is False
    ]
    if not out:
        return None
    whole = [
        task for task, marks in enumerate(facts.kept or ()) if False in marks and True not in marks
    ]
    return {
        "attempts": len(out),
        "tokens": sum(attempt.num_sampled for attempt, _ in out),
        "groups": whole,
        "succeeded": sum(bool(attempt.success) for attempt, _ in out),
        "mean": float(np.mean([attempt.reward for attempt, _ in out])),
        "sides": [facts.groups[task].flat or "not flat" for task in whole],
    }


def attempt_row(facts: StepRecord, task: int, number: int) -> dict[str, Any]:
    attempt = facts.groups[task][number]
    last = attempt.turns[-1].text if attempt.turns else ""
    return {
        "task": task,
        "attempt": number,
        "reward": attempt.reward,
        "success": attempt.success,
        "stop": attempt.stop_reason.value,
        "turns": len(attempt.turns),
        "tokens": attempt.num_sampled,
        "surprise": attempt.surprise,
        "kept": None if facts.kept is None else facts.kept[task][number],
        "findings": sum(
            at is not None and (at.task, at.attempt) == (task, number)
            for _, _, at in facts.findings
        ),
        "last": visible(last[:PREVIEW], newline=" "),
    }


def finding_row(rule: str, finding: Finding, at: Address | None) -> dict[str, Any]:
    return {
        "rule": rule,
        "severity": finding.severity,
        "what": visible(finding.what),
        "error": finding.severity == ERROR,
        "at": "" if at is None else str(at),
    }


def spread_of(group: Group) -> dict[str, Any]:
    scored = [t.reward for t in group if t.reward is not None]
    return {
        "mean": float(np.mean(scored)) if scored else None,
        "std": float(np.std(scored, ddof=1)) if len(scored) > 1 else None,
        "scored": len(scored),
    }
