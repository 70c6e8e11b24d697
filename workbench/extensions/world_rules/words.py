"""Are the solver's words, written by this policy, paid, and wrong ones not? (R39)

Asked once, before a run's first step: a tokenizer, a template, a stop set or a reader of answers that do not fit each
other let nothing be paid, and curves show a policy that cannot learn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from workbench.basics.findings import ERROR, NOTE, LintReport, RuleResult, answered, heard_out
from workbench.chat import ChatFormat
from workbench.extensions.scripted_play.words import TextPath, spoken
from workbench.linting.evidence import Evidence
from workbench.linting.in_training import raise_errors
from workbench.linting.rule import FAILED, Rule
from workbench.values import Task

if TYPE_CHECKING:
    from workbench.training.session import Session

# What was asked before a run's first step need not be played again for the summary of that step: by chat format,
# (family, settings of collecting, results).
_asked: WeakKeyDictionary[ChatFormat, tuple[Any, Any, tuple[RuleResult, ...]]] = WeakKeyDictionary()


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    tasks = [group[0].task for group in evidence.groups if group]
    way = TextPath(evidence.chat, evidence.collect)
    # Rollouts that are there were sampled within their limit.
    yield from _results(evidence.family, tasks, way, too_long=NOTE)


def _results(
    family: Any, tasks: Sequence[Task], way: TextPath, too_long: str = ERROR
) -> Sequence[RuleResult]:
    known = _asked.get(way.chat)
    if known is not None and known[0] is family and known[1] == way.collect:
        return known[2]
    results = tuple(spoken(family, tasks, way, unpaid_variation=NOTE, too_long=too_long))
    _asked[way.chat] = (family, way.collect, results)
    return results


def words_report(session: Session) -> LintReport:
    """What is found of the solver's words in an open session; nothing is sampled."""
    config = session.config
    evidence_tasks = session.train_tasks(1)
    way = TextPath(session.chat, config.collect)
    rule = RULES[0]

    def check(_: None) -> Sequence[RuleResult]:
        return _results(config.family, evidence_tasks, way)

    results = heard_out(check, None, FAILED)
    return LintReport((answered(rule.id, rule.title, results, (), rule.means, rule.mend),))


def ask_before_training(session: Session, note: Callable[[str], None] | None) -> None:
    """Raise LintError before a run's first step where the solver's words are not paid, or wrong ones are; with lint.mode =
    "warn", and for variations that the world need not accept, `note` is told instead. Nothing is asked without lint.start."""
    lint = session.config.lint
    if lint.mode == "off" or not lint.start:
        return
    report = words_report(session)
    if lint.mode == "assert":
        raise_errors(report, "so no step was begun")
    for answer in report.answers:
        for finding in answer.findings if note is not None else ():
            word = "error" if finding.severity == ERROR else "note"
            note(f"{answer.rule}, {word}: {finding.what}")


RULES: tuple[Rule, ...] = (
    Rule(
        "R39",
        "the solver's words, written by this policy, are paid, and wrong ones are not",
        means="What the policy writes is not what the world reads, or the world pays for anything: whatever is learned, it "
        "is not the task.",
        mend="Read what the world was handed: a tokenizer that alters words, a stop token inside an answer, a tag that the "
        "prompt has written already, a reader that wants the text to the letter, a reward that compares nothing.",
        needs=("groups", "family", "chat", "collect"),
        check=_check,
        when="start",
    ),
)
