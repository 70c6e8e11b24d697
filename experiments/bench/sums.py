"""A step of a pretrained model, ours and TRL's, beside each other: time of the CPU and peak memory.

The work: sums of two numbers from 1 to 20, judged by the last number of the answer; GRPO, 4 sums x 8 trajectories of at
most 12 tokens, one AdamW update over all weights, which are float32. Each side (SIDES) runs in a process of its own, and
they step in turns.

    python -m experiments.bench.sums FOLDER --steps 8 --seeds 0 1 --sides ours fused trl --out data.json

FOLDER is a Hugging Face model with a chat template. Ours and TRL draw their sums alike, not the same ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GROUPS = 4
GROUP_SIZE = 8
TOKENS = 12
LR = 3e-5
LARGEST = 20
FUSED = {"engine.decode": "fused"}
NATIVE = {
    **FUSED,
    "learner.attention": "native",
    "learner.layers": "native",
    "learner.fused_adamw": True,
}
# What each side asks for beyond the defaults: ours by its settings, TRL by its own. Sides of TRL are named so.
SIDES: dict[str, dict[str, Any]] = {
    "ours": {},
    "fused": FUSED,
    "drafts": {**FUSED, "engine.drafts": 8},
    "attention": {**FUSED, "learner.attention": "native"},
    "native": NATIVE,
    "bf16": {**NATIVE, "engine.dtype": "bfloat16", "learner.precision": "bf16"},
    "trl": {},
    "trl-bf16": {"bf16": True},
    "trl-bf16-32": {
        "bf16": True,
        "per_device_train_batch_size": GROUPS * GROUP_SIZE,
        "gradient_accumulation_steps": 1,
    },
}
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


# ------------------------------------------------------------------------------------------------ the work


def numbers_of(seed: int) -> tuple[int, int]:
    first, second = np.random.default_rng(seed).integers(1, LARGEST + 1, 2)
    return int(first), int(second)


def question(seed: int) -> str:
    first, second = numbers_of(seed)
    return f"What is {first} + {second}? Answer with the number only."


def is_right(seed: int, answer: str) -> bool:
    written = re.findall(r"\d+", answer)
    return bool(written) and int(written[-1]) == sum(numbers_of(seed))


class Sum:
    """One question: the answer ends it."""

    def reset(self, task, dynamics_seed):
        from workbench.values import Message, Observation

        self.seed = task.payload["seed"]
        return Observation((Message("user", question(self.seed)),))

    def step(self, action_text):
        from workbench.values import Message, Observation, StepResult

        right = is_right(self.seed, action_text)
        reply = Observation((Message("user", "Right." if right else "Wrong."),))
        return StepResult(reply, float(right), terminated=True, info={"success": right})


@dataclass(frozen=True)
class Sums:
    """Sums of two numbers from 1 to 20."""

    max_turns: int = 1
    name: ClassVar[str] = "sums"

    def task(self, task_seed):
        from workbench.values import Task

        return Task(f"sums/{task_seed}", "sums", task_seed, {"seed": task_seed})

    def make(self):
        return Sum()

    def random_action(self, env, rng):
        return str(rng.integers(2, 2 * LARGEST + 1))

    def solver_action(self, env, rng):
        return str(sum(numbers_of(env.seed)))


# ------------------------------------------------------------------------------------------------ the two sides


def peak_gb() -> float:
    """Most memory that this process ever held, GB (10^9 bytes)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def ours(folder: str, seed: int, steps: int, more: dict[str, Any], may_go, say) -> None:
    """The workbench's own step, as `train` makes it but for what is written to disk."""
    from workbench.training.config import load_config
    from workbench.training.session import open_session
    from workbench.training.step import train_step

    settings = {
        "policy.name": folder,
        "seed": seed,
        "train.tasks_per_step": GROUPS,
        "train.group_size": GROUP_SIZE,
        "collect.max_turn_tokens": TOKENS,
        "learner.lr": LR,
        **more,
    }
    session = open_session(load_config(Sums(), settings), quiet=True, keeps_first=False)
    say({"ready": True, "peak_gb": peak_gb(), "notes": list(session.engine.notes)})
    for step in range(1, steps + 1):
        may_go()
        wall, cpu = time.perf_counter(), time.process_time()
        outcome = train_step(session, step, start=False)
        say(
            {
                "wall_s": time.perf_counter() - wall,
                "cpu_s": time.process_time() - cpu,
                "rollout_cpu_s": outcome.clock["collect_cpu_s"],
                "peak_gb": peak_gb(),
                "reward": outcome.metrics["reward_mean"],
                "sampled_tokens": int(
                    sum(len(t.segments[0].token_ids) for g in outcome.groups for t in g)
                ),
                "gap": outcome.metrics.get("logp_gap_mean"),
            }
        )


def trl(folder: str, seed: int, steps: int, more: dict[str, Any], may_go, say) -> None:
    """GRPOTrainer on the same sums, with the same settings of GRPO and AdamW."""
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    seeds = [seed * 1_000_000 + index for index in range(steps * GROUPS)]
    rows = [{"prompt": [{"role": "user", "content": question(s)}], "sum": s} for s in seeds]

    def rewards(completions, sum, **_):
        return [
            float(is_right(s, completion[-1]["content"])) for completion, s in zip(completions, sum)
        ]

    class Steps(TrainerCallback):
        def on_step_begin(self, *_, **__):
            may_go()
            self.wall, self.cpu = time.perf_counter(), time.process_time()
            self.rollout = 0.0

        def on_step_end(self, *_, **__):
            found = self.trainer._metrics["train"]["reward"]
            say(
                {
                    "wall_s": time.perf_counter() - self.wall,
                    "cpu_s": time.process_time() - self.cpu,
                    "rollout_cpu_s": self.rollout,
                    "peak_gb": peak_gb(),
                    "reward": float(found[-1]) if found else None,
                }
            )

    class Timed(GRPOTrainer):
        def _generate(self, prompts):
            began = time.process_time()
            result = super()._generate(prompts)
            watch.rollout += time.process_time() - began
            return result

    watch = Steps()
    with tempfile.TemporaryDirectory() as out:
        asked = {
            "per_device_train_batch_size": GROUP_SIZE,
            "gradient_accumulation_steps": GROUPS,
            "bf16": False,
            **more,
        }
        config = GRPOConfig(
            output_dir=out,
            num_generations=GROUP_SIZE,
            max_steps=steps,
            max_completion_length=TOKENS,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            beta=0.0,
            num_iterations=1,
            learning_rate=LR,
            loss_type="dapo",
            adam_beta2=0.95,
            max_grad_norm=1.0,
            lr_scheduler_type="constant",
            use_cpu=True,
            gradient_checkpointing=False,
            report_to=[],
            logging_steps=1,
            save_strategy="no",
            seed=seed,
            shuffle_dataset=False,
            disable_tqdm=True,
            model_init_kwargs={"dtype": "float32"},
            **asked,
        )
        watch.trainer = Timed(
            model=folder,
            args=config,
            train_dataset=Dataset.from_list(rows),
            processing_class=AutoTokenizer.from_pretrained(folder),
            reward_funcs=rewards,
            callbacks=[watch],
        )
        say({"ready": True, "peak_gb": peak_gb()})
        watch.trainer.train()


# ------------------------------------------------------------------------------------------------ processes


class Side:
    """A side in a process of its own; `step` tells it to go, waits, and hands over what it says."""

    def __init__(self, name: str, folder: str, seed: int, steps: int) -> None:
        self.name = name
        arguments = [folder, "--side", name, "--steps", str(steps), "--seeds", str(seed)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "experiments.bench.sums", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **ENVIRONMENT},
        )
        self.started = self._line()

    def step(self) -> dict[str, Any]:
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait(60)


def as_side(name: str, folder: str, seed: int, steps: int) -> None:
    """This process is one side: lines in are leave to go, lines out are what was done."""
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints goes to standard error

    def say(value: dict[str, Any]) -> None:
        print(json.dumps(value), file=lines, flush=True)

    def may_go() -> None:
        if not sys.stdin.readline():
            raise SystemExit(0)

    way = trl if name.startswith("trl") else ours
    way(folder, seed, steps, SIDES[name], may_go, say)


def compare(folder: str, seeds: list[int], steps: int, names: list[str]) -> dict[str, Any]:
    """All sides, a step each in turn; for each seed anew."""
    runs = []
    for seed in seeds:
        sides = [Side(name, folder, seed, steps) for name in names]
        for side in sides:
            print(seed, side.name, json.dumps(side.started), file=sys.stderr, flush=True)
        made: dict[str, list[dict[str, Any]]] = {side.name: [] for side in sides}
        for _ in range(steps):
            for side in sides:
                made[side.name].append(side.step())
                last = made[side.name][-1]
                print(seed, side.name, json.dumps(last), file=sys.stderr, flush=True)
        for side in sides:
            side.close()
        runs.append({"seed": seed, "steps": made})
    return {
        "work": {
            "groups": GROUPS,
            "group_size": GROUP_SIZE,
            "tokens": TOKENS,
            "lr": LR,
            "steps": steps,
            "seeds": seeds,
        },
        "versions": _versions(),
        "summary": {name: summary_of(name, runs) for name in names},
        "times_as_fast": times_as_fast(runs),
        "runs": runs,
    }


def summary_of(name: str, runs: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over all steps but each first one, which warms up; the peak is the largest of all."""
    later = [step for run in runs for step in run["steps"][name][1:]]
    every = [step for run in runs for step in run["steps"][name]]
    return {
        "step_cpu_s": median(step["cpu_s"] for step in later),
        "rollout_cpu_s": median(step["rollout_cpu_s"] for step in later),
        "step_wall_s": median(step["wall_s"] for step in later),
        "peak_gb": max(step["peak_gb"] for step in every),
        "steps_counted": len(later),
    }


def times_as_fast(runs: list[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Side of TRL -> side of ours -> how many times as fast its steps are (CPU seconds, with 95 % limits); steps that were
    made one after the other are compared, each first one left out."""
    from experiments.bench.ratios import paired_ratio

    seconds: dict[str, list[float]] = {}
    for run in runs:
        for name, steps in run["steps"].items():
            seconds.setdefault(name, []).extend(step["cpu_s"] for step in steps[1:])
    theirs = [name for name in seconds if name.startswith("trl")]
    own = [name for name in seconds if name not in theirs]
    return {
        other: {name: asdict(paired_ratio(seconds[other], seconds[name])) for name in own}
        for other in theirs
    }


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {name: version(name) for name in ("torch", "transformers", "trl")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--sides", choices=SIDES, nargs="+", default=["ours", "trl"])
    parser.add_argument("--side", choices=SIDES, help="be this side (started by the others)")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.side:
        return as_side(asked.side, asked.folder, asked.seeds[0], asked.steps)
    made = compare(asked.folder, asked.seeds, asked.steps, asked.sides)
    print(json.dumps(made["summary"], indent=1))
    if asked.out:
        asked.out.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
