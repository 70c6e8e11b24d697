"""A whole run (R21): no trajectory is learned from twice, the weights that sample are those that were last updated, no
step is claimed that taught nothing, and its curves say what its trajectories say.

A resume that repeats a batch, samples from the untrained weights or ends after no step at all leaves a curve that looks
like any other. What is compared with each other here was written down by different hands: sampled tokens, the versions
that the engine put on them, and the metrics line that commits a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked, Place
from workbench.learn.config import SLOWER
from workbench.linting.evidence import EvaluationFacts, Evidence, RunClaims, StepFacts
from workbench.linting.facts import num_sampled, payment, problem_of, sampled_spans
from workbench.linting.rule import Rule, RuleResult
from workbench.run.alarm_events import alarm_events
from workbench.run.store import Run, step_folders
from workbench.values import Group, Trajectory

CLOSE = 1e-9  # relative: metrics and their recomputation are sums of the same float64 numbers


# ------------------------------------------------------------------------------------------------ what a step leaves


def step_facts(run: Run, last: int | None = None) -> tuple[StepFacts, ...]:
    """Those of all committed steps of a run folder, or of the `last` of them."""
    facts = []
    done = alarm_events(run.events())
    for step in run.steps()[-last:] if last else run.steps():
        before = step - 1  # what is changed after a step is in force from the next one on
        lr = run.setting("learner.lr", float, int, step=before)
        warmup = run.setting("learner.warmup_updates", int, step=before)
        facts.append(
            facts_of_step(
                step,
                run.groups(step),
                run.metrics_line(step),
                lr=lr,
                warmup=warmup,
                staleness=run.setting("train", dict, step=before).get("staleness", 0),
                slowed=sum(at < step for at in done),
                restored=before in done and done[before].restored is not None,
            )
        )
    return tuple(facts)


def run_claims(run: Run) -> RunClaims:
    """The numbers that a run folder states beside its steps: how many were asked for, what was evaluated and saved."""
    numbers = [
        int(row["step"]) for row in run.evaluations().values() if isinstance(row.get("step"), int)
    ]
    saved = step_folders(run.path / "checkpoints")
    return RunClaims(run.setting("train.steps", int), tuple(sorted(numbers)), tuple(saved))


def evaluation_facts(run: Run) -> tuple[EvaluationFacts, ...]:
    """The evaluations of a run in the order of their steps, with the settings that were in force."""
    evaluations = []
    for name, report in run.evaluations().items():
        step = report.get("step")
        if not isinstance(step, int) or not report.get("rows"):
            continue
        asked = run.setting("evaluation", dict, step=step)
        seed, tasks = (
            run.setting(f"evaluation.{name}", int, step=step) for name in ("seed", "num_tasks")
        )
        version = 0 if step == 0 else None
        if step in run.steps():
            version = run.metrics_line(step).get("policy_version")
        sides = {side: tuple(map(tuple, groups)) for side, groups in run.evaluated(name).items()}
        evaluations.append(
            EvaluationFacts(
                name,
                step,
                report,
                sides,
                version,
                seed,
                tasks,
                asked.get("attempts", 1),
                asked.get("first_task", 0),
            )
        )
    return tuple(sorted(evaluations, key=lambda evaluation: evaluation.step))


def facts_of_step(
    step: int,
    groups: Sequence[Group],
    metrics: Mapping[str, Any],
    *,
    lr: float | None = None,
    warmup: int = 0,
    staleness: int = 0,
    slowed: int = 0,
    restored: bool = False,
) -> StepFacts:
    """`lr`, `warmup`, `staleness`: the settings that were in force; None: not known, and not looked at. `slowed`, `restored`: as
    `StepFacts` has them."""
    trajectories = list(chain.from_iterable(groups))
    attempts = tuple(_fingerprint(t) for t in trajectories if num_sampled(t))
    versions: set[int | None] = set()
    for t in trajectories:
        versions.update(span.policy_version for span in sampled_spans(t) if len(span.token_ids))
    whole = blake2b("".join(attempts).encode(), digest_size=16).hexdigest()
    return StepFacts(
        step,
        whole,
        tuple(sorted(v for v in versions if v is not None)),
        dict(metrics),
        attempts,
        _recomputed(trajectories),
        lr,
        warmup,
        staleness,
        slowed,
        restored,
        tuple(f"{t.task.id}|{t.dynamics_seed}" for t in trajectories),
        tuple({problem_of(group[0]) for group in groups}),
        tuple(filter(None, map(payment, trajectories))),
    )


def _fingerprint(trajectory: Trajectory) -> str:
    """A digest of the task, the dynamics seed and the sampled tokens of a trajectory. Two trajectories never have the same: dynamics
    seeds are addressed by step, task and trajectory."""
    digest = blake2b(f"{trajectory.task.id}|{trajectory.dynamics_seed}|".encode(), digest_size=12)
    for span in sampled_spans(trajectory):
        digest.update(span.token_ids.tobytes() + span.logprobs.tobytes())
    return digest.hexdigest()


def _recomputed(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Numbers of the metrics line, anew from turns and spans."""
    rewards: list[float] = []
    for t in trajectories:
        paid = [turn.reward for turn in t.turns]
        if t.scored and not t.stop_reason.is_fault and None not in paid:
            rewards.append(math.fsum(paid) + (t.outcome or 0.0))
    count = len(trajectories)
    known = [t.success for t in trajectories]
    numbers = {
        "turns": sum(len(t.turns) for t in trajectories) / max(count, 1),
        "unscored": float(count - len(rewards)),
        "sampled_tokens": sum(map(num_sampled, trajectories)) / max(count, 1),
        "segments": sum(len(t.segments) for t in trajectories) / max(count, 1),
    }
    if rewards:
        mean = math.fsum(rewards) / len(rewards)
        numbers["reward_mean"] = mean
        numbers["reward_std"] = math.sqrt(
            math.fsum((r - mean) ** 2 for r in rewards) / len(rewards)
        )
    if any(success is not None for success in known):
        numbers["success"] = sum(success is True for success in known) / count
    for t in trajectories:
        name = f"stop_{t.stop_reason.value}"
        numbers[name] = numbers.get(name, 0.0) + 1 / count
    return numbers


# ------------------------------------------------------------------------------------------------ R21


def _check(evidence: Evidence) -> Iterator[RuleResult]:
    steps = evidence.steps
    yield Checked(len(steps), "the order, data, updates and metrics of steps")
    yield from _order(steps)
    yield from _learned_twice(steps)
    before: StepFacts | None = None
    by_step = {row.step: row for row in steps}
    for now in steps:
        known = before if before is not None and before.step + 1 == now.step else None
        if (sampler := now.step - 1 - now.staleness) in by_step or sampler <= 0:
            yield from _versions(by_step.get(sampler), now)
        if known is not None or now.step == 1:
            yield from _updates(known, now)
            yield from _learning_rate(known, now)
        if known is not None:
            yield from _other_tasks(known, now)
        yield from _metrics(now)
        before = now
    made = [row.metrics["updates"] for row in steps if "updates" in row.metrics]
    if made and not any(made):
        yield Finding(
            f"in {len(made)} steps no update was ever made: the policy is the one that it began with",
            severity=NOTE,
        )
    if any(not row.versions for row in steps):
        yield NotChecked(
            "the versions of the weights that sampled each token", "which weights sampled"
        )
    if evidence.claims is None:
        yield NotChecked(
            "what the run says of itself: the steps it was asked for, evaluations, checkpoints",
            "what a run claims beyond its steps",
        )
    else:
        yield from _claims(steps, evidence.claims)


def _order(steps: Sequence[StepFacts]) -> Iterator[RuleResult]:
    for one, other in zip(steps, steps[1:]):
        if other.step != one.step + 1:
            yield Finding(
                f"step {other.step} was committed after step {one.step}; steps are counted one by one",
                Place(step=other.step),
            )


def _learned_twice(steps: Sequence[StepFacts]) -> Iterator[RuleResult]:
    """Trajectories that were learned from in two steps; where steps hold no trajectories, whole batches. Under weights that
    have moved, the same draws give other tokens: what comes again then are tasks and dynamics seeds."""
    seen: dict[str, int] = {}
    known: dict[str, int] = {}
    for row in steps:
        mine = row.attempts or (row.fingerprint,)
        again = [name for name in mine if name in seen]
        if again:
            what = f"{len(again)} of its {len(mine)} trajectories" if row.attempts else "its batch"
            yield Finding(
                f"{what} were learned from before, in step {seen[again[0]]}: the same task, the same chance, "
                "the same sampled tokens",
                Place(step=row.step),
                count=len(again),
            )
        met = [seed for seed in row.seeds if seed in known]
        if met and not again:
            yield Finding(
                f"{len(met)} of its {len(row.seeds)} trajectories met the task and the chance of a trajectory of "
                f"step {known[met[0]]}: dynamics seeds are addressed by step, so its tasks were drawn "
                "at that step's address",
                Place(step=row.step),
                count=len(met),
            )
        known |= {seed: row.step for seed in row.seeds if seed not in known}
        inside = len(mine) - len(set(mine))
        if inside:
            yield Finding(
                f"{inside} of its {len(mine)} trajectories occur in it twice",
                Place(step=row.step),
                count=inside,
            )
        seen |= {name: row.step for name in mine if name not in seen}


def _versions(before: StepFacts | None, now: StepFacts) -> Iterator[RuleResult]:
    """Tokens are sampled by the weights that the step `before` left: with sampling ahead, the one before the last."""
    left = 0 if before is None else before.metrics.get("policy_version")
    if left is None or not now.versions:
        return
    left += now.restored  # an earlier state, under a number of its own
    if now.versions != (int(left),) and not (now.staleness and min(now.versions) > left):
        old = [v for v in now.versions if v != left]
        kind = "weights that did not exist yet"
        if set(old) == {0} and left:
            kind = "the untrained weights"
        elif max(old) < left:
            kind = "older weights"
        step = f"step {now.step - 1 - now.staleness}" if now.staleness else "the step before"
        versions = " and ".join(map(str, now.versions))
        yield Finding(
            f"tokens were sampled by version {versions} of the weights, and {step} left "
            f"version {int(left)}: {kind}",
            Place(step=now.step),
        )


def _updates(before: StepFacts | None, now: StepFacts) -> Iterator[RuleResult]:
    """The version counts the updates; a step without one says why."""
    version = now.metrics.get("policy_version")
    made = now.metrics.get("updates")
    earlier = 0 if before is None else before.metrics.get("policy_version")
    if version is None or made is None or earlier is None:
        return
    if version != earlier + now.restored + made:
        yield Finding(
            f"it made {made:g} updates, but the version of the weights went from {earlier:g} to {version:g}",
            Place(step=now.step),
        )
    if made == 0 and _left_out(before, now) == 0:
        yield Finding(
            "no update was made and none was left out: nothing was trained, and nothing says why",
            Place(step=now.step),
        )


def _left_out(before: StepFacts | None, now: StepFacts) -> float:
    """Updates that did not touch the weights: nothing to learn, or numbers that were not finite."""
    names = ("empty_updates", "bad_updates")
    if not any(name in now.metrics for name in names):
        return 0.0
    return sum(
        now.metrics.get(name, 0) - (before.metrics.get(name, 0) if before is not None else 0)
        for name in names
    )


def _other_tasks(before: StepFacts, now: StepFacts) -> Iterator[RuleResult]:
    """Tasks are drawn anew in every step; where there are few, all of them may come again."""
    tasks = _tasks_of(now)
    if len(tasks) >= 4 and tasks == _tasks_of(before):
        yield Finding(
            f"it has exactly the tasks of the step before ({len(tasks)} of them): where the environment has "
            "more, the draw does not go by the step",
            Place(step=now.step),
            severity=NOTE,
        )


def _tasks_of(row: StepFacts) -> set[str]:
    return {seed.rpartition("|")[0] for seed in row.seeds}


def _learning_rate(before: StepFacts | None, now: StepFacts) -> Iterator[RuleResult]:
    """lr * min(1, (n + 1) / warm-up) at the update after n, whatever was resumed in between."""
    reported = now.metrics.get("lr")
    made = int(now.metrics.get("updates", 0))
    first = 0 if before is None else before.metrics.get("policy_version")
    if now.lr is None or reported is None or first is None or not made or _left_out(before, now):
        return
    lr = now.lr * SLOWER**now.slowed
    first = first + now.restored
    rates = [
        lr * (min(1.0, (first + k + 1) / now.warmup) if now.warmup else 1.0) for k in range(made)
    ]
    expected = math.fsum(rates) / made
    if not math.isclose(reported, expected, rel_tol=1e-6):
        yield Finding(
            f"the learning rate was {reported:g}, and after {first:g} updates it is {expected:g} "
            f"(lr {lr:g}, warm-up over {now.warmup} updates)",
            Place(step=now.step),
        )


def _metrics(now: StepFacts) -> Iterator[RuleResult]:
    for name, value in (now.recomputed or {}).items():
        reported = now.metrics.get(name)
        if reported is None or not math.isclose(reported, value, rel_tol=CLOSE, abs_tol=CLOSE):
            yield Finding(
                f"its metrics say {name} = {reported if reported is None else f'{reported:.6g}'}, and its trajectories "
                f"say {value:.6g}",
                Place(step=now.step),
            )
            return


def _claims(steps: Sequence[StepFacts], claims: RunClaims) -> Iterator[RuleResult]:
    """What was evaluated and saved was trained first."""
    last = max((row.step for row in steps), default=0)
    for what, numbers in (("an evaluation", claims.evaluated), ("a checkpoint", claims.saved)):
        beyond = [number for number in numbers if number > last]
        if beyond:
            yield Finding(
                f"there is {what} of step {beyond[0]}, but only {last} steps were trained"
                + (
                    f" of the {claims.asked} that were asked for"
                    if beyond[0] >= claims.asked
                    else ""
                )
            )
    if last > claims.asked:
        yield Finding(
            f"{last} steps were trained, and {claims.asked} were asked for", severity=NOTE
        )


RULES: tuple[Rule, ...] = (
    Rule(
        "R21",
        "a run continues from its last committed state",
        means="The run is not the training that its curves show: data counts twice, weights that sample and weights "
        "that are trained have diverged, or steps are claimed that taught nothing.",
        mend="Compare with the run's events where it was resumed; go on from the checkpoint before the step named.",
        needs=("steps",),
        check=_check,
        when="run",
        threads=("tinker-cookbook#935", "verl#7401", "trl#5293", "trl#5312", "verl#5725"),
    ),
)
