"""Opening what a config names: where it cannot be opened here, that is said before anything is loaded."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import workbench as wb
from workbench.cli import main
from workbench.look.cells.train import train_here
from workbench.training.config import load_config
from workbench.training.session import LARGE, check_prompts, notes_of, open_session
from workbench.values.errors import ConfigError


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_that_is_not_there_is_refused_in_words(device, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        ConfigError,
        match=f"policy.device = '{device}', and torch .* sees no CUDA device.*workbench doctor",
    ):
        open_session(load_config("frozenlake", {"policy.device": device}))


def test_a_first_prompt_that_does_not_fit_is_refused_before_anything_is_made(tmp_path, capsys):
    narrow = {"collect.max_context": 40, "collect.max_turn_tokens": 30}
    config = load_config("frozenlake", narrow)
    with pytest.raises(
        ConfigError,
        match=r"first prompt of task .* has \d+ tokens, and collect.max_context is 40.*set "
        r"collect.max_context to \d+ or more",
    ):
        train_here(config, tmp_path / "run")
    for ask in (wb.rollout, wb.evaluate):
        with pytest.raises(ConfigError, match="there is no room for an answer"):
            ask(open_session(config))
    for limit in ("collect", "engine"):  # told by the tokenizer alone: no process is started
        with pytest.raises(ConfigError, match="there is no room for an answer"):
            wb.train(load_config("frozenlake", {f"{limit}.max_context": 40}), tmp_path / "run")
    assert not list(tmp_path.iterdir())
    for command in (["train", "--out", str(tmp_path / "run")], ["evaluate"], ["rollout"]):
        settings = [f"--set={key}={value}" for key, value in narrow.items()]
        assert main([command[0], "frozenlake", *command[1:], *settings]) == 2
        assert "there is no room for an answer" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    check_prompts(open_session(load_config("frozenlake")))  # negative control: its own limits


def test_an_engine_without_seeds_and_a_large_model_in_the_embedded_one_on_a_gpu_are_told():
    def said(name, device="cpu", size=10, **more):
        model = SimpleNamespace(
            device=SimpleNamespace(type=device),
            parameters=lambda: [SimpleNamespace(numel=lambda: size)],
        )
        return " ".join(notes_of(SimpleNamespace(name=name, **more), SimpleNamespace(model=model)))

    assert "engine.seeded" in said("vllm", addressed=False) and "R22" in said(
        "vllm", addressed=False
    )
    assert "engine.kind = 'vllm' is for those" in said("transformers", "cuda", LARGE + 1)
    for quiet in (
        said("vllm", addressed=True),
        said("transformers"),
        said("transformers", "cuda", LARGE),
        said("transformers", "cpu", LARGE + 1),
        said("vllm", "cuda", LARGE + 1, addressed=True),
    ):
        assert not quiet
