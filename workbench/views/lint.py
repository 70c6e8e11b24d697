"""What the lint said: every rule's answer, and the tokens that the findings point at, marked where they stand."""
from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.types import Trajectory, View
from workbench.types.findings import ERROR, FINDING, NOT_CHECKED, PASSED, TOLD, Answer, Finding, LintReport
from workbench.views import markup as m
from workbench.views.escape import visible
from workbench.views.markup import Html, tag
from workbench.views.tokens import KINDS, kinds_of

TokenTexts = Callable[[Sequence[int]], list[str]]
AROUND = 24  # tokens drawn on each side of those that a finding points at
LONGEST = 40  # tokens drawn of those it points at
MARKS = {PASSED: ("✓", "#00734f"), NOT_CHECKED: ("–", "#5a6775"), ERROR: ("✗", "#b2182b"), "note": ("!", "#b84a00")}
FOUND = ("#b2182b", "#ffffff")  # background and ink of the tokens that a finding points at


def show_lint(report: LintReport, trajectories: Sequence[Trajectory] = (), token_texts: TokenTexts | None = None, *,
              max_findings: int = 4) -> View:
    """One row a rule: passed, not checked (and which evidence was missing), or what it found, where, what that means
    for training and how to mend it. Under it, for the first findings that point at tokens, these tokens in their place.

    You will see the tokens that a finding is about in white on red, between ▶ and ◀; the colours of their neighbours say
    who wrote them, as in `show_tokens`. `trajectories` are those that were looked at, in the order of the batch.
    """
    counts = report.counts()
    verdict = (f"{counts['errors']} errors, {counts['notes']} notes; {counts['passed']} rules passed, "
               f"{counts['not_checked']} not checked")
    rows = [_row(answer) for answer in report.answers]
    html: list[Html] = [m.table(rows, m.head_cells(("rule", "answer", "what it looks for, and what it found")))]
    text = [report.text]
    pointed = [(answer, finding) for answer in report.answers for finding in answer.findings
               if _is_drawable(finding, trajectories)][:max_findings]
    for answer, finding in pointed:
        drawn, line = _tokens(finding, trajectories[finding.place.index], token_texts or _numbers)
        label = f"{answer.rule} at {finding.place}: {finding.what}"
        html += [m.note(label), drawn]
        text += [visible(label), line]
    title = m.heading(report.about or "lint")
    head = m.note(verdict) if report.ok else m.warning(verdict)
    return m.finished(m.card(title, head, *html), "\n".join(text))


def _row(answer: Answer) -> list[Html]:
    status = ERROR if answer.errors else "note" if answer.status == FINDING else answer.status
    mark, colour = MARKS[status]
    said: list[object] = [tag("div", answer.title)]
    for finding in answer.findings[:TOLD]:
        said.append(tag("div", tag("b", f"{finding.severity} "), f"{finding.place}: {finding.what}",
                        style="margin:3px 0"))
    if answer.untold:
        said.append(tag("div", f"and {answer.untold} more"))
    if answer.findings:
        said += [m.note(f"It means: {answer.means}"), m.note(f"To mend it: {answer.mend}")]
    if answer.missing:
        said.append(m.note(f"missing: {'; '.join(answer.missing)}"))
    return [m.cell(answer.rule, style="font-weight:600"), m.cell(m.badge(f"{mark} {status}", colour)), m.cell(*said)]


def _is_drawable(finding: Finding, trajectories: Sequence[Trajectory]) -> bool:
    place = finding.place
    if place.index is None or place.position is None or not 0 <= place.index < len(trajectories):
        return False
    trajectory = trajectories[place.index]
    named = f"{trajectory.task.id}/{trajectory.attempt}"
    segment = place.segment or 0
    return (place.trajectory in (None, named) and segment < len(trajectory.segments)
            and place.position < len(trajectory.segments[segment]))


def _tokens(finding: Finding, trajectory: Trajectory, token_texts: TokenTexts) -> tuple[Html, str]:
    """The tokens around a place, those of the finding marked."""
    place = finding.place
    segment = trajectory.segments[place.segment or 0]
    begin, end = place.position, min(len(segment), place.position + min(max(1, place.length), LONGEST))
    low, high = max(0, begin - AROUND), min(len(segment), end + AROUND)
    texts = token_texts(segment.token_ids[low:high].tolist())
    kind_T = kinds_of(segment)[low:high]
    found_T = [begin <= low + i < end for i in range(len(texts))]
    words = [f"{'▶' * (low + i == begin)}{text}{'◀' * (low + i == end - 1)}" for i, text in enumerate(texts)]
    spans, i = [], 0
    while i < len(texts):  # neighbours of one author are one element; each token of the finding stands by itself
        stop = i + 1
        while stop < len(texts) and not found_T[i] and not found_T[stop] and kind_T[stop] == kind_T[i]:
            stop += 1
        look = KINDS[kind_T[i]]
        background, ink = FOUND if found_T[i] else (look.background, look.foreground)
        shown = "".join(words[i:stop]).replace("\n", "⏎\n")
        spans.append(tag("span", shown, title=f"token {low + i}: {look.meaning}", style=(
            f"background-color:{background};color:{ink};border-right:1px solid {m.CARD};padding:1px 0")))
        i = stop
    before, after = "… " if low else "", " …" if high < len(segment) else ""
    style = f"font-family:{m.MONO};font-size:12px;line-height:1.75;white-space:pre-wrap;overflow-wrap:break-word"
    html = tag("div", before, *spans, after, style=f"background-color:{m.CARD};color:{m.INK};{style}")
    return html, "     " + before + visible("▏".join(words), newline="⏎") + after


def _numbers(ids: Sequence[int]) -> list[str]:
    return [f"[{token_id}]" for token_id in ids]
