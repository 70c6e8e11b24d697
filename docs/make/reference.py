"""The reference: one page a room from docstrings, the public names, the commands, the settings, the lint's rules.

All of it is made when the site is built; nothing is committed. Pages from docstrings need no import of the package. The
three pages that do (commands, settings, rules) say what is missing where the import fails, instead of failing the site.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

from docs.make.docstrings import as_markdown, first_sentence
from docs.make.source import SourceModule, methods, modules, resolve, room_of, signature


def write_reference(root: Path, folder: Path) -> list[Path]:
    """Write all pages of the reference into `folder`; pages that nothing makes any more are removed."""
    from docs.make.tables import commands_page, rules_page, settings_page

    package = root / "workbench"
    pages = {
        "public.md": public_page(package),
        "settings.md": _or_reason(settings_page, "Settings"),
        "commands.md": _or_reason(commands_page, "Commands"),
        "rules.md": _or_reason(rules_page, "Lint rules"),
    }
    rooms = sorted({room_of(name) for name in modules(package)} - {""})
    pages |= {f"rooms/{room}.md": room_page(package, room) for room in rooms}
    pages["rooms/index.md"] = rooms_page(package, rooms)
    (folder / "rooms").mkdir(parents=True, exist_ok=True)
    for old in folder.rglob("*.md"):
        if str(old.relative_to(folder)) not in pages:
            old.unlink()
    for name, text in pages.items():
        if not (folder / name).exists() or (folder / name).read_text(encoding="utf-8") != text:
            (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]


def _or_reason(page: Callable[[], str], title: str) -> str:
    try:
        return page()
    except ImportError as error:
        return f"# {title}\n\nThis page needs the package itself, which could not be imported here: {error}.\n"


# ------------------------------------------------------------------------------------------------ rooms


def rooms_page(package: Path, rooms: list[str]) -> str:
    lines = [f"- [{room}]({room}.md){_about(package, room)}" for room in rooms]
    toc = "\n".join(rooms)
    return (
        f"# Modules, package by package\n\nFrom the docstrings of the package.\n\n{chr(10).join(lines)}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{toc}\n```\n"
    )


def _about(package: Path, room: str) -> str:
    """What a room says of itself; nothing where its folder has no `__init__.py` with a docstring."""
    found = modules(package).get(f"{package.name}.{room}")
    return f": {first_sentence(found.docstring)}" if found is not None and found.docstring else ""


def room_page(package: Path, room: str) -> str:
    """Every module of the room with its public classes and functions."""
    inside = [module for name, module in modules(package).items() if room_of(name) == room]
    parts = [f"# {room}"]
    for module in inside:
        name = module.name.removeprefix(f"{package.name}.")
        heading = [] if name == room else [f"## {name}"]
        parts += [*heading, f":::{{py:module}} {module.name}\n:::", as_markdown(module.docstring)]
        parts += [entry(node) for node in module.public()]
    return "\n\n".join(filter(None, parts)) + "\n"


def entry(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> str:
    """A class or function as the builder's own directive, so that search and index know it."""
    kind = "class" if isinstance(node, ast.ClassDef) else "function"
    body = [as_markdown(ast.get_docstring(node))]
    if isinstance(node, ast.ClassDef):
        body += [
            f"::::{{py:method}} {_method(part)}\n{as_markdown(ast.get_docstring(part))}\n::::"
            for part in methods(node)
        ]
    return f":::::{{py:{kind}}} {signature(node)}\n" + "\n\n".join(filter(None, body)) + "\n:::::"


def _method(node: ast.FunctionDef) -> str:
    if any("property" in ast.unparse(decorator) for decorator in node.decorator_list):
        return node.name
    return re.sub(r"\((?:self|cls)(?:, )?", "(", signature(node), count=1)


# ------------------------------------------------------------------------------------------------ public names


def public_names(init: SourceModule) -> dict[str, str]:
    """`PUBLIC` of the package: name -> "module" or "module:attribute"."""
    for node in init.tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "PUBLIC" and node.value is not None:
            return ast.literal_eval(node.value)
    raise ValueError(
        f"{init.name}/__init__.py: expected a table PUBLIC: dict[str, str] = {{...}}, found none"
    )


def extension_names(package: Path) -> dict[str, str]:
    """Public names that extensions add, from their faces."""
    faces = [
        tomllib.loads(path.read_text())
        for path in sorted((package / "extensions").glob("*/face.toml"))
    ]
    return {name: place for face in faces for name, place in face.get("public", {}).items()}


def public_page(package: Path) -> str:
    """What `import workbench as wb` offers: name, arguments, and what it says of itself first."""
    lines = []
    core = public_names(modules(package)[package.name])
    for name, place in {**core, **extension_names(package)}.items():
        module, _, attribute = place.partition(":")
        page = f"rooms/{room_of(module)}.md"
        if not attribute:
            said = first_sentence(modules(package)[module].docstring)
            lines.append(f"| [`wb.{name}`]({page}) | module | {said} |")
            continue
        found = resolve(package, module, attribute)
        if found is None:
            raise ValueError(
                f"workbench.PUBLIC[{name!r}] = {place!r}: there is no such class or function"
            )
        home, node = found
        arguments = signature(node).replace(node.name, name, 1).replace("|", "\\|")
        said = first_sentence(ast.get_docstring(node))
        lines.append(f"| [`wb.{name}`](rooms/{room_of(home.name)}.md) | `{arguments}` | {said} |")
    return (
        "# Public names\n\n`import workbench as wb` imports nothing else; each name is resolved on first use. The "
        "link leads to the package that the name lives in.\n\n| name | arguments | what it does |\n|---|---|---|\n"
        + "\n".join(lines)
        + "\n"
    )
