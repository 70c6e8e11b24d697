"""What production says, in the form that `plain` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.learn.algorithms.base import Credit
from workbench.learn.algorithms.plain_recipe import plain_recipe
from workbench.learn.batch import Batch
from workbench.plain import credit, rewards
from workbench.values import Group


def recipe_of(algorithm: Any) -> credit.Recipe:
    """The same algorithm, all parts of which have a reference implementation."""
    recipe, missing = plain_recipe(algorithm)
    assert not missing, f"no reference implementation of {', '.join(missing)}"
    return recipe


def trajectories_with_facts(
    groups: Sequence[Group], batch: Batch
) -> list[rewards.TrajectoryTokens]:
    """The trajectories of these groups, with what models said of them in the batch."""
    found, start = [], 0
    for n, trajectory in enumerate(rewards.trajectory_tokens_of(groups)):
        here = slice(start, start + len(trajectory.ids))
        start = here.stop
        facts = {
            name: getattr(batch, f"{name}_T")
            for name in ("old_logp", "ref_logp", "value", "rollout_logp")
        }
        facts = {
            name: None if fact is None else fact[here].double().numpy()
            for name, fact in facts.items()
        }
        final = 0.0 if batch.final_value_N is None else float(batch.final_value_N[n])
        found.append(replace(trajectory, **facts, final_value=final))
    return found


def credits_of(
    trajectories: Sequence[rewards.TrajectoryTokens], given: Credit, algorithm: Any
) -> list[credit.TrajectoryCredit]:
    """A credit of production, trajectory by trajectory."""
    terms = {
        "policy": True,
        "entropy": algorithm.entropy_coef,
        "kl": algorithm.reference.kl_coef and algorithm.reference.kl_in == "loss",
        "critic": given.return_T is not None,
    }
    found, start = [], 0
    for trajectory in trajectories:
        here = slice(start, start + len(trajectory.ids))
        start = here.stop
        target = (
            np.full(len(trajectory.ids), np.nan)
            if given.return_T is None
            else given.return_T[here].numpy()
        )
        found.append(
            credit.TrajectoryCredit(
                given.advantage_T[here].double().numpy(),
                {
                    term: given.weights_of(term)[here].double().numpy()
                    for term, there in terms.items()
                    if there
                },
                target,
            )
        )
    return found


def flat(parts: Sequence[np.ndarray]) -> np.ndarray:
    """All trajectories end to end [T]."""
    return np.concatenate([np.zeros(0), *parts])
