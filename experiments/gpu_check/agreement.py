"""Does the device say what a plain forward pass on the CPU says, and does it say it twice?

Every figure stands beside the limit that it must keep. A figure over its limit fails the part, after all of them were
measured. The weights are those of a shipped policy: random ones say little about large logits.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import re
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.gpu_check.device import Figures, Keep
from experiments.gpu_check.plan import Setting
from workbench.engines import TransformersEngineConfig, open_engine
from workbench.engines.base import Request
from workbench.engines.policy import load_policy
from workbench.learn.algorithms import GRPO
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.learn.config import LearnerConfig
from workbench.learn.learner import Learner
from workbench.learn.update import GradientPass
from workbench.look.cells.credit import with_rewards
from workbench.training.config import load_config
from workbench.training.session import open_session, rollout
from workbench.values import trajectories_of
from workbench.values.errors import WorkbenchError

ROOT = Path(__file__).resolve().parents[2]
POLICY = "search-tiny"
# The most that two computations may differ by: logprobs in nats (largest over all tokens), gradients as a share of their norm.
LIMITS = {
    "engine float32": 1e-3,
    "engine bfloat16": 0.5,
    "engine after sync": 1e-3,
    "learner logprobs fp32": 1e-3,
    "learner gradient fp32": 1e-3,
    "learner gradient bf16": 0.1,
    "packed and padded gradient": 0.1,
}


class Disagreement(WorkbenchError):
    """The device says something else than it must."""


# ------------------------------------------------------------------------------------------------ what others say


def doctor(setting: Setting, keep: Keep) -> Figures:
    """What `workbench doctor` found: how many of each state, and all that is not well."""
    done = subprocess.run(
        [sys.executable, "-m", "workbench.cli", "doctor", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if not done.stdout.startswith("{"):
        raise Disagreement(f"workbench doctor gave no report: {done.stderr[-300:]}")
    report = json.loads(done.stdout)
    states: dict[str, int] = {}
    for finding in report["findings"]:
        states[finding["state"]] = states.get(finding["state"], 0) + 1
    told = ("area", "name", "state")  # facts hold paths of one machine
    unwell = [
        {name: finding[name] for name in told}
        for finding in report["findings"]
        if finding["state"] not in ("ok", "info")
    ]
    return {"ok": report["ok"], "states": states, "findings": unwell}


def tests(setting: Setting, keep: Keep) -> Figures:
    """The suite's tests for a CUDA device. Without one they skip themselves, and that is counted."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-m",
            "gpu",
            *_gpu_tests(),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    last = (done.stdout.strip().splitlines() or ["it printed nothing"])[-1]
    counts = {
        what: int(number)
        for number, what in re.findall(r"(\d+) (passed|failed|skipped|error)", last)
    }
    keep({"counts": counts})
    if done.returncode or not counts:
        raise Disagreement(
            f"pytest -m gpu ended with {done.returncode}: {last}\n{done.stdout[-600:]}"
        )
    if setting.on_gpu and not counts.get("passed"):
        raise Disagreement(f"no test for a CUDA device ran: {last}")
    return {"counts": counts}


def _gpu_tests() -> list[str]:
    """The files that have such tests; collecting all others would take longer than the tests themselves."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return [str(file) for file in files if "mark.gpu" in file.read_text(encoding="utf-8")]


# ------------------------------------------------------------------------------------------------ agreement


def agreement(setting: Setting, keep: Keep) -> Figures:
    """Largest differences between device and CPU, by what was compared, each with its limit."""
    plain = load_policy(POLICY).model
    found: dict[str, float] = {}
    made: Figures = {"limits": LIMITS, "differences": found}
    for dtype in ("float32", "bfloat16"):
        engine = _engine(setting, dtype)
        found[f"engine {dtype}"] = _engine_gap(engine, plain)
        keep(made)
    engine = _engine(setting, "float32")
    moved = {name: tensor * 1.05 for name, tensor in plain.state_dict().items()}
    stale = _sampled(engine)
    engine.sync(moved, 1)
    plain.load_state_dict(moved)
    found["engine after sync"] = _engine_gap(engine, plain)
    made["not synced, for comparison"] = _gap(stale, plain)
    keep(made)
    found |= _learner_differences(setting, made)
    if wrong := [
        name for name, most in LIMITS.items() if name in found and not found[name] <= most
    ]:
        keep(made)
        raise Disagreement(
            ", ".join(f"{name}: {found[name]:.2g} over {LIMITS[name]:.2g}" for name in wrong)
        )
    return made


def _engine(setting: Setting, dtype: str) -> Any:
    policy = load_policy(POLICY, device=setting.device)
    return open_engine(TransformersEngineConfig(dtype=dtype, device=setting.device), policy.model)


def _sampled(
    engine: Any, rows: int = 8, count: int = 24, seed: int = 0
) -> list[tuple[np.ndarray, Any]]:
    """(prompt, completion) of some rows of random ids, in the order of their numbers."""
    prompts = np.random.default_rng(1).integers(5, 400, (rows, 40)).astype(np.int32)
    for row in range(rows):
        request = Request(
            row, f"check#{seed}#{row}", prompts[row], seed + row, count, stop_ids=frozenset()
        )
        engine.submit(request)
    done: dict[int, Any] = {}
    while len(done) < rows:
        done |= {completion.request_id: completion for completion in engine.poll()}
    for row in range(rows):
        engine.release(f"check#{seed}#{row}")
    return [(prompts[row], done[row]) for row in range(rows)]


def _gap(sampled: list[tuple[np.ndarray, Any]], plain: torch.nn.Module) -> float:
    """Largest |logprob of the engine - logprob of a plain forward pass in float32 on the CPU|, nats."""
    worst = 0.0
    for prompt, completion in sampled:
        ids = torch.from_numpy(np.concatenate([prompt, completion.token_ids]).astype(np.int64))[
            None
        ]
        with torch.no_grad():
            logp_TV = plain(input_ids=ids).logits[0].log_softmax(-1)
        at = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
        own = logp_TV[at, ids[0, len(prompt) :]].numpy()
        worst = max(worst, float(np.abs(own - completion.logprobs).max()))
    return worst


def _engine_gap(engine: Any, plain: torch.nn.Module) -> float:
    return _gap(_sampled(engine), plain)


def _trajectories() -> Batch:
    """A batch of the search world, sampled on the CPU: the same for every device. Rewards are 0 and 1 in turn, so that there
    is something to learn."""
    session = open_session(
        load_config("search", {"policy.device": "cpu", "collect.max_turn_tokens": 24}), quiet=True
    )
    groups = rollout(session, 2, group_size=4)
    rewards: dict[tuple[int, int], float] = {}
    for n, trajectory in enumerate(trajectories_of(groups)):
        rewards |= {(n, turn.index): float(n % 2) for turn in trajectory.turns}
    return Batch.from_groups(with_rewards(groups, rewards))


def _learner(device: str, precision: str, layout: str) -> Learner:
    policy = load_policy(POLICY, device=device)
    config = LearnerConfig(precision=precision, layout=layout, micro_batch_tokens=2048)
    return Learner(policy.model, GRPO(), config)


def _gradient(learner: Learner, batch: Batch) -> torch.Tensor:
    """The gradient of one update [all weights], on the CPU, float32."""
    credit = _credit(learner, batch)
    gradient_pass = GradientPass(learner.models, learner.algorithm, batch, credit, credit.trained_T)
    gradient_pass.run(learner.config.micro_batch_tokens)
    gradients = learner.models.policy.gradients()
    return torch.cat([gradients[name].float().cpu().reshape(-1) for name in sorted(gradients)])


def _credit(learner: Learner, batch: Batch) -> Credit:
    """Advantages of 1 to 3 over all sampled tokens. Those of rewards would not do: trajectories of a group are nearly alike, so
    that their shares cancel and what is left is rounding."""
    credit = learner.algorithm.credit(batch)
    pattern_T = 1.0 + (torch.arange(batch.num_tokens) % 3).to(credit.advantage_T.dtype)
    return replace(credit, advantage_T=pattern_T * (credit.weight_T != 0))


def _apart(a: torch.Tensor, b: torch.Tensor) -> float:
    """|a - b| / |b|."""
    return float((a - b).norm() / b.norm())


def _cpu_side() -> bytes:
    """What the CPU says, pickled: the batch, the logprobs of its sampled tokens, the gradient."""
    batch = _trajectories()
    learner = _learner("cpu", "fp32", "padded")
    logp = learner.logprobs(batch, batch.eligible_T)[batch.eligible_T]
    return pickle.dumps((batch, logp, _gradient(learner, batch)))


def _from_the_cpu() -> tuple[Batch, torch.Tensor, torch.Tensor]:
    """`_cpu_side` in a process of its own: accelerate keeps the first device that a process asks it for."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        return pickle.loads(pool.submit(_cpu_side).result())


def _learner_differences(setting: Setting, made: Figures) -> dict[str, float]:
    batch, logp, plain = _from_the_cpu()
    there = _learner(setting.device, "fp32", "padded")
    tokens_T = batch.eligible_T
    own_logp = there.logprobs(batch, tokens_T)[tokens_T]
    half = _gradient(_learner(setting.device, "bf16", "padded"), batch)
    packing = _learner(setting.device, "bf16", "auto")
    made["learner"] = {
        "tokens": batch.num_tokens,
        "trained": int(tokens_T.sum()),
        "packed": packing.models.ranks.packed,
    }
    return {
        "learner logprobs fp32": float((own_logp - logp).abs().max()),
        "learner gradient fp32": _apart(_gradient(there, batch), plain),
        "learner gradient bf16": _apart(half, plain),
        "packed and padded gradient": _apart(_gradient(packing, batch), half),
    }


# ------------------------------------------------------------------------------------------------ determinism


def determinism(setting: Setting, keep: Keep) -> Figures:
    """What comes out equal, bit for bit, when it is done twice (invariant 8), and what does not: a fact, not a failure."""
    equal: dict[str, bool] = {}
    for dtype in ("float32", "bfloat16"):
        engine = _engine(setting, dtype)
        first, again = _sampled(engine), _sampled(engine)
        few = _sampled(engine, rows=3)
        equal[f"sampled ids, {dtype}"] = _same(first, again, "token_ids")
        equal[f"their logprobs, {dtype}"] = _same(first, again, "logprobs")
        equal[f"ids of 3 rows alone and among 8, {dtype}"] = _same(first[:3], few, "token_ids")
        keep({"equal": equal})
    batch, *_ = _from_the_cpu()
    for precision, layout in (("fp32", "padded"), ("bf16", "padded"), ("bf16", "auto")):
        twice = [_moved(_learner(setting.device, precision, layout), batch) for _ in range(2)]
        packed = "packed" if layout == "auto" else "padded"
        equal[f"weights after an update, {precision}, {packed}"] = torch.equal(*twice)
        keep({"equal": equal})
    found = {"equal": equal, "negative control": _control(setting)}
    if any(found["negative control"].values()):
        keep(found)
        raise Disagreement("other seeds gave the same ids, so that equal ids say nothing")
    return found


def _control(setting: Setting) -> Mapping[str, bool]:
    """Other noise must give other ids; else nothing above says anything."""
    engine = _engine(setting, "float32")
    return {
        "other seeds, same ids": _same(_sampled(engine), _sampled(engine, seed=100), "token_ids")
    }


def _same(a: list[Any], b: list[Any], field: str) -> bool:
    pairs = zip(a, b, strict=True)
    return all(np.array_equal(getattr(x, field), getattr(y, field)) for (_, x), (_, y) in pairs)


def _moved(learner: Learner, batch: Batch) -> torch.Tensor:
    learner.update(batch, _credit(learner, batch), step=1)
    weights = learner.weights()
    return torch.cat([weights[name].float().cpu().reshape(-1) for name in sorted(weights)])
