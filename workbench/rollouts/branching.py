"""Continuations of a stored attempt: its turns are played again as they stand, from one of them on the policy samples anew.

The loop is `collect`'s own. The engine hands out the stored completions of the turns that are played again, the family makes
environments with the stored seed, and whatever comes out otherwise than it is stored ends the attempt with the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.engines.base import Completion, Engine, Request
from workbench.envs.base import EnvFamily, Wrapped
from workbench.rollouts.collect import collect
from workbench.types import Group, Sampling, Span, Trajectory
from workbench.types.errors import DataError


class ReplayedEngine(Wrapped):
    """`engine`, but the first `turns` turns of every attempt are those of `attempt`: the very token ids and logprobs."""

    def __init__(self, engine: Engine, attempt: Trajectory, turns: int) -> None:
        super().__init__(engine)
        self._turns = turns
        self._spans = stored_actions(attempt)
        self._finish = [turn.finish for turn in attempt.turns]
        self._asked: dict[str, int] = {}  # attempt -> turns that were asked for
        self._ready: list[Completion] = []

    def submit(self, request: Request) -> None:
        key = request.session.rpartition("/")[0]
        turn = self._asked.get(key, 0)
        self._asked[key] = turn + 1
        if turn >= self._turns:
            return self._inside.submit(request)
        prompt, span = self._spans[turn]
        if not np.array_equal(np.asarray(request.prompt_ids), prompt):
            same = next(
                (n for n, (a, b) in enumerate(zip(request.prompt_ids, prompt)) if a != b),
                min(len(prompt), len(request.prompt_ids)),
            )
            said = f"turn {turn}: its prompt differs from the stored one from token {same} of {len(prompt)} on"
            self._ready.append(
                Completion(
                    request.id,
                    np.zeros(0, np.int32),
                    np.zeros(0, np.float32),
                    "error",
                    0,
                    Sampling(),
                    error=said,
                )
            )
            return None
        self._ready.append(
            Completion(
                request.id,
                span.token_ids,
                span.logprobs,
                self._finish[turn],
                span.policy_version or 0,
                span.sampling or Sampling(),
                span.plain_logprobs,
            )
        )
        return None

    def poll(self) -> list[Completion]:
        ready, self._ready = self._ready, []
        return [*ready, *self._inside.poll()]


class ReplayedFamily(Wrapped):
    """`family` whose environments begin with one seed for the chance inside them, whatever they are given."""

    def __init__(self, family: EnvFamily, dynamics_seed: int) -> None:
        super().__init__(family)
        self._seed = dynamics_seed

    def make(self) -> Any:
        return _Seeded(self._inside.make(), self._seed)


class _Seeded(Wrapped):
    def __init__(self, env: Any, seed: int) -> None:
        super().__init__(env)
        self._seed = seed

    def reset(self, task: Any, dynamics_seed: int) -> Any:
        return self._inside.reset(task, self._seed)


def stored_actions(attempt: Trajectory) -> list[tuple[np.ndarray, Span]]:
    """(ids of everything that stood before it in its segment, the sampled span) of each turn."""
    found: dict[int, tuple[np.ndarray, Span]] = {}
    for segment in attempt.segments:
        before: list[np.ndarray] = [np.zeros(0, np.int32)]
        for span in segment.spans:
            if span.sampled:
                found[span.turn] = (np.concatenate(before), span)
            before.append(span.token_ids)
    return [found[turn] for turn in sorted(found)]


def continuations(
    attempt: Trajectory, turn: int, k: int, *, address: tuple[int | str, ...], **collecting: Any
) -> Group:
    """`k` attempts that are `attempt` up to `turn` and sampled from there on; with `turn` after the last one, the attempt played
    again. Chance inside the environment goes on as it did in `attempt`.

    `collecting`: family, engine, chat, config as `collect` takes them. Raises DataError where what is played again comes out
    otherwise than it is stored, with the first difference."""
    family = collecting.pop("family")
    engine = ReplayedEngine(collecting.pop("engine"), attempt, turn)
    [group] = collect(
        [attempt.task],
        family=ReplayedFamily(family, attempt.dynamics_seed),
        engine=engine,
        group_size=k,
        address=(*address, attempt.attempt, turn),
        **collecting,
    )
    for made in group:
        if said := _difference(made, attempt, turn):
            raise DataError(
                f"this attempt cannot be restored to turn {turn}: {said}. Branching needs an environment that answers "
                "the same task, seed and actions in the same way each time; wb.check_env says whether yours does"
            )
    return group


def _difference(made: Trajectory, stored: Trajectory, turns: int) -> str:
    """What of the turns that were played again is not as it is stored, in words; "": nothing."""
    if made.first_observation != stored.first_observation:
        return "the first observation is another one"
    for number in range(turns):
        if number >= len(made.turns):
            return (
                f"{made.error}"
                if made.error
                else f"it ended after turn {number - 1} ({made.stop_reason.value})"
            )
        now, was = made.turns[number], stored.turns[number]
        for name in ("text", "reward", "reply"):
            if getattr(now, name) != getattr(was, name):
                said = [
                    " ".join(m.text for m in turn.reply) if name == "reply" else getattr(turn, name)
                    for turn in (now, was)
                ]
                return (
                    f"the {name} of turn {number} is {said[0]!r:.160}, stored is {said[1]!r:.160}"
                )
    return (made.error or "") if made.stop_reason.is_fault and len(made.turns) <= turns else ""


def refuse_what_cannot_be_restored(family: EnvFamily, attempt: Trajectory) -> None:
    """Raises DataError, with the reason, for an environment that says it does not answer the same way twice, or whose state lies
    on a server, and for an attempt that broke off."""
    name = getattr(family, "name", type(family).__name__)
    if getattr(family, "deterministic", None) is False:
        raise DataError(
            f"{name} says of itself that it is not the same twice (deterministic = False): no turn of it can be restored"
        )
    if getattr(family, "remote", False):
        raise DataError(
            f"{name} keeps its state on a server (remote = True), where it cannot be played again without acting again"
        )
    if attempt.stop_reason.is_fault or not attempt.turns:
        raise DataError(
            f"attempt {attempt.attempt} at {attempt.task.id} ended with {attempt.stop_reason.value}"
            + (f" ({attempt.error})" if attempt.error else "")
            + ": there is nothing to branch from"
        )
