"""The field's other names for our settings: what somebody who comes from TRL, verl, OpenRLHF or a paper writes first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.values.errors import nearest

# Last word of what was written -> our keys, the likeliest first. tests/test_words.py holds every one to be a setting.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "learning_rate": ("learner.lr",),
    "lr": ("learner.lr", "critic.lr"),
    "critic_lr": ("critic.lr",),
    "batch_size": ("train.tasks_per_step", "train.group_size", "learner.micro_batch_tokens"),
    "train_batch_size": ("train.tasks_per_step",),
    "rollout_batch_size": ("train.tasks_per_step",),
    "per_device_train_batch_size": ("learner.micro_batch_tokens",),
    "micro_batch_size": ("learner.micro_batch_tokens",),
    "mini_batch_size": ("algorithm.minibatch_size", "algorithm.minibatches"),
    "ppo_mini_batch_size": ("algorithm.minibatch_size", "algorithm.minibatches"),
    "gradient_accumulation_steps": ("learner.micro_batch_tokens",),
    "num_generations": ("train.group_size",),
    "n_samples_per_prompt": ("train.group_size",),
    "samples_per_prompt": ("train.group_size",),
    "n": ("train.group_size",),
    "group": ("train.group_size",),
    "max_steps": ("train.steps",),
    "num_steps": ("train.steps",),
    "total_steps": ("train.steps",),
    "iterations": ("train.steps",),
    "num_train_epochs": ("train.steps",),
    "epochs": ("train.steps", "algorithm.epochs"),
    "ppo_epochs": ("algorithm.epochs",),
    "num_iterations": ("algorithm.epochs",),
    "mu": ("algorithm.epochs",),
    "eval_steps": ("train.evaluate_every",),
    "eval_every": ("train.evaluate_every",),
    "test_freq": ("train.evaluate_every",),
    "save_steps": ("train.checkpoint_every",),
    "save_freq": ("train.checkpoint_every",),
    "discount": ("algorithm.estimator.gamma", "algorithm.estimator.gamma_turn"),
    "discount_factor": ("algorithm.estimator.gamma", "algorithm.estimator.gamma_turn"),
    "lambda": ("algorithm.estimator.lam",),
    "gae_lambda": ("algorithm.estimator.lam",),
    "clip": ("algorithm.objective.clip_low", "algorithm.objective.clip_high"),
    "epsilon": ("algorithm.objective.clip_low", "algorithm.objective.clip_high"),
    "cliprange": ("algorithm.objective.clip_low", "algorithm.objective.clip_high"),
    "clip_range": ("algorithm.objective.clip_low", "algorithm.objective.clip_high"),
    "clip_ratio": ("algorithm.objective.clip_low", "algorithm.objective.clip_high"),
    "epsilon_high": ("algorithm.objective.clip_high",),
    "cliprange_value": ("algorithm.critic.value_clip",),
    "vf_coef": ("critic.value_coef",),
    "value_loss_coef": ("critic.value_coef",),
    "beta": ("algorithm.reference.kl_coef",),
    "kl": ("algorithm.reference.kl_coef",),
    "kl_beta": ("algorithm.reference.kl_coef",),
    "init_kl_coef": ("algorithm.reference.kl_coef",),
    "kl_loss_coef": ("algorithm.reference.kl_coef",),
    "ent_coef": ("algorithm.entropy_coef",),
    "entropy": ("algorithm.entropy_coef",),
    "entropy_bonus": ("algorithm.entropy_coef",),
    "scale_rewards": ("algorithm.estimator.normalize_std",),
    "loss_type": ("algorithm.reduction",),
    "advantage_estimator": ("algorithm.kind",),
    "adv_estimator": ("algorithm.kind",),
    "algo": ("algorithm.kind",),
    "max_new_tokens": ("collect.max_turn_tokens",),
    "max_tokens": ("collect.max_turn_tokens", "collect.max_context"),
    "max_completion_length": ("collect.max_turn_tokens",),
    "response_length": ("collect.max_turn_tokens",),
    "max_prompt_length": ("collect.max_context",),
    "max_seq_len": ("collect.max_context",),
    "max_length": ("collect.max_context",),
    "model": ("policy.name",),
    "model_name": ("policy.name",),
    "model_path": ("policy.name",),
    "model_name_or_path": ("policy.name",),
    "bf16": ("learner.precision",),
    "torch_dtype": ("policy.dtype",),
    "backend": ("engine.kind",),
    "use_vllm": ("engine.kind",),
    "gradient_checkpointing": ("learner.activation_checkpointing",),
    "enable_gradient_checkpointing": ("learner.activation_checkpointing",),
    "lora_r": ("learner.lora_rank",),
    "r": ("learner.lora_rank",),
    "target_modules": ("learner.lora_targets",),
    "use_lora": ("learner.lora_rank",),
    "use_peft": ("learner.lora_rank",),
    "adapter": ("learner.lora_rank",),
    "grad_clip": ("learner.max_grad_norm",),
    "clip_grad": ("learner.max_grad_norm",),
    "warmup_steps": ("learner.warmup_updates",),
    "warmup": ("learner.warmup_updates",),
    "wd": ("learner.weight_decay",),
    "adam_betas": ("learner.betas",),
    "num_workers": ("collect.env_workers",),
    "timeout": ("collect.env_deadline_s",),
    "world_size": ("learner.num_processes",),
    "num_gpus": ("learner.num_processes",),
    "random_seed": ("seed",),
    "env_name": ("env.kind",),
    "environment": ("env.kind",),
}


def meant(key: str, known: Iterable[str]) -> str:
    """What to say of a key that is none: the settings that the field calls so, those whose last word it is, else the
    nearest in letters."""
    known = sorted(known)
    word = key.rpartition(".")[2].lower().replace("-", "_")
    names = [name for name in OTHER_NAMES.get(word, ()) if name in known]
    if not names and key != word:
        names = [name for name in known if name.rpartition(".")[2] == word][:3]
    if names:
        return f"did you mean {' or '.join(map(repr, names))}?"
    return nearest(key, known)
