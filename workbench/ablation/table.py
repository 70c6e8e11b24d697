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

from workbench.ablation import work
from workbench.ablation.controls import POINTS, contrast, control_pairs, tuning_words, whole_seeds
from workbench.ablation.declared import declaration, declared_in, hash_of
from workbench.ablation.facts import MODES, by_task, facts_of
from workbench.ablation.plan import Arm, Expectation, Job, Plan, jobs, why_inert
from workbench.ablation.power import family_size, power_facts
from workbench.ablation.starts import by_row, speaks_for
from workbench.ablation.tuning import choice_checks, tuned, tuning_facts
from workbench.ablation.verdicts import judged
from workbench.types.contrasts import interaction_weights, pair_weights
from workbench.types.crossed import crossed_difference, crossed_mean
from workbench.types.errors import DataError
from workbench.types.stats import Difference, mean_interval, share, task_difference

UNJUDGED, EXPLORATORY = "not judged", "exploratory: added later, no verdict"
Facts = Mapping[str, Any]


def tabled(plan: Plan, seeds: Sequence[int], out: Path) -> dict[str, Any]:
    """The table of what lies in `out`. DataError where runs that should have begun alike did not."""
    wanted, plan = plan, tuned(plan, out)
    ends = {job: work.ended(plan, job, out) for job in jobs(plan, seeds)}
    table = table_of(
        plan,
        seeds,
        {
            job: end if "failed" in end else facts_of(plan, job, out, end)
            for job, end in ends.items()
            if end is not None
        },
        declared_in(plan.name, out) or declaration(wanted),
        tuning_facts(plan, out),
    )
    return table | {"checks": [*table["checks"], *choice_checks(wanted, out)]}


def table_of(
    plan: Plan,
    seeds: Sequence[int],
    found: Mapping[Job, Facts],
    declared: Facts | None = None,
    tuning: Facts | None = None,
) -> dict[str, Any]:
    """The same of facts at hand: of each job that ended, `facts_of` its run or {"failed": words}; of what was sealed
    before the first of them ran (else what the plan says); and of what its arms chose for themselves (`tuning_facts`)."""
    declared = declaration(plan) if declared is None else declared
    ended = [end for end in found.values() if "failed" not in end]
    by_return = _one({_by_return(facts) for facts in ended}, "measures (success, return)")
    whole, starts = plan, _starts(plan, found)
    plan, seeds, found = by_row(plan, seeds, found)
    arms = {arm.name: _arm(plan, arm, seeds, found) for arm in plan.arms}
    for arm in arms.values():
        begun = any(facts["rows"] for facts in arm["seeds"].values())
        arm["over_start"] = {mode: _over_start(arm, mode) for mode in MODES} if begun else None
    compared = [_compared(arms, first, second, seeds) for first, second in plan.compare]
    interactions = [_interaction(plan, arms, axes, seeds) for axes in plan.interactions]
    family = [
        pair for pair in compared if [pair["first"], pair["second"]] in declared["compare"]
    ] + interactions
    size = family_size(declared)
    _judge(
        plan, family, arms, by_return, len(family) == size, "start" if whole.starts_vary else "seed"
    )
    checks = [_judged(expectation, arms, seeds) for expectation in plan.expect]
    controls = control_pairs(plan, arms, max(size, 1), by_return)
    ran = [facts for arm in arms.values() for facts in arm["seeds"].values()]
    return {
        "version": 2,
        "name": plan.name,
        "title": plan.title,
        "remarks": list(plan.remarks),
        "seeds": list(seeds),
        "all": dict(plan.all),
        "tasks": _one({facts["tasks"] for facts in ran}, "numbers of held-out tasks"),
        "steps": _steps(plan, ran),
        "starts": starts,
        "arms": arms,
        "compared": compared,
        "controls": controls,
        "interactions": interactions,
        "power": power_facts(plan, arms, compared, size, by_return),
        "checks": [
            *_came_to_their_end(arms, seeds),
            *checks,
            *(control["check"] for control in controls),
        ],
        "tuning": tuning_words(plan, tuning),
        **({} if tuning is None else {"tuned": tuning}),
        "speaks": speaks_for(whole),
        **(
            {"rows": "start", "row_names": [name for name, _ in whole.starts]}
            if (whole.starts_vary)
            else {}
        ),
        "declared": declared | {"hash": hash_of(declared)},
        "code": sorted({facts["code"] for facts in ran}),
        "cpu_seconds": sum(facts["cpu_seconds"] for facts in ran),
    } | ({"measure": "return"} if by_return else {})


def _by_return(facts: Facts) -> bool:
    """Whether the environment of a run does not say who succeeded, so that it is measured by return."""
    return facts.get("measure") == "return"


def held(table: Facts) -> bool:
    """Whether no check says no; one that could not be judged is no yes, either."""
    return all(check["held"] for check in table["checks"])


def _one(found: set, what: str) -> Any:
    if len(found) > 1:
        raise DataError(
            f"the arms have different {what}: {', '.join(map(str, sorted(found)))}; they must be the same "
            "for all. Give it in [all]"
        )
    return next(iter(found), None)


def _steps(plan: Plan, ran: Sequence[Facts]) -> int | None:
    """Of every run; None where arms set them and so differ in them."""
    found = {facts["steps"] for facts in ran}
    return (
        None
        if len(found) > 1 and any("train.steps" in arm.set for arm in plan.arms)
        else _one(found, "numbers of steps")
    )


# ------------------------------------------------------------------------------------------------ arms


def _arm(plan: Plan, arm: Arm, seeds: Sequence[int], found: Mapping[Job, Facts]) -> dict[str, Any]:
    """What there is of one arm: its runs' facts by seed, and what became of the others."""
    inert = why_inert(plan, arm) if arm.inert else None
    ends = {} if arm.inert else {seed: found.get(Job(arm.name, seed)) for seed in seeds}
    absent = [seed for seed, end in ends.items() if end is None]
    failed = {
        str(seed): end["failed"]
        for seed, end in ends.items()
        if end is not None and "failed" in end
    }
    runs = {str(seed): end for seed, end in ends.items() if end is not None and "failed" not in end}
    return {
        "label": arm.label,
        "base": arm.base_name,
        "set": dict(arm.set),
        "start": arm.start,
        "inert": inert,
        "failed": failed,
        "absent": absent,
        "seeds": runs,
        **{
            mode: _mean(
                [facts[mode] for facts in runs.values() if mode in facts],
                any(map(_by_return, runs.values())),
            )
            for mode in MODES
        },
        **({"at": dict(arm.at)} if arm.at else {}),
    }


def _told(estimate: Difference) -> dict[str, Any]:
    """As JSON values; None for an end of an interval that is not known (one seed alone)."""
    return {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in asdict(estimate).items()
    }


def _mean(by_task_RN: Sequence[Sequence[float]], by_return: bool = False) -> dict[str, Any] | None:
    """Mean over the seeds with its interval, and the seeds' own; None where no seed came to its end."""
    if not by_task_RN:
        return None
    found, each = crossed_mean(by_task_RN), [float(np.mean(one)) for one in by_task_RN]
    low, high = found.low, found.high
    ends = {"lowest": min(each), "highest": max(each)}
    if by_return:
        alone = mean_interval(np.mean(by_task_RN, axis=0)) if len(each) == 1 else found
        return _told(alone) | ends
    if low == high or len(each) == 1:  # all alike, or one seed alone: what is known of the tasks
        alone = share(np.mean(by_task_RN, axis=0), len(each))
        low, high = alone.low, alone.high
    return {"mean": found.mean, "low": max(low, 0.0), "high": min(high, 1.0)} | ends


# ------------------------------------------------------------------------------------------------ baselines


def _starts(plan: Plan, found: Mapping[Job, Facts]) -> dict[str, Any]:
    """Of each start the rows that were measured before training: untrained, random play, solver (law 12). Every run
    of a start measured them anew, with the same noise, so that they must agree."""
    starts: dict[str, Any] = {}
    for job, facts in found.items():
        if not facts.get("rows"):
            continue  # it failed, or a notebook of the user's own measured what it wanted
        begins = ", ".join(filter(None, (plan.arm(job.arm).start, job.start)))
        known = starts.setdefault(
            begins,
            {
                "rows": facts["rows"],
                "from": f"{job}",
                **({"absent": facts["absent"]} if "absent" in facts else {}),
            },
        )
        if known["rows"] != facts["rows"]:
            raise DataError(
                f"{job}, and {known['from']} are both said to begin as {begins!r}, but differ before any "
                "training: another policy, other tasks or other code. Run them again, or give them different "
                "starts"
            )
    return starts


def _over_start(arm: Facts, mode: str) -> dict[str, Any] | None:
    before = [
        next(
            by_task(row, "untrained")
            for row in facts["rows"]
            if (row["policy"], row["mode"]) == ("untrained", mode)
        )
        for facts in arm["seeds"].values()
    ]
    after = [facts[mode] for facts in arm["seeds"].values()]
    return _told(crossed_difference(before, after)) if after else None


# ------------------------------------------------------------------------------------------------ verdicts


def _compared(arms: Facts, first: str, second: str, seeds: Sequence[int]) -> dict[str, Any]:
    """`first` minus `second`, seed by seed on the same tasks."""
    both = [
        str(seed)
        for seed in seeds
        if all(str(seed) in arms[name]["seeds"] for name in (first, second))
    ]
    missing = [seed for seed in seeds if str(seed) not in both]
    found: dict[str, Any] = {"first": first, "second": second, "seeds": both, "missing": missing}
    for mode in MODES:
        told = both and all(
            mode in arms[name]["seeds"][seed] for name in (first, second) for seed in both
        )
        a, b = (
            [arms[name]["seeds"][seed][mode] for seed in both if told] for name in (second, first)
        )
        found[mode] = (
            None
            if not told
            else _told(crossed_difference(a, b))
            | {"each": {seed: asdict(task_difference(a[i], b[i])) for i, seed in enumerate(both)}}
        )
        if told:
            found[mode]["verdict"] = EXPLORATORY
    return found


def _interaction(
    plan: Plan, arms: Facts, axes: tuple[str, str], seeds: Sequence[int]
) -> dict[str, Any]:
    """A difference of differences, as an entry of the family."""
    weights = interaction_weights({arm.name: arm.at for arm in plan.arms if arm.at}, *axes)
    both = [seed for seed in seeds if all(str(seed) in arms[name]["seeds"] for name in weights)]
    values_RN = contrast(arms, weights, both) if both else None
    return {
        "axes": list(axes),
        "weights": weights,
        "sampled": None
        if values_RN is None
        else _told(crossed_difference(np.zeros_like(values_RN), values_RN))
        | {
            "each": {str(seed): {"mean": float(np.mean(row))} for seed, row in zip(both, values_RN)}
        },
    }


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
    whole = whole_seeds(plan, arms, {name for each in weights for name in each})
    lacking = plan.seeds[len(whole)] if len(whole) < len(plan.seeds) else None
    why = (
        "no margin was declared ([analysis] of the plan)"
        if plan.analysis is None
        else "the declared pairs are judged together, and arms of some were left out"
        if not whole_family
        else f"{row} {lacking}, the first declared one, is not there for every arm"
        if not whole
        else ""
    )
    for pair in family:
        if pair["sampled"] is not None:
            pair["sampled"]["verdict"] = f"{UNJUDGED}: {why}"
    if why or plan.analysis is None or not family:
        return
    margin = plan.analysis.margin / (1 if by_return else POINTS)
    differences = [contrast(arms, each, whole) for each in weights]
    for pair, found in zip(family, judged(differences, replace(plan.analysis, margin=margin), row)):
        pair["sampled"] |= {
            **found,
            "margin": margin,
            "lacking": lacking,
            "each": pair["sampled"]["each"],
        }


def _came_to_their_end(arms: Facts, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """That every run came to its end, and that the lint looked at each of its steps and found no error."""
    broken = [
        f"{name}, seed {seed}: {words}"
        for name, arm in arms.items()
        for seed, words in arm["failed"].items()
    ]
    absent = [f"{name}, seed {seed}" for name, arm in arms.items() for seed in arm["absent"]]
    unclean = [
        f"{name}, seed {seed}: {', '.join(facts['lint']['errors']) or 'it was off'}"
        for name, arm in arms.items()
        for seed, facts in arm["seeds"].items()
        if facts["lint"] and (facts["lint"]["errors"] or facts["lint"]["steps"] < facts["steps"])
    ]
    runs = sum(len(arm["seeds"]) for arm in arms.values())
    own = runs and not any(
        facts["lint"] for arm in arms.values() for facts in arm["seeds"].values()
    )
    why = "; ".join([*broken, *([f"not run: {', '.join(absent)}"] if absent else [])])
    return [
        _check(
            "every run came to its end",
            False if broken else None if absent or not runs else True,
            why,
        )
    ] + (
        []
        if own
        else [
            _check(
                "the lint found no error in any step of any run",
                None if not runs else not unclean,
                "; ".join(unclean) or f"{runs} runs",
            )
        ]
    )


def _judged(wanted: Expectation, arms: Facts, seeds: Sequence[int]) -> dict[str, Any]:
    absent = [name for name in (wanted.arm, wanted.below) if name not in arms]
    if absent:
        return _check(str(wanted), None, f"{', '.join(absent)} was left out")
    if any(
        _by_return(facts)
        for name in (wanted.arm, wanted.below)
        for facts in arms[name]["seeds"].values()
    ):
        return _check(
            str(wanted),
            None,
            "points of success are expected, and the environment does not say who succeeded",
        )
    found = _compared(arms, wanted.arm, wanted.below, seeds)
    each = (
        {seed: one["mean"] for seed, one in found["sampled"]["each"].items()}
        if found["sampled"]
        else {}
    )
    why = ", ".join(f"seed {seed}: {100 * gap:+.1f} points" for seed, gap in each.items())
    if any(gap > -wanted.points / 100 for gap in each.values()):
        return _check(str(wanted), False, why)
    if found["missing"]:
        failed = any(
            str(seed) in arms[name]["failed"]
            for seed in found["missing"]
            for name in (wanted.arm, wanted.below)
        )
        missing = f"seed {', '.join(map(str, found['missing']))} is missing"
        return _check(
            str(wanted), False if failed else None, "; ".join(filter(None, [why, missing]))
        )
    return _check(str(wanted), True, why)


def _check(words: str, held: bool | None, why: str = "") -> dict[str, Any]:
    return {"words": words, "held": held, "why": why}
