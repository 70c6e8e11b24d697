"""One job in this process: train, measure, keep the result. What is finished is not done again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from experiments.algorithms.plan import Job, Terms, adjusted, cluster_of, config_of, key_of
from workbench.basics.canonical_json import read_sealed_json, sealed_json
from workbench.look.cells.train import resume_here, train_here
from workbench.rollouts.evaluate import Score, evaluate_baselines, evaluate_policy
from workbench.run.writer import make_folder, write_file
from workbench.training.config import to_dict
from workbench.training.reopening import reopen
from workbench.training.session import Session, open_session, rollout
from workbench.values import Task
from workbench.values.errors import WorkbenchError

KIND, VERSION = "algorithm-result", 1


def finished(job: Job, terms: Terms, out: Path) -> dict[str, Any] | None:
    """The result of a job that was done before with the same settings, tasks and code; else None."""
    path = _path(job, out)
    if not path.is_file():
        return None
    result = read_sealed_json(path, kind=KIND, version=VERSION)
    return result if result["key"] == key_of(job, terms) else None


def do(job: Job, terms: Terms, out: Path) -> dict[str, Any]:
    """The result of a job, made now and kept in `out`; a run that was cut off goes on. An error of ours is the result
    `{"failed": words}`, which is not kept: the next call tries again."""
    try:
        result = (
            _train(job, terms, out) if job.algorithm is not None else _measure_start(job, terms)
        )
    except WorkbenchError as error:
        return {"failed": f"{type(error).__name__}: {error}"}
    path = _path(job, out)
    make_folder(path.parent)
    write_file(path, sealed_json(result, kind=KIND, version=VERSION), replace=True)
    return read_sealed_json(path, kind=KIND, version=VERSION)  # as it will be read next time


def _path(job: Job, out: Path) -> Path:
    return out / "jobs" / f"{job.name}.json"


def _measure_start(job: Job, terms: Terms) -> dict[str, Any]:
    """Random play, the solver, the untrained policy; and which tasks go together."""
    began = time.process_time()
    session = open_session(config_of(job, terms.settings), quiet=True)
    tasks = _tasks(session, terms)
    scores = evaluate_baselines(
        tasks, family=session.family, seed=terms.seed, runner=session.runner
    )
    scores += _measure("untrained", session, tasks, terms)
    return {
        "key": key_of(job, terms),
        "rows": [score.row() for score in scores],
        "label": session.family.label,
        "clusters": [cluster_of(job.environment, task) for task in tasks],
        "cpu_seconds": {"training": 0.0, "measuring": time.process_time() - began},
    }


def _train(job: Job, terms: Terms, out: Path) -> dict[str, Any]:
    config, path = config_of(job, terms.settings), out / "runs" / f"{job.name}-{key_of(job, terms)}"
    began = time.process_time()
    make_folder(path.parent)
    run = resume_here(path) if path.is_dir() else train_here(config, path)
    trained = time.process_time()
    session = reopen(run, quiet=True)
    scores = _measure("trained", session, _tasks(session, terms), terms)
    metrics = run.metrics()
    return {
        "key": key_of(job, terms),
        "rows": [score.row() for score in scores],
        "run": run.name,
        "set": adjusted(job, terms.settings),
        "algorithm": to_dict(config)["algorithm"],
        "steps": len(metrics),
        "updates": int(metrics["updates"].sum()),
        "trajectories": len(metrics) * config.train.tasks_per_step * config.train.group_size,
        "cpu_seconds": {"training": trained - began, "measuring": time.process_time() - trained},
    }


def _tasks(session: Session, terms: Terms) -> list[Task]:
    return session.held_out_tasks(terms.first + terms.tasks)[terms.first :]


def _measure(name: str, session: Session, tasks: list[Task], terms: Terms) -> list[Score]:
    def play(tasks, attempts, config, address):
        return rollout(session, tasks, group_size=attempts, config=config, address=address)

    return evaluate_policy(name, tasks, play, config=session.config.collect, seed=terms.seed)
