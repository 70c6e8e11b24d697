"""The documented way to add an algorithm, taken at its word: one file, one line, in a copy of the tree."""
from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pytest
import torch

from tests.linting.credited import batch_of, draw
from tests.mutants.run import copy_tree
from tests.plain.recipes import attempts_with_facts
from workbench.learn.algorithms import Advantages, Algorithm, CreditInputs, Estimator, LossInputs
from workbench.learn.algorithms.twin import plain_recipe
from workbench.plain.credit import CreditLine, Found, credit_of
from workbench.types.settings import above

ROOT = Path(__file__).resolve().parents[2]


def block_after(comment: str) -> str:
    return re.search(rf"<!-- {comment} -->\n```python\n(.*?)```", (ROOT / "docs/extend/algorithm.md").read_text(), re.DOTALL)[1]


@pytest.mark.full
def test_one_file_and_one_line_make_an_algorithm(tmp_path):
    """It is configured, made of a plain twin that says the same, and held to every property."""
    text = block_after("an algorithm")
    assert text.count("\n") < 40
    copy_tree(ROOT, tmp_path / "tree")
    room = tmp_path / "tree" / "workbench" / "learn" / "algorithms"
    (room / "length.py").write_text(text)
    table, line = (room / "named.py").read_text(), "ALGORITHMS: dict[str, Algorithm] = {each.name: each for each in (\n"
    assert table.count(line) == 1
    (room / "named.py").write_text(table.replace(
        line, "from workbench.learn.algorithms.length import LENGTH_GRPO\n\n" + line + block_after("its line in the table")))
    says = ("import pytest, sys; from workbench.training.config import load_config; "
            "from tests.algorithms.test_readme_example import losses_of_both_sides; "
            "algorithm = load_config('frozenlake', {'algorithm.kind': 'length_grpo', 'algorithm.power': 1.0}).algorithm; "
            "print(algorithm.name, algorithm.power, losses_of_both_sides(algorithm)); "
            "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'tests/algorithms/test_properties.py', "
            "'-k', 'length_grpo']))")
    told = subprocess.run([sys.executable, "-c", says], cwd=tmp_path / "tree", capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(tmp_path / "tree"), "PYTHONDONTWRITEBYTECODE": "1"})
    assert told.returncode == 0, told.stdout + told.stderr
    assert "length_grpo 1.0 True" in told.stdout
    assert int(re.search(r"(\d+) passed", told.stdout)[1]) >= 8  # every property that holds for group baselines, too


def losses_of_both_sides(algorithm: Algorithm) -> bool:
    """Whether the loss of two segments is what the plain twin says of each."""
    logp, old, advantage = (torch.tensor(numbers, dtype=torch.float64) for numbers in (
        (-1.0, -2.0, -0.5, -1.5, -0.1), (-1.2, -1.9, -0.5, -1.0, -0.2), (1.0, 1.0, 1.0, -0.5, -0.5)))
    segment, counts = torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, True, False, True, True])
    fast = algorithm.loss(LossInputs(logp, logp, old, advantage, old, segment, counts_M=counts)).loss_M
    recipe, missing = plain_recipe(algorithm)
    slow = [recipe.objective(logp[at], old[at], advantage[at], counts[at]).loss for at in (segment == 0, segment == 1)]
    return not missing and torch.allclose(fast, torch.cat(slow))


def test_an_estimator_is_a_function_and_its_plain_twin():
    names: dict[str, Any] = {"Annotated": Annotated, "above": above, "Sequence": Sequence, "np": np, "CreditLine": CreditLine,
                             "Found": Found, "CreditInputs": CreditInputs, "Advantages": Advantages, "Estimator": Estimator,
                             "Algorithm": Algorithm}
    exec(block_after("an estimator"), names)
    algorithm, groups = names["RANKS"](scale=0.5), draw(3, tasks=3, attempts=4)
    batch = batch_of(groups)
    found, (recipe, missing) = algorithm.credit(batch), plain_recipe(algorithm)
    assert not missing
    attempts = attempts_with_facts(groups, batch)
    slow = np.concatenate([each.advantage for each in credit_of(attempts, recipe)])
    assert np.abs(found.advantage_T.numpy() - slow).max() < 1e-12 and found.advantage_T.any()
