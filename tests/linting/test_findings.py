"""The vocabulary of a check: a rule that looked at nothing has not passed, and nothing is lost on the way to a folder."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from workbench.basics.findings import (
    ERROR,
    FOUND,
    NOT_CHECKED,
    NOTE,
    PARTLY,
    PASSED,
    SHOWN,
    Answer,
    Checked,
    Finding,
    LintReport,
    NotChecked,
    Place,
    together,
)
from workbench.extensions.interop.raw import RawSequence
from workbench.linting import Evidence, Rule, check
from workbench.look.lint import lint_view

places = st.builds(
    Place,
    st.none() | st.text(max_size=5),
    *(st.none() | st.integers(0, 9) for _ in range(4)),
    st.integers(1, 9),
)
found = st.builds(
    Finding, st.text(max_size=8), places, st.sampled_from((ERROR, NOTE)), st.integers(1, 99)
)
answers = st.builds(
    Answer,
    st.sampled_from(("R1", "R2")),
    st.just("title"),
    st.lists(found, max_size=4).map(tuple),
    st.integers(4, 9),
    st.integers(0, 3),
    st.integers(0, 9),
    st.lists(st.text(max_size=4), max_size=2).map(tuple),
)


def rule(*said, needs=(), id="R1"):
    return Rule(id, "a rule", "means", "mend", needs, lambda evidence: iter(said))


def test_a_rule_that_looked_at_nothing_has_not_passed():
    report = check(
        Evidence(),
        [rule(), rule(Checked(0), id="R2"), rule(Checked(3), id="R3"), rule(Finding("x"), id="R4")],
    )
    assert [answer.status for answer in report] == [NOT_CHECKED, NOT_CHECKED, PASSED, FOUND]
    assert report.counts() == {
        "errors": 1,
        "notes": 0,
        "passed": 1,
        "found": 1,
        "partly_checked": 0,
        "not_checked": 2,
    }
    assert not report.ok and report.named == ("R4",)


def test_missing_evidence_is_named_and_the_rule_not_asked():
    asked = []
    wants = Rule(
        "R1", "a rule", "", "", ("journal", "groups"), lambda evidence: asked.append(1) or []
    )
    answer = check(Evidence(), [wants])["R1"]
    assert answer.status == NOT_CHECKED and not asked
    assert answer.missing == ("what the engine was asked and answered", "trajectories")


def test_a_rule_that_lacks_evidence_for_a_part_is_partly_checked():
    """Neither passed nor unchecked, and it says what was checked, what was not and why: in text, JSON, page and counts."""
    said = (Checked(2, "forks"), NotChecked("the journal", "prompts"))
    report = check(Evidence(), [rule(*said)])
    assert report["R1"].status == PARTLY and report.ok
    assert report.counts()["partly_checked"] == 1 and report.counts()["passed"] == 0
    assert "0 passed, 0 found, 1 partly checked, 0 not checked" in report.verdict
    words = "checked: forks; not checked: prompts (missing: the journal)"
    assert words in report.text and report.verdict in report.text
    view = lint_view(report)
    assert words in view.text and words in view.html and "½ partly checked" in view.html
    (row,) = report.as_dict()["answers"]
    assert row["status"] == PARTLY and row["checked"] == ["forks"]
    assert report.unchecked == ["partly checked: R1 [prompts (missing: the journal)]"]


def test_negative_controls_of_partly_checked():
    """All of it was checked; nothing of it was; something was found, and a part was not checked."""
    lacking = NotChecked("the journal", "prompts")
    report = check(
        Evidence(),
        [
            rule(Checked(2, "forks")),
            rule(Checked(0, "forks"), lacking, id="R2"),
            rule(Finding("x"), lacking, id="R3"),
        ],
    )
    assert [answer.status for answer in report] == [PASSED, NOT_CHECKED, FOUND]
    assert report["R1"].gaps == "" and report["R2"].gaps == "missing: the journal"
    assert report["R3"].gaps == "checked: all else; not checked: prompts (missing: the journal)"
    assert report.unchecked == [
        "not checked: R2 [the journal]",
        "partly checked: R3 [prompts (missing: the journal)]",
    ]


def test_parts_of_a_run_are_joined():
    """A rule that passed in one step and lacked evidence in another is partly checked in both together."""
    whole = check(Evidence(), [rule(Checked(2, "forks"))])
    part = check(Evidence(), [rule(NotChecked("the journal", "prompts"))])
    joined = together([whole, part])["R1"]
    assert joined.status == PARTLY and joined.checked == ("forks",)


def test_a_report_of_an_earlier_version_says_what_it_can():
    old = check(Evidence(), [rule(Checked(1), NotChecked("the journal"))]).as_dict()
    del old["answers"][0]["checked"]
    answer = LintReport.from_dict(old)["R1"]
    assert answer.status == PARTLY and answer.gaps == "checked: all else; not checked: the journal"


def test_sequences_of_others_are_asked_what_can_be_asked_of_them():
    wants = rule(Finding("never asked"), needs=("journal",))
    evidence = Evidence(raw=(RawSequence("a", None, 0, None, None),))
    assert check(evidence, [wants], {"R1": lambda e: [Checked(len(e.raw))]})["R1"].status == PASSED
    assert check(evidence, [wants])["R1"].status == NOT_CHECKED


def test_errors_come_first_and_what_is_too_much_is_counted():
    said = [Finding("note", severity=NOTE)] * SHOWN + [Finding("error")] * (SHOWN + 3)
    answer = check(Evidence(), [rule(*said)])["R1"]
    assert len(answer.findings) == SHOWN and all(
        finding.severity == ERROR for finding in answer.findings
    )
    assert (answer.further, answer.further_errors) == (SHOWN + 3, 3)
    assert LintReport((answer,)).counts()["errors"] == SHOWN + 3
    assert LintReport((answer,)).counts()["notes"] == SHOWN


def test_notes_are_no_errors():
    report = check(Evidence(), [rule(Finding("look", severity=NOTE))])
    assert (
        report.ok and report["R1"].status == FOUND and not report.errors and len(report.notes) == 1
    )


@given(st.lists(answers, max_size=3))
def test_a_report_comes_back_from_its_json(given_answers):
    report = LintReport(tuple(given_answers), "about")
    assert LintReport.from_dict(json.loads(json.dumps(report.as_dict()))) == report


@given(st.lists(st.lists(answers, max_size=3), max_size=4))
def test_several_reports_together_lose_no_finding(parts):
    reports = [LintReport(tuple(part)) for part in parts]
    joined = together(reports)
    for key in ("errors", "notes"):
        assert joined.counts()[key] == sum(report.counts()[key] for report in reports)
    assert [a.rule for a in joined] == list(
        dict.fromkeys(a.rule for report in reports for a in report)
    )
    assert joined.ok == all(report.ok for report in reports)


def test_a_rule_that_raises_is_told_of_and_ends_nothing():
    def ask(evidence):
        yield Finding("found before")
        raise OSError("no lake today")

    answer = check(Evidence(), [Rule("R1", "a rule", "", "", (), ask), rule(Checked(1), id="R2")])[
        "R1"
    ]
    assert [finding.what for finding in answer.errors] == ["found before"]
    assert "OSError: no lake today" in answer.notes[0].what
