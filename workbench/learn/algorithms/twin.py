"""The plain twin of an algorithm: the same settings, put together from the parts of `workbench.plain`.

    recipe, missing = plain_recipe(algorithm)

`recipe` is what `plain.credit.credit_of` and `plain.train` run by. `missing` names the parts that bring no twin: of what
they decide nothing can be said by a second implementation.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any, NamedTuple

from workbench.learn.algorithms.bilevel_ppo import BilevelPPO
from workbench.learn.algorithms.gigpo import GiGPO
from workbench.learn.algorithms.grpo import GRPO
from workbench.learn.algorithms.masks import ADVANTAGE_MASK, LOSS_MASK
from workbench.learn.algorithms.policy_gradient import PolicyGradient
from workbench.learn.algorithms.ppo import PPO
from workbench.learn.algorithms.reinforce import Reinforce
from workbench.learn.algorithms.reinforce_pp import ReinforcePP, ReinforcePPBaseline
from workbench.learn.algorithms.rloo import RLOO
from workbench.learn.algorithms.turn_ppo import TurnPPO
from workbench.plain import credit, loss
from workbench.plain.credit import CreditLine, Found, Recipe
from workbench.plain.rewards import FilterRule

PARTS = ("estimator", "objective", "reduction", "critic")
TWINS: dict[Callable, tuple[Callable, tuple[str, ...]]] = {  # estimator: (its twin, the settings that the twin takes)
    GRPO.advantages: (credit.group_relative, ("normalize_std",)),
    RLOO.advantages: (credit.rloo, ()),
    Reinforce.advantages: (credit.reinforce, ("gamma", "baseline")),
    ReinforcePP.advantages: (credit.reinforce_pp, ("gamma",)),
    ReinforcePPBaseline.advantages: (credit.reinforce_pp_baseline, ()),
    GiGPO.advantages: (credit.gigpo, ("normalize_std", "gamma", "omega")),
    PPO.advantages: (credit.gae, ("gamma", "lam", "whiten")),
    TurnPPO.advantages: (credit.turn_gae, ("gamma", "lam", "whiten")),
    BilevelPPO.advantages: (credit.bilevel_gae, ("gamma", "lam", "gamma_turn", "whiten")),
}
OTHER = {"estimator", "settings", "objective", "bounds", "normalize", "over", "filter", "filter_rule", "widened",
         "equal_updates"}
SAME = {f.name for f in fields(Recipe)} - OTHER


class PlainTwin(NamedTuple):
    """`recipe` None: this is no algorithm of this package's form at all. `missing`: of `PARTS`, those without a twin;
    the recipe's estimator then raises, and its objective and reduction are the defaults."""

    recipe: Recipe | None
    missing: tuple[str, ...] = ()


def plain_recipe(algorithm: Any) -> PlainTwin:
    """The same algorithm as a recipe of `plain`, and which of its parts bring no twin."""
    if not isinstance(algorithm, PolicyGradient):
        return PlainTwin(None, PARTS)
    kind = type(algorithm)
    own = {"estimator": kind.advantages not in TWINS or _overrides(kind, "credit", "_inputs"),
           "objective": _overrides(kind, "loss", "_objective"), "reduction": _overrides(kind, "reduction_of"),
           "critic": _overrides(kind, "_returns") or getattr(kind, "value_loss", PPO.value_loss) is not PPO.value_loss
           or kind.bootstraps_N not in (PolicyGradient.bootstraps_N, PPO.bootstraps_N)}
    twin, names = TWINS.get(kind.advantages, (no_twin, ()))
    bounds = {"low": algorithm.clip_low, "high": algorithm.clip_high}
    bounds |= {"dual": algorithm.dual_clip} if algorithm.objective == "clip" else {}
    rule = asdict(algorithm.filter)
    equal = rule.pop("equal_updates")
    same = {name: getattr(algorithm, name) for name in SAME if hasattr(algorithm, name)}
    widened = frozenset(each for each in (*ADVANTAGE_MASK, *LOSS_MASK) if algorithm.masks.over(each) == "response")
    recipe = Recipe(
        twin, {name: getattr(algorithm, name) for name in names}, getattr(loss, algorithm.objective), bounds,
        normalize=algorithm.rewards.normalize, over=algorithm.rewards.over,
        filter_rule=FilterRule(**rule), equal_updates=equal, widened=widened, **same)
    return PlainTwin(recipe, tuple(part for part in PARTS if own[part]))


def no_twin(lines: Sequence[CreditLine], **settings: Any) -> Found:
    """Stands where an estimator brings no twin."""
    raise NotImplementedError("this estimator has no plain twin: look at `missing` before the recipe is run")


def _overrides(kind: type, *names: str) -> bool:
    return any(getattr(kind, name) is not getattr(PolicyGradient, name) for name in names)
