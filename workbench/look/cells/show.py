"""One function for looking: `show(value)` is the view of whatever a cell returned; the last line of a cell draws the same.

    wb.show(run)                                     curves with their baselines
    wb.show(run, step=3, task=2, attempt=5)          one trajectory of it, turn by turn
    wb.show(session), wb.show(groups), wb.show(groups[0][0])

A value with a method `view` says itself how it looks; of others, the function that is registered for its type does
(`look/view_of.py`), or the one that an extension names for it. The options of that function are the keyword arguments here.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from workbench.basics.extensions import provided
from workbench.basics.plugins import load_named
from workbench.look.cells.argument_checks import said_of
from workbench.look.cells.place import place_view
from workbench.look.cells.stored import evaluation_of_run_view, step_view
from workbench.look.view_of import has_view, view_of
from workbench.run.store import Run, open_run
from workbench.values import Group, Groups, Trajectory, View
from workbench.values.address import Address
from workbench.values.errors import DataError, nearest


def show(value: Any, **how: Any) -> View:
    """The view of a value that a public function returned; of a path, that of the run there.

    `how` are the options of its view: those of a run are `at`, `step`, `task`, `attempt`, `tokens`. Lists of groups and of
    scores are shown like what `rollout` and `evaluate` return. Raises DataError for what has no view, and for an option
    that its view does not have.
    """
    if isinstance(value, (str, os.PathLike)):
        value = open_run(value)
    maker = _view_maker(value)
    parameters = inspect.signature(maker).parameters.values()
    options = [
        parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY
    ]
    for option in how:
        if option not in options:
            has = nearest(option, options) if options else "it has no options"
            raise DataError(f"the view of a {type(value).__name__} has no option {option!r}; {has}")
    return view_of(maker(**how))


def _view_maker(value: Any) -> Callable[..., View]:
    """What makes the view of a value, without its options."""
    if isinstance(value, View):
        return lambda: value
    # Of an array or a tensor, `view` is the same numbers in another shape.
    view = None if hasattr(type(value), "tolist") else getattr(value, "view", None)
    if view is not None:
        return view if callable(view) else lambda: view
    if type(value) in (list, tuple):
        value = _together(value)
    if not has_view(value):
        added = said_of(value, provided("views"))
        if added:
            return partial(load_named(added, "the view"), value)
        _add_session_views()
    return partial(view_of.dispatch(type(value)), value)


def _add_session_views() -> None:
    """Register the views of a session's values. Where no tensor library is installed, there are no such values."""
    try:
        from workbench.look.cells import session_views  # noqa: F401  (it registers them)
    except ImportError:
        pass


def _together(values: Sequence[Any]) -> Any:
    """A list of groups, or of trajectories (a group each), as what shows itself; any other list as it is."""
    if values and all(isinstance(value, Group) for value in values):
        return Groups(values)
    if values and all(isinstance(value, Trajectory) for value in values):
        return Groups(Group((trajectory,)) for trajectory in values)
    return values


@view_of.register
def run_view(
    run: Run,
    *,
    step: int | None = None,
    task: int | None = None,
    attempt: int | None = None,
    tokens: bool = False,
    at: str | Address = "",
    evaluation: int | str | None = None,
) -> View:
    """A run's curves; with `step` the groups of that step, with `task` (counted from 0) one of them, with `attempt` one of
    its trajectories turn by turn, and with `tokens` that trajectory's tokens by author, with the credit that training used.
    `at` says a place in words, down to a token: "step 3 / task 2 / attempt 5 / token 812". `evaluation`: the table of the one
    after that step, or "last": every policy on the same tasks, with intervals and paired differences."""
    if evaluation is not None:
        return _evaluation(run, evaluation)
    asked = {
        "step": step is not None,
        "task": task is not None,
        "attempt": attempt is not None,
        "tokens": tokens,
    }
    given = [name for name, there in asked.items() if there]
    if at and given:
        raise DataError(f"at={str(at)!r} says it all; leave {' and '.join(given)} out")
    if step is None:
        if given:
            steps = run.steps()
            has = f"steps {steps[0]} to {steps[-1]}" if steps else "no committed step yet"
            raise DataError(f"{' and '.join(given)} of which step? Add step=...; the run has {has}")
        return place_view(run, at)
    if given == ["step"]:
        return place_view(run, Address(step))
    return step_view(run, step, task=task or 0, attempt=attempt, tokens=tokens)


def _evaluation(run: Run, evaluation: int | str) -> View:
    if evaluation == "last":
        return evaluation_of_run_view(run)
    if not isinstance(evaluation, int):
        raise DataError(
            f"evaluation={evaluation!r}: expected 'last', or the number of the step after which it was made"
        )
    return evaluation_of_run_view(run, evaluation)
