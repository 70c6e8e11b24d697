"""The memory of a recipe's learner, measured on tensors without memory: what must lie there is known exactly."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.recipe_memory import step

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = 410_720  # of the shape "tiny": 4 layers of 64, 4,096 words, tied
GB = 1e9


def test_weights_gradients_and_moments_are_counted_to_the_byte():
    found = step("tiny", 64)
    assert found["before"] * GB == pytest.approx(4 * PARAMETERS, rel=1e-9)
    # And the two counters of AdamW's steps, four bytes for each tensor.
    assert found["after"] * GB == pytest.approx(3 * 4 * PARAMETERS, abs=4 * 60)
    assert found["peak"] >= 4 / 3 * found["after"] * 0.99


@pytest.mark.full
def test_activations_grow_with_the_tokens_and_checkpointing_lowers_them():
    short, long = step("tiny", 256), step("tiny", 1024)
    assert short["before"] == long["before"] and long["peak"] > 2.5 * short["peak"]
    assert step("tiny", 1024, checkpointing=True)["peak"] < 0.9 * long["peak"]


@pytest.mark.full
def test_adapters_and_a_reference_take_what_they_must():
    plain = step("tiny", 64)
    assert step("tiny", 64, reference=True)["before"] == pytest.approx(2 * plain["before"])
    few = step("tiny", 64, lora=4)
    assert plain["before"] / 2 < few["before"] < plain["before"], "frozen weights in half precision"
    assert few["after"] - few["before"] < 0.2 * plain["before"], "moments of the adapters alone"


@pytest.mark.full
def test_four_processes_hold_a_quarter_each():
    command = [sys.executable, "-m", "experiments.recipe_memory", "tiny", "--tokens", "64"]
    whole, part = (
        json.loads(
            subprocess.run(
                [*command, "--processes", count],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=True,
            ).stdout
        )
        for count in ("1", "4")
    )
    assert part["before"] == pytest.approx(whole["before"] / 4, rel=0.01)
    assert part["after"] == pytest.approx(whole["after"] / 4, rel=0.01)
