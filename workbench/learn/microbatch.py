"""From flat storage to the model and back: micro-batches in two layouts, logits at trained positions only.

Axis letters: T tokens of the whole batch (flat) · S segments · B rows of a micro-batch · L its padded length ·
P tokens of a packed micro-batch · M trained tokens of a micro-batch (flat) · V vocabulary.

Padded: one row a segment, rows of like length together. Padding stands on the right; under causal attention nothing to
the right of a token has a part in it, so neither an attention mask nor position ids are needed. Right for every model.

Packed: segments end to end, nothing padded, and a prompt that several of them begin with (the attempts of a group)
stands there once: it passes through the model once, and its gradient is the sum of theirs. For models that
`packing.make_packable` found fit, where it pays.

Either way a segment ends before its last trained token: what stands there and after predicts nothing that is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workbench.learn.batch import Batch
from workbench.learn.packing import Part, attending_to, is_packable
from workbench.learn.ops.loss import entropy_of, logprobs_of, scoring_position
from workbench.types.errors import LearnerError

# Logits that are made at once, as numbers; more of them are made in pieces (pieces.py), which have a few arrays of this
# size each. On the CPU more than 32 MiB, because smaller arrays come from a heap that falls to pieces between them and
# grows by one a piece (glibc; measured 1.1 times all logits).
LOGITS_AT_ONCE = defaultdict(lambda: 1 << 26, cpu=9_000_000)  # by type of device
ENTROPY_ROWS = 1024  # logits to take the entropy of at once, where no gradient is asked for: bounds memory, not results
PADDING_ID = 0  # any valid id would do: no trained token can see it


@dataclass(frozen=True, eq=False)
class Packed:
    """The segments of a micro-batch end to end; `parts` says which tokens form a sequence, and with which prompt."""

    input_ids_1P: Tensor
    position_ids_1P: Tensor
    scored_by_M: (
        Tensor  # int64: where the predictions of the trained tokens stand, as indices into P
    )
    parts: tuple[Part, ...]


@dataclass(frozen=True, eq=False)
class MicroBatch:
    """A few whole segments, ready for the model. All index tensors are aligned [M]."""

    input_ids_BL: Tensor
    token_M: Tensor  # int64: which tokens of the batch are trained, as indices into T
    scored_by_M: Tensor  # int64: where their predictions stand, as indices into B * L
    segment_M: Tensor  # int64: the row each belongs to, 0..B-1
    packed: Packed  # the same segments once more, for models that can be packed


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
        bounds_S1 = torch.searchsorted(token_M, batch.segment_offsets)
        last = (
            token_M[(bounds_S1[1:] - 1).clamp(min=0)]
            if len(token_M)
            else batch.segment_offsets[:-1]
        )
        length_S = torch.where(bounds_S1.diff() > 0, last - batch.segment_offsets[:-1], 0)
        before_T = torch.cat([torch.zeros(1, dtype=torch.int64), (~batch.response_T).cumsum(0)])
        prompt_S = torch.minimum(before_T[batch.segment_offsets].diff(), length_S)
        ids_T, known = batch.token_ids_T.numpy(), {}
        same = [
            known.setdefault(ids_T[start : start + prompt].tobytes(), len(known))
            for start, prompt in zip(batch.segment_offsets[:-1].tolist(), prompt_S.tolist())
        ]
        return cls(
            batch, token_M, bounds_S1, length_S, prompt_S, torch.tensor(same, dtype=torch.int64)
        )

    @property
    def trained_segments(self) -> list[int]:
        return (self.length_S > 0).nonzero()[:, 0].tolist()

    def build(self, segments: Sequence[int], device: torch.device | str) -> MicroBatch:
        """The micro-batch of these segments; for none of them, one of a single token that trains nothing."""
        longest = max((int(self.length_S[s]) for s in segments), default=1)
        input_ids_BL = torch.full((max(len(segments), 1), longest), PADDING_ID, dtype=torch.int64)
        tokens, scored_by, rows = [], [], []
        for row, segment in enumerate(segments):
            start, length = int(self.batch.segment_offsets[segment]), int(self.length_S[segment])
            input_ids_BL[row, :length] = self.batch.token_ids_T[start : start + length]
            token_M = self.token_M[int(self.bounds_S1[segment]) : int(self.bounds_S1[segment + 1])]
            tokens.append(token_M)
            scored_by.append(row * longest + scoring_position(token_M - start))
            rows.append(torch.full_like(token_M, row))
        nothing = [torch.zeros(0, dtype=torch.int64)]
        return MicroBatch(
            input_ids_BL.to(device),
            torch.cat(tokens or nothing),
            torch.cat(scored_by or nothing).to(device),
            torch.cat(rows or nothing),
            self._packed(segments, device),
        )

    def _packed(self, segments: Sequence[int], device: torch.device | str) -> Packed:
        """The segments end to end: each prompt where it is first needed, then what follows it in each segment."""
        offsets, prompt_S, length_S = (
            t.tolist() for t in (self.batch.segment_offsets, self.prompt_S, self.length_S)
        )
        ids, positions, scored_by, parts = [], [], [], []
        prompt_at: dict[int, int] = {}  # where a prompt stands in the pass
        total = 0
        for segment in segments:
            start, prompt, length = offsets[segment], prompt_S[segment], length_S[segment]
            same = int(self.same_prompt_S[segment])
            if same not in prompt_at:
                prompt_at[same] = total
                ids.append(self.batch.token_ids_T[start : start + prompt])
                positions.append(torch.arange(prompt))
                parts.append(Part(total, total + prompt))
                total += prompt
            at = prompt_at[same]
            ids.append(self.batch.token_ids_T[start + prompt : start + length])
            positions.append(torch.arange(prompt, length))
            parts.append(Part(total, total + length - prompt, at, at + prompt))
            token_M = self.token_M[int(self.bounds_S1[segment]) : int(self.bounds_S1[segment + 1])]
            place_M = scoring_position(token_M - start)
            scored_by.append(place_M + torch.where(place_M < prompt, at, total - prompt))
            total += length - prompt
        if not segments:
            ids, positions, parts = (
                [torch.tensor([PADDING_ID])],
                [torch.zeros(1, dtype=torch.int64)],
                [Part(0, 1)],
            )
            scored_by = [torch.zeros(0, dtype=torch.int64)]
        return Packed(
            torch.cat(ids)[None].to(device),
            torch.cat(positions)[None].to(device),
            torch.cat(scored_by).to(device),
            tuple(part for part in parts if part.stop > part.start),
        )

    def cut(self, segments: Sequence[int], budget: int, *, packed: bool) -> list[list[int]]:
        """Cut segments into micro-batches of at most `budget` tokens as they pass through the model: padded ones, or
        packed ones. A segment longer than the budget is one by itself."""
        if not packed:
            return cut(self.length_S, segments, budget)
        length_S, prompt_S, same_S = (
            self.length_S.tolist(),
            self.prompt_S.tolist(),
            self.same_prompt_S.tolist(),
        )
        longest: dict[int, int] = {}
        for s in segments:
            longest[same_S[s]] = max(longest.get(same_S[s], 0), length_S[s])
        pieces: list[list[int]] = []
        size, prompts = 0, set()
        # Segments of one prompt stand together.
        for s in sorted(segments, key=lambda s: (-longest[same_S[s]], same_S[s], -length_S[s], s)):
            more = length_S[s] - (prompt_S[s] if same_S[s] in prompts else 0)
            if pieces and size + more <= budget:
                pieces[-1].append(s)
                size += more
            else:
                pieces.append([s])
                size, prompts = length_S[s], set()
            prompts.add(same_S[s])
        return pieces


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
    """Of the tokens `ids_M`. `entropy`: "none", "value" (without gradient) or "gradient"."""
    logp_M = logprobs_of(logits_MV, ids_M)
    if entropy == "value":
        return TokenScores(
            logp_M, torch.cat([entropy_of(some) for some in logits_MV.detach().split(ENTROPY_ROWS)])
        )
    return TokenScores(logp_M, entropy_of(logits_MV) if entropy == "gradient" else None)


def fits_at_once(head: nn.Module, micro: MicroBatch) -> bool:
    """Whether all logits of a micro-batch may be made at once; else `pieces` makes them."""
    return (
        len(micro.token_M) * head.weight.shape[0] <= LOGITS_AT_ONCE[micro.input_ids_BL.device.type]
    )


@contextmanager
def _only(head: nn.Module, scored_by_M: Tensor) -> Iterator[None]:
    """While open, `head` sees only the chosen hidden states [1, M, H], so only their logits are ever made. Whatever
    the model does with its logits afterwards (soft-capping, scaling) still happens."""

    def select(module, args):
        hidden_BLH, *rest = args
        return hidden_BLH.reshape(-1, hidden_BLH.shape[-1]).index_select(0, scored_by_M).unsqueeze(
            0
        ), *rest

    handle = head.register_forward_pre_hook(select)
    try:
        yield
    finally:
        handle.remove()


def trained_logits(
    model: nn.Module, head: nn.Module, micro: MicroBatch, *, bf16: bool = False
) -> Tensor:
    """Logits that predict the trained tokens of a micro-batch [M, V], with gradient if grad mode is on.

    `model` may be wrapped (DDP); `head` is the bare model's. `bf16` runs the forward pass under autocast. A model that
    `packing.make_packable` prepared gets the segments packed, any other one padded rows.
    """
    packed = micro.packed if is_packable(model) else None
    scored_by_M = micro.scored_by_M if packed is None else packed.scored_by_M
    with (
        _only(head, scored_by_M),
        torch.autocast(micro.input_ids_BL.device.type, torch.bfloat16, enabled=bf16),
    ):
        if packed is None:
            logits = model(input_ids=micro.input_ids_BL, use_cache=False).logits
        else:
            with attending_to(packed.parts):
                logits = model(
                    input_ids=packed.input_ids_1P,
                    position_ids=packed.position_ids_1P,
                    use_cache=False,
                ).logits
    if logits.shape[:-1] != (1, len(micro.token_M)):
        raise LearnerError(
            f"asked {type(model).__name__} for the logits of {len(micro.token_M)} positions and got shape "
            f"{tuple(logits.shape)}: its output head is not what get_output_embeddings() names, so it cannot be "
            "trained here"
        )
    return logits[0]
