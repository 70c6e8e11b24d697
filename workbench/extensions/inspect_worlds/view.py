"""What playing an environment brought to light: findings and how to fix them, what play earns, what a step costs.

env_check_view(report)      `report`: what `workbench.extensions.inspect_worlds.checks.check_family` gave
"""

from __future__ import annotations

from typing import Any

from workbench.look import doc
from workbench.look.html import shown
from workbench.look.lint import answer_row
from workbench.look.looks import BOLD
from workbench.look.words import count
from workbench.values import View

MOST_WAYS = 6  # ways to play that a terminal lists


def env_check_view(report: Any) -> View:
    """You will see whether an error was found; what random play, the solver, the empty answer and fixed answers earn, with
    95 % intervals ("none known" where there is none); and one row a check, with what it saw and how to fix it."""
    verdict = report.findings.verdict
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
            estimate.policy,
            _interval(estimate.success, percent=True),
            _interval(estimate.reward),
            f"{estimate.turns:.1f}",
            str(estimate.attempts),
        )
        for estimate in report.earned
    ]
    own = len([estimate for estimate in report.earned if estimate.policy in ("random", "solver")])
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
    sentence = f"{different} different problems among {count(tasks, 'task')}"
    if report.cost is not None:
        sentence += (
            f"; a step takes {1000 * report.cost.step_s:.2f} ms ({1000 * report.cost.longest_s:.2f} at most), a reset "
            f"{1000 * report.cost.reset_s:.2f} ms"
        )
        if report.cost.peak_bytes is not None:
            sentence += f", a trajectory {report.cost.peak_bytes / 1e6:.2f} MB"
    return sentence
