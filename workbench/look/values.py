"""Values that have no larger view of their own: tasks, lists of groups, and tables of facts.

groups_view(groups)     a row a group
task_view(task)         what is played, without what only the environment knows being explained
facts_view("session", {"policy": "frozenlake-tiny"}, ("wb.rollout(session)",))
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from workbench.look import doc, words
from workbench.look.escape import capped
from workbench.look.html import view_from
from workbench.look.looks import BOLD, LILAC_INK, LILAC_PAPER, PLAIN, QUIET, Look
from workbench.look.records import LONGEST_VALUE, flattened
from workbench.look.trajectory import LONGEST_TEXT
from workbench.values import CreditTable, Group, Observation, Task, Turn, View, trajectories_of

MOST_GROUPS = 64


def facts_view(title: str, facts: Mapping[str, Any], calls: Sequence[str] = ()) -> View:
    """Names with what they are, a line each, and under them the calls that go on from here."""
    return view_from(
        doc.Heading(title),
        facts_parts(facts),
        doc.Note("next: " + ", ".join(calls)) if calls else None,
    )


def facts_parts(facts: Mapping[str, Any]) -> doc.Table | None:
    """The same as part of a larger view; None where there are none."""
    rows = [[name, capped(str(value), LONGEST_VALUE)] for name, value in facts.items()]
    columns = [doc.Column("", look=BOLD), doc.Column("")]
    return doc.Table(columns, rows, header=False) if rows else None


def task_view(task: Task) -> View:
    """A task: its address, and all that it hands to the environment."""
    given = {f"payload.{name}": value for name, value in flattened(task.payload).items() if name}
    about = {f"metadata.{name}": value for name, value in flattened(task.metadata).items() if name}
    return facts_view(
        f"task {words.name_of(task.id)}",
        {"environment": task.env, "seed": task.task_seed, **given, **about},
    )


def observation_view(observation: Observation) -> View:
    """The messages that an environment hands over, by role, and the tools on offer."""
    tools = [str(tool.get("function", tool).get("name", "?")) for tool in observation.tools]
    return view_from(
        doc.Heading("observation: " + words.count(len(observation.messages), "message")),
        *(
            doc.Quoted(f"{message.role:8}", message.role, capped(message.text, LONGEST_TEXT))
            for message in observation.messages
        ),
        doc.Note("tools: " + ", ".join(tools)) if tools else None,
    )


def turn_view(turn: Turn) -> View:
    """What the policy wrote in one turn, what it earned, and what came back."""
    parts = words.parts_words(turn.reward_parts)
    earned = "not scored"
    if turn.reward is not None:
        earned = f"reward {words.signed(turn.reward)}" + (f" ({parts})" if parts else "")
    return view_from(
        doc.Heading(f"turn {turn.index}"),
        doc.Quoted("output  ", "policy output", capped(turn.text, LONGEST_TEXT)),
        doc.Note(earned),
        *(
            doc.Quoted(f"{message.role:8}", message.role, capped(message.text, LONGEST_TEXT))
            for message in turn.reply
        ),
    )


def groups_view(groups: Sequence[Group], *, max_groups: int = MOST_GROUPS) -> View:
    """A row per group: success, mean reward and spread of its trajectories, the rewards themselves, turns and tokens.

    A zero-variance group (all its trajectories earned the same) is marked, with the side: a group baseline makes its
    advantages zero.
    """
    trajectories = trajectories_of(groups)
    rewards = [t.reward for t in trajectories if t.reward is not None]
    known = [t.success for t in trajectories if t.success is not None]
    flat = Counter(group.flat for group in groups if group.flat)
    sides = ", ".join(f"{number} {side}" for side, number in sorted(flat.items()))
    facts = [
        words.count(len(trajectories), "trajectory", "trajectories"),
        f"{sum(known)} of {len(known)} succeeded" if known else "success not known",
        f"mean reward {words.signed(float(np.mean(rewards)) if rewards else None)}",
        f"{flat.total()} zero-variance" + (f" ({sides})" if flat else ""),
        *(
            [f"{len(trajectories) - len(rewards)} not scored"]
            if len(rewards) < len(trajectories)
            else []
        ),
    ]
    columns = [
        doc.Column("group", True),
        doc.Column("task"),
        *doc.numbers("succeeded", "reward", "std (n - 1)"),
        doc.Column("zero variance"),
        doc.Column("rewards"),
        *doc.numbers("turns", "tokens"),
    ]
    rows = [_group_row(number, group) for number, group in enumerate(groups[:max_groups])]
    return view_from(
        doc.Heading(words.count(len(groups), "group")),
        doc.Note(" · ".join(facts)),
        doc.Table(columns, rows) if rows else None,
        doc.Note("next: wb.show(groups[0]), wb.show(groups[0][0]), groups.to_frame()")
        if rows
        else None,
        doc.first_shown(max_groups, len(groups), "groups"),
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


def credit_table_view(table: CreditTable) -> View:
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
                *words.alike((there.min(), there.mean(), there.max())),
            ]
            if len(there)
            else [name, str(column.dtype), "0", "—", "—", "—"]
        )
    columns = [
        doc.Column("column", look=BOLD),
        doc.Column("type"),
        *doc.numbers("tokens", "least", "mean", "most"),
    ]
    return view_from(
        doc.Heading(f"credit of step {table.step}, update {table.update}"),
        doc.Table(columns, rows),
    )
