"""Which tasks a step tries, chosen before anything is sampled: by how trajectories of tasks of their kind went so far.

    plain draw   sampling.candidates x tasks_per_step tasks of the step, as `envs.tasks` draws them
    estimate     success of each kind in the newest `sampling.window` steps that are learned from already
    chosen       tasks_per_step of them: within a band of success, or in proportion to p (1 - p)

A kind that nobody tried in the window may be anything, and is tried. So tasks follow the policy: what it always does leaves
the step, what it begins to do comes in. The choice is a function of run seed, step and stored trajectories alone (invariant 8), the
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
from typing import NamedTuple

from workbench.run.store import Run
from workbench.training.sections import Config, SamplingConfig
from workbench.values import Group, Task
from workbench.values.errors import ConfigError, nearest
from workbench.values.seeds import rng_at
from workbench.worlds import tasks as env_tasks
from workbench.worlds.base import EnvFamily

LEAST = 0.01  # of the weight p (1 - p) of a kind: none is given up for good


class TaskChoice(NamedTuple):
    """The tasks of a step, all that were drawn, and what was believed of the kinds: kind -> success in the window."""

    tasks: list[Task]
    drawn: list[Task]
    believed: Mapping[str, float]


class TaskChooser:
    """Chooses the tasks of each step. What it remembers are stored trajectories, added up by step and kind."""

    def __init__(self, config: Config) -> None:
        self._config = config
        # step -> kind -> (trajectories that count, those that succeeded)
        self._seen: dict[int, dict[str, tuple[int, int]]] = {}

    def note(self, step: int, groups: Sequence[Group]) -> None:
        """What came of a step. Trajectories of which success is not known, or that broke off, do not count (invariant 5)."""
        tried: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for group in groups:
            kind = self.kind(group.task)
            for trajectory in group:
                if trajectory.success is not None and trajectory.reward is not None:
                    tried[kind] += 1
                    won[kind] += bool(trajectory.success)
        self._seen[step] = {kind: (count, won[kind]) for kind, count in tried.items() if count}

    def came(self, step: int, groups: Sequence[Group]) -> dict[str, float]:
        """Note a step that was sampled; its metrics, of the choice that was made before."""
        metrics = self.metrics(step)
        self.note(step, groups)
        return metrics

    def recall(self, run: Run, last: int) -> None:
        """The steps of a stored run up to `last`: those after it are noted as they are repeated."""
        for step in range(1, last + 1):
            self.note(step, run.groups(step))

    def kind(self, task: Task) -> str:
        return kind_of(task, self._config.sampling.by)

    def believed(self, step: int) -> dict[str, float]:
        """Kind -> success, before `step` is sampled: with train.staleness = 1 the step before is not learned from yet."""
        newest = step - 1 - self._config.train.staleness
        oldest = newest - self._config.sampling.window + 1
        tried: Counter[str] = Counter()
        won: Counter[str] = Counter()
        for earlier in range(oldest, newest + 1):
            for kind, (count, wins) in self._seen.get(earlier, {}).items():
                tried[kind] += count
                won[kind] += wins
        return {kind: won[kind] / tried[kind] for kind in sorted(tried)}

    def choose(self, step: int, count: int) -> TaskChoice:
        """`count` tasks of a step, in the order in which they were drawn."""
        config = self._config
        believed = self.believed(step)
        drawn = env_tasks(
            config.env, "train", count * config.sampling.candidates, seed=config.seed, step=step
        )
        noise = rng_at(config.seed, "task choice", step).random(len(drawn))

        def rank(number: int) -> tuple[float, int]:
            p = believed.get(self.kind(drawn[number]))
            if config.sampling.tasks == "band":  # how far outside of the band, then as drawn
                return _outside(p, config.sampling), number
            # The smallest of these: drawn by weight, none twice.
            weight = 0.25 if p is None else max(p * (1 - p), LEAST)
            return -math.log1p(-noise[number]) / weight, number

        chosen = sorted(sorted(range(len(drawn)), key=rank)[:count])
        return TaskChoice([drawn[number] for number in chosen], drawn, believed)

    def metrics(self, step: int) -> dict[str, float]:
        """By kind: its share of the chosen tasks, of the plain draw, and the success that was believed of it (absent: not
        known)."""
        choice = self.choose(step, self._config.train.tasks_per_step)
        drawn = Counter(map(self.kind, choice.drawn))
        chosen = Counter(map(self.kind, choice.tasks))
        kinds = sorted(drawn)
        metrics = {f"tasks_chosen_{kind}": chosen[kind] / chosen.total() for kind in kinds}
        metrics |= {f"tasks_drawn_{kind}": drawn[kind] / drawn.total() for kind in kinds}
        for kind in kinds:
            if kind in choice.believed:
                metrics[f"tasks_believed_{kind}"] = choice.believed[kind]
        return metrics


def _outside(p: float | None, band: SamplingConfig) -> float:
    """How far a success lies outside of the band; 0 for one that is not known."""
    return 0.0 if p is None else max(band.low - p, p - band.high, 0.0)


def kind_of(task: Task, by: str) -> str:
    """What a task's payload, or else its metadata, says under this name. ConfigError where neither does."""
    for facts in (task.payload, task.metadata):
        if by in facts:
            return str(facts[by])
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
    chosen = _columns_of(rows, "tasks_chosen_")
    drawn = _columns_of(rows, "tasks_drawn_")
    if not drawn:
        return ""
    count = sum(bool(_columns_of([row], "tasks_drawn_")) for row in rows)
    shares = []
    for kind, numbers in sorted(drawn.items()):
        share = sum(chosen.get(kind, [])) / count
        shares.append(f"{kind}: {share:.0%} (plain {sum(numbers) / count:.0%})")
    return (
        f"tasks were chosen by their success so far ({', '.join(shares)}): training means are of these, not of the "
        "plain draw"
    )


def _columns_of(rows: Sequence[Mapping[str, float]], prefix: str) -> dict[str, list[float]]:
    """Kind -> the numbers under this prefix, of the rows that have one."""
    columns: dict[str, list[float]] = {}
    for row in rows:
        for key, value in row.items():
            if key.startswith(prefix) and value == value:  # NaN equals nothing
                columns.setdefault(key.removeprefix(prefix), []).append(value)
    return columns
