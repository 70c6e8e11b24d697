"""Thousands of runs with one thing changed and of calls with wrong words: each is answered in words, none by a traceback.

    python -m tests.hostile.soak --mutations 5000 --calls 2000 [--first 0] [--json FILE]        a part of `make hostile`

Every mutation is looked at by `show` and by one of the other quick commands in turn, every tenth also by one that loads the
policy. Commands run one after the other in a child; one that ends the child, or does not come back, is named, and the next
child goes on behind it. What is counted as wrong: a traceback, the exit status 3 (an error that nobody expected), an exit
status that no command has, a call that does not come back within GIVEN_UP_S.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.hostile.bad_calls import bad_call, commands, lay_out
from tests.hostile.mutations import mutate
from tests.hostile.sweep import sound_run

GIVEN_UP_S = 60.0
QUICK = (
    ["show", "RUN", "1"],
    ["show", "RUN", "2", "--tokens"],
    ["lint", "RUN"],
    ["diff", "RUN", "SOUND"],
    ["replay", "RUN", "1"],
    ["replay", "RUN", "2"],
    ["diff", "SOUND", "RUN", "--exact"],
    ["export", "RUN", "OUT.jsonl", "--to", "openai"],
    ["show", "RUN", "--signals"],
    ["show", "RUN", "--at", "step 2 / task 1 / attempt 1 / token 3"],
    ["export", "RUN", "OUT", "--to", "dataset"],
    ["show", "RUN", "--html", "OUT.html"],
    ["lint", "RUN", "--json"],
    ["export", "RUN", "OUT.jsonl", "--to", "trl-grpo"],
    ["show", "RUN", "2", "--attempt", "1"],
)
HEAVY = (
    ["resume", "RUN", "--set", "train.steps=3"],
    ["evaluate", "RUN", "--tasks", "1"],
    ["rollout", "RUN", "--tasks", "1"],
    ["audit", "RUN", "--tasks", "1", "--attempts", "1"],
    ["export", "RUN", "OUT"],
    ["chat", "RUN", "--ask", "hi"],
    ["lint", "RUN", "--start"],
    ["train", "RUN/config.json", "--out", "OUT", "--set", "train.steps=1"],
)
EVERY = 10  # of the heavy ones


def of_mutation(number: int) -> list[list[str]]:
    calls = [["show", "RUN"], QUICK[number % len(QUICK)]]
    return calls if number % EVERY else [*calls, HEAVY[number // EVERY % len(HEAVY)]]


def mutation_cases(
    sound: Path, folder: Path, numbers: Sequence[int]
) -> Iterator[tuple[str, list[str]]]:
    """(what was changed, words of a call) of each, the run laid out anew for each number."""
    run, out = folder / "run", folder / "out"
    for number in numbers:
        heavy = number % EVERY == 0  # what is written into must be no link
        shutil.rmtree(run, ignore_errors=True)
        shutil.copytree(sound, run, copy_function=shutil.copy2 if heavy else os.link)
        said = f"{number}: {mutate(run, number)}"
        for words in of_mutation(number):
            shutil.rmtree(out, ignore_errors=True)
            out.unlink(missing_ok=True)
            out.with_suffix(".jsonl").unlink(missing_ok=True)
            places = {
                "RUN": str(run),
                "SOUND": str(sound),
                "OUT": str(out),
                "OUT.html": f"{out}.html",
                "OUT.jsonl": f"{out}.jsonl",
                "RUN/config.json": f"{run}/config.json",
            }
            yield said, [places.get(word, word) for word in words]


def call_cases(folder: Path, numbers: Sequence[int]) -> Iterator[tuple[str, list[str]]]:
    """The same of bad calls."""
    os.chdir(folder)
    for number in numbers:
        yield str(number), bad_call(number)


def run_cases(
    cases: Callable[[Sequence[int]], Iterator[tuple[str, list[str]]]],
    numbers: Sequence[int],
    log: Path,
) -> dict[str, Any]:
    """Every case in children of this process; counts, and what was wrong in words."""
    log.write_text("")
    done = list(numbers)
    while done:
        before = log.stat().st_size
        if not (pid := os.fork()):
            _as_child(cases(done), log)
        seen, since = before, time.monotonic()
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if (now := log.stat().st_size) != seen:
                seen, since = now, time.monotonic()
            elif time.monotonic() - since > GIVEN_UP_S:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.02)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        if not lines or ended[1] == 0 and lines[-1].get("over"):
            break
        last = lines[-1]  # what it was at when it ended
        with log.open("a") as file:
            print(
                json.dumps(
                    {
                        **last,
                        "status": os.waitstatus_to_exitcode(ended[1]),
                        "wrong": "the process ended, or did not come back",
                    }
                ),
                file=file,
            )
        done = [number for number in done if number > int(last["case"].partition(":")[0])]
    ended = [line for line in map(json.loads, log.read_text().splitlines()) if "status" in line]
    return {
        "tried": len(numbers),
        "calls": len(ended),
        "statuses": dict(Counter(str(line["status"]) for line in ended)),
        "seconds": round(max((line.get("seconds", 0.0) for line in ended), default=0.0), 2),
        "by_command": dict(Counter(line["words"][0] for line in ended)),
        "wrong": [line for line in ended if line.get("wrong")],
    }


def _as_child(cases: Iterator[tuple[str, list[str]]], log: Path) -> None:
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with log.open("a", buffering=1) as file:
        for case, words in cases:
            shown = [word[:80] for word in words]
            print(json.dumps({"case": case, "words": shown}), file=file)
            began = time.monotonic()
            status, said = called(words)
            wrong = "" if status in (0, 1, 2) and "Traceback" not in said else said[-1500:]
            print(
                json.dumps(
                    {
                        "case": case,
                        "words": shown,
                        "status": status,
                        "seconds": round(time.monotonic() - began, 3),
                        "wrong": wrong,
                    }
                ),
                file=file,
            )
        print(json.dumps({"over": True}), file=file)
    os._exit(0)


def called(words: list[str]) -> tuple[int, str]:
    """(exit status, all that was said) of a command in this process. 70: an exception came out of it."""
    from workbench.cli import run

    said, here = io.StringIO(), os.getcwd()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            status = run(words)
        except SystemExit as error:
            status = error.code if isinstance(error.code, int) else 70
        except BaseException:
            traceback.print_exc(file=said)
            status = 70
    os.chdir(here)
    text = said.getvalue()
    if status == 3:  # the reason stands in a file, which the words name
        text += "".join(
            Path(log).read_text()[-1200:] for log in re.findall(r"\S+/errors/\S+\.log", text)
        )
    return status, text


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument(
        "--first", type=int, default=0, help="number of the first: a soak may be done in pieces"
    )
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for module in (
        "workbench.cli.commands",
        "workbench.training.session",
        "workbench.look.cells.lint",
        "pyarrow.parquet",
        "pandas",
        "plotly",
    ):
        __import__(module)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["XDG_STATE_HOME"], os.environ["WORKBENCH_PROGRESS"] = f"{name}/state", "quiet"
        sound = sound_run(folder)
        (words := folder / "words").mkdir()
        lay_out(words)
        first = options.first
        found = {
            "mutations": run_cases(
                lambda numbers: mutation_cases(sound, folder, numbers),
                range(first, first + options.mutations),
                folder / "mutations.log",
            ),
            "calls": run_cases(
                lambda numbers: call_cases(words, numbers),
                range(first, first + options.calls),
                folder / "calls.log",
            ),
        }
    found["commands"] = len(commands())
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    wrong = [*found["mutations"]["wrong"], *found["calls"]["wrong"]]
    for line in wrong:
        print(
            f"{line['case']} | {' '.join(line['words'])[:120]} | status {line['status']}\n    {line['wrong']}"
        )
    print(
        f"{options.mutations:,} mutations in {found['mutations']['calls']:,} calls, {options.calls:,} bad calls of {found['commands']} "
        f"commands: {len(wrong)} wrong; the longest took {max(found['mutations']['seconds'], found['calls']['seconds'])} s"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
