"""What engines are handed is checked at the door, with names and numbers: requests, and weights by state-dict name.

A request that passes is *in flight* until its completion is handed over or its session is released. Weights are taken
all or none. No torch before there are weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.basics.tensors import torch
from workbench.engines.base import Request
from workbench.values.errors import EngineError

UNLIMITED = 1 << 20  # context of models that have no positions to run out of


class Intake:
    """Checks requests and remembers which ids and sessions are in flight."""

    def __init__(
        self, context_length: int, vocab_size: int | None = None, cache_tokens: int | None = None
    ):
        self.context_length = context_length
        self.vocab_size = vocab_size
        self.cache_tokens = cache_tokens  # None: nothing is cached, nothing can be too long for it
        self._session_of_id: dict[int, str] = {}
        self._id_of_session: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._session_of_id)

    def accept(self, request: Request) -> tuple[np.ndarray, int]:
        """Check a request and note it as in flight. Returns its prompt as int64 [prompt], and how many tokens this turn may
        get: what was asked for, or what the context has room for. Raises EngineError."""
        prompt = check_request(request, self.context_length, self.vocab_size)
        limit = min(request.max_new_tokens, self.context_length - len(prompt))
        if self.cache_tokens is not None and len(prompt) + limit > self.cache_tokens:
            raise EngineError(
                f"request {request.id}: {len(prompt)} prompt and up to {limit} new tokens do not fit into a cache of "
                f"{self.cache_tokens} tokens; raise engine.cache_tokens or lower max_new_tokens"
            )
        if request.id in self._session_of_id:
            raise EngineError(
                f"request id {request.id} is already in flight; every request needs an id of its own"
            )
        other = self._id_of_session.get(request.session)
        if other is not None:
            raise EngineError(
                f"request {request.id}: session {request.session!r} already has request {other} in flight; a session "
                "is one sequence, so wait for its completion (or release the session) before its next turn"
            )
        self._session_of_id[request.id] = request.session
        self._id_of_session[request.session] = request.id
        return prompt, limit

    def finish(self, request_id: int) -> None:
        del self._id_of_session[self._session_of_id.pop(request_id)]

    def cancel(self, session: str) -> int | None:
        """Forget what this session has in flight; returns the id of the request that will get no answer, if any."""
        request_id = self._id_of_session.pop(session, None)
        if request_id is not None:
            del self._session_of_id[request_id]
        return request_id

    def check_sync(self, version: int, policy_version: int) -> None:
        """Weights change only between requests, and a version names one set of weights for ever."""
        if self._session_of_id:
            ids = sorted(self._session_of_id)
            raise EngineError(
                f"sync to version {version} refused: {len(ids)} request(s) are in flight (ids {_some(ids)}); a turn is "
                "sampled from one set of weights, so poll() until all are done, or release their sessions"
            )
        if version <= policy_version:
            raise EngineError(
                f"sync to version {version} refused: the engine already holds version {policy_version}; versions must "
                "grow, so that a version names one set of weights"
            )


def model_context(model: Any, max_context: int | None) -> int:
    """Tokens of one sequence: what a Hugging Face model has positions for, and no more than was asked for."""
    text = model.config.get_text_config(decoder=True)
    positions = (
        getattr(text, "max_position_embeddings", None)
        or getattr(text, "n_positions", None)
        or UNLIMITED
    )
    rope = getattr(text, "rope_parameters", None) or {}
    if rope.get("rope_type") == "longrope":
        # Beyond this length it rotates differently, which would make kept keys wrong.
        positions = min(positions, rope.get("original_max_position_embeddings", positions))
    if max_context is not None and max_context > positions:
        raise EngineError(
            f"engine.max_context is {max_context}, but the model has positions for {positions} tokens"
        )
    return int(max_context or positions)


def position_numbers(text: Any) -> int:
    """Numbers in the keys and values of one position, all layers. `text`: a Hugging Face config of the text model."""
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return 2 * text.num_hidden_layers * heads * width


def check_request(request: Request, context_length: int, vocab_size: int | None) -> np.ndarray:
    """The prompt as int64 [prompt]; EngineError for what no engine could ever serve."""
    name = f"request {request.id}"
    prompt = np.asarray(request.prompt_ids)
    if prompt.ndim != 1 or (len(prompt) and prompt.dtype.kind not in "iu"):
        raise EngineError(
            f"{name}: prompt_ids must be a flat array of token ids, got {prompt.dtype} {prompt.shape}"
        )
    if len(prompt) == 0:
        raise EngineError(
            f"{name}: the prompt is empty; a model needs at least one token to predict from"
        )
    if len(prompt) >= context_length:
        raise EngineError(
            f"{name}: the prompt has {len(prompt)} tokens, but the model has positions for {context_length} and at "
            "least one must be left for an answer; end the trajectory (context_full) or shorten its history"
        )
    lowest = int(prompt.min())
    highest = int(prompt.max())
    if lowest < 0 or (vocab_size is not None and highest >= vocab_size):
        bad = lowest if lowest < 0 else highest
        size = "any vocabulary" if vocab_size is None else f"the vocabulary of {vocab_size}"
        raise EngineError(
            f"{name}: token id {bad} is outside {size}; tokenizer and model do not fit each other"
        )
    if request.max_new_tokens < 1:
        raise EngineError(
            f"{name}: max_new_tokens must be at least 1, got {request.max_new_tokens}"
        )
    if not 0.0 <= request.temperature < float("inf"):
        raise EngineError(
            f"{name}: temperature must be finite and >= 0 (0 is greedy), got {request.temperature}"
        )
    if not 0.0 < request.top_p <= 1.0:
        raise EngineError(f"{name}: top_p must be in (0, 1], got {request.top_p}")
    if request.seed < 0:
        raise EngineError(
            f"{name}: seed must be >= 0 (use workbench.values.seeds.seed_of), got {request.seed}"
        )
    return prompt.astype(np.int64)


# ------------------------------------------------------------------------------------------------ weights


def cast_weights(model: torch.nn.Module, dtype: torch.dtype) -> None:
    """Change parameters and stored buffers of `model` to `dtype`, in place; ties stay ties.

    Buffers that are no part of the state (the frequencies of rotary positions) keep their type, as in a model that
    `from_pretrained` loads in half precision. `model.to(dtype)` would round them, and the angle of position 1000 would
    be off by a radian: the engine would sample from another model than the one that is trained.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        for module in model.modules():
            for name, buffer in module.named_buffers(recurse=False):
                if name not in module._non_persistent_buffers_set and buffer.is_floating_point():
                    setattr(module, name, buffer.to(dtype))


def lay_out_for_few_rows(model: torch.nn.Module) -> None:
    """Store the matrices of linear layers column by column, in place: shapes, names and values stay.

    A decode step brings few rows to each matrix, and torch's matrix library first arranges a row-wise one anew for every
    product; so 16 rows take 1.3 to 1.6 times as long (CPU, float32). Elsewhere nothing is changed.
    """
    tables = {
        id(module.weight) for module in model.modules() if isinstance(module, torch.nn.Embedding)
    }
    for module in model.modules():
        weight = getattr(module, "weight", None)
        if not isinstance(module, torch.nn.Linear) or id(weight) in tables:
            continue
        if weight.device.type == "cpu" and weight.dtype == torch.float32:
            weight.data = weight.data.t().contiguous().t()


def copy_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy `weights` into `model` in place, casting to the model's dtype and device.

    Names are those of `model.state_dict()`. Raises EngineError like `WeightNames.choose`, and then nothing has been
    changed.
    """
    own = model.state_dict()
    chosen = WeightNames.of(model).choose(weights)
    with torch.no_grad():
        for name, tensor in chosen.items():
            target = own[name]
            if not target.is_contiguous():  # column by column: torch is 1.4 times as fast into rows
                target = target.t()
                tensor = tensor.t()
            target.copy_(tensor)


@dataclass(frozen=True)
class WeightNames:
    """Names and shapes of a model's weights, names that share storage together: what a sync is checked against."""

    kind: str  # class of the model
    shapes: Mapping[str, torch.Size]
    # Every name is in one of them; the first of each names the tensor.
    tied: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, model: torch.nn.Module) -> WeightNames:
        own = model.state_dict()
        shapes = {name: tensor.shape for name, tensor in own.items()}
        return cls(type(model).__name__, shapes, _tied(own))

    def choose(self, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Each tensor once, under the first of its names.

        Of names that share storage (a head tied to the embedding) one is enough; if several are given they must agree.
        Raises EngineError naming what is unknown, missing, misshapen or contradictory.
        """
        unknown = [name for name in weights if name not in self.shapes]
        if unknown:
            raise EngineError(
                f"weights hold {len(unknown)} name(s) that the engine's {self.kind} does not have: "
                f"{_some(unknown)}; it has for instance {_some(list(self.shapes))}. Unwrap the model first (a prefix "
                "such as 'module.' comes from DDP)"
            )
        shapes = [
            f"{name}: engine {tuple(self.shapes[name])}, got {tuple(tensor.shape)}"
            for name, tensor in weights.items()
            if tensor.shape != self.shapes[name]
        ]
        if shapes:
            raise EngineError(
                f"{len(shapes)} weight(s) have another shape than in the engine: {_some(shapes, '; ')}"
            )
        chosen: dict[str, torch.Tensor] = {}
        missing = []
        contradictions = []
        for names in self.tied:
            given = [name for name in names if name in weights]
            if not given:
                missing.append(" = ".join(names))
                continue
            first = weights[given[0]]
            contradictions += [
                f"{given[0]} and {name}" for name in given[1:] if not _same(first, weights[name])
            ]
            chosen[names[0]] = first
        if missing:
            raise EngineError(
                f"weights lack {len(missing)} name(s) of the engine's {self.kind}: {_some(missing)}"
            )
        if contradictions:
            raise EngineError(
                f"{_some(contradictions)} are one tensor in the engine (tied) but came with different values; "
                "the model that was trained has lost its tie"
            )
        return chosen


def _tied(own: Mapping[str, torch.Tensor]) -> tuple[tuple[str, ...], ...]:
    """Names grouped by the storage that they share."""
    groups: dict[tuple, list[str]] = {}
    for name, tensor in own.items():
        key = (
            tensor.data_ptr(),
            tensor.storage_offset(),
            tuple(tensor.shape),
            tuple(tensor.stride()),
        )
        # Tensors without elements share the null pointer without being one.
        groups.setdefault(key if tensor.numel() else (name,), []).append(name)
    return tuple(tuple(names) for names in groups.values())


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() or torch.equal(a, b.to(a.device))


def _some(items: list, separator: str = ", ") -> str:
    shown = separator.join(map(str, items[:4]))
    return shown if len(items) <= 4 else f"{shown}{separator}and {len(items) - 4} more"
