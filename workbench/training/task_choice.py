"""Which tasks a step tries, chosen before anything is sampled: by how attempts at tasks of their kind went so far.

    plain draw   sampling.candidates x tasks_per_step tasks of the step, as `envs.tasks` draws them
    estimate     success of each kind in the newest `sampling.window` steps that are learned from already
    chosen       tasks_per_step of them: within a band of success, or in proportion to p (1 - p)

A kind that nobody tried in the window may be anything, and is tried. So tasks follow the policy: what it always does leaves
the step, what it begins to do comes in. The choice is a function of run seed, step and stored attempts alone (law 8), the
same in a run that was killed and goes on.

What this does to the distribution: training rewards are of the chosen tasks, rise and fall with the choice, and say nothing of
the task as such. Evaluation stays on the plain held-out tasks. Each step's metrics say what was chosen, what the plain draw
held and what was believed of each kind.

Sources: groups that are always or never solved teach nothing, and are filtered after sampling by DAPO (arXiv 2503.14476) and,
by the spread of rewards, by RAGEN-2 (arXiv 2604.06268); this chooses beforehand, so that nothing is sampled in vain.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from workbench.envs import tasks as env_tasks
from workbench.envs.base import EnvFamily
from workbench.run.store import Run
from workbench.types import Group, Task
from workbench.types.errors import ConfigError, nearest
from workbench.types.seeds import rng_at

if TYPE_CHECKING:
    from workbench.training.config import Config

LEAST = 0.01  # of the weight p (1 - p) of a kind: none is given up for good


class TaskChoice(NamedTuple):
    """The tasks of a step, all that were drawn, and what was believed of the kinds: kind -> success in the window."""

    tasks: list[Task]
    drawn: list[Task]
    believed: Mapping[str, float]


class TaskChooser:
    """Chooses the tasks of each step. What it remembers are stored attempts, added up by step and kind."""

    def __init__(self, config: Config) -> None:
        self._config, self._seen = config, {}

    def note(self, step: int, groups: Sequence[Group]) -> None:
        """What came of a step. Attempts of which success is not known, or that broke off, do not count (law 5)."""
        tried, won = Counter(), Counter()
        for group in groups:
            known = [
                bool(attempt.success)
                for attempt in group
                if attempt.success is not None and attempt.reward is not None
            ]
            tried[self.kind(group.task)] += len(known)
            won[self.kind(group.task)] += sum(known)
        self._seen[step] = {kind: (count, won[kind]) for kind, count in tried.items() if count}

    def came(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Note a step that was sampled; its metrics, of the choice that was made before."""
        found = self.metrics(step)
        self.note(step, groups)
        return found

    def recall(self, run: Run, last: int) -> None:
        """The steps of a stored run up to `last`: those after it are noted as they are repeated."""
        for step in range(1, last + 1):
            self.note(step, run.groups(step))

    def kind(self, task: Task) -> str:
        return kind_of(task, self._config.sampling.by)

    def believed(self, step: int) -> dict[str, float]:
        """Kind -> success, before `step` is sampled: with train.staleness = 1 the step before is not learned from yet."""
        newest = step - 1 - self._config.train.staleness
        tried, won = Counter(), Counter()
        for each in range(newest - self._config.sampling.window + 1, newest + 1):
            for kind, (count, wins) in self._seen.get(each, {}).items():
                tried[kind] += count
                won[kind] += wins
        return {kind: won[kind] / tried[kind] for kind in sorted(tried)}

    def choose(self, step: int, count: int) -> TaskChoice:
        """`count` tasks of a step, in the order in which they were drawn."""
        config, believed = self._config, self.believed(step)
        drawn = env_tasks(
            config.env, "train", count * config.sampling.candidates, seed=config.seed, step=step
        )
        noise = rng_at(config.seed, "task choice", step).random(len(drawn))

        def rank(number: int) -> tuple[float, int]:
            p = believed.get(self.kind(drawn[number]))
            if config.sampling.tasks == "band":  # how far outside of the band, then as drawn
                return (
                    0.0
                    if p is None
                    else max(config.sampling.low - p, p - config.sampling.high, 0.0)
                ), number
            weight = 0.25 if p is None else max(p * (1 - p), LEAST)
            return -math.log1p(
                -noise[number]
            ) / weight, number  # the smallest of these: drawn by weight, none twice

        chosen = sorted(sorted(range(len(drawn)), key=rank)[:count])
        return TaskChoice([drawn[number] for number in chosen], drawn, believed)

    def metrics(self, step: int) -> dict[str, float]:
        """By kind: its share of the chosen tasks, of the plain draw, and the success that was believed of it (absent: not
        known)."""
        made = self.choose(step, self._config.train.tasks_per_step)
        shares = {
            name: Counter(map(self.kind, tasks))
            for name, tasks in (("chosen", made.tasks), ("drawn", made.drawn))
        }
        kinds = sorted(shares["drawn"])
        found = {
            f"tasks_{name}_{kind}": share[kind] / share.total()
            for name, share in shares.items()
            for kind in kinds
        }
        return found | {
            f"tasks_believed_{kind}": made.believed[kind] for kind in kinds if kind in made.believed
        }


def kind_of(task: Task, by: str) -> str:
    """What a task's payload, or else its metadata, says under this name. ConfigError where neither does."""
    for said in (task.payload, task.metadata):
        if by in said:
            return str(said[by])
    names = [*task.payload, *task.metadata]
    raise ConfigError(
        f"sampling.by = {by!r} is in neither payload nor metadata of task {task.id}; {nearest(by, names)}"
    )


def refuse_what_cannot_choose(config: Config) -> None:
    """Raises ConfigError for kinds that tasks do not have, an empty band, and tasks that come in an order of their own."""
    family: EnvFamily = config.env
    if config.sampling.low >= config.sampling.high:
        raise ConfigError(
            f"sampling.low = {config.sampling.low} is not below sampling.high = {config.sampling.high}: no success "
            "lies between them"
        )
    if hasattr(family, "task_seeds"):
        raise ConfigError(
            f"sampling.tasks = {config.sampling.tasks!r}: the rows of {config.kind_of('env')!r} come one after "
            "another, each once an epoch, and leaving some out would make other epochs; set sampling.tasks = 'fresh'"
        )
    kind_of(env_tasks(family, "train", 1, seed=config.seed, step=1)[0], config.sampling.by)


def choice_words(rows: Sequence[Mapping[str, float]]) -> str:
    """What a choice of tasks did in a run, in one line, from the metrics of its steps; "" where none was made."""
    shares: dict[str, dict[str, list[float]]] = {"chosen": {}, "drawn": {}}
    for row in rows:
        for name, found in shares.items():
            prefix = f"tasks_{name}_"
            for key in row:
                if key.startswith(prefix) and row[key] == row[key]:
                    found.setdefault(key.removeprefix(prefix), []).append(row[key])
    if not shares["drawn"]:
        return ""
    count = sum(
        any(key.startswith("tasks_drawn_") and row[key] == row[key] for key in row) for row in rows
    )
    said = ", ".join(
        f"{kind}: {sum(shares['chosen'].get(kind, [])) / count:.0%} (plain {sum(parts) / count:.0%})"
        for kind, parts in sorted(shares["drawn"].items())
    )
    return f"tasks were chosen by their success so far ({said}): training means are of these, not of the plain draw"
