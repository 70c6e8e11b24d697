"""A rule: what it looks for, which evidence it needs, what a finding means. `check` runs rules over evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from workbench.basics.findings import Answer, LintReport, RuleResult, answered, heard_out
from workbench.linting.evidence import Evidence

Check = Callable[[Evidence], Iterable[RuleResult]]

WHEN = ("step", "update", "start", "run", "ranks", "sync")


@dataclass(frozen=True)
class Rule:
    """`needs` names fields of `Evidence` without which nothing can be said.

    `when`: "step", before the first update of every step · "update", after the updates of a step · "start", once, since
    it perturbs settings or computes gradients · "run", over the committed steps of a run · "ranks", after the updates of
    several processes · "sync", before the first update, where weights were sent or put together for the engine. `threads` are reports of the bug in other frameworks, as repository#number.
    `applies`: whether there is anything of its kind; where not, it is not in the report at all.
    """

    id: str
    title: str
    means: str
    mend: str
    needs: tuple[str, ...]
    check: Check
    when: str = "step"
    threads: tuple[str, ...] = ()
    applies: Callable[[Evidence], bool] = lambda evidence: True


def check(
    evidence: Evidence, rules: Sequence[Rule], raw_checks: dict[str, Check] | None = None
) -> LintReport:
    """Ask every rule. `raw_checks` says, by rule, what can be asked of sequences of other frameworks as well."""
    return LintReport(
        tuple(_ask(rule, evidence, (raw_checks or {}).get(rule.id)) for rule in rules),
        evidence.about,
    )


def _ask(rule: Rule, evidence: Evidence, raw_check: Check | None) -> Answer:
    missing = [WORDS.get(name, name) for name in rule.needs if not evidence.has(name)]
    results: list[RuleResult] = []
    raw_only = (
        bool(evidence.raw)
        and raw_check is not None
        and not evidence.groups
        and evidence.batch is None
    )
    if (
        not missing and not raw_only
    ):  # of arrays alone, what is said of trajectories would be their absence
        results += heard_out(rule.check, evidence, FAILED)
    if evidence.raw and raw_check is not None:
        missing = []
        results += heard_out(raw_check, evidence, FAILED)
    return answered(rule.id, rule.title, results, missing, rule.means, rule.mend)


FAILED = "the rule itself failed, so this was not looked at"
WORDS = {
    "groups": "trajectories",
    "batch": "the batch" if find_spec("torch") else "the batch (needs the extra train)",
    "credit": "the credit",
    "algorithm": "the algorithm",
    "updates": "the credit tables of the updates",
    "collect": "the sampling settings",
    "chat": "the chat format"
    if find_spec("transformers")
    else "the chat format (needs the extra train)",
    "journal": "what the engine was asked and answered",
    "family": "the environment",
    "raw": "sequences",
    "environments": "the live environments",
    "policy_version": "the version of the weights",
    "probe": "a learner to try settings on",
    "steps": "the steps of a run",
    "evaluations": "evaluations of a run",
    "rounded": "an engine that samples in half precision, and weights that a step moved",
    "replicas": "a digest of the weights of each process, all of them",
    "delivery": "what became of the newest weights in the engine",
    "handed": "weights that were put together for the engine",
}
