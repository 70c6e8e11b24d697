"""The lint of a TRL trainer while it trains: what is listened to, when rules are asked, what is said.

    attach_trl(trainer)                      findings are printed, with their row and token
    attach_trl(trainer, on_error="stop")     ... and the first error ends training before the update that it concerns

Methods of this one trainer are replaced by listeners that call them as they are and change nothing that they return. No
rule asks for a private name of TRL that it cannot do without: where one is missing, what hangs on it is not checked.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.metadata import version as installed_version
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.extensions import service
from workbench.basics.findings import Answer, Checked, HasReport, LintReport, NotChecked, together
from workbench.extensions.trl_live import (
    credit,
    environments,
    probe,
    sampling,
    tokens,
    update,
    weights,
)
from workbench.extensions.trl_live.declared import loss_settings
from workbench.extensions.trl_live.hearing import hearing
from workbench.extensions.trl_live.journal import AnswerJournal, SampledTokens, authorship
from workbench.extensions.trl_live.messages import LintMessages
from workbench.extensions.trl_live.rows import (
    SampledRows,
    StepSettings,
    array_of,
    arrays_of,
    float_arrays,
    int_arrays,
)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Check, Rule, RuleResult, check
from workbench.linting.table import all_rules
from workbench.look.escape import visible
from workbench.values.errors import ConfigError, DataError, LintError, where_raised

ON_ERROR = ("say", "stop")
MANY = 200  # reports that wait to be joined
NEEDED = "the lint of a trainer's rows"
BEFORE = ("R1", "R3", "R4", "R5", "R6", "R7", "R8", "R11", "R12", "R14", "R16", "R17")
AT_FIRST = ("R13", "R24", "R29")
IN_LOSS = ("R4", "R6", "R10", "R12", "R18", "R19")
AFTER = ("R4", "R22", "R23")
MISSING_MODEL = "a pass of the model by itself (it is spread over several processes)"


def attach_trl(
    trainer: Any,
    on_error: str = "say",
    *,
    every: int = 1,
    ask_rewards: bool = True,
    say: Callable[[str], None] = print,
) -> LiveLint:
    """Lint the steps of a `trl.GRPOTrainer` while it trains; call it before `trainer.train()`. Returns the lint, whose
    `report` grows.

    on_error     "say" prints findings and goes on; "stop" raises LintError in the step, before the update
    every        how many generations there are to one that is looked at
    ask_rewards  whether reward functions may be asked once more, in the first generation, with the rows in another order
    say          takes a text: print, or a logger's method

    Raises DataError where `trainer` is no GRPOTrainer, and ConfigError for an argument that it does not know. Attached a
    second time, the first lint goes on with the new arguments.
    """
    wanted = ("_generate_and_score_completions", "compute_loss", "reward_funcs")
    lacking = [name for name in wanted if not hasattr(trainer, name)]
    if lacking or not hasattr(getattr(trainer, "args", None), "loss_type"):
        raise DataError(
            f"attach_trl watches a trl.GRPOTrainer that is made already, got {type(trainer).__name__}"
            f"{' without ' + lacking[0] if lacking else ''}; call attach_trl(trainer) before trainer.train()"
        )
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error is one of {', '.join(ON_ERROR)}; got {on_error!r}")
    if not isinstance(every, int) or every < 1:
        raise ConfigError(f"every is a whole number from 1 on; got {every!r}")
    options = LintSettings(on_error == "stop", every, ask_rewards, say)
    lint = trainer.__dict__.get(ATTACHED)
    if lint is None:
        lint = LiveLint(trainer, options)
        lint.listen()
        trainer.__dict__[ATTACHED] = lint
    lint.options = options
    return lint


ATTACHED = "workbench_lint"
RowChecks = dict[str, list[Iterable[RuleResult]]]  # by rule


@dataclass(frozen=True)
class LintSettings:
    """The arguments of `attach_trl`."""

    stops: bool
    every: int
    ask_rewards: bool
    say: Callable[[str], None]


@dataclass(eq=False)
class WatchedStep:
    """One generation while it is looked at: what was heard of it so far."""

    number: int
    at_step: int  # updates made before it
    journal: AnswerJournal = field(default_factory=AnswerJournal)
    made: Any = None  # what `_generate` returned
    prompts: Sequence[Any] = ()
    environments: Sequence[Any] = ()  # while rows were made, one a row
    paid_by: Sequence[Any] = ()  # while they were scored
    rewards_NK: np.ndarray | None = None
    returned: list[credit.RewardsReturned] = field(default_factory=list)
    generated: SampledRows | None = None
    authors: list[SampledTokens] = field(default_factory=list)
    sequences: tuple[Any, ...] = ()
    finder: update.SampledRowTable | None = None
    batches: list[update.LossMicroBatch] = field(default_factory=list)


@dataclass(eq=False, repr=False)
class LiveLint(HasReport):
    """What was found so far in the steps of a trainer. Shows itself.

    parts    reports that were not joined yet
    seconds  that looking took, and `step_seconds` of all steps with it
    """

    trainer: Any
    options: LintSettings
    parts: list[LintReport] = field(default_factory=list)
    seconds: float = 0.0
    step_seconds: float = 0.0
    generations: int = 0
    look: WatchedStep | None = None
    forward: update.LossLogprobs | None = None
    in_loss: bool = False
    generating: bool = False
    failures: list[str] = field(default_factory=list)
    clock: Callable[[], float] = time.perf_counter
    weights: weights.WeightHistory = field(default_factory=weights.WeightHistory)
    messages: LintMessages = field(default_factory=LintMessages)
    replaced: dict[str, Any] = field(default_factory=dict)
    rules: Mapping[str, Rule] = field(default_factory=all_rules)
    raw_checks: Mapping[str, Check] = field(default_factory=partial(service, "raw_checks", NEEDED))
    raw_sequence: Callable[..., Any] = field(
        default_factory=partial(service, "raw_sequence", NEEDED)
    )
    version: str = field(default_factory=partial(installed_version, "trl"))

    @property
    def report(self) -> LintReport:
        """The answers of all rules over all steps so far."""
        return together(self.parts, self._about())

    @property
    def cost(self) -> float:
        """Seconds of looking for a second of a step without it."""
        return self.seconds / max(self.step_seconds - self.seconds, 1e-9)

    # -------------------------------------------------------------------------------------------- listening

    def listen(self) -> None:
        """Put the listeners in the place of the trainer's methods, and add a callback."""
        around = {
            "_generate": self._generate,
            "_calculate_rewards": self._rewards,
            "_generate_and_score_completions": self._generation,
            "_get_per_token_logps_and_entropies": self._forward,
            "compute_loss": self._loss,
        }
        for name, listener in around.items():
            if hasattr(self.trainer, name):
                self.replaced[name] = self.trainer.__dict__.get(name)
                setattr(self.trainer, name, partial(listener, partial(self._call, name)))
        self.callback = _callback(self)
        self.trainer.add_callback(self.callback)

    def detach(self) -> None:
        """Take the listeners away."""
        for name, own in self.replaced.items():
            if own is None:
                delattr(self.trainer, name)
            else:
                setattr(self.trainer, name, own)
        self.replaced.clear()
        self.trainer.remove_callback(self.callback)
        self.trainer.__dict__.pop(ATTACHED, None)

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        """The trainer's own method, as it is now: of the object where it had one, else of its class."""
        own = self.replaced[name]
        if own is not None:
            return own(*args, **named)
        return getattr(type(self.trainer), name)(self.trainer, *args, **named)

    @property
    def trains(self) -> bool:
        return bool(self.trainer.model.training)

    def _generation(self, method: Callable[..., Any], inputs: Any) -> Any:
        if not self.trains:
            return method(inputs)
        self.generations += 1
        self.look = None
        if (self.generations - 1) % self.options.every:
            return method(inputs)
        look = self.look = WatchedStep(self.generations, self.trainer.state.global_step)
        self.generating = True
        try:
            with hearing(self.trainer, look.journal):
                output = method(inputs)
        finally:
            self.generating = False
        self._timed(self._look_before, look, output)
        return output

    def _timed(self, look_at: Callable[..., None], *args: Any) -> None:
        """Look, and count the time. What fails here is said, and training goes on; a LintError is meant."""
        began = self.clock()
        try:
            look_at(*args)
        except LintError:
            raise
        except Exception as error:
            self.look = None
            words = f"{type(error).__name__}: {error} ({where_raised(error)})"
            if not self.failures:
                self.options.say(f"workbench lint: it failed itself, and training goes on: {words}")
            self.failures.append(words)
        finally:
            self.seconds += self.clock() - began

    def _generate(self, method: Callable[..., Any], prompts: Any) -> Any:
        made = method(prompts)
        if self.look is not None and self.generating:
            self.look.made = made
            self.look.environments = list(getattr(self.trainer, "environments", None) or ())
        return made

    def _rewards(
        self, method: Callable[..., Any], inputs: Any, prompts: Any, completions: Any, ids: Any
    ) -> Any:
        look = self.look
        if look is None or not self.generating:
            return method(inputs, prompts, completions, ids)
        functions = self.trainer.reward_funcs
        names = getattr(self.trainer, "reward_func_names", [str(n) for n in range(len(functions))])
        self.trainer.reward_funcs = [
            credit.listening(function, n, names[n], look.returned)
            if _is_plain(function)
            else function
            for n, function in enumerate(functions)
        ]
        try:
            rewards = method(inputs, prompts, completions, ids)
        finally:
            self.trainer.reward_funcs = functions
        look.prompts = list(prompts)
        look.paid_by = list(getattr(self.trainer, "environments", None) or ())
        look.rewards_NK = array_of(rewards).astype(np.float64)
        return rewards

    def _forward(self, method: Callable[..., Any], *args: Any, **named: Any) -> Any:
        result = method(*args, **named)
        if self.in_loss and getattr(result[0], "requires_grad", False):
            self.forward = update.LossLogprobs(result[0], result[1])
        return result

    def _loss(
        self, method: Callable[..., Any], model: Any, inputs: Any, *args: Any, **named: Any
    ) -> Any:
        look = self.look
        if look is None or not self.trains or look.generated is None or look.finder is None:
            return method(model, inputs, *args, **named)
        self.in_loss = True
        self.forward = None
        try:
            loss = method(model, inputs, *args, **named)
        finally:
            self.in_loss = False
        self._timed(self._look_at_loss, look, inputs, loss)
        self.forward = None
        return loss

    # -------------------------------------------------------------------------------------------- looking

    def _look_before(self, look: WatchedStep, output: Any) -> None:
        """All that can be asked before the first update of a generation."""
        generated = look.generated = self._generated(look, output)
        if generated is None:
            raise LookupError("_generate and _calculate_rewards of the trainer were not called")
        text = self._text_of
        look.authors = authorship(generated, look.journal.exchanges)
        checks = {
            "R1": [
                tokens.answers_kept(generated, look.authors, text),
                tokens.prompts_kept(generated, look.authors, look.journal.exchanges),
            ],
            "R4": [tokens.padding(generated, tokenizer_of(self.trainer).pad_token_id)],
            "R7": [tokens.prompts_of_rows(generated, text)],
            "R12": [self._sampling_check(look, generated)],
            "R14": [environments.apart(generated, look.environments, look.paid_by)],
        }
        checks |= self._weight_checks(look, generated)
        if generated.fits:
            look.finder = update.SampledRowTable(generated)
            checks["R3"] = [tokens.mask_is_authorship(generated, look.authors, text)]
            checks["R11"] = [tokens.cut_rows(generated, look.authors)]
        expected = credit.expected_credit(look.rewards_NK, self._credit_settings())
        checks |= self._credit_checks(look, generated, expected)
        look.sequences = self._sequences(generated, expected.earned)
        at_first = [rule for rule in AT_FIRST if rule in checks]
        self._ask(generated, [*BEFORE, *at_first], checks, look.sequences)

    def _weight_checks(self, look: WatchedStep, generated: SampledRows) -> RowChecks:
        """Of the policy's weights; at the first generation, of what else there is from the beginning."""
        trainer = self.trainer
        now = weights.marks_of(trainer.accelerator.unwrap_model(trainer.model))
        rate = weights.learning_rate(trainer)
        checks: RowChecks = {
            "R17": [
                sampling.weights_are_current(generated.step, trainer),
                weights.sampled_by_the_policy(generated.step, look.journal.sampled_with, now),
                weights.updates_move_weights(generated, self.weights, now, look.at_step, rate),
            ]
        }
        if look.number == 1:
            checks["R13"] = [weights.reference_is_apart(look.at_step + 1, trainer)]
            checks["R24"] = [weights.evaluated_apart(look.at_step + 1, trainer)]
        return checks

    def _sampling_check(self, look: WatchedStep, generated: SampledRows) -> Iterator[RuleResult]:
        samplings = chain.from_iterable(author.samplings for author in look.authors)
        return sampling.samples_as_declared(
            generated.step,
            sampling.declared_by(self.trainer.args),
            list(samplings),
            generated.settings.own_rollout,
        )

    def _credit_settings(self) -> credit.CreditSettings:
        trainer = self.trainer
        return credit.CreditSettings(
            trainer.num_generations,
            trainer.args.scale_rewards,
            trainer.args.multi_objective_aggregation,
            tuple(array_of(trainer.reward_weights).tolist()),
        )

    def _credit_checks(
        self, look: WatchedStep, generated: SampledRows, expected: credit.RowCredit
    ) -> RowChecks:
        own = _of_a_subclass(self.trainer, "_generate_and_score_completions")
        checks: RowChecks = {
            "R6": [credit.advantages_follow(generated, expected, own)],
            "R16": [credit.rewards_arrive(generated, look.rewards_NK, look.returned)],
        }
        if self.options.ask_rewards and look.number == 1:
            checks["R29"] = [credit.rewards_by_row(generated, look.returned)]
        return checks

    def _look_at_loss(self, look: WatchedStep, inputs: Any, loss: Any) -> None:
        """A micro-batch, before its update."""
        generated = look.generated
        if self.forward is None:
            unheard = "the trainer's own log-probabilities (its loss does not ask for them as GRPOTrainer's does)"
            checks = {rule: [_unheard(unheard)] for rule in IN_LOSS}
            self._ask(generated, IN_LOSS, checks, look.sequences[:1])
            return
        batch = update.micro_batch(
            look.finder,
            loss_settings(self.trainer),
            inputs,
            self.forward,
            loss,
            look.at_step == self.trainer.state.global_step,
        )
        has_dropout = _has_dropout(self.trainer.model)
        row_probe, reason = self._probe(look, batch)
        checks = {
            "R4": [update.rows_arrive(generated, batch)],
            "R6": [update.credit_arrives(generated, batch)],
            "R10": [update.only_sampled_count(generated, batch, look.authors)],
            "R12": [probe.trainer_agrees(generated, batch, row_probe, reason, has_dropout)],
            "R18": [
                update.loss_is_declared(generated, batch),
                update.old_is_old(generated, batch, has_dropout),
            ],
            "R19": [update.gradient_is_declared(generated, batch)],
        }
        look.batches.append(replace(batch, gradient_NC=None, declared=None))
        self._ask(generated, IN_LOSS, checks, look.sequences[:1], raw=False)
        self._look_after(look)

    def _look_after(self, look: WatchedStep) -> None:
        """What needs several micro-batches: those before the first update, or all of a generation."""
        generated = look.generated
        whole = self.trainer.args.steps_per_generation
        if len(look.batches) == min(whole, self.trainer.args.gradient_accumulation_steps):
            self._look_at_sampler(look)
        if len(look.batches) == whole:
            checks = {"R4": [update.all_rows_came(generated, look.batches)]}
            self._ask(generated, ("R4",), checks, look.sequences[:1], raw=False)

    def _look_at_sampler(self, look: WatchedStep) -> None:
        """The trainer's log-probabilities of all rows before the first update, beside what was sampled."""
        generated = look.generated
        trainer = self.trainer
        declared = sampling.declared_by(trainer.args)
        plain = declared.is_plain and not getattr(
            trainer.args, "vllm_structured_outputs_regex", None
        )
        checks = {
            "R23": [
                update.sampler_agrees(
                    generated, look.batches, all(author.known for author in look.authors), plain
                )
            ]
        }
        own: dict[int, np.ndarray] = {}
        for batch in look.batches:
            for here, row in enumerate(batch.rows):
                if row is not None:
                    own[row] = batch.logp_NC[here, : len(generated.completion_ids[row])]
        sequences = tuple(
            replace(sequence, logprobs=own.get(row)) for row, sequence in enumerate(look.sequences)
        )
        self._ask(generated, ("R22",), {}, sequences)
        self._ask(generated, ("R23",), checks, look.sequences[:1], raw=False)

    def _probe(
        self, look: WatchedStep, batch: update.LossMicroBatch
    ) -> tuple[probe.RowProbe | None, str]:
        """A row once more through the model, and why there is none."""
        trainer = self.trainer
        if (look.number - 1) % probe.PROBE_EVERY or look.batches:
            return None, ""
        if (
            trainer.accelerator.num_processes > 1
            or trainer.is_deepspeed_enabled
            or trainer.is_fsdp_enabled
        ):
            return None, MISSING_MODEL
        if any(name in batch.arrays for name in ("pixel_values", "image_grid_thw")):
            return None, "a pass of the model without images"
        model = trainer.accelerator.unwrap_model(trainer.model)
        with trainer.accelerator.autocast():
            row_probe = probe.probe_row(model, look.generated, batch, trainer.args.temperature)
        return row_probe, "a row with trained tokens"

    # -------------------------------------------------------------------------------------------- evidence

    def _generated(self, look: WatchedStep, output: Any) -> SampledRows | None:
        if look.made is None or look.rewards_NK is None:
            return None
        trainer = self.trainer
        prompt_ids, completion_ids, tool_mask, _, logprobs = look.made[:5]
        stops = getattr(trainer, "eos_token_ids", None) or [tokenizer_of(trainer).eos_token_id]
        pad = tokenizer_of(trainer).pad_token_id
        known = {int(stop) for stop in (*stops, pad) if stop is not None}
        settings = StepSettings(
            trainer.num_generations,
            trainer.args.max_completion_length,
            bool(trainer.args.mask_truncated_completions),
            frozenset(known),
            getattr(trainer, "rollout_func", None) is not None,
            trainer.accelerator.process_index * len(completion_ids),
        )
        return SampledRows(
            look.at_step + 1,
            settings,
            look.prompts,
            int_arrays(prompt_ids),
            int_arrays(completion_ids),
            None if tool_mask is None else int_arrays(tool_mask),
            None if logprobs is None else float_arrays(logprobs),
            arrays_of(output),
        )

    def _sequences(self, generated: SampledRows, earned: np.ndarray) -> tuple[Any, ...]:
        """The rows as the values that the lint of a file of rollouts looks at."""
        return tuple(self._sequence(generated, row, earned) for row in range(len(generated)))

    def _sequence(self, generated: SampledRows, row: int, earned: np.ndarray | None) -> Any:
        credits = generated.padded.get("advantages")
        mask = generated.tool_mask[row] if generated.tool_mask is not None else None
        if generated.fits and (mask is None or len(mask) == len(generated.completion_ids[row])):
            mask = generated.trained(row)
        by_row = credits is not None and credits.ndim == 1 and row < len(credits)
        by_token = credits is not None and credits.ndim == 2 and row < len(credits)
        reward = None if earned is None else earned[generated.settings.first + row]
        return self.raw_sequence(
            attempt=generated.name(row),
            group=f"prompt {generated.group_of(row)}",
            number=0,
            prompt_ids=generated.prompt_ids[row],
            completion_ids=generated.completion_ids[row],
            mask=None if mask is None else mask.astype(np.float64),
            logprobs=_real_logprobs(generated, row),
            advantage=float(credits[row]) if by_row else None,
            advantages=credits[row, : len(generated.completion_ids[row])] if by_token else None,
            reward=None if reward is None or np.isnan(reward) else float(reward),
            truncated=generated.is_cut(row),
        )

    def _text_of(self, ids: Sequence[int]) -> str:
        return visible(tokenizer_of(self.trainer).decode(list(map(int, ids))))

    # -------------------------------------------------------------------------------------------- asking, saying

    def _ask(
        self,
        generated: SampledRows,
        rules: Sequence[str],
        checks: RowChecks,
        sequences: tuple[Any, ...],
        raw: bool = True,
    ) -> None:
        """Ask these rules, keep what they found, say it, and stop where that was asked for."""
        by_file = dict(self.raw_checks) if raw else {}
        if all(author.known for author in self.look.authors):
            by_file.pop(
                "R3", None
            )  # it infers from logprobs who wrote a token; here that was heard
        asked = {
            rule: partial(_one_after_another, by_file.get(rule), checks.get(rule, []))
            for rule in rules
        }
        evidence = Evidence(raw=sequences, step=generated.step)
        known = [self.rules[rule] for rule in rules if rule in self.rules]
        report = check(evidence, known, asked)
        report = LintReport(tuple(_placed(answer, generated) for answer in report.answers))
        self.parts.append(report)
        if len(self.parts) > MANY:
            self.parts = [together(self.parts)]
        self.messages.say(generated.step, report, self.options.say)
        if self.options.stops and not report.ok:
            error = LintError(
                f"step {generated.step} of the trainer is not what it is taken for, so it was stopped before the update:\n"
                f"{report.text}"
            )
            error.report = report
            raise error

    def _about(self) -> str:
        return f"TRL {self.version}, {type(self.trainer).__name__}: {self.generations} generations"

    def ended(self) -> None:
        """Say what all of it came to."""
        report = self.report
        lines = [f"workbench lint, {report.about}: {report.verdict}", *report.unchecked]
        lines += (
            [f"failed itself {len(self.failures)} times: {self.failures[0]}"]
            if self.failures
            else []
        )
        lines.append(f"looking took {self.seconds:.2f} s, {self.cost:.1%} of the steps")
        self.options.say("\n".join(lines))


def _placed(answer: Answer, generated: SampledRows) -> Answer:
    return replace(answer, findings=tuple(map(generated.in_their_words, answer.findings)))


def _one_after_another(
    by_file: Check | None, own: Sequence[Iterable[RuleResult]], evidence: Evidence
) -> Iterator[RuleResult]:
    given = [] if by_file is None else list(by_file(evidence))
    heard = list(chain.from_iterable(own))
    if any(isinstance(result, Checked) and result.count for result in heard):
        # what a file does not tell was seen here
        given = [result for result in given if not isinstance(result, NotChecked)]
    yield from (*given, *heard)
    if by_file is None and not own:
        yield NotChecked("nothing of it is seen in this trainer")


def _unheard(missing: str) -> Iterator[RuleResult]:
    yield NotChecked(missing)


def _real_logprobs(generated: SampledRows, row: int) -> np.ndarray | None:
    """What the sampler gave; None where it gave none, or a number in their place for all tokens."""
    if generated.logprobs is None:
        return None
    everything = np.concatenate(generated.logprobs)
    if not len(everything) or np.isnan(everything).any() or np.ptp(everything) == 0:
        return None
    return generated.logprobs[row]


def _is_plain(function: Any) -> bool:
    """A synchronous function of the user's own."""
    return (
        callable(function)
        and not hasattr(function, "parameters")
        and not inspect.iscoroutinefunction(function)
        and not inspect.iscoroutinefunction(getattr(function, "__call__", None))
    )


def tokenizer_of(trainer: Any) -> Any:
    """The tokenizer, also where a processor of images stands around it."""
    return getattr(trainer, "_tokenizer", None) or trainer.processing_class


def _of_a_subclass(trainer: Any, name: str) -> bool:
    """Whether a class of the user's own overrides the method of TRL's trainer."""
    owner = next(kind for kind in type(trainer).__mro__ if name in vars(kind))
    return not owner.__module__.startswith("trl.")


def _has_dropout(model: Any) -> bool:
    return any(
        module.training and type(module).__name__.startswith("Dropout") and module.p > 0
        for module in model.modules()
        if hasattr(module, "p")
    )


def _callback(lint: LiveLint) -> Any:
    """TRL's trainers call it: the clock of a step, and the last word."""
    from transformers import TrainerCallback

    class LintCallback(TrainerCallback):
        def on_step_begin(self, args, state, control, **named):
            self.began = lint.clock()

        def on_step_end(self, args, state, control, **named):
            lint.step_seconds += lint.clock() - self.began

        def on_train_end(self, args, state, control, **named):
            lint.ended()

    return LintCallback()
