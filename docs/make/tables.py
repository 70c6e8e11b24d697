"""The three pages of the reference that ask the package itself: commands, settings, rules of the lint."""

from __future__ import annotations

import argparse
from dataclasses import MISSING

from docs.make.docstrings import as_markdown


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table. A cell may hold anything but line breaks; bars are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines
    )


# ------------------------------------------------------------------------------------------------ commands


def commands_page() -> str:
    """Every command of `workbench` with its arguments, as `--help` says them."""
    from workbench.cli.parser import make_parser

    [choices] = [
        action
        for action in make_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    ]
    words = {action.dest: action.help for action in choices._choices_actions}
    parts = ["# Commands", "`workbench COMMAND --help` prints the same."]
    for name, parser in choices.choices.items():
        parser.complete()
        parts += [
            f"## workbench {name}",
            as_markdown(words.get(name)),
            f"```text\n{_usage(name, parser)}\n```",
        ]
        rows = [
            [_spelled(action), as_markdown(action.help)]
            for action in parser._actions
            if action.dest != "help"
        ]
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
    """Every setting: its key, type, range, default and meaning, as `workbench settings` prints them."""
    from workbench.training.kinds import TABLES
    from workbench.training.listing import settings_parts, shown

    parts = [
        "# Settings",
        "`--set KEY=VALUE` on any command, or a line in a TOML file, changes one. A setting that is "
        "unknown, out of its range, contradictory or without effect is refused when the configuration is loaded. "
        "`workbench settings [KEY]` prints the same.",
    ]
    seen: set[str] = set()
    for part in settings_parts():
        if part.key not in seen:
            parts.append(f"## {part.key}")
            if part.kind:
                parts.append(
                    f"`{part.key}.kind` says which: {', '.join(f'`{kind}`' for kind in TABLES[part.key])}."
                )
            seen.add(part.key)
        if part.kind:
            parts.append(f"### {part.key}.kind = {part.kind}")
        rows = [
            [
                f"`{each.key}`",
                each.type,
                each.range,
                "needed" if each.default is MISSING else f"`{shown(each.default)}`",
                as_markdown(each.meaning),
            ]
            for each in part.settings
        ]
        parts += [
            as_markdown(part.about),
            markdown_table(["key", "type", "range", "default", "meaning"], rows),
        ]
    return "\n\n".join(filter(None, parts)) + "\n"


# ------------------------------------------------------------------------------------------------ rules


def rules_page() -> str:
    """Every rule of the lint: what breaking it means, how to fix it, where it was seen."""
    from workbench.linting import all_rules

    parts = [
        "# Lint rules",
        "What each rule asks, what a finding means for training, and how to fix it. "
        "`guides/lint.md` says how to run them.",
    ]
    for rule in all_rules().values():
        asked = {
            "step": "before the first update of every step",
            "update": "after the updates of a step",
            "start": "once, at the start",
            "run": "over the committed steps of a run",
            "ranks": "after the updates of several processes",
            "sync": "before the first update of every step, where weights were sent or put together for the engine",
        }[rule.when]
        seen = f"Reported in {', '.join(rule.threads)}." if rule.threads else ""
        parts += [
            f"## {rule.id}: {rule.title}",
            f"Asked {asked}. {seen}".strip(),
            f"**What it means.** {as_markdown(rule.means)}",
            f"**How to fix it.** {as_markdown(rule.mend)}",
        ]
    return "\n\n".join(parts) + "\n"
