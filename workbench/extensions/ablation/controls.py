"""What a table must come out right about before its verdicts are worth anything.

    A/A        an arm run again with other seeds: whoever tells it from itself calls noise a difference
    planted    the same results, shifted by a known amount: a table that does not find them cannot find as much elsewhere

Both are judged as the table's other differences are: on the declared seeds, with the declared looks. The first alone,
so that it errs once in twenty; what is planted as one of the family, so that it is as hard to find as the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from workbench.extensions.ablation.contrasts import pair_weights
from workbench.extensions.ablation.plan import Job, Plan, config_of, settings_of
from workbench.extensions.ablation.verdicts import HIGHER, LOWER, UNDECIDED, Analysis, judged
from workbench.look.words import points
from workbench.values.errors import ConfigError

Facts = Mapping[str, Any]
POINTS = 100  # of success, in which a plan gives its margin, and what is planted


def control_pairs(
    plan: Plan, arms: Mapping[str, Facts], family: int, by_return: bool
) -> list[dict[str, Any]]:
    """One entry per control: {"kind", "words", "check", "sampled"}, the last as of any other judged difference (None:
    no seed has both). `family`: how many differences the table judges together."""
    if plan.controls is None or plan.analysis is None:
        return []
    unit = 1 if by_return else POINTS
    again = plan.controls.again
    same = plan.controls.same
    seeds_R = whole_seeds(plan, arms, (again, same))
    difference_RN = contrast(arms, pair_weights(again, same), seeds_R) if seeds_R else None
    analysis = replace(plan.analysis, margin=plan.analysis.margin / unit)
    equal = _control(
        "A/A",
        f"{arms[same]['label']}, run again with other seeds, shows no difference",
        difference_RN,
        analysis,
        lambda verdict: verdict not in (HIGHER, LOWER),
        "noise is judged a difference here (false positive); trust no verdict",
        by_return,
    )
    if plan.controls.planted is None:
        return [equal]
    shift = plan.controls.planted / unit
    planted = _control(
        "planted",
        f"{plan.controls.planted:+g}{'' if by_return else ' points'}, planted in it, are detected",
        None if difference_RN is None else difference_RN + shift,
        replace(analysis, alpha=analysis.alpha / family),
        lambda verdict: verdict == (HIGHER if shift > 0 else LOWER),
        "an undecided difference may be as large",
        by_return,
    )
    return [equal, planted]


def _control(
    kind: str,
    words: str,
    difference_RN: np.ndarray | None,
    analysis: Analysis,
    is_right: Callable[[str], bool],
    if_wrong: str,
    by_return: bool,
) -> dict[str, Any]:
    judgement = None
    held = None
    why = "no seed has both"
    if difference_RN is not None:
        [verdict] = judged([difference_RN], analysis)
        judgement = verdict | {"margin": analysis.margin}
        unjudged = verdict["verdict"] == UNDECIDED and verdict["why"]
        held = None if unjudged else bool(is_right(verdict["verdict"]))
        shown = points(verdict)
        if by_return or verdict["low"] is None:
            shown = f"{verdict['mean']:+.3f}"
        why = f"{shown}: {verdict['verdict']}"
        if unjudged:
            why += f", {verdict['why']}"
        elif not held:
            why += f"; {if_wrong}"
    check = {"words": f"control: {words}", "held": held, "why": why}
    return {"kind": kind, "words": words, "sampled": judgement, "check": check}


def whole_seeds(plan: Plan, arms: Mapping[str, Facts], names: Iterable[str]) -> tuple[int, ...]:
    """The declared seeds from the first on, as far as all these arms have them."""
    names = [*names]
    return tuple(
        takewhile(lambda seed: all(str(seed) in arms[name]["seeds"] for name in names), plan.seeds)
    )


def contrast(
    arms: Mapping[str, Facts], weights: Mapping[str, float], seeds: Sequence[int]
) -> np.ndarray:
    """A weighted sum of arms [seeds, tasks]: a difference of two, or of differences."""
    return sum(weight * sampled_of(arms, name, seeds) for name, weight in weights.items())


def sampled_of(arms: Mapping[str, Facts], name: str, seeds: Sequence[int]) -> np.ndarray:
    """What an arm's runs earned [seeds, tasks]."""
    return np.array([arms[name]["seeds"][str(seed)]["sampled"] for seed in seeds])


def tuning_words(plan: Plan, facts: Facts | None = None) -> str:
    """How fair the comparison is to each arm: what each chose for itself (`facts`: of its tuning), or that none did."""
    if facts is not None:
        return _choices(plan, facts)
    try:
        rates = _learning_rates(plan)
    except ConfigError:
        return ""
    if len(rates) == 1:
        return f"All arms at one learning rate, {rates.pop():g}: none was tuned for itself."
    listed = ", ".join(f"{rate:g}" for rate in sorted(rates))
    listed = f" (learning rates {listed})" if rates else ""
    return f"No arm was tuned for itself: each has what the plan sets{listed}."


def _choices(plan: Plan, facts: Facts) -> str:
    if facts["tasks"] is None:
        tasks = "tasks of its notebook's choice"
    else:
        which = "of the judged" if facts["same_tasks"] else "other"
        tasks = f"{facts['tasks']} {which} tasks"
    chosen = "; ".join(
        f"{plan.arm(name).label} {choice['chosen']}" for name, choice in facts["arms"].items()
    )
    seeds = f"seed{'s' * (len(facts['seeds']) > 1)} {', '.join(map(str, facts['seeds']))}"
    return (
        f"{facts['what']} chosen of {len(facts['points'])} by each arm for itself, on {seeds} and {tasks}: "
        f"{chosen or 'not yet'}."
    )


def _learning_rates(plan: Plan) -> set[float]:
    """Of all arms that run; of a notebook of the user's own as far as its parameters say."""
    ran = [Job(arm.name, 0) for arm in plan.arms if not arm.inert]
    if not plan.notebook:
        return {config_of(plan, job).learner.lr for job in ran}
    settings = [settings_of(plan, job) for job in ran]
    rates = {given.get("lr", given.get("learning_rate")) for given in settings}
    return rates - {None}
