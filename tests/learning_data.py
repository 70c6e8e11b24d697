"""Trajectories and tiny random models for the tests of batch, algorithms and learner. No environment, no tokenizer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from workbench.learn.ops.loss import entropy_of, logprobs_of, scoring_position
from workbench.values import (
    Group,
    Message,
    Observation,
    Sampling,
    Segment,
    Source,
    Span,
    StopReason,
    Task,
    Trajectory,
    Turn,
)

VOCAB = 61
FIRST = Observation((Message("user", "go"),))


def span(
    source: Source,
    turn: int,
    ids,
    rng=None,
    *,
    sampled: bool = False,
    version: int = 0,
    sampling=None,
) -> Span:
    logprobs = -rng.random(len(ids)).astype(np.float32) if sampled else None
    return Span(
        source,
        turn,
        ids,
        logprobs,
        policy_version=version if sampled else None,
        sampling=(sampling or Sampling()) if sampled else None,
        sampled=sampled,
    )


def segment(rng, turns: int, *, first_turn: int = 0, widest: int = 6) -> Segment:
    """PROMPT, then per turn: POLICY sampled, SCAFFOLD, ENV, SCAFFOLD; ragged."""

    def ids(low, high):
        return rng.integers(0, VOCAB, rng.integers(low, high + 1))

    spans = [span(Source.PROMPT, 0, ids(2, widest)), span(Source.SCAFFOLD, first_turn, ids(1, 2))]
    for turn in range(first_turn, first_turn + turns):
        spans.append(span(Source.POLICY, turn, ids(1, widest), rng, sampled=True))
        spans += [
            span(Source.SCAFFOLD, turn, ids(1, 2)),
            span(Source.ENV, turn, ids(1, widest)),
            span(Source.SCAFFOLD, turn, ids(1, 2)),
        ]
    return Segment(tuple(spans))


def trajectory(
    rng,
    task: int,
    attempt: int,
    *,
    reward: float | None = None,
    turns: int = 2,
    fresh: bool = False,
    widest: int = 6,
) -> Trajectory:
    """`fresh`: a new segment per turn, as the step-level histories make; else one append-only segment."""
    segments = (
        [segment(rng, 1, first_turn=k, widest=widest) for k in range(turns)]
        if fresh
        else [segment(rng, turns, widest=widest)]
    )
    parts = [Turn(k, "", reward=0.0) for k in range(turns - 1)] + [
        Turn(turns - 1, "", reward=reward)
    ]
    return Trajectory(
        Task(f"task-{task}", "test", task),
        attempt,
        attempt,
        FIRST,
        tuple(parts),
        tuple(segments),
        StopReason.TERMINATED,
    )


def make_groups(
    seed: int = 0,
    *,
    tasks: int = 3,
    attempts: int = 4,
    turns: int = 2,
    fresh: bool = False,
    widest: int = 6,
    rewards=None,
) -> list[Group]:
    """Random groups; `rewards[task][trajectory]` (None: unscored) or drawn."""
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(tasks, attempts)).round(3).tolist() if rewards is None else rewards
    return [
        Group(
            tuple(
                trajectory(rng, t, a, reward=drawn[t][a], turns=turns, fresh=fresh, widest=widest)
                for a in range(attempts)
            )
        )
        for t in range(tasks)
    ]


def unscore(groups: list[Group], task: int, attempt: int) -> list[Group]:
    """The same groups, with one trajectory unscored."""
    changed = [replace(t, scored=False) if t.attempt == attempt else t for t in groups[task]]
    return [*groups[:task], Group(tuple(changed)), *groups[task + 1 :]]


def tiny_model(seed: int = 0, **changes) -> Qwen3ForCausalLM:
    """A random Qwen3 of a few thousand parameters, in float32, on the CPU. Weights large enough to have opinions."""
    torch.manual_seed(seed)
    settings = dict(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        initializer_range=0.3,
    )
    return Qwen3ForCausalLM(Qwen3Config(**(settings | changes))).eval()


def token_logprobs(logits_BLV: torch.Tensor, token_ids_BL: torch.Tensor) -> torch.Tensor:
    """Logprob of every token of padded rows given the ones before it [B, L]; column 0 is NaN: nothing predicts it."""
    return _aligned(logprobs_of(logits_BLV[:, _predicting(token_ids_BL)], token_ids_BL[:, 1:]))


def token_entropy(logits_BLV: torch.Tensor, token_ids_BL: torch.Tensor) -> torch.Tensor:
    """Entropy of the distribution that each token was drawn from [B, L]: the same place as its logprob."""
    return _aligned(entropy_of(logits_BLV[:, _predicting(token_ids_BL)]))


def _predicting(token_ids_BL: torch.Tensor) -> torch.Tensor:
    return scoring_position(torch.arange(1, token_ids_BL.shape[1]))


def _aligned(values_BM: torch.Tensor) -> torch.Tensor:
    return torch.cat([values_BM.new_full((len(values_BM), 1), torch.nan), values_BM], dim=1)


def loop_for_varlen(
    query_TqHD,
    key_TkKD,
    value_TkKD,
    ends_q,
    ends_k,
    longest_q,
    longest_k,
    *,
    scale=None,
    window_size=(-1, -1),
    enable_gqa=False,
):
    """`torch.nn.attention.varlen.varlen_attn` in words, for machines without its kernel: sequences end to end, each causal
    counted from its last query and its last key (window_size (-1, 0)), in float32."""
    assert (
        window_size == (-1, 0)
        and ends_q.dtype == ends_k.dtype == torch.int32
        and query_TqHD.dtype.itemsize == 2
    )
    assert enable_gqa == (query_TqHD.shape[1] != key_TkKD.shape[1])
    ends_q, ends_k = ends_q.tolist(), ends_k.tolist()
    assert longest_q == max(np.diff(ends_q)) and longest_k == max(np.diff(ends_k))
    assert ends_q[-1] == len(query_TqHD) and ends_k[-1] == len(key_TkKD) == len(value_TkKD)
    shared, rows = query_TqHD.shape[1] // key_TkKD.shape[1], []
    for begin_q, end_q, begin_k, end_k in zip(ends_q, ends_q[1:], ends_k, ends_k[1:]):
        query, key, value = (
            states.float().transpose(0, 1)
            for states in (
                query_TqHD[begin_q:end_q],
                key_TkKD[begin_k:end_k],
                value_TkKD[begin_k:end_k],
            )
        )
        mask = torch.ones(end_q - begin_q, end_k - begin_k, dtype=torch.bool).tril(
            end_k - begin_k - (end_q - begin_q)
        )
        rows.append(
            torch.nn.functional.scaled_dot_product_attention(
                query,
                key.repeat_interleave(shared, 0),
                value.repeat_interleave(shared, 0),
                attn_mask=mask,
                scale=scale,
            )
        )
    return torch.cat(rows, 1).transpose(0, 1).to(query_TqHD.dtype)
