"""A batch of verl as its trainer has it after the advantage step, and silent bugs in one, each with a legitimate twin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

GROUPS = 3
ROLLOUTS = 4
PROMPT = 6
RESPONSE = 14
PAD = 0


def tensors(seed: int = 0, tools: bool = True) -> dict[str, torch.Tensor]:
    """Padded as verl pads: prompts left, responses right. Rows of even number call a tool, whose tokens are not trained and
    have the logprob 0."""
    rng = np.random.default_rng(seed)
    rows = GROUPS * ROLLOUTS
    prompts = np.zeros((rows, PROMPT), np.int64)
    responses = np.zeros((rows, RESPONSE), np.int64)
    attended = np.zeros((rows, PROMPT + RESPONSE), np.int64)
    mask = np.zeros((rows, RESPONSE), np.int64)
    own = np.zeros((rows, RESPONSE))
    scores = np.zeros((rows, RESPONSE))
    for row in range(rows):
        before = 3 + row // ROLLOUTS
        length = 8 + row % 5
        prompts[row, PROMPT - before :] = 10 + row // ROLLOUTS + np.arange(before)
        responses[row, :length] = rng.integers(20, 90, length)
        attended[row, PROMPT - before : PROMPT + length] = 1
        mask[row, :length] = 1
        own[row, :length] = -rng.uniform(0.2, 2.0, length)
        if tools and row % 2 == 0:
            mask[row, 3:6] = 0
        scores[row, length - 1] = float(rng.integers(0, 2)) + 0.25 * (row % 3)
    own_logprobs = torch.tensor(own, dtype=torch.float32)
    trained = torch.tensor(mask)
    noise = torch.tensor(rng.normal(0, 1e-3, own.shape), dtype=torch.float32)
    return {
        "prompts": torch.tensor(prompts),
        "responses": torch.tensor(responses),
        "input_ids": torch.tensor(np.concatenate([prompts, responses], axis=1)),
        "attention_mask": torch.tensor(attended),
        "position_ids": torch.tensor(np.clip(np.cumsum(attended, axis=1) - 1, 0, None)),
        "response_mask": trained,
        "old_log_probs": own_logprobs,
        "rollout_log_probs": (own_logprobs + noise) * trained,
        "token_level_scores": torch.tensor(scores, dtype=torch.float32),
        "token_level_rewards": torch.tensor(scores, dtype=torch.float32),
    }


def others(tools: bool = True) -> dict[str, np.ndarray]:
    rows = GROUPS * ROLLOUTS
    turns = [4 if tools and row % 2 == 0 else 2 for row in range(rows)]
    return {
        "uid": np.array([f"task-{row // ROLLOUTS}" for row in range(rows)], dtype=object),
        "__num_turns__": np.array(turns, np.int32),
    }


def grpo(batch: dict[str, torch.Tensor], uids: np.ndarray) -> torch.Tensor:
    """A row's reward against its group, on the tokens that are trained."""
    earned = batch["token_level_rewards"].sum(-1)
    credit = torch.zeros_like(earned)
    for uid in set(uids):
        rows = torch.tensor([row for row, own in enumerate(uids) if own == uid])
        if len(rows) > 1:
            credit[rows] = (earned[rows] - earned[rows].mean()) / (earned[rows].std() + 1e-6)
    return credit[:, None] * batch["response_mask"]


Bend = Callable[[dict[str, torch.Tensor], dict[str, np.ndarray]], Any]


@dataclass(frozen=True)
class VerlBug:
    """`before` bends a batch ahead of its advantages, `after` behind them. `rules`: any of them may name it; none: a twin."""

    name: str
    rules: tuple[str, ...]
    says: str = ""
    before: Bend = lambda batch, beside: None
    after: Bend = lambda batch, beside: None
    tools: bool = True


def _all_trained(batch, beside):
    batch["response_mask"] = batch["attention_mask"][:, PROMPT:].clone()


def _padding_trained(batch, beside):
    batch["response_mask"] = torch.ones_like(batch["response_mask"])


def _some_tool_tokens(batch, beside):
    batch["response_mask"][0, 4] = 1


def _others_credit(batch, beside):
    batch["advantages"] = batch["advantages"].roll(1, 0)


def _no_groups(batch, beside):
    beside["uid"] = np.array([f"row-{row}" for row in range(len(beside["uid"]))], dtype=object)


def _crosswise(batch, beside):
    beside["uid"] = np.roll(beside["uid"], 1)


def _late(batch, beside):
    batch["rollout_log_probs"] = batch["old_log_probs"].roll(1, 1) * batch["response_mask"]


def _stale(batch, beside):
    batch["rollout_log_probs"] = (batch["old_log_probs"] - 0.4) * batch["response_mask"]


def _rewards_on_padding(batch, beside):
    for name in ("token_level_scores", "token_level_rewards"):
        batch[name] = batch[name].roll(2, 1)


def _nan_reward(batch, beside):
    for name in ("token_level_scores", "token_level_rewards"):
        batch[name][5, 0] = float("nan")


def _other_ids(batch, beside):
    batch["responses"] = batch["responses"].clone()
    batch["responses"][2, 1] += 1


def _positions_by_column(batch, beside):
    batch["position_ids"] = torch.arange(PROMPT + RESPONSE).expand_as(batch["position_ids"])


def _credit_everywhere(batch, beside):
    of_row = batch["advantages"].sum(1) / batch["response_mask"].sum(1)
    batch["advantages"] = of_row[:, None].expand(-1, RESPONSE).clone()


def _no_logprobs(batch, beside):
    batch["rollout_log_probs"] = torch.zeros_like(batch["rollout_log_probs"])


def _sum_only(batch, beside):
    del batch["rollout_log_probs"]


def _rejected(batch, beside):
    """verl's rejection sampling takes a whole row out of the mask."""
    batch["response_mask"][1] = 0


def _bypass(batch, beside):
    batch["old_log_probs"] = batch["rollout_log_probs"].clone()


BUGS = (
    VerlBug("tools-trained", ("R3",), "what tools answered is trained", _all_trained),
    VerlBug("a-tool-token-trained", ("R3",), "did not sample", _some_tool_tokens),
    VerlBug("padding-trained", ("R4",), "counts padding", _padding_trained, tools=False),
    VerlBug("credit-of-the-row-before", ("R6",), "come to", after=_others_credit),
    VerlBug("credit-where-nothing-is-trained", ("R6",), "counts nothing", after=_credit_everywhere),
    VerlBug("no-groups", ("R7",), "do not group", _no_groups),
    VerlBug("groups-crosswise", ("R7",), "different prompts", _crosswise),
    VerlBug("logprobs-late", ("R23",), "one token late", _late),
    VerlBug("logprobs-of-other-weights", ("R23",), "nats a token", _stale),
    VerlBug("logprobs-lost", ("R12",), "exactly 0", _no_logprobs),
    VerlBug("rewards-on-padding", ("R16",), "on padding", _rewards_on_padding),
    VerlBug("reward-is-nan", ("R16",), "nan", _nan_reward),
    VerlBug("other-ids-in-input", ("R4",), "other ids than responses", after=_other_ids),
    VerlBug("positions-count-padding", ("R4",), "do not count", _positions_by_column),
)
TWINS = (
    VerlBug("tools", ()),
    VerlBug("single-turn", (), tools=False),
    VerlBug("no-sampler-logprobs", (), before=_sum_only),
    VerlBug("a-row-rejected", (), before=_rejected),
    VerlBug("bypass", (), before=_bypass),
)
