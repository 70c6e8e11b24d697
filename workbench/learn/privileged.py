"""What a critic reads besides what the policy saw: its sequences are the policy's, with more tokens in between.

    policy   prompt ............ | action | reply ............ | action        as they were sampled, and as they are trained
    critic   prompt ... | told | action | reply ... | told | action

What an environment told of a state stands right before the first token of the action that was taken there, so that every
value of the action has read it, and no earlier one has. The policy's own sequences are left as they are: nothing here is
given to an engine, and no token in between is ever sampled, trained or given credit.

Values of states *and* histories are unbiased baselines, whatever is told of the state, as long as it was settled before the
action was drawn. Sources: asymmetric actor-critic, arXiv 1710.06542; why the history must be read as well, arXiv 2105.11674.

Axis letters: T tokens of the batch · K turns · A actions that were sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from workbench.learn.batch import Batch, taken
from workbench.values.errors import LearnerError

# Text -> token ids, none of them a control token (invariant 9).
Reader = Callable[[str], Sequence[int]]


def with_told(batch: Batch, read: Reader) -> tuple[Batch, Tensor]:
    """The batch as the critic reads it, and where each token of `batch` went [T]. What stands in between copies the facts of
    the token after it, except that it was not sampled.

    Raises LearnerError for a batch of which no turn was told anything.
    """
    if batch.privileged_K is None:
        raise LearnerError(
            "critic.sees = 'state' reads what the environment told with each turn, and no turn of this batch has "
            "any: collect it with that setting (`wb.rollout` and training do), by an environment with privileged()"
        )
    first_A, turn_A = _actions(batch)
    texts = [batch.privileged_K[k] for k in turn_A.tolist()]
    inserted = [torch.tensor(read(text), dtype=torch.int64) for text in texts]
    counts_T = torch.zeros(batch.num_tokens, dtype=torch.int64)
    counts_T[first_A] = torch.tensor([len(ids) for ids in inserted], dtype=torch.int64)
    before_T1 = torch.cat([counts_T.new_zeros(1), counts_T.cumsum(0)])
    place_T = torch.arange(batch.num_tokens) + before_T1[1:]
    longer = taken(
        batch,
        torch.repeat_interleave(counts_T + 1),
        batch.segment_offsets + before_T1[batch.segment_offsets],
    )
    between = torch.ones(longer.num_tokens, dtype=torch.bool)
    between[place_T] = False
    read_by_critic = replace(
        longer,
        token_ids_T=longer.token_ids_T.masked_scatter(
            between, torch.cat([counts_T.new_zeros(0), *inserted])
        ),
        eligible_T=longer.eligible_T & ~between,
    )
    return read_by_critic, place_T


def _actions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Where the first sampled token of each action stands, ascending, and which turn it is of."""
    at = batch.eligible_T.nonzero()[:, 0]
    begins = torch.ones(len(at), dtype=torch.bool)
    same_turn = batch.turn_T[at].diff() == 0
    same_segment = batch.segment_of_token_T[at].diff() == 0
    begins[1:] = ~(same_turn & same_segment)
    first = at[begins]
    return first, batch.turn_offsets[batch.trajectory_of_token_T[first]] + batch.turn_T[first]
