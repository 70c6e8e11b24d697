"""Whether trajectories act on each other: played among others, in environments that have something in common (objects that
can change, generators, clients), from snapshots that are no copies.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked
from workbench.extensions.scripted_play.playing import (
    CUT_OFF,
    Script,
    answer_of,
    answers_in,
    before_a_deadline,
    parting,
    played_at_once,
    replay,
    same,
)
from workbench.extensions.scripted_play.reachable import parts, state_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import EnvRunner


def played_alone(family: EnvFamily, scripts: Sequence[Script]) -> list[list[Any]]:
    """The answers of the environment to each script, in one of its own."""
    return [replay(family, script).answers for script in scripts]


def first_apart(
    expected: Sequence[list[Any]], answered: Sequence[list[Any]]
) -> tuple[int, str] | None:
    """The first trajectory that goes another way, by its number, and where they diverge, in words."""
    for number, (one, other) in enumerate(zip(expected, answered)):
        if not same(one, other):
            return number, parting(one, other)
    return None


def among_others(
    make_runner: Callable[[], EnvRunner],
    family: EnvFamily,
    scripts: Sequence[Script],
    alone: Sequence[list[Any]],
    how: str = ", stepped in turns,",
    patience: int = 1,
) -> Iterator[Finding | NotChecked]:
    """Trajectories go the same way at once, stepped in turns by a runner, as they went alone; the first one once more, when
    the others are over and closed."""
    keys = [f"{script.task.id}#{k}" for k, script in enumerate(scripts)]  # as collecting has them
    runner = make_runner()
    try:
        by_key = played_at_once(runner, family, dict(zip(keys, scripts)), patience)
        late = played_at_once(runner, family, {keys[0]: scripts[0]}, patience)
    finally:
        runner.shutdown()
    answered = [*(by_key[key] for key in keys), late[keys[0]]]
    cut = sum(CUT_OFF in answers for answers in answered)
    if cut:
        yield NotChecked(
            f"answers within the deadline of environments, which cut off {cut} of {len(answered)} trajectories",
            f"what comes after that{how}",
        )
    pairs = [before_a_deadline(*pair) for pair in zip([*alone, alone[0]], answered)]
    if (apart := first_apart(*zip(*pairs))) is not None:
        number, where = apart
        yield Finding(
            f"a trajectory of task {scripts[number % len(scripts)].task.id!r} goes another way among {len(scripts) - 1} "
            f"others{how} than alone: {where}"
        )


def shared_objects(family: EnvFamily, scripts: Sequence[Script]) -> Iterator[Finding | Checked]:
    """Objects that can change and that two fresh environments have in common."""
    one = family.make()
    other = family.make()
    yield Checked(2)
    if one is other:
        yield Finding(f"{type(family).__name__}.make() gives the same environment twice")
        return
    stepped = answers_in(one, scripts[0])
    next(stepped)
    next(answers_in(other, scripts[1]))
    theirs = parts(other)
    both = {key: entry for key, entry in parts(one).items() if key in theirs}
    by_design = {*parts(family), *declared(held for _, held in both.values())}
    for script in scripts[:2]:
        by_design.update(parts(script.task))
    before = {key: state_of(value) for key, (_, value) in both.items()}
    with suppress(
        Exception
    ):  # compared elsewhere, with its name; here only what changed is of interest
        for _ in stepped:
            pass
    for key, (path, value) in both.items():
        had = f"two fresh environments have {path} in common ({type(value).__name__})"
        if state_of(value) != before[key]:
            yield Finding(
                f"{had}, and it changes as one is stepped: one trajectory acts on the other"
            )
        elif (
            before[key].alive and key not in by_design
        ):  # whether one acts on the other, trajectories have to show
            yield Finding(
                f"{had}: something alive (a connection, a generator), whose state cannot be compared",
                severity=NOTE,
            )
        elif key not in by_design and not path.startswith(
            "class "
        ):  # a class is shared; only what changes there is news
            yield Finding(f"{had}; it did not change as one was stepped", severity=NOTE)


def declared(values: Iterable[Any]) -> set[int]:
    """The ids of everything that hangs on objects whose class says `read_only = True`: a search index that all trajectories look into. Declared is
    not believed: whatever changes there as an environment is stepped is still found."""
    keys: set[int] = set()
    for value in values:
        if getattr(type(value), "read_only", False) is True:
            keys.update(parts(value))
    return keys


def snapshots(family: EnvFamily, script: Script) -> Iterator[Finding | Checked]:
    """A snapshot is a value: it does not change with the environment, and nobody is changed by who goes on from it."""
    env = family.make()
    if not (hasattr(env, "snapshot") and hasattr(env, "restore")) or len(script.texts) < 1:
        return
    yield Checked(1)
    half = len(script.texts) // 2
    stepped = answers_in(env, script)
    for _ in range(1 + half):
        next(stepped)
    taken = env.snapshot()
    before = pickle.dumps(taken)
    other = family.make()
    other.restore(taken)
    second = answer_of(other, other.step(script.texts[half]))
    if pickle.dumps(env.snapshot()) != before:
        yield Finding(
            "stepping an environment that went on from a snapshot changes the one that it was taken of"
        )
        return
    first = next(stepped)
    if pickle.dumps(taken) != before:
        yield Finding(
            "a snapshot changes as its environment is stepped: it holds that one's own lists, not copies"
        )
        return
    for text in (None, *script.texts[half + 1 :]):
        if text is not None:
            second = answer_of(other, other.step(text))
            first = next(stepped)
        if first != second:
            yield Finding(
                f"an environment that goes on from a snapshot answers otherwise: {parting([first], [second])}"
            )
            return
