"""TRL's trainers leave nothing behind for the tests that follow in the same process."""

from __future__ import annotations

import pytest
from accelerate.state import AcceleratorState


@pytest.fixture(autouse=True)
def no_precision_is_left():
    """Accelerate's precision is one for the whole process: a trainer in bf16 would stop every learner after it."""
    yield
    if AcceleratorState._shared_state.get("_mixed_precision", "no") != "no":
        AcceleratorState._reset_state()
