"""Groups: one task each (R7), and something to compare in them (R8).

A baseline over attempts at different problems is a number like any other, and nothing crashes. Nor does one over a
single attempt: every advantage is zero then, and the run is busy with nothing.

Axis letters: N trajectories · G groups · S segments · T tokens (flat).
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from workbench.linting.attempts import Attempts
from workbench.linting.credit import columns_of
from workbench.linting.credit_oracle import PER_ATTEMPT, kind_of
from workbench.linting.evidence import Evidence
from workbench.linting.filter_oracle import group_spread
from workbench.linting.rule import Rule, Said
from workbench.types import Trajectory
from workbench.types.findings import ERROR, NOTE, Finding, Looked, Missing, Place

# ------------------------------------------------------------------------------------------------ R7


def _identity(evidence: Evidence) -> Iterator[Said]:
    yield Looked(len(evidence.trajectories))
    seen: dict[str, int] = {}
    problems: dict[str, str] = {}
    index = 0
    for g, group in enumerate(evidence.groups):
        yield from _one_task(evidence, group, index)
        if group:
            task = group[0].task
            if task.id in seen:
                yield Finding(f"groups {seen[task.id]} and {g} of this step are both task {task.id!r}: its attempts "
                              "are compared in two halves", evidence.place(index))
            seen[task.id] = g
            problem = f"{task.env} {task.task_seed} {sorted(task.payload.items(), key=str)}"
            if problem in problems and problems[problem] != task.id:
                yield Finding(f"tasks {problems[problem]!r} and {task.id!r} are the same problem under two names",
                              evidence.place(index), NOTE)
            problems[problem] = task.id
        index += len(group)
    yield from _prompts(evidence)
    if evidence.batch is not None:
        yield from _batch_agrees(evidence)


def _one_task(evidence: Evidence, group: tuple[Trajectory, ...], index: int) -> Iterator[Finding]:
    if not group:
        return
    first = group[0]
    seen = next((t for t in group if t.first_observation.messages), first)
    attempts: dict[int, int] = {}
    dynamics: dict[int, int] = {}
    for n, t in enumerate(group, start=index):
        for name in ("id", "env", "task_seed", "payload"):
            mine, theirs = getattr(t.task, name), getattr(first.task, name)
            if t.task is not first.task and mine != theirs:
                yield Finding(f"{name} of its task is {_short(mine)}, that of the group's first attempt "
                              f"{_short(theirs)}: a group is one problem", evidence.place(n))
        if t.first_observation.messages and t.first_observation != seen.first_observation:
            yield Finding(f"starts from another observation than attempt {seen.attempt}: {_short(_text(t))} instead of "
                          f"{_short(_text(seen))}", evidence.place(n, segment=0))
        if t.attempt in attempts:
            yield Finding(f"attempt number {t.attempt} stands twice in its group (trajectories {attempts[t.attempt]} "
                          f"and {n})", evidence.place(n))
        attempts[t.attempt] = n
        if t.dynamics_seed in dynamics and _seeds_are_known(evidence):
            yield Finding(f"the same dynamics seed as trajectory {dynamics[t.dynamics_seed]} of its group: the "
                          "environment's chance is drawn once for both", evidence.place(n))
        dynamics[t.dynamics_seed] = n


def _seeds_are_known(evidence: Evidence) -> bool:
    """Rollouts of other programs do not say how the environment's chance was drawn."""
    return evidence.collect is not None or any(t.dynamics_seed for t in evidence.trajectories)


def _prompts(evidence: Evidence) -> Iterator[Finding]:
    """What was sampled from first is the same, id by id, for all attempts of a group."""
    attempts = evidence.attempts
    first_S = np.searchsorted(attempts.row_S, np.arange(attempts.num_trajectories))
    begin_S = np.searchsorted(attempts.segment_T, np.arange(len(attempts.row_S) + 1))
    known: dict[int, tuple[int, np.ndarray]] = {}
    for n in range(attempts.num_trajectories):
        s = int(first_S[n])
        if s == len(attempts.row_S) or attempts.row_S[s] != n:
            continue  # it failed before it had a prompt
        ids = attempts.token_id_T[begin_S[s]:begin_S[s + 1]][~attempts.response_T[begin_S[s]:begin_S[s + 1]]]
        other, theirs = known.setdefault(int(attempts.group_N[n]), (n, ids))
        if len(ids) != len(theirs) or (ids != theirs).any():
            shared = min(len(ids), len(theirs))
            at = int(np.append(ids[:shared] != theirs[:shared], True).argmax())
            yield Finding(f"its first prompt ({len(ids)} tokens) is not that of trajectory {attempts.names_N[other]} "
                          f"in the same group ({len(theirs)} tokens): they differ from token {at} on",
                          evidence.place(n, segment=0, turn=0, position=at))


def _batch_agrees(evidence: Evidence) -> Iterator[Said]:
    batch, attempts = evidence.batch, evidence.attempts
    if batch.num_trajectories != attempts.num_trajectories:
        yield Finding(f"the batch has {batch.num_trajectories} trajectories, the groups {attempts.num_trajectories}")
        return
    if batch.names_N != attempts.names_N:
        n = next(n for n, pair in enumerate(zip(batch.names_N, attempts.names_N)) if pair[0] != pair[1])
        yield Finding(f"trajectory {n} of the batch is {batch.names_N[n]!r}, of the groups {attempts.names_N[n]!r}",
                      evidence.place(n))
    for name, theirs, mine, what in (
        ("group_of_trajectory_N", batch.group_of_trajectory_N, attempts.group_N, "group"),
        ("tag_N", batch.tag_N, attempts.tag_N, "kind of task"),
        ("state_of_turn_K", batch.state_of_turn_K, attempts.state_K, "state of a group's turns"),
    ):
        yield from _same_parts(evidence, name, theirs.numpy(), mine, what)


def _same_parts(evidence: Evidence, name: str, theirs: np.ndarray, mine: np.ndarray, what: str) -> Iterator[Finding]:
    """Whether two numberings put the same things together; -1: unknown, in both."""
    attempts = evidence.attempts
    if len(theirs) != len(mine):
        yield Finding(f"{name} of the batch has {len(theirs)} entries for {len(mine)}")
        return
    by_mine: dict[int, int] = {-1: -1}
    by_theirs: dict[int, int] = {-1: -1}
    for i, (a, b) in enumerate(zip(mine.tolist(), theirs.tolist())):
        if by_mine.setdefault(a, b) != b or by_theirs.setdefault(b, a) != a:
            row = i if name.endswith("_N") else int(np.searchsorted(attempts.turn_offsets_N1, i, side="right")) - 1
            turn = None if name.endswith("_N") else int(i - attempts.turn_offsets_N1[row])
            yield Finding(f"{name} of the batch is {b}, which is not the same {what} as in the trajectories",
                          attempts.place_of_row(row, evidence.step, turn))
            return


def _text(trajectory: Trajectory) -> str:
    return " ".join(message.text for message in trajectory.first_observation.messages)


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else words[:57] + "..."


# ------------------------------------------------------------------------------------------------ R8


def _comparison(evidence: Evidence) -> Iterator[Said]:
    attempts, algorithm = evidence.attempts, evidence.algorithm
    if attempts is None:
        yield Missing("trajectories or a batch")
        return
    scored_G = np.bincount(attempts.group_N[attempts.scored_N], minlength=attempts.num_groups)
    size_G = np.bincount(attempts.group_N, minlength=attempts.num_groups)
    yield Looked(attempts.num_groups)
    least = _least_attempts(algorithm) if algorithm is not None else None
    if least is None:
        yield Missing("the algorithm, which says whether attempts are compared")
    elif least > 1:
        yield from _alone(evidence, attempts, size_G, scored_G)
    flat_G = np.zeros(attempts.num_groups, bool)
    for g in np.flatnonzero(scored_G > 1):
        flat_G[g] = group_spread(attempts.reward_N[(attempts.group_N == g) & attempts.scored_N]).flat
    if flat_G.any() and least != 1:
        many = int((scored_G > 1).sum())
        yield Finding(f"{int(flat_G.sum())} of {many} groups are flat ({flat_G.sum() / many:.0%}): all their attempts "
                      "earned the same, so a comparison of attempts has nothing to say there",
                      Place(step=evidence.step), NOTE, int(flat_G.sum()))
    yield from _baselines(evidence, attempts, flat_G)


def _least_attempts(algorithm: Any) -> int:
    """Attempts per task that it takes before any of them is credited."""
    kind = kind_of(algorithm)
    if kind == "Reinforce":
        return 2 if algorithm.baseline == "others" else 1
    if kind is not None:
        return 2 if kind in (*PER_ATTEMPT, "GiGPO", "StarPO_S") else 1
    return int(getattr(algorithm, "min_group_size", 1))


def _alone(evidence: Evidence, attempts: Attempts, size_G: np.ndarray, scored_G: np.ndarray) -> Iterator[Finding]:
    name = getattr(evidence.algorithm, "name", type(evidence.algorithm).__name__)
    place = Place(step=evidence.step)
    if size_G.max(initial=0) < 2:
        yield Finding(f"{name} compares attempts at the same task, but each of the {len(size_G)} groups has a single "
                      "attempt: it has no baseline, and every advantage is zero", place, count=len(size_G))
    elif scored_G.max(initial=0) < 2:
        yield Finding("no task has two scored attempts, so nothing can be compared in this step", place, NOTE,
                      len(size_G))
    elif single := int((scored_G == 1).sum()):
        yield Finding(f"{single} of {len(size_G)} groups have a single scored attempt: nothing to compare it with",
                      place, NOTE, single)


def _baselines(evidence: Evidence, attempts: Attempts, flat_G: np.ndarray) -> Iterator[Said]:
    """Where an attempt has one advantage by comparison with its group: nothing in a flat group, zero at the mean of the
    others and itself, more for who earned more."""
    algorithm, columns = evidence.algorithm, columns_of(evidence)
    kind = None if algorithm is None else kind_of(algorithm)
    if kind not in PER_ATTEMPT or columns is None or len(columns["advantage"]) != attempts.num_tokens:
        return
    if algorithm.kl_coef and algorithm.kl_in == "reward":
        return  # what is compared is the reward less a price per token
    linear = kind != "ReinforcePPBaseline" and algorithm.rewards.normalize != "asym_clip"
    at = np.flatnonzero(attempts.sampled_T & (columns["weight"] != 0))
    rows, first, which = np.unique(attempts.row_T[at], return_index=True, return_inverse=True)
    advantage_N = np.full(attempts.num_trajectories, np.nan)
    advantage_N[rows] = columns["advantage"][at[first]]
    # Tokens of one attempt that are credited differently are R6's matter: a comparison cannot be read off them.
    apart = np.abs(columns["advantage"][at] - advantage_N[attempts.row_T[at]]) > 1e-9
    torn_G = np.zeros(attempts.num_groups, bool)
    torn_G[attempts.group_N[rows[which[apart]]]] = True
    for g in range(attempts.num_groups):
        own = np.flatnonzero((attempts.group_N == g) & ~np.isnan(advantage_N))
        if flat_G[g]:
            if len(own) and advantage_N[own].any():
                worst = int(own[np.abs(advantage_N[own]).argmax()])
                yield Finding(f"advantage {advantage_N[worst]:.6g}, though all attempts of its group earned the same "
                              "up to rounding: the rounding is what is trained on",
                              attempts.place_of_row(worst, evidence.step), ERROR, len(own))
        elif torn_G[g] or len(own) < 2 or not linear:
            continue
        elif len(own) == int(((attempts.group_N == g) & attempts.scored_N).sum()):  # all that the mean is over
            yield from _mean_is_zero(evidence, attempts, own, advantage_N)


def _mean_is_zero(evidence: Evidence, attempts: Attempts, own: np.ndarray, advantage_N: np.ndarray) -> Iterator[Said]:
    reward, advantage = attempts.reward_N[own], advantage_N[own]
    low, high = int(reward.argmin()), int(reward.argmax())
    spread = reward[high] - reward[low]
    slope = (advantage[high] - advantage[low]) / spread
    place = attempts.place_of_row(own[high], evidence.step)
    fitted = advantage[low] + slope * (reward - reward[low])
    if np.abs(fitted - advantage).max() > 1e-6 * (np.ptp(advantage) + 1e-6):
        return  # no comparison with one number at all: R6 says what each should have
    if not slope > 0:
        yield Finding(f"earned {reward[high]:.6g} and is credited with {advantage[high]:.6g}; its sibling "
                      f"{attempts.names_N[own[low]]} earned {reward[low]:.6g} and is credited with "
                      f"{advantage[low]:.6g}", place)
        return
    baseline = reward[low] - advantage[low] / slope
    if abs(baseline - reward.mean()) > 1e-6 * max(spread, 1e-6 * float(np.abs(reward).max())):
        source = own[np.isclose(reward, baseline, rtol=0, atol=1e-6 * spread)]
        words = f", which is what {attempts.names_N[source[0]]} alone earned" if len(source) else ""
        yield Finding(f"its group is compared with {baseline:.6g}{words}; the mean of its {len(own)} attempts is "
                      f"{reward.mean():.6g}", place, count=len(own))


RULES: tuple[Rule, ...] = (
    Rule(
        "R7", "a group is one task",
        means="attempts are judged by what was earned at another problem, or with another start: easy problems are "
              "learned as good actions, hard ones as bad ones.",
        mend="group by task: the same task id, seed, payload and first observation, and an attempt number and a "
             "dynamics seed of its own for each attempt; number groups once, where attempts are collected.",
        needs=("groups",), check=_identity,
        threads=("Search-R1#88", "tinker-cookbook#771"),
    ),
    Rule(
        "R8", "groups have something to compare",
        means="a flat group teaches nothing; a baseline over one attempt makes every advantage zero; one taken "
              "from a single attempt favours whoever came first; a spread of rounding size, divided by itself, is "
              "trained on like a real difference.",
        mend="collect at least 2 attempts per task (train.group_size), or use an algorithm without a group baseline; "
             "take the mean over all scored attempts of the group; treat differences of rounding size as none.",
        needs=(), check=_comparison,
        threads=("rllm#916", "PipelineRL#54", "DeepAnalyze#116", "trl#7068"),
    ),
)
