"""Settings of a family that change nothing (E34): another value of each field, and what is drawn, shown, answered and paid then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.ends import stated_limits
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import (
    Spent,
    opening_of,
    play,
    shown_results,
    text_of,
)
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of

TASKS = 6
TURNS = 12  # of a trajectory
FEWEST = 2  # other values, of which none changes anything
# What changes how fast or where something is done, or is there for others.
BESIDE = (
    "name",
    "label",
    "deadline",
    "timeout",
    "workers",
    "cache",
    "verbose",
    "debug",
    "folder",
    "path",
    "seed",
    "bug",
)


def check_settings_do(given: CheckInput) -> Iterator[RuleResult]:
    """A setting that does nothing is taken for one that does."""
    family = given.family
    if (why := given.why_not_played(baselines=True)) is not None:
        yield NotChecked(why)
        return
    own = type(family).__module__.partition(".")[0] != "workbench"
    if not is_dataclass(family) or not own:
        yield NotChecked("a family of your own that is a dataclass, whose fields are its settings")
        return
    plain = _what_comes(given, family)
    spent = Spent()
    for part in fields(family):
        if not part.init or any(word in part.name.lower() for word in BESIDE):
            continue
        tried = 0
        for value in _others(getattr(family, part.name)):
            if spent.seconds > given.budget_s:
                return
            other = _with(given, part.name, value)
            if other is None:
                continue
            tried += 1
            if _what_comes(given, other) != plain:
                tried = 0
                yield from _limit_is_fixed(given, part.name, other)
                break
        yield Checked(1, "settings")
        if tried >= FEWEST:
            yield Finding(
                f"the setting {part.name!r} changes nothing: with {tried} other values ({shortened(', '.join(map(repr, _others(getattr(family, part.name)))), 50)}) the same tasks are "
                f"drawn, shown, answered and paid at {TASKS} tasks by {' and '.join(given.baselines)}. Where it is meant for something that did not come up, it is right; "
                "else use it (a constant may stand in its place), or leave it out",
                severity=NOTE,
            )


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value, not value]
    if isinstance(value, int):
        return [value + 1, value + 3, max(value // 2, 1)]
    if isinstance(value, float):
        return [value / 2 + 0.1, value * 1.5 + 0.05]
    return []


def _with(given: CheckInput, name: str, value: Any) -> Any:
    """The family with another value; None where it does not take it."""
    try:
        other = replace(given.family, **{name: value})
        opening = opening_of(other, other.task(given.seeds[0]), 0)
    except Exception:  # anybody's bounds
        return None
    return other if opening is not None else None


def _what_comes(given: CheckInput, family: Any) -> list[Any]:
    """Tasks, prompts, and what the family's own play says and is answered."""
    came: list[Any] = [family.max_turns]
    for seed in given.seeds[:TASKS]:
        task = family.task(seed)
        came.append(sorted((name, repr(value)) for name, value in task.payload.items()))
        for name in given.baselines:
            rng = rng_at("check-env", "settings", seed, name)
            act = getattr(family, f"{name}_action")
            dynamics = seed_of("check-env", "settings", seed)
            played = play(
                family, task, dynamics, lambda env, act=act, rng=rng: act(env, rng), most=TURNS
            )
            shown = (text_of(played.opening), shown_results(played))
            came.append((shown, played.texts, played.scored, played.error))
        nothing = play(family, task, 0, lambda env: "", most=TURNS)
        came.append(shown_results(nothing))
    return came


def _limit_is_fixed(given: CheckInput, name: str, other: Any) -> Iterator[RuleResult]:
    """Another number of turns, and the prompt states the old one."""
    turns = given.family.max_turns
    if other.max_turns == turns:
        return
    shown = text_of(opening_of(other, other.task(given.seeds[0]), 0))
    stated = {number for number, kind in stated_limits(shown) if kind == "answers"}
    if stated == {turns} and {number for number, _ in stated_limits(given.first_prompt)} == {turns}:
        yield Finding(
            f"with {name} = {getattr(other, name)!r} there are {other.max_turns} turns, and the prompt still states {turns}: the number is written down in it. Make it of the "
            "same setting",
            severity=NOTE,
        )
