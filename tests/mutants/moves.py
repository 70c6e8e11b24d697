"""What is known of code that moved, and how paths and lines of code read after it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Moves:
    """What is known to have moved: paths of files and folders, dotted modules, identifiers."""

    paths: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def path(self, file: str, root: Path) -> str:
        """Where the file is now; itself where nothing is known, or nothing is there."""
        new = longest_prefix(file, self.paths, "/") or file
        if new == file and file.endswith(".py"):
            module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            base = (longest_prefix(module, self.modules, ".") or module).replace(".", "/")
            new = next(
                (path for path in (f"{base}.py", f"{base}/__init__.py") if (root / path).is_file()),
                file,
            )
        return new if (root / new).exists() else file

    def text(self, line: str) -> str:
        """The line with modules and identifiers by their new names."""
        line = re.sub(r"\bfrom ([\w.]+) import (\w+)( as \w+)?(?=\s*(?:$|#))", self._import, line)
        line = re.sub(
            r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)+",
            lambda match: longest_prefix(match[0], self.modules, ".") or match[0],
            line,
        )
        return re.sub(r"[A-Za-z_]\w*", lambda match: self.names.get(match[0], match[0]), line)

    def _import(self, match: re.Match[str]) -> str:
        """`from package import module`, where the module moved by itself."""
        new = self.modules.get(f"{match[1]}.{match[2]}")
        if new is None:
            return match[0]
        package, _, module = new.rpartition(".")
        alias = match[3] or (f" as {match[2]}" if module != match[2] else "")
        return f"from {package} import {module}{alias}"


def longest_prefix(name: str, known: Mapping[str, str], separator: str) -> str | None:
    """The name with its longest prefix in `known` replaced; None where there is none, or it is replaced already."""
    parts = name.split(separator)
    for count in range(len(parts), 0, -1):
        old = separator.join(parts[:count])
        if (new := known.get(old)) is not None:
            done = name == new or name.startswith(new + separator)
            return (
                None
                if done and new.startswith(old + separator)
                else separator.join([new, *parts[count:]])
            )
    return None


def read_moves(moved: Sequence[str], modules: Path | None) -> Moves:
    """Raises ValueError for a line that is not a pair."""
    lines = [
        line
        for text in moved
        for line in ([text] if "=" in text else Path(text).read_text().splitlines())
    ]
    paths = dict(_pair(line.replace("=", " ")) for line in lines if line.strip())
    named = dict(
        _pair(line)
        for line in (modules.read_text().splitlines() if modules else ())
        if line.strip()
    )
    return Moves(
        {old.rstrip("/"): new.rstrip("/") for old, new in paths.items()},
        {old: new for old, new in named.items() if "." in old},
        {old: new for old, new in named.items() if "." not in old},
    )


def _pair(line: str) -> tuple[str, str]:
    if len(words := line.split()) != 2:
        raise ValueError(f"expected an old and a new name, got {line!r}")
    return words[0], words[1]
