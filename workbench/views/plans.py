"""An ablation before and while it runs: its arms, what it costs, what it could detect, and where every job stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.types import View
from workbench.views import doc, words
from workbench.views.html import shown
from workbench.views.looks import BOLD

MOST_LINES = 40  # of arms or jobs that are shown
Facts = Mapping[str, Any]


def show_forecast(plan: Facts) -> View:
    """You will see every arm with what it sets, then how many jobs there are, what they cost by those that are done,
    and how small a difference the plan finds four times in five (`ablation.forecast`)."""
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(plan["title"]),
                doc.BlankLine(),
                doc.Table(
                    (doc.Column("arm", look=BOLD), "sets"),
                    _cut([[_named(arm), _sets(plan, arm)] for arm in plan["arms"]]),
                ),
                doc.BlankLine(),
                *map(doc.Note, forecast_lines(plan)),
            )
        )
    )


def _named(arm: Facts) -> str:
    """By its name, as a plan writes it, and its label where that is another one."""
    return arm["name"] if arm["label"] == arm["name"] else f"{arm['name']}: {arm['label']}"


def _sets(plan: Facts, arm: Facts) -> str:
    own = {key: value for key, value in arm["set"].items() if plan["all"].get(key) != value}
    said = ", ".join(f"{key} = {value}" for key, value in own.items())
    return ("inert, not run: " if arm["inert"] else "") + "; ".join(
        filter(None, (arm["base"], said))
    ).replace("|", "/")


def _cut(rows: list[list[str]]) -> list[list[str]]:
    rows = [[cell.replace("|", "/") for cell in row] for row in rows]
    more = len(rows) - MOST_LINES
    return (
        rows
        if more <= 0
        else [*rows[:MOST_LINES], [f"and {more} more", *("" for _ in rows[0][1:])]]
    )


def forecast_lines(plan: Facts) -> list[str]:
    """What stands below the arms, in words."""
    cost = plan["cost"]
    lines = [
        f"{plan['tally']}; seeds {', '.join(map(str, plan['seeds']))}; by {plan['notebook'] or 'a training run'}"
    ]
    if plan["all"]:
        lines.append(
            "for all " + ", ".join(f"{key} = {value}" for key, value in plan["all"].items())
        )
    lines.append(
        "cost: not known before one job is done; a pilot (--pilot) does the first"
        if cost is None
        else f"cost: {cost['each']:.1f} CPU-seconds a job, by {words.count(cost['of'], 'job')} that "
        f"{'is' if cost['of'] == 1 else 'are'} done; {cost['left']:,.0f} for the {plan['left']} that are left"
    )
    lines += filter(None, (plan["tuning"], plan["speaks"]))
    if plan["margin"] is None:
        return [*lines, "nothing will be called higher or lower: no [analysis] was declared"]
    lines.append(
        f"{words.count(plan['compare'], 'comparison')} judged together, margin {plan['margin']:g}, looks after "
        f"{', '.join(map(str, plan['looks']))} {plan['rows']}; "
        + ("with controls" if plan["controls"] else "no controls")
    )
    return lines + [
        f"finds {one['difference']:.1f} four times in five, {one['if']}" for one in plan["detect"]
    ]


def show_jobs(said: str, rows: Sequence[Sequence[str]]) -> View:
    """You will see how many jobs stand where, and one line for each that is not simply done or waiting: job, state,
    why."""
    return shown(
        doc.ViewDocument(
            (
                doc.Note(said),
                *(
                    (
                        doc.BlankLine(),
                        doc.Table(
                            (doc.Column("job", look=BOLD), "state", "why"),
                            _cut([list(row) for row in rows]),
                        ),
                    )
                    if rows
                    else ()
                ),
            )
        )
    )
