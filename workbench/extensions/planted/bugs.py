"""Bugs on demand: known silent bugs of other frameworks, planted into this process for as long as a block lasts.

    with wb.planted("credit-on-the-last-turn"):
        run = wb.train_here(config, "runs/broken")      # learns, and looks as if nothing were wrong
    wb.lint(run)                                        # names it

For notebooks and for teaching: each is a few lines in place of a function of ours, and none of them crashes. Runs that
train in a process of their own (`wb.train`) do not see them. The full suite of such bugs is in tests/silent_bugs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch

from workbench.chat import ChatFormat
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.base import Credit
from workbench.learn.batch import Batch
from workbench.look import show_rows
from workbench.training.session import Session
from workbench.values import Source, Span, View
from workbench.values.errors import ConfigError


@dataclass(frozen=True)
class Planted:
    """A bug: whose it was (`thread`, as repository#number), what it does, and what stands in place of what."""

    thread: str
    words: str
    owner: type
    name: str
    wrong: Callable[[Callable[..., Any]], Callable[..., Any]]  # given the right function


def _credit_on_the_last_turn(right: Callable[..., Credit]) -> Callable[..., Credit]:
    def credit(self: Algorithm, batch: Batch) -> Credit:
        given = right(self, batch)
        row_T = batch.trajectory_of_token_T
        turn_T = batch.turn_T.long()
        acted_T = batch.eligible_T
        last_N = torch.zeros(batch.num_trajectories, dtype=torch.long)
        last_N = last_N.scatter_reduce(0, row_T[acted_T], turn_T[acted_T], "amax")
        return replace(
            given, advantage_T=torch.where(turn_T == last_N[row_T], given.advantage_T, 0.0)
        )

    return credit


def _separator_lost(right: Callable[..., tuple[Span, ...]]) -> Callable[..., tuple[Span, ...]]:
    def append(self: ChatFormat, *args: Any, **settings: Any) -> tuple[Span, ...]:
        first, *rest = right(self, *args, **settings)
        starts_so = first.source is Source.SCAFFOLD and self.token_texts(first.token_ids[:1])[
            0
        ].startswith("\n")
        if starts_so and len(first) > 1:
            first = replace(first, token_ids=first.token_ids[1:])
        return (first, *rest)

    return append


def _weights_stay_behind(right: Callable[..., None]) -> Callable[..., None]:
    def sync(self: Session) -> None:
        self.engine.sync(
            {name: t.detach() for name, t in self.policy.model.state_dict().items()},
            self.learner.version,
        )

    return sync


PLANTED: dict[str, Planted] = {
    "credit-on-the-last-turn": Planted(
        "NovaSky-AI/SkyRL#1492",
        "only the last turn of a trajectory carries its credit; all turns before it carry zero",
        Algorithm,
        "credit",
        _credit_on_the_last_turn,
    ),
    "separator-lost": Planted(
        "volcengine/verl#6921",
        "the line feed between an answer and the reply to it is lost when turns are put together",
        ChatFormat,
        "append",
        _separator_lost,
    ),
    "weights-stay-behind": Planted(
        "huggingface/trl#5312",
        "the engine takes the new version's number, and goes on sampling from the weights it began with",
        Session,
        "sync",
        _weights_stay_behind,
    ),
}


@contextmanager
def planted(name: str) -> Iterator[Planted]:
    """Plant the bug of this name while the block lasts. Raises ConfigError for a name that is not in `PLANTED`."""
    if name not in PLANTED:
        raise ConfigError(f"no planted bug {name!r}; there are {', '.join(PLANTED)}")
    bug = PLANTED[name]
    with patch.object(bug.owner, bug.name, bug.wrong(getattr(bug.owner, bug.name))):
        yield bug


def show_planted() -> View:
    """The bugs that can be planted, and whose they were."""
    return show_rows(
        [
            {"bug": name, "reported as": bug.thread, "what it does": bug.words}
            for name, bug in PLANTED.items()
        ]
    )
