"""The embedded engine with drafts: `engine.drafts = 8` proposes up to eight tokens a turn and pass.

Exact, for noise has addresses (invariant 8): which token a turn gets at a position is fixed by the logits there and by the
uniform number of its address. So nothing is accepted by chance. At each position of a pass the token is drawn that plain
decoding would draw; it is handed over; and if it is the one that was proposed, the logits after it are right as well, and
the next one is drawn. Ids and logprobs are those of an engine without drafts, and only time depends on what was proposed,
and so on who was sampled before.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from workbench.engines.base import Completion
from workbench.engines.config import TransformersEngineConfig
from workbench.engines.sampling import Row, Sampled, sample_rows
from workbench.engines.transformers_engine import TransformersEngine
from workbench.extensions.drafts.ngrams import LENGTHS, Ngrams
from workbench.extensions.drafts.runner import DraftingRunner

# What a pass costs beside its positions, and each row beside its own, in positions (measured: docs/evidence/speed.md). A
# draft that is right spares a row a pass; so it pays where that is likely enough.
PASS = 20.0
ROW = 1.0
# What is counted, in `stats`. Rows: a pass of one row.
COUNTS = ("drafted_tokens", "drafts_accepted", "row_tokens", "row_passes")


class DraftingEngine(TransformersEngine):
    """As `TransformersEngine`, in fewer passes. Without the fused way of decoding it proposes nothing, and notes why."""

    runner_kind = DraftingRunner

    def __init__(self, model: torch.nn.Module, config: TransformersEngineConfig) -> None:
        super().__init__(model, config)
        self.ngrams = Ngrams()
        self._proposed: dict[int, list[int]] = {}  # by request id, in the pass that comes
        self._counts = Counter()
        self._reported = Counter()
        if self.notes:
            self.notes.append(
                "engine.drafts does nothing here: without the fused way a token's bits depend on its company"
            )
        else:
            self._runner.propose = self._propose

    def stats(self) -> dict[str, float]:
        return super().stats() | {name: self._counts[name] for name in COUNTS}

    def work(self) -> dict[str, float]:
        """For the clock of a step, since this was asked last: tokens that were proposed, those of them that were accepted,
        and sampled tokens for each pass of a row."""
        since = self._counts - self._reported
        self._reported = self._counts.copy()
        numbers: dict[str, float] = {name: since[name] for name in COUNTS[:2]}
        if since["row_passes"]:
            numbers["tokens_per_pass"] = since["row_tokens"] / since["row_passes"]
        return numbers

    # ------------------------------------------------------------------------------------------ inside

    def _propose(self, row: Row, decoded: int) -> list[int]:
        """None beyond the last token that the turn may get: what would follow it is not asked for."""
        most = min(self.config.drafts, row.limit - len(row.tokens) - 1)
        least_share = 1 / (1 + ROW + PASS / decoded)
        proposed = self.ngrams.propose(_tail(row), most, least_share)
        self._proposed[row.request.id] = proposed
        return proposed

    def _sample(self, rows: list[Row], logits_PV: torch.Tensor) -> list[Completion]:
        """`rows` has a row once for each of its positions in this pass, one after the other."""
        counts = Counter(rows)  # in their order
        places: list[int] = []
        for row, count in counts.items():
            places += range(len(row.tokens), len(row.tokens) + count)
        sampled = sample_rows(
            logits_PV,
            np.array([row.request.temperature for row in rows]),
            np.array([row.request.top_p for row in rows]),
            np.array([row.uniforms[place] for row, place in zip(rows, places)]),
        )
        done = []
        taken: list[int] = []  # positions of the pass whose tokens are handed over
        first = 0
        for row, count in counts.items():
            accepted, completion = self._accept(row, sampled, range(first, first + count))
            taken += range(first, first + accepted)
            first += count
            if completion is not None:
                done.append(completion)
        self._count(len(counts), len(rows), len(taken))
        if self.listener is not None:
            ids = [rows[index].request.id for index in taken]
            self.listener(ids, [places[index] for index in taken], logits_PV[taken], False)
        return done

    def _count(self, passes: int, positions: int, tokens: int) -> None:
        self._counts["row_passes"] += passes
        self._counts["row_tokens"] += tokens
        self._counts["drafted_tokens"] += positions - passes
        self._counts["drafts_accepted"] += tokens - passes

    def _accept(
        self, row: Row, sampled: Sampled, positions: range
    ) -> tuple[int, Completion | None]:
        """Hand over what was drawn at these positions of a pass, up to the first token that is not the one proposed there:
        what follows it was made of another sequence. Returns how many tokens that were, and the turn's completion."""
        proposed = self._proposed.pop(row.request.id, [])
        for number, index in enumerate(positions):
            row.cached = len(row.prompt) + len(row.tokens)  # as in plain decoding
            completion = self._take(row, sampled, index)
            is_last = completion is not None or index == positions[-1]
            if is_last or row.tokens[-1] != proposed[number]:
                return number + 1, completion
        raise AssertionError("a pass has a position of each of its rows")

    def _take(self, row: Row, sampled: Sampled, index: int) -> Completion | None:
        before = _tail(row)
        completion = super()._take(row, sampled, index)
        if sampled.valid[index]:
            self.ngrams.learn(before, row.tokens[-1])
        return completion


def _tail(row: Row) -> list[int]:
    """The last tokens of its sequence, as many as are looked up by."""
    lacking = LENGTHS[0] - len(row.tokens)
    if lacking <= 0:
        return row.tokens[-LENGTHS[0] :]
    return [*row.prompt[-lacking:].tolist(), *row.tokens]
