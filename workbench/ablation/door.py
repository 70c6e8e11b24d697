"""The one door to an ablation: from a notebook `wb.ablate(plan)`, from a terminal `workbench ablate PLAN.toml`.

OUT/NAME.declared.json    what was declared before the first run, sealed
OUT/jobs, notebooks, runs    see `work`
OUT/results.tsv           one line a job
OUT/NAME.html             while jobs are done: where each stands (`page`); then the report's
OUT/NAME.ipynb            the report: a notebook that can be run again; NAME.html, .md, .png and .json beside it
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.ablation.cells import ArmTable, read_table
from workbench.ablation.declared import declare, held_against
from workbench.ablation.drive import DONE, WAITING, JobState, Say, JobSettings, drive
from workbench.ablation.forecast import forecast
from workbench.ablation.frames import frame_of, results_are_of, write_results
from workbench.ablation.gpus import gpus_here, most_at_once
from workbench.ablation.launchers import AT_ONCE, LOCAL, launcher_named
from workbench.ablation.notebooks import run_notebook
from workbench.ablation.page import LivePage, jobs_view
from workbench.ablation.plan import REPORT, Job, Plan, check, written
from workbench.ablation.reading import PLAN_SUFFIX, name_of_plan, read_plan
from workbench.ablation.tuning import all_states, check_tuning, choose, open_trials, tuned
from workbench.run.store import Run, open_run
from workbench.run.writer import make_folder, write_file
from workbench.types import View
from workbench.types.canonical_json import check_name
from workbench.types.errors import ConfigError, DataError, WorkbenchError
from workbench.types.view import HasView
from workbench.views import show_forecast

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
    if isinstance(source, Mapping):
        folder = Path(out or Path("runs") / check_name(name)).resolve()
        path = folder / f"{check_name(name)}{PLAN_SUFFIX}"
        notebook = (
            {"notebook": str(Path(source["notebook"]).resolve())} if source.get("notebook") else {}
        )
        content = (json.dumps({"title": name, **source, **notebook}, indent=1) + "\n").encode()
        make_folder(folder)
        before = path.read_bytes() if path.is_file() else content
        write_file(path, content, replace=True)
        try:
            return _asked(path, folder, seeds, arms, settings)
        except WorkbenchError:
            write_file(
                path, before, replace=True
            )  # a plan that was refused does not replace the one that was not
            raise
    return _asked(
        Path(source),
        Path(out or Path("runs") / name_of_plan(Path(source))).resolve(),
        seeds,
        arms,
        settings,
    )


def _asked(
    path: Path, out: Path, seeds: Sequence[int], arms: Sequence[str], settings: Mapping[str, Any]
) -> PlanPart:
    whole = read_plan(path).with_settings(settings)
    plan = whole.with_arms(arms) if arms else whole
    asked = PlanPart(
        path.resolve(), out, plan, whole, tuple(seeds) or whole.seeds, tuple(arms), settings
    )
    check(plan, asked.seeds)
    check_tuning(plan, asked.seeds)
    held_against(whole, out)
    return asked


def carry_out(
    asked: PlanPart,
    way: JobSettings = JobSettings(),
    say: Say = print,
    stop: threading.Event | None = None,
) -> None:
    """Seal what is declared, do all jobs that are left, trials before what is judged, with a page of how they stand beside
    them, and write `results.tsv`, whatever happens meanwhile."""
    make_folder(asked.out)
    declare(asked.whole, asked.out)
    left, stop = 1, threading.Event() if stop is None else stop

    def found() -> list[JobState]:
        return all_states(asked.plan, asked.seeds, asked.out)

    begins = any(one.state != DONE for one in found())  # else the report's page stays where it is
    try:
        with (
            LivePage(asked.out / f"{asked.plan.name}.html", asked.plan.title, found)
            if begins
            else nullcontext()
        ):
            trials = open_trials(asked.plan, asked.out)
            if trials.arms:
                drive(trials, trials.seeds, asked.out, Path.cwd(), way, say, stop)
            if not choose(asked.plan, asked.out):  # else it was stopped before every arm had chosen
                left = drive(
                    tuned(asked.plan, asked.out), asked.seeds, asked.out, Path.cwd(), way, say, stop
                )
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
    workers = workers if workers is not None else 2 if on == LOCAL else AT_ONCE
    if workers < 0 or gpus_per_job < 0 or on != LOCAL and not workers:
        raise ConfigError(
            "workers and gpus_per_job are at least 0, and elsewhere at least one job runs at once; got "
            f"{workers} and {gpus_per_job}, on {on}"
        )
    if on != LOCAL:
        launcher_named(on)
    elif options:
        raise ConfigError(
            f"--launch {next(iter(options))}=...: {LOCAL} processes have no options; they are for slurm "
            "and ray"
        )
    elif gpus_per_job:
        most_at_once(gpus_here(), gpus_per_job)
    return JobSettings(workers, *given, on=on, gpus_per_job=gpus_per_job, options=options)


def report(asked: PlanPart) -> ArmTable:
    """The report notebook, run, and the table that it shows. WorkbenchError where it cannot be made."""
    failed = run_notebook(
        REPORT, asked.out / f"{asked.plan.name}.ipynb", asked.parameters(), cwd=Path.cwd()
    )
    if failed is not None:
        raise WorkbenchError(
            f"the report could not be made: {failed}. The runs are there; call again"
        )
    return table_of_asked(asked)


def table_of_asked(asked: PlanPart) -> ArmTable:
    return read_table(**asked.parameters())


# ------------------------------------------------------------------------------------------------ in a notebook


class Ablation(HasView):
    """An ablation and its folder; `ablate` makes it. Shows itself: the plan before anything ran, where its jobs stand
    while they run, its table at the end. Whatever it tells is read from the folder anew."""

    def __init__(self, asked: PlanPart):
        self.asked, self.plan, self.out = asked, asked.plan, asked.out
        self.said: list[str] = []  # what the driver told, line by line
        self._stop, self._thread, self._error = threading.Event(), None, None

    def states(self) -> list[JobState]:
        """Where every job stands, in the order of the plan."""
        return all_states(self.plan, self.asked.seeds, self.out)

    def view(self) -> View:
        found = self.states()
        if all(one.state == WAITING for one in found):
            return self.show_plan()
        if any(one.state != DONE for one in found):
            return self.show_jobs()
        return self.table().show()

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
        one = next((one for one in self.states() if one.job == Job(arm, seed, start)), None)
        if one is None or one.state != DONE or one.facts is None:
            raise DataError(
                f"{arm}, seed {seed}: expected a job that is done, "
                + ("and there is none of this name" if one is None else f"it is {one.state}")
            )
        named = (
            one.facts["result"]["run"]
            if "result" in one.facts
            else self.out / "runs" / one.facts["run"]
        )
        if named is None:
            raise DataError(
                f"{arm}, seed {seed}: its notebook named no run; it ends in wb.result(..., run=FOLDER)"
            )
        return open_run(named)

    def wait(self) -> Ablation:
        """Until no job is left. Raises what ended the driver, if something did; a failed job is a state and raises
        nothing."""
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self

    def stop(self) -> Ablation:
        """Begin no other job, and wait for those under way. `ablate` of the same plan goes on."""
        self._stop.set()
        return self.wait()

    def start(self, way: JobSettings) -> Ablation:
        """Drive it from a thread of this process; its jobs run in processes of their own, which end with this one."""
        self._thread = threading.Thread(target=self._drive, args=(way,), daemon=True)
        self._thread.start()
        return self

    def _drive(self, way: JobSettings) -> None:
        try:
            carry_out(self.asked, way, self.said.append, self._stop)
        except BaseException as error:  # of a thread nobody would hear; `wait` raises it
            self._error = error

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

    `plan`: a TOML file, or a mapping with the same keys (docs/guides/ablate.md), then called `name`. `out`: the folder
    of everything (default: runs/NAME); what is done there stays done, a plan that is not the one declared there is
    refused, and several drivers, on any machines that see the folder, share the jobs. `seeds`, `arms`: some of the
    plan's; `settings`: set for all arms. `workers`: processes of one thread each (2; elsewhere: jobs at once, 64); 0:
    one job after the other, before this returns. `on`: local, slurm or ray, with options `launch` of its own;
    `gpus_per_job`: that no other job has. `retry`: do failed jobs again. `timeout`: wall seconds that a cell may take.
    `dry_run`: only look at the plan. Raises ConfigError before anything runs."""
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
    found = Ablation(ask(plan, out, seeds=seeds, arms=arms, settings=settings, name=name))
    if dry_run:
        return found
    found.start(way)
    return found if way.workers else found.wait()
