"""Does what the policy is shown hold the answer before it was earned, or what only a critic may read? (R27)

How that is decided stands in `workbench.extensions.scripted_play.leaks`; here it is asked of the trajectories of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import Any

from workbench.basics.findings import Checked, Finding, NotChecked
from workbench.extensions.scripted_play.leaks import (
    Probe,
    always_there,
    golds,
    leak_of,
    rare_parts,
    unsure_is_no_answer,
    without_unsure,
)
from workbench.extensions.scripted_play.playing import opening_of
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import Task
from workbench.values.seeds import seed_of
from workbench.worlds.base import EnvFamily

PROBES = 8  # other tasks that a word is looked for in


class _Settings:
    """A family as the key of a cache. Where a setting cannot be hashed (options in a dict), what its repr says counts."""

    def __init__(self, family: EnvFamily) -> None:
        self.family = family
        try:
            self.key: Any = (hash(family), family)
        except TypeError:
            self.key = (hash(repr(family)), repr(family))

    def __hash__(self) -> int:
        return self.key[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Settings) and self.key == other.key


@lru_cache(maxsize=32)
def _probes(settings: _Settings, count: int) -> tuple[Probe, ...]:
    family = settings.family
    known: list[Probe] = []
    for number in range(count):
        # Anybody's environment; that it cannot make a task or begin is another rule's business.
        with suppress(Exception):
            task = family.task(seed_of("lint.probe", number))
            opening = opening_of(family, task, seed_of("lint.probe", number, "dynamics"))
            known += [] if opening is None else [Probe(task, opening)]
    return tuple(known)


def probes(family: EnvFamily, count: int = PROBES) -> tuple[Probe, ...]:
    """Some tasks of the family, drawn once."""
    return _probes(_Settings(family), count)


def check_leaks(evidence: Evidence) -> Iterator[RuleResult]:
    family = evidence.family
    others = [] if family is None else list(probes(family))
    others += [
        Probe(group[0].task, group[0].first_observation) for group in evidence.groups if group
    ]
    as_named = without_unsure if unsure_is_no_answer(_solved(evidence)) else lambda task: task
    others = [Probe(as_named(probe.task), probe.opening) for probe in others]
    gold = any(golds(probe.task) for probe in others)
    yield from (
        always_there(others) if gold else [NotChecked("a gold answer in the payload of a task")]
    )
    for first, group in evidence.numbered_groups:
        for n, trajectory in enumerate(group, first):
            rare = rare_parts(as_named(trajectory.task), others)
            if rare is None and not any(turn.privileged for turn in trajectory.turns):
                continue
            yield Checked(len(trajectory.turns))
            if (leak := leak_of(family, trajectory, rare or ())) is not None:
                turn, what = leak
                yield Finding(
                    what, evidence.place(n) if turn is None else evidence.place(n, turn=turn)
                )
                break


def _solved(evidence: Evidence) -> Iterator[tuple[Task, str]]:
    """Tasks that were solved, and all that was written there."""
    for trajectory in evidence.trajectories:
        if trajectory.success:
            yield trajectory.task, "\n".join(turn.text for turn in trajectory.turns)


R27 = Rule(
    "R27",
    "no prompt or reply holds the answer before it was earned",
    "The policy is paid for reading the answer off its prompt: success rises at once, and nothing of it is left where "
    "nobody tells the answer.",
    "Keep the gold answer out of prompts, refusals, hints and schemas; what a search brings is a document of the "
    "corpus, and no more. info is for people and is shown to no policy.",
    ("groups",),
    check_leaks,
)

RULES: tuple[Rule, ...] = (R27,)
