"""What the solver says, in its own words and in harmless variations of them (E19)."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.basics.findings import NotChecked, RuleResult
from workbench.extensions.inspect_tasks.by_form import check_by_form
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.words import spoken


def check_solver_words(given: CheckInput) -> Iterator[RuleResult]:
    """They are paid; by way of a policy's tokenizer, template and stop tokens where one is named."""
    yield from spoken(given.family, given.tasks, given.way, budget_s=given.budget_s)
    yield from check_by_form(given)
    if given.way.chat is None:
        yield NotChecked(
            "a policy (--policy), whose tokenizer, template and stop tokens words go through",
            "words on their way",
        )
