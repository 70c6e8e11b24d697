"""The loop over steps, one for every run: a fresh run goes on from step 0, a resumed one from its checkpoint.

    steps up to the checkpoint    nothing: its weights are loaded
    committed steps after it      repeated from their stored trajectories, and compared with what is stored
    the others                    made anew, and committed

After each step comes what belongs there: checkpoint, evaluation. So whatever a kill took is made again where an
uninterrupted run would have made it, from the same weights and therefore with the same bytes.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workbench.engines.policy import INDEX
from workbench.learn.rounding import machine_facts
from workbench.rollouts.evaluate import Score, report
from workbench.rollouts.metrics import rollout_metrics
from workbench.run.recording import RunWriter
from workbench.run.store import Run, open_run, step_name
from workbench.training import checkpoint
from workbench.training.ahead import Ahead
from workbench.training.compare_repeated import compare
from workbench.training.instruments import Instrument
from workbench.training.on_alarm import AlarmWatch, open_alarms
from workbench.training.schedule import Schedule
from workbench.training.session import Session, baselines, evaluate, notes_of
from workbench.training.step import Clock, StepOutcome, repeat_step, synchronise, train_step
from workbench.values import Task, trajectories_of
from workbench.values.errors import DataError, LearnerError, PolicyError
from workbench.worlds.baselines import none_known


@dataclass(frozen=True)
class Watchers:
    """Who is told what: each new step, each evaluation, what to be called with during a rollout, and plain words."""

    on_step: Callable[[StepOutcome], None] | None = None
    on_score: Callable[[int, list[Score]], None] | None = None
    on_rollout: Callable[[int], Callable[..., None]] | None = None
    on_note: Callable[[str], None] | None = None

    def note(self, words: str) -> None:
        if self.on_note is not None:
            self.on_note(words)


@dataclass(frozen=True, eq=False)
class _Loop:
    """`run` writes, on the first process only; `stored` reads, on all. `drift`: in words, what of the machine is not as
    it was when the steps were made that are repeated now; empty where all is the same."""

    session: Session
    run: RunWriter | None
    stored: Run
    schedule: Schedule
    watchers: Watchers
    drift: str
    instruments: tuple[Instrument, ...]  # what looks at every new step
    ahead: Ahead | None  # what samples the next one meanwhile; None: train.staleness is 0
    alarms: AlarmWatch  # what looks like a collapse, and what was done about it


def go_on(
    session: Session,
    run: RunWriter | None,
    path: str | Path,
    schedule: Schedule,
    watchers: Watchers,
    drift: str = "",
    instruments: Sequence[Instrument] = (),
) -> None:
    """Bring the run in `path` from where `schedule` says it stands to its end. Every process calls it, with the same
    schedule; the one that writes hands in `run`.

    Raises LearnerError where a repeated step is not reproduced, and after `train.max_empty_steps` steps in a row
    that taught nothing.
    """
    stored = open_run(path)
    if hasattr(session.family, "keep_in"):  # what it must not lose before a step is committed
        session.family.keep_in(path)
    train = session.config.train
    ahead = Ahead(session, tuple(instruments), train.steps) if train.staleness else None
    loop = _Loop(
        session,
        run,
        stored,
        schedule,
        watchers if run is not None else Watchers(),
        drift,
        tuple(instruments),
        ahead,
        open_alarms(stored, train.on_alarm),
    )
    if schedule.committed < session.config.train.steps:
        for instrument in instruments:
            instrument.resume(stored)
    if run is not None:
        _begin(loop)
    scores = _baselines(loop)
    if schedule.start:
        _load(loop, path)
    if run is not None:
        _tidy(loop)
    try:
        _steps(loop, scores)
    finally:
        if ahead is not None:
            ahead.stop()


def _load(loop: _Loop, path: str | Path) -> None:
    """The learner of the checkpoint; and, where the step after it is the first new one, its trajectories by older weights."""
    schedule = loop.schedule
    ahead = loop.ahead
    _, tensors, state = checkpoint.load(path, schedule.start)
    loop.session.learner.load_state(tensors, state["learner"])
    if ahead is not None and schedule.start == schedule.committed < schedule.train.steps:
        if state["sampler_version"] != loop.session.engine.policy_version:
            loop.session.engine.sync(tensors["sampler"], state["sampler_version"])
        ahead.begin_as_it_is(schedule.start + 1, start=True)


def _steps(loop: _Loop, scores: list[Score]) -> None:
    session = loop.session
    schedule = loop.schedule
    train = session.config.train
    empty = schedule.empty
    for step in range(schedule.start, train.steps + 1):
        outcome = None
        if step > schedule.start:
            outcome = _repeat(loop, step) if step <= schedule.committed else _make(loop, step)
            empty = 0 if outcome.updates else empty + 1
        if step >= schedule.committed and empty >= train.max_empty_steps:
            raise LearnerError(_stuck(loop, step, empty, outcome))
        if step and schedule.evaluates(step):
            if loop.ahead is not None:
                loop.ahead.wait()
            synchronise(session)
            _record(loop, step, [*scores, *evaluate(session, name="trained")])
        if step and step >= schedule.committed and loop.run is not None:
            loop.alarms.look(step, outcome, loop.run, loop.watchers.note)
        loop.alarms.act(step, session.learner)


def _begin(loop: _Loop) -> None:
    """What is written down before the first step."""
    policy = loop.session.policy
    run = loop.run
    if _policy_event(loop.stored) is None:
        run.event(
            {
                "kind": "policy",
                "name": policy.name,
                "fingerprint": policy.fingerprint,
                "files": dict(policy.files),
            }
        )
    run.note_machine(machine_of(loop.session))
    for note in notes_of(loop.session.engine, policy, loop.session.config):
        run.event({"kind": "note", "said": note})


def _tidy(loop: _Loop) -> None:
    """Take away the checkpoints that are too many: a kill may have come before it, or fewer are wanted now. Neither the
    one that the run goes on from nor the newest sound one, however many damaged ones are newer."""
    run = loop.run
    keep = loop.session.config.train.keep_checkpoints
    start = loop.schedule.start
    steps = checkpoint.steps(run)
    if len(steps) > keep:
        newer = [step for step in reversed(steps) if step > start]
        sound = next((step for step in newer if checkpoint.damage(run, step) is None), start)
        checkpoint.prune(run, keep, spared={loop.schedule.start, sound, *loop.alarms.needed})


def check_policy(session: Session, stored: Run) -> None:
    """Raise PolicyError where the policy's files are not those that the run began with."""
    policy = session.policy
    known = _policy_event(stored) or {}
    differ = []
    fingerprint = known.get("fingerprint")
    if fingerprint not in (None, policy.fingerprint):
        differ.append(f"its weights had the fingerprint {fingerprint}, now {policy.fingerprint}")
    files = known.get("files", policy.files)  # a run of an earlier version noted the weights alone
    every = sorted({*files, *policy.files})
    names = [
        name
        for name in every
        # Earlier versions did not note the index of weight files, which their fingerprint depends on.
        if files.get(name) != policy.files.get(name) and (name in files or not name.endswith(INDEX))
    ]
    differ += [f"changed, new or gone since: {', '.join(names)}"] if names else []
    if differ:
        raise PolicyError(
            f"the policy {policy.name!r} is not the one that {stored.path} began with: "
            f"{'; '.join(differ)}. Put the former files back, or start a new run with these"
        )


def check_data(session: Session, stored: Run) -> None:
    """Raise DataError where the rows of a data set are not those that the run's last step was drawn from."""
    steps = stored.steps()
    if not steps or not hasattr(session.family, "task_seeds"):
        return
    for task, group in zip(session.train_tasks(steps[-1]), stored.groups(steps[-1]), strict=True):
        if _row_of(task) != _row_of(group.task):
            raise DataError(
                f"step {steps[-1]} of {stored.path} was drawn from other rows: task {group.task.id!r} is "
                f"{task.id!r} now, or one of the files' rows has changed. Put the former files back, or start a "
                "new run with these"
            )


def _row_of(task: Task) -> dict[str, Any]:
    return dict(task.payload) | {"metadata": dict(task.metadata), "id": task.id}


def _policy_event(stored: Run) -> dict[str, Any] | None:
    return next((event for event in stored.events() if event["kind"] == "policy"), None)


def machine_of(session: Session) -> dict[str, Any]:
    return machine_facts(session.policy.model.device, session.place[1])


# ------------------------------------------------------------------------------------------------ steps


def _make(loop: _Loop, step: int) -> StepOutcome:
    """A new step. Its metrics line commits it; the clock is told afterwards, so that it knows what that cost."""
    run = loop.run
    watchers = loop.watchers
    if loop.ahead is None:
        synchronise(loop.session)
    sampler = _sampler(loop, step)
    is_first = step == max(loop.schedule.committed, loop.schedule.start) + 1
    outcome = train_step(
        loop.session,
        step,
        run,
        watchers.on_rollout(step) if watchers.on_rollout else None,
        start=is_first,
        instruments=loop.instruments,
        ahead=loop.ahead,
    )
    clock = Clock(dict(outcome.clock))
    if run is not None:
        run.commit_step(step, outcome.metrics)
    clock.lap("store")
    _save_if_due(loop, step, sampler)
    clock.lap("checkpoint")
    if run is not None:
        run.write_clock(step, clock.laps | clock.idle())
    outcome = replace(outcome, clock=clock.laps)
    if outcome.lint is not None and not outcome.lint.ok:  # lint.mode = "warn"
        watchers.note(
            f"step {step}: the lint found errors by {', '.join(outcome.lint.named)}; "
            f"`workbench lint {shlex.quote(str(loop.stored.path))} --step {step}` says where"
        )
    if watchers.on_step is not None:
        watchers.on_step(outcome)
    return outcome


def _repeat(loop: _Loop, step: int) -> StepOutcome:
    """A committed step once more. Where it is not reproduced, that is either explained and written down, or the
    end."""
    sampler = _sampler(loop, step)
    if loop.ahead is not None and step == loop.schedule.committed:
        loop.ahead.begin(step + 1, start=True)
    outcome = repeat_step(loop.session, step, loop.stored.groups(step))
    unequal = compare(loop.stored, outcome) if loop.run is not None else []
    if unequal and not (loop.drift and all(difference.rounding for difference in unequal)):
        raise LearnerError(_not_again(loop, step, [difference.text for difference in unequal]))
    if unequal:
        names = list(dict.fromkeys(difference.what for difference in unequal))
        loop.run.event({"kind": "rounding", "step": step, "differs": names, "because": loop.drift})
        loop.watchers.note(
            f"step {step} is reproduced within rounding only ({', '.join(names)}): {loop.drift}"
        )
    _save_if_due(loop, step, sampler)
    return outcome


def _not_again(loop: _Loop, step: int, texts: list[str]) -> str:
    cause = (
        f"Other since then: {loop.drift}; but that is more than rounding. Put it back as it was, and resume"
        if loop.drift
        else "Machine, threads, versions and code are as they were, so a file of the run was changed in a way that "
        "fits its seals, or memory is at fault. Resume on another machine, or from a copy of the run"
    )
    shown = "; ".join(texts[:3]) + (f"; and {len(texts) - 3} more" if len(texts) > 3 else "")
    return (
        f"step {step} of {loop.stored.path} is not reproduced from its stored trajectories: {shown}. {cause}. "
        "Its committed steps are untouched"
    )


def _stuck(loop: _Loop, step: int, empty: int, outcome: StepOutcome | None) -> str:
    groups = outcome.groups if outcome is not None else loop.stored.groups(step)
    errors = [trajectory.error for trajectory in trajectories_of(groups) if trajectory.error]
    fault = f"; the first fault: {errors[0]}" if errors else ""
    metrics = rollout_metrics(groups)
    chosen = loop.session.config.algorithm.filter
    filtered = ""
    notes = outcome.metrics if outcome is not None else loop.stored.metrics_line(step)
    if notes.get("credit_filter_kept") == 0 and metrics["unscored"] < sum(map(len, groups)):
        filtered = f"the filter ({chosen.label}) left out every trajectory; "
    return (
        f"{empty} {'step' if empty == 1 else 'steps'} in a row taught nothing (step {step}: {filtered}"
        f"{metrics.get('flat_groups', 0):.0%} of the groups have zero variance, {metrics['unscored']:.0f} trajectories "
        f"unscored{fault}). Look at them with `workbench show {shlex.quote(str(loop.stored.path))} {step}`; a policy "
        "that always or never succeeds leaves nothing to compare"
    )


# ------------------------------------------------------------------------------------------------ what follows a step


def _baselines(loop: _Loop) -> list[Score]:
    """Random play, the solver and the untrained policy: as measured when the run began, else measured now. The engine
    still has the weights that it was opened with."""
    if 0 in loop.schedule.evaluations:
        scores = baselines(loop.session) + evaluate(loop.session, name="untrained")
        _record(loop, 0, scores)
        # Their trajectories are stored with this step, not again with each other one.
        return [replace(score, played=()) for score in scores]
    rows = loop.stored.evaluations()[step_name(0)]["rows"]
    return [Score.of_row(row) for row in rows]


def _record(loop: _Loop, step: int, scores: list[Score]) -> None:
    if loop.run is not None:
        for score in scores:
            if score.played:
                loop.run.write_trajectories(
                    step_name(step), f"{score.policy}-{score.mode}", score.played, step=step
                )
        loop.run.write_evaluation(
            step_name(step), {"step": step, **report(scores, none_known(loop.session.family))}
        )
    if loop.watchers.on_score is not None:
        loop.watchers.on_score(step, scores)


def _sampler(loop: _Loop, step: int) -> tuple[dict[str, Any], int] | None:
    """Before a step that is saved: the weights that sample the next one while this one is learned from, and their version."""
    if loop.ahead is None or not loop.schedule.saves(step):
        return None
    learner = loop.session.learner
    weights = learner.weights()  # every process takes part in putting them together
    copies = {}
    if loop.run is not None:
        copies = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}
    return copies, learner.version


def _save_if_due(loop: _Loop, step: int, sampler: tuple[dict[str, Any], int] | None) -> None:
    """The process that writes saves; all take part, for each may hold a part of the weights."""
    learner = loop.session.learner
    if loop.schedule.saved_at(step):
        learner.reduce_moments(loop.schedule.train.checkpoint_moments)
    if loop.schedule.saves(step):
        tensors, state = learner.state(kept=loop.run is not None, copied=False)
        more: dict[str, Any] = {}
        if sampler is not None:
            tensors["sampler"], more["sampler_version"] = sampler
        if loop.run is not None:
            keep = loop.session.config.train.keep_checkpoints
            checkpoint.save(
                loop.run,
                step,
                tensors,
                {"learner": state, "step": step, **more},
                keep=keep,
                spared=loop.alarms.needed,
            )
