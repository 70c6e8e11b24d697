"""Follow a run while it trains: read what was appended since the last look, and nothing twice.

    follower = RunFollower(Path("runs/first"))
    follower.read()        True: something new is there      follower.rows, .evaluations, .events, .phase()

`Run` is a value to look something up in; each of its calls reads whole files. A follower keeps what it has read, so
that watching a run of ten thousand steps costs each time only what the last step wrote. Nothing but the folder is asked, so
any process can follow a run, at any time. It is not for use by several threads at once.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from workbench.basics import canonical_json
from workbench.basics.regular_files import open_regular
from workbench.run.shapes import by_step, clock_lines
from workbench.run.store import FORMAT, Run, open_run, step_name

MEASURING = "measuring random play, the solver and the untrained policy"

IDLE_STEPS = 8  # that `idle` is the mean of

_END = 12  # bytes of a line's end: its checksum


class LineFollower:
    """The records of a file of lines, so far. A file that is not there yet has none; one that was cut behind what was
    read (a resumed run cuts off what it will write again), or replaced, is read anew."""

    def __init__(self, path: Path):
        self.path = path
        self.records: list[dict[str, Any]] = []
        self._at = 0  # byte behind the last record
        self._stamp: tuple[int, int, int] | None = None
        self._end = b""  # of the last record

    def read(self) -> bool:
        """Take in what was appended; True where `records` changed."""
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return self._forget()
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if stamp == self._stamp:
            return False
        forgotten = self._forget() if not self._still_begins_alike(stat.st_size) else False
        lines = canonical_json.read_lines(self.path, start=self._at, below=self.path.parent)
        self._stamp = stamp
        if lines.records:
            self.records += lines.records
            self._at = lines.ends[-1]
            self._end = canonical_json.line_bytes(lines.records[-1])[-_END:]
        return forgotten or bool(lines.records)

    def _still_begins_alike(self, size: int) -> bool:
        """Does the last line that was read end where it did, with the same checksum?"""
        if size < self._at:
            return False
        with canonical_json.readable(self.path), os.fdopen(open_regular(self.path), "rb") as file:
            file.seek(self._at - len(self._end))
            return file.read(len(self._end)) == self._end

    def _forget(self) -> bool:
        had_records = bool(self.records)
        self.records = []
        self._at = 0
        self._stamp = None
        self._end = b""
        return had_records


class RunFollower:
    """What a run folder holds so far, whether or not it is there yet.

    `rows`: one mapping per committed step, "step" and its metrics (as `look.curves_view` takes them). `evaluations`:
    by name, as `Run.evaluations`. `events`, `clock`: the lines of these files. `config`: the settings in force, None
    while there is no folder. `version`: how often `read` found something new.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.rows: list[dict[str, Any]] = []
        self.evaluations: dict[str, dict[str, Any]] = {}
        self.config: dict[str, Any] | None = None
        self.version = 0
        self._run: Run | None = None
        self._metrics = LineFollower(self.path / "metrics.jsonl")
        self._events = LineFollower(self.path / "events.jsonl")
        self._clock = LineFollower(self.path / "clock.jsonl")
        self._known: dict[str, tuple[int, int]] = {}

    @property
    def events(self) -> list[dict[str, Any]]:
        return self._events.records

    @property
    def clock(self) -> list[dict[str, Any]]:
        return self._clock.records

    def read(self) -> bool:
        """Take in what is new; True where there is something to show that was not there before. Raises StoreError for
        a run that is damaged."""
        if self._run is None:
            if not (self.path / "run.json").is_file():
                return False
            self._run = open_run(self.path)
        fresh = self._events.read()
        if fresh or self.config is None:  # settings may be changed by an event
            self.config = self._run.config
            fresh = True
        if self._metrics.read():
            lines = by_step(self._metrics.records, self._metrics.path)
            self.rows = [{"step": step, **line["metrics"]} for step, line in lines.items()]
            fresh = True
        if self._clock.read():
            clock_lines(self._clock.records, self._clock.path)
        fresh = self._read_evaluations() or fresh
        self.version += fresh
        return fresh

    def _read_evaluations(self) -> bool:
        """Files of evaluations are whole from their first moment (one rename): one is read when its stamp is new."""
        stamps: dict[str, tuple[int, int]] = {}
        evaluations: dict[str, dict[str, Any]] = {}
        changed = False
        for path in sorted((self.path / "evaluations").glob("[A-Za-z0-9]*.json")):
            stat = path.stat()
            stamps[path.stem] = (stat.st_size, stat.st_mtime_ns)
            if self._known.get(path.stem) == stamps[path.stem]:
                evaluations[path.stem] = self.evaluations[path.stem]
            else:
                changed = True
                evaluations[path.stem] = canonical_json.read_sealed_json(
                    path, kind="evaluation", version=FORMAT, below=self.path
                )
        gone = set(self._known) - set(stamps)
        self._known = stamps
        self.evaluations = evaluations
        return changed or bool(gone)

    @property
    def step(self) -> int:
        """The last committed step; 0 before the first."""
        return self.rows[-1]["step"] if self.rows else 0

    @property
    def steps(self) -> int | None:
        """How many steps the run is to have; None while that is not known."""
        return None if self.config is None else self.config["train"]["steps"]

    @property
    def done(self) -> bool:
        """All steps are committed and the last one is measured."""
        if self.steps is None or self.step < self.steps:
            return False
        return step_name(self.step) in self.evaluations

    def idle(self) -> dict[str, float] | None:
        """Who waited, over the last steps: shares of their wall seconds (`learner_idle`, `engine_idle`, `sync_share`). None
        where learner and engine take turns in one process, and before the first step."""
        if self.config is None or self._takes_turns(self.config):
            return None
        clocks = [line["clock"] for line in self.clock if line["what"] == "step"]
        last = [clock for clock in clocks if "engine_idle" in clock][-IDLE_STEPS:]
        if not last:
            return None
        shares = {}
        for name in ("learner_idle", "engine_idle", "sync_share"):
            shares[name] = sum(clock[name] for clock in last) / len(last)
        return shares

    @staticmethod
    def _takes_turns(config: dict[str, Any]) -> bool:
        """Whether learner and engine never work at the same time."""
        layout = config.get("layout", {}).get("kind", "one_device")
        return layout == "one_device" and not config["train"].get("staleness")

    def phase(self) -> str:
        """What its process does now, as far as the folder tells, in words."""
        if self.config is None:
            return "starting"
        if not self.evaluations:
            return MEASURING
        if self.done:
            return "done"
        every = self.config["train"]["evaluate_every"]
        due = self.step and (self.step >= self.steps or (every and self.step % every == 0))
        if due and step_name(self.step) not in self.evaluations:
            return "measuring the trained policy"
        begun = (self.path / "steps" / step_name(self.step + 1) / "trajectories.parquet").exists()
        return f"step {self.step + 1}: {'learning' if begun else 'playing'}"
