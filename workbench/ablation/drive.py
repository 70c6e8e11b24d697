"""All jobs of a plan: where each of them stands, and a driver that does those that are left, beside any others."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.ablation import work
from workbench.ablation.gpus import gpus_here, held_gpus, most_at_once
from workbench.ablation.launchers import AT_ONCE, LOCAL, MOST_LOSSES, launcher_named
from workbench.ablation.leases import Leases, has_ended, held_in, holder_of
from workbench.ablation.plan import Job, Plan, jobs
from workbench.ablation.pool import each
from workbench.ablation.sent import JobPlace, RemoteJob
from workbench.views.words import count

OTHER_CODE = "was done by other code"
WAITING, RUNNING, DONE = (
    "waiting",
    "running",
    "done",
)  # beside the states of a failure (`notebooks`)
POLL_S = 0.5  # between two looks at what other drivers are doing
Say = Callable[[str], None]


@dataclass(frozen=True)
class JobState:
    """Where a job stands: `state` waiting, running, done, failed, dead kernel or timed out; `why`: the reason of a
    failure, or who runs it; `facts`: what its record says (`work.ended`), None without one."""

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
    """Of every job, in the order of the plan: by its record, or by who holds it."""
    kept = {path.stem for path in (out / "jobs").glob("*.json")}
    held, found = held_in(out / "jobs"), []
    for job in jobs(plan, seeds):
        name = work.name_of(plan, job)
        facts = work.ended(plan, job, out) if name in kept else None
        holder = holder_of(held[name]) if name in held else None
        found.append(JobState(job, name, *_standing(facts, holder, out), facts))
    return found


def _standing(
    facts: dict[str, Any] | None, holder: dict[str, Any] | None, out: Path
) -> tuple[str, str]:
    if facts is not None and work.is_finished(facts, out):
        return DONE, ""
    if holder is not None and not has_ended(holder):
        return RUNNING, f"process {holder['process']} on {holder['host']}"
    if facts is None:
        return WAITING, ""
    return (facts["state"], facts["failed"]) if "failed" in facts else (WAITING, OTHER_CODE)


def tally(found: Sequence[JobState]) -> str:
    """How many jobs stand where: `60 jobs: 12 done, 2 running, 46 waiting`; of those that wait, how many were done by other
    code than today's and are done again."""
    counts = {
        state: sum(one.state == state for one in found)
        for state in dict.fromkeys((DONE, RUNNING, WAITING, *(one.state for one in found)))
    }
    return (
        f"{count(len(found), 'job')}: "
        + ", ".join(f"{number} {state}" for state, number in counts.items() if number)
        + (
            f"; {again} of those waiting {'was' if again == 1 else 'were'} done by other code of the package and will be done again"
            if (again := sum(one.why == OTHER_CODE for one in found))
            else ""
        )
    )


# ------------------------------------------------------------------------------------------------ driving


@dataclass(frozen=True)
class JobSettings:
    """How jobs are done. `workers`: processes of one thread each (0: in this one), or jobs at once elsewhere; `retry`:
    those that failed before, too; `stop_at_first_failure`: begin no other then; `cell_limit_s`: wall seconds that a
    cell may take; `most`: at most so many jobs; `do`: what does one (`work.do`). `on`: local, slurm or ray, with
    `options` of its own; `gpus_per_job`: that no other job has (0: a job sees none)."""

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
    """Do all jobs of the plan that are not done yet, and wait for those that other drivers are doing. `stop`: once it
    is set no other job is begun. Returns how many were left when it began."""
    stop = threading.Event() if stop is None else stop
    with Leases(out / "jobs") as leases:
        driver = _Driver(plan, seeds, out, cwd, way, say, stop, leases)
        left = len(driver.left)
        driver.run()
    return left


def do_claimed(sent: RemoteJob, where: JobPlace, gpus: Sequence[str]) -> dict[str, Any]:
    """Do a job that this driver holds, on GPUs that no other job has. A killed process may have written its record just
    before: then that is how the job ended, and it is not done twice."""
    ended = work.ended(where.plan, sent.job, where.out)
    if ended is not None and ended["tries"] != sent.tries:
        return ended
    with held_gpus(where.gpus, gpus) if gpus else nullcontext():
        return where.do(sent.job, where.plan, where.out, where.cwd, where.cell_limit_s, True)


class _Driver:
    def __init__(
        self,
        plan: Plan,
        seeds: Sequence[int],
        out: Path,
        cwd: Path,
        way: JobSettings,
        say: Say,
        stop: threading.Event,
        leases: Leases,
    ):
        self.plan, self.seeds, self.out, self.cwd, self.way = plan, seeds, out, cwd, way
        self.say, self.stop, self.leases = say, stop, leases
        before = states(plan, seeds, out)
        self.total, self.begun = len(before), 0
        # A failure that stands in the folder is tried again only where that is asked for, and once.
        self.tried = {one.job: one.tries for one in before if one.has_failed}
        self.left = [one for one in before if not self._is_over(one)]
        self.names = {one.job: one.name for one in self.left}
        done = sum(one.state == DONE for one in before)
        self.over = len(before) - len(self.left)
        failed = (
            ""
            if not self.tried
            else (
                f", {len(self.tried)} failed before"
                + (" and are tried again" if way.retry else " (--retry tries them again)")
            )
        )
        self.losses: dict[Job, int] = {}
        self.gpus = gpus_here() if way.on == LOCAL else ()
        self.send = None if way.on == LOCAL else launcher_named(way.on)
        say(
            f"{count(self.total, 'run')}, {done} done before{failed}; {self._workers()}; kept in {out}"
        )

    def _workers(self) -> str:
        """What does the jobs, in words."""
        if self.send is not None:
            return f"on {self.way.on}, {self.way.gpus_per_job or 'no'} GPU each"
        words = count(self.way.workers, "worker process", "worker processes") + ", one thread each"
        if not self.way.gpus_per_job:
            return words + (", no GPU each (--gpus-per-job assigns them)" if self.gpus else "")
        return (
            f"{words}; {self.way.gpus_per_job} of {len(self.gpus)} GPUs each, "
            f"at most {most_at_once(self.gpus, self.way.gpus_per_job)} jobs at once"
        )

    def run(self) -> None:
        while self.left and not self._is_enough():
            begun = self.begun
            for job, result in self._on_this_machine() if self.send is None else self._elsewhere():
                self._tell(job, result)
            self._look_again()
            if self.left and begun == self.begun and not self._is_enough():
                time.sleep(POLL_S)  # what is left is being done elsewhere

    def _on_this_machine(self) -> Iterator[tuple[Job, dict[str, Any]]]:
        for sent, result in each(
            self._claimed(), do_claimed, (self._where(), self.gpus), self.way.workers
        ):
            self.leases.give_back(self.names[sent.job])
            yield sent.job, result

    def _elsewhere(self) -> Iterator[tuple[Job, dict[str, Any]]]:
        found = self.send(
            self._unheld(),
            self._where(),
            self.way.workers or AT_ONCE,
            self.way.options,
            self.stop.is_set,
        )
        return ((sent.job, result) for sent, result in found)

    def _where(self) -> JobPlace:
        way = self.way
        return JobPlace(
            self.plan, self.out, self.cwd, way.cell_limit_s, way.gpus_per_job, way.on, way.do
        )

    def _unheld(self) -> Iterator[RemoteJob]:
        """Jobs that nobody does; each is claimed where it runs."""
        for one in self.left:
            if self._is_enough():
                return
            if (over := self.leases.free(one.name)) is not None and self.losses.get(
                one.job, 0
            ) < MOST_LOSSES:
                self.begun += 1
                yield RemoteJob(one.job, one.tries, over)

    def _claimed(self) -> Iterator[RemoteJob]:
        """Jobs that nobody else does, each claimed when a worker is free for it."""
        for one in self.left:
            if self._is_enough():
                return
            if self.leases.take(one.name) is None:
                continue
            if self._is_over(now := self._now(one)):  # it was done between the look and the claim
                self.leases.give_back(one.name)
                continue
            self.begun += 1
            yield RemoteJob(one.job, now.tries)

    def _is_enough(self) -> bool:
        return self.stop.is_set() or self.way.most is not None and self.begun >= self.way.most

    def _is_over(self, one: JobState) -> bool:
        if one.has_failed and one.state not in (RUNNING, WAITING):
            return not self.way.retry or one.tries != self.tried.get(one.job)
        return one.state == DONE

    def _now(self, one: JobState) -> JobState:
        facts = work.ended(self.plan, one.job, self.out)
        return JobState(one.job, one.name, *_standing(facts, None, self.out), facts)

    def _look_again(self) -> None:
        now = {one.job: one for one in states(self.plan, self.seeds, self.out)}
        self.left = [
            now[one.job]
            for one in self.left
            if not self._is_over(now[one.job]) and self.losses.get(one.job, 0) < MOST_LOSSES
        ]

    def _tell(self, job: Job, result: dict[str, Any]) -> None:
        if "elsewhere" in result:
            return self.say(f"{job}: {result['elsewhere']}")
        if "lost" in result:
            self.losses[job] = self.losses.get(job, 0) + (not self.stop.is_set())
            given_up = (
                f"; {MOST_LOSSES} times now, and this driver leaves it"
                if self.losses[job] == MOST_LOSSES
                else ""
            )
            return self.say(f"{job}: {result['lost']}{given_up}")
        self.over += 1
        how = (
            f"{result['state'].upper()}: {result['failed']}"
            if "failed" in result
            else f"{result['cpu_seconds']:.0f} CPU s"
        )
        self.say(f"[{self.over}/{self.total}] {job}: {how}")
        if "failed" in result and self.way.stop_at_first_failure:
            self.say("stopped at the first failure; what was under way comes to its end")
            self.stop.set()
