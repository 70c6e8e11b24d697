"""The run folder: everything a run was, readable on any machine without torch (laws 13 and 14).

    NAME/
      run.json                     what this folder is, and its format version
      config.json                  the whole configuration it began with; `settings` events say what was changed since
      metrics.jsonl                one line a step. THE LINE COMMITS THE STEP: it seals (bytes, sha256) the step's files
      events.jsonl                 what was worth saying: skipped updates, warnings
      clock.jsonl                  wall-clock data, processes, machines: apart from what is hashed
      steps/step-00000001/         trajectories.parquet   durable before the step's first update
                                   credit-0000.parquet    what update 0 used, per token; written after it. A skipped
                                                          update keeps its table too, with the reason inside
                                   lint.json              what the lint said of the step
      evaluations/NAME.json        one evaluation each
      checkpoints/step-00000010/   see `checkpoint`
      orphans/                     what a killed process had not committed: set aside by the next writer, never deleted

A step without its metrics line was not committed: no reader shows it as one, and the next writer sets it aside. Files
of a committed step never change, and a reader checks them against their seal. Everything but `clock.jsonl` is a
function of the run's content, so two equal runs have the same `Run.digest()`.

One process writes (flock), any number read, also while it writes.
"""
from __future__ import annotations

import copy
import os
import platform
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import __version__
from workbench.run import columns, writer
from workbench.types import CreditTable, Group
from workbench.types import canonical_json
from workbench.types.canonical_json import Seal
from workbench.types.errors import StoreError
from workbench.types.findings import LintReport

if TYPE_CHECKING:
    import pandas

FORMAT = 1
TRAJECTORIES = "trajectories.parquet"
LINT = "lint.json"
_LINES = ("metrics.jsonl", "events.jsonl", "clock.jsonl")
_FOLDERS = ("steps", "evaluations", "checkpoints")
STEP = re.compile(r"step-(\d{8})")
_CREDIT = re.compile(r"credit-(\d{4})\.parquet")


def step_name(step: int) -> str:
    """The folder name of a step; raises StoreError for what is not a step number."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**8:
        raise StoreError(f"a step is a whole number from 0 to 99999999, got {step!r}")
    return f"step-{step:08d}"


def _credit_name(update: int) -> str:
    if isinstance(update, bool) or not isinstance(update, int) or not 0 <= update < 10**4:
        raise StoreError(f"updates of a step are counted from 0 to 9999, got {update!r}")
    return f"credit-{update:04d}.parquet"


def _with_name(path: str | os.PathLike) -> Path:
    """`path`, spelled out where its last part is no name: the folder one is in, or the one above."""
    path = Path(path)
    return Path(os.path.abspath(path)) if path.name in ("", "..") else path


def _run_path(path: str | os.PathLike) -> Path:
    path = _with_name(path)
    canonical_json.check_name(path.name)
    if path.is_symlink():
        raise StoreError(f"{path} is a symbolic link; name the run folder itself")
    return path


# ------------------------------------------------------------------------------------------------ writing


def create_run(path: str | os.PathLike, config: Mapping[str, Any]) -> RunWriter:
    """Start a run in a folder that does not exist yet. Raises StoreError (name, place, disk)."""
    path = _run_path(path)
    if path.exists():
        raise StoreError(f"{path} is there already; choose another name, or go on with that run by `reopen_run`")
    files = {
        "run.json": canonical_json.sealed_json({"name": path.name, "program": __version__}, kind="run", version=FORMAT),
        "config.json": canonical_json.sealed_json(config, kind="config", version=FORMAT),
        **{name: b"" for name in _LINES},
    }
    writer.make_folder(path.parent)
    writer.create_folder(path, files, folders=_FOLDERS)
    return RunWriter(path, began="created")


def reopen_run(path: str | os.PathLike) -> RunWriter:
    """Go on writing a run. What its last process had begun and not committed is set aside in `orphans/`.

    Raises StoreError where another process writes it, or where a checkpoint is newer than the last committed step
    (trajectories were lost: such a run must not go on as if nothing had happened).
    """
    open_run(path)  # says what is wrong with a folder that is none
    return RunWriter(_run_path(path), began="reopened")


class RunWriter:
    """The only one who writes a run folder. Order within a step: write_step, then updates with write_credit, then
    commit_step. Use it as a context manager, or close it; a process that dies frees the lock too."""

    def __init__(self, path: Path, *, began: str):
        self.path = path
        self._lock = writer.FolderLock(path)
        try:
            swept = writer.sweep(path)
            self.run = Run(path)
            self._mend()
            self._seals: dict[int, dict[str, Seal]] = {}
            self._committed = set(self.run.steps())
            self.last_step = max(self._committed, default=None)
            self._say_hello(began, swept)
        except BaseException:
            self._lock.release()
            raise

    def _say_hello(self, began: str, swept: Sequence[Path]) -> None:
        self._clock({"what": began, "process": os.getpid(), "machine": socket.gethostname(), "swept": len(swept),
                     "python": platform.python_version(), "system": platform.platform()})

    def _mend(self) -> None:
        """Cut torn tails off and set uncommitted steps aside: the folder then holds what was committed, and no more."""
        for name in _LINES[:-1]:
            writer.cut_lines(self.path / name)
        writer.leave_out_damaged_lines(self.path / _LINES[-1])  # no reason not to go on: the clock is not the run
        last = max(self.run.steps(), default=-1)
        newest = max(step_folders(self.path / "checkpoints"), default=-1)
        if newest > max(last, 0):
            raise StoreError(f"{self.path} has a checkpoint of step {newest}, but its last committed step is {last}: "
                             "metrics or trajectories were lost. Restore the run from a copy, or move the checkpoints "
                             f"after step {last} away to go on from an earlier one")
        for step in self.run.uncommitted():
            writer.set_aside(self.path / "steps" / step_name(step), self.path / "orphans")
        events = canonical_json.read_lines(self.path / "events.jsonl").records
        kept = next((i for i, event in enumerate(events) if event.get("step", last) > last), len(events))
        if kept < len(events):  # they will be written again when their step is done again
            writer.cut_lines(self.path / "events.jsonl", keep=kept)

    def _clock(self, entry: Mapping[str, Any]) -> None:
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
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

    def _write(self, step: int, name: str, content: memoryview) -> Path:
        self._check_open(step)
        path = self.path / "steps" / step_name(step) / name
        seal = writer.write_file(path, content)
        self._seals.setdefault(step, {})[name] = seal
        return path

    def _check_open(self, step: int) -> None:
        step_name(step)
        if self._lock.released:
            raise StoreError(f"this writer of {self.path} is closed; `reopen_run` opens the run again")
        if step in self._committed or (self.last_step is not None and step < self.last_step):
            raise StoreError(f"step {step} cannot be written: step {self.last_step} is committed, and committed steps "
                             "never change. Count on from there")

    def write_step(self, step: int, groups: Sequence[Group]) -> Path:
        """All trajectories of a step, durable when this returns. Must come before the step's first update."""
        self._check_open(step)
        content = columns.encode_groups(groups, step=step)
        writer.make_folder(self.path / "steps" / step_name(step))
        return self._write(step, TRAJECTORIES, content)

    def write_credit(self, table: CreditTable, *, skipped: str | None = None) -> Path:
        """What an update used, durable when this returns. `skipped`: the reason, where the update was left out; the
        table (and with the trajectories the whole batch) is kept, and an event says so."""
        if TRAJECTORIES not in self._seals.get(table.step, {}):
            raise StoreError(f"step {table.step}: credit of update {table.update} came before the step's trajectories; "
                             "call write_step first, so that no update is ever without the data it used")
        path = self._write(table.step, _credit_name(table.update), columns.encode_credit(table, skipped=skipped))
        if skipped is not None:
            self.event({"kind": "skipped_update", "step": table.step, "update": table.update, "reason": skipped})
        return path

    def write_lint(self, step: int, report: LintReport) -> Path:
        """What the lint said of a step, sealed with it; not how much it looked at, which may depend on the clock."""
        stable = LintReport(tuple(replace(a, looked=min(a.looked, 1)) for a in report.answers), report.about)
        content = canonical_json.sealed_json(stable.as_dict(), kind="lint", version=FORMAT)
        return self._write(step, LINT, memoryview(content))

    def commit_step(self, step: int, metrics: Mapping[str, Any], clock: Mapping[str, Any] | None = None) -> None:
        """The commit point. `clock` holds what depends on the machine (seconds, memory), `metrics` what does not."""
        self._check_open(step)
        seals = self._seals.get(step, {})
        if TRAJECTORIES not in seals:
            raise StoreError(f"step {step} has no trajectories yet; call write_step before commit_step")
        if clock:
            self.write_clock(step, clock)
        files = {name: vars(seal) for name, seal in seals.items()}
        writer.append_line(self.path / "metrics.jsonl", {"step": step, "metrics": dict(metrics), "files": files})
        self._committed.add(step)
        self.last_step = step
        del self._seals[step]

    def write_evaluation(self, name: str, evaluation: Mapping[str, Any], *, replace: bool = False) -> Path:
        """One evaluation under a name of its own. Writing the same again is no error; writing another one is, unless
        `replace`."""
        path = self.path / "evaluations" / f"{canonical_json.check_name(name)}.json"
        content = canonical_json.sealed_json(evaluation, kind="evaluation", version=FORMAT)
        if path.exists() and canonical_json.read_file(path) == content:
            return path
        writer.write_file(path, content, replace=replace)
        return path

    def event(self, event: Mapping[str, Any]) -> None:
        """Something worth saying: {"kind": ..., "step": ...}. No times in it: they belong to the clock."""
        if not isinstance(event.get("step", 0), int):
            raise StoreError(f"the step of an event is a whole number or left out, got {event['step']!r}")
        writer.append_line(self.path / "events.jsonl", event)

    def close(self) -> None:
        """Let another process write the run."""
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ------------------------------------------------------------------------------------------------ reading


def open_run(path: str | os.PathLike) -> Run:
    """A run to look at, finished or not; needs neither torch nor transformers. Raises StoreError where `path` is not a
    run folder or is of a format that this version does not read."""
    return Run(_with_name(path))


class Run:
    """A run folder as a value to read. Every call reads what is there now, so a run that trains can be watched."""

    def __init__(self, path: Path):
        self.path = path
        if not path.is_dir():
            if writer.half_made(path):
                raise StoreError(f"there is no run folder {path}: its process died before the folder was complete, so "
                                 "nothing had been done yet. Start it again with `workbench train`")
            raise StoreError(f"there is no run folder {path}; runs lie side by side in one folder, one folder each")
        if not (path / "run.json").is_file():
            raise StoreError(f"{path} is not a run folder: it has no run.json. Name the folder of one run")
        canonical_json.read_sealed_json(path / "run.json", kind="run", version=FORMAT)
        self.first_config = canonical_json.read_sealed_json(path / "config.json", kind="config", version=FORMAT)
        self._known: tuple[tuple[int, int], dict[int, dict]] = ((-1, -1), {})

    @property
    def name(self) -> str:
        return self.path.name

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The whole configuration, as it is in force now."""
        return self.config_of(10**8)

    def config_of(self, step: int) -> dict[str, Any]:
        """The configuration that was in force at the end of `step`: what it began with, and what was changed since."""
        config = copy.deepcopy(self.first_config)
        for event in self.events() if (self.path / "events.jsonl").exists() else ():
            for key, (_, value) in event["changed"].items() if _is_change(event, step) else ():
                *parents, leaf = key.split(".")
                node = config
                for parent in parents:
                    node = node[parent]
                node[leaf] = value
        return config

    def _commits(self) -> dict[int, dict]:
        """Step -> its metrics line. Read again only when the file has changed."""
        path = self.path / "metrics.jsonl"
        try:
            stat = path.stat()
        except OSError as error:
            raise StoreError(f"{path} is missing; restore it from a copy of the run") from error
        stamp = (stat.st_size, stat.st_mtime_ns)
        if self._known[0] != stamp:
            lines = canonical_json.read_lines(path)
            self._known = (stamp, {line["step"]: line for line in lines.records})
        return self._known[1]

    def steps(self) -> list[int]:
        """The committed steps."""
        return list(self._commits())

    def uncommitted(self) -> list[int]:
        """Steps that have files but no metrics line: under way, or left by a process that died."""
        commits = self._commits()
        return [step for step in step_folders(self.path / "steps") if step not in commits]

    def warnings(self) -> list[str]:
        """What a reader should know: lines cut short, steps not committed."""
        found = []
        for name in _LINES:
            torn = canonical_json.read_lines(self.path / name).torn
            if torn:
                found.append(f"{name}: the last line is cut short ({len(torn)} bytes) and was left out")
        for step in self.uncommitted():
            found.append(f"step {step} has files but was not committed (under way, or its process died)")
        machines = self.machines()
        for (_, before), (after, now) in zip(machines, machines[1:]):
            found.append(f"after step {after} it went on with other {differing(before, now)}: from there on it need "
                         "not be, bit for bit, the run that was never interrupted")
        return found

    def _commit(self, step: int) -> dict:
        commits = self._commits()
        if step not in commits:
            hint = "it was begun but not committed" if step in self.uncommitted() else _range(list(commits))
            raise StoreError(f"run {self.name} has no committed step {step}: {hint}")
        return commits[step]

    def _read(self, step: int, name: str) -> tuple[bytes, Path]:
        files = self._commit(step)["files"]
        path = self.path / "steps" / step_name(step) / name
        if name not in files:
            raise StoreError(f"step {step} of run {self.name} has no {name}; it has {', '.join(sorted(files))}")
        data = canonical_json.read_file(path)
        Seal(**files[name]).check(path, data)
        return data, path

    def groups(self, step: int) -> list[Group]:
        """Every trajectory of a committed step, exactly as it was collected."""
        return columns.decode_groups(*self._read(step, TRAJECTORIES))

    def updates(self, step: int) -> list[int]:
        """The updates of a committed step that left a credit table, skipped ones included."""
        return sorted(int(match[1]) for name in self._commit(step)["files"] if (match := _CREDIT.fullmatch(name)))

    def credit(self, step: int, update: int = 0) -> CreditTable:
        """What an update used, token by token; columns that were not computed are absent."""
        return columns.decode_credit(*self._read(step, _credit_name(update)))[0]

    def skipped(self, step: int) -> dict[int, str]:
        """The updates of a step that did not touch the weights, and why."""
        reasons = {u: columns.decode_credit(*self._read(step, _credit_name(u)))[1] for u in self.updates(step)}
        return {update: reason for update, reason in reasons.items() if reason is not None}

    def lint(self, step: int) -> LintReport | None:
        """What the lint said of a committed step; None where it was switched off."""
        if LINT not in self._commit(step)["files"]:
            return None
        self._read(step, LINT)  # holds it against the seal in the metrics line
        path = self.path / "steps" / step_name(step) / LINT
        return LintReport.from_dict(canonical_json.read_sealed_json(path, kind="lint", version=FORMAT))

    def metrics(self) -> pandas.DataFrame:
        """One row per committed step, indexed by step; a metric that a step did not have is missing there, not zero."""
        return _frame({step: line["metrics"] for step, line in self._commits().items()})

    def metrics_line(self, step: int) -> dict[str, Any]:
        """The metrics of one committed step, as they were written."""
        return dict(self._commit(step)["metrics"])

    def clock(self) -> pandas.DataFrame:
        """Wall-clock data of the committed steps, indexed by step; `at` is when the step was committed (UTC)."""
        lines = canonical_json.read_lines(self.path / "clock.jsonl").records
        rows = {line["step"]: {"at": line["at"], **line["clock"]} for line in lines if line["what"] == "step"}
        return _frame({step: rows[step] for step in self.steps() if step in rows})

    def processes(self) -> list[dict[str, Any]]:
        """Which processes wrote this run, when and where."""
        lines = canonical_json.read_lines(self.path / "clock.jsonl").records
        return [line for line in lines if line["what"] not in ("step", "machine")]

    def machines(self) -> list[tuple[int, dict[str, Any]]]:
        """(step, facts): from the step after it on, the run was computed by what `facts` say (threads, versions ...).
        Several of them: bit-exactness is not promised."""
        lines = canonical_json.read_lines(self.path / "clock.jsonl").records
        return [(line["after"], line["machine"]) for line in lines if line["what"] == "machine"]

    def events(self) -> list[dict[str, Any]]:
        """What was worth saying, in order: skipped updates, changed settings, warnings."""
        return list(canonical_json.read_lines(self.path / "events.jsonl").records)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Every evaluation by name."""
        paths = sorted((self.path / "evaluations").glob("[A-Za-z0-9]*.json"))
        return {path.stem: canonical_json.read_sealed_json(path, kind="evaluation", version=FORMAT) for path in paths}

    def digest(self) -> str:
        """One hash over what this run was: configuration, metrics, every file of every committed step (through the
        seals in the metrics lines), events and evaluations. The clock is left out: equal runs have equal digests."""
        names = ["config.json", "metrics.jsonl", "events.jsonl"]
        names += sorted(f"evaluations/{name}.json" for name in self.evaluations())
        total = sha256()
        for name in names:
            data = canonical_json.read_file(self.path / name)
            if name.endswith(".jsonl"):
                data = data[:len(data) - len(canonical_json.read_lines(self.path / name).torn)]
            total.update(f"{name} {sha256(data).hexdigest()}\n".encode())
        return total.hexdigest()


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What two sets of facts differ in, in words: "threads (1, now 2)"."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key)}, now {now.get(key)})" for key in keys)


def _is_change(event: Mapping[str, Any], step: int) -> bool:
    return event.get("kind") == "settings" and event["after"] <= step


def _frame(rows: Mapping[int, Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    frame = pandas.DataFrame(list(rows.values()), index=pandas.Index(list(rows), dtype="int64", name="step"))
    return frame.drop(columns="step", errors="ignore")


def step_folders(folder: Path) -> list[int]:
    """The steps that have a folder (or file) of their name in `folder`, in order; none where it does not exist."""
    with canonical_json.readable(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(match[1]) for name in names if (match := STEP.fullmatch(name)))


def _range(steps: list[int]) -> str:
    return f"it has steps {steps[0]} to {steps[-1]}" if steps else "it has none yet"
