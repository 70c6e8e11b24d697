"""The embedded engine: its own decode loop over an unmodified Hugging Face causal model, on CPU and GPU.

Axis letters: R rows that sample in this tick · V vocabulary.

What makes it fast: keys and values are kept from turn to turn, a prompt that several sessions share passes through the
model once, all sequences are packed without padding, and no turn waits for another. What makes it right: a probe
compares it with a plain forward pass before it is used (`probe`), and the choice of a token depends on nothing but its
own logits and its own address (`sampling`).

    submit ─▶ intake (refuses) ─▶ runner.tick() ─▶ logits ─▶ sample_rows ─▶ runner.advance / finish ─▶ completion
"""

from __future__ import annotations

import copy
import inspect
import time
from collections.abc import Mapping
from dataclasses import asdict

import numpy as np
import torch

from workbench.basics.extensions import service
from workbench.engines.attention import slot_forward
from workbench.engines.base import Completion, Listener, Request
from workbench.engines.cohort_runner import CohortRunner
from workbench.engines.config import TransformersEngineConfig
from workbench.engines.intake import (
    Intake,
    cast_weights,
    copy_weights,
    lay_out_for_few_rows,
    model_context,
)
from workbench.engines.probe import Verdict, judge
from workbench.engines.sampling import Counters, Row, Sampled, sample_rows, uniforms
from workbench.engines.slot_runner import SlotRunner
from workbench.values import Sampling
from workbench.values.errors import EngineError


class TransformersEngine:
    """Samples turns from its own copy of `model`'s weights. Not thread-safe: one thread submits and polls.

    Make it before the learner wraps the model (accelerate patches `forward`, DDP renames weights). `model` itself is
    left as it is. Raises EngineError for what is no causal language model.
    """

    name = "transformers"
    runner_kind = SlotRunner

    def __init__(
        self, model: torch.nn.Module, config: TransformersEngineConfig = TransformersEngineConfig()
    ):
        if not hasattr(model, "config") or not hasattr(model, "get_output_embeddings"):
            raise EngineError(
                f"expected a Hugging Face causal language model, got {type(model).__name__}; if it is wrapped (DDP, "
                "FSDP, accelerate), hand over the model inside"
            )
        self.config = config
        self._device = torch.device(config.device)
        self._model = copy.deepcopy(model).requires_grad_(False).eval()
        # Judged in float32: in bfloat16 both ways of SmolLM2 (30 layers) round 0.4 nats apart.
        cast_weights(self._model.to(self._device), torch.float32)
        self._policy_version = 0
        self.listener: Listener | None = None
        self.notes: list[str] = []  # what a user should know of it before it samples
        self._counters = Counters()
        vocab_size = int(self._model.get_input_embeddings().weight.shape[0])
        self.context_length = context = model_context(self._model, config.max_context)
        self._verdict = self._choose(vocab_size, min(context, config.cache_tokens))
        cast_weights(self._model, getattr(torch, config.dtype))
        lay_out_for_few_rows(self._model)
        cache_tokens = config.cache_tokens if self.keeps_cache else None
        self._intake = Intake(context, vocab_size, cache_tokens)
        self._runner = self._make_runner()
        self._rows: dict[int, Row] = {}  # in flight, by request id

    # ------------------------------------------------------------------------------------------ the contract

    @property
    def policy_version(self) -> int:
        return self._policy_version

    @property
    def held(self) -> Mapping[str, torch.Tensor]:
        """The weights that it samples from, by state-dict name: to be read."""
        return self._model.state_dict()

    @property
    def keeps_cache(self) -> bool:
        """True where keys and values are kept from turn to turn; `cache_reason` says why, or why not."""
        return self._verdict.mode == "slots"

    @property
    def cache_reason(self) -> str:
        return self._verdict.reason

    def submit(self, request: Request) -> None:
        """Queue a turn. Raises EngineError for a request that can never be served."""
        prompt, limit = self._intake.accept(request)
        self._rows[request.id] = Row(request, prompt, limit, uniforms(request.seed, limit))
        self._runner.add(self._rows[request.id])

    def poll(self) -> list[Completion]:
        """One tick: admit, one forward pass, sample, hand over what is done, in the order of request ids."""
        if not len(self._intake):
            return []
        started = time.process_time()
        self._counters.ticks += 1
        with torch.inference_mode():
            ticked = self._runner.tick()
            done = self._sample(ticked.rows, ticked.logits) if ticked.rows else []
        self._counters.cpu_seconds += time.process_time() - started
        return sorted(done, key=lambda completion: completion.request_id)

    def release(self, session: str) -> None:
        """Free the session; a request that it still has in flight is dropped and never answered."""
        self._rows.pop(self._intake.cancel(session), None)
        self._runner.release(session)

    def partial(self, request_id: int) -> tuple[int, ...]:
        """The ids sampled so far for a request in flight; () where there are none yet."""
        row = self._rows.get(request_id)
        return () if row is None else tuple(row.tokens)

    def sync(self, weights: Mapping[str, torch.Tensor], version: int) -> None:
        """Copy new weights in, all or nothing, and drop every cache: it was made by the old ones."""
        self._intake.check_sync(version, self._policy_version)
        copy_weights(self._model, weights)
        self._runner.drop()
        self._policy_version = version

    def stats(self) -> dict[str, float]:
        """Counts since the engine was made (see `Counters`), and what the cache takes up now."""
        return {**asdict(self._counters), "cached_tokens": self._runner.cached_tokens}

    # ------------------------------------------------------------------------------------------ inside

    def _choose(self, vocab_size: int, longest: int) -> Verdict:
        if self.config.cache == "off":
            return Verdict("turn", "switched off by engine.cache='off'")
        with torch.inference_mode():
            return judge(self._model, vocab_size, self._device, _keeps_logits(self._model), longest)

    def _make_runner(self) -> SlotRunner | CohortRunner:
        limits = dict(
            max_rows=self.config.max_rows,
            prefill_tokens=self.config.prefill_tokens,
            counters=self._counters,
        )
        if self.keeps_cache:
            forward = slot_forward(self._model, _keeps_logits(self._model))
            if self.config.decode == "fused":
                fuse = service("fused_decode", "engine.decode = 'fused'")
                forward, note = fuse(self._model, forward)
                self.notes += [note] if note else []
            cache_tokens = self.config.cache_tokens
            return self.runner_kind(forward, self._device, cache_tokens=cache_tokens, **limits)
        if self.config.decode == "fused":
            self.notes.append(f"engine.decode = 'fused' does nothing here: {self.cache_reason}")
        use_cache = self._verdict.mode == "turn"
        return CohortRunner(self._model, self._device, use_cache=use_cache, **limits)

    def _sample(self, rows: list[Row], logits_RV: torch.Tensor) -> list[Completion]:
        temperature = np.array([row.request.temperature for row in rows])
        top_p = np.array([row.request.top_p for row in rows])
        uniform = np.array([row.uniforms[len(row.tokens)] for row in rows])
        if self.listener is not None:
            ids = [row.request.id for row in rows]
            places = [len(row.tokens) for row in rows]
            self.listener(ids, places, logits_RV, False)
        sampled = sample_rows(logits_RV, temperature, top_p, uniform)
        taken = [self._take(row, sampled, index) for index, row in enumerate(rows)]
        return [completion for completion in taken if completion is not None]

    def _take(self, row: Row, sampled: Sampled, index: int) -> Completion | None:
        """Note what was sampled for one row; its completion if that was the last token."""
        if not sampled.valid[index]:
            error = (
                f"the logits of token {len(row.tokens)} are not finite (policy version {self._policy_version}); the "
                "weights have diverged or overflow in " + self.config.dtype
            )
            return self._complete(row, "error", error)
        token = int(sampled.token[index])
        row.tokens.append(token)
        row.logps.append(float(sampled.logp[index]))
        row.plain_logps.append(float(sampled.plain_logp[index]))
        self._counters.generated_tokens += 1
        if token in row.request.stop_ids:
            return self._complete(row, "stop")
        if len(row.tokens) == row.limit:
            return self._complete(row, "length")
        self._runner.advance(row, token)
        return None

    def _complete(self, row: Row, finish: str, error: str | None = None) -> Completion:
        request = row.request
        del self._rows[request.id]
        self._runner.finish(row, keep=error is None)
        self._intake.finish(request.id)
        sampling = Sampling(
            request.temperature, request.top_p, engine=self.name, dtype=self.config.dtype
        )
        count = 0 if error else len(row.tokens)  # a turn that broke hands nothing over
        plain_logps = np.array(row.plain_logps[:count], np.float32) if sampling.bends else None
        return Completion(
            request_id=request.id,
            token_ids=np.array(row.tokens[:count], np.int32),
            logprobs=np.array(row.logps[:count], np.float32),
            finish=finish,
            policy_version=self._policy_version,
            sampling=sampling,
            plain_logprobs=plain_logps,
            error=error,
        )


def _keeps_logits(model: torch.nn.Module) -> bool:
    return "logits_to_keep" in inspect.signature(model.forward).parameters
