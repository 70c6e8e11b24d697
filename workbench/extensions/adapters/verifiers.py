"""Tasksets of Prime Intellect's *verifiers* (its `verifiers.v1`), as they are.

    [env]
    kind = "verifiers"
    load = "my_tasks:MyTaskset"
    args = { difficulty = "easy" }       fields of its configuration

What drives a trajectory is the package's own loop, and what a trajectory earns is what its rubric says: a part of the reward
for each function with a weight, paid with the turn that ends it; values of all functions are in info["metrics"]. Nothing
is added to a prompt. A limit of turns is the environment's own; `turns` sets a lower one, and is asked for where it has
none.

Rows have the ids of the taskset's tasks; one row in five is held out, by its content.

Solver, random play and success are not known, unless you name them. The package hands no seed to an environment: one that
draws chance says `deterministic = false`. Source: github.com/PrimeIntellect-ai/verifiers.
"""

from __future__ import annotations

import inspect
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import Annotated, Any, ClassVar

import numpy as np

from workbench.basics.plugins import load_named
from workbench.basics.settings import at_least, check_settings
from workbench.extensions.adapters.packages import package
from workbench.extensions.adapters.verifiers_rollouts import Rollouts, RubricVerdict, Words
from workbench.extensions.adapters.verifiers_v1 import (
    OLDEST,
    VerifiersTaskset,
    refuse_older_versions,
)
from workbench.values import StopReason, Task, Trajectory
from workbench.values.errors import ConfigError, EnvError
from workbench.worlds.rows import DataRow, RowFamily, RowTable
from workbench.worlds.splits import content_split

Player = Callable[[Mapping[str, Any], list[Words], np.random.Generator], str]
_LOADED: dict[str, _Loaded] = {}
_LOADING = threading.RLock()


@dataclass(frozen=True)
class Verifiers(RowFamily):
    """One environment of verifiers. The fields are the only configuration."""

    load: Annotated[str, "module:Taskset of verifiers"] = ""
    args: Annotated[Mapping[str, Any], "fields of its configuration"] = field(default_factory=dict)
    turns: Annotated[
        int,
        at_least(0, most=10_000),
        "most answers of a trajectory; 0: the environment's own limit",
    ] = 0
    success: Annotated[
        str, "reward function or metric whose value of 1 or more is success; empty: not known"
    ] = ""
    solver: Annotated[
        str,
        "module:function of (row, conversation, generator) that answers best; empty: none known",
    ] = ""
    random_play: Annotated[
        str, "module:function like it, that answers at random; empty: none known"
    ] = ""
    most_rows: Annotated[
        int, at_least(1, most=100_000_000), "rows that are taken; tasksets may be endless"
    ] = 100_000
    shuffle: Annotated[bool, "every epoch has an order of its own; false: that of the dataset"] = (
        True
    )
    deterministic: Annotated[
        bool, "false: it does not say or pay the same twice; the lint then replays nothing"
    ] = True

    name: ClassVar[str] = "verifiers"
    serves_many: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self)

    @property
    def label(self) -> str:
        arguments = "".join(f", {name} {value}" for name, value in self.args.items())
        return f"verifiers: {self.load or 'nothing named yet'}{arguments}"

    @property
    def max_turns(self) -> int:
        """The environment's own limit, or the lower one that is set."""
        limit = self.loaded.source.limit
        if not limit:
            raise ConfigError(f"{self.load} has no limit of turns; say one: env.turns")
        return limit

    def check_files(self) -> None:
        """Raise ConfigError where the package or what is named is not there. Quick: no dataset is read."""
        self._named()

    @property
    def loaded(self) -> _Loaded:
        """The environment and its rows, made once a process. Raises ConfigError for what its own code refuses."""
        key = repr(self)
        with _LOADING:
            if key not in _LOADED:
                _LOADED[key] = _Loaded.of(self, self._named())
            return _LOADED[key]

    @property
    def data(self) -> _Loaded:
        return self.loaded

    def payload_of(self, row: DataRow) -> Mapping[str, Any]:
        return row.fields

    def make_shared(self) -> Rollouts:
        return self.loaded.source.rollouts(self.loaded.row_of)

    async def score(self, trajectory: Trajectory) -> Mapping[str, Any]:
        """Nothing for trajectories that the environment ended: the rubric has paid them. One that a limit of ours cut is played
        again up to there and ended as one whose context is full, so that the rubric can say what it is worth."""
        if trajectory.stop_reason in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED):
            return {}
        if not self.deterministic:
            raise EnvError(
                "a limit cut this trajectory before the rubric was asked, and env.deterministic = false: it cannot be "
                "played again"
            )
        rollouts = self.make_shared()
        try:
            verdict = await self._played_again(rollouts, trajectory)
        finally:
            await rollouts.shutdown()
        if verdict.parts is None:
            raise EnvError(verdict.error)
        return {**verdict.parts, **rollouts.succeeded(verdict)}

    async def _played_again(self, rollouts: Rollouts, trajectory: Trajectory) -> RubricVerdict:
        seen = await rollouts.reset("again", trajectory.task, trajectory.dynamics_seed)
        same = seen == trajectory.first_observation
        for turn in trajectory.turns:
            if same:
                result = await rollouts.step("again", turn.text)
                same = result.observation.messages == tuple(turn.reply)
        if not same:
            raise EnvError(
                "a limit cut this trajectory, and it does not go the same way twice; say env.deterministic = false"
            )
        return await rollouts.cut("again")

    @property
    def solver_action(self) -> Callable[[Any, np.random.Generator], str]:
        """AttributeError, so none known, where none is named."""
        return self._player("solver")

    @property
    def random_action(self) -> Callable[[Any, np.random.Generator], str]:
        """AttributeError, so none known, where none is named."""
        return self._player("random_play")

    def _player(self, setting: str) -> Callable[[Any, np.random.Generator], str]:
        name = getattr(self, setting)
        if not name:
            raise AttributeError(f"env.{setting} names nothing")
        play: Player = load_named(name, f"env.{setting}")
        return lambda env, rng: str(play(*env.served.row_and_said(env.key), rng))

    def _named(self) -> Any:
        package("verifiers", "verifiers")
        refuse_older_versions()
        if not self.load:
            raise ConfigError("env.load names no taskset of verifiers: my_tasks:MyTaskset")
        named = load_named(self.load, "env.load")
        is_class = inspect.isclass(named)
        if not is_class or all(base.__name__ != "Taskset" for base in named.__mro__):
            raise ConfigError(
                f"env.load {self.load!r} is no Taskset of verifiers.v1; environments of verifiers before "
                f"{OLDEST} (load_environment) are not played: write their tasks as a Taskset"
            )
        return named


@dataclass(frozen=True, eq=False)
class _Loaded:
    """What `env.load` made: `source` (a VerifiersTaskset), its rows as they are there, and the table that tasks are
    drawn from."""

    source: VerifiersTaskset
    own: Mapping[str, Any]
    table: RowTable

    @classmethod
    def of(cls, family: Verifiers, named: Any) -> _Loaded:
        try:
            source = VerifiersTaskset(named, family.args, family.turns, family.success)
            rows = list(islice(source.rows(), family.most_rows))
        except ConfigError:
            raise
        except Exception as error:  # its author's code
            raise ConfigError(
                f"{family.load} with the arguments {dict(family.args)} fails: {type(error).__name__}: {error}"
            ) from error
        return cls(source, *_table(family, rows))

    def open(self) -> RowTable:
        return self.table

    def row_of(self, task: Task) -> Any:
        """The environment's own row of a task. Raises EnvError where it is not the one that the task was made of."""
        row = self.table.row_of(task.task_seed)[0]
        if dict(row.fields) != dict(task.payload):
            raise EnvError(
                f"row {row.id!r} of the environment's dataset is not the one of task {task.id!r}; was it made with "
                "another version, or other arguments?"
            )
        return self.own[row.id]


def _table(family: Verifiers, tasks: Sequence[tuple[str, Any]]) -> tuple[dict[str, Any], RowTable]:
    """The taskset's own tasks by the ids of their rows, and the rows."""
    own: dict[str, Any] = {}
    rows: list[DataRow] = []
    digest = blake2b(digest_size=8)
    for number, (name, task) in enumerate(tasks):
        fields = _content(task)
        text = json.dumps(fields, sort_keys=True)
        identity = name if name not in own else f"{name}~{number}"
        own[identity] = task
        place = f"{family.load}, row {number}"
        rows.append(DataRow(identity, fields, content_split(text), 1.0, place))
        digest.update(f"{identity} {text}".encode())
    if not rows:
        raise ConfigError(f"{family.load} has no rows")
    return own, RowTable(tuple(rows), family.shuffle, digest.hexdigest())


def _content(task: Any) -> dict[str, Any]:
    """The fields of a task that JSON can hold, without its number."""
    kept = {}
    for name, value in task.data.model_dump(mode="json", exclude_none=True).items():
        try:
            if name not in ("example_id", "idx"):
                kept[name] = json.loads(json.dumps(value, allow_nan=False))
        except (TypeError, ValueError):
            continue
    return kept
