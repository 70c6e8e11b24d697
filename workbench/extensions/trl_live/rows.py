"""What a step of a trainer consists of, taken out of padded tensors: rows, each a prompt and a completion.

Axis letters: N rows (completions) of this process, C tokens of the longest completion, P of the longest prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from workbench.basics.findings import Finding, Place

COLUMNS = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "tool_mask")


def array_of(value: Any) -> np.ndarray:
    """A tensor of any device and precision, or a list, as a numpy array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    return np.asarray(value)


def arrays_of(inputs: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The tensors of a batch that have a row for each completion, as arrays."""
    return {
        name: array_of(value)
        for name, value in inputs.items()
        if getattr(value, "ndim", 0) >= 1 or name in COLUMNS
    }


@dataclass(frozen=True, eq=False)
class StepSettings:
    """What the trainer was told, as far as a check needs it."""

    group: int  # completions of a prompt
    longest: int  # tokens of a completion, at most
    leaves_out_cut: bool  # mask_truncated_completions
    stops: frozenset[int]  # ids by which the trainer tells that a completion ended
    own_rollout: bool  # a rollout_func makes the completions
    first: int = 0  # number of this process's first row among all rows


@dataclass(frozen=True, eq=False)
class SampledRows:
    """One generation: what the sampler's loop handed over (lists), and what training will use (padded arrays).

    prompts         as the reward functions see them
    prompt_ids      [N] arrays without padding
    completion_ids  [N]
    tool_mask       [N], 1 where the trainer takes a token for the policy's; None: all are
    logprobs        [N], as the sampler gave them; None where it gave none
    padded          name -> array [N, ...]
    """

    step: int
    settings: StepSettings
    prompts: Sequence[Any]
    prompt_ids: tuple[np.ndarray, ...]
    completion_ids: tuple[np.ndarray, ...]
    tool_mask: tuple[np.ndarray, ...] | None
    logprobs: tuple[np.ndarray, ...] | None
    padded: Mapping[str, np.ndarray]

    def __len__(self) -> int:
        return len(self.completion_ids)

    def name(self, row: int) -> str:
        """A row in the user's terms."""
        number = self.settings.first + row
        prompt, generation = divmod(number, self.settings.group)
        return f"prompt {prompt}, generation {generation} (row {row})"

    def group_of(self, row: int) -> int:
        return (self.settings.first + row) // self.settings.group

    def place(self, row: int, token: int | None = None) -> Place:
        """A place in a row; `token` counts from the first one of its completion."""
        return Place(self.name(row), position=token, step=self.step)

    @cached_property
    def rows_by_name(self) -> dict[str, int]:
        return {self.name(row): row for row in range(len(self))}

    @cached_property
    def fits(self) -> bool:
        """Whether the padded arrays have a row for each completion, wide enough for it."""
        ids = self.padded.get("completion_ids")
        prompts = self.padded.get("prompt_ids")
        if ids is None or prompts is None or len(ids) != len(self) or len(prompts) != len(self):
            return False
        longest = max(map(len, self.completion_ids), default=0)
        return ids.shape[1] >= longest and prompts.shape[1] >= max(map(len, self.prompt_ids))

    def trained(self, row: int) -> np.ndarray:
        """bool, one a completion token: those that the loss counts."""
        length = len(self.completion_ids[row])
        mask = self.padded["completion_mask"][row, :length] != 0
        if "tool_mask" in self.padded:
            mask = mask & (self.padded["tool_mask"][row, :length] != 0)
        return mask

    def is_cut(self, row: int) -> bool:
        """Whether the trainer takes the completion for one that a limit cut."""
        ids = self.completion_ids[row]
        return len(ids) == 0 or int(ids[-1]) not in self.settings.stops

    def in_their_words(self, finding: Finding) -> Finding:
        """The finding with its place counted from the first token of the completion, and the step named."""
        place = finding.place
        row = self.rows_by_name.get(place.trajectory or "")
        if row is None or place.segment is None:
            return replace(finding, place=replace(place, step=self.step, segment=None))
        position = place.position
        name = place.trajectory
        if position is not None:
            before = len(self.prompt_ids[row])
            if position < before:
                name = f"{name}, in its prompt"
            else:
                position -= before
        return replace(finding, place=Place(name, position=position, step=self.step))


def int_arrays(rows: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Token ids or masks of each row, int64."""
    return tuple(np.asarray(row, np.int64).reshape(-1) for row in rows)


def float_arrays(rows: Sequence[Any]) -> tuple[np.ndarray, ...]:
    """Numbers of each row; None becomes NaN."""
    return tuple(np.array(list(row), np.float64) for row in rows)  # of None numpy makes NaN
