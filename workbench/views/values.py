"""Values that have no larger view of their own: tasks, lists of groups, and tables of facts.

show_groups(groups)     a row a group
show_task(task)         what is played, without what only the environment knows being explained
show_facts("session", {"policy": "frozenlake-tiny"}, ("wb.rollout(session)",))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.types import CreditTable, Group, Observation, Task, Turn, View, trajectories_of
from workbench.views import doc, words
from workbench.views.escape import capped
from workbench.views.html import shown
from workbench.views.looks import BOLD, LILAC_INK, LILAC_PAPER, PLAIN, QUIET, Look
from workbench.views.records import LONGEST_VALUE, flattened
from workbench.views.trajectory import LONGEST_TEXT

MOST_GROUPS = 64


def show_facts(title: str, facts: Mapping[str, Any], calls: Sequence[str] = ()) -> View:
    """Names with what they are, a line each, and under them the calls that go on from here."""
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(title),
                *facts_parts(facts),
                doc.Note("next: " + ", ".join(calls)) if calls else None,
            )
        )
    )


def facts_parts(facts: Mapping[str, Any]) -> tuple[doc.Part, ...]:
    """The same as parts of a larger view."""
    rows = [[name, capped(str(value), LONGEST_VALUE)] for name, value in facts.items()]
    return (
        (doc.Table([doc.Column("", look=BOLD), doc.Column("")], rows, header=False),)
        if rows
        else ()
    )


def show_task(task: Task) -> View:
    """A task: its address, and all that it hands to the environment."""
    given = {f"payload.{name}": value for name, value in flattened(task.payload).items() if name}
    about = {f"metadata.{name}": value for name, value in flattened(task.metadata).items() if name}
    return show_facts(
        f"task {words.name_of(task.id)}",
        {"environment": task.env, "seed": task.task_seed, **given, **about},
    )


def show_observation(observation: Observation) -> View:
    """The messages that an environment hands over, by role, and the tools on offer."""
    tools = [str(tool.get("function", tool).get("name", "?")) for tool in observation.tools]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading("observation: " + words.count(len(observation.messages), "message")),
                *(
                    doc.Quoted(
                        f"{message.role:8}", message.role, capped(message.text, LONGEST_TEXT)
                    )
                    for message in observation.messages
                ),
                doc.Note("tools: " + ", ".join(tools)) if tools else None,
            )
        )
    )


def show_turn(turn: Turn) -> View:
    """What the policy wrote in one turn, what it earned, and what came back."""
    parts = words.parts_words(turn.reward_parts)
    earned = (
        "not scored"
        if turn.reward is None
        else f"reward {words.signed(turn.reward)}" + (f" ({parts})" if parts else "")
    )
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(f"turn {turn.index}"),
                doc.Quoted("wrote   ", "wrote", capped(turn.text, LONGEST_TEXT)),
                doc.Note(earned),
                *(
                    doc.Quoted(
                        f"{message.role:8}", message.role, capped(message.text, LONGEST_TEXT)
                    )
                    for message in turn.reply
                ),
            )
        )
    )


def show_groups(groups: Sequence[Group], *, max_groups: int = MOST_GROUPS) -> View:
    """A row per group: success, mean reward and spread of its attempts, the rewards themselves, turns and tokens.

    A group whose attempts all earned the same is marked, with the side: there a group baseline finds nothing to learn.
    """
    attempts = trajectories_of(groups)
    rewards = [t.reward for t in attempts if t.reward is not None]
    known = [t.success for t in attempts if t.success is not None]
    flat = [side for group in groups if (side := group.flat)]
    facts = [
        words.count(len(attempts), "attempt"),
        f"{sum(known)} of {len(known)} succeeded" if known else "success not known",
        f"mean reward {words.signed(float(np.mean(rewards)) if rewards else None)}",
        f"{len(flat)} flat"
        + (
            f" ({', '.join(f'{flat.count(side)} {side}' for side in sorted(set(flat)))})"
            if flat
            else ""
        ),
        *([f"{len(attempts) - len(rewards)} not scored"] if len(rewards) < len(attempts) else []),
    ]
    columns = [
        doc.Column("group", True),
        doc.Column("task"),
        *doc.numbers("succeeded", "reward", "std"),
        doc.Column("flat"),
        doc.Column("rewards"),
        *doc.numbers("turns", "tokens"),
    ]
    rows = [_group_row(number, group) for number, group in enumerate(groups[:max_groups])]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(words.count(len(groups), "group")),
                doc.Note(" · ".join(facts)),
                doc.Table(columns, rows) if rows else None,
                doc.Note("next: wb.show(groups[0]), wb.show(groups[0][0]), groups.to_frame()")
                if rows
                else None,
                doc.first_shown(max_groups, len(groups), "groups"),
            )
        )
    )


def _group_row(number: int, group: Group) -> list[str | doc.Cell]:
    scored = np.array([t.reward for t in group if t.reward is not None], float)
    known = [t.success for t in group if t.success is not None]
    side = group.flat
    return [
        str(number),
        capped(words.name_of(group.task.id), 40),
        f"{sum(known)} of {len(known)}" if known else "—",
        words.signed(float(scored.mean()) if len(scored) else None),
        words.fixed(float(scored.std(ddof=1)) if len(scored) > 1 else None),
        doc.Cell(side, Look(LILAC_PAPER, LILAC_INK) if side else PLAIN),
        doc.Cell(" ".join(words.signed(t.reward) for t in group), QUIET),
        words.fixed(float(np.mean([len(t.turns) for t in group])), 1),
        words.fixed(float(np.mean([t.num_sampled for t in group])), 0),
    ]


def show_credit_table(table: CreditTable) -> View:
    """What one update used: a row per column of the table, with how many tokens have a value and its range."""
    rows = []
    for name, column in table.columns.items():
        values = np.asarray(column, np.float64)
        there = values[np.isfinite(values)]
        rows.append(
            [
                name,
                str(column.dtype),
                f"{len(there):,}",
                *(words.number(float(value)) for value in (there.min(), there.mean(), there.max())),
            ]
            if len(there)
            else [name, str(column.dtype), "0", "—", "—", "—"]
        )
    columns = [
        doc.Column("column", look=BOLD),
        doc.Column("type"),
        *doc.numbers("tokens", "least", "mean", "most"),
    ]
    return shown(
        doc.ViewDocument(
            (
                doc.Heading(f"credit of step {table.step}, update {table.update}"),
                doc.Table(columns, rows),
            )
        )
    )
