"""The three pages of the reference that ask the package itself: commands, settings, rules of the lint."""
from __future__ import annotations

import argparse
import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_type_hints

from docs.make.docstrings import as_markdown


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table. A cell may hold anything but line breaks; bars are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ------------------------------------------------------------------------------------------------ commands


def commands_page() -> str:
    """Every command of `workbench` with its arguments, as `--help` says them."""
    from workbench.cli.parser import make_parser

    [choices] = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    words = {action.dest: action.help for action in choices._choices_actions}
    parts = ["# Commands", "`workbench COMMAND --help` prints the same."]
    for name, parser in choices.choices.items():
        parts += [f"## workbench {name}", as_markdown(words.get(name)), f"```text\n{_usage(name, parser)}\n```"]
        rows = [[_spelled(action), as_markdown(action.help)] for action in parser._actions if action.dest != "help"]
        parts.append(markdown_table(["argument", "meaning"], rows))
    return "\n\n".join(parts) + "\n"


def _usage(name: str, parser: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(prog=f"workbench {name}", width=100)
    formatter.add_usage(parser.usage, parser._actions, parser._mutually_exclusive_groups)
    return formatter.format_help().strip()


def _spelled(action: argparse.Action) -> str:
    name = ", ".join(action.option_strings) or str(action.metavar or action.dest)
    return f"`{name}`"


# ------------------------------------------------------------------------------------------------ settings


def settings_page() -> str:
    """Every setting: its key, type, default and meaning."""
    from workbench.training.config import KINDS, Config

    parts = ["# Settings", "`--set KEY=VALUE` on any command, or a line in a TOML file, changes one. A setting that is "
             "unknown, contradictory or without effect is refused when the configuration is loaded."]
    hints = get_type_hints(Config)
    for part in fields(Config):
        if part.name in KINDS:
            parts.append(f"## {part.name}")
            parts.append(f"`{part.name}.kind` says which: {', '.join(f'`{kind}`' for kind in KINDS[part.name])}.")
            for kind, cls in KINDS[part.name].items():
                parts += [f"### {part.name}.kind = {kind}", as_markdown(cls.__doc__), *_table(part.name, cls)]
        elif is_dataclass(hints[part.name]):
            parts += [f"## {part.name}", as_markdown(hints[part.name].__doc__), *_table(part.name, hints[part.name])]
        else:
            parts += [f"## {part.name}", f"`{part.name}` ({_type(part.type)}), default `{part.default!r}`."]
    return "\n\n".join(filter(None, parts)) + "\n"


def _table(prefix: str, cls: type) -> list[str]:
    rows = [[f"`{key}`", f"`{kind}`", default, as_markdown(meaning)]
            for key, kind, default, meaning in settings(prefix, cls)]
    return [markdown_table(["key", "type", "default", "meaning"], rows)] if rows else []


def settings(prefix: str, cls: type) -> Iterator[tuple[str, str, str, str]]:
    """(key, type, default, meaning) of every field of a configuration class, those of nested classes with them."""
    said = comments(cls)
    hints = get_type_hints(cls)
    for field in fields(cls):
        key = f"{prefix}.{field.name}"
        if is_dataclass(hints[field.name]):
            yield from settings(key, hints[field.name])
            continue
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        yield key, _type(field.type), "" if default is MISSING else f"`{_short(default)}`", said.get(field.name, "")


def comments(cls: type) -> dict[str, str]:
    """{field: the comment behind it}, read from the source of the class and of those it inherits from."""
    found: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        lines = textwrap.dedent(inspect.getsource(base)).splitlines()
        for part in ast.parse("\n".join(lines)).body[0].body:
            if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
                comment = lines[part.end_lineno - 1][part.end_col_offset:].strip()
                if comment.startswith("#"):
                    found[part.target.id] = comment.lstrip("# ")
    return found


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


# ------------------------------------------------------------------------------------------------ rules


def rules_page() -> str:
    """Every rule of the lint: what breaking it means, how to mend it, where it was seen."""
    from workbench.linting import RULES

    parts = ["# Lint rules", "What each rule asks, what a finding means for training, and how to mend it. "
             "`guides/lint.md` says how to run them."]
    for rule in RULES.values():
        asked = {"step": "before the first update of every step", "update": "after the updates of a step",
                 "start": "once, at the start", "run": "over the committed steps of a run"}[rule.when]
        seen = f"Reported in {', '.join(rule.threads)}." if rule.threads else ""
        parts += [f"## {rule.id}: {rule.title}", f"Asked {asked}. {seen}".strip(),
                  f"**What it means.** {as_markdown(rule.means)}", f"**How to mend it.** {as_markdown(rule.mend)}"]
    return "\n\n".join(parts) + "\n"
