"""verl's advantage step, listened to: every batch is looked at after its advantages are made and before the update.

    attach_verl()              findings are printed, with row and token
    attach_verl("stop")        ... and the first error ends training before the update that it concerns
    lint_verl(data)            one DataProto, or what an agent loop returned, by itself

The listener calls verl's own function and returns what it returns. It sees what the driver sees: a row's tokens where the
batch has them (`trainer.use_v1=False`), masks, logprobs, rewards and advantages in both trainers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from importlib import import_module
from itertools import chain
from typing import Any

from workbench.basics.extensions import service
from workbench.basics.findings import (
    Answer,
    Checked,
    HasReport,
    LintReport,
    NotChecked,
    RuleResult,
    answered,
    heard_out,
    together,
)
from workbench.extensions.verl_live import checks
from workbench.extensions.verl_live.batch import VerlBatch, batch_of
from workbench.linting.evidence import Evidence
from workbench.linting.rule import FAILED, Check
from workbench.linting.table import all_rules
from workbench.values.errors import ConfigError, LintError, MissingPackageError, where_raised

ON_ERROR = ("say", "stop")
RULES = ("R3", "R4", "R5", "R6", "R7", "R8", "R12", "R16", "R22", "R23")
NEEDED = "the lint of verl's rows"
MANY = 200  # reports that wait to be joined
STEP = "compute_advantage"
# Modules of verl that call the advantage step by a name of their own.
CALLERS = ("verl.trainer.ppo.ray_trainer", "verl.trainer.ppo.v1.utils")


def lint_verl(
    data: Any, estimator: str = "", *, divides_by_spread: bool = True, step: int | None = None
) -> LintReport:
    """Lint one batch of verl: a `verl.DataProto`, or a list of the `AgentLoopOutput` that an agent loop returned.

    estimator          that made the advantages: "grpo" and "rloo" are computed once more; others are not
    divides_by_spread  verl's `norm_adv_by_std_in_grpo`
    step               that findings name

    Raises DataError for what is neither. What the batch does not hold is "not checked".
    """
    batch = batch_of(data, step)
    settings = checks.AdvantageSettings(
        str(getattr(estimator, "value", estimator)), divides_by_spread
    )
    own = {
        "R3": checks.mask_is_the_policys(batch),
        "R4": checks.layout(batch),
        "R6": checks.advantages_follow(batch, settings),
        "R16": checks.rewards_lie_where_tokens_are(batch),
        "R23": checks.sampler_agrees(batch),
    }
    raw: Mapping[str, Check] = service("raw_checks", NEEDED)
    sequences = batch.sequences(service("raw_sequence", NEEDED))
    asked = {
        rule: partial(_one_after_another, raw.get(rule) if sequences else None, own.get(rule, ()))
        for rule in RULES
    }
    evidence = Evidence(raw=sequences, step=step)
    answers = []
    for rule in (rule for name, rule in all_rules().items() if name in RULES):
        results = heard_out(asked[rule.id], evidence, FAILED)
        answers.append(answered(rule.id, rule.title, results, (), rule.means, rule.mend))
    placed = tuple(_placed(answer, batch) for answer in answers)
    return LintReport(placed, f"verl: {len(batch)} rows, {len(batch.groups)} groups")


def _one_after_another(
    by_file: Check | None, own: Iterable[RuleResult], evidence: Evidence
) -> Iterator[RuleResult]:
    given = [] if by_file is None else list(by_file(evidence))
    own_results = list(own)
    if any(isinstance(result, Checked) and result.count for result in own_results):
        given = [result for result in given if not isinstance(result, NotChecked)]
    yield from chain(given, own_results)
    if by_file is None and not own_results:
        yield NotChecked("token ids of prompts and responses; this batch has none")


def _placed(answer: Answer, batch: VerlBatch) -> Answer:
    return replace(answer, findings=tuple(map(batch.in_their_words, answer.findings)))


# ------------------------------------------------------------------------------------------------ live


@dataclass(eq=False, repr=False)
class VerlLint(HasReport):
    """What was found so far in the batches of a trainer. Shows itself.

    stops    the first error ends training
    say      takes a text
    every    how many batches there are to one that is looked at
    seconds  that looking took
    """

    stops: bool
    say: Callable[[str], None]
    every: int
    parts: list[LintReport] = field(default_factory=list)
    named_once: set[str] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)
    batches: int = 0
    seconds: float = 0.0
    replaced: dict[str, Any] = field(default_factory=dict)

    @property
    def report(self) -> LintReport:
        """The answers of all rules over all batches so far."""
        return together(self.parts, f"verl: {self.batches} batches")

    def detach(self) -> None:
        """Put verl's own function back."""
        for module, own in self.replaced.items():
            setattr(sys.modules[module], STEP, own)
        self.replaced.clear()

    def listening(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """verl's function, and a look at what it returns."""

        @wraps(method)
        def heard(data: Any, *args: Any, **named: Any) -> Any:
            result = method(data, *args, **named)
            self.batches += 1
            if (self.batches - 1) % self.every == 0:
                self._look(result, *args, **named)
            return result

        return heard

    def _look(self, data: Any, adv_estimator: Any = "", *args: Any, **named: Any) -> None:
        began = time.perf_counter()
        try:
            by_spread = bool(named.get("norm_adv_by_std_in_grpo", True))
            report = lint_verl(data, adv_estimator, divides_by_spread=by_spread, step=self.batches)
        except Exception as error:
            words = f"{type(error).__name__}: {error} ({where_raised(error)})"
            if not self.failures:
                self.say(f"workbench lint: it failed itself, and training goes on: {words}")
            self.failures.append(words)
            return
        finally:
            self.seconds += time.perf_counter() - began
        self.parts.append(report)
        if len(self.parts) > MANY:
            self.parts = [together(self.parts)]
        self._say(report)
        if self.stops and not report.ok:
            error = LintError(
                f"batch {self.batches} of the trainer is not what it is taken for, so it was stopped before the update:\n"
                f"{report.text}"
            )
            error.report = report
            raise error

    def _say(self, report: LintReport) -> None:
        """A rule in full the first time that it finds an error."""
        for answer in report.answers:
            if answer.errors and answer.rule not in self.named_once:
                self.named_once.add(answer.rule)
                lines = [f"workbench lint: {answer.rule} error: {answer.title}"]
                lines += [f"  {finding.place}: {finding.what}" for finding in answer.errors[:3]]
                lines += [f"  it means: {answer.means}", f"  fix: {answer.mend}"]
                self.say("\n".join(lines))


def attach_verl(
    on_error: str = "say", *, every: int = 1, say: Callable[[str], None] = print
) -> VerlLint:
    """Listen to verl's advantage step, in the process that runs the trainer; call it before `trainer.fit()`.

    on_error  "say" prints findings and goes on; "stop" raises LintError before the update
    every     how many batches there are to one that is looked at
    say       takes a text: print, or a logger's method

    Returns the lint, whose `report` grows and whose `detach()` takes it away. Raises MissingPackageError where verl cannot be
    imported, and ConfigError for an argument that it does not know.
    """
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error is one of {', '.join(ON_ERROR)}; got {on_error!r}")
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"every is a whole number from 1 on; got {every!r}")
    lint = VerlLint(on_error == "stop", say, every)
    for name in CALLERS:
        module = _imported(name, name == CALLERS[0])
        if module is not None and hasattr(module, STEP):
            lint.replaced[name] = getattr(module, STEP)
    for name, own in lint.replaced.items():
        setattr(sys.modules[name], STEP, lint.listening(own))
    return lint


def _imported(name: str, needed: bool) -> Any:
    """The module of verl; None where this version has none, or one that lacks its own packages."""
    try:
        return import_module(name)
    except ImportError as error:
        if not needed:
            return None
        raise MissingPackageError(
            f"attach_verl needs verl with ray in this process ({error}); a batch by itself is looked at by lint_verl(data)"
        ) from error
