"""All rules, in order. A rule of your own is one more `Rule` in the tuple that you hand to `check`."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.linting import (
    alignment,
    credit,
    delivery,
    drawn,
    evaluations,
    figures,
    gradients,
    groups,
    isolation,
    knobs,
    leaks,
    logprobs,
    noise,
    payments,
    prefixes,
    provenance,
    render,
    replayed,
    replicas,
    rewards,
    runs,
    splits,
    surviving,
    terms,
    tokens,
    tool_results,
    untrusted,
    updates,
    worlds,
    worth,
)
from workbench.linting.evidence import Evidence
from workbench.linting.raw import RAW_CHECKS
from workbench.linting.rule import Rule, check
from workbench.types.findings import LintReport

MODULES = (
    alignment,
    credit,
    delivery,
    drawn,
    evaluations,
    figures,
    gradients,
    groups,
    isolation,
    knobs,
    leaks,
    logprobs,
    noise,
    payments,
    prefixes,
    provenance,
    render,
    replayed,
    replicas,
    rewards,
    runs,
    splits,
    surviving,
    terms,
    tokens,
    tool_results,
    untrusted,
    updates,
    worlds,
    worth,
)
RULES: dict[str, Rule] = {
    rule.id: rule
    for rule in sorted(
        (rule for module in MODULES for rule in module.RULES), key=lambda rule: int(rule.id[1:])
    )
}


def lint_evidence(
    evidence: Evidence, when: Sequence[str] = ("step", "update", "start", "run")
) -> LintReport:
    """Ask all rules of these moments."""
    return check(evidence, [rule for rule in RULES.values() if rule.when in when], RAW_CHECKS)
