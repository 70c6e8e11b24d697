"""Edits that break the code on purpose, anchored to names: how they are written, read, found in the code and applied.

    # invariant: 3                                            a header; which lines it needs is up to its reader
    # breaks: the value after a truncated end is the one before its last token

    @ workbench/critic.py :: Critic.values_after        the file, and the definition in it
      asked_T[end_of_cut] = True                        context: only where the rest would not be unique
    - return value_T[end_of_cut]                        what stands there (`before` is context and these)
    + return value_T[end_of_cut - 1]                    what stands there then (`after` is context and these)

An edit has one or several such blocks, in one or several files. The definition is a function or class by its qualified
name (`GRPO.advantages`; `outer.inner` for a nested function), decorators included, or `<module>` for the whole file.
`before` must be found exactly once in it. Indentation counts only between the lines of a block: code may move into a
class or out of it. Files that are not Python have no `::` and are searched as a whole. `@ path :: <new>` makes a file,
`@ path :: <deleted>` removes one. The blocks of an edit are all found in the untouched code, in any order.

A unified diff (`git apply -p1`) under the same header is read, too.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

SUFFIX = ".edit"
SUFFIXES = (SUFFIX, ".patch")
MODULE, NEW, DELETED = "<module>", "<new>", "<deleted>"
BODY = ("@ ", "diff ", "--- ")  # how the first line after a header begins


class EditError(ValueError):
    """An edit that cannot be read, or that does not fit onto the code."""


@dataclass(frozen=True)
class Block:
    """One change. `lines`: (mark, text) with the mark " " for context, "-" for what goes and "+" for what comes."""

    file: str
    name: str  # qualified name, MODULE, NEW or DELETED; "" in a file that is not Python
    lines: tuple[tuple[str, str], ...]

    @property
    def before(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "+"]

    @property
    def after(self) -> list[str]:
        return [text for mark, text in self.lines if mark != "-"]

    @property
    def anchor(self) -> str:
        return f"{self.file} :: {self.name}" if self.name else self.file


@dataclass(frozen=True)
class Place:
    """Where the `before` of a block stands in a file."""

    line: int  # index of its first line, from 0
    indentation: str  # what the file has in front of every line of the block


# ------------------------------------------------------------------------------------------------ files of edits


def edits_in(folder: Path) -> list[Path]:
    """The edits and unified diffs in a folder, by name."""
    return sorted(path for suffix in SUFFIXES for path in folder.glob(f"*{suffix}"))


def choose(names: Sequence[str], everything: Sequence[Path], what: str) -> list[Path]:
    """Those that are named by path or by the beginning of their name; all without names. Raises ValueError for none."""
    chosen: list[Path] = []
    for name in names:
        stem = Path(name).stem if name.endswith(SUFFIXES) else Path(name).name
        found = (
            [Path(name).resolve()]
            if Path(name).is_file()
            else [path for path in everything if path.stem.startswith(stem)]
        )
        if not found:
            raise ValueError(
                f"no {what} {name!r}; there are: {', '.join(path.stem for path in everything) or 'none'}"
            )
        chosen += found
    return chosen or list(everything)


def read_header(path: Path, keys: Iterable[str]) -> dict[str, list[str]]:
    """{key: its values, in order} of the lines `# key: value` before the first block or diff."""
    header: dict[str, list[str]] = {key: [] for key in keys}
    for line in path.read_text().splitlines():
        if line.startswith(BODY):
            break
        if (match := re.match(r"#\s*([\w-]+):\s*(.+)", line)) and match[1] in header:
            header[match[1]].append(match[2].strip())
    return header


def parse(text: str) -> tuple[list[str], list[Block]]:
    """The lines of the header, and the blocks."""
    header, blocks, lines = [], [], text.split("\n")
    while lines and not lines[0].startswith("@ "):
        header.append(lines.pop(0))
    while lines:
        file, _, name = (part.strip() for part in lines.pop(0)[2:].partition(" :: "))
        body = []
        while lines and not lines[0].startswith("@ "):
            body.append(lines.pop(0))
        blocks.append(
            Block(
                file,
                name,
                tuple(_parse_line(line) for line in "\n".join(body).strip("\n").split("\n")),
            )
        )
    while header and not header[-1]:
        header.pop()
    return header, blocks


def _parse_line(line: str) -> tuple[str, str]:
    if line and (line[0] not in " -+" or line[1:2] not in ("", " ")):
        raise EditError(f"expected a line that begins with '- ', '+ ' or two spaces, got {line!r}")
    return (line[0], line[2:]) if line else (" ", "")


def blocks_in(path: Path) -> list[Block]:
    """The blocks of an edit; none in a diff."""
    return parse(path.read_text())[1]


def written(header: Sequence[str], blocks: Sequence[Block]) -> str:
    """The text of an edit: what `parse` reads."""
    parts = ["\n".join(header)] if header else []
    for block in blocks:
        body = [f"{mark} {text}" if text else mark.strip() for mark, text in block.lines]
        parts.append("\n".join([f"@ {block.anchor}", *body]))
    return "\n\n".join(parts) + "\n"


def files_of(path: Path) -> list[str]:
    """The files that an edit or unified diff changes."""
    if path.suffix == SUFFIX:
        return list(dict.fromkeys(block.file for block in blocks_in(path)))
    return re.findall(r"^\+\+\+ b/(\S+)", path.read_text(), flags=re.MULTILINE)


# ------------------------------------------------------------------------------------------------ names in the code


@lru_cache(maxsize=1024)
def definitions(text: str) -> Mapping[str, tuple[tuple[int, int], ...]]:
    """{qualified name: (first line, line after the last) of each definition of that name}, lines from 0, outer ones
    first. Several where a name is defined twice: a property and its setter. Raises SyntaxError."""
    found: dict[str, list[tuple[int, int]]] = {MODULE: [(0, text.count("\n") + 1)]}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                first = min(
                    [child.lineno, *(decorator.lineno for decorator in child.decorator_list)]
                )
                found.setdefault(prefix + child.name, []).append((first - 1, child.end_lineno))
                visit(child, f"{prefix}{child.name}.")
            else:
                visit(child, prefix)

    visit(ast.parse(text), "")
    return {name: tuple(ranges) for name, ranges in found.items()}


def innermost(text: str, first: int, last: int) -> str:
    """The qualified name of the smallest definition that holds the lines from `first` up to before `last`."""
    sizes = [
        (end - start, name)
        for name, ranges in definitions(text).items()
        for start, end in ranges
        if start <= first and last <= end
    ]
    return min(sizes)[1]


def occurrences(
    lines: Sequence[str], before: Sequence[str], ranges: Iterable[tuple[int, int]]
) -> list[Place]:
    """Each place in these ranges of lines at which `before` stands, at any indentation."""
    found = set()
    for start, end in ranges:
        for line in range(start, end - len(before) + 1):
            indentation = _indentation(lines[line : line + len(before)], before)
            if indentation is not None:
                found.add(Place(line, indentation))
    return sorted(found, key=lambda place: place.line)


def _indentation(lines: Sequence[str], before: Sequence[str]) -> str | None:
    """The white space that stands before each line of `before` in `lines`; None where they differ in more than that."""
    found = None
    for line, text in zip(lines, before, strict=True):
        if not line.endswith(text) or (not text and line):
            return None
        if text:
            indentation = line.removesuffix(text)
            if indentation.strip() or found not in (None, indentation):
                return None
            found = indentation
    return found


def find(text: str, block: Block) -> list[Place]:
    """Where the block fits in the text of its file. Raises EditError where its definition is not there."""
    lines = text.split("\n")
    if not block.name:
        return occurrences(lines, block.before, [(0, len(lines))])
    if block.name not in definitions(text):
        raise EditError(f"no {block.name} in {block.file}")
    return occurrences(lines, block.before, definitions(text)[block.name])


# ------------------------------------------------------------------------------------------------ applying


def edited(root: Path, blocks: Sequence[Block]) -> dict[str, str | None]:
    """{file: its text after the edit, None for one that is gone}; writes nothing. Raises EditError."""
    result: dict[str, str | None] = {}
    for file in dict.fromkeys(block.file for block in blocks):
        mine, path = [block for block in blocks if block.file == file], root / file
        if mine[0].name == NEW:
            result[file] = "\n".join(mine[0].after) + "\n"
        elif not path.is_file():
            raise EditError(f"no file {file}")
        else:
            result[file] = None if mine[0].name == DELETED else edited_text(path.read_text(), mine)
    return result


def edited_text(text: str, blocks: Sequence[Block]) -> str:
    """The text with these blocks applied. Raises EditError for one that is found nowhere or several times."""
    lines, changes = text.split("\n"), []
    for block in blocks:
        places = find(text, block)
        if len(places) != 1:
            where = (
                " (lines " + ", ".join(str(place.line + 1) for place in places) + ")"
                if places
                else ""
            )
            raise EditError(
                f"expected the text before the edit once in {block.anchor}, found it {len(places)} times"
                f"{where}: {next(filter(str.strip, block.before), '')!r}"
            )
        changes.append(_change(block, places[0]))
    changes.sort(key=lambda change: change[:2], reverse=True)
    for (start, _, _), (_, end, _) in zip(changes, changes[1:], strict=False):
        if start < end:
            raise EditError(f"two blocks change line {start + 1} of {blocks[0].file}")
    for start, end, new in changes:
        lines[start:end] = new
    return "\n".join(lines)


def _change(block: Block, place: Place) -> tuple[int, int, list[str]]:
    """(first line, line after the last, new lines), without the context around: that of two blocks may overlap."""
    marks = "".join(mark for mark, _ in block.lines)
    lead, tail = len(marks) - len(marks.lstrip()), len(marks) - len(marks.rstrip())
    after = block.after[lead : len(block.after) - tail]
    return (
        place.line + lead,
        place.line + len(block.before) - tail,
        [place.indentation + text if text else text for text in after],
    )


def misfit(root: Path, blocks: Sequence[Block]) -> str | None:
    """None where the blocks fit onto the tree and leave it compiling, else why not; writes nothing."""
    try:
        texts = edited(root, blocks)
        return (
            _uncompiled(texts)
            if texts
            else "has no block; `python -m tests.mutants.from_diff` makes them of a diff"
        )
    except (EditError, SyntaxError) as error:
        return f"does not apply: {error}"


def apply(copy: Path, path: Path) -> str | None:
    """Apply an edit or unified diff to a copy of the tree; None, or why it does not fit (any more)."""
    try:
        texts = _apply_edit(copy, path) if path.suffix == SUFFIX else _apply_diff(copy, path)
    except (EditError, SyntaxError) as error:
        return f"does not apply: {error}"
    return _uncompiled(texts) if texts else "changes no file"


def _uncompiled(texts: Mapping[str, str | None]) -> str | None:
    for name, text in texts.items():
        if name.endswith(".py") and text is not None:
            try:
                compile(text, name, "exec")
            except SyntaxError as error:
                return f"leaves {name} that does not compile: {error}"
    return None


def _apply_edit(copy: Path, path: Path) -> dict[str, str | None]:
    texts = edited(copy, blocks_in(path))
    for name, text in texts.items():
        if text is None:
            (copy / name).unlink()
        else:
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_text(text)
    return texts


def _apply_diff(copy: Path, path: Path) -> dict[str, str | None]:
    command = ["git", "apply", "-p1", str(path.resolve())]
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise EditError(
            done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no reason given"
        )
    return {
        name: (copy / name).read_text() if (copy / name).exists() else None
        for name in files_of(path)
    }
