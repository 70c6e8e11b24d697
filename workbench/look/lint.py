"""What the lint said: every rule's answer, and the tokens that the findings point at, marked where they stand."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.basics.findings import (
    ERROR,
    FOUND,
    NOT_CHECKED,
    PARTLY,
    PASSED,
    TOLD,
    Answer,
    Finding,
    LintReport,
)
from workbench.look import doc
from workbench.look.html import view_from
from workbench.look.looks import BOLD, CARD, Look
from workbench.look.tokens import KINDS, TokenTexts, ids_as_texts, kinds_of
from workbench.values import Trajectory, View

AROUND = 8  # tokens drawn on each side of those that a finding points at
LONGEST = 40  # tokens drawn of those it points at
MARKS = {
    PASSED: ("✓", "#00734f"),
    PARTLY: ("½", "#5a6775"),
    NOT_CHECKED: ("–", "#5a6775"),
    ERROR: ("✗", "#b2182b"),
    "note": ("!", "#b84a00"),
}
EDGE = f"1px solid {CARD}"
POINTED_AT = Look("#b2182b", "#ffffff", right=EDGE)  # tokens that a finding points at


def lint_view(
    report: LintReport,
    trajectories: Sequence[Trajectory] = (),
    token_texts: TokenTexts | None = None,
    *,
    max_findings: int = 4,
) -> View:
    """One row a rule: passed, not checked or partly checked (what was, what was not, and which evidence was missing), or
    what it found, where, what that means for training and how to fix it. Under it, for the first findings that point at tokens, these tokens in their place.

    You will see the tokens that a finding is about in white on red, between ▶ and ◀; the colours of their neighbours
    say who wrote them, as in `show_tokens`. `trajectories` are those that were looked at, in the order of the batch.
    """
    parts: list[doc.Part] = []
    for answer in report.answers:
        for finding in answer.findings:
            if len(parts) < 2 * max_findings and _is_drawable(finding, trajectories):
                trajectory = trajectories[finding.place.index]
                parts.append(doc.Note(f"{answer.rule} at {finding.place}: {finding.what}"))
                parts.append(_tokens(finding, trajectory, token_texts or ids_as_texts))
    table = doc.Table(
        (doc.Column("rule", look=BOLD), "answer", "what it looks for, and what it found"),
        [answer_row(answer) for answer in report.answers],
    )
    return view_from(
        doc.TextPart(report.text),
        doc.PagePart(
            (
                doc.Heading(report.about or "lint"),
                doc.Note(report.verdict) if report.ok else doc.WarningLine(report.verdict),
                table,
            )
        ),
        *parts,
    )


def answer_row(answer: Answer) -> list[str | doc.Cell]:
    status = "note" if answer.status == FOUND else answer.status
    if answer.errors:
        status = ERROR
    mark, colour = MARKS[status]
    parts: list[doc.Part | doc.Inline] = [answer.title]
    for finding in answer.findings[:TOLD]:
        parts.append(
            doc.Section(
                (
                    doc.Note(
                        (
                            doc.Styled(f"{finding.severity} ", BOLD),
                            f"{finding.place}: {finding.what}",
                        )
                    ),
                ),
                inset=True,
            )
        )
    if answer.untold:
        parts.append(doc.Note(f"and {answer.untold} more"))
    if answer.findings:
        parts += [doc.Note(f"It means: {answer.means}"), doc.Note(f"Fix: {answer.mend}")]
    if answer.gaps:
        parts.append(doc.Note(answer.gaps))
    return [
        answer.rule,
        doc.Cell("", parts=(doc.Badge(f"{mark} {status}", colour),)),
        doc.Cell("", parts=tuple(parts)),
    ]


def _is_drawable(finding: Finding, trajectories: Sequence[Trajectory]) -> bool:
    place = finding.place
    if place.index is None or place.position is None or not 0 <= place.index < len(trajectories):
        return False
    trajectory = trajectories[place.index]
    named = f"{trajectory.task.id}/{trajectory.attempt}"
    segment = place.segment or 0
    return (
        place.trajectory in (None, named)
        and segment < len(trajectory.segments)
        and place.position < len(trajectory.segments[segment])
    )


def _tokens(finding: Finding, trajectory: Trajectory, token_texts: TokenTexts) -> doc.TokenLine:
    """The tokens around a place, those of the finding marked."""
    place = finding.place
    segment = trajectory.segments[place.segment or 0]
    begin = place.position
    end = min(len(segment), place.position + min(max(1, place.length), LONGEST))
    low = max(0, begin - AROUND)
    high = min(len(segment), end + AROUND)
    drawn = []
    for at, (text, kind) in enumerate(
        zip(token_texts(segment.token_ids[low:high].tolist()), kinds_of(segment)[low:]), start=low
    ):
        look = KINDS[kind]
        marked = f"{'▶' * (at == begin)}{text}{'◀' * (at == end - 1)}"
        colours = (
            POINTED_AT if begin <= at < end else Look(look.background, look.foreground, right=EDGE)
        )
        drawn.append(doc.Styled(marked, colours, title=f"token {at}: {look.meaning}"))
    return doc.TokenLine(
        "     ", tuple(drawn), before="… " if low else "", after=" …" if high < len(segment) else ""
    )
