"""What one GPU does is measured by code that runs on a CPU too: the same parts, on a model of no size (`make bench-gpu`)."""

from __future__ import annotations

import json

import pytest

from experiments.bench import gpu
from experiments.bench.policy import SHAPES

ENGINES = ("embedded", "vllm", "server")


def test_the_shapes_are_qwen2_5s_sizes():
    """Published: 0.49, 1.54 and 7.62 billion parameters; counted from the shape, without biases and norms."""

    def parameters(shape):
        size = shape.heads * shape.head_dim + 2 * shape.kv_heads * shape.head_dim
        layer = (
            shape.hidden * size
            + shape.heads * shape.head_dim * shape.hidden
            + 3 * shape.hidden * shape.intermediate
        )
        return shape.layers * layer + shape.embeddings * shape.hidden * (1 if shape.tied else 2)

    assert [round(parameters(SHAPES[name]) / 1e9, 2) for name in ("0.5b", "1.5b", "7b")] == [
        0.49,
        1.54,
        7.62,
    ]


def test_what_did_not_run_says_why_and_gets_no_figure(monkeypatch):
    monkeypatch.setattr(gpu.importlib.util, "find_spec", lambda name: None)
    assert [gpu.measured("tiny", "cpu", part) for part in ("vllm", "server", "bare")] == [
        {"not_run": "vllm is not installed here"}
    ] * 3
    found = {
        "machine": {"device": "CPU", "torch": "2", "vllm": "not installed"},
        "shapes": {
            "0.5b": {
                "embedded": {"decode_tokens_per_s": 50.0, "mfu": 0.25},
                "vllm": {"not_run": "memory"},
                "bare": {"decode_tokens_per_s": 200.0},
            }
        },
    }
    words = "\n".join(gpu.in_words(found))
    assert (
        "vllm      not run: memory" in words
        and "(25% of bare vLLM)" in words
        and words.count("of bare vLLM") == 1
    )


def test_a_part_that_ends_in_an_error_is_not_run(monkeypatch):
    monkeypatch.setattr(gpu.sys, "executable", "/bin/false")
    assert gpu.measured("tiny", "cpu", "embedded") == {
        "not_run": "it ended with status 1: it said nothing"
    }


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit):
        gpu.main([])
    assert "--device cpu --shapes tiny" in capsys.readouterr().err


@pytest.mark.full
def test_every_part_runs_on_the_cpu(tmp_path):
    """All but what needs vLLM where that is not installed; with it (.venv-vllm) these too."""
    out = tmp_path / "gpu.json"
    assert gpu.main(["--device", "cpu", "--shapes", "tiny", "--json", str(out)]) == 0
    parts = json.loads(out.read_text())["shapes"]["tiny"]
    assert list(parts) == list(gpu.PARTS)
    for part, figures in parts.items():
        if figures.get("not_run") == "vllm is not installed here":
            assert part != "embedded"
            continue
        assert "not_run" not in figures, f"{part}: {figures}"
        assert (
            figures["decode_tokens"] == gpu.ON_CPU.rows * gpu.ON_CPU.answer
            and figures["decode_tokens_per_s"] > 0
        )
        if part in ENGINES:
            assert (
                0 < figures["mfu"] < 1
                and figures["sync_s"] > 0
                and figures["step_s"] > 0
                and figures["train_tokens"] > 0
            )
