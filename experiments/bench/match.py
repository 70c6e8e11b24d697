"""Who steps when. Steps are made in turns within a lane, so that whatever else the machine does meets both sides alike.

    lane 1    ours, TRL                  in float32, on TRL's own route: the ratios at equal dtype
    lane 2    ours, ours in bf16, and    first each of TRL's other configurations for one step; the one that is best
              TRL's configurations       at it goes on, and is measured in the steps that follow

Two lanes run at once where there are two cores, one thread each. The first step of every side is a warm-up. The choice
of TRL's best is made by steps that are not part of its ratio, so that luck in choosing does not count.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from experiments.bench.work import OurSide, PeerSide, StepWork, Work
from experiments.bench.worker import Worker

Say = Callable[[str], None]


@dataclass
class Record:
    """The steps of every side by name, warm-up included."""

    steps: dict[str, list[StepWork]] = field(default_factory=dict)
    pairs: list[tuple[str, str]] = field(default_factory=list)  # ours, theirs: stepped in turns
    say: Say = partial(print, flush=True)  # a log that is followed shows each step when it is done

    def note(self, name: str, step: StepWork) -> None:
        self.steps.setdefault(name, []).append(step)
        self.say(
            f"{name:24s} step {len(self.steps[name]) - 1}: {step.env_steps} environment steps, "
            f"{step.generated_tokens} tokens generated, {step.step_s:.1f} s"
        )

    def measured(self, name: str, count: int) -> list[StepWork]:
        """The last `count` steps of a side: after the warm-up, and after the steps that chose TRL's best."""
        return self.steps[name][-count:]


def equal_dtype(
    record: Record, model: Path, work: Work, steps: int, ours: OurSide, theirs: PeerSide
) -> None:
    """A warm-up step, then `steps` more of both sides, in turns; who begins alternates."""
    sides = [
        Worker.start("ours", ours, work, model, steps + 1),
        Worker.start("peer", theirs, work, model, steps + 1),
    ]
    record.pairs.append((ours.name, theirs.name))
    try:
        for step in range(steps + 1):
            for side in sides if step % 2 == 0 else sides[::-1]:
                record.note(side.name, side.step())
    finally:
        for side in sides:
            side.close()


def best_of(
    record: Record,
    model: Path,
    work: Work,
    steps: int,
    ours: Sequence[OurSide],
    theirs: Sequence[PeerSide],
) -> None:
    """A step of each of TRL's configurations and of ours, then `steps` more of ours and of the best of TRL's, in turns."""
    total = steps + 1
    peers: dict[str, Worker] = {}
    own = [Worker.start("ours", side, work, model, total) for side in ours]
    try:
        for side in theirs:
            peers[side.name] = Worker.start("peer", side, work, model, total)
            record.note(side.name, peers[side.name].step())
            best = max(peers, key=lambda name: record.steps[name][0].env_steps_per_s)
            for name in [name for name in peers if name != best]:
                peers.pop(name).close()
        for side in own:
            record.note(side.name, side.step())
        record.pairs += [(side.name, best) for side in own]
        for step in range(steps):
            order = [*own, peers[best]]
            for side in order if step % 2 == 0 else order[::-1]:
                record.note(side.name, side.step())
    finally:
        for side in (*own, *peers.values()):
            side.close()


def at_once(jobs: Sequence[Callable[[], None]]) -> None:
    """Run the jobs side by side; the first error among them is raised when all have ended."""
    errors: list[BaseException] = []

    def run(job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:  # it belongs to the caller's thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
