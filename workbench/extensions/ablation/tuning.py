"""A tuning budget for every arm: each tries the same settings for itself, as often as every other, and keeps its best.

    [tuning]                                 # without it the table says that no arm was tuned
    seeds = 2                                # 100, 101; or a list: none of them is judged
    tasks = 64                               # held-out tasks after those that are judged
    [tuning.grid]                            # what is tried, written like a grid of arms
    "learner.lr" = [1e-4, 3e-4, 1e-3]

    OUT/tuned/ARM.json    what an arm chose: sealed before the first of its judged jobs begins

A trial is a job like any other (same states, locks, notebooks), of an arm `ARM-tryN`. The best mean over the seeds is
chosen, of equal ones the first; a trial that failed at some seed is not. The arm that is run again as a control takes
what its counterpart chose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from workbench.basics.canonical_json import plain, read_sealed_json, sealed_json
from workbench.extensions.ablation import work
from workbench.extensions.ablation.cell import parameters_in
from workbench.extensions.ablation.drive import DONE, JobState, states
from workbench.extensions.ablation.facts import facts_of
from workbench.extensions.ablation.grid import label_of, short_names
from workbench.extensions.ablation.plan import Arm, Job, Plan, check, config_of, jobs, settings_of
from workbench.run.writer import claim_file, make_folder
from workbench.values.errors import ConfigError, WorkbenchError
from workbench.worlds.splits import content_of, tasks

KIND = "ablation-tuned"
VERSION = 1
IS_TRIAL = "tuning"  # parameter of a notebook of the user's own: True where it tries
Facts = Mapping[str, Any]


# ------------------------------------------------------------------------------------------------ what is tried


def trials_of(plan: Plan, only: Sequence[str] | None = None) -> Plan:
    """The plan whose jobs are the trials (of the arms `only`): one arm for each arm and point; nothing is compared."""
    trials = []
    for arm in _tuned_arms(plan) if plan.tuning else ():
        if only is None or arm.name in only:
            trials += [_trial(plan, arm, number) for number in range(len(plan.tuning.points))]
    return replace(
        plan,
        arms=tuple(trials),
        compare=(),
        expect=(),
        controls=None,
        analysis=None,
        seeds=plan.tuning.seeds if plan.tuning else (),
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
    """Settings by which a trial takes other tasks than those that are judged."""
    if plan.notebook:
        return {IS_TRIAL: True}
    settings = {"evaluation.num_tasks": plan.tuning.tasks}
    if not plan.tuning.same_tasks:
        judged = config_of(plan, Job(arm.name, 0)).evaluation
        settings["evaluation.first_task"] = judged.first_task + judged.num_tasks
    return settings


def check_tuning(plan: Plan, seeds: Sequence[int]) -> None:
    """Look at every trial before the first is run. ConfigError for what is wrong, such as a seed or a task that is
    judged as well."""
    if plan.tuning is None:
        return
    judged = {seed + arm.seeds_from for seed in (*seeds, *plan.seeds) for arm in plan.arms}
    shared_seeds = judged & {*plan.tuning.seeds}
    if shared_seeds:
        raise ConfigError(
            f"{plan.name}: tuning: seed {min(shared_seeds)} is judged, too, so that it would be chosen on what it is "
            "judged by; give others"
        )
    _check_arms(plan)
    if plan.notebook and IS_TRIAL not in parameters_in(Path(plan.notebook)):
        raise ConfigError(
            f"{Path(plan.notebook).name} has no parameter `{IS_TRIAL}`, so that a trial could not be told to take "
            f"other tasks; its `parameters` cell says `{IS_TRIAL}: bool = False  # True: on other tasks`"
        )
    trials = trials_of(plan)
    check(trials, trials.seeds)
    if not plan.notebook and not plan.tuning.same_tasks:
        _check_disjoint(plan)


def _check_arms(plan: Plan) -> None:
    """No arm sets what its trials set, or is called as one of them."""
    names = {arm.name for arm in plan.arms}
    set_by_trials = {*plan.tuning.points[0]}
    if plan.notebook:
        set_by_trials.add(IS_TRIAL)
    for arm in _tuned_arms(plan):
        set_twice = set_by_trials & {*settings_of(plan, Job(arm.name, 0))}
        if set_twice:
            raise ConfigError(
                f"{plan.name}: arm {arm.name!r} sets {min(set_twice)}, which its trials set; leave it out of arms, "
                "grid and [all], or out of [tuning.grid]"
            )
        name = trial_name(arm.name, 0)
        if name in names:
            raise ConfigError(
                f"{plan.name}: an arm is called {name!r}, as a trial would be; call it otherwise"
            )


def _check_disjoint(plan: Plan) -> None:
    """No task of a trial is judged: by what stands in it, since a family may have too few for both."""
    checked: list[Any] = []
    for arm in _tuned_arms(plan):
        config = config_of(plan, Job(arm.name, 0))
        count = config.evaluation.num_tasks
        first = config.evaluation.first_task
        if (config.env, count, first) in checked:
            continue
        checked.append((config.env, count, first))
        judged = first + count
        drawn = [*map(content_of, tasks(config.env, "held-out", judged + plan.tuning.tasks))]
        if {*drawn[:judged]} & {*drawn[judged:]}:
            raise ConfigError(
                f"{plan.name}: tuning: {config.env.name} has {len({*drawn})} different held-out problems, too "
                f"few for the {count} tasks that are judged and {plan.tuning.tasks} others; ask for fewer, "
                "or accept by name that arms choose on the judged tasks: same_tasks = true"
            )


# ------------------------------------------------------------------------------------------------ what was chosen


def chosen_in(plan: Plan, out: Path) -> dict[str, dict[str, Any]]:
    """Arm -> what it chose, as it was sealed: {"point", "means" (None: failed), "failed", "jobs"}."""
    choices = {}
    for arm in _tuned_arms(plan) if plan.tuning else ():
        path = _path(arm.name, out)
        if path.is_file():
            choices[arm.name] = read_sealed_json(path, kind=KIND, version=VERSION)
    return choices


def _path(arm: str, out: Path) -> Path:
    return out / "tuned" / f"{arm}.json"


def open_trials(plan: Plan, out: Path) -> Plan:
    """The trials of those arms that have not chosen yet: a choice that was sealed stays."""
    return trials_of(plan, _without_choice(plan, out))


def _without_choice(plan: Plan, out: Path) -> list[str]:
    choices = chosen_in(plan, out)
    return [arm.name for arm in _tuned_arms(plan) if arm.name not in choices]


def choose(plan: Plan, out: Path) -> list[str]:
    """Seal the choice of every arm whose trials have all ended; returns the arms that have none yet. WorkbenchError for
    an arm none of whose trials came to its end."""
    if plan.tuning is None:
        return []
    for arm in _without_choice(plan, out):
        choice = _choice(plan, arm, out)
        if choice is None:
            continue
        if choice["point"] is None:
            raise WorkbenchError(
                f"arm {arm!r} of {plan.name}: none of its trials came to its end, so it has nothing to "
                f"be judged with ({next(iter(choice['failed'].values()))}). Fix it, and --retry"
            )
        path = _path(arm, out)
        make_folder(path.parent)
        # Where another driver has sealed it meanwhile, it sealed the same.
        claim_file(path, sealed_json(choice, kind=KIND, version=VERSION))
    return _without_choice(plan, out)


def _choice(plan: Plan, arm: str, out: Path) -> dict[str, Any] | None:
    """What an arm chooses, by the records of its trials; None while one of them has not ended."""
    trials = trials_of(plan, [arm])
    ends = {job: work.ended(trials, job, out) for job in jobs(trials, trials.seeds)}
    if None in ends.values():
        return None
    means = []
    for number in range(len(plan.tuning.points)):
        name = trial_name(arm, number)
        means.append(_trial_mean(trials, name, ends, out))
    known = [mean for mean in means if mean is not None]
    choice = {
        "arm": arm,
        "point": plan.tuning.points[means.index(max(known))] if known else None,
        "means": means,
        "failed": {job.name: end["failed"] for job, end in ends.items() if "failed" in end},
        "jobs": [work.name_of(trials, job) for job in ends],
    }
    return plain(choice, "a choice")


def _trial_mean(trials: Plan, name: str, ends: Mapping[Job, Facts], out: Path) -> float | None:
    """Mean over the seeds; None where the trial failed at one."""
    of_seeds = []
    for job, end in ends.items():
        if job.arm == name:
            if "failed" in end:
                return None
            of_seeds.append(np.mean(facts_of(trials, job, out, end)["sampled"]))
    return float(np.mean(of_seeds))


def tuned(plan: Plan, out: Path) -> Plan:
    """The same plan with what every arm chose, as far as it has; other arms as they were."""
    if plan.tuning is None:
        return plan
    points = {name: choice["point"] for name, choice in chosen_in(plan, out).items()}
    if plan.controls and plan.controls.same in points:
        points[plan.controls.again] = points[plan.controls.same]
    no_trial = {IS_TRIAL: False} if plan.notebook else {}
    arms = []
    for arm in plan.arms:
        if arm.name in points:
            arm = replace(arm, set={**arm.set, **points[arm.name], **no_trial})
        arms.append(arm)
    return replace(plan, arms=tuple(arms))


def all_states(plan: Plan, seeds: Sequence[int], out: Path) -> list[JobState]:
    """Of every job: trials first, then those that are judged, which wait until their arm has chosen."""
    parts = [states_of_part for _, states_of_part in states_by_part(plan, seeds, out)]
    return [*chain.from_iterable(parts)]


def states_by_part(
    plan: Plan, seeds: Sequence[int], out: Path
) -> list[tuple[Plan, list[JobState]]]:
    """The same with the plan that the jobs are of: that of the trials, where there are any, and that of what is judged."""
    trials = trials_of(plan)
    parts = [(trials, _trial_states(plan, trials, out))] if trials.arms else []
    judged = tuned(plan, out)
    return [*parts, (judged, states(judged, seeds, out))]


def _trial_states(plan: Plan, trials: Plan, out: Path) -> list[JobState]:
    """A trial that was chosen by is over, whatever the code is today."""
    over: set[str] = set()
    for choice in chosen_in(plan, out).values():
        over.update(choice["jobs"])
    listed = []
    for trial in states(trials, trials.seeds, out):
        if trial.name in over and trial.facts and not trial.has_failed:
            trial = replace(trial, state=DONE, why="")
        listed.append(trial)
    return listed


# ------------------------------------------------------------------------------------------------ what is said of it


def tuning_facts(plan: Plan, out: Path) -> dict[str, Any] | None:
    """For the table, as JSON values: what was tried, and what each arm chose with the means of its trials."""
    if plan.tuning is None:
        return None
    short = short_names([*plan.tuning.points[0]])
    arms = {
        name: choice | {"chosen": label_of(choice["point"])}
        for name, choice in chosen_in(plan, out).items()
    }
    facts = {
        "what": " and ".join(short.values()),
        "points": [label_of(point) for point in plan.tuning.points],
        "seeds": plan.tuning.seeds,
        "tasks": plan.tuning.tasks,
        "same_tasks": plan.tuning.same_tasks,
        "arms": arms,
    }
    return plain(facts, "a tuning")


def choice_checks(plan: Plan, out: Path) -> list[dict[str, Any]]:
    """Whether every arm was judged with what came out best among its own trials, chosen anew from their records."""
    if plan.tuning is None:
        return []
    choices = chosen_in(plan, out)
    wrong = [*_wrong_choices(plan, out, choices)]
    reasons = [*wrong]
    lacking = _without_choice(plan, out)
    if lacking:
        reasons.append(f"not chosen yet: {', '.join(lacking)}")
    failed = []
    for choice in choices.values():
        failed += [f"{job}: {words}" for job, words in choice["failed"].items()]
    if failed:
        reasons.append(f"not chosen, since they failed: {'; '.join(failed)}")
    held = None if lacking else True
    words = "every arm is judged with the best of its own trials"
    return [{"words": words, "held": False if wrong else held, "why": "; ".join(reasons)}]


def _wrong_choices(plan: Plan, out: Path, choices: Mapping[str, Facts]) -> Iterator[str]:
    for arm, choice in choices.items():
        again = _choice(plan, arm, out)
        if again is None:
            yield f"{arm}: the record of a trial is gone"
        elif (again["point"], again["means"]) != (choice["point"], choice["means"]):
            yield f"{arm} chose {label_of(choice['point'])}, and its trials now say {again['means']} instead of {choice['means']}"
