"""Silent bugs of the league beside those of `tests/extensions/trl_live`: of weights, rewards, credit, losses, evaluations.

Each stands as it would in a user's file or in a trainer: training goes on with it, and nothing is raised.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback
from trl import GRPOTrainer

from tests.extensions.trl_live.trl_trainers import rows, text_of

WANTED_LENGTH = 30  # characters


def written_by_policy(completion: Any) -> str:
    """What the policy wrote of a completion: messages of tools are left out."""
    if isinstance(completion, str):
        return completion
    return text_of([message for message in completion if message.get("role") == "assistant"])


def score_of(text: str) -> float:
    """Between 0 and 1: for vowels, for about 30 characters, and a part that differs from text to text, so that a group goes on
    to differ. A tiny policy learns the first two in some dozen steps."""
    letters = sum(letter.isalpha() for letter in text)
    vowels = sum(letter in "aeiou" for letter in text)
    near = max(0.0, 1 - abs(len(text) - WANTED_LENGTH) / WANTED_LENGTH)
    own = (sum(map(ord, text)) % 97) / 97
    return 0.4 * vowels / (letters + 1) + 0.3 * near + 0.3 * own


def vowel_reward(completions: list[Any], **columns: Any) -> list[float]:
    """The reward of the league's healthy runs."""
    return [score_of(written_by_policy(completion)) for completion in completions]


# ------------------------------------------------------------------------------------------------ weights


def optimizer_of_a_copy(trainer: Any) -> None:
    """The optimizer holds the parameters of a copy: the model never moves."""
    trainer.optimizer = torch.optim.AdamW(copy.deepcopy(trainer.model).parameters(), lr=1e-4)


def updates_undone(trainer: Any) -> None:
    """A callback "restores the best weights" after each step, and the best are always the first."""
    trainer.add_callback(_Restores(trainer.model))


class _Restores(TrainerCallback):
    def __init__(self, model: Any) -> None:
        self.weights = _weights(model)

    def on_optimizer_step(self, args, state, control, model=None, **named):
        model.load_state_dict(self.weights)


def _weights(model: Any) -> dict[str, Any]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


class SamplesWithFirstWeights(GRPOTrainer):
    """What samples is never given new weights, as where a sync does not arrive."""

    def _generate(self, prompts):
        if not hasattr(self, "first_weights"):
            self.first_weights = _weights(self.model)
        now = _weights(self.model)
        self.model.load_state_dict(self.first_weights)
        try:
            return super()._generate(prompts)
        finally:
            self.model.load_state_dict(now)


def of_first_weights(rollout: Callable[..., Any]) -> Callable[..., Any]:
    """The rollout by an engine of its own, which reports log-probabilities and is never given new weights."""
    kept: dict[int, dict[str, Any]] = {}

    def stale(prompts, trainer):
        first = kept.setdefault(id(trainer), _weights(trainer.model))
        now = _weights(trainer.model)
        trainer.model.load_state_dict(first)
        try:
            return rollout(prompts, trainer)
        finally:
            trainer.model.load_state_dict(now)

    return stale


class TrainsPreviousRows(GRPOTrainer):
    """A buffer hands out the rows of the step before."""

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        if not self.model.training:
            return inputs
        before = getattr(self, "rows_before", inputs)
        self.rows_before = inputs
        return before


# ------------------------------------------------------------------------------------------------ rewards


def reward_by_chance(completions, **columns):
    """A judge that draws: the same completion is paid otherwise when it is asked again."""
    return [value + 0.3 * random.random() for value in vowel_reward(completions)]


def cached_by_prompt(trainer) -> None:
    """Scores are cached by prompt: all of a group are paid what its first was."""
    scores: dict[str, float] = {}

    def cached(prompts, completions, **columns):
        pairs = zip(prompts, vowel_reward(completions))
        return [scores.setdefault(str(prompt), value) for prompt, value in pairs]

    trainer.reward_funcs[0] = cached


def scorer_fails_sometimes(trainer) -> None:
    """Every fifth call of the scorer fails; the error is swallowed, and the row earns 0."""
    calls = 0

    def scored(completions, **columns):
        nonlocal calls
        values = []
        for value in vowel_reward(completions):
            calls += 1
            values.append(0.0 if calls % 5 == 0 else value)
        return values

    trainer.reward_funcs[0] = scored


def paid_for_tool_text(completions, **columns):
    """What tools wrote is scored as if the policy had written it."""
    return [score_of(text_of(completion)) for completion in completions]


# ------------------------------------------------------------------------------------------------ credit


class _KeepsRewards(GRPOTrainer):
    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        self.kept_rewards = rewards.nansum(1)
        return rewards


class AdvantagesNotCentred(_KeepsRewards):
    """The baseline is forgotten: a row's advantage is its reward."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = self.kept_rewards.to(output["advantages"])
        return output


class AdvantagesOverTheBatch(_KeepsRewards):
    """Rows are compared with the whole batch instead of their group."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        rewards = self.kept_rewards.to(output["advantages"])
        output["advantages"] = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
        return output


class NegativeAdvantagesDropped(GRPOTrainer):
    """Rows below their group's mean are trained with 0."""

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        output["advantages"] = output["advantages"].clamp(min=0)
        return output


# ------------------------------------------------------------------------------------------------ loss, tokens


class HalfOfTheRows(GRPOTrainer):
    """The second half of the batch is lost on its way to the loss."""

    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        count = len(inputs["completion_ids"])
        return {
            name: value[: count // 2]
            if isinstance(value, torch.Tensor) and value.dim() and len(value) == count
            else value
            for name, value in inputs.items()
        }


def reference_is_the_policy(trainer) -> None:
    """The reference is the very model that is trained: the KL penalty is 0 all along."""
    trainer.ref_model = trainer.model


def kl_of_wrong_sign(trainer) -> None:
    """The KL term drives the policy away from the reference."""
    trainer.beta = -trainer.beta


class OldLogprobsAreNew(GRPOTrainer):
    """Every update of a batch takes its own log-probabilities for the old ones: ratios are always 1."""

    def _compute_loss(self, model, inputs):
        without = {name: value for name, value in inputs.items() if name != "old_per_token_logps"}
        return super()._compute_loss(model, without)


class PromptCutInTraining(GRPOTrainer):
    """Prompts are cut to their last 12 tokens after sampling: the loss conditions on another prompt."""

    def _generate(self, prompts):
        made = list(super()._generate(prompts))
        made[0] = [ids[-12:] for ids in made[0]]
        return tuple(made)


# ------------------------------------------------------------------------------------------------ evaluation


def evaluated_on_training_rows(trainer) -> None:
    """Rows of the training's data set are evaluated on."""
    trainer.eval_dataset = trainer.train_dataset.select(range(8))


class EvaluatesBestOfGroup(GRPOTrainer):
    """An evaluation counts the best of a group for all of it."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        if self.model.training:
            return rewards
        best = rewards.view(-1, self.num_generations_eval, rewards.shape[1]).amax(1, keepdim=True)
        return best.expand(-1, self.num_generations_eval, -1).reshape(rewards.shape)


def with_the_answer() -> list[dict[str, Any]]:
    """Rows whose prompt holds the answer that is asked for, at its end."""
    leaking = []
    for row in rows(16):
        text = f"{row['prompt'][0]['content']} (answer: {row['answer']})"
        leaking.append(row | {"prompt": [{"role": "user", "content": text}]})
    return leaking
