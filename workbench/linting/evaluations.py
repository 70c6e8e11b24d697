"""Evaluations: played as their tables say (R25). Recomputed from the attempts that are stored beside each table.

The tasks are drawn once more at their addresses, chance and noise are held against theirs, and what was sampled against
what was to be: one temperature, the weights of the step, greedy play that is the likeliest token and sampled play that
is not. Attempts of evaluations are also asked the rules of a step (`notebook/lint.py`): prompts, replay, rewards.

Axis letters: N tasks · V vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from workbench.envs.base import EnvFamily
from workbench.envs.checks.scripts import unplayable
from workbench.envs.shared import opened
from workbench.envs.splits import split_of
from workbench.linting.evidence import EvaluationFacts, Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import Span, Task, Trajectory
from workbench.types.findings import NOTE, Checked, Finding, NotChecked, Place, shortened
from workbench.types.seeds import rng_at, seed_of

MODES = {"sampled": 1.0, "greedy": 0.0}  # by temperature
TIE = 1e-3  # nats between two tokens that may both be called the likeliest
SURPRISE = (
    20.0  # nats: sampled play is like greedy play by chance with a probability of exp(-SURPRISE)
)
FEW = 16  # so few different problems come again whatever is done
BASELINES = 4  # attempts of a baseline that are played once more


def check_evaluations(evidence: Evidence) -> Iterator[RuleResult]:
    first = evidence.evaluations[0]
    for evaluation in evidence.evaluations:
        yield from _same_baselines(first, evaluation)
        sides = {
            name: [t for group in side for t in group] for name, side in evaluation.sides.items()
        }
        if not sides:
            yield NotChecked(f"the attempts of evaluation {evaluation.name}")
            continue
        for name, side in evaluation.sides.items():
            yield Checked(len(sides[name]))
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
    """The declared number of held-out tasks, as they are drawn at their addresses, each as often as declared, under the
    chance of its address."""
    place, tasks = Place(step=evaluation.step), [group[0].task for group in side]
    row = next(
        (row for row in evaluation.report["rows"] if f"{row['policy']}-{row['mode']}" == name), None
    )
    if (
        row is None
        or row["n"] < len(tasks)
        or (evaluation.num_tasks and row["n"] != evaluation.num_tasks)
    ):
        yield Finding(
            f"{name}: {len(tasks)} tasks were played, the table has {row and row['n']} and the settings "
            f"ask for "
            f"{evaluation.num_tasks}",
            place,
        )
    wanted = (evaluation.attempts or len(side[0])) if name.endswith("sampled") else 1
    if any(len(group) != wanted for group in side):
        yield Finding(
            f"{name}: {len(side[0])} attempts at a task, and {wanted} were to be made", place
        )
    if family is not None and tasks[0].env == family.name:
        met = next((task for task in tasks if split_of(family, task) != "held-out"), None)
        if met is not None:
            yield Finding(
                f"{name}: task {met.id!r} is one of training, and evaluations play held-out ones",
                place,
            )
        expected = held_out(family, len(tasks), evaluation.first_task)
        pairs = enumerate(zip(tasks, expected or tasks))
        at = next((n for n, (a, b) in pairs if (a.id, a.payload) != (b.id, b.payload)), None)
        if met is None and at is not None:
            yield Finding(
                f"{name}: task {at} is {tasks[at].id!r}; at its address {expected[at].id!r} is drawn, in "
                f"every "
                "run and at every step",
                place,
            )
    twice = len(tasks) - len({content(task) for task in tasks})
    if twice and (
        family is None
        or len({*map(content, held_out(family, len(tasks), evaluation.first_task))}) == len(tasks)
    ):
        yield Finding(f"{name}: {twice} of {len(tasks)} tasks stand twice", place)
    if evaluation.seed is None:
        return
    for t in (t for group in side for t in group):
        if t.dynamics_seed != seed_of(
            evaluation.seed, "evaluation", "dynamics", t.task.id, t.attempt
        ):
            yield Finding(
                f"{name}: attempt {t.attempt} at {t.task.id!r} met the dynamics seed {t.dynamics_seed}, "
                f"which is "
                f"not that of evaluation seed {evaluation.seed}: another chance than the other sides'",
                place,
            )
            return


def held_out(family: EnvFamily, count: int, first: int = 0) -> list[Task]:
    """`count` held-out tasks by their addresses, after the `first` ones; a problem that was drawn before is passed
    over, a hundred times in a row at most. A data set says itself which rows come."""
    if hasattr(family, "task_seeds"):
        return [family.task(seed) for seed in family.task_seeds("held-out", 0, first + count, 0)][
            first:
        ]
    found: list[Task] = []
    seen: set[str] = set()
    index = repeats = 0
    while len(found) < first + count:
        task = next(
            task
            for draw in range(10_000)
            if split_of(family, task := family.task(seed_of("task", "held-out", 0, 0, index, draw)))
            == "held-out"
        )
        index, new = index + 1, content(task) not in seen
        repeats = 0 if new else repeats + 1
        if new or repeats > 100:
            seen.add(content(task))
            found.append(task)
    return found[first:]


def content(task: Task) -> str:
    return json.dumps(dict(task.payload), sort_keys=True, default=str)


# ------------------------------------------------------------------------------------------------ what was sampled


def _sampling(
    evaluation: EvaluationFacts, name: str, attempts: Sequence[Trajectory]
) -> Iterator[RuleResult]:
    place, mode = Place(step=evaluation.step), name.rpartition("-")[2]
    version = 0 if name.startswith("untrained") else evaluation.version
    for t, span in ((t, span) for t in attempts for span in sampled_spans(t)):
        said = span.sampling
        if (
            said is not None
            and said.engine != "scripted"
            and (said.temperature, said.top_p) != (MODES[mode], 1.0)
        ):
            yield Finding(
                f"{name}: turn {span.turn} of {t.task.id}/{t.attempt} was sampled at temperature "
                f"{said.temperature:g}, top-p {said.top_p:g}; {mode} play is {MODES[mode]:g} and 1",
                place,
            )
            return
        if None not in (version, span.policy_version) and span.policy_version != version:
            yield Finding(
                f"{name}: turn {span.turn} of {t.task.id}/{t.attempt} was sampled by version "
                f"{span.policy_version} of the weights, and the table is of version {version}",
                place,
            )
            return


def sampled_spans(trajectory: Trajectory) -> Iterator[Span]:
    return (
        span
        for segment in trajectory.segments
        for span in segment.spans
        if span.logprobs is not None
    )


def _greedy(evaluation: EvaluationFacts) -> Iterator[RuleResult]:
    """The two ways to play, from the same prompts: where they part, greedy play took the likelier token."""
    place = Place(step=evaluation.step)
    for name in {side.rpartition("-")[0] for side in evaluation.sides}:
        sampled, greedy = (evaluation.sides.get(f"{name}-{mode}") for mode in MODES)
        if not sampled or not greedy:
            continue
        yield Checked(len(greedy))
        alike, worse, better = 0.0, [], 0
        for several, one in zip(sampled, greedy):
            for t in several:
                chosen, drawn, same = _parting(one[0], t)
                alike += same if chosen is None else -math.inf if drawn is not None else 0.0
                if chosen is not None and drawn is not None:
                    better += chosen >= drawn - TIE
                    worse += [(t.task.id, chosen, drawn)] if chosen < drawn - TIE else []
        if worse:
            task, chosen, drawn = worse[0]
            yield Finding(
                f"{name}: greedy play took a token of probability {math.exp(chosen):.3g} at {task!r}, "
                f"where one of {math.exp(drawn):.3g} was sampled after the same tokens: it is not greedy "
                f"(so in {len(worse)} of {len(worse) + better} places where the two part)",
                place,
            )
        if alike > SURPRISE:
            yield Finding(
                f"{name}: sampled play is greedy play, token by token, at all {len(greedy)} tasks; that "
                f"happens "
                f"with probability exp(-{alike:.0f})",
                place,
            )


def _parting(greedy: Trajectory, sampled: Trajectory) -> tuple[float | None, float | None, float]:
    """Plain logprobs of the two tokens at which the first turns part, None where they do not; and -logprob of what is
    the same, as it was sampled."""
    spans = [next(sampled_spans(t), None) for t in (greedy, sampled)]
    if None in spans or greedy.task.id != sampled.task.id:
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
    """Random play and the solver, a few attempts once more: as the address says, in environments of their own."""
    family, evaluation = evidence.family, evidence.evaluations[0]
    rows = {
        row["policy"]: row
        for row in evaluation.report.get("rows", ())
        if row["policy"] in ("random", "solver")
    }
    if family is None or evaluation.seed is None or unplayable(family):
        yield NotChecked("random play and the solver, once more")
        return
    for name, row in rows.items():
        act = getattr(family, f"{name}_action", None)
        if act is None or row.get("success") is None:
            continue
        for task, share in zip(held_out(family, BASELINES, evaluation.first_task), row["by_task"]):
            numbers = range(row.get("attempts", 1))
            won = sum(
                played_success(family, task, act, evaluation.seed, name, number)
                for number in numbers
            )
            yield Checked(len(numbers))
            if not math.isclose(won / len(numbers), share):
                yield Finding(
                    f"{name} play at {task.id!r}, under the chance of the evaluation: the table says "
                    f"{share:g}, and "
                    f"played once more it is {won / len(numbers):g}",
                    Place(step=evaluation.step),
                )
                break


def played_success(
    family: EnvFamily, task: Task, act: Any, seed: int, name: str, number: int
) -> bool:
    """One attempt of a baseline; one that breaks is no success."""
    rng, won = rng_at(seed, "baseline", name, task.id, *([number] if number else [])), False
    try:
        with opened(family) as env:
            env.reset(task, seed_of(seed, "evaluation", "dynamics", task.id, number))
            for _ in range(family.max_turns):
                result = env.step(act(env, rng))
                won = result.info.get("success") is True
                if result.terminated or result.truncated:
                    break
    except Exception:  # anybody's environment
        return False
    return won


def _met_in_training(evidence: Evidence) -> Iterator[RuleResult]:
    """A held-out problem is none of training, by what stands in it, whatever it is called there."""
    trained = {problem: row.step for row in reversed(evidence.steps) for problem in row.problems}
    sides = [
        (evaluation, side)
        for evaluation in evidence.evaluations
        for side in evaluation.sides.values()
    ]
    if not trained or not sides:
        return
    held = {
        problem_of(group[0]): (evaluation, group[0].task)
        for evaluation, side in sides
        for group in side
    }
    yield Checked(len(held))
    met = [problem for problem in held if problem in trained]
    if met:
        evaluation, task = held[met[0]]
        few = len(held.keys() | trained.keys()) <= FEW
        yield Finding(
            f"{len(met)} of {len(held)} problems of the evaluations were met in training, the first, "
            f"{shortened(task.id)}, in step {trained[met[0]]}"
            + ": the family has few problems"
            * few,
            Place(step=evaluation.step),
            NOTE if few else "error",
            len(met),
        )


def problem_of(trajectory: Trajectory) -> str:
    """A problem by its content: what the policy is shown first and what the task holds, without case and white
    space, as a fingerprint."""
    shown = " ".join(message.text for message in trajectory.first_observation.messages)
    words = " ".join(f"{shown} {content(trajectory.task)}".lower().split())
    return blake2b(words.encode(), digest_size=8).hexdigest()


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
