"""Makes an edit (`tests/mutants/edits.py`) of a unified diff, anchored to the names of the code as it is.

    git diff workbench/critic.py > wrong.patch           change the code, write it down, change it back
    python -m tests.mutants.from_diff wrong.patch        writes wrong.edit beside it, with the header of the diff

The diff must fit onto the working tree. Each block gets the smallest context that makes it unique in its definition.
"""

from __future__ import annotations

import argparse
import os.path
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.mutants import edits

ROOT = Path(__file__).resolve().parents[2]
MOST_CONTEXT = 12  # lines around a change; more would be another change


def blocks_of(path: Path, root: Path) -> list[edits.Block]:
    """The blocks that do to the tree at `root` what the diff does. Raises EditError where it does not fit."""
    blocks = []
    with tempfile.TemporaryDirectory(prefix="from-diff-") as folder:
        files = re.findall(r"^(?:---|\+\+\+) [ab]/(\S+)", path.read_text(), flags=re.MULTILINE)
        for side in ("old", "new"):
            (Path(folder) / side).mkdir()
            for file in filter(lambda file: (root / file).is_file(), dict.fromkeys(files)):
                (Path(folder) / side / file).parent.mkdir(parents=True, exist_ok=True)
                (Path(folder) / side / file).write_bytes((root / file).read_bytes())
        if (reason := edits.apply(Path(folder) / "new", path)) and reason.startswith(
            "does not apply"
        ):
            raise edits.EditError(reason)
        for file in dict.fromkeys(files):
            blocks += blocks_of_file(file, Path(folder) / "old" / file, Path(folder) / "new" / file)
    return blocks


def blocks_of_file(file: str, old: Path, new: Path) -> list[edits.Block]:
    if not old.exists():
        return [
            edits.Block(
                file, edits.NEW, tuple(("+", line) for line in new.read_text()[:-1].split("\n"))
            )
        ]
    if not new.exists():
        return [edits.Block(file, edits.DELETED, ())]
    text, lines = old.read_text(), new.read_text().split("\n")
    return [_anchored(file, text, lines, group) for group in _groups(old, new)]


Hunk = tuple[
    int, int, int, int
]  # of the old file and of the new: first line from 0, line after the last


def _groups(old: Path, new: Path) -> list[list[Hunk]]:
    """The hunks of the difference; those with a single line between are one change."""
    said = subprocess.run(
        ["git", "diff", "--no-index", "-U0", str(old), str(new)], capture_output=True, text=True
    )
    groups: list[list[Hunk]] = []
    for match in re.finditer(
        r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", said.stdout, flags=re.MULTILINE
    ):
        first, count, new_first, new_count = (
            1 if number is None else int(number) for number in match.groups()
        )
        start, new_start = (
            first - (count > 0),
            new_first - (new_count > 0),
        )  # a count of 0: after that line
        hunk = (start, start + count, new_start, new_start + new_count)
        if groups and start - groups[-1][-1][1] <= 1:
            groups[-1].append(hunk)
        else:
            groups.append([hunk])
    return groups


def _anchored(file: str, text: str, new: Sequence[str], group: Sequence[Hunk]) -> edits.Block:
    """The block of a group of hunks, in the innermost definition, with the least context that makes it unique."""
    old = text.split("\n")
    for context in range(MOST_CONTEXT + 1):
        found = []
        for above in range(context, -1, -1):
            first, last = group[0][0] - above, group[-1][1] + context - above
            if first < 0 or last > len(old) or first == last:
                continue
            if (above and not old[first].strip()) or (
                context > above and not old[last - 1].strip()
            ):
                continue  # an empty line says nothing of where it stands
            name = edits.innermost(text, first, last) if file.endswith(".py") else ""
            block = edits.Block(file, name, _lines(old, new, group, first, last))
            if any(map(str.strip, block.before)) and len(edits.find(text, block)) == 1:
                found.append(block)
        if found:
            return max(
                found, key=lambda block: -1 if block.name == edits.MODULE else block.name.count(".")
            )
    raise edits.EditError(
        f"{file}:{group[0][0] + 1}: not unique with {MOST_CONTEXT} lines of context"
    )


def _lines(
    old: Sequence[str], new: Sequence[str], group: Sequence[Hunk], first: int, last: int
) -> tuple[tuple[str, str], ...]:
    """The marked lines from `first` up to before `last` of the old file, without the indentation that all share."""
    marked: list[tuple[str, str]] = []
    at = first
    for start, end, new_start, new_end in group:
        marked += [(" ", line) for line in old[at:start]] + [("-", line) for line in old[start:end]]
        marked += [("+", line) for line in new[new_start:new_end]]
        at = end
    marked += [(" ", line) for line in old[at:last]]
    indented = [text[: len(text) - len(text.lstrip())] for _, text in marked if text.strip()]
    margin = len(os.path.commonprefix(indented))
    return tuple((mark, text[margin:] if text.strip() else text) for mark, text in marked)


def converted(path: Path, root: Path) -> str:
    """The text of the edit that a diff with its header becomes."""
    header = []
    for line in path.read_text().splitlines():
        if line.startswith(edits.BODY):
            break
        header.append(line)
    return edits.written(header, blocks_of(path, root))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.from_diff", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "diff", nargs="+", type=Path, help="a unified diff; NAME.patch becomes NAME.edit"
    )
    for path in parser.parse_args(arguments).diff:
        try:
            text = converted(path, ROOT)
        except edits.EditError as error:
            print(f"{path}: {error}", file=sys.stderr)
            return 1
        path.with_suffix(edits.SUFFIX).write_text(text)
        print(path.with_suffix(edits.SUFFIX))
    return 0


if __name__ == "__main__":
    sys.exit(main())
