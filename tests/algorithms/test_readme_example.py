"""The documented way to add an algorithm, taken at its word: one file, named by module and name."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.linting.credited import batch_of, draw
from tests.plain.recipes import trajectories_with_facts
from workbench.learn.algorithms import Algorithm, LossInputs
from workbench.learn.algorithms.objectives import ClipObjective
from workbench.learn.algorithms.plain_recipe import plain_recipe
from workbench.plain.credit import credit_of
from workbench.training.config import from_dict, load_config, to_dict

ROOT = Path(__file__).resolve().parents[2]


def block_after(comment: str) -> str:
    return re.search(
        rf"<!-- {comment} -->\n```python\n(.*?)```",
        (ROOT / "docs/extend/algorithm.md").read_text(),
        re.DOTALL,
    )[1]


def test_one_file_makes_an_algorithm_that_is_named(tmp_path, monkeypatch):
    """It is configured by module and name, and made of a reference implementation that says the same; so is its objective alone."""
    text = block_after("an algorithm")
    assert text.count("\n") < 40
    (tmp_path / "my_length.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("LENGTH_GRPO", "LengthObjective"):
        kind = f"my_length:{name}"
        config = load_config(
            "frozenlake", {"algorithm.kind": kind, "algorithm.objective.power": 1.0}
        )
        algorithm = config.algorithm
        assert (
            algorithm.name == config.kind_of("algorithm") == kind
            and algorithm.objective.power == 1.0
        )
        assert losses_of_both_sides(algorithm) and not losses_of_both_sides(
            replace(algorithm, objective=Doubled())
        )
        assert from_dict(to_dict(config)) == config
    made = replace(
        load_config("frozenlake"),
        algorithm=sys.modules["my_length"].LENGTH_GRPO(objective={"power": 0.25}),
    )
    assert (
        made.kind_of("algorithm") == "my_length:LENGTH_GRPO"
        and from_dict(to_dict(made)).algorithm.objective.power == 0.25
    )


class Doubled(ClipObjective):
    """Its reference implementation is that of half of it."""

    def loss(self, inputs):
        held = super().loss(inputs)
        return held._replace(loss=2 * held.loss)


def losses_of_both_sides(algorithm: Algorithm) -> bool:
    """Whether the loss of two segments is what the reference implementation says of each."""
    logp, old, advantage = (
        torch.tensor(numbers, dtype=torch.float64)
        for numbers in (
            (-1.0, -2.0, -0.5, -1.5, -0.1),
            (-1.2, -1.9, -0.5, -1.0, -0.2),
            (1.0, 1.0, 1.0, -0.5, -0.5),
        )
    )
    segment, counts = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, True, False, True, True])
    fast = algorithm.loss(
        LossInputs(logp, logp, old, advantage, old, segment, counts_M=counts)
    ).loss_M
    recipe, missing = plain_recipe(algorithm)
    slow = [
        recipe.objective(logp[at], old[at], advantage[at], counts[at]).loss
        for at in (segment == 0, segment == 1)
    ]
    return not missing and torch.allclose(fast, torch.cat(slow))


def test_an_estimator_is_a_function_and_its_reference_implementation():
    names: dict[str, Any] = {}
    exec(block_after("an estimator"), names)
    algorithm, groups = names["RANKS"](estimator={"scale": 0.5}), draw(3, tasks=3, attempts=4)
    batch = batch_of(groups)
    found, (recipe, missing) = algorithm.credit(batch), plain_recipe(algorithm)
    assert not missing
    trajectories = trajectories_with_facts(groups, batch)
    slow = np.concatenate([each.advantage for each in credit_of(trajectories, recipe)])
    assert np.abs(found.advantage_T.numpy() - slow).max() < 1e-12 and found.advantage_T.any()
