"""What a policy must find out, told to whoever writes something that cannot be read, or in a field beside the text (E9).

A value of the payload, or the solver's last words, is a secret where no first prompt holds it. It is told where it stands in
what nearly every task shows at one place, each its own, and hardly any other task's. What can change as a trajectory is
played, such as a position, is no secret: it is asked for again after a few turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.basics.findings import Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import (
    EMPTY,
    NONSENSE,
    SEEDLIKE,
    CheckInput,
    inside,
)
from workbench.extensions.scripted_play.playing import PlayedTrajectory, play, text_of
from workbench.values import Observation
from workbench.values.errors import shortened

LEAST_TASKS = 5
TOLD = 0.8  # share of tasks whose own value stands there
MET = 0.25  # share of other tasks' values that stand there by accident
UNREADABLE = {EMPTY: "", "a text that cannot be read": NONSENSE}
TURNS = 2  # that are played before a value is asked for again
SOLUTION = "the solver's last words"
Texts = Mapping[str, str]  # task id -> what was shown


def check_told(given: CheckInput) -> Iterator[RuleResult]:
    """Compare refusals, and names beside texts, with what ordinary play is told."""
    openings = {name: text_of(opening) for name, opening in given.openings.items()}
    secrets = {
        name: values
        for name, values in _values(given).items()
        if len(set(values.values())) >= LEAST_TASKS and not _stand_mostly(openings, values)
    }
    beside = _beside_texts(given)
    yield Checked(len(secrets))
    for name, values in secrets.items():
        if _is_told(beside, values):
            yield _finding(
                given,
                "what stands beside the texts (a name, an id, a schema)",
                name,
                values,
                beside,
            )
            return
    if not secrets:
        return
    ordinary = _ordinary(given)
    for words, text in UNREADABLE.items():
        at_once = _replies_to(given, text, 0)
        later = _replies_to(given, text, TURNS)
        for name, values in secrets.items():
            constant = len(later) < LEAST_TASKS or _is_told(later, values)
            known = name != SOLUTION and _is_told(ordinary, values, often=0.5)
            if constant and _is_told(at_once, values) and not known:
                yield _finding(given, f"the reply to {words}", name, values, at_once)
                return


def _finding(
    given: CheckInput, where: str, name: str, values: Mapping[str, str], texts: Texts
) -> Finding:
    asked = [task_id for task_id in texts if task_id in values]
    own = [task_id for task_id in asked if _stands(texts[task_id], values[task_id])]
    value = values[own[0]]
    at = _pattern(value).search(texts[own[0]]).start()
    near = texts[own[0]][max(at - 30, 0) : at + len(value) + 30]
    called = name if name == SOLUTION else f"{name!r} of the payload"
    return Finding(
        f"{where} tells {called} in {len(own)} of {len(asked)} tasks: {shortened(value)} at {own[0]!r}, in "
        f"{shortened(near, 80)}; expected that it has to be found out, since no first prompt says it and ordinary play is "
        "not told it. Take it out of refusals, error texts and names"
    )


# ------------------------------------------------------------------------------------------------ secrets


def _values(given: CheckInput) -> dict[str, dict[str, str]]:
    """Name -> task -> value, as text."""
    values: dict[str, dict[str, str]] = {}
    for task in given.tasks:
        for path, value in _scalars(dict(task.payload)):
            if value != task.task_seed and path.lower() not in SEEDLIKE and str(value).strip():
                values.setdefault(path, {})[task.id] = str(value).strip()
    for played in given.own.get("solver", ()):
        # Of one turn: it needed no reply.
        words = inside(played.texts[0]) if len(played.texts) == 1 and played.success else ""
        if words and len(words) < 200:
            values.setdefault(SOLUTION, {})[played.task.id] = words
    return values


def _scalars(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _scalars(item, f"{path}.{name}" if path else str(name))
    elif isinstance(value, (list, tuple)) and len(value) == 1:
        yield from _scalars(value[0], path)
    elif isinstance(value, (str, int, float, np.number)) and not isinstance(value, bool):
        yield path, value


def _pattern(value: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])", re.IGNORECASE)


def _stands(text: str, value: str) -> bool:
    return value.lower() in text.lower() and _pattern(value).search(text) is not None


def _is_told(texts: Texts, values: Mapping[str, str], often: float = TOLD) -> bool:
    """Whether tasks' own values stand in their texts, and those of others hardly."""
    asked = [name for name in texts if name in values]
    if len(asked) < LEAST_TASKS:
        return False
    others: list[bool] = []
    for name in asked:
        strangers = {value for value in values.values() if value != values[name]}
        others += [_stands(texts[name], value) for value in strangers]
    return _stand_mostly(texts, values, often) and sum(others) <= MET * len(others)


def _stand_mostly(texts: Texts, values: Mapping[str, str], often: float = TOLD) -> bool:
    """Whether tasks' own values stand in their texts, whatever stands there of others: who is shown five rooms and begins
    in one of them is shown where."""
    asked = [name for name in texts if name in values]
    own = sum(_stands(texts[name], values[name]) for name in asked)
    return bool(asked) and own >= often * len(asked)


# ------------------------------------------------------------------------------------------------ what is shown


def _shown(played: PlayedTrajectory) -> list[Observation]:
    """The replies that a policy reads: not the one that ends a trajectory."""
    replies = [result.observation for result in played.results]
    return replies[:-1] if played.ended else replies


def _ordinary(given: CheckInput) -> Texts:
    """What those are told who play by the rules."""
    texts: dict[str, str] = {}
    for trajectories in given.own.values():
        for played in trajectories:
            replies = "\n".join(map(text_of, _shown(played)))
            texts[played.task.id] = f"{texts.get(played.task.id, '')}\n{replies}"
    return texts


def _replies_to(given: CheckInput, text: str, after: int) -> Texts:
    """The reply to one text in each task, after some turns of the family's own play."""
    family: Any = given.family
    name = next(iter(given.baselines), None)
    texts: dict[str, str] = {}
    if after and name is None or family.max_turns < after + 2:
        return texts
    for task in given.tasks:
        rng = np.random.default_rng(0)
        turns = iter(range(after + 1))

        def act(env: Any, turns: Iterator[int] = turns, rng: Any = rng) -> str:
            return text if next(turns) == after else getattr(family, f"{name}_action")(env, rng)

        played = play(family, task, 0, act, most=after + 1)
        if not played.error and len(played.results) == after + 1 and not played.ended:
            texts[task.id] = text_of(played.results[-1].observation)
    return texts


def _beside_texts(given: CheckInput) -> Texts:
    """Names, ids and schemas of what each task shows, without the texts."""
    texts: dict[str, str] = {}
    for played in given.played:
        known = [played.opening] if played.opening is not None else []
        names = [name for seen in (*known, *_shown(played)) for name in _names(seen)]
        texts[played.task.id] = f"{texts.get(played.task.id, '')} {' '.join(dict.fromkeys(names))}"
    return texts


def _names(observation: Observation) -> Sequence[str]:
    names: list[str] = []
    for message in observation.messages:
        names += [name for name in (message.name, message.tool_call_id) if name]
    return [*names, json.dumps([dict(tool) for tool in observation.tools], default=str)]
