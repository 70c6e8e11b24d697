"""The gateway over each engine: the embedded one, vLLM in this process, vLLM as a server. Programs notice no difference."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "engines"))
from vllm_kit import need_vllm  # noqa: E402

import workbench as wb  # noqa: E402
from tests.extensions.agents import field_programs  # noqa: E402
from workbench.training.config import load_config  # noqa: E402
from workbench.values import trajectories_of  # noqa: E402

HERE = "tests.extensions.agents"
VLLM = {"engine.kind": "vllm", "engine.cache_tokens": 32768, "engine.max_context": 1000}
ENGINES = {
    "transformers": {},
    "vllm in this process": VLLM,
    "vllm as a server": VLLM | {"layout.kind": "one_node", "layout.start_deadline_s": 1200.0},
}
SETTINGS = {
    "env.kind": "agent",
    "env.tasks": "world_qa",
    "train.steps": 2,
    "train.tasks_per_step": 2,
    "train.group_size": 3,
    "train.evaluate_every": 0,
    "evaluation.num_tasks": 2,
    "algorithm.minibatches": 1,
}
CASES = [
    pytest.param(name, marks=[] if name.startswith("vllm") else [pytest.mark.full])
    for name in ENGINES
]
# vLLM 0.32 opens a second engine in a process only where nothing imported llvmlite meanwhile (as search does, by numba).
OTHERS = [case for case in CASES if case.values[0] != "vllm in this process"]


def trained(engine: str, program: str, path, **settings):
    if engine.startswith("vllm"):
        need_vllm()
    named = {"env.program": f"{HERE}.{program}"}
    config = load_config("search", SETTINGS | ENGINES[engine] | named | settings)
    return wb.train_here(config, path)


@pytest.mark.parametrize("engine", CASES)
def test_programs_are_trained_and_linted_over_every_engine(engine, tmp_path):
    """Several calls at once, forks and appended histories: what is trained is what this engine sampled, and the trainer's own
    logprobs agree with it."""
    run = trained(engine, "programs:with_helpers", tmp_path / "run")
    groups = run.groups(2)
    trajectories = trajectories_of(groups)
    assert all(trajectory.error is None for trajectory in trajectories)
    spans = [s for t in trajectories for seg in t.segments for s in seg.spans if s.sampled]
    ways = {turn.info["call"]["way"] for t in trajectories for turn in t.turns}
    assert {span.sampling.engine for span in spans} == {engine.split(" ")[0]}
    assert ways >= {"root", "extends"} and len(spans) > 18
    kept = sorted((tmp_path / "run" / "calls").glob("train-000002-*.jsonl"))
    assert sum(len(path.read_text().splitlines()) for path in kept) == len(spans)
    report = wb.lint(run)
    assert report.ok, str(report)
    assert float(run.metrics()["logp_gap_max"].max()) < 1e-3


@pytest.mark.parametrize("engine", OTHERS)
def test_fields_are_followed_over_every_engine(engine, tmp_path):
    """Several answers, logprobs and a stop text: cut to the token, whatever the engine."""
    field_programs.answers.clear()
    run = trained(
        engine, "field_programs:asks_in_every_way", tmp_path / "run", **{"train.steps": 1}
    )
    trajectories = trajectories_of(run.groups(1))
    assert all(trajectory.error is None for trajectory in trajectories)
    report = wb.lint(run)
    assert report.ok, str(report)
    turns = [turn for t in trajectories for turn in t.turns]
    cut = [turn for turn in turns if "stopped" in turn.info["call"]]
    assert cut and all(turn.text.endswith("e") or "e" in turn.text[-8:] for turn in cut)
    assert all(turn.finish == "length" for turn in cut)
    several = [answer for answer in field_programs.answers if len(answer["choices"]) == 3]
    assert several and all(choice["logprobs"] for a in several for choice in a["choices"])
    logps = [e["logprob"] for a in several for e in a["choices"][0]["logprobs"]["content"]]
    assert np.isfinite(logps).all() and max(logps) <= 0.0
