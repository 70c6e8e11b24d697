"""A pass with several positions of a sequence: its newest token, and after it those that were proposed.

Axis letters: A sequences that are active now · P positions whose logits are wanted · S stretches of pending tokens,
each of one row · T tokens of the pass · V vocabulary.

Only for a forward pass that goes by the slot and position of each token, and gives it the same bits in whatever company
(`native`'s): then logits at a position whose predecessors were rightly proposed are those of a pass of its own. Keys and
values of what was wrongly proposed stay in the slot beyond the end of its sequence, where nobody reads, until the right
ones take their place.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import torch

from workbench.engines.attention import ForwardStep
from workbench.engines.sampling import Row, Ticked
from workbench.engines.slot_runner import SlotRunner
from workbench.engines.slot_table import Slab

# (row, rows that are decoded now) -> tokens that may come next
Propose = Callable[[Row, int], list[int]]


def nothing(row: Row, decoded: int) -> list[int]:
    """Proposes no token: each pass is today's."""
    return []


class DraftingRunner(SlotRunner):
    """`tick` hands over a row once for each of its positions: the logits after its newest token, then those after each
    token that was proposed."""

    propose: Propose = staticmethod(nothing)

    def tick(self) -> Ticked:
        rows = [session.row for session in self._table.active if session.row is not None]
        decoded = [row for row in rows if row.tokens]
        for row in decoded:
            proposed = self.propose(row, len(decoded))
            if proposed:
                row.pending = np.concatenate([row.pending, np.array(proposed, np.int64)])
        return super().tick()

    def _pass(self, slab: Slab, rows: list[Row], takes: list[int]) -> torch.Tensor:
        """Logits [P, V] row by row, of a prompt those of its last token in this pass alone."""
        for row, take in zip(rows, takes):
            if row.tokens:  # what the budget of a pass has no room for is not proposed
                row.pending = row.pending[:take]
        wanted = _wanted(rows, takes)
        if sum(wanted) == len(rows):
            return super()._pass(slab, rows, takes)
        first_S = [take - count for take, count in zip(takes, wanted)]
        slot_S = list(range(len(rows)))
        count_S = list(wanted)
        for slot, before in enumerate(first_S):
            if before and not rows[slot].tokens:  # of a prompt, before its last token
                slot_S.append(slot)
                count_S.append(before)
        first_S += [0] * (len(slot_S) - len(rows))
        packed = torch.from_numpy(_packed(rows, slot_S, first_S, count_S)).to(self._device)
        ends = tuple(row.cached + take for row, take in zip(rows, takes))
        step = ForwardStep(slab.cache, packed[1], packed[2], len(rows), ends)
        return self._forward(step, packed[:1], sum(wanted))

    def _note_pass(self, slab: Slab, takes: list[int], logits_PV: torch.Tensor) -> Ticked:
        rows = [session.row for session in slab.active]
        wanted = _wanted(rows, takes)
        if sum(wanted) == len(rows):
            return super()._note_pass(slab, takes, logits_PV)
        # Which rows are ready is asked of today's way; which logits are theirs is known here.
        ready = set(super()._note_pass(slab, takes, logits_PV[: len(rows)]).rows)
        repeated = list(chain.from_iterable([row] * count for row, count in zip(rows, wanted)))
        chosen = [place for place, row in enumerate(repeated) if row in ready]
        if len(chosen) < len(repeated):
            logits_PV = logits_PV[torch.tensor(chosen, device=self._device)]
        return Ticked([repeated[place] for place in chosen], logits_PV)


def _packed(
    rows: list[Row], slot_S: list[int], first_S: list[int], count_S: list[int]
) -> np.ndarray:
    """Ids, slots and positions of the tokens of these stretches, int64 [3, T]; first: of a row's pending tokens."""
    ids = [
        rows[slot].pending[first : first + count]
        for slot, first, count in zip(slot_S, first_S, count_S)
    ]
    start_S = [rows[slot].cached + first for slot, first in zip(slot_S, first_S)]
    end_S = np.cumsum(count_S)
    shift_S = start_S - end_S + count_S
    position_T = np.repeat(shift_S, count_S) + np.arange(end_S[-1])
    return np.stack([np.concatenate(ids), np.repeat(slot_S, count_S), position_T])


def _wanted(rows: list[Row], takes: list[int]) -> list[int]:
    """How many positions of each row logits are made of."""
    return [take if row.tokens else 1 for row, take in zip(rows, takes)]
