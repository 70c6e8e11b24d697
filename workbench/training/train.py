"""Training is a loop over cells, and this is the door to it.

    tasks ─ rollout ─ store ─ batch ─ credit ─ update ─ store ─ sync ─ commit

`train_step` (training/step.py) is one turn of it and can be called from a notebook; `go_on` (training/loop.py) is the loop.
`train_here` runs it in this process from step 0 (what `workbench train`, torchrun and papermill end in), `resume_here`
(training/resume.py) from wherever a run was left; `train` and `resume` in notebook/live_run.py start that in a process of its
own.
"""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from accelerate.utils import broadcast_object_list, wait_for_everyone

from workbench.basics.extensions import has_service, service
from workbench.rollouts.evaluate import Score
from workbench.run.code import code_file
from workbench.run.recording import create_run
from workbench.run.store import Run, open_run
from workbench.training.config import Config, check_liveness, to_dict
from workbench.training.instruments import Instrument
from workbench.training.loop import Watchers, go_on
from workbench.training.schedule import schedule
from workbench.training.session import Session, check_prompts, open_session
from workbench.training.signals import StopRequested, stop_on_signals_if_alone
from workbench.training.starting import refuse_unstartable
from workbench.training.step import StepOutcome
from workbench.values.errors import StoreError


def train_here(
    config: Config,
    path: str | Path,
    *,
    on_step: Callable[[StepOutcome], None] | None = None,
    on_score: Callable[[int, list[Score]], None] | None = None,
    on_rollout: Callable[[int], Callable[..., None]] | None = None,
    on_note: Callable[[str], None] | None = print,
    instruments: Sequence[Instrument] = (),
) -> Run:
    """Train in this process until `config.train.steps` are done; returns the finished run.

    Evaluates random play, the solver and the untrained policy first, so that no later number stands alone (invariant 12).
    Under torchrun every process calls this; only the first one writes and is told of steps and scores. An interrupt or
    SIGTERM abandons the step under way; what is committed stays, and `resume_here` goes on. Raises ConfigError for
    contradictions, LearnerError after `train.max_empty_steps` steps in a row in which nothing could be trained,
    StoreError if the run folder exists. `on_note` is told, in words, what else was worth saying; `instruments` look at
    every step (training/instruments.py).
    """
    check_liveness(
        config, frozenset()
    )  # a config that was made in Python has not been through `load_config`
    refuse_unstartable(config)
    with (
        stop_on_signals_if_alone(signal.SIGTERM),
        explain_interruption(path),
        closing(open_session(config, keeps_first=False)) as session,
    ):
        first = (
            session.learner.is_main
        )  # made first of all: it asserts once more what accelerate made of the processes
        check_prompts(session)
        _ask_before(session, on_note if first else None)
        [path] = broadcast_object_list(
            [str(path)]
        )  # a name with a time in it may differ between processes
        run = None
        try:
            if first:
                code, words = code_file(to_dict(session.config))
                if words and on_note is not None:
                    on_note(words)
                run = create_run(path, to_dict(session.config), code=code)
            [plan] = broadcast_object_list([schedule(open_run(path), config) if first else None])
            go_on(
                session,
                run,
                path,
                plan,
                Watchers(on_step, on_score, on_rollout, on_note),
                instruments=instruments,
            )
        finally:
            if run is not None:
                run.close()
        wait_for_everyone()  # the others must not read what the first one is still writing
    return open_run(path)


def _ask_before(session: Session, on_note: Callable[[str], None] | None) -> None:
    """What is tried before the first step: an extension's, where it is there."""
    if has_service("ask_before_training"):
        service("ask_before_training", "training")(session, on_note)


@contextmanager
def explain_interruption(path: str | Path) -> Iterator[None]:
    """An interrupt of a run leaves this block with words: how far the run came, and how it goes on."""
    try:
        yield
    except KeyboardInterrupt as asked:
        command = f"workbench resume {shlex.quote(str(path))}"
        words = f"stopped; `{command}` goes on"
        try:
            done = len(open_run(path).steps())
            words = (
                f"stopped after {done} committed steps; `{command}` goes on with step {done + 1}"
            )
        except StoreError:  # so early that there is nothing to go on with
            words = f"stopped before {path} was made"
        raise StopRequested(words, getattr(asked, "signal", signal.SIGINT)) from None
