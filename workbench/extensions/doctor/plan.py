"""How much memory does a run need: `workbench doctor --plan CONFIG`. One step, measured in a process of its own.

    plan(load_config("frozenlake"))          peaks by phase, a verdict, advice; the policy must be on this machine

The child opens the session of the configuration, samples at most `MOST_TRAJECTORIES` trajectories of a step and learns from them
once, with the lengths, the cache and the micro-batches that are set. Rewards are replaced by 0 and 1 in turn, so that
there is something to learn whatever the policy earns. Several processes are started as training starts them, and the
largest counts. Where a step or an evaluation has more trajectories than were sampled, the peak is extended in a straight
line from what the open session holds: rather too much where `engine.cache_tokens` or `learner.micro_batch_tokens` bind.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from workbench.basics.beside import VARIABLE, look_here
from workbench.basics.extensions import has_service, service
from workbench.look.cells.credit import with_rewards
from workbench.look.doc import Heading, Note, Table, ViewDocument, WarningLine, numbers
from workbench.look.html import shown
from workbench.training.config import Config, from_dict, to_dict
from workbench.training.session import Session, open_session, rollout
from workbench.training.starting import obstacles
from workbench.training.step import repeat_step, synchronise
from workbench.values import Groups, View, trajectories_of
from workbench.values.errors import ConfigError, WorkbenchError
from workbench.values.view import HasView

MOST_TRAJECTORIES = 64
SECONDS = 600  # that a step may take
MARK = "workbench memory: "
OUT_OF_MEMORY = re.compile("out of memory|not enough memory|OutOfMemory|MemoryError")
# Phase -> what lowers its peak. "open" is what stays once everything is loaded.
ADVICE = {
    "opening": "take a smaller model, engine.dtype = 'bfloat16', learner.lora_rank or critic.trunk = 'policy'",
    "open": "take a smaller model, engine.dtype = 'bfloat16', learner.lora_rank or critic.trunk = 'policy'",
    "sampling": "lower engine.cache_tokens, train.tasks_per_step, evaluation.num_tasks or collect.max_turn_tokens",
    "update": "lower learner.micro_batch_tokens (the results stay the same), or set "
    "learner.activation_checkpointing = true or learner.precision = 'bf16'",
}
NOT_MEASURED = (
    "not measured: worker processes of environments, saving a checkpoint, a vLLM server's own memory, and longer "
    "answers than the policy gave"
)


@dataclass(frozen=True, repr=False)
class MemoryPlan(HasView):
    """The memory of one step, and whether this machine has as much."""

    policy: str
    sampled: int  # trajectories that were sampled
    whole: Mapping[str, int]  # phase -> trajectories that a run has there at once
    peaks: Mapping[str, Mapping[str, int]]  # phase that was reached -> place -> bytes
    limits: Mapping[str, int]  # place ("host", "device") -> bytes that there are
    reason: str = ""  # why it was not measured to the end
    words: Mapping[str, str] = field(default_factory=dict)  # of the solver: whether they are paid

    def need(self, phase: str, place: str) -> int:
        """Bytes that a whole run takes in a phase."""
        peak = self.peaks[phase][place]
        grown = peak - self.peaks.get("open", self.peaks[phase])[place]
        beyond = self.whole.get(phase, 0) / max(1, self.sampled) - 1
        return peak + int(max(0, grown) * max(0.0, beyond))

    @property
    def exhausted(self) -> str:
        """The first phase that takes more than there is, "" where none does."""
        if OUT_OF_MEMORY.search(self.reason):
            return next(phase for phase in ADVICE if phase not in self.peaks)
        for phase in self.peaks:
            if any(self.need(phase, place) > limit for place, limit in self.limits.items()):
                return phase
        return ""

    @property
    def verdict(self) -> str:
        if self.exhausted:
            return (
                f"does not fit: {self.exhausted} takes more than there is; {ADVICE[self.exhausted]}"
            )
        return f"not measured: {self.reason}" if self.reason else "fits"

    @property
    def ok(self) -> bool:
        return self.verdict == "fits" and self.words.get("status") != "error"

    def as_dict(self) -> dict[str, object]:
        return {"ok": self.ok, "verdict": self.verdict, **asdict(self)}

    @property
    def view(self) -> View:
        rows = []
        for phase in self.peaks:
            needs = (self.need(phase, place) for place in self.limits)
            rows.append([phase, *map(_size, needs)])
        rows.append(["there is", *map(_size, self.limits.values())])
        counts = ", ".join(f"{phase} of {count}" for phase, count in self.whole.items())
        document = ViewDocument(
            (
                Heading(f"Memory of one process, measured: {self.policy}"),
                Table(["", *numbers(*self.limits)], rows, indent="  "),
                _line(self.verdict, self.verdict == "fits"),
                *(
                    [_line(self.words["text"], self.words["status"] != "error")]
                    if self.words
                    else []
                ),
                Note(
                    f"{self.sampled} trajectories were measured, extended in a straight line to {counts}"
                ),
                Note(NOT_MEASURED),
            )
        )
        return shown(document)


def _line(words: str, good: bool) -> Note | WarningLine:
    return Note(words) if good else WarningLine(words, mark="")


def plan(config: Config, *, limits: Mapping[str, int] | None = None) -> MemoryPlan:
    """Measure a step. `limits`: bytes of "host" and "device", else what this machine has. Raises ConfigError where the
    session cannot be opened, as where the policy is not on this machine."""
    train = config.train
    evaluation = config.evaluation
    step = train.tasks_per_step * train.group_size
    whole = {"sampling": max(step, evaluation.num_tasks * evaluation.attempts), "update": step}
    peaks: dict[str, dict[str, int]] = {}
    stops = obstacles(config, config.learner.num_processes, gpus=torch.cuda.device_count())
    words: dict[str, str] = {}
    reason = stops[0] if stops else _measure_beside(config, peaks, words)
    sampled = _tasks(config) * train.group_size
    limits = limits or _limits(config)
    return MemoryPlan(config.policy.name, sampled, whole, peaks, limits, reason, words)


def _tasks(config: Config) -> int:
    return max(1, min(config.train.tasks_per_step, MOST_TRAJECTORIES // config.train.group_size))


def _limits(config: Config) -> dict[str, int]:
    """Place -> bytes of this machine, or of the container that it is."""
    limits = {"host": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")}
    with suppress(OSError, ValueError):
        limits["host"] = min(limits["host"], int(Path("/sys/fs/cgroup/memory.max").read_text()))
    if config.policy.device != "cpu" and torch.cuda.is_available():
        limits["device"] = torch.cuda.get_device_properties(0).total_memory
    return limits


def _size(number: int) -> str:
    return f"{number / 1e6:,.0f} MB"


# ------------------------------------------------------------------------------------------------ the child


def _measure_beside(config: Config, peaks: dict[str, dict[str, int]], words: dict[str, str]) -> str:
    """Take a step in processes of its own and fill `peaks` and `words`; returns why it ended early. Raises ConfigError for
    what the child refuses."""
    count = str(config.learner.num_processes)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", count]
    command = [
        sys.executable,
        *(ranks if count != "1" else ()),
        "-m",
        "workbench.extensions.doctor.plan",
    ]
    settings = {
        "HF_HUB_OFFLINE": "1",
        "WORKBENCH_PLAN": json.dumps(to_dict(config)),
        VARIABLE: "1",
    }
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | settings
        )
    except subprocess.TimeoutExpired:
        return f"a step took longer than {SECONDS} s"
    for report in _reports(done.stdout):
        if "refused" in report:
            raise ConfigError(report["refused"])
        words.update(report.pop("words", {}))
        for phase, places in report.items():
            known = peaks.setdefault(phase, places)
            peaks[phase] = {place: max(known[place], size) for place, size in places.items()}
    if done.returncode in (-9, 137):
        return "the system ended the process, which ran out of memory"
    if done.returncode:
        return (done.stderr.strip().splitlines() or ["it gave no reason"])[-1][:300]
    return "" if "update" in peaks else "no trajectory had anything to learn from"


def _reports(printed: str) -> list[dict[str, Any]]:
    """What the processes reported. Several write to one pipe, so that two reports may stand in one line."""
    read = json.JSONDecoder().raw_decode
    return [read(piece)[0] for piece in printed.split(MARK)[1:]]


def measure(config: Config) -> None:
    """Take a step, and print the peak of each phase."""
    with closing(open_session(config, quiet=True, keeps_first=False)) as session:
        _print_words(session)
        session.learner.state()  # which is made on first use
        _print_peak("opening")
        _print_peak("open")
        tasks = session.train_tasks(1, _tasks(config))
        groups = rollout(session, tasks, step=1, purpose="train")
        _print_peak("sampling")
        if repeat_step(session, 1, _rewarded(groups)).updates:
            synchronise(session)
            _print_peak("update")


def _print_words(session: Session) -> None:
    """Print whether the solver's words, written by this policy, are paid."""
    if not has_service("words_report"):
        return
    [answer] = service("words_report", "the plan")(session).answers
    more = [finding.what for finding in answer.findings] or [answer.gaps]
    text = ": ".join(filter(None, [f"{answer.rule} {answer.status}", answer.title, more[0]]))
    status = "error" if answer.errors else answer.status
    print(MARK + json.dumps({"words": {"status": status, "text": text}}), flush=True)


def _rewarded(groups: Groups) -> Groups:
    """The same trajectories, with 0 and 1 in turn for all that they did."""
    rewards: dict[tuple[int, int], float] = {}
    for n, t in enumerate(trajectories_of(groups)):
        rewards |= {(n, turn.index): float(n % 2) for turn in t.turns}
    return Groups(with_rewards(groups, rewards))


def _print_peak(phase: str) -> None:
    """Print what this phase took at most, and begin to count anew."""
    host = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OSError):  # on Linux; elsewhere the peak is that of all phases so far
        status = Path("/proc/self/status").read_text()
        host = 1024 * int(status.partition("VmHWM:")[2].split()[0])
        Path("/proc/self/clear_refs").write_text("5")
    places = {"host": host}
    if torch.cuda.is_available():
        places["device"] = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()
    print(MARK + json.dumps({phase: places}), flush=True)


if __name__ == "__main__":
    look_here()
    try:
        measure(from_dict(json.loads(os.environ["WORKBENCH_PLAN"])))
    except WorkbenchError as error:
        print(MARK + json.dumps({"refused": str(error)}), flush=True)
        raise
