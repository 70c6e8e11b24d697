"""One door for looking: `show(value)` is the view of whatever a cell returned; the last line of a cell draws the same.

    wb.show(run)                                     curves with their baselines
    wb.show(run, step=3, task=2, attempt=5)          one attempt of it, turn by turn
    wb.show(session), wb.show(groups), wb.show(groups[0][0])

`VIEWS` says which function shows what. Its options are the keyword arguments here.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.types import Groups, View
from workbench.types.address import Address
from workbench.types.doors import said_of
from workbench.types.errors import ConfigError, DataError, nearest
from workbench.types.view import HasView

if TYPE_CHECKING:
    from pathlib import Path

    from workbench.learn.algorithms.base import Credit
    from workbench.learn.batch import Batch
    from workbench.learn.replay import ReplayReport
    from workbench.notebook.live_run import RunningRun
    from workbench.rollouts.evaluate import Score
    from workbench.run.diff import RunDiff
    from workbench.run.store import Run
    from workbench.training.config import Config
    from workbench.training.session import Session
    from workbench.training.step import StepOutcome
    from workbench.types import Segment

# What is shown, and by which function; the first that fits. A class whose module was never imported has no values.
VIEWS: Mapping[str, str] = {
    "workbench.types:Group": "workbench.views:show_group",
    "workbench.types:Groups": "workbench.views:show_groups",
    "workbench.types:Trajectory": "workbench.views:show_trajectory",
    "workbench.types.branches:BranchedAttempt": "workbench.views.branches:show_branches",
    "workbench.types.spreads:RunSpread": "workbench.views.spread:show_spread",
    "workbench.types.kinds:ByKind": "workbench.views.kinds:show_by_kind",
    "workbench.types.monitored:RunSignals": "workbench.views.signals:show_signals",
    "workbench.types.pairs:PairedGroups": "workbench.views:show_pairs",
    "workbench.types.pairs:Pair": "workbench.views:show_pair",
    "workbench.types:Turn": "workbench.views:show_turn",
    "workbench.types:Task": "workbench.views:show_task",
    "workbench.types:Observation": "workbench.views:show_observation",
    "workbench.types:Segment": "workbench.notebook.show:show_ids",
    "workbench.types:CreditTable": "workbench.views:show_credit_table",
    "workbench.types.findings:LintReport": "workbench.views:show_lint",
    "workbench.types.dumps:Imported": "workbench.notebook.stored:show_rollouts",
    "workbench.training.config:Config": "workbench.notebook.show:show_settings",
    "workbench.training.session:Session": "workbench.notebook.show:show_session",
    "workbench.training.step:StepOutcome": "workbench.notebook.show:show_outcome",
    "workbench.rollouts.evaluate:Score": "workbench.notebook.show:show_score",
    "workbench.rollouts.evaluate:Scores": "workbench.notebook.stored:show_scores",
    "workbench.learn.batch:Batch": "workbench.notebook.show:show_batch",
    "workbench.learn.algorithms.base:Credit": "workbench.notebook.show:show_credit",
    "workbench.learn.replay:ReplayReport": "workbench.notebook.show:show_replay_report",
    "workbench.run.diff:RunDiff": "workbench.notebook.show:show_run_diff",
    "workbench.run.store:Run": "workbench.notebook.show:show_a_run",
    "workbench.notebook.runs:Runs": "workbench.notebook.runs:show_runs",
    "workbench.notebook.live_run:RunningRun": "workbench.notebook.show:show_a_run",
}


def show(value: Any, **how: Any) -> View:
    """The view of a value that a public function returned; of a path, that of the run there.

    `how` are the options of its view: those of a run are `at`, `step`, `task`, `attempt`, `tokens`. Lists of groups and of
    scores are shown like what `rollout` and `evaluate` return. Raises DataError for what has no view, and for an option
    that its view does not have.
    """
    if not how and (isinstance(value, (View, HasView)) or callable(getattr(value, "view", None))):
        return (
            value
            if isinstance(value, View)
            else value.view()
            if callable(value.view)
            else value.view
        )
    if isinstance(value, (list, tuple)):
        value = _together(value)
    if isinstance(value, (str, os.PathLike)) and not said_of(value, VIEWS):
        value = import_module("workbench.run.store").open_run(value)
    if not (maker := said_of(value, VIEWS)):
        known = ", ".join(name.partition(":")[2] for name in VIEWS)
        raise DataError(
            f"wb.show has no view of a {type(value).__name__} ({value!r:.60}). It shows {known}, lists of "
            "groups and of scores, and the path of a run"
        )
    module, _, name = maker.partition(":")
    function = getattr(import_module(module), name)
    options = [
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind == each.KEYWORD_ONLY
    ]
    for option in how:
        if option not in options:
            has = nearest(option, options) if options else "it has no options"
            raise DataError(f"the view of a {type(value).__name__} has no option {option!r}; {has}")
    return function(value, **how)


def _together(values: Sequence[Any]) -> Any:
    """A plain list as what shows itself: groups, scores, or attempts (a group each)."""
    types = import_module("workbench.types")
    if values and all(isinstance(each, types.Group) for each in values):
        return Groups(values)
    if values and all(isinstance(each, types.Trajectory) for each in values):
        return Groups(types.Group((each,)) for each in values)
    evaluate = sys.modules.get("workbench.rollouts.evaluate")
    if values and evaluate is not None and all(isinstance(each, evaluate.Score) for each in values):
        return evaluate.Scores(values)
    return values


def show_a_run(
    run: Run | RunningRun | Path,
    *,
    step: int | None = None,
    task: int | None = None,
    attempt: int | None = None,
    tokens: bool = False,
    at: str | Address = "",
    evaluation: int | str | None = None,
) -> View:
    """A run's curves; with `step` the groups of that step, with `task` (counted from 0) one of them, with `attempt` one of
    its attempts turn by turn, and with `tokens` that attempt's tokens by author, with the credit that training used.
    `at` says a place in words, down to a token: "step 3 / task 2 / attempt 5 / token 812". `evaluation`: the table of the one
    after that step, or "last": every policy on the same tasks, with intervals and paired differences."""
    from workbench.notebook.place import show_place
    from workbench.notebook.stored import show_evaluations, show_step
    from workbench.run.store import open_run

    run = open_run(run)
    if evaluation is not None:
        if evaluation != "last" and not isinstance(evaluation, int):
            raise DataError(
                f"evaluation={evaluation!r}: expected 'last', or the number of the step after which it was made"
            )
        return show_evaluations(run, None if evaluation == "last" else evaluation)
    asked = {
        "step": step is not None,
        "task": task is not None,
        "attempt": attempt is not None,
        "tokens": tokens,
    }
    given = [name for name, there in asked.items() if there]
    if at and given:
        raise DataError(f"at={str(at)!r} says it all; leave {' and '.join(given)} out")
    if step is None:
        if given:
            steps = run.steps()
            has = f"steps {steps[0]} to {steps[-1]}" if steps else "no committed step yet"
            raise DataError(f"{' and '.join(given)} of which step? Add step=...; the run has {has}")
        return show_place(run, at)
    if task is None and attempt is None and not tokens:
        return show_place(run, Address(step))
    return show_step(run, step, task=task or 0, attempt=attempt, tokens=tokens)


def show_settings(config: Config, *, preset: str = "") -> View:
    """All settings, those that differ from `preset` marked; "": from a config of the same environment that sets nothing
    else."""
    from workbench.training.config import Config, load_config, to_dict
    from workbench.views import show_config

    default = load_config(preset) if preset else Config(env=config.env)
    try:
        here, there = to_dict(config), to_dict(default)
    except ConfigError:  # parts that no file can name: an object made here
        here, there = asdict(config), asdict(default)
    return show_config(here, there)


def show_session(session: Session) -> View:
    """What a session has open, and what to do with it."""
    from workbench.views import show_facts

    config, policy = session.config, session.policy
    weights = sum(parameter.numel() for parameter in policy.model.parameters())
    device = next(policy.model.parameters()).device
    facts = {
        "environment": getattr(session.family, "label", session.family.name),
        "policy": f"{config.policy.name}: {weights:,} weights, {len(policy.tokenizer):,} tokens, {device}",
        "engine": f"{config.kind_of('engine')}, {session.engine.context_length:,} tokens of context",
        "algorithm": f"{config.kind_of('algorithm')}, {config.train.group_size} attempts at each of "
        f"{config.train.tasks_per_step} tasks a step",
        "learner": f"{session.learner.version} updates"
        if "learner" in vars(session)
        else "not made yet",
    }
    return show_facts(
        "session", facts, ("wb.rollout(session, 2)", "wb.evaluate(session)", "wb.lint(session)")
    )


def show_outcome(outcome: StepOutcome) -> View:
    """The numbers of a step that was made here, each with what it means."""
    from workbench.views import show_metrics

    return show_metrics(outcome.metrics, title=f"step {outcome.step}")


def show_score(score: Score) -> View:
    from workbench.notebook.stored import show_scores

    return show_scores([score])


def show_ids(segment: Segment, *, max_tokens: int = 1600) -> View:
    """A segment's tokens by author. It does not know their texts: ids are shown (`wb.show_tokens` takes texts)."""
    from workbench.views import show_segment
    from workbench.views.tokens import ids_as_texts

    return show_segment(segment, ids_as_texts, title="segment", max_tokens=max_tokens)


def show_batch(batch: Batch) -> View:
    """The sizes of a batch, and which of its columns are there."""
    from workbench.views import show_facts

    absent = [
        name
        for name in ("old_logp_T", "ref_logp_T", "value_T", "final_value_N")
        if getattr(batch, name) is None
    ]
    rewards = batch.reward_N[batch.scored_N]
    facts = {
        "groups": len(set(batch.group_of_trajectory_N.tolist())),
        "trajectories": len(batch.reward_N),
        "scored": f"{int(batch.scored_N.sum())}, mean reward {rewards.mean():.3g}"
        if len(rewards)
        else "none",
        "segments": len(batch.trajectory_of_segment_S),
        "turns": len(batch.turn_reward_K),
        "tokens": f"{len(batch.token_ids_T):,}",
        "eligible tokens": f"{int(batch.eligible_T.sum()):,}, sampled by the policy in their own segment",
        "not computed": ", ".join(absent) or "nothing",
    }
    return show_facts("batch", facts, ("wb.credit_editor(groups)",))


def show_credit(credit: Credit) -> View:
    """What an estimator computed, over the tokens that have a weight."""
    from workbench.views import show_facts

    trained = credit.trained_T
    values = credit.advantage_T[credit.weight_T != 0]
    facts = {
        "tokens": f"{len(trained):,}, {int(trained.sum()):,} trained",
        "advantage": f"{values.min():+.3g} to {values.max():+.3g}, mean {values.mean():+.3g}"
        if len(values)
        else "none",
        "returns": "none" if credit.return_T is None else "of a critic",
        **dict(credit.notes),
        **({"widened": credit.widened} if credit.widened else {}),
    }
    return show_facts("credit", facts)


def show_replay_report(report: ReplayReport) -> View:
    from workbench.views import show_text

    return show_text(report.text, title=f"replay of step {report.step}")


def show_run_diff(diff: RunDiff) -> View:
    from workbench.run.store import open_run
    from workbench.views import show_diff

    a, b = open_run(diff.a), open_run(diff.b)
    return show_diff(diff, a.metrics_rows(), b.metrics_rows(), a.evaluations())
