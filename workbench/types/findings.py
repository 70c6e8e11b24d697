"""What a check says: passed, not checked, or a finding that points at a token and says what it means.

Standard library only, so that the summary in a run folder can be read and shown on any laptop.

    LintReport ── answers    one per rule: passed | not checked (which evidence is missing) | finding
                    └─ findings   error or note, with a place (trajectory, segment, turn, tokens), its meaning, its cure
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from workbench.types.canonical_json import plain
from workbench.types.view import Shown

ERROR, NOTE = "error", "note"
PASSED, NOT_CHECKED, FINDING = "passed", "not checked", "finding"
SHOWN = 12  # findings of one rule that a report keeps; the rest are counted
TOLD = 4  # ... and that are told in words; `as_dict` has all that are kept


@dataclass(frozen=True)
class Place:
    """Where something is. None: it concerns all of them.

    `trajectory` is "task id/attempt"; `index` its number in the batch [N]; `segment` and `turn` are counted within the
    trajectory, `position` (and `length` tokens from there) within the segment. `step` and `update` name those of a run.
    `address` is where a stored run has it, as `wb.explore(run, at=...)` and `workbench show RUN --at` take it.
    """

    trajectory: str | None = None
    index: int | None = None
    segment: int | None = None
    turn: int | None = None
    position: int | None = None
    length: int = 1
    step: int | None = None
    update: int | None = None
    address: str | None = None

    def __str__(self) -> str:
        said = [] if self.address is None else [self.address]
        said += [
            f"{name} {getattr(self, name)}"
            for name in ("step", "update")[len(said) :]
            if getattr(self, name) is not None
        ]
        if self.trajectory is not None:
            said.append(f"trajectory {self.trajectory}")
        said += [
            f"{name} {getattr(self, name)}"
            for name in ("segment", "turn")
            if getattr(self, name) is not None
        ]
        if self.position is not None:
            last = self.position + self.length - 1
            said.append(
                f"token {self.position}" if self.length == 1 else f"tokens {self.position}..{last}"
            )
        return ", ".join(said) or "everywhere"


@dataclass(frozen=True)
class Finding:
    """One thing that a rule found. `what` says it with its numbers; `count` is how many tokens, rows or settings it
    stands for. `severity`: "error" (training is not what it is taken for) or "note" (it may be; look)."""

    what: str
    place: Place = Place()
    severity: str = ERROR
    count: int = 1


@dataclass(frozen=True)
class Checked:
    """A rule looked at so many things. One that looked at nothing has not passed."""

    count: int


@dataclass(frozen=True)
class NotChecked:
    """A part of a rule could not be checked: which evidence is missing. `decides`: it is the part that matters, so that
    the rule has not passed whatever else it looked at."""

    what: str
    decides: bool = False


RuleResult = Finding | Checked | NotChecked  # what a rule yields, as often as it likes


@dataclass(frozen=True)
class Answer:
    """What one rule said. `means` and `mend`: what a finding of it means for training, and how to mend it."""

    rule: str
    title: str
    findings: tuple[Finding, ...] = ()
    further: int = 0  # findings beyond those kept
    further_errors: int = 0  # ... of which errors
    looked: int = 0
    missing: tuple[str, ...] = ()
    means: str = ""
    mend: str = ""

    @property
    def status(self) -> str:
        """ "finding", "passed", or "not checked": nothing was there to be looked at."""
        if self.findings:
            return FINDING
        return PASSED if self.looked else NOT_CHECKED

    @property
    def untold(self) -> int:
        """Findings beyond those that are told in words."""
        return self.further + max(0, len(self.findings) - TOLD)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == NOTE)


@dataclass(frozen=True, repr=False)
class LintReport(Shown):
    """The answers of all rules, in the order of the rules. `about` names what was looked at."""

    answers: tuple[Answer, ...]
    about: str = ""

    @property
    def ok(self) -> bool:
        """No error. What was not checked is no error: `answers` say which evidence was missing."""
        return not any(answer.errors for answer in self.answers)

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """(rule, finding) of every error that was kept."""
        return tuple((answer.rule, finding) for answer in self.answers for finding in answer.errors)

    @property
    def notes(self) -> tuple[tuple[str, Finding], ...]:
        return tuple((answer.rule, finding) for answer in self.answers for finding in answer.notes)

    @property
    def named(self) -> tuple[str, ...]:
        """The rules with an error, in order."""
        return tuple(answer.rule for answer in self.answers if answer.errors)

    def __getitem__(self, rule: str) -> Answer:
        for answer in self.answers:
            if answer.rule == rule:
                return answer
        raise KeyError(
            f"no answer of rule {rule!r} in this report; it has {', '.join(a.rule for a in self.answers)}"
        )

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def counts(self) -> dict[str, int]:
        """{"errors", "notes", "passed", "not_checked"}: findings that were made, rules that answered so."""
        kept = sum(len(answer.errors) for answer in self.answers)
        return {
            "errors": kept + sum(answer.further_errors for answer in self.answers),
            "notes": sum(len(a.notes) + a.further - a.further_errors for a in self.answers),
            "passed": sum(answer.status == PASSED for answer in self.answers),
            "not_checked": sum(answer.status == NOT_CHECKED for answer in self.answers),
        }

    @property
    def text(self) -> str:
        """One line a rule; under a finding where it is, what it means and how to mend it."""
        lines = [self.about] if self.about else []
        for answer in self.answers:
            missing = f" (missing: {'; '.join(answer.missing)})" if answer.missing else ""
            lines.append(f"{answer.rule:4} {_said(answer):<12} {answer.title}{missing}")
            lines += [
                f"     {finding.severity}: {finding.place}: {finding.what}"
                for finding in answer.findings[:TOLD]
            ]
            if answer.untold:
                lines.append(f"     and {answer.untold} more")
            if answer.findings:
                lines += [f"     it means: {answer.means}", f"     to mend it: {answer.mend}"]
        counts = self.counts()
        lines.append(
            f"{_many(counts['errors'], 'error')}, {_many(counts['notes'], 'note')}; "
            f"{_many(counts['passed'], 'rule')} passed, {counts['not_checked']} not checked"
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back."""
        return plain(
            {
                "about": self.about,
                "counts": self.counts(),
                "answers": [
                    {
                        **asdict(answer),
                        "status": answer.status,
                        "missing": list(answer.missing),
                        "findings": [_finding_dict(finding) for finding in answer.findings],
                    }
                    for answer in self.answers
                ],
            },
            "a report of the lint",
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> LintReport:
        names = {field.name for field in fields(Answer)}
        answers = []
        for row in value["answers"]:
            known = {name: row[name] for name in row if name in names}
            found = tuple(
                Finding(f["what"], Place(**f["place"]), f["severity"], f["count"])
                for f in row["findings"]
            )
            answers.append(Answer(**known | {"findings": found, "missing": tuple(row["missing"])}))
        return cls(tuple(answers), value.get("about", ""))


def heard_out(
    check: Callable[[Any], Iterable[RuleResult]], given: Any, failed: str
) -> list[RuleResult]:
    """All that a check yields. One that raises is told of in a note that begins with `failed`, beside what it had
    found: checks call environments and algorithms that anybody may have written, and an instrument that breaks must not
    end what it measures."""
    results: list[RuleResult] = []
    try:
        results.extend(check(given))  # keeps what came before it raised
    except Exception as error:
        results.append(Finding(f"{failed}: {type(error).__name__}: {error}", severity=NOTE))
    return results


def answered(
    rule: str,
    title: str,
    results: Sequence[RuleResult],
    missing: Sequence[str],
    means: str,
    mend: str,
) -> Answer:
    """What a rule said by all that it yielded; `missing`: evidence that it was not even asked without."""
    not_checked = [result for result in results if isinstance(result, NotChecked)]
    checked = (
        0
        if any(each.decides for each in not_checked)
        else sum(result.count for result in results if isinstance(result, Checked))
    )
    found = sorted(
        (result for result in results if isinstance(result, Finding)),
        key=lambda f: f.severity != ERROR,
    )
    kept, left = tuple(found[:SHOWN]), found[SHOWN:]
    return Answer(
        rule,
        title,
        kept,
        len(left),
        sum(f.severity == ERROR for f in left),
        checked,
        tuple(dict.fromkeys([*missing, *(each.what for each in not_checked)])),
        means,
        mend,
    )


def together(reports: Sequence[LintReport], about: str = "") -> LintReport:
    """One report of several about different parts (steps, say): per rule all that was found, in order."""
    rules = dict.fromkeys(answer.rule for report in reports for answer in report.answers)
    return LintReport(
        tuple(_joined([a for r in reports for a in r.answers if a.rule == rule]) for rule in rules),
        about,
    )


def _joined(answers: Sequence[Answer]) -> Answer:
    found = sorted(
        (f for a in answers for f in a.findings), key=lambda finding: finding.severity != ERROR
    )
    kept, left = tuple(found[:SHOWN]), found[SHOWN:]
    return replace(
        answers[0],
        findings=kept,
        further=sum(a.further for a in answers) + len(left),
        further_errors=sum(a.further_errors for a in answers)
        + sum(f.severity == ERROR for f in left),
        looked=sum(a.looked for a in answers),
        missing=tuple(dict.fromkeys(m for a in answers for m in a.missing)),
    )


def shortened(value: Any, most: int = 60) -> str:
    """A value as Python writes it, cut."""
    words = repr(value)
    return words if len(words) <= most else words[: most - 3] + "..."


def _finding_dict(finding: Finding) -> dict[str, Any]:
    place = {name: value for name, value in asdict(finding.place).items() if value is not None}
    return {
        "what": finding.what,
        "severity": finding.severity,
        "count": finding.count,
        "place": place,
    }


def _said(answer: Answer) -> str:
    return answer.status.upper() if answer.errors else NOTE if answer.findings else answer.status


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
