"""Find the extensions: packages that the core never imports, each of which says as data what it adds.

An extension is a package with a file `face.toml`. Each table of it is a kind of thing that can be added, each line a name
and the "package.module:Name" behind it, which is imported when the name is used:

    summary = "a line for the documentation"

    [public]                                         # names of `wb`
    bias_bench = "my_extension.cell:bias_bench"
    [environments]                                   # kinds of `env.kind`
    guess = "my_extension.guess:Guessing"
    [commands]                                       # of `workbench`, and what its --help says of each
    luck = "my_extension.command:add_luck"
    [help]
    luck = "how lucky a run was"

`workbench/extensions/` holds those that ship with the package. Another package joins by an entry point of the group
`workbench.extensions` whose value is the name of the package that has the `face.toml`:

    [project.entry-points."workbench.extensions"]
    my_extension = "my_extension"

Taking a folder away takes away what it adds and whoever imports it (docs/design/packages.md), and nothing else.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from workbench.basics.plugins import is_named, load_named
from workbench.values.errors import ConfigError, nearest

GROUP = "workbench.extensions"
SHIPPED = Path(__file__).resolve().parents[1] / "extensions"
FACE = "face.toml"
# Kind of thing that an extension may add -> what a line of it names.
KINDS: Mapping[str, str] = {
    "public": "a name of `wb`: a function or value",
    "commands": "a command of `workbench`: a function that adds its arguments to the parser",
    "help": "what `workbench --help` says of a command: a line of text",
    "environments": "a kind of environment: its family, a frozen dataclass",
    "tools": "a tool by a short name",
    "call_formats": "a form of tool calls: a function of the tools, and whether a thought is demanded",
    "engines": "a kind of engine: its settings, a frozen dataclass",
    "rules": "rules of the lint: a tuple of `Rule`",
    "views": 'the class that is shown, "module:Class" = the function that makes its view',
    "services": "a function that the core calls for a feature that it does not have itself",
}


@dataclass(frozen=True)
class Face:
    """What one extension adds.

    name     of the extension: its folder, or its entry point
    summary  one line: what it is for
    adds     kind -> name -> "package.module:Name" (of help: a line of text)
    """

    name: str
    summary: str
    adds: Mapping[str, Mapping[str, str]]


@cache
def faces() -> tuple[Face, ...]:
    """The faces of all extensions that are there, shipped ones first, by name. Imports none of them.

    Raises ConfigError for a face that cannot be read, and where two extensions add one name.
    """
    shipped = [read_face(path, path.parent.name) for path in sorted(SHIPPED.glob(f"*/{FACE}"))]
    installed = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    all_faces = (*shipped, *(read_face(_face_of(point), point.name) for point in installed))
    _check_names_differ(all_faces)
    return all_faces


def read_face(path: Path, name: str) -> Face:
    """The face in this file. Raises ConfigError, with the file, for a kind or a value that does not exist."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"extension {name!r}: {path} cannot be read: {error}") from error
    summary = content.pop("summary", None)
    if not isinstance(summary, str) or not summary:
        raise ConfigError(f'{path}: expected summary = "a line" on top, got {summary!r}')
    for kind, table in content.items():
        if kind not in KINDS:
            raise ConfigError(f"{path}: an extension adds no {kind!r}; {nearest(kind, KINDS)}")
        line = "a line" if kind == "help" else "package.module:Name"
        wrong = [] if isinstance(table, dict) else [kind]
        wrong = wrong or [entry for entry, value in table.items() if not _is_right(kind, value)]
        if wrong:
            raise ConfigError(
                f'{path}: [{kind}] holds lines name = "{line}"; {wrong[0]!r} is not such a line'
            )
    return Face(name, summary, content)


def _is_right(kind: str, value: Any) -> bool:
    return isinstance(value, str) and (kind == "help" or is_named(value))


def provided(kind: str) -> dict[str, str]:
    """name -> "package.module:Name" of everything of this kind that extensions add."""
    places: dict[str, str] = {}
    for face in faces():
        places |= face.adds.get(kind, {})
    return places


def service(name: str, needed_for: str) -> Any:
    """The function that an extension provides under this name, imported now.

    `needed_for`: what the caller was asked to do, for the error. Raises ConfigError where no extension provides it.
    """
    places = provided("services")
    if name not in places:
        installed = ", ".join(face.name for face in faces()) or "no extensions"
        raise ConfigError(
            f"{needed_for} needs an extension that provides {name!r}, and none that is installed does; there are "
            f"{installed}"
        )
    return load_named(places[name], f"the extension's {name}")


def has_service(name: str) -> bool:
    """Whether an extension provides it. Imports none."""
    return name in provided("services")


def _face_of(point: EntryPoint) -> Path:
    """Where the face of an installed package lies; the package itself is not imported."""
    spec = find_spec(point.value)
    folders = [] if spec is None else spec.submodule_search_locations or []
    for folder in folders:
        if (path := Path(folder) / FACE).is_file():
            return path
    raise ConfigError(
        f"the entry point {point.name!r} of {GROUP} names {point.value!r}, which is no package with a {FACE}"
    )


def _check_names_differ(all_faces: tuple[Face, ...]) -> None:
    owners: dict[tuple[str, str], str] = {}
    for face in all_faces:
        for kind, table in face.adds.items():
            for name in table:
                first = owners.setdefault((kind, name), face.name)
                if first != face.name:
                    raise ConfigError(
                        f"two extensions add {name!r} to {kind}: {first} and {face.name}; uninstall one of them"
                    )
