"""Environments: what they answered can be had again (R20).

A recorded trajectory is played once more, its actions in its order, in a fresh environment. Where replies, rewards or ends
come out otherwise, what is trained on is not what happened.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from workbench.basics.findings import NOTE, Checked, Finding, NotChecked
from workbench.extensions.scripted_play.playing import (
    PlayedTrajectory,
    is_over,
    replay,
    same,
    script_of,
    unplayable,
)
from workbench.linting.evidence import Evidence
from workbench.linting.rule import Rule, RuleResult
from workbench.values import StepResult, StopReason, Trajectory, Turn, sum_of
from workbench.worlds.base import EnvFamily
from workbench.worlds.scoring import scores_after

ENOUGH_S = 0.02  # of replaying in a step, after which no further trajectory is begun: environments may be slow


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
        difference = _differs(family, trajectory)
        if difference is not None:
            turn, what, severity = difference
            script = script_of(trajectory)
            if severity != NOTE and not same(
                replay(family, script).answers, replay(family, script).answers
            ):
                what = (
                    f"replayed twice, this trajectory does not go the same way twice, so what is recorded "
                    f"cannot be compared ({what}): declare deterministic = False in its family"
                )
                severity = NOTE
            place = evidence.place(n) if turn is None else evidence.place(n, turn=turn)
            yield Finding(what, place, severity)


def _seeds(evidence: Evidence) -> Iterator[RuleResult]:
    """Trajectories of a task meet chances of their own: their dynamics seeds differ."""
    for first, group in evidence.numbered_groups:
        seeds = [t.dynamics_seed for t in group]
        if len(set(seeds)) < len(seeds):
            n = next(k for k, seed in enumerate(seeds) if seed in seeds[:k])
            yield Finding(
                f"{len(seeds) - len(set(seeds))} of {len(seeds)} trajectories of this task have the dynamics "
                f"seed of another one ({seeds[n]}): chance is the same for both",
                evidence.place(first + n),
            )


def _sample(count: int, samples: int | None, step: int | None) -> list[int]:
    """Which of so many trajectories: spread over all groups, others in every step."""
    if samples is None or samples >= count or step is None:
        return list(range(count))
    stride = count // samples
    return [(k * stride + step % stride) for k in range(samples)]


def _differs(family: EnvFamily, trajectory: Trajectory) -> tuple[int | None, str, str] | None:
    """(turn, in words, severity) of the first thing that a fresh environment answers otherwise; None: nothing."""
    if not trajectory.first_observation.messages:
        return None  # it failed before it began
    read = ("state_key",)
    if any(turn.privileged is not None for turn in trajectory.turns):
        read = ("state_key", "privileged")
    return _replay_differs(replay(family, script_of(trajectory), read=read), trajectory)


def _replay_differs(
    played: PlayedTrajectory, trajectory: Trajectory
) -> tuple[int | None, str, str] | None:
    if played.opening is None:
        severity = NOTE if played.where == "make" else "error"
        return None, f"this task cannot be begun again: {played.error}", severity
    if played.opening != trajectory.first_observation:
        what = (
            f"a fresh environment opens this task with {_words(played.opening.messages)}, and recorded is "
            f"{_words(trajectory.first_observation.messages)}"
        )
        return None, what, "error"
    for k, turn in enumerate(trajectory.turns):
        if k and is_over(played.results[k - 1]):
            more = len(trajectory.turns) - k
            what = f"the trajectory was over after turn {k - 1}, and {more} more are recorded"
            return k, what, "error"
        if (what := _state_differs(turn, played.readings[k])) is not None:
            return k, what, "error"
        last = k + 1 == len(trajectory.turns)
        unanswered = (
            last and trajectory.stop_reason.is_fault and turn.reward is None and not turn.reply
        )
        raised = k == len(played.results)
        if unanswered:
            if raised or trajectory.stop_reason is not StopReason.ENV_ERROR:
                return None
            what = "the environment failed here, and does not when replayed: its faults are not its own"
            return k, what, NOTE
        if raised:
            what = f"the recorded action makes a fresh environment raise {played.error}"
            return k, what, "error"
        if (what := _turn_differs(turn, played.results[k])) is not None:
            return k, what, "error"
    return _end_differs(played.family, trajectory, played.results[-1]) if played.results else None


def _state_differs(turn: Turn, replayed: Mapping[str, Any]) -> str | None:
    """Compare the state before this turn."""
    key = replayed.get("state_key")
    if key != turn.state_key:
        return f"the action was taken in state {turn.state_key!r} as recorded, and in {key!r} when replayed"
    if (
        turn.privileged is not None
        and (privileged := replayed.get("privileged")) != turn.privileged
    ):
        return (
            f"a critic was told {turn.privileged!r} as recorded, and {privileged!r} when replayed"
        )
    return None


def _turn_differs(turn: Turn, result: StepResult) -> str | None:
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
    last = len(trajectory.turns) - 1
    stop = trajectory.stop_reason
    ended = None
    if result.terminated:
        ended = StopReason.TERMINATED
    elif result.truncated:
        ended = StopReason.ENV_TRUNCATED
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
        owed = float(sum_of(result.if_cut.values())) if result.if_cut else None
        if not _same(trajectory.outcome, owed):
            return (
                last,
                f"a limit cut it, which pays {owed}; the outcome recorded is {trajectory.outcome}",
                "error",
            )
    success = result.info.get("success")
    if (
        not scores_after(family)  # which may have said another word on it
        and trajectory.success is not None
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
        "turn or another trajectory.",
        mend="Compare collecting with the environment from the turn that is named on. An environment that is not the "
        "same twice says deterministic = False in its family.",
        needs=("groups", "family"),
        check=_replayed,
        threads=("OpenEnv#841", "SkyRL#201", "AReaL#1681"),
    ),
)
