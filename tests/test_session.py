"""Opening what a config names: where it cannot be opened here, that is said before anything is loaded."""
from __future__ import annotations

import pytest

from workbench.training.config import load_config
from workbench.training.session import open_session
from workbench.types.errors import ConfigError


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused_in_words(device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConfigError, match=f"policy.device = '{device}', and torch .* sees no CUDA device.*workbench doctor"):
        open_session(load_config("frozenlake", {"policy.device": device}))
