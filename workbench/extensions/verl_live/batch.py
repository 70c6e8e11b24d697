"""A batch of verl as arrays and rows: what a DataProto holds, or what its agent loop returned.

Axis letters: N rows, P tokens of the longest prompt, R tokens of the longest response. Prompts are padded on the left,
responses on the right.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from workbench.basics.findings import Finding, Place
from workbench.values.errors import DataError, shortened

# What a DataProto may hold, one entry a token of the response.
BY_TOKEN = (
    "response_mask",
    "old_log_probs",
    "rollout_log_probs",
    "ref_log_prob",
    "token_level_scores",
    "token_level_rewards",
    "advantages",
    "returns",
    "values",
)
TENSORS = ("prompts", "responses", "attention_mask", "input_ids", "position_ids", *BY_TOKEN)


@dataclass(frozen=True, eq=False)
class VerlBatch:
    """One batch. `arrays`: name -> [N, ...], as verl names them. `others`: what it holds beside tensors."""

    arrays: Mapping[str, np.ndarray]
    others: Mapping[str, np.ndarray]
    step: int | None = None

    def get(self, name: str) -> np.ndarray | None:
        return self.arrays.get(name)

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    @cached_property
    def uids(self) -> list[str] | None:
        uids = self.others.get("uid")
        return None if uids is None else [str(uid) for uid in uids]

    @cached_property
    def groups(self) -> dict[str, list[int]]:
        """Rows by their uid."""
        groups: dict[str, list[int]] = {}
        for row, uid in enumerate(self.uids or ()):
            groups.setdefault(uid, []).append(row)
        return groups

    @cached_property
    def attended_NR(self) -> np.ndarray | None:
        """bool: tokens of responses that are no padding."""
        mask = self.get("attention_mask")
        responses = self.get("responses")
        if (
            mask is None
            or responses is None
            or mask.ndim != 2
            or mask.shape[1] < responses.shape[1]
        ):
            return None
        return mask[:, mask.shape[1] - responses.shape[1] :] != 0

    @cached_property
    def trained_NR(self) -> np.ndarray | None:
        """bool: tokens of responses that the loss counts."""
        mask = self.get("response_mask")
        return self.attended_NR if mask is None else mask != 0

    def name(self, row: int) -> str:
        """A row in the user's terms."""
        return f"row {row}" if self.uids is None else f"row {row}, uid {self.uids[row]}"

    def place(self, row: int, token: int | None = None) -> Place:
        """A place; `token` counts from the first one of the response."""
        return Place(self.name(row), position=token, step=self.step)

    def prompt_length(self, row: int) -> int:
        """Tokens of a row's prompt, without padding."""
        return int(
            (self.arrays["attention_mask"][row, : self.arrays["prompts"].shape[1]] != 0).sum()
        )

    def sequences(self, raw_sequence: Callable[..., Any]) -> tuple[Any, ...]:
        """The rows as the values that the lint of a file of rollouts looks at; none where ids are not there."""
        if self.attended_NR is None or self.get("prompts") is None:
            return ()
        return tuple(self._sequence(row, raw_sequence) for row in range(len(self)))

    def _sequence(self, row: int, raw_sequence: Callable[..., Any]) -> Any:
        responses = self.attended_NR[row]
        prompts = self.arrays["attention_mask"][row, : self.arrays["prompts"].shape[1]] != 0
        trained = self.trained_NR
        left_out = trained is not None and trained.any() and not trained[row].any()
        scores = self.get("token_level_scores")
        scores = self.get("token_level_rewards") if scores is None else scores
        return raw_sequence(
            attempt=self.name(row),
            group=None if self.uids is None else f"uid {self.uids[row]}",
            number=0,
            prompt_ids=self.arrays["prompts"][row][prompts],
            completion_ids=self.arrays["responses"][row][responses],
            mask=self._of(row, "response_mask", responses),
            logprobs=self._of(row, "rollout_log_probs", responses),
            advantages=self._of(row, "advantages", responses),
            reward=None if scores is None else float(scores[row].sum()),
            truncated=True if left_out else None,  # by a limit, or by rejection sampling: meant
        )

    def _of(self, row: int, name: str, tokens: np.ndarray) -> np.ndarray | None:
        """An array of this row, without padding; None where it has another width, which R4 says."""
        values = self.get(name)
        if values is None or values.shape[1:] != tokens.shape:
            return None
        return values[row][tokens].astype(np.float64)

    def in_their_words(self, finding: Finding) -> Finding:
        """The finding with its token counted from the first one of the response."""
        place = finding.place
        rows = {self.name(row): row for row in range(len(self))}
        row = rows.get(place.trajectory or "")
        if row is None or place.segment is None:
            return _moved(finding, Place(place.trajectory, position=place.position, step=self.step))
        position = place.position
        name = place.trajectory
        if position is not None:
            position -= self.prompt_length(row)
            if position < 0:
                name = f"{name}, in its prompt"
                position = place.position
        return _moved(finding, Place(name, position=position, step=self.step))


def _moved(finding: Finding, place: Place) -> Finding:
    return Finding(finding.what, place, finding.severity, finding.count)


def batch_of(data: Any, step: int | None = None) -> VerlBatch:
    """Of a `verl.DataProto`, or of a list of `AgentLoopOutput`. Raises DataError for what is neither."""
    if isinstance(data, (list, tuple)) and data and hasattr(data[0], "response_ids"):
        return _of_outputs(data, step)
    tensors = getattr(data, "batch", None)
    if tensors is None or not hasattr(tensors, "keys"):
        raise DataError(
            f"lint_verl takes a verl.DataProto with a batch, or a list of AgentLoopOutput; got {shortened(data)}"
        )
    known = [name for name in TENSORS if name in tensors.keys()]
    if not known:
        raise DataError(
            f"this DataProto holds {', '.join(map(str, tensors.keys()))}, and none of {', '.join(TENSORS)}: nothing of a "
            "rollout is in it"
        )
    arrays = {name: _array(tensors[name]) for name in known}
    return VerlBatch(arrays, dict(getattr(data, "non_tensor_batch", {})), step)


def _array(tensor: Any) -> np.ndarray:
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    values = np.array(tensor)  # a copy: verl goes on with its own
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _of_outputs(outputs: Sequence[Any], step: int | None) -> VerlBatch:
    """What the agent loop returned, row by row, padded as verl pads it."""
    widest = max(len(output.prompt_ids) for output in outputs)
    longest = max(len(output.response_ids) for output in outputs)
    prompts = [np.asarray(output.prompt_ids) for output in outputs]
    responses = [np.asarray(output.response_ids) for output in outputs]
    attended = [
        np.concatenate([_left(np.ones_like(prompt), widest), _right(np.ones_like(own), longest)])
        for prompt, own in zip(prompts, responses)
    ]
    arrays = {
        "prompts": np.stack([_left(prompt, widest) for prompt in prompts]),
        "responses": np.stack([_right(own, longest) for own in responses]),
        "response_mask": np.stack([_right(output.response_mask, longest) for output in outputs]),
        "attention_mask": np.stack(attended),
    }
    turns = np.array([output.num_turns for output in outputs])
    _add_optional(arrays, outputs, longest)
    return VerlBatch(arrays, {"__num_turns__": turns}, step)


def _add_optional(arrays: dict[str, np.ndarray], outputs: Sequence[Any], longest: int) -> None:
    """Logprobs and rewards, where all outputs have them."""
    logprobs = [output.response_logprobs for output in outputs]
    if all(values is not None for values in logprobs):
        arrays["rollout_log_probs"] = np.stack([_right(values, longest) for values in logprobs])
    scores = [output.reward_score for output in outputs]
    if all(score is not None for score in scores):
        rewards = np.zeros(arrays["responses"].shape)
        lengths = np.array([len(output.response_ids) for output in outputs])
        rewards[np.arange(len(outputs)), lengths - 1] = scores
        arrays["token_level_scores"] = rewards


def _left(values: Sequence[Any], width: int) -> np.ndarray:
    values = np.asarray(values)
    return np.concatenate([np.zeros(width - len(values), values.dtype), values])


def _right(values: Sequence[Any], width: int) -> np.ndarray:
    values = np.asarray(values)[:width]
    return np.concatenate([values, np.zeros(width - len(values), values.dtype)])
