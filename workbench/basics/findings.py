"""The result of a check: passed, found, partly checked or not checked; a finding points at a token and says what it means.

Standard library only, so that the summary in a run folder can be read and shown on any laptop.

    LintReport ── answers    one per rule: passed | found | partly checked | not checked, with the evidence that is missing
                    └─ findings   error or note, with a place (trajectory, segment, turn, tokens), its meaning, its fix
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain
from typing import Any

from workbench.basics.canonical_json import plain
from workbench.values.errors import MissingPackageError, where_raised
from workbench.values.view import HasView, Shown, View, own_view

ERROR = "error"
NOTE = "note"
PASSED = "passed"
FOUND = "found"
PARTLY = "partly checked"
NOT_CHECKED = "not checked"
SHOWN = 12  # findings of one rule that a report keeps; the rest are counted
TOLD = 4  # ... and that its text lists; `as_dict` has all that are kept


@dataclass(frozen=True)
class Place:
    """The place of a finding. None: it concerns all of that kind."""

    trajectory: str | None = None  # "task id/attempt"
    index: int | None = None  # of the trajectory in the batch [N]
    segment: int | None = None  # within the trajectory
    turn: int | None = None  # within the trajectory
    position: int | None = None  # of the first token, within the segment
    length: int = 1  # tokens from there
    step: int | None = None  # of the run
    update: int | None = None  # of the step
    address: str | None = None  # as `wb.explore(run, at=...)` and `workbench show RUN --at` take it

    def __str__(self) -> str:
        if self.address is None:
            parts = self._named("step", "update")
        else:  # it names the step
            parts = [self.address, *self._named("update")]
        parts += self._named("trajectory", "segment", "turn")
        if self.position is not None:
            last = self.position + self.length - 1
            one = self.length == 1
            parts.append(f"token {last}" if one else f"tokens {self.position}..{last}")
        return ", ".join(parts) or "everywhere"

    def _named(self, *names: str) -> list[str]:
        """`name value` of those that are known."""
        values = {name: getattr(self, name) for name in names}
        return [f"{name} {value}" for name, value in values.items() if value is not None]


@dataclass(frozen=True)
class Finding:
    """One problem that a rule found."""

    what: str  # the problem, with its numbers
    place: Place = Place()
    severity: str = ERROR  # training does something else than it claims; NOTE: it may
    count: int = 1  # tokens, rows or settings that it stands for


@dataclass(frozen=True)
class Checked:
    """How many things a rule checked. A rule that checked nothing has not passed."""

    count: int
    part: str = ""  # of the rule, where it has several


@dataclass(frozen=True)
class NotChecked:
    """A rule, or a part of it, that could not be checked."""

    missing: str  # the evidence
    part: str = ""  # of the rule, that needs it

    def __str__(self) -> str:
        return f"{self.part} (missing: {self.missing})" if self.part else self.missing


RuleResult = Finding | Checked | NotChecked  # a rule yields any number of these


@dataclass(frozen=True)
class Answer:
    """The results of one rule."""

    rule: str
    title: str
    findings: tuple[Finding, ...] = ()
    further: int = 0  # findings beyond those kept
    further_errors: int = 0  # ... of which errors
    looked: int = 0  # things that were checked
    missing: tuple[str, ...] = ()  # what was not checked, and the evidence that it needs
    means: str = ""  # what a finding means for training
    mend: str = ""  # how to fix it
    checked: tuple[str, ...] = ()  # parts of the rule, where some of it was not

    @property
    def status(self) -> str:
        """Name the answer: something was found; all of it, a part or nothing of the rule was checked."""
        if self.findings:
            return FOUND
        if not self.looked:
            return NOT_CHECKED
        return PARTLY if self.missing else PASSED

    @property
    def gaps(self) -> str:
        """What was checked and what was not, and why, where that is not all of the rule; "" elsewhere."""
        if not self.missing:
            return ""
        words = "; ".join(self.missing)
        if self.status == NOT_CHECKED:
            return f"missing: {words}"
        return f"checked: {'; '.join(self.checked) or 'all else'}; not checked: {words}"

    @property
    def untold(self) -> int:
        """Findings beyond those that the text lists."""
        return self.further + max(0, len(self.findings) - TOLD)

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == ERROR)

    @property
    def notes(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.severity == NOTE)


@dataclass(frozen=True, repr=False)
class LintReport(Shown):
    """The answers of all rules, in the order of the rules."""

    answers: tuple[Answer, ...]
    about: str = ""  # what was checked

    @property
    def ok(self) -> bool:
        """No error. What was not checked is no error: `answers` say which evidence was missing."""
        return not any(answer.errors for answer in self.answers)

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """(rule, finding) of every error that was kept."""
        return tuple(self._kept(ERROR))

    @property
    def notes(self) -> tuple[tuple[str, Finding], ...]:
        """(rule, finding) of every note that was kept."""
        return tuple(self._kept(NOTE))

    def _kept(self, severity: str) -> Iterator[tuple[str, Finding]]:
        for answer in self.answers:
            for finding in answer.findings:
                if finding.severity == severity:
                    yield answer.rule, finding

    @property
    def named(self) -> tuple[str, ...]:
        """The rules with an error, in order."""
        return tuple(answer.rule for answer in self.answers if answer.errors)

    def __getitem__(self, rule: str) -> Answer:
        for answer in self.answers:
            if answer.rule == rule:
                return answer
        there = ", ".join(answer.rule for answer in self.answers)
        raise KeyError(f"no answer of rule {rule!r} in this report; it has {there}")

    def __iter__(self) -> Iterator[Answer]:
        return iter(self.answers)

    def counts(self) -> dict[str, int]:
        """Count findings by severity ("errors", "notes") and rules by status ("passed", "found", "partly_checked",
        "not_checked")."""
        statuses = (PASSED, FOUND, PARTLY, NOT_CHECKED)
        counts = dict.fromkeys(("errors", "notes", *map(_key, statuses)), 0)
        for answer in self.answers:
            counts["errors"] += len(answer.errors) + answer.further_errors
            counts["notes"] += len(answer.notes) + answer.further - answer.further_errors
            counts[_key(answer.status)] += 1
        return counts

    @property
    def verdict(self) -> str:
        """The counts in a line."""
        counts = self.counts()
        return (
            f"{_many(counts['errors'], 'error')}, {_many(counts['notes'], 'note')}; {counts['passed']} passed, "
            f"{counts['found']} found, {counts['partly_checked']} partly checked, {counts['not_checked']} not checked"
        )

    @property
    def unchecked(self) -> list[str]:
        """A sentence for the rules that were not checked and one for those that were in part, each with what it lacked."""
        sentences = []
        for status in (NOT_CHECKED, PARTLY):
            rules = [
                f"{answer.rule} [{'; '.join(answer.missing) or 'there was nothing to check'}]"
                for answer in self.answers
                if answer.status == status
                or status == PARTLY
                and answer.findings
                and answer.missing
            ]
            sentences += [f"{status}: {', '.join(rules)}"] if rules else []
        return sentences

    @property
    def text(self) -> str:
        """One line a rule; under it its findings, what they mean and how to fix them."""
        lines = [self.about] if self.about else []
        for answer in self.answers:
            lines += _answer_lines(answer)
        return "\n".join([*lines, self.verdict])

    def __str__(self) -> str:
        return self.text

    def as_dict(self) -> dict[str, Any]:
        """JSON values; `from_dict` reads them back."""
        content = {
            "about": self.about,
            "counts": self.counts(),
            "answers": [_answer_to_dict(answer) for answer in self.answers],
        }
        return plain(content, "a report of the lint")

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> LintReport:
        answers = tuple(map(_answer_from_dict, value["answers"]))
        return cls(answers, value.get("about", ""))


class HasReport(HasView):
    """A value about a report, which says what the report says."""

    report: LintReport

    @property
    def ok(self) -> bool:
        """No error; notes are none."""
        return self.report.ok

    @property
    def named(self) -> tuple[str, ...]:
        """The rules with an error."""
        return self.report.named

    @property
    def errors(self) -> tuple[tuple[str, Finding], ...]:
        """(rule, finding) of every error that was kept."""
        return self.report.errors

    @property
    def text(self) -> str:
        return self.report.text

    def view(self) -> View:
        return own_view(self.report)


def heard_out(
    check: Callable[[Any], Iterable[RuleResult]], given: Any, failed: str
) -> list[RuleResult]:
    """Run a check and return all that it yields. Where it raises, a note that begins with `failed` follows what it had
    yielded: checks call environments and algorithms of the user's own, and a check that breaks must not end the run."""
    results: list[RuleResult] = []
    try:
        results.extend(check(given))  # keeps what came before it raised
    except MissingPackageError as error:
        results.append(NotChecked(str(error)))
    except Exception as error:
        words = f"{failed}: {type(error).__name__}: {error} ({where_raised(error)})"
        results.append(Finding(words, severity=NOTE))
    return results


def answered(
    rule: str,
    title: str,
    results: Sequence[RuleResult],
    missing: Sequence[str],
    means: str,
    mend: str,
) -> Answer:
    """Make the answer of a rule of all that it yielded; `missing`: evidence without which it was not even run."""
    looked = [result for result in results if isinstance(result, Checked) and result.count]
    findings = [result for result in results if isinstance(result, Finding)]
    kept, further, further_errors = _worst(findings)
    in_part = bool(looked or findings)
    not_checked = [
        str(result) if in_part else result.missing
        for result in results
        if isinstance(result, NotChecked)
    ]
    return Answer(
        rule,
        title,
        kept,
        further,
        further_errors,
        sum(result.count for result in looked),
        tuple(dict.fromkeys([*missing, *not_checked])),
        means,
        mend,
        tuple(dict.fromkeys(result.part for result in looked if result.part)),
    )


def _worst(findings: Iterable[Finding]) -> tuple[tuple[Finding, ...], int, int]:
    """(the findings that a report keeps, errors first; how many it does not; how many of those are errors)."""
    ordered = sorted(findings, key=lambda finding: finding.severity != ERROR)
    left = ordered[SHOWN:]
    errors = sum(finding.severity == ERROR for finding in left)
    return tuple(ordered[:SHOWN]), len(left), errors


def together(reports: Sequence[LintReport], about: str = "") -> LintReport:
    """Join reports about different parts (steps, say): per rule all findings, in order."""
    answers: dict[str, list[Answer]] = {}
    for report in reports:
        for answer in report.answers:
            answers.setdefault(answer.rule, []).append(answer)
    return LintReport(tuple(map(_joined, answers.values())), about)


def _joined(answers: Sequence[Answer]) -> Answer:
    """One answer of several of the same rule."""
    kept, further, further_errors = _worst(
        chain.from_iterable(answer.findings for answer in answers)
    )
    missing = dict.fromkeys(chain.from_iterable(answer.missing for answer in answers))
    checked = dict.fromkeys(chain.from_iterable(answer.checked for answer in answers))
    return replace(
        answers[0],
        findings=kept,
        further=further + sum(answer.further for answer in answers),
        further_errors=further_errors + sum(answer.further_errors for answer in answers),
        looked=sum(answer.looked for answer in answers),
        missing=tuple(missing),
        checked=tuple(checked),
    )


# ------------------------------------------------------------------------------------------------ to and from JSON


def _answer_to_dict(answer: Answer) -> dict[str, Any]:
    return asdict(answer) | {
        "status": answer.status,
        "findings": [_finding_to_dict(finding) for finding in answer.findings],
    }


def _answer_from_dict(row: Mapping[str, Any]) -> Answer:
    names = {field.name for field in fields(Answer)}
    known = {name: row[name] for name in row if name in names}
    known["findings"] = tuple(map(_finding_from_dict, row["findings"]))
    known["missing"] = tuple(row["missing"])
    known["checked"] = tuple(row.get("checked", ()))  # not in runs of earlier versions
    return Answer(**known)


def _finding_to_dict(finding: Finding) -> dict[str, Any]:
    place = {name: value for name, value in asdict(finding.place).items() if value is not None}
    return {
        "what": finding.what,
        "severity": finding.severity,
        "count": finding.count,
        "place": place,
    }


def _finding_from_dict(row: Mapping[str, Any]) -> Finding:
    return Finding(row["what"], Place(**row["place"]), row["severity"], row["count"])


# ------------------------------------------------------------------------------------------------ in words


def _answer_lines(answer: Answer) -> Iterator[str]:
    yield f"{answer.rule:4} {_status_word(answer):<15} {answer.title}"
    if answer.gaps:
        yield f"     {answer.gaps}"
    for finding in answer.findings[:TOLD]:
        yield f"     {finding.severity}: {finding.place}: {finding.what}"
    if answer.untold:
        yield f"     and {answer.untold} more"
    if answer.findings:
        yield f"     it means: {answer.means}"
        yield f"     fix: {answer.mend}"


def _status_word(answer: Answer) -> str:
    if answer.errors:
        return answer.status.upper()
    return NOTE if answer.findings else answer.status


def _key(status: str) -> str:
    return status.replace(" ", "_")


def _many(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
