"""What production says, in the form that `plain` takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench.learn.algorithms.base import Credit
from workbench.learn.algorithms.twin import plain_recipe
from workbench.learn.batch import Batch
from workbench.plain import credit, rewards
from workbench.types import Group


def recipe_of(algorithm: Any) -> credit.Recipe:
    """The same algorithm, all parts of which have a plain twin."""
    recipe, missing = plain_recipe(algorithm)
    assert not missing, f"no plain twin of {', '.join(missing)}"
    return recipe


def attempts_with_facts(groups: Sequence[Group], batch: Batch) -> list[rewards.AttemptTokens]:
    """The attempts of these groups, with what models said of them in the batch."""
    found, start = [], 0
    for n, attempt in enumerate(rewards.attempts_of(groups)):
        here = slice(start, start + len(attempt.ids))
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
        found.append(replace(attempt, **facts, final_value=final))
    return found


def credits_of(
    attempts: Sequence[rewards.AttemptTokens], given: Credit, algorithm: Any
) -> list[credit.AttemptCredit]:
    """A credit of production, attempt by attempt."""
    terms = {
        "policy": True,
        "entropy": algorithm.entropy_coef,
        "kl": algorithm.kl_coef and algorithm.kl_in == "loss",
        "critic": given.return_T is not None,
    }
    found, start = [], 0
    for attempt in attempts:
        here = slice(start, start + len(attempt.ids))
        start = here.stop
        target = (
            np.full(len(attempt.ids), np.nan)
            if given.return_T is None
            else given.return_T[here].numpy()
        )
        found.append(
            credit.AttemptCredit(
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
    """All attempts end to end [T]."""
    return np.concatenate([np.zeros(0), *parts])
