"""Writing a run folder: one process at a time, and every step a commit (see `store` for what lies where)."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workbench import __version__
from workbench.basics import canonical_json
from workbench.basics.canonical_json import Seal
from workbench.basics.findings import LintReport
from workbench.run import columns, writer
from workbench.run.store import (
    CODE,
    EVALUATED,
    FORMAT,
    LINES,
    LINT,
    TRAJECTORIES,
    Run,
    credit_name,
    open_run,
    step_folders,
    step_name,
    with_name,
)
from workbench.values import CreditTable, Group
from workbench.values.errors import StoreError

_FOLDERS = ("steps", "evaluations", "checkpoints")
MOST_TRAJECTORY_BYTES = 32 << 20  # of one side of an evaluation


def _run_path(path: str | os.PathLike) -> Path:
    path = with_name(path)
    canonical_json.check_name(path.name)
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; name the run folder itself")
    return path


def create_run(
    path: str | os.PathLike, config: Mapping[str, Any], *, code: bytes | None = None
) -> RunWriter:
    """Start a run in a folder that does not exist yet. `code`: content of code.json, where the config names code
    (run/code.py). Raises StoreError (name, place, disk)."""
    path = _run_path(path)
    if path.exists():
        raise StoreError(
            f"{path} is there already; choose another name, or continue that run with `reopen_run`"
        )
    about = {"name": path.name, "program": __version__}
    files = {
        "run.json": canonical_json.sealed_json(about, kind="run", version=FORMAT),
        "config.json": canonical_json.sealed_json(config, kind="config", version=FORMAT),
    }
    if code is not None:
        files[CODE] = code
    files |= dict.fromkeys(LINES, b"")
    writer.make_folder(path.parent)
    writer.create_folder(path, files, folders=_FOLDERS)
    return RunWriter(path, began="created")


def reopen_run(path: str | os.PathLike) -> RunWriter:
    """Go on writing a run. What its last process had begun and not committed is set aside in `orphans/`.

    Raises StoreError where another process writes it, or where a checkpoint is newer than the last committed step
    (trajectories were lost: such a run must not be continued).
    """
    open_run(path)  # says what is wrong with a folder that is none
    return RunWriter(_run_path(path), began="reopened")


def _bounded(groups: Sequence[Group], step: int) -> memoryview:
    """The trajectories as a file of at most MOST_TRAJECTORY_BYTES: the first half of the groups, and so on, where they are more."""
    content = columns.encode_groups(groups, step=step)
    while content.nbytes > MOST_TRAJECTORY_BYTES and len(groups) > 1:
        groups = groups[: len(groups) // 2]
        content = columns.encode_groups(groups, step=step)
    return content


class RunWriter:
    """The only one who writes a run folder. Order within a step: write_step, then updates with write_credit, then
    commit_step. Use it as a context manager, or close it; a process that dies frees the lock too."""

    def __init__(self, path: Path, *, began: str):
        self.path = path
        writer.refuse_links(path)
        self._lock = writer.FolderLock(path)
        try:
            swept = writer.sweep(path)
            self.run = Run(path)
            self._mend()
            self._seals: dict[int, dict[str, Seal]] = {}
            self._metrics = self._lock.keep(path / "metrics.jsonl")
            self._metrics_bytes = os.fstat(self._metrics).st_size
            self._committed = set(self.run.steps())
            self.last_step = max(self._committed, default=None)
            self._note_process(began, swept)
        except BaseException:
            self._lock.release()
            raise

    def _note_process(self, began: str, swept: Sequence[Path]) -> None:
        """Write into the clock which process writes the run from here on."""
        process = {
            "what": began,
            "process": os.getpid(),
            "machine": socket.gethostname(),
            "swept": len(swept),
            "python": platform.python_version(),
            "system": platform.platform(),
        }
        self._clock(process)

    def _mend(self) -> None:
        """Cut torn tails off and set uncommitted steps aside: the folder then holds what was committed, and no more."""
        for name in LINES[:-1]:
            writer.cut_lines(self.path / name)
        # A damaged clock is no reason to stop: it is not the run.
        writer.leave_out_damaged_lines(self.path / LINES[-1])
        last = max(self.run.steps(), default=-1)
        newest = max(step_folders(self.path / "checkpoints"), default=-1)
        if newest > max(last, 0):
            raise StoreError(
                f"{self.path} has a checkpoint of step {newest}, but its last committed step is {last}: "
                "metrics or trajectories were lost. Restore the run from a copy, or move the checkpoints "
                f"after step {last} away to continue from an earlier one"
            )
        for step in self.run.uncommitted():
            writer.set_aside(self.path / "steps" / step_name(step), self.path / "orphans")
        events = self.run.events()
        for number, event in enumerate(events):
            if event.get("step", last) > last:
                # Those from here on are written again when their step is done again.
                writer.cut_lines(self.path / "events.jsonl", keep=number)
                break

    def _clock(self, entry: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        writer.append_line(self.path / "clock.jsonl", {"at": now, **entry}, sync=False)

    def write_clock(self, step: int, clock: Mapping[str, Any]) -> None:
        """Seconds and whatever else depends on the machine, of a step that was just committed."""
        self._clock({"what": "step", "step": step, "clock": dict(clock)})

    def note_machine(self, facts: Mapping[str, Any]) -> None:
        """What the last bit of a number depends on (threads, versions ...), for all steps from the next one on. The
        same facts as before are not written again."""
        known = self.run.machines()
        if not known or known[-1][1] != dict(facts):
            self._clock({"what": "machine", "after": self.last_step or 0, "machine": dict(facts)})

    def change_settings(self, changed: Mapping[str, Sequence[Any]]) -> None:
        """From the next step on `changed` holds: dotted key -> (old value, new value). One event, and so one commit
        point; `Run.config` has the new values from then on."""
        self.event({"kind": "settings", "after": self.last_step or 0, "changed": dict(changed)})

    def change_code(self, origins: Mapping[str, Mapping[str, str]]) -> None:
        """From the next step on the code that the run names is that of these origins (run/code.py)."""
        self.event({"kind": "code", "after": self.last_step or 0, "origins": dict(origins)})

    def _write(self, step: int, name: str, content: memoryview) -> Path:
        self._check_open(step)
        path = self.path / "steps" / step_name(step) / name
        seal = writer.write_file(path, content)
        self._seals.setdefault(step, {})[name] = seal
        return path

    def check_place(self) -> None:
        """Raise StoreError unless what was committed still lies where it was put: the folder, its lock and its metrics
        under their names, the newest step with its file. Metrics that were removed are put back: this process holds
        them."""
        if self._lock.released:
            raise StoreError(
                f"this writer of {self.path} is closed; `reopen_run` opens the run again"
            )
        metrics = self.path / "metrics.jsonl"
        gone = self._lock.gone()
        done = "Nothing more is written; what was committed is whole"
        if gone == metrics and not os.path.lexists(metrics):
            writer.write_file(metrics, os.pread(self._metrics, self._metrics_bytes, 0))
            done = "Its committed lines were put back, and nothing more is written"
        newest = self.path / "steps" / step_name(self.last_step or 0) / TRAJECTORIES
        if gone is None and self.last_step is not None and not newest.is_file():
            gone = newest
            done = "Nothing more is written: restore it from a copy of the run"
        if gone is not None:
            raise StoreError(
                f"{gone} was renamed, removed or replaced while this process was writing the run. {done}. "
                "`workbench resume` goes on with the folder, under the name that it has now"
            )
        if os.fstat(self._metrics).st_size != self._metrics_bytes:
            raise StoreError(
                f"{metrics} was changed by another process while this one was writing the run. Nothing more is "
                "written; end that process, look at the run with `workbench lint`, then `workbench resume`"
            )

    def _check_open(self, step: int) -> None:
        step_name(step)
        self.check_place()
        if step in self._committed or (self.last_step is not None and step < self.last_step):
            raise StoreError(
                f"step {step} cannot be written: step {self.last_step} is committed, and committed steps "
                "never change. Count on from there"
            )

    def write_step(self, step: int, groups: Sequence[Group]) -> Path:
        """All trajectories of a step, durable when this returns. Must come before the step's first update."""
        self._check_open(step)
        content = columns.encode_groups(groups, step=step)
        writer.make_folder(self.path / "steps" / step_name(step), within=self.path)
        return self._write(step, TRAJECTORIES, content)

    def write_credit(self, table: CreditTable, *, skipped: str | None = None) -> Path:
        """What an update used, durable when this returns. `skipped`: the reason, where the update was left out; the
        table (and with the trajectories the whole batch) is kept, and an event says so."""
        if TRAJECTORIES not in self._seals.get(table.step, {}):
            raise StoreError(
                f"step {table.step}: credit of update {table.update} came before the step's trajectories; "
                "call write_step first, so that no update is ever without the data it used"
            )
        content = columns.encode_credit(table, skipped=skipped)
        path = self._write(table.step, credit_name(table.update), content)
        if skipped is not None:
            where = {"step": table.step, "update": table.update}
            self.event({"kind": "skipped_update", **where, "reason": skipped})
        return path

    def write_lint(self, step: int, report: LintReport) -> Path:
        """Write the report of the lint on a step, sealed with it; not how much was checked, which may depend on the clock."""
        answers = [replace(answer, looked=min(answer.looked, 1)) for answer in report.answers]
        stable = LintReport(tuple(answers), report.about)
        content = canonical_json.sealed_json(stable.as_dict(), kind="lint", version=FORMAT)
        return self._write(step, LINT, memoryview(content))

    def commit_step(
        self, step: int, metrics: Mapping[str, Any], clock: Mapping[str, Any] | None = None
    ) -> None:
        """The commit point. `clock` holds what depends on the machine (seconds, memory), `metrics` what does not."""
        self._check_open(step)
        seals = self._seals.get(step, {})
        if TRAJECTORIES not in seals:
            raise StoreError(
                f"step {step} has no trajectories yet; call write_step before commit_step"
            )
        if clock:
            self.write_clock(step, clock)
        files = {name: vars(seal) for name, seal in seals.items()}
        line = {"step": step, "metrics": dict(metrics), "files": files}
        writer.append_line(self.path / "metrics.jsonl", line)
        self._metrics_bytes = os.fstat(self._metrics).st_size
        self._committed.add(step)
        self.last_step = step
        del self._seals[step]

    def write_evaluation(
        self, name: str, evaluation: Mapping[str, Any], *, replace: bool = False
    ) -> Path:
        """One evaluation under a name of its own. Writing the same again is no error; writing another one is, unless
        `replace`."""
        self.check_place()
        path = self.path / "evaluations" / f"{canonical_json.check_name(name)}.json"
        content = canonical_json.sealed_json(evaluation, kind="evaluation", version=FORMAT)
        if path.exists() and canonical_json.read_file(path) == content:
            return path
        writer.write_file(path, content, replace=replace)
        return path

    def write_trajectories(
        self, name: str, side: str, groups: Sequence[Group], *, step: int
    ) -> None:
        """The trajectories of one side (policy, mode) of an evaluation, before its table; MOST_TRAJECTORY_BYTES of them."""
        folder = self.path / "evaluations" / EVALUATED / canonical_json.check_name(name)
        self.check_place()
        writer.make_folder(folder, within=self.path)
        path = folder / f"{canonical_json.check_name(side)}.parquet"
        # What a killed process left is written anew.
        writer.write_file(path, _bounded(groups, step), replace=True)

    def event(self, event: Mapping[str, Any]) -> None:
        """Note an event: {"kind": ..., "step": ...}. No times in it: they belong to the clock."""
        if not isinstance(event.get("step", 0), int):
            raise StoreError(
                f"the step of an event is a whole number or left out, got {event['step']!r}"
            )
        self.check_place()
        writer.append_line(self.path / "events.jsonl", event)

    def close(self) -> None:
        """Let another process write the run."""
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
