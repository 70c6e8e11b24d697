"""Every hostile folder under every command: what ran, what was written outside, what hung, how much memory it took.

    python -m tests.hostile.sweep                 `make hostile`; one line for whatever is wrong, exit 1 if anything is
    python -m tests.hostile.sweep show lint       these commands only
    python -m tests.hostile.sweep --json FILE     what was done, for docs/evidence/trust.md

Each call is a forked process, so that nothing is imported twice: what a command takes is held against the same command on
the sound run. Seconds are those of the clock less those in which the call could have run, and another process had the
core. Every command of the parser is tried (`test_every_command_is_tried`). For what takes a file of settings or a plan,
the run's folder holds one, which is bent wherever the run's own settings are; of vLLM there is a stand-in, which serves
nothing and ends at once.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tests.ablation.quick import plan_at
from tests.ablation.test_audit_notebook import executed
from tests.hostile.folders import HOSTILE

HANG_S = 2.0  # over the time of the sound run
TWICE_MB = 1_500  # planned: what is read of one file at most, unpacked
GIVEN_UP_S = 60.0
TRIES = 3  # of a call that is late
SETTINGS = """base = "frozenlake"
[train]
steps = 1
tasks_per_step = 2
group_size = 2
[evaluation]
num_tasks = 2
[collect]
max_turn_tokens = 8
[env]
max_turns = 2
"""
OWN_FILES = ("settings.toml", "quick.toml")  # in the run's folder, beside what belongs to it
VLLM = """import sys
from http.server import BaseHTTPRequestHandler, HTTPServer


class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).handle_request()
"""
# What says of the sound run, too, that it is none of what it wants, and reads it all the same.
REFUSED = ("serve", "audit-notebook FILE", "retriever", "settings", "pretrain", "bias", "play")
COMMANDS = {
    "show": ["show", "RUN"],
    "show step": ["show", "RUN", "1"],
    "lint": ["lint", "RUN"],
    "diff": ["diff", "RUN", "SOUND"],
    "diff --exact": ["diff", "RUN", "SOUND", "--exact"],
    "replay": ["replay", "RUN", "1"],
    "export": ["export", "RUN", "OUT"],
    "resume": ["resume", "RUN", "--set", "train.steps=3"],
    "evaluate": ["evaluate", "RUN", "--tasks", "1"],
    "rollout": ["rollout", "RUN", "--tasks", "1"],
    "chat": ["chat", "RUN", "--ask", "hi"],
    "audit": ["audit", "RUN"],
    "lint --start": ["lint", "RUN", "--start"],
    "export --to": ["export", "RUN", "OUT.jsonl", "--to", "openai"],
    "figure": ["figure", "RUN", "-o", "RUN/figure.pdf"],
    "track": ["track", "RUN", "--to", "tensorboard", "--dest", "OUT"],
    "show --signals": ["show", "RUN", "--signals"],
    "conversations": ["conversations", "RUN"],
    "train": ["train", "RUN/config.json", "--out", "OUT"],
    "warm-start": ["warm-start", "RUN", "RUN/settings.toml", "--out", "OUT", "--tasks", "1"],
    "tune-in": ["tune-in", "RUN", "RUN/settings.toml", "--tasks", "1"],
    "get-model": ["get-model", "RUN"],
    "demo-model": ["demo-model", "RUN", "--out", "OUT"],
    "train FILE.toml": ["train", "RUN/settings.toml", "--out", "OUT"],
    "serve": ["serve", "RUN", "--port", "PORT"],
    "check-env": ["check-env", "RUN/settings.toml", "--tasks", "1", "--seconds", "0.1"],
    "doctor --plan": ["doctor", "--plan", "RUN/config.json"],
    "doctor --plan FILE.toml": ["doctor", "--plan", "RUN/settings.toml"],
    "audit-notebook": ["audit-notebook", "NOTEBOOK", "--run", "RUN"],
    "audit-notebook FILE": ["audit-notebook", "RUN/config.json"],
    "ablate --plan": ["ablate", "RUN/quick.toml", "--plan", "--out", "RUN"],
    "demo": ["demo", "--task", "RUN/settings.toml", "--out", "OUT"],
    "retriever": ["retriever", "--corpus", "RUN/config.json"],
    "new-env": ["new-env", "guess", "--in", "RUN"],
    "new-tool": ["new-tool", "guess", "--in", "RUN"],
    "new-algorithm": ["new-algorithm", "guess", "--in", "RUN"],
    "settings": ["settings", "RUN"],
    "pretrain": ["pretrain", "RUN", "--check", "--quick"],
    "bias": ["bias", "--algorithm", "RUN"],
    "play": ["play", "frozenlake-4x4", "--tokenizer", "RUN"],
}


@dataclass(frozen=True)
class Called:
    """How one call ended. `status`: its exit status, negative: killed by that signal; `seconds`: without those in which it
    waited for a core; `cpu_s`: that it and its children computed."""

    status: int
    seconds: float
    cpu_s: float
    megabytes: float
    said: str


def call(words: list[str], folder: Path) -> Called:
    """Run a command in a process of its own."""
    log, queued = folder / "said", 0.0
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        _as_command(words, log)
    while True:
        queued = waited_for_a_core(pid) or queued
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() - started > GIVEN_UP_S:
            os.killpg(pid, signal.SIGKILL)
        time.sleep(0.01)
    return Called(
        os.waitstatus_to_exitcode(status),
        time.monotonic() - started - queued,
        used.ru_utime + used.ru_stime,
        used.ru_maxrss / 1024,
        log.read_text(errors="replace") if log.exists() else "",
    )


def waited_for_a_core(pid: int) -> float:
    """Seconds in which a process's first thread could have run, and another process had the core (Linux tells)."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


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
    """The words of a call, with RUN, SOUND, OUT and NOTEBOOK where they lie."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    places = {
        "SOUND": sound,
        "OUT": scratch / "out",
        "OUT.jsonl": scratch / "out.jsonl",
        "NOTEBOOK": sound.with_suffix(".ipynb"),
        "PORT": port,
    }
    return [
        str(run) + word[3:] if word.split("/")[0] == "RUN" else str(places.get(word, word))
        for word in words
    ]


def lay_out(sound: Path, stand_in: Path) -> None:
    """What commands want besides a run: settings and a plan in its folder, a notebook that shows it, a stand-in for vLLM."""
    import workbench as wb

    (sound / OWN_FILES[0]).write_text(SETTINGS)
    plan_at(sound)
    shutil.copytree(sound, stand_in / "run")  # what is shown of a run has its name in it
    executed(sound.with_suffix(".ipynb"), wb.show(wb.open_run(stand_in / "run")))
    server = stand_in / "vllm" / "entrypoints" / "openai" / "api_server.py"
    server.parent.mkdir(parents=True)
    server.write_text(VLLM)
    for folder in (stand_in / "vllm", stand_in / "vllm" / "entrypoints", server.parent):
        (folder / "__init__.py").touch()


def bend_own_files(run: Path, sound: Path) -> None:
    """Where the run's settings are no longer what they were, neither are the file of settings and the plan."""
    config = run / "config.json"
    same = (
        config.is_file()
        and not config.is_symlink()
        and config.stat().st_size < 1 << 20
        and (config.read_bytes() == (sound / "config.json").read_bytes())
    )
    for name in () if same else OWN_FILES:
        (run / name).unlink()
        (run / name).symlink_to("config.json")


@contextmanager
def vllm_at(folder: Path) -> Iterator[None]:
    """As if it were installed, for calls that are forked meanwhile."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(folder), before]))
    sys.path.append(str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.environ["PYTHONPATH"] = before or ""


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
        bend_own_files(run, sound)
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
        wrong.append(
            f"took {ended.seconds:.1f} s, {ended.cpu_s:.1f} of them computing (the sound run: {base.seconds:.1f} s, "
            f"{base.cpu_s:.1f} s)"
        )
    if ended.megabytes > base.megabytes + TWICE_MB:
        wrong.append(f"took {ended.megabytes:.0f} MB (the sound run: {base.megabytes:.0f} MB)")
    if ended.status not in (0, 1, 2, 3) or "Traceback" in ended.said:
        wrong.append(f"ended with status {ended.status}: {ended.said[-200:]!r}")
    if ended.status == 3:
        wrong.append(f"unexpected: {ended.said[-300:]!r}")
    return wrong


def sweep(
    sound: Path, folder: Path, commands: list[str], names: list[str]
) -> tuple[int, list[str]]:
    """(calls, what was wrong)."""
    for module in (
        "workbench.cli.commands",
        "workbench.training.session",
        "workbench.look.cells.lint",
        "pyarrow.parquet",
        "pandas",
    ):
        __import__(module)
    calls, wrong = 0, []
    lay_out(sound, folder / "stand-in")
    for command in commands:
        with ExitStack() as held:
            if command == "serve":
                held.enter_context(vllm_at(folder / "stand-in"))
            found = _swept(sound, folder, command, names)
        calls, wrong = calls + len(names), wrong + found
    return calls, wrong


def _swept(sound: Path, folder: Path, command: str, names: list[str]) -> list[str]:
    """What was wrong with one command."""
    shutil.copytree(sound, folder / "base" / "run")
    base = call(placed(COMMANDS[command], folder / "base" / "run", sound, folder / "base"), folder)
    shutil.rmtree(folder / "base")
    wrong = []
    if base.status not in (0, 1) and not (base.status == 2 and command in REFUSED):
        wrong.append(f"{command} on the sound run: {base.said[-300:]}")
    for name in names:
        for _ in range(TRIES):  # other work goes on beside
            found = wrong_with(name, command, sound, base, folder / "scratch")
            if not found or not all(
                words.startswith("took") and words.endswith(" s)") for words in found
            ):
                break
        wrong += [f"{command}, {name}: {words}" for words in found]
        print(
            "\n".join(f"{command}, {name}: {words}" for words in found),
            end="\n" * bool(found),
            flush=True,
        )
    print(
        f"{command}: {len(names)} folders; the sound run: {base.seconds:.1f} s, {base.cpu_s:.1f} s computing",
        flush=True,
    )
    return wrong


def sound_run(folder: Path) -> Path:
    """A run that was trained here: two steps with checkpoints and evaluations."""
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    train_here(
        load_config(
            "frozenlake",
            {
                "train.steps": 2,
                "train.tasks_per_step": 2,
                "train.group_size": 2,
                "evaluation.num_tasks": 2,
                "train.checkpoint_every": 1,
                "collect.max_turn_tokens": 8,
                "env.max_turns": 2,
            },
        ),
        folder / "sound",
        on_note=None,
    )
    return folder / "sound"


def main(words: list[str]) -> int:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_STATE_HOME"] = f"{folder}/state"
        sound = sound_run(Path(folder))
        out = words.pop(words.index("--json") + 1) if "--json" in words else ""
        chosen = [word for word in words if word != "--json"] or list(COMMANDS)
        calls, wrong = sweep(sound, Path(folder), chosen, list(HOSTILE))
    if out:
        Path(out).write_text(
            json.dumps(
                {"folders": len(HOSTILE), "commands": chosen, "calls": calls, "wrong": wrong},
                indent=1,
            )
            + "\n"
        )
    print("\n".join([f"{len(HOSTILE)} hostile folders, {calls} calls, {len(wrong)} wrong"]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
