"""From flat storage to the model and back: micro-batches in two layouts, logits at trained positions only.

Axis letters: T tokens of the whole batch (flat) · S segments · B rows of a micro-batch · L tokens of a row ·
M trained tokens of a micro-batch (flat) · R those of a block · H hidden size · V vocabulary.

Padded: one row a segment, rows of like length together. Padding stands on the right; under causal attention nothing to
the right of a token has a part in it, so neither an attention mask nor position ids are needed. Right for every model.

Packed: segments end to end, nothing padded, and a prompt that several of them begin with (the trajectories of a group)
stands there once: it passes through the model once, and its gradient is the sum of theirs. For models that
`packing.make_packable` found fit, where it pays.

Either way a segment ends before its last trained token: what stands there and after predicts nothing that is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.learn.batch import Batch
from workbench.learn.ops.loss import entropy_of, logprobs_of, scoring_position
from workbench.learn.packing import Part, attending_to, is_packable
from workbench.values.errors import LearnerError

# Logits that are made at once, as numbers; more of them are made in pieces (pieces.py), which have a few arrays of this
# size each. On the CPU more than 32 MiB, because smaller arrays come from a heap that falls to pieces between them and
# grows by one a piece (glibc; measured 1.1 times all logits).
LOGITS_AT_ONCE = defaultdict(lambda: 1 << 26, cpu=9_000_000)  # by type of device
ENTROPY_ROWS = 1024  # logits to take the entropy of at once, where no gradient is asked for: bounds memory, not results
PADDING_ID = 0  # any valid id would do: no trained token can see it


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A few whole segments, ready for the model: padded, one a row, or packed end to end in a single row."""

    input_ids_BL: Tensor
    token_M: Tensor  # int64: which tokens of the batch are trained, as indices into T
    scored_by_M: Tensor  # int64: where their predictions stand, as indices into B * L
    segment_M: Tensor  # int64: which of the segments each belongs to, counted from 0
    position_ids_BL: Tensor | None = None  # packed only: a padded row counts from 0 by itself
    parts: tuple[Part, ...] | None = None  # packed only: which tokens form a sequence


@dataclass
class _PackedRow:
    """Stretches of tokens end to end, while a packed micro-batch is put together."""

    ids: list[Tensor] = field(default_factory=list)
    positions: list[Tensor] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    length: int = 0

    def append(self, ids_L: Tensor, position: int, prompt_at: int = 0) -> int:
        """Add tokens whose first has this position: the prompt of as many tokens begins at `prompt_at`. Returns
        where they begin themselves."""
        start = self.length
        self.length += len(ids_L)
        self.ids.append(ids_L)
        self.positions.append(torch.arange(position, position + len(ids_L)))
        self.parts.append(Part(start, self.length, prompt_at, prompt_at + position))
        return start


@dataclass(frozen=True, eq=False)
class Rows:
    """What the segments of a batch cost and where their trained tokens are, worked out once per update.

    `length_S` is the length of the model's input for a segment: 0 where nothing in it is trained. `prompt_S` is how
    much of that stands before the first token of the response, and `same_prompt_S` numbers the different ones.
    """

    batch: Batch
    token_M: Tensor  # all trained tokens, ascending
    bounds_S1: Tensor  # segment s trains token_M[bounds[s]:bounds[s + 1]]
    length_S: Tensor
    prompt_S: Tensor
    same_prompt_S: Tensor

    @classmethod
    def of(cls, batch: Batch, trained_T: Tensor) -> Rows:
        token_M = trained_T.nonzero()[:, 0]
        start_S = batch.segment_offsets[:-1]
        bounds_S1 = torch.searchsorted(token_M, batch.segment_offsets)
        last_S = token_M[(bounds_S1[1:] - 1).clamp(min=0)] if len(token_M) else start_S
        length_S = torch.where(bounds_S1.diff() > 0, last_S - start_S, 0)
        before_T = torch.cat([torch.zeros(1, dtype=torch.int64), (~batch.response_T).cumsum(0)])
        prompt_S = torch.minimum(before_T[batch.segment_offsets].diff(), length_S)
        ids_T = batch.token_ids_T.numpy()
        known: dict[bytes, int] = {}
        same = [
            known.setdefault(ids_T[start : start + prompt].tobytes(), len(known))
            for start, prompt in zip(start_S.tolist(), prompt_S.tolist())
        ]
        same_prompt_S = torch.tensor(same, dtype=torch.int64)
        return cls(batch, token_M, bounds_S1, length_S, prompt_S, same_prompt_S)

    @property
    def trained_segments(self) -> list[int]:
        return (self.length_S > 0).nonzero()[:, 0].tolist()

    def trained_tokens(self, segment: int) -> Tensor:
        """The trained tokens of one segment, as indices into T."""
        return self.token_M[int(self.bounds_S1[segment]) : int(self.bounds_S1[segment + 1])]

    def build(
        self, segments: Sequence[int], device: torch.device | str, *, packed: bool = False
    ) -> MicroBatch:
        """The micro-batch of these segments, padded or packed; for none of them, one of a single token that trains
        nothing."""
        if not segments:
            return _micro_batch_of_nothing(device)
        return self._packed(segments, device) if packed else self._padded(segments, device)

    def _padded(self, segments: Sequence[int], device: torch.device | str) -> MicroBatch:
        longest = max(int(self.length_S[segment]) for segment in segments)
        input_ids_BL = torch.full((len(segments), longest), PADDING_ID, dtype=torch.int64)
        tokens = [self.trained_tokens(segment) for segment in segments]
        scored_by = []
        for row, (segment, token_M) in enumerate(zip(segments, tokens)):
            start = int(self.batch.segment_offsets[segment])
            length = int(self.length_S[segment])
            input_ids_BL[row, :length] = self.batch.token_ids_T[start : start + length]
            scored_by.append(row * longest + scoring_position(token_M - start))
        return MicroBatch(
            input_ids_BL.to(device),
            torch.cat(tokens),
            torch.cat(scored_by).to(device),
            _numbered(tokens),
        )

    def _packed(self, segments: Sequence[int], device: torch.device | str) -> MicroBatch:
        """The segments end to end: each prompt where it is first needed, then what follows it in each segment."""
        row = _PackedRow()
        prompt_at: dict[int, int] = {}  # number of a prompt -> where it begins in the row
        tokens = [self.trained_tokens(segment) for segment in segments]
        scored_by = []
        for segment, token_M in zip(segments, tokens):
            start = int(self.batch.segment_offsets[segment])
            prompt = int(self.prompt_S[segment])
            ids_L = self.batch.token_ids_T[start : start + int(self.length_S[segment])]
            same = int(self.same_prompt_S[segment])
            if same not in prompt_at:
                prompt_at[same] = row.append(ids_L[:prompt], 0)
            at = prompt_at[same]
            rest_at = row.append(ids_L[prompt:], prompt, at)
            place_M = scoring_position(token_M - start)
            scored_by.append(place_M + torch.where(place_M < prompt, at, rest_at - prompt))
        return MicroBatch(
            torch.cat(row.ids)[None].to(device),
            torch.cat(tokens),
            torch.cat(scored_by).to(device),
            _numbered(tokens),
            torch.cat(row.positions)[None].to(device),
            tuple(part for part in row.parts if part.stop > part.start),
        )

    def cut(self, segments: Sequence[int], budget: int, *, packed: bool) -> list[list[int]]:
        """Cut segments into micro-batches of at most `budget` tokens as they pass through the model: padded ones, or
        packed ones. A segment longer than the budget is one by itself."""
        if not packed:
            return cut(self.length_S, segments, budget)
        length_S = self.length_S.tolist()
        prompt_S = self.prompt_S.tolist()
        same_S = self.same_prompt_S.tolist()
        longest: dict[int, int] = {}
        for segment in segments:
            same = same_S[segment]
            longest[same] = max(longest.get(same, 0), length_S[segment])

        def order(segment: int) -> tuple[int, int, int, int]:  # segments of one prompt together
            same = same_S[segment]
            return -longest[same], same, -length_S[segment], segment

        pieces: list[list[int]] = []
        prompts: set[int] = set()  # those that stand in the newest piece
        size = 0
        for segment in sorted(segments, key=order):
            shared = prompt_S[segment] if same_S[segment] in prompts else 0
            more = length_S[segment] - shared
            if pieces and size + more <= budget:
                pieces[-1].append(segment)
                size += more
            else:
                pieces.append([segment])
                size = length_S[segment]
                prompts = set()
            prompts.add(same_S[segment])
        return pieces


def _numbered(tokens: Sequence[Tensor]) -> Tensor:
    """The number of each token's segment [M], for the trained tokens of each."""
    return torch.cat([torch.full_like(token_M, row) for row, token_M in enumerate(tokens)])


def _micro_batch_of_nothing(device: torch.device | str) -> MicroBatch:
    nothing_M = torch.zeros(0, dtype=torch.int64)
    input_ids_BL = torch.full((1, 1), PADDING_ID, dtype=torch.int64)
    return MicroBatch(input_ids_BL.to(device), nothing_M, nothing_M.to(device), nothing_M)


def cut(
    length_S: Tensor, segments: Sequence[int], budget: int, *, sort: bool = True
) -> list[list[int]]:
    """Cut segments into micro-batches of at most `budget` padded tokens (rows x longest row), longest first, so that
    rows of like length share one and little is padding. A segment longer than the budget is one by itself."""
    length = {s: int(length_S[s]) for s in segments}
    order = sorted(segments, key=lambda s: (-length[s], s)) if sort else list(segments)
    pieces: list[list[int]] = []
    longest = 0
    for segment in order:
        widest = max(longest, length[segment])
        if pieces and (len(pieces[-1]) + 1) * widest <= budget:
            pieces[-1].append(segment)
            longest = widest
        else:
            pieces.append([segment])
            longest = length[segment]
    return pieces


def output_head(model: nn.Module) -> nn.Module:
    """The module that turns hidden states into logits. Raises LearnerError where a model does not say which it is."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if head is None:
        raise LearnerError(
            f"{type(model).__name__} names no output embedding, so its logits cannot be taken at "
            "trained positions only; use a causal language model (AutoModelForCausalLM)"
        )
    return head


class TokenScores(NamedTuple):
    """Of each trained token, float32 [M]: its logprob, and the entropy of the distribution it is from (None: not asked)."""

    logp_M: Tensor
    entropy_M: Tensor | None


def scored(logits_MV: Tensor, ids_M: Tensor, entropy: str) -> TokenScores:
    """The scores of the tokens `ids_M`. `entropy`: "none", "value" (without gradient) or "gradient"."""
    logp_M = logprobs_of(logits_MV, ids_M)
    if entropy == "none":
        return TokenScores(logp_M, None)
    if entropy == "gradient":
        return TokenScores(logp_M, entropy_of(logits_MV))
    blocks = logits_MV.detach().split(ENTROPY_ROWS)
    return TokenScores(logp_M, torch.cat([entropy_of(logits_RV) for logits_RV in blocks]))


def fits_at_once(head: nn.Module, micro: MicroBatch) -> bool:
    """Whether all logits of a micro-batch may be made at once; else `pieces` makes them."""
    logits = len(micro.token_M) * head.weight.shape[0]
    return logits <= LOGITS_AT_ONCE[micro.input_ids_BL.device.type]


@contextmanager
def _head_sees_only(head: nn.Module, scored_by_M: Tensor) -> Iterator[None]:
    """While open, `head` sees only the chosen hidden states [1, M, H], so only their logits are ever made. Whatever
    the model does with its logits afterwards (soft-capping, scaling) still happens."""

    def select(module, args):
        hidden_BLH, *rest = args
        hidden_MH = hidden_BLH.flatten(0, -2).index_select(0, scored_by_M)
        return hidden_MH.unsqueeze(0), *rest

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def trained_logits(
    model: nn.Module, head: nn.Module, micro: MicroBatch, *, bf16: bool = False
) -> Tensor:
    """Logits that predict the trained tokens of a micro-batch [M, V], with gradient if grad mode is on.

    `model` may be wrapped (DDP); `head` is the bare model's. `bf16` runs the forward pass under autocast. Raises
    LearnerError for a packed micro-batch where `packing.make_packable` did not prepare the model.
    """
    if micro.parts is not None and not is_packable(model):
        raise LearnerError(
            f"a packed micro-batch came to {type(model).__name__}, which cannot keep its segments apart; cut and "
            "build padded ones for it"
        )
    placed = {} if micro.position_ids_BL is None else {"position_ids": micro.position_ids_BL}
    with (
        _head_sees_only(head, micro.scored_by_M),
        torch.autocast(micro.input_ids_BL.device.type, torch.bfloat16, enabled=bf16),
        attending_to(micro.parts, micro.scored_by_M),
    ):
        logits = model(input_ids=micro.input_ids_BL, use_cache=False, **placed).logits
    if logits.shape[:-1] != (1, len(micro.token_M)):
        raise LearnerError(
            f"asked {type(model).__name__} for the logits of {len(micro.token_M)} positions and got shape "
            f"{tuple(logits.shape)}: its output head is not what get_output_embeddings() names, so it cannot be "
            "trained here"
        )
    return logits.squeeze(0)
