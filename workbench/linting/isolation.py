"""Environments: one for each attempt (R14).

Two attempts that share an environment, a client, a counter or a generator answer each other's actions. Nothing fails:
rewards are only somebody else's. So environments are looked at from inside (which objects that can change do they have
in common?) and from outside (does an attempt go the same way alone and among others?), collecting's own way included.

An environment that is not the same twice, or that talks to something outside, says so: `deterministic = False` or
`remote = True` in its family. Then it is not stepped here at all.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.checks.reachable import parts
from workbench.envs.checks.scripts import (
    WAIT_S,
    Script,
    parting,
    played_alone,
    played_at_once,
    unplayable,
)
from workbench.envs.checks.sharing import declared, shared_objects, snapshots
from workbench.envs.runners import EnvRunner, InlineRunner
from workbench.envs.shared import opened, stands_alone
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Task
from workbench.types.findings import Checked, Finding, NotChecked, Place
from workbench.types.seeds import rng_at, seed_of

PLAYED = 4  # attempts that are played alone and among each other


def _isolated(evidence: Evidence) -> Iterator[RuleResult]:
    yield from _live(evidence)
    family = evidence.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    scripts = _scripts(evidence)
    if not scripts:
        yield NotChecked(f"attempts, or a random policy of {family.name} to make some")
        return
    yield from shared_objects(family, scripts) if stands_alone(family) else ()
    alone = [played_alone(family, script) for script in scripts]
    again = [played_alone(family, script) for script in scripts]
    yield Checked(len(scripts))
    if alone != again:
        k = next(k for k, (one, other) in enumerate(zip(alone, again)) if one != other)
        yield Finding(
            f"the same attempt at task {scripts[k].task.id!r}, played twice in fresh environments, does not "
            f"go the same way: {parting(alone[k], again[k])}. Either something is left over from the "
            "attempt before, or the environment draws chance from somewhere else than dynamics_seed (then "
            "its family says deterministic = False)"
        )
        return
    runners: dict[str, EnvRunner] = {"one by one": InlineRunner()}
    if evidence.collect is not None:
        runners["by the runner"] = evidence.collect.runner()
    for how, runner in runners.items():
        played = _among_each_other(runner, evidence, scripts)
        for script, expected, found in zip([*scripts, scripts[0]], [*alone, alone[0]], played):
            if expected != found:
                yield Finding(
                    f"an attempt at task {script.task.id!r} goes another way among {len(scripts) - 1} others "
                    f"(stepped {how}, in turns) than alone: {parting(expected, found)}"
                )
                break
    yield from snapshots(family, scripts[0]) if stands_alone(family) else ()


def _scripts(evidence: Evidence) -> list[Script]:
    """Attempts that were made, the longest of each group, two of the first; else such as the random policy makes."""
    own = [
        [t for t in group if t.task.env == evidence.family.name and t.turns]
        for group in evidence.groups
    ]
    found = []
    for group in own:
        ordered = sorted(group, key=lambda t: (-len(t.turns), t.attempt))
        found += [
            Script(t.task, t.dynamics_seed, tuple(turn.text for turn in t.turns))
            for t in ordered[: 1 if found else 2]
        ]
        if len(found) >= PLAYED - 1:
            break
    found, family = found[: PLAYED - 1], evidence.family
    if hasattr(
        family, "random_action"
    ):  # what nobody made yet: longer than one turn if anything can be
        for number in range(len(found), PLAYED):
            task = family.task(seed_of("lint.isolation", number))
            found.append(
                _random_script(family, task, seed_of("lint.isolation", number, "dynamics"))
            )
    return found * PLAYED if len(found) == 1 else found


def _random_script(family: EnvFamily, task: Task, seed: int) -> Script:
    texts, rng = [], rng_at("lint.isolation.actions", task.id)
    with opened(family) as env:
        env.reset(task, seed)
        while len(texts) < family.max_turns:
            texts.append(family.random_action(env, rng))
            try:
                result = env.step(texts[-1])
            except (
                Exception
            ):  # the environment's own fault; it has to be the same whenever this is played
                break
            if result.terminated or result.truncated:
                break
    return Script(task, seed, tuple(texts))


def _among_each_other(
    runner: EnvRunner, evidence: Evidence, scripts: Sequence[Script]
) -> list[list[Any]]:
    """The same attempts at once, in turns; the first one once more, when the others are over and closed."""
    # A runner answers every call; one that does not would be waited for until its deadline has long passed.
    patience = (
        1
        if isinstance(runner, InlineRunner)
        else math.ceil(2 * evidence.collect.env_deadline_s / WAIT_S)
    )
    try:
        keys = [
            f"{script.task.id}#{k}" for k, script in enumerate(scripts)
        ]  # as collecting names its attempts
        said = played_at_once(runner, evidence.family, dict(zip(keys, scripts)), patience)
        late = played_at_once(runner, evidence.family, {keys[0]: scripts[0]}, patience)
    finally:
        runner.shutdown()
    return [*(said[key] for key in keys), late[keys[0]]]


def _live(evidence: Evidence) -> Iterator[RuleResult]:
    """The environments of attempts that are running now."""
    live = list((evidence.environments or {}).items())
    if not live or getattr(evidence.family, "serves_many", False):
        return
    yield Checked(len(live))
    by_design = set(parts(evidence.family))
    for _, env in live:
        by_design |= declared(found for _, found in parts(env, classes=False).values())
        by_design |= set(parts(getattr(env, "task", None)))
    owner: dict[int, tuple[str, str]] = {}
    for name, env in live:
        for key, (path, value) in parts(env, classes=False).items():
            if key in by_design:
                continue
            if key in owner and owner[key][0] != name:
                task, _, attempt = name.rpartition("#")
                yield Finding(
                    f"attempts {owner[key][0]} and {name} share {path or 'their environment'} "
                    f"({type(value).__name__})",
                    Place(f"{task}/{attempt}", step=evidence.step),
                )
                break
            owner[key] = (name, path)


RULES: tuple[Rule, ...] = (
    Rule(
        "R14",
        "every attempt has an environment of its own",
        means="One attempt acts on another: replies and rewards belong to somebody else's actions, and groups compare "
        "attempts that were not the same task any more.",
        mend="Make everything that changes in the environment's __init__ or reset, never in its class, its module or "
        "its family; let the runner call family.make() for every attempt.",
        needs=("family",),
        check=_isolated,
        when="start",
        threads=("OpenEnv#841",),
    ),
)
