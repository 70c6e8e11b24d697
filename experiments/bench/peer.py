"""The peer's side: TRL's GRPOTrainer on the same work, step by step, with the CPU time of its phases.

Two of TRL's own routes to a policy that acts over several turns:

    environments   `environment_factory`: TRL holds the loop and reads tool calls from the chat template
    rollout        `rollout_func`: a loop of the user's, here batched `generate` per turn over the whole history

TRL makes the answer after the last move too, so a trajectory has up to turns + 1 answers, as ours has. Its answers are
capped at the same length as ours (`generation_kwargs`), so that none of its static batches waits for babble.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoTokenizer, GenerationConfig, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from experiments.bench.lake import Lake, TrlLake, calls_in, execute
from experiments.bench.ours import memory, seconds
from experiments.bench.work import PeerSide, StepWork, Work


class TimedTrainer(GRPOTrainer):
    """GRPOTrainer that notes what its rollouts did and what they cost; nothing else is changed."""

    clock = "cpu"  # the device whose clock it goes by

    def _generate(self, prompts):
        before, began = Lake.total_steps, seconds(self.clock)
        self.answers = 0
        result = super()._generate(prompts)
        prompt_ids, completion_ids, tool_mask = result[0], result[1], result[2]
        sampled = (
            sum(map(sum, tool_mask)) if tool_mask is not None else sum(map(len, completion_ids))
        )
        self.noted = {
            "rollout_s": seconds(self.clock) - began,
            "env_steps": Lake.total_steps - before,
            "generated_tokens": int(sampled),
            "trajectory_tokens": sum(map(len, prompt_ids)) + sum(map(len, completion_ids)),
        }
        return result

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        self.answers += len(prompt_ids)
        return super()._generate_single_turn(prompt_ids, *args, **kwargs)

    def _generate_and_score_completions(self, inputs):
        began = seconds(self.clock)
        result = super()._generate_and_score_completions(inputs)
        self.scored_s = seconds(self.clock) - began
        return result


class Steps(TrainerCallback):
    """Waits for leave before each step, and reports after it."""

    def __init__(self, may_go: Callable[[], bool], report: Callable[[StepWork], None]) -> None:
        self.may_go, self.report, self.trainer = may_go, report, None

    def on_step_begin(self, args, state, control, **kwargs):
        if not self.may_go():
            raise SystemExit(0)
        self.began, self.wall = seconds(self.trainer.clock), time.perf_counter()

    def on_step_end(self, args, state, control, **kwargs):
        step_s, noted = seconds(self.trainer.clock) - self.began, self.trainer.noted
        rewards = self.trainer._metrics["train"]["reward"]
        self.report(
            StepWork(
                env_steps=noted["env_steps"],
                generations=self.trainer.answers,
                generated_tokens=noted["generated_tokens"],
                trajectory_tokens=noted["trajectory_tokens"],
                rollout_s=noted["rollout_s"],
                train_s=step_s - self.trainer.scored_s,
                step_s=step_s,
                wall_s=time.perf_counter() - self.wall,
                reward=float(rewards[-1]) if rewards else float("nan"),
                notes=memory(self.trainer.clock),
            )
        )


def config_of(work: Work, side: PeerSide, steps: int, out: Path) -> GRPOConfig:
    """TRL's settings for this work: one AdamW update over all trajectories, no KL term, nothing written."""
    rows = side.micro_rows or work.micro_rows
    return GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=rows,
        gradient_accumulation_steps=work.trajectories // rows,
        num_generations=work.group,
        max_steps=steps,
        max_completion_length=work.completion_tokens,
        max_tool_calling_iterations=work.turns,
        generation_kwargs={"max_new_tokens": work.turn_tokens},
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        beta=0.0,
        num_iterations=1,
        learning_rate=work.lr,
        loss_type="dapo",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
        bf16=side.bf16,
        use_cpu=side.device == "cpu",
        gradient_checkpointing=False,
        report_to=[],
        logging_steps=1,
        save_strategy="no",
        seed=work.seed,
        shuffle_dataset=False,
        disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"},
    )


def make_trainer(
    model: Path, work: Work, side: PeerSide, steps: int, out: Path, callback: Steps
) -> TimedTrainer:
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = []
    for step in range(steps):
        # The rollout route is handed prompts only, so the board's seed travels as their text.
        rows += [
            {
                "prompt": [
                    {"role": "user", "content": str(seed) if side.route == "rollout" else ""}
                ],
                "seed": seed,
            }
            for seed in work.boards(step)
        ]
    if side.route == "environments":
        doors: dict[str, Any] = {"environment_factory": TrlLake}
    else:
        doors = {
            "rollout_func": lambda prompts, trainer: own_loop(prompts, trainer, tokenizer, work),
            "reward_funcs": score,
        }
    trainer = TimedTrainer(
        model=str(model),
        args=config_of(work, side, steps, out),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        callbacks=[callback],
        **doors,
    )
    trainer.clock, callback.trainer = side.device, trainer
    return trainer


def score(completions, score=None, **kwargs) -> list[float]:
    """The reward that `own_loop` has handed on."""
    return list(score)


@torch.no_grad()
def own_loop(prompts, trainer: TimedTrainer, tokenizer, work: Work) -> dict[str, Any]:
    """A user's loop for `rollout_func`: each turn one padded `generate` over the histories of all that still play."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    lakes = [Lake() for _ in prompts]
    first = [
        lake.reset(int(prompt[-1]["content"]), work.turns) for lake, prompt in zip(lakes, prompts)
    ]
    histories = [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": text}],
                tools=[TrlLake().move],
                add_generation_prompt=True,
                tokenize=True,
                return_dict=False,
            )
        )
        for text in first
    ]
    lengths, masks = [len(history) for history in histories], [[] for _ in histories]
    settings = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=work.turn_tokens,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    live = list(range(len(histories)))
    model.eval()
    for turn in range(work.turns + 1):
        trainer.answers += len(live)
        longest = max(len(histories[i]) for i in live)
        ids = torch.tensor(
            [[tokenizer.pad_token_id] * (longest - len(histories[i])) + histories[i] for i in live]
        )
        seen = (
            torch.arange(longest)[None]
            >= torch.tensor([longest - len(histories[i]) for i in live])[:, None]
        ).long()
        answers = model.generate(
            input_ids=ids.to(model.device),
            attention_mask=seen.to(model.device),
            generation_config=settings,
        )[:, longest:].tolist()
        playing = []
        for i, answer in zip(live, answers):
            if tokenizer.eos_token_id in answer:
                answer = answer[: answer.index(tokenizer.eos_token_id) + 1]
            histories[i] += answer
            masks[i] += [1] * len(answer)
            calls = calls_in(tokenizer.decode(answer), work.babble)
            if not calls or turn == work.turns:
                continue
            reply = trainer._get_tool_suffix_ids(
                [
                    {"role": "tool", "name": name, "content": execute(lakes[i], name, arguments)}
                    for name, arguments in calls
                ]
            )
            histories[i] += reply
            masks[i] += [0] * len(reply)
            playing.append(i)
        live = playing
        if not live:
            break
    model.train()
    return {
        "prompt_ids": [history[:n] for history, n in zip(histories, lengths)],
        "completion_ids": [history[n:] for history, n in zip(histories, lengths)],
        "logprobs": None,
        "env_mask": masks,
        "score": [lake.reward for lake in lakes],
    }
