"""What a table must come out right about before its verdicts are worth anything.

    A/A        an arm run again with other seeds: whoever tells it from itself calls noise a difference
    planted    the same results, shifted by a known amount: a table that does not find them cannot find as much elsewhere

Both are judged as the table's other differences are: on the declared seeds, with the declared looks. The first alone,
so that it errs once in twenty; what is planted as one of the family, so that it is as hard to find as the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np

from workbench.ablation.plan import Job, Plan, config_of, settings_of
from workbench.ablation.verdicts import HIGHER, LOWER, UNDECIDED, Analysis, judged
from workbench.types.contrasts import pair_weights
from workbench.types.errors import ConfigError
from workbench.views.words import points

Facts = Mapping[str, Any]
POINTS = 100  # of success, in which a plan gives its margin, and what is planted


def control_pairs(
    plan: Plan, arms: Mapping[str, Facts], family: int, by_return: bool
) -> list[dict[str, Any]]:
    """One entry per control: {"kind", "words", "check", "sampled"}, the last as of any other judged difference (None:
    no seed has both). `family`: how many differences the table judges together."""
    if plan.controls is None or plan.analysis is None:
        return []
    unit, made = 1 if by_return else POINTS, []
    again, same = plan.controls.again, plan.controls.same
    seeds_R = whole_seeds(plan, arms, (again, same))
    difference_RN = contrast(arms, pair_weights(again, same), seeds_R) if seeds_R else None
    analysis = replace(plan.analysis, margin=plan.analysis.margin / unit)
    words = f"{arms[same]['label']}, run again with other seeds, is not told from itself"
    made.append(
        _control(
            "A/A",
            words,
            difference_RN,
            analysis,
            lambda verdict: verdict not in (HIGHER, LOWER),
            "noise is called a difference here; trust no verdict",
            by_return,
        )
    )
    if plan.controls.planted is not None:
        shift = plan.controls.planted / unit
        words = (
            f"{plan.controls.planted:+g}{'' if by_return else ' points'}, planted in it, are found"
        )
        made.append(
            _control(
                "planted",
                words,
                None if difference_RN is None else difference_RN + shift,
                replace(analysis, alpha=analysis.alpha / family),
                lambda verdict: verdict == (HIGHER if shift > 0 else LOWER),
                "what is undecided here may be as large",
                by_return,
            )
        )
    return made


def _control(
    kind: str,
    words: str,
    difference_RN: np.ndarray | None,
    analysis: Analysis,
    is_right: Any,
    wrong: str,
    by_return: bool,
) -> dict[str, Any]:
    if difference_RN is None:
        return {
            "kind": kind,
            "words": words,
            "sampled": None,
            "check": {"words": f"control: {words}", "held": None, "why": "no seed has both"},
        }
    [found] = judged([difference_RN], analysis)
    unjudged = found["verdict"] == UNDECIDED and found["why"]
    held = None if unjudged else bool(is_right(found["verdict"]))
    said = f"{found['mean']:+.3f}" if by_return or found["low"] is None else points(found)
    why = f"{said}: {found['verdict']}" + (
        f", {found['why']}" if unjudged else "" if held else f"; {wrong}"
    )
    return {
        "kind": kind,
        "words": words,
        "sampled": found | {"margin": analysis.margin},
        "check": {"words": f"control: {words}", "held": held, "why": why},
    }


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
        tasks = (
            "tasks of its notebook's choice"
            if facts["tasks"] is None
            else (
                f"{facts['tasks']} of the judged tasks"
                if facts["same_tasks"]
                else f"{facts['tasks']} other tasks"
            )
        )
        chosen = "; ".join(
            f"{plan.arm(name).label} {one['chosen']}" for name, one in facts["arms"].items()
        )
        seeds = f"seed{'s' * (len(facts['seeds']) > 1)} {', '.join(map(str, facts['seeds']))}"
        return (
            f"{facts['what']} chosen of {len(facts['points'])} by each arm for itself, on {seeds} and {tasks}: "
            f"{chosen or 'not yet'}."
        )
    ran = [arm for arm in plan.arms if not arm.inert]
    if plan.notebook:
        found = {
            settings_of(plan, Job(arm.name, 0)).get(
                "lr", settings_of(plan, Job(arm.name, 0)).get("learning_rate")
            )
            for arm in ran
        } - {None}
    else:
        try:
            found = {config_of(plan, Job(arm.name, 0)).learner.lr for arm in ran}
        except ConfigError:
            return ""
    if len(found) == 1:
        return f"All arms at one learning rate, {found.pop():g}: none was tuned for itself."
    rates = f" (learning rates {', '.join(f'{rate:g}' for rate in sorted(found))})" if found else ""
    return f"No arm was tuned for itself: each has what the plan sets{rates}."
