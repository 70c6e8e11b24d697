"""Finds the code of edits that has moved, and says what it could not find.

    python -m tests.mutants.reanchor                     what no longer fits onto the code, and where it stands now
    python -m tests.mutants.reanchor --write             the same, and writes it into the edits
    python -m tests.mutants.reanchor invariant-03 --write      some of them
    python -m tests.mutants.reanchor --moved tests/ops=tests/learn/ops --modules map.txt --write

All mutants and silent bugs are looked at. A block that no longer fits is looked for, in this order, as: the same
qualified name in another file; the same text in another definition of its file; the same text in a definition with the
same last name (`Old.f`, `New.f`); the same text anywhere. It is moved where exactly one place is found. Tests that
`caught-by` names are looked for by their name. What is left over is listed with the nearest lines.

`--moved OLD=NEW`: a file or folder that moved; or the path of a file with a line `OLD NEW` for each. `--modules FILE`:
lines `old.module new.module`, by which files, imports and dotted names in the text of edits are rewritten first, and
`OldName NewName` for identifiers that were renamed. Exit status 1 where something is left over.
"""

from __future__ import annotations

import argparse
import heapq
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from pathlib import Path

from tests.mutants import edits
from tests.mutants.moves import Moves, read_moves

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    "tests/mutants",
    "tests/silent_bugs/bugs",
    "tests/silent_bugs/further",
    "tests/silent_bugs/worlds",
)
CODE = ("workbench", "experiments", "data/make", "tests")
TELLING = 15  # characters: a shorter text that stands in one place only may stand there by chance
NEAREST = 3  # candidates that are shown
SIMILAR = 0.5  # from 0 to 1: less similar lines are no candidates
SAME_NAME = 0.25  # what the same name of its definition adds to the similarity of a line


# ------------------------------------------------------------------------------------------------ places


@dataclass(frozen=True)
class Found:
    """A place of a block: the file, the definition, and by what it was found."""

    file: str
    name: str
    how: str


def fits(text: str, block: edits.Block) -> bool:
    """Whether the block stands exactly once in its definition in this text of its file."""
    try:
        return len(edits.find(text, block)) == 1
    except edits.EditError:
        return False


def places(block: edits.Block, tree: Mapping[str, str]) -> list[Found]:
    """Where the block can be now, by the first search that finds anything; `tree` is {file: its text}."""
    searches: list[Callable[[edits.Block, Mapping[str, str]], Iterator[Found]]] = [_same_name]
    telling = len("".join("".join(block.before).split())) >= TELLING
    searches += [_same_file, _same_last_name, _anywhere] if telling else [_same_last_name]
    return next(
        (found for search in searches if (found := list(dict.fromkeys(search(block, tree))))), []
    )


def _same_name(block: edits.Block, tree: Mapping[str, str]) -> Iterator[Found]:
    if block.name != edits.MODULE:
        for file, text in tree.items():
            if fits(text, block):
                yield Found(file, block.name, "the same name")


def _same_file(block: edits.Block, tree: Mapping[str, str]) -> Iterator[Found]:
    yield from _texts(
        block,
        {file: text for file, text in tree.items() if file == block.file},
        "the same text in this file",
    )


def _same_last_name(block: edits.Block, tree: Mapping[str, str]) -> Iterator[Found]:
    last = block.name.rpartition(".")[2]
    for file, text in tree.items() if block.name != edits.MODULE else ():
        for name in edits.definitions(text):
            if name.rpartition(".")[2] == last and fits(text, replace(block, name=name)):
                yield Found(file, name, "the same last name")


def _anywhere(block: edits.Block, tree: Mapping[str, str]) -> Iterator[Found]:
    yield from _texts(block, tree, "the same text")


def _texts(block: edits.Block, tree: Mapping[str, str], how: str) -> Iterator[Found]:
    for file, text in tree.items():
        lines = text.split("\n")
        for place in edits.occurrences(lines, block.before, [(0, len(lines))]):
            yield Found(
                file, edits.innermost(text, place.line, place.line + len(block.before)), how
            )


def nearest(block: edits.Block, tree: Mapping[str, str]) -> list[str]:
    """The lines most like what the block changes, with where they stand."""
    wanted = max((text.strip() for mark, text in block.lines if mark == "-"), key=len, default="")
    wanted = wanted or max(map(str.strip, block.before), key=len, default="")
    matcher, last, rated = (
        SequenceMatcher(b=wanted, autojunk=False),
        block.name.rpartition(".")[2],
        [],
    )
    for file, text in tree.items():
        owners = _owners(text)
        for number, line in enumerate(text.split("\n")):
            matcher.set_seq1(line.strip())
            if matcher.real_quick_ratio() > SIMILAR and matcher.quick_ratio() > SIMILAR:
                bonus = SAME_NAME * (owners[number].rpartition(".")[2] == last)
                if (ratio := matcher.ratio()) > SIMILAR:
                    rated.append(
                        (
                            ratio + bonus,
                            f"{file}:{number + 1} :: {owners[number]}: {line.strip()[:100]}",
                        )
                    )
    return [place for _, place in heapq.nlargest(NEAREST, rated)]


def _owners(text: str) -> list[str]:
    """The innermost definition of each line."""
    owners = [edits.MODULE] * (text.count("\n") + 1)
    ranges = [
        (start, end, name)
        for name, found in edits.definitions(text).items()
        for start, end in found
    ]
    for start, end, name in sorted(ranges, key=lambda found: found[0] - found[1]):
        owners[start:end] = [name] * (end - start)
    return owners


# ------------------------------------------------------------------------------------------------ one edit


@dataclass
class Result:
    """An edit after the search: its new text, what was changed in it, and what could not be placed."""

    text: str
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)


def reanchored(text: str, root: Path, tree: Mapping[str, str], moves: Moves) -> Result:
    """The edit of this text, moved to where its code is in `tree`, all Python files below `root`."""
    header, blocks = edits.parse(text)
    result = Result("")
    header = [_new_tests(line, root, tree, moves, result) for line in header]
    moved = []
    for old in blocks:
        block = replace(
            old,
            file=moves.path(old.file, root),
            name=moves.text(old.name),
            lines=tuple((mark, moves.text(line)) for mark, line in old.lines),
        )
        if fits(tree.get(block.file, ""), replace(block, lines=old.lines)) and not fits(
            tree[block.file], block
        ):
            block = replace(
                block, lines=old.lines
            )  # the code keeps an old name, such as the one of a log
        if block.name not in (edits.NEW, edits.DELETED):
            block = _placed(block, root, tree, result)
        if block.anchor != old.anchor:
            result.notes.append(f"{old.anchor} -> {block.anchor}")
        moved.append(block)
        result.left += [
            f"{block.anchor} imports {module}, which is not there"
            for module in _missing(block, root)
        ]
    if not result.left and (why := edits.misfit(root, moved)):
        result.left.append(why)
    result.text = edits.written(header, moved)
    if result.text != text and not result.notes:
        result.notes.append("names in its text")
    return result


def _placed(block: edits.Block, root: Path, tree: Mapping[str, str], result: Result) -> edits.Block:
    """The block where its code is now; the block itself, and a line in `result.left`, where that is not known."""
    if not block.name:
        text = (root / block.file).read_text() if (root / block.file).is_file() else ""
        if not fits(text, block):
            result.left.append(f"{block.anchor} has changed or is gone")
        return block
    if block.file in tree and fits(tree[block.file], block):
        return block
    near = {
        file: text
        for file, text in tree.items()
        if file.startswith("tests/") == block.file.startswith("tests/")
    }
    found = places(block, near)
    if len(found) == 1 and fits(
        tree[found[0].file], placed := replace(block, file=found[0].file, name=found[0].name)
    ):
        result.notes.append(
            f"found by {found[0].how}: {next(filter(str.strip, block.before)).strip()[:80]}"
        )
        return placed
    candidates = [f"{place.file} :: {place.name} ({place.how})" for place in found] or nearest(
        block, near
    )
    why = "stands in several places" if found else "is not there"
    result.left.append(
        "\n".join(
            [
                f"{block.anchor} {why}: {next(filter(str.strip, block.before), '').strip()[:100]}",
                *(f"    {candidate}" for candidate in candidates),
            ]
        )
    )
    return block


def _missing(block: edits.Block, root: Path) -> list[str]:
    """Modules of this tree that the new lines of a block import, and that do not exist."""
    new = "\n".join(text for mark, text in block.lines if mark == "+")
    names = re.findall(r"^\s*(?:from|import) ((?:workbench|tests)[\w.]*)", new, flags=re.MULTILINE)
    paths = {name: root / name.replace(".", "/") for name in names}
    return [
        name
        for name, path in paths.items()
        if not (path.is_dir() or path.with_name(f"{path.name}.py").is_file())
    ]


def _new_tests(line: str, root: Path, tree: Mapping[str, str], moves: Moves, result: Result) -> str:
    """A line `# caught-by:` with its tests where they are now; any other line as it is."""
    if not re.match(r"#\s*caught-by:", line):
        return line

    def moved(match: re.Match[str]) -> str:
        file, test = moves.path(match[1], root), match[2].rpartition("::")[2].partition("[")[0]
        having = [
            path
            for path, text in tree.items()
            if path.startswith("tests/") and f"def {test}(" in text
        ]
        if (file not in tree) if not test else (file not in having):
            same = [path for path in having if Path(path).name == Path(file).name] or having
            if not test:
                same = [
                    path
                    for path in tree
                    if path.startswith("tests/") and Path(path).name == Path(file).name
                ]
            if len(same) != 1:
                result.left.append(
                    "\n".join([f"no test {match[0]}", *(f"    {path}" for path in same[:NEAREST])])
                )
                return match[0]
            file = same[0]
        if file != match[1]:
            result.notes.append(f"{match[0]} -> {file}")
        return file + match[2]

    return re.sub(r"([\w./-]+\.py)((?:::[\w:]+(?:\[[^\s,]*\])?)?)", moved, line)


# ------------------------------------------------------------------------------------------------ all of them


def python_files(root: Path) -> dict[str, str]:
    """{path: text} of the package, its experiments and its tests."""
    return {
        str(path.relative_to(root)): path.read_text()
        for folder in CODE
        for path in sorted((root / folder).rglob("*.py"))
    }


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants.reanchor", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "edit", nargs="*", help="a file, or the beginning of its name (default: all)"
    )
    parser.add_argument("--write", action="store_true", help="write what was found into the edits")
    parser.add_argument(
        "--moved",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="a file or folder that moved, or the path of a file with a line `OLD NEW` for each",
    )
    parser.add_argument(
        "--modules",
        type=Path,
        metavar="FILE",
        help="a file of lines `old.module new.module` or `OldName NewName`",
    )
    options = parser.parse_args(arguments)
    everything = [
        path
        for folder in FOLDERS
        for path in edits.edits_in(root / folder)
        if path.suffix == edits.SUFFIX
    ]
    try:
        chosen = edits.choose(options.edit, everything, "edit")
        moves = read_moves(options.moved, options.modules)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    tree, changed, left = python_files(root), 0, 0
    for path in chosen:
        result = reanchored(text := path.read_text(), root, tree, moves)
        for title, lines in (("moved", result.notes), ("LEFT", result.left)):
            for line in lines:
                print(f"{title:6} {path.name}: {line}", flush=True)
        changed, left = changed + (result.text != text), left + bool(result.left)
        if options.write and result.text != text:
            path.write_text(result.text)
    print(
        f"{len(chosen)} edits: {changed} {'changed' if options.write else 'to change'}, "
        f"{left} with something left over"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
