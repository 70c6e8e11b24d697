"""One run: a trainer with a bug or without, the tools on it, and what they said."""

from __future__ import annotations

import contextlib
import io
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.league.bugs import vowel_reward
from experiments.league.corpus import BUGS, TWINS
from experiments.league.tools import TOOLS, Alarm, Tool
from tests.extensions.trl_live.trl_trainers import tokenizer_of, trainer_of

STEPS = 32  # rlprobe says nothing below 30; the windows of rlwatch are set to fit (tools.py)
WORDS = 400  # characters of an alarm that are kept
SETTINGS = {
    "learning_rate": 1e-4,
    "lr_scheduler_type": "constant",
    "reward": vowel_reward,
}


@dataclass(frozen=True)
class Job:
    """A run to be made: of a bug or of a twin, by its name."""

    name: str
    seed: int
    steps: int
    tools: tuple[str, ...]


def options_of(name: str) -> tuple[Mapping[str, Any], Any]:
    """(options of the trainer, what is done to it once it is made) of a bug or a twin."""
    for bug in BUGS:
        if bug.name == name:
            return bug.options, bug.after
    return TWINS[name], None


def made(name: str, seed: int, steps: int, tools: Sequence[Tool], folder: Path) -> Any:
    """The trainer, with the bug or without, and all tools attached."""
    options, after = options_of(name)
    values = {**SETTINGS, **options, "seed": seed, "max_steps": steps}
    tokenizer = tokenizer_of(values.get("policy", "search-tiny"))
    kind = values.pop("kind", None)
    if kind is not None or tools:
        from trl import GRPOTrainer

        kind = kind or GRPOTrainer
        for tool in tools:
            kind = tool.kind(kind, tokenizer)
        values["kind"] = kind
    trainer = trainer_of(folder / "trainer", tokenizer=tokenizer, **values)
    if after is not None:
        after(trainer)
    for tool in tools:
        tool.attach(trainer)
    return trainer


def done(job: Job, known: Mapping[str, type[Tool]] = TOOLS) -> dict[str, Any]:
    """What each tool said of this run. A tool that ends the run by an error of its own has raised an alarm, and the run is
    made again without it."""
    began = time.process_time()
    alarms: dict[str, list[dict[str, Any]]] = {}
    failed: dict[str, str] = {}
    left = list(job.tools)
    error = ""
    while left:
        with tempfile.TemporaryDirectory() as place, _quiet():
            tools = [known[name](Path(place)) for name in left]
            try:
                trainer = made(job.name, job.seed, job.steps, tools, Path(place))
                trainer.train()
            except Exception as raised:
                guilty = _tool_of(raised, tools)
                if guilty is None:
                    error = f"{type(raised).__name__}: {raised}"[:WORDS]
                    break
                words = f"{type(raised).__name__}: {raised}"[:WORDS]
                alarms[guilty] = [asdict(Alarm("exception", "error", None, words))]
                left.remove(guilty)
                continue
            for tool in tools:
                try:
                    alarms[tool.name] = kept(tool.alarms())
                except Exception as raised:
                    failed[tool.name] = f"{type(raised).__name__}: {raised}"[:WORDS]
        break
    return {
        "name": job.name,
        "seed": job.seed,
        "steps": job.steps,
        "alarms": alarms,
        "failed": failed,
        "error": error,
        "seconds": round(time.process_time() - began, 2),
    }


def kept(alarms: Sequence[Alarm]) -> list[dict[str, Any]]:
    """The first alarm of each kind, and how many there were."""
    first: dict[str, dict[str, Any]] = {}
    for alarm in alarms:
        entry = first.setdefault(
            alarm.kind, asdict(alarm) | {"words": alarm.words[:WORDS], "times": 0}
        )
        entry["times"] += 1
    return list(first.values())


def _tool_of(error: BaseException, tools: Sequence[Tool]) -> str | None:
    """The tool in whose package the error was raised: the innermost frame decides."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    package = "" if frame is None else frame.tb_frame.f_globals["__name__"].split(".")[0]
    return next((tool.name for tool in tools if tool.module == package), None)


@contextlib.contextmanager
def _quiet():
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield
