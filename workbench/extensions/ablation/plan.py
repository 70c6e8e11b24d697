"""What an ablation is, as values: arms, what each sets, what is compared, by which notebook; and its jobs.

Arms differ in what they set and in nothing else. Those of the package's own notebook are training runs: every one is
loaded through `load_config`, so that a switch without effect is an error and no arm (invariant 11). Those of a notebook of
the user's own set its parameters. An arm at a seed is a job; the job's key is a hash of all that it is made with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import product
from pathlib import Path
from typing import Any

from workbench.basics.canonical_json import json_bytes
from workbench.extensions.ablation.cell import parameters_in, source_hash
from workbench.extensions.ablation.grid import worded
from workbench.extensions.ablation.verdicts import FEW, Analysis
from workbench.training.config import Config, load_config, to_dict
from workbench.values.errors import ConfigError, nearest

SEEDS = (0, 1, 2)  # where nothing is declared
PAGES = Path(__file__).parent / "pages"
ONE_RUN = PAGES / "one_run.ipynb"
REPORT = PAGES / "report.ipynb"
OTHER_SEEDS = 1000  # what is added to the seeds of an arm that is run again
OURS = ("seed", "out")  # parameters of a notebook that are no settings of an arm


@dataclass(frozen=True)
class Arm:
    """One setting of what is ablated.

    name, label: as a plan writes it, and as a table shows it.
    base: a preset, or a file of settings.
    start: what its policy is called before it is trained; arms of one start have the same untrained policy in the
        same environment.
    set: settings, on top of the base.
    inert: its settings must be refused for having no effect; it is not run.
    at: its place in the grid, setting by setting.
    seeds_from: added to every seed (of an arm that is run again, as a control).
    """

    name: str
    label: str
    base: str = ""
    start: str = "untrained"
    set: Mapping[str, Any] = field(default_factory=dict)
    inert: bool = False
    at: Mapping[str, Any] = field(default_factory=dict)
    seeds_from: int = 0

    @property
    def base_name(self) -> str:
        """As a reader knows it: the preset, or the name of the file of settings."""
        return Path(self.base).name if self.base.endswith(".toml") else self.base


@dataclass(frozen=True)
class Expectation:
    """In every seed `arm` ends at least `points` below the arm `below`, sampled, on the same tasks."""

    arm: str
    below: str
    points: float

    def __str__(self) -> str:
        return f"{self.arm} ends at least {self.points:g} points below {self.below} in every seed"


@dataclass(frozen=True)
class Controls:
    """What the table must come out right about: the arm `same` run again with other seeds, as `again`, is not to be
    told from itself; and those results shifted by `planted` points are (None: nothing is planted)."""

    same: str
    again: str
    planted: float | None = None


@dataclass(frozen=True)
class Tuning:
    """What every arm tries for itself before anything is judged.

    points: setting -> value; each is tried at each seed.
    seeds: none of which is judged.
    tasks: held-out tasks (None: a notebook of the user's own takes others by its parameter `tuning`).
    same_tasks: whether they are those that are judged.
    """

    points: tuple[Mapping[str, Any], ...]
    seeds: tuple[int, ...]
    tasks: int | None = None
    same_tasks: bool = False


@dataclass(frozen=True)
class Plan:
    """A whole ablation.

    remarks: what a reader should know before the numbers.
    compare: pairs of arms, first minus second.
    expect: what the table is judged by.
    seeds: of training.
    analysis: how pairs are judged, its margin in points of success; None: they are shown, and not judged.
    all: settings of every arm.
    notebook: the user's own; "": a training run's.
    starts: from which every arm begins at every seed (name, what it sets); none: from what its settings say.
    interactions: pairs of axes, judged beside the pairs of arms.
    """

    name: str
    title: str
    arms: tuple[Arm, ...]
    remarks: tuple[str, ...] = ()
    compare: tuple[tuple[str, str], ...] = ()
    expect: tuple[Expectation, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    analysis: Analysis | None = None
    all: Mapping[str, Any] = field(default_factory=dict)
    notebook: str = ""
    controls: Controls | None = None
    tuning: Tuning | None = None
    starts: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    interactions: tuple[tuple[str, str], ...] = ()

    @property
    def starts_vary(self) -> bool:
        """Whether starts are taken as drawn at random (`starts`), so that they are what is repeated."""
        return len(self.starts) >= FEW

    def arm(self, name: str) -> Arm:
        """ConfigError for an arm that is not there."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        names = [arm.name for arm in self.arms]
        raise ConfigError(f"{self.name} has no arm {name!r}; {nearest(name, names)}")

    def with_settings(self, settings: Mapping[str, Any]) -> Plan:
        """The same plan with these settings for every arm, on top of those that the file gives to all."""
        # A notebook's parameters are values; what a run is set to is text, as on a command line, however it was handed over.
        if self.notebook:
            given = {key: _value(value) for key, value in settings.items()}
        else:
            given = read_settings(written(settings))
        return replace(self, all={**self.all, **given})

    def with_arms(self, names: Sequence[str]) -> Plan:
        """The same plan with some of its arms; what needs one that is left out is not compared and not judged."""
        arms = tuple(self.arm(name) for name in names)
        kept = {arm.name for arm in arms}
        controls = self.controls
        if controls and not kept >= {controls.same, controls.again}:
            controls = None
        has_whole_grid = kept >= {arm.name for arm in self.arms if arm.at}
        return replace(
            self,
            arms=arms,
            interactions=self.interactions if has_whole_grid else (),
            controls=controls,
            compare=tuple(pair for pair in self.compare if kept >= {*pair}),
        )


def _value(text: Any) -> Any:
    """A parameter as it was meant: 3, 0.5 and true are values, all else is text."""
    try:
        return json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return text


@dataclass(frozen=True)
class Job:
    """One arm at one training seed, from one start where the plan names several."""

    arm: str
    seed: int
    start: str = ""

    @property
    def name(self) -> str:
        start = f"-{self.start}" if self.start else ""
        return f"{self.arm}{start}-seed{self.seed}"

    def __str__(self) -> str:
        start = f" from {self.start}" if self.start else ""
        return f"{self.arm}{start}, seed {self.seed}"


def jobs(plan: Plan, seeds: Sequence[int]) -> list[Job]:
    """What there is to run, seed by seed (start by start where those are repeated): when it is cut off, whole ones are
    there. Inert arms are not run."""
    names = [name for name, _ in plan.starts] or [""]
    arms = [arm.name for arm in plan.arms if not arm.inert]
    if plan.starts_vary:
        places = [(seed, name) for name, seed in product(names, seeds)]
    else:
        places = [*product(seeds, names)]
    return [Job(arm, seed, name) for (seed, name), arm in product(places, arms)]


# ------------------------------------------------------------------------------------------------ configurations


def settings_of(plan: Plan, job: Job) -> dict[str, Any]:
    """What differs from the arm's base, seed apart: dotted keys, or a notebook's parameters."""
    return {**plan.all, **plan.arm(job.arm).set, **dict(plan.starts).get(job.start, {})}


def seed_of(plan: Plan, job: Job) -> int:
    """What the job really is seeded with."""
    return job.seed + plan.arm(job.arm).seeds_from


def config_of(plan: Plan, job: Job) -> Config:
    """The configuration of a training run. ConfigError, naming the arm, for settings that are unknown or without
    effect."""
    try:
        config = _loaded(plan.arm(job.arm).base, json.dumps(settings_of(plan, job)))
    except ConfigError as error:
        raise ConfigError(f"arm {job.arm!r} of {plan.name}: {error}") from error
    return replace(config, seed=seed_of(plan, job))


# A load takes milliseconds, and a grid asks for the same arm at every seed, several times.
@lru_cache(maxsize=4096)
def _loaded(base: str, settings: str) -> Config:
    return load_config(base, json.loads(settings))


def why_inert(plan: Plan, arm: Arm) -> str:
    """Why an arm that is said to be inert is refused. ConfigError where it is not: then it has to be run."""
    try:
        config_of(plan, Job(arm.name, 0))
    except ConfigError as error:
        return str(error)
    raise ConfigError(
        f"arm {arm.name!r} of {plan.name} is said to be inert, but its settings act; remove `inert`"
    )


def check(plan: Plan, seeds: Sequence[int]) -> None:
    """Look at every arm before the first is run. ConfigError for the first that is wrong."""
    if not seeds or len({*seeds}) != len(seeds):
        raise ConfigError(f"every seed is a run of its own: give each once, got {list(seeds)}")
    if plan.controls:
        again = {seed + plan.arm(plan.controls.again).seeds_from for seed in seeds}
        shared = again & {*seeds}
        if shared:
            raise ConfigError(
                f"the control runs {plan.controls.same!r} again with other seeds, and {min(shared)} would be one "
                f"of both; take seeds below {OTHER_SEEDS}"
            )
    for job in jobs(plan, seeds[:1]):
        if plan.notebook:
            _check_parameters(plan, job)
        else:
            _check_handed_over(plan, job)
    for arm in plan.arms:
        if arm.inert:
            why_inert(plan, arm)


def _check_handed_over(plan: Plan, job: Job) -> None:
    """A training run's settings reach it as text, and are the same there."""
    config = config_of(plan, job)
    settings = read_settings(written(settings_of(plan, job)))
    settings["seed"] = seed_of(plan, job)
    if load_config(plan.arm(job.arm).base, settings) != config:
        raise ConfigError(
            f"arm {job.arm!r} of {plan.name} sets what cannot be handed over as KEY=VALUE"
        )


def _check_parameters(plan: Plan, job: Job) -> None:
    """An own notebook takes what its arms set, and a seed."""
    known = parameters_in(Path(plan.notebook))
    name = Path(plan.notebook).name
    if "seed" not in known:
        raise ConfigError(
            f"{name} has no parameter `seed`, so that its runs could not differ; the cell tagged `parameters` "
            "says `seed: int = 0  # of everything that is drawn`"
        )
    for key in parameters_of(plan, job, Path("out")):
        if key not in known or key in OURS and key in settings_of(plan, job):
            settable = [parameter for parameter in known if parameter not in OURS]
            raise ConfigError(
                f"arm {job.arm!r} of {plan.name}: {name} has no parameter {key!r} that an arm may set; "
                f"{nearest(key, settable)}"
            )


def parameters_of(plan: Plan, job: Job, out: Path) -> dict[str, Any]:
    """What a job's notebook is given; `out`: the folder for what it keeps."""
    settings = settings_of(plan, job)
    arm = plan.arm(job.arm)
    seed = seed_of(plan, job)
    if not plan.notebook:
        return {"base": arm.base, "settings": written(settings), "seed": seed, "out": str(out)}
    parameters = {"base": arm.base} if arm.base else {}
    parameters |= settings
    parameters["seed"] = seed
    if "out" in parameters_in(Path(plan.notebook)):
        parameters["out"] = str(out)
    return parameters


def notebook_of(plan: Plan) -> Path:
    return Path(plan.notebook) if plan.notebook else ONE_RUN


def key_of(plan: Plan, job: Job) -> str:
    """Stands for all that a job is made with: the same in two ablations that share an arm."""
    if plan.notebook:
        parameters = parameters_of(plan, job, Path("out"))
        parameters.pop("out", None)
        made = {"notebook": source_hash(Path(plan.notebook)), "parameters": parameters}
    else:
        made = to_dict(config_of(plan, job))
    return blake2b(json_bytes(made, "a job"), digest_size=6).hexdigest()


def written(settings: Mapping[str, Any]) -> str:
    """Settings as a notebook's parameter takes them: `KEY=VALUE KEY=VALUE`, as on a command line."""
    pairs = [f"{key}={_text(value)}" for key, value in settings.items()]
    spaced = [pair for pair in pairs if len(pair.split()) != 1]
    if spaced:
        raise ConfigError(
            f"a setting with a blank in it cannot be handed to a notebook: {spaced[0]!r}"
        )
    return " ".join(pairs)


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(_text, value))
    return str(value) if isinstance(value, float) else worded(value)


def read_settings(text: str) -> dict[str, str]:
    """The other way round. ConfigError for what is not KEY=VALUE."""
    pairs = [item.partition("=") for item in text.split()]
    for key, equals, _ in pairs:
        if not equals or not key:
            raise ConfigError(f"expected KEY=VALUE, separated by blanks, got {key!r}")
    return {key: value for key, _, value in pairs}
