"""Small steps for the rules about credit: groups by hand or drawn, a batch with facts, a learner's updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.batch import Batch
from workbench.learn.config import CriticConfig, LearnerConfig
from workbench.learn.learner import Learner
from workbench.linting import Evidence, Update, all_rules, check
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

RULES = all_rules()

VOCAB = 61
STOP = 60
LIMITS = (StopReason.TERMINATED, StopReason.CONTEXT_FULL, StopReason.MAX_TURNS)


class Chat:
    """What a rule asks of a chat format."""

    stop_ids = frozenset({STOP})


def a_trajectory(
    task: int,
    number: int,
    turns: Sequence[tuple],
    *,
    fresh: bool = False,
    reply: int = 2,
    stop: StopReason = StopReason.TERMINATED,
    seed: int = 0,
    temperature: float = 1.0,
    **more: Any,
) -> Trajectory:
    """`turns`: (sampled tokens, reward[, state]); the last token of a turn is the stop token. `fresh`: a segment each."""
    rng = np.random.default_rng((seed, task, number))
    opening = Span(Source.PROMPT, 0, [1, 2 + task])
    segments, spans = [], [opening]
    for k, (tokens, *_) in enumerate(turns):
        if fresh and k:
            segments.append(Segment(tuple(spans)))
            spans = [opening, Span(Source.ENV, k - 1, np.arange(reply) + 20)]
        ids = np.append(rng.integers(0, VOCAB - 1, tokens - 1), STOP) if tokens else []
        spans.append(
            Span(
                Source.POLICY,
                k,
                ids,
                -rng.random(tokens),
                policy_version=0,
                sampling=Sampling(temperature),
                sampled=True,
            )
        )
        if not fresh:
            spans += [Span(Source.ENV, k, np.arange(reply) + 20), Span(Source.SCAFFOLD, k, [9])]
    segments.append(Segment(tuple(spans)))
    made = tuple(
        Turn(
            k,
            "",
            reward=turn[1],
            state_key=turn[2] if len(turn) > 2 else None,
            reward_parts={"move": turn[1]} if turn[1] is not None else {},
        )
        for k, turn in enumerate(turns)
    )
    first = Observation((Message("user", f"task {task}"),))
    return Trajectory(
        Task(f"task-{task}", "test", task, metadata={"tag": f"t{task % 2}"}),
        number,
        100 * task + number + 1,
        first,
        made,
        tuple(segments),
        stop,
        **more,
    )


def groups_of(turns: Sequence[Sequence[Sequence[tuple]]], **more: Any) -> list[Group]:
    return [
        Group(tuple(a_trajectory(t, n, own, **more) for n, own in enumerate(group)))
        for t, group in enumerate(turns)
    ]


def draw(
    seed: int,
    *,
    tasks: int = 3,
    attempts: int = 4,
    fresh: bool = False,
    unscored: int | None = None,
) -> list[Group]:
    """Ragged in turns and tokens (a turn may have none), paid at every turn, with an outcome at times, some cut short;
    tenths that repeat, so that groups are flat now and then, up to rounding. `unscored`: this one of all trajectories."""
    rng, groups = np.random.default_rng(seed), []
    for task in range(tasks):
        coarse, group = bool(rng.integers(2)), []
        for number in range(attempts):
            count = int(rng.integers(1, 4))
            turns = [
                (
                    int(rng.integers(0 if k else 1, 5)),
                    float(rng.integers(3)) / 10 if coarse else round(rng.normal(), 3),
                    f"s{rng.integers(2)}" if rng.random() < 0.7 else None,
                )
                for k in range(count)
            ]
            outcome = round(rng.normal(), 2) if not coarse and rng.random() < 0.3 else None
            group.append(
                a_trajectory(
                    task,
                    number,
                    turns,
                    fresh=fresh,
                    stop=LIMITS[int(rng.integers(3))],
                    seed=seed,
                    outcome=outcome,
                )
            )
        aside = a_trajectory(
            task,
            attempts,
            [(2, round(0.3 * task - 0.1, 1))],
            fresh=fresh,
            seed=seed,
            temperature=0.0,
            scored=(seed + task) % 5 != 0,
        )
        groups.append(Group(tuple(group), aside))
    return (
        groups
        if unscored is None
        else with_unscored(groups, unscored // attempts, unscored % attempts)
    )


def with_unscored(groups: list[Group], task: int, number: int) -> list[Group]:
    return changed(groups, task, number, scored=False, stop_reason=StopReason.ENV_ERROR)


def changed(groups: list[Group], task: int, number: int, **changes: Any) -> list[Group]:
    """The same groups, with one trajectory changed."""
    new = tuple(replace(t, **changes) if n == number else t for n, t in enumerate(groups[task]))
    return [*groups[:task], replace(groups[task], trajectories=new), *groups[task + 1 :]]


def batch_of(groups: Sequence[Group], seed: int = 0) -> Batch:
    """With values and logprobs of two policies at all that responses hold."""
    batch, rng = Batch.from_groups(groups), np.random.default_rng(seed + 1)

    def drawn() -> torch.Tensor:
        numbers = torch.from_numpy(rng.normal(size=batch.num_tokens).astype(np.float32))
        return torch.where(
            batch.response_T & batch.scored_N[batch.trajectory_of_token_T], numbers, torch.nan
        )

    final_N = torch.from_numpy(rng.normal(size=batch.num_trajectories).astype(np.float32))
    return replace(
        batch,
        value_T=drawn(),
        old_logp_T=drawn(),
        ref_logp_T=drawn(),
        final_value_N=torch.where(batch.truncated_N, final_N, torch.nan),
    )


def evidence_of(
    groups: Sequence[Group], algorithm: Algorithm, seed: int = 0, **more: Any
) -> Evidence:
    """A step before its first update."""
    batch = batch_of(groups, seed)
    return Evidence(
        tuple(tuple(group) for group in groups),
        tuple(group.greedy for group in groups),
        batch=batch,
        credit=algorithm.credit(batch),
        algorithm=algorithm,
        chat=Chat(),
        **more,
    )


def tiny_model(seed: int = 0) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=VOCAB,
            hidden_size=16,
            intermediate_size=24,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=8,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            initializer_range=0.3,
        )
    ).eval()


def updated(
    groups: Sequence[Group], algorithm: Algorithm, *, precision: str = "fp32", lr: float = 3e-3
) -> Evidence:
    """A step after its updates, by a real learner."""
    learner = Learner(
        tiny_model(),
        algorithm,
        LearnerConfig(lr=lr, precision=precision),
        reference=tiny_model(1),
        critic=CriticConfig(),
    )
    batch = learner.facts(Batch.from_groups(groups))
    credit = algorithm.credit(batch)
    reports = learner.update(batch, credit, step=1)
    return Evidence(
        tuple(tuple(group) for group in groups),
        tuple(group.greedy for group in groups),
        batch=batch,
        credit=credit,
        algorithm=algorithm,
        updates=tuple(Update(r.table, r.metrics, r.skipped) for r in reports),
        precision=precision,
        chat=Chat(),
    )


def answer(evidence: Evidence, rule: str):
    return check(evidence, [RULES[rule]])[rule]


def errors(evidence: Evidence, rule: str) -> list[str]:
    """What the rule's errors say."""
    return [finding.what for finding in answer(evidence, rule).errors]
