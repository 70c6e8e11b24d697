"""Cases one after the other for so many minutes; what each reaches decides what is changed further; what is wrong is made small.

    python -m tests.attack.drive --seed 1 --minutes 60 --out attacked
    python -m tests.attack.drive --again attacked/find-001.json

Every case is a child of its own with bounds on time and memory. Wrong is: a traceback, the exit status 3 (an error that nobody expected)
or one that no command has, more than SECONDS of computing, more than MEGABYTES, code of the case's
folder that ran, a byte outside of it, a way to another machine (`watch`), a committed step that is gone, a run that was changed by
a command that reads. A find is made smaller by leaving operations out as long as the same goes wrong, and written down once for
each place where it goes wrong.

What was late or took much is tried again by itself, without the hook that hears every call: a hook makes Python several times
as slow, and other processes may have had the cores. What is never wrong again is no find; it is counted apart, with its
figures. Time in which a process of the case could run is no lateness: its computing is bounded by itself.

The same seed draws the same numbers; which cases are taken up again depends on the calls of one function by another that cases
were seen to make: one that made a call which few cases did is changed more often.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import re
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from tests.attack.victims import KINDS, Case, Ground, attack, lay_ground
from tests.attack.watch import Watch

SECONDS = 20  # of computing
WALL = 8  # times as many of the wall clock in which no process of the case could run
AGAIN = 2  # times that what was late or large is tried by itself
LATE = re.compile(r"slow|large|.*went on for")
MEGABYTES = 1_000  # with what this process has: a library that is imported, a policy
OURS = f"{Path(__file__).parents[2]}/workbench/"
SHARES = {"run": 10, "rollouts": 5, "model": 4, "reply": 4, "call": 5, "words": 5}
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ended:
    """How a case ended. `entered`: calls of functions of the package, and by which; `did`: what nothing foreign may do."""

    status: int
    said: str
    seconds: float
    megabytes: float
    entered: frozenset[str]
    did: tuple[str, ...] = ()

    def wrong(self) -> str:
        """The kind and the place of what is wrong; "": nothing."""
        if self.did:
            return self.did[0]
        if self.status == 71:
            return re.sub(r"\d+", "N", self.said[:120])
        if self.seconds > SECONDS or self.status in (-signal.SIGXCPU, -signal.SIGKILL):
            return "slow"
        if self.megabytes > MEGABYTES:
            return "large"
        if self.status in (0, 1, 2) and "Traceback" not in self.said:
            return ""
        places = re.findall(rf'File "{re.escape(OURS)}([^"]+)", line (\d+)', self.said)
        kinds = re.findall(r"(?m)^(\w+(?:Error|Exception|Exit))\b", self.said)
        at = ":".join(places[-1]) if places else f"status {self.status}, {self.said[-80:]}"
        return f"{kinds[-1] if kinds else 'error'} at {at}"


def run_case(
    case: Case, ground: Ground, attacking: Callable = attack, *, heard: bool = True
) -> Ended:
    """In a child of this process. `heard`: its calls are noted."""
    report = ground.folder / "report"
    log = ground.folder / "watched"
    report.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    pid = os.fork()
    if not pid:
        _as_child(case, ground, report, attacking, heard)
    last = time.monotonic()
    waited = 0.0
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
        now = time.monotonic()
        waited += 0 if _can_run(pid) else now - last
        last = now
        if waited > SECONDS * WALL:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
    told = json.loads(report.read_text()) if report.exists() else {}
    return Ended(
        told.get("status", os.waitstatus_to_exitcode(status) or 70),
        told.get("said", "it ended without a word"),
        told.get("seconds", used.ru_utime + used.ru_stime),
        told.get("kilobytes", used.ru_maxrss) / 1024,
        frozenset(told.get("entered", ())),
        tuple(log.read_text().splitlines()) if log.exists() else (),
    )


def _can_run(pid: int) -> bool:
    """Whether a process of this one's group, the first one or one below it, computes or waits for a core or the disk."""
    try:
        first = psutil.Process(pid)
        states = [one.status() for one in (first, *first.children(recursive=True))]
    except psutil.Error:
        return False
    return any(state in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP) for state in states)


class Used:
    """What a child computes and takes from `begin` on: laying out what is attacked counts for nothing."""

    def __init__(self) -> None:
        self._own = _kilobytes("VmRSS")
        self._laid = self._since = 0.0

    def begin(self) -> None:
        gc.collect()
        pa.default_memory_pool().release_unused()
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak is measured anew
        # What a library keeps of what it was laid out with is none of the case's.
        self._laid = max(_kilobytes("VmRSS") - self._own, 0.0)
        self._since = _computed()

    def taken(self) -> dict[str, float]:
        below = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        peak = max(_kilobytes("VmHWM") - self._laid, below)
        return {"seconds": _computed() - self._since, "kilobytes": peak}


def _kilobytes(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return max(int(line.split()[1]) for line in lines if line.startswith(name))


def _computed() -> float:
    """Seconds of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _as_child(case: Case, ground: Ground, report: Path, attacking: Callable, heard: bool) -> None:
    os.setsid()
    entered: set[tuple[Any, int]] = set()
    watch, used = _watch(ground), Used()

    def begin() -> None:
        watch.begin()
        used.begin()

    def look(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(OURS):
            caller = frame.f_back.f_code if frame.f_back else code
            entered.add((code, caller.co_firstlineno))

    try:
        silent = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(silent, fd)
        most = int(2 * SECONDS) + 5
        resource.setrlimit(resource.RLIMIT_CPU, (most, most + 5))
        resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if heard:
            sys.setprofile(look)
        try:
            used.begin()
            status, said = attacking(case, ground, begin)
        except BaseException:
            status, said = 70, traceback.format_exc()
        sys.setprofile(None)
        names = [
            f"{code.co_filename[len(OURS) :]}:{code.co_firstlineno}<{line}"
            for code, line in entered
        ]
        told = {"status": status, "said": said[-4000:], "entered": sorted(names), **used.taken()}
        report.write_text(json.dumps(told))
    finally:
        os._exit(0)


def _watch(ground: Ground) -> Watch:
    """Writing is allowed into the case's folder, into folders for what is passing, and into the user's own state."""
    case = ground.folder / "case"
    inside = (ground.folder, Path(tempfile.gettempdir()), Path(os.environ["XDG_STATE_HOME"]))
    forbidden = (ground.run, ground.model, case / "outside", case / "sound", ROOT)
    return Watch(ground.folder / "watched", inside, forbidden, case)


@dataclass
class Attack:
    """What was tried so far. `kept`: cases that made calls which none before them had; `entered`: how many cases made each;
    `passed`: those that were late or large once and not again."""

    ground: Ground
    seed: int
    attacking: Callable = attack
    kept: list[tuple[Case, frozenset[str]]] = field(default_factory=list)
    entered: Counter = field(default_factory=Counter)
    tried: Counter = field(default_factory=Counter)
    finds: dict[str, tuple[Case, Ended]] = field(default_factory=dict)
    passed: list[tuple[Case, tuple[Ended, ...]]] = field(default_factory=list)

    def draw(self, number: int) -> Case:
        """The case of this number: a new one, or one that reached something, with an operation more."""
        rng = random.Random(f"{self.seed} {number}")
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        parents = [(case, self.rareness(made)) for case, made in self.kept if case.kind == kind]
        operation = rng.randrange(1 << 32)
        if parents and rng.random() < 0.5:
            parent = rng.choices(*zip(*parents, strict=True))[0]
            number = parent.number if rng.random() < 0.5 else operation
            return Case(kind, number, (*parent.operations[-5:], operation))
        return Case(
            kind, operation, tuple(rng.randrange(1 << 32) for _ in range(rng.choice((1, 1, 2, 4))))
        )

    def rareness(self, made: frozenset[str]) -> float:
        """1 for a case that made a call which no other did, less where the rarest of its calls is a frequent one."""
        return 1 / min(self.entered[call] for call in made)

    def step(self, number: int) -> str:
        """Try one; what was found anew, "": nothing."""
        case = self.draw(number)
        ended = run_case(case, self.ground, self.attacking)
        self.tried[case.kind] += 1
        if new := ended.entered - self.entered.keys():
            self.kept.append((case, frozenset(new)))
        self.entered.update(ended.entered)
        wrong = ended.wrong()
        if wrong and LATE.match(wrong):
            ended = self.by_itself(case, ended)
            wrong = ended.wrong()
        if not wrong or wrong in self.finds:
            return ""
        self.finds[wrong] = self.smaller(case, ended, wrong)
        return wrong

    def by_itself(self, case: Case, first: Ended) -> Ended:
        """How the case ends without the hook: as soon as it is not wrong, else at its last try."""
        tries = [first]
        while tries[-1].wrong() and len(tries) <= AGAIN:
            tries.append(run_case(case, self.ground, self.attacking, heard=False))
        if not tries[-1].wrong():
            self.passed.append((case, tuple(tries)))
        return tries[-1]

    def smaller(self, case: Case, ended: Ended, wrong: str) -> tuple[Case, Ended]:
        """The case with as few operations as do the same wrong."""
        place = 0
        while place < len(case.operations) and len(case.operations) > 1:
            tried = case.without(place)
            heard = not LATE.match(wrong)
            again = run_case(tried, self.ground, self.attacking, heard=heard)
            if again.wrong() == wrong:
                case, ended = tried, again
            else:
                place += 1
        return case, ended


def write_finds(attack_made: Attack, out: Path) -> None:
    """A file for each find, and the counts."""
    out.mkdir(parents=True, exist_ok=True)
    for number, (wrong, (case, ended)) in enumerate(attack_made.finds.items(), 1):
        told = asdict(case) | {"wrong": wrong, "status": ended.status, "said": ended.said}
        told |= {"seconds": round(ended.seconds, 2), "megabytes": round(ended.megabytes)}
        (out / f"find-{number:03d}.json").write_text(json.dumps(told, indent=1) + "\n")
    counts = {
        "seed": attack_made.seed,
        "tried": dict(attack_made.tried),
        "calls of one function by another": len(attack_made.entered),
        "kept": len(attack_made.kept),
        "finds": list(attack_made.finds),
        "late or large once, and not by itself": [
            {"case": asdict(case), "tries": [_figures(ended) for ended in tries]}
            for case, tries in attack_made.passed
        ],
    }
    (out / "counts.json").write_text(json.dumps(counts, indent=1) + "\n")


def _figures(ended: Ended) -> str:
    words = ended.wrong() or "fine"
    return f"{words}: {ended.seconds:.1f} s, {ended.megabytes:.0f} MB"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=Path("attacked"))
    parser.add_argument("--again", type=Path, help="do this find once more")
    options = parser.parse_args()
    for module in (
        "workbench.cli.commands",
        "workbench.training.session",
        "pyarrow.parquet",
        "pandas",
    ):
        __import__(module)
    out = options.out.absolute()
    with tempfile.TemporaryDirectory() as name:
        os.environ["XDG_STATE_HOME"], os.environ["WORKBENCH_PROGRESS"] = f"{name}/state", "quiet"
        os.environ["MPLCONFIGDIR"] = f"{name}/state/matplotlib"
        if options.again is not None:
            told = json.loads(options.again.read_text())
        made = Attack(lay_ground(Path(name)), options.seed)
        if options.again is not None:
            case = Case(told["kind"], told["number"], tuple(told["operations"]))
            ended = made.by_itself(case, run_case(case, made.ground))
            print(f"{case}: {ended.wrong() or 'nothing wrong'}\n{ended.said}")
            return 1 if ended.wrong() else 0
        until = time.monotonic() + 60 * options.minutes
        number = 0
        while time.monotonic() < until:
            number += 1
            if wrong := made.step(number):
                case, ended = made.finds[wrong]
                print(f"{number}: {wrong} | {case}", flush=True)
                write_finds(made, out)
        write_finds(made, out)
    tried = ", ".join(f"{count} {kind}" for kind, count in sorted(made.tried.items()))
    print(
        f"seed {options.seed}: {sum(made.tried.values())} cases ({tried}), {len(made.entered)} calls of one function by another, "
        f"{len(made.finds)} found wrong, {len(made.passed)} late or large once and not by itself; {out}"
    )
    return 1 if made.finds else 0


assert SHARES.keys() == KINDS.keys()
if __name__ == "__main__":
    sys.exit(main())
