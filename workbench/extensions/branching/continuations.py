"""Continuations of a stored trajectory: its turns are played again as they stand, from one of them on the policy samples anew.

The loop is `collect`'s own. The engine hands out the stored completions of the turns that are played again, the family makes
environments with the stored seed, and whatever comes out otherwise than it is stored ends the trajectory with the difference.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.engines.base import Completion, Engine, Request
from workbench.rollouts.collect import collect
from workbench.values import Group, Sampling, Span, Trajectory, Turn
from workbench.values.errors import DataError
from workbench.worlds.base import EnvFamily, Wrapped


class ReplayedEngine(Wrapped):
    """`engine`, but the first `turns` turns of every trajectory are those of `attempt`: the very token ids and logprobs."""

    def __init__(self, engine: Engine, trajectory: Trajectory, turns: int) -> None:
        super().__init__(engine)
        self._turns = turns
        self._spans = stored_actions(trajectory)
        self._finish = [turn.finish for turn in trajectory.turns]
        self._asked: dict[str, int] = {}  # trajectory -> turns that were asked for
        self._ready: list[Completion] = []

    def submit(self, request: Request) -> None:
        key = request.session.rpartition("/")[0]
        turn = self._asked.get(key, 0)
        self._asked[key] = turn + 1
        if turn >= self._turns:
            return self._inside.submit(request)
        prompt, span = self._spans[turn]
        if np.array_equal(np.asarray(request.prompt_ids), prompt):
            stored = Completion(
                request.id,
                span.token_ids,
                span.logprobs,
                self._finish[turn],
                span.policy_version or 0,
                span.sampling or Sampling(),
                span.plain_logprobs,
            )
            self._ready.append(stored)
        else:
            self._ready.append(_refusal(request, turn, prompt))
        return None

    def poll(self) -> list[Completion]:
        ready = self._ready
        self._ready = []
        return [*ready, *self._inside.poll()]


def _refusal(request: Request, turn: int, prompt: np.ndarray) -> Completion:
    """An error in place of a completion, with the first token at which the prompts differ."""
    pairs = zip(request.prompt_ids, prompt)
    shorter = min(len(prompt), len(request.prompt_ids))
    at = next((place for place, (asked, stored) in enumerate(pairs) if asked != stored), shorter)
    return Completion(
        request.id,
        np.zeros(0, np.int32),
        np.zeros(0, np.float32),
        "error",
        0,
        Sampling(),
        error=f"turn {turn}: its prompt differs from the stored one from token {at} of {len(prompt)} on",
    )


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


def stored_actions(trajectory: Trajectory) -> list[tuple[np.ndarray, Span]]:
    """(ids of everything that stood before it in its segment, the sampled span) of each turn."""
    actions: dict[int, tuple[np.ndarray, Span]] = {}
    for segment in trajectory.segments:
        before: list[np.ndarray] = [np.zeros(0, np.int32)]
        for span in segment.spans:
            if span.sampled:
                actions[span.turn] = (np.concatenate(before), span)
            before.append(span.token_ids)
    return [actions[turn] for turn in sorted(actions)]


def continuations(
    trajectory: Trajectory, turn: int, k: int, *, address: tuple[int | str, ...], **collecting: Any
) -> Group:
    """`k` trajectories that are `trajectory` up to `turn` and sampled from there on; with `turn` after the last one, the trajectory played
    again. Chance inside the environment goes on as it did in `trajectory`.

    `collecting`: family, engine, chat, config as `collect` takes them. Raises DataError where what is played again comes out
    otherwise than it is stored, with the first difference."""
    family = collecting.pop("family")
    engine = ReplayedEngine(collecting.pop("engine"), trajectory, turn)
    [group] = collect(
        [trajectory.task],
        family=ReplayedFamily(family, trajectory.dynamics_seed),
        engine=engine,
        group_size=k,
        address=(*address, trajectory.attempt, turn),
        **collecting,
    )
    for made in group:
        if difference := _difference(made, trajectory, turn):
            raise DataError(
                f"this trajectory cannot be restored to turn {turn}: {difference}. Branching needs an environment that answers "
                "the same task, seed and actions in the same way each time; wb.check_env says whether yours does"
            )
    return group


def _difference(made: Trajectory, stored: Trajectory, turns: int) -> str:
    """What of the turns that were played again is not as it is stored, in words; "": nothing."""
    if made.first_observation != stored.first_observation:
        return "the first observation is another one"
    for number in range(turns):
        if number >= len(made.turns):
            return made.error or f"it ended after turn {number - 1} ({made.stop_reason.value})"
        now = made.turns[number]
        was = stored.turns[number]
        for name in ("text", "reward", "reply"):
            if getattr(now, name) != getattr(was, name):
                new = _in_words(now, name)
                old = _in_words(was, name)
                return f"the {name} of turn {number} is {new!r:.160}, stored is {old!r:.160}"
    return (made.error or "") if made.stop_reason.is_fault and len(made.turns) <= turns else ""


def _in_words(turn: Turn, name: str) -> Any:
    if name == "reply":
        return " ".join(message.text for message in turn.reply)
    return getattr(turn, name)


def refuse_what_cannot_be_restored(family: EnvFamily, trajectory: Trajectory) -> None:
    """Raises DataError, with the reason, for an environment that says it does not answer the same way twice, or whose state lies
    on a server, and for a trajectory that broke off."""
    name = getattr(family, "name", type(family).__name__)
    if getattr(family, "deterministic", None) is False:
        raise DataError(
            f"{name} says of itself that it is not the same twice (deterministic = False): no turn of it can be restored"
        )
    if getattr(family, "remote", False):
        raise DataError(
            f"{name} keeps its state on a server (remote = True), where it cannot be played again without acting again"
        )
    if trajectory.stop_reason.is_fault or not trajectory.turns:
        error = f" ({trajectory.error})" if trajectory.error else ""
        raise DataError(
            f"attempt {trajectory.attempt} at {trajectory.task.id} ended with {trajectory.stop_reason.value}{error}: there is "
            "nothing to branch from"
        )
