"""A real step of training in this process; prints the most memory it ever had (bytes).

python -m tests.memory_run PRESET KEY=VALUE ...
python -m tests.memory_run --json FILE             seven such runs beside one measured step: docs/evidence/speed.md
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SMALL = {
    "train.steps": 1,
    "train.tasks_per_step": 2,
    "train.group_size": 4,
    "evaluation.num_tasks": 4,
    "env.max_turns": 2,
}
PEAK = "peak:"
AS_IT_IS = {
    "train.steps": 1
}  # with its evaluations of 512 tasks, which are most of what a preset holds
RUNS = {
    "preset frozenlake with its evaluations of 512 tasks": ("frozenlake", AS_IT_IS),
    "frozenlake-ppo": ("frozenlake-ppo", AS_IT_IS),
    "bandit": ("bandit", AS_IT_IS),
}
OTHERWISE = {
    "one of two processes that share the weights": {
        "learner.num_processes": 2,
        "learner.sharding": "full",
    },
    "adapters of rank 8": {"learner.lora_rank": 8},
    "adapters of rank 8, micro-batches of 2,048 tokens": {
        "learner.lora_rank": 8,
        "learner.micro_batch_tokens": 2048,
    },
}
LARGER = "a step of 26 million random parameters, vocabulary 24,000, almost no evaluation"


def larger_model(folder):
    """26 million parameters over the tiny policy's tokenizer, whose vocabulary is filled up to 24,000; the settings of a
    small run with it."""
    import torch
    from transformers import AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

    from workbench.engines.policy import SHIPPED

    shipped = SHIPPED / "frozenlake-tiny"
    folder.mkdir()
    AutoTokenizer.from_pretrained(shipped).save_pretrained(folder)
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    first = 1 + max([*words.values(), *(added["id"] for added in tokenizer["added_tokens"])])
    words.update({f"w{number}": number for number in range(first, 24_000)})
    file.write_text(json.dumps(tokenizer))
    for template in shipped.glob("*.jinja"):
        shutil.copy(template, folder)
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=24_000,
            hidden_size=320,
            intermediate_size=960,
            num_hidden_layers=8,
            num_attention_heads=5,
            num_key_value_heads=5,
            max_position_embeddings=2048,
            bos_token_id=None,
            eos_token_id=482,
            pad_token_id=480,
        )
    ).save_pretrained(folder)
    return {
        **SMALL,
        "policy.name": str(folder),
        "collect.max_turn_tokens": 48,
        "learner.micro_batch_tokens": 1024,
        "algorithm.entropy_coef": 0.01,
    }  # random weights earn nothing: without it no update would be made


def step_and_run(settings, preset="frozenlake"):
    """(by one measured step, by the run) peak bytes of a run of one step, each in processes of its own: the largest of them."""
    from workbench.extensions.doctor.plan import plan
    from workbench.training.config import load_config

    written = [f"{key}={value}" for key, value in settings.items()]
    count = settings.get("learner.num_processes", 1)
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(count)]
    start = [sys.executable, *(ranks if count > 1 else ()), "-m", "tests.memory_run"]
    done = subprocess.run(
        [*start, preset, *written], cwd=ROOT, text=True, capture_output=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    peaks = [line for line in done.stdout.splitlines() if line.startswith(PEAK)]
    run = max(int(line.removeprefix(PEAK)) for line in peaks)
    measured = plan(load_config(preset, settings))
    step = max(measured.need(phase, "host") for phase in measured.peaks)
    print(
        f"a step {step / 1e6:.0f} MB, the run {run / 1e6:.0f} MB: {step / run - 1:+.1%}", flush=True
    )
    return step, run


def table(file: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        runs = RUNS | {LARGER: ("frozenlake", larger_model(Path(folder) / "larger"))}
        larger = runs[LARGER][1]
        for name, settings in OTHERWISE.items():
            runs[f"the same, {name}"] = ("frozenlake", larger | settings)
        rows = []
        for name, (preset, settings) in runs.items():
            step, run = step_and_run(settings, preset)
            rows.append({"planned": step, "measured": run, "run": name})
    file.write_text(json.dumps({"rows": rows}, indent=1) + "\n", encoding="utf-8")


def main(preset: str, *settings: str) -> None:
    from workbench.look.cells.train import train_here
    from workbench.training.config import load_config

    config = load_config(preset, dict(setting.split("=", 1) for setting in settings))
    with tempfile.TemporaryDirectory() as folder:  # of several processes the first one's is used
        train_here(config, Path(folder) / "run")
    # Not ru_maxrss: a process that was forked from a large one starts with that one's.
    print(PEAK, 1024 * int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]))


if __name__ == "__main__":
    table(Path(sys.argv[2])) if sys.argv[1] == "--json" else main(*sys.argv[1:])
