"""Environments: one for each attempt (R14).

Two attempts that share an environment, a client, a counter or a generator answer each other's actions. Nothing fails:
rewards are only somebody else's. So environments are looked at from inside (which objects that can change do they have
in common?) and from outside (does an attempt go the same way alone and among others?), collecting's own way included.

An environment that is not the same twice, or that talks to something outside, says so: `deterministic = False` or
`remote = True` in its family. Then it is not stepped here at all.
"""
from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from workbench.envs.base import EnvFamily
from workbench.envs.runners import EnvAnswer, EnvRunner, InlineRunner
from workbench.envs.shared import opened, stands_alone
from workbench.linting.evidence import Evidence
from workbench.linting.reachable import parts, state_of
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Observation, StepResult, Task
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.types.seeds import rng_at, seed_of

PLAYED = 4    # attempts that are played alone and among each other
WAIT_S = 0.2  # for a runner's answers, at a time; a runner has its own deadlines


class Script(NamedTuple):
    """An attempt to be played: `texts` are its actions, in order."""

    task: Task
    seed: int
    texts: tuple[str, ...]


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
    yield from _shared(family, scripts) if stands_alone(family) else ()
    alone = [played_alone(family, script) for script in scripts]
    again = [played_alone(family, script) for script in scripts]
    yield Checked(len(scripts))
    if alone != again:
        k = next(k for k, (one, other) in enumerate(zip(alone, again)) if one != other)
        yield Finding(f"the same attempt at task {scripts[k].task.id!r}, played twice in fresh environments, does not "
                      f"go the same way: {_parting(alone[k], again[k])}. Either something is left over from the "
                      "attempt before, or the environment draws chance from somewhere else than dynamics_seed (then "
                      "its family says deterministic = False)")
        return
    runners: dict[str, EnvRunner] = {"one by one": InlineRunner()}
    if evidence.collect is not None:
        runners["by the runner"] = evidence.collect.runner()
    for how, runner in runners.items():
        played = _among_each_other(runner, evidence, scripts)
        for script, expected, found in zip([*scripts, scripts[0]], [*alone, alone[0]], played):
            if expected != found:
                yield Finding(f"an attempt at task {script.task.id!r} goes another way among {len(scripts) - 1} others "
                              f"(stepped {how}, in turns) than alone: {_parting(expected, found)}")
                break
    yield from _snapshots(family, scripts[0]) if stands_alone(family) else ()


def unplayable(family: EnvFamily) -> str | None:
    if not getattr(family, "deterministic", True):
        return f"an environment that is the same twice: {family.name} says that it is not"
    if getattr(family, "remote", False):
        return f"an environment of this process: {family.name} is remote"
    return None


def _scripts(evidence: Evidence) -> list[Script]:
    """Attempts that were made, the longest of each group, two of the first; else such as the random policy makes."""
    own = [[t for t in group if t.task.env == evidence.family.name and t.turns] for group in evidence.groups]
    found = []
    for group in own:
        ordered = sorted(group, key=lambda t: (-len(t.turns), t.attempt))
        found += [Script(t.task, t.dynamics_seed, tuple(turn.text for turn in t.turns))
                  for t in ordered[:1 if found else 2]]
        if len(found) >= PLAYED - 1:
            break
    found, family = found[:PLAYED - 1], evidence.family
    if hasattr(family, "random_action"):  # what nobody made yet: longer than one turn if anything can be
        for number in range(len(found), PLAYED):
            task = family.task(seed_of("lint.isolation", number))
            found.append(_random_script(family, task, seed_of("lint.isolation", number, "dynamics")))
    return found * PLAYED if len(found) == 1 else found


def _random_script(family: EnvFamily, task: Task, seed: int) -> Script:
    texts, rng = [], rng_at("lint.isolation.actions", task.id)
    with opened(family) as env:
        env.reset(task, seed)
        while len(texts) < family.max_turns:
            texts.append(family.random_action(env, rng))
            try:
                result = env.step(texts[-1])
            except Exception:  # the environment's own fault; it has to be the same whenever this is played
                break
            if result.terminated or result.truncated:
                break
    return Script(task, seed, tuple(texts))


def played_alone(family: EnvFamily, script: Script) -> list[Any]:
    """Everything that an environment of its own answers, in order."""
    said: list[Any] = []
    try:
        with opened(family) as env:
            said.append(_said(env, env.reset(script.task, script.seed)))
            for text in script.texts:
                said.append(_said(env, env.step(text)))
    except Exception as error:  # an environment may raise anything; that too has to be the same
        said.append(type(error).__name__)
    return said


def _among_each_other(runner: EnvRunner, evidence: Evidence, scripts: Sequence[Script]) -> list[list[Any]]:
    """The same attempts at once, in turns; the first one once more, when the others are over and closed."""
    # A runner answers every call; one that does not would be waited for until its deadline has long passed.
    patience = 1 if isinstance(runner, InlineRunner) else math.ceil(2 * evidence.collect.env_deadline_s / WAIT_S)
    try:
        keys = [f"{script.task.id}#{k}" for k, script in enumerate(scripts)]  # as collecting names its attempts
        said = _at_once(runner, evidence.family, dict(zip(keys, scripts)), patience)
        late = _at_once(runner, evidence.family, {keys[0]: scripts[0]}, patience)
    finally:
        runner.shutdown()
    return [*(said[key] for key in keys), late[keys[0]]]


def _at_once(runner: EnvRunner, family: EnvFamily, scripts: Mapping[str, Script],
             patience: int) -> dict[str, list[Any]]:
    said: dict[str, list[Any]] = {key: [] for key in scripts}
    for key, script in scripts.items():
        runner.reset(key, family, script.task, script.seed)
    waiting, idle = len(scripts), 0
    while waiting and idle < patience:
        answers = runner.poll(WAIT_S)
        idle = 0 if answers else idle + 1
        for answer in answers:
            waiting -= 1
            mine = said.setdefault(answer.key, [])
            mine.append(_answer(answer))
            texts = scripts[answer.key].texts if answer.key in scripts else ()
            if answer.error is None and len(mine) <= len(texts):
                runner.step(answer.key, texts[len(mine) - 1])
                waiting += 1
            else:
                runner.close(answer.key)
    return said


def _answer(answer: EnvAnswer) -> Any:
    if answer.error is not None:
        return answer.error.partition(":")[0]
    return (_plain(answer.result if answer.result is not None else answer.observation), answer.state_key)


def _said(env: Any, answer: Observation | StepResult) -> Any:
    return (_plain(answer), env.state_key() if hasattr(env, "state_key") else None)


def _plain(answer: Observation | StepResult | Any) -> Any:
    if not isinstance(answer, StepResult):
        return answer
    return (answer.observation, answer.reward, dict(answer.reward_parts), answer.terminated, answer.truncated,
            dict(answer.info))


def _parting(expected: list[Any], found: list[Any]) -> str:
    for k, (one, other) in enumerate(zip(expected, found)):
        if one != other:
            what = "the first observation" if k == 0 else f"the answer to action {k - 1}"
            return f"{what} is {_short(other)} instead of {_short(one)}"
    return f"it has {len(found)} answers instead of {len(expected)}"


def _short(said: Any) -> str:
    """The part of an answer that people look at, cut."""
    if isinstance(said, str):
        return f"an exception ({said})"
    answer, key = said
    if isinstance(answer, Observation):
        words = " ".join(message.text for message in answer.messages)
    else:
        words = f"{' '.join(message.text for message in answer[0].messages)!r}, reward {answer[1]}"
    words = words if len(words) <= 90 else f"... {words[-90:]}"
    return f"{words!r}" + (f" (state {key!r})" if key else "")


# ------------------------------------------------------------------------------------------------ what they share


def _shared(family: EnvFamily, scripts: Sequence[Script]) -> Iterator[RuleResult]:
    """Objects that can change and that two fresh environments have in common."""
    one, other = family.make(), family.make()
    yield Checked(2)
    if one is other:
        yield Finding(f"{type(family).__name__}.make() gives the same environment twice")
        return
    for env, script in ((one, scripts[0]), (other, scripts[1])):
        env.reset(script.task, script.seed)
    both = _common(one, other)
    by_design = {*parts(family), *_declared(found for _, found in both.values()),
                 *(key for script in scripts[:2] for key in parts(script.task))}
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
        elif before[key].alive and key not in by_design:  # whether one acts on the other, attempts have to show
            yield Finding(f"{had}: something alive (a connection, a generator), whose state cannot be compared",
                          severity=NOTE)
        elif key not in by_design and not path.startswith("class "):  # a class is shared; only what changes there is news
            yield Finding(f"{had}; it did not change as one was stepped", severity=NOTE)


def _live(evidence: Evidence) -> Iterator[RuleResult]:
    """The environments of attempts that are running now."""
    live = list((evidence.environments or {}).items())
    if not live or getattr(evidence.family, "serves_many", False):
        return
    yield Checked(len(live))
    by_design = set(parts(evidence.family))
    for _, env in live:
        by_design |= _declared(found for _, found in parts(env, classes=False).values())
        by_design |= set(parts(getattr(env, "task", None)))
    owner: dict[int, tuple[str, str]] = {}
    for name, env in live:
        for key, (path, value) in parts(env, classes=False).items():
            if key in by_design:
                continue
            if key in owner and owner[key][0] != name:
                task, _, attempt = name.rpartition("#")
                yield Finding(f"attempts {owner[key][0]} and {name} share {path or 'their environment'} "
                              f"({type(value).__name__})", Place(f"{task}/{attempt}", step=evidence.step))
                break
            owner[key] = (name, path)


def _declared(values: Iterable[Any]) -> set[int]:
    """What hangs on objects whose class says `read_only = True`: a search index that all attempts look into. Declared is
    not believed: whatever changes there as an environment is stepped is still found."""
    return {key for value in values if getattr(type(value), "read_only", False) is True for key in parts(value)}


def _common(one: Any, other: Any) -> dict[int, tuple[str, Any]]:
    theirs = parts(other)
    return {key: found for key, found in parts(one).items() if key in theirs}


def _snapshots(family: EnvFamily, script: Script) -> Iterator[RuleResult]:
    """A snapshot is a value: it does not change with the environment, and nobody is changed by who goes on from it."""
    env = family.make()
    if not (hasattr(env, "snapshot") and hasattr(env, "restore")) or len(script.texts) < 1:
        return
    yield Checked(1)
    env.reset(script.task, script.seed)
    for text in script.texts[:len(script.texts) // 2]:
        env.step(text)
    taken = env.snapshot()
    before = pickle.dumps(taken)
    other = family.make()
    other.restore(taken)
    action = script.texts[len(script.texts) // 2]
    second = _said(other, other.step(action))
    if pickle.dumps(env.snapshot()) != before:
        yield Finding("stepping an environment that went on from a snapshot changes the one that it was taken of")
        return
    first = _said(env, env.step(action))
    if pickle.dumps(taken) != before:
        yield Finding("a snapshot changes as its environment is stepped: it holds that one's own lists, not copies")
    elif first != second:
        yield Finding(f"an environment that goes on from a snapshot answers otherwise: {_parting([first], [second])}")


RULES: tuple[Rule, ...] = (
    Rule(
        "R14", "every attempt has an environment of its own",
        means="One attempt acts on another: replies and rewards belong to somebody else's actions, and groups compare "
              "attempts that were not the same task any more.",
        mend="Make everything that changes in the environment's __init__ or reset, never in its class, its module or "
             "its family; let the runner call family.make() for every attempt.",
        needs=("family",), check=_isolated, when="start", threads=("OpenEnv#841",),
    ),
)
