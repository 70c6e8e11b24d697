"""One side in a process of its own, told over its standard input when to make its next step.

    a line in  ->  the step's StepWork as a line of JSON out; the end of the input ends the process

Standard output carries nothing else: what libraries print goes to standard error.

    python -m experiments.bench.worker '{"kind": "ours", "side": {...}, "work": {...}, "model": "...", "steps": 6}'
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from experiments.bench.work import OurSide, PeerSide, StepWork, Work
from workbench.values.errors import WorkbenchError

ROOT = Path(__file__).resolve().parents[2]
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


class BenchError(WorkbenchError):
    """A side of the benchmark did not do its step."""


# ------------------------------------------------------------------------------------------------ who starts it


@dataclass(eq=False)
class Worker:
    """A started side. It steps when told, one step at a time, and holds what it learned until it is closed."""

    name: str
    process: subprocess.Popen
    log: IO[bytes]

    @classmethod
    def start(cls, kind: str, side: Any, work: Work, model: Path, steps: int) -> Worker:
        task = {
            "kind": kind,
            "side": asdict(side),
            "work": asdict(work),
            "model": str(model),
            "steps": steps,
        }
        log = tempfile.TemporaryFile()
        process = subprocess.Popen(
            [sys.executable, "-m", "experiments.bench.worker", json.dumps(task)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=os.environ | ONE_THREAD | OFFLINE,
        )
        worker = cls(side.name, process, log)
        worker._line()
        return worker

    def step(self) -> StepWork:
        """Make the next step; blocks until it is done."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return StepWork(**self._line())

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
        self.log.close()

    def _line(self) -> dict[str, Any]:
        if not (line := self.process.stdout.readline()):
            self.process.wait()
            self.log.seek(0)
            said = self.log.read().decode(errors="replace").strip().splitlines()[-15:]
            raise BenchError(
                f"side {self.name!r} ended with status {self.process.returncode} before its step was "
                "done. Its last words:\n  " + "\n  ".join(said)
            )
        return json.loads(line)


# ------------------------------------------------------------------------------------------------ the process


def main(arguments: list[str]) -> int:
    task = json.loads(arguments[0])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import torch

    torch.set_num_threads(1)

    def say(line: Any) -> None:
        answers.write(json.dumps(line) + "\n")
        answers.flush()

    def may_go() -> bool:
        return bool(sys.stdin.readline())

    work, model = Work(**task["work"]), Path(task["model"])
    if task["kind"] == "ours":
        from experiments.bench.ours import OurStepper

        stepper, step = OurStepper(model, work, OurSide(**task["side"])), 0
        say({"ready": True})
        while may_go():
            say(asdict(stepper.step(step)))
            step += 1
        return 0
    from experiments.bench.peer import Steps, make_trainer

    with tempfile.TemporaryDirectory() as out:
        callback = Steps(may_go, lambda done: say(asdict(done)))
        trainer = make_trainer(
            model, work, PeerSide(**task["side"]), task["steps"], Path(out), callback
        )
        say({"ready": True})
        trainer.train()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
