"""What each rule was worth: lead, misses, false alarms. Pure functions over plain values.

    collapsed   half of the initial success on the probe set was lost at some evaluation, with an interval that excludes 0: the event
    healthy     that never happened, and at the end neither mode lies clearly below its start
    neither     the rest: counted and left out

A collapse is caught where the first alarm comes a step or more before the event's evaluation. Thresholds are the ones that
catch most of the choosing runs with at most one false alarm in twenty there; the judging runs are looked at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from experiments.collapse.plan import Job
from experiments.collapse.published import PUBLISHED, scores_of
from experiments.collapse.rules import SINGLE, largest
from workbench.basics.evenly import evenly
from workbench.extensions.collapse.alarms import PAIRS, AlarmRule, paired_rule
from workbench.extensions.collapse.signals import RunSignals
from workbench.values.stats import wilson_interval

FALSE = 0.05  # of a half's healthy runs, at most
CAUGHT = 0.8  # of the judged half's collapses, at least, for an alarm that may be on by default
CANDIDATES = 12  # thresholds of a sign that are tried in a pair
NEVER = float("-inf")


@dataclass(frozen=True)
class Course:
    """A run of the bench, what became of it, and at which step the probe set said so."""

    job: Job
    found: RunSignals
    label: str
    event: int | None

    @classmethod
    def of(cls, job: Job, found: RunSignals) -> Course:
        fell = found.fallen()
        if fell is not None:
            return cls(job, found, "collapsed", fell.step)
        last = max((probe.step for probe in found.probes), default=0)
        below = any(probe.high < 0 for probe in found.probes if probe.step == last)
        return cls(job, found, "neither" if below or not last else "healthy", None)

    def scored(self, rule: AlarmRule) -> list[tuple[int, float]]:
        """(step, score) where there is one; of a collapse only the steps before the event."""
        pairs = zip(self.found.steps, rule.scores(self.found.steps), strict=True)
        return [
            (each.step, score)
            for each, score in pairs
            if score is not None and (self.event is None or each.step < self.event)
        ]

    def peak(self, rule: AlarmRule) -> float:
        return max((score for _, score in self.scored(rule)), default=NEVER)

    def alarm(self, rule: AlarmRule, threshold: float) -> int | None:
        """The first step at which the rule is beyond the threshold."""
        return next((step for step, score in self.scored(rule) if score >= threshold), None)


def split(
    courses: Sequence[Course], chooses: bool, kind: str = ""
) -> tuple[list[Course], list[Course]]:
    """Collapsed (of one kind, if said) and healthy runs of a half."""
    half = [course for course in courses if course.job.chooses == chooses]
    return (
        [
            course
            for course in half
            if course.label == "collapsed" and kind in ("", course.job.kind)
        ],
        [course for course in half if course.label == "healthy"],
    )


def choose(rule: AlarmRule, ill: Sequence[Course], healthy: Sequence[Course]) -> float | None:
    """The threshold that catches most with at most `FALSE` false alarms: halfway down to the next healthy peak. None
    where none catches any."""
    sick, well = [course.peak(rule) for course in ill], [course.peak(rule) for course in healthy]
    allowed = sorted(
        {
            peak
            for peak in sick
            if peak > NEVER and sum(other >= peak for other in well) <= FALSE * len(well)
        }
    )
    if not allowed:
        return None
    below = max((peak for peak in well if NEVER < peak < allowed[0]), default=allowed[0])
    return (allowed[0] + below) / 2


def choose_pair(
    kind: str, ill: Sequence[Course], healthy: Sequence[Course]
) -> tuple[float, float] | None:
    """Thresholds of the two signs of a kind, by the same rule; of several that are as good, the one in the middle."""
    best, most = [], 0
    grids = [_candidates(rule, ill) for rule in PAIRS[kind]]
    for pair in ((first, second) for first in grids[0] for second in grids[1]):
        rule = paired_rule(kind, pair)
        if sum(course.peak(rule) >= 1 for course in healthy) > FALSE * len(healthy):
            continue
        caught = sum(course.peak(rule) >= 1 for course in ill)
        if caught >= max(most, 1):
            best = [*best, pair] if caught == most else [pair]
            most = caught
    return best[len(best) // 2] if best else None


def _candidates(rule: AlarmRule, ill: Sequence[Course]) -> list[float]:
    """Scores that the ill runs had, evenly chosen, those above zero."""
    scores = sorted({score for course in ill for _, score in course.scored(rule) if score > 0})
    return evenly(scores, CANDIDATES)


def judged(rule: AlarmRule, threshold: float | None, courses: Sequence[Course]) -> dict[str, Any]:
    """How a rule did on both halves: caught with a lead, leads, false alarms."""
    row: dict[str, Any] = {"rule": rule.name, "names": rule.names, "threshold": threshold}
    for half, chooses in (("chosen", True), ("judged", False)):
        ill, healthy = split(courses, chooses)
        alarms = [None if threshold is None else course.alarm(rule, threshold) for course in ill]
        leads = [
            course.event - alarm
            for course, alarm in zip(ill, alarms, strict=True)
            if alarm is not None
        ]
        false = sum(
            threshold is not None and course.alarm(rule, threshold) is not None
            for course in healthy
        )
        by_kind: dict[str, list[int]] = {}
        for course, alarm in zip(ill, alarms, strict=True):
            counts = by_kind.setdefault(course.job.kind, [0, 0])
            counts[0] += alarm is not None
            counts[1] += 1
        row[half] = {
            "caught": len(leads),
            "collapses": len(ill),
            "by_kind": by_kind,
            "caught_interval": wilson_interval(len(leads), len(ill)),
            "leads": sorted(leads),
            "lead": median(leads) if leads else None,
            "false": false,
            "healthy": len(healthy),
            "false_interval": wilson_interval(false, len(healthy)),
        }
    return row


def meets_goal(row: Mapping[str, Any]) -> bool:
    """Whether a row of the table catches enough of the judged collapses with few enough false alarms."""
    half = row["judged"]
    return (
        bool(half["collapses"])
        and half["caught"] >= CAUGHT * half["collapses"]
        and half["false"] <= FALSE * half["healthy"]
    )


def area(rule: AlarmRule, ill: Sequence[Course], healthy: Sequence[Course]) -> float | None:
    """Area under the ROC over thresholds: the chance that a collapse peaks higher, before its event, than a healthy run does."""
    pairs = [(sick.peak(rule), well.peak(rule)) for sick in ill for well in healthy]
    return sum((a > b) + (a == b) / 2 for a, b in pairs) / len(pairs) if pairs else None


def roc(rule: AlarmRule, ill: Sequence[Course], healthy: Sequence[Course]) -> list[list[int]]:
    """(healthy runs with a false alarm, collapses caught) from the highest threshold to the lowest."""
    sick, well = [course.peak(rule) for course in ill], [course.peak(rule) for course in healthy]
    points = [
        [0, 0],
        *(
            [sum(peak >= limit for peak in well), sum(peak >= limit for peak in sick)]
            for limit in sorted({*sick, *well} - {NEVER}, reverse=True)
        ),
    ]
    return [point for at, point in enumerate(points) if point not in points[:at]]


def table(courses: Sequence[Course]) -> list[dict[str, Any]]:
    """A row a rule: single signs, the published ones, pairs, and the pairs together."""
    ill, healthy = split(courses, True)
    measured = [rule for rule in SINGLE if any(course.scored(rule) for course in courses)]
    rows = [(rule, choose(rule, ill, healthy)) for rule in measured]
    rows += [(AlarmRule(name, scores_of(alarm)), 1.0) for name, alarm in PUBLISHED.items()]
    chosen = {kind: choose_pair(kind, *split(courses, True, kind)) for kind in PAIRS}
    pairs = [
        paired_rule(kind, thresholds)
        for kind, thresholds in chosen.items()
        if thresholds is not None
    ]
    rows += [(rule, 1.0) for rule in pairs]
    if pairs:
        rows.append((AlarmRule("any of these pairs", largest(pairs)), 1.0))
    curves = split(courses, False)
    found = [
        judged(rule, threshold, courses)
        | {"area": area(rule, *curves), "roc": roc(rule, *curves)}
        | ({"thresholds": chosen[rule.names]} if rule.names else {})
        for rule, threshold in rows
    ]
    if pairs:
        found[-1]["named"] = named(pairs, curves[0])
    return found


def named(pairs: Sequence[AlarmRule], ill: Sequence[Course]) -> Mapping[str, int]:
    """Of the judged collapses that were caught: how many were called by the right kind, by the pair that spoke first."""
    right = caught = 0
    for course in ill:
        spoke = [
            (alarm, rule.names) for rule in pairs if (alarm := course.alarm(rule, 1.0)) is not None
        ]
        caught += bool(spoke)
        right += bool(spoke) and course.job.kind in {
            name for alarm, name in spoke if alarm == min(spoke)[0]
        }
    return {"right": right, "caught": caught}
