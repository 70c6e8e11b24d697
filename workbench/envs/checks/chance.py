"""Chance: what may differ between two attempts at a task, what may not, and whether one acts on the other (E3 to E5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from workbench.envs.checks.dice import Draw, draws_of
from workbench.envs.checks.given import CheckInput
from workbench.envs.checks.playing import global_dice, play, same, text_of
from workbench.envs.checks.scripts import (
    Script,
    parting,
    played_alone,
    played_at_once,
    said_by,
    unplayable,
)
from workbench.envs.checks.sharing import shared_objects, snapshots
from workbench.envs.runners import InlineRunner
from workbench.envs.shared import opened, stands_alone
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, RuleResult, shortened
from workbench.types.seeds import seed_of

SEEDS = 3  # dynamics seeds under which the draws of one attempt are compared


def check_replays(given: CheckInput) -> Iterator[RuleResult]:
    """The same task begins the same way, whatever the chance; the same chance and actions go the same way."""
    for task in given.tasks[:4]:
        first = [
            play(given.family, task, seed_of("check-env", n), "", lambda env: "", 1).opening
            for n in (0, 1, 0)
        ]
        yield Checked(1)
        if None in first:
            continue
        if not same(first[0], first[2]):
            yield Finding(
                f"task {task.id!r} begins otherwise each time, under the same dynamics_seed: "
                f"{_apart(first[0], first[2])}{_dice_of(given, Script(task, seed_of('check-env', 0), ()))}"
            )
            return
        if not same(first[0], first[1]):
            yield Finding(
                f"the first observation of task {task.id!r} depends on dynamics_seed, so that the attempts of a "
                f"group are not at one task: {_apart(first[0], first[1])}"
            )
            return
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    for script in given.scripts:
        with global_dice(1):
            one = played_alone(given.family, script)
        with global_dice(2):
            other = played_alone(given.family, script)
        yield Checked(1)
        if not same(one, other):
            yield Finding(
                f"the same attempt at task {script.task.id!r}, played twice from the same dynamics_seed, does not go "
                f"the same way: {parting(one, other)}{_dice_of(given, script)}"
            )
            return


def _apart(one: Any, other: Any) -> str:
    return f"{shortened(text_of(one)[-200:], 90)} and {shortened(text_of(other)[-200:], 90)}"


def _dice_of(given: CheckInput, script: Script) -> str:
    """The draws that come otherwise the second time, in words."""
    with global_dice(1):
        one = draws_of(given.family, script)
    with global_dice(2):
        other = draws_of(given.family, script)
    wild = {
        (a.what, a.place): None for a, b in zip(one, other) if a.state != b.state or a.state == 0
    }
    named = [f"{what} in {place}" for what, place in wild][:3]
    return f". It draws from {', '.join(named)}" if named else ""


# ------------------------------------------------------------------------------------------------ whose chance


def check_chance(given: CheckInput) -> Iterator[RuleResult]:
    """What is drawn while playing comes from dynamics_seed: else the attempts of a group throw the same dice."""
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    told: set[str] = set()
    for script in given.scripts[:3]:
        draws = [
            draws_of(given.family, script._replace(seed=seed_of("check-env", "dice", n)))
            for n in range(SEEDS)
        ]
        yield Checked(1)
        for place, what in _shared_places(draws):
            if place not in told:
                told.add(place)
                yield Finding(
                    f"what {place} draws in step() from {what} is the same under {SEEDS} dynamics seeds: all "
                    "attempts of a group share these dice"
                )
    changed = [(each, name) for each in given.attempts for name in each.changed]
    if changed:
        names = sorted({name for _, name in changed})
        yield Finding(
            f"{len({id(each) for each, _ in changed})} of {len(given.attempts)} attempts leave the global generator "
            f"of {' and '.join(names)} in another state: whatever else draws from it is changed, other attempts "
            "among it",
            severity=NOTE,
        )


def _shared_places(draws: list[list[Draw]]) -> Iterator[tuple[str, str]]:
    first: list[dict[str, Draw]] = []
    for each in draws:
        found: dict[str, Draw] = {}
        for draw in each:
            if draw.step >= 0 and draw.state:
                found.setdefault(draw.place, draw)
        first.append(found)
    for place, draw in first[0].items():
        if all(place in found and found[place].state == draw.state for found in first):
            yield place, draw.what


# ------------------------------------------------------------------------------------------------ who acts on whom


def check_isolation(given: CheckInput) -> Iterator[RuleResult]:
    """Attempts go the same way alone, among others, and after others."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scripts = given.scripts
    if not scripts:
        yield NotChecked("an attempt that could be played")
        return
    alone = [played_alone(family, script) for script in scripts]
    if any(not same(one, played_alone(family, script)) for one, script in zip(alone, scripts)):
        yield NotChecked("an attempt that goes the same way twice (E3)")
        return
    runner = InlineRunner()
    try:
        keys = [str(number) for number in range(len(scripts))]
        among = played_at_once(runner, family, dict(zip(keys, scripts)))
    finally:
        runner.shutdown()
    yield Checked(len(scripts))
    for key, script, expected in zip(keys, scripts, alone):
        if not same(expected, among[key]):
            yield Finding(
                f"an attempt at task {script.task.id!r} goes another way among {len(scripts) - 1} others, stepped in "
                f"turns, than alone: {parting(expected, among[key])}"
            )
            break
    if stands_alone(family):
        yield from _inside(given, scripts)
        yield from _used_again(given, scripts, alone)


def _inside(given: CheckInput, scripts: list[Script]) -> Iterator[RuleResult]:
    """Findings of what two environments have in common; that it did not change is nothing to be told here."""
    pair = scripts if len(scripts) > 1 else scripts * 2
    for result in shared_objects(given.family, pair):
        if not isinstance(result, Finding) or result.severity != NOTE:
            yield result
    if max(len(script.texts) for script in scripts) > 1:
        yield from snapshots(given.family, max(scripts, key=lambda script: len(script.texts)))


def _used_again(
    given: CheckInput, scripts: list[Script], alone: list[list[Any]]
) -> Iterator[RuleResult]:
    """An environment that is reset begins anew. Nobody here resets one twice, other programs do."""
    for before, script, expected in zip(scripts, scripts[1:], alone[1:]):
        try:
            with opened(given.family) as env:
                env.reset(before.task, before.seed)
                for text in before.texts:
                    env.step(text)
                said = [said_by(env, env.reset(script.task, script.seed))]
                said += [said_by(env, env.step(text)) for text in script.texts]
        except (
            Exception
        ):  # one that can be reset only once, or that had raised when it was played alone
            continue
        yield Checked(1)
        if not same(said, expected):
            yield Finding(
                f"reset() leaves something of the attempt before: task {script.task.id!r}, in an environment that had "
                f"played {before.task.id!r}, goes otherwise: {parting(expected, said)}"
            )
            return
