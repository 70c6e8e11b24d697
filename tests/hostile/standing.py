"""Whoever stands in a stranger's folder and types a command runs nothing that lies there: every command, every name.

    python -m tests.hostile.standing              one line for each file that ran, exit 1 if any did
    python -m tests.hostile.standing show lint    these commands only

Each command of the sweep is called twice as a process of its own, from inside a copy of a run. First every module is noted
that is looked for and found nowhere, in that process and in all that it starts; then a module of each of these names lies in
the folder, and leaves a mark if it runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from shutil import copytree, rmtree

from tests.hostile.sweep import COMMANDS, lay_out, placed, sound_run

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 180.0
# What a console script does: nothing of the folder is on the path. {before}: of the negative control.
START = "{before}from workbench.cli import main; import sys; sys.exit(main())"
NOTING = """
import os, sys


class Noting:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if path is None:
            with open(os.environ["NOTED"], "a") as file:
                file.write(name + "\\n")


sys.meta_path.append(Noting)
"""
STUB = "open({mark!r}, 'a').write(__name__ + '\\n')\nraise ImportError('a stub')\n"
# Of the standard library, which any `python -m` or `-c` would look for in its folder first.
OWN_NAMES = ("json", "argparse", "pickle", "multiprocessing", "pandas", "torch", "workbench")
# They end by themselves or are ended here.
LATE = ("retriever", "serve")


def called(
    command: str, folder: Path, sound: Path, scratch: Path, path: list[Path], before: str = ""
) -> str:
    """Call a command of the sweep from inside `folder`; what it said."""
    words = placed(COMMANDS[command], folder, sound, scratch)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, [*path, ROOT])),
        "NOTED": str(scratch / "noted"),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", START.format(before=before), *words],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=30 if command in LATE else SECONDS,
        )
    except subprocess.TimeoutExpired:
        return "late"
    return done.stdout + done.stderr


def noted(command: str, sound: Path, scratch: Path, path: list[Path]) -> list[str]:
    """The modules that a command looks for and finds nowhere."""
    noting = scratch / "noting"
    noting.mkdir(parents=True)
    (noting / "sitecustomize.py").write_text(NOTING)
    (scratch / "noted").touch()
    called(command, fresh(sound, scratch), sound, scratch, [noting, *path])
    return sorted(set((scratch / "noted").read_text().split()))


def fresh(sound: Path, scratch: Path) -> Path:
    """A copy of the run to stand in."""
    for name in ("run", "out"):
        rmtree(scratch / name, ignore_errors=True)
    return copytree(sound, scratch / "run")


def ran(
    command: str,
    names: list[str],
    sound: Path,
    scratch: Path,
    path: list[Path],
    before: str = "",
) -> list[str]:
    """The modules of the folder that ran. `names`: of those that lie there."""
    folder = fresh(sound, scratch)
    mark = scratch / "mark"
    mark.unlink(missing_ok=True)
    for name in names:
        (folder / f"{name}.py").write_text(STUB.format(mark=str(mark)))
    called(command, folder, sound, scratch, path, before)
    return sorted(set(mark.read_text().split())) if mark.exists() else []


def tried(
    command: str, sound: Path, scratch: Path, path: list[Path]
) -> tuple[list[str], list[str]]:
    """(modules that a command looks for in vain, those of the folder that ran)."""
    names = noted(command, sound, scratch, path)
    ran_here = ran(command, sorted({*names, *OWN_NAMES}), sound, scratch, path)
    return names, ran_here


def main(commands: list[str]) -> int:
    wrong = 0
    every: set[str] = set()
    with tempfile.TemporaryDirectory() as place:
        os.environ["XDG_STATE_HOME"] = f"{place}/state"
        sound = sound_run(Path(place))
        lay_out(sound, Path(place) / "stand-in")
        for number, command in enumerate(commands or COMMANDS):
            path = [Path(place) / "stand-in"] if command == "serve" else []
            names, ran_here = tried(command, sound, Path(place) / str(number), path)
            every |= set(names)
            wrong += len(ran_here)
            said = f"RAN {' '.join(ran_here)}" if ran_here else "nothing ran"
            print(f"{command}: {len(names)} modules looked for in vain; {said}", flush=True)
    print(
        f"{len(commands or COMMANDS)} commands, {len(every)} names ({' '.join(sorted(every))}), {wrong} ran"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
