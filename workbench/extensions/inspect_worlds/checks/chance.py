"""Chance: what may differ between two trajectories of a task, what may not, and whether one acts on the other (E3 to E5)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.basics.findings import ERROR, NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.dice import Draw, draws_of, draws_of_each
from workbench.extensions.scripted_play.given import CHANCES, SLOW_S, CheckInput
from workbench.extensions.scripted_play.playing import (
    Script,
    Spent,
    answers_in,
    global_dice,
    opening_of,
    parting,
    replay,
    same,
    shown_results,
    text_of,
    unplayable,
)
from workbench.extensions.scripted_play.sharing import (
    among_others,
    first_apart,
    played_alone,
    shared_objects,
    snapshots,
)
from workbench.values.errors import shortened
from workbench.values.seeds import seed_of
from workbench.worlds.runners import InlineRunner
from workbench.worlds.shared import opened, stands_alone

PLAYED = 4  # trajectories of a way to play, before and after which their task is compared
LEAST = 4
REPEATED = 6  # actions that are said again and again
TIMES = 4
SEEDS = 3  # dynamics seeds under which the draws of one trajectory are compared


def check_replays(given: CheckInput) -> Iterator[RuleResult]:
    """The same task begins the same way, whatever the chance; the same chance and actions go the same way."""
    for task in given.tasks[:4]:
        first = [opening_of(given.family, task, seed_of("check-env", n)) for n in (0, 1, 0)]
        yield Checked(1)
        if None in first:
            continue
        if not same(first[0], first[2]):
            yield Finding(
                f"task {task.id!r} begins otherwise each time, under the same dynamics_seed: "
                f"{_both_openings(first[0], first[2])}{_dice_of(given, Script(task, seed_of('check-env', 0), ()))}"
            )
            return
        if not same(first[0], first[1]):
            yield Finding(
                f"the first observation of task {task.id!r} depends on dynamics_seed, so that the trajectories of a "
                f"group are not at one task: {_both_openings(first[0], first[1])}"
            )
            return
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    for script in given.scripts:
        with global_dice(1):
            one = replay(given.family, script).answers
        with global_dice(2):
            other = replay(given.family, script).answers
        yield Checked(1)
        if not same(one, other):
            yield Finding(
                f"the same trajectory of task {script.task.id!r}, played twice from the same dynamics_seed, does not go "
                f"the same way: {parting(one, other)}{_dice_of(given, script)}"
            )
            return


def _both_openings(one: Any, other: Any) -> str:
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
    """What is drawn while playing comes from dynamics_seed: else the trajectories of a group throw the same dice."""
    if (why := unplayable(given.family)) is not None:
        yield NotChecked(why)
        return
    reported: set[str] = set()
    for script in given.scripts[:3]:
        seeds = [seed_of("check-env", "dice", n) for n in range(SEEDS)]
        draws = draws_of_each(given.family, [script._replace(seed=seed) for seed in seeds])
        yield Checked(1)
        for place, what in _shared_places(draws):
            if place not in reported:
                reported.add(place)
                data = _is_of_what_is_asked(given, script, place)
                yield Finding(
                    f"what {place} draws in step() from {what} is the same under {SEEDS} dynamics seeds: all "
                    "trajectories of a group share these dice"
                    + (
                        ". The same action draws the same again: fine for data, not for dice" * data
                    ),
                    severity=NOTE if data else ERROR,
                )
        for place in _same_in_each_step(draws):
            if place not in reported:
                reported.add(place)
                yield Finding(
                    f"what {place} draws in step() is the same draw in every step of a trajectory: the generator is made anew "
                    "from the same seed each time, so chance comes at every step or at none. Make one generator in reset and "
                    "go on with it, or let the turn be part of the seed: rng_at('my_env', dynamics_seed, turn)"
                )
    yield from _same_when_repeated(given, reported)
    yield from _answer_by_chance(given)
    changing = [played for played in given.played if played.changed]
    if changing:
        names = sorted(set().union(*(played.changed for played in changing)))
        yield Finding(
            f"{len(changing)} of {len(given.played)} trajectories leave the global generator "
            f"of {' and '.join(names)} in another state: whatever else draws from it is changed, other trajectories "
            "among it",
            severity=NOTE,
        )


def _shared_places(draws: list[list[Draw]]) -> Iterator[tuple[str, str]]:
    first: list[dict[str, Draw]] = []
    for drawn in draws:
        by_place: dict[str, Draw] = {}
        for draw in drawn:
            if draw.step >= 0 and draw.state:
                by_place.setdefault(draw.place, draw)
        first.append(by_place)
    for place, draw in first[0].items():
        if all(place in by_place and by_place[place].state == draw.state for by_place in first):
            yield place, draw.what


def _is_of_what_is_asked(given: CheckInput, script: Script, place: str) -> bool:
    """Whether what is drawn there belongs to the action that asks for it, as the rows of a data base that is made when it is
    asked for: the same action, said once more, draws the same, and either another action draws something else or every
    task draws it, too. Dice are thrown anew."""
    drawn = _states_by_step(given, script, place)
    if not drawn:
        return False
    first = min(drawn)
    asked = script.texts[: first + 1]
    again = _states_by_step(given, script._replace(texts=(*asked, asked[-1])), place)
    if again.get(first) != again.get(first + 1):
        return False
    if len(set(map(tuple, drawn.values()))) > 1:
        return True
    others = [
        played.script
        for played in given.acted("solver", "random")
        if played.task.id != script.task.id and len(played.texts) > first
    ]
    for other in others[:SEEDS]:
        there = _states_by_step(given, other, place).get(first)
        asked = (*script.texts[:first], other.texts[first])
        here = _states_by_step(given, script._replace(texts=asked), place).get(first)
        if there is not None and there != here:
            return False
    return bool(others)


def _states_by_step(given: CheckInput, script: Script, place: str) -> dict[int, list[int]]:
    """Step -> the states of all draws at a place."""
    states: dict[int, list[int]] = {}
    for draw in draws_of(given.family, script):
        if draw.place == place and draw.step >= 0:
            states.setdefault(draw.step, []).append(draw.state)
    return states


def _same_in_each_step(draws: list[list[Draw]]) -> Iterator[str]:
    """Places that draw from one state in each of three steps or more, which is another one under another seed."""
    by_place: dict[str, list[dict[int, int]]] = {}
    for number, drawn in enumerate(draws):
        for draw in drawn:
            if draw.step >= 0 and draw.state:
                steps = by_place.setdefault(draw.place, [{} for _ in draws])
                steps[number].setdefault(draw.step, draw.state)
    for place, seeds in by_place.items():
        same_all_along = all(len(steps) >= 3 and len(set(steps.values())) == 1 for steps in seeds)
        first = {next(iter(steps.values())) for steps in seeds if steps}
        if same_all_along and len(first) == len(seeds) > 1:
            yield place


def _same_when_repeated(given: CheckInput, reported: set[str]) -> Iterator[RuleResult]:
    """One action again and again: dice that are addressed by what was reached, and not by the attempt, fall the same each time."""
    if given.step_s > SLOW_S:
        return
    spent = Spent()
    for text in given.common_actions(REPEATED):
        if spent.seconds > given.budget_s / 4:
            return
        seeds = [seed_of("check-env", "again", number) for number in range(CHANCES)]
        scripts = [Script(given.tasks[0], seed, (text,) * TIMES) for seed in seeds]
        again: dict[str, list[int]] = {}
        for script, drawn in zip(scripts, draws_of_each(given.family, scripts)):
            for place, state in _drawn_again(given, script, drawn):
                again.setdefault(place, []).append(state)
        yield Checked(1, "one action again and again")
        for place, states in again.items():
            if len(set(states)) >= LEAST and place not in reported:
                reported.add(place)
                yield Finding(
                    f"what {place} draws in step() is the same draw again where {shortened(text, 40)!r} is repeated and answered as "
                    f"before, in {len(states)} steps: who fails there once fails for ever. Where a place has what it has (a "
                    "map that is drawn when it is looked at) that is right; where each attempt has a chance of its own, let the "
                    "turn be part of the seed",
                    severity=NOTE,
                )
                return


def _drawn_again(
    given: CheckInput, script: Script, drawn: Sequence[Draw]
) -> Iterator[tuple[str, int]]:
    """(place, state) of draws that are the same in two steps, one after the other, which are answered alike."""
    by_step: list[dict[str, int]] = [{} for _ in script.texts]
    for draw in drawn:
        if draw.step >= 0 and draw.state:
            by_step[draw.step].setdefault(draw.place, draw.state)
    if not any(by_step):
        return
    shown = shown_results(replay(given.family, script))
    answered = [re.sub(r"\d+", "#", one.text) for one in shown]
    for step in range(1, len(answered)):
        for place, state in by_step[step].items():
            if answered[step] == answered[step - 1] and by_step[step - 1].get(place) == state:
                yield place, state


def _answer_by_chance(given: CheckInput) -> Iterator[RuleResult]:
    """Tasks of one answer, whose right one is drawn after the prompt was made: nobody who reads it can know."""
    solver = [
        played for played in given.own.get("solver", ()) if played.success and not played.error
    ]
    if len(solver) < LEAST or any(len(played.texts) != 1 for played in solver):
        return
    if 10 * len(solver) < 9 * len(given.own["solver"]):
        return
    right = 0
    asked = 0
    for played in solver:
        for number in range(SEEDS):
            seed = seed_of("check-env", "another chance", number)
            other = replay(given.family, played.script._replace(seed=seed))
            asked += 1
            right += other.success is True
    yield Checked(asked, "the answer under other chances")
    if right < 0.6 * asked:
        yield Finding(
            f"the right answer of a task depends on dynamics_seed, and its prompt does not: the solver's words of one "
            f"trajectory succeed at {right} of {asked} others that are shown the same prompt. What is shown has nothing to do "
            "with what is right (options shuffled after they were shown): draw it in task(task_seed), and show what was drawn"
        )


# ------------------------------------------------------------------------------------------------ who acts on whom


def check_isolation(given: CheckInput) -> Iterator[RuleResult]:
    """Trajectories go the same way alone, among others, and after others."""
    family = given.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scripts = given.scripts
    if not scripts:
        yield NotChecked("a trajectory that could be played")
        return
    changed = list(_changes_the_task(given))
    yield from changed
    if any(isinstance(result, Finding) for result in changed):
        return
    alone = played_alone(family, scripts)
    if first_apart(alone, played_alone(family, scripts)) is not None:
        yield NotChecked("a trajectory that goes the same way twice (E3)")
        return
    yield Checked(len(scripts))
    yield from among_others(InlineRunner, family, scripts, alone)
    if stands_alone(family):
        yield from _shared_by_environments(given, scripts)
        yield from _used_again(given, scripts, alone)


def _changes_the_task(given: CheckInput) -> Iterator[RuleResult]:
    """The payload of a task is the same before and after it was played, by each way to play."""
    for trajectories in given.plays.values():
        for played in trajectories[:PLAYED]:
            task = given.family.task(played.task.task_seed)
            before = {name: repr(value) for name, value in task.payload.items()}
            replay(given.family, played.script._replace(task=task))
            yield Checked(1)
            after = {name: repr(value) for name, value in task.payload.items()}
            fields = sorted(
                name for name in {*before, *after} if before.get(name) != after.get(name)
            )
            if fields:
                name = fields[0]
                yield Finding(
                    f"playing changes the task itself: the payload's {name!r} of {task.id!r} is "
                    f"{shortened(after.get(name, 'missing'), 60)} after a trajectory of {played.policy}, and was "
                    f"{shortened(before.get(name, 'missing'), 60)}; other attempts at this task are shared what it changed. "
                    "Copy it in reset (dict(...), list(...), copy.deepcopy), and change the copy"
                )
                return


def _shared_by_environments(given: CheckInput, scripts: list[Script]) -> Iterator[RuleResult]:
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
                for _ in answers_in(env, before):
                    pass
                answered = list(answers_in(env, script))
        except Exception:  # it can be reset only once, or had raised when it was played alone
            continue
        yield Checked(1)
        if not same(answered, expected):
            yield Finding(
                f"reset() leaves something of the trajectory before: task {script.task.id!r}, in an environment that had "
                f"played {before.task.id!r}, goes otherwise: {parting(expected, answered)}"
            )
            return
