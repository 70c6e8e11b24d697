"""A committed step as the navigator reads it: groups, credit tables, what was kept, and where the findings of its lint lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from workbench.basics.findings import ERROR, Finding, LintReport
from workbench.look.cells.stored import kept_trajectories
from workbench.look.escape import visible
from workbench.look.tokens import credit_of
from workbench.run.store import Run
from workbench.values import CreditTable, Group, Groups, Trajectory
from workbench.values.address import Address
from workbench.values.errors import StoreError

PREVIEW = 160  # characters of a trajectory's last turn in the table


@dataclass(frozen=True, eq=False)
class StepRecord:
    """A committed step. `tables`: what reads the credit table of each update. `kept`: as `kept_trajectories` says. `findings`:
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
            kept_trajectories(first, groups),
            _findings(run, step, groups),
            {} if first is None else {0: first},
        )

    def table(self, update: int) -> CreditTable:
        if update not in self._read:
            self._read[update] = self.tables[update]()
        return self._read[update]

    def number(self, task: int, attempt: int) -> int:
        """Of a trajectory, counted over all groups: what the table calls its trajectory."""
        return sum(map(len, self.groups[:task])) + attempt

    def update(self, task: int, attempt: int) -> int:
        """The first update that trained this trajectory; 0 where none did."""
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
        """The rows of one trajectory in what that update used, None where the step made none. Raises StoreError where it has
        not one for each token."""
        if not self.tables:
            return None
        rows = credit_of(self.table(self.update(task, attempt)), self.number(task, attempt))
        have = len(next(iter(rows.values()), ()))
        tokens = sum(map(len, self.groups[task][attempt].segments))
        if have != tokens:
            raise StoreError(
                f"step {self.step}: a credit table has {have} rows for a trajectory of {tokens} tokens; restore the "
                "run from a copy"
            )
        return rows


def _findings(run: Run, step: int, groups: Groups) -> list[tuple[str, Finding, Address | None]]:
    report = run.lint(step)
    if report is None:
        return []
    where = _numbers(groups)
    findings = []
    for answer in report.answers:
        for finding in answer.findings:
            findings.append((answer.rule, finding, _place(finding, step, where, groups)))
    return findings


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
    numbers = {}
    for task, group in enumerate(groups):
        for number, trajectory in enumerate(group):
            numbers[f"{trajectory.task.id}/{trajectory.attempt}"] = (task, number)
    return numbers


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
    out: list[Trajectory] = []
    whole = []
    for task, (group, marks) in enumerate(zip(facts.groups, facts.kept or ())):
        out += [trajectory for trajectory, kept in zip(group, marks) if kept is False]
        if False in marks and True not in marks:
            whole.append(task)
    if not out:
        return None
    return {
        "attempts": len(out),
        "tokens": sum(trajectory.num_sampled for trajectory in out),
        "groups": whole,
        "succeeded": sum(bool(trajectory.success) for trajectory in out),
        "mean": float(np.mean([trajectory.reward for trajectory in out])),
        "sides": [facts.groups[task].flat or "rewards differ" for task in whole],
    }


def trajectory_row(facts: StepRecord, task: int, number: int) -> dict[str, Any]:
    trajectory = facts.groups[task][number]
    last = trajectory.turns[-1].text if trajectory.turns else ""
    return {
        "task": task,
        "attempt": number,
        "reward": trajectory.reward,
        "success": trajectory.success,
        "stop": trajectory.stop_reason.value,
        "turns": len(trajectory.turns),
        "tokens": trajectory.num_sampled,
        "surprise": trajectory.surprise,
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
