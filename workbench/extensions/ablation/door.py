"""The one door to an ablation: from a notebook `wb.ablate(plan)`, from a terminal `workbench ablate PLAN.toml`.

OUT/NAME.declared.json    what was declared before the first run, sealed
OUT/jobs, locks, notebooks, runs    see `work`
OUT/results.tsv           one line a job
OUT/NAME.ipynb            the report: a notebook that can be run again; NAME.html, .md, .png and .json beside it
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.basics.annotated import checked_methods
from workbench.basics.canonical_json import check_name
from workbench.extensions.ablation.cells import ArmTable, read_table
from workbench.extensions.ablation.declared import declare, held_against
from workbench.extensions.ablation.drive import (
    DONE,
    WAITING,
    JobSettings,
    JobState,
    Say,
    active_rows,
    drive,
    jobs_view,
    tally,
)
from workbench.extensions.ablation.forecast import forecast
from workbench.extensions.ablation.frames import frame_of, results_are_of, write_results
from workbench.extensions.ablation.gpus import gpus_here, most_at_once
from workbench.extensions.ablation.jobs import LOCAL
from workbench.extensions.ablation.notebooks import run_notebook
from workbench.extensions.ablation.plan import REPORT, Job, Plan, check, written
from workbench.extensions.ablation.reading import PLAN_SUFFIX, name_of_plan, read_plan
from workbench.extensions.ablation.schedulers import AT_ONCE, scheduler_type
from workbench.extensions.ablation.tuning import (
    all_states,
    check_tuning,
    choose,
    open_trials,
    tuned,
)
from workbench.extensions.ablation.views.plans import MOST_LINES, show_forecast
from workbench.look.live import LiveState, LiveView, Status
from workbench.run.store import Run, open_run
from workbench.run.writer import FolderLock, make_folder, write_file
from workbench.values import View
from workbench.values.errors import ConfigError, DataError, WorkbenchError, shortened
from workbench.values.view import HasView

if TYPE_CHECKING:
    import pandas as pd

Source = str | os.PathLike | Mapping[str, Any]


@dataclass(frozen=True)
class PlanPart:
    """Which part of which plan, kept where: what the report is made of, too."""

    path: Path
    out: Path
    plan: Plan
    whole: Plan
    seeds: tuple[int, ...]
    arms: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self) -> dict[str, str]:
        """As the report's notebook takes them."""
        return {
            "plan": str(self.path),
            "out": str(self.out),
            "seeds": " ".join(map(str, self.seeds)),
            "arms": " ".join(self.arms),
            "settings": written(self.settings),
        }


def ask(
    source: Source,
    out: str | os.PathLike | None = None,
    *,
    seeds: Sequence[int] = (),
    arms: Sequence[str] = (),
    settings: Mapping[str, Any] = {},
    name: str = "ablation",
) -> PlanPart:
    """Read a plan and look at every arm. ConfigError for what is wrong with it, and for one that is not what was
    declared in the folder. A mapping is written into the folder as NAME.plan.json, so that everything can be found
    there."""
    if not isinstance(source, Mapping):
        path = Path(source)
        folder = Path(out or Path("runs") / name_of_plan(path)).resolve()
        return _asked(path, folder, seeds, arms, settings)
    folder = Path(out or Path("runs") / check_name(name)).resolve()
    path = folder / f"{check_name(name)}{PLAN_SUFFIX}"
    tree = {"title": name, **source}
    if tree.get("notebook"):
        tree["notebook"] = str(Path(tree["notebook"]).resolve())
    content = _as_file(tree)
    make_folder(folder)
    before = path.read_bytes() if path.is_file() else content
    write_file(path, content, replace=True)
    try:
        return _asked(path, folder, seeds, arms, settings)
    except WorkbenchError:
        # A plan that was refused does not replace the one that was not.
        write_file(path, before, replace=True)
        raise


def _as_file(tree: Mapping[str, Any]) -> bytes:
    """A plan that was handed over as a mapping, as its file holds it. ConfigError for what no file can hold."""
    try:
        return (json.dumps(tree, indent=1) + "\n").encode()
    except Exception as error:
        raise ConfigError(
            f"a plan holds what a TOML file can: texts, numbers, true or false, lists and tables by name; got "
            f"{shortened(tree)}, which ended in {type(error).__name__}: {error}"
        ) from error


def _asked(
    path: Path, out: Path, seeds: Sequence[int], arms: Sequence[str], settings: Mapping[str, Any]
) -> PlanPart:
    whole = read_plan(path).with_settings(settings)
    plan = whole.with_arms(arms) if arms else whole
    seeds = tuple(seeds) or whole.seeds
    check(plan, seeds)
    check_tuning(plan, seeds)
    held_against(whole, out)
    return PlanPart(path.resolve(), out, plan, whole, seeds, tuple(arms), settings)


def carry_out(
    asked: PlanPart,
    way: JobSettings = JobSettings(),
    say: Say = print,
    stop: threading.Event | None = None,
) -> None:
    """Seal what is declared, do all jobs that are left, trials before what is judged, and write `results.tsv`, whatever
    happens meanwhile. StoreError, with who it is, where another driver is at it."""
    make_folder(asked.out)
    driver_lock = FolderLock(asked.out)
    try:
        declare(asked.whole, asked.out)
        _do_all(asked, way, say, threading.Event() if stop is None else stop)
    finally:
        driver_lock.release()


def _do_all(asked: PlanPart, way: JobSettings, say: Say, stop: threading.Event) -> None:
    left = 1
    try:
        trials = open_trials(asked.plan, asked.out)
        if trials.arms:
            drive(trials, trials.seeds, asked.out, Path.cwd(), way, say, stop)
        if not choose(asked.plan, asked.out):  # else it was stopped before every arm had chosen
            judged = tuned(asked.plan, asked.out)
            left = drive(judged, asked.seeds, asked.out, Path.cwd(), way, say, stop)
    finally:
        if left or not results_are_of(asked.plan, asked.seeds, asked.out):
            write_results(frame_of(asked.plan, asked.seeds, asked.out), asked.out)


def way_of(
    workers: int | None,
    *given: Any,
    on: str = LOCAL,
    gpus_per_job: int = 0,
    options: Mapping[str, Any] = {},
) -> JobSettings:
    """How jobs are done, looked at before the first. ConfigError for what cannot be."""
    if workers is None:
        workers = 2 if on == LOCAL else AT_ONCE
    if workers < 0 or gpus_per_job < 0 or on != LOCAL and not workers:
        raise ConfigError(
            "workers and gpus_per_job are at least 0, and elsewhere at least one job runs at once; got "
            f"{workers} and {gpus_per_job}, on {on}"
        )
    if workers:
        scheduler_type(on)
    if on == LOCAL and options:
        raise ConfigError(
            f"--launch {next(iter(options))}=...: {LOCAL} processes have no options; they are for slurm "
            "and ray"
        )
    if on == LOCAL and gpus_per_job:
        most_at_once(gpus_here(), gpus_per_job)
    return JobSettings(workers, *given, on=on, gpus_per_job=gpus_per_job, options=options)


def report(asked: PlanPart) -> ArmTable:
    """The report notebook, run, and the table that it shows. WorkbenchError where it cannot be made."""
    output = asked.out / f"{asked.plan.name}.ipynb"
    failed = run_notebook(REPORT, output, asked.parameters(), cwd=Path.cwd())
    if failed is not None:
        raise WorkbenchError(
            f"the report could not be made: {failed}. The runs are there; call again"
        )
    return table_of_asked(asked)


def table_of_asked(asked: PlanPart) -> ArmTable:
    return read_table(**asked.parameters())


# ------------------------------------------------------------------------------------------------ in a notebook


class WatchedGrid:
    """The jobs of an ablation that this process drives, as a live view follows them."""

    def __init__(self, ablation: Ablation) -> None:
        self._ablation = ablation
        self.ended = ablation.ended
        # No other job is begun; those under way come to their end.
        self.stop = ablation.stopping.set

    def moment(self) -> LiveState:
        is_over = self.ended()
        jobs = self._ablation.states()
        rows = active_rows(jobs)
        done = sum(job.state == DONE for job in jobs)
        state = "stopping" if self._ablation.stopping.is_set() else "running"
        if is_over:
            state = "done" if done == len(jobs) else "stopped"
        counts = tally(jobs)
        error = self._ablation.error
        problems = () if error is None else (str(error),)
        name = self._ablation.plan.title

        def view(hint: str, _drawn: bool) -> View:
            return self._ablation.view() if is_over else jobs_view(jobs, hint)

        return LiveState(
            Status(name, state, done, len(jobs), counts, problems=problems, unit="jobs"),
            (state, counts, rows),
            lambda: {"columns": ("job", "state", "why"), "rows": rows[:MOST_LINES]},
            view,
            "its jobs end with the kernel; wb.ablate(...) of the same plan goes on",
            "Stop" if state == "running" else "",
        )


@checked_methods
class Ablation(HasView):
    """An ablation and its folder; `ablate` makes it. Shows itself: the plan before anything ran, where its jobs stand
    while they run, its table at the end. Whatever it tells is read from the folder anew."""

    def __init__(self, asked: PlanPart):
        self.asked = asked
        self.plan = asked.plan
        self.out = asked.out
        self.said: list[str] = []  # what the driver told, line by line
        self.stopping = threading.Event()
        self.error: BaseException | None = None  # what ended the driver
        self._thread: threading.Thread | None = None
        self._views: list[LiveView] = []

    def states(self) -> list[JobState]:
        """Where every job stands, in the order of the plan."""
        return all_states(self.plan, self.asked.seeds, self.out)

    def view(self) -> View:
        states = {job.state for job in self.states()}
        if states <= {WAITING}:
            return self.show_plan()
        if states != {DONE}:
            return self.show_jobs()
        return self.table().show()

    def ended(self, within_s: float = 0.0) -> bool:
        """Whether this process has no more jobs done, waited for at most so long."""
        if self._thread is not None:
            self._thread.join(within_s)
        return self._thread is None or not self._thread.is_alive()

    def _ipython_display_(self) -> None:
        view = LiveView(WatchedGrid(self))
        self._views.append(view)
        view._ipython_display_()

    def show_plan(self) -> View:
        """Arms, cost, and what could be detected."""
        return show_forecast(forecast(self.plan, self.asked.seeds, self.out))

    def show_jobs(self) -> View:
        """How many jobs stand where; those that run or failed, with the reason."""
        return jobs_view(self.states())

    def table(self) -> ArmTable:
        """What there is by now, with the verdicts; it draws `forest()`, `curves()`, `dose()`,
        `heat()`, `interaction()` and `power()`."""
        return table_of_asked(self.asked)

    def frame(self) -> pd.DataFrame:
        """One line a job (`frames.frame_of`)."""
        return frame_of(self.plan, self.asked.seeds, self.out)

    def run(self, arm: str, seed: int, start: str = "") -> Run:
        """The run folder of a job that is done, opened: for `wb.explore` and all that takes a run. `start`: its name, where
        the plan has several. DataError for a job that is not done, or whose notebook named no run."""
        by_job = {listed.job: listed for listed in self.states()}
        job = by_job.get(Job(arm, seed, start))
        if job is None or job.state != DONE or job.facts is None:
            state = "and there is none of this name" if job is None else f"it is {job.state}"
            raise DataError(f"{arm}, seed {seed}: expected a job that is done, {state}")
        if "result" not in job.facts:
            return open_run(self.out / "runs" / job.facts["run"])
        if job.facts["result"]["run"] is None:
            raise DataError(
                f"{arm}, seed {seed}: its notebook named no run; it ends in wb.result(..., run=FOLDER)"
            )
        return open_run(job.facts["result"]["run"])

    def wait(self) -> Ablation:
        """Until no job is left. Raises what ended the driver, if something did; a failed job is a state and raises
        nothing."""
        if self._thread is not None:
            self._thread.join()
        for view in self._views:
            view.draw()
        if self.error is not None:
            raise self.error
        return self

    def stop(self) -> Ablation:
        """Begin no other job, and wait for those under way. `ablate` of the same plan goes on."""
        self.stopping.set()
        return self.wait()

    def start(self, way: JobSettings) -> Ablation:
        """Drive it from a thread of this process; its jobs run in processes of their own, which end with this one."""
        self._thread = threading.Thread(target=self._drive, args=(way,), daemon=True)
        self._thread.start()
        return self

    def _drive(self, way: JobSettings) -> None:
        try:
            carry_out(self.asked, way, self.said.append, self.stopping)
        except BaseException as error:  # of a thread nobody would hear; `wait` raises it
            self.error = error

    def report(self) -> View:
        """Write the report (a notebook, a page, Markdown, a picture, JSON) into the folder; returns what was
        written."""
        report(self.asked)
        return self.table().write(self.out)


def ablate(
    plan: Source,
    out: str | os.PathLike | None = None,
    *,
    name: str = "ablation",
    seeds: Sequence[int] = (),
    arms: Sequence[str] = (),
    settings: Mapping[str, Any] = {},
    workers: int | None = None,
    retry: bool = False,
    stop_at_first_failure: bool = False,
    timeout: float | None = None,
    on: str = LOCAL,
    gpus_per_job: int = 0,
    launch: Mapping[str, Any] = {},
    dry_run: bool = False,
) -> Ablation:
    """Run every arm of a plan at every seed, each as one notebook, in worker processes or elsewhere; returns at once.

    plan: a TOML file, or a mapping with the same keys (docs/guides/ablate.md), then called `name`.
    out: the folder of everything (default: runs/NAME); what is done there stays done, and a plan that is not the one
        declared there is refused.
    seeds, arms: some of the plan's.
    settings: set for all arms.
    workers: processes of one thread each (2; elsewhere: jobs at once, 64); 0: one job after the other, before this
        returns.
    retry: do failed jobs again.
    stop_at_first_failure: begin no other job once one failed.
    timeout: wall seconds that a cell may take.
    on, launch: local, slurm or ray, and its own options.
    gpus_per_job: that no other job has.
    dry_run: only look at the plan.

    Raises ConfigError before anything runs."""
    if timeout is not None and timeout <= 0:
        raise ConfigError(f"timeout is above 0, got {timeout}")
    way = way_of(
        workers,
        retry,
        stop_at_first_failure,
        timeout,
        on=on,
        gpus_per_job=gpus_per_job,
        options=launch,
    )
    ablation = Ablation(ask(plan, out, seeds=seeds, arms=arms, settings=settings, name=name))
    if dry_run:
        return ablation
    ablation.start(way)
    return ablation if way.workers else ablation.wait()
