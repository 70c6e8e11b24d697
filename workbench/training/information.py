"""How much replies say about the prompts that they answer: mutual information and retrieval accuracy, by the policy itself.

One trajectory of each task, its first prompt x_i and first reply r_i. The learner's weights score every reply under every prompt:

    l_ij = log p(r_i | x_j)        information = mean_i ( l_ii - log mean_j exp l_ij )        in nats, at most log N
                                   retrieval   = share of i whose own prompt makes r_i likeliest (a tie of k prompts counts 1 / k)

Replies that would answer anything alike have an information near 0 and a retrieval near 1 / N: a template, whatever its
entropy. Source: RAGEN-2 (arXiv 2604.06268), where the text between the think tags is scored; here it is the whole first reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from workbench.basics.tensors import Tensor, torch
from workbench.learn.batch import Batch
from workbench.values import Group, Segment, Source, Span, StopReason, Trajectory, Turn

MOST = 16  # tasks: the cost grows with the square of their number

Pair = tuple[
    np.ndarray, np.ndarray, Trajectory
]  # ids of the prompt and of the reply, and where they come from


def prompt_information(
    groups: Sequence[Group], logprobs: Callable[[Batch, Tensor], Tensor]
) -> dict[str, float]:
    """`prompt_information` (nats), `prompt_retrieval` (share), and `prompt_chance`, the retrieval of a template. `logprobs`: as
    `Learner.logprobs`. Of at most 16 tasks, each another prompt; nothing where fewer than two have a first reply."""
    pairs = _pairs(groups)
    if len(pairs) < 2:
        return {}
    trajectories = []
    for number, (_, reply, source) in enumerate(pairs):
        for prompt, *_ in pairs:
            trajectories.append(_to_be_scored(prompt, reply, source, number))
    batch = Batch.from_groups([Group((trajectory,)) for trajectory in trajectories])
    logp_T = logprobs(batch, batch.eligible_T).double().cpu()
    row_E = batch.trajectory_of_token_T[batch.eligible_T]
    total_N = torch.zeros(len(trajectories), dtype=torch.float64)
    total_N = total_N.index_add(0, row_E, logp_T[batch.eligible_T])
    l_RP = total_N.view(len(pairs), len(pairs))  # reply, prompt
    mean_R = l_RP.logsumexp(1) - math.log(len(pairs))
    best_RP = l_RP == l_RP.max(1, keepdim=True).values
    retrieved_R = best_RP.diagonal().double() / best_RP.sum(1)
    return {
        "prompt_information": float((l_RP.diagonal() - mean_R).mean()),
        "prompt_retrieval": float(retrieved_R.mean()),
        "prompt_chance": 1 / len(pairs),
    }


def _pairs(groups: Sequence[Group]) -> list[Pair]:
    """First prompt and first reply of the first trajectory of each task that has one; equal prompts once."""
    pairs: dict[bytes, Pair] = {}
    for group in groups:
        pair = next(filter(None, map(_first_pair, group)), None)
        if pair is not None and len(pairs) < MOST:
            pairs.setdefault(pair[0].tobytes(), pair)
    return list(pairs.values())


def _first_pair(trajectory: Trajectory) -> Pair | None:
    spans = trajectory.segments[0].spans if trajectory.segments else ()
    at = next((number for number, span in enumerate(spans) if span.sampled and len(span)), None)
    if not at:
        return None
    prompt = np.concatenate([span.token_ids for span in spans[:at]])
    return prompt, spans[at].token_ids, trajectory


def _to_be_scored(
    prompt: np.ndarray, reply: np.ndarray, source: Trajectory, number: int
) -> Trajectory:
    """A trajectory that a learner can score: this reply after that prompt."""
    no_logprobs = np.zeros(len(reply), np.float32)
    spans = (
        Span(Source.PROMPT, 0, prompt),
        Span(Source.POLICY, 0, reply, no_logprobs, sampled=True),
    )
    return Trajectory(
        source.task,
        number,
        0,
        source.first_observation,
        (Turn(0, "", reward=0.0),),
        (Segment(spans),),
        StopReason.TERMINATED,
    )
