"""The long version for runs beside a vLLM server: kill the server, the learner or one of its ranks, at random.

    python -m tests.faults.server_soak --kills 200 [--ranks 2] [--seed 0] [--json FILE]           (needs vLLM)

A long soak may be done in pieces, each with a seed of its own: FILE keeps the tallies of all.

A server that is killed is started anew by the run itself, which goes on; if it was still starting, the run ends and says to
start it once more. A killed learner takes its server with it: no process,
no port and no file of weights is left; then `workbench resume` goes on. What was committed before a kill is a beginning of what
is committed afterwards, and of a finished run every step is sound: one version of the weights for each, no gap between engine
and learner, nothing that the lint names (R17, R23, R33, R34 and all others). Exit status: 0 all held, 1 something did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.faults.soak import add_piece
from workbench.basics import canonical_json
from workbench.extensions.vllm_server.opening import (
    JUST_MADE_S,
    PREFIX,
    SHARED_MEMORY,
    clear_left_over,
)
from workbench.extensions.vllm_server.process import is_free
from workbench.run.store import open_run

SETTINGS = {
    "engine.kind": "vllm",
    "engine.cache_tokens": 16384,
    "engine.max_context": 1000,
    "layout.kind": "one_node",
    "train.steps": 8,
    "train.tasks_per_step": 2,
    "train.checkpoint_every": 2,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 4,
    "lint.start": False,
}
PAUSE_S = 15.0  # the longest wait before the next kill: a server starts in about as long
GONE_S = 10.0  # within which everything that a killed learner had started is gone
LONGEST_S = 600.0  # that a run may go on after its last kill, on a busy machine


class Job:
    """One process of `workbench train` or `resume`, or of torchrun with several."""

    def __init__(self, arguments: list[str], ranks: int, log: Path) -> None:
        many = (
            ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
            if ranks > 1
            else []
        )
        self.log, self.begins = log, log.stat().st_size if log.exists() else 0
        with log.open("ab") as output:
            self.child = subprocess.Popen(
                [sys.executable, *many, "-m", "workbench.cli", *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def said(self) -> str:
        """What this job wrote, beside what it was followed by: torchrun ends with pages of its own."""
        return self.log.read_bytes()[self.begins :].decode(errors="replace")

    def tail(self) -> str:
        """Its last words of ours; where there are none, its end."""
        ours = [line for line in self.said().splitlines() if line.startswith("workbench: ")]
        return ours[-1] if ours else self.said()[-1500:]

    def victims(self) -> dict[str, list[int]]:
        """Process ids by what they are: learner (every rank), keeper and server."""
        found: dict[str, list[int]] = {"learner": [], "server": [], "keeper": []}
        for pid, parent, words in processes():
            if "workbench.cli" in words and (pid == self.child.pid or parent == self.child.pid):
                found["learner"].append(pid)
        found["learner"] = [
            pid for pid in found["learner"] if "torch.distributed.run" not in words_of(pid)
        ]
        for pid, parent, words in processes():
            if "workbench.extensions.vllm_server.keeper" in words and parent in found["learner"]:
                found["keeper"].append(pid)
        found["server"] = [
            pid
            for pid, _, _ in processes()
            if pid not in found["keeper"] and group_of(pid) in found["keeper"]
        ]
        return {what: pids for what, pids in found.items() if pids}


def processes() -> Iterator[tuple[int, int, str]]:
    """(id, parent, command line) of all."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                yield int(folder.name), parent, words_of(int(folder.name))
            except (OSError, ValueError, IndexError):
                continue


def words_of(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        )
    except OSError:
        return ""


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except OSError:
        return -1


def port_of(pid: int) -> int | None:
    words = words_of(pid).split()
    return int(words[words.index("--port") + 1]) if "--port" in words else None


def committed(path: Path) -> list[dict]:
    file = path / "metrics.jsonl"
    return list(canonical_json.read_lines(file).records) if file.exists() else []


def run_once(
    folder: Path, number: int, rng: random.Random, ranks: int, hit: Counter, kills: int
) -> list[str]:
    """One run to its end, killed on the way as long as `kills` are left; what was wrong."""
    path, log, faults = folder / f"run-{number}", folder / f"run-{number}.txt", []
    settings = SETTINGS | (
        {"learner.num_processes": ranks, "learner.sharding": "full"} if ranks > 1 else {}
    )
    words = [
        word
        for name, value in settings.items()
        for word in ("--set", f"{name}={json.dumps(value).strip(chr(34))}")
    ]
    while True:
        before, before_it = committed(path), sum(hit.values())
        arguments = (
            ["resume", str(path)]
            if (path / "run.json").exists()
            else ["train", "frozenlake", "--out", str(path), *words]
        )
        job, quiet_since = Job(arguments, ranks, log), time.monotonic()
        killed = False
        while job.child.poll() is None:
            if sum(hit.values()) < kills and not killed:
                what = rng.choice(
                    ("keeper", "learner", "server")
                )  # the learner is there longest, and would be hit most
                time.sleep(rng.uniform(0, PAUSE_S))
                while what not in (there := job.victims()) and job.child.poll() is None:
                    time.sleep(0.1)
                if job.child.poll() is not None:
                    continue
                keepers, ports = (
                    there.get("keeper", []),
                    [port_of(pid) for pid in there.get("keeper", [])],
                )
                pid = rng.choice(there[what])
                os.kill(pid, signal.SIGKILL)
                hit[what] += 1
                quiet_since = time.monotonic()
                if what == "learner":
                    killed = True
                    job.child.wait(timeout=LONGEST_S)
                    faults += left_over(keepers, [port for port in ports if port])
            elif time.monotonic() - quiet_since > LONGEST_S:
                os.killpg(job.child.pid, signal.SIGKILL)
                return [*faults, f"run {number}: not over after {LONGEST_S:g} s: {job.tail()}"]
            else:
                time.sleep(0.5)
        now = committed(path)
        if now[: len(before)] != before:
            faults.append(
                f"run {number}: committed steps were lost or are others ({len(before)} before, {len(now)} now)"
            )
        if job.child.returncode == 0:
            return faults + unsound(path, number)
        if not killed and not (
            sum(hit.values()) > before_it and "start or resume the run once more" in job.said()
        ):
            return [
                *faults,
                f"run {number}: ended with {job.child.returncode}, and no learner was killed: {job.tail()}",
            ]


def left_over(keepers: list[int], ports: list[int]) -> list[str]:
    """What a killed learner had started and is still there after a while."""
    ends = time.monotonic() + GONE_S
    while True:
        alive = [pid for pid, _, _ in processes() if group_of(pid) in keepers]
        held = [port for port in ports if not is_free(port)]
        if not alive and not held:
            return []
        if time.monotonic() > ends:
            return [
                f"{len(alive)} processes and the ports {held} were left by a learner that was killed"
            ]
        time.sleep(0.2)


def unsound(path: Path, number: int) -> list[str]:
    """What is wrong with a finished run."""
    run, faults = open_run(path), []
    metrics = run.metrics()
    if run.steps() != list(range(1, SETTINGS["train.steps"] + 1)):
        faults.append(f"run {number}: the steps are {run.steps()}")
    if not (metrics["logp_gap_max"] < 1e-4).all() or not (metrics["stale_share"] == 0).all():
        faults.append(
            f"run {number}: engine and learner differ: {metrics[['logp_gap_max', 'stale_share']].max().to_dict()}"
        )
    for step in run.steps():
        if (said := run.lint(step)) is not None and not said.ok:
            faults.append(f"run {number}, step {step}: the lint names {', '.join(said.named)}")
        if (
            len(
                {
                    span.policy_version
                    for group in run.groups(step)
                    for t in group
                    for s in t.segments
                    for span in s.spans
                    if span.sampled
                }
            )
            != 1
        ):
            faults.append(f"run {number}, step {step}: sampled by several versions")
    return faults


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.server_soak", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument(
        "--ranks",
        type=int,
        default=1,
        help="learner processes, which share the weights where there are several",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    rng, hit, faults, number = random.Random(options.seed), Counter(), [], 0
    began, before = time.monotonic(), {path.name for path in SHARED_MEMORY.glob(f"{PREFIX}*")}
    with tempfile.TemporaryDirectory(prefix="server-soak-") as name:
        while sum(hit.values()) < options.kills:
            faults += run_once(Path(name), number, rng, options.ranks, hit, options.kills)
            number += 1
            print(
                f"{sum(hit.values())}/{options.kills} kills, {number} runs, {len(faults)} faults",
                flush=True,
            )
    time.sleep(JUST_MADE_S)
    clear_left_over(SHARED_MEMORY)  # as the next run beside a server does
    theirs = " ".join(
        words for _, _, words in processes()
    )  # of other runs, which go on: a keeper is told its folder
    weights = [
        path.name
        for path in SHARED_MEMORY.glob(f"{PREFIX}*")
        if path.name not in before and path.name not in theirs
    ]
    faults += [f"files of weights were left: {weights}"] if weights else []
    for fault in faults:
        print(f"FAULT {fault}")
    seconds = round(time.monotonic() - began)
    steps = number * SETTINGS["train.steps"]
    print(
        f"{'FAILED' if faults else 'passed'}: seed {options.seed}, {options.ranks} learner processes, kills {dict(hit)}, {number} "
        f"runs finished, {len(faults)} faults; {seconds} s"
    )
    if options.json:
        add_piece(
            options.json,
            {
                "seed": options.seed,
                "ranks": options.ranks,
                "hit": dict(hit),
                "runs": number,
                "steps": steps,
                "faults": faults,
                "seconds": seconds,
            },
        )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
