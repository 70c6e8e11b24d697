"""What two environments have in common: objects that can change, generators, clients; and snapshots that are no copies."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.checks.reachable import parts, state_of
from workbench.envs.checks.scripts import Script, parting, said_by
from workbench.types.findings import NOTE, Checked, Finding


def shared_objects(family: EnvFamily, scripts: Sequence[Script]) -> Iterator[Finding | Checked]:
    """Objects that can change and that two fresh environments have in common."""
    one, other = family.make(), family.make()
    yield Checked(2)
    if one is other:
        yield Finding(f"{type(family).__name__}.make() gives the same environment twice")
        return
    for env, script in ((one, scripts[0]), (other, scripts[1])):
        env.reset(script.task, script.seed)
    theirs = parts(other)
    both = {key: found for key, found in parts(one).items() if key in theirs}
    by_design = {
        *parts(family),
        *declared(found for _, found in both.values()),
        *(key for script in scripts[:2] for key in parts(script.task)),
    }
    before = {key: state_of(value) for key, (_, value) in both.items()}
    try:
        for text in scripts[0].texts:
            one.step(text)
    except Exception:  # compared above, with its name; here only what changed is of interest
        pass
    for key, (path, value) in both.items():
        had = f"two fresh environments have {path} in common ({type(value).__name__})"
        if state_of(value) != before[key]:
            yield Finding(f"{had}, and it changes as one is stepped: one attempt acts on the other")
        elif (
            before[key].alive and key not in by_design
        ):  # whether one acts on the other, attempts have to show
            yield Finding(
                f"{had}: something alive (a connection, a generator), whose state cannot be compared",
                severity=NOTE,
            )
        elif key not in by_design and not path.startswith(
            "class "
        ):  # a class is shared; only what changes there is news
            yield Finding(f"{had}; it did not change as one was stepped", severity=NOTE)


def declared(values: Iterable[Any]) -> set[int]:
    """What hangs on objects whose class says `read_only = True`: a search index that all attempts look into. Declared is
    not believed: whatever changes there as an environment is stepped is still found."""
    return {
        key
        for value in values
        if getattr(type(value), "read_only", False) is True
        for key in parts(value)
    }


def snapshots(family: EnvFamily, script: Script) -> Iterator[Finding | Checked]:
    """A snapshot is a value: it does not change with the environment, and nobody is changed by who goes on from it."""
    env = family.make()
    if not (hasattr(env, "snapshot") and hasattr(env, "restore")) or len(script.texts) < 1:
        return
    yield Checked(1)
    env.reset(script.task, script.seed)
    for text in script.texts[: len(script.texts) // 2]:
        env.step(text)
    taken = env.snapshot()
    before = pickle.dumps(taken)
    other = family.make()
    other.restore(taken)
    action = script.texts[len(script.texts) // 2]
    second = said_by(other, other.step(action))
    if pickle.dumps(env.snapshot()) != before:
        yield Finding(
            "stepping an environment that went on from a snapshot changes the one that it was taken of"
        )
        return
    first = said_by(env, env.step(action))
    if pickle.dumps(taken) != before:
        yield Finding(
            "a snapshot changes as its environment is stepped: it holds that one's own lists, not copies"
        )
    elif first != second:
        yield Finding(
            f"an environment that goes on from a snapshot answers otherwise: {parting([first], [second])}"
        )
