"""An ablation before and while it runs: its arms, what it costs, what it could detect, and where every job stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from workbench.extensions.ablation.views.parts import safe_rows, table_below
from workbench.look import doc, words
from workbench.look.html import shown
from workbench.look.looks import BOLD
from workbench.values import View

MOST_LINES = 40  # of arms or jobs that are shown
Facts = Mapping[str, Any]


def show_forecast(plan: Facts) -> View:
    """You will see every arm with what it sets, then how many jobs there are, what they cost by those that are done,
    and how small a difference the plan finds with 80 % power (`ablation.forecast`)."""
    arms = [[_named(arm), _sets(plan, arm)] for arm in plan["arms"]]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(plan["title"]),
                doc.BlankLine(),
                doc.Table((doc.Column("arm", look=BOLD), "sets"), _cut(arms)),
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
    text = "; ".join(filter(None, (arm["base"], _settings(own))))
    return f"inert, not run: {text}" if arm["inert"] else text


def _settings(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} = {value}" for key, value in settings.items())


def _cut(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """The first lines, and how many there are besides."""
    more = len(rows) - MOST_LINES
    lines = safe_rows(rows[:MOST_LINES])
    if more > 0:
        lines.append([f"and {more} more", *("" for _ in rows[0][1:])])
    return lines


def forecast_lines(plan: Facts) -> list[str]:
    """What stands below the arms, in words."""
    seeds = ", ".join(map(str, plan["seeds"]))
    lines = [f"{plan['tally']}; seeds {seeds}; by {plan['notebook'] or 'a training run'}"]
    if plan["all"]:
        lines.append(f"for all {_settings(plan['all'])}")
    lines.append(_cost(plan))
    lines += filter(None, (plan["tuning"], plan["speaks"]))
    if plan["margin"] is None:
        return [*lines, "no verdicts: no [analysis] was declared"]
    compared = words.count(plan["compare"], "comparison")
    looks = ", ".join(map(str, plan["looks"]))
    controls = "with controls" if plan["controls"] else "no controls"
    lines.append(
        f"{compared} judged together, margin {plan['margin']:g}, looks after {looks} {plan['rows']}; {controls}"
    )
    return lines + [
        f"minimum detectable difference at 80 % power: {size['difference']:.1f} ({size['if']})"
        for size in plan["detect"]
    ]


def _cost(plan: Facts) -> str:
    cost = plan["cost"]
    if cost is None:
        return "cost: not known before one job is done; a pilot (--pilot) runs the first"
    done = f"{words.count(cost['of'], 'job')} that {'is' if cost['of'] == 1 else 'are'} done"
    return (
        f"cost: {cost['each']:.1f} CPU-seconds a job, by {done}; "
        f"{cost['left']:,.0f} for the {plan['left']} that are left"
    )


def show_jobs(summary: str, rows: Sequence[Sequence[str]]) -> View:
    """You will see how many jobs stand where, and one line for each that is not simply done or waiting: job, state,
    why."""
    table = table_below((doc.Column("job", look=BOLD), "state", "why"), _cut(rows))
    return shown(doc.ViewDocument((doc.Note(summary), *table)))
