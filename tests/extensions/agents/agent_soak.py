"""Kill agents and the trainer that answers them, over and over: no call that was stored may be lost or doubled.

    python -m tests.extensions.agents.agent_soak --kills 200 [--seed 0] [--json FILE]

Agents are commands (`soak_agent`); they are killed at random instants. The trainer, in whose process the gateway is, is killed
at random instants and while an agent waits for its answer; it is resumed until its run is finished. Then, for every call that
any agent was ever answered:

    the same call was answered alike by every trainer that answered it
    it is in the trajectory that was committed, with the tokens that are stored; or that trajectory's agent was killed before
    it asked so far, and the call is stored all the same

and of what is stored: no request stands there twice. Every committed call is one of the stored ones, bit for bit.
Exit status: 0 all held, 1 something did not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from tests.extensions.agents import soak_agent
from tests.faults import killing
from workbench.chat import ChatFormat
from workbench.engines.policy import load_tokenizer
from workbench.extensions.agents import journal
from workbench.run.store import Run, open_run

CASE = "agent"
STEPS = 6
SETTINGS = {
    "env.kind": "agent",
    "env.program": f"command:line {sys.executable} -S -E {soak_agent.__file__}",
    "env.tasks": "world_qa",
    "train.steps": STEPS,
    "train.tasks_per_step": 2,
    "train.group_size": 3,
    "train.evaluate_every": 0,
    "train.checkpoint_every": 1,
    "evaluation.num_tasks": 2,
    "collect.max_turn_tokens": 24,
    "algorithm.minibatches": 1,
}
LONGEST_S = 4.0  # between two kills
TOO_LONG_S = 120.0  # for a run without a kill: something hangs


@dataclass
class AgentTally:
    """What was done and what came of it."""

    hit: Counter = field(default_factory=Counter)
    runs: int = 0
    answered: int = 0  # calls that agents were answered, each by its address
    again: int = 0  # of these: by more than one trainer
    stored: int = 0
    committed: int = 0
    beyond: int = (
        0  # stored, and the agent of the committed trajectory was killed before it asked so far
    )
    lost: int = 0
    doubled: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return sum(self.hit.values())

    def facts(self) -> dict[str, Any]:
        """All of it, as JSON values."""
        return asdict(self) | {"hit": dict(self.hit), "kills": self.kills}

    def line(self, most: int) -> str:
        """What there is so far, in a line."""
        return (
            f"{self.kills} of {most} kills, {self.runs} runs: {self.answered} calls answered, {self.stored} stored, "
            f"{self.committed} committed, {self.lost} lost, {self.doubled} doubled, {len(self.faults)} faults"
        )


# ------------------------------------------------------------------------------------------------ killing


def agents_of(pid: int) -> list[int]:
    """Processes of agents that a trainer has started."""
    agents = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            is_agent = soak_agent.__file__.encode() in (folder / "cmdline").read_bytes()
        except (OSError, IndexError, ValueError):  # it has ended meanwhile
            continue
        if parent == pid and is_agent:
            agents.append(int(folder.name))
    return agents


def log_of(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines]


def waits(log: Path, agents: list[int]) -> bool:
    """Whether one of these agents has asked and was not answered."""
    last = {entry["pid"]: entry["event"] for entry in log_of(log)}
    return any(last.get(agent) == "asks" for agent in agents)


def killed(pid: int, rng: random.Random, path: Path, log: Path, until: float) -> str:
    """Kill something of a living trainer before `until`; says what, "" where there was nothing to kill. Agents, and trainers
    that one waits for, in a training step."""
    kind = rng.choice(["agent", "agent", "trainer", "trainer while an agent waits"])
    time.sleep(rng.uniform(0, LONGEST_S) if kind == "trainer" else rng.uniform(0, 1.0))
    while time.monotonic() < until:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return ""
        trains = any((path / "calls").glob("train-*.jsonl"))
        agents = agents_of(pid) if trains else []
        if kind == "agent" and agents:
            os.kill(rng.choice(agents), signal.SIGKILL)
            return kind
        if kind == "trainer" or (agents and kind != "agent" and waits(log, agents)):
            os.kill(pid, signal.SIGKILL)
            return kind
        time.sleep(0.002)
    return ""


def one_life(path: Path, rng: random.Random, log: Path, tally: AgentTally, most: int) -> int:
    """A trainer from its start or resumption to its end; its exit status (-9: killed)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        killing._live(lambda: killing.start_or_resume(CASE, path), write)
    os.close(write)
    until = time.monotonic() + TOO_LONG_S
    ended = None
    while ended is None:
        if tally.kills < most:
            hit = killed(pid, rng, path, log, until)
            if hit:
                tally.hit[hit] += 1
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if ended is None and time.monotonic() > until:
            tally.faults.append(f"a trainer did not end within {TOO_LONG_S:g} s")
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    said = b""
    while chunk := os.read(read, 65536):
        said += chunk
    os.close(read)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status not in (0, -signal.SIGKILL):
        tally.faults.append(f"status {status}: {said[-1500:].decode('utf-8', 'replace')}")
    return status


# ------------------------------------------------------------------------------------------------ counting


def marks_of(run: Run) -> dict[str, tuple[int, str, int, int]]:
    """The id of a message -> the address of the call that it answered: (step, task, attempt, number)."""
    seed = run.config["seed"]
    marks = {}
    for step in run.steps():
        for group in run.groups(step):
            for trajectory in group:
                for number in range(soak_agent.CALLS):
                    task = trajectory.task.id
                    where = ((seed, "train", step), "call id", task, trajectory.attempt, number)
                    address = (*where[0], *where[1:], "message")
                    digest = blake2b(repr(address).encode(), digest_size=12).hexdigest()
                    marks[f"msg_{digest}"] = (step, task, trajectory.attempt, number)
    return marks


def stored_calls(run: Run) -> Iterator[tuple[int, dict[str, Any]]]:
    """(step, record) of everything that is kept of the calls of a run."""
    for path in sorted((run.path / "calls").glob("train-*.jsonl")):
        data = path.read_bytes()
        for line in data[: data.rfind(b"\n") + 1].splitlines():
            yield int(path.name.split("-")[1]), json.loads(line)


def count(run: Run, log: Path, chat: ChatFormat, tally: AgentTally) -> None:
    """Hold what agents were answered, what is stored and what is committed against one another."""
    stored: dict[tuple[int, str], list[dict[str, Any]]] = {}
    digests: Counter = Counter()
    for step, record in stored_calls(run):
        attempt = record["session"].rpartition("/")[0]
        stored.setdefault((step, attempt), []).append(record)
        digests[step, record["digest"]] += 1
        tally.stored += 1
    tally.doubled += sum(times - 1 for times in digests.values())
    turns = {}
    ended = {}
    for step in run.steps():
        for group in run.groups(step):
            for trajectory in group:
                place = (step, trajectory.task.id, trajectory.attempt)
                ended[place] = trajectory.error or ""
                kept = stored.get((step, f"{trajectory.task.id}#{trajectory.attempt}"), [])
                spans = [s for segment in trajectory.segments for s in segment.spans if s.sampled]
                for span in spans:
                    turn = trajectory.turns[span.turn]
                    number = turn.info["call"]["number"]
                    if (*place, number) in turns:
                        tally.doubled += 1
                    turns[*place, number] = turn.text
                    tally.committed += 1
                    same = [record for record in kept if _is_of(record, span)]
                    if len(same) != 1:
                        tally.lost += 1
                        tally.faults.append(f"{place} call {number}: {len(same)} stored ones")
                beyond = len(kept) - len(spans)
                tally.beyond += beyond
                if beyond and "agent_killed" not in ended[place]:
                    tally.lost += beyond
                    tally.faults.append(f"{place}: {beyond} stored calls are in no trajectory")
    answers: dict[tuple[int, str, int, int], list[tuple[int, str]]] = {}
    marks = marks_of(run)
    for entry in log_of(log):
        if entry["event"] == "answered" and entry["mark"] in marks:
            answers.setdefault(marks[entry["mark"]], []).append((entry["pid"], entry["text"]))
    for address, given in answers.items():
        tally.answered += 1
        tally.again += len(given) > 1
        if len({text for _, text in given}) > 1:
            tally.doubled += 1
            tally.faults.append(f"call {address} was answered in two ways")
        step, task, attempt, _ = address
        if address in turns:
            is_there = turns[address] == given[0][1]
        else:  # its agent did not come so far in the trajectory that was committed
            texts = [
                chat.decode(r["token_ids"]) for r in stored.get((step, f"{task}#{attempt}"), [])
            ]
            is_there = given[0][1] in texts and "agent_killed" in ended[step, task, attempt]
        if not is_there:
            tally.lost += 1
            tally.faults.append(f"call {address} was answered and is lost")


def _is_of(record: dict[str, Any], span: Any) -> bool:
    same_ids = record["token_ids"] == span.token_ids.tolist()
    return same_ids and np.array_equal(np.array(record["logprobs"], np.float32), span.logprobs)


def soak(kills: int, seed: int, folder: Path, tell: Callable[[AgentTally], None]) -> AgentTally:
    """Runs until so much was killed; the last one is finished too. `tell` is called whenever a trainer has ended, and when a
    run was counted."""
    killing.CASES[CASE] = ("search", SETTINGS)
    journal.remove_file = lambda path: None  # what is kept of old steps is counted at the end
    tally = AgentTally()
    rng = random.Random(seed)
    chat = ChatFormat.from_tokenizer(load_tokenizer("search-tiny"))
    killing.opened(CASE)  # once, before anything is forked
    while tally.kills < kills:
        path = folder / f"run-{tally.runs}"
        log = folder / f"log-{tally.runs}"
        os.environ["SOAK_LOG"] = str(log)
        while one_life(path, rng, log, tally, kills) == -signal.SIGKILL:
            tell(tally)
        tally.runs += 1
        if tally.faults:
            break
        count(open_run(path), log, chat, tally)
        shutil.rmtree(path)
        tell(tally)
    return tally


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    began = time.monotonic()

    def tell(tally: AgentTally) -> dict[str, Any]:
        """Say how far it is; what there is so far is in the file, whatever ends this."""
        print(f"{time.monotonic() - began:6.0f} s: {tally.line(options.kills)}", flush=True)
        seconds = round(time.monotonic() - began)
        result = {"seed": options.seed, **tally.facts(), "seconds": seconds}
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        return result

    with tempfile.TemporaryDirectory(prefix="soak-agents-") as name:
        os.environ["XDG_STATE_HOME"] = name
        tally = soak(options.kills, options.seed, Path(name), tell)
    print(json.dumps(tell(tally), indent=1))
    return int(bool(tally.faults or tally.lost or tally.doubled or not tally.answered))


if __name__ == "__main__":
    sys.exit(main())
