"""The view of a value by its type, for values of packages that know no pictures: `functools.singledispatch`.

A value of this package has a method `view` instead. Here are the types that need no tensor library; `cells/session_views.py`
adds those of an open session.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any

from workbench.basics.findings import LintReport
from workbench.look.groups import group_view
from workbench.look.lint import lint_view
from workbench.look.markup import Page
from workbench.look.tokens import ids_view
from workbench.look.trajectory import trajectory_view
from workbench.look.values import (
    credit_table_view,
    groups_view,
    observation_view,
    task_view,
    turn_view,
)
from workbench.values import (
    CreditTable,
    Group,
    Groups,
    Observation,
    Segment,
    Task,
    Trajectory,
    Turn,
    View,
)
from workbench.values.errors import DataError


@singledispatch
def view_of(value: Any) -> View:
    """The view of a value; its options are keyword arguments of the function for its type. Raises DataError where there is
    none for it."""
    builtin = (object, list, tuple)
    known = ", ".join(sorted(cls.__name__ for cls in view_of.registry if cls not in builtin))
    raise DataError(
        f"wb.show has no view of a {type(value).__name__} ({value!r:.60}). It shows {known}, lists of "
        "groups and of scores, what has a method `view`, and the path of a run"
    )


@view_of.register(View)
def _page_of(view: View) -> Page:
    """A view that somebody made by hand, as one that can be saved."""
    return view if isinstance(view, Page) else Page(view.html, view.text, view.picture)


view_of.register(Group, group_view)
view_of.register(Groups, groups_view)
view_of.register(Trajectory, trajectory_view)
view_of.register(Turn, turn_view)
view_of.register(Task, task_view)
view_of.register(Observation, observation_view)
view_of.register(Segment, ids_view)
view_of.register(CreditTable, credit_table_view)
view_of.register(LintReport, lint_view)


def has_view(value: Any) -> bool:
    """Whether a function is registered for the type of this value."""
    return view_of.dispatch(type(value)) is not view_of.dispatch(object)
