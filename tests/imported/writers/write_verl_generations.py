"""Runs where verl 0.9.1 is installed: the methods of both its trainers that write rollouts, called with a stand-in for
the trainer (a tokenizer, a step number, a thread that writes) and a real DataProto.

    python write_verl_generations.py RECORDED.json OUT_FOLDER
"""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import verl
from transformers import AutoTokenizer
from verl import DataProto
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.trainer.ppo.v1.trainer_base import PPOTrainer


def padded(rows, value, left=False):
    width = max(map(len, rows))
    return torch.tensor(
        [[value] * (width - len(r)) + r if left else r + [value] * (width - len(r)) for r in rows]
    )


def batch_of(rollouts, tokenizer):
    """What the older trainer holds when it writes: prompts padded on the left, responses on the right."""
    prompts = [r["turns"][0]["prompt_ids"] for r in rollouts]
    responses = [whole_of(r)[0] for r in rollouts]
    scores = torch.zeros(len(rollouts), max(map(len, responses)))
    for row, rollout in enumerate(rollouts):
        scores[row, len(responses[row]) - 1] = rollout["reward"]
    truths = np.array([{"ground_truth": f"lake {r['task']}"} for r in rollouts], dtype=object)
    return DataProto.from_dict(
        tensors={
            "prompts": padded(prompts, tokenizer.pad_token_id, left=True),
            "responses": padded(responses, tokenizer.pad_token_id),
            "token_level_scores": scores,
        },
        non_tensors={"reward_model": truths},
    )


def whole_of(rollout):
    """The response of all turns, its mask and its logprobs (0 where nothing was sampled)."""
    ids, mask, logprobs, start = [], [], [], len(rollout["turns"][0]["prompt_ids"])
    for turn in rollout["turns"]:
        between = turn["prompt_ids"][start + len(ids) :]
        ids += between + turn["completion_ids"]
        mask += [0] * len(between) + [1] * len(turn["completion_ids"])
        logprobs += [0.0] * len(between) + turn["logprobs"]
    return ids, mask, logprobs


def trainer_of(cls, tokenizer, step):
    """A stand-in with what the writing methods use, and those methods of `cls` themselves."""
    trainer = SimpleNamespace(
        tokenizer=tokenizer, global_steps=step, _write_generations=cls._write_generations
    )
    trainer._dump_generations = lambda **kwargs: cls._dump_generations(trainer, **kwargs)
    cls._init_dump_executor(trainer)
    return trainer


def main(recorded, out):
    data = json.loads(Path(recorded).read_text())
    rollouts, out = data["rollouts"], Path(out)
    tokenizer = AutoTokenizer.from_pretrained(data["policy"])
    batch = batch_of(rollouts, tokenizer)
    whole = [whole_of(rollout) for rollout in rollouts]
    extra = {  # what a reward manager of one's own may put into reward_extra_info
        "prompt_ids": [json.dumps(r["turns"][0]["prompt_ids"]) for r in rollouts],
        **{
            key: [json.dumps(w[column]) for w in whole]
            for column, key in enumerate(("response_ids", "response_mask", "rollout_log_probs"))
        },
    }
    for step, infos in ((1, {"acc": [r["reward"] for r in rollouts]}), (2, extra)):
        trainer = trainer_of(RayPPOTrainer, tokenizer, step)
        RayPPOTrainer._log_rollout_data(trainer, batch, infos, {}, str(out))
        RayPPOTrainer._shutdown_dump_executor(trainer)
    (out / "1.jsonl").rename(out / "verl_generations_v0.jsonl")
    (out / "2.jsonl").rename(out / "verl_generations_v0_with_ids.jsonl")
    # The newer trainer fetches the same from its queue, decodes likewise and adds the key of each row; called from
    # there.
    trainer = trainer_of(PPOTrainer, tokenizer, 3)
    PPOTrainer._dump_generations(
        trainer,
        inputs=tokenizer.batch_decode(batch.batch["prompts"], skip_special_tokens=True),
        outputs=tokenizer.batch_decode(batch.batch["responses"], skip_special_tokens=True),
        gts=[f"lake {r['task']}" for r in rollouts],
        scores=[r["reward"] for r in rollouts],
        reward_extra_infos_dict={"uid": [f"lake{r['task']}_{r['attempt']}_0" for r in rollouts]},
        dump_path=str(out),
    )
    PPOTrainer._shutdown_dump_executor(trainer)
    (out / "3.jsonl").rename(out / "verl_generations.jsonl")
    print(f"verl {verl.__version__}")


main(*sys.argv[1:])
