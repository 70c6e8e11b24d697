"""Whoever stands in a stranger's folder and types a command runs nothing that lies there: every command, every name.

    python -m tests.hostile.standing              one line for each file that ran, exit 1 if any did
    python -m tests.hostile.standing show lint    these commands only

Each command of the sweep is called twice as a process of its own, from inside a copy of a run. First every module is noted
that is looked for and found nowhere, in that process and in all that it starts; then a module of each of these names lies in
the folder, and leaves a mark if it runs. A command that does not reach its end, or is refused, has shown nothing: that is
wrong, too, so where the sweep hands over what is refused, `RIGHT` has words that are not.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from shutil import copytree, rmtree

from tests.hostile.sweep import COMMANDS, lay_out, placed, sound_run
from workbench.basics.shipped import shipped_folder
from workbench.extensions.real_model.maker import SOURCES, STATED, WEIGHTS

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0  # however busy the machine is
# What a console script does: nothing of the folder is on the path. {before}: of the negative control.
START = "{before}from workbench.cli import main; import sys; sys.exit(main())"
NOTING = """
import sys


class Noting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None:
            with open({noted!r}, "a") as file:
                file.write(name + "\\n")


sys.meta_path.append(Noting)
"""
STUB = "open({mark!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a stub')\n"
# Of the standard library, which any `python -m` or `-c` would look for in its folder first.
OWN_NAMES = ("json", "argparse", "pickle", "multiprocessing", "pandas", "torch", "workbench")
# They serve until they are ended here.
LATE = ("retriever", "serve --engine embedded")
NOTHING_TO_SERVE = "serve"  # by a stand-in for vLLM, which ends at once
LATE_S = 40.0
# Of the sweep's commands, those whose words are refused, and what is none of a run's: words that are not refused. MODEL: the
# name of a pretrained model, in whose place a tiny policy lies.
TINY = "frozenlake-tiny"
FEW_GAMES = (
    "train.steps=1",
    "train.tasks_per_step=2",
    "train.group_size=2",
    "evaluation.num_tasks=2",
    "learner.lora_rank=4",
    "learner.lora_targets=2.self_attn.q_proj,2.mlp.down_proj",
)
RIGHT = {
    "chat": ["chat", "RUN", "--ask", "7"],
    "warm-start": ["warm-start", TINY, "frozenlake", "--out", "OUT", "--tasks", "4"],
    "tune-in": ["tune-in", TINY, "RUN/settings.toml", "--tasks", "1", "--attempts", "1"],
    "get-model": ["get-model", "smollm2"],
    "demo-model": [
        *("demo-model", "smollm2", "--out", "OUT"),
        *(word for setting in FEW_GAMES for word in ("--set", setting)),
    ],
    "audit-notebook FILE": ["audit-notebook", "NOTEBOOK"],
    "retriever": ["retriever", "--corpus", "RUN/corpus.jsonl", "--port", "PORT"],
    "settings": ["settings", "train"],
    "pretrain": ["pretrain", "bandit-tiny", "--check", "--quick"],
    "bias": ["bias", "--algorithm", "rloo"],
    "play": ["play", "frozenlake-4x4"],
    "serve --engine embedded": ["serve", "RUN", "--engine", "embedded", "--port", "PORT"],
}
ENTRIES = COMMANDS | RIGHT
CORPUS = '{"_id": "1", "title": "x", "text": "some words"}\n'


@dataclass(frozen=True)
class Answer:
    """How a call ended. `status`: None where it was ended here."""

    status: int | None
    seconds: float
    said: str

    def reached(self, command: str) -> bool:
        """Whether it went to its end, and was not refused on its way."""
        if command == NOTHING_TO_SERVE:
            return self.status == 2 and "vLLM" in self.said
        if command in LATE:
            return self.status is None and "serving" in self.said
        return self.status in (0, 1) and "Traceback" not in self.said


def called(
    command: str, folder: Path, sound: Path, scratch: Path, path: list[Path], before: str = ""
) -> Answer:
    """Call a command of the sweep from inside `folder`."""
    words = placed(ENTRIES[command], folder, sound, scratch)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])),
        "XDG_CACHE_HOME": str(cached_model(scratch)),
    }
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", START.format(before=before), *words],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=LATE_S if command in LATE else SECONDS)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        status = None
    return Answer(status, time.monotonic() - began, said)


def cached_model(scratch: Path) -> Path:
    """A cache in which a tiny policy lies where the pretrained model would."""
    folder = scratch / "cache" / "agent-rl-workbench" / "models" / SOURCES["smollm2"].folder
    if not folder.exists():
        copytree(shipped_folder() / TINY, folder)
        weights = sha256((folder / WEIGHTS).read_bytes()).hexdigest()
        (folder / STATED).write_text(json.dumps({"weights_sha256": weights}))
    return scratch / "cache"


def noted(command: str, sound: Path, scratch: Path, path: list[Path]) -> tuple[list[str], Answer]:
    """(modules that a command looks for and finds nowhere, how it ended)."""
    noting = scratch / "noting"
    noting.mkdir(parents=True)
    # By its path in full: workers have few of our variables.
    file = scratch / "noted"
    (noting / "sitecustomize.py").write_text(NOTING.format(noted=str(file)))
    file.touch()
    answer = called(command, fresh(sound, scratch), sound, scratch, [noting, *path])
    return sorted(set(file.read_text().split())), answer


def fresh(sound: Path, scratch: Path) -> Path:
    """A copy of the run to stand in, with a corpus in it."""
    for name in ("run", "out"):
        rmtree(scratch / name, ignore_errors=True)
    (scratch / "out.jsonl").unlink(missing_ok=True)
    run = copytree(sound, scratch / "run")
    (run / "corpus.jsonl").write_text(CORPUS)
    return run


def ran(
    command: str,
    names: list[str],
    sound: Path,
    scratch: Path,
    path: list[Path],
    before: str = "",
) -> tuple[list[str], Answer]:
    """(modules of the folder that ran, how the command ended). `names`: of those that lie there."""
    folder = fresh(sound, scratch)
    mark = scratch / "mark"
    mark.unlink(missing_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(STUB.format(mark=str(mark)))
    answer = called(command, folder, sound, scratch, path, before)
    return sorted(set(mark.read_text().split())) if mark.exists() else [], answer


@dataclass(frozen=True)
class Tried:
    """What came of a command. `names`: modules that it looked for in vain; `ran`: those of the folder that ran."""

    names: list[str]
    ran: list[str]
    answers: tuple[Answer, Answer]
    reached: bool


def tried(command: str, sound: Path, scratch: Path, path: list[Path]) -> Tried:
    """Without the modules that it looks for in vain, and with them."""
    names, without = noted(command, sound, scratch, path)
    ran_here, beside = ran(command, sorted({*names, *OWN_NAMES}), sound, scratch, path)
    reached = without.reached(command) and beside.reached(command)
    return Tried(names, ran_here, (without, beside), reached)


def main(commands: list[str]) -> int:
    wrong = short = 0
    every: set[str] = set()
    chosen = commands or list(ENTRIES)
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        sound = sound_run(Path(place))
        lay_out(sound, Path(place) / "stand-in")
        for number, command in enumerate(chosen):
            path = [Path(place) / "stand-in"] if command == NOTHING_TO_SERVE else []
            one = tried(command, sound, Path(place) / str(number), path)
            every |= set(one.names)
            wrong += len(one.ran)
            short += not one.reached
            said = f"RAN {' '.join(one.ran)}" if one.ran else "nothing ran"
            took = ", ".join(f"{answer.seconds:.0f} s" for answer in one.answers)
            print(f"{command}: {len(one.names)} modules looked for in vain; {said}; {took}")
            if not one.reached:
                for answer in one.answers:
                    print(
                        f"    NOT TO ITS END: status {answer.status}, {answer.said[:1500]!r} ... {answer.said[-600:]!r}"
                    )
            sys.stdout.flush()
    print(
        f"{len(chosen)} entries, {len(every)} names ({' '.join(sorted(every))}), {wrong} ran, "
        f"{short} did not reach their end"
    )
    return 1 if wrong or short else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
