"""Do the processes that train together still hold the same weights? (R32)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from workbench.basics.findings import Checked, Finding, Place, RuleResult
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule


def check_replicas(evidence: Evidence) -> Iterator[RuleResult]:
    """One digest a process, of all its weights after the updates of a step."""
    held = evidence.replicas
    yield Checked(len(held))
    usual, count = Counter(held).most_common(1)[0]
    if count < len(held):
        others = [rank for rank, digest in enumerate(held) if digest != usual]
        yield Finding(
            f"of {len(held)} processes {len(others)} hold other weights than process {held.index(usual)} does "
            f"(process {', '.join(map(str, others))})",
            Place(step=evidence.step),
            count=len(others),
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R32",
        "processes that train together hold the same weights",
        "a gradient was not exchanged, so each process learns from its own share and drifts away: the engine samples from "
        "one of them, the loss and the metrics are of all.",
        "call the model through the wrapper that exchanges gradients, also for a head or a fused loss of its own, and exchange "
        "with the last micro-batch.",
        ("replicas",),
        check_replicas,
        "ranks",
    ),
)
