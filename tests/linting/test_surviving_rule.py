"""R36: how much of an update is left in the dtype that the engine samples in."""

from __future__ import annotations

import pytest
import torch

from workbench.basics.findings import ERROR, NOTE
from workbench.linting import RULES, Evidence, check
from workbench.linting.surviving import OF_EACH, rounded, some_of

WEIGHTS = {
    "a": 0.02 * torch.randn((200, 300), generator=torch.Generator().manual_seed(0)),
    "b": 0.02 * torch.randn((100, 40), generator=torch.Generator().manual_seed(1)),
    "c": 0.02 * torch.randn(9000, generator=torch.Generator().manual_seed(2)),
}


def moved(by: float) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: w + by * torch.sign(torch.randn(w.shape, generator=generator))
        for name, w in WEIGHTS.items()
    }


def ask(by: float, dtype: str = "bfloat16"):
    found = rounded(some_of(WEIGHTS), some_of(moved(by)), dtype)
    return found, check(Evidence(rounded=found, step=1), [RULES["R36"]])["R36"]


@pytest.mark.parametrize(("by", "severity"), [(1e-3, None), (1e-6, NOTE), (1e-9, ERROR)])
def test_a_small_update_is_a_note_and_one_of_which_nothing_is_left_an_error(by, severity):
    found, answer = ask(by)
    assert found.changed > 10_000 and answer.looked == found.changed
    assert [finding.severity for finding in answer.findings] == (
        [] if severity is None else [severity]
    )


def test_its_figures_are_counted_on_the_grid():
    found, answer = ask(1e-6)
    exact = [
        (some_of(moved(1e-6))[name].bfloat16() != some_of(WEIGHTS)[name].bfloat16()).sum()
        for name in WEIGHTS
    ]
    assert found.moved == int(sum(exact)) and 0.003 < found.moved / found.changed < 0.2
    assert f"{found.moved:,} ({found.moved / found.changed:.2%})" in answer.findings[0].what
    assert (
        0 < found.cosine < 0.5 < ask(1e-3)[0].cosine
    )  # of a small update the engine sees mostly noise


def test_float16_keeps_more_than_bfloat16():
    assert ask(1e-6, "float16")[0].moved > 2 * ask(1e-6)[0].moved


def test_few_weights_of_each_tensor_are_looked_at_always_the_same():
    some = some_of(WEIGHTS)
    assert all(len(values) <= OF_EACH for values in some.values())
    assert all(torch.equal(values, some_of(WEIGHTS)[name]) for name, values in some.items())


def test_an_engine_in_float32_is_not_asked():
    assert check(Evidence(), [RULES["R36"]])["R36"].status == "not checked"
