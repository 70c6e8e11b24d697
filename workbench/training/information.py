"""How much replies say about the prompts that they answer: mutual information and retrieval accuracy, by the policy itself.

One attempt of each task, its first prompt x_i and first reply r_i. The learner's weights score every reply under every prompt:

    l_ij = log p(r_i | x_j)        information = mean_i ( l_ii - log mean_j exp l_ij )        in nats, at most log N
                                   retrieval   = share of i whose own prompt makes r_i likeliest (a tie of k prompts counts 1 / k)

Replies that would answer anything alike have an information near 0 and a retrieval near 1 / N: a template, whatever its
entropy. Source: RAGEN-2 (arXiv 2604.06268), where the text between the think tags is scored; here it is the whole first reply.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from workbench.learn.batch import Batch
from workbench.types import Group, Segment, Source, Span, StopReason, Trajectory, Turn
from workbench.types.tensors import Tensor, torch

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
    made = [
        _scored(prompt, reply, source, number)
        for number, (_, reply, source) in enumerate(pairs)
        for prompt, *_ in pairs
    ]
    batch = Batch.from_groups([Group((each,)) for each in made])
    logp_T = logprobs(batch, batch.eligible_T).double().cpu()
    total_N = torch.zeros(len(made), dtype=torch.float64)
    total_N = total_N.index_add(
        0, batch.trajectory_of_token_T[batch.eligible_T], logp_T[batch.eligible_T]
    )
    l_RP = total_N.view(len(pairs), len(pairs))  # reply, prompt
    own_R, most = l_RP.diagonal(), math.log(len(pairs))
    best_RP = l_RP == l_RP.max(1, keepdim=True).values
    found_R = best_RP.diagonal().double() / best_RP.sum(1)
    return {
        "prompt_information": float((own_R - (l_RP.logsumexp(1) - most)).mean()),
        "prompt_retrieval": float(found_R.mean()),
        "prompt_chance": 1 / len(pairs),
    }


def _pairs(groups: Sequence[Group]) -> list[Pair]:
    """First prompt and first reply of the first attempt of each task that has one; equal prompts once."""
    found: dict[bytes, Pair] = {}
    for group in groups:
        pair = next((pair for attempt in group if (pair := _first(attempt)) is not None), None)
        if pair is not None and len(found) < MOST:
            found.setdefault(pair[0].tobytes(), pair)
    return list(found.values())


def _first(attempt: Trajectory) -> Pair | None:
    spans = attempt.segments[0].spans if attempt.segments else ()
    at = next((number for number, span in enumerate(spans) if span.sampled and len(span)), None)
    if not at:
        return None
    return np.concatenate([span.token_ids for span in spans[:at]]), spans[at].token_ids, attempt


def _scored(prompt: np.ndarray, reply: np.ndarray, source: Trajectory, number: int) -> Trajectory:
    """An attempt that a learner can score: this reply after that prompt."""
    spans = (
        Span(Source.PROMPT, 0, prompt),
        Span(Source.POLICY, 0, reply, np.zeros(len(reply), np.float32), sampled=True),
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
