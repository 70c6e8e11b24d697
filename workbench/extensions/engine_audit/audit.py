"""The audit's entry point: sampler/trainer logprob mismatch, from a session, a run or a config.

    wb.audit("runs/first")             the newest checkpoint of a run, in a session of its own
    wb.audit(load_config("sokoban"))   what a config would start with
    wb.audit(session)                  a session in use: its engine is asked, and left as it was

It samples a few trajectories, asks for the whole distributions while it does, and runs the control (`control`). What it does is
said as it goes; where the gap is no more than rounding, no cause is looked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from workbench.engines import open_engine
from workbench.engines.base import Engine
from workbench.engines.intake import WeightNames
from workbench.engines.policy import num_parameters
from workbench.engines.recorder import Exchange, Journal
from workbench.extensions.engine_audit.claims import Claims, LogitsRecorder, claims_of
from workbench.extensions.engine_audit.control import Control, zero_control
from workbench.extensions.engine_audit.forward import NOW, Weights
from workbench.extensions.engine_audit.held import held_by
from workbench.extensions.engine_audit.older import before_last_update
from workbench.extensions.engine_audit.report import MismatchReport, Trainer, measure
from workbench.learn.batch import Batch
from workbench.learn.learner import Learner
from workbench.rollouts.collect import collect
from workbench.run.store import Run, open_run
from workbench.training import checkpoint
from workbench.training.config import PRESETS, Config, load_config
from workbench.training.reopening import reopen
from workbench.training.session import Session, open_session
from workbench.values import Group, trajectories_of
from workbench.values.errors import ConfigError, DataError, WorkbenchError

TASKS = 4
TRAJECTORIES = 4
SYNCS = 3
MOST = 10_000  # tasks, trajectories of each, syncs
LARGE = 20_000_000  # parameters of a policy whose control takes minutes


def say(words: str) -> None:
    """To whoever waits. In a terminal what is printed as a result stands on standard output, so that this goes beside it; a
    notebook draws what goes there as if something had failed."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    stream = sys.stdout if getattr(shell, "kernel", None) else sys.stderr
    print(words, file=stream, flush=True)


def audit(
    what: Session | Run | Config | str | os.PathLike,
    *,
    tasks: int = TASKS,
    attempts: int = TRAJECTORIES,
    step: int | None = None,
    control: bool | None = None,
    syncs: int = SYNCS,
    groups: Sequence[Group] | None = None,
    known: Mapping[str, Weights] | None = None,
    on_note: Callable[[str], None] = say,
) -> MismatchReport:
    """Hold engine and trainer against each other on the same ids, and say why they differ where they do.

    `what`: a session, a run (folder or open), a Config or a preset's name; `step`: which checkpoint of a run. `tasks` x
    `attempts` trajectories are sampled; `groups` are looked at instead, as the engine left them (then no whole
    distributions are known). `control` False leaves out the zero-learning-rate control, which opens an engine of its
    own where a session in use is audited (`syncs`: how often the same weights are handed over); None: it is left out where engine
    and trainer agree and the policy has more than 20 million parameters. `on_note` is told, in words, what is done. `known`: further sets
    of weights that the engine may hold instead of the learner's, by name; those that the session can work out (opened,
    one update ago, checkpoints) are known already. Raises DataError where nothing was sampled.
    """
    if min(tasks, attempts, syncs) < 1 or max(tasks, attempts, syncs) > MOST:
        raise ConfigError(
            f"an audit needs at least one task, attempt and sync, and at most {MOST:,} of each, got {tasks}, {attempts} "
            f"and {syncs}"
        )
    on_note("opening the policy, its engine and its learner")
    session, run, own = _opened(what, step)
    exchanges = ()
    recorder = None
    if groups is None:
        on_note(f"sampling {tasks} x {attempts} trajectories")
        groups, exchanges, recorder = _sample(session, tasks, attempts)
    on_note("the trainer's numbers, on the same ids")
    trajectories = trajectories_of(groups)
    claims = claims_of(trajectories)
    trainer = _trainer(session, run, groups, claims, known or {})
    collecting = session.config.collect
    report = measure(
        trajectories,
        trainer,
        exchanges=exchanges,
        recorder=recorder,
        temperature=collecting.temperature,
        top_p=collecting.top_p,
        claims=claims,
        about=_about(session, run),
        token_texts=session.chat.token_texts,
        tokenizer=session.chat.encoder.backend,
        on_note=on_note,
    )
    return _with_control(report, session, groups, control, syncs, own, on_note)


def _with_control(
    report: MismatchReport,
    session: Session,
    groups: Sequence[Group],
    control: bool | None,
    syncs: int,
    own: bool,
    on_note: Callable[[str], None],
) -> MismatchReport:
    """The report with the control, where it is asked for or takes no minutes."""
    size = num_parameters(session.policy.model)
    if control is None and report.clean and size > LARGE:
        return replace(report, control=Control(0, skipped=_left_out(size)))
    if control is False:
        return report
    on_note(
        f"the control: {syncs} syncs of the same weights, updates at learning rate 0, a planted change"
    )
    outcome = run_control(session, groups, syncs=syncs, engine=session.engine if own else None)
    outcome = replace(
        outcome, about="" if own else "on an engine opened anew, as the session's was"
    )
    return replace(report, control=outcome, causes=(*report.causes, *outcome.causes))


def _left_out(size: int) -> str:
    return (
        f"engine and trainer agree, and of {size / 1e6:,.0f} million parameters it takes minutes; audit(control=True) or --control "
        "runs it"
    )


def run_control(
    session: Session, groups: Sequence[Group], *, syncs: int = SYNCS, engine: Engine | None = None
) -> Control:
    """The zero-learning-rate control of a session; `engine` None: on a new one, as the session's was opened, so that
    the session's own keeps its weights and version."""
    if engine is None:
        config = replace(session.config.engine, device=str(session.policy.model.device))
        engine = open_engine(config, session.policy.model)
    learner = session.learner
    return zero_control(
        engine,
        session.policy.model,
        learner.weights,
        times=syncs,
        live=learner.weights(),
        zero_updates=lambda: zero_updates(session, groups),
        dtype=session.config.engine.dtype,
    )


def zero_updates(session: Session, groups: Sequence[Group]) -> tuple[int, Weights]:
    """A learner like the session's, from its weights, makes a step's updates at learning rate 0: (updates, weights).

    Rewards are planted (every other trajectory earns 1), so that there is something that a learning rate would learn.
    """
    config = replace(session.config.learner, lr=0.0, weight_decay=0.0, warmup_updates=0)
    reference = session.policy.model if "ref_logp_T" in session.config.algorithm.requires else None
    learner = Learner(
        session.policy.model,
        session.config.algorithm,
        config,
        critic=session.config.critic,
        reference=reference,
    )
    tensors, state = session.learner.state()
    learner.load_state(tensors, state, is_own=True)
    batch = learner.facts(_with_planted_rewards(Batch.from_groups(groups)))
    reports = learner.update(batch, session.config.algorithm.credit(batch), step=0)
    made = sum(report.skipped is None for report in reports)
    if not made:
        raise DataError(
            f"no update at learning rate 0 could be made, so the control says less: {reports[0].skipped}"
        )
    return made, learner.weights()


def _with_planted_rewards(batch: Batch) -> Batch:
    """The batch with planted rewards: 1 for every other trajectory, at its last turn; everything is scored."""
    reward_N = (torch.arange(batch.num_trajectories) % 2).double()
    turn_reward_K = torch.zeros_like(batch.turn_reward_K)
    ends = batch.turn_offsets[1:]
    starts = batch.turn_offsets[:-1]
    has_turns = ends > starts
    turn_reward_K[ends[has_turns] - 1] = reward_N[has_turns]
    return replace(
        batch,
        reward_N=reward_N,
        scored_N=torch.ones_like(batch.scored_N),
        turn_reward_K=turn_reward_K,
        outcome_N=torch.full_like(batch.outcome_N, float("nan")),
    )


# ------------------------------------------------------------------------------------------------ what is known


def _opened(what: Any, step: int | None) -> tuple[Session, Run | None, bool]:
    """(session, the run it is of, whether it is ours alone)"""
    if isinstance(what, Session):
        return what, None, False
    if isinstance(what, Config):
        return open_session(what), None, True
    if isinstance(what, (str, os.PathLike)):
        if str(what) in PRESETS or str(what).endswith(".toml"):
            return open_session(load_config(str(what))), None, True
        what = open_run(what)
    if not isinstance(what, Run):
        raise DataError(
            f"an audit takes a session, a run, a Config or a preset's name, got {type(what).__name__}"
        )
    return reopen(what, step=step), what, True


def _about(session: Session, run: Run | None) -> str:
    version = session.learner.version
    weights = "as opened" if not version else f"after {version} updates"
    return f"{run.name if run is not None else session.config.policy.name}, weights {weights}"


def _sample(
    session: Session, tasks: int, attempts: int
) -> tuple[list[Group], tuple[Exchange, ...], LogitsRecorder]:
    """A few trajectories of training tasks, and what was recorded of the engine while they were sampled."""
    journal = Journal(session.engine)
    with LogitsRecorder(journal) as recorder:
        groups = collect(
            session.train_tasks(0, tasks),
            family=session.family,
            engine=journal,
            chat=session.chat,
            config=session.config.collect,
            group_size=attempts,
            runner=session.runner,
            address=(session.config.seed, "audit", session.learner.version),
        )
    return groups, journal.exchanges, recorder


def _trainer(
    session: Session,
    run: Run | None,
    groups: Sequence[Group],
    claims: Claims,
    known: Mapping[str, Weights],
) -> Trainer:
    learner = session.learner
    names = WeightNames.of(session.policy.model)
    sets: dict[str, Weights | None] = {NOW: learner.weights()}
    words = {NOW: ""}
    versions = {NOW: learner.version}
    if learner.version:
        versions |= {"before": learner.version - 1, "opened": 0}
        sets["before"] = before_last_update(learner)
        words["before"] = "the weights of one update ago"
        sets["opened"] = session.policy.model.state_dict()
        words["opened"] = "the weights that the policy was opened with"
    for name, version, saved in _checkpoints(learner, run):
        sets[name] = _with_tied_names(saved, names)
        versions[name] = version
        words[name] = f"the weights of the {name}"
    for name, weights in known.items():
        sets[name] = _with_tied_names(weights, names)
        words[name] = f"the weights {name!r}"
    there = {name: weights for name, weights in sets.items() if weights is not None}
    return Trainer(
        session.policy.model,
        there,
        {name: words[name] for name in there},
        _trainer_logp(learner, groups, claims),
        learner.config.precision == "bf16",
        learner.version,
        versions,
    ).beside(held_by(session.engine, there, session.policy.model))


def _checkpoints(learner: Learner, run: Run | None) -> Iterator[tuple[str, int, Weights]]:
    """Saved weights that are neither the untrained ones nor those of now, with a name and their version."""
    for step in checkpoint.steps(run.path) if run is not None else ():
        try:
            saved = checkpoint.load(run.path, step)
        except (
            WorkbenchError
        ):  # a damaged one is told by whoever resumes; here it is one hypothesis less
            continue
        version = saved.state["learner"]["version"]
        if version not in (learner.version, 0):
            weights = learner.saved_weights(saved.tensors["model"])
            yield f"checkpoint of step {step}", version, weights


def _trainer_logp(learner: Learner, groups: Sequence[Group], claims: Claims) -> np.ndarray:
    """The trainer's own numbers, by its own way (micro-batches, packing, autocast), for the claims [M]."""
    batch = Batch.from_groups(groups)
    logp_T = learner.logprobs(batch, batch.eligible_T).double().numpy()
    return logp_T[np.flatnonzero(batch.eligible_T.numpy())[: len(claims)]]


def _with_tied_names(weights: Weights, names: WeightNames) -> dict[str, torch.Tensor]:
    """Every name of a tie, of weights that are given once."""
    chosen = names.choose(weights)
    full: dict[str, torch.Tensor] = {}
    for tied in names.tied:
        full |= dict.fromkeys(tied, chosen[tied[0]])
    return full
