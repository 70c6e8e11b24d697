"""Settings that do nothing (R13): each one that was set is turned, and something has to move.

Turned on trajectories that are made up so that every setting has something to act on: several turns, groups that differ
much, little and not at all, trajectories that were cut short, states that come back, two kinds of tasks, observations
between the actions, a policy, a reference and a sampler that disagree. What has to move is credit, or the gradient of
the loss by token; and, where there is a learner to ask, the gradient of its weights or the updates that it makes: a
setting that the algorithm heeds and the learner does not hand on is as dead as any other.

A setting at its default is not looked at: nobody asked for it. One that only your own class declares may be a name for
a plot, or act on trajectories unlike any that were made up or made: that it did nothing here is a note.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked
from workbench.basics.settings import settings_of
from workbench.basics.tensors import Tensor, torch
from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.objectives import OBJECTIVES
from workbench.learn.algorithms.parts import SETS
from workbench.learn.algorithms.settings import objective_name, with_settings
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import ESTIMATORS, REDUCTIONS
from workbench.linting.evidence import Evidence
from workbench.linting.made_up import SAME, UNDONE, differ, effects, made_up, with_facts
from workbench.linting.rule import Rule, RuleResult
from workbench.values.errors import ConfigError, DataError, WorkbenchError

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

WORDS = {
    "reduction": REDUCTIONS,
    "objective.kind": OBJECTIVES,
    "reference.kl_estimator": ESTIMATORS,
    "reference.kl_in": ("loss", "reward"),
}
GROUPS = (
    "masks.advantage_mask",
    "masks.loss_mask",
)  # of switches, each of which may be set by itself
# Two steps that are made up: some groups are flat, all but one are.
DIFFERENT = "different"
FLAT = "flat"
REAL = "real"  # ... and the trajectories of the step itself, the models' numbers made up as well
TYPICAL = (16, 8)  # tasks and trajectories of a step, where nothing says how many there are


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    algorithm = evidence.algorithm
    if not isinstance(algorithm, Algorithm):
        yield NotChecked(f"settings to turn: {type(algorithm).__name__} is no composition of parts")
        return
    chosen = changed_settings(algorithm)
    probe = evidence.probe if evidence.probe is not None and not evidence.probe.unable else None
    if chosen and probe is None:
        yield NotChecked(
            "a learner to turn settings on" if evidence.probe is None else evidence.probe.unable,
            "what the learner does under other values",
        )
    trial = _Trial(evidence, probe)
    if not chosen:
        yield Checked(1)  # nothing was set: nothing can be dead
    for setting in chosen:
        yield from _of_setting(trial, algorithm, setting, _explained(evidence, algorithm))


def _of_setting(
    trial: _Trial, algorithm: Algorithm, name: str, explained: Mapping[str, str]
) -> Iterator[RuleResult]:
    others = list(_turned(algorithm, name))
    value = _settings(algorithm)[name]
    if not others:
        yield NotChecked(f"another value that {algorithm.name} would accept", f"algorithm.{name}")
        return
    tried = ", ".join(dict.fromkeys(repr(_settings(other)[name]) for other in others))
    try:
        acts, differing = _acts(trial, algorithm, others)
    except WorkbenchError as error:
        yield NotChecked(
            f"made-up trajectories that {algorithm.name} can give credit for ({error})",
            f"algorithm.{name}",
        )
        return
    yield Checked(1, "credit and loss under other values")
    if acts:
        return
    why = explained.get(
        name, "each of its switches is set by itself, or cannot act" if name in GROUPS else None
    )
    if not differing and why is not None:
        yield Finding(f"algorithm.{name} = {value!r} has no effect: {why}", severity=NOTE)
    elif differing:
        yield Finding(
            f"algorithm.{name} = {value!r} changes what credit and loss say, but not what the learner does: "
            f"its gradient and its updates are the same with {tried}"
        )
    elif _shipped(algorithm, name):
        yield Finding(
            f"algorithm.{name} = {value!r} has no effect: with {tried} instead, credit, loss and gradients "
            "are the same to the last digit, on trajectories made up so that it should matter"
        )
    else:
        yield Finding(
            f"algorithm.{name} = {value!r} had no effect here: with {tried} instead, credit, loss and "
            "gradients are the same to the last digit. It is a setting of your own: if it acts on trajectories "
            "unlike these, or only names something, all is well",
            severity=NOTE,
        )


def _acts(
    trial: _Trial, algorithm: Algorithm, others: list[Algorithm]
) -> tuple[bool, list[Algorithm]]:
    """Whether a setting acts; and the other values under which credit or loss differ."""
    # A spread that is divided by twice leaves an epsilon behind: that is no effect.
    normalize = algorithm.rewards.normalize
    undone = any(other.rewards.normalize != normalize for other in others)
    same = UNDONE if undone else SAME
    for which in (DIFFERENT, FLAT):
        differing = [other for other in others if trial.said_differs(algorithm, other, which, same)]
        if any(trial.trained_differs(algorithm, other, which) for other in differing):
            return True, differing
    on_the_step = (trial.said_differs(algorithm, other, REAL, same) for other in others)
    return not differing and any(on_the_step), differing


def _shipped(algorithm: Algorithm, name: str) -> bool:
    """Whether a part of this package declares the setting, so that it is known what it acts on."""
    owner, _, own = name.rpartition(".")
    if owner == "estimator":
        declaring: Any = algorithm.estimator.function
    elif owner:
        declaring = type(getattr(algorithm, owner))
    else:
        of_ours = own in {field.name for field in fields(Algorithm)}
        declaring = Algorithm if of_ours else type(algorithm)
    return declaring.__module__.partition(".")[0] == "workbench"


def changed_settings(algorithm: Algorithm) -> list[str]:
    """The names of the settings that do not stand at their default."""
    usual = _default_settings(algorithm)
    return [
        name
        for name, value in _settings(algorithm).items()
        if name not in usual or value != usual[name]
    ]


def _settings(algorithm: Algorithm) -> dict[str, Any]:
    """Every setting by its name, which objective it has among them."""
    return {"objective.kind": objective_name(algorithm.objective), **algorithm.settings}


def _default_settings(algorithm: Algorithm) -> Mapping[str, Any]:
    """The settings of the algorithm of this name in the table, else what its parts are by default; of another objective
    than that one's, what it is by default."""
    plain = Algorithm(
        algorithm.name,
        replace(algorithm.estimator, settings={}),
        objective=type(algorithm.objective)(),
    )
    named = ALGORITHMS.get(algorithm.name, plain)
    by_class = {setting.key: setting.default for setting in settings_of(type(algorithm))}
    usual = _settings(named) | {
        name: by_class[name]
        for name in algorithm.settings
        if name in by_class and name not in named.settings
    }
    if type(named.objective) is type(algorithm.objective):
        return usual
    own = {name: value for name, value in usual.items() if not name.startswith("objective.")}
    return (
        {name: value for name, value in _settings(plain).items() if name.startswith("objective.")}
        | own
        | {"objective.kind": usual["objective.kind"]}
    )


def _default(algorithm: Algorithm, name: str) -> Any:
    """The value where nobody sets one; the value itself where it has to be set."""
    return _default_settings(algorithm).get(name, _settings(algorithm)[name])


def _turned(algorithm: Algorithm, name: str) -> Iterator[Algorithm]:
    """The same algorithm with other values of one setting. Where a value is refused by itself, it is tried together
    with the default of one other setting ("fixed-length" goes with a length)."""
    partners = [
        {},
        *(
            {other: _default(algorithm, other)}
            for other in changed_settings(algorithm)
            if other != name
        ),
    ]
    for value in _values(algorithm, name):
        for partner in partners:
            try:
                made = with_settings(algorithm, {name: value, **partner})
            except (ConfigError, ValueError, TypeError):
                continue
            yield made
            break


def _values(algorithm: Algorithm, name: str) -> list[Any]:
    """Others worth trying, the default first."""
    value = _settings(algorithm)[name]
    default = _default(algorithm, name)
    options: list[Any] = [default]
    if isinstance(value, bool):
        options.append(not value)
    elif isinstance(value, int):
        options += [value + 1, 2 * value, value // 2, 1]
    elif isinstance(value, float):
        options += [value / 2, value + 0.3, value * 2, 0.0]
    elif name.startswith("masks."):
        options += SETS
    else:
        options += WORDS.get(name, ())
    return [other for n, other in enumerate(options) if other != value and other not in options[:n]]


def _explained(evidence: Evidence, algorithm: Algorithm) -> Mapping[str, str]:
    """Settings that `algorithms.liveness` knows to be inert here, and why."""
    tasks, attempts = (
        (len(evidence.groups), max(map(len, evidence.groups))) if evidence.groups else TYPICAL
    )
    return {name: why for name, dead, why in inert_settings(algorithm, tasks, attempts) if dead}


# ------------------------------------------------------------------------------------------------ what may move


class _Trial:
    """Made-up trajectories, and what algorithms say of them; each is asked once."""

    def __init__(self, evidence: Evidence, probe: LearnerProbe | None) -> None:
        self._probe = probe
        self._known = {}
        self._evidence = evidence
        self._ids = np.arange(40)
        if evidence.batch is not None and evidence.batch.num_tokens:
            self._ids = evidence.batch.token_ids_T.unique().numpy()
        if probe is not None:
            self._ids = probe.known(self._ids)

    def _batch(self, which: str) -> Batch:
        batch = self._evidence.batch
        algorithm = self._evidence.algorithm
        if which == REAL and batch is not None and batch.num_tokens:
            return self._remembered(("batch", which), lambda: with_facts(batch, None, algorithm))
        return self._remembered(
            ("batch", which),
            lambda: made_up(self._ids, self._probe, flat=which == FLAT, algorithm=algorithm),
        )

    def said_differs(self, one: Algorithm, other: Algorithm, which: str, same: float) -> bool:
        """Whether credit, or the loss and its gradient by token, are another."""
        return self._differ(effects, one, other, which, same)

    def trained_differs(self, one: Algorithm, other: Algorithm, which: str) -> bool:
        """Whether the learner's gradient or its updates are another; taken for granted where there is none to ask."""
        if self._probe is None:
            return True
        asked = (self._updates, self._gradient)
        return any(self._differ(ask, one, other, which) for ask in asked)

    def _differ(
        self,
        ask: Callable[[Algorithm, Batch], list[Tensor]],
        one: Algorithm,
        other: Algorithm,
        which: str,
        same: float = SAME,
    ) -> bool:
        batch = self._batch(which)
        answers = [
            self._remembered((ask.__name__, which, repr(algorithm)), partial(ask, algorithm, batch))
            for algorithm in (one, other)
        ]
        return differ(*answers, same)

    def _updates(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """How many tokens each of the learner's updates has."""
        try:
            updates = self._probe.updates(algorithm, batch, algorithm.credit(batch))
        except DataError:
            return []
        return [torch.tensor([int(used_T.sum()) for used_T in updates], dtype=torch.float64)]

    def _gradient(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """The gradients of the learner's weights."""
        try:
            gradients = self._probe.learner(
                algorithm, batch, algorithm.credit(batch), 4 * batch.num_tokens
            ).by_name
        except DataError:
            return []
        return [gradients[name] for name in sorted(gradients)]

    def _remembered(self, key: Any, compute: Callable[[], Any]) -> Any:
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]


RULES: tuple[Rule, ...] = (
    Rule(
        "R13",
        "every setting that was set does something",
        means="A setting was asked for and has no effect: the run is not the experiment that its configuration names, "
        "and a comparison of two values of it compares noise.",
        mend="Find out where the setting gets lost between configuration, credit, loss and learner. If it cannot act "
        "here, remove it.",
        needs=("algorithm",),
        check=_check,
        when="start",
        threads=("NeMo-RL#3792", "rllm#916"),
    ),
)
