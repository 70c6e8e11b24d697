"""An algorithm of production as a recipe of `plain`: the same settings, by name, and the twin of its estimator."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from workbench.learn.algorithms.base import Credit
from workbench.learn.algorithms.masks import ADVANTAGE_MASK, LOSS_MASK
from workbench.learn.batch import Batch
from workbench.plain import credit, loss, rewards
from workbench.types import Group

GROUP = ("grpo", "dr_grpo", "dapo", "gspo", "cispo")
GAE = (credit.gae, ("gamma", "lam", "whiten"))
# name of the algorithm: (its estimator's twin, the settings that the twin takes)
TWINS: dict[str, tuple[Any, tuple[str, ...]]] = {
    **{name: (credit.group_relative, ("normalize_std",)) for name in GROUP},
    **{name: GAE for name in ("ppo", "starpo", "starpo_s")},
    "rloo": (credit.rloo, ()),
    "reinforce": (credit.reinforce, ("gamma", "baseline")),
    "reinforce_pp": (credit.reinforce_pp, ("gamma",)),
    "reinforce_pp_baseline": (credit.reinforce_pp_baseline, ()),
    "gigpo": (credit.gigpo, ("normalize_std", "gamma", "omega")),
    "turn_ppo": (credit.turn_gae, ("gamma", "lam", "whiten")),
    "bilevel_ppo": (credit.bilevel_gae, ("gamma", "lam", "gamma_turn", "whiten")),
}
OTHER = {"estimator", "settings", "objective", "bounds", "normalize", "over", "filter", "filter_rule", "widened",
         "equal_updates"}
SAME = {f.name for f in fields(credit.Recipe)} - OTHER


def recipe_of(algorithm: Any) -> credit.Recipe:
    """The same algorithm."""
    twin, names = TWINS[algorithm.name]
    bounds = {"low": algorithm.clip_low, "high": algorithm.clip_high}
    bounds |= {"dual": algorithm.dual_clip} if algorithm.objective == "clip" else {}
    rule = asdict(algorithm.filter)
    equal = rule.pop("equal_updates")
    same = {name: getattr(algorithm, name) for name in SAME if hasattr(algorithm, name)}
    widened = frozenset(each for each in (*ADVANTAGE_MASK, *LOSS_MASK) if algorithm.masks.over(each) == "response")
    return credit.Recipe(
        twin, {name: getattr(algorithm, name) for name in names}, getattr(loss, algorithm.objective), bounds,
        normalize=algorithm.rewards.normalize, over=algorithm.rewards.over,
        filter_rule=rewards.FilterRule(**rule), equal_updates=equal, widened=widened, **same)


def attempts_with_facts(groups: Sequence[Group], batch: Batch) -> list[rewards.AttemptTokens]:
    """The attempts of these groups, with what models said of them in the batch."""
    found, start = [], 0
    for n, attempt in enumerate(rewards.attempts_of(groups)):
        here = slice(start, start + len(attempt.ids))
        start = here.stop
        facts = {name: getattr(batch, f"{name}_T") for name in ("old_logp", "ref_logp", "value", "rollout_logp")}
        facts = {name: None if fact is None else fact[here].double().numpy() for name, fact in facts.items()}
        final = 0.0 if batch.final_value_N is None else float(batch.final_value_N[n])
        found.append(replace(attempt, **facts, final_value=final))
    return found


def credits_of(attempts: Sequence[rewards.AttemptTokens], given: Credit, algorithm: Any) -> list[credit.AttemptCredit]:
    """A credit of production, attempt by attempt."""
    terms = {"policy": True, "entropy": algorithm.entropy_coef, "kl": algorithm.kl_coef and algorithm.kl_in == "loss",
             "critic": given.return_T is not None}
    found, start = [], 0
    for attempt in attempts:
        here = slice(start, start + len(attempt.ids))
        start = here.stop
        target = np.full(len(attempt.ids), np.nan) if given.return_T is None else given.return_T[here].numpy()
        found.append(credit.AttemptCredit(
            given.advantage_T[here].double().numpy(),
            {term: given.weights_of(term)[here].double().numpy() for term, there in terms.items() if there}, target))
    return found


def flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All attempts end to end [T]."""
    return np.concatenate([np.zeros(0), *parts])
