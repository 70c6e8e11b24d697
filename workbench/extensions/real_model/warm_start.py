"""A warm start: a pretrained model is shown a few games of a mediocre player, so that it answers in the form that is asked
for. What reinforcement teaches beyond that is measured against it, and against more of the same.

Supervised fine-tuning, a named exception of invariant 1: what is trained was written by a demonstrator. It trains the
adapters that the learner's settings name, as the reinforcement that follows does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from workbench.chat import ChatFormat, Conversation
from workbench.engines.policy import Policy, load_policy
from workbench.extensions.real_model.higher_lower import HigherLower
from workbench.learn.adapters import adapted, merged
from workbench.learn.optimizer import named_tensors
from workbench.run.writer import create_folder, make_folder
from workbench.training.checkpoint import safetensors_bytes
from workbench.training.config import Config
from workbench.values import Observation, Sampling
from workbench.values.errors import ConfigError
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds import tasks


@dataclass(frozen=True)
class FineTuning:
    """How demonstrations are learned from: `batch` of them an update, a learning rate that rises over `warmup` updates and
    falls to a tenth over the second half."""

    batch: int = 8
    lr: float = 1e-3
    warmup: int = 4

    def rate_at(self, update: int, updates: int) -> float:
        """The learning rate of update number `update` of `updates`, counted from 0."""
        falling = 2 * (updates - update) / updates
        return self.lr * min(1.0, (update + 1) / self.warmup) * max(0.1, min(1.0, falling))


@dataclass(frozen=True)
class Demonstration:
    """What was shown and what the demonstrator wrote, in turn."""

    observations: tuple[Observation, ...]
    actions: tuple[str, ...]
    success: bool


def demonstrate(family: HigherLower, seed: int, index: int) -> Demonstration:
    """Game number `index` of the careful player, at a training task. A pure function of its arguments."""
    [task] = tasks(family, "train", 1, seed=seed_of(seed, "warm start", "task"), step=index)
    rng = rng_at(seed, "warm start", "demonstrator", index)
    env = family.make()
    observations = [env.reset(task, 0)]
    actions = []
    result = None
    while result is None or not (result.terminated or result.truncated):
        actions.append(family.careful_action(env, rng))
        result = env.step(actions[-1])
        observations.append(result.observation)
    return Demonstration(tuple(observations[:-1]), tuple(actions), bool(result.info["success"]))


def encode(shown: Demonstration, chat: ChatFormat, tokenizer: Any) -> tuple[np.ndarray, np.ndarray]:
    """(token ids [T], True where the demonstrator wrote them [T]), built as a rollout builds them."""
    conversation = Conversation(chat, shown.observations[0])
    for turn, action in enumerate(shown.actions):
        if turn:
            conversation.add_observation(shown.observations[turn])
        ids = [*tokenizer.encode(action, add_special_tokens=False), tokenizer.eos_token_id]
        # Zeros stand where a sampler's logprobs would: nobody reads them.
        conversation.add_action(
            np.array(ids, np.int32),
            np.zeros(len(ids), np.float32),
            finish="stop",
            policy_version=0,
            sampling=Sampling(),
        )
    [segment] = conversation.segments
    return segment.token_ids, segment.eligible


def fine_tune(
    config: Config,
    begun: str | Path,
    out: str | Path,
    *,
    count: int,
    first: int = 0,
    tuning: FineTuning = FineTuning(),
    say: Callable[[str], None] = print,
) -> Path:
    """Write into the new folder `out` the policy `begun` after `count` demonstrations from number `first` on. Returns `out`.

    Raises ConfigError for an environment without a careful player, and for too few demonstrations for one update.
    """
    _check_games(config, count, tuning)
    policy = load_policy(begun, device="cpu")
    chat = ChatFormat.from_tokenizer(policy.tokenizer)
    model = adapted(policy.model, config.learner)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, betas=config.learner.betas, weight_decay=0.0)
    updates = count // tuning.batch
    for update in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = tuning.rate_at(update, updates)
        games = _games(config, first + update * tuning.batch, tuning.batch)
        # Twice as fast where the CPU multiplies bfloat16; there is no sampler that it would have to agree with.
        with torch.autocast("cpu", torch.bfloat16):
            loss = _loss(model, [encode(game, chat, policy.tokenizer) for game in games])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (update + 1) % 8 == 0:
            say(f"fine-tuning: {(update + 1) * tuning.batch} of {count} games, loss {loss:.2f}")
    policy.model.load_state_dict(merged(model, model.state_dict()))
    _save(policy, Path(out))
    return Path(out)


def _games(config: Config, first: int, count: int) -> list[Demonstration]:
    """The games of these numbers: from `first` on, so many."""
    numbers = range(first, first + count)
    return [demonstrate(config.env, config.seed, number) for number in numbers]


def _check_games(config: Config, count: int, tuning: FineTuning) -> None:
    if not isinstance(config.env, HigherLower) or count < tuning.batch:
        raise ConfigError(
            f"a warm start is shown games of higher_lower, at least {tuning.batch} of them; got {count} of "
            f"{config.env.name}"
        )


def _loss(model: Any, examples: list[tuple[np.ndarray, np.ndarray]]) -> torch.Tensor:
    """Mean over all written tokens of the batch, in nats. Padding stands on the right of a causal model: no real token sees it."""
    longest = max(len(ids) for ids, _ in examples)
    ids_BT = torch.zeros(len(examples), longest, dtype=torch.long)
    written_BT = torch.zeros(len(examples), longest, dtype=torch.bool)
    for row, (ids, written) in enumerate(examples):
        ids_BT[row, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
        written_BT[row, : len(ids)] = torch.from_numpy(written)
    hidden = model.model(input_ids=ids_BT[:, :-1]).last_hidden_state
    logits = model.lm_head(hidden[written_BT[:, 1:]])
    return torch.nn.functional.cross_entropy(logits.float(), ids_BT[:, 1:][written_BT[:, 1:]])


def _save(policy: Policy, out: Path) -> None:
    """The policy as a Hugging Face folder: its own files, with the weights that it has now."""
    weights = safetensors_bytes(named_tensors(policy.model), {"format": "pt"})
    make_folder(out.parent)
    create_folder(out, {**policy.contents(), "model.safetensors": weights})
