"""A tuning budget for every arm: each tries the same settings for itself, as often as every other, and keeps its best.

    [tuning]                                 # without it the table says that no arm was tuned
    seeds = 2                                # 100, 101; or a list: none of them is judged
    tasks = 64                               # held-out tasks after those that are judged
    [tuning.grid]                            # what is tried, written like a grid of arms
    "learner.lr" = [1e-4, 3e-4, 1e-3]

    OUT/tuned/ARM.json    what an arm chose: sealed before the first of its judged jobs begins

A trial is a job like any other (same states, leases, notebooks), of an arm `ARM-tryN`. The best mean over the seeds is
chosen, of equal ones the first; a trial that failed at some seed is not. The arm that is run again as a control takes
what its twin chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.ablation import work
from workbench.ablation.cell import parameters_in
from workbench.ablation.drive import DONE, JobState, states
from workbench.ablation.facts import facts_of
from workbench.ablation.grid import label_of, short_names
from workbench.ablation.plan import Arm, Job, Plan, check, config_of, jobs, settings_of
from workbench.envs.splits import content_of, tasks
from workbench.run.writer import claim_file, make_folder
from workbench.types.canonical_json import plain, read_sealed_json, sealed_json
from workbench.types.errors import ConfigError, WorkbenchError

KIND, VERSION = "ablation-tuned", 1
TOLD = "tuning"  # parameter of a notebook of the user's own: True where it tries
Facts = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------ what is tried


def trials_of(plan: Plan, only: Sequence[str] | None = None) -> Plan:
    """The plan whose jobs are the trials (of the arms `only`): one arm for each arm and point; nothing is compared."""
    if plan.tuning is None:
        return replace(plan, arms=(), compare=(), expect=(), controls=None, analysis=None, seeds=())
    made = [
        _trial(plan, arm, number)
        for arm in _tuned_arms(plan)
        if only is None or arm.name in only
        for number in range(len(plan.tuning.points))
    ]
    return replace(
        plan,
        arms=tuple(made),
        compare=(),
        expect=(),
        controls=None,
        analysis=None,
        seeds=plan.tuning.seeds,
        tuning=None,
    )


def _tuned_arms(plan: Plan) -> list[Arm]:
    return [arm for arm in plan.arms if not arm.inert and not arm.seeds_from]


def _trial(plan: Plan, arm: Arm, number: int) -> Arm:
    point = plan.tuning.points[number]
    return replace(
        arm,
        name=trial_name(arm.name, number),
        label=f"{arm.label}, tried with {label_of(point)}",
        set={**arm.set, **point, **_other_tasks(plan, arm)},
        at={**arm.at, **point},
    )


def trial_name(arm: str, number: int) -> str:
    return f"{arm}-try{number + 1}"


def _other_tasks(plan: Plan, arm: Arm) -> dict[str, Any]:
    if plan.notebook:
        return {TOLD: True}
    judged = config_of(plan, Job(arm.name, 0)).evaluation
    return {"evaluation.num_tasks": plan.tuning.tasks} | (
        {}
        if plan.tuning.same_tasks
        else {"evaluation.first_task": judged.first_task + judged.num_tasks}
    )


def check_tuning(plan: Plan, seeds: Sequence[int]) -> None:
    """Look at every trial before the first is run. ConfigError for what is wrong, such as a seed or a task that is
    judged as well."""
    if plan.tuning is None:
        return
    judged = {seed + arm.seeds_from for seed in (*seeds, *plan.seeds) for arm in plan.arms}
    if both := sorted(judged & {*plan.tuning.seeds}):
        raise ConfigError(
            f"{plan.name}: tuning: seed {both[0]} is judged, too, so that it would be chosen on what it is "
            "judged by; give others"
        )
    names = {arm.name for arm in plan.arms}
    for arm in _tuned_arms(plan):
        if both := sorted(
            {*settings_of(plan, Job(arm.name, 0))}
            & {*plan.tuning.points[0], *([TOLD] if plan.notebook else [])}
        ):
            raise ConfigError(
                f"{plan.name}: arm {arm.name!r} sets {both[0]}, which its trials set; leave it out of arms, "
                "grid and [all], or out of [tuning.grid]"
            )
        if (name := trial_name(arm.name, 0)) in names:
            raise ConfigError(
                f"{plan.name}: an arm is called {name!r}, as a trial would be; call it otherwise"
            )
    if plan.notebook and TOLD not in parameters_in(Path(plan.notebook)):
        raise ConfigError(
            f"{Path(plan.notebook).name} has no parameter `{TOLD}`, so that a trial could not be told to take "
            f"other tasks; its `parameters` cell says `{TOLD}: bool = False  # True: on other tasks`"
        )
    trials = trials_of(plan)
    check(trials, trials.seeds)
    if not plan.notebook and not plan.tuning.same_tasks:
        _check_disjoint(plan)


def _check_disjoint(plan: Plan) -> None:
    """No task of a trial is judged: by what stands in it, since a family may have too few for both."""
    looked: list[Any] = []
    for arm in _tuned_arms(plan):
        config = config_of(plan, Job(arm.name, 0))
        count, first = config.evaluation.num_tasks, config.evaluation.first_task
        if (config.env, count, first) in looked:
            continue
        looked.append((config.env, count, first))
        drawn = [*map(content_of, tasks(config.env, "held-out", first + count + plan.tuning.tasks))]
        if {*drawn[: first + count]} & {*drawn[first + count :]}:
            raise ConfigError(
                f"{plan.name}: tuning: {config.env.name} has {len({*drawn})} different held-out problems, too "
                f"few for the {count} tasks that are judged and {plan.tuning.tasks} others; ask for fewer, "
                "or accept by name that arms choose on the judged tasks: same_tasks = true"
            )


# ------------------------------------------------------------------------------------------------ what was chosen


def chosen_in(plan: Plan, out: Path) -> dict[str, dict[str, Any]]:
    """Arm -> what it chose, as it was sealed: {"point", "means" (None: failed), "failed", "jobs"}."""
    if plan.tuning is None:
        return {}
    paths = {arm.name: _path(arm.name, out) for arm in _tuned_arms(plan)}
    return {
        name: read_sealed_json(path, kind=KIND, version=VERSION)
        for name, path in paths.items()
        if path.is_file()
    }


def _path(arm: str, out: Path) -> Path:
    return out / "tuned" / f"{arm}.json"


def open_trials(plan: Plan, out: Path) -> Plan:
    """The trials of those arms that have not chosen yet: a choice that was sealed stays."""
    return trials_of(
        plan, [arm.name for arm in _tuned_arms(plan) if arm.name not in chosen_in(plan, out)]
    )


def choose(plan: Plan, out: Path) -> list[str]:
    """Seal the choice of every arm whose trials have all ended; returns the arms that have none yet. WorkbenchError for
    an arm none of whose trials came to its end."""
    if plan.tuning is None:
        return []
    made = chosen_in(plan, out)
    for arm in _tuned_arms(plan):
        if arm.name in made or (choice := _choice(plan, arm.name, out)) is None:
            continue
        if choice["point"] is None:
            raise WorkbenchError(
                f"arm {arm.name!r} of {plan.name}: none of its trials came to its end, so it has nothing to "
                f"be judged with ({next(iter(choice['failed'].values()))}). Mend it, and --retry"
            )
        make_folder(_path(arm.name, out).parent)
        claim_file(
            _path(arm.name, out), sealed_json(choice, kind=KIND, version=VERSION)
        )  # another driver says the same
    return [arm.name for arm in _tuned_arms(plan) if arm.name not in chosen_in(plan, out)]


def _choice(plan: Plan, arm: str, out: Path) -> dict[str, Any] | None:
    """What an arm chooses, by the records of its trials; None while one of them has not ended."""
    trials = trials_of(plan, [arm])
    ends = {job: work.ended(trials, job, out) for job in jobs(trials, trials.seeds)}
    if None in ends.values():
        return None
    means: list[float | None] = []
    for number in range(len(plan.tuning.points)):
        each = [(job, end) for job, end in ends.items() if job.arm == trial_name(arm, number)]
        means.append(
            None
            if any("failed" in end for _, end in each)
            else float(
                np.mean([np.mean(facts_of(trials, job, out, end)["sampled"]) for job, end in each])
            )
        )
    known = [mean for mean in means if mean is not None]
    return plain(
        {
            "arm": arm,
            "point": plan.tuning.points[means.index(max(known))] if known else None,
            "means": means,
            "failed": {job.name: end["failed"] for job, end in ends.items() if "failed" in end},
            "jobs": [work.name_of(trials, job) for job in ends],
        },
        "a choice",
    )


def tuned(plan: Plan, out: Path) -> Plan:
    """The same plan with what every arm chose, as far as it has; other arms as they were."""
    if plan.tuning is None:
        return plan
    points = {name: choice["point"] for name, choice in chosen_in(plan, out).items()}
    if plan.controls and plan.controls.same in points:
        points[plan.controls.again] = points[plan.controls.same]
    told = {TOLD: False} if plan.notebook else {}
    return replace(
        plan,
        arms=tuple(
            replace(arm, set={**arm.set, **points[arm.name], **told}) if arm.name in points else arm
            for arm in plan.arms
        ),
    )


def all_states(plan: Plan, seeds: Sequence[int], out: Path) -> list[JobState]:
    """Of every job: trials first, then those that are judged, which wait until their arm has chosen."""
    return [one for _, found in states_by_part(plan, seeds, out) for one in found]


def states_by_part(
    plan: Plan, seeds: Sequence[int], out: Path
) -> list[tuple[Plan, list[JobState]]]:
    """The same with the plan that the jobs are of: that of the trials, where there are any, and that of what is judged."""
    trials, chosen = (
        trials_of(plan),
        {job for choice in chosen_in(plan, out).values() for job in choice["jobs"]},
    )
    # A trial that was chosen by is over, whatever the code is today.
    tried = [
        replace(one, state=DONE, why="")
        if one.name in chosen and one.facts and not one.has_failed
        else one
        for one in (states(trials, trials.seeds, out) if trials.arms else ())
    ]
    judged = tuned(plan, out)
    return [*([(trials, tried)] if tried else []), (judged, states(judged, seeds, out))]


# ------------------------------------------------------------------------------------------------ what is said of it


def tuning_facts(plan: Plan, out: Path) -> dict[str, Any] | None:
    """For the table, as JSON values: what was tried, and what each arm chose with the means of its trials."""
    if plan.tuning is None:
        return None
    short = short_names([*plan.tuning.points[0]])
    return plain(
        {
            "what": " and ".join(short.values()),
            "points": [label_of(point) for point in plan.tuning.points],
            "seeds": plan.tuning.seeds,
            "tasks": plan.tuning.tasks,
            "same_tasks": plan.tuning.same_tasks,
            "arms": {
                name: {**choice, "chosen": label_of(choice["point"])}
                for name, choice in chosen_in(plan, out).items()
            },
        },
        "a tuning",
    )


def choice_checks(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """Whether every arm was judged with what came out best among its own trials, chosen anew from their records."""
    if plan.tuning is None:
        return []
    made = chosen_in(plan, out)
    wrong = [*_wrong(plan, out, made)]
    lacking = [arm.name for arm in _tuned_arms(plan) if arm.name not in made]
    failed = [
        f"{job}: {words}" for choice in made.values() for job, words in choice["failed"].items()
    ]
    why = "; ".join(
        [
            *wrong,
            *([f"not chosen yet: {', '.join(lacking)}"] if lacking else []),
            *([f"not chosen, since they failed: {'; '.join(failed)}"] if failed else []),
        ]
    )
    return [
        {
            "words": "every arm is judged with the best of its own trials",
            "held": False if wrong else None if lacking else True,
            "why": why,
        }
    ]


def _wrong(plan: Plan, out: Path, made: Mapping[str, Facts]) -> Iterator[str]:
    for arm, choice in made.items():
        again = _choice(plan, arm, out)
        if again is None:
            yield f"{arm}: the record of a trial is gone"
        elif (again["point"], again["means"]) != (choice["point"], choice["means"]):
            yield f"{arm} chose {label_of(choice['point'])}, and its trials now say {again['means']} instead of {choice['means']}"
