"""Sequences of other frameworks, as they were found: arrays that need not fit each other. Finding that out is the point.
"""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.linting.rule import Check


@dataclass(frozen=True, eq=False)
class RawSequence:
    """One row or turn of a dump. A field that the framework does not write is None: then no rule can speak of it.

    `attempt` names the trajectory, `number` is the turn within it where a framework writes one sequence a turn.
    `mask` says which of `completion_ids` are trained there. Arrays are one-dimensional, of whatever length was found.
    """

    attempt: str
    group: str | None
    number: int
    prompt_ids: np.ndarray | None
    completion_ids: np.ndarray | None
    mask: np.ndarray | None = None
    logprobs: np.ndarray | None = None
    advantages: np.ndarray | None = None
    reward: float | None = None
    truncated: bool | None = None


RAW_CHECKS: dict[str, Check] = {}
