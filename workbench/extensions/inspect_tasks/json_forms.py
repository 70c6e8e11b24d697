"""How JSON is read (E30): by its values, or by how it is written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, replay, text_of
from workbench.values.errors import shortened

STATES = 8
FEWEST = 4
JSON_ASKED = re.compile(r"\bJSON\b")
NUMBER_SHOWN = re.compile(r"\"\w+\"\s*:\s*-?\d")


def check_json(given: CheckInput) -> Iterator[RuleResult]:
    """The solver's JSON, with its keys in another order, other spaces, or numbers as numbers, is paid as well."""
    solved = [
        one
        for one in given.solved_once()
        if one.success and JSON_ASKED.search(text_of(one.opening))
    ]
    values = [(one, _loads(one.texts[-1])) for one in solved]
    objects = [(one, value) for one, value in values if isinstance(value, dict) and value][:STATES]
    if len(objects) < FEWEST or given.why_not_played() is not None:
        return
    yield Checked(len(objects), "JSON answers")
    for kind, write in _ways_to_write(text_of(objects[0][0].opening)).items():
        tried = [(one, write(value)) for one, value in objects if write(value) != one.texts[-1]]
        if len(tried) < FEWEST:
            continue
        unpaid = [
            (one, text)
            for one, text in tried
            if not replay(given.family, one.script._replace(texts=(*one.texts[:-1], text))).success
        ]
        if len(unpaid) == len(tried):
            yield _unpaid_object(kind, *unpaid[0], len(tried))
            return


def _ways_to_write(prompt: str) -> dict[str, Callable[[dict], str]]:
    """Words for another way to write an object -> what writes it so."""
    ways = {
        "with its keys in another order": lambda value: json.dumps(dict(reversed(value.items()))),
        "with other spaces": lambda value: json.dumps(value, indent=1),
    }
    if NUMBER_SHOWN.search(prompt):
        ways["with numbers as the prompt's example has them"] = lambda value: json.dumps(
            {name: _as_number(part) for name, part in value.items()}
        )
    return ways


def _unpaid_object(kind: str, one: PlayedTrajectory, text: str, tasks: int) -> Finding:
    return Finding(
        f"the prompt asks for JSON, and the right object {kind} is not paid, at {tasks} of "
        f"{tasks} tasks: {shortened(text, 70)} at {one.task.id!r}, where the solver says "
        f"{shortened(one.texts[-1], 70)}. "
        "Read it (json.loads) and compare values, and numbers with numbers",
        severity=ERROR if "spaces" not in kind else NOTE,
    )


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _as_number(part: Any) -> Any:
    if isinstance(part, str) and re.fullmatch(r"-?\d+(?:\.\d+)?", part):
        return json.loads(part) if not re.match(r"-?0\d", part) else part
    return part
