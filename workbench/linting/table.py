"""The core's rules, and where those of extensions are looked up. A rule of your own is one more `Rule` in the tuple that you
hand to `check`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

from workbench.basics.extensions import has_service, provided, service
from workbench.basics.findings import LintReport
from workbench.basics.plugins import load_named
from workbench.linting import (
    alignment,
    credit,
    delivery,
    drawn,
    gradients,
    groups,
    knobs,
    logprobs,
    noise,
    prefixes,
    provenance,
    render,
    replicas,
    rewards,
    runs,
    surviving,
    terms,
    tokens,
    untrusted,
    updates,
)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, check

MODULES = (
    alignment,
    credit,
    delivery,
    drawn,
    gradients,
    groups,
    knobs,
    logprobs,
    noise,
    prefixes,
    provenance,
    render,
    replicas,
    rewards,
    runs,
    surviving,
    terms,
    tokens,
    untrusted,
    updates,
)


def in_order(rules: Iterable[Rule]) -> dict[str, Rule]:
    """Rules by their id, by its number."""
    return {rule.id: rule for rule in sorted(rules, key=lambda rule: int(rule.id[1:]))}


RULES: dict[str, Rule] = in_order(chain.from_iterable(module.RULES for module in MODULES))


def extension_rules() -> tuple[Rule, ...]:
    """The rules that extensions bring; one that is not there brings none."""
    rules: list[Rule] = []
    for name, place in provided("rules").items():
        rules += load_named(place, f"the rules {name!r} of an extension")
    return tuple(rules)


@cache
def all_rules() -> dict[str, Rule]:
    """The core's rules and those of extensions, by id, in order."""
    return in_order((*RULES.values(), *extension_rules()))


def lint_evidence(
    evidence: Evidence,
    when: Sequence[str] = ("step", "update", "start", "run"),
    rules: Iterable[Rule] | None = None,
) -> LintReport:
    """Ask all rules of these moments. `rules`: those that are asked (None: the core's and those of extensions)."""
    asked = all_rules().values() if rules is None else rules
    # Rollouts of other frameworks come through the extension that reads them, and so do the checks on their arrays.
    raw_checks = service("raw_checks", "the lint of rollouts") if has_service("raw_checks") else {}
    return check(
        evidence,
        [rule for rule in asked if rule.when in when and rule.applies(evidence)],
        raw_checks,
    )
