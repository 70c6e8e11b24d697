"""Evaluations: played as their tables say (R25). Recomputed from the trajectories that are stored beside each table.

The tasks are drawn once more at their addresses, chance and noise are compared with theirs, and what was sampled against
what was to be: one temperature, the weights of the step, greedy play that is the likeliest token and sampled play that
is not. Trajectories of evaluations are also asked the rules of a step (`notebook/lint.py`): prompts, replay, rewards.

Axis letters: N tasks · V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.extensions.scripted_play.playing import CUT_OFF, play, unplayable, within
from workbench.linting.evidence import EvaluationFacts, Evidence
from workbench.linting.facts import MODES, content, problem_of, sampled_spans
from workbench.linting.rule import Rule, RuleResult
from workbench.rollouts.config import CollectConfig
from workbench.values import Span, Task, Trajectory
from workbench.values.errors import shortened
from workbench.values.seeds import rng_at, seed_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.baselines import BASELINES
from workbench.worlds.splits import split_of

TIE = 1e-3  # nats between two tokens that may both be called the likeliest
SURPRISE = (
    20.0  # nats: sampled play is like greedy play by chance with a probability of exp(-SURPRISE)
)
FEW = 16  # so few different problems come again whatever is done
FEW_TASKS = 4  # at which a baseline is played once more
BASELINES_AGAIN = "random play and the solver, once more"


def check_evaluations(evidence: Evidence) -> Iterator[RuleResult]:
    first = evidence.evaluations[0]
    for evaluation in evidence.evaluations:
        yield from _same_baselines(first, evaluation)
        sides = {name: list(chain.from_iterable(side)) for name, side in evaluation.sides.items()}
        if not sides:
            yield NotChecked(
                f"the trajectories of evaluation {evaluation.name}", "how it was played"
            )
            continue
        for name, side in evaluation.sides.items():
            yield Checked(len(sides[name]), "how policies were played")
            yield from _tasks(evidence.family, evaluation, name, side)
            yield from _sampling(evaluation, name, sides[name])
        yield from _greedy(evaluation)
    yield from _replayed_baselines(evidence)
    yield from _met_in_training(evidence)


# ------------------------------------------------------------------------------------------------ tasks and chance


def _tasks(
    family: EnvFamily | None,
    evaluation: EvaluationFacts,
    name: str,
    side: Sequence[Sequence[Trajectory]],
) -> Iterator[RuleResult]:
    """One side of an evaluation: its tasks, how many there are, and the chance that they were met under."""
    yield from _counts(evaluation, name, side)
    tasks = [group[0].task for group in side]
    if family is not None and tasks[0].env == family.name:
        yield from _addresses(family, evaluation, name, tasks)
    yield from _repeated_tasks(family, evaluation, name, tasks)
    if evaluation.seed is not None:
        yield from _chances(evaluation, name, side)


def _counts(
    evaluation: EvaluationFacts, name: str, side: Sequence[Sequence[Trajectory]]
) -> Iterator[Finding]:
    """The declared number of tasks, each as often as declared."""
    place = Place(step=evaluation.step)
    rows = evaluation.report["rows"]
    row = next((row for row in rows if f"{row['policy']}-{row['mode']}" == name), None)
    asked = evaluation.num_tasks
    if row is None or row["n"] < len(side) or (asked and row["n"] != asked):
        yield Finding(
            f"{name}: {len(side)} tasks were played, the table has {row and row['n']} and the settings "
            f"ask for {asked}",
            place,
        )
    wanted = (evaluation.attempts or len(side[0])) if name.endswith("sampled") else 1
    if any(len(group) != wanted for group in side):
        yield Finding(
            f"{name}: {len(side[0])} trajectories of a task, and {wanted} were to be made", place
        )


def _addresses(
    family: EnvFamily, evaluation: EvaluationFacts, name: str, tasks: Sequence[Task]
) -> Iterator[Finding]:
    """Tasks are held-out ones, as they are drawn at their addresses."""
    place = Place(step=evaluation.step)
    trained = next((task for task in tasks if split_of(family, task) != "held-out"), None)
    if trained is not None:
        yield Finding(
            f"{name}: task {trained.id!r} is one of training, and evaluations play held-out ones",
            place,
        )
        return
    expected = held_out(family, len(tasks), evaluation.first_task)
    for n, (task, drawn) in enumerate(zip(tasks, expected)):
        if (task.id, task.payload) != (drawn.id, drawn.payload):
            yield Finding(
                f"{name}: task {n} is {task.id!r}; at its address {drawn.id!r} is drawn, in every run and at every "
                "step",
                place,
            )
            return


def _repeated_tasks(
    family: EnvFamily | None, evaluation: EvaluationFacts, name: str, tasks: Sequence[Task]
) -> Iterator[Finding]:
    """No task stands twice where the family has as many different ones."""
    repeated = len(tasks) - len(set(map(content, tasks)))
    if not repeated:
        return
    if family is not None:
        drawn = held_out(family, len(tasks), evaluation.first_task)
        if len(set(map(content, drawn))) < len(tasks):
            return
    yield Finding(
        f"{name}: {repeated} of {len(tasks)} tasks occur twice", Place(step=evaluation.step)
    )


def _chances(
    evaluation: EvaluationFacts, name: str, side: Sequence[Sequence[Trajectory]]
) -> Iterator[Finding]:
    """Each trajectory meets the chance of its address."""
    for t in chain.from_iterable(side):
        expected = seed_of(evaluation.seed, "evaluation", "dynamics", t.task.id, t.attempt)
        if t.dynamics_seed != expected:
            yield Finding(
                f"{name}: attempt {t.attempt} at {t.task.id!r} met the dynamics seed {t.dynamics_seed}, which is not "
                f"that of evaluation seed {evaluation.seed}: another chance than the other sides'",
                Place(step=evaluation.step),
            )
            return


def held_out(family: EnvFamily, count: int, first: int = 0) -> list[Task]:
    """`count` held-out tasks by their addresses, after the `first` ones; a problem that was drawn before is passed
    over, a hundred times in a row at most. A data set says itself which rows come."""
    if hasattr(family, "task_seeds"):
        return [family.task(seed) for seed in family.task_seeds("held-out", 0, first + count, 0)][
            first:
        ]
    held: list[Task] = []
    seen: set[str] = set()
    index = repeats = 0
    while len(held) < first + count:
        task = next(
            task
            for draw in range(10_000)
            if split_of(family, task := family.task(seed_of("task", "held-out", 0, 0, index, draw)))
            == "held-out"
        )
        index = index + 1
        new = content(task) not in seen
        repeats = 0 if new else repeats + 1
        if new or repeats > 100:
            seen.add(content(task))
            held.append(task)
    return held[first:]


# ------------------------------------------------------------------------------------------------ what was sampled


def _sampling(
    evaluation: EvaluationFacts, name: str, trajectories: Sequence[Trajectory]
) -> Iterator[RuleResult]:
    wanted = evaluation.sampling_of(name)
    version = 0 if name.startswith("untrained") else evaluation.version
    for t in trajectories:
        for span in sampled_spans(t):
            what = _sampled_otherwise(span, wanted, version)
            if what is not None:
                yield Finding(
                    f"{name}: turn {span.turn} of {t.task.id}/{t.attempt} was sampled {what}",
                    Place(step=evaluation.step),
                )
                return


def _sampled_otherwise(span: Span, wanted: Mapping[str, float], version: int | None) -> str | None:
    """How a turn was sampled, where that is not as its row says and as these weights sample."""
    sampling = span.sampling
    if sampling is not None and sampling.engine != "scripted":
        if (sampling.temperature, sampling.top_p) != (wanted["temperature"], wanted["top_p"]):
            return (
                f"at temperature {sampling.temperature:g}, top-p {sampling.top_p:g}; its row says "
                f"{wanted['temperature']:g} and {wanted['top_p']:g}"
            )
    if None not in (version, span.policy_version) and span.policy_version != version:
        return f"by version {span.policy_version} of the weights, and the table is of version {version}"
    return None


def _greedy(evaluation: EvaluationFacts) -> Iterator[RuleResult]:
    """The two ways to play, from the same prompts: where they diverge, greedy play took the likelier token."""
    place = Place(step=evaluation.step)
    for name in {side.rpartition("-")[0] for side in evaluation.sides}:
        sampled, greedy = (evaluation.sides.get(f"{name}-{mode}") for mode in MODES)
        if not sampled or not greedy:
            continue
        yield Checked(len(greedy))
        alike = 0.0
        worse = []
        better = 0
        for several, one in zip(sampled, greedy):
            for t in several:
                chosen, drawn, same = _first_difference(one[0], t)
                if chosen is None:
                    alike += same
                    continue
                alike = -math.inf
                if chosen < drawn - TIE:
                    worse.append((t.task.id, chosen, drawn))
                else:
                    better += 1
        if worse:
            task, chosen, drawn = worse[0]
            yield Finding(
                f"{name}: greedy play took a token of probability {math.exp(chosen):.3g} at {task!r}, "
                f"where one of {math.exp(drawn):.3g} was sampled after the same tokens: it is not greedy "
                f"(so in {len(worse)} of {len(worse) + better} places where the two diverge)",
                place,
            )
        if alike > SURPRISE:
            yield Finding(
                f"{name}: sampled play is greedy play, token by token, at all {len(greedy)} tasks; that "
                f"happens "
                f"with probability exp(-{alike:.0f})",
                place,
            )


def _first_difference(
    greedy: Trajectory, sampled: Trajectory
) -> tuple[float | None, float | None, float]:
    """Plain logprobs of the two tokens at which the first turns part, None where they do not; and -logprob of what is
    the same, as it was sampled. Of a program that asks side by side, the first call may be another each time: turns behind
    other tokens are not compared."""
    first = [_first_turn(t) for t in (greedy, sampled)]
    spans = [span for _, span in first]
    if None in spans or greedy.task.id != sampled.task.id:
        return None, None, 0.0
    if first[0][0] != first[1][0]:
        return None, None, 0.0
    plain = [
        span.logprobs if span.plain_logprobs is None else span.plain_logprobs for span in spans
    ]
    ids = [span.token_ids for span in spans]
    length = min(map(len, ids))
    differs = np.flatnonzero(ids[0][:length] != ids[1][:length])
    if len(differs):
        at = int(differs[0])
        known = spans[0].plain_logprobs is not None
        return (float(plain[0][at]) if known else 0.0), float(plain[1][at]), 0.0
    return None, None, -float(spans[1].logprobs[:length].sum())


def _first_turn(trajectory: Trajectory) -> tuple[list[int], Span | None]:
    """The first sampled span, behind the tokens of its segment that stand before it; None where nothing was sampled."""
    for segment in trajectory.segments:
        before: list[int] = []
        for span in segment.spans:
            if span.logprobs is not None:
                return before, span
            before += span.token_ids.tolist()
    return [], None


# ------------------------------------------------------------------------------------------------ other sides


def _same_baselines(first: EvaluationFacts, now: EvaluationFacts) -> Iterator[RuleResult]:
    """What a policy is compared with was measured once."""
    known = {(row["policy"], row["mode"]): row for row in first.report.get("rows", ())}
    for row in now.report.get("rows", ()):
        before = known.get((row["policy"], row["mode"]))
        if (
            before is not None
            and row["policy"] in ("random", "solver", "untrained")
            and _plain(row) != _plain(before)
        ):
            yield Finding(
                f"{row['policy']} {row['mode']} has success {row['success']} here and {before['success']} "
                f"at step "
                f"{first.step}: a side that was played once has two results",
                Place(step=now.step),
            )


def _plain(row: Any) -> str:
    return json.dumps(
        {key: row.get(key) for key in ("success", "by_task", "n", "reward")}, default=list
    )


def _replayed_baselines(evidence: Evidence) -> Iterator[RuleResult]:
    """Random play and the solver, a few trajectories once more: as the address says, in environments of their own, scored as
    they were, with the deadline that they had."""
    family = evidence.family
    evaluation = evidence.evaluations[0]
    if family is None or evaluation.seed is None or unplayable(family):
        yield NotChecked("an environment that can be played here", BASELINES_AGAIN)
        return
    for row in evaluation.report.get("rows", ()):
        name = row["policy"]
        act = getattr(family, f"{name}_action", None)
        if name not in BASELINES or act is None:
            continue
        if row.get("success") is None:
            yield NotChecked("success, which the environment does not say", BASELINES_AGAIN)
            continue
        yield from _replayed_baseline(evidence, row, act)


def _replayed_baseline(
    evidence: Evidence, row: Mapping[str, Any], act: Any
) -> Iterator[RuleResult]:
    family = evidence.family
    evaluation = evidence.evaluations[0]
    name = row["policy"]
    count = row.get("attempts", 1)
    deadline_s = _deadline_s(evidence.collect)
    for task, share in zip(held_out(family, FEW_TASKS, evaluation.first_task), row["by_task"]):
        ended = []
        for number in range(count):
            again = partial(played_success, family, task, act, evaluation.seed, name, number)
            ended.append(within(deadline_s, again))
        won = ended.count(True)
        was_won = round(share * count)
        if was_won == won:
            yield Checked(count, BASELINES_AGAIN)
            continue
        # The table counts faults, and does not say where they were.
        may_be_cut = 0 if deadline_s is None else row.get("faults", 0)
        if won - may_be_cut <= was_won <= won + ended.count(CUT_OFF):
            yield NotChecked(
                f"play that no deadline cuts off: it cut off {may_be_cut} trajectories of {name} play, and "
                f"{ended.count(CUT_OFF)} when played once more",
                f"{name} play at {task.id!r}",
            )
            continue
        yield Finding(
            f"{name} play at {task.id!r}, under the chance of the evaluation: the table says {share:g}, and played "
            f"once more it is {won / count:g}",
            Place(step=evaluation.step),
        )
        return


def _deadline_s(collect: CollectConfig | None) -> float | None:
    """Seconds that a whole trajectory of a baseline may take; None: as many as it likes."""
    return None if collect is None or collect.env_runner == "inline" else collect.env_deadline_s


def played_success(
    family: EnvFamily, task: Task, act: Any, seed: int, name: str, number: int
) -> bool:
    """One trajectory of a baseline; one that breaks is no success."""
    rng = rng_at(seed, "baseline", name, task.id, *([number] if number else []))
    chance = seed_of(seed, "evaluation", "dynamics", task.id, number)
    played = play(family, task, chance, lambda env: act(env, rng))
    return not played.error and played.success is True


def _met_in_training(evidence: Evidence) -> Iterator[RuleResult]:
    """A held-out problem is none of training, by what stands in it, whatever it is called there."""
    trained: dict[str, int] = {}
    for row in evidence.steps:
        for problem in row.problems:
            trained.setdefault(problem, row.step)
    held: dict[str, tuple[EvaluationFacts, Task]] = {}
    for evaluation in evidence.evaluations:
        for group in chain.from_iterable(evaluation.sides.values()):
            held[problem_of(group[0])] = (evaluation, group[0].task)
    if not trained or not held:
        return
    yield Checked(len(held))
    met = [problem for problem in held if problem in trained]
    if met:
        evaluation, task = held[met[0]]
        few = len(held.keys() | trained.keys()) <= FEW
        yield Finding(
            f"{len(met)} of {len(held)} problems of the evaluations were met in training, the first, "
            f"{shortened(task.id)}, in step {trained[met[0]]}"
            + (": the family has few problems" if few else ""),
            Place(step=evaluation.step),
            NOTE if few else "error",
            len(met),
        )


R25 = Rule(
    "R25",
    "an evaluation is played as its table says",
    "The rates are of other tasks, another chance, another way to sample or other weights than the table names, so "
    "that its rows cannot be compared, with each other or with a later one.",
    "Play evaluations by session.evaluate, after sync, on session.held_out_tasks, with evaluation.seed for all "
    "sides; keep every evaluation that was made, and show the one that the settings ask for.",
    ("evaluations",),
    check_evaluations,
    "run",
)

RULES: tuple[Rule, ...] = (R25,)
