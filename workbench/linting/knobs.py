"""Settings that do nothing (R13): each one that was set is turned, and something has to move.

Turned on attempts that are made up so that every setting has something to act on: several turns, groups that differ
much, little and not at all, attempts that were cut short, states that come back, two kinds of tasks, observations
between the actions, a policy, a reference and a sampler that disagree. What has to move is credit, or the gradient of
the loss by token; and, where there is a learner to ask, the gradient of its weights or the updates that it makes: a
setting that the algorithm heeds and the learner does not hand on is as dead as any other.

A setting at its default is not looked at: nobody asked for it. One that only your own class declares may be a name for
a plot, or act on attempts unlike any that were made up or made: that it did nothing here is a note.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from workbench.learn.algorithms import ALGORITHMS
from workbench.learn.algorithms.algorithm import Algorithm
from workbench.learn.algorithms.liveness import inert_settings
from workbench.learn.algorithms.parts import SETS
from workbench.learn.algorithms.objectives import OBJECTIVES
from workbench.learn.batch import Batch
from workbench.learn.ops.loss import ESTIMATORS, REDUCTIONS
from workbench.linting.evidence import Evidence
from workbench.linting.made_up import differ, effects, made_up, with_facts
from workbench.linting.rule import Rule, RuleResult
from workbench.types.errors import ConfigError, DataError, WorkbenchError
from workbench.types.findings import NOTE, Checked, Finding, NotChecked
from workbench.types.settings import default_of

if TYPE_CHECKING:
    from workbench.linting.probe import LearnerProbe

Setting = tuple[str, ...]  # ("filter", "share")
WORDS = {
    "reduction": REDUCTIONS,
    "objective": OBJECTIVES,
    "kl_estimator": ESTIMATORS,
    "kl_in": ("loss", "reward"),
}
GROUPS = (
    "masks.advantage_mask",
    "masks.loss_mask",
)  # of switches, each of which may be set by itself
DIFFERENT, FLAT = (
    "different",
    "flat",
)  # two steps that are made up: some groups are flat, all but one are
REAL = "real"  # ... and the attempts of the step itself, the models' numbers made up as well
TYPICAL = (16, 8)  # tasks and attempts of a step, where nothing says how many there are


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    algorithm = evidence.algorithm
    if not isinstance(algorithm, Algorithm):
        yield NotChecked(f"settings to turn: {type(algorithm).__name__} is no composition of parts")
        return
    chosen = changed_settings(algorithm)
    probe = evidence.probe if evidence.probe is not None and not evidence.probe.unable else None
    if chosen and probe is None:
        yield NotChecked(
            "a learner to turn settings on: only credit and loss were looked at"
            if evidence.probe is None
            else evidence.probe.unable
        )
    trial = _Trial(evidence, probe)
    yield Checked(max(len(chosen), 1))  # nothing was set: nothing can be dead
    for setting in chosen:
        yield from _of_setting(trial, algorithm, setting, _explained(evidence, algorithm))


def _of_setting(
    trial: _Trial, algorithm: Algorithm, setting: Setting, explained: Mapping[str, str]
) -> Iterator[RuleResult]:
    others = list(_turned(algorithm, setting))
    name, value = ".".join(setting), _get(algorithm.settings, setting)
    if not others:
        yield NotChecked(f"another value of algorithm.{name} that {algorithm.name} would accept")
        return
    tried = ", ".join(dict.fromkeys(repr(_get(other.settings, setting)) for other in others))
    try:
        for which in (DIFFERENT, FLAT):
            differing = [other for other in others if trial.said_differs(algorithm, other, which)]
            if any(trial.trained_differs(algorithm, other, which) for other in differing):
                return
        if not differing and any(trial.said_differs(algorithm, other, REAL) for other in others):
            return
    except WorkbenchError as error:
        yield NotChecked(f"made-up attempts that {algorithm.name} can give credit for ({error})")
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
    elif _shipped(algorithm, setting):
        yield Finding(
            f"algorithm.{name} = {value!r} has no effect: with {tried} instead, credit, loss and gradients "
            "are the same to the last digit, on attempts made up so that it should matter"
        )
    else:
        yield Finding(
            f"algorithm.{name} = {value!r} had no effect here: with {tried} instead, credit, loss and "
            "gradients are the same to the last digit. It is a setting of your own: if it acts on attempts "
            "unlike these, or only names something, all is well",
            severity=NOTE,
        )


def _shipped(algorithm: Algorithm, setting: Setting) -> bool:
    """Whether a part of this package declares the setting, so that it is known what it acts on."""
    parts = (
        algorithm.objective,
        algorithm.reference,
        algorithm.critic,
        algorithm.masks,
        algorithm.rewards,
        algorithm.filter,
    )
    declaring = [type(part) for part in parts if setting[-1] in getattr(part, "__dict__", {})]
    if setting[0] in vars(algorithm.estimator.settings):
        declaring.append(algorithm.estimator.function)
    elif not declaring:
        declaring.append(
            Algorithm
            if setting[0] in {field.name for field in fields(Algorithm)}
            else type(algorithm)
        )
    return declaring[-1].__module__.partition(".")[0] == "workbench"


def changed_settings(algorithm: Algorithm) -> list[Setting]:
    """The settings that do not stand at their default, nested ones by themselves."""
    usual, found = _usual(algorithm), []
    for name, value in algorithm.settings.items():
        default = usual.get(name)
        if is_dataclass(value):
            found += [
                (name, inner.name)
                for inner in fields(value)
                if getattr(value, inner.name) != getattr(default, inner.name, inner.default)
            ]
        elif name not in usual or value != default:
            found.append((name,))
    return found


def _usual(algorithm: Algorithm) -> Mapping[str, Any]:
    """The settings of the algorithm of this name in the table, else what its parts are by default."""
    plain = Algorithm(
        algorithm.name,
        replace(algorithm.estimator, settings=None),
        objective=type(algorithm.objective)(),
    )
    usual = ALGORITHMS.get(algorithm.name, plain).settings
    return usual | {
        f.name: default_of(f)
        for f in fields(algorithm)
        if f.name in algorithm.settings.keys() - usual.keys()
    }


def _get(settings: Mapping[str, Any], setting: Setting) -> Any:
    return reduce(getattr, setting[1:], settings[setting[0]])


def _with(algorithm: Algorithm, changes: Mapping[Setting, Any]) -> Algorithm:
    """With these settings changed, all of one part at once: each by itself may be refused."""
    whole = {setting[0]: value for setting, value in changes.items() if len(setting) == 1}
    nested: dict[str, dict[str, Any]] = defaultdict(dict)
    for setting, value in changes.items():
        if len(setting) == 2:
            nested[setting[0]][setting[1]] = value
    return algorithm(
        **whole
        | {name: replace(algorithm.settings[name], **inner) for name, inner in nested.items()}
    )


def _default(algorithm: Algorithm, setting: Setting) -> Any:
    """What it is where nobody says anything; the value itself where it has to be said."""
    usual = _usual(algorithm)
    return _get(usual if setting[0] in usual else algorithm.settings, setting)


def _turned(algorithm: Algorithm, setting: Setting) -> Iterator[Algorithm]:
    """The same algorithm with other values of one setting. Where a value is refused by itself, it is tried together
    with the default of one other setting ("fixed-length" goes with a length)."""
    partners = [
        {},
        *(
            {other: _default(algorithm, other)}
            for other in changed_settings(algorithm)
            if other != setting
        ),
    ]
    for value in _values(algorithm, setting):
        for partner in partners:
            try:
                made = _with(algorithm, {setting: value, **partner})
            except (ConfigError, ValueError, TypeError):
                continue
            yield made
            break


def _values(algorithm: Algorithm, setting: Setting) -> list[Any]:
    """Others worth trying, the default first."""
    value, default = _get(algorithm.settings, setting), _default(algorithm, setting)
    options: list[Any] = [default]
    if isinstance(value, bool):
        options.append(not value)
    elif isinstance(value, int):
        options += [value + 1, 2 * value, value // 2, 1]
    elif isinstance(value, float):
        options += [value / 2, value + 0.3, value * 2, 0.0]
    elif setting[0] == "masks":
        options += SETS
    else:
        options += WORDS.get(setting[-1], ())
    return [other for n, other in enumerate(options) if other != value and other not in options[:n]]


def _explained(evidence: Evidence, algorithm: Algorithm) -> Mapping[str, str]:
    """Settings that `algorithms.liveness` knows to be inert here, and why."""
    tasks, attempts = (
        (len(evidence.groups), max(map(len, evidence.groups))) if evidence.groups else TYPICAL
    )
    return {name: why for name, dead, why in inert_settings(algorithm, tasks, attempts) if dead}


# ------------------------------------------------------------------------------------------------ what may move


class _Trial:
    """Made-up attempts, and what algorithms say of them; each is asked once."""

    def __init__(self, evidence: Evidence, probe: LearnerProbe | None) -> None:
        self._probe, self._known, self._evidence = probe, {}, evidence
        self._ids = np.arange(40)
        if evidence.batch is not None and evidence.batch.num_tokens:
            self._ids = evidence.batch.token_ids_T.unique().numpy()

    def _batch(self, which: str) -> Batch:
        batch, algorithm = self._evidence.batch, self._evidence.algorithm
        if which == REAL and batch is not None and batch.num_tokens:
            return self._once(("batch", which), lambda: with_facts(batch, None, algorithm))
        return self._once(
            ("batch", which),
            lambda: made_up(self._ids, self._probe, flat=which == FLAT, algorithm=algorithm),
        )

    def said_differs(self, one: Algorithm, other: Algorithm, which: str) -> bool:
        """Whether credit, or the loss and its gradient by token, are another."""
        return differ(
            *(
                self._once(("said", which, repr(a)), lambda a=a: effects(a, self._batch(which)))
                for a in (one, other)
            )
        )

    def trained_differs(self, one: Algorithm, other: Algorithm, which: str) -> bool:
        """Whether the learner's gradient or its updates are another; taken for granted where there is none to ask."""
        if self._probe is None:
            return True
        return any(
            differ(
                *(
                    self._once(
                        (how.__name__, which, repr(a)), lambda a=a: how(a, self._batch(which))
                    )
                    for a in (one, other)
                )
            )
            for how in (self._updates, self._gradient)
        )

    def _updates(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """How many tokens each of the learner's updates has."""
        try:
            updates = self._probe.updates(algorithm, batch, algorithm.credit(batch))
        except DataError:
            return []
        return [torch.tensor([int(used_T.sum()) for used_T in updates], dtype=torch.float64)]

    def _gradient(self, algorithm: Algorithm, batch: Batch) -> list[Tensor]:
        """Of the learner's weights."""
        try:
            found = self._probe.learner(
                algorithm, batch, algorithm.credit(batch), 4 * batch.num_tokens
            ).by_name
        except DataError:
            return []
        return [found[name] for name in sorted(found)]

    def _once(self, key: Any, compute: Callable[[], Any]) -> Any:
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
