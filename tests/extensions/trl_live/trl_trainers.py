"""Small GRPO trainers of TRL, one for each route to a completion: plain generation, tools of an environment, a rollout
function of the user's own. The policies are the shipped ones; a step takes about a second on one core."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

POLICIES = Path(__file__).parents[3] / "data" / "policies"

FACTS = {
    "Mira": "Mira lives in Oslo and keeps two cats.",
    "Tomas": "Tomas works in Lima as a baker.",
    "Ines": "Ines was born in Quito and plays the harp.",
    "Pavel": "Pavel teaches in Riga since spring.",
}


class Library:
    """An environment as TRL's `environment_factory` makes them: its public methods are the tools."""

    def reset(self, name: str = "Mira", **columns: Any) -> str | None:
        self.name, self.calls = name, 0
        return None

    def search(self, query: str) -> str:
        """Search the library.

        Args:
            query: what to look for

        Returns:
            the document that was found
        """
        self.calls += 1
        return FACTS.get(query.split()[0] if query.split() else "", "Nothing was found.")


def policy_path(name: str) -> Path:
    return POLICIES / name


def tokenizer_of(name: str) -> Any:
    from trl.chat_template_utils import qwen3_template

    tokenizer = AutoTokenizer.from_pretrained(policy_path(name))
    tokenizer.response_template = qwen3_template
    return tokenizer


def rows(count: int) -> list[dict[str, Any]]:
    """Questions about people, one for each row."""
    names = list(FACTS)
    return [
        {
            "prompt": [
                {"role": "user", "content": f"Where does {names[k % 4]} live? Question {k}."}
            ],
            "name": names[k % 4],
            "answer": FACTS[names[k % 4]].split(" in ")[1].split()[0],
        }
        for k in range(count)
    ]


def text_of(completion: Any) -> str:
    return (
        completion
        if isinstance(completion, str)
        else "".join(str(m.get("content") or "") for m in completion)
    )


def spread_reward(completions: list[Any], **columns: Any) -> list[float]:
    """A number that differs between completions and depends on each alone."""
    return [(sum(map(ord, text_of(completion))) % 97) / 97 for completion in completions]


def trainer_of(
    folder: Path,
    *,
    policy: str = "search-tiny",
    path: Path | None = None,
    kind: type[GRPOTrainer] = GRPOTrainer,
    reward: Callable[..., list[float | None]] | list[Any] = spread_reward,
    tools: bool = False,
    rollout: Callable[..., Any] | None = None,
    model: Any = None,
    tokenizer: Any = None,
    data: list[dict[str, Any]] | str | None = None,
    environment: type = Library,
    pad: str | None = None,
    adapters: bool = False,
    evaluates: bool = False,
    **settings: Any,
) -> GRPOTrainer:
    """A trainer whose step is `prompts` x `num_generations` completions."""
    torch.manual_seed(0)
    values: dict[str, Any] = dict(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_steps=1,
        max_completion_length=48,
        temperature=1.0,
        learning_rate=1e-3,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        seed=0,
        shuffle_dataset=False,
        disable_tqdm=True,
        logging_steps=1,
        max_tool_calling_iterations=2,
    )
    values |= settings
    doors: dict[str, Any] = {}
    if tools:
        doors["environment_factory"] = environment
    if rollout is not None:
        doors["rollout_func"] = rollout
    if path is not None:
        tokenizer = AutoTokenizer.from_pretrained(path)
    tokenizer = tokenizer or tokenizer_of(policy)
    if pad == "eos":
        tokenizer.pad_token = tokenizer.eos_token
    if adapters:
        from peft import LoraConfig

        doors["peft_config"] = LoraConfig(
            r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0
        )
    if data == "uneven":
        data = [
            row
            | {"prompt": [{"role": "user", "content": row["prompt"][0]["content"] * (1 + k % 3)}]}
            for k, row in enumerate(rows(16))
        ]
    if evaluates:
        doors["eval_dataset"] = Dataset.from_list(rows(24)[16:])  # not among those trained on
    return kind(
        model=model
        or AutoModelForCausalLM.from_pretrained(path or policy_path(policy), dtype=torch.float32),
        reward_funcs=reward,
        args=GRPOConfig(**values),
        processing_class=tokenizer,
        train_dataset=Dataset.from_list(data or rows(16)),
        **doors,
    )
