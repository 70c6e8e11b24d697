"""The lint as an instrument of training: rules before the first update of a step, after the last, and over the run.

    train_step(session, step, instruments=[TrainingLint()])

It asks the session for its configuration, chat format, engine, policy and learner, and changes none of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Protocol

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import Answer, Finding, LintReport, together
from workbench.engines.recorder import Journal
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.linting.drawn import drawn_trajectories
from workbench.linting.evidence import Evidence, RunClaims, StepFacts, Update
from workbench.linting.rule import WORDS, check
from workbench.linting.runs import facts_of_step, step_facts
from workbench.linting.surviving import rounded, some_of
from workbench.linting.table import all_rules, lint_evidence
from workbench.values import Group
from workbench.values.errors import LintError

if TYPE_CHECKING:
    from workbench.learn.update_report import UpdateReport
    from workbench.run.store import Run

BEFORE = ("step",)
AFTER = ("update",)
REMEMBERED = 50  # steps that a new one is compared with


class LintedSession(Protocol):
    """The parts of an open session that the lint reads."""

    config: Any
    chat: Any
    engine: Any
    learner: Any
    policy: Any
    place: tuple[int, int]  # rank, number of processes


class TrainingLint:
    """Asks the rules at every step; remembers the last steps. `mode` and what is asked come from `config.lint`."""

    def __init__(self) -> None:
        self.history: deque[StepFacts] = deque(maxlen=REMEMBERED)

    def resume(self, run: Run) -> None:
        """Remember the last steps of a run that goes on."""
        self.history.extend(step_facts(run, last=REMEMBERED))

    def begin(self, session: LintedSession, step: int, *, start: bool) -> LintWatch:
        return LintWatch(session, step, start, self.history)


class LintWatch:
    """The lint's part of one new step: what it said before the updates is joined with what it says after them."""

    def __init__(
        self, session: LintedSession, step: int, start: bool, history: deque[StepFacts]
    ) -> None:
        self.session = session
        self.step = step
        self.start = start
        self.history = history
        self.engine = Journal(session.engine)

    def before(self, groups: Sequence[Group], batch: Batch, credit: Credit) -> None:
        """Raises LintError where it finds an error, and `config.lint.mode` is "assert"."""
        self.version = self.session.learner.version
        # What is stored with a step does not depend on where a run was interrupted, so only step 1 holds what is asked
        # once; a process that goes on with a run asks it again, and only says what it finds.
        again = self.start and self.step != 1

        def asked(start: bool) -> LintReport:
            return before_updates(
                self.session,
                self.step,
                groups,
                batch,
                credit,
                self.engine,
                start=start,
                sampled_by=self._version_before()
                if self.session.config.train.staleness
                else self.version,
            )

        self.found = asked(self.start and not again)
        self.weights = _some_of(self.session)
        if has_service("remember_step"):
            service("remember_step", "R23")(self.session, self.step, self.engine.exchanges)
        if self.session.config.lint.mode != "assert":
            return
        for report in (self.found, asked(True)) if again else (self.found,):
            raise_errors(report, "so nothing was learned from this step")

    def _version_before(self) -> int | None:
        """The version of the weights that the step before the last left; None: not known."""
        left = {facts.step: facts.metrics.get("policy_version") for facts in self.history}
        return left.get(self.step - 2, None if self.step > 2 else 0)

    def after(
        self,
        groups: Sequence[Group],
        batch: Batch,
        credit: Credit,
        reports: Sequence[UpdateReport],
        metrics: Mapping[str, Any],
    ) -> LintReport:
        updates = after_updates(
            self.session, self.step, groups, batch, credit, reports, before=self.weights
        )
        facts, run = after_the_step(
            self.session, self.step, groups, metrics, self.history, self.version
        )
        self.history.append(facts)
        return together([self.found, updates, run])

    def judge(self, report: LintReport) -> None:
        if self.session.config.lint.mode == "assert":
            raise_errors(
                report,
                "after the updates that they are about were made, so the step is not committed",
            )


def raise_errors(report: LintReport, consequence: str = "so nothing is learned from this") -> None:
    """Raise LintError where the report has an error; `consequence` says what that means for whoever asked."""
    if report.ok:
        return
    lines = []
    for answer in report.answers:
        if answer.errors:
            first = answer.errors[0]
            more = len(answer.errors) - 1 + answer.further_errors
            lines.append(
                f"{answer.rule} ({answer.title}): {first.place}: {first.what}"
                + (f"; and {more} more" if more else "")
                + f". It means: {answer.means} Fix: {answer.mend}"
            )
    error = LintError(f"the lint found errors, {consequence}:\n" + "\n".join(lines))
    error.report = report
    raise error


def before_updates(
    session: LintedSession,
    step: int,
    groups: Sequence[Group],
    batch: Batch,
    credit: Credit,
    journal: Journal | None,
    *,
    start: bool,
    sampled_by: int | None,
) -> LintReport:
    """Ask the rules of a step before its first update, which was to be `sampled_by` that version of the weights. With
    `start` also what is asked once: whether settings act, the learner's gradient, isolated environments. Every process calls
    it and gets the same answer."""
    rank, world = session.place
    evidence = step_evidence(
        session,
        step,
        groups,
        batch=batch,
        credit=credit,
        policy_version=sampled_by,
        delivery=getattr(session.engine, "delivery", None),
        handed=session.learner.handed,
        drawn=_drawn(session, step),
    )
    exchanges = None if journal is None else journal.exchanges
    asked = list(BEFORE)
    if start and session.config.lint.start:
        asked.append("start")
        evidence = replace(evidence, probe=probe_of_session(session), samples=None)
    if evidence.delivery is not None or evidence.handed is not None:
        asked.append("sync")
    if world == 1:
        return lint_evidence(replace(evidence, journal=exchanges), asked)
    # What needs no journal is the same for all; the journal of each process knows the trajectories of that process.
    report = _merged_over_processes(lint_evidence(evidence, asked), world)
    local = replace(step_evidence(session, step, groups[rank::world]), journal=exchanges)
    return _with_journals(report, evidence, local, world)


def _with_journals(
    report: LintReport, whole: Evidence, local: Evidence, processes: int
) -> LintReport:
    """The report with what rules say that need a journal: each process asks them of its own trajectories (`local`)."""
    import torch.distributed as dist

    rules = [
        all_rules()[answer.rule]
        for answer in report.answers
        if any(WORDS["journal"] in words for words in answer.missing)
    ]
    parts: list[Any] = [None] * processes
    dist.all_gather_object(parts, check(local, rules).as_dict() if local.groups else None)
    names = {f"{t.task.id}/{t.attempt}": n for n, t in enumerate(whole.trajectories)}
    reports = [LintReport.from_dict(part) for part in parts if part is not None]
    shared = _by_rule(together([_renumbered(part, names) for part in reports]))
    answers = [
        merged_answer(answer, shared[answer.rule]) if answer.rule in shared else answer
        for answer in report.answers
    ]
    return LintReport(tuple(answers), report.about)


def _drawn(session: LintedSession, step: int) -> tuple[str, ...]:
    config = session.config
    train = session.config.train
    chosen = (
        session.train_tasks(step) if config.sampling.tasks != "fresh" else ()
    )  # by the trajectories before it
    return drawn_trajectories(
        config.env,
        step,
        seed=config.seed,
        tasks_per_step=train.tasks_per_step,
        group_size=train.group_size,
        chosen=chosen,
    )


def _merged_over_processes(report: LintReport, processes: int) -> LintReport:
    """With what any other process found: an environment that answers somebody else may show itself to one of them alone, and
    one that ended its run by itself would be waited for."""
    import torch.distributed as dist

    parts: list[Any] = [None] * processes
    dist.all_gather_object(parts, report.as_dict())
    by_rank = [_by_rule(LintReport.from_dict(part)) for part in parts]
    answers = []
    for answer in report.answers:
        findings: dict[Finding, None] = {}
        for known in by_rank:
            findings |= dict.fromkeys(known[answer.rule].findings)
        answers.append(replace(answer, findings=tuple(findings)))
    return LintReport(tuple(answers), report.about)


def _by_rule(report: LintReport) -> dict[str, Answer]:
    return {answer.rule: answer for answer in report.answers}


def merged_answer(whole: Answer, parts: Answer) -> Answer:
    """A rule's answers to two kinds of evidence: what was found by either, what was missing to both."""
    new = tuple(finding for finding in parts.findings if finding not in whole.findings)
    [both] = together([LintReport((whole,)), LintReport((replace(parts, findings=new),))])
    return replace(
        both,
        missing=tuple(words for words in whole.missing if words in parts.missing),
    )


def _renumbered(report: LintReport, names: Mapping[str, int]) -> LintReport:
    """With the numbers that trajectories have in the whole batch; each process counted its own."""

    def moved(finding: Finding) -> Finding:
        return replace(
            finding, place=replace(finding.place, index=names.get(finding.place.trajectory or ""))
        )

    return LintReport(
        tuple(
            replace(answer, findings=tuple(map(moved, answer.findings)))
            for answer in report.answers
        ),
        report.about,
    )


def after_updates(
    session: LintedSession,
    step: int,
    groups: Sequence[Group],
    batch: Batch,
    credit: Credit,
    reports: Iterable[UpdateReport],
    before: Mapping[str, Any] | None = None,
) -> LintReport:
    """Ask the rules of updates after those of a step: is each of them what its table says? `before`: some weights as they were."""
    updates = tuple(Update(report.table, report.metrics, report.skipped) for report in reports)
    made = (
        rounded(before, _some_of(session), session.config.engine.dtype)
        if before is not None
        else None
    )
    evidence = step_evidence(
        session,
        step,
        groups,
        batch=batch,
        credit=credit,
        updates=updates,
        replicas=_replicas(session),
        rounded=made if made is not None and made.changed else None,
        handed=session.learner.handed,
    )
    return lint_evidence(evidence, AFTER if session.place[1] == 1 else (*AFTER, "ranks"))


def _some_of(session: LintedSession) -> dict[str, Any] | None:
    """Some of the weights that learn, where the engine samples in another dtype than theirs. Every process calls it."""
    if getattr(session.config.engine, "dtype", "float32") == "float32":
        return None
    return some_of(session.learner.weights())


def _replicas(session: LintedSession) -> tuple[str, ...]:
    """A digest of the weights of each process, its critic's among them; none of a single one, and none where each holds a
    part."""
    import torch.distributed as dist

    from workbench.engines.digests import digests

    if session.place[1] == 1 or session.config.learner.sharding == "full":
        return ()
    by_rank: list[str] = [""] * session.place[1]
    critic = session.learner.models.critic
    held = session.learner.weights() | (
        {}
        if critic is None
        else {f"critic.{n}": p for n, p in critic.weights.module.named_parameters()}
    )
    own = "".join(sorted(digests(held).values()))
    dist.all_gather_object(by_rank, blake2b(own.encode(), digest_size=8).hexdigest())
    return tuple(by_rank)


def after_the_step(
    session: LintedSession,
    step: int,
    groups: Sequence[Group],
    metrics: Mapping[str, Any],
    history: Sequence[StepFacts],
    version: int,
) -> tuple[StepFacts, LintReport]:
    """The facts to remember of a step, and how it follows on those before: every batch once, versions in order.
    `version`: of the weights that the step began with."""
    config = session.config.learner
    staleness = session.config.train.staleness
    facts = facts_of_step(
        step,
        groups,
        metrics,
        lr=config.lr,
        warmup=config.warmup_updates,
        staleness=staleness,
        slowed=len(session.learner.updates.slowed),
        restored=version in session.learner.updates.restored,
    )
    if (
        not history and version
    ):  # a session that was trained before, by somebody who keeps no history
        return facts, LintReport(())
    claims = RunClaims(session.config.train.steps)
    report = lint_evidence(Evidence(steps=(*history, facts), claims=claims, step=step), ("run",))
    # What is wrong between earlier steps was said when they were made.
    kept = []
    for answer in report.answers:
        findings = tuple(f for f in answer.findings if f.place.step in (step, None))
        kept.append(replace(answer, findings=findings, further=0, further_errors=0))
    return facts, LintReport(tuple(kept), report.about)


def step_evidence(
    session: LintedSession, step: int, groups: Sequence[Group], **more: Any
) -> Evidence:
    return Evidence(
        tuple(tuple(group) for group in groups),
        tuple(group.greedy for group in groups),
        step=step,
        samples=session.config.lint.samples,
        **given_by(session) | more,
    )


def given_by(session: LintedSession | None) -> dict[str, Any]:
    if session is None:
        return {}
    config = session.config
    return {
        "chat": session.chat,
        "collect": config.collect,
        "algorithm": config.algorithm,
        "family": config.family,
        "precision": config.learner.precision,
        "staleness": config.train.staleness,
        "context_length": getattr(session.engine, "context_length", None),
        "session": session,
    }


def probe_of_session(session: LintedSession) -> Any:
    from workbench.linting.probe import probe_of

    config = session.config
    return probe_of(session.policy.model, config.algorithm, config.learner, config.critic)
