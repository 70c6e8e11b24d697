"""The lint's door: rules over rollouts and credit, from whatever is at hand.

    wb.lint(groups, session=session)           what was just sampled
    wb.lint(batch, credit=credit, algorithm=GRPO())
    wb.lint("runs/first")                      every step of a run, and the run as a whole
    wb.lint("rollouts.jsonl")                  what another framework wrote
    wb.lint(session)                           samples a little, and tries settings and environments as well
    wb.assert_clean(groups, session=session)   the same, and LintError where it finds an error

In training the same rules are an instrument: linting/in_training.py. What evidence is missing is said rule by rule.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.basics.annotated import checked_methods
from workbench.basics.extensions import service
from workbench.basics.findings import HasReport, LintReport, together
from workbench.engines.recorder import Journal
from workbench.learn.algorithms.base import Credit, needs_greedy
from workbench.learn.batch import Batch
from workbench.linting import Evidence, Update, all_rules, lint_evidence
from workbench.linting.evidence import EvaluationFacts
from workbench.linting.in_training import (
    given_by,
    merged_answer,
    probe_of_session,
    raise_errors,
    step_evidence,
)
from workbench.linting.rule import check
from workbench.linting.runs import evaluation_facts, run_claims, step_facts
from workbench.look.cells.credit import facts_of, with_facts
from workbench.look.cells.step_record import addressed
from workbench.look.cells.stored import is_of_another_framework
from workbench.look.cells.stored import token_texts as texts_of_run
from workbench.look.words import count
from workbench.run.store import Run, open_run
from workbench.values import Group, Trajectory, View
from workbench.values.errors import (
    DataError,
    MissingPackageError,
    WorkbenchError,
    nearest,
)

if TYPE_CHECKING:
    from workbench.training.session import Session

TokenTexts = Callable[[Sequence[int]], list[str]]
# What `lint(session)` samples.
LOOK_TASKS = 2
LOOK_TRAJECTORIES = 4
# Asked of the trajectories of evaluations, too.
OF_TRAJECTORIES = (
    "R1",
    "R2",
    "R3",
    "R4",
    "R7",
    "R9",
    "R12",
    "R15",
    "R16",
    "R20",
    "R22",
    "R27",
    "R28",
    "R29",
)


@checked_methods
@dataclass(frozen=True, eq=False, repr=False)
class Linted(HasReport):
    """A report with the rollouts it is about, so that it can show the tokens. Shows itself."""

    report: LintReport
    trajectories: tuple[Trajectory, ...] = ()
    token_texts: TokenTexts | None = None

    def view(self, max_findings: int = 4) -> View:
        """The answers of all rules, and the tokens that the first findings point at, marked."""
        from workbench.look import lint_view

        return lint_view(
            self.report, self.trajectories, self.token_texts, max_findings=max_findings
        )


def lint(
    what: Any,
    *,
    session: Session | None = None,
    step: int | None = None,
    credit: Credit | None = None,
    start: bool | None = None,
    trust: bool = False,
    **evidence: Any,
) -> Linted:
    """Ask every rule about `what`: groups, a Batch, a run (folder, path), a file of rollouts that another framework
    wrote, an open session (it samples a few trajectories), or an `Evidence`.

    `session` brings the chat format, sampling settings, algorithm and environment; each can be given by name instead
    (`chat`, `collect`, `algorithm`, `family`, `journal`, `updates` ...: the fields of `linting.Evidence`). `step`: only
    this step of a run. `trust`: as in `open_run`. `start`: also the rules that try settings, gradients and environments; the default is to do so
    for a session only. Raises DataError for what is none of these.
    """
    if isinstance(what, (str, os.PathLike)):
        what = _opened(Path(what))
    if isinstance(what, Run):
        return _of_run(open_run(what, trust=trust), step, bool(start))
    if all(hasattr(what, part) for part in ("engine", "chat", "config")):
        return _of_session(what, True if start is None else start)
    given = given_by(session) | {"credit": credit, "step": step} | evidence
    made = _evidence(what, {name: value for name, value in given.items() if value is not None})
    if start and session is not None and made.probe is None:
        made = replace(made, probe=probe_of_session(session))
    when = ("step", "update", "run", *(("start",) if start or made.probe is not None else ()))
    texts = made.chat.token_texts if made.chat is not None else None
    return Linted(lint_evidence(made, when), made.trajectories, texts)


def assert_clean(what: Any, *, session: Session | None = None, **evidence: Any) -> Linted:
    """`lint`, and LintError naming the first findings where there is an error. Returns what was found otherwise."""
    linted = lint(what, session=session, **evidence)
    raise_errors(linted.report, "so this should not be learned from")
    return linted


# ------------------------------------------------------------------------------------------------ what is looked at


def _opened(path: Path) -> Any:
    """A run, or the rollouts of another framework."""
    if is_of_another_framework(path):
        return service("read_rollouts", f"reading {path}")(path)
    return open_run(path)


def _is_group(value: Any) -> bool:
    return isinstance(value, Iterable) and all(isinstance(part, Trajectory) for part in value)


def _evidence(what: Any, given: dict[str, Any]) -> Evidence:
    known = [field.name for field in fields(Evidence)]
    if unknown := given.keys() - set(known):
        raise DataError(f"lint takes no {min(unknown)}; {nearest(min(unknown), known)}")
    if isinstance(what, Evidence):
        return replace(what, **given)
    if isinstance(what, Batch):
        return Evidence(
            batch=what, **{"about": f"a batch of {what.num_trajectories} trajectories"} | given
        )
    if hasattr(what, "sequences") and hasattr(what, "framework"):  # imported.Imported
        # The arrays alone: trajectories made of them take the mask for provenance and equal prompts for a group, so
        # the rules for our own would pass what nobody told.
        return Evidence(raw=what.sequences, **{"about": what.about} | given)
    if isinstance(what, Trajectory):
        what = [(what,)]
    if isinstance(what, Group):
        what = [what]
    if not isinstance(what, Sequence) or not all(map(_is_group, what)):
        raise DataError(
            "lint looks at groups, a Batch, a run, a session, or a file of rollouts; got "
            f"{type(what).__name__}"
        )
    groups = tuple(tuple(group) for group in what)
    greedy = tuple(getattr(group, "greedy", None) for group in what)
    if "batch" not in given and groups:
        given = given | {"batch": _batch_of(groups, greedy)}
    count = sum(map(len, groups))
    return Evidence(
        groups, greedy, **{"about": f"{len(groups)} groups, {count} trajectories"} | given
    )


def _batch_of(
    groups: tuple[tuple[Trajectory, ...], ...], greedy: tuple[Trajectory | None, ...]
) -> Batch | None:
    """The batch that training would make of them; None where an invariant keeps them from becoming one: the rules say which."""
    try:
        return Batch.from_groups([Group(*pair) for pair in zip(groups, greedy, strict=True)])
    except (DataError, MissingPackageError):
        return None


# ------------------------------------------------------------------------------------------------ a run


def _of_run(run: Run, step: int | None, start: bool) -> Linted:
    """The rules asked anew of every committed step; and what only the training process could look at, as it was stored."""
    steps = run.steps() if step is None else [step]
    opened = _OfRun(run)
    left = {number: run.lint(number) for number in run.uncommitted() if step in (number, None)}
    ended = {number: found for number, found in left.items() if found is not None and not found.ok}
    reports = []
    kept = ()
    for number in (number for number in steps if number not in ended):
        evidence = opened.evidence(number)
        report = lint_evidence(
            evidence, ("step", "update", *(("start",) if start and number == steps[-1] else ()))
        )
        stored = run.lint(number)
        whole = _with_stored(report, stored)
        found = (
            addressed(whole, number, run.groups(number))
            if any(answer.findings for answer in whole)
            else whole
        )
        reports += [found, _only_in_training(stored, report)]
        if report.errors and not kept:
            kept = evidence.trajectories
    reports += ended.values()
    if step is None:
        evaluations = evaluation_facts(run)
        asked = [rule for name, rule in all_rules().items() if name in OF_TRAJECTORIES]
        reports += [_of_evaluation(check(each, asked)) for each in opened.evaluated(evaluations)]
        reports.append(
            lint_evidence(
                Evidence(
                    claims=run_claims(run),
                    steps=step_facts(run),
                    evaluations=evaluations,
                    family=opened.config.family,
                    collect=opened.config.collect,
                ),
                ("run",),
            )
        )
    what = f"run {run.name}: " + (f"step {step}" if step is not None else count(len(steps), "step"))
    if ended:
        what += f"; the lint ended step {', '.join(map(str, ended))}, of which this is what it said"
    return Linted(together(reports, "; ".join([what, *opened.remarks])), kept, texts_of_run(run))


def _with_stored(report: LintReport, stored: LintReport | None) -> LintReport:
    """The report with the stored answers of rules that lack evidence now, and lacked none in training."""
    whole = {answer.rule: answer for answer in stored or () if not answer.missing}
    answers = [
        merged_answer(answer, whole[answer.rule])
        if answer.missing and answer.rule in whole
        else answer
        for answer in report
    ]
    return replace(report, answers=tuple(answers))


def _of_evaluation(report: LintReport) -> LintReport:
    """The report with what it lacks said of evaluations, which are asked less than steps."""
    answers = []
    for answer in report:
        missing = tuple(f"{words}, in evaluations" for words in answer.missing)
        answers.append(replace(answer, missing=missing))
    return replace(report, answers=tuple(answers))


def _only_in_training(stored: LintReport | None, anew: LintReport) -> LintReport:
    """The stored answers of rules that need a training under way, and were not asked anew."""
    asked = {answer.rule for answer in anew} | {
        name for name, rule in all_rules().items() if rule.when in ("step", "update", "run")
    }
    return LintReport(tuple(answer for answer in stored or () if answer.rule not in asked))


class _OfRun:
    """What a run folder has to say about its steps; what cannot be loaded here is missing evidence."""

    def __init__(self, run: Run) -> None:
        from workbench.training.stored import stored_config

        stored = stored_config(run)
        self.run = run
        self.config = stored.config
        self.missing = stored.missing
        parts = {
            why: [part for part in stored.missing if stored.missing[part] == why]
            for why in stored.missing.values()
        }
        self.remarks = (
            *(
                f"what needs its {' and its '.join(named)} is not checked: {why}"
                for why, named in parts.items()
            ),
            *stored.notes,
        )

    @cached_property
    def chat(self) -> Any:
        if "policy" in self.missing:
            return None
        try:
            from workbench.chat import ChatFormat
            from workbench.engines.policy import load_tokenizer

            policy = self.config.policy
            tokenizer = load_tokenizer(policy.name, policy.loader, download=False)
            return ChatFormat.from_tokenizer(tokenizer, template_flags=dict(policy.template_flags))
        except WorkbenchError:  # a run opens where its policy is not
            return None

    def evidence(self, step: int) -> Evidence:
        """Everything that is stored of a step."""
        run = self.run
        config = self.config
        groups = run.groups(step)
        tables = [run.credit(step, update) for update in run.updates(step)]
        skipped = run.skipped(step)
        batch = None
        with suppress(MissingPackageError):  # without torch, rules over the batch say so
            batch = Batch.from_groups(groups)
            if tables:
                batch = with_facts(batch, facts_of(groups, tables[0]))
        means = run.metrics_line(step)
        metrics = (
            means if len(tables) == 1 else {}
        )  # of several updates the means are kept, no more
        return Evidence(
            tuple(tuple(group) for group in groups),
            tuple(group.greedy for group in groups),
            batch=batch,
            algorithm=config.algorithm,
            collect=config.collect,
            chat=self.chat,
            family=config.family,
            step=step,
            precision=config.learner.precision,
            staleness=config.train.staleness,
            updates=tuple(Update(table, metrics, skipped.get(table.update)) for table in tables),
            means=means,
        )

    def evaluated(self, evaluations: Sequence[EvaluationFacts]) -> Iterator[Evidence]:
        """The stored trajectories of evaluations, side by side: asked what is asked of a step, a few of each."""
        for evaluation in evaluations:
            for side, groups in evaluation.sides.items():
                collect = replace(self.config.collect, **evaluation.sampling_of(side))
                yield Evidence(
                    groups,
                    batch=_batch_of(groups, (None,) * len(groups)),
                    collect=collect,
                    chat=self.chat,
                    family=self.config.family,
                    samples=self.config.lint.samples,
                )


# ------------------------------------------------------------------------------------------------ a session


def _of_session(session: Session, start: bool) -> Linted:
    """Sample a little with the session, as a step of training would, and look at that."""
    from workbench.training.session import rollout

    journal = Journal(session.engine)
    groups = rollout(
        session,
        LOOK_TASKS,
        group_size=max(LOOK_TRAJECTORIES, session.config.algorithm.min_group_size),
        purpose="lint",
        engine=journal,
        greedy=needs_greedy(session.config.algorithm),
    )
    batch = session.learner.facts(Batch.from_groups(groups))
    evidence = replace(
        step_evidence(
            session,
            0,
            groups,
            batch=batch,
            credit=session.config.algorithm.credit(batch),
            policy_version=session.learner.version,
            probe=probe_of_session(session) if start else None,
        ),
        journal=journal.exchanges,
        samples=None,
        step=None,
        about=f"{session.policy.name}, {LOOK_TASKS} tasks of {session.config.env.name}, freshly sampled",
    )
    report = lint_evidence(evidence, ("step", *(("start",) if start else ())))
    return Linted(report, evidence.trajectories, session.chat.token_texts)
