"""Does vLLM sample from the weights that it was given? Asked when it is opened and after every sync.

A few tokens are sampled after prompts that were never seen and after one that was, and their logprobs compared with a
plain forward pass with the new weights (`gap`); the output head, which small logits could hide, is looked at by itself.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from workbench.engines.base import Request
from workbench.engines.config import VllmEngineConfig
from workbench.engines.gap import Gap, PlainForward, came_along, head_differs, limits, what_is_stale
from workbench.engines.vllm_core import VllmOutput
from workbench.engines.vllm_turns import SCORING, Core, VllmCounters, sampling_params
from workbench.values.errors import EngineError

PROBES = 8  # prompts that were never seen
PROBE_PROMPT = 16  # tokens of each
PROBE_TOKENS = 6  # tokens that are sampled after it
PROBE = "probe"  # begins the names of the engine's own requests
# A trained policy is certain of most tokens, and certainty hides every change: probes are sampled hotter than it acts.
PROBE_TEMPERATURE = 2.0


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Probes with what was sampled after them: ids [N, T], logprobs [N, sampled] at `PROBE_TEMPERATURE`."""

    ids_NT: np.ndarray
    logp_NT: np.ndarray
    cached_tokens: int = 0  # of the prompts, taken from the prefix cache: says where the answer is from, not what it is

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProbeResult)
            and np.array_equal(self.ids_NT, other.ids_NT)
            and np.array_equal(self.logp_NT, other.logp_NT)
        )


@dataclass(frozen=True)
class Delivery:
    """Whether the newest weights arrived and are sampled from. The lint reads it (R33, R34)."""

    version: int
    tensors: int
    lost: str | None  # which of them did not arrive as they were sent
    gap: Gap  # logprobs after prompts that were never seen, to a plain forward pass
    gap_seen: Gap  # after one that was
    allowed: tuple[float, float]  # mean and largest that rounding explains
    head_came: bool | None  # the output head; None: cannot be told
    reused_tokens: int  # of the prompt that was seen, from keys and values of before the sync


class SyncCheck:
    """Probes an engine of vLLM, and remembers which output head it was last seen to have."""

    def __init__(
        self,
        core: Core,
        plain: PlainForward,
        config: VllmEngineConfig,
        counters: VllmCounters,
        *,
        context_length: int,
        vocab_size: int,
    ) -> None:
        self._core = core
        self._plain = plain
        self._config = config
        self._counters = counters
        self._context_length = context_length
        self._vocab_size = vocab_size
        self.delivery: Delivery | None = None
        # Of fixed states, by the newest weights the head was seen to have.
        self._head_NV: Tensor | None = None

    def before_sync(self) -> ProbeResult:
        """Probe the old weights. The prompt is in the cache afterwards: the check finds out whether it is dropped."""
        return self._probe(self._seen_prompt(), "before")

    def fault(
        self,
        weights: Mapping[str, Tensor],
        version: int,
        before: ProbeResult | None,
        lost: str | None = None,
    ) -> str | None:
        """None where the engine samples from `weights`; else what is wrong, with the rule of the lint that says so. Notes
        `delivery` and the gap. `lost`: which of the weights did not arrive, if that is known to be so."""
        new = self._probe(self._new_prompts(version), "new")
        seen = self._probe(self._seen_prompt(), "seen")
        own = getattr(torch, self._config.dtype)
        # The engine may round what it was given to its dtype: that difference is no fault of the sync. (What is left
        # of it in training is `logp_gap_mean` of every step.)
        rounded = {name: w.to(own) if w.is_floating_point() else w for name, w in weights.items()}
        gap_new = self._gap(rounded, new)
        gap_seen = self._gap(rounded, seen)
        is_finite = self._note_gaps(gap_new, gap_seen)
        allowed = limits(own, self._config.gap_mean)
        head_came, head_is_near = self._look_at_head(rounded, own)
        self.delivery = Delivery(
            version, len(weights), lost, gap_new, gap_seen, allowed, head_came, seen.cached_tokens
        )
        new_agrees = gap_new.within(*allowed)
        seen_agrees = gap_seen.within(*allowed)
        reused_old = bool(seen.cached_tokens)
        if new_agrees and seen_agrees and not reused_old and head_came is not False:
            return None
        prefixes_are_old = reused_old or (new_agrees and not seen_agrees)
        cause = what_is_stale(
            finite=is_finite,
            answers_as_before=before is not None and seen == before,
            head_is_old=head_came is False or not head_is_near,
            prefixes_are_old=prefixes_are_old,
        )
        rule = "R34" if prefixes_are_old else "R33"
        return (
            f"version {version}: vLLM does not sample from the weights it was given. Its logprobs differ from a plain "
            f"forward pass by {gap_new} (a prompt seen before: {gap_seen}), allowed are mean {allowed[0]:g} and max "
            f"{allowed[1]:g}; {cause} (rule {rule})"
        )

    def _note_gaps(self, gap_new: Gap, gap_seen: Gap) -> bool:
        """Count the larger of both gaps; whether they are finite."""
        counters = self._counters
        counters.gap_mean = max(gap_new.mean, gap_seen.mean, key=_nan_first)
        counters.gap_max = max(gap_new.largest, gap_seen.largest, key=_nan_first)
        counters.gap_max_ever = max(counters.gap_max, counters.gap_max_ever, key=_nan_first)
        return bool(np.isfinite([counters.gap_mean, counters.gap_max]).all())

    def _gap(self, weights: Mapping[str, Tensor], probed: ProbeResult) -> Gap:
        count = probed.logp_NT.shape[1]
        plain = self._plain.logprobs(weights, probed.ids_NT, count, PROBE_TEMPERATURE)
        return Gap.between(probed.logp_NT, plain)

    def _look_at_head(
        self, weights: Mapping[str, Tensor], dtype: torch.dtype
    ) -> tuple[bool | None, bool]:
        """(did the output head come along with these weights? None: cannot be told; is it theirs as far as one sees?)"""
        # Small numbers: a model that caps its logits leaves these as they are.
        states = np.random.default_rng(0).normal(size=(4, self._plain.hidden_size)) * 0.01
        hidden_ND = torch.from_numpy(states).to(dtype)
        new_NV = self._plain.head_logits(weights, hidden_ND)
        if new_NV is None:
            return None, True
        own_NV = self._core.head_logits(hidden_ND)
        came = None if self._head_NV is None else came_along(own_NV, self._head_NV, new_NV)
        # While nothing can be told the older one stays, so that small changes add up until something can.
        if came or self._head_NV is None:
            self._head_NV = new_NV
        return came, not head_differs(own_NV, new_NV, dtype)

    def _new_prompts(self, version: int) -> np.ndarray:
        """Prompts that no cache can hold: drawn from the version."""
        length = max(1, min(PROBE_PROMPT, self._context_length - PROBE_TOKENS))
        return np.random.default_rng([1, version]).integers(0, self._vocab_size, (PROBES, length))

    def _seen_prompt(self) -> np.ndarray:
        """The same prompt every time, longer than a block where the context allows it, so that it is cached."""
        length = max(1, min(self._config.block_tokens + 1, self._context_length - PROBE_TOKENS))
        return np.random.default_rng(0).integers(0, self._vocab_size, (1, length))

    def scoring_fault(self) -> str | None:
        """Why this vLLM cannot tell the plain logprobs of a sequence, or None. Bent sampling alone needs that."""
        name = f"{PROBE}-scoring"
        sequence = [0, 0]  # less than a block, so that no cache holds it
        try:
            self._core.add(name, sequence, SCORING)
            answers = list(self._answers([name], steps=100).values())
        except Exception as error:  # as in `_probe`; a core that is broken altogether fails there
            with suppress(Exception):  # past even that, it is told by the probe
                self._core.abort(name)
            return f"vLLM cannot score what was sampled ({type(error).__name__}: {error})"
        scored = answers[0].prompt_logprobs if answers else None
        if scored is None or len(scored) != len(sequence) - 1:
            return f"vLLM cannot score what was sampled (asked for one logprob it gave {scored})"
        return None

    def _answers(self, names: Sequence[str], steps: int) -> dict[str, VllmOutput]:
        """Answers to these requests within so many steps of vLLM, and no less than the seconds that a server may take."""
        answers: dict[str, VllmOutput] = {}
        ends = time.monotonic() + self._core.patience_s
        step = 0
        while len(answers) < len(names) and (step < steps or time.monotonic() < ends):
            answers |= {answer.name: answer for answer in self._core.step()}
            step += 1
        return answers

    def _probe(self, prompts_NT: np.ndarray, what: str) -> ProbeResult:
        """Sample a few tokens after each prompt. Only while nothing else is in flight. Raises EngineError."""
        count = min(PROBE_TOKENS, self._context_length - prompts_NT.shape[1])
        names = [f"{PROBE}-{what}-{row}" for row in range(len(prompts_NT))]
        try:
            for row, name in enumerate(names):
                request = Request(
                    row,
                    name,
                    prompts_NT[row],
                    seed=row,
                    max_new_tokens=count,
                    stop_ids=frozenset(),
                    temperature=PROBE_TEMPERATURE,
                )
                self._core.add(name, prompts_NT[row].tolist(), sampling_params(request, count))
            answers = self._answers(names, steps=100 + prompts_NT.size + count * len(names))
        except Exception as error:  # a kernel that this model lacks shows here, at opening
            raise EngineError(
                f"vLLM cannot sample from this model in {self._config.dtype} "
                f"({type(error).__name__}: {error}); use engine.kind='transformers'"
            ) from error
        for name in names:
            if name not in answers or len(answers[name].logprobs) != count:
                raise EngineError(
                    f"vLLM did not answer its probe: {name} got "
                    f"{answers.get(name, 'nothing')} instead of {count} tokens"
                )
        in_order = [answers[name] for name in names]
        sampled_NT = np.array([answer.token_ids for answer in in_order])
        return ProbeResult(
            np.concatenate([prompts_NT, sampled_NT], axis=1),
            np.array([answer.logprobs for answer in in_order]),
            sum(answer.cached_tokens for answer in in_order),
        )


def _nan_first(value: float) -> float:
    return np.inf if np.isnan(value) else value
