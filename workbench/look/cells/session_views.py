"""Views of what an open session is made of and gives back. They are imported when such a value is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from workbench.engines.policy import num_parameters
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.replay import ReplayReport
from workbench.look.evaluation import report_view
from workbench.look.records import config_view, show_metrics, text_view
from workbench.look.values import facts_view
from workbench.look.view_of import view_of
from workbench.rollouts.evaluate import Score, Scores, report
from workbench.training.config import Config, load_config, to_dict
from workbench.training.session import Session
from workbench.training.step import StepOutcome
from workbench.values import View
from workbench.values.errors import ConfigError


@view_of.register
def settings_view(config: Config, *, preset: str = "") -> View:
    """All settings, those that differ from `preset` marked; "": from a config of the same environment that sets nothing
    else."""
    default = load_config(preset) if preset else Config(env=config.env)
    try:
        return config_view(to_dict(config), to_dict(default))
    except ConfigError:  # parts that no file can name: an object made here
        return config_view(asdict(config), asdict(default))


@view_of.register
def session_view(session: Session) -> View:
    """What a session has open, and what to do with it."""
    config = session.config
    policy = session.policy
    weights = num_parameters(policy.model)
    device = next(policy.model.parameters()).device
    has_learner = "learner" in vars(session)
    facts = {
        "environment": getattr(session.family, "label", session.family.name),
        "policy": f"{config.policy.name}: {weights:,} weights, {len(policy.tokenizer):,} tokens, {device}",
        "engine": f"{config.kind_of('engine')}, {session.engine.context_length:,} tokens of context",
        "algorithm": f"{config.kind_of('algorithm')}, {config.train.group_size} trajectories of each of "
        f"{config.train.tasks_per_step} tasks a step",
        "learner": f"{session.learner.version} updates" if has_learner else "not made yet",
    }
    calls = ("wb.rollout(session, 2)", "wb.evaluate(session)", "wb.lint(session)")
    return facts_view("session", facts, calls)


@view_of.register
def outcome_view(outcome: StepOutcome) -> View:
    """The numbers of a step that was made here, each with what it means."""
    return show_metrics(outcome.metrics, title=f"step {outcome.step}")


@view_of.register
def score_view(score: Score) -> View:
    return scores_view([score])


def scores_view(scores: Sequence[Score], absent: Mapping[str, str] = {}) -> View:
    """Scores of policies on the same tasks, with their intervals, paired where `untrained` or `random` is among them.
    `absent`: baselines that there are none of, and why ({"solver": "none known"}).
    """
    known = getattr(scores, "known", {})
    policies = {score.policy for score in scores}
    beside = [Score.of_row(row) for row in known.get("rows", ()) if row["policy"] not in policies]
    return report_view(report([*beside, *scores], {**known.get("absent", {}), **absent}))


view_of.register(Scores, scores_view)


@view_of.register(list)
@view_of.register(tuple)
def list_view(values: Sequence[Score]) -> View:
    """A plain list of scores, like what `evaluate` returns. Raises DataError for a list of anything else."""
    if not values or not all(isinstance(value, Score) for value in values):
        return view_of.dispatch(object)(values)
    return scores_view(values)


@view_of.register
def batch_view(batch: Batch) -> View:
    """The sizes of a batch, and which of its columns are there."""
    later = ("old_logp_T", "ref_logp_T", "value_T", "final_value_N")
    absent = [name for name in later if getattr(batch, name) is None]
    rewards = batch.reward_N[batch.scored_N]
    mean = f"{len(rewards)}, mean reward {rewards.mean():.3g}" if len(rewards) else "none"
    eligible = int(batch.eligible_T.sum())
    facts = {
        "groups": len(set(batch.group_of_trajectory_N.tolist())),
        "trajectories": len(batch.reward_N),
        "scored": mean,
        "segments": len(batch.trajectory_of_segment_S),
        "turns": len(batch.turn_reward_K),
        "tokens": f"{len(batch.token_ids_T):,}",
        "eligible tokens": f"{eligible:,}, sampled by the policy in their own segment",
        "not computed": ", ".join(absent) or "nothing",
    }
    return facts_view("batch", facts, ("wb.show_estimators(groups)",))


@view_of.register
def estimated_credit_view(credit: Credit) -> View:
    """What an estimator computed, over the tokens that have a weight."""
    trained = credit.trained_T
    values = credit.advantage_T[credit.weight_T != 0]
    advantage = "none"
    if len(values):
        advantage = f"{values.min():+.3g} to {values.max():+.3g}, mean {values.mean():+.3g}"
    facts = {
        "tokens": f"{len(trained):,}, {int(trained.sum()):,} trained",
        "advantage": advantage,
        "returns": "none" if credit.return_T is None else "of a critic",
        **credit.notes,
    }
    if credit.widened:
        facts["widened"] = credit.widened
    return facts_view("credit", facts)


@view_of.register
def replay_view(report: ReplayReport) -> View:
    return text_view(report.text, title=f"replay of step {report.step}")
