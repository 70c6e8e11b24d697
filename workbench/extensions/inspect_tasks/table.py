"""The checks of tasks and answers by their ids; titles and remedies stand in the table of all checks, in `inspect_worlds`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from workbench.basics.findings import RuleResult
from workbench.extensions.inspect_tasks.forms import check_forms
from workbench.extensions.inspect_tasks.lenient import check_lenient
from workbench.extensions.inspect_tasks.right_ones import check_right_ones
from workbench.extensions.inspect_tasks.shown import (
    check_context,
    check_leaks,
    check_messages_said,
    check_text,
)
from workbench.extensions.inspect_tasks.tasks import check_splits, check_tasks
from workbench.extensions.inspect_tasks.words import check_solver_words
from workbench.extensions.scripted_play.given import CheckInput

TASK_CHECKS: Mapping[str, Callable[[CheckInput], Iterator[RuleResult]]] = {
    "E1": check_tasks,
    "E2": check_splits,
    "E6": check_text,
    "E7": check_messages_said,
    "E8": check_context,
    "E9": check_leaks,
    "E19": check_solver_words,
    "E27": check_lenient,
    "E30": check_forms,
    "E33": check_right_ones,
}
