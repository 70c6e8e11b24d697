"""Rollouts of other frameworks, as they were found: arrays that need not fit each other. Finding that out is the point.

Standard library and numpy, so that a dump is read and shown on any laptop. `workbench.extensions.interop.importers` reads files into these
values, `workbench.extensions.interop.raw` holds rules over them, `workbench.extensions.interop.view` draws them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from workbench.values import Trajectory
from workbench.values.view import Shown


@dataclass(frozen=True)
class Compared:
    """What a file says twice, or in pairs, as its reader compared it: the answers to calls, a score and its summary.

    rule      the rule that speaks of it
    count     things that were compared
    wrong     what does not fit, in words; None where all of it does
    is_error  False where somebody's convention allows it
    """

    rule: str
    count: int
    wrong: str | None = None
    is_error: bool = True


@dataclass(frozen=True, eq=False)
class RawSequence:
    """One row or turn of a dump. A field that the framework does not write is None: then no rule can speak of it.

    `attempt` names the trajectory, `number` is the turn (or branch) within it where a framework writes one sequence for
    each. Arrays are one-dimensional, of whatever length was found; those below are about `completion_ids` unless they
    say otherwise. NaN in a float array: there is no such number for this token.

    mask         which tokens are trained there (0 or 1)
    prompt_mask  the same of `prompt_ids`
    sampled      which tokens the framework itself says a model wrote, where it says so apart from the mask
    logprobs, advantages
    advantage    of the whole row, where there is one number for it
    fork         True where the framework itself says that this sequence does not go on from the one before it; False where
                 it says that it does, so that whatever else is found is an error
    prompt_text  the prompt for people; says which task this is where there are no token ids
    one_prompt_one_task  False where tasks may differ in more than their prompts: hidden states, files, seeds
    grouped      False where no group was written and `group` was made up from equal prompts
    failed       why the trajectory broke off, if it did: such a trajectory has no reward worth the name
    identity     what the framework calls this trajectory, where no two may be called the same
    compared     what the file says twice, as its reader compared it; those of a trajectory's first sequence are enough
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
    prompt_mask: np.ndarray | None = None
    sampled: np.ndarray | None = None
    advantage: float | None = None
    fork: bool | None = None
    prompt_text: str | None = None
    completion_text: str | None = None
    grouped: bool = True
    failed: str | None = None
    one_prompt_one_task: bool = True
    identity: str | None = None
    compared: tuple[Compared, ...] = ()

    @property
    def trained(self) -> np.ndarray | None:
        """bool, one a completion token: those that are trained; None where that is not known or does not fit."""
        if self.completion_ids is None or self.mask is None:
            return None
        return self.mask != 0 if len(self.mask) == len(self.completion_ids) else None

    @property
    def acted(self) -> np.ndarray | None:
        """`trained`, and sampled where the framework says who wrote a token: those that can have logprob and credit."""
        trained = self.trained
        if trained is None or self.sampled is None or len(self.sampled) != len(trained):
            return trained
        return trained & self.sampled


@dataclass(frozen=True, eq=False, repr=False)
class Imported(Shown):
    """What was read from a dump, and what was not.

    `groups` are the trajectories that are whole enough to be our own types, by task; every trajectory is in `sequences` too.
    `missing` says, in words, what this framework did not write and how to make it. `damaged` are the places that could
    not be read, each with its reason; `skipped` counts all of them, `left_out` the rollouts beyond the limit.
    """

    framework: str
    version: str | None
    sequences: tuple[RawSequence, ...]
    groups: tuple[tuple[Trajectory, ...], ...] = ()
    missing: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()
    skipped: int = 0
    left_out: int = 0
    source: str = ""

    @property
    def trajectories(self) -> tuple[str, ...]:
        """Names of the trajectories, in the order of the file."""
        return tuple(dict.fromkeys(sequence.attempt for sequence in self.sequences))

    @property
    def num_trained(self) -> int:
        """Trained tokens, of the sequences of which that is known."""
        return sum(int(s.trained.sum()) for s in self.sequences if s.trained is not None)

    @property
    def about(self) -> str:
        """One paragraph: what was read, what could not be, what the file does not tell."""
        version = f" {self.version}" if self.version else ""
        number = f"{len(self.trajectories)} trajectories in {len(self.sequences)} sequences"
        lines = [f"{self.framework}{version}: {number}"]
        if self.left_out:
            lines.append(f"NOT READ: {self.left_out} more rollouts (beyond the limit)")
        if self.skipped:
            unnamed = self.skipped - len(self.damaged)
            more = f"; and {unnamed} more" if unnamed > 0 else ""
            lines.append(f"SKIPPED, damaged: {'; '.join(self.damaged)}{more}")
        lines += [f"not in the file: {words}" for words in self.missing]
        return "\n".join(lines)
