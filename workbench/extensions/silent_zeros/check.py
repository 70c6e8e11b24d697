"""Are words known to be paid paid in somebody else's trainer? Asked before its first step; nothing is sampled or trained.

    wb.check_rewards(trainer, "answer")                              a trl.GRPOTrainer; the column of right answers
    wb.check_rewards(tokenizer, "answer", rewards=score, rows=data)  any other trainer

The words go where a policy's answers go: behind the prompt that the template makes, encoded by this tokenizer, with its
stop token, cut where it stops and where it is too long, decoded, parsed, scored. The first step behind which a reward
function pays no longer is named, with the row of the data and the line of the function. R39 is the same rule for our own
environments.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from workbench.basics.findings import (
    ERROR,
    NOTE,
    Checked,
    Finding,
    HasReport,
    LintReport,
    NotChecked,
    RuleResult,
    answered,
)
from workbench.extensions.silent_zeros.losses import StepResult, vary_words, walk_words
from workbench.extensions.silent_zeros.rewards import untouched_chance
from workbench.extensions.silent_zeros.scorer import scorer_results
from workbench.extensions.silent_zeros.trainers import (
    RewardsSource,
    source_of_tokenizer,
    source_of_trainer,
)
from workbench.extensions.silent_zeros.trial import (
    FORMS,
    RewardOutcome,
    RewardTrial,
    Words,
    compare,
    in_form,
    words_of,
)
from workbench.values.errors import ConfigError, DataError, LintError, shortened

ON_ERROR = ("say", "stop")
ROWS = 64  # that are asked about, at most
FEWEST = 4  # ... at least, however long a function takes
TRIED = 4  # rows at which forms of the answer are tried
ASKED_FOR_TIME = 3  # times that the first row is asked about, to see how long it takes
QUESTIONS = 24  # that a row is asked, about: words, wrong answers, steps, variations


class PathStep(NamedTuple):
    """A step on the way of words. `means` and `mend` are said where it loses them."""

    name: str
    title: str
    means: str
    mend: str


STEPS = (
    PathStep(
        "data",
        "every row has words that are known to be paid",
        "A row without an answer pays nothing, whatever is learned.",
        "Drop such rows, or name the column that holds the answers.",
    ),
    PathStep(
        "scorer",
        "the reward functions pay these words, and wrong ones less",
        "Rewards are the same whatever is answered, or stand for something else: nothing of the task can be learned.",
        "Call the function by hand with the row that is named.",
    ),
    PathStep(
        "template",
        "what the prompt has written already is not asked of the policy",
        "The reward wants text that the policy never writes, because it stands in the prompt.",
        "Let the function accept an answer that goes on behind the prompt, or use a template that opens no tag.",
    ),
    PathStep(
        "tokenizer",
        "the words come back from this tokenizer",
        "The reward reads other text than the policy wrote.",
        "Make no special tokens of tags that the reward reads, or decode with them; or use the model's own tokenizer.",
    ),
    PathStep(
        "stop",
        "nothing of the answer is cut away, and nothing is left behind it",
        "The policy's right answer never reaches the reward whole.",
        "Raise max_completion_length, or choose a stop that stands behind the answer and not inside it.",
    ),
    PathStep(
        "parser",
        "the answer is read out of the completion",
        "The reward scores what the parser left, and that is not the answer.",
        "Call the parser by hand with the text that is named.",
    ),
    PathStep(
        "variations",
        "white space and line breaks around the answer cost nothing",
        "A policy that writes the answer with them is paid nothing for it.",
        "Strip white space before you compare, or search for the answer; where it is meant, may_vary=() says so.",
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class CheckedRewards(HasReport):
    """What came of the words known to be paid. Shows itself.

    report  one answer for each step on their way
    words   of the first row, as they were asked about
    rows    that were asked about
    """

    report: LintReport
    words: Any
    rows: int


def check_rewards(
    policy: Any,
    words: Words,
    *,
    rewards: Any = None,
    rows: Any = None,
    stops: Sequence[int | str] | int | str | None = None,
    max_completion_length: int | None = None,
    parser: Callable[[str], Any] | None = None,
    wrong: Words | None = None,
    may_vary: Sequence[str] | None = None,
    on_error: str = "say",
    budget_s: float = 5.0,
    **path: Any,
) -> CheckedRewards:
    """Play words known to be paid through a trainer's tokenizer, template, stops, parser and reward functions.

    policy    a `trl.GRPOTrainer`, which has all the rest; or a tokenizer of transformers
    words     known to be paid: the name of a column ("answer", "reward_model.ground_truth"), a function row -> text or
              messages, or a list with one for each row. The bare answer of a column is wrapped as functions demand it
              (<answer>, boxed ...) where that pays more
    rewards   a function, several, or a rubric of verifiers. TRL's form f(prompts, completions, **columns), verl's
              compute_score, f(text, row) -> number; known by the names of arguments
    rows      dicts, or a data set; a row's "prompt" is text or messages
    stops     token ids, and texts, that end a completion; without any id the tokenizer's end of sequence is one
    max_completion_length
              most tokens of a completion; by itself no limit, of a trainer its own
    parser    text -> what is scored
    wrong     answers that must be paid less, as `words`; by itself the words of other rows
    may_vary  harmless variations that must be paid: some of spaces, line breaks, full stop, case, prose; by itself white
              space, where it is a note
    on_error  "say" returns what was found; "stop" raises LintError where there is an error
    budget_s  seconds for functions; of slow ones fewer rows are asked about
    path      keeps_stop_text, skips_special, template_options: how completions are made (`TokenPath`)

    Raises DataError and ConfigError for what it is handed and cannot ask.
    """
    if on_error not in ON_ERROR:
        raise ConfigError(f"on_error is one of {', '.join(ON_ERROR)}; got {on_error!r}")
    if not budget_s > 0:
        raise ConfigError(f"budget_s is seconds, above zero; got {budget_s!r}")
    if hasattr(policy, "reward_funcs") and hasattr(policy, "args"):
        source = source_of_trainer(policy, rewards, rows, parser, max_completion_length)
    else:
        source = source_of_tokenizer(
            policy, rewards, rows, stops, max_completion_length, parser, path
        )
    with untouched_chance():
        checked = _checked(source, words, wrong, may_vary, budget_s)
    if on_error == "stop" and not checked.ok:
        error = LintError(
            f"right answers are not paid, so no step was begun:\n{checked.report.text}"
        )
        error.report = checked.report
        raise error
    return checked


def _checked(
    source: RewardsSource,
    words: Words,
    wrong: Words | None,
    may_vary: Sequence[str] | None,
    budget_s: float,
) -> CheckedRewards:
    results: list[StepResult] = []
    trial = _trial_of(source, words, results)
    unseen = [(part, missing) for part, missing in source.unseen.items()]
    steps = [step.name for step in STEPS]
    results += [
        (part if part in steps else "scorer", NotChecked(missing)) for part, missing in unseen
    ]
    if trial.functions and len(trial):
        trial = _affordable(trial, budget_s)
        if isinstance(words, str):
            trial = _demanded(trial)
        results += _asked(trial, wrong, may_vary, source.leaves_out_cut)
    answers = [_answer(step, results) for step in STEPS]
    about = f"{source.name}: words of {len(trial)} rows, {len(trial.functions)} reward functions"
    if trial.form != FORMS[0]:
        about += f"; words of {trial.column!r} in the form that is paid more, {trial.form.format('...')!r}"
    first = trial.words[0] if len(trial) else None
    return CheckedRewards(LintReport(tuple(answers), about), first, len(trial))


def _answer(step: PathStep, results: Sequence[StepResult]) -> Any:
    own: list[RuleResult] = [result for name, result in results if name == step.name]
    return answered(step.name, step.title, own, (), step.means, step.mend)


def _trial_of(source: RewardsSource, words: Words, results: list[StepResult]) -> RewardTrial:
    """Rows with their words; rows without any are said."""
    numbers, rows = source.chosen(ROWS)
    column = words if isinstance(words, str) else ""
    known = [words_of(row, words, number) for row, number in zip(rows, numbers)]
    is_messages = [isinstance(row.get("prompt"), (list, tuple)) for row in rows]
    trial = RewardTrial(rows, numbers, known, column, source.functions, source.path, is_messages[0])
    without = [row for row, value in enumerate(known) if value is None]
    if len(without) == len(rows):
        raise DataError(
            f"no row has words known to be paid: words={shortened(words)}, and the columns are "
            f"{', '.join(map(str, rows[0]))}. Name the column of right answers, or hand over a function row -> text"
        )
    results.append(("data", Checked(len(rows))))
    if without:
        first = without[0]
        results.append(
            (
                "data",
                Finding(
                    f"it has no words known to be paid ({len(without)} of {len(rows)} rows)",
                    trial.place(first),
                    count=len(without),
                ),
            )
        )
    return trial.only([row for row in range(len(rows)) if row not in without])


def _affordable(trial: RewardTrial, budget_s: float) -> RewardTrial:
    """As many rows as there is time for, spread. What a function loads the first time is not counted, if it is quick after
    that."""
    one = trial.only([0])
    seconds = []
    while len(seconds) < ASKED_FOR_TIME and sum(seconds) < budget_s / 4:
        began = time.perf_counter()
        one.pay(one.words)
        seconds.append(time.perf_counter() - began)
    for_a_row = max(min(seconds) * QUESTIONS, 1e-9)
    count = int(min(len(trial), max(FEWEST, budget_s / for_a_row)))
    return trial.only([k * len(trial) // count for k in range(count)])


def _demanded(trial: RewardTrial) -> RewardTrial:
    """The words in the form that most functions pay: by themselves, or wrapped as answers are commonly demanded."""
    few = trial.only(range(min(TRIED, len(trial))))
    paid = []
    for form in FORMS:
        tried = in_form(few, form)
        outcome = compare(tried, None)
        apart = (outcome.tells_NF & outcome.pays_NF).any(axis=1).sum()
        paid.append((int(apart > 0), int(outcome.pays_NF.sum())))
    return in_form(trial, FORMS[paid.index(max(paid))])


def _asked(
    trial: RewardTrial,
    wrong: Words | None,
    may_vary: Sequence[str] | None,
    leaves_out_cut: bool,
) -> Iterator[StepResult]:
    declared = None
    if wrong is not None:
        pairs = zip(trial.rows, trial.numbers)
        declared = [words_of(row, wrong, number) or "" for row, number in pairs]
    outcome: RewardOutcome = compare(trial, declared)
    yield from (("scorer", result) for result in scorer_results(trial, outcome))
    yield from _template_results(trial, leaves_out_cut)
    if not outcome.pays_NF.any():
        missing = "words that a reward function pays when they are handed to it directly"
        names = [step.name for step in STEPS[2:]]
        yield from ((name, NotChecked(missing)) for name in names)
        return
    walked = walk_words(trial, outcome)
    yield from walked.results
    results = vary_words(trial, outcome, walked.kept_NF, may_vary)
    yield from (("variations", result) for result in results)


def _template_results(trial: RewardTrial, leaves_out_cut: bool) -> Iterator[StepResult]:
    """Of the first row's prompt: is a turn begun, and does its end stop the policy?"""
    prompt = trial.rows[0].get("prompt")
    if prompt is None:
        yield "template", NotChecked("a column 'prompt', text or messages")
        return
    if isinstance(prompt, str):
        return
    path = trial.path
    try:
        opens = path.opens_turn(prompt)
        end = path.end_of_turn(prompt)
    except (
        Exception
    ) as error:  # anybody's template; where it ends the run, the words do not come through either
        yield "template", NotChecked(f"the template alone ({type(error).__name__}: {error})")
        return
    if not opens:
        yield (
            "template",
            Finding(
                "the template begins no turn of the assistant (add_generation_prompt changes nothing), so the policy "
                "writes its header into every answer",
                trial.place(0),
                NOTE,
            ),
        )
    if end is None or end in path.stop_texts:
        return
    ids = path.encoded(end)
    if len(ids) != 1 or ids[0] not in path.stop_ids:
        stops = [path.decoded([stop], keeps_special=True) for stop in sorted(path.stop_ids)]
        cut = "which are left out of the loss" if leaves_out_cut else "which a limit cuts"
        yield (
            "stop",
            Finding(
                f"the template ends an answer with {end!r}, and what stops the policy is {', '.join(map(repr, stops))}: it "
                f"goes on behind its answers, {cut}",
                trial.place(0),
                ERROR if leaves_out_cut else NOTE,
            ),
        )
