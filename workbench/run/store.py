"""The run folder: everything a run was, readable on any machine without torch (invariants 13 and 14).

    NAME/
      run.json                     what this folder is, and its format version
      code.json                    of a run that names code of the user's own: where it came from (run/code.py)
      config.json                  the whole configuration it began with; `settings` events say what was changed since
      metrics.jsonl                one line a step. THE LINE COMMITS THE STEP: it seals (bytes, sha256) the step's files
      events.jsonl                 skipped updates, changed settings, warnings
      clock.jsonl                  wall-clock data, processes, machines: apart from what is hashed
      steps/step-00000001/         trajectories.parquet   durable before the step's first update
                                   credit-0000.parquet    what update 0 used, per token; written after it. A skipped
                                                          update keeps its table too, with the reason inside
                                   lint.json              the report of the lint
      evaluations/NAME.json        one evaluation each
      evaluations/attempts/NAME/   POLICY-MODE.parquet    the trajectories that it counts; older runs have none
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
import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.basics import canonical_json
from workbench.basics.annotated import checked_methods
from workbench.basics.canonical_json import Lines, seal_of
from workbench.basics.findings import LintReport
from workbench.basics.regular_files import is_folder
from workbench.run import columns, writer
from workbench.run.shapes import (
    EVALUATION,
    by_step,
    changes,
    clock_lines,
    event_lines,
    setting_of,
    shaped,
)
from workbench.run.shapes import (
    LINT as LINT_SHAPE,
)
from workbench.values import CreditTable, Groups
from workbench.values.errors import StoreError, shortened
from workbench.values.view import Shown

if TYPE_CHECKING:
    import pandas

FORMAT = 1
CODE = "code.json"
TRAJECTORIES = "trajectories.parquet"
LINT = "lint.json"
EVALUATED = "attempts"
LINES = ("metrics.jsonl", "events.jsonl", "clock.jsonl")
STEP = re.compile(r"step-(\d{8})")
CREDIT = re.compile(r"credit-(\d{4})\.parquet")


def step_name(step: int) -> str:
    """The folder name of a step; raises StoreError for what is not a step number."""
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**8:
        raise StoreError(f"a step is a whole number from 0 to 99999999, got {step!r}")
    return f"step-{step:08d}"


def credit_name(update: int) -> str:
    if isinstance(update, bool) or not isinstance(update, int) or not 0 <= update < 10**4:
        raise StoreError(f"updates of a step are counted from 0 to 9999, got {update!r}")
    return f"credit-{update:04d}.parquet"


def with_name(path: str | os.PathLike) -> Path:
    """`path`, spelled out where its last part is no name: the folder one is in, or the one above."""
    try:
        path = Path(path)
    except TypeError as error:
        raise StoreError(f"a run is given by its folder, got {shortened(path)}") from error
    return Path(os.path.abspath(path)) if path.name in ("", "..") else path


def open_run(path: str | os.PathLike | Run, *, trust: bool = False) -> Run:
    """A run to look at, finished or not (one that is open is given back); needs neither torch nor transformers.

    `trust`: code that the run names may be imported although the run was not made on this machine (invariant 16). Raises
    StoreError where `path` is not a run folder or is of a format that this version does not read."""
    if isinstance(path, Run):
        return path if path.trust or not trust else Run(path.path, trust=True)
    return Run(with_name(path), trust=trust)


@checked_methods
class Run(Shown):
    """A run folder as a value to read. Every call reads what is there now, so a run that trains can be watched."""

    def __init__(self, path: Path, *, trust: bool = False):
        self.path = path
        self.trust = trust
        if not is_folder(path):
            if is_folder(path.parent) and writer.half_made(path):
                raise StoreError(
                    f"there is no run folder {path}: its process died before the folder was complete, so "
                    "nothing had been done yet. Start it again with `workbench train`"
                )
            raise StoreError(
                f"there is no run folder {path}: expected one (wb.runs()) or another framework's rollouts"
            )
        if not (path / "run.json").is_file():
            raise StoreError(
                f"{path} is not a run folder: it has no run.json. Name the folder of one run"
            )
        canonical_json.read_sealed_json(path / "run.json", kind="run", version=FORMAT, below=path)
        self.first_config = canonical_json.read_sealed_json(
            path / "config.json", kind="config", version=FORMAT, below=path
        )
        if not isinstance(self.first_config, dict):
            raise StoreError(
                f"{path / 'config.json'} holds no settings, but a {type(self.first_config).__name__}"
            )
        # The committed steps, and the size and time of the file of metrics when they were read.
        self._known: dict[int, dict] = {}
        self._known_stamp = (-1, -1)
        self._events: list[dict[str, Any]] = []
        self._events_stamp = (-1, -1)

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
        events = self.events() if (self.path / "events.jsonl").exists() else []
        for (*parents, leaf), value in changes(events, step):
            node = config
            for parent in parents:
                node = node.get(parent) if isinstance(node, dict) else None
            if not isinstance(node, dict):
                raise StoreError(
                    f"{self.path}/events.jsonl changes {'.'.join([*parents, leaf])}, which no setting is called"
                )
            node[leaf] = copy.deepcopy(value)  # the events are kept
        return config

    def setting(self, key: str, *kinds: type, step: int = 10**8) -> Any:
        """One setting, as at the end of `step`. Raises StoreError where it is of none of these types."""
        return setting_of(self.config_of(step), key, kinds, self.path / "config.json")

    def _lines(self, name: str) -> Lines:
        return canonical_json.read_lines(self.path / name, below=self.path)

    def _clock(self) -> list[dict[str, Any]]:
        return clock_lines(self._lines("clock.jsonl").records, self.path / "clock.jsonl")

    def _commits(self) -> dict[int, dict]:
        """Step -> its metrics line. Read again only when the file has changed."""
        path = self.path / "metrics.jsonl"
        stamp = _stamp(path)
        if self._known_stamp != stamp:
            lines = canonical_json.read_lines(path, below=self.path)
            self._known = by_step(lines.records, path)
            self._known_stamp = stamp
        return self._known

    def steps(self) -> list[int]:
        """The committed steps."""
        return list(self._commits())

    def uncommitted(self) -> list[int]:
        """Steps that have files but no metrics line: under way, or left by a process that died."""
        commits = self._commits()
        return [step for step in step_folders(self.path / "steps") if step not in commits]

    def warnings(self) -> list[str]:
        """What a reader should know: lines cut short, steps not committed."""
        warnings = []
        for name in LINES:
            if torn := self._lines(name).torn:
                warnings.append(
                    f"{name}: the last line is cut short ({len(torn)} bytes) and was left out"
                )
        warnings += [
            f"step {step} has files but was not committed (under way, or its process died)"
            for step in self.uncommitted()
        ]
        machines = self.machines()
        for (_, before), (after, now) in zip(machines, machines[1:]):
            warnings.append(
                f"after step {after} it went on with other {differing(before, now)}: from there on it need "
                "not be, bit for bit, the run that was never interrupted"
            )
        return warnings

    def _commit(self, step: int) -> dict:
        commits = self._commits()
        if step not in commits:
            hint = "it has none yet"
            if step in self.uncommitted():
                hint = "it was begun but not committed"
            elif commits:
                hint = f"it has steps {min(commits)} to {max(commits)}"
            raise StoreError(f"run {self.name} has no committed step {step}: {hint}")
        return commits[step]

    def _read(self, step: int, name: str) -> tuple[bytes, Path]:
        files = self._commit(step)["files"]
        path = self.path / "steps" / step_name(step) / name
        if name not in files:
            there = ", ".join(sorted(files))
            raise StoreError(f"step {step} of run {self.name} has no {name}; it has {there}")
        data = canonical_json.read_file(path, below=self.path)
        seal_of(files[name], path).check(path, data)
        return data, path

    def groups(self, step: int) -> Groups:
        """Every trajectory of a committed step, exactly as it was collected."""
        return Groups(columns.decode_groups(*self.trajectory_bytes(step)))

    def trajectory_bytes(self, step: int) -> tuple[bytes, Path]:
        """(content, path) of the file of the trajectories of a committed step, checked against its seal."""
        return self._read(step, TRAJECTORIES)

    def updates(self, step: int) -> list[int]:
        """The updates of a committed step that left a credit table, skipped ones included."""
        matches = map(CREDIT.fullmatch, self._commit(step)["files"])
        return sorted(int(match[1]) for match in matches if match)

    def credit(self, step: int, update: int = 0) -> CreditTable:
        """What an update used, token by token; columns that were not computed are absent."""
        return columns.decode_credit(*self._read(step, credit_name(update)))[0]

    def skipped(self, step: int) -> dict[int, str]:
        """The updates of a step that did not touch the weights, and why."""
        reasons = {}
        for update in self.updates(step):
            _, reason = columns.decode_credit(*self._read(step, credit_name(update)))
            if reason is not None:
                reasons[update] = reason
        return reasons

    def lint(self, step: int) -> LintReport | None:
        """The report of the lint on a step, also on one that it ended before it was committed; None where it was off."""
        report = self.lint_values(step)
        return None if report is None else LintReport.from_dict(report)

    def lint_values(self, step: int) -> dict[str, Any] | None:
        """The same as the JSON values of `LintReport.as_dict`: quicker, where little of each of many steps is wanted."""
        path = self.path / "steps" / step_name(step) / LINT
        if step not in self._commits() and step in self.uncommitted():
            if not path.exists():
                return None
            report = canonical_json.read_sealed_json(
                path, kind="lint", version=FORMAT, below=self.path
            )
        elif LINT in self._commit(step)["files"]:
            data, _ = self._read(step, LINT)  # checked against the seal in the metrics line
            document = canonical_json.sealed_document(data, path, kind="lint", version=FORMAT)
            report = document["content"]
        else:
            return None
        return shaped(report, LINT_SHAPE, path, "a lint")

    def metrics(self) -> pandas.DataFrame:
        """One row per committed step, indexed by step; a metric that a step did not have is missing there, not zero."""
        return _frame({step: line["metrics"] for step, line in self._commits().items()})

    def metrics_rows(self) -> list[dict[str, Any]]:
        """The same as one mapping a step, "step" among its keys: without pandas, which takes half a second to import."""
        return [{"step": step} | line["metrics"] for step, line in self._commits().items()]

    def metrics_line(self, step: int) -> dict[str, Any]:
        """The metrics of one committed step, as they were written."""
        return dict(self._commit(step)["metrics"])

    def trajectories(self, steps: Sequence[int] | None = None) -> pandas.DataFrame:
        """A row a trajectory of the committed steps, or of these: see `frames.trajectories_frame` for its columns."""
        from workbench.run.frames import trajectories_frame

        return trajectories_frame(self, steps)

    def turns(self, steps: Sequence[int] | None = None) -> pandas.DataFrame:
        """A row a turn of the committed steps, or of these: see `frames.turns_frame` for its columns."""
        from workbench.run.frames import turns_frame

        return turns_frame(self, steps)

    def tokens(self, steps: Sequence[int] | None = None) -> pandas.DataFrame:
        """A row a token of the committed steps, or of these: see `frames.tokens_frame` for its columns."""
        from workbench.run.frames import tokens_frame

        return tokens_frame(self, steps)

    def clock(self) -> pandas.DataFrame:
        """Wall-clock data of the committed steps, indexed by step; `at` is when the step was committed (UTC)."""
        rows = self.clock_rows()
        return _frame({step: rows[step] for step in self.steps() if step in rows})

    def clock_rows(self) -> dict[int, dict[str, Any]]:
        """Step -> the same as one mapping: without pandas."""
        return {
            line["step"]: {"at": line["at"], **line["clock"]}
            for line in self._clock()
            if line["what"] == "step"
        }

    def processes(self) -> list[dict[str, Any]]:
        """Which processes wrote this run, when and where."""
        return [line for line in self._clock() if line["what"] not in ("step", "machine")]

    def machines(self) -> list[tuple[int, dict[str, Any]]]:
        """(step, facts): from the step after it on, the run was computed by what `facts` say (threads, versions ...).
        Several of them: bit-exactness is not promised."""
        lines = [line for line in self._clock() if line["what"] == "machine"]
        return [(line["after"], line["machine"]) for line in lines]

    def events(self) -> list[dict[str, Any]]:
        """Skipped updates, changed settings and warnings, in order."""
        path = self.path / "events.jsonl"
        stamp = _stamp(path)
        if self._events_stamp != stamp:
            self._events = event_lines(self._lines("events.jsonl").records, path)
            self._events_stamp = stamp
        return list(self._events)

    def evaluations(self) -> dict[str, dict[str, Any]]:
        """Every evaluation by name."""
        evaluations = {}
        for path in sorted((self.path / "evaluations").glob("[A-Za-z0-9]*.json")):
            if not canonical_json.is_name(path.stem):  # nothing that was written here
                continue
            content = canonical_json.read_sealed_json(
                path, kind="evaluation", version=FORMAT, below=self.path
            )
            evaluations[path.stem] = shaped(content, EVALUATION, path, "an evaluation")
        return evaluations

    def evaluated(self, name: str) -> dict[str, Groups]:
        """The stored trajectories of an evaluation by side ("trained-sampled"); {} in runs of before they were stored."""
        folder = self.path / "evaluations" / EVALUATED / canonical_json.check_name(name)
        sides = {}
        for path in sorted(folder.glob("[A-Za-z0-9]*.parquet")):
            data = canonical_json.read_file(path, below=self.path)
            sides[path.stem] = Groups(columns.decode_groups(data, path))
        return sides

    def digest(self) -> str:
        """One hash over what this run was: configuration, metrics, every file of every committed step (through the
        seals in the metrics lines), events and evaluations. The clock is left out: equal runs have equal digests."""
        names = ["config.json", "metrics.jsonl", "events.jsonl"]
        names += sorted(f"evaluations/{name}.json" for name in self.evaluations())
        total = sha256()
        for name in names:
            data = canonical_json.read_file(self.path / name, below=self.path)
            if name.endswith(".jsonl"):
                data = data[: len(data) - len(self._lines(name).torn)]
            total.update(f"{name} {sha256(data).hexdigest()}\n".encode())
        return total.hexdigest()


def differing(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The differences of two sets of facts, in words: "threads (1, now 2)"."""
    keys = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    return ", ".join(f"{key} ({before.get(key)}, now {now.get(key)})" for key in keys)


def _stamp(path: Path) -> tuple[int, int]:
    """(size, time) of a file of lines: the same where it has not changed."""
    try:
        stat = path.stat()
    except OSError as error:
        raise StoreError(f"{path} is missing; restore it from a copy of the run") from error
    return stat.st_size, stat.st_mtime_ns


def _frame(rows: Mapping[int, Mapping[str, Any]]) -> pandas.DataFrame:
    import pandas

    steps = pandas.Index(list(rows), dtype="int64", name="step")
    frame = pandas.DataFrame(list(rows.values()), index=steps)
    return frame.drop(columns="step", errors="ignore")


def step_folders(folder: Path) -> list[int]:
    """The steps that have a folder (or file) of their name in `folder`, in order; none where it does not exist."""
    with canonical_json.readable(folder):
        names = os.listdir(folder) if folder.is_dir() else []
    matches = map(STEP.fullmatch, names)
    return sorted(int(match[1]) for match in matches if match)
