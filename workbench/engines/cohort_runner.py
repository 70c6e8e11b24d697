"""The way that is right for every causal model: no keys and values of our own, each turn starts from its whole prompt.

For models whose memory is not plain keys and values (state-space models, hybrids) or whose attention is special.
Rows that are admitted in the same tick with prompts of one length form a cohort; the model's own cache, whatever it
is, carries the cohort to the end of the turn, and where even that cannot be trusted every token is computed anew.
No padding, so nothing depends on how a model treats padding. The cost of a trajectory grows with its turns squared;
`doctor` says when this way is taken, and why.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from workbench.engines.sampling import Counters, Row, Ticked

CACHE_NAMES = ("past_key_values", "cache_params", "state", "mems")


@dataclass(eq=False)
class _Cohort:
    # None: this member is done; it is carried along, unread, until the others are done too.
    rows: list[Row | None]
    ids: torch.Tensor  # [members, tokens]: what passes through the model next
    # The model's own, under the name that the model gives it.
    cache: dict[str, Any] = field(default_factory=dict)
    first: bool = True

    @property
    def alive(self) -> list[int]:
        """Indices of the members that are not done."""
        return [index for index, row in enumerate(self.rows) if row is not None]


def own_cache(outputs: Any) -> dict[str, Any]:
    """The memory that a model handed back, as the keyword argument that hands it in again; {} if it has none."""
    for name in CACHE_NAMES:
        if getattr(outputs, name, None) is not None:
            return {name: getattr(outputs, name)}
    return {}


class CohortRunner:
    """Runs rows by nothing but the model's own forward. `use_cache=False` computes every token anew."""

    def __init__(
        self,
        model: torch.nn.Module,
        device: torch.device,
        *,
        max_rows: int,
        prefill_tokens: int,
        counters: Counters,
        use_cache: bool,
    ):
        self._model = model
        self._device = device
        self._use_cache = use_cache
        self._max_rows = max_rows
        self._prefill_tokens = prefill_tokens
        self._counters = counters
        self._waiting: deque[Row] = deque()
        self._cohorts: list[_Cohort] = []
        self._sampled: dict[int, int] = {}  # request id -> token sampled at the last tick

    @property
    def cached_tokens(self) -> int:
        return 0

    def add(self, row: Row) -> None:
        self._waiting.append(row)

    def tick(self) -> Ticked:
        self._admit()
        rows: list[Row] = []
        logits = []
        for cohort in self._cohorts:
            logits_MV = self._pass(cohort)
            alive = cohort.alive
            rows += [cohort.rows[index] for index in alive]
            logits.append(logits_MV[torch.tensor(alive, device=logits_MV.device)])
        return Ticked(rows, torch.cat(logits) if logits else None)

    def advance(self, row: Row, token: int) -> None:
        self._sampled[row.request.id] = token

    def finish(self, row: Row, keep: bool) -> None:
        self._leave(lambda other: other is row)

    def release(self, session_name: str) -> None:
        self._waiting = deque(row for row in self._waiting if row.session != session_name)
        self._leave(lambda other: other.session == session_name)

    def drop(self) -> None:
        self._cohorts = []
        self._sampled = {}

    def _leave(self, leaves) -> None:
        for cohort in self._cohorts:
            for index, row in enumerate(cohort.rows):
                if row is not None and leaves(row):
                    self._sampled.pop(row.request.id, None)
                    cohort.rows[index] = None
        self._cohorts = [cohort for cohort in self._cohorts if cohort.alive]

    def _admit(self) -> None:
        """Take waiting rows in order of submission and put those of one length together."""
        room = self._max_rows - sum(len(cohort.alive) for cohort in self._cohorts)
        budget = self._prefill_tokens
        by_length: dict[int, list[Row]] = {}
        while self._waiting and room > 0 and budget > 0:
            row = self._waiting.popleft()
            by_length.setdefault(len(row.prompt), []).append(row)
            room -= 1
            budget -= len(row.prompt)
            self._counters.prefill_tokens += len(row.prompt)
        for members in by_length.values():
            ids = torch.from_numpy(np.stack([row.prompt for row in members])).to(self._device)
            self._cohorts.append(_Cohort(list(members), ids))

    def _pass(self, cohort: _Cohort) -> torch.Tensor:
        """One forward pass of a cohort; logits [members, V] of its newest position."""
        if not cohort.first:
            # A member that is done repeats token 0: its state is never read again.
            tokens = [0 if row is None else self._sampled[row.request.id] for row in cohort.rows]
            newest = torch.tensor(tokens, device=self._device)[:, None]
            cohort.ids = newest if cohort.cache else torch.cat([cohort.ids, newest], dim=1)
            self._counters.decode_steps += 1
        cohort.first = False
        outputs = self._model(
            input_ids=cohort.ids, use_cache=self._use_cache, return_dict=True, **cohort.cache
        )
        cohort.cache = own_cache(outputs) if self._use_cache else {}
        return outputs.logits[:, -1]
