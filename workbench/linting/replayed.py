"""Environments: what they answered can be had again (R20).

A recorded attempt is played once more, its actions in its order, in a fresh environment. Where replies, rewards or ends
come out otherwise, what is trained on is not what happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from workbench.envs.base import EnvFamily
from workbench.envs.checks.scripts import Script, played_alone, unplayable
from workbench.envs.scoring import scores_after
from workbench.envs.shared import opened
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.types import StepResult, StopReason, Trajectory
from workbench.types.findings import NOTE, Checked, Finding, NotChecked

ENOUGH_S = 0.02  # of replaying in a step, after which no further attempt is begun: environments may be slow


def _replayed(evidence: Evidence) -> Iterator[RuleResult]:
    family = evidence.family
    if (why := unplayable(family)) is not None:
        yield NotChecked(why)
        return
    if evidence.collect is not None and evidence.collect.env_runner != "inline":
        yield NotChecked(
            "environments that are pure and fast (collect.env_runner = 'inline'), to be stepped once more"
        )
        return
    yield from _seeds(evidence)
    chosen = _sample(len(evidence.trajectories), evidence.samples, evidence.step)
    others = [
        evidence.trajectories[n].task.env
        for n in chosen
        if evidence.trajectories[n].task.env != family.name
    ]
    if others:
        yield NotChecked(f"the environment {others[0]}")
    began = time.monotonic()
    for n in chosen:
        trajectory = evidence.trajectories[n]
        if trajectory.task.env != family.name:
            continue
        if evidence.samples is not None and time.monotonic() - began > ENOUGH_S:
            return
        yield Checked(len(trajectory.turns))
        found = _differs(family, trajectory)
        if found is not None:
            turn, what, severity = found
            script = Script(
                trajectory.task,
                trajectory.dynamics_seed,
                tuple(turn.text for turn in trajectory.turns),
            )
            if severity != NOTE and played_alone(family, script) != played_alone(family, script):
                what, severity = (
                    (
                        f"replayed twice, this attempt does not go the same way twice, so what is recorded "
                        f"cannot be compared ({what}): declare deterministic = False in its family"
                    ),
                    NOTE,
                )
            place = evidence.place(n) if turn is None else evidence.place(n, turn=turn)
            yield Finding(what, place, severity)


def _seeds(evidence: Evidence) -> Iterator[RuleResult]:
    """Attempts at a task meet chances of their own: their dynamics seeds differ."""
    for first, group in evidence.numbered_groups:
        seeds = [t.dynamics_seed for t in group]
        if len(set(seeds)) < len(seeds):
            n = next(k for k, seed in enumerate(seeds) if seed in seeds[:k])
            yield Finding(
                f"{len(seeds) - len(set(seeds))} of {len(seeds)} attempts at this task have the dynamics "
                f"seed of another one ({seeds[n]}): chance is the same for both",
                evidence.place(first + n),
            )


def _sample(count: int, samples: int | None, step: int | None) -> list[int]:
    """Which of so many attempts: spread over all groups, others in every step."""
    if samples is None or samples >= count or step is None:
        return list(range(count))
    stride = count // samples
    return [(k * stride + step % stride) for k in range(samples)]


def _differs(family: EnvFamily, trajectory: Trajectory) -> tuple[int | None, str, str] | None:
    """(turn, in words, severity) of the first thing that a fresh environment answers otherwise; None: nothing."""
    if not trajectory.first_observation.messages:
        return None  # it failed before it began
    with opened(family) as env:
        return _differs_in(env, family, trajectory)


def _differs_in(
    env: Any, family: EnvFamily, trajectory: Trajectory
) -> tuple[int | None, str, str] | None:
    try:
        observation = env.reset(trajectory.task, trajectory.dynamics_seed)
    except Exception as error:
        return None, f"this task cannot be begun again: {type(error).__name__}: {error}", "error"
    if observation != trajectory.first_observation:
        return (
            None,
            (
                f"a fresh environment opens this task with {_words(observation.messages)}, and recorded is "
                f"{_words(trajectory.first_observation.messages)}"
            ),
            "error",
        )
    result = None
    for k, turn in enumerate(trajectory.turns):
        if result is not None and (result.terminated or result.truncated):
            more = len(trajectory.turns) - k
            return (
                k,
                f"the attempt was over after turn {k - 1}, and {more} more are recorded",
                "error",
            )
        key = env.state_key() if hasattr(env, "state_key") else None
        if key != turn.state_key:
            return (
                k,
                f"the action was taken in state {turn.state_key!r} as recorded, and in {key!r} when replayed",
                "error",
            )
        if turn.privileged is not None and (told := env.privileged()) != turn.privileged:
            return (
                k,
                f"a critic was told {turn.privileged!r} as recorded, and {told!r} when replayed",
                "error",
            )
        last = k + 1 == len(trajectory.turns)
        unanswered = (
            last and trajectory.stop_reason.is_fault and turn.reward is None and not turn.reply
        )
        try:
            result = env.step(turn.text)
        except Exception as error:
            return (
                None
                if unanswered
                else (
                    k,
                    f"the recorded action makes a fresh environment raise {type(error).__name__}: {error}",
                    "error",
                )
            )
        if unanswered:
            return (
                None
                if trajectory.stop_reason is not StopReason.ENV_ERROR
                else (
                    k,
                    "the environment failed here, and does not when replayed: its faults are not its own",
                    NOTE,
                )
            )
        if (what := _turn_differs(turn, result)) is not None:
            return k, what, "error"
    return None if result is None else _end_differs(family, trajectory, result)


def _turn_differs(turn: Any, result: StepResult) -> str | None:
    pairs = {
        "reward": (turn.reward, None if result.reward is None else float(result.reward)),
        "reward parts": (
            dict(turn.reward_parts),
            {name: float(v) for name, v in result.reward_parts.items()},
        ),
        "moves": (tuple(turn.moves), tuple(result.info.get("moves", ()))),
        "tool calls": (turn.tool_calls, result.tool_calls),
        "success": (turn.info.get("success"), result.info.get("success")),
    }
    if tuple(turn.reply) != result.observation.messages:
        return (
            f"the environment's reply is recorded as {_words(turn.reply)}, and replayed it is "
            f"{_words(result.observation.messages)}"
        )
    for name, (recorded, replayed) in pairs.items():
        if not _same(recorded, replayed):
            return (
                f"{name} recorded: {recorded}; when the recorded actions are replayed: {replayed}"
            )
    return None


def _end_differs(
    family: EnvFamily, trajectory: Trajectory, result: StepResult
) -> tuple[int, str, str] | None:
    last, stop = len(trajectory.turns) - 1, trajectory.stop_reason
    ended = (
        StopReason.TERMINATED
        if result.terminated
        else StopReason.ENV_TRUNCATED
        if result.truncated
        else None
    )
    if ended is not None and stop is not ended and not stop.is_fault:
        return (
            last,
            f"it ended as {stop.value}, and replayed the environment says {ended.value}",
            "error",
        )
    if ended is None and stop in (StopReason.TERMINATED, StopReason.ENV_TRUNCATED):
        return last, f"it ended as {stop.value}, and replayed the environment would go on", "error"
    if stop is StopReason.MAX_TURNS and len(trajectory.turns) != family.max_turns:
        return (
            last,
            f"it ended for {family.max_turns} turns, and has {len(trajectory.turns)}",
            "error",
        )
    if stop in (StopReason.CONTEXT_FULL, StopReason.MAX_TURNS) and not scores_after(
        family
    ):  # its parts are no replay's
        owed = float(sum(result.if_cut.values())) if result.if_cut else None
        if not _same(trajectory.outcome, owed):
            return (
                last,
                f"a limit cut it, which pays {owed}; the outcome recorded is {trajectory.outcome}",
                "error",
            )
    success = result.info.get("success")
    if (
        trajectory.success is not None
        and success is not None
        and trajectory.success != bool(success)
    ):
        return last, f"success recorded: {trajectory.success}; replayed: {bool(success)}", "error"
    return None


def _same(one: Any, other: Any) -> bool:
    if (
        isinstance(one, float)
        and isinstance(other, float)
        and math.isnan(one)
        and math.isnan(other)
    ):
        return True
    return one == other


def _words(messages: Sequence[Any]) -> str:
    text = " ".join(message.text for message in messages)
    return repr(text if len(text) <= 120 else f"{text[:60]} ... {text[-60:]}")


RULES: tuple[Rule, ...] = (
    Rule(
        "R20",
        "replayed actions give the recorded replies and rewards",
        means="What is trained on is not what happened: rewards, replies or ends belong to another action, another "
        "turn or another attempt.",
        mend="Compare collecting with the environment from the turn that is named on. An environment that is not the "
        "same twice says deterministic = False in its family.",
        needs=("groups", "family"),
        check=_replayed,
        when="step",
        threads=("OpenEnv#841", "SkyRL#201", "AReaL#1681"),
    ),
)
