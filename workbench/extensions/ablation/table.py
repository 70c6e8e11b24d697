"""From the run folders of an ablation to its table: means, paired differences, verdicts. JSON values (version 2).

Every arm met the same held-out tasks with the same noise, so differences are taken seed by seed and task by task, and
their 95 % interval speaks for other tasks and for other seeds (`types.crossed`). What the plan declared is judged
(`verdicts`): sampled, all pairs as one family, on the declared seeds from the first on, as far as all arms of the family
have them: the seeds that came to their end are not passed off as all of them. A seed that failed or was not run is named.
What was not declared is shown without a verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.extensions.ablation import work
from workbench.extensions.ablation.contrasts import interaction_weights, pair_weights
from workbench.extensions.ablation.controls import (
    POINTS,
    contrast,
    control_pairs,
    tuning_words,
    whole_seeds,
)
from workbench.extensions.ablation.crossed import crossed_difference, crossed_mean
from workbench.extensions.ablation.declared import declaration, declared_in, hash_of
from workbench.extensions.ablation.facts import MODES, by_task, facts_of
from workbench.extensions.ablation.plan import Arm, Expectation, Job, Plan, jobs, why_inert
from workbench.extensions.ablation.power import family_size, power_facts
from workbench.extensions.ablation.starts import by_row, speaks_for
from workbench.extensions.ablation.tuning import choice_checks, tuned, tuning_facts
from workbench.extensions.ablation.verdicts import judged
from workbench.values.errors import DataError
from workbench.values.stats import Difference, mean_interval, share, task_difference

UNJUDGED = "not judged"
EXPLORATORY = "exploratory: added later, no verdict"
Facts = Mapping[str, Any]


def tabled(plan: Plan, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """The table of what lies in `out`. DataError where runs that should have begun alike did not."""
    wanted = plan
    plan = tuned(plan, out)
    ends: dict[Job, Facts] = {}
    for job in jobs(plan, seeds):
        end = work.ended(plan, job, out)
        if end is not None:
            ends[job] = end if "failed" in end else facts_of(plan, job, out, end)
    declared = declared_in(plan.name, out) or declaration(wanted)
    table = table_of(plan, seeds, ends, declared, tuning_facts(plan, out))
    return table | {"checks": [*table["checks"], *choice_checks(wanted, out)]}


def table_of(
    plan: Plan,
    seeds: Sequence[int],
    ends: Mapping[Job, Facts],
    declared: Facts | None = None,
    tuning: Facts | None = None,
) -> dict[str, Any]:
    """The same of facts at hand.

    ends: of each job that ended, `facts_of` its run or {"failed": words}.
    declared: what was sealed before the first of them ran (None: what the plan says).
    tuning: what the arms chose for themselves (`tuning_facts`).
    """
    declared = declaration(plan) if declared is None else declared
    measures = {_by_return(end) for end in ends.values() if "failed" not in end}
    by_return = _only_value(measures, "measures (success, return)")
    whole = plan
    starts = _starts(plan, ends)
    plan, seeds, ends = by_row(plan, seeds, ends)
    tasks = {end["tasks"] for end in ends.values() if "failed" not in end}
    num_tasks = _only_value(tasks, "numbers of held-out tasks")
    arms = {arm.name: _arm(plan, arm, seeds, ends) for arm in plan.arms}
    compared = [_compared(arms, first, second, seeds) for first, second in plan.compare]
    interactions = [_interaction(plan, arms, axes, seeds) for axes in plan.interactions]
    size = family_size(declared)
    family = [pair for pair in compared if [pair["first"], pair["second"]] in declared["compare"]]
    family += interactions
    row = "start" if whole.starts_vary else "seed"
    _judge(plan, family, arms, by_return, len(family) == size, row)
    controls = control_pairs(plan, arms, max(size, 1), by_return)
    checks = [
        *_came_to_their_end(arms),
        *(_expectation_check(expectation, arms, seeds) for expectation in plan.expect),
        *(control["check"] for control in controls),
    ]
    ran = [facts for arm in arms.values() for facts in arm["seeds"].values()]
    table = {
        "version": 2,
        "name": plan.name,
        "title": plan.title,
        "remarks": list(plan.remarks),
        "seeds": list(seeds),
        "all": dict(plan.all),
        "tasks": num_tasks,
        "steps": _steps(plan, ran),
        "starts": starts,
        "arms": arms,
        "compared": compared,
        "controls": controls,
        "interactions": interactions,
        "power": power_facts(plan, arms, compared, size, by_return),
        "checks": checks,
        "tuning": tuning_words(plan, tuning),
    }
    if tuning is not None:
        table["tuned"] = tuning
    table["speaks"] = speaks_for(whole)
    if whole.starts_vary:
        table |= {"rows": "start", "row_names": [name for name, _ in whole.starts]}
    table |= {
        "declared": declared | {"hash": hash_of(declared)},
        "code": sorted({facts["code"] for facts in ran}),
        "cpu_seconds": sum(facts["cpu_seconds"] for facts in ran),
    }
    return table | ({"measure": "return"} if by_return else {})


def _by_return(facts: Facts) -> bool:
    """Whether the environment of a run does not say who succeeded, so that it is measured by return."""
    return facts.get("measure") == "return"


def held(table: Facts) -> bool:
    """Whether no check says no; one that could not be judged is no yes, either."""
    return all(check["held"] for check in table["checks"])


def _only_value(values: set, what: str) -> Any:
    """What all arms have in common; None of no arms."""
    if len(values) > 1:
        raise DataError(
            f"the arms have different {what}: {', '.join(map(str, sorted(values)))}; they must be the same "
            "for all. Give it in [all]"
        )
    return next(iter(values), None)


def _steps(plan: Plan, ran: Sequence[Facts]) -> int | None:
    """Of every run; None where arms set them and so differ in them."""
    numbers = {facts["steps"] for facts in ran}
    if len(numbers) > 1 and any("train.steps" in arm.set for arm in plan.arms):
        return None
    return _only_value(numbers, "numbers of steps")


# ------------------------------------------------------------------------------------------------ arms


def _arm(plan: Plan, arm: Arm, seeds: Sequence[int], ends: Mapping[Job, Facts]) -> dict[str, Any]:
    """What there is of one arm: its runs' facts by seed, and what became of the others."""
    failed = {}
    absent = []
    runs = {}
    for seed in () if arm.inert else seeds:
        end = ends.get(Job(arm.name, seed))
        if end is None:
            absent.append(seed)
        elif "failed" in end:
            failed[str(seed)] = end["failed"]
        else:
            runs[str(seed)] = end
    facts: dict[str, Any] = {
        "label": arm.label,
        "base": arm.base_name,
        "set": dict(arm.set),
        "start": arm.start,
        "inert": why_inert(plan, arm) if arm.inert else None,
        "failed": failed,
        "absent": absent,
        "seeds": runs,
    }
    by_return = any(map(_by_return, runs.values()))
    for mode in MODES:
        facts[mode] = _mean([run[mode] for run in runs.values() if mode in run], by_return)
    if arm.at:
        facts["at"] = dict(arm.at)
    was_measured_before = any(run["rows"] for run in runs.values())
    facts["over_start"] = (
        {mode: _over_start(facts, mode) for mode in MODES} if was_measured_before else None
    )
    return facts


def _to_json(estimate: Difference) -> dict[str, Any]:
    """As JSON values; None for an end of an interval that is not known (one seed alone)."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in asdict(estimate).items()
    }


def _mean(by_task_RN: Sequence[Sequence[float]], by_return: bool = False) -> dict[str, Any] | None:
    """Mean over the seeds with its interval, and the seeds' own; None where no seed came to its end."""
    if not by_task_RN:
        return None
    mean = crossed_mean(by_task_RN)
    seed_means = [float(np.mean(by_task_N)) for by_task_N in by_task_RN]
    ends = {"lowest": min(seed_means), "highest": max(seed_means)}
    one_seed = len(seed_means) == 1
    if by_return:
        interval = mean_interval(np.mean(by_task_RN, axis=0)) if one_seed else mean
        return _to_json(interval) | ends
    interval = mean
    if mean.low == mean.high or one_seed:  # all alike, or one seed: what is known of the tasks
        interval = share(np.mean(by_task_RN, axis=0), len(seed_means))
    low = max(interval.low, 0.0)
    high = min(interval.high, 1.0)
    return {"mean": mean.mean, "low": low, "high": high} | ends


# ------------------------------------------------------------------------------------------------ baselines


def _starts(plan: Plan, ends: Mapping[Job, Facts]) -> dict[str, Any]:
    """Of each start the rows that were measured before training: untrained, random play, solver (invariant 12). Every run
    of a start measured them anew, with the same noise, so that they must agree."""
    starts: dict[str, Any] = {}
    for job, facts in ends.items():
        if not facts.get("rows"):
            continue  # it failed, or a notebook of the user's own measured what it wanted
        begins = ", ".join(filter(None, (plan.arm(job.arm).start, job.start)))
        if begins not in starts:
            starts[begins] = {"rows": facts["rows"], "from": f"{job}"}
            if "absent" in facts:
                starts[begins]["absent"] = facts["absent"]
        known = starts[begins]
        if known["rows"] != facts["rows"]:
            raise DataError(
                f"{job}, and {known['from']} are both said to begin as {begins!r}, but differ before any "
                "training: another policy, other tasks or other code. Run them again, or give them different "
                "starts"
            )
    return starts


def _over_start(arm: Facts, mode: str) -> dict[str, Any] | None:
    runs = arm["seeds"].values()
    if not runs:
        return None
    before = [by_task(_untrained_row(facts, mode), "untrained") for facts in runs]
    after = [facts[mode] for facts in runs]
    return _to_json(crossed_difference(before, after))


def _untrained_row(facts: Facts, mode: str) -> Facts:
    return next(row for row in facts["rows"] if (row["policy"], row["mode"]) == ("untrained", mode))


# ------------------------------------------------------------------------------------------------ verdicts


def _compared(arms: Facts, first: str, second: str, seeds: Sequence[int]) -> dict[str, Any]:
    """`first` minus `second`, seed by seed on the same tasks."""
    runs_first = arms[first]["seeds"]
    runs_second = arms[second]["seeds"]
    both = [seed for seed in map(str, seeds) if seed in runs_first and seed in runs_second]
    missing = [seed for seed in seeds if str(seed) not in both]
    pair: dict[str, Any] = {"first": first, "second": second, "seeds": both, "missing": missing}
    for mode in MODES:
        pair[mode] = None
        if both and all(mode in runs_first[seed] and mode in runs_second[seed] for seed in both):
            before = [runs_second[seed][mode] for seed in both]
            after = [runs_first[seed][mode] for seed in both]
            by_seed = map(task_difference, before, after)
            pair[mode] = _to_json(crossed_difference(before, after)) | {
                "each": dict(zip(both, map(asdict, by_seed))),
                "verdict": EXPLORATORY,
            }
    return pair


def _interaction(
    plan: Plan, arms: Facts, axes: tuple[str, str], seeds: Sequence[int]
) -> dict[str, Any]:
    """A difference of differences, as an entry of the family."""
    weights = interaction_weights({arm.name: arm.at for arm in plan.arms if arm.at}, *axes)
    both = [seed for seed in seeds if all(str(seed) in arms[name]["seeds"] for name in weights)]
    entry: dict[str, Any] = {"axes": list(axes), "weights": weights, "sampled": None}
    if both:
        values_RN = contrast(arms, weights, both)
        by_seed = {str(seed): {"mean": float(np.mean(row))} for seed, row in zip(both, values_RN)}
        difference = crossed_difference(np.zeros_like(values_RN), values_RN)
        entry["sampled"] = _to_json(difference) | {"each": by_seed}
    return entry


def _judge(
    plan: Plan,
    family: Sequence[dict[str, Any]],
    arms: Facts,
    by_return: bool,
    whole_family: bool,
    row: str,
) -> None:
    """Write the verdicts into the declared pairs, with the intervals that hold for all of them together."""
    weights = [
        pair["weights"] if "weights" in pair else pair_weights(pair["first"], pair["second"])
        for pair in family
    ]
    judged_seeds = whole_seeds(plan, arms, {name for names in weights for name in names})
    lacking = None
    if len(judged_seeds) < len(plan.seeds):
        lacking = plan.seeds[len(judged_seeds)]
    why = ""
    if plan.analysis is None:
        why = "no margin was declared ([analysis] of the plan)"
    elif not whole_family:
        why = "the declared pairs are judged together, and arms of some were left out"
    elif not judged_seeds:
        why = f"{row} {lacking}, the first declared one, is not there for every arm"
    for pair in family:
        if pair["sampled"] is not None:
            pair["sampled"]["verdict"] = f"{UNJUDGED}: {why}"
    if why or plan.analysis is None or not family:
        return
    margin = plan.analysis.margin / (1 if by_return else POINTS)
    differences = [contrast(arms, names, judged_seeds) for names in weights]
    verdicts = judged(differences, replace(plan.analysis, margin=margin), row)
    for pair, verdict in zip(family, verdicts):
        by_seed = pair["sampled"]["each"]
        pair["sampled"] |= verdict | {"margin": margin, "lacking": lacking, "each": by_seed}


def _came_to_their_end(arms: Facts) -> list[dict[str, Any]]:
    """That every run came to its end, and that the lint looked at each of its steps and found no error."""
    broken = []
    absent = []
    unclean = []
    ran = []
    for name, arm in arms.items():
        broken += [f"{name}, seed {seed}: {words}" for seed, words in arm["failed"].items()]
        absent += [f"{name}, seed {seed}" for seed in arm["absent"]]
        ran += arm["seeds"].values()
        for seed, facts in arm["seeds"].items():
            complaint = _complaint_of_lint(facts)
            if complaint:
                unclean.append(f"{name}, seed {seed}: {complaint}")
    came_to_end = None if absent or not ran else True
    reasons = broken + ([f"not run: {', '.join(absent)}"] if absent else [])
    checks = [
        _check("every run came to its end", False if broken else came_to_end, "; ".join(reasons))
    ]
    if not ran or any(facts["lint"] for facts in ran):
        clean = not unclean if ran else None
        why = "; ".join(unclean) or f"{len(ran)} runs"
        checks.append(_check("the lint found no error in any step of any run", clean, why))
    return checks


def _complaint_of_lint(facts: Facts) -> str:
    """The rules that found errors in a run, or that the lint was off at some step; "" for neither."""
    lint = facts["lint"]
    if not lint:
        return ""
    if lint["errors"]:
        return ", ".join(lint["errors"])
    return "it was off" if lint["steps"] < facts["steps"] else ""


def _expectation_check(wanted: Expectation, arms: Facts, seeds: Sequence[int]) -> dict[str, Any]:
    """Whether in every seed one arm ends so many points below the other."""
    names = (wanted.arm, wanted.below)
    absent = [name for name in names if name not in arms]
    if absent:
        return _check(str(wanted), None, f"{', '.join(absent)} was left out")
    if any(_by_return(facts) for name in names for facts in arms[name]["seeds"].values()):
        why = "points of success are expected, and the environment does not say who succeeded"
        return _check(str(wanted), None, why)
    pair = _compared(arms, wanted.arm, wanted.below, seeds)
    gaps = {}
    if pair["sampled"]:
        gaps = {seed: gap["mean"] for seed, gap in pair["sampled"]["each"].items()}
    why = ", ".join(f"seed {seed}: {100 * gap:+.1f} points" for seed, gap in gaps.items())
    if any(gap > -wanted.points / 100 for gap in gaps.values()):
        return _check(str(wanted), False, why)
    if not pair["missing"]:
        return _check(str(wanted), True, why)
    missing = [str(seed) for seed in pair["missing"]]
    failed = {seed for name in names for seed in arms[name]["failed"]}
    held = None if failed.isdisjoint(missing) else False
    lacking = f"seed {', '.join(missing)} is missing"
    return _check(str(wanted), held, "; ".join(filter(None, [why, lacking])))


def _check(words: str, held: bool | None, why: str = "") -> dict[str, Any]:
    return {"words": words, "held": held, "why": why}
