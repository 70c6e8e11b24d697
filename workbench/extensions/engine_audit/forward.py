"""What weights make of ids, as they are and as they would be if something had gone wrong: one plain forward pass each.

Axis letters: M sampled tokens that are looked at · Q sequences · L positions of a padded row · V vocabulary.

A hypothesis is a value: the same tokens, with these weights, in this dtype, at these positions. The pass is neither
the engine's (no cache, no packing) nor the trainer's (no micro-batches), so it can bear witness against both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from workbench.engines.gap import PlainForward
from workbench.engines.sampling import bend

NOW = "now"  # the weights that the trainer holds
HELD = "held"  # those that the engine holds, where they are none that is known otherwise
PASS_TOKENS = 4096  # padded tokens of one pass: bounds memory, not results
LARGEST = 20.0  # nats: further apart than this is "impossible", and one such token must not be all there is

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token ids [Q] lists, and for each looked-at token its sequence and its place there [M].

    `sampled`: per sequence, which of its tokens the policy sampled; `turns`: the turn of each; `first`: how many tokens
    stand before the first sampled one.
    """

    ids: tuple[np.ndarray, ...]
    sampled: tuple[np.ndarray, ...]
    turns: tuple[np.ndarray, ...]
    row_M: np.ndarray
    place_M: np.ndarray

    @property
    def token_M(self) -> np.ndarray:
        places = zip(self.row_M, self.place_M)
        return np.array([self.ids[row][place] for row, place in places], np.int64)


@dataclass(frozen=True)
class Hypothesis:
    """How the engine may have come to its numbers. The default: as the trainer would, from the trainer's weights.

    `weights` names a known set; `part`: only these tensors are from it. `dtype`: of the whole pass, `head_dtype`: of the
    output head alone. `positions`: see `POSITIONS`. `places`: the number that stands at a token is that of the token so
    many places on. `temperature`, `top_p`: what bent the distribution, whatever was declared; None: as declared.
    `journal`: the ids that the engine was asked and answered, not those that are trained.
    """

    weights: str = NOW
    part: tuple[str, ...] | None = None
    dtype: str | None = None
    head_dtype: str | None = None
    positions: str | None = None
    places: int = 0
    temperature: float | None = None
    top_p: float | None = None
    journal: bool = False

    @property
    def model_key(self) -> Hypothesis:
        """Hypotheses of the same key have the same logits."""
        return replace(self, places=0, temperature=None, top_p=None)


SHIFTED = {
    "answer": "everything after the first prompt",
    "decoded": "the tokens that were decoded",
    "turn": "each further turn",
    "all": "all tokens",
}


def _shifts(sign: int) -> dict[str, tuple[str, str, int]]:
    return {
        f"{name} {sign:+d}": (f"position ids of {words} are {sign:+d}", name, sign)
        for name, words in SHIFTED.items()
    }


# What may be wrong with position ids: name -> (words, function of (places, first sampled place, turns, predicts) -> ids).
# A shift of all positions is nothing to a model with rotary positions, so parts are shifted against each other.
POSITIONS = {
    **_shifts(1),
    **_shifts(-1),
    "restart": ("position ids begin anew after the first prompt", "restart", 0),
}


def position_ids(name: str, sampled: np.ndarray, turns: np.ndarray) -> np.ndarray:
    """Position ids [L] of one sequence under a hypothesis of `POSITIONS`."""
    _, kind, sign = POSITIONS[name]
    places = np.arange(len(sampled))
    first = int(sampled.argmax()) if sampled.any() else len(sampled)
    if kind == "all":
        moved = places + sign
    elif kind == "answer":
        moved = places + sign * (places >= first)
    elif kind == "turn":
        moved = places + sign * np.maximum(turns - turns[:1], 0)
    elif (
        kind == "decoded"
    ):  # what went through the model one by one: the token before each sampled one
        moved = places + sign * np.append(sampled[1:], False)
    else:
        moved = np.where(places >= first, places - first, places)
    return np.maximum(moved, 0)


class Forward:
    """Logits under hypotheses. `known` are sets of weights by name, `NOW` among them, by state-dict name of `model`.

    `bf16`: the trainer's own pass runs under autocast. The model is only read.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        known: Mapping[str, Weights],
        trained: Sequences,
        journal: Sequences | None = None,
        bf16: bool = False,
    ) -> None:
        self.known = known
        self.trained = trained
        self.journal = journal
        self.bf16 = bf16
        self.plain = PlainForward(model)
        self._kept: tuple[Hypothesis, Tensor] | None = (
            None  # the newest: many hypotheses share their logits
        )
        self._base: tuple[Hypothesis, Tensor] | None = None

    def logits(self, hypothesis: Hypothesis) -> Tensor:
        """float32 [M, V]: what predicts each looked-at token, before temperature and top-p."""
        key = hypothesis.model_key
        for held in (self._base, self._kept):
            if held is not None and held[0] == key:
                return held[1]
        made = self._compute(key)
        if self._base is None:
            self._base = (key, made)
        self._kept = (key, made)
        return made

    def claims(
        self,
        hypothesis: Hypothesis,
        temperature_M: np.ndarray | float = 1.0,
        top_p_M: np.ndarray | float = 1.0,
    ) -> np.ndarray:
        """[M] float64: logprobs of the looked-at tokens, bent as declared or as the hypothesis has it.

        Where numbers stand at other places, those that have none to stand for are NaN.
        """
        temperature_M = temperature_M if hypothesis.temperature is None else hypothesis.temperature
        top_p_M = top_p_M if hypothesis.top_p is None else hypothesis.top_p
        sequences = self.sequences(hypothesis)
        logp_MV = bent(self.logits(hypothesis), temperature_M, top_p_M)
        token_M = torch.from_numpy(sequences.token_M).to(logp_MV.device)
        said_M = logp_MV.gather(1, token_M[:, None])[:, 0].double().cpu().numpy()
        return (
            _moved_by_places(said_M, sequences, hypothesis.places) if hypothesis.places else said_M
        )

    def sequences(self, hypothesis: Hypothesis) -> Sequences:
        return self.journal if hypothesis.journal and self.journal is not None else self.trained

    def weights(self, hypothesis: Hypothesis) -> dict[str, Tensor]:
        """The tensors of a hypothesis, by name, in its dtypes."""
        chosen = self.known[hypothesis.weights]
        if hypothesis.part is not None:
            chosen = {
                name: chosen[name] if name in hypothesis.part else tensor
                for name, tensor in self.known[NOW].items()
            }
        weights = {name: _cast(tensor, hypothesis.dtype) for name, tensor in chosen.items()}
        if hypothesis.head_dtype is not None and self.plain.head in weights:
            weights[self.plain.head] = _cast(weights[self.plain.head], hypothesis.head_dtype)
        return weights

    def _compute(self, hypothesis: Hypothesis) -> Tensor:
        sequences = self.sequences(hypothesis)
        weights = self.weights(hypothesis)
        device = next(iter(weights.values())).device.type
        pieces: list[Tensor] = []
        order: list[np.ndarray] = []
        used = sorted(
            set(sequences.row_M.tolist()), key=lambda row: (-len(sequences.ids[row]), row)
        )
        for rows in _passes_of(used, [len(ids) for ids in sequences.ids]):
            ids_QL, positions_QL = _padded(sequences, rows, hypothesis.positions)
            autocast = self.bf16 and hypothesis.dtype is None and hypothesis.head_dtype is None
            with torch.autocast(device, torch.bfloat16, enabled=autocast):
                logits_QLV = self.plain.logits(weights, ids_QL, positions_QL)
            for number, row in enumerate(rows):
                here = np.flatnonzero(sequences.row_M == row)
                # Logits before a token describe it.
                pieces.append(
                    logits_QLV[number, torch.from_numpy(sequences.place_M[here] - 1)].float()
                )
                order.append(here)
        return torch.cat(pieces)[torch.from_numpy(np.argsort(np.concatenate(order)))]


def bent(
    logits_MV: Tensor, temperature_M: np.ndarray | float, top_p_M: np.ndarray | float
) -> Tensor:
    """Logprobs [M, V] after temperature and top-p (of each row, or one for all); greedy (0) and unbent rows are the
    model's own softmax."""
    temperature_M, top_p_M = (
        np.broadcast_to(values, len(logits_MV)) for values in (temperature_M, top_p_M)
    )
    greedy_M = temperature_M == 0
    if (greedy_M | ((temperature_M == 1) & (top_p_M >= 1))).all():
        return logits_MV.log_softmax(-1)
    return bend(logits_MV, np.where(greedy_M, 1.0, temperature_M), np.where(greedy_M, 1.0, top_p_M))


def _moved_by_places(said_M: np.ndarray, sequences: Sequences, places: int) -> np.ndarray:
    """Give each token the number of the token `places` on in the same sequence, if that was looked at too."""
    at = {
        (row, place): m
        for m, (row, place) in enumerate(zip(sequences.row_M.tolist(), sequences.place_M.tolist()))
    }
    others = [at.get((row, place + places)) for row, place in at]
    return np.array([np.nan if other is None else said_M[other] for other in others])


def _padded(
    sequences: Sequences, rows: Sequence[int], positions: str | None
) -> tuple[np.ndarray, np.ndarray | None]:
    """Rows padded on the right, where a causal model never looks."""
    longest = max(len(sequences.ids[row]) for row in rows)
    ids_QL = np.zeros((len(rows), longest), np.int64)
    positions_QL = np.tile(np.arange(longest), (len(rows), 1))
    for number, row in enumerate(rows):
        length = len(sequences.ids[row])
        ids_QL[number, :length] = sequences.ids[row]
        if positions is not None:
            positions_QL[number, :length] = position_ids(
                positions, sequences.sampled[row], sequences.turns[row]
            )
    return ids_QL, None if positions is None else positions_QL


def _passes_of(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Rows, longest first, in passes of at most `PASS_TOKENS` padded tokens."""
    pieces: list[list[int]] = []
    for row in rows:
        if pieces and (len(pieces[-1]) + 1) * lengths[pieces[-1][0]] <= PASS_TOKENS:
            pieces[-1].append(row)
        else:
            pieces.append([row])
    return pieces


def _cast(tensor: Tensor, dtype: str | None) -> Tensor:
    return (
        tensor.to(getattr(torch, dtype))
        if dtype is not None and tensor.is_floating_point()
        else tensor
    )
