"""What the live lint says: a rule in full the first time that it finds something, later errors in one line."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from workbench.basics.findings import Answer, Finding, LintReport


@dataclass(eq=False)
class LintMessages:
    """How often each rule has found an error and a note so far."""

    times: Counter[tuple[str, str]] = field(default_factory=Counter)

    def say(self, step: int, report: LintReport, say: Callable[[str], None]) -> None:
        """The findings of one report, in words, by `say`."""
        for answer in report.answers:
            kinds = (("error", answer.errors, answer.further_errors), ("note", answer.notes, 0))
            for kind, findings, further in kinds:
                if not findings:
                    continue
                self.times[answer.rule, kind] += 1
                if self.times[answer.rule, kind] == 1:
                    say(_in_full(answer, kind, findings, further))
                elif kind == "error":
                    say(
                        f"workbench lint: step {step}: {answer.rule} again, {len(findings) + further} errors"
                    )


def _in_full(answer: Answer, kind: str, findings: Sequence[Finding], further: int) -> str:
    lines = [f"workbench lint: {answer.rule} {kind}: {answer.title}"]
    lines += [f"  {_where(finding)}: {finding.what}" for finding in findings[:3]]
    more = len(findings) - 3 + further
    lines += [f"  and {more} more"] if more > 0 else []
    if kind == "error":
        lines += [f"  it means: {answer.means}", f"  fix: {answer.mend}"]
    return "\n".join(lines)


def _where(finding: Finding) -> str:
    place = finding.place
    words = f"step {place.step}"
    words += f", {place.trajectory}" if place.trajectory else ""
    return words if place.position is None else f"{words}, token {place.position}"
