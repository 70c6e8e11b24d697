"""Environments: one for each trajectory (R14).

Two trajectories that share an environment, a client, a counter or a generator answer each other's actions. Nothing fails:
rewards are only somebody else's. So environments are looked at from inside (which objects that can change do they have
in common?) and from outside (does a trajectory go the same way alone and among others?), collecting's own way included.

An environment that is not the same twice, or that talks to something outside, says so: `deterministic = False` or
`remote = True` in its family. Then it is not stepped here at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

from workbench.basics.findings import Checked, Finding, NotChecked, Place
from workbench.extensions.scripted_play.playing import WAIT_S, Script, play, script_of, unplayable
from workbench.extensions.scripted_play.reachable import parts
from workbench.extensions.scripted_play.sharing import (
    among_others,
    declared,
    first_apart,
    played_alone,
    shared_objects,
    snapshots,
)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Task
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.runners import InlineRunner
from workbench.worlds.shared import stands_alone

PLAYED = 4  # trajectories that are played alone and among each other


def _isolated(evidence: Evidence) -> Iterator[RuleResult]:
    yield from _live(evidence)
    family = evidence.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scripts = _scripts(evidence)
    if not scripts:
        yield NotChecked(f"trajectories, or a random policy of {family.name} to make some")
        return
    yield from shared_objects(family, scripts) if stands_alone(family) else ()
    alone = played_alone(family, scripts)
    yield Checked(len(scripts))
    if (apart := first_apart(alone, played_alone(family, scripts))) is not None:
        number, where = apart
        yield Finding(
            f"the same trajectory of task {scripts[number].task.id!r}, played twice in fresh environments, does not go the "
            f"same way: {where}. Either something is left over from the trajectory before, or the environment draws chance "
            "from somewhere else than dynamics_seed (then its family says deterministic = False)"
        )
        return
    yield from among_others(InlineRunner, family, scripts, alone, " (stepped one by one, in turns)")
    if (collect := evidence.collect) is not None:
        # A runner answers every call; one that does not would be waited for until its deadline has long passed.
        patience = math.ceil(2 * collect.env_deadline_s / WAIT_S)
        how = " (stepped by the runner, in turns)"
        yield from among_others(collect.runner, family, scripts, alone, how, patience)
    yield from snapshots(family, scripts[0]) if stands_alone(family) else ()


def _scripts(evidence: Evidence) -> list[Script]:
    """Trajectories that were made, and such as the random policy makes, where it has one."""
    family = evidence.family
    scripts = list(islice(_recorded_scripts(evidence), PLAYED - 1))
    if hasattr(
        family, "random_action"
    ):  # what nobody made yet: longer than one turn if anything can be
        for number in range(len(scripts), PLAYED):
            task = family.task(seed_of("lint.isolation", number))
            seed = seed_of("lint.isolation", number, "dynamics")
            scripts.append(_random_script(family, task, seed))
    return scripts * PLAYED if len(scripts) == 1 else scripts


def _recorded_scripts(evidence: Evidence) -> Iterator[Script]:
    """The longest trajectory of each group, two of the first."""
    most = 2
    for group in evidence.groups:
        played = [t for t in group if t.task.env == evidence.family.name and t.turns]
        ordered = sorted(played, key=lambda t: (-len(t.turns), t.attempt))
        yield from map(script_of, ordered[:most])
        most = 1 if ordered else most


def _random_script(family: EnvFamily, task: Task, seed: int) -> Script:
    rng = rng_at("lint.isolation.actions", task.id)
    return play(family, task, seed, lambda env: family.random_action(env, rng)).script


def _live(evidence: Evidence) -> Iterator[RuleResult]:
    """The environments of trajectories that are running now."""
    live = list((evidence.environments or {}).items())
    if not live or getattr(evidence.family, "serves_many", False):
        return
    yield Checked(len(live))
    by_design = set(parts(evidence.family))
    for _, env in live:
        by_design |= declared(reached for _, reached in parts(env, classes=False).values())
        by_design |= set(parts(getattr(env, "task", None)))
    owner: dict[int, tuple[str, str]] = {}
    for name, env in live:
        for key, (path, value) in parts(env, classes=False).items():
            if key in by_design:
                continue
            if key in owner and owner[key][0] != name:
                task, _, attempt = name.rpartition("#")
                yield Finding(
                    f"trajectories {owner[key][0]} and {name} share {path or 'their environment'} "
                    f"({type(value).__name__})",
                    Place(f"{task}/{attempt}", step=evidence.step),
                )
                break
            owner[key] = (name, path)


RULES: tuple[Rule, ...] = (
    Rule(
        "R14",
        "every trajectory has an environment of its own",
        means="One trajectory acts on another: replies and rewards belong to somebody else's actions, and groups compare "
        "trajectories that were not the same task any more.",
        mend="Make everything that changes in the environment's __init__ or reset, never in its class, its module or "
        "its family; let the runner call family.make() for every trajectory.",
        needs=("family",),
        check=_isolated,
        when="start",
        threads=("OpenEnv#841",),
    ),
)
