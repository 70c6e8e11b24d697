"""What playing an environment brought to light: findings with the way to mend them, what play earns, what a step costs.

show_env_check(report)      `report`: what `workbench.envs.checks.check_family` gave
"""

from __future__ import annotations

from typing import Any

from workbench.types import View
from workbench.views import doc
from workbench.views.html import shown
from workbench.views.lint import answer_row
from workbench.views.looks import BOLD
from workbench.views.words import count

MOST_WAYS = 6  # ways to play that a terminal lists


def show_env_check(report: Any) -> View:
    """You will see whether an error was found; what random play, the solver, the empty answer and fixed answers earn, with
    95 % intervals ("none known" where there is none); and one row a check, with what it saw and how to mend it."""
    counts = report.findings.counts()
    verdict = (
        f"{count(counts['errors'], 'error')}, {count(counts['notes'], 'note')}; {count(counts['passed'], 'check')} passed, "
        f"{counts['not_checked']} not checked"
    )
    ways = doc.Table(
        (
            "played by",
            doc.Column("success", number=True),
            doc.Column("return", number=True),
            doc.Column("turns", number=True),
            doc.Column("attempts", number=True),
        ),
        _ways(report),
    )
    answers = doc.Table(
        (doc.Column("check", look=BOLD), "answer", "what it looks for, and what it found"),
        list(map(answer_row, report.findings)),
    )
    line = doc.Note(verdict) if report.ok else doc.WarningLine(verdict)
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(report.findings.about),
                line,
                doc.Note(_costs(report)),
                doc.BlankLine(),
                ways,
                doc.BlankLine(),
                doc.TextPart("\n".join(report.findings.text.splitlines()[1:-1])),
                doc.PagePart((answers,)),
            )
        )
    )


def _ways(report: Any) -> list[tuple[str, ...]]:
    rows = [
        (
            each.policy,
            _interval(each.success, percent=True),
            _interval(each.reward),
            f"{each.turns:.1f}",
            str(each.attempts),
        )
        for each in report.earned
    ]
    own = len([each for each in report.earned if each.policy in ("random", "solver")])
    return [
        *((name, words, words, "", "") for name, words in (report.baselines or {}).items()),
        *rows[: own + MOST_WAYS],
    ]


def _interval(estimate: Any, percent: bool = False) -> str:
    if estimate is None:
        return "not known"
    low, high = (
        (f"{value:.0%}" if percent else f"{value:.2f}") for value in (estimate.low, estimate.high)
    )
    return f"{f'{estimate.mean:.0%}' if percent else f'{estimate.mean:.3g}'} [{low}, {high}]"


def _costs(report: Any) -> str:
    different, tasks = report.problems
    said = f"{different} different problems among {count(tasks, 'task')}"
    if report.cost is not None:
        said += (
            f"; a step takes {1000 * report.cost.step_s:.2f} ms ({1000 * report.cost.longest_s:.2f} at most), a reset "
            f"{1000 * report.cost.reset_s:.2f} ms"
        )
        if report.cost.peak_bytes is not None:
            said += f", an attempt {report.cost.peak_bytes / 1e6:.2f} MB"
    return said
