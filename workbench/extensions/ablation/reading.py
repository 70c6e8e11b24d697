"""From a file to a plan: a small TOML file, or a mapping with the same keys.

title = "What the masks are worth"
remarks = ["What a reader should know before the numbers."]
base = "frozenlake-ppo"                 # of every arm that names none: a preset, or a TOML file beside this one
notebook = "mine.ipynb"                 # the user's own, beside this file; left out: a training run
seeds = 5                               # of training: how many, or which
compare = [["no_masks", "full"]]        # pairs: the first minus the second, on the same tasks
baseline = "full"                       # instead: every other arm minus this one
interactions = [["lr", "k"]]            # pairs of axes of the grid: does one matter more where the other is higher

[all]                                   # set for every arm
"train.steps" = 15

[analysis]                              # declared before the first run; without it nothing is called higher or lower
margin = 2                              # points (of returns: the return) below which arms count as equal
looks = [5, 8]                          # after how many seeds one looks; left out: at the end
normal_seeds = false                    # true: the reader accepts that seeds are normal, so that three may decide

[controls]                              # what the table must come out right about
same = "full"                           # this arm is run again with other seeds: equal arms must not be told apart
planted = 10                            # and its results shifted by so many points must be

[tuning]                                # what every arm tries for itself beforehand (`tuning`)
seeds = 2                               # none that is judged: how many from 100 on, or which
tasks = 64                              # held-out tasks, others than those that are judged
grid = { "learner.lr" = [1e-4, 1e-3] }  # written like [grid]

[starts]                                # from which every arm is trained (`starts`): one axis, like those of a grid
"policy.name" = ["search-tiny", "policies/b"]

[arms.full]
label = "PPO, full masks"
start = "untrained"                     # what its policy is called before it is trained
set = { "algorithm.estimator.lam" = 0.95 }
inert = false                           # true: its settings must be refused for having no effect; reported, not run

[grid]                                  # every arm at every point (`grid`); without [arms] the points are the arms
"learner.lr" = { from = 1e-5, to = 1e-3, steps = 3, scale = "log" }

[[expect]]                              # what the table is judged by
arm = "no_masks"
below = "full"
points = 15                             # in every seed at least so many points
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import check_name
from workbench.basics.regular_files import check_numbers, read_json, read_toml
from workbench.extensions.ablation.contrasts import axes_in, interaction_weights, named_axis
from workbench.extensions.ablation.grid import axes_of, label_of, names_of, points_of
from workbench.extensions.ablation.plan import (
    OTHER_SEEDS,
    SEEDS,
    Arm,
    Controls,
    Expectation,
    Plan,
    Tuning,
)
from workbench.extensions.ablation.verdicts import FEW, Analysis
from workbench.values.errors import ConfigError, nearest

PLAN_SUFFIX = ".plan.json"  # of a mapping that was written down
ARM_KEYS = {"label": str, "base": str, "start": str, "set": dict, "inert": bool}
PLAN_KEYS = {
    "title": str,
    "remarks": list,
    "base": str,
    "notebook": str,
    "seeds": (int, list),
    "compare": list,
    "baseline": str,
    "all": dict,
    "arms": dict,
    "grid": dict,
    "expect": list,
    "analysis": dict,
    "controls": dict,
    "tuning": dict,
    "starts": dict,
    "interactions": list,
}
ANALYSIS_KEYS = {"margin": (int, float), "seeds": list, "looks": list, "normal_seeds": bool}
TUNING_KEYS = {"seeds": (int, list), "tasks": int, "grid": dict, "same_tasks": bool}
MOST_SEEDS = 10_000  # of one list
TUNING_SEEDS = 100  # where seeds of tuning begin; held-out tasks where none are asked for
TUNING_TASKS = 64
CONTROL_KEYS = {"same": str, "planted": (int, float)}
EXPECT_KEYS = {"arm": str, "below": str, "points": (int, float)}


def name_of_plan(path: Path) -> str:
    """What a plan in this file is called."""
    return check_name(
        path.name.removesuffix(PLAN_SUFFIX) if path.name.endswith(PLAN_SUFFIX) else path.stem
    )


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file (or in the JSON that `ablate` wrote of a mapping), named after it. ConfigError for what
    is missing, unknown or of another type."""
    path = Path(path)
    try:
        is_json = path.name.endswith(PLAN_SUFFIX)
        tree = check_numbers(read_json(path)) if is_json else read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read an ablation from {path}: {error}") from error
    return plan_of(tree, name_of_plan(path), path.resolve().parent, f"{path}")


def plan_of(tree: Mapping[str, Any], name: str, folder: Path, where: str) -> Plan:
    """The same of what stands in it. `folder`: where the files lie that it names; `where`: how errors call it."""
    _check(tree, PLAN_KEYS, where, needed=("title",))
    if not tree.get("arms") and not tree.get("grid"):
        raise ConfigError(f"{where} needs arms: [arms.NAME] for each, or a [grid] of settings")
    if "\0" in tree.get("notebook", ""):
        raise ConfigError(
            f"{where}: notebook: expected the name of a file, got {tree['notebook']!r:.80}"
        )
    notebook = str(folder / tree["notebook"]) if tree.get("notebook") else ""
    written = _arms(tree, folder, where, needs_base=not notebook)
    points = points_of(axes_of(tree["grid"], f"{where}: grid")) if "grid" in tree else []
    needs_base = not (notebook or written)
    nameless = _arm("", {}, tree.get("base", ""), folder, where, needs_base)
    arms = _on_grid(written, points, nameless)
    controls, arms = _controls(tree.get("controls"), arms, f"{where}: controls", "analysis" in tree)
    starts = _starts(tree, arms, f"{where}: starts")
    seeds, analysis = _analysis(tree.get("analysis"), tree.get("seeds"), len(starts), where)
    tuning = None
    if "tuning" in tree:
        tuning = _tuning(tree["tuning"], bool(notebook), f"{where}: tuning")
    plan = Plan(
        check_name(name),
        tree["title"],
        tuple(arms),
        tuple(tree.get("remarks", ())),
        seeds=seeds,
        analysis=analysis,
        all=tree.get("all", {}),
        notebook=notebook,
        controls=controls,
        starts=starts,
        tuning=tuning,
    )
    by_hand = {arm.name for arm in written}
    compare = _pairs(tree, plan, by_hand, names_of(points) if written else [], where)
    interactions = _interactions(tree.get("interactions", ()), plan, f"{where}: interactions")
    expect = [_expectation(entry, f"{where}: expect") for entry in tree.get("expect", ())]
    plan = replace(plan, compare=compare, interactions=interactions, expect=tuple(expect))
    _check_none_inert(plan, where)
    return plan


def _check_none_inert(plan: Plan, where: str) -> None:
    """ConfigError where an arm that does not run is needed."""
    needed = [*chain.from_iterable(plan.compare)]
    if plan.controls:
        needed.append(plan.controls.same)
    for expectation in plan.expect:
        needed += [expectation.arm, expectation.below]
    for name in needed:
        if plan.arm(name).inert:
            raise ConfigError(f"{where}: arm {name!r} is inert, so nothing can be compared with it")


def _check(tree: Any, known: Mapping[str, Any], where: str, needed: Sequence[str]) -> None:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where} holds settings by name, got {tree!r}")
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"{where} has no {key!r}; {nearest(key, known)}")
        if not isinstance(value, known[key]) or isinstance(value, bool) and known[key] is not bool:
            raise ConfigError(f"{where}: {key} is of another type than expected, got {value!r}")
    missing = [key for key in needed if not tree.get(key)]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}")


# ------------------------------------------------------------------------------------------------ arms


def _arms(tree: Mapping[str, Any], folder: Path, where: str, needs_base: bool) -> list[Arm]:
    """Those that were written by hand."""
    arms = []
    for name, entry in tree.get("arms", {}).items():
        base = tree.get("base", "")
        arms.append(
            _arm(check_name(name), entry, base, folder, f"{where}: arms.{name}", needs_base)
        )
    return arms


def _arm(name: str, entry: Any, base: str, folder: Path, where: str, needs_base: bool) -> Arm:
    _check(entry, ARM_KEYS, where, needed=())
    base = entry.get("base") or base
    if needs_base and not base:
        raise ConfigError(f"{where} needs base")
    if base.endswith(".toml"):
        base = str(folder / base)
    return Arm(name, **{"label": name, **entry, "base": base})


def _on_grid(
    written: Sequence[Arm], points: Sequence[Mapping[str, Any]], nameless: Arm
) -> list[Arm]:
    """Every arm at every point; the points alone where no arm was written by hand."""
    if not points:
        return [*written]
    arms = []
    for arm in written or [nameless]:
        for name, point in zip(names_of(points), points):
            set_twice = [key for key in point if key in arm.set]
            if set_twice:
                raise ConfigError(
                    f"arm {arm.name!r} sets {set_twice[0]}, which varies in the grid; leave it out of one of them"
                )
            full_name = "_".join(filter(None, (arm.name, name)))
            label = ", ".join(filter(None, (arm.label, label_of(point))))
            settings = {**arm.set, **point}
            arms.append(
                replace(arm, name=check_name(full_name), label=label, set=settings, at=dict(point))
            )
    return arms


def _starts(
    tree: Mapping[str, Any], arms: Sequence[Arm], where: str
) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """The starts with a name each; none where the plan names none."""
    if "starts" not in tree:
        return ()
    axes = axes_of(tree["starts"], where)
    settings = [*chain.from_iterable(axis.settings for axis in axes)]
    if len(axes) != 1:
        raise ConfigError(
            f"{where} is one axis, got {', '.join(settings)}; link what "
            "varies together ([[starts.linked]])"
        )
    for arm in (*arms, Arm("all", "[all]", set=tree.get("all", {}))):
        for key in arm.set:
            if key in settings:
                raise ConfigError(
                    f"{where}: {arm.name} sets {key}, which every start sets; leave it out of one of them"
                )
    points = points_of(axes)
    return tuple(zip(map(check_name, names_of(points)), points))


def _controls(
    entry: Any, arms: list[Arm], where: str, judged: bool
) -> tuple[Controls | None, list[Arm]]:
    """The controls, and the arms with the one that is run again."""
    if entry is None:
        return None, arms
    _check(entry, CONTROL_KEYS, where, needed=("same",))
    if not judged:
        raise ConfigError(
            f"{where} are judged as the other differences are; declare how in [analysis]"
        )
    by_name = {arm.name: arm for arm in arms}
    if entry["same"] not in by_name:
        raise ConfigError(
            f"{where}: there is no arm {entry['same']!r}; {nearest(entry['same'], [*by_name])}"
        )
    same = by_name[entry["same"]]
    if entry.get("planted") == 0:
        raise ConfigError(f"{where}: planted is a difference that is to be found, so not 0")
    name = f"{same.name}-again"
    if name in by_name:
        raise ConfigError(f"{where}: an arm is called {name!r} already, as the control would be")
    label = f"{same.label}, other seeds"
    again = replace(same, name=name, label=label, seeds_from=OTHER_SEEDS, at={})
    return Controls(same.name, name, entry.get("planted")), [*arms, again]


def _pairs(
    tree: Mapping[str, Any], plan: Plan, by_hand: set[str], points: Sequence[str], where: str
) -> tuple[tuple[str, str], ...]:
    """What is compared. Pairs of arms that a grid spreads out stand for the pair at each of its points."""
    pairs = [_pair(pair, f"{where}: compare") for pair in tree.get("compare", ())]
    baseline = tree.get("baseline")
    if baseline is not None:
        if pairs:
            raise ConfigError(
                f"{where}: baseline compares every other arm with one; leave out it, or compare"
            )
        pairs = _against_baseline(baseline, tree, plan, by_hand, points)
    spread_out = []
    as_written = []
    for first, second in pairs:
        if points and {first, second} <= by_hand:
            spread_out += [(f"{first}_{point}", f"{second}_{point}") for point in points]
        else:
            as_written.append((first, second))
    compared = (*spread_out, *as_written)
    for name in chain.from_iterable(compared):
        plan.arm(name)
    return compared


def _against_baseline(
    baseline: str,
    tree: Mapping[str, Any],
    plan: Plan,
    by_hand: set[str],
    points: Sequence[str],
) -> list[tuple[str, str]]:
    """Every other arm and this one."""
    if points and baseline in by_hand:
        names = [*tree["arms"]]
    else:
        names = [arm.name for arm in plan.arms if not arm.inert and not arm.seeds_from]
    if baseline not in names:
        plan.arm(baseline)
    return [(name, baseline) for name in names if name != baseline]


def _interactions(pairs: Sequence[Any], plan: Plan, where: str) -> tuple[tuple[str, str], ...]:
    """Pairs of axes by their full names."""
    places = {arm.name: arm.at for arm in plan.arms if arm.at}
    named = []
    for pair in pairs:
        a, b = _pair(pair, where, "axes of the grid")
        try:
            interaction_weights(places, a, b)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from error
        axes = axes_in(places)
        named.append((named_axis(a, axes), named_axis(b, axes)))
    return tuple(named)


def _pair(pair: Any, where: str, what: str = "arms") -> tuple[str, str]:
    is_pair = isinstance(pair, (list, tuple)) and len(pair) == 2
    if not is_pair or pair[0] == pair[1] or not all(isinstance(name, str) for name in pair):
        raise ConfigError(f"{where} holds pairs of two {what}, got {pair!r}")
    return pair[0], pair[1]


# ------------------------------------------------------------------------------------------------ how it is judged


def _analysis(
    entry: Any, seeds: Any, starts: int, where: str
) -> tuple[tuple[int, ...], Analysis | None]:
    """The seeds, and how they will be judged; looks are at starts where those are repeated."""
    given = _seeds(seeds, f"{where}: seeds") if seeds is not None else None
    if entry is None:
        return given or SEEDS, None
    where = f"{where}: analysis"
    _check(entry, ANALYSIS_KEYS, where, needed=("margin",) if given else ("margin", "seeds"))
    if given and "seeds" in entry:
        raise ConfigError(
            f"{where}: seeds are given at the top of the plan already; leave them out of one place"
        )
    given = given or _seeds(entry["seeds"], where)
    rows, what = (starts, "starts") if starts >= FEW else (len(given), "seeds")
    looks = entry.get("looks", [rows])
    if any(type(number) is not int or number < 0 for number in looks):
        raise ConfigError(f"{where}: looks are whole numbers of {what}, got {looks!r}")
    if looks[-1:] != [rows]:
        raise ConfigError(
            f"{where}: the last look is at the end, after {rows} {what}, got looks = {looks!r}"
        )
    return given, Analysis(float(entry["margin"]), tuple(looks), entry.get("normal_seeds", False))


def _tuning(entry: Any, own: bool, where: str) -> Tuning:
    """What every arm tries. A notebook of one's own draws its tasks itself."""
    _check(entry, TUNING_KEYS, where, needed=("grid", "seeds"))
    if own and (given := [key for key in ("tasks", "same_tasks") if key in entry]):
        raise ConfigError(
            f"{where}: {given[0]} is of training runs; a notebook of your own draws its tasks itself, by its "
            "parameter `tuning`"
        )
    points = points_of(axes_of(entry["grid"], f"{where}.grid"))
    if len(points) < 2:
        raise ConfigError(
            f"{where}.grid has one point: expected several to choose from; set it in [all] instead"
        )
    tasks = entry.get("tasks", TUNING_TASKS)
    if tasks < 2:
        raise ConfigError(f"{where}: tasks: expected at least 2 held-out tasks, got {tasks}")
    return Tuning(
        tuple(points),
        _seeds(entry["seeds"], where, TUNING_SEEDS),
        None if own else tasks,
        entry.get("same_tasks", False),
    )


def _seeds(value: Any, where: str, first: int = 0) -> tuple[int, ...]:
    number = value if type(value) is int else len(value)
    if number > MOST_SEEDS:
        raise ConfigError(f"{where}: expected at most {MOST_SEEDS:,} seeds, got {number:,}")
    seeds = [*range(first, first + value)] if type(value) is int else value
    if (
        not seeds
        or any(type(number) is not int or number < 0 for number in seeds)
        or len({*seeds}) != len(seeds)
    ):
        raise ConfigError(
            f"{where}: seeds and looks are whole numbers from 0 on, at least one, each once, got {value!r}"
        )
    return tuple(seeds)


def _expectation(entry: Any, where: str) -> Expectation:
    _check(entry, EXPECT_KEYS, where, needed=tuple(EXPECT_KEYS))
    return Expectation(**entry)
