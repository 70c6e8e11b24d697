"""One turn that is being sampled: what both ways of running a model (slots, cohorts) hand to the sampler."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from workbench.engines.base import Request


@dataclass(eq=False)
class Row:
    """A request in progress. Mutable, and known to nobody outside the engine."""

    request: Request
    prompt: np.ndarray               # int64 [prompt]
    limit: int                       # tokens this turn may get
    uniforms: np.ndarray             # float64 [limit]: the noise of this turn, drawn from its address
    tokens: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    plain_logps: list[float] = field(default_factory=list)
    # Where the tokens of this turn stand in the model's cache; used by the slot runner only.
    cached: int = 0                  # positions whose keys and values are in the slot
    pending: np.ndarray | None = None  # tokens that must pass through the model before the next one can be sampled

    @property
    def session(self) -> str:
        return self.request.session

    @property
    def sequence(self) -> np.ndarray:
        """Prompt and what was sampled so far, int64."""
        return np.concatenate([self.prompt, np.array(self.tokens, np.int64)])


@dataclass(frozen=True, eq=False)
class Ticked:
    """What one tick of a runner gives: logits [rows, vocabulary] for the next token of each of these rows."""

    rows: list[Row]
    logits: torch.Tensor | None


@dataclass
class Counters:
    """What an engine did since it was made. Tokens are counted once each time they pass through the model."""

    ticks: int = 0
    prefill_tokens: int = 0        # of prompts: first prompts, observations, the last sampled token of a turn
    shared_prompt_tokens: int = 0  # tokens of first prompts whose keys and values were copied from another session
    reused_tokens: int = 0         # tokens of prompts that were still in the session's own cache
    decode_steps: int = 0          # forward passes in which at least one row was decoded
    generated_tokens: int = 0
    evictions: int = 0             # idle sessions that lost their cache to make room
    cpu_seconds: float = 0.0       # of this process, all threads, while polling
