"""Go on with a run that was killed, stopped, or ran into a full disk; from its folder alone.

    workbench resume runs/first                              wait for it in the terminal
    workbench resume runs/first --set train.steps=100        and give it more steps

The end is, bit for bit, that of a run which was never interrupted. What may be changed on the way is named below; any
other setting would make the first steps another run's.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list, wait_for_everyone

from workbench.rollouts.evaluate import Score
from workbench.run.code import changed_code, named_code, origins_now, why_foreign
from workbench.run.recording import RunWriter, reopen_run
from workbench.run.store import Run, open_run
from workbench.training.compare_repeated import drift_since
from workbench.training.config import Config, changed_config
from workbench.training.instruments import Instrument
from workbench.training.loop import Watchers, check_data, check_policy, go_on, machine_of
from workbench.training.schedule import Schedule, schedule
from workbench.training.session import Session, check_prompts, first_process, open_session
from workbench.training.signals import stop_on_signals_if_alone
from workbench.training.starting import refuse_unstartable
from workbench.training.step import StepOutcome
from workbench.training.stored import why_unfetched
from workbench.training.train import explain_interruption
from workbench.values.errors import ConfigError, PolicyError

# How long, how often, when to give up: no step that was made would have been another one.
FREE = frozenset(
    {
        "train.steps",
        "train.evaluate_every",
        "train.checkpoint_every",
        "train.keep_checkpoints",
        "train.max_empty_steps",
        "train.on_alarm",
        "learner.max_bad_updates",
    }
)
# Where the policy lies, not which one it is: its files must be those that the run began with.
MOVED = frozenset({"policy.name", "env.data.files", "env.data.heldout"})
# The same mathematics in other portions or on another machine: the last bits may differ, and that is written down.
ROUNDING = frozenset(
    {
        "learner.num_processes",
        "learner.sharding",
        "learner.micro_batch_tokens",
        "policy.device",
        "engine.device",
        "engine.max_rows",
        "engine.prefill_tokens",
        "engine.cache_tokens",
        "collect.env_deadline_s",
        "collect.env_workers",
        "collect.env_retries",
    }
)


@dataclass(frozen=True)
class ResumePlan:
    """What `resumption` found out about going on with `stored`. `config`: what is in force from now on; `changed`: dotted
    setting -> (old, new); `other_code`: in words, what is not the code that the run was made with."""

    stored: Run
    config: Config
    changed: Mapping[str, tuple[Any, Any]]
    other_code: tuple[str, ...]

    def said(self) -> str:
        """In words, that nothing is left to do; "" where something is."""
        if not is_complete(self.stored, self.config):
            return ""
        noted = "".join(f". {words}" for words in self.other_code)
        return f"{self.stored.path} is already complete: {len(self.stored.steps())} steps; nothing was changed{noted}"


def resume_here(
    path: str | Path | ResumePlan,
    settings: Mapping[str, Any] = {},
    *,
    on_step: Callable[[StepOutcome], None] | None = None,
    on_score: Callable[[int, list[Score]], None] | None = None,
    on_rollout: Callable[[int], Callable[..., None]] | None = None,
    on_note: Callable[[str], None] | None = print,
    instruments: Callable[[Config], Sequence[Instrument]] = lambda config: (),
    trust: bool = False,
    accept_changed_code: bool = False,
) -> Run:
    """Go on with the run in `path`, in this process, until its steps are done; returns the finished run.

    It starts from the newest sound checkpoint and repeats the committed steps after it from their stored trajectories,
    which is exact with any engine; each must be reproduced, bit for bit. `settings` (dotted keys) changes what may be
    changed; `on_note` is told what is done, in words; `instruments` makes those that look at new steps. A complete run
    is left exactly as it is. `trust`: as in `open_run`; `accept_changed_code`: go on although code that the run names is
    not what it was made with. Whoever has asked `resumption` already hands over what it said in place of the path, and
    then no settings.

    Raises StoreError where the folder is damaged, of a newer format, or being written by another process; ConfigError
    for a setting that cannot be changed; PolicyError where the policy's files are others now; LearnerError where a
    step is not reproduced.
    """
    if isinstance(path, ResumePlan):
        plan = path
    else:
        plan = resumption(path, settings, trust=trust, accept_changed_code=accept_changed_code)
    stored = plan.stored
    path = stored.path
    watchers = Watchers(on_step, on_score, on_rollout, on_note if first_process() else None)
    if words := plan.said():
        watchers.note(words)
        return stored
    with stop_on_signals_if_alone(signal.SIGTERM), explain_interruption(path):
        run = session = None
        try:
            run = reopen_run(path) if first_process() else None  # from here on nobody else writes
            session = _open(plan.config)
            check_policy(session, stored)
            check_data(session, stored)
            due = _agreed_schedule(session, run, plan)
            drift = _announce(session, run, plan, due, watchers) if run is not None else ""
            if session.chooser is not None:
                session.chooser.recall(stored, due.start)
            go_on(session, run, path, due, watchers, drift, instruments(plan.config))
        finally:
            if session is not None:
                session.close()
            if run is not None:
                run.close()
        wait_for_everyone()
    return open_run(path)


def _agreed_schedule(session: Session, run: RunWriter | None, plan: ResumePlan) -> Schedule:
    """What is due, as the process that writes reads it off the folder."""
    # The learner is made first: it asserts the number of processes.
    world = session.learner and session.place[1]
    check_prompts(session)
    due = schedule(plan.stored, plan.config) if run is not None else None
    if world > 1:
        [due] = broadcast_object_list([due])
    return due


def is_complete(stored: Run, config: Config) -> bool:
    """Whether nothing is left to do: all steps, the last checkpoints and every evaluation are there and sound."""
    return schedule(stored, config).complete


def resumption(
    run: Run | str | Path,
    settings: Mapping[str, Any] = {},
    *,
    trust: bool = False,
    accept_changed_code: bool = False,
) -> ResumePlan:
    """With which settings and which code a run would go on. `trust`: as in `open_run`.

    Raises ConfigError for what cannot be changed, and for code that cannot be had here, or is not what it was where
    something is left to do; each names the cause and what to do instead.
    """
    stored = open_run(run, trust=trust)
    if reason := why_foreign(stored):
        raise ConfigError(f"run {stored.name} is not gone on with: {reason}")
    try:
        config, changed = changed_config(stored.config, settings)
    except ConfigError as error:
        if settings or named_code(stored.config):
            raise
        raise ConfigError(
            f"the configuration of {stored.path} is not one of this version of the workbench: {error}. "
            "Resume the run with the version that it was made with"
        ) from error
    if "policy.name" not in changed and (reason := why_unfetched(stored, config)):
        raise PolicyError(f"run {stored.name} is not gone on with: {reason}")
    allowed = FREE | MOVED | ROUNDING
    refused = [
        f"{key} ({old!r}, now {new!r})" for key, (old, new) in changed.items() if key not in allowed
    ]
    done = len(stored.steps())
    if refused:
        raise ConfigError(
            f"{', '.join(refused)} cannot be changed in a run that has begun: {done} steps were made with "
            f"the old value. Start a new run with it; what can be changed: "
            f"{', '.join(sorted(FREE))}, {', '.join(sorted(MOVED))} (the same files elsewhere), and at the price "
            f"of other last bits {', '.join(sorted(ROUNDING))}"
        )
    if config.train.steps < done:
        raise ConfigError(
            f"train.steps = {config.train.steps}, but {done} steps are committed and stay; give "
            f"train.steps at least {done}"
        )
    other = tuple(changed_code(stored))
    if other and not accept_changed_code and not is_complete(stored, config):
        raise ConfigError(
            f"{'; '.join(other)}. What was trained by the old code would go on by the new one: restore it, or go "
            "on all the same with --accept-changed-code (in Python accept_changed_code=True), which is "
            "written down in the run"
        )
    return ResumePlan(stored, config, changed, other)


def _open(config: Config) -> Session:
    refuse_unstartable(config)
    try:
        return open_session(config, keeps_first=False)
    except PolicyError as error:
        stop = "" if str(error).endswith(("?", ".")) else "."
        raise PolicyError(
            f"{error}{stop} Where the policy of this run lies elsewhere now, or its relative name was "
            "given in another folder, resume with the setting policy.name=FOLDER"
        ) from error


def _announce(
    session: Session, run: RunWriter, plan: ResumePlan, due: Schedule, watchers: Watchers
) -> str:
    """Say and write down how the run goes on; returns in words what makes its bits no longer promised."""
    stored = plan.stored
    changed = plan.changed
    for reason in due.damaged:
        watchers.note(f"a checkpoint is passed over: {reason}")
    begin = f"the checkpoint of step {due.start}" if due.start else "the untrained policy"
    repeated = due.committed - due.start
    steps = "1 step is" if repeated == 1 else f"{repeated} steps are"
    watchers.note(
        f"{due.committed} of {due.train.steps} steps are committed; going on from {begin}"
        + (f", {steps} repeated from what is stored" if repeated else "")
    )
    for key, (old, new) in changed.items():
        watchers.note(f"{key}: {old!r} -> {new!r}")
    parts = [drift_since(stored, due.start, machine_of(session))]
    parts += [f"{key} ({old}, now {new})" for key, (old, new) in changed.items() if key in ROUNDING]
    drift = "; ".join(filter(None, parts))
    if drift:
        watchers.note(
            f"other than when it began: {drift}. From here on it need not be, bit for bit, the run that was "
            "never interrupted; this is written down in it"
        )
    if changed:
        run.change_settings(changed)
    if plan.other_code:
        watchers.note("; ".join(plan.other_code))
        run.change_code(origins_now(stored.config))
    return drift
