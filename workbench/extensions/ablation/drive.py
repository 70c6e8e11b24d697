"""All jobs of a plan: where each of them stands, and the driver that has those done that are left."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.extensions.ablation import work
from workbench.extensions.ablation.gpus import gpus_here, most_at_once
from workbench.extensions.ablation.jobs import LOCAL, Lost
from workbench.extensions.ablation.plan import Job, Plan, jobs
from workbench.extensions.ablation.schedulers import each, scheduler_type
from workbench.extensions.ablation.views.plans import show_jobs
from workbench.look.words import count
from workbench.run.writer import lock_holder
from workbench.values import View

OTHER_CODE = "was done by other code"
WAITING = "waiting"  # beside the states of a failure (`notebooks`)
RUNNING = "running"
DONE = "done"
Say = Callable[[str], None]


@dataclass(frozen=True)
class JobState:
    """Where a job stands.

    state: waiting, running, done, failed, dead kernel or timed out.
    why: the reason of a failure, or who runs it.
    facts: what its record says (`work.ended`), None without one.
    """

    job: Job
    name: str
    state: str
    why: str = ""
    facts: dict[str, Any] | None = field(default=None, repr=False)

    @property
    def has_failed(self) -> bool:
        return self.facts is not None and "failed" in self.facts

    @property
    def tries(self) -> int:
        return self.facts["tries"] if self.facts is not None else 0


def states(plan: Plan, seeds: Sequence[int], out: Path) -> list[JobState]:
    """Of every job, in the order of the plan: by its record, or by the process that does it."""
    work.check_folders(out)
    recorded = {path.stem for path in (out / "jobs").glob("*.json")}
    begun = {path.parent.name for path in (out / work.LOCKS).glob(f"*/{work.BUSY}")}
    listed = []
    for job in jobs(plan, seeds):
        name = work.name_of(plan, job)
        facts = work.ended(plan, job, out) if name in recorded else None
        holder = lock_holder(out / work.LOCKS / name) if name in begun else None
        listed.append(JobState(job, name, *_standing(facts, holder, out), facts))
    return listed


def _standing(facts: dict[str, Any] | None, holder: str | None, out: Path) -> tuple[str, str]:
    if facts is not None and work.is_finished(facts, out):
        return DONE, ""
    if holder is not None:
        return RUNNING, holder.partition(" since ")[0]
    if facts is None:
        return WAITING, ""
    return (facts["state"], facts["failed"]) if "failed" in facts else (WAITING, OTHER_CODE)


def tally(listed: Sequence[JobState]) -> str:
    """How many jobs stand where: `60 jobs: 12 done, 2 running, 46 waiting`; of those that wait, how many were done by other
    code than today's and are done again."""
    counts = dict.fromkeys((DONE, RUNNING, WAITING), 0)
    for job in listed:
        counts[job.state] = counts.get(job.state, 0) + 1
    by_state = ", ".join(f"{number} {state}" for state, number in counts.items() if number)
    text = f"{count(len(listed), 'job')}: {by_state}"
    again = sum(job.why == OTHER_CODE for job in listed)
    if again:
        were = "was" if again == 1 else "were"
        text += f"; {again} of those waiting {were} done by other code of the package and will be done again"
    return text


def active_rows(listed: Sequence[JobState]) -> list[tuple[str, str, str]]:
    """Job, state and reason of those that run or failed."""
    active = [one for one in listed if one.state not in (DONE, WAITING)]
    return [(str(one.job), one.state, one.why) for one in active]


def jobs_view(listed: Sequence[JobState], hint: str = "") -> View:
    """How many jobs stand where; those that run or failed, with the reason. `hint`: a line on what to do."""
    return show_jobs("; ".join(filter(None, (tally(listed), hint))), active_rows(listed))


# ------------------------------------------------------------------------------------------------ driving


@dataclass(frozen=True)
class JobSettings:
    """How jobs are done.

    workers: processes of one thread each (0: in this one), or jobs at once elsewhere.
    retry: those that failed before, too.
    stop_at_first_failure: begin no other then.
    cell_limit_s: wall seconds that a cell may take.
    most: at most so many jobs.
    do: what does one.
    on: local, slurm or ray.
    options: of that scheduler.
    gpus_per_job: that no other job has (0: a job sees none).
    """

    workers: int = 2
    retry: bool = False
    stop_at_first_failure: bool = False
    cell_limit_s: float | None = None
    most: int | None = None
    do: Callable[..., dict[str, Any]] = work.do
    on: str = LOCAL
    options: Mapping[str, Any] = field(default_factory=dict)
    gpus_per_job: int = 0


def drive(
    plan: Plan,
    seeds: Sequence[int],
    out: Path,
    cwd: Path,
    way: JobSettings = JobSettings(),
    say: Say = print,
    stop: threading.Event | None = None,
) -> int:
    """Do all jobs of the plan that are not done yet. `stop`: once it is set no other job is begun. Returns how many were
    left when it began."""
    stop = threading.Event() if stop is None else stop
    driver = _Driver(states(plan, seeds, out), way, say, stop)
    say(f"{driver.outset()}; kept in {out}")
    driver.run(work.JobPlace(plan, out, cwd, way.cell_limit_s, way.do))
    return len(driver.left)


class _Driver:
    def __init__(
        self, before: Sequence[JobState], way: JobSettings, say: Say, stop: threading.Event
    ):
        self.before = before
        self.way = way
        self.say = say
        self.stop = stop
        self.left = [one for one in before if not self._is_over(one)]
        self.begun = 0
        self.over = len(before) - len(self.left)
        self.gpus = gpus_here() if way.on == LOCAL else ()

    def _is_over(self, one: JobState) -> bool:
        return one.state == DONE or one.has_failed and not self.way.retry

    def outset(self) -> str:
        """What there is to do, and what does it, in words."""
        done = sum(one.state == DONE for one in self.before)
        failed = sum(one.has_failed for one in self.before)
        words = f"{count(len(self.before), 'run')}, {done} done before"
        if failed and self.way.retry:
            words += f", {failed} failed before and are tried again"
        elif failed:
            words += f", {failed} failed before (--retry tries them again)"
        return f"{words}; {self._workers()}"

    def _workers(self) -> str:
        if self.way.on != LOCAL:
            return f"on {self.way.on}, {self.way.gpus_per_job or 'no'} GPU each"
        words = count(self.way.workers, "worker process", "worker processes") + ", one thread each"
        if not self.way.gpus_per_job:
            return words + (", no GPU each (--gpus-per-job assigns them)" if self.gpus else "")
        return (
            f"{words}; {self.way.gpus_per_job} of {len(self.gpus)} GPUs each, "
            f"at most {self._at_once()} jobs at once"
        )

    def _at_once(self) -> int:
        if self.way.on != LOCAL or not self.way.gpus_per_job:
            return self.way.workers
        return min(self.way.workers, most_at_once(self.gpus, self.way.gpus_per_job))

    def run(self, where: work.JobPlace) -> None:
        way = self.way
        if not self.left:
            return
        scheduler = None
        if way.workers:
            make = scheduler_type(way.on)
            scheduler = make(where.out / "sent", where.plan.name, way.gpus_per_job, way.options)
        with scheduler or nullcontext():
            outcomes = each(
                self._to_send(),
                work.do_alone,
                (where,),
                scheduler,
                self._at_once(),
                self.stop.is_set,
            )
            for sent, outcome in outcomes:
                self._report(sent.job, outcome)

    def _to_send(self) -> Iterator[work.SentJob]:
        for one in self.left:
            if self.stop.is_set() or self.way.most is not None and self.begun >= self.way.most:
                return
            self.begun += 1
            yield work.SentJob(one.job, one.tries)

    def _report(self, job: Job, outcome: dict[str, Any] | Lost) -> None:
        if isinstance(outcome, Lost):
            again = "; it is sent again" if outcome.is_sent_again else "; this driver leaves it"
            return self.say(f"{job}: {outcome.why}{again}")
        self.over += 1
        ending = f"{outcome['cpu_seconds']:.0f} CPU s"
        if "failed" in outcome:
            ending = f"{outcome['state'].upper()}: {outcome['failed']}"
        self.say(f"[{self.over}/{len(self.before)}] {job}: {ending}")
        if "failed" in outcome and self.way.stop_at_first_failure:
            self.say("stopped at the first failure; what was under way comes to its end")
            self.stop.set()
