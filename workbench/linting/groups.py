"""Groups: one task each (R7), and something to compare in them (R8).

A baseline over trajectories of different problems is a number like any other, and nothing crashes. Nor does one over a
single trajectory: every advantage is zero then, and the run is busy with nothing.

Axis letters: N trajectories · G groups · S segments · T tokens (flat).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.linting.alignment import differences_of_batch
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.plain.rewards import is_flat
from workbench.values import Trajectory
from workbench.values.errors import shortened
from workbench.values.sequences import first_difference

# ------------------------------------------------------------------------------------------------ R7


def _identity(evidence: Evidence) -> Iterator[RuleResult]:
    yield Checked(len(evidence.trajectories))
    seen: dict[str, int] = {}
    problems: dict[str, str] = {}
    for g, (index, group) in enumerate(evidence.numbered_groups):
        yield from _one_task(evidence, group, index)
        if group:
            task = group[0].task
            if task.id in seen:
                yield Finding(
                    f"groups {seen[task.id]} and {g} of this step are both task {task.id!r}: its trajectories "
                    "are compared in two halves",
                    evidence.place(index),
                )
            seen[task.id] = g
            problem = f"{task.env} {task.task_seed} {sorted(task.payload.items(), key=str)}"
            if problem in problems and problems[problem] != task.id:
                yield Finding(
                    f"tasks {problems[problem]!r} and {task.id!r} are the same problem under two names",
                    evidence.place(index),
                    NOTE,
                )
            problems[problem] = task.id
    if not evidence.by_program:
        yield from _prompts(evidence)
    if evidence.batch is not None:
        yield from differences_of_batch(
            evidence, ("names_N", "group_of_trajectory_N", "tag_N", "state_of_turn_K")
        )


def _one_task(evidence: Evidence, group: tuple[Trajectory, ...], index: int) -> Iterator[Finding]:
    if not group:
        return
    first = group[0]
    seen = next((t for t in group if t.first_observation.messages), first)
    trajectories: dict[int, int] = {}
    dynamics: dict[int, int] = {}
    for n, t in enumerate(group, start=index):
        for name in ("id", "env", "task_seed", "payload"):
            mine = getattr(t.task, name)
            theirs = getattr(first.task, name)
            if t.task is not first.task and mine != theirs:
                yield Finding(
                    f"{name} of its task is {shortened(mine)}, that of the group's first trajectory "
                    f"{shortened(theirs)}: a group is one problem",
                    evidence.place(n),
                )
        if t.first_observation.messages and t.first_observation != seen.first_observation:
            yield Finding(
                f"starts from another observation than attempt {seen.attempt}: {shortened(_text(t))} instead of "
                f"{shortened(_text(seen))}",
                evidence.place(n, segment=0),
            )
        if t.attempt in trajectories:
            yield Finding(
                f"attempt number {t.attempt} occurs twice in its group (trajectories {trajectories[t.attempt]} "
                f"and {n})",
                evidence.place(n),
            )
        trajectories[t.attempt] = n
        if t.dynamics_seed in dynamics and _seeds_are_known(evidence):
            yield Finding(
                f"the same dynamics seed as trajectory {dynamics[t.dynamics_seed]} of its group: the "
                "environment's chance is drawn once for both",
                evidence.place(n),
            )
        dynamics[t.dynamics_seed] = n


def _seeds_are_known(evidence: Evidence) -> bool:
    """Rollouts of other programs do not say how the environment's chance was drawn."""
    return evidence.collect is not None or any(t.dynamics_seed for t in evidence.trajectories)


def _prompts(evidence: Evidence) -> Iterator[Finding]:
    """What was sampled from first is the same, id by id, for all trajectories of a group."""
    known: dict[int, tuple[int, np.ndarray]] = {}
    for n, trajectory in enumerate(evidence.plain_trajectories.each):
        first = trajectory.segment == 0
        if not first.any():
            continue  # it failed before it had a prompt
        sampled = np.flatnonzero(trajectory.sampled & first)
        ids = trajectory.ids[: sampled[0]] if len(sampled) else trajectory.ids[first]
        other, theirs = known.setdefault(trajectory.group, (n, ids))
        if not np.array_equal(ids, theirs):
            at = first_difference(ids, theirs)
            yield Finding(
                f"its first prompt ({len(ids)} tokens) is not that of trajectory "
                f"{evidence.plain_trajectories.names_N[other]} in the same group ({len(theirs)} tokens): they differ "
                f"from token {at} on",
                evidence.place(n, segment=0, turn=0, position=at),
            )


def _text(trajectory: Trajectory) -> str:
    return " ".join(message.text for message in trajectory.first_observation.messages)


# ------------------------------------------------------------------------------------------------ R8


def _comparison(evidence: Evidence) -> Iterator[RuleResult]:
    trajectories = evidence.plain_trajectories
    algorithm = evidence.algorithm
    if trajectories is None:
        yield NotChecked("trajectories or a batch")
        return
    scored_G = np.bincount(
        trajectories.group_of_trajectory_N[trajectories.scored_N], minlength=trajectories.num_groups
    )
    yield Checked(trajectories.num_groups, "whether rewards differ")
    least = None if algorithm is None else int(getattr(algorithm, "min_group_size", 1))
    if least is None:
        yield NotChecked(
            "the algorithm, which says whether trajectories are compared", "groups of one"
        )
    elif least > 1:
        yield from _alone(
            evidence,
            np.bincount(trajectories.group_of_trajectory_N, minlength=trajectories.num_groups),
            scored_G,
        )
    flat = sum(
        is_flat(
            trajectories.reward_N[(trajectories.group_of_trajectory_N == g) & trajectories.scored_N]
        )
        for g in np.flatnonzero(scored_G > 1)
    )
    if flat and least != 1:
        many = int((scored_G > 1).sum())
        yield Finding(
            f"{flat} of {many} groups have zero variance ({flat / many:.0%}): all their trajectories earned the same, so a "
            "comparison of trajectories has nothing to say there",
            Place(step=evidence.step),
            NOTE,
            flat,
        )


def _alone(evidence: Evidence, size_G: np.ndarray, scored_G: np.ndarray) -> Iterator[Finding]:
    name = getattr(evidence.algorithm, "name", type(evidence.algorithm).__name__)
    place = Place(step=evidence.step)
    if size_G.max(initial=0) < 2:
        yield Finding(
            f"{name} compares trajectories of the same task, but each of the {len(size_G)} groups has a single "
            "trajectory: it has no baseline, and every advantage is zero",
            place,
            count=len(size_G),
        )
    elif scored_G.max(initial=0) < 2:
        yield Finding(
            "no task has two scored trajectories, so nothing can be compared in this step",
            place,
            NOTE,
            len(size_G),
        )
    elif single := int((scored_G == 1).sum()):
        yield Finding(
            f"{single} of {len(size_G)} groups have a single scored trajectory: nothing to compare it with",
            place,
            NOTE,
            single,
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R7",
        "a group is one task",
        means="trajectories are judged by what was earned at another problem, or with another start: easy problems are "
        "learned as good actions, hard ones as bad ones.",
        mend="group by task: the same task id, seed, payload and first observation, and an attempt number and a "
        "dynamics seed of its own for each trajectory; number groups once, where trajectories are collected.",
        needs=("groups",),
        check=_identity,
        threads=("Search-R1#88", "tinker-cookbook#771"),
    ),
    Rule(
        "R8",
        "groups have something to compare",
        means="a zero-variance group teaches nothing; a baseline over one trajectory makes every advantage zero.",
        mend="groups of one: collect at least 2 trajectories per task (train.group_size), or use an algorithm without a "
        "group baseline. Groups of which all earned the same: easier tasks where none is solved, harder ones where all "
        "are, a reward for parts, or a policy that solves some.",
        needs=(),
        check=_comparison,
        threads=("rllm#916", "PipelineRL#54", "DeepAnalyze#116", "trl#7068"),
    ),
)
