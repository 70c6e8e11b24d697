"""A pass with several positions of a sequence: its newest token, and after it those that were proposed.

Axis letters: A sequences that are active now · P positions whose logits are wanted · V vocabulary.

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
        spans = []  # (slot, first pending token, last + 1)
        for slot, (take, count) in enumerate(zip(takes, wanted)):
            spans.append((slot, take - count, take))
        for slot, (take, count) in enumerate(zip(takes, wanted)):
            if take > count:  # of a prompt, before its last token
                spans.append((slot, 0, take - count))
        ids = [rows[slot].pending[first:end] for slot, first, end in spans]
        positions = [
            np.arange(rows[slot].cached + first, rows[slot].cached + end)
            for slot, first, end in spans
        ]
        slots = [np.full(end - first, slot) for slot, first, end in spans]
        packed_3T = np.stack([np.concatenate(parts) for parts in (ids, slots, positions)])
        packed = torch.from_numpy(packed_3T).to(self._device)
        ends = tuple(row.cached + take for row, take in zip(rows, takes))
        step = ForwardStep(slab.cache, packed[1], packed[2], len(rows), ends)
        return self._forward(step, packed[:1], sum(wanted))

    def _note_pass(self, slab: Slab, takes: list[int], logits_PV: torch.Tensor) -> Ticked:
        rows = [session.row for session in slab.active]
        wanted = _wanted(rows, takes)
        if sum(wanted) == len(rows):
            return super()._note_pass(slab, takes, logits_PV)
        # Which rows are ready is asked of today's way; which logits are theirs is known here.
        ready = super()._note_pass(slab, takes, logits_PV[: len(rows)]).rows
        repeated = list(chain.from_iterable([row] * count for row, count in zip(rows, wanted)))
        chosen = [place for place, row in enumerate(repeated) if row in ready]
        if len(chosen) < len(repeated):
            logits_PV = logits_PV[torch.tensor(chosen, device=self._device)]
        return Ticked([repeated[place] for place in chosen], logits_PV)


def _wanted(rows: list[Row], takes: list[int]) -> list[int]:
    """How many positions of each row logits are made of."""
    return [take if row.tokens else 1 for row, take in zip(rows, takes)]
