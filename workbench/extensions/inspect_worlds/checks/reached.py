"""Branches of the author's own code that no play takes (E35): a rule that is looked up under another name, a condition that is
never true, a part of the reward that is never paid. Of many tasks, by every way to play that is known here. And expressions of it
that rarely do what they look like (E36)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

from workbench.basics.extensions import has_service, service
from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, RuleResult
from workbench.extensions.inspect_worlds.checks.ends import BAD
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Script, Spent, play, replay
from workbench.extensions.scripted_play.tool_calls import tool_scripts
from workbench.values.seeds import rng_at, seed_of

SHARE = 0.3  # of the budget
DRAWN = 200  # tasks, at most
FEWEST = 12  # at least: what comes up seldom has not come up in fewer
FIXED = 4  # constants that are said at as many tasks
TOLD = 4  # branches


def check_reached(given: CheckInput) -> Iterator[RuleResult]:
    """Every branch of the author's code is taken at some task by some play."""
    if (why := given.why_not_played(baselines=True)) is not None:
        yield NotChecked(why)
        return
    if not has_service("untaken_branches"):
        yield NotChecked("the extension own_code, which reads the author's files")
        return
    untaken = service("untaken_branches", "branches of an author's code")
    results = untaken(given.family, _many_plays(given))
    if results is None:
        yield NotChecked("a file of the environment's own with functions that decide something")
        return
    missed, played = results
    if played < FEWEST:
        yield NotChecked(f"{FEWEST} trajectories that could be played in the time for this")
        return
    yield Checked(played, "branches")
    if missed:
        places = [
            f"{branch.path.rpartition('/')[2]}:{branch.line} ({branch.condition})"
            for branch in missed[:TOLD]
        ]
        more = f", and {len(missed) - TOLD} more" if len(missed) > TOLD else ""
        yield Finding(
            f"of the environment's own code {len(missed)} branch{'es' * (len(missed) > 1)} no play takes, in {played} trajectories by "
            f"{', '.join(given.baselines)}, fixed texts and nonsense: {'; '.join(places)}{more}. What it decides does not "
            "happen. Look whether a name is spelled otherwise where it is looked up, or whether the condition can be met",
            severity=NOTE,
        )


def check_pitfalls(given: CheckInput) -> Iterator[RuleResult]:
    """Expressions that rarely do what they look like (E36)."""
    if not has_service("pitfalls"):
        yield NotChecked("the extension own_code, which reads the author's files")
        return
    pitfalls = service("pitfalls", "pitfalls in an author's code")(given.family)
    if pitfalls is None:
        yield NotChecked("a file of the environment's own")
        return
    yield Checked(1)
    for pitfall in pitfalls[:TOLD]:
        place = f"{pitfall.path.rpartition('/')[2]}:{pitfall.line}"
        yield Finding(f"{place}: {pitfall.what}", severity=NOTE)


def _many_plays(given: CheckInput) -> Iterator[float | None]:
    """New tasks by each way to play, a few texts that are fixed, and calls of tools that are made up."""
    family: Any = given.family
    spent = Spent()
    scripts = [*tool_scripts(given), *_fixed_scripts(given)]
    ways = cycle(given.baselines)
    for number, seed in enumerate(given.task_seeds(DRAWN, "reached")):
        if spent.seconds > SHARE * given.budget_s:
            break
        task = family.task(seed)
        rng = rng_at("check-env", "reached", task.id)
        act = getattr(family, f"{next(ways)}_action")
        dynamics = seed_of("check-env", "reached", number)
        yield _scored(play(family, task, dynamics, lambda env, act=act, rng=rng: act(env, rng)))
        if scripts:
            yield _scored(replay(family, scripts.pop(0)))
    for script in scripts:
        if spent.seconds > 2 * SHARE * given.budget_s:
            return
        yield _scored(replay(family, script))


def _scored(played: PlayedTrajectory) -> float | None:
    """Its reward, for which a score afterwards is asked."""
    return played.reward


def _fixed_scripts(given: CheckInput) -> list[Script]:
    scripts: list[Script] = []
    for trajectories in list(given.fixed.values())[:FIXED]:
        scripts += [played.script for played in trajectories[:2]]
    first = scripts[:1]
    return scripts + [script._replace(texts=(text,)) for script in first for text in BAD.values()]
