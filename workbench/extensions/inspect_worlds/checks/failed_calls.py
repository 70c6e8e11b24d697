"""A bonus for calling a tool that a call which failed earns as well (E12)."""

from __future__ import annotations

from collections.abc import Iterator

from workbench.basics.findings import NOTE, Checked, Finding, RuleResult
from workbench.extensions.scripted_play.given import CheckInput
from workbench.extensions.scripted_play.paid import NEAR
from workbench.extensions.scripted_play.playing import PlayedTrajectory, Spent, replay
from workbench.values.errors import shortened
from workbench.worlds.shared import made
from workbench.worlds.tool_env import ToolEnv

TASKS = 6
LEAST = 3
NOBODY = "zq zq"  # what no tool knows


def check_failed_calls(given: CheckInput) -> Iterator[RuleResult]:
    """The solver's answer without its calls earns less than with them, and as much with calls of
    arguments that mean nothing."""
    env = made(given.family)
    if not isinstance(env, ToolEnv) or not env.tools:
        return
    spent = Spent()
    paid: list[tuple[PlayedTrajectory, str, float]] = []
    asked = 0
    for one in given.solved_once(least_turns=2)[:TASKS]:
        if spent.seconds > given.budget_s:
            break
        calls = [result.tool_calls for result in one.results]
        if not all(calls[:-1]) or calls[-1] or one.reward is None:
            continue
        alone = replay(given.family, one.script._replace(texts=one.texts[-1:]))
        if alone.error or alone.reward is None or alone.reward > one.reward - NEAR:
            continue  # nothing is paid for a call
        asked += 1
        senseless = _senseless_calls(env, one)
        in_vain = replay(given.family, one.script._replace(texts=(*senseless, one.texts[-1])))
        if not in_vain.error and in_vain.reward is not None and in_vain.reward > one.reward - NEAR:
            paid.append((one, senseless[0], one.reward - alone.reward))
    yield Checked(asked, "a bonus for calls")
    if len(paid) >= LEAST:
        one, text, bonus = paid[0]
        yield Finding(
            f"{bonus:.3g} of the reward is paid for a call before the answer, and a call that "
            f"means nothing earns it as well: {shortened(text, 80)} at {one.task.id!r}, so at "
            f"{len(paid)} of {asked} tasks. A policy learns to call, and not to ask; where the "
            "call should bring something, look at its error or at what it was asked (call.error, "
            "call.arguments)",
            severity=NOTE,
        )


def _senseless_calls(env: ToolEnv, one: PlayedTrajectory) -> list[str]:
    """The first call of each turn but the last one, with arguments that mean nothing."""
    calls = [result.tool_calls[0] for result in one.results[:-1]]
    return [
        env.format.write_call(
            call.name, {name: _senseless(value) for name, value in call.arguments.items()}
        )
        for call in calls
    ]


def _senseless(value: object) -> object:
    """Something of the same kind that is no sensible argument."""
    if isinstance(value, bool):
        return value
    return -987_654_321 if isinstance(value, (int, float)) else NOBODY
