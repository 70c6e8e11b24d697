"""Runs where TRL 1.16.0 is installed: GRPOTrainer trains the tiny policy for a step and writes its completion table.

    python write_trl_tables.py RECORDED.json OUT_FOLDER

Once as it comes (it generates itself: texts), once with a `rollout_func` that hands out the recorded trajectories and a
reward function that logs their ids, masks and logprobs.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import trl
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

TRAJECTORIES = 3


def whole_of(rollout):
    """The completion of all turns, its mask and its logprobs (0 where nothing was sampled)."""
    ids, mask, logprobs, start = [], [], [], len(rollout["turns"][0]["prompt_ids"])
    for turn in rollout["turns"]:
        between = turn["prompt_ids"][start + len(ids) :]
        ids += between + turn["completion_ids"]
        mask += [0] * len(between) + [1] * len(turn["completion_ids"])
        logprobs += [0.0] * len(between) + turn["logprobs"]
    return ids, mask, logprobs


def rollout_func_of(rollouts):
    """Hands out the recorded trajectories of each task in turn."""
    by_prompt = {}
    for rollout in rollouts:
        by_prompt.setdefault(rollout["turns"][0]["messages"][0]["content"], []).append(rollout)

    def rollout_func(prompts, trainer):
        drawn = {key: iter(values) for key, values in by_prompt.items()}
        taken = [next(drawn[prompt[0]["content"]]) for prompt in prompts]
        whole = [whole_of(rollout) for rollout in taken]
        return {
            "prompt_ids": [r["turns"][0]["prompt_ids"] for r in taken],
            "completion_ids": [w[0] for w in whole],
            "logprobs": [w[2] for w in whole],
            "env_mask": [w[1] for w in whole],
            # under names of their own, for the reward function to log
            "logged_prompt_ids": [r["turns"][0]["prompt_ids"] for r in taken],
            "logged_mask": [w[1] for w in whole],
            "logged_logprobs": [w[2] for w in whole],
            "earned": [r["reward"] for r in taken],
        }

    return rollout_func


def short_answers(completions, **kwargs):
    return [-float(len(completion[0]["content"])) / 100 for completion in completions]


def earned_and_logged(
    completion_ids, log_extra, earned, logged_prompt_ids, logged_mask, logged_logprobs, **kwargs
):
    log_extra("completion_ids", completion_ids)
    log_extra("prompt_ids", logged_prompt_ids)
    log_extra("completion_mask", logged_mask)
    log_extra("logprobs", logged_logprobs)
    return earned


def table(policy, rollouts, reward, rollout_func=None):
    """The path of the table that one step of training wrote."""
    prompts = list(dict.fromkeys(r["turns"][0]["messages"][0]["content"] for r in rollouts))
    folder = Path(tempfile.mkdtemp(prefix="trl-"))
    config = GRPOConfig(
        output_dir=str(folder),
        per_device_train_batch_size=len(prompts) * TRAJECTORIES,
        num_generations=TRAJECTORIES,
        max_steps=1,
        max_completion_length=64,
        log_completions=True,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        seed=0,
        shuffle_dataset=False,
        num_completions_to_print=1,
    )
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(policy),
        reward_funcs=reward,
        args=config,
        processing_class=AutoTokenizer.from_pretrained(policy),
        rollout_func=rollout_func,
        train_dataset=Dataset.from_list(
            [{"prompt": [{"role": "user", "content": text}]} for text in prompts]
        ),
    )
    trainer.train()
    return folder / "completions" / "completions_00001.parquet"


def main(recorded, out):
    data = json.loads(Path(recorded).read_text())
    rollouts, policy = data["rollouts"], data["policy"]
    shutil.copyfile(table(policy, rollouts, short_answers), Path(out) / "trl_completions.parquet")
    shutil.copyfile(
        table(policy, rollouts, earned_and_logged, rollout_func_of(rollouts)),
        Path(out) / "trl_completions_with_ids.parquet",
    )
    print(f"trl {trl.__version__}")


main(*sys.argv[1:])
