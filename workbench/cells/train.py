"""Training is a loop over cells, and this is the door to it.

    tasks ─ rollout ─ store ─ batch ─ credit ─ update ─ store ─ sync ─ commit

`train_step` (cells/step.py) is one turn of it and can be called from a notebook; `go_on` (cells/loop.py) is the loop.
`train_here` runs it in this process from step 0 (what `workbench train`, torchrun and papermill end in), `resume_here`
(cells/resume.py) from wherever a run was left; `train` and `resume` in cells/running.py start that in a process of its
own.
"""
from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

from accelerate.utils import broadcast_object_list, wait_for_everyone

from workbench.cells.loop import Watchers, go_on
from workbench.cells.schedule import schedule
from workbench.cells.step import StepOutcome, train_step  # noqa: F401  (part of this surface)
from workbench.cells.stopping import heeding_if_alone, stopped_runs_say_so
from workbench.config import Config, check_liveness, to_dict
from workbench.evaluation import Score
from workbench.session import open_session
from workbench.store import Run, create_run, open_run


def train_here(config: Config, path: str | Path, *, on_step: Callable[[StepOutcome], None] | None = None,
               on_score: Callable[[int, list[Score]], None] | None = None,
               on_rollout: Callable[[int], Callable[..., None]] | None = None) -> Run:
    """Train in this process until `config.train.steps` are done; returns the finished run.

    Evaluates random play, the solver and the untrained policy first, so that no later number stands alone (law 12).
    Under torchrun every process calls this; only the first one writes and is told of steps and scores. An interrupt or
    SIGTERM abandons the step under way; what is committed stays, and `resume_here` goes on. Raises ConfigError for
    contradictions, LearnerError after `train.max_empty_steps` steps in a row in which nothing could be trained,
    StoreError if the run folder exists.
    """
    check_liveness(config, frozenset())  # a config that was made in Python has not been through `load_config`
    with heeding_if_alone(signal.SIGTERM), stopped_runs_say_so(path):
        session = open_session(config)
        first = session.learner.is_main  # made first of all: it asserts the number of processes
        [path] = broadcast_object_list([str(path)])  # a name with a time in it may differ between processes
        run = create_run(path, to_dict(config)) if first else None
        try:
            [plan] = broadcast_object_list([schedule(open_run(path), config) if first else None])
            go_on(session, run, path, plan, Watchers(on_step, on_score, on_rollout))
        finally:
            if run is not None:
                run.close()
        wait_for_everyone()  # the others must not read what the first one is still writing
    return open_run(path)
