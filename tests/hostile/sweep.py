"""Every hostile folder under every command: what ran, what was written outside, what hung, how much memory it took.

    python -m tests.hostile.sweep                 `make hostile`; one line for whatever is wrong, exit 1 if anything is
    python -m tests.hostile.sweep show lint       these commands only
    python -m tests.hostile.sweep --json FILE     what was done, for docs/evidence/trust.md

Each call is a forked process, so that nothing is imported twice: what a command takes is held against the same command on
the sound run.
"""
from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.hostile.folders import HOSTILE

HANG_S = 2.0               # over the time of the sound run
TWICE_MB = 1_500           # planned: what is read of one file at most, unpacked
GIVEN_UP_S = 60.0
NOT_FOR_IT = ("serve", "audit-notebook")  # without vLLM; of a notebook: they say so of the sound run, too
COMMANDS = {
    "show": ["show", "RUN"], "show step": ["show", "RUN", "1"], "lint": ["lint", "RUN"], "diff": ["diff", "RUN", "SOUND"],
    "diff --exact": ["diff", "RUN", "SOUND", "--exact"], "replay": ["replay", "RUN", "1"],
    "export": ["export", "RUN", "OUT"], "resume": ["resume", "RUN", "--set", "train.steps=3"],
    "evaluate": ["evaluate", "RUN", "--tasks", "1"], "rollout": ["rollout", "RUN", "--tasks", "1"],
    "chat": ["chat", "RUN", "--ask", "hi"], "audit": ["audit", "RUN"], "lint --start": ["lint", "RUN", "--start"],
    "export --to": ["export", "RUN", "OUT", "--to", "openai"], "show --signals": ["show", "RUN", "--signals"],
    "train": ["train", "RUN/config.json", "--out", "OUT", "--set", "train.steps=1"],
    "serve": ["serve", "RUN"], "check-env": ["check-env", "RUN/config.json"], "doctor --plan": ["doctor", "--plan", "RUN/config.json"],
    "audit-notebook": ["audit-notebook", "RUN/config.json", "--run", "RUN"],
}


@dataclass(frozen=True)
class Called:
    """How one call ended. `status`: its exit status, negative: killed by that signal."""

    status: int
    seconds: float
    megabytes: float
    said: str


def call(words: list[str], folder: Path) -> Called:
    """Run a command in a process of its own."""
    log = folder / "said"
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        _as_command(words, log)
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - started > GIVEN_UP_S:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return Called(os.waitstatus_to_exitcode(status), time.monotonic() - started, used.ru_maxrss / 1024,
                  log.read_text(errors="replace") if log.exists() else "")


def _as_command(words: list[str], log: Path) -> None:
    os.setsid()
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(fd, 1)
    os.dup2(fd, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    resource.setrlimit(resource.RLIMIT_DATA, (8 << 30, 8 << 30))  # the machine is needed afterwards
    status = 70
    try:
        from workbench.cli import run

        status = run(words)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 70
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def placed(words: list[str], run: Path, sound: Path, scratch: Path) -> list[str]:
    places = {"RUN": str(run), "SOUND": str(sound), "OUT": str(scratch / "out"), "RUN/config.json": str(run / "config.json")}
    return [places.get(word, word) for word in words]


def snapshot(folder: Path) -> str:
    """Everything below a folder, as one hash."""
    digest = sha256()
    for path in sorted(folder.rglob("*")):
        data = path.read_bytes() if path.is_file() and path.stat().st_size < 1 << 30 else b""
        digest.update(f"{path.relative_to(folder)} {sha256(data).hexdigest()}\n".encode())
    return digest.hexdigest()


def wrong_with(name: str, command: str, sound: Path, base: Called, scratch: Path) -> list[str]:
    """What is wrong with one command on one hostile folder, in words."""
    shutil.rmtree(scratch, ignore_errors=True)
    outside, run = scratch / "outside", scratch / "run"
    outside.mkdir(parents=True)
    (outside / "precious").write_text("x")
    shutil.copytree(sound, run)
    if not (pid := os.fork()):  # what it takes to make one is not counted
        HOSTILE[name](run, outside)
        os._exit(0)
    if os.waitpid(pid, 0)[1]:
        return ["could not be made"]
    before = snapshot(outside)
    ended = call(placed(COMMANDS[command], run, sound, scratch), scratch)
    wrong = []
    if (scratch / "mark").exists():
        wrong.append("RAN A COMMAND")
    if snapshot(outside) != before:
        wrong.append("WROTE OUTSIDE")
    if ended.seconds > base.seconds + HANG_S:
        wrong.append(f"took {ended.seconds:.1f} s (the sound run: {base.seconds:.1f} s)")
    if ended.megabytes > base.megabytes + TWICE_MB:
        wrong.append(f"took {ended.megabytes:.0f} MB (the sound run: {base.megabytes:.0f} MB)")
    if ended.status not in (0, 1, 2, 3) or "Traceback" in ended.said:
        wrong.append(f"ended with status {ended.status}: {ended.said[-200:]!r}")
    if ended.status == 3:
        wrong.append(f"unexpected: {ended.said[-300:]!r}")
    return wrong


def sweep(sound: Path, folder: Path, commands: list[str], names: list[str]) -> tuple[int, list[str]]:
    """(calls, what was wrong)."""
    for module in ("workbench.cli.commands", "workbench.training.session", "workbench.notebook.lint", "pyarrow.parquet", "pandas"):
        __import__(module)
    calls, wrong = 0, []
    for command in commands:
        shutil.copytree(sound, folder / "sound-copy")
        (folder / "base").mkdir(exist_ok=True)
        base = call(placed(COMMANDS[command], folder / "sound-copy", sound, folder / "base"), folder)
        shutil.rmtree(folder / "sound-copy")
        if base.status not in (0, 1) and command not in NOT_FOR_IT:
            wrong.append(f"{command} on the sound run: {base.said[-300:]}")
        for name in names:
            calls += 1
            found = wrong_with(name, command, sound, base, folder / "scratch")
            if found and all(words.startswith("took") and words.endswith(" s)") for words in found):  # other work goes on beside
                found = wrong_with(name, command, sound, base, folder / "scratch")
            wrong += [f"{command}, {name}: {words}" for words in found]
            print("\n".join(f"{command}, {name}: {words}" for words in found), end="\n" * bool(found), flush=True)
        print(f"{command}: {len(names)} folders, {base.seconds:.1f} s on the sound run", flush=True)
    return calls, wrong


def sound_run(folder: Path) -> Path:
    """A run that was trained here: two steps with checkpoints and evaluations."""
    from workbench.notebook.train import train_here
    from workbench.training.config import load_config

    train_here(load_config("frozenlake", {
        "train.steps": 2, "train.tasks_per_step": 2, "train.group_size": 2, "evaluation.num_tasks": 2, "train.checkpoint_every": 1,
        "collect.max_turn_tokens": 8, "env.max_turns": 2}), folder / "sound", on_note=None)
    return folder / "sound"


def main(words: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        sound = sound_run(Path(folder))
        out = words.pop(words.index("--json") + 1) if "--json" in words else ""
        chosen = [word for word in words if word != "--json"] or list(COMMANDS)
        calls, wrong = sweep(sound, Path(folder), chosen, list(HOSTILE))
    if out:
        Path(out).write_text(json.dumps({"folders": len(HOSTILE), "commands": chosen, "calls": calls, "wrong": wrong}, indent=1) + "\n")
    print("\n".join([f"{len(HOSTILE)} hostile folders, {calls} calls, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
