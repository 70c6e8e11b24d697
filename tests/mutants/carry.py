"""Carries edits over a mechanical change of the code: a formatter, a rename, files that move.

    git worktree add /tmp/before HEAD                       the tree before the change
    ruff format .                                           the change
    python -m tests.mutants.carry /tmp/before -- ruff format --quiet .

Each edit is applied to the tree before the change. The same command then runs in a folder that holds only the files of
the edit, once as they were and once as the edit leaves them. The difference between the two results is the new edit.
It is written only where the unedited files come out as they are in the working tree now; the others are listed.

The command must do to a few files what it does to all of them. It finds the configuration of the tree
(`pyproject.toml`) in its working directory. Exit status 1 where an edit is left over.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.mutants import edits, from_diff
from tests.mutants.reanchor import ROOT


def lay_out(folder: Path, before: Path, path: Path) -> None:
    """Make `old/` and `new/` in `folder`: the files that the edit touches, without it and with it.

    Raises EditError where the edit does not fit the tree before the change.
    """
    for side in ("old", "new"):
        (folder / side).mkdir(parents=True)
        for name in edits.files_of(path):
            if (before / name).is_file():
                (folder / side / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(before / name, folder / side / name)
    if reason := edits.apply(folder / "new", path):
        raise edits.EditError(reason)


def run_command(folder: Path, command: list[str]) -> None:
    """Run the command in both sides of every edit below `folder`. Raises CalledProcessError."""
    for side in sorted(folder.glob("*/*")):
        shutil.copyfile(ROOT / "pyproject.toml", side / "pyproject.toml")
        subprocess.run(command, cwd=side, check=True, stdout=subprocess.DEVNULL)
        (side / "pyproject.toml").unlink()


def carried(folder: Path, header: list[str]) -> str:
    """The text of the edit between `old/` and `new/`, which the command has changed.

    Raises EditError where the unedited files are not those of the working tree.
    """
    blocks = []
    sides = (folder / "old", folder / "new")
    names = sorted(
        {
            path.relative_to(side).as_posix()
            for side in sides
            for path in side.rglob("[!.]*")
            if path.is_file() and not any(part.startswith(".") for part in path.parts)
        }
    )
    for name in names:
        old, new = folder / "old" / name, folder / "new" / name
        if old.is_file() and old.read_text() != (ROOT / name).read_text():
            raise edits.EditError(f"{name} is not in the working tree what the command makes of it")
        if not (old.is_file() and new.is_file() and old.read_text() == new.read_text()):
            blocks += from_diff.blocks_of_file(name, old, new)
    return edits.written(header, blocks)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.carry", description=__doc__.splitlines()[0]
    )
    parser.add_argument("before", type=Path, help="a copy of the tree before the change")
    parser.add_argument(
        "command", nargs="+", help="the change, as a command that works on a folder"
    )
    options = parser.parse_args(arguments)
    paths = sorted((ROOT / "tests").rglob(f"*{edits.SUFFIX}"))
    left = 0
    with tempfile.TemporaryDirectory(prefix="carry-") as temporary:
        folder = Path(temporary)
        for number, path in enumerate(paths):
            lay_out(folder / str(number), options.before, path)
        run_command(folder, options.command)
        for number, path in enumerate(paths):
            header, _ = edits.parse(path.read_text())
            try:
                path.write_text(carried(folder / str(number), header))
            except (edits.EditError, OSError) as error:
                print(f"LEFT {path.name}: {error}")
                left += 1
    print(f"{len(paths)} edits, {left} left over")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
