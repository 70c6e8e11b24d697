"""What an ablation is: a small TOML file that names arms, what each of them sets, and what is compared.

    title = "What the masks are worth"
    remarks = ["What a reader should know before the numbers."]
    compare = [["no_masks", "full"]]        # pairs: the first minus the second, on the same tasks

    [all]                                   # set for every arm
    "train.steps" = 15

    [analysis]                              # declared before the first run; without it nothing is called higher or lower
    margin = 2                              # points (of returns: the return) below which arms count as equal
    seeds = [0, 1, 2, 3, 4, 5, 6, 7]        # of training
    looks = [5, 8]                          # after how many seeds one looks; left out: at the end
    normal_seeds = false                    # true: the reader accepts that seeds are normal, so that three may decide

    [arms.full]
    label = "PPO, full masks"
    base = "frozenlake-ppo"                 # a preset, or a TOML file beside this one
    start = "untrained"                     # what its policy is called before it is trained
    set = { "algorithm.lam" = 0.95 }
    inert = false                           # true: its settings must be refused for having no effect; reported, not run

    [[expect]]                              # what the table is judged by
    arm = "no_masks"
    below = "full"
    points = 15                             # in every seed at least so many points

Arms differ in what they set and in nothing else; every arm is loaded through `load_config`, so that a switch without
effect is an error and no arm (law 11). An arm at a seed is a job; the job's key is a hash of its whole configuration.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

from workbench.ablation.verdicts import Analysis
from workbench.training.config import Config, load_config, to_dict
from workbench.types.canonical_json import check_name, json_bytes
from workbench.types.errors import ConfigError, nearest
from workbench.types.regular_files import read_toml

ARM_KEYS = {"label": str, "base": str, "start": str, "set": dict, "inert": bool}
PLAN_KEYS = {"title": str, "remarks": list, "compare": list, "all": dict, "arms": dict, "expect": list, "analysis": dict}
ANALYSIS_KEYS = {"margin": (int, float), "seeds": list, "looks": list, "normal_seeds": bool}
SEEDS = (0, 1, 2)  # where nothing is declared
EXPECT_KEYS = {"arm": str, "below": str, "points": (int, float)}


@dataclass(frozen=True)
class Arm:
    """One setting of what is ablated. `start`: what its policy is called before it is trained; arms of one start have
    the same untrained policy in the same environment."""

    name: str
    label: str
    base: str
    start: str = "untrained"
    set: Mapping[str, Any] = field(default_factory=dict)
    inert: bool = False


@dataclass(frozen=True)
class Expectation:
    """In every seed `arm` ends at least `points` below the arm `below`, sampled, on the same tasks."""

    arm: str
    below: str
    points: float

    def __str__(self) -> str:
        return f"{self.arm} ends at least {self.points:g} points below {self.below} in every seed"


@dataclass(frozen=True)
class Plan:
    """A whole ablation. `compare`: pairs of arms, first minus second. `analysis`: how they are judged, its margin in
    points of success; None: they are shown, and not judged."""

    name: str
    title: str
    arms: tuple[Arm, ...]
    remarks: tuple[str, ...] = ()
    compare: tuple[tuple[str, str], ...] = ()
    expect: tuple[Expectation, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    analysis: Analysis | None = None
    all: Mapping[str, Any] = field(default_factory=dict)

    def arm(self, name: str) -> Arm:
        found = next((arm for arm in self.arms if arm.name == name), None)
        if found is None:
            raise ConfigError(f"{self.name} has no arm {name!r}; {nearest(name, [arm.name for arm in self.arms])}")
        return found

    def with_settings(self, settings: Mapping[str, Any]) -> Plan:
        """The same plan with these settings for every arm, on top of those that the file gives to all."""
        return replace(self, all={**self.all, **settings})

    def with_arms(self, names: Sequence[str]) -> Plan:
        """The same plan with some of its arms; what needs one that is left out is not compared and not judged."""
        arms = tuple(self.arm(name) for name in names)
        kept = {arm.name for arm in arms}
        return replace(self, arms=arms, compare=tuple(pair for pair in self.compare if kept >= {*pair}))


@dataclass(frozen=True)
class Job:
    """One arm at one training seed."""

    arm: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.arm}-seed{self.seed}"

    def __str__(self) -> str:
        return f"{self.arm}, seed {self.seed}"


def jobs(plan: Plan, seeds: Sequence[int]) -> list[Job]:
    """What there is to run, seed by seed: when it is cut off, whole seeds are there. Inert arms are not run."""
    return [Job(arm.name, seed) for seed in seeds for arm in plan.arms if not arm.inert]


# ------------------------------------------------------------------------------------------------ reading


def read_plan(path: Path) -> Plan:
    """The plan in a TOML file, named after it. ConfigError for what is missing, unknown or of another type."""
    try:
        tree = read_toml(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read an ablation from {path}: {error}") from error
    _check(tree, PLAN_KEYS, f"{path}", needed=("title", "arms"))
    arms = []
    for name, entry in tree["arms"].items():
        where = f"{path}: arms.{name}"
        _check(entry, ARM_KEYS, where, needed=("label", "base"))
        base = str(Path(path).resolve().parent / entry["base"]) if entry["base"].endswith(".toml") else entry["base"]
        arms.append(Arm(check_name(name), **{**entry, "base": base}))
    plan = Plan(check_name(Path(path).stem), tree["title"], tuple(arms), tuple(tree.get("remarks", ())),
                tuple(_pair(pair, f"{path}: compare") for pair in tree.get("compare", ())),
                tuple(_expectation(entry, f"{path}: expect") for entry in tree.get("expect", ())),
                *_analysis(tree.get("analysis"), f"{path}: analysis"), tree.get("all", {}))
    for name in (*(name for pair in plan.compare for name in pair),
                 *(name for each in plan.expect for name in (each.arm, each.below))):
        if plan.arm(name).inert:
            raise ConfigError(f"{path}: arm {name!r} is inert, so nothing can be compared with it")
    return plan


def _check(tree: Any, known: Mapping[str, Any], where: str, needed: Sequence[str]) -> None:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"{where} holds settings by name, got {tree!r}")
    for key, value in tree.items():
        if key not in known:
            raise ConfigError(f"{where} has no {key!r}; {nearest(key, known)}")
        if not isinstance(value, known[key]):
            raise ConfigError(f"{where}: {key} is of another type than expected, got {value!r}")
    missing = [key for key in needed if not tree.get(key)]
    if missing:
        raise ConfigError(f"{where} needs {', '.join(missing)}")


def _pair(pair: Any, where: str) -> tuple[str, str]:
    if not isinstance(pair, list) or len(pair) != 2 or pair[0] == pair[1]:
        raise ConfigError(f"{where} holds pairs of two arms, got {pair!r}")
    return pair[0], pair[1]


def _analysis(entry: Any, where: str) -> tuple[tuple[int, ...], Analysis | None]:
    """The seeds, and how they will be judged."""
    if entry is None:
        return SEEDS, None
    _check(entry, ANALYSIS_KEYS, where, needed=("margin", "seeds"))
    seeds, looks = entry["seeds"], entry.get("looks", [len(entry["seeds"])])
    if any(type(number) is not int or number < 0 for number in (*seeds, *looks)) or len({*seeds}) != len(seeds):
        raise ConfigError(f"{where}: seeds and looks are whole numbers, each seed once, got {seeds!r} and {looks!r}")
    if looks[-1:] != [len(seeds)]:
        raise ConfigError(f"{where}: the last look is at the end, after {len(seeds)} seeds, got looks = {looks!r}")
    return tuple(seeds), Analysis(float(entry["margin"]), tuple(looks), entry.get("normal_seeds", False))


def _expectation(entry: Any, where: str) -> Expectation:
    _check(entry, EXPECT_KEYS, where, needed=tuple(EXPECT_KEYS))
    return Expectation(**entry)


# ------------------------------------------------------------------------------------------------ configurations


def settings_of(plan: Plan, job: Job) -> dict[str, Any]:
    """What differs from the arm's base, seed apart: dotted keys."""
    return {**plan.all, **plan.arm(job.arm).set}


def config_of(plan: Plan, job: Job) -> Config:
    """The configuration of a job. ConfigError, naming the arm, for settings that are unknown or without effect."""
    try:
        return load_config(plan.arm(job.arm).base, settings_of(plan, job) | {"seed": job.seed})
    except ConfigError as error:
        raise ConfigError(f"arm {job.arm!r} of {plan.name}: {error}") from error


def why_inert(plan: Plan, arm: Arm) -> str:
    """Why an arm that is said to be inert is refused. ConfigError where it is not: then it has to be run."""
    try:
        config_of(plan, Job(arm.name, 0))
    except ConfigError as error:
        return str(error)
    raise ConfigError(f"arm {arm.name!r} of {plan.name} is said to be inert, but its settings act; remove `inert`")


def check(plan: Plan, seeds: Sequence[int]) -> None:
    """Load every arm before the first is run. ConfigError for the first that is wrong."""
    if not seeds or len({*seeds}) != len(seeds):
        raise ConfigError(f"every seed is a run of its own: give each once, got {list(seeds)}")
    for job in jobs(plan, seeds):
        config, said = config_of(plan, job), read_settings(written(settings_of(plan, job)))
        if load_config(plan.arm(job.arm).base, said | {"seed": job.seed}) != config:
            raise ConfigError(f"arm {job.arm!r} of {plan.name} sets what cannot be handed over as KEY=VALUE")
    for arm in plan.arms:
        if arm.inert:
            why_inert(plan, arm)


def key_of(plan: Plan, job: Job) -> str:
    """Stands for the whole configuration of a job: the same in two ablations that share an arm."""
    return blake2b(json_bytes(to_dict(config_of(plan, job)), "a job"), digest_size=6).hexdigest()


def written(settings: Mapping[str, Any]) -> str:
    """Settings as a notebook's parameter takes them: `KEY=VALUE KEY=VALUE`, as on a command line."""
    def text(value: Any) -> str:
        if isinstance(value, bool):
            return str(value).lower()
        return ",".join(map(text, value)) if isinstance(value, (list, tuple)) else str(value)

    pairs = [f"{key}={text(value)}" for key, value in settings.items()]
    spaced = [pair for pair in pairs if len(pair.split()) != 1]
    if spaced:
        raise ConfigError(f"a setting with a blank in it cannot be handed to a notebook: {spaced[0]!r}")
    return " ".join(pairs)


def read_settings(text: str) -> dict[str, str]:
    """The other way round. ConfigError for what is not KEY=VALUE."""
    pairs = [item.partition("=") for item in text.split()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise ConfigError(f"expected KEY=VALUE, separated by blanks, got {key!r}")
    return {key: value for key, _, value in pairs}
